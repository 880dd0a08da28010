"""One replica of a stage: a bounded queue, batching, drawn service times and session slots, on real sockets."""

import asyncio
import heapq
import json
import math
import random
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Self

from aiohttp import web
from typing_extensions import override

from optimizer.model import Batching, ServiceLaw
from simulations.lab.net.timers import Timer, Timers
from simulations.lab.net.wire import (
    ITEM_PORT,
    METRICS_PORT,
    NO_SESSION,
    Handler,
    RequestKind,
    Respondent,
    ServerConnection,
    Status,
)
from simulations.lab.pods.engine import Engine
from simulations.lab.pods.exposition import CONTENT_TYPE, EXPOSITIONS, Gauges, ModelServer
from simulations.lab.pods.phase import Phase

# A router learns that a pod is leaving when the pod does: items that were sent before must still be served.
_HANDOVER_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """The specification of a stage worker, one replica of a stage, as in its pod's annotation.

    Batches take the times of `service`, gamma distributed (a cv of 0: constant). At most `concurrency` batches are
    served at once, and at most `queue_limit` items wait. A batch that may start at once starts with `batch_max` items,
    or when its first item has waited for `batch_wait_s`. With `batching` Continuous the worker has `concurrency`
    engines, each of which runs up to `batch_max` items.

    `speed_spread` is the coefficient of variation of the mean service times of replicas; see `of_replica`.

    `session_slots` is None for a stage without state per session. A session without an item for `session_idle_s` loses
    its slot when another session needs one. `startup_s` is the time until the replica is ready; `drain_s` is the
    longest time that it waits for its sessions to end when its pod is deleted. `server` says what its metrics show.
    """

    pipeline: str
    stage: str
    service: ServiceLaw
    batching: Batching = Batching.DYNAMIC
    batch_max: int = 1
    batch_wait_s: float = 0.0
    concurrency: int = 1
    queue_limit: int = 512
    session_slots: int | None = None
    session_idle_s: float = 600.0
    startup_s: float = 0.0
    drain_s: float = 60.0
    speed_spread: float = 0.0
    seed: int = 0
    server: ModelServer = field(default_factory=ModelServer)

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ValueError: a field is outside its range; the message names the first one.
        """
        for name in ("batch_wait_s", "session_idle_s", "startup_s", "drain_s", "speed_spread"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: {getattr(self, name)!r}, must be a finite number, at least 0")
        for name in ("batch_max", "concurrency", "queue_limit"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)!r}, must be at least 1")
        if self.session_slots is not None and self.session_slots < 1:
            raise ValueError(f"session_slots: {self.session_slots!r}, must be at least 1, or absent")

    def of_replica(self, ordinal: int) -> Self:
        """Return the specification with the mean service times of the replica number `ordinal`.

        The times of replicas differ by a factor that is log-normal with mean 1 and coefficient of variation
        `speed_spread`. It is the same for the same seed and number.
        """
        if not self.speed_spread:
            return self
        variance = math.log1p(self.speed_spread**2)
        drawn = random.Random(f"{self.seed}/{ordinal}/speed").gauss(-variance / 2, math.sqrt(variance))
        factor = math.exp(drawn)
        return replace(self, service=self.service.scaled(factor))

    def to_json(self) -> str:
        """Return the specification as JSON, which `from_json` reads."""
        return json.dumps({**asdict(self), "batching": self.batching.value}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the specification in `text`, which `to_json` wrote.

        Raises:
            ValueError: `text` is not valid JSON, or a field is missing, unknown or out of range; the message names it.
        """
        try:
            fields = json.loads(text)
            server, service = fields.pop("server", {}), fields.pop("service")
            batching = Batching(fields.pop("batching", Batching.DYNAMIC.value))
            points = tuple((size, time_s) for size, time_s in service.get("points", ()))
            return cls(
                **fields,
                batching=batching,
                service=ServiceLaw(**{**service, "points": points}),
                server=ModelServer(**{**server, "other_models": tuple(server.get("other_models", ()))}),
            )
        except KeyError as error:
            raise ValueError(f"worker specification: {error.args[0]}: missing") from None
        except (AttributeError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"worker specification: {error}") from None


@dataclass(slots=True, eq=False)
class _Item:
    connection: Respondent
    item_id: int
    arrived_s: float
    holds_slot: bool  # whether the item holds a session slot until it is served


@dataclass(slots=True, kw_only=True)
class WorkerCounts:
    """The number of items that a worker served, lost and gave back, and of sessions that it cut at its end."""

    served: int = 0
    lost: int = 0
    given_back: int = 0
    sessions_cut: int = 0


