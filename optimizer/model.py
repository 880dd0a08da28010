"""The types of an allocation problem: pipelines, stages, placements, pools, demand and SLA.

Every type validates itself, so that later modules never see a negative rate or an unknown pool. Nothing here computes
a latency or chooses an allocation.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import ceil, fsum
from operator import itemgetter
from typing import NewType

from optimizer.runtime.effort import Account, Effort

StageName = NewType("StageName", str)
PoolName = NewType("PoolName", str)
NameWithVariant = NewType("NameWithVariant", str)
PlacementName = PoolName | NameWithVariant
"""The name of a placement within its stage: its pool, and `pool:variant` where it runs a variant of the model."""
PlacementKey = tuple[StageName, PlacementName]
"""The key of a placement within its pipeline."""
PipelineKey = NewType("PipelineKey", str)
"""`namespace/name` of a pipeline."""
PlacementId = tuple[PipelineKey, StageName, PlacementName]
"""The key of a placement in the fleet."""


Size = int | Fraction
"""How many replicas fill an instance; 1/k for a replica that is a group of pods on k instances."""


def placement_name(pool: str, variant: str | None = None) -> PlacementName:
    """Return the name of the placement on `pool` that runs `variant` of the model; None: the only one there."""
    return PoolName(pool) if variant is None else NameWithVariant(f"{pool}:{variant}")


def named_placement(text: str) -> PlacementName:
    """Return the name that `text`, `pool` or `pool:variant`, is."""
    pool, _, variant = text.partition(":")
    return placement_name(pool, variant or None)


def pool_of(placement: PlacementName) -> PoolName:
    """Return the pool of the placement with this name."""
    return PoolName(placement.partition(":")[0])


def variant_of(placement: PlacementName) -> str | None:
    """Return the variant of the placement with this name, None where it has none."""
    return placement.partition(":")[2] or None


def placement_fields(placement: PlacementName) -> dict[str, str]:
    """Return how outputs and statuses name a placement: its `pool`, and its `variant` where it has one."""
    variant = variant_of(placement)
    return {"pool": pool_of(placement), **({} if variant is None else {"variant": variant})}


LATENCY_FACTORS = (0.5, 2.0)
"""Bounds of the factor by which a measured latency may correct the model. Where more replicas do not lower a latency, a
factor without bounds would grow with every replica that it adds. A correction at a bound is reported; what users feel
is met by steps of capacity that are taken back if they do not help (`controller.core.bounds.feedback`)."""
MOST_PASSED = 100.0
"""The highest pass ratio."""


class InvalidProblem(ValueError):
    """A field of a problem is invalid; the message names the field, its value and the rule that it breaks."""


def require(ok: bool, where: str, value: object, rule: str) -> None:
    """Raise `InvalidProblem` unless `ok`, naming the field `where`, its `value` and the `rule` it breaks."""
    if not ok:
        raise InvalidProblem(f"{where}: {value!r}: {rule}")


def _require_at_least_0(where: str, value: float | None) -> None:
    require(value is None or (math.isfinite(value) and value >= 0), where, value, "must be finite and ≥ 0")


class Routing(Enum):
    """How items reach the replicas of a stage. The latency formula depends on it."""

    PULL = "Pull"
    """Replicas take items from one shared queue."""
    ROUND_ROBIN = "RoundRobin"
    """Replicas get items in turn."""
    LEAST_LOADED = "LeastLoaded"
    """Each item goes to the replica with the fewest items, queued and in service."""
    RANDOM = "Random"
    """Each item goes to a random replica, as with kube-proxy."""
    STICKY = "Sticky"
    """All items of a session go to one replica."""

    @property
    def of_links(self) -> "Routing":
        """Return how items are spread over the links of replicas: an item on its way has its replica already."""
        return Routing.LEAST_LOADED if self is Routing.PULL else self


class Basis(Enum):
    """What a budget counts. The cost of a pipeline is on the basis of its budget."""

    REPLICAS = "Replicas"
    """The replicas' shares of instances, at the price of the pool."""
    INSTANCES = "Instances"
    """The whole instances that the replicas take, each at its own price (`optimizer.billing`)."""


