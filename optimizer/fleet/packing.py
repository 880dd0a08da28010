"""A search over the tables of several pipelines for plans whose price depends on all replicas together.

The searches of `optimizer.search` add up the prices of rows. The price of whole instances is no such sum: a replica may
fit into an instance that is already paid for. Here the rows of one or two stages are exchanged at a time, and those of
all stages at once where there are few combinations.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray

from optimizer.model import PipelineKey
from optimizer.search.tables import StageOptions

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]
Rows = tuple[int, ...]

WORK = 20_000_000
"""The most combinations of rows that a search tries."""
WHOLE_LIMIT = 200_000
"""Up to this many combinations of all tables all are tried."""

_CALL = 1000
"""What one exchange counts for beside its combinations: of hundreds of pipelines, most exchanges have only a few."""
_JUDGED = 4096  # combinations whose latency is computed together
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Packable:
    """A pipeline to pack: a table for each stage, and the planned row of each table.

    `keeps` takes an array of rows of each table, all of the same length n, and returns for each of the n combinations
    whether it keeps what must be kept, such as the pipeline's SLA.
    """

    key: PipelineKey
    tables: Sequence[StageOptions]
    rows: Rows
    keeps: Callable[[Sequence[Counts]], Mask]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What n combinations of rows take and cost: of some pipelines apart, and of all pipelines together.

    `use` is in units of `Supply`, shape (n, pools); `cost_per_hour` is the cost of the replicas' shares of instances,
    and `objective_per_hour` the same with switching costs, shape (n,) each, in USD per hour. `apart` has the same for
    the pipelines, by position, in which the combinations differ.
    """

    use: Counts
    cost_per_hour: Array
    objective_per_hour: Array
    apart: Mapping[int, "Totals"]


