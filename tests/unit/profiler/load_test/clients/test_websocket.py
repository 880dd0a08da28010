"""A session over WebSocket gets one message for each chunk; a session that the server ends is a failure."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer

from profiler.load_test.clients.port import RequestFailed
from profiler.load_test.clients.websocket import WebSocketTarget


def play(answers: int, use: Callable[[WebSocketTarget], Awaitable[None]], *, status: int = 101) -> None:
    """Use a server that answers so many chunks of a session with a text, and then closes it."""

    async def serve(request: web.Request) -> web.StreamResponse:
        if status != 101:
            return web.Response(status=status)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for _ in range(answers):
            message = await socket.receive()
            if message.type is not WSMsgType.BINARY:
                return socket
            await socket.send_str(str(len(message.data)))
        await socket.close(code=1012)
        return socket

    async def run() -> None:
        application = web.Application()
        application.router.add_get("/audio", serve)
        async with TestServer(application) as server:
            url = str(server.make_url("/audio")).replace("http", "ws")
            target = WebSocketTarget(url, chunk=bytes(320), timeout_s=1.0, headers={})
            try:
                await use(target)
            finally:
                await target.close()

    asyncio.run(run())


def test_each_chunk_is_answered_in_its_session() -> None:
    async def use(target: WebSocketTarget) -> None:
        client = await target.client()
        assert await client.request() is None
        assert await client.request() is None
        await client.close()

    play(5, use)


def test_a_session_that_the_server_ends_is_a_failure_with_its_code() -> None:
    async def use(target: WebSocketTarget) -> None:
        client = await target.client()
        await client.request()
        with pytest.raises(RequestFailed, match="closed the session \\(code 1012\\)"):
            await client.request()

    play(1, use)


def test_a_server_without_websockets_is_named() -> None:
    async def use(target: WebSocketTarget) -> None:
        with pytest.raises(RequestFailed, match="no WebSocket: status 404"):
            await target.client()

    play(1, use, status=404)
