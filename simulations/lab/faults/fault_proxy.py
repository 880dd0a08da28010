"""The fault proxy: a reverse proxy in front of a real server, between it and one client that is to be tested.

What no fault matches passes as it is: headers, token, watches line by line; compression alone is undone. Faults are
switched at run time from any thread, and hold until they are taken away; each names the requests that it meets.
"""

import asyncio
import contextlib
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
from aiohttp import web
from yarl import URL

from simulations.lab.host.processes import LOOPBACK

_START_S = 10.0
_CONNECT_S = 5.0
_CUT_S = 0.05  # for the loop to close the sockets of connections that were cut
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
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_STATUS_REASONS: Mapping[int, str] = {
    403: "Forbidden",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, as far as faults are concerned. `query` has the parameters of the address and of a form."""

    method: str
    path: str
    query: Mapping[str, str]

    @property
    def is_watch(self) -> bool:
        """Whether it follows a collection instead of reading it."""
        return self.query.get("watch") in {"1", "true"}

    @property
    def is_write(self) -> bool:
        """Whether it may change something."""
        return self.method in _WRITES


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which requests a fault meets: every one, unless narrowed. `path` is a regular expression for the whole path."""

    path: str = ".*"
    methods: Collection[str] | None = None
    watch: bool | None = None

    def meets(self, asked: Asked) -> bool:
        """Whether `asked` is one of them."""
        return (
            (self.methods is None or asked.method in self.methods)
            and (self.watch is None or asked.is_watch is self.watch)
            and re.fullmatch(self.path, asked.path) is not None
        )


SCALES = Where(path=".*/scale", methods=("PATCH",))
"""Changes of replicas."""
EVERY_WRITE = Where(methods=_WRITES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Answer with a status of our own, as an API server words it, and forward nothing."""

    status: int
    message: str = "refused by the fault proxy"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Forward after `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Accept and answer nothing while the fault lasts, then cut the connection; a running watch falls silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """Cut the connection: of a request in place of its answer, of a watch at once, even when it is running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """Forward, and return the first `share` of the answer's bytes as if they were all."""

    share: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """End watches as an API server does whose history no longer reaches back: an ERROR event with status 410."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Forward, and let `document` change the JSON of the answer; it may change what is asked with `asks`."""

    document: Callable[[Asked, Any], Any] = lambda _, document: document
    asks: Callable[[Asked], Mapping[str, str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Call `before` a request is forwarded and `after` the server has answered it, from the proxy's thread."""

    before: Callable[[Asked], None] = lambda _: None
    after: Callable[[Asked], None] = lambda _: None


Effect = Refuse | Delay | Stall | Reset | Truncate | Expire | Rewrite | Call


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fault:
    """An effect on the requests that it meets. Compared by identity: two alike may overlap, and each ends by itself."""

    effect: Effect
    where: Where = field(default_factory=Where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A request that has been answered, `at_s` on the monotonic clock; `forwarded` tells whether the server saw it."""

    at_s: float
    asked: Asked
    status: int
    forwarded: bool


class FaultProxy:
    """A reverse proxy on a loopback port of its own thread, from `with` to its end.

    `faults` may be replaced at any time; the first that meets a request decides, Delay and Call beside others. `passed`
    has what was answered, watches when they began.
    """

    def __init__(
        self, upstream: str, port: int, *, trust: Path | None = None, identity: tuple[Path, Path] | None = None
    ) -> None:
        """Nothing listens before `with`.

        Args:
            upstream: address of the real server, as `http(s)://host:port`.
            port: loopback port to listen on.
            trust: certificate authority of an upstream that speaks TLS.
            identity: certificate and key to speak TLS with as a server; plain HTTP without.
        """
        self.url = f"{'http' if identity is None else 'https'}://{LOOPBACK}:{port}"
        self.passed: list[Passed] = []
        self._faults: tuple[Fault, ...] = ()
        self._upstream = upstream
        self._port = port
        self._trust = None if trust is None else ssl.create_default_context(cafile=str(trust))
        self._identity: ssl.SSLContext | None = None
        if identity is not None:
            self._identity = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._identity.load_cert_chain(*identity)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._changed: asyncio.Event = asyncio.Event()
        self._forwarding: set[asyncio.Future[web.StreamResponse]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._open()).result(_START_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._close()).result(_START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Return the faults there are."""
        return self._faults

    @faults.setter
    def faults(self, faults: tuple[Fault, ...]) -> None:
        self._faults = faults
        # Watches that are running learn of it, and so does what is being stalled.
        self._loop.call_soon_threadsafe(self._wake)

    @contextlib.contextmanager
    def fault(self, effect: Effect, where: Where | None = None) -> Iterator[None]:
        """Have a fault for the length of a block."""
        fault = Fault(effect=effect, where=where or Where())
        self.faults = (*self._faults, fault)
        try:
            yield
        finally:
            self.faults = tuple(other for other in self._faults if other is not fault)

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Cut all connections and refuse new ones for the length of a block."""
        self._call(self._stop_listening()).result(_START_S)
        try:
            yield
        finally:
            self._call(self._listen()).result(_START_S)

    def writes(self, where: Where = EVERY_WRITE, *, since_s: float = 0.0) -> list[Passed]:
        """Return the writes that the server has accepted since then, in order."""
        return [
            passed
            for passed in tuple(self.passed)
            if passed.at_s >= since_s
            and passed.forwarded
            and passed.status < HTTPStatus.BAD_REQUEST
            and passed.asked.is_write
            and where.meets(passed.asked)
        ]

    def _call(self, work: Coroutine[Any, Any, None]) -> "Future[None]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wake(self) -> None:
        before, self._changed = self._changed, asyncio.Event()
        before.set()

    async def _open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._trust if self._trust is not None else True, limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        application = web.Application(client_max_size=_LARGEST_BODY)
        application.router.add_route("*", "/{path:.*}", self._handle)
        # A client that goes away takes its request along, also upstream.
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await self._listen()

    async def _close(self) -> None:
        self._faults = ()
        self._wake()
        if self._runner is not None:
            if self._site in self._runner.sites:
                await self._stop_listening()
            self._cut_all()  # TLS would wait for the other side to say goodbye
            await self._runner.cleanup()
        if self._forwarding:
            await asyncio.wait(self._forwarding, timeout=_START_S / 2)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._session is not None:
            assert self._session.connector is not None
            await self._session.connector.close(abort_ssl=True)  # the same goodbye
            await self._session.close()
        await asyncio.sleep(_CUT_S)

    async def _listen(self) -> None:
        assert self._runner is not None
        self._site = web.TCPSite(self._runner, LOOPBACK, self._port, ssl_context=self._identity, reuse_address=True)
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

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        form = await request.post() if request.content_type == "application/x-www-form-urlencoded" else {}
        query = {**request.query, **{name: str(value) for name, value in form.items()}}
        asked = Asked(method=request.method, path=request.path, query=query)
        for other in self._faults:
            if isinstance(other.effect, Delay) and other.where.meets(asked):
                await asyncio.sleep(other.effect.seconds)
            if isinstance(other.effect, Call) and other.where.meets(asked):
                other.effect.before(asked)
        fault = self._met(asked)
        match fault:
            case Fault(effect=Refuse() as refusal):
                return self._refused(asked, refusal)
            case Fault(effect=Reset()):
                return self._cut(request, asked)
            case Fault(effect=Stall()):
                await self._until_gone(fault)
                return self._cut(request, asked)
            case _:
                forwarded = self._forward(request, asked, body, fault)
                try:
                    return await (forwarded if asked.is_watch else self._ended(forwarded))
                except aiohttp.ClientError as error:
                    return self._refused(asked, Refuse(status=502, message=f"upstream did not answer: {error}"))

    async def _ended(self, forwarded: Coroutine[Any, Any, web.StreamResponse]) -> web.StreamResponse:
        """What the server has begun it ends, and it is counted, even when nobody waits for it any more."""
        forwarding = asyncio.ensure_future(forwarded)
        self._forwarding.add(forwarding)
        forwarding.add_done_callback(self._forwarding.discard)
        return await asyncio.shield(forwarding)

    def _met(self, asked: Asked) -> Fault | None:
        """Return the fault that decides what becomes of the request."""
        return next(
            (
                fault
                for fault in self._faults
                if not isinstance(fault.effect, Delay | Call) and fault.where.meets(asked)
            ),
            None,
        )

    async def _forward(
        self, request: web.Request, asked: Asked, body: bytes, fault: Fault | None
    ) -> web.StreamResponse:
        assert self._session is not None
        effect = None if fault is None else fault.effect
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in _PER_CONNECTION_HEADERS
        }
        url, data = f"{self._upstream}{request.raw_path}", body or None
        method = request.method
        if isinstance(effect, Rewrite) and effect.asks is not None:  # as a form, which every query API takes
            method, url, data = "POST", f"{self._upstream}{request.path}", urlencode(effect.asks(asked)).encode()
            headers = {name: value for name, value in headers.items() if name.lower() != "content-type"}
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        async with self._session.request(method, URL(url, encoded=True), data=data, headers=headers) as answer:
            kept = {
                name: value for name, value in answer.headers.items() if name.lower() not in _PER_CONNECTION_HEADERS
            }
            if asked.is_watch and answer.ok:
                self._note(asked, answer.status, forwarded=True)
                return await self._follow(request, asked, answer, kept)
            content = await answer.read()
            for other in self._faults:
                if isinstance(other.effect, Call) and other.where.meets(asked):
                    other.effect.after(asked)
            if isinstance(effect, Truncate):
                content = content[: int(len(content) * effect.share)]
            elif isinstance(effect, Rewrite) and answer.content_type == "application/json":
                content = json.dumps(effect.document(asked, json.loads(content))).encode()
            self._note(asked, answer.status, forwarded=True)
            return web.Response(status=answer.status, body=content, headers=kept)

    async def _follow(
        self, request: web.Request, asked: Asked, answer: aiohttp.ClientResponse, headers: Mapping[str, str]
    ) -> web.StreamResponse:
        """Pass a watch on, piece by piece, until it ends or a fault ends it."""
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        while True:
            changed = asyncio.ensure_future(self._changed.wait())
            piece = asyncio.ensure_future(answer.content.readany())
            try:
                fault = self._met(asked)
                match None if fault is None else fault.effect:
                    case Reset():
                        return self._cut(request, asked)
                    case Expire():
                        error = _status(410, "too old resource version: told by the fault proxy")
                        await response.write(json.dumps({"type": "ERROR", "object": error}).encode() + b"\n")
                        return response
                    case Stall():
                        assert fault is not None
                        await self._until_gone(fault)
                        return self._cut(request, asked)
                await asyncio.wait({changed, piece}, return_when=asyncio.FIRST_COMPLETED)
                if not piece.done():
                    continue
                content = piece.result()
                if not content:
                    return response
                await response.write(content)
            except (aiohttp.ClientError, ConnectionError):
                return self._cut(request, asked)
            finally:
                changed.cancel()
                if not piece.done():
                    piece.cancel()

    async def _until_gone(self, fault: Fault) -> None:
        while any(other is fault for other in self._faults):
            await self._changed.wait()

    def _refused(self, asked: Asked, refusal: Refuse) -> web.Response:
        self._note(asked, refusal.status, forwarded=False)
        return web.json_response(
            _status(refusal.status, refusal.message), status=refusal.status, headers=dict(refusal.headers)
        )

    def _cut(self, request: web.Request, asked: Asked) -> web.Response:
        self._note(asked, 0, forwarded=False)
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=HTTPStatus.BAD_GATEWAY)

    def _note(self, asked: Asked, status: int, *, forwarded: bool) -> None:
        self.passed.append(Passed(at_s=time.monotonic(), asked=asked, status=status, forwarded=forwarded))


def _status(code: int, message: str) -> dict[str, Any]:
    """Return the `Status` in which an API server says no."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _STATUS_REASONS.get(code, ""),
        "code": code,
    }