Measure = Callable[[Totals, "State | None"], tuple[Array, Array]]
"""Returns two numbers for each of n combinations: the lower first one is better, of equal ones the lower second one.

The first is infinite where a combination is not allowed. The state has the pipelines in which they do not differ, None
where they differ in all.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One row of each table of each pipeline, with its `totals` (n = 1) of all pipelines and its `value`."""

    rows: tuple[Rows, ...]
    totals: Totals
    value: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best state found, and whether it is the best of all combinations."""

    state: State
    complete: bool


_Place = tuple[int, int]
"""A pipeline and one of its tables, by position."""


class PackingSearch:
    """A search for a better state that changes one or two stages at a time and counts its work."""

    def __init__(
        self, pipelines: Sequence[Packable], limits: Counts, measure: Measure, *, ties: bool, search_effort: int = WORK
    ) -> None:
        """`limits` are the units of each pool. `measure` says which states are better.

        With `ties`, a state is also better than the first one if only its second number is lower.
        """
        self._pipelines = pipelines
        self._limits = limits
        self._measure = measure
        self._ties = ties
        self._left = search_effort
        self._places: list[_Place] = sorted(
            ((p, k) for p, pipeline in enumerate(pipelines) for k in range(len(pipeline.tables))),
            key=lambda place: (pipelines[place[0]].key, self._table(place).stage.name),
        )

    def start(self) -> State:
        """Return the state with the planned rows."""
        return self._state([pipeline.rows for pipeline in self._pipelines])

    def best(self, state: State) -> Found:
        """Return the best state that the search reaches from `state`."""
        if prod(len(self._table(place)) for place in self._places) <= WHOLE_LIMIT:
            found = self._best(state, [self._places]) or state
            return Found(state=found, complete=self._left >= 0)
        pairs = sorted(combinations(self._places, 2), key=lambda pair: pair[0][0] != pair[1][0])
        while True:
            better = self._best(state, [[place] for place in self._places]) or self._best(state, pairs)
            if better is None:
                return Found(state=state, complete=False)
            state = better

    def _table(self, place: _Place) -> StageOptions:
        return self._pipelines[place[0]].tables[place[1]]

    def _state(self, rows: Sequence[Rows]) -> State:
        apart = {}
        for p, (pipeline, chosen) in enumerate(zip(self._pipelines, rows, strict=True)):
            picked = [(table, np.array([row])) for table, row in zip(pipeline.tables, chosen, strict=True)]
            apart[p] = _sum([_of_table(table, row) for table, row in picked], len(self._limits))
        totals = _sum(list(apart.values()), len(self._limits))
        totals = Totals(
            use=totals.use,
            cost_per_hour=totals.cost_per_hour,
            objective_per_hour=totals.objective_per_hour,
            apart=apart,
        )
        first, second = self._measure(totals, None)
        return State(rows=tuple(rows), totals=totals, value=(float(first[0]), float(second[0])))

    def _best(self, state: State, changes: Sequence[Sequence[_Place]]) -> State | None:
        best: State | None = None
        for places in changes:
            if self._left <= 0:
                break
            found = self._changed(state, places, best or state)
            best = found or best
        return best

    def _changed(self, state: State, places: Sequence[_Place], better_than: State) -> State | None:
        """Return the best change of `state` in `places` that improves on `better_than`, or None."""
        tables = [self._table(place) for place in places]
        sizes = [len(table) for table in tables]
        self._left -= _CALL + prod(sizes)
        if self._left < 0:
            return None
        picks = np.indices(sizes).reshape(len(sizes), -1)
        totals = self._totals(state, places, picks)
        first, second = self._measure(totals, state)
        better = first < better_than.value[0] - _NOTHING
        if self._ties or better_than is not state:
            better |= (first < better_than.value[0] + _NOTHING) & (second < better_than.value[1] - _NOTHING)
        better &= np.all(totals.use <= self._limits, axis=1) & np.isfinite(first)
        found = np.nonzero(better)[0]
        order = found[np.lexsort((second[found].round(9), first[found].round(9)))]
        for block in range(0, len(order), _JUDGED):
            some = order[block : block + _JUDGED]
            self._left -= len(some)
            if self._left < 0:
                return None
            kept = np.nonzero(self._kept(state, places, picks[:, some]))[0]
            if len(kept):
                rows = [list(of) for of in state.rows]
                for (p, k), row in zip(places, picks[:, some[kept[0]]].tolist(), strict=True):
                    rows[p][k] = row
                return self._state([tuple(of) for of in rows])
        return None

    def _totals(self, state: State, places: Sequence[_Place], picks: Counts) -> Totals:
        """Return the totals of `state` with the rows `picks`, one column for each combination, in `places`."""
        changes: dict[int, list[Totals]] = {}
        for (p, k), pick in zip(places, picks, strict=True):
            table = self._pipelines[p].tables[k]
            new, old = _of_table(table, pick), _of_table(table, np.array([state.rows[p][k]]))
            changes.setdefault(p, []).append(_difference(new, old))
        added = {p: _sum(parts, len(self._limits)) for p, parts in changes.items()}
        whole = _sum([state.totals, *added.values()], len(self._limits))
        return Totals(
            use=whole.use,
            cost_per_hour=whole.cost_per_hour,
            objective_per_hour=whole.objective_per_hour,
            apart={p: _sum([state.totals.apart[p], change], len(self._limits)) for p, change in added.items()},
        )

    def _kept(self, state: State, places: Sequence[_Place], picks: Counts) -> Mask:
        """Return which combinations keep what the pipelines that they change must keep."""
        kept = np.ones(picks.shape[1], dtype=np.bool_)
        for p in sorted({p for p, _ in places}):
            rows = [np.full(picks.shape[1], row, dtype=np.int64) for row in state.rows[p]]
            for (other, k), pick in zip(places, picks, strict=True):
                if other == p:
                    rows[k] = pick
            same = np.all([row == now for row, now in zip(rows, state.rows[p], strict=True)], axis=0)
            kept &= same | self._pipelines[p].keeps(rows)
        return kept


def _of_table(table: StageOptions, rows: Counts) -> Totals:
    return Totals(
        use=table.use[rows],
        cost_per_hour=table.cost_per_hour[rows],
        objective_per_hour=table.objective_per_hour[rows],
        apart={},
    )


def _difference(new: Totals, old: Totals) -> Totals:
    return Totals(
        use=new.use - old.use,
        cost_per_hour=new.cost_per_hour - old.cost_per_hour,
        objective_per_hour=new.objective_per_hour - old.objective_per_hour,
        apart={},
    )


def _sum(parts: Sequence[Totals], pools: int) -> Totals:
    return Totals(
        use=sum((part.use for part in parts), np.zeros((1, pools), dtype=np.int64)),
        cost_per_hour=sum((part.cost_per_hour for part in parts), np.zeros(1)),
        objective_per_hour=sum((part.objective_per_hour for part in parts), np.zeros(1)),
        apart={},
    )
