"""What a stage may run: allocations over its placements with cost, latency and use of the pools."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import combinations, pairwise, product
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from optimizer.latency import StageLoad, predict_all
from optimizer.model import Placement, Pool, PoolName, Problem, Stage

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

_PAIRWISE_LIMIT = 1500
_MIXES_LIMIT = 10_000  # rows of mixes of two placements: beyond it their numbers are thinned
_CENTS = 9  # decimals at which two costs are the same


class Mixing(Enum):
    """When a stage runs on several pools at once."""

    OVERFLOW = "Overflow"
    """The next placement starts only when the one before is at its bound or at its pool's limit."""
    ANY = "Any"
    """Any two placements: for pools that stages compete for, where no stage alone reaches a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The pools in units that make their use additive, so that whole instances never have to be guessed.

    Where the `per_instance` values on a pool divide each other, a unit is the smallest replica's share of an
    instance; otherwise it is an instance, and every placement is rounded up to whole ones. Arrays follow `pools`.
    """

    pools: tuple[PoolName, ...]
    prices_per_hour: Array
    units_per_instance: Counts
    limits: Counts

    def column(self, placement: Placement) -> int:
        """Return the position of the placement's pool."""
        return self.pools.index(placement.pool)

    def units(self, placement: Placement, replicas: Counts) -> Counts:
        """Return the units of its pool that `replicas` of `placement` take."""
        per_instance = int(self.units_per_instance[self.column(placement)])
        return np.asarray(-(-replicas * per_instance // placement.per_instance), dtype=np.int64)

    def most(self, placement: Placement) -> int:
        """Return how many replicas of `placement` its whole pool holds."""
        column = self.column(placement)
        return int(self.limits[column] * placement.per_instance // self.units_per_instance[column])

    def price_per_hour(self, placement: Placement) -> float:
        """Return what one replica costs, in USD per hour."""
        return float(self.prices_per_hour[self.column(placement)]) / placement.per_instance


def supply_of(problem: Problem) -> Supply:
    """Return the pools of `problem` in units that fit all its placements."""
    names = tuple(sorted(problem.pools))
    sizes: dict[PoolName, set[int]] = {name: {1} for name in names}
    for _, _, placement in problem.placements():
        sizes[placement.pool].add(placement.per_instance)
    units = np.array([_divisor(sizes[name]) for name in names], dtype=np.int64)
    pools: Mapping[PoolName, Pool] = problem.pools
    return Supply(
        pools=names,
        prices_per_hour=np.array([pools[name].price_per_hour for name in names]),
        units_per_instance=units,
        limits=units * np.array([pools[name].instances for name in names], dtype=np.int64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOptions:
    """The allocations of one stage, cheapest first: one row each, one column per placement (or pool, for `use`).

    `objective_per_hour` is the cost plus what switching costs; `use` is in the units of `Supply`.
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

    def __len__(self) -> int:
        return len(self.cost_per_hour)


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
    """Return the allocations that carry `load` and that no other one on the same pools beats.

    Placements with a word error rate above `max_wer` get nothing, not even their minimum. Otherwise every
    placement has its minimum, as far as its pool holds it; the stage has its floor, as far as its bounds allow.
    """
    placements = stage.placements
    usable = [p.wer is None or max_wer is None or p.wer <= max_wer for p in placements]
    highest = np.array(
        [min(p.max_replicas, supply.most(p)) if ok else 0 for p, ok in zip(placements, usable, strict=True)]
    )
    lowest = np.minimum([p.min_replicas for p in placements], highest)
    replicas = _allocations(lowest, highest, mixing)
    replicas = replicas[replicas.sum(axis=1) >= min(stage.min_replicas, highest.sum())]
    replicas = replicas[replicas.sum(axis=1) > 0]

    sizes = sorted({size for p, ok in zip(placements, usable, strict=True) if ok for size in p.batch_sizes}) or [1]
    tables = []
    for size in sizes:
        limits = [max((b for b in p.batch_sizes if b <= size), default=p.batch_sizes[0]) for p in placements]
        answer = predict_all(load, placements, replicas, limits, routing=stage.routing, percentile=percentile)
        tables.append((np.tile(limits, (len(replicas), 1)), answer.mean_s, answer.percentile_s, answer.utilization))
    batches, mean, quantile, utilization = (np.stack(column) for column in zip(*tables, strict=True))
    best, rows = np.argmin(quantile, axis=0), np.arange(len(replicas))
    batches, mean, quantile, utilization = (
        batches[best, rows],
        mean[best, rows],
        quantile[best, rows],
        utilization[best, rows],
    )

    prices = np.array([supply.price_per_hour(p) for p in placements])
    moved = np.abs(replicas - np.array([p.current for p in placements])).sum(axis=1)
    use = np.zeros((len(replicas), len(supply.pools)), dtype=np.int64)
    for column, placement in enumerate(placements):
        use[:, supply.column(placement)] += supply.units(placement, replicas[:, column])
    table = StageOptions(
        stage=stage,
        replicas=replicas,
        batches=np.asarray(batches, dtype=np.int64),
        cost_per_hour=replicas @ prices,
        objective_per_hour=replicas @ prices + switching_cost_per_hour * moved,
        mean_s=mean,
        percentile_s=quantile,
        utilization=utilization,
        use=use,
    )
    return _sorted(_undominated(_take(table, np.isfinite(quantile))))


def without_replicas(table: StageOptions) -> StageOptions:
    """Return the only option of a stage for which there is no room: nothing, which answers never."""
    count = len(table.stage.placements)
    return StageOptions(
        stage=table.stage,
        replicas=np.zeros((1, count), dtype=np.int64),
        batches=np.array([[placement.batch_sizes[0] for placement in table.stage.placements]]),
        cost_per_hour=np.zeros(1),
        objective_per_hour=np.zeros(1),
        mean_s=np.array([np.inf]),
        percentile_s=np.array([np.inf]),
        utilization=np.array([np.inf]),
        use=np.zeros((1, table.use.shape[1]), dtype=np.int64),
    )


def _divisor(sizes: set[int]) -> int:
    ordered = sorted(sizes)
    return ordered[-1] if all(large % small == 0 for small, large in pairwise(ordered)) else 1


def _allocations(lowest: Counts, highest: Counts, mixing: Mixing) -> Counts:
    """Return the rows of replicas to consider, each placement between its bounds."""
    count = len(lowest)
    rows: list[Counts] = []
    for first in range(count):
        row = lowest.copy()
        for placement in (first, *(k for k in range(count) if k != first)):
            block = np.tile(row, (highest[placement] - lowest[placement] + 1, 1))
            block[:, placement] = np.arange(lowest[placement], highest[placement] + 1)
            rows.append(block)
            row[placement] = highest[placement]
    if mixing is Mixing.ANY:
        pairs = list(combinations(range(count), 2))
        for one, two in pairs:
            numbers = [_numbers(lowest[k], highest[k], isqrt(_MIXES_LIMIT // len(pairs))) for k in (one, two)]
            block = np.array(list(product(*numbers)), dtype=np.int64)
            mixed = np.tile(lowest, (len(block), 1))
            mixed[:, [one, two]] = block
            rows.append(mixed)
    return np.unique(np.concatenate(rows), axis=0)


def _numbers(lowest: int, highest: int, most: int) -> Counts:
    """Return the numbers from `lowest` to `highest`, evenly thinned to `most` where there are more."""
    return np.unique(np.linspace(lowest, highest, min(most, highest - lowest + 1)).round().astype(np.int64))


def _take(table: StageOptions, rows: Mask | Counts) -> StageOptions:
    return StageOptions(
        stage=table.stage,
        replicas=table.replicas[rows],
        batches=table.batches[rows],
        cost_per_hour=table.cost_per_hour[rows],
        objective_per_hour=table.objective_per_hour[rows],
        mean_s=table.mean_s[rows],
        percentile_s=table.percentile_s[rows],
        utilization=table.utilization[rows],
        use=table.use[rows],
    )


def _sorted(table: StageOptions) -> StageOptions:
    """Cheapest first; equals by the user's preference, then by fewer replicas."""
    count = np.maximum(table.replicas.sum(axis=1), 1)
    rank = table.replicas @ np.arange(table.replicas.shape[1]) / count
    return _take(table, np.lexsort((table.percentile_s, count, rank, table.objective_per_hour.round(_CENTS))))


def _undominated(table: StageOptions) -> StageOptions:
    """Drop what another allocation on the same pools beats: across pools, scarcity may yet decide."""
    mixes = (table.replicas > 0) @ (1 << np.arange(table.replicas.shape[1]))
    keep = np.ones(len(table), dtype=bool)
    values = np.column_stack(
        (
            table.cost_per_hour,
            table.objective_per_hour,
            table.mean_s,
            table.percentile_s,
            table.use,
            table.replicas.sum(axis=1),
        )
    )
    for mix in np.unique(mixes):
        rows = np.nonzero(mixes == mix)[0]
        if 1 < len(rows) <= _PAIRWISE_LIMIT:
            no_worse = np.all(values[rows, None] <= values[None, rows], axis=2)
            better = no_worse & ~(no_worse.T & (np.arange(len(rows))[:, None] >= np.arange(len(rows))))
            keep[rows] = ~np.any(better, axis=0)
    return _take(table, keep)
