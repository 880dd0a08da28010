"""A telemetry socket that answers as DPDK's protocol 2 does."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from profiler.nic.dpdk import TelemetryFailed, read_ports
from profiler.samples import Absence

GREETING = {"version": "DPDK 23.11.0", "pid": 4242, "max_output_len": 16384}
ANSWERS: Mapping[str, object] = {
    "/ethdev/list": [0],
    "/ethdev/stats,0": {"ipackets": 900, "ibytes": 1, "imissed": 5, "ierrors": 2, "rx_nombuf": 3, "q_ipackets": [900]},
    "/ethdev/info,0": {"name": "0000:00:06.0", "nb_rx_queues": 4, "nb_tx_queues": 4},
    "/ethdev/rx_queue,0,0": {"mempool_name": "mb_pool_0", "nb_desc": 1024},
}


@contextmanager
def application(path: Path, answers: Mapping[str, object], greeting: object = GREETING) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.send(json.dumps(greeting).encode())
                while command := connection.recv(1024).decode():
                    connection.send(json.dumps({command.partition(",")[0]: answers.get(command)}).encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(5)


def test_a_port_with_its_queues(tmp_path: Path) -> None:
    path = tmp_path / "dpdk_telemetry.v2"
    with application(path, ANSWERS):
        (port,) = read_ports(path)
    assert (port.port, port.packets, port.missed, port.errors, port.no_buffer) == (0, 900, 5, 2, 3)
    assert (port.queues, port.ring_size) == (4, 1024)


def test_a_release_without_the_command_for_queues_has_no_ring(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with application(path, {key: value for key, value in ANSWERS.items() if "rx_queue" not in key}):
        (port,) = read_ports(path)
    assert isinstance(port.ring_size, Absence)


def test_an_application_without_ports_has_none(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with application(path, {"/ethdev/list": []}):
        assert read_ports(path) == ()


@pytest.mark.parametrize(
    ("answers", "greeting"),
    [
        (ANSWERS, {}),
        ({"/ethdev/list": [0]}, GREETING),
        (ANSWERS, ["a"]),
        ({**ANSWERS, "/ethdev/info,0": [1]}, GREETING),
    ],
)
def test_what_is_not_understood_is_an_error_that_names_the_socket(
    tmp_path: Path, answers: Mapping[str, object], greeting: object
) -> None:
    path = tmp_path / "s"
    with application(path, answers, greeting), pytest.raises(TelemetryFailed, match=str(path)):
        read_ports(path)


def test_a_socket_where_nothing_listens_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TelemetryFailed):
        read_ports(tmp_path / "none")
