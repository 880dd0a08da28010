"""The search problem of one pipeline (`Subproblem`), and the sequence of choices that a search visits (`Walk`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimizer.latency.composition import Latency, Shape, end_to_end, mean_and_excess
from optimizer.model import Composition
from optimizer.runtime.effort import JOIN, Account
from optimizer.search.tables import StageOptions

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

Choice = tuple[int, ...]
"""One row of each stage's table."""

TOLERANCE = 1e-9
"""Differences up to this are rounding, in USD per hour and in seconds."""

MOST = 1e15
"""Replaces an infinite limit on price or latency: arithmetic with infinity would give NaN."""
NEVER_S = 1e12
"""Replaces an infinite latency, for the same reason."""
_SLACK = 1e-12
"""Relative slack of latencies: a sum in another order must not make a choice infeasible."""


class Flat(NamedTuple):
    """The tables as plain arrays, for compiled code: the rows of all S stages in sequence, N rows together.

    Stages are in the order of their names, the rows of a stage by rising price. `stages` (S,) are positions in
    `Subproblem.tables`, `offsets` (S + 1,) the first row of each stage, `rows` (N,) the positions of the rows in the
    table of their stage. `price` (USD per hour), `mean_s` and `excess_s` have the shape (N,), `use` (N, pools).
    Without joins the latency of a choice is Σ `mean_s` + √Σ `excess_s`². With `Composition.SUM`, `mean_s` has the
    percentiles, and `excess_s` is 0.
    """

    stages: Counts
    offsets: Counts
    rows: Counts
    price: Array
    mean_s: Array
    excess_s: Array
    use: Counts

    def position(self, choice: Choice) -> Counts:
        """Return the positions in these arrays of the rows of `choice`, shape (S,), stages in the order of names."""
        position = np.empty(len(self.stages), dtype=np.int64)
        for number, stage in enumerate(self.stages.tolist()):
            block = self.rows[self.offsets[number] : self.offsets[number + 1]]
            position[number] = self.offsets[number] + int(np.nonzero(block == choice[stage])[0][0])
        return position

    def choice(self, position: Counts) -> Choice:
        """Return the choice whose rows are at `position`."""
        choice = [0] * len(self.stages)
        for stage, row in zip(self.stages.tolist(), self.rows[position].tolist(), strict=True):
            choice[stage] = row
        return tuple(choice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subproblem:
    """One pipeline to serve at least cost: its tables, the latency limit and the capacity of the pools.

    `tables` has one table per stage. `prices` has one array per table: what each row adds to the objective, in USD per
    hour. `latency_s` is the most that the latency at `percentile` may be. `capacity` has the units of `Supply` that
    each pool provides. `account` is charged with the work of searching (None: it is not counted).
    """

    tables: tuple[StageOptions, ...]
    prices: tuple[Array, ...]
    shape: Shape
    composition: Composition
    percentile: float
    latency_s: float
    capacity: Counts
    account: Account | None = field(default=None, repr=False, compare=False)
    _flat: Flat | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def flat(self) -> Flat:
        """Return the tables as plain arrays, made on first use."""
        if self._flat is None:
            object.__setattr__(self, "_flat", self._flattened())
        assert self._flat is not None
        return self._flat

    @property
    def exhausted(self) -> bool:
        """Return whether nothing is left in the account."""
        return self.account is not None and self.account.exhausted

    def charge(self, units: float) -> None:
        """Charge the account with `units` of work."""
        if self.account is not None:
            self.account.charge(units)

    def charging(self, account: Account | None) -> "Subproblem":
        """Return the same subproblem with `account`."""
        if account is None:
            return self
        subproblem = replace(self, account=account)
        object.__setattr__(subproblem, "_flat", self.flat)
        return subproblem

    def within(self, capacity: Counts) -> "Subproblem":
        """Return the same subproblem with `capacity` of the pools, in units of `Supply`."""
        subproblem = replace(self, capacity=capacity)
        object.__setattr__(subproblem, "_flat", self._flat)
        return subproblem

    def for_latency(self, latency_s: float) -> "Subproblem":
        """Return the same subproblem with the latency limit `latency_s`."""
        subproblem = replace(self, latency_s=latency_s)
        object.__setattr__(subproblem, "_flat", self._flat)
        return subproblem

    def priced(self, prices: Sequence[Array]) -> "Subproblem":
        """Return the same subproblem with `prices` as objective, one array per table."""
        return replace(self, prices=tuple(prices))

    def price(self, choice: Choice) -> float:
        """Return the objective of `choice`, in USD per hour."""
        return float(sum(prices[row] for prices, row in zip(self.prices, choice, strict=True)))

    def cost_per_hour(self, choice: Choice) -> float:
        """Return the cost of the replicas of `choice`, in USD per hour."""
        return float(sum(table.cost_per_hour[row] for table, row in zip(self.tables, choice, strict=True)))

    def use(self, choice: Choice) -> Counts:
        """Return the units of each pool that `choice` takes."""
        return np.asarray(sum(table.use[row] for table, row in zip(self.tables, choice, strict=True)), dtype=np.int64)

    def fits(self, choice: Choice) -> bool:
        """Return whether the pools have capacity for `choice`."""
        return bool(np.all(self.use(choice) <= self.capacity))

    def latency(self, choice: Choice) -> float:
        """Return the latency of the pipeline under `choice`, at its percentile, in seconds."""
        return float(self._latency([np.array(row) for row in choice]))

    def costs_per_hour(self, rows: Sequence[Counts]) -> Array:
        """Return the costs of choices: `rows` has one array per table, all of the same length, in USD per hour."""
        return np.asarray(sum(table.cost_per_hour[row] for table, row in zip(self.tables, rows, strict=True)))

    def latencies_of(self, rows: Sequence[Counts]) -> Array:
        """Return the latencies of choices: `rows` has one array per table, all of the same length."""
        return self._latency(rows)

    def latencies(self, choice: Choice, stage: int) -> Array:
        """Return the latency of the pipeline for every row of `stage`, with the other stages as in `choice`."""
        rows = [np.array([row]) for row in choice]
        rows[stage] = np.arange(len(self.tables[stage]))
        return self._latency(rows)

    def exchanged(self, choice: Choice, changed: tuple[int, int], rows: tuple[Counts, Counts]) -> Array:
        """Return the latency of the pipeline for each pair of `rows` of the two stages `changed`.

        The two arrays of `rows` have equal lengths; the other stages are as in `choice`.
        """
        every = [np.array([row]) for row in choice]
        for stage, new in zip(changed, rows, strict=True):
            every[stage] = new
        return self._latency(every)

    def fitting(self, choice: Choice, stage: int) -> Mask:
        """Return a mask of the rows of `stage` that fit the pools, with the other stages as in `choice`."""
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
        """Return the positions of the stages in the order of their names: results do not depend on the given order."""
        return tuple(sorted(range(len(self.tables)), key=lambda stage: self.tables[stage].stage.name))

    def _latency(self, rows: Sequence[Counts]) -> Array:
        parts = [
            Latency(mean_s=table.mean_s[row], percentile_s=table.percentile_s[row])
            for table, row in zip(self.tables, rows, strict=True)
        ]
        whole = end_to_end(self.shape, parts, composition=self.composition, percentile=self.percentile).percentile_s
        if not self.shape.serial:
            self.charge(JOIN * whole.size * len(self.shape.program))
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The choices that a search visited, from the cheapest one that carries the load to its result."""

    visited: tuple[Choice, ...]

    @property
    def answer(self) -> Choice:
        """Return the last choice: the result of the search."""
        return self.visited[-1]

    def to(self, choice: Choice) -> "Walk":
        """Return the walk extended to `choice` by changes of one stage at a time."""
        visited = list(self.visited)
        for stage, row in enumerate(choice):
            if visited[-1][stage] != row:
                visited.append(with_row(visited[-1], stage, row))
        return Walk(visited=tuple(visited))

    def direct(self, subproblem: Subproblem) -> "Walk":
        """Return the walk without detours: moves of a stage that a later move replaced at the same or a lower price."""
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
    """Return `choice` with row `row` for `stage`."""
    return (*choice[:stage], row, *choice[stage + 1 :])


def _cheapest_first(prices: Array) -> Counts:
    """Return the rows by rising price; equal prices stay in the order of the table, which is the user's preference."""
    if np.all(prices[1:] >= prices[:-1]):
        return np.arange(len(prices), dtype=np.int64)
    return np.argsort(prices, kind="stable").astype(np.int64)


def latency_limit_s(subproblem: Subproblem) -> float:
    """Return the latency limit in seconds, at most `MOST`, with slack for the rounding of sums."""
    return min(subproblem.latency_s * (1 + _SLACK), MOST)
