"""A replica on real sockets: in the process of the test, with a stated computation, and as the process of a pod."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest
from loopback import an_address
from prometheus_client import CollectorRegistry

from profiler.instrument import StageMetrics
from simulations.lab.net.wire import ITEM_PORT, METRICS_PORT, Client, Response, ServerConnection, Status
from simulations.lab.pods.process import IMAGE, ProcessEnded, ProcessPod
from simulations.speech.audio.synthesis import Request, conversations
from simulations.speech.serving.compute import Stretched, Throttled
from simulations.speech.serving.messages import Audio, Transcript, Utterance
from simulations.speech.serving.programs import Item
from simulations.speech.serving.replica import ENVIRONMENT, Limits, QuotaPeriods, Replica

CHUNK = 2560  # 160 ms


class Stated:
    """Answers with the payload in capitals; computes for `cpu_s` per batch."""

    def __init__(self, slots: int | None = None, cpu_s: float = 0.0) -> None:
        self.slots = slots
        self.batches: list[list[str]] = []
        self.open_sessions: set[str] = set()
        self._cpu_s = cpu_s

    @property
    def sessions(self) -> int:
        return len(self.open_sessions)

    @property
    def session_bytes(self) -> float:
        return 0.0

    def knows(self, session: str) -> bool:
        return session in self.open_sessions

    def open(self, session: str) -> bool:
        if self.slots is not None and session not in self.open_sessions and len(self.open_sessions) >= self.slots:
            return False
        self.open_sessions.add(session)
        return True

    def close(self, session: str) -> None:
        self.open_sessions.discard(session)

    def export(self, session: str) -> bytes:
        self.open_sessions.remove(session)
        return session.encode()

    def restore(self, session: str, state: bytes) -> bool:
        if state != session.encode():
            raise ValueError("state: of another session")
        return True

    def compute(self, batch: Sequence[Item]) -> Sequence[Response]:
        until_s = time.thread_time() + self._cpu_s
        while time.thread_time() < until_s:
            pass
        self.batches.append([session for session, _ in batch])
        return [Response(Status.OK, payload.upper()) for _, payload in batch]


class Bench:
    """A replica with a client, and the metrics that it exports."""

    def __init__(self, program: Stated, limits: Limits, share: float) -> None:
        self.registry = CollectorRegistry()
        metrics = StageMetrics(sessions=program.slots is not None, registry=self.registry)
        self.program = program
        self.replica = Replica(program, limits, Stretched(share), metrics)
        self.client: Client

    def metric(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"speech_stage_{name}")


@contextlib.asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ServerConnection(bench.replica), "127.0.0.1", 0)
    bench.client = await Client.connect(*server.sockets[0].getsockname())
    serving = loop.create_task(bench.replica.serve())
    try:
        async with asyncio.timeout(10):
            yield
    finally:
        serving.cancel()
        bench.client.close()
        server.close()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


def play(
    use: Callable[[Bench], Awaitable[None]],
    *,
    slots: int | None = None,
    cpu_s: float = 0.0,
    share: float = 1.0,
    **limits: Any,
) -> None:
    async def run() -> None:
        bench = Bench(Stated(slots, cpu_s), Limits(**{"batch_max": 4, "batch_wait_s": 0.0, **limits}), share)
        async with running(bench):
            await use(bench)

    asyncio.run(run())


def test_sessions_that_wait_are_served_in_one_batch() -> None:
    async def use(bench: Bench) -> None:
        answers = await asyncio.gather(*(bench.client.send(n, n, f"w{n}".encode()) for n in range(1, 5)))
        assert [answer.payload for answer in answers] == [b"W1", b"W2", b"W3", b"W4"]
        assert bench.program.batches == [["1", "2", "3", "4"]]
        assert (bench.metric("items_total"), bench.metric("batches_total")) == (4, 1)

    play(use, batch_wait_s=5.0)


def test_a_batch_that_is_not_full_starts_after_its_wait() -> None:
    async def use(bench: Bench) -> None:
        assert (await bench.client.send(1, 1, b"a")).payload == b"A"

    play(use, batch_wait_s=0.02)


def test_the_chunks_of_a_session_are_served_in_order_one_per_batch() -> None:
    async def use(bench: Bench) -> None:
        await asyncio.gather(*(bench.client.send(n, 1 + n % 2, b"x") for n in range(6)))
        assert bench.program.batches == [["1", "2"]] * 3

    play(use, batch_wait_s=0.05, batch_max=2)


def test_a_share_of_a_core_makes_batches_longer_by_as_much() -> None:
    async def use(bench: Bench) -> None:
        for n in range(4):
            await bench.client.send(n, 1, b"x")
        busy_s = bench.metric("busy_seconds_total")
        assert busy_s is not None
        assert busy_s >= 4 * 0.01 / 0.25

    play(use, cpu_s=0.01, share=0.25)


def test_a_full_queue_refuses_and_counts_what_it_refused_as_load() -> None:
    async def use(bench: Bench) -> None:
        answers = await asyncio.gather(*(bench.client.send(n, n, b"x") for n in range(1, 6)))
        assert [answer.status for answer in answers] == [Status.OK] * 3 + [Status.REFUSED_QUEUE] * 2
        assert bench.metric("arrivals_total") == 5

    play(use, queue_limit=3, batch_wait_s=0.05)


def test_a_session_without_a_slot_is_refused_until_one_ends() -> None:
    async def use(bench: Bench) -> None:
        statuses = [(await bench.client.open_session(n)).status for n in (1, 2, 1)]
        assert statuses == [Status.OK, Status.REFUSED_SLOT, Status.OK]
        assert (await bench.client.send(1, 2, b"x")).status is Status.REFUSED_SLOT
        assert (bench.metric("sessions"), bench.metric("sessions_refused_total")) == (1, 2)
        bench.client.end_session(1)
        assert (await bench.client.open_session(2)).status is Status.OK

    play(use, slots=1)


def test_a_replica_that_ends_serves_its_sessions_takes_no_new_ones_and_loses_nothing() -> None:
    async def use(bench: Bench) -> None:
        await bench.client.open_session(1)
        queued = [bench.client.send(n, 1, b"x") for n in range(5)]
        draining = asyncio.create_task(bench.replica.drain(5.0))
        await asyncio.sleep(0)
        assert (await bench.client.open_session(2)).status is Status.DRAINING
        assert {answer.status for answer in await asyncio.gather(*queued)} == {Status.OK}
        assert (await bench.client.send(9, 1, b"y")).payload == b"Y"
        assert not draining.done()
        bench.client.end_session(1)
        await draining
        assert bench.replica.cut == 0

    play(use, slots=4)


def test_a_session_that_does_not_end_in_time_is_cut_and_counted() -> None:
    async def use(bench: Bench) -> None:
        await bench.client.open_session(1)
        await bench.replica.drain(0.05)
        assert bench.replica.cut == 1
        with pytest.raises(ConnectionError):
            await bench.client.send(1, 1, b"x")

    play(use, slots=4)


# -- as a process


def replica(*arguments: str) -> ProcessPod:
    return ProcessPod(
        {
            "image": IMAGE,
            "command": ["python", "-m", "simulations.speech.serving.replica", *arguments],
            "env": [{"name": name, "value": value} for name, value in ENVIRONMENT.items()],
        },
        an_address(),
    )


def play_process(pod: ProcessPod, use: Callable[[ProcessPod], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            async with asyncio.timeout(60):
                await use(pod)
        finally:
            await pod.abort()

    asyncio.run(run())


def scraped(host: str) -> str:
    with build_opener(ProxyHandler({})).open(f"http://{host}:{METRICS_PORT}/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
    return text


def test_a_replica_recognises_a_conversation_and_says_at_its_end_what_it_served() -> None:
    (spoken,) = conversations([Request(seed=1, duration_s=10.0, activity=0.6)])
    chunks = [spoken.samples[at : at + CHUNK] for at in range(0, len(spoken.samples) - CHUNK + 1, CHUNK)]

    async def use(pod: ProcessPod) -> None:
        await pod.start()
        client = await Client.connect(pod.host, ITEM_PORT)
        assert (await client.open_session(1)).status is Status.OK
        assert (await client.open_session(2)).status is Status.REFUSED_SLOT
        words: list[str] = []
        rest: list[str] = []
        for number, samples in enumerate(chunks):
            answer = await client.send(number, 1, Audio(samples).encode())
            if answer.status is Status.OK:
                words += Utterance.decode(answer.payload).transcript.words
                rest = []
            else:
                rest = list(Transcript.decode(answer.payload).words)
        assert words + rest == spoken.text.split()
        shown = scraped(pod.host)
        assert f"speech_stage_items_total {float(len(chunks))}" in shown
        assert "speech_stage_sessions 1.0" in shown
        assert "speech_stage_sessions_refused_total 1.0" in shown
        (size,) = [line.split()[1] for line in shown.splitlines() if line.startswith("speech_stage_session_bytes ")]
        assert float(size) >= 157_640
        client.end_session(1)
        client.close()
        await pod.drain()
        assert (pod.counts.served, pod.counts.sessions_cut) == (len(chunks), 0)

    play_process(replica("asr", "--variant", "large", "--slots", "1", "--batch-wait", "0"), use)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["asr", "--variant", "huge"], "replica of asr: variant: 'huge', must be one of tiny, small, large"),
        (["asr", "--slots", "0"], "replica of asr: slots: 0, must be at least 1"),
        (["rescore", "--share", "2"], "replica of rescore: share: 2.0, must be above 0 and at most 1"),
        (["tts"], "invalid choice: 'tts'"),
    ],
)
def test_a_wrong_option_ends_a_replica_with_the_reason(arguments: list[str], message: str) -> None:
    async def use(pod: ProcessPod) -> None:
        with pytest.raises(ProcessEnded) as ended:
            await pod.start()
        assert message in str(ended.value)

    play_process(replica(*arguments), use)


def test_a_replica_under_a_quota_exports_its_periods_and_another_one_nothing() -> None:
    registry, quota = CollectorRegistry(), Throttled(0.2)
    limited: list[Throttled] = []
    registry.register(QuotaPeriods(lambda: limited[0] if limited else None))
    names = ("container_cpu_cfs_periods_total", "container_cpu_cfs_throttled_periods_total")
    assert [registry.get_sample_value(name) for name in names] == [None, None], "no limit, no reading"
    limited.append(quota)
    quota.end_s(0.0, 0.05)
    assert [registry.get_sample_value(name) for name in names] == [3.0, 2.0]
