"""Find a plan that is billed less: the search counts shares of instances, the provider bills whole instances.

A replica that takes a quarter of an instance costs a quarter of its price in a plan. It is billed as a whole instance,
unless other replicas fill the rest. More expensive replicas may therefore be billed less, if they fit into instances
that are already paid for. The packing does not change the plan; it is shown beside it.
"""

from collections.abc import Sequence
from math import fsum

import numpy as np
from numpy.typing import NDArray

from optimizer.allocate import Allocation, Component, fleet_budget
from optimizer.fleet.fleet import by_priority, own_budget
from optimizer.fleet.packing import WORK, Packable, PackingSearch, State, Totals
from optimizer.model import Pipeline, PlacementId
from optimizer.plan import Packing
from optimizer.search.subproblem import TOLERANCE, Choice, Subproblem
from optimizer.search.tables import Supply

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

EXCESS = 0.05
"""A packing is searched for when the bill is more than this share above the cost."""

_PLAN_WORK = 1_000_000  # for the packing of a plan
_NOTHING = 1e-9


def packing_for(allocation: Allocation) -> Packing | None:
    """Return a plan for all pipelines that is billed less than `allocation`, or None if none was found."""
    packings = [_of_component(component) for component in allocation.components]
    if len(packings) == 1 or all(packing is None for packing in packings):
        return packings[0]
    plans = [component.plan for component in allocation.components]
    replicas: dict[PlacementId, int] = {}
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

    def keeps(rows: Sequence[Counts]) -> Mask:
        within: Mask = subproblem.costs_per_hour(rows) <= most + TOLERANCE
        return within & (subproblem.latencies_of(rows) <= subproblem.latency_s)

    return Packable(key=pipeline.key, tables=subproblem.tables, rows=choice, keeps=keeps)


def cheaper_packing(
    pipelines: Sequence[Packable], supply: Supply, *, budget_per_hour: float = np.inf, search_effort: int = WORK
) -> Packing | None:
    """Return a plan that keeps every SLA and budget and is billed less than the planned rows, or None.

    None also when the bill is at most `EXCESS` above the cost. The limits of `supply` and `budget_per_hour`, which
    applies to the cost of all pipelines, are kept. With few combinations of rows all are tried, and the result is
    billed least of all; otherwise no change of one or two stages would be billed less. When `search_effort`
    (combinations tried) is spent, the result is the best so far. Among equal bills the least cost wins, then the first
    rows, stages by name.
    """

    def measure(totals: Totals, _: State | None) -> tuple[Array, Array]:
        within = totals.cost_per_hour <= budget_per_hour + _NOTHING
        return np.where(within, _billed_per_hour(supply, totals.use), np.inf), totals.cost_per_hour

    search = PackingSearch(pipelines, supply.limits, measure, ties=False, search_effort=search_effort)
    start = search.start()
    billed_per_hour, cost_per_hour = _bill(supply, start)
    if billed_per_hour <= (1 + EXCESS) * cost_per_hour + _NOTHING:
        return None
    best = search.best(start).state
    if _bill(supply, best)[0] >= billed_per_hour - _NOTHING:
        return None
    replicas = {
        (pipeline.key, table.stage.name, placement.name): count
        for pipeline, rows in zip(pipelines, best.rows, strict=True)
        for table, row in zip(pipeline.tables, rows, strict=True)
        for placement, count, _ in table.placed(row)
    }
    billed_per_hour, cost_per_hour = _bill(supply, best)
    return Packing(replicas=replicas, cost_per_hour=cost_per_hour, billed_per_hour=billed_per_hour)


def _bill(supply: Supply, state: State) -> tuple[float, float]:
    """Return the price of the whole instances of a state, and the cost of its shares of them, in USD per hour."""
    return float(_billed_per_hour(supply, state.totals.use)[0]), float(state.totals.cost_per_hour[0])


def _billed_per_hour(supply: Supply, units: Counts) -> Array:
    """Return the price of the whole instances that hold `units`, shape (…, pools), in USD per hour."""
    instances = -(-units // supply.units_per_instance)
    return np.asarray(instances @ supply.prices_per_hour, dtype=np.float64)
