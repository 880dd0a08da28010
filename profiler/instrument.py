"""The metrics of preset `generic` for stages in Python: a few calls around the computation export all of them.

    stage = StageMetrics(capacity=1)
    stage.serve(9100)
    ...
    arrival = stage.arrived()          # an item has come; keep this with it
    ...
    with stage.batch(arrivals):        # around the computation of a batch
        results = model(items)

The module needs prometheus_client and nothing else of Sluice: it may be copied into a server's own code.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, start_http_server

LATENCY_BOUNDS_S: Sequence[float] = (
    *(0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0, 5.0, 10.0),
)
"""Upper bounds of the latency histogram, in seconds: state others where the SLA of the stage is not among these."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """An item that waits, since `at_s` on the clock of its stage."""

    at_s: float


@dataclass(slots=True, kw_only=True)
class StageMetrics:
    """Counts the items, batches and sessions of one replica of a stage; all calls are safe from several threads.

    `capacity` is the number of batches that the replica computes at once. `bounds_s` are the upper bounds of the
    latency histogram, in seconds. With `sessions` the replica has sessions that hold a slot. `labels` are added to all
    metrics; `sluice init` reads `pipeline` and `stage`. `clock` returns seconds.

    One process has one of them per `registry`: the registry raises ValueError for a second one.
    """

    capacity: int = 1
    bounds_s: Sequence[float] = LATENCY_BOUNDS_S
    sessions: bool = False
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    registry: CollectorRegistry = REGISTRY
    clock: Callable[[], float] = time.monotonic
    _arrivals: Counter = field(init=False)
    _items: Counter = field(init=False)
    _batches: Counter = field(init=False)
    _busy_s: Counter = field(init=False)
    _waiting: Gauge = field(init=False)
    _latency_s: Histogram = field(init=False)
    _sessions: Gauge | None = field(init=False, default=None)
    _refused_sessions: Counter | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Register the metrics, with 0 from now on.

        Raises:
            ValueError: `capacity` or `bounds_s` is not valid, or `registry` has such metrics already.
        """
        if self.capacity < 1:
            raise ValueError(f"capacity: {self.capacity!r}, must be at least 1")
        if not self.bounds_s or list(self.bounds_s) != sorted(set(self.bounds_s)) or self.bounds_s[0] <= 0:
            raise ValueError(f"bounds_s: {self.bounds_s!r}, must be positive and ascending")
        self._arrivals = self._counter("arrivals", "items offered, refused ones too")
        self._items = self._counter("items", "items completed")
        self._batches = self._counter("batches", "batches completed")
        self._busy_s = self._counter("busy_seconds", "time in service, summed over batches")
        self._waiting = self._gauge("queue_depth", "items that wait")
        self._gauge("capacity", "batches that are served at once").set(self.capacity)
        latency_s = Histogram(
            "speech_stage_latency_seconds",
            "time of an item from arrival to answer",
            labelnames=tuple(self.labels),
            buckets=self.bounds_s,
            registry=self.registry,
        )
        self._latency_s = latency_s.labels(**self.labels) if self.labels else latency_s
        if self.sessions:
            self._sessions = self._gauge("sessions", "sessions that hold a slot")
            self._refused_sessions = self._counter("sessions_refused", "sessions refused because no slot was free")

    def serve(self, port: int, address: str = "0.0.0.0") -> Callable[[], None]:  # noqa: S104 - scraped from outside
        """Serve the metrics of the registry at `port`, from a thread of its own; return what ends it.

        Raises:
            OSError: the port is in use.
        """
        server, thread = start_http_server(port, addr=address, registry=self.registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop

    def arrived(self) -> Arrival:
        """Count an item that has come and waits; hand the result to `batch`, or to `gone` if it is given up."""
        self._arrivals.inc()
        self._waiting.inc()
        return Arrival(self.clock())

    def refused(self) -> None:
        """Count an item that was refused at once: it counts as offered, because it is load all the same."""
        self._arrivals.inc()

    def gone(self, arrival: Arrival) -> None:  # noqa: ARG002 - whose wait ends
        """Count an item that left the queue unserved, for example because its client has gone."""
        self._waiting.dec()

    @contextmanager
    def batch(self, arrivals: Collection[Arrival]) -> Iterator[None]:
        """Count a batch while it is computed; its items are answered at the end.

        A batch that raises an exception leaves the queue, but counts as neither served nor busy.
        """
        self._waiting.dec(len(arrivals))
        begun_s = self.clock()
        yield
        ended_s = self.clock()
        self._items.inc(len(arrivals))
        self._batches.inc()
        self._busy_s.inc(ended_s - begun_s)
        for arrival in arrivals:
            self._latency_s.observe(ended_s - arrival.at_s)

    def set_sessions(self, count: int) -> None:
        """Say how many sessions hold a slot now."""
        assert self._sessions is not None, "sessions: False; set it to count sessions"
        self._sessions.set(count)

    def session_refused(self) -> None:
        """Count a session that was refused because no slot was free."""
        assert self._refused_sessions is not None, "sessions: False; set it to count sessions"
        self._refused_sessions.inc()

    def _counter(self, name: str, meaning: str) -> Counter:
        counter = Counter(f"speech_stage_{name}", meaning, labelnames=tuple(self.labels), registry=self.registry)
        return counter.labels(**self.labels) if self.labels else counter

    def _gauge(self, name: str, meaning: str) -> Gauge:
        gauge = Gauge(f"speech_stage_{name}", meaning, labelnames=tuple(self.labels), registry=self.registry)
        return gauge.labels(**self.labels) if self.labels else gauge
