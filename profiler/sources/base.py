"""The interface of all sources of metrics, which `profiler.sources.prometheus` and others implement."""

from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from optimizer.model import PipelineKey, PlacementId, PoolName
from profiler.samples import Absence, Origin, PlacementSamples, PlacementTarget, Reading


class QueryKind(Enum):
    """What a query is for, in the order in which queries are sent to a back end that may not answer all in time."""

    FRESHNESS = "Freshness"
    """The ages of samples, which every reading of a placement needs."""
    DEMAND = "Demand"
    """`demand.query`."""
    THROUGHPUT = "Throughput"
    """Arrivals and completions. Without them, nothing is scaled down."""
    LATENCY = "Latency"
    """`sla.query`, and the 95th percentiles of the servers."""
    SERVICE = "Service"
    """Service times, batch sizes and sessions."""
    RULES = "Rules"
    """The queries of threshold rules."""
    OTHER = "Other"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """The metrics that one cycle needs.

    Every quantity is read for each of `placements`. `scalars` are the users' own queries (demand, SLA, rules) by keys
    that the caller chooses; `scalar_owners` has the pipeline of each query, and `scalar_kinds` its kind, by default
    DEMAND. The whole read may take `deadline_s` seconds. `devices` has the device of each pool, whose exporters are
    read for its pods; a pool that is not listed has none. `sharing` are the pods (namespace, name) whose devices other
    pods use too: series of such a device are of no single pod.
    """

    placements: tuple[PlacementTarget, ...]
    scalars: Mapping[Hashable, str]
    deadline_s: float
    scalar_owners: Mapping[Hashable, PipelineKey] = field(default_factory=dict)
    scalar_kinds: Mapping[Hashable, QueryKind] = field(default_factory=dict)
    devices: Mapping[PoolName, str] = field(default_factory=dict)
    sharing: Set[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """A reading for every placement and every scalar of the request.

    `problems` are messages for a log, each once. `origins` has the metrics tier of each pipeline; a pipeline that is
    not listed was read from Prometheus. `unanswered` has the share (0–1) of the queries of each kind to which there
    was no answer, because the time was over or the back end failed; kinds without queries are left out.
    """

    placements: Mapping[PlacementId, PlacementSamples]
    scalars: Mapping[Hashable, Reading]
    problems: tuple[str, ...]
    origins: Mapping[PipelineKey, Origin] = field(default_factory=dict)
    unanswered: Mapping[QueryKind, float] = field(default_factory=dict)


def wrong_query(problem: str, query: str) -> str:
    """Return the detail of the `Absence` for a query that the back end refuses because of `problem`."""
    return f"{problem}, in: {query}"


def is_wrong_query(absence: Absence, query: str) -> bool:
    """Return whether the back end has refused `query` itself, so that it would refuse it again."""
    return absence.detail.endswith(wrong_query("", query))


class MetricSource(Protocol):
    """A back end for metrics.

    `tests/contract` holds every adapter to these promises:

    * `read` returns a reading for everything in the request, within the deadline and half a second. It raises nothing
      when the back end fails: a number that could not be read is an `Absence` with the reason. When one query fails,
      only the readings that need it are absent.
    * No number is invented. A sum needs every pod of the placement; a mean, ratio, percentile or maximum needs at
      least half of them. Fewer pods are `PARTIAL`, none `MISSING`, old samples `STALE`, NaN and infinities
      `NOT_A_NUMBER`, a ratio per item without items `NO_TRAFFIC`, a quantity that the server does not export
      `UNSUPPORTED`.
    * A scalar is exactly one series; several are `NOT_A_NUMBER`, none is `MISSING`.
    * A process that restarts (its counters begin again at zero) yields no negative or huge rate.

    `read` may block, and is called in a separate thread.
    """

    def read(self, request: ReadRequest) -> ReadAnswer:
        """Return the readings that `request` asks for, as of the present time of the back end."""
        ...
