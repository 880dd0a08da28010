"""Find a plan that is billed less: the search counts shares of instances, the provider bills whole instances.

A replica that takes a quarter of an instance costs a quarter of its price in a plan. It is billed as a whole instance,
unless other replicas fill the rest. More expensive replicas may therefore be billed less, if they fit into instances
that are already paid for. The packing does not change the plan; it is shown beside it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import fsum, prod

import numpy as np
from numpy.typing import NDArray

from optimizer.allocate import Allocation, Component, fleet_budget
from optimizer.fleet.fleet import by_priority, own_budget
from optimizer.model import Pipeline, PipelineKey, PoolName, StageName
from optimizer.plan import Packing
from optimizer.search.subproblem import TOLERANCE, Choice, Subproblem
from optimizer.search.tables import StageOptions, Supply

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Rows = tuple[int, ...]

EXCESS = 0.05
"""A packing is searched for when the bill is more than this share above the cost."""

_WHOLE_LIMIT = 200_000  # combinations of all tables: up to this many all are tried
_WORK = 20_000_000
_PLAN_WORK = 1_000_000  # for the packing of a plan
_JUDGING = 200  # checking a pipeline's SLA and budget counts as much work as this many combinations
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Packable:
    """A pipeline to pack: a table for each stage, and the planned row of each table.

    `keeps` takes one row of each table and returns whether these rows keep the pipeline's SLA and its own budget.
    """

    key: PipelineKey
    tables: Sequence[StageOptions]
    rows: Rows
    keeps: Callable[[Rows], bool]


def packing_for(allocation: Allocation) -> Packing | None:
    """Return a plan for all pipelines that is billed less than `allocation`, or None if none was found."""
    packings = [_of_component(component) for component in allocation.components]
    if len(packings) == 1 or all(packing is None for packing in packings):
        return packings[0]
    plans = [component.plan for component in allocation.components]
    replicas: dict[tuple[PipelineKey, StageName, PoolName], int] = {}
    for plan, packing in zip(plans, packings, strict=True):
        replicas |= (
            {(own.key, *key): count for own in plan.pipelines for key, count in own.replicas().items()}
            if packing is None
            else packing.replicas
        )
    billed = [packing or plan for plan, packing in zip(plans, packings, strict=True)]
    return Packing(
        replicas=replicas,
        cost_per_hour=fsum(one.cost_per_hour for one in billed),
        billed_per_hour=fsum(one.billed_per_hour for one in billed),
    )


def _of_component(component: Component) -> Packing | None:
    fleet, shares = component.fleet, component.shares
    if fleet.problem.budgets:  # a packing may shift cost into a group that has none left
        return None
    packables = []
    for pipeline in by_priority(fleet.problem.pipelines):
        share = shares[pipeline.key]
        if share.answer is None or share.served < 1:
            return None
        packables.append(_packable(pipeline, share.answer.subproblem, share.answer.choice))
    effort = fleet.problem.search_effort
    return cheaper_packing(
        packables,
        fleet.supply,
        budget_per_hour=fleet_budget(fleet.problem),
        search_effort=_PLAN_WORK if effort is None else min(effort, _PLAN_WORK),
    )


def _packable(pipeline: Pipeline, subproblem: Subproblem, choice: Choice) -> Packable:
    most = own_budget(pipeline)

    def keeps(rows: Choice) -> bool:
        return subproblem.latency(rows) <= subproblem.latency_s and subproblem.cost_per_hour(rows) <= most + TOLERANCE

    return Packable(key=pipeline.key, tables=subproblem.tables, rows=choice, keeps=keeps)


def cheaper_packing(
    pipelines: Sequence[Packable], supply: Supply, *, budget_per_hour: float = np.inf, search_effort: int = _WORK
) -> Packing | None:
    """Return a plan that keeps every SLA and budget and is billed less than the planned rows, or None.

    None also when the bill is at most `EXCESS` above the cost. The limits of `supply` and `budget_per_hour`, which
    applies to the cost of all pipelines, are kept. With few combinations of rows all are tried, and the result is
    billed least of all; otherwise no change of one or two stages would be billed less. When `search_effort`
    (combinations tried) is spent, the result is the best so far. Among equal bills the least cost wins, then the first
    rows, stages by name.
    """
    start = _State.of(pipelines, supply)
    if start.billed_per_hour <= (1 + EXCESS) * start.cost_per_hour + _NOTHING:
        return None
    search = _Search(pipelines, supply, budget_per_hour, search_effort)
    best = search.descend(start)
    if best.billed_per_hour >= start.billed_per_hour - _NOTHING:
        return None
    replicas = {
        (pipeline.key, table.stage.name, placement.pool): count
        for pipeline, rows in zip(pipelines, best.rows, strict=True)
        for table, row in zip(pipeline.tables, rows, strict=True)
        for placement, count, _ in table.placed(row)
    }
    return Packing(replicas=replicas, cost_per_hour=best.cost_per_hour, billed_per_hour=best.billed_per_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    rows: tuple[Rows, ...]
    use: Counts
    cost_per_hour: float
    billed_per_hour: float

    @staticmethod
    def of(pipelines: Sequence[Packable], supply: Supply, rows: Sequence[Rows] | None = None) -> "_State":
        """Return the sums over `rows`, one of each table of each pipeline; by default the planned ones."""
        chosen = tuple(p.rows for p in pipelines) if rows is None else tuple(rows)
        occupied = [
            (t, row) for p, of in zip(pipelines, chosen, strict=True) for t, row in zip(p.tables, of, strict=True)
        ]
        use = np.sum([table.use[row] for table, row in occupied], axis=0, initial=0) + np.zeros_like(supply.limits)
        return _State(
            rows=chosen,
            use=use,
            cost_per_hour=float(sum(table.cost_per_hour[row] for table, row in occupied)),
            billed_per_hour=float(_billed_per_hour(supply, use)),
        )


def _billed_per_hour(supply: Supply, units: Counts) -> Array:
    """Return the price of the whole instances that hold `units`, shape (…, pools), in USD per hour."""
    instances = -(-units // supply.units_per_instance)
    return np.asarray(instances @ supply.prices_per_hour, dtype=np.float64)


_Place = tuple[int, int]
"""A pipeline and one of its tables, by position."""


class _Search:
    """A local search for a lower bill that changes one or two stages at a time and counts its work."""

    def __init__(
        self, pipelines: Sequence[Packable], supply: Supply, budget_per_hour: float, search_effort: int
    ) -> None:
        self._pipelines = pipelines
        self._supply = supply
        self._budget_per_hour = budget_per_hour
        self._left = search_effort
        self._places: list[_Place] = sorted(
            ((p, k) for p, pipeline in enumerate(pipelines) for k in range(len(pipeline.tables))),
            key=lambda place: (pipelines[place[0]].key, self._table(place).stage.name),
        )

    def descend(self, state: _State) -> _State:
        """Return the state with the lowest bill that the search reaches from `state`."""
        if prod(len(self._table(place).use) for place in self._places) <= _WHOLE_LIMIT:
            return self._best(state, [self._places]) or state
        pairs = sorted(combinations(self._places, 2), key=lambda pair: pair[0][0] != pair[1][0])
        while True:
            better = self._best(state, [[place] for place in self._places]) or self._best(state, pairs)
            if better is None:
                return state
            state = better

    def _table(self, place: _Place) -> StageOptions:
        return self._pipelines[place[0]].tables[place[1]]

    def _best(self, state: _State, changes: Sequence[Sequence[_Place]]) -> _State | None:
        best: _State | None = None
        for places in changes:
            if self._left <= 0:
                break
            found = self._changed(state, places, best or state)
            best = found or best
        return best

    def _changed(self, state: _State, places: Sequence[_Place], better_than: _State) -> _State | None:
        """Return the best change of `state` in `places` that improves on `better_than`, or None.

        It improves with a lower bill, or with an equal bill and a lower cost.
        """
        tables = [self._table(place) for place in places]
        sizes = [len(table.use) for table in tables]
        self._left -= prod(sizes)
        if self._left < 0:
            return None
        picks = np.indices(sizes).reshape(len(sizes), -1)
        now = [state.rows[p][k] for p, k in places]
        use, cost = state.use, np.full(picks.shape[1], state.cost_per_hour)
        for table, pick, row in zip(tables, picks, now, strict=True):
            use = use + (table.use[pick] - table.use[row])
            cost = cost + (table.cost_per_hour[pick] - table.cost_per_hour[row])
        billed = _billed_per_hour(self._supply, use)
        less = billed < better_than.billed_per_hour - _NOTHING
        if better_than is not state:
            alike = billed < better_than.billed_per_hour + _NOTHING
            less |= alike & (cost < better_than.cost_per_hour - _NOTHING)
        less &= np.all(use <= self._supply.limits, axis=1) & (cost <= self._budget_per_hour + _NOTHING)
        found = np.nonzero(less)[0]
        for at in found[np.lexsort((cost[found].round(9), billed[found].round(9)))]:
            if self._left <= 0:
                return None
            rows = [list(of) for of in state.rows]
            for (p, k), row in zip(places, picks[:, at].tolist(), strict=True):
                rows[p][k] = row
            if self._kept(state, rows, {p for p, _ in places}):
                return _State.of(self._pipelines, self._supply, [tuple(of) for of in rows])
        return None

    def _kept(self, state: _State, rows: Sequence[Sequence[int]], changed: set[int]) -> bool:
        for p in sorted(changed):
            if tuple(rows[p]) != state.rows[p]:
                self._left -= _JUDGING
                if not self._pipelines[p].keeps(tuple(rows[p])):
                    return False
        return True
