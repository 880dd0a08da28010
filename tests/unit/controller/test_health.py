import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from controller.health import Health, HealthServer, every_address


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(clock)


@pytest.fixture
def server(health: Health) -> Iterator[HealthServer]:
    with HealthServer("127.0.0.1", 0, health, lambda: b"sluice_up 1\n") as server:
        yield server


def get(server: HealthServer, path: str) -> tuple[int, str]:
    host, port = server.address
    try:
        with urlopen(f"http://{host}:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_are_served(server: HealthServer) -> None:
    assert get(server, "/metrics") == (200, "sluice_up 1\n")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_every_address_includes_those_of_ipv4(health: Health) -> None:
    with HealthServer("::", 0, health, lambda: b"sluice_up 1\n") as server:
        _, port = server.address
        assert server.url == f"http://[::]:{port}"
        for host in ("127.0.0.1", "[::1]"):
            with urlopen(f"http://{host}:{port}/metrics", timeout=5) as answer:
                assert answer.read() == b"sluice_up 1\n"


def test_the_address_is_told_as_a_url(server: HealthServer) -> None:
    assert server.url == f"http://127.0.0.1:{server.address[1]}"


def test_a_loop_that_stopped_turning_is_not_alive_and_named(server: HealthServer, health: Health, clock: Clock) -> None:
    health.beat("cycle", within_s=60)
    health.beat("watches", within_s=10)
    clock.now_s = 10
    assert get(server, "/livez") == (200, "ok\n")
    clock.now_s = 11
    assert get(server, "/livez") == (503, "watches: no progress for 11 s\n")


def test_the_operator_is_ready_while_its_cycles_succeed(server: HealthServer, health: Health) -> None:
    assert get(server, "/readyz") == (503, "no cycle has completed yet\n")
    health.ready()
    assert get(server, "/readyz") == (200, "ok\n")
    health.not_ready("GET /api/v1/nodes: connection refused")
    assert get(server, "/readyz") == (503, "GET /api/v1/nodes: connection refused\n")


def test_a_standby_is_ready_and_says_who_leads(server: HealthServer, health: Health) -> None:
    health.ready("standby, leader is sluice-0_5f")
    assert get(server, "/readyz") == (200, "standby, leader is sluice-0_5f\n")
    health.ready()
    assert get(server, "/readyz") == (200, "ok\n")


def test_another_path_is_not_found(server: HealthServer) -> None:
    assert get(server, "/")[0] == 404


def test_a_client_that_says_nothing_does_not_keep_others_out(server: HealthServer) -> None:
    with socket.create_connection(server.address):
        assert get(server, "/livez")[0] == 200


def test_a_client_that_goes_away_leaves_no_traceback(
    health: Health, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, closed, ended = threading.Event(), threading.Event(), threading.Event()

    def metrics() -> bytes:
        asked.set()
        assert closed.wait(20)
        return bytes(50_000_000)

    with HealthServer("127.0.0.1", 0, health, metrics) as server:
        shut = server._server.shutdown_request

        def shut_down(request: Any) -> None:
            shut(request)
            ended.set()

        monkeypatch.setattr(server._server, "shutdown_request", shut_down)
        with socket.create_connection(server.address) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert asked.wait(20)
        closed.set()
        assert ended.wait(20)
    assert "Traceback" not in capfd.readouterr().err


def test_every_address_without_ipv6_is_that_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    assert every_address() == "0.0.0.0"
