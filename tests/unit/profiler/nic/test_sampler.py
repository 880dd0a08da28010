"""The exporter on real sockets: a UDP socket on loopback that is drained too slowly."""

import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from profiler.nic.node_reader import NodeReader
from profiler.nic.pressure import NodeGauges
from profiler.nic.sampler import Sampler
from profiler.nic.socket_diagnostics import SocketMemory
from profiler.samples import Absence

DATAGRAM = bytes(160)  # 20 ms of 8 kHz speech, as RTP carries it
MOST_ROUNDS = 2000
SENT, SERVED = 4, 1
"""Datagrams that are sent in a round, and those that the worker takes."""


@dataclass
class Clock:
    """A clock that each sample moves on by a second, so that no test depends on how fast it runs."""

    now_s: float = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


@dataclass
class Worker:
    """A receiver with a buffer of 64 KiB, and the sender that floods it."""

    receiver: socket.socket
    sender: socket.socket

    def send(self, count: int) -> None:
        for _ in range(count):
            self.sender.sendto(DATAGRAM, self.receiver.getsockname())

    def serve(self, count: int) -> None:
        for _ in range(count):
            self.receiver.recv(len(DATAGRAM))

    def drain(self) -> None:
        self.receiver.setblocking(False)
        try:
            while True:
                self.receiver.recv(len(DATAGRAM))
        except BlockingIOError:
            self.receiver.settimeout(10)


@pytest.fixture
def worker() -> Iterator[Worker]:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(10)
        yield Worker(receiver=receiver, sender=sender)


def lost(gauges: NodeGauges) -> bool:
    losses = gauges.host.losses_per_s
    return not isinstance(losses, Absence) and losses > 0


def number(gauges: NodeGauges) -> float:
    if isinstance(gauges.host.fill, Absence):
        pytest.skip(f"this kernel does not say how large receive buffers are: {gauges.host.fill.detail}")
    assert not isinstance(gauges.node, Absence)
    return gauges.node


def test_the_pressure_rises_before_the_first_loss_and_falls_when_the_worker_keeps_up(worker: Worker) -> None:
    sampler = Sampler(NodeReader(clock=Clock()), window_s=5.0)
    before: list[float] = []
    for _ in range(MOST_ROUNDS):
        worker.send(SENT)
        worker.serve(SERVED)
        gauges = sampler.sample()
        if lost(gauges):
            break
        before.append(number(gauges))
    else:
        pytest.fail("no datagram was lost")
    assert max(before[:5]) < 0.3
    assert max(before) > 0.8, "losses began before the pressure had risen"
    first = next(index for index, pressure in enumerate(before) if pressure > 0.8)
    assert first < len(before) - 5, "the rule had no time to act"
    assert gauges.node == 1.0

    worker.drain()
    after = [sampler.sample() for _ in range(10)]
    assert number(after[-1]) < 0.3
    assert not lost(after[-1])


def test_a_worker_that_keeps_up_has_no_pressure(worker: Worker) -> None:
    sampler = Sampler(NodeReader(clock=Clock()), window_s=5.0)
    for _ in range(50):
        worker.send(SENT)
        worker.serve(SENT)
        assert number(sampler.sample()) < 0.2


def test_samples_are_kept_for_the_window() -> None:
    sampler = Sampler(NodeReader(clock=Clock()), window_s=3.0)
    for _ in range(10):
        sampler.sample()
    assert [sample.at_s for sample in sampler._samples] == [7, 8, 9, 10]


def test_the_thread_samples_until_the_context_ends() -> None:
    taken: list[int] = []
    with Sampler(NodeReader(), interval_s=0.001, sampled=lambda: taken.append(1)) as sampler:
        while len(taken) < 3:
            sampler.sample()
        assert "speech_nic_node_rx_queue_pressure" in sampler.text()
    assert not sampler._thread.is_alive()


def test_two_samples_are_kept_whatever_the_window() -> None:
    sampler = Sampler(NodeReader(clock=Clock()), window_s=0.5)
    gauges = [sampler.sample() for _ in range(3)][-1]
    assert [sample.at_s for sample in sampler._samples] == [2, 3]
    assert not isinstance(gauges.host.losses_per_s, Absence)


def test_a_sample_that_fails_does_not_end_the_thread() -> None:
    taken = threading.Semaphore(0)
    count = 0

    def sampled() -> None:
        nonlocal count
        count += 1
        taken.release()
        if count == 2:
            raise ValueError("a mistake")

    with Sampler(NodeReader(), interval_s=0.001, sampled=sampled):
        for _ in range(4):
            assert taken.acquire(timeout=20)


def test_the_end_does_not_wait_for_a_sample_that_hangs() -> None:
    entered, release = threading.Event(), threading.Event()
    reader = NodeReader()
    sampler = Sampler(reader, interval_s=0.001)

    def hang() -> Mapping[int, SocketMemory]:
        entered.set()
        assert release.wait(60)
        return {}

    with sampler:
        reader.diagnose = hang
        assert entered.wait(20)
    assert sampler._thread.is_alive()
    release.set()
    sampler._thread.join(20)
    assert not sampler._thread.is_alive()
