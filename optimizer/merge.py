"""The proof: merge the stages' frontiers exactly, bounded by what the search found.

Exact for pipelines without joins, over the rows of the tables; with joins it bounds the cost from below.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from optimizer.case import TOLERANCE, Case, Choice
from optimizer.composition import Chain, Shape
from optimizer.model import Composition

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_STATE_LIMIT = 40_000
_WORK_LIMIT = 200_000
_PATH_LIMIT = 64
_BLOCK = 256
_SLACK = 1e-12
"""Sums in another order must not turn the search's answer away."""


class TooLarge(Exception):
    """The merge was given up: nothing is proven."""


@dataclass(slots=True)
class _Work:
    """The partial choices that may yet be looked at, so that a merge gives up in bounded time."""

    left: int

    def spend(self, states: int) -> None:
        self.left -= states
        if states > _STATE_LIMIT or self.left < 0:
            raise TooLarge


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
    choices = cheapest_together([case], case.room, at_most)
    return None if choices is None else choices[0]


def cheapest_together(
    cases: Sequence[Case], room: Counts, at_most: float = np.inf, each_at_most: Sequence[float] = ()
) -> tuple[Choice, ...] | None:
    """Return the choices that together are cheapest, each meeting its own latency, all within one `room`.

    None when none cost `at_most` or less together and `each_at_most` each. Raises `TooLarge` like `cheapest_exact`.
    """
    if not all(case.shape.serial for case in cases):
        raise TooLarge
    if any(len(table) == 0 for case in cases for table in case.tables):
        return None
    pools: list[int] = []
    work = _Work(left=_WORK_LIMIT)
    while True:
        # A pool counts only once it is seen to bind: every pool more multiplies the partial choices.
        choices = _merge_cases(cases, room, pools, at_most, each_at_most or [np.inf] * len(cases), work)
        if choices is None:
            return None
        use = sum(case.use(choice) for case, choice in zip(cases, choices, strict=True))
        over = np.nonzero(use > room)[0]
        if not len(over):
            return choices
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What is merged next: the rows of a table, or the undominated choices of a pipeline."""

    price: Array
    latency: Array
    use: Counts


def _merge_cases(
    cases: Sequence[Case],
    room: Counts,
    pools: Sequence[int],
    at_most: float,
    each_at_most: Sequence[float],
    work: _Work,
) -> tuple[Choice, ...] | None:
    floors = [sum(float(prices.min()) for prices in case.prices) for case in cases]
    fronts: list[tuple[_Part, list[Choice]]] = []
    for case, floor, most in zip(cases, floors, each_at_most, strict=True):
        front = _front(case, room[list(pools)], pools, work, min(most, at_most - sum(floors) + floor))
        if front is None:
            return None
        fronts.append(front)
    if len(fronts) == 1:
        return (fronts[0][1][0],)
    states = _merge([part for part, _ in fronts], room[list(pools)], np.inf, at_most, work)
    if states is None:
        return None
    return tuple(choices[int(row)] for (_, choices), row in zip(fronts, states.rows[0], strict=True))


def _front(
    case: Case, room: Counts, pools: Sequence[int], work: _Work, at_most: float
) -> tuple[_Part, list[Choice]] | None:
    """Return the choices that meet the latency and that no other beats in price and use of `pools`, cheapest first."""
    order = sorted(range(len(case.tables)), key=lambda stage: case.tables[stage].stage.name)
    parts = [
        _Part(
            price=case.prices[stage],
            latency=_latency_columns(case, stage),
            use=case.tables[stage].use[:, pools],
        )
        for stage in order
    ]
    states = _merge(parts, room, case.latency_s, at_most, work)
    if states is None:
        return None
    states = _undominated(replace(states, latency=np.zeros((len(states), 1))))
    choices = [tuple(int(rows[order.index(stage)]) for stage in range(len(order))) for rows in states.rows]
    return _Part(price=states.price, latency=states.latency, use=states.use), choices


def _merge(parts: Sequence[_Part], room: Counts, latency_s: float, at_most: float, work: _Work) -> _States | None:
    """Return the undominated sums of one row of each part, cheapest first, or None when none is allowed."""
    states = _States(
        price=np.zeros(1),
        latency=np.zeros((1, parts[0].latency.shape[1])),
        use=np.zeros_like(room)[None],
        rows=np.zeros((1, 0), dtype=np.int64),
    )
    for position, part in enumerate(parts):
        rest = parts[position + 1 :]
        work.spend(len(states) * len(part.price))
        old = np.repeat(np.arange(len(states)), len(part.price))
        row = np.tile(np.arange(len(part.price)), len(states))
        states = _States(
            price=states.price[old] + part.price[row],
            latency=states.latency[old] + part.latency[row],
            use=states.use[old] + part.use[row],
            rows=np.column_stack((states.rows[old], row)),
        )
        least_latency = states.latency + sum(later.latency.min(axis=0) for later in rest)
        least_use = states.use + sum(later.use.min(axis=0) for later in rest)
        possible = (
            (states.price + sum(float(later.price.min()) for later in rest) <= at_most + TOLERANCE)
            & (_latency(least_latency) <= latency_s * (1 + _SLACK))
            & np.all(least_use <= room, axis=1)
        )
        states = _undominated(states.take(possible))
        if not len(states):
            return None
    return states


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
    if states.latency.shape[1] == 1:
        states = _undominated_at_equal_use(states)
    values = np.column_stack((states.price, states.latency, states.use))
    order = np.lexsort(values.T[::-1])
    if values.shape[1] == 2:
        return states.take(order)
    values = values[order]
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


def _undominated_at_equal_use(states: _States) -> _States:
    """Return the states that no other of the same use beats in price and latency: quick, and most of the work."""
    _, group = np.unique(states.use, axis=0, return_inverse=True) if states.use.shape[1] else (0, np.zeros(len(states)))
    order = np.lexsort((states.latency[:, 0], states.price, group))
    # Each group lies below all before it, so that the running minimum starts anew.
    height = 2 * float(states.latency.max(initial=0.0)) + 1
    shifted = states.latency[order, 0] - np.asarray(group)[order] * height
    least_before = np.concatenate(([np.inf], np.minimum.accumulate(shifted)[:-1]))
    return states.take(order[shifted < least_before])
