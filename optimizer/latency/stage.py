"""Predict the time of items in a stage, given its load and its replicas.

Times come from the simulated table (`optimizer.latency.batching`), with or without batching; the routing determines
which servers share a queue. Service laws that bend are replaced by straight lines (`optimizer.latency.lines`). Periodic
streams on fixed replicas without batching follow a Brownian bridge. For servers that wait for a batch to fill, the
result is the larger of the table's time and the time of a batch that fills. Servers that batch continuously are those
of `optimizer.latency.continuous`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from optimizer.latency.batching import (
    LEAST_LOADED,
    PULL,
    ROUND_ROBIN,
    UTILIZATION_CEILING,
    Servers,
    erlang_c,
    own_distribution,
    time_in_stage,
)
from optimizer.latency.continuous import Load, time_in_engines
from optimizer.latency.lines import lines_of
from optimizer.latency.quantiles import gamma_quantile, mixture_percentile
from optimizer.model import BatchSettings, Cascade, Link, Placement, Routing, Stage
from optimizer.runtime.compiled import compiled

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_ERROR_SERVERS: Counts = np.array([2, 7, 20])
_ERROR_UTILIZATION: Array = np.array([0.5, 0.7, 0.8])
_ERRORS: dict[str, Array] = {
    region: np.array(thousandths) / 1000
    for region, thousandths in {
        "batching": ((34, 51, 66, 132), (48, 58, 67, 77), (57, 93, 66, 61), (70, 92, 96, 90)),
        "batching, least loaded": ((27, 40, 74, 92), (26, 39, 55, 69), (31, 64, 63, 68), (82, 91, 75, 85)),
        "round robin": ((27, 42, 68, 76), (23, 46, 73, 102), (30, 50, 77, 112), (39, 83, 133, 136)),
        "at random": ((61, 69, 69, 77), (89, 57, 65, 67), (68, 45, 58, 68), (33, 36, 62, 69)),
        "patient": ((123, 175, 160, 115), (88, 109, 200, 151), (115, 98, 87, 216), (141, 126, 126, 140)),
        "several slots": ((154, 125, 195, 170), (154, 140, 195, 157), (154, 136, 195, 189), (191, 104, 192, 170)),
        "single items": ((26, 26, 35, 51), (15, 19, 31, 33), (5, 13, 20, 45), (5, 5, 8, 9)),
        "single items, least loaded": ((26, 27, 34, 75), (16, 38, 48, 45), (7, 18, 48, 55), (5, 5, 15, 56)),
        "erratic": ((197, 294, 447, 277), (72, 104, 151, 235), (30, 91, 81, 155), (32, 63, 67, 194)),
        "bent": ((63, 93, 137, 181), (45, 62, 109, 125), (57, 66, 71, 110), (51, 59, 89, 122)),
        "falling": ((129, 255, 442, 604), (159, 159, 286, 223), (169, 176, 367, 453), (204, 228, 361, 420)),
        "continuous": ((26, 41, 45, 108), (12, 22, 40, 68), (26, 26, 45, 53), (17, 24, 45, 68)),
        "periodic": ((116, 102, 94, 147), (103, 92, 81, 77), (5, 64, 73, 80), (103, 87, 81, 99)),
    }.items()
}
"""Error bars by kind of queue: nine of ten predictions of the p95 err by at most this share, against simulations of
random points. Rows are numbers of servers (up to and including `_ERROR_SERVERS`, then more), columns utilisations.
`bench_latency.py --calibrate` prints this map."""

_NO_LINK = Link(item_s=1e-9)
"""Stands in for the link of a placement that has none, beside placements that have one."""
_LEAST_CERTAIN = 1e-3
_SLOT_CONFIDENCE = 1.645
"""The number of requests in a stage is nearly Poisson: with slots for this many deviations above the mean, 95 % of
the requests find one."""


_TABLED_CV = 1.0
"""The largest coefficient of variation of service times in the table."""

_KNOWN_CV = 1.5
"""The largest coefficient of variation for which the distribution of service times is tabulated."""

UNKNOWN_ERROR = 1.0
"""The relative error given for a prediction under conditions for which no error was measured."""

_MEASURED_CV = 2.0
_MEASURED_ARRIVALS = (0.25, 4.0)
_MEASURED_SLOTS = 4
_MEASURED_PERCENTILE = 90.0  # of periodic streams: below it the phases matter more than the load

_WHOLE = 1e-9
_LEAST_OF_A_STREAM = 0.5  # replicas with a smaller share of the streams count as without streams

_MIXED_ERRORS = {
    Routing.PULL: 0.15,
    Routing.ROUND_ROBIN: 0.09,
    Routing.LEAST_LOADED: 0.34,
    Routing.RANDOM: 0.13,
    Routing.STICKY: 0.29,
}
"""Error bars of two placements beside one another, as in `_ERRORS`: of 60 mixes of 1 to 6 and 1 to 3 replicas whose
service times differ by factors of 1 to 8. Most of the error is on the safe side: a replica that is slower gets less
than its share of the capacity where items go to the least loaded one."""

_MOST_POOLED = 512
"""More replicas than this wait no less, in a queue that they share."""

_ROOM = 0.2
"""Share of idle capacity above which the slots of a replica that batches hardly affect one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    """The load of a stage, `rate_rps` items per second.

    `sessions` is the number of sessions, which hold a slot each; None for requests, which hold one while they are in
    the stage. `arrival_cv2` is as in `Demand`. `periodic` is True if the sessions send items at a fixed interval and no
    earlier stage drops or multiplies any. `first_answer` and `latency_factor` are as in `Stage`.
    """

    rate_rps: float
    sessions: float | None = None
    arrival_cv2: float = 1.0
    periodic: bool = False
    first_answer: bool = False
    latency_factor: float = 1.0

    def thinned(self, share: float) -> "StageLoad":
        """Return the load of `share` (0–1) of the items, chosen at random: nearer to a Poisson process."""
        return replace(
            self,
            rate_rps=self.rate_rps * share,
            arrival_cv2=1 + share * (self.arrival_cv2 - 1),
            periodic=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Mean and percentile of the time in the stage, and utilisation: load / capacity at full batches.

    `error` is the error bar: nine of ten predictions under similar conditions have at most this relative error.
    """

    mean_s: float
    percentile_s: float
    utilization: float
    error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """The predictions for n allocations, shape (n,) each; times are infinite where one cannot carry the load."""

    mean_s: Array
    percentile_s: Array
    utilization: Array
    error: Array = field(default_factory=lambda: np.zeros(0))


def capacity_rps(placement: Placement, batch: int) -> float:
    """Return the items per second that reach one replica and that it completes with full batches of `batch` items."""
    rate = served_rps(placement, batch)
    return rate if placement.link is None else min(rate, placement.link.capacity_rps)


def carried_rps(stage: Stage, placement: Placement, batch: int) -> float:
    """Return by how many items per second of `stage` one replica of `placement` raises what it carries.

    In a cascade the first placements leave the uncertain items to others; it is above 0 even if these are all.
    """
    rate, cascade = capacity_rps(placement, batch), stage.cascade
    if cascade is None or placement.name == cascade.to:
        return rate
    return max(_LEAST_CERTAIN, 1 - cascade.share) * rate


def served_rps(placement: Placement, batch: int) -> float:
    """Return the items per second that one replica completes, however they reach it."""
    rate = placement.law_rps(batch)
    return rate if placement.saturation_rps is None else min(rate, placement.saturation_rps)


def predict(
    load: StageLoad,
    placement: Placement,
    replicas: int,
    *,
    batch: int,
    routing: Routing,
    percentile: float,
) -> Prediction | None:
    """Return the prediction for `replicas` of one placement; None where they cannot carry the load.

    They cannot above `UTILIZATION_CEILING`, or if their slots do not hold the load's sessions.
    """
    answer = predict_all(
        load,
        (placement,),
        np.array([[replicas]]),
        (batch,),
        routing=routing,
        percentile=percentile,
    )
    if not np.isfinite(answer.percentile_s[0]):
        return None
    return Prediction(
        mean_s=float(answer.mean_s[0]),
        percentile_s=float(answer.percentile_s[0]),
        utilization=float(answer.utilization[0]),
        error=float(answer.error[0]),
    )


def predict_all(
    load: StageLoad,
    placements: Sequence[Placement],
    replicas: Counts,
    batches: Sequence[int] | Counts,
    *,
    routing: Routing,
    percentile: float,
    cascade: Cascade | None = None,
    waits_s: Array | None = None,
) -> Predictions:
    """Return the predictions for allocations of several placements, which share the load in proportion to capacity.

    `replicas` has one row per allocation and one column per placement. `batches` has the batch limits in the same
    shape, or one row for all allocations. `percentile` is 0–100, exclusive. Times are infinite above
    `UTILIZATION_CEILING`, and where the slots of the replicas do not hold the load's sessions.

    With a `cascade` the percentile is that of the items that take the slower path, through both models, so that they
    are within an SLA too; the mean is that of all items.

    `waits_s` has the batch waits in the shape of `replicas`, None: each placement has its `batch_wait_s`. Placements
    with settings `in_force` have these, and predictions are the worst of all combinations of them.
    """
    if any(placement.in_force for placement in placements):
        return _worst(load, placements, replicas, batches, routing=routing, percentile=percentile, cascade=cascade)
    limits = np.broadcast_to(np.asarray(batches, dtype=np.int64), replicas.shape)
    if cascade is None:
        return _side_by_side(load, placements, replicas, limits, waits_s, routing=routing, percentile=percentile)
    last = np.array([placement.name == cascade.to for placement in placements])
    both = replicas[:, ~last].sum(axis=1) > 0
    uncertain = load.thinned(cascade.share)
    one, two, alone = (
        _side_by_side(
            offered,
            placements,
            np.where(used, replicas, 0),
            limits,
            waits_s,
            routing=routing,
            percentile=percentile,
        )
        for offered, used in ((load, ~last), (uncertain, last), (load, last))
    )
    carried = np.isfinite(two.mean_s)  # a share of 0 times infinity is no number
    mean = np.where(carried, one.mean_s + cascade.share * np.where(carried, two.mean_s, 0.0), np.inf)
    excess = np.hypot(_excess(one), _excess(two))
    return Predictions(
        mean_s=np.where(both, mean, alone.mean_s),
        percentile_s=np.where(both, one.mean_s + two.mean_s + excess, alone.percentile_s),
        utilization=np.where(both, np.maximum(one.utilization, two.utilization), alone.utilization),
        error=np.where(both, np.maximum(one.error, two.error), alone.error),
    )


def _worst(
    load: StageLoad,
    placements: Sequence[Placement],
    replicas: Counts,
    batches: Sequence[int] | Counts,
    *,
    routing: Routing,
    percentile: float,
    cascade: Cascade | None,
) -> Predictions:
    """Return the worst predictions of all combinations of the batch settings in force."""
    limits = np.array(np.broadcast_to(np.asarray(batches, dtype=np.int64), replicas.shape))
    found = []
    for combination in product(*(placement.in_force or (None,) for placement in placements)):
        own = list(placements)
        for k, settings in enumerate(combination):
            if settings is not None:
                own[k] = placements[k].with_settings(settings)
                limits[:, k] = settings.limit
        found.append(predict_all(load, own, replicas, limits, routing=routing, percentile=percentile, cascade=cascade))
    return Predictions(
        mean_s=np.maximum.reduce([each.mean_s for each in found]),
        percentile_s=np.maximum.reduce([each.percentile_s for each in found]),
        utilization=np.maximum.reduce([each.utilization for each in found]),
        error=np.maximum.reduce([each.error for each in found]),
    )


def _excess(predicted: Predictions) -> Array:
    """Return by how much (s) the percentiles exceed the means, infinite where the load cannot be carried."""
    excess = np.full(len(predicted.mean_s), np.inf)
    np.subtract(predicted.percentile_s, predicted.mean_s, out=excess, where=np.isfinite(predicted.percentile_s))
    return excess


def _side_by_side(
    load: StageLoad,
    placements: Sequence[Placement],
    replicas: Counts,
    limits: Counts,
    waits_s: Array | None,
    *,
    routing: Routing,
    percentile: float,
) -> Predictions:
    """Return the predictions for placements that share the load in proportion to their capacity."""
    kinds, kind = _kinds(placements, limits) if waits_s is None else _kinds_with_waits(placements, limits, waits_s)
    offered = replicas * np.array([capacity_rps(placement, batch) for placement, batch in kinds])[kind]
    pinned = load.sessions or 0.0 if routing is Routing.STICKY else 0.0
    utilization, carried, share, typical, streams = _spread(replicas, offered, load.rate_rps, pinned, percentile / 100)
    row, column = map(np.ascontiguousarray, np.nonzero(share))  # in other layouts, functions would be compiled again
    part = _Parts(
        load=load,
        routing=routing,
        percentile=percentile,
        kinds=tuple(kinds),
        kind=kind[row, column],
        replicas=_pooled(replicas, share)[row, column],
        utilization=typical[row, column],
        streams=streams[row, column],
    )
    mean, quantile, error = np.zeros((3, len(replicas)))
    if len(row):
        means, quantiles = part.latency() if all(p.link is None for p in placements) else part.with_links()
        _gather(row, share[row, column], means, quantiles, part.error(), mean, quantile, error)
        mixed = np.nonzero(np.count_nonzero(share, axis=1) > 1)[0]
        if len(mixed):
            of_each = np.zeros((2, *share.shape))
            of_each[:, row, column] = quantiles, means
            tails, middles = of_each[:, mixed].transpose(0, 2, 1)
            quantile[mixed] = mixture_percentile(share[mixed].T, tails, middles, percentile)
            error[mixed] = np.maximum(error[mixed], _MIXED_ERRORS[routing])
    ok = carried & _slots_suffice(load, placements, replicas, mean * load.latency_factor)
    return Predictions(
        mean_s=np.where(ok, mean * load.latency_factor, np.inf),
        percentile_s=np.where(ok, quantile * load.latency_factor, np.inf),
        utilization=utilization,
        error=error,
    )


@compiled
def _spread(
    replicas: Counts, offered: Array, rate_rps: float, streams_pinned: float, below: float
) -> tuple[Array, NDArray[np.bool_], Array, Array, Array]:
    """Spread the load over the capacities `offered`, which has the shape of `replicas`: (allocations, placements).

    The five results are, for each allocation, its utilization and whether it carries the load; and for each of its
    placements the share of the load (0 where the allocation does not carry the load), then the utilization and the
    number of streams of the replicas that determine the percentile.

    `streams_pinned` streams that stay with their replica are spread as evenly as whole streams can be. An allocation
    carries the load if its fullest replicas do. The fullest replicas also determine the percentile, unless they get
    less than the share 1 - `below` of the items.
    """
    count, placements = replicas.shape
    utilization, carried = np.full(count, np.inf), np.zeros(count, np.bool_)
    share, typical, streams = np.zeros(replicas.shape), np.zeros(replicas.shape), np.ones(replicas.shape)
    for row in range(count):
        capacity = 0.0
        for k in range(placements):
            capacity += offered[row, k]
        if capacity <= 0.0:
            continue
        utilization[row] = rate_rps / capacity
        fullest = 1.0
        for k in range(placements):
            among = replicas[row, k]
            typical[row, k] = utilization[row]
            if among <= 0:
                continue
            share[row, k] = offered[row, k] / capacity
            held = streams_pinned * share[row, k]
            if streams_pinned <= 0.0 or held < _LEAST_OF_A_STREAM:
                continue
            whole = np.ceil(held - _WHOLE)
            most, least = np.ceil(whole / among - _WHOLE), np.floor(whole / among + _WHOLE)
            items = (whole - least * among) * most / whole if most > least else 1.0
            streams[row, k] = most if items > 1 - below or least == 0 else least
            typical[row, k] *= streams[row, k] * among / held
            fullest = max(fullest, most * among / held)
        carried[row] = utilization[row] * fullest <= UTILIZATION_CEILING
        if not carried[row]:
            share[row] = 0.0
    return utilization, carried, share, typical, streams


def _pooled(replicas: Counts, share: Array) -> Counts:
    """Return how many replicas of each placement have the capacity of the whole allocation, rounded.

    The replicas of all placements take items from the same queue, or in the same turns: an item waits as if all were
    of its own kind.
    """
    alike = np.rint(np.divide(replicas, share, out=replicas.astype(np.float64), where=share > 0))
    return np.maximum(replicas, np.minimum(alike, _MOST_POOLED).astype(np.int64))


@compiled
def _gather(
    row: Counts, share: Array, means: Array, quantiles: Array, errors: Array, mean: Array, quantile: Array, error: Array
) -> None:
    """Write to each row the mean weighted by `share`, the largest percentile and the largest error of its parts."""
    for part in range(len(row)):
        mean[row[part]] += share[part] * means[part]
        quantile[row[part]] = max(quantile[row[part]], quantiles[part])
        error[row[part]] = max(error[row[part]], errors[part])


def _kinds(placements: Sequence[Placement], limits: Counts) -> tuple[list[tuple[Placement, int]], Counts]:
    """Return the possible pairs of placement and batch limit, and the position of each of `limits` among the pairs."""
    kinds: list[tuple[Placement, int]] = []
    kind = np.empty(limits.shape, dtype=np.int64)
    for k, placement in enumerate(placements):
        sizes = np.array(placement.batch_sizes, dtype=np.int64)
        position = np.minimum(np.searchsorted(sizes, limits[:, k]), len(sizes) - 1)
        if np.any(sizes[position] != limits[:, k]):  # a measured limit, which is none of the planned ones
            sizes, position = np.unique(limits[:, k], return_inverse=True)
        kind[:, k] = len(kinds) + position
        kinds += [(placement, batch) for batch in sizes.tolist()]
    return kinds, kind


def _kinds_with_waits(
    placements: Sequence[Placement], limits: Counts, waits_s: Array
) -> tuple[list[tuple[Placement, int]], Counts]:
    """Return what `_kinds` does, where the batch waits `waits_s`, in the shape of `limits`, are chosen too."""
    kinds: list[tuple[Placement, int]] = []
    kind = np.empty(limits.shape, dtype=np.int64)
    for k, placement in enumerate(placements):
        pairs, position = np.unique(np.column_stack((limits[:, k], waits_s[:, k])), axis=0, return_inverse=True)
        kind[:, k] = len(kinds) + position
        settings = (BatchSettings(limit=int(limit), wait_s=wait_s) for limit, wait_s in pairs.tolist())
        kinds += [(placement.with_settings(own), own.limit) for own in settings]
    return kinds, kind


def _slots_suffice(
    load: StageLoad, placements: Sequence[Placement], replicas: Counts, mean_s: Array
) -> NDArray[np.bool_]:
    if all(p.session_slots is None for p in placements):
        return np.ones(len(replicas), dtype=np.bool_)
    slots = np.array([np.inf if p.session_slots is None else p.session_slots for p in placements])
    available = np.sum(np.where(replicas > 0, replicas * np.where(replicas > 0, slots, 0.0), 0.0), axis=1)
    if load.sessions is not None:
        needed = np.full(len(replicas), np.ceil(load.sessions - 1e-9))
    else:
        inside = load.rate_rps * mean_s  # Little's law
        needed = inside + _SLOT_CONFIDENCE * np.sqrt(inside)
    return np.asarray(needed <= available)


def _found_busy(streams: Array, utilization: Array, servers: int) -> Array:
    """Return the probability that the other streams keep all `servers` busy: P(Bin(streams − 1, share) ≥ servers).

    `share` is the share of a server's time that one stream uses.
    """
    share = np.minimum(utilization * servers / streams, 1 - 1e-9)
    term = np.exp((streams - 1) * np.log1p(-share))
    below = term.copy()
    for k in range(1, servers):
        term = term * np.maximum(streams - k, 0.0) / k * share / (1 - share)
        below += term
    return np.asarray(np.clip(1 - below, 0.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The parts of which the allocations consist: n groups of equal replicas, each with its share of the load.

    A part is of one of `kinds`, pairs of a placement and a batch limit. `kind` (position in `kinds`), `replicas`,
    `utilization` and `streams` (per replica) have the shape (n,).
    """

    load: StageLoad
    routing: Routing
    percentile: float
    kinds: tuple[tuple[Placement, int], ...]
    kind: Counts
    replicas: Counts
    utilization: Array
    streams: Array

    def latency(self) -> tuple[Array, Array]:
        """Return mean and percentile of the time in each part, in seconds, shape (n,) each."""
        if self.kinds[0][0].continuous:
            return self._running()
        if all(batch == 1 or placement.service.linear for placement, batch in self.kinds):
            mean, quantile = self.queued()
        else:
            below, above, share = self._straightened()
            both = zip(below.queued(), above.queued(), strict=True)
            mean, quantile = ((1 - share) * low + share * high for low, high in both)
        for number, (placement, batch) in enumerate(self.kinds):
            if batch == 1 and self._pinned:
                at = np.nonzero(self.kind == number)[0]
                mean[at], quantile[at] = self._periodic(placement, at, mean[at], quantile[at])
            elif batch > 1 and placement.batch_wait_s > 0:
                at = np.nonzero(self.kind == number)[0]
                mean[at], quantile[at] = self._patient(placement, batch, at, mean[at], quantile[at])
        return mean, quantile

    def with_links(self) -> tuple[Array, Array]:
        """Return mean and percentile of the time in each part and on the links to its replicas, in seconds.

        `utilization` is of the capacity that the links allow. A link is a queue of its own in front of a replica; the
        percentile is composed as that of stages in series (`Composition.RSS`). Where some items do not take the link,
        it is that of the mixture.
        """
        reached = [capacity_rps(placement, batch) for placement, batch in self.kinds]
        served = [served_rps(placement, batch) for placement, batch in self.kinds]
        items = np.array([0.0 if p.link is None else p.link.item_s for p, _ in self.kinds])
        fixed = np.array([0.0 if p.link is None else p.link.fixed_s for p, _ in self.kinds])
        shares = np.array([1.0 if p.link is None else p.link.share for p, _ in self.kinds])
        each_rps = self.utilization * np.array(reached)[self.kind]
        mean, quantile = replace(self, utilization=each_rps / np.array(served)[self.kind]).latency()
        at = np.nonzero(items[self.kind] > 0)[0]
        if len(at):
            links = tuple((Placement(pool=p.pool, service=(p.link or _NO_LINK).law), 1) for p, _ in self.kinds)
            share = shares[self.kind[at]]
            least = float(share.min())
            load = self.load if least == 1 else self.load.thinned(least)
            on_links = replace(
                self,
                load=load,
                routing=self.routing.of_links,
                kinds=links,
                kind=self.kind[at],
                replicas=self.replicas[at],
                utilization=each_rps[at] * items[self.kind[at]] * share,
                streams=self.streams[at],
            )
            middle, tail = on_links.latency()
            slower = mean[at] + middle + np.hypot(quantile[at] - mean[at], tail - middle)
            if least < 1:
                slower = mixture_percentile(
                    np.array([1 - share, share]),
                    np.array([quantile[at], slower]),
                    np.array([mean[at], mean[at] + middle]),
                    self.percentile,
                )
            mean[at] += share * middle
            quantile[at] = slower
        return mean + fixed[self.kind], quantile + fixed[self.kind]

    def _straightened(self) -> "tuple[_Parts, _Parts, Array]":
        """Return the parts with straight lines in place of their laws, twice, and the share (n,) of the second ones."""
        each_rps = self.utilization * np.array([p.service.rate_rps(batch) for p, batch in self.kinds])[self.kind]
        kinds: list[tuple[Placement, int]] = []
        below, share = np.zeros(len(self.kind), dtype=np.int64), np.zeros(len(self.kind))
        last = below.copy()
        for number, (placement, batch) in enumerate(self.kinds):
            lines = lines_of(placement.service, batch, self.routing)
            at = np.nonzero(self.kind == number)[0]
            line, share[at] = lines.at(each_rps[at])
            below[at] = len(kinds) + line
            last[at] = len(kinds) + len(lines.laws) - 1
            kinds += [(replace(placement, service=law), batch) for law in lines.laws]
        rates = np.array([placement.service.rate_rps(batch) for placement, batch in kinds])

        def with_lines(kind: Counts) -> _Parts:
            used, position = np.unique(kind, return_inverse=True)
            return replace(
                self,
                kinds=tuple(kinds[k] for k in used),
                kind=position,
                utilization=np.minimum(each_rps / rates[kind], UTILIZATION_CEILING),
            )

        return with_lines(below), with_lines(np.minimum(below + 1, last)), share

    def _running(self) -> tuple[Array, Array]:
        """Return mean and percentile, in seconds, for servers that batch continuously."""
        engines = np.array([placement.concurrency for placement, _ in self.kinds], dtype=np.int64)[self.kind]
        law_rps = np.array([placement.law_rps(batch) for placement, batch in self.kinds])[self.kind]
        cv2, count = self.load.arrival_cv2, self.replicas.astype(np.float64)
        streams = np.full_like(count, np.inf)
        match self.routing:
            case Routing.PULL | Routing.LEAST_LOADED:
                sharing, arrival_cv2 = self.replicas, np.full_like(count, cv2)
            case Routing.ROUND_ROBIN:
                sharing, arrival_cv2 = np.ones_like(self.replicas), cv2 / count
            case Routing.RANDOM | Routing.STICKY:
                sharing, arrival_cv2 = np.ones_like(self.replicas), 1 + (cv2 - 1) / count
                if self._pinned:
                    streams = np.maximum(self.streams, 1.0)
        load = Load(
            kind=self.kind,
            engines=sharing * engines,
            rate_rps=self.utilization * sharing * law_rps,
            arrival_cv2=arrival_cv2,
            streams=streams,
        )
        return time_in_engines(list(self.kinds), load, percentile=self.percentile, first=self.load.first_answer)

    def error(self) -> Array:
        """Return the error bar of each of the n latencies: the relative error that nine of ten predictions stay within.

        It was measured by kind of queue, number of servers and utilization. Outside the measured conditions it is
        `UNKNOWN_ERROR`.
        """
        slots = np.array([placement.concurrency for placement, _ in self.kinds])
        maps = np.stack([_ERRORS[self._region(*kind)] for kind in self.kinds])
        outside = np.array([self._outside(*kind) for kind in self.kinds])
        rows = np.searchsorted(_ERROR_SERVERS, self.replicas * slots[self.kind], side="left")
        columns = np.searchsorted(_ERROR_UTILIZATION, self.utilization, side="right")
        return np.where(outside[self.kind], UNKNOWN_ERROR, maps[self.kind, rows, columns])

    def _outside(self, placement: Placement, batch: int) -> bool:
        """Return whether the prediction is outside the conditions for which errors were measured."""
        low, high = _MEASURED_ARRIVALS
        return (
            placement.service.cv > _MEASURED_CV
            or not low <= self.load.arrival_cv2 <= high
            or (batch > 1 and placement.concurrency > _MEASURED_SLOTS)
            or (batch == 1 and self._pinned and self.percentile < _MEASURED_PERCENTILE)
        )

    def _region(self, placement: Placement, batch: int) -> str:
        if placement.continuous:
            return "continuous"
        if placement.service.cv > _TABLED_CV:
            return "erratic"
        if batch > 1 and not placement.service.linear and placement.batch_wait_s == 0:
            return "falling" if lines_of(placement.service, batch, self.routing).falling else "bent"
        if batch > 1 and placement.batch_wait_s > 0:
            return "patient"
        if batch == 1 and self._pinned:
            return "periodic"
        if self.routing is Routing.ROUND_ROBIN:
            return "round robin"
        if self.routing in {Routing.RANDOM, Routing.STICKY}:
            return "at random"
        if self.routing is Routing.LEAST_LOADED and placement.concurrency > 1:
            return "several slots"
        looks = ", least loaded" if self.routing is Routing.LEAST_LOADED else ""
        return ("batching" if batch > 1 else "single items") + looks

    @property
    def _pinned(self) -> bool:
        load = self.load
        return self.routing is Routing.STICKY and load.periodic and bool(load.sessions) and load.rate_rps > 0

    def queued(self) -> tuple[Array, Array]:
        """Return mean and percentile, in seconds, for servers that take the waiting items without waiting for more."""
        cv2, count = self.load.arrival_cv2, self.replicas.astype(np.float64)
        slots = np.array([float(placement.concurrency) for placement, _ in self.kinds])[self.kind]
        alone_s = np.array([placement.service.mean_s(1) for placement, _ in self.kinds])[self.kind]

        def at(servers: Array, arrival_cv2: Array, sharing: int) -> tuple[Array, Array]:
            kinds = [
                Servers(
                    sharing=sharing,
                    limit=batch,
                    per_item_share=placement.service.per_item_s / placement.service.mean_s(1),
                    cv=min(placement.service.cv, _TABLED_CV),
                )
                for placement, batch in self.kinds
            ]
            mean, quantile = time_in_stage(
                kinds, self.kind, servers, self.utilization, np.sqrt(arrival_cv2), percentile=self.percentile
            )
            if any(placement.service.cv > _TABLED_CV for placement, _ in self.kinds):
                each_cv2 = arrival_cv2 / count if sharing == ROUND_ROBIN else arrival_cv2
                mean, quantile = self._erratic(mean, quantile, each_cv2)
            return mean * alone_s, quantile * alone_s

        as_offered = np.full_like(count, cv2)
        match self.routing:
            case Routing.PULL:
                return at(count * slots, as_offered, PULL)
            case Routing.LEAST_LOADED:
                mean, quantile = at(count * slots, as_offered, LEAST_LOADED)
                if np.any(slots > 1):  # the servers of a replica share its queue
                    shared = at(count * slots, as_offered, PULL)
                    own = 1 / slots
                    mean = own * mean + (1 - own) * shared[0]
                    own = own + (1 - own) * self._apart()
                    quantile = own * quantile + (1 - own) * shared[1]
                return mean, quantile
            case Routing.ROUND_ROBIN:  # a replica gets every n-th item
                mean, quantile = at(count, as_offered, ROUND_ROBIN)
                if np.any(slots > 1):
                    shared = at(slots, cv2 / count, PULL)
                    mean, quantile = np.where(slots > 1, shared, (mean, quantile))
                return mean, quantile
            case Routing.RANDOM | Routing.STICKY:  # a random split brings arrivals closer to a Poisson process
                return at(slots, 1 + (cv2 - 1) / count, PULL)

    def _erratic(self, mean: Array, quantile: Array, arrival_cv2: Array) -> tuple[Array, Array]:
        """Return mean and percentile, corrected where service times vary more than in the table (cv > `_TABLED_CV`).

        Both are in units of the time of a batch of one. Waits grow in proportion to ca² + cs² (Allen and Cunneen 1990)
        from the waits at `_TABLED_CV`. The service time is that of a batch as it forms at servers that are always busy.
        """
        mean, quantile = mean.copy(), quantile.copy()
        below = self.percentile / 100
        for number, (placement, batch) in enumerate(self.kinds):
            cv2 = placement.service.cv**2
            at = np.nonzero(self.kind == number)[0]
            if cv2 <= _TABLED_CV**2 or not len(at):
                continue
            share = placement.service.per_item_s / placement.service.mean_s(1)
            full_s = 1 - share + share * batch
            rate = self.utilization[at] * batch / full_s  # items in the time of a batch of one, by each server
            formed = np.clip(rate * (1 - share) / np.maximum(1 - rate * share, 1e-9), 1.0, batch)
            service = 1 - share + share * formed
            growth = (arrival_cv2[at] + cv2) / (arrival_cv2[at] + _TABLED_CV**2)
            before = -np.log(1 - below) * service  # exponential: of a cv of 1
            known = min(placement.service.cv, _KNOWN_CV)
            low, step, shares = own_distribution(known)
            after = np.exp(np.interp(below, shares, low + step * np.arange(len(shares)))) * service
            if placement.service.cv > known:
                wide, narrow = (
                    gamma_quantile(service, each**2 * service**2, self.percentile)
                    for each in (placement.service.cv, known)
                )
                after *= np.maximum(np.divide(wide, narrow, out=np.ones_like(wide), where=narrow > 0), 1.0)
            mean[at] = service + growth * np.maximum(mean[at] - service, 0.0)
            quantile[at] = after + growth * np.maximum(quantile[at] - before, 0.0)
        return mean, quantile

    def _apart(self) -> Array:
        """Return how much the slots of a replica behave like separate queues (1) or one queue (0), in high percentiles.

        Measured, not derived: with idle capacity the slowest items of several slots are as fast as if each slot had a
        queue of its own. One queue for all slots forms batches only when all slots are busy, and then large batches.
        """
        batches = np.array([batch > 1 for _, batch in self.kinds])[self.kind]
        high = min(max((self.percentile - 50) / 45, 0.0), 1.0)
        return np.where(batches, high * np.clip((1 - self.utilization) / _ROOM, 0.0, 1.0), 0.0)

    def _periodic(self, placement: Placement, at: Counts, poisson_mean: Array, poisson: Array) -> tuple[Array, Array]:
        """Return mean and percentile of N·D/D/c, in seconds: streams that share a replica meet again in every period.

        `at` are the parts of `placement`. The results never exceed `poisson_mean` and `poisson`, the times with Poisson
        arrivals.
        """
        assert self.load.sessions is not None
        utilization, service_s = self.utilization[at], placement.service.mean_s(1)
        # Varying service times queue even with regular arrivals; the wait due to the phases comes on top.
        varied_mean, varied = self._regular(placement, utilization)
        streams = np.maximum(self.streams[at], 1.0)
        capacity, chance = 1 - utilization, _found_busy(streams, utilization, placement.concurrency)
        # P(x jobs are ahead) = chance · exp(−2x(x / streams + capacity)): a bridge, because arrivals repeat.
        level = 0.5 * np.log(np.maximum(chance / (1 - self.percentile / 100), 1.0))
        jobs = streams / 2 * (np.sqrt(capacity**2 + 4 * level / streams) - capacity)
        steep = capacity * np.sqrt(streams / 2)
        on_average = chance * np.sqrt(streams / 2) / (steep + np.sqrt(steep**2 + 4 / np.pi))
        each_s = service_s / placement.concurrency
        return (
            np.minimum(poisson_mean, varied_mean + on_average * each_s),
            np.minimum(poisson, varied + jobs * each_s),
        )

    def _regular(self, placement: Placement, utilization: Array) -> tuple[Array, Array]:
        """Return mean and percentile of D/G/c at one replica, in seconds (Kraemer and Langenbach-Belz 1976)."""
        servers, service_s = placement.concurrency, placement.service.mean_s(1)
        cv2 = placement.service.cv**2
        if cv2 == 0:
            return np.full_like(utilization, service_s), np.full_like(utilization, service_s)
        busy = erlang_c(np.full(len(utilization), float(servers)), utilization * servers)
        loaded = np.maximum(utilization, 1e-9)
        regular = np.exp(-2 * (1 - loaded) / (3 * loaded * cv2))
        wait = 0.5 * cv2 * regular * busy * service_s / (servers * (1 - utilization))
        # The wait of an item that waits is exponential.
        variance = np.where(busy > 0, 2 * wait**2 / np.where(busy > 0, busy, 1.0), 0.0) - wait**2
        mean = wait + service_s
        return mean, gamma_quantile(mean, np.maximum(variance, 0.0) + cv2 * service_s**2, self.percentile)

    def _patient(
        self, placement: Placement, batch: int, at: Counts, mean: Array, quantile: Array
    ) -> tuple[Array, Array]:
        """Return mean and percentile, in seconds, for servers that wait for a batch to fill.

        They are the larger of `mean` and `quantile`, from the table, and the times of a batch that fills.
        """
        replicas, law, wait_s = self.replicas[at], placement.service, placement.batch_wait_s
        rate = self.utilization[at] * replicas * capacity_rps(placement, batch)
        joins = rate if self.routing is Routing.PULL else rate / replicas
        if self.routing is Routing.LEAST_LOADED:  # no item joins a batch while a replica has none
            others = np.maximum(replicas - 1.0, 1.0)
            busy = np.minimum(rate * (wait_s + law.mean_s(1)), others * (1 - 1e-9))
            joins = joins * np.where(replicas > 1, erlang_c(others, busy), 1.0)
        filling, variance = _filling(placement, batch, joins)
        slow = gamma_quantile(filling, variance, self.percentile)
        return np.maximum(mean, filling), np.maximum(quantile, slow)


def _filling(placement: Placement, batch: int, joins_rps: Array) -> tuple[Array, Array]:
    """Return mean (s) and variance (s²) of the time of items whose batch waits to fill and then starts immediately."""
    law, mean, variance = placement.service, np.empty(len(joins_rps)), np.empty(len(joins_rps))
    service_s = np.array(law.times_s(batch)[1:])
    _fill(joins_rps, placement.batch_wait_s, service_s, law.cv, mean, variance)
    return mean, variance


@compiled
def _fill(joins_rps: Array, wait_s: float, law_s: Array, cv: float, mean: Array, var: Array) -> None:
    """Write mean and variance of the time of items whose batch waits to fill; `law_s` are the times of batches from 1.

    The number of items that join the first within the wait is Poisson. The first item waits for the whole wait, the
    others for the rest of it. The items of a batch that fills arrive evenly spread over the time of filling.
    """
    batch = len(law_s)
    for row in range(len(joins_rps)):
        rate = max(joins_rps[row], 1e-12)
        log_joined = np.log(rate * wait_s)
        log_chance, below, filled_s = -rate * wait_s, 0.0, 0.0
        items, first, second = 0.0, 0.0, 0.0
        for others in range(batch):
            size = others + 1.0
            service_s = law_s[others]
            if size < batch:
                log_chance += log_joined - np.log(others) if others else 0.0
                chance = np.exp(log_chance)
                below += chance
                filled_s += max(1 - below, 0.0) / rate  # until it is full, or for the wait if that is less
                window_s, delay, square = wait_s, (1 + 1 / size) / 2, (1 + 2 / size) / 3
            else:
                chance = max(1 - below, 0.0)
                window_s = (filled_s - wait_s * (1 - chance)) / max(chance, 1e-12)
                window_s = min(max(window_s, 0.0), wait_s)
                delay, square = 0.5, (2 * size - 1) / (6 * (size - 1))
            weight = size * chance  # every item of a batch counts
            items += weight
            first += weight * (window_s * delay + service_s)
            second += weight * (window_s**2 * square + 2 * window_s * delay * service_s + service_s**2 * (1 + cv**2))
        mean[row] = first / items
        var[row] = max(second / items - mean[row] ** 2, 0.0)