class _SessionSlots:
    """The session slots in use: `sessions` by the time of their last use, and `single` for items without a session.

    The session with the oldest use comes first. `single` is the number of items without a session that hold a slot.
    """

    __slots__ = ("_idle_s", "_limit", "sessions", "single")

    def __init__(self, limit: int | None, idle_s: float) -> None:
        self.sessions: OrderedDict[int, float] = OrderedDict()
        self.single = 0
        self._limit = limit
        self._idle_s = idle_s

    def admit(self, session_id: int, now_s: float, *, draining: bool) -> Status:
        """Return the status for an item or a new session; a session that is accepted holds a slot from now on."""
        if self._limit is None:
            return Status.OK
        sessions = self.sessions
        if session_id not in sessions:
            if draining and session_id != NO_SESSION:
                return Status.DRAINING
            if len(sessions) + self.single >= self._limit and not self._evict_idle(now_s):
                return Status.REFUSED_SLOT
        if session_id != NO_SESSION:
            sessions[session_id] = now_s
            sessions.move_to_end(session_id)
        return Status.OK

    def _evict_idle(self, now_s: float) -> bool:
        if self.sessions and next(iter(self.sessions.values())) <= now_s - self._idle_s:
            self.sessions.popitem(last=False)
            return True
        return False


class _HttpRequest:
    """An item that came by HTTP: its answer is a future."""

    def __init__(self) -> None:
        self.status: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

    def respond(self, kind: RequestKind, identifier: int, status: Status, payload: bytes = b"") -> None:  # noqa: ARG002
        """Set the answer, unless the client has gone."""
        if not self.status.done():
            self.status.set_result(status)

    def abort(self) -> None:
        """Give the request up."""
        self.status.cancel()


class _Sockets:
    """The sockets of a worker: the listening ports for items and metrics, and the `connections` of clients."""

    def __init__(self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        self.connections: set[ServerConnection] = set()
        self._items: asyncio.Server | None = None
        self._metrics = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)

    async def listen(self, handler: Handler, host: str) -> None:
        """Listen on the ports for items and metrics.

        Raises:
            OSError: the address is in use.
        """
        loop = asyncio.get_running_loop()
        self._items = await loop.create_server(lambda: ServerConnection(handler), host, ITEM_PORT)
        try:
            await self._metrics.setup()
            await web.TCPSite(self._metrics, host, METRICS_PORT).start()
        except OSError:
            self._items.close()
            raise

    def abort(self) -> None:
        """Close all connections immediately; unsent answers are lost."""
        for connection in tuple(self.connections):
            connection.abort()

    async def close(self) -> None:
        """Stop listening, and close each connection after its last answer has been sent."""
        if self._items is not None:
            self._items.close()
        for connection in tuple(self.connections):
            connection.close()
        # Otherwise a scraper would keep its connection, and still scrape a worker that has ended.
        await self._metrics.cleanup()


@dataclass(slots=True, kw_only=True)
class Slowness:
    """What multiplies service times: a `factor`, and what the neighbours on the node do at the moment, `crowding()`."""

    factor: float = 1.0
    crowding: Callable[[], float] = lambda: 1.0

    @property
    def now(self) -> float:
        """Return the factor of service times now."""
        return self.factor * self.crowding()