class Composition(Enum):
    """How the latencies of the stages are composed into the latency of the pipeline."""

    SUM = "Sum"
    """The sum of the stages' percentiles: in most cases an upper estimate, on average 18 % too high.

    It may be too low where independent branches join, because the slower of two branches is slower than each is at its
    percentile, and for stages with rare, very slow items.
    """
    RSS = "Rss"
    """Σ mean + √Σ(percentile − mean)²: nearly unbiased, without a safety margin."""


class Mixing(Enum):
    """When a stage may use several placements at once."""

    OVERFLOW = "Overflow"
    """A further placement gets more than its minimum only when all before it are at their bounds or pools' limits."""
    FREE = "Free"
    """Besides, any two placements may be used together where that costs less."""
    ANY = "Any"
    """Any two placements may be used together, whatever it costs: for stages that compete for pools which none of them
    fills alone. It is for searches only: a stage has one of the others."""


class Batching(Enum):
    """How a server takes its items into service."""

    DYNAMIC = "Dynamic"
    """A batch starts when the one before it ends, and all its items end together (Triton's dynamic batching)."""
    CONTINUOUS = "Continuous"
    """An item joins at once while fewer than the limit run, and leaves when its own work is done (vLLM, SGLang, TGI,
    in-flight batching of TensorRT-LLM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLaw:
    """The mean service time of a batch of b items, T(b) in seconds, which does not fall with b.

    T(b) is `max(floor_s, fixed_s + b · per_item_s)`: below its knee a device waits for memory or launches, above it for
    arithmetic (the roofline model, Williams, Waterman and Patterson 2009). With `points`, pairs of batch and seconds in
    ascending order, it is interpolated between them: constant below the first, with the last slope beyond the last.
    `cv` is the coefficient of variation: standard deviation / mean.

    At a server with continuous batching T(n) is the time that a mean item takes while n run, each at the same speed,
    and `cv` is that of the work of items. `prefill_s` is the work of an item that nothing else progresses beside; other
    servers have none.
    """

    fixed_s: float = 0.0
    per_item_s: float = 0.0
    floor_s: float = 0.0
    points: tuple[tuple[int, float], ...] = ()
    prefill_s: float = 0.0
    cv: float = 0.0

    def __post_init__(self) -> None:
        for name in ("fixed_s", "per_item_s", "floor_s", "prefill_s", "cv"):
            _require_at_least_0(name, getattr(self, name))
        if self.points:
            sizes, times = zip(*self.points, strict=True)
            require(sizes[0] >= 1 and all(a < b for a, b in pairwise(sizes)), "points", sizes, "batches must ascend")
            require(all(map(math.isfinite, times)) and times[0] > 0, "points", times, "times must be finite and > 0")
            require(all(a <= b for a, b in pairwise(times)), "points", times, "a larger batch must not take less time")
            line = (self.fixed_s, self.per_item_s, self.floor_s)
            require(line == (0, 0, 0), "points", line, "fixed_s, per_item_s and floor_s must be 0 beside points")
        else:
            least = max(self.floor_s, self.fixed_s + self.per_item_s)
            require(least > 0, "service law", self, "a batch of one must take more than 0 s")

    def mean_s(self, batch: float) -> float:
        """Return the mean service time of a batch of `batch` items, in seconds."""
        if not self.points:
            return max(self.floor_s, self.fixed_s + batch * self.per_item_s)
        k = min(bisect_left(self.points, batch, key=itemgetter(0)), len(self.points) - 1)
        if k == 0:
            return self.points[0][1]
        (size, time_s), (next_size, next_s) = self.points[k - 1 : k + 1]
        return time_s + (batch - size) * (next_s - time_s) / (next_size - size)

    def times_s(self, limit: int) -> tuple[float, ...]:
        """Return the mean service times of 0, 1, … `limit` items, in seconds; cached, because replays ask often."""
        return _times_s(self, limit)

    def slope_s(self, batch: float) -> float:
        """Return the seconds that one item more takes at a batch of `batch` items."""
        return self.mean_s(batch + 0.5) - self.mean_s(batch - 0.5)

    def occupied_s(self, batch: float) -> float:
        """Return the time that an item is in service while `batch` are, in seconds: the prefills of all stall it."""
        return self.mean_s(batch) + batch * self.prefill_s

    def rate_rps(self, batch: int) -> float:
        """Return the items per second of a server that always has `batch` items in service."""
        return batch / self.occupied_s(batch)

    @property
    def linear(self) -> bool:
        """Return whether T(b) is a straight line from the first item on."""
        return not self.points and self.floor_s <= self.fixed_s + self.per_item_s

    def scaled(self, factor: float) -> "ServiceLaw":
        """Return the service law of hardware that takes `factor` times as long for each batch."""
        return self._each(lambda time_s: time_s * factor)

    def rounded(self, grain: Callable[[float], float]) -> "ServiceLaw":
        """Return this law with `grain` of each of its numbers, so that laws that hardly differ are equal."""
        return replace(self._each(grain), cv=grain(self.cv))

    def _each(self, changed: Callable[[float], float]) -> "ServiceLaw":
        return replace(
            self,
            fixed_s=changed(self.fixed_s),
            per_item_s=changed(self.per_item_s),
            floor_s=changed(self.floor_s),
            points=tuple((size, changed(time_s)) for size, time_s in self.points),
            prefill_s=changed(self.prefill_s),
        )


@lru_cache(maxsize=1024)
def _times_s(law: ServiceLaw, limit: int) -> tuple[float, ...]:
    return tuple(law.mean_s(size) for size in range(limit + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How items reach a replica: `item_s` on its link, one item after the other, and `fixed_s` more for each.

    The link takes the next item while the replica computes. Where an item carries much, such as the KV cache of a
    prompt, the link may have less capacity than the replica. Only the share `share` (0–1) of the items, chosen at
    random, takes it; the others are there at once.
    """

    item_s: float
    fixed_s: float = 0.0
    share: float = 1.0

    def __post_init__(self) -> None:
        _require_at_least_0("link.fixed_s", self.fixed_s)
        require(0 < self.share <= 1, "link.share", self.share, "must be in (0, 1]")
        require(self.share == 1 or self.fixed_s == 0, "link.fixed_s", self.fixed_s, "must be 0 where share is below 1")
        require(math.isfinite(self.item_s) and self.item_s > 0, "link.item_s", self.item_s, "must be finite and > 0")

    @property
    def law(self) -> ServiceLaw:
        """Return the service law of the link, as a server of its own."""
        return ServiceLaw(fixed_s=self.item_s)

    @property
    def capacity_rps(self) -> float:
        """Return the items per second that reach a replica, those that do not take its link included."""
        return 1 / (self.item_s * self.share)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BatchSettings:
    """How a server forms batches: of up to `limit` items, of which the first waits at most `wait_s` for the others."""

    limit: int
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        require(self.limit >= 1, "limit", self.limit, "must be ≥ 1")
        _require_at_least_0("wait_s", self.wait_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChoice:
    """How the servers of a placement form batches.

    `batching` says how items join those in service. `batch_sizes` are the batch limits to choose from (only one where
    the server's limit is fixed); a batch waits at most `batch_wait_s` to fill, which continuous batching never does.
    `batch_waits_s` are the waits to choose from, of which `batch_wait_s` is the first; empty: there is no choice.
    `in_force` is what the servers have or may have, whatever was chosen: a prediction is then the worst of these.
    """

    batching: Batching = Batching.DYNAMIC
    batch_sizes: tuple[int, ...] = (1,)
    batch_wait_s: float = 0.0
    batch_waits_s: tuple[float, ...] = ()
    in_force: tuple[BatchSettings, ...] = ()

    def __post_init__(self) -> None:
        require(
            bool(self.batch_sizes) and list(self.batch_sizes) == sorted(set(self.batch_sizes)),
            "batch_sizes",
            self.batch_sizes,
            "must be a non-empty increasing sequence",
        )
        require(self.batch_sizes[0] >= 1, "batch_sizes", self.batch_sizes, "must be ≥ 1")
        require(
            math.isfinite(self.batch_wait_s) and self.batch_wait_s >= 0,
            "batch_wait_s",
            self.batch_wait_s,
            "must be ≥ 0",
        )
        waits = self.batch_waits_s
        require(
            not waits or (waits[0] == self.batch_wait_s and all(a < b for a, b in pairwise(waits))),
            "batch_waits_s",
            waits,
            "must be an increasing sequence that begins with batch_wait_s",
        )
        require(
            len(self.batch_sizes) == 1 or not self.in_force,
            "batch_sizes",
            self.batch_sizes,
            "leaves no choice beside in_force",
        )
        if self.continuous:
            require(not waits, "batch_waits_s", waits, "must be empty with continuous batching")
            require(self.batch_wait_s == 0, "batch_wait_s", self.batch_wait_s, "must be 0 with continuous batching")

    @property
    def continuous(self) -> bool:
        """Return whether the servers batch continuously."""
        return self.batching is Batching.CONTINUOUS


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement(BatchChoice):
    """One way to run a stage: on one pool, with one variant of its model, and its service law and replica bounds there.

    `variant` names the variant, such as int8 (None: the model has no other on this pool). `service` is the current
    estimate: the prior, corrected by measurements. `per_instance` replicas share one instance of the pool, or, where it
    is 1/k, one replica takes k instances. `concurrency` is the number of batches that a replica serves at once, or of
    its engines with continuous batching. `session_slots` is the number of sessions that the memory of one replica holds
    (None: no limit). `wer` is the word error rate of the model variant, as a share (None: not declared).
    `saturation_rps` is the highest rate observed at an overloaded replica; it limits the capacity that follows from
    `service` (None: not observed). `current` is the number of replicas desired now; switching costs count from it.
    Items reach a replica over its `link` (None: at once).
    """

    pool: PoolName
    service: ServiceLaw
    min_replicas: int = 0
    max_replicas: int = 1
    per_instance: Size = 1
    concurrency: int = 1
    session_slots: int | None = None
    wer: float | None = None
    saturation_rps: float | None = None
    current: int = 0
    variant: str | None = None
    link: Link | None = None

    def __post_init__(self) -> None:
        require(self.min_replicas >= 0, "min_replicas", self.min_replicas, "must be ≥ 0")
        require(
            self.min_replicas <= self.max_replicas,
            "max_replicas",
            self.max_replicas,
            f"must be at least min_replicas ({self.min_replicas})",
        )
        size = self.per_instance
        whole = size.denominator == 1 if size >= 1 else size.numerator == 1
        require(size > 0 and whole, "per_instance", size, "must be a whole number ≥ 1, or 1 divided by one")
        require(self.concurrency >= 1, "concurrency", self.concurrency, "must be ≥ 1")
        BatchChoice.__post_init__(self)
        if not self.continuous:
            require(self.service.prefill_s == 0, "prefill_s", self.service.prefill_s, "needs continuous batching")
        require(
            self.session_slots is None or self.session_slots >= 1, "session_slots", self.session_slots, "must be ≥ 1"
        )
        require(
            self.saturation_rps is None or (math.isfinite(self.saturation_rps) and self.saturation_rps > 0),
            "saturation_rps",
            self.saturation_rps,
            "must be finite and > 0",
        )
        _require_at_least_0("wer", self.wer)
        require(self.current >= 0, "current", self.current, "must be ≥ 0")

    @property
    def name(self) -> PlacementName:
        """Return the name of the placement within its stage."""
        return placement_name(self.pool, self.variant)

    def law_rps(self, batch: int) -> float:
        """Return the items per second of one replica with full batches of `batch` items, by its service law."""
        return self.concurrency * self.service.rate_rps(batch)

    def with_settings(self, settings: BatchSettings, in_force: tuple[BatchSettings, ...] = ()) -> "Placement":
        """Return the placement with `settings` as its only choice, and with those `in_force`."""
        wait_s = 0.0 if self.continuous else settings.wait_s
        return replace(self, batch_sizes=(settings.limit,), batch_wait_s=wait_s, batch_waits_s=(), in_force=in_force)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How a stage shares its replicas with stages of other pipelines, which one model server serves together.

    `owner` and `stage` name the stage that the replicas belong to. Where it is `borrowed`, because they belong to
    another pipeline, they take no capacity of a pool: they count at the owner. Of their cost, `cost_share` is charged
    to this pipeline; the shares of all pipelines add up to 1.

    `other_rps` is the load of the other pipelines at this stage in items per second, `other_sessions` the number of
    their streams, each with a session slot. `others_periodic` says that their items come at even intervals.
    """

    owner: PipelineKey
    stage: StageName
    borrowed: bool
    cost_share: float = 1.0
    other_rps: float = 0.0
    other_sessions: float = 0.0
    others_periodic: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.cost_share <= 1, "cost_share", self.cost_share, "must be in [0, 1]")
        _require_at_least_0("other_rps", self.other_rps)
        _require_at_least_0("other_sessions", self.other_sessions)

    def scaled(self, share: float) -> "Sharing":
        """Return this sharing with `share` (0–1) of the other pipelines' load."""
        return replace(
            self, other_rps=_rounded(self.other_rps * share), other_sessions=_rounded(self.other_sessions * share)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cascade:
    """Placements of a stage that serve one after the other: first the others, then `to`, with a better model.

    The first pass the items that they are uncertain about, `share` (0–1) of them, on to the placement `to`. While none
    of them has a replica, all items go to `to`.
    """

    to: PlacementName
    share: float

    def __post_init__(self) -> None:
        require(0 <= self.share <= 1, "cascade.share", self.share, "must be in [0, 1]")

    def entered(self, serving: Iterable[PlacementName]) -> tuple[PlacementName, ...]:
        """Return those of the `serving` placements that items come to first."""
        names = tuple(serving)
        return tuple(name for name in names if name != self.to) or names


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of a pipeline. `placements` are in the user's order of preference.

    `after` names the stages from which this stage takes its items; it is empty for a stage at the entry. `pass_ratio`
    is the number of items that the stage passes on per item that it takes: below 1 for a filter, above 1 for fan-out,
    such as the hypotheses of an n-best list. The calls that result from fan-out are taken to run in parallel, and the
    latency of an item to be that of one call: the slowest of them is not modelled. `min_replicas` is the least number
    of replicas of all placements together; 0 for a stage that may have none while it has no load. `latency_factor` is
    measured latency / the model's latency, within `LATENCY_FACTORS`. `sharing` is set for a stage whose replicas serve
    several pipelines. With `first_answer` an item goes on when the first part of its answer is there, at servers with
    continuous batching after its prefill, and not with the whole answer. All placements batch in the same way. With a
    `cascade` they serve one after the other instead of beside one another. `mixing` says which of them may be used
    together.
    """

    name: StageName
    placements: tuple[Placement, ...]
    after: tuple[StageName, ...] = ()
    pass_ratio: float = 1.0
    routing: Routing = Routing.LEAST_LOADED
    min_replicas: int = 1
    latency_factor: float = 1.0
    first_answer: bool = False
    sharing: Sharing | None = None
    cascade: Cascade | None = None
    mixing: Mixing = Mixing.OVERFLOW

    @property
    def borrowed(self) -> bool:
        """Whether the replicas belong to a stage of another pipeline."""
        return self.sharing is not None and self.sharing.borrowed

    @property
    def cost_share(self) -> float:
        """Return the share of the replicas' cost that is charged to the pipeline."""
        return 1.0 if self.sharing is None else self.sharing.cost_share

    def __post_init__(self) -> None:
        require(
            LATENCY_FACTORS[0] <= self.latency_factor <= LATENCY_FACTORS[1],
            f"stage {self.name}.latency_factor",
            self.latency_factor,
            f"must be in {list(LATENCY_FACTORS)}",
        )
        require(bool(self.placements), f"stage {self.name}.placements", self.placements, "must not be empty")
        names = [placement.name for placement in self.placements]
        require(
            len(set(names)) == len(names), f"stage {self.name}.placements", names, "one placement per pool and variant"
        )
        links = {placement.link for placement in self.placements}
        require(len(links) == 1, f"stage {self.name}.placements", links, "all placements must have the same link")
        if self.cascade is not None:
            where, to = f"stage {self.name}.cascade.to", self.cascade.to
            require(to in names and len(names) > 1, where, to, f"must be one of several placements, {names}")
            slots = [placement.session_slots for placement in self.placements]
            require(slots == [None] * len(slots), where, slots, "not with session slots")
        kinds = sorted({placement.batching.value for placement in self.placements})
        require(len(kinds) == 1, f"stage {self.name}.placements", kinds, "all placements must batch in the same way")
        require(
            0 < self.pass_ratio <= MOST_PASSED,
            f"stage {self.name}.pass_ratio",
            self.pass_ratio,
            f"must be in (0, {MOST_PASSED:g}]",
        )
        require(self.min_replicas >= 0, f"stage {self.name}.min_replicas", self.min_replicas, "must be ≥ 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sla:
    """The latency target: `percentile` percent of the items leave the last stage within `latency_s` of their entry."""

    latency_s: float
    percentile: float = 95.0

    def __post_init__(self) -> None:
        require(math.isfinite(self.latency_s) and self.latency_s > 0, "latency_s", self.latency_s, "must be > 0")
        require(0 < self.percentile < 100, "percentile", self.percentile, "must be in (0, 100)")

    @property
    def late_share(self) -> float:
        """Return the share (0–1) of the items that may take longer."""
        return 1 - self.percentile / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The load to plan for.

    `entry_rate_rps` is items per second at the entry. `sessions` is the number of concurrent streams; each of them
    holds a slot in every stage with session slots. It is None for independent requests, which hold a slot only while
    they are in the stage. `arrival_cv2` is the squared coefficient of variation of the time between arrivals: 1 for
    Poisson arrivals.
    """

    entry_rate_rps: float
    sessions: float | None = None
    arrival_cv2: float = 1.0

    def __post_init__(self) -> None:
        _require_at_least_0("entry_rate_rps", self.entry_rate_rps)
        _require_at_least_0("arrival_cv2", self.arrival_cv2)
        _require_at_least_0("sessions", self.sessions)

    def scaled(self, share: float) -> "Demand":
        """Return this demand times `share` (0–1), rounded to twelve digits: equal loads are then equal cache keys."""
        return Demand(
            entry_rate_rps=_rounded(self.entry_rate_rps * share),
            sessions=None if self.sessions is None else _rounded(self.sessions * share),
            arrival_cv2=self.arrival_cv2,
        )


def _rounded(load: float) -> float:
    return float(f"{load:.12g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One pipeline to plan: its stages, its demand and its limits.

    A stage comes later in `stages` than the stages that it is `after`. Pipelines with a higher `priority` are served
    first. Placements with a word error rate above `max_wer` are not used. A limit that is None does not apply. `basis`
    is what the budget and the cost of the pipeline count.
    """

    key: PipelineKey
    stages: tuple[Stage, ...]
    demand: Demand
    sla: Sla
    budget_per_hour: float | None = None
    priority: int = 0
    max_wer: float | None = None
    basis: Basis = Basis.REPLICAS
    visit_ratios: Mapping[StageName, float] = field(init=False, compare=False, repr=False)
    """Items that reach each stage per item at the entry: the product of the pass ratios on the way.

    At a join the branch with the least product counts.
    """
    once: frozenset[StageName] = field(init=False, compare=False, repr=False)
    """The stages that every item reaches exactly once: no stage on the way drops or multiplies items."""

    def __post_init__(self) -> None:
        require(bool(self.stages), f"pipeline {self.key}.stages", self.stages, "must not be empty")
        _require_at_least_0(f"pipeline {self.key}.budget_per_hour", self.budget_per_hour)
        _require_at_least_0(f"pipeline {self.key}.max_wer", self.max_wer)
        ratios: dict[StageName, float] = {}
        passed: dict[StageName, float] = {}
        once: set[StageName] = set()
        passes_all = {stage.name for stage in self.stages if stage.pass_ratio == 1}
        for stage in self.stages:
            require(stage.name not in ratios, f"pipeline {self.key}.stages", stage.name, "names must be unique")
            for name in stage.after:
                require(name in passed, f"stage {stage.name}.after", name, "must name an earlier stage")
            # A join waits for all its branches, so an item reaches it once: the least rate of the branches.
            ratios[stage.name] = min((passed[name] for name in stage.after), default=1.0)
            passed[stage.name] = ratios[stage.name] * stage.pass_ratio
            if all(name in once and name in passes_all for name in stage.after):
                once.add(stage.name)
        object.__setattr__(self, "visit_ratios", ratios)
        object.__setattr__(self, "once", frozenset(once))

    def bounded(self, bounds: "Callable[[Stage, Placement], tuple[int, int]]") -> "Pipeline":
        """Return this pipeline with the least and the most replicas that `bounds` returns for each placement."""

        def changed(stage: Stage, placement: Placement) -> Placement:
            least, most = bounds(stage, placement)
            if (least, most) == (placement.min_replicas, placement.max_replicas):
                return placement
            return replace(placement, min_replicas=least, max_replicas=most)

        def stage_of(own: Stage) -> Stage:
            placements = tuple(changed(own, each) for each in own.placements)
            same = all(one is other for one, other in zip(placements, own.placements, strict=True))
            return own if same else replace(own, placements=placements)

        stages = tuple(map(stage_of, self.stages))
        same = all(one is other for one, other in zip(stages, self.stages, strict=True))
        return self if same else replace(self, stages=stages)

    def least(self) -> Mapping[PlacementKey, int]:
        """Return the least replicas of every placement."""
        return {(stage.name, own.name): own.min_replicas for stage in self.stages for own in stage.placements}

    def scaled(self, share: float) -> "Pipeline":
        """Return this pipeline with `share` (0–1) of its demand, and of the other pipelines' load on shared stages.

        With all of the others' load, two pipelines that overload a shared stage together would both get nothing.
        `optimizer.fleet.shared_stages` finds the shares that fit together.
        """
        if all(stage.sharing is None for stage in self.stages):
            return replace(self, demand=self.demand.scaled(share))
        return replace(
            self,
            demand=self.demand.scaled(share),
            stages=tuple(
                stage if stage.sharing is None else replace(stage, sharing=stage.sharing.scaled(share))
                for stage in self.stages
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Hardware of one kind: at most `instances` instances, each for `price_per_hour` USD.

    The other two fields count only for pipelines with `Basis.INSTANCES`. `node_prices_per_hour` are the prices of the
    nodes in use, the highest first; every further node costs `price_per_hour`. `held` are replicas that are not
    part of the problem, as pairs (replicas per instance, replicas): they share nodes with those of the problem. The
    instances that they take are not among `instances`.
    """

    name: PoolName
    price_per_hour: float
    instances: int
    node_prices_per_hour: tuple[float, ...] = ()
    held: tuple[tuple[Size, int], ...] = ()

    def __post_init__(self) -> None:
        _require_at_least_0(f"pool {self.name}.price_per_hour", self.price_per_hour)
        require(self.instances >= 0, f"pool {self.name}.instances", self.instances, "must be ≥ 0")
        for price in self.node_prices_per_hour:
            _require_at_least_0(f"pool {self.name}.node_prices_per_hour", price)
        require(
            all(one >= other for one, other in pairwise(self.node_prices_per_hour)),
            f"pool {self.name}.node_prices_per_hour",
            self.node_prices_per_hour,
            "must have the highest first",
        )

    def replica_price_per_hour(self, placement: Placement) -> float:
        """Return the cost of one replica of `placement`, in USD per hour."""
        return self.price_per_hour / placement.per_instance

    @property
    def least_price_per_hour(self) -> float:
        """Return the price of an instance that no node is below, in USD per hour."""
        return min((self.price_per_hour, *self.node_prices_per_hour[-1:]))

    def bill_per_hour(self, instances: int) -> float:
        """Return the price of `instances` whole instances, in USD per hour.

        Of the nodes in use the most expensive ones count first: which of them stay is not known.
        """
        present = self.node_prices_per_hour[:instances]
        return fsum(present) + (instances - len(present)) * self.price_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBudget:
    """A budget for several pipelines: those of `pipelines` in the problem cost at most `per_hour` USD together.

    A pipeline may be in several groups. `held_per_hour` (USD) of the budget is spent on what no pipeline has.
    What runs may still cost `falling_per_hour` (USD) more, because the budget fell a short time ago.
    """

    name: str
    per_hour: float
    pipelines: frozenset[PipelineKey]
    held_per_hour: float = 0.0
    falling_per_hour: float = 0.0

    def __post_init__(self) -> None:
        _require_at_least_0(f"budget {self.name}.per_hour", self.per_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The whole problem: all pipelines that share the pools, and the limits that they share.

    `budget_per_hour` is for all pipelines together, in USD (None: no limit), `budgets` for groups of them.
    `switching_cost_per_hour` is charged for each replica by which an allocation differs from `Placement.current`, so
    that plans of equal cost do not alternate. The search counts this charge; the reported cost does not.
    `search_effort` limits the search in partial choices instead of seconds, so that the plan is the same on any
    machine. With None the search takes as many as a proof needs, up to a fixed bound. `effort` has the accounts of the
    decision that the problem is part of (None: work is not limited beyond `search_effort`).
    """

    pipelines: tuple[Pipeline, ...]
    pools: Mapping[PoolName, Pool]
    budget_per_hour: float | None = None
    composition: Composition = Composition.SUM
    switching_cost_per_hour: float = 0.0
    search_effort: int | None = None
    budgets: tuple[GroupBudget, ...] = ()
    effort: Effort | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _require_at_least_0("budget_per_hour", self.budget_per_hour)
        _require_at_least_0("switching_cost_per_hour", self.switching_cost_per_hour)
        require(
            self.search_effort is None or self.search_effort >= 0, "search_effort", self.search_effort, "must be ≥ 0"
        )
        keys = [pipeline.key for pipeline in self.pipelines]
        require(len(set(keys)) == len(keys), "pipelines", keys, "keys must be unique")
        names = [budget.name for budget in self.budgets]
        require(len(set(names)) == len(names), "budgets", names, "names must be unique")
        for pipeline, stage, placement in self.placements():
            require(
                placement.pool in self.pools,
                f"pipeline {pipeline.key}, stage {stage.name}.pool",
                placement.pool,
                f"must be one of {sorted(self.pools)}",
            )

    @property
    def joint(self) -> Account | None:
        """Return the account of searches over several pipelines; None where work is not counted."""
        return None if self.effort is None else self.effort.joint

    @property
    def counts_instances(self) -> bool:
        """Return whether the cost of a pipeline counts whole instances."""
        return any(pipeline.basis is Basis.INSTANCES for pipeline in self.pipelines)

    def placements(self) -> Iterator[tuple[Pipeline, Stage, Placement]]:
        """Yield every placement as (pipeline, stage, placement), in the order of `pipelines` and their stages."""
        for pipeline in self.pipelines:
            for stage in pipeline.stages:
                for placement in stage.placements:
                    yield pipeline, stage, placement


def share_instances(sizes: Iterable[Size]) -> bool:
    """Return whether replicas of `sizes` (replicas per instance) share instances: the sizes divide one another.

    Replicas that take whole instances leave nothing to share.
    """
    return all(large % small == 0 for small, large in pairwise(sorted({size for size in sizes if size >= 1})))


def whole_instances(placements: Iterable[tuple[Size, int]]) -> int:
    """Return the number of whole instances of one pool that `placements` need together.

    Each placement is a pair (replicas per instance, replicas). Where the numbers per instance divide one another,
    replicas of different placements share instances. Otherwise each placement is rounded up to whole instances, because
    the free part of its last instance may not fit a replica of another placement.
    """
    shares = [(size, Fraction(count, size)) for size, count in placements if count]
    if share_instances(size for size, _ in shares):
        return ceil(sum(share for _, share in shares))
    return sum(ceil(share) for _, share in shares)
