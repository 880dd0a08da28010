"""The nginx of `docs/how-to/sessions.md` in front of real WebSocket servers: what a drained replica costs a stream."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import WSCloseCode, WSMsgType, web
from document_blocks import blocks
from nginx import find_nginx, running
from waiting import until

from simulations.lab.host.processes import free_ports

pytestmark = pytest.mark.lab

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "sessions.md"
STREAMS = 8
HINT_MS = 100


class Replica:
    """A server of sessions that counts what it gets, and drains as the page says."""

    def __init__(self, name: str) -> None:
        self.name, self.port = name, free_ports(1)[0]
        self.sessions: set[web.WebSocketResponse] = set()
        self.draining = False

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Replica"]:
        application = web.Application()
        application.router.add_get("/", self._answer)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.draining:
            return web.Response(status=503)
        own = web.WebSocketResponse()
        await own.prepare(request)
        self.sessions.add(own)
        try:
            async for message in own:
                await own.send_str(f"{self.name}: {message.data}")
        finally:
            self.sessions.discard(own)
        return own

    async def drain(self) -> None:
        self.draining = True
        for own in tuple(self.sessions):
            await own.close(code=WSCloseCode.SERVICE_RESTART, message=f"retry in {HINT_MS}ms".encode())


class Stream:
    """A client that sends one chunk after the other and comes back after a cut with the chunk that had no answer."""

    def __init__(self, url: str, seed: int) -> None:
        self._url, self._draws = url, random.Random(seed)
        self.answers: list[str] = []
        self.cuts: list[int | None] = []
        self.chunk = 0

    async def run(self, client: aiohttp.ClientSession, over: asyncio.Event) -> None:
        while not over.is_set():
            async with client.ws_connect(self._url) as connection:
                code = await self._talk(connection, over)
            if not over.is_set():
                self.cuts.append(code)
                await asyncio.sleep(self._draws.random() * HINT_MS / 1e3)

    async def _talk(self, connection: aiohttp.ClientWebSocketResponse, over: asyncio.Event) -> int | None:
        """Send chunks until the end, or until the server ends the session; return its close code."""
        while not over.is_set():
            with contextlib.suppress(ConnectionError):  # it is closed; the code is among what was received
                await connection.send_str(str(self.chunk))
            message = await connection.receive()
            if message.type is not WSMsgType.TEXT:
                return message.data if message.type is WSMsgType.CLOSE else None
            self.answers.append(message.data)
            self.chunk += 1
            await asyncio.sleep(0.01)
        return None


def configuration(listen: int, replicas: list[Replica]) -> str:
    (block,) = (own for own in blocks(PAGE, PAGE.read_text()) if own.language == "nginx")
    text = block.text.replace("listen LISTEN", f"listen 127.0.0.1:{listen}")
    for number, replica in enumerate(replicas):
        text = text.replace(f"DECODER_{number} ", f"127.0.0.1:{replica.port} ")
    return text


def test_the_streams_of_a_drained_replica_come_back_elsewhere_and_lose_no_chunk(tmp_path: Path) -> None:
    program = find_nginx(tmp_path)
    listen = free_ports(1)[0]
    asyncio.run(a_drain(program, tmp_path, listen))


async def a_drain(program: Path, folder: Path, listen: int) -> None:
    first, second = Replica("first"), Replica("second")
    over = asyncio.Event()
    streams = [Stream(f"http://127.0.0.1:{listen}/", seed) for seed in range(STREAMS)]
    async with first.serving(), second.serving(), aiohttp.ClientSession() as client:
        with running(program, configuration(listen, [first, second]), folder, listen):
            tasks = [asyncio.create_task(stream.run(client, over)) for stream in streams]
            await holds(lambda: all(len(stream.answers) > 2 for stream in streams))
            assert (len(first.sessions), len(second.sessions)) == (STREAMS // 2, STREAMS // 2)
            await first.drain()
            await holds(lambda: len(second.sessions) == STREAMS)
            before = [len(stream.answers) for stream in streams]
            await holds(lambda: all(len(s.answers) > n + 2 for s, n in zip(streams, before, strict=True)))
            over.set()
            await asyncio.gather(*tasks)
    assert sum(len(stream.cuts) for stream in streams) == STREAMS // 2
    assert {cut for stream in streams for cut in stream.cuts} == {WSCloseCode.SERVICE_RESTART}
    for stream in streams:
        assert [answer.partition(": ")[2] for answer in stream.answers] == [str(k) for k in range(stream.chunk)]
        assert stream.answers[-1].startswith("second: ")


async def holds(what: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, what)
