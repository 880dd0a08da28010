"""The proof: merge the stages' frontiers exactly, bounded by what the search found.

Exact for pipelines without joins, over the rows of the tables; with joins it bounds the cost from below.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from optimizer.composition import Chain, Shape
from optimizer.greedy import TOLERANCE, Case, Choice
from optimizer.model import Composition

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_STATE_LIMIT = 200_000
_PATH_LIMIT = 64
_BLOCK = 256
_SLACK = 1e-12
"""Sums in another order must not turn the search's answer away."""


class TooLarge(Exception):
    """The merge was given up: nothing is proven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _States:
    """Undominated partial choices: price, latency so far (see `_latency_columns`), use of the pools that matter."""

    price: Array
    latency: Array
    use: Counts
    rows: Counts

    def __len__(self) -> int:
        return len(self.price)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "_States":
        return _States(price=self.price[rows], latency=self.latency[rows], use=self.use[rows], rows=self.rows[rows])


def cheapest_exact(case: Case, at_most: float = np.inf) -> Choice | None:
    """Return the cheapest choice that meets the latency within the room, or None when none costs `at_most` or less.

    Raises:
        TooLarge: there were too many partial choices to look at, or branches join, which is not additive.
    """
    if not case.shape.serial:
        raise TooLarge
    if any(len(table) == 0 for table in case.tables):
        return None
    pools: list[int] = []
    while True:
        # A pool counts only once it is seen to bind: every pool more multiplies the partial choices.
        choice = _merge(case, pools, at_most)
        if choice is None:
            return None
        over = np.nonzero(case.use(choice) > case.room)[0]
        if not len(over):
            return choice
        pools = sorted({*pools, *(int(pool) for pool in over)})


def lower_bound(case: Case, at_most: float = np.inf) -> float:
    """Return a price that no choice which meets the latency undercuts, whatever room other pipelines leave.

    Infinite when there is no such choice. `at_most` is the price of one that exists.
    """
    if any(len(table) == 0 for table in case.tables):
        return np.inf
    floor = float(sum(prices.min() for prices in case.prices))
    if case.shape.serial:
        try:
            choice = cheapest_exact(case, at_most)
        except TooLarge:
            return floor
        return np.inf if choice is None else case.price(choice)
    if case.composition is not Composition.SUM:
        return floor
    # The latency of a join is that of no branch less, so that every path by itself must keep the SLA.
    return max(floor, *(_path_bound(case, path, at_most) for path in _paths(case.shape)[:_PATH_LIMIT]))


def _path_bound(case: Case, path: Chain, at_most: float) -> float:
    others = float(sum(case.prices[stage].min() for stage in range(len(case.tables)) if stage not in path))
    part = replace(
        case,
        tables=tuple(case.tables[stage] for stage in path),
        prices=tuple(case.prices[stage] for stage in path),
        shape=Shape(gates=(((),),) * len(path), spine=tuple(range(len(path))), exits=()),
    )
    return others + lower_bound(part, at_most - others)


def _paths(shape: Shape) -> Sequence[Chain]:
    """Return every way from the entry to a last stage."""

    def through(chain: Chain) -> list[Chain]:
        ways = [[(*before, stage) for branch in shape.gates[stage] for before in through(branch)] for stage in chain]
        return [tuple(stage for part in way for stage in part) for way in product(*ways)]

    ends = shape.exits or ((),)
    return [(*spine, *end) for spine in through(shape.spine) for exit_ in ends for end in through(exit_)]


def _merge(case: Case, pools: Sequence[int], at_most: float) -> Choice | None:
    order = sorted(range(len(case.tables)), key=lambda stage: case.tables[stage].stage.name)
    columns = [_latency_columns(case, stage) for stage in order]
    prices = [case.prices[stage] for stage in order]
    uses = [case.tables[stage].use[:, pools] for stage in order]
    room = case.room[list(pools)]
    states = _States(
        price=np.zeros(1),
        latency=np.zeros((1, columns[0].shape[1])),
        use=np.zeros_like(room)[None],
        rows=np.zeros((1, 0), int),
    )
    for position in range(len(order)):
        rest = range(position + 1, len(order))
        if len(states) * len(prices[position]) > _STATE_LIMIT:
            raise TooLarge
        old = np.repeat(np.arange(len(states)), len(prices[position]))
        row = np.tile(np.arange(len(prices[position])), len(states))
        states = _States(
            price=states.price[old] + prices[position][row],
            latency=states.latency[old] + columns[position][row],
            use=states.use[old] + uses[position][row],
            rows=np.column_stack((states.rows[old], row)),
        )
        least_latency = states.latency + sum(columns[k].min(axis=0) for k in rest)
        least_use = states.use + sum(uses[k].min(axis=0) for k in rest)
        possible = (
            (states.price + sum(float(prices[k].min()) for k in rest) <= at_most + TOLERANCE)
            & (_latency(least_latency) <= case.latency_s * (1 + _SLACK))
            & np.all(least_use <= room, axis=1)
        )
        states = _undominated(states.take(possible))
        if not len(states):
            return None
    best = states.rows[0]
    return tuple(int(best[order.index(stage)]) for stage in range(len(order)))


def _latency_columns(case: Case, stage: int) -> Array:
    """Return what adds up over the stages: the percentile, or mean and squared excess."""
    table = case.tables[stage]
    if case.composition is Composition.SUM:
        return table.percentile_s[:, None]
    return np.column_stack((table.mean_s, (table.percentile_s - table.mean_s) ** 2))


def _latency(columns: Array) -> Array:
    return np.asarray(columns[:, 0] if columns.shape[1] == 1 else columns[:, 0] + np.sqrt(columns[:, 1]))


def _undominated(states: _States) -> _States:
    """Return the states that no other beats in price, latency and use, cheapest first."""
    values = np.column_stack((states.price, states.latency, states.use))
    order = np.lexsort(values.T[::-1])
    values = values[order]
    if values.shape[1] == 2:
        best = np.minimum.accumulate(np.concatenate(([np.inf], values[:-1, 1])))
        return states.take(order[values[:, 1] < best])
    kept = np.empty((0, values.shape[1]))
    keep: list[Counts] = []
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        beaten = np.zeros(len(block), dtype=bool)
        for part in range(0, len(kept), _BLOCK):
            beaten |= np.any(np.all(kept[part : part + _BLOCK, None] <= block, axis=2), axis=0)
        inside = np.all(block[:, None] <= block, axis=2) & (np.arange(len(block))[:, None] < np.arange(len(block)))
        beaten |= np.any(inside, axis=0)
        keep.append(start + np.nonzero(~beaten)[0])
        kept = np.concatenate((kept, block[~beaten]))
    return states.take(order[np.concatenate(keep)]) if keep else states
