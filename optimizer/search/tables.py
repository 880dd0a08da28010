"""The tables of the search: the allocations of a stage to its placements, with cost, latency and use of the pools."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import combinations, product
from math import ceil, inf, isqrt, sqrt

import numpy as np
from numpy.typing import NDArray

from optimizer.latency.batching_table import UTILIZATION_CEILING
from optimizer.latency.quantiles import mixture_percentile
from optimizer.latency.stage import Predictions, StageLoad, capacity_rps, predict_all
from optimizer.model import Cascade, Mixing, Placement, Pool, PoolName, Problem, Routing, Size, Stage, share_instances
from optimizer.runtime.cache import BoundedCache
from optimizer.runtime.compiled import compiled
from optimizer.search.mixes import Wanted, beaten, cheapest_mixes

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

RESOLUTION = 1e-3
"""Latencies of a stage that differ by at most this share of its percentile count as equal: the model errs by more."""

_ENDLESS = 2**40

_ALONE_LIMIT = 512  # replica counts of one placement alone; more are thinned out
_OVERFLOW_LIMIT = 4096  # rows of overflow from one placement to the next
_MIXES_LIMIT = 10_000  # rows of mixes of two placements
_CANDIDATES = 10_000  # free mixes to look at
_FREE_LIMIT = 2_000  # and to list
_GROUPS = 100  # of mixes that are not listed
_LIMIT_STEPS = 1
_MANY_PLACEMENTS = 8
_MANY_RUNNING = 4  # placements in use; with more, only common batch limits are tried: each single one hardly matters
_CENTS = 9  # decimals at which two costs count as equal
_TABLES_BYTES = 12 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The pools, counted in units, in which the use of different placements adds up.

    Where the `per_instance` values on a pool divide each other, a unit is the smallest replica's share of an instance.
    Otherwise a unit is an instance, and each placement is rounded up to whole instances. The arrays have one element
    per pool, in the order of `pools`; `prices_per_hour` is in USD per instance, `limits` in units.
    """

    pools: tuple[PoolName, ...]
    prices_per_hour: Array
    units_per_instance: Counts
    limits: Counts
    columns: Mapping[PoolName, int] = field(init=False, repr=False, compare=False)
    """The position of each pool in the arrays."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", {name: column for column, name in enumerate(self.pools)})

    def column(self, placement: Placement) -> int:
        """Return the position of the placement's pool in the arrays."""
        return self.columns[placement.pool]

    def units(self, placement: Placement, replicas: Counts) -> Counts:
        """Return the units that `replicas` of `placement` take of the placement's pool, rounded up, elementwise."""
        per_instance = int(self.units_per_instance[self.column(placement)])
        own = placement.per_instance
        return np.asarray(-(-replicas * per_instance * own.denominator // own.numerator), dtype=np.int64)

    def most(self, placement: Placement) -> int:
        """Return how many replicas of `placement` fit the whole pool."""
        column = self.column(placement)
        return int(self.limits[column]) * placement.per_instance // int(self.units_per_instance[column])

    def price_per_hour(self, placement: Placement) -> float:
        """Return the cost of one replica of `placement`, in USD per hour."""
        return float(self.prices_per_hour[self.column(placement)]) / placement.per_instance


def supply_of(problem: Problem) -> Supply:
    """Return the pools of `problem`, by name, in units that suit all its placements."""
    names = tuple(sorted(problem.pools))
    sizes: dict[PoolName, set[Size]] = {name: {1} for name in names}
    for _, _, placement in problem.placements():
        sizes[placement.pool].add(placement.per_instance)
    if problem.counts_instances:  # replicas outside the problem share the nodes that are paid for
        for name in names:
            sizes[name].update(size for size, count in problem.pools[name].held if count)
    units = np.array([_divisor(sizes[name]) for name in names], dtype=np.int64)
    pools: Mapping[PoolName, Pool] = problem.pools
    return Supply(
        pools=names,
        prices_per_hour=np.array([pools[name].price_per_hour for name in names], dtype=np.float64),
        units_per_instance=units,
        limits=units * np.array([pools[name].instances for name in names], dtype=np.int64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOptions:
    """The allocations of one stage, one row each, by rising `objective_per_hour`: the cost plus the switching cost.

    `replicas` and `batches` (batch limits) have one column per placement, `use` one per pool, in units of `Supply`.
    Rows with equal objectives are in the user's order of preference, then by fewer replicas. The same replicas may have
    several rows: one with the batch limits of the best percentile, another with those of the best mean.
    `latency_error` is `Predictions.error`, None without predictions. `waits_s` has the batch waits in the shape of
    `batches`, None where there is no choice of them.

    Large ranges of replica counts are thinned out. Then an allocation that was left out may be cheaper than the next
    one listed, by the share `coarseness` at most; the cheapest one left out costs `coarse_from_per_hour`.

    Of many free mixes of two placements only the cheapest are listed. The columns of `unlisted` are cost, mean and
    percentile: each mix that is not listed is no better in all three than one of its rows.
    """

    stage: Stage
    replicas: Counts
    batches: Counts
    cost_per_hour: Array
    objective_per_hour: Array
    mean_s: Array
    percentile_s: Array
    utilization: Array
    use: Counts
    latency_error: Array | None = None
    waits_s: Array | None = None
    coarseness: float = 0.0
    coarse_from_per_hour: float = inf
    unlisted: Array = field(default_factory=lambda: np.zeros((0, 3)))
    _digest: bytes | None = field(default=None, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.cost_per_hour)

    @property
    def ignores_pools(self) -> bool:
        """Return whether mixes that use less of a pool are left out where a row costs no more and is no slower."""
        return _mixes_freely(self.stage)

    def placed(self, row: int) -> Iterator[tuple[Placement, int, int]]:
        """Yield every placement with its replicas and its batch limit in `row`; its wait there is its only choice."""
        placements = self.stage.placements
        if self.waits_s is not None:
            waits = zip(placements, self.waits_s[row].tolist(), strict=True)
            placements = tuple(replace(own, batch_wait_s=wait_s, batch_waits_s=()) for own, wait_s in waits)
        return zip(placements, self.replicas[row].tolist(), self.batches[row].tolist(), strict=True)

    @property
    def digest(self) -> bytes:
        """Return a digest of all arrays, as key of caches for values that depend on the rows. Computed once."""
        if self._digest is None:
            digest = blake2b(digest_size=16)
            for array in (
                *(self.replicas, self.batches, self.use, self.cost_per_hour, self.objective_per_hour),
                *(self.mean_s, self.percentile_s, self.utilization),
                *(own for own in (self.latency_error, self.waits_s) if own is not None),
            ):
                digest.update(repr(array.shape).encode())
                digest.update(np.ascontiguousarray(array).tobytes())
            object.__setattr__(self, "_digest", digest.digest())
        assert self._digest is not None
        return self._digest


def stage_options(
    stage: Stage,
    load: StageLoad,
    supply: Supply,
    *,
    percentile: float,
    max_wer: float | None = None,
    switching_cost_per_hour: float = 0.0,
    mixing: Mixing = Mixing.OVERFLOW,
) -> StageOptions:
    """Return the allocations of `stage` that carry `load`, without dominated ones.

    An allocation is dominated if another costs no more, is no slower and uses no more of any pool. Latencies within
    `RESOLUTION` count as equal. Not all pairs are compared, so that a dominated allocation may stay.

    Placements with a word error rate above `max_wer` get no replicas, not even their minimum. All others get at least
    their minimum, as far as it fits their pool. The stage gets at least `Stage.min_replicas`, as far as its bounds
    allow, and at least one replica unless that is 0 and nothing arrives. If a placement alone could have more than
    `_ALONE_LIMIT` different replica counts, only that many are considered: half of them are consecutive, from about the
    least count that carries the load; above these, each count is larger than the one before by the same factor.

    Results are cached by value: for a stage that has not changed a call costs next to nothing.
    """
    bounds = _bounds(stage, supply, max_wer)
    key = (stage, load, percentile, switching_cost_per_hour, mixing, bounds)
    known = _TABLES.get(key)
    if known is None:
        known = _TABLES.put(key, _table(stage, load, bounds, percentile, switching_cost_per_hour, mixing))
    return known


def _mixes_freely(stage: Stage) -> bool:
    return stage.mixing is Mixing.FREE and stage.cascade is None and len(stage.placements) > 1


def with_unlisted(table: StageOptions) -> StageOptions:
    """Return the table with rows that are no worse than the mixes that it does not list: for lower bounds only."""
    count = len(table.unlisted)
    if not count:
        return table
    cost, mean, percentile = table.unlisted.T
    nothing = np.zeros((count, len(table.stage.placements)), dtype=np.int64)
    return StageOptions(
        stage=table.stage,
        replicas=np.concatenate((table.replicas, nothing)),
        batches=np.concatenate((table.batches, nothing)),
        cost_per_hour=np.concatenate((table.cost_per_hour, cost)),
        objective_per_hour=np.concatenate((table.objective_per_hour, cost)),
        mean_s=np.concatenate((table.mean_s, mean)),
        percentile_s=np.concatenate((table.percentile_s, percentile)),
        utilization=np.concatenate((table.utilization, np.zeros(count))),
        use=np.concatenate((table.use, np.zeros((count, table.use.shape[1]), dtype=np.int64))),
    )


def without_replicas(table: StageOptions) -> StageOptions:
    """Return a table with one row for the stage of `table`: no replicas, no cost and an infinite latency."""
    return _empty(table.stage, table.use.shape[1], latency_s=np.inf)


def _empty(stage: Stage, pools: int, *, latency_s: float) -> StageOptions:
    """Return a table with one row: no replicas and no cost."""
    return StageOptions(
        stage=stage,
        replicas=np.zeros((1, len(stage.placements)), dtype=np.int64),
        batches=np.array([[placement.batch_sizes[0] for placement in stage.placements]]),
        cost_per_hour=np.zeros(1),
        objective_per_hour=np.zeros(1),
        mean_s=np.array([latency_s]),
        percentile_s=np.array([latency_s]),
        utilization=np.array([latency_s]),
        use=np.zeros((1, pools), dtype=np.int64),
    )


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The fewest and most replicas of each placement, by its pool and the user's bounds, and its price.

    A table depends on `Supply` and `max_wer` only through these values.
    """

    pools: int
    columns: tuple[int, ...]
    prices_per_hour: tuple[float, ...]
    units_per_instance: tuple[int, ...]
    lowest: tuple[int, ...]
    highest: tuple[int, ...]


def _bounds(stage: Stage, supply: Supply, max_wer: float | None) -> _Bounds:
    placements = stage.placements
    usable = [p.wer is None or max_wer is None or p.wer <= max_wer for p in placements]
    highest = [min(p.max_replicas, supply.most(p)) if ok else 0 for p, ok in zip(placements, usable, strict=True)]
    if stage.borrowed:  # they run already, and count at the pipeline that owns them
        highest = [max(most, p.min_replicas) for p, most in zip(placements, highest, strict=True)]
    columns = [supply.column(p) for p in placements]
    return _Bounds(
        pools=len(supply.pools),
        columns=tuple(columns),
        prices_per_hour=tuple(stage.cost_share * supply.price_per_hour(p) for p in placements),
        units_per_instance=tuple(int(supply.units_per_instance[column]) for column in columns),
        lowest=tuple(min(p.min_replicas, most) for p, most in zip(placements, highest, strict=True)),
        highest=tuple(highest),
    )


_OVERHEAD_BYTES = 4096  # measured: a key with its load and bounds, and nine arrays besides their data


def _bytes(table: StageOptions) -> int:
    columns = (2 + (table.waits_s is not None)) * len(table.stage.placements) + int(table.use.shape[1]) + 6
    return _OVERHEAD_BYTES + 8 * columns * len(table)


_TABLES: BoundedCache[StageOptions] = BoundedCache(_TABLES_BYTES, size=_bytes)


def _table(
    stage: Stage, load: StageLoad, bounds: _Bounds, percentile: float, switching_cost_per_hour: float, mixing: Mixing
) -> StageOptions:
    placements = stage.placements
    if stage.min_replicas == 0 and load.rate_rps <= 0 and not any(bounds.highest):
        return _empty(stage, bounds.pools, latency_s=0.0)  # nothing arrives, so nothing is late
    request = _Request(stage=stage, load=load, percentile=percentile)
    parts = _candidates(request, bounds, mixing, switching_cost_per_hour > 0)
    rows_of = _predicted(request, parts)
    free, unlisted = inf, np.zeros((0, 3))  # the block of free mixes
    if _mixes_freely(stage):
        found, unlisted = _free_mixes(request, bounds, rows_of)
        free = int(rows_of.blocks.max(initial=len(placements))) + 1
        rows_of = _joined(rows_of, replace(found, blocks=np.full_like(found.blocks, free)))
    predicted = rows_of.predictions
    rows = np.nonzero(np.isfinite(predicted.percentile_s))[0]
    replicas, batches, blocks = rows_of.replicas[rows], rows_of.batches[rows], rows_of.blocks[rows]
    mean, quantile, utilization = predicted.mean_s[rows], predicted.percentile_s[rows], predicted.utilization[rows]

    cost = replicas @ np.array(bounds.prices_per_hour)
    moved = np.abs(replicas - np.array([p.current for p in placements])).sum(axis=1)
    objective = cost + switching_cost_per_hour * moved
    sizes = [(p.per_instance.numerator, p.per_instance.denominator) for p in placements]
    fill, each = np.array(sizes, dtype=np.int64).T
    units = -(-replicas * np.array(bounds.units_per_instance, dtype=np.int64) * each // fill)
    if stage.borrowed:
        units = np.zeros_like(units)
    # Variants of a model share a pool: what counts is what they take of it together.
    columns, positions = np.unique(np.array(bounds.columns), return_inverse=True)
    of_pools = units @ np.eye(len(columns), dtype=np.int64)[positions]

    count = np.maximum(replicas.sum(axis=1), 1)
    rank = replicas @ np.arange(len(placements)) / count
    cents = objective.round(_CENTS)
    order = np.lexsort((mean, quantile, count, rank, cost.round(_CENTS), cents))
    keep = order[
        _front(
            cost[order],
            mean[order],
            quantile[order],
            np.ascontiguousarray(of_pools[order]),
            blocks[order],
            len(placements),
            1 + int(blocks.max(initial=0)),
            RESOLUTION,
            float(free),
        )
    ]
    keep = keep[np.lexsort((quantile[keep], count[keep], rank[keep], cents[keep]))]
    use = np.zeros((len(keep), bounds.pools), dtype=np.int64)
    use[:, columns] = of_pools[keep]
    return StageOptions(
        stage=stage,
        replicas=replicas[keep],
        batches=batches[keep],
        cost_per_hour=cost[keep],
        objective_per_hour=objective[keep],
        mean_s=mean[keep],
        percentile_s=quantile[keep],
        utilization=utilization[keep],
        latency_error=predicted.error[rows][keep],
        waits_s=None if rows_of.waits_s is None else rows_of.waits_s[rows][keep],
        coarseness=max((part.coarseness for part in parts), default=0.0),
        coarse_from_per_hour=min((part.coarse_from_per_hour for part in parts), default=inf),
        unlisted=unlisted,
        use=use,
    )


@compiled
def _front(
    cost: Array,
    mean: Array,
    percentile: Array,
    units: Counts,
    blocks: Counts,
    alone: int,
    most_blocks: int,
    resolution: float,
    free: float,
) -> Mask:
    """Return a mask of the rows to keep; dropped are dominated ones, no better in cost, latency or use than another.

    Rows come by rising objective. A row is compared with the rows of its own block, and with the rows of the first
    `alone` blocks: each of these blocks varies one placement, with the others at their minimum. `resolution` is
    relative to a row's percentile. What rows of the block `free` use of the pools does not count.
    """
    count = len(cost)
    keep = np.zeros(count, np.bool_)
    last = np.full(most_blocks, -1, np.int64)  # the latest row kept of each block
    before = np.full(count, -1, np.int64)  # the one kept before it
    for row in range(count):
        near = resolution * percentile[row]
        beaten = False
        for turn in range(alone + 1):
            block = blocks[row] if turn == 0 else turn - 1
            if block >= len(last) or (turn > 0 and block == blocks[row]):
                continue
            other = last[block]
            while other >= 0 and not beaten:
                beaten = (
                    percentile[other] <= percentile[row] + near
                    and mean[other] <= mean[row] + near
                    and cost[other] <= cost[row] + 1e-9
                )
                for k in range(units.shape[1]):
                    beaten = beaten and (blocks[row] == free or units[other, k] <= units[row, k])
                other = before[other]
            if beaten:
                break
        if not beaten:
            keep[row] = True
            before[row] = last[blocks[row]]
            last[blocks[row]] = row
    return keep


@dataclass(frozen=True, slots=True)
class _Block:
    """Allocations that differ in one placement: it has `first` to `last` replicas, the others are as in `row`.

    At most `most` of these allocations are considered. `number` identifies the block; for a placement alone it is the
    placement's position. `full` is the placement that is at its bound and overflows to the others, None if none does.
    """

    number: int
    full: int | None
    row: tuple[int, ...]
    placement: int
    first: int
    last: int
    most: int


def _blocks(bounds: _Bounds) -> Iterator[_Block]:
    """Yield the allocations to consider, each once: each placement alone, then overflowing to the others in turn.

    Where all placements up to that of the turn are full, the rest of the turn would repeat the first one; it is left
    out.
    """
    lowest, highest = bounds.lowest, bounds.highest
    free = [k for k, (low, high) in enumerate(zip(lowest, highest, strict=True)) if low < high]
    count = len(lowest)
    if not free:
        yield _Block(0, None, lowest, 0, lowest[0], lowest[0], 1)
        return
    turns = len(free) if len(free) <= _MANY_PLACEMENTS else 1
    most = max(2, _OVERFLOW_LIMIT // max(1, len(free) * (len(free) + 1) // 2))
    number = count
    for turn, begin in enumerate(free):
        yield _Block(begin, None, lowest, begin, lowest[begin] + (turn > 0), highest[begin], _ALONE_LIMIT)
        row = list(lowest)
        row[begin] = highest[begin]
        # Of very many placements each overflows to the first one only; the first to all, in their order.
        for position, k in enumerate(free[1:] if turn == 0 else free[: min(turn, turns)]):
            twice = turn > 0 and position == turn - 1  # all up to here are full: the end of a row of the first turn
            yield _Block(number, begin, tuple(row), k, lowest[k] + 1, highest[k] - twice, most)
            row[k] = highest[k]
            number += 1


@dataclass(frozen=True, slots=True)
class _Need:
    """The rate and the session slots that the load needs, and the most that one replica of each placement provides.

    `floor` is the least number of replicas of the stage. `enough` is the number of replicas of each placement above
    which more make no difference.
    """

    rate_rps: float
    each_rps: tuple[float, ...]
    sessions: float
    each_slots: tuple[float, ...]
    floor: int
    enough: tuple[int, ...]

    def first(self, block: _Block) -> int:
        """Return the least number of replicas of the block's placement that can carry the load, or one less."""
        k = block.placement
        rest = [count if other != k else 0 for other, count in enumerate(block.row)]
        first = max(block.first, self.floor - sum(rest))
        for need, each in ((self.rate_rps, self.each_rps), (self.sessions, self.each_slots)):
            left = need - sum(count * one for count, one in zip(rest, each, strict=True) if count)
            if left > 0:
                first = max(first, ceil(min(left / each[k], block.last + 2.0)) - 1)
        return first


def _need(stage: Stage, load: StageLoad, bounds: _Bounds) -> _Need:
    return _Need(
        rate_rps=load.rate_rps / UTILIZATION_CEILING,
        each_rps=tuple(max(capacity_rps(p, batch) for batch in p.batch_sizes) for p in stage.placements),
        sessions=load.sessions or 0.0,
        each_slots=tuple(inf if p.session_slots is None else float(p.session_slots) for p in stage.placements),
        floor=max(1, min(stage.min_replicas, sum(bounds.highest))),
        enough=tuple(
            max(stage.min_replicas, enough_replicas(p, stage.routing, load.rate_rps, load.sessions, 1))
            for p in stage.placements
        ),
    )


def enough_replicas(placement: Placement, routing: Routing, rate_rps: float, sessions: float | None, batch: int) -> int:
    """Return a number of replicas above which more make no difference, for `rate_rps` in batches of up to `batch`.

    In a shared queue hardly any item waits once the capacity exceeds the load by a few times the root of the load.
    """
    need = rate_rps / capacity_rps(placement, batch)
    if routing in {Routing.PULL, Routing.LEAST_LOADED}:
        count = need / 0.9 + 5 * sqrt(need) + 5
    else:  # at separate queues with ten times the capacity needed hardly any item waits
        count = 10 * need + 1
        if routing is Routing.STICKY and sessions is not None:
            count = max(count, sessions)
    if placement.session_slots is not None and sessions is not None:
        count = max(count, sessions / placement.session_slots)
    return ceil(count) if count < _ENDLESS else _ENDLESS


def _numbers(first: int, last: int, most: int) -> Counts:
    """Return the numbers from `first` to `last`; of more than `most`, half consecutive, then in geometric steps."""
    if last - first < most:
        return np.arange(first, last + 1, dtype=np.int64)
    near = first + most // 2
    far = np.geomspace(near, last, most - most // 2).round().astype(np.int64)
    return np.unique(np.concatenate((np.arange(first, near, dtype=np.int64), far)))


@dataclass(frozen=True, slots=True)
class _Part:
    """Allocations with the same placements in use, one row each.

    `running` says which placements these are. `block` and `full` are `number` and `full` of their `_Block`. The other
    two fields are as in `StageOptions`.
    """

    replicas: Counts
    block: int
    running: tuple[bool, ...]
    full: int | None = None
    coarseness: float = 0.0
    coarse_from_per_hour: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A stage, its load, and the percentile of the SLA."""

    stage: Stage
    load: StageLoad
    percentile: float

    @property
    def chooses_waits(self) -> bool:
        """Return whether a placement of the stage has a choice of batch waits."""
        return any(placement.batch_waits_s for placement in self.stage.placements)

    def predict(self, replicas: Counts, batches: Counts, waits_s: Array | None = None) -> Predictions:
        """Return the prediction of each row of `replicas` with the limits and waits in the same rows of the others."""
        return predict_all(
            self.load,
            self.stage.placements,
            replicas,
            batches,
            routing=self.stage.routing,
            percentile=self.percentile,
            cascade=self.stage.cascade,
            waits_s=waits_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Allocations with batch limits, one row each, with the number of their block and their predictions.

    `waits_s` is as in `StageOptions`.
    """

    replicas: Counts
    batches: Counts
    blocks: Counts
    predictions: Predictions
    waits_s: Array | None = None


def _candidates(request: _Request, bounds: _Bounds, mixing: Mixing, keep_current: bool) -> list[_Part]:
    """Return the allocations to consider; with `keep_current` the current allocation is one of them."""
    stage = request.stage
    current = [
        min(max(p.current, low), high)
        for p, low, high in zip(stage.placements, bounds.lowest, bounds.highest, strict=True)
    ]
    need = _need(stage, request.load, bounds)
    if stage.cascade is not None:
        return _in_cascade(stage, need, bounds, stage.cascade, current if keep_current else None)
    parts: list[_Part] = []
    for block in _blocks(bounds):
        numbers = _numbers(
            need.first(block), max(block.first, min(block.last, need.enough[block.placement])), block.most
        )
        coarseness, coarse_from = _left_out(numbers, block.row, block.placement, bounds)
        now = current[block.placement]
        if coarseness and keep_current and numbers[0] < now < numbers[-1]:
            numbers = np.union1d(numbers, [now])
        rows = np.empty((len(numbers), len(current)), dtype=np.int64)
        rows[:] = block.row
        rows[:, block.placement] = numbers
        running = tuple(k == block.placement or count > 0 for k, count in enumerate(block.row))
        parts.append(_Part(rows, block.number, running, block.full, coarseness, coarse_from))
    if mixing is Mixing.ANY:
        mixes, coarseness, coarse_from = _mixes(bounds)
        everything = np.concatenate((mixes, *(part.replicas for part in parts)))
        everything = everything[everything.sum(axis=1) >= need.floor]
        parts = [
            replace(part, coarseness=coarseness, coarse_from_per_hour=coarse_from)
            for part in _by_running(np.unique(everything, axis=0))
        ]
    elif keep_current and not any(np.any(np.all(part.replicas == current, axis=1)) for part in parts):
        number = 1 + max(part.block for part in parts)
        if sum(current) >= need.floor:
            parts.append(_Part(np.array([current], dtype=np.int64), number, tuple(count > 0 for count in current)))
    return [part for part in parts if len(part.replicas)]


def _left_out(numbers: Counts, row: Sequence[int], placement: int, bounds: _Bounds) -> tuple[float, float]:
    """Return `coarseness` and `coarse_from_per_hour` of allocations that differ from `row` in one placement."""
    if not len(numbers) or numbers[-1] - numbers[0] < len(numbers):
        return 0.0, inf
    left_out = np.diff(numbers) - 1
    cheapest = np.array(row)
    cheapest[placement] = numbers[np.argmax(left_out > 0)] + 1
    return float((left_out / numbers[1:]).max()), float(cheapest @ np.array(bounds.prices_per_hour))


def _in_cascade(
    stage: Stage, need: _Need, bounds: _Bounds, cascade: Cascade, current: Sequence[int] | None
) -> list[_Part]:
    """Return the allocations of a stage with a cascade: the last placement alone, and after each of the others.

    A first placement needs replicas for all items, and the last one then for the uncertain ones. With `current`
    replicas, they are one of the allocations.
    """
    last = next(k for k, placement in enumerate(stage.placements) if placement.name == cascade.to)
    count, steps = len(stage.placements), isqrt(_MIXES_LIMIT)

    def numbers_of(k: int, rate_rps: float) -> Counts:
        least = max(bounds.lowest[k], ceil(min(rate_rps / need.each_rps[k], _ENDLESS)) - 1, 1)
        enough = enough_replicas(stage.placements[k], stage.routing, rate_rps, None, 1)
        return _numbers(least, min(bounds.highest[k], max(stage.min_replicas, least, enough)), steps)

    parts = []
    for first in range(count):
        others = [low for k, low in enumerate(bounds.lowest) if k not in (first, last)]
        alone = first == last
        if alone and any(others):
            continue
        own = numbers_of(first, 0.0 if any(others) else need.rate_rps)
        then = np.zeros(1, dtype=np.int64) if alone else numbers_of(last, cascade.share * need.rate_rps)
        rows = np.tile(np.array(bounds.lowest, dtype=np.int64), (len(own) * len(then), 1))
        rows[:, last] = np.tile(then, len(own))
        rows[:, first] = np.repeat(own, len(then))
        gaps = [
            _left_out(each, rows[0] if len(rows) else bounds.lowest, k, bounds)
            for k, each in ((first, own), (last, then))
        ]
        parts.append(
            _Part(
                rows[rows.sum(axis=1) >= need.floor],
                first if alone else count + first,
                tuple(bool(k in (first, last) or bounds.lowest[k]) for k in range(count)),
                coarseness=max(share for share, _ in gaps),
                coarse_from_per_hour=min(cost for _, cost in gaps),
            )
        )
    if current is not None and sum(current) >= need.floor:
        row = np.array([current], dtype=np.int64)
        parts.append(_Part(row, 2 * count, tuple(number > 0 for number in current)))
    return [part for part in parts if len(part.replicas)]


def _predicted(request: _Request, parts: Sequence[_Part]) -> _Rows:
    """Return the predictions of the allocations in `parts`, of overflowing ones only where overflow can help.

    It cannot help if the last replica of the full placement no longer lowered mean or percentile.
    """
    alone = _predictions(request, [part for part in parts if part.full is None])
    overflowing = {full for full in {part.full for part in parts} if full is not None and _would_help(alone, full)}
    if not overflowing:
        return alone
    beyond = _predictions(request, [part for part in parts if part.full in overflowing])
    return _joined(alone, beyond)


def _joined(first: _Rows, second: _Rows) -> _Rows:
    one, two = first.predictions, second.predictions
    return _Rows(
        replicas=np.concatenate((first.replicas, second.replicas)),
        batches=np.concatenate((first.batches, second.batches)),
        blocks=np.concatenate((first.blocks, second.blocks)),
        predictions=Predictions(
            mean_s=np.concatenate((one.mean_s, two.mean_s)),
            percentile_s=np.concatenate((one.percentile_s, two.percentile_s)),
            utilization=np.concatenate((one.utilization, two.utilization)),
            error=np.concatenate((one.error, two.error)),
        ),
        waits_s=None
        if first.waits_s is None or second.waits_s is None
        else np.concatenate((first.waits_s, second.waits_s)),
    )


def _would_help(alone: _Rows, placement: int) -> bool:
    """Return whether the last replica of `placement`, which is full, lowered the mean or the percentile."""
    rows = np.nonzero(alone.blocks == placement)[0]
    counts = alone.replicas[rows, placement]
    full = rows[counts == counts.max(initial=0)]
    before = rows[counts == counts[counts < counts.max(initial=0)].max(initial=0)]
    return any(
        not np.isfinite(least := times[full].min(initial=inf))
        or times[before].min(initial=inf) > least * (1 + RESOLUTION)
        for times in (alone.predictions.mean_s, alone.predictions.percentile_s)
    )


def _predictions(request: _Request, parts: Sequence[_Part]) -> _Rows:
    """Return the predictions of the allocations in `parts`, one row for each combination of batch limits tried.

    One placement alone is tried with each of its batch limits, a mix with those of `_suiting_limits`; each with all
    waits of `_waits`.
    """
    mixed = [part for part in parts if sum(part.running) > 1]
    suiting = iter(_suiting_limits(request, mixed))
    limits = [next(suiting) if sum(part.running) > 1 else _same_limits(request.stage, part.running) for part in parts]
    count = len(request.stage.placements)
    if request.chooses_waits:
        waits = [_waits(request.stage, part.running) for part in parts]
        limits = [[own for own in tried for _ in each] for tried, each in zip(limits, waits, strict=True)]
    sizes = [len(part.replicas) for part, tried in zip(parts, limits, strict=True) for _ in tried]
    nothing = np.zeros((0, count), dtype=np.int64)
    replicas = np.concatenate(
        [nothing, *(part.replicas for part, tried in zip(parts, limits, strict=True) for _ in tried)]
    )
    rows = np.array([row for tried in limits for row in tried], dtype=np.int64).reshape(-1, count)
    batches = np.repeat(rows, sizes, axis=0)
    blocks = np.array([part.block for part, tried in zip(parts, limits, strict=True) for _ in tried], dtype=np.int64)
    waits_s = None
    if request.chooses_waits:
        each = zip(waits, limits, strict=True)
        own = [row for tried, repeated in each for row in tried * (len(repeated) // len(tried))]
        waits_s = np.repeat(np.array(own, dtype=np.float64).reshape(-1, count), sizes, axis=0)
    return _Rows(
        replicas=replicas,
        batches=batches,
        blocks=np.repeat(blocks, sizes),
        predictions=request.predict(replicas, batches, waits_s),
        waits_s=waits_s,
    )


_Limits = tuple[int, ...]


def _waits(stage: Stage, running: Sequence[bool]) -> list[tuple[float, ...]]:
    """Return the combinations of batch waits to try: all those of up to two placements in use, the shortest of more."""
    choices = [
        p.batch_waits_s if runs and sum(running) <= 2 and p.batch_waits_s else (p.batch_wait_s,)
        for p, runs in zip(stage.placements, running, strict=True)
    ]
    return list(product(*choices))


def _same_limits(stage: Stage, running: Sequence[bool]) -> list[_Limits]:
    """Return combinations of batch limits with about the same limit for all placements in use; the largest first.

    For each limit, a placement gets its largest batch size that does not exceed it.
    """
    sizes = sorted({size for p, runs in zip(stage.placements, running, strict=True) if runs for size in p.batch_sizes})
    limits = (
        tuple(
            max((b for b in p.batch_sizes if b <= size), default=p.batch_sizes[0]) if runs else p.batch_sizes[0]
            for p, runs in zip(stage.placements, running, strict=True)
        )
        for size in reversed(sizes)
    )
    return list(dict.fromkeys(limits))


def _other_limits(stage: Stage, running: Sequence[bool], limits: _Limits) -> list[_Limits]:
    """Return `limits`, then the combinations that differ from `limits` in one placement in use."""
    others = [
        (*limits[:k], size, *limits[k + 1 :])
        for k, placement in enumerate(stage.placements)
        if running[k] and sum(running) <= _MANY_RUNNING
        for size in placement.batch_sizes
        if size != limits[k]
    ]
    return [limits, *others]


def _suiting_limits(request: _Request, parts: Sequence[_Part]) -> list[list[_Limits]]:
    """Return the combinations of batch limits to try with each of `parts`, which are mixes of placements.

    They are the best limits for two allocations of the mix, a small one and the largest, and the largest limits. The
    largest limits have the most capacity, which few replicas may need. Hardware differs in the time that a larger batch
    takes: with one limit for all placements the percentile of random mixes is a sixth higher than with the best limits.
    The search for the best starts from one limit for all and changes one placement per step.
    """
    if not any(len(p.batch_sizes) > 1 for p in request.stage.placements):
        return [_same_limits(request.stage, part.running) for part in parts]
    samples = [(part, part.replicas[row]) for part in parts for row in _sample(len(part.replicas))]
    same = {part.running: _same_limits(request.stage, part.running) for part in parts}
    tried = [same[part.running] for part, _ in samples]
    best: list[_Limits] = []
    for turn in range(_LIMIT_STEPS + 1):
        if turn:
            tried = [
                _other_limits(request.stage, s[0].running, limits) for s, limits in zip(samples, best, strict=True)
            ]
        best = _best_limits(request, [row for _, row in samples], tried)
    chosen = iter(best)
    suiting = ([next(chosen) for _ in _sample(len(part.replicas))] for part in parts)
    return [list(dict.fromkeys((*limits, same[part.running][0]))) for part, limits in zip(parts, suiting, strict=True)]


def _sample(count: int) -> list[int]:
    return sorted({min(2, count - 1), count - 1})


def _best_limits(request: _Request, rows: Sequence[Counts], tried: Sequence[Sequence[_Limits]]) -> list[_Limits]:
    """Return for each of `rows` the combination in `tried` with the least percentile; of equals the first."""
    if not rows:
        return []
    sizes = [len(limits) for limits in tried]
    batches = np.array([limits for row in tried for limits in row], dtype=np.int64)
    quantile = request.predict(np.repeat(np.array(rows), sizes, axis=0), batches).percentile_s
    parts = np.split(quantile, np.cumsum(sizes)[:-1])
    return [limits[int(np.argmin(part))] for limits, part in zip(tried, parts, strict=True)]


def _mixes(bounds: _Bounds) -> tuple[Counts, float, float]:
    """Return all mixes of two placements, with the others at their minimum, thinned to `_MIXES_LIMIT` rows.

    The other values are `coarseness` and `coarse_from_per_hour`, as in `StageOptions`.
    """
    pairs = list(combinations(range(len(bounds.lowest)), 2))
    blocks, gaps = [np.zeros((0, len(bounds.lowest)), dtype=np.int64)], [(0.0, inf)]
    for one, two in pairs:
        most = isqrt(_MIXES_LIMIT // len(pairs))
        ranges = [_spread(bounds.lowest[k], bounds.highest[k], most) for k in (one, two)]
        gaps += [_left_out(each, bounds.lowest, k, bounds) for k, each in zip((one, two), ranges, strict=True)]
        block = np.array(list(product(*ranges)), dtype=np.int64)
        mixed = np.tile(np.array(bounds.lowest, dtype=np.int64), (len(block), 1))
        mixed[:, [one, two]] = block
        blocks.append(mixed)
    return np.concatenate(blocks), max(share for share, _ in gaps), min(cost for _, cost in gaps)


def _free_mixes(request: _Request, bounds: _Bounds, listed: _Rows) -> tuple[_Rows, Array]:
    """Return the mixes of two placements that may be better than the `listed` rows, with the others at their minimum.

    The second value is `StageOptions.unlisted`. A mix is left out without a prediction where a listed row costs no more
    and is no slower than the mix can be; that row may use more of a pool.
    """
    need = _need(request.stage, request.load, bounds)
    wanted = Wanted(
        lowest=bounds.lowest,
        most=tuple(min(high, enough) for high, enough in zip(bounds.highest, need.enough, strict=True)),
        floor=need.floor,
        needs=((need.rate_rps, need.each_rps), (need.sessions, need.each_slots)),
        prices_per_hour=bounds.prices_per_hour,
    )
    mixes, left_out_per_hour = cheapest_mixes(wanted, _CANDIDATES)
    prices = np.array(bounds.prices_per_hour)
    least, fastest = _floors(request, need, mixes)
    floors = np.column_stack((mixes @ prices, least))
    known = np.column_stack((listed.replicas @ prices, listed.predictions.mean_s, listed.predictions.percentile_s))
    better = np.nonzero(~beaten(floors, known[np.isfinite(known[:, 2])], RESOLUTION))[0]
    chosen, others = better[:_FREE_LIMIT], floors[better[_FREE_LIMIT:]]
    if left_out_per_hour < inf:
        others = np.concatenate((others, [[left_out_per_hour, *fastest]]))
    found = _predictions(request, _by_running(mixes[chosen]) if len(chosen) else [])
    # By rising cost: of each group the least of each column is no worse than any of it.
    groups = np.array_split(others, min(len(others), _GROUPS)) if len(others) else []
    return found, np.array([group.min(axis=0) for group in groups]).reshape(-1, 3)


def _floors(request: _Request, need: _Need, mixes: Counts) -> tuple[Array, tuple[float, float]]:
    """Return a mean and a percentile (s) that mixes of two placements do not go below, whatever their batch limits.

    The first value has a row for each of `mixes`; the second are those of any mix, also of more replicas.

    A placement of a mix is as fast as if it alone had the capacity of the mix (`optimizer.latency.stage`), at most that
    with the largest batches. The faster one has at most the share of the items that its largest batches and the
    smallest ones of the other would give it. Of streams that stay with their replica, nothing is known.
    """
    if request.stage.routing is Routing.STICKY:
        return np.zeros((len(mixes), 2)), (0.0, 0.0)
    placements = tuple(replace(own, session_slots=None) for own in request.stage.placements)  # a mix adds them up
    request = replace(request, stage=replace(request.stage, placements=placements))
    most_rps, best = np.array(need.each_rps), np.full(2, inf)
    capacity = mixes @ most_rps
    mean, quantile = np.full((2, *mixes.shape), inf)
    for k, placement in enumerate(placements):
        least = ceil(min(need.rate_rps / need.each_rps[k], _ENDLESS - 1.0))
        numbers = _numbers(least, max(least, min(need.enough[k], _ENDLESS)), _ALONE_LIMIT // 4)
        sizes = placement.batch_sizes
        replicas = np.zeros((len(sizes) * len(numbers), len(placements)), dtype=np.int64)
        replicas[:, k] = np.tile(numbers, len(sizes))
        batches = np.tile([own.batch_sizes[0] for own in placements], (len(replicas), 1))
        batches[:, k] = np.repeat(sizes, len(numbers))
        alone = request.predict(replicas, batches)
        best = np.minimum(best, (alone.mean_s.min(), alone.percentile_s.min()))
        for number, size in enumerate(sizes):
            at = np.searchsorted(numbers, capacity / capacity_rps(placement, size))
            at = number * len(numbers) + np.minimum(at, len(numbers) - 1)
            mean[:, k] = np.minimum(mean[:, k], alone.mean_s[at])
            quantile[:, k] = np.minimum(quantile[:, k], alone.percentile_s[at])
    least_rps = np.array([min(capacity_rps(p, batch) for batch in p.batch_sizes) for p in placements])
    used = mixes > 0
    faster = np.argmin(np.where(used, quantile, inf), axis=1)[:, None] == np.arange(len(placements))
    offered = mixes.astype(np.float64) * np.where(faster, most_rps, least_rps)
    share = offered / offered.sum(axis=1, keepdims=True)
    mean, quantile = np.where(used, mean, 0.0), np.where(used, quantile, 0.0)
    floors = np.full((len(mixes), 2), inf)
    carried = np.isfinite(quantile).all(axis=1)
    floors[carried, 0] = (share * mean)[carried].sum(axis=1)
    floors[carried, 1] = mixture_percentile(share[carried].T, quantile[carried].T, mean[carried].T, request.percentile)
    return floors, (float(best[0]), float(best[1]))


def _spread(lowest: int, highest: int, most: int) -> Counts:
    """Return the numbers from `lowest` to `highest`, evenly thinned to `most` where there are more."""
    return np.unique(np.linspace(lowest, highest, min(most, highest - lowest + 1)).round().astype(np.int64))


def _by_running(rows: Counts) -> list[_Part]:
    """Return `rows` grouped by the placements in use, with block numbers as in `_blocks`."""
    patterns, of = np.unique(rows > 0, axis=0, return_inverse=True)
    return [
        _Part(
            rows[of == position],
            int(np.argmax(pattern)) if pattern.sum() == 1 else len(pattern) + position,
            tuple(pattern.tolist()),
        )
        for position, pattern in enumerate(patterns)
    ]


def _divisor(sizes: set[Size]) -> int:
    return int(max(sizes)) if share_instances(sizes) else 1
