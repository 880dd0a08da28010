"""One pipeline's question to the search, and the ways through its answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from optimizer.latency.composition import Latency, Shape, end_to_end, mean_and_excess
from optimizer.model import Composition
from optimizer.search.tables import StageOptions

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

Choice = tuple[int, ...]
"""One row of each stage's table."""

TOLERANCE = 1e-9
"""USD per hour, and seconds: differences up to this are rounding."""


MOST = 1e15
"""Stands for no limit on price or latency, and `NEVER_S` for an infinite latency: neither could be weighed."""
NEVER_S = 1e12
_SLACK = 1e-12
"""Sums in another order must not turn an answer away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """The tables of N rows as plain arrays, for compiled code: stages by name, the rows of each cheapest first.

    `stages[S]` are positions in the case, `offsets[S + 1]` where each stage's rows begin, `rows[N]` their rows in its
    table. The latency of a choice is Σ `mean_s` + √Σ `excess_s`²; where percentiles are added up, they are the means.
    """

    stages: Counts
    offsets: Counts
    rows: Counts
    price: Array
    mean_s: Array
    excess_s: Array
    use: Counts

    def position(self, choice: Choice) -> Counts:
        """Return the positions in the arrays of the rows of `choice`, stages by name."""
        found = np.empty(len(self.stages), dtype=np.int64)
        for number, stage in enumerate(self.stages.tolist()):
            block = self.rows[self.offsets[number] : self.offsets[number + 1]]
            found[number] = self.offsets[number] + int(np.nonzero(block == choice[stage])[0][0])
        return found

    def choice(self, position: Counts) -> Choice:
        """Return the choice whose rows are at `position`."""
        choice = [0] * len(self.stages)
        for stage, row in zip(self.stages.tolist(), self.rows[position].tolist(), strict=True):
            choice[stage] = row
        return tuple(choice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subproblem:
    """One pipeline to serve at least cost: its tables, the latency allowed and the room in the pools.

    `prices` are what each row costs the search (USD per hour); `capacity` is in the units of the pools.
    """

    tables: tuple[StageOptions, ...]
    prices: tuple[Array, ...]
    shape: Shape
    composition: Composition
    percentile: float
    latency_s: float
    capacity: Counts
    _flat: Flat | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def flat(self) -> Flat:
        """Return the tables as plain arrays; they are made once."""
        if self._flat is None:
            object.__setattr__(self, "_flat", self._flattened())
        assert self._flat is not None
        return self._flat

    def within(self, capacity: Counts) -> "Subproblem":
        """Return the same question with another room."""
        subproblem = replace(self, capacity=capacity)
        object.__setattr__(subproblem, "_flat", self._flat)
        return subproblem

    def for_latency(self, latency_s: float) -> "Subproblem":
        """Return the same question with another latency allowed."""
        subproblem = replace(self, latency_s=latency_s)
        object.__setattr__(subproblem, "_flat", self._flat)
        return subproblem

    def priced(self, prices: Sequence[Array]) -> "Subproblem":
        """Return the same question at other prices."""
        return replace(self, prices=tuple(prices))

    def price(self, choice: Choice) -> float:
        """Return what `choice` costs the search."""
        return float(sum(prices[row] for prices, row in zip(self.prices, choice, strict=True)))

    def cost_per_hour(self, choice: Choice) -> float:
        """Return what the replicas of `choice` cost, in USD per hour."""
        return float(sum(table.cost_per_hour[row] for table, row in zip(self.tables, choice, strict=True)))

    def use(self, choice: Choice) -> Counts:
        """Return the units of each pool that `choice` takes."""
        return np.asarray(sum(table.use[row] for table, row in zip(self.tables, choice, strict=True)), dtype=np.int64)

    def fits(self, choice: Choice) -> bool:
        """Return whether `choice` fits the room."""
        return bool(np.all(self.use(choice) <= self.capacity))

    def latency(self, choice: Choice) -> float:
        """Return the latency of the pipeline under `choice`, at its percentile, in seconds."""
        return float(self._latency([np.array(row) for row in choice]))

    def latencies(self, choice: Choice, stage: int) -> Array:
        """Return the latency for every row of `stage`, the other stages as in `choice`."""
        rows = [np.array([row]) for row in choice]
        rows[stage] = np.arange(len(self.tables[stage]))
        return self._latency(rows)

    def exchanged(self, choice: Choice, changed: tuple[int, int], rows: tuple[Counts, Counts]) -> Array:
        """Return the latencies with two stages `changed` to the pairs of `rows`."""
        every = [np.array([row]) for row in choice]
        for stage, new in zip(changed, rows, strict=True):
            every[stage] = new
        return self._latency(every)

    def fitting(self, choice: Choice, stage: int) -> Mask:
        """Return which rows of `stage` fit the room, the other stages as in `choice`."""
        others = self.use(choice) - self.tables[stage].use[choice[stage]]
        return np.asarray(np.all(others + self.tables[stage].use <= self.capacity, axis=1))

    def _flattened(self) -> Flat:
        stages = self.by_name()
        rows = [_cheapest_first(self.prices[stage]) for stage in stages]
        ordered = [(self.tables[stage], self.prices[stage], row) for stage, row in zip(stages, rows, strict=True)]
        mean, excess = mean_and_excess(
            np.concatenate([table.mean_s[row] for table, _, row in ordered]),
            np.concatenate([table.percentile_s[row] for table, _, row in ordered]),
            len(stages),
        )
        if self.composition is Composition.SUM:
            mean, excess = mean + excess, np.zeros(len(mean))
        return Flat(
            stages=np.array(stages, dtype=np.int64),
            offsets=np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64),
            rows=np.concatenate(rows),
            price=np.concatenate([prices[row] for _, prices, row in ordered]).astype(np.float64),
            mean_s=np.minimum(mean, NEVER_S),
            excess_s=np.minimum(excess, NEVER_S),
            use=np.ascontiguousarray(np.concatenate([table.use[row] for table, _, row in ordered]), dtype=np.int64),
        )

    def by_name(self) -> tuple[int, ...]:
        """Return the stages in an order that does not depend on the one they were given in."""
        return tuple(sorted(range(len(self.tables)), key=lambda stage: self.tables[stage].stage.name))

    def _latency(self, rows: Sequence[Counts]) -> Array:
        parts = [
            Latency(mean_s=table.mean_s[row], percentile_s=table.percentile_s[row])
            for table, row in zip(self.tables, rows, strict=True)
        ]
        return end_to_end(self.shape, parts, composition=self.composition, percentile=self.percentile).percentile_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What the search visited, from the cheapest allocation that carries the load to its answer."""

    visited: tuple[Choice, ...]

    @property
    def answer(self) -> Choice:
        """Return the choice the search ended with."""
        return self.visited[-1]

    def to(self, choice: Choice) -> "Walk":
        """Return the walk extended to `choice`, one stage at a time."""
        visited = list(self.visited)
        for stage, row in enumerate(choice):
            if visited[-1][stage] != row:
                visited.append(with_row(visited[-1], stage, row))
        return Walk(visited=tuple(visited))

    def direct(self, subproblem: Subproblem) -> "Walk":
        """Return the walk without its detours: moves that a later move of the same stage made cheaper again."""
        moves = [
            (stage, new[stage])
            for old, new in pairwise(self.visited)
            for stage in range(len(new))
            if old[stage] != new[stage]
        ]
        visited = [self.visited[0]]
        for position, (stage, row) in enumerate(moves):
            later = [next_row for other, next_row in moves[position + 1 :] if other == stage]
            detour = any(subproblem.prices[stage][after] < subproblem.prices[stage][row] + TOLERANCE for after in later)
            if not detour and visited[-1][stage] != row:
                visited.append(with_row(visited[-1], stage, row))
        return Walk(visited=tuple(visited))


def with_row(choice: Choice, stage: int, row: int) -> Choice:
    """Return `choice` with `stage` changed to `row`."""
    return (*choice[:stage], row, *choice[stage + 1 :])


def _cheapest_first(prices: Array) -> Counts:
    """Return the rows by price; equals stay in the order of the table, which is the user's preference."""
    if np.all(prices[1:] >= prices[:-1]):
        return np.arange(len(prices), dtype=np.int64)
    return np.argsort(prices, kind="stable").astype(np.int64)


def latency_limit_s(subproblem: Subproblem) -> float:
    """Return the latency allowed, finite and with room for the rounding of sums."""
    return min(subproblem.latency_s * (1 + _SLACK), MOST)
