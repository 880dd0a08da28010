"""A reverse proxy in front of a real server, in its own thread; subclasses change requests and answers."""

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
from aiohttp import web
from yarl import URL

from simulations.lab.host.processes import LOOPBACK

START_S = 10.0
"""Time limit on starting, and on stopping, a proxy."""

_FORM = "application/x-www-form-urlencoded"
_CONNECT_S = 5.0
_CUT_S = 0.05  # for the event loop to close the sockets of aborted connections
_LARGEST_BODY = 64 << 20
_PER_CONNECTION_HEADERS = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "date",
        "host",
        "keep-alive",
        "server",
        "transfer-encoding",
    }
)


class ReverseProxy(ABC):
    """Listens on a loopback port inside its `with` block, and answers each request with `handle`."""

    def __init__(self, upstream: str, port: int) -> None:
        """Create the proxy; it listens only inside its `with` block.

        Args:
            upstream: address of the real server, as `http(s)://host:port`.
            port: loopback port to listen on.
        """
        self.url = f"http://{LOOPBACK}:{port}"
        self._upstream = upstream
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reverse-proxy", daemon=True)
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)
        self._loop.close()

    @abstractmethod
    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Return the answer to `request`.

        Raises:
            aiohttp.ClientError: the real server does not answer; the client then gets status 502.
        """

    @contextlib.asynccontextmanager
    async def _forwarded(
        self, request: web.Request, form: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the real server's answer to `request`, or to a POST of `form` to the same path if `form` is given."""
        assert self._session is not None
        method, url, data = request.method, f"{self._upstream}{request.raw_path}", await request.read() or None
        headers = end_to_end(request.headers)
        if form is not None:
            method, url, data = "POST", f"{self._upstream}{request.path}", urlencode(form).encode()
            headers = {name: value for name, value in headers.items() if name.lower() != "content-type"}
            headers["Content-Type"] = _FORM
        async with self._session.request(method, URL(url, encoded=True), data=data, headers=headers) as answer:
            yield answer

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the proxy's thread, and wait until it is done."""
        future: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.result(START_S)

    def _connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(limit=0)

    def _new_site(self, runner: web.AppRunner) -> web.TCPSite:
        return web.TCPSite(runner, LOOPBACK, self._port, reuse_address=True)

    async def _open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=self._connector(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        application = web.Application(client_max_size=_LARGEST_BODY)
        application.router.add_route("*", "/{path:.*}", self._answer)
        # A client that disconnects also ends its request to the server.
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await self._listen()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self.handle(request)
        except aiohttp.ClientError as error:
            return web.Response(status=502, text=f"upstream did not answer: {error}")

    async def _close(self) -> None:
        if self._runner is not None:
            if self._site in self._runner.sites:
                await self._stop_listening()
            self._cut_all()  # a TLS connection would wait for the client's closing message
            await self._runner.cleanup()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._session is not None:
            assert self._session.connector is not None
            await self._session.connector.close(abort_ssl=True)  # the same, for the server's message
            await self._session.close()
        await asyncio.sleep(_CUT_S)

    async def _listen(self) -> None:
        assert self._runner is not None
        self._site = self._new_site(self._runner)
        await self._site.start()

    async def _stop_listening(self) -> None:
        assert self._site is not None
        await self._site.stop()
        self._cut_all()

    def _cut_all(self) -> None:
        assert self._runner is not None
        connections = self._runner.server.connections if self._runner.server is not None else ()
        for connection in connections:
            if connection.transport is not None:
                connection.transport.abort()


async def parameters(request: web.Request) -> dict[str, str]:
    """Return the parameters of a request: those of its URL, and those of a form in its body."""
    form = await request.post() if request.content_type == _FORM else {}
    return {**request.query, **{name: str(value) for name, value in form.items()}}


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    """Return `headers` without those that describe one connection or are set anew for each message."""
    return {name: value for name, value in headers.items() if name.lower() not in _PER_CONNECTION_HEADERS}
