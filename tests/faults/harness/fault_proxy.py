"""The fault proxy: a reverse proxy that injects faults between a real server and the one client under test.

Requests that no fault matches pass unchanged: headers, token, watches line by line; only compression is removed.
Faults are switched at run time from any thread and last until they are removed; each names the requests that it meets.
"""

import asyncio
import contextlib
import json
import re
import ssl
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from typing_extensions import override

from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.faults.reverse_proxy import START_S, ReverseProxy, end_to_end, parameters
from simulations.lab.host.processes import LOOPBACK, free_ports

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
    """A request as faults see it. `query` has the parameters of the address and of a form."""

    method: str
    path: str
    query: Mapping[str, str]

    @property
    def is_watch(self) -> bool:
        """Whether it is a watch, not a read."""
        return self.query.get("watch") in {"1", "true"}

    @property
    def is_write(self) -> bool:
        """Whether it may change an object."""
        return self.method in _WRITES


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The requests that a fault meets: all, unless narrowed. `path` is a regular expression for the whole path."""

    path: str = ".*"
    methods: Collection[str] | None = None
    watch: bool | None = None

    def meets(self, asked: Asked) -> bool:
        """Whether `asked` is one of the requests."""
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
    """Answer with `status` in the words of an API server, and forward nothing."""

    status: int
    message: str = "refused by the fault proxy"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Forward after `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Accept without an answer while the fault lasts, then cut the connection; a running watch sends nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """Cut the connection: instead of an answer, and of a running watch at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """Forward, and return only the first `share` of the answer's bytes."""

    share: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """End watches as an API server does after a compaction: with an ERROR event of status 410."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Forward the parameters that `asks` returns, if any, and change the JSON of the answer with `document`."""

    document: Callable[[Asked, Any], Any] = lambda _, document: document
    asks: Callable[[Asked], Mapping[str, str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Call `before` before a request is forwarded and `after` after the answer, in the proxy's thread."""

    before: Callable[[Asked], None] = lambda _: None
    after: Callable[[Asked], None] = lambda _: None


Effect = Refuse | Delay | Stall | Reset | Truncate | Expire | Rewrite | Call


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fault:
    """An effect on some requests. Compared by identity: two equal ones may overlap, and each ends on its own."""

    effect: Effect
    where: Where = field(default_factory=Where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """An answered request; `at_s` is on the monotonic clock, `forwarded` says whether the server received it."""

    at_s: float
    asked: Asked
    status: int
    forwarded: bool


class FaultProxy(ReverseProxy):
    """A reverse proxy with faults and a record of the requests.

    `faults` may be replaced at any time; the first that meets a request decides, besides Delay and Call, which apply in
    addition. `passed` has the answered requests; a watch is in it from its beginning.
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
        super().__init__(upstream, port)
        self.passed: list[Passed] = []
        self._faults: tuple[Fault, ...] = ()
        self._trust = None if trust is None else ssl.create_default_context(cafile=str(trust))
        self._identity: ssl.SSLContext | None = None
        if identity is not None:
            self.url = f"https://{LOOPBACK}:{port}"
            self._identity = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._identity.load_cert_chain(*identity)
        self._changed: asyncio.Event = asyncio.Event()
        self._forwarding: set[asyncio.Future[web.StreamResponse]] = set()

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Return the current faults."""
        return self._faults

    @faults.setter
    def faults(self, faults: tuple[Fault, ...]) -> None:
        self._faults = faults
        # Running watches and stalled requests must react.
        self._loop.call_soon_threadsafe(self._wake)

    @contextlib.contextmanager
    def fault(self, effect: Effect, where: Where | None = None) -> Iterator[None]:
        """Inject a fault inside a `with` block."""
        fault = Fault(effect=effect, where=where or Where())
        self.faults = (*self._faults, fault)
        try:
            yield
        finally:
            self.faults = tuple(other for other in self._faults if other is not fault)

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Cut all connections and refuse new ones inside a `with` block."""
        self._call(self._stop_listening())
        try:
            yield
        finally:
            self._call(self._listen())

    def writes(self, where: Where = EVERY_WRITE, *, since_s: float = 0.0) -> list[Passed]:
        """Return the writes that the server accepted since `since_s`, in order."""
        return [
            passed
            for passed in tuple(self.passed)
            if passed.at_s >= since_s
            and passed.forwarded
            and passed.status < HTTPStatus.BAD_REQUEST
            and passed.asked.is_write
            and where.meets(passed.asked)
        ]

    def _wake(self) -> None:
        before, self._changed = self._changed, asyncio.Event()
        before.set()

    @override
    def _connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(ssl=self._trust if self._trust is not None else True, limit=0)

    @override
    def _new_site(self, runner: web.AppRunner) -> web.TCPSite:
        return web.TCPSite(runner, LOOPBACK, self._port, ssl_context=self._identity, reuse_address=True)

    @override
    async def _close(self) -> None:
        self._faults = ()
        self._wake()
        if self._runner is not None and self._site in self._runner.sites:
            await self._stop_listening()
        if self._forwarding:
            await asyncio.wait(self._forwarding, timeout=START_S / 2)
        await super()._close()

    @override
    async def handle(self, request: web.Request) -> web.StreamResponse:
        asked = Asked(method=request.method, path=request.path, query=await parameters(request))
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
                forwarded = self._forward(request, asked, fault)
                try:
                    return await (forwarded if asked.is_watch else self._ended(forwarded))
                except aiohttp.ClientError as error:
                    return self._refused(asked, Refuse(status=502, message=f"upstream did not answer: {error}"))

    async def _ended(self, forwarded: Coroutine[Any, Any, web.StreamResponse]) -> web.StreamResponse:
        """Await a request that goes on, and is recorded, even when the client has disconnected."""
        forwarding = asyncio.ensure_future(forwarded)
        self._forwarding.add(forwarding)
        forwarding.add_done_callback(self._forwarding.discard)
        return await asyncio.shield(forwarding)

    def _met(self, asked: Asked) -> Fault | None:
        """Return the fault that decides about the request."""
        return next(
            (
                fault
                for fault in self._faults
                if not isinstance(fault.effect, Delay | Call) and fault.where.meets(asked)
            ),
            None,
        )

    async def _forward(self, request: web.Request, asked: Asked, fault: Fault | None) -> web.StreamResponse:
        effect = None if fault is None else fault.effect
        form = effect.asks(asked) if isinstance(effect, Rewrite) and effect.asks is not None else None
        async with self._forwarded(request, form) as answer:
            kept = end_to_end(answer.headers)
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
        """Pass a watch on piece by piece, until it or a fault ends it."""
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
                        error = _status(410, "too old resource version: injected by the fault proxy")
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
    """Return the `Status` object of an API server's refusal."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _STATUS_REASONS.get(code, ""),
        "code": code,
    }


def api_server_proxy(control_plane: ControlPlane) -> FaultProxy:
    """Return a fault proxy in front of the API server, for a `with` block; clients of the server trust it as well."""
    authority = control_plane.certificate_authority
    (port,) = free_ports(1)
    return FaultProxy(
        control_plane.url, port, trust=authority, identity=(authority, authority.with_name("apiserver.key"))
    )
