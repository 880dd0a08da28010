"""A load test ends within its bounds, and says why a server cannot be measured. The servers here are coroutines."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from optimizer.model import Batching
from profiler.load_test.clients.port import Client, RequestFailed
from profiler.load_test.drive import Driver
from profiler.load_test.method import Limits, LoadTest, LoadTestFailed, Profile

Serve = Callable[[int], Awaitable[None]]


class Server:
    """A target of which each request is `serve(n)`, n requests being in flight with it."""

    name = "server"
    continuous: bool | None = None
    sessions = False

    def __init__(self, serve: Serve, most_clients: int = 1000) -> None:
        self.serve, self.inside, self.open_clients, self.most_clients = serve, 0, 0, most_clients

    async def client(self) -> Client:
        if self.open_clients >= self.most_clients:
            raise RequestFailed("no WebSocket: status 503")
        self.open_clients += 1
        return self._Client(self)

    async def metrics(self) -> str | None:
        return None

    async def close(self) -> None:
        pass

    class _Client:
        def __init__(self, server: "Server") -> None:
            self.server = server

        async def request(self) -> float | None:
            server = self.server
            server.inside += 1
            try:
                await server.serve(server.inside)
            finally:
                server.inside -= 1
            return None

        async def close(self) -> None:
            self.server.open_clients -= 1


def outcome_of(serve: Serve, *, most_clients: int = 1000, **limits: float) -> tuple[Profile, Server, list[str]]:
    server, said = Server(serve, most_clients), list[str]()

    async def run() -> Profile:
        driver = Driver(server, 8, random.Random(1))
        try:
            return await LoadTest(driver, Limits(**{"time_s": 2.0, "concurrency": 8, **limits}), said.append).run()  # type: ignore[arg-type]
        finally:
            await driver.close()

    return asyncio.run(run()), server, said


def one_at_a_time(service_s: float) -> Serve:
    lock = asyncio.Lock()

    async def serve(_: int) -> None:
        async with lock:
            await asyncio.sleep(service_s)

    return serve


def test_a_server_is_measured_within_the_time_and_the_clients_and_all_of_these_are_closed() -> None:
    found, server, said = outcome_of(one_at_a_time(0.004))
    assert (found.analysis.batching, found.analysis.measured) == (Batching.DYNAMIC, 1)
    assert found.took_s < 15.0
    assert {point.loop for point in found.points} == {"closed", "open"}
    assert server.open_clients == 0
    assert any("answers/s" in line for line in said)


def test_the_highest_load_within_an_slo_is_below_the_capacity() -> None:
    found, _, _ = outcome_of(one_at_a_time(0.004), slo_s=0.2)
    assert found.slo_rps is not None
    assert 0 < found.slo_rps <= found.analysis.saturation_rps


def test_an_slo_that_no_load_keeps_is_a_load_of_none() -> None:
    found, _, _ = outcome_of(one_at_a_time(0.004), slo_s=0.001)
    assert found.slo_rps == 0


def test_a_server_that_fails_is_named_with_its_words() -> None:
    async def fails(_: int) -> None:
        raise RequestFailed("status 500: out of memory")

    with pytest.raises(LoadTestFailed, match="answers no single request: status 500: out of memory"):
        outcome_of(fails)


def test_a_server_that_fails_under_load_is_measured_as_far_as_it_answers() -> None:
    async def refuses(inside: int) -> None:
        if inside > 4:
            raise RequestFailed("status 503: queue full")
        await asyncio.sleep(0.05)

    found, _, _ = outcome_of(refuses, time_s=8.0)
    closed = [point.concurrency for point in found.points if point.loop == "closed"]
    assert max(closed) <= 4
    assert any("with 8 clients" in note and "status 503: queue full" in note for note in found.notes)


def test_a_server_that_is_too_slow_for_the_time_says_so() -> None:
    found, _, _ = outcome_of(one_at_a_time(0.3), time_s=0.8)
    assert any("only one client was tried" in note for note in found.notes)
    assert found.took_s < 15.0


def test_a_server_that_accepts_no_more_sessions_is_measured_with_those_that_it_has() -> None:
    async def serve(_: int) -> None:
        await asyncio.sleep(0.02)

    found, server, _ = outcome_of(serve, most_clients=3, time_s=4.0)
    assert any("4 clients at once could not connect: no WebSocket: status 503" in note for note in found.notes)
    assert max(point.concurrency for point in found.points if point.loop == "closed") == 2
    assert server.open_clients == 0