class StageWorker:
    """Serves batches on `host`:7000 and metrics on `host`:7001, from `start` until the end of `drain` or `abort`.

    Items come in the frames of `simulations.lab.net.wire`, or one by one by a POST to port 7001.

    A batch counts as started when it was due, even if the timer fired late: late timers do not reduce the capacity.
    `slowness` multiplies the service times of batches that start from now on.
    """

    def __init__(self, spec: WorkerSpec, host: str, timers: Timers, *, ordinal: int = 0) -> None:
        """Create a worker; `ordinal` numbers the replicas of one specification: each draws its own service times.

        `self.spec` is `spec.of_replica(ordinal)`.
        """
        self.spec = spec = spec.of_replica(ordinal)
        self.host = host
        self.slowness = Slowness()
        self.counts = WorkerCounts()
        self._timers = timers
        self._random = random.Random(f"{spec.seed}/{ordinal}")
        self._exposition = EXPOSITIONS[spec.server.preset](spec.pipeline, spec.stage, spec.server)
        self._phase = Phase.SERVING
        self._queue: deque[_Item] = deque()
        self._free_since_s = [0.0] * spec.concurrency  # a heap: one entry per batch slot that is free
        self._in_service: set[_Item] = set()
        self._wake: Timer | None = None
        self._slots = _SessionSlots(spec.session_slots, spec.session_idle_s)
        self._progress = asyncio.Event()
        self._sockets = _Sockets(self._answer_http)

    async def start(self) -> None:
        """Listen on the ports for items and metrics.

        Raises:
            OSError: the address is in use.
        """
        await self._sockets.listen(self, self.host)

    async def drain(self, limit_s: float) -> None:
        """Shut down without losing an accepted item; sessions that do not end within `limit_s` seconds are cut."""
        self._phase = Phase.DRAINING
        deadline_s = time.monotonic() + limit_s
        await self._timers.sleep(min(_HANDOVER_S, limit_s))
        await self._until(lambda: not self._slots.sessions, deadline_s)
        self._phase = Phase.CLOSING
        self.counts.sessions_cut = len(self._slots.sessions)
        await self._until(lambda: not self._queue and not self._in_service)
        await self._close()

    async def give_back(self) -> None:
        """Shut down immediately; items in the queue or in service are answered with DRAINING, for another replica."""
        items = (*self._queue, *self._in_service)
        self.counts.given_back = len(items)
        for item in items:
            item.connection.respond(RequestKind.ITEM, item.item_id, Status.DRAINING)
        await self._close()

    async def abort(self) -> None:
        """Shut down immediately, as when the node is lost: items in the queue or in service get no answer."""
        self.counts.lost = len(self._queue) + len(self._in_service)
        self._sockets.abort()
        await self._close()

    def set_batching(self, limit: int, wait_s: float) -> None:
        """Form batches of up to `limit` items, of which the first waits at most `wait_s`, from now on."""
        self.spec = replace(self.spec, batch_max=limit, batch_wait_s=wait_s)
        if self._phase is not Phase.CLOSED:
            self._dispatch()

    @property
    def busy(self) -> bool:
        """Whether an item is in service."""
        return bool(self._in_service)

    def gauges(self) -> Gauges:
        """Return the present state of the worker."""
        spec = self.spec
        return Gauges(
            queued=len(self._queue),
            queue_limit=spec.queue_limit,
            in_service=len(self._in_service),
            batch_slots=spec.concurrency,
            batch_max=spec.batch_max,
            sessions=len(self._slots.sessions) + self._slots.single,
            session_slots=spec.session_slots,
        )

    # -- requests, from wire.ServerConnection

    def on_connected(self, connection: ServerConnection) -> None:
        """Keep the connection, to close it at the end."""
        self._sockets.connections.add(connection)

    def on_disconnected(self, connection: ServerConnection) -> None:
        """Forget the connection; its items are served all the same, as by a real server."""
        self._sockets.connections.discard(connection)

    def on_item(self, connection: Respondent, item_id: int, session_id: int, payload: bytes) -> None:  # noqa: ARG002
        """Queue the item and start its batch if that is due, or refuse the item."""
        now_s = time.monotonic()
        full = len(self._queue) >= self.spec.queue_limit and self._phase < Phase.CLOSING
        status = Status.REFUSED_QUEUE if full else self._admit(session_id, now_s)
        if status is not Status.DRAINING:  # the client sends such an item to another replica, which counts it
            self._exposition.arrived(refused=status is not Status.OK)
        if status is not Status.OK:
            connection.respond(RequestKind.ITEM, item_id, status)
            return
        holds_slot = session_id == NO_SESSION and self.spec.session_slots is not None
        self._slots.single += holds_slot
        self._queue.append(_Item(connection, item_id, now_s, holds_slot))
        self._dispatch()

    def on_open_session(self, connection: ServerConnection, session_id: int, _: bytes) -> None:
        """Give the session a slot before its first item, or refuse the session."""
        connection.respond(RequestKind.OPEN_SESSION, session_id, self._admit(session_id, time.monotonic()))

    def on_take_session(self, connection: ServerConnection, session_id: int) -> None:
        """Free the slot of the session; it has no state here."""
        self.on_end_session(session_id)
        connection.respond(RequestKind.TAKE_SESSION, session_id, Status.OK)

    def on_end_session(self, session_id: int) -> None:
        """Free the slot of the session."""
        self._slots.sessions.pop(session_id, None)
        self._progress.set()

    def _admit(self, session_id: int, now_s: float) -> Status:
        if self._phase >= Phase.CLOSING:
            return Status.DRAINING
        status = self._slots.admit(session_id, now_s, draining=self._phase is Phase.DRAINING)
        if status is Status.REFUSED_SLOT:
            self._exposition.refused_session()
        return status

    # -- batching and service

    def _dispatch(self) -> None:
        """Do all that is due, and set a timer for what is next."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        self._start_due()

    def _start_due(self) -> None:
        spec, queue = self.spec, self._queue
        while queue and self._free_since_s:
            due_s = queue[0].arrived_s + spec.batch_wait_s
            if len(queue) >= spec.batch_max:
                due_s = min(due_s, queue[spec.batch_max - 1].arrived_s)
            start_s = max(due_s, self._free_since_s[0])
            if start_s > time.monotonic():
                self._wake = self._timers.call_at(start_s, self._dispatch)
                return
            heapq.heappop(self._free_since_s)
            batch = [queue.popleft()]
            # Items that arrived after the due time belong to the next batch.
            while queue and len(batch) < spec.batch_max and queue[0].arrived_s <= start_s:
                batch.append(queue.popleft())
            self._in_service.update(batch)
            service_s = self._draw_s(len(batch))
            self._timers.call_at(start_s + service_s, self._finisher(batch, start_s, service_s))

    def _draw_s(self, items: int) -> float:
        return self._varied(self.spec.service.mean_s(items) * self.slowness.now)

    def _varied(self, mean: float) -> float:
        cv = self.spec.service.cv
        return mean if cv == 0 else self._random.gammavariate(cv**-2, mean * cv**2)

    def _finisher(self, batch: Sequence[_Item], start_s: float, service_s: float) -> Callable[[], None]:
        def finish() -> None:
            if self._phase is Phase.CLOSED:
                return
            heapq.heappush(self._free_since_s, start_s + service_s)
            self._answer(batch)
            self._exposition.served(time.monotonic(), [start_s - item.arrived_s for item in batch], service_s)
            self._progress.set()
            self._dispatch()

        return finish

    def _answer(self, items: Sequence[_Item]) -> None:
        self._in_service.difference_update(items)
        self.counts.served += len(items)
        for item in items:
            item.connection.respond(RequestKind.ITEM, item.item_id, Status.OK)
            self._slots.single -= item.holds_slot

    # -- the end

    async def _until(self, done: Callable[[], bool], deadline_s: float | None = None) -> None:
        """Wait until `done()` is true, or until the deadline; `done` is called whenever a session or a batch ends."""
        while not done():
            self._progress.clear()
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            try:
                await asyncio.wait_for(self._progress.wait(), left_s)
            except TimeoutError:
                return

    async def _close(self) -> None:
        self._phase = Phase.CLOSED
        self._queue.clear()
        self._in_service.clear()
        await self._sockets.close()

    async def _answer_http(self, request: web.BaseRequest) -> web.Response:
        """Answer a scrape of the metrics, or a POST of one item without a session, as a plain model server would."""
        if request.method == "POST":
            item = _HttpRequest()
            self.on_item(item, 0, NO_SESSION, await request.read())
            status = await item.status
            return web.Response(status=200 if status is Status.OK else 503, text=f"{status.name}\n")
        if request.path != "/metrics":
            return web.Response(status=404)
        text = self._exposition.render(time.monotonic(), self.gauges())
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})


class ContinuousWorker(StageWorker):
    """A worker whose engines batch continuously; an item joins the engine with the fewest.

    What is due happens at its time, even if the timer fired late. `slowness` holds for the items that run, too.
    """

    def __init__(self, spec: WorkerSpec, host: str, timers: Timers, *, ordinal: int = 0) -> None:
        """Create a worker as `StageWorker` does."""
        super().__init__(spec, host, timers, ordinal=ordinal)
        law = self.spec.service
        self._engines: list[Engine[_Item]] = [
            Engine(
                spec.batch_max,
                lambda running: law.mean_s(running) * self.slowness.now,
                lambda: law.prefill_s * self.slowness.now,
            )
            for _ in range(spec.concurrency)
        ]
        self._freed_s = 0.0

    @override
    def _start_due(self) -> None:
        now_s = time.monotonic()
        while self._phase is not Phase.CLOSED:
            ends = [(end_s, k) for k, engine in enumerate(self._engines) if (end_s := engine.next_end_s()) is not None]
            end_s, ending = min(ends, default=(math.inf, 0))
            joining = min(self._engines, key=len)
            if self._queue and not joining.full and self._queue[0].arrived_s <= end_s:
                item = self._queue.popleft()
                self._in_service.add(item)
                joining.join(item, self._varied(1.0), max(item.arrived_s, self._freed_s))
            elif end_s <= now_s:
                self._freed_s = end_s  # who waited for the place joins then
                self._end(self._engines[ending], now_s, end_s)
            else:
                if end_s < math.inf:
                    self._wake = self._timers.call_at(end_s, self._dispatch)
                return

    def _end(self, engine: Engine[_Item], now_s: float, end_s: float) -> None:
        run, together = engine.end(end_s)
        item = run.item
        self._answer([item])
        first_s = run.prefilled_s - item.arrived_s if self.spec.service.prefill_s else None
        wait_s = run.joined_s - item.arrived_s
        self._exposition.served(
            now_s, [wait_s], end_s - run.joined_s, together=together, first_s=first_s, work=run.work
        )
        self._progress.set()


def worker_of(spec: WorkerSpec, host: str, timers: Timers, *, ordinal: int = 0) -> StageWorker:
    """Return the worker that batches as `spec` says; the arguments are those of `StageWorker`."""
    kind = ContinuousWorker if spec.batching is Batching.CONTINUOUS else StageWorker
    return kind(spec, host, timers, ordinal=ordinal)
