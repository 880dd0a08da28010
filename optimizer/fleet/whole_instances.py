"""Change plans that were found by shares of instances, so that the whole instances cost least and caps hold.

The searches of single pipelines and of fleets add up shares of instances at the lowest price of a node. This is a lower
bound of what pipelines with `Basis.INSTANCES` pay. From the plan that is cheapest by shares, rows of the tables are
exchanged while what is paid for whole instances falls (`optimizer.fleet.packing`). Up to `WHOLE_LIMIT` combinations of
rows are all tried, and the result is proven to be the cheapest. With more, no exchange of one or two stages is better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from optimizer.fleet.budgets import Budgets
from optimizer.fleet.fleet import Answer, Fleet, by_priority, own_budget
from optimizer.fleet.packing import Measure, Packable, PackingSearch, State, Totals
from optimizer.model import Basis, Pipeline, PipelineKey, Problem, share_instances

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

EFFORT = 1_000_000
"""The most combinations of rows tried for one plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """How pipelines are served after the exchange of rows.

    `least_per_hour` is a proven lower bound of what all pipelines together pay for whole instances, in USD per hour,
    None where not all combinations of rows were tried, or their cost is not exact.
    """

    answers: Mapping[PipelineKey, Answer]
    least_per_hour: float | None


def packed(
    fleet: Fleet, answers: Mapping[PipelineKey, Answer], problem: Problem, limits_s: Mapping[PipelineKey, float]
) -> Packed:
    """Return `answers` with rows exchanged so that less is paid: first above the caps of `problem`, then in total.

    Costs are on the basis of each pipeline; switching costs are part of the total. `limits_s` has latency limits that
    are tighter than those with which the answers were found.
    """
    pipelines = [pipeline for pipeline in by_priority(problem.pipelines) if pipeline.key in answers]
    packables = [_packable(answers[p.key], p.key, limits_s.get(p.key, np.inf)) for p in pipelines]
    effort = EFFORT if problem.search_effort is None else min(EFFORT, problem.search_effort)
    measure = _measure(fleet, pipelines, packables, problem)
    search = PackingSearch(packables, fleet.supply.limits, measure, ties=True, search_effort=effort)
    found = search.best(search.start())
    state = found.state
    proven = (
        found.complete
        and state.value[0] <= 0
        and problem.switching_cost_per_hour == 0
        and all(pipeline.basis is Basis.INSTANCES for pipeline in pipelines)
        and all(table.coarseness == 0 for packable in packables for table in packable.tables)
        and _exact(fleet.problem, packables)
    )
    return Packed(
        answers={
            packable.key: replace(answers[packable.key], walk=answers[packable.key].walk.to(rows))
            for packable, rows in zip(packables, state.rows, strict=True)
        },
        least_per_hour=state.value[1] if proven else None,
    )


def _exact(problem: Problem, packables: Sequence[Packable]) -> bool:
    """Return whether the units of the supply say exactly which instances each of the plans needs.

    Where numbers per instance do not divide one another, units round each placement up to whole instances. A plan
    without one of these placements may then need fewer (`optimizer.model.whole_instances`).
    """
    always = {name: {size for size, count in pool.held if count} for name, pool in problem.pools.items()}
    sizes = {name: set(found) for name, found in always.items()}
    for _, _, placement in problem.placements():
        sizes[placement.pool].add(placement.per_instance)
    for table in (table for packable in packables for table in packable.tables):
        for placement, counts in zip(table.stage.placements, table.replicas.T, strict=True):
            if counts.all():
                always[placement.pool].add(placement.per_instance)
    return all(share_instances(sizes[name]) or not share_instances(always[name]) for name in problem.pools)


def _packable(answer: Answer, key: PipelineKey, limit_s: float) -> Packable:
    subproblem, most_s = answer.subproblem, min(answer.subproblem.latency_s, limit_s)

    def keeps(rows: Sequence[Counts]) -> Mask:
        kept: Mask = subproblem.latencies_of(rows) <= most_s
        return kept

    return Packable(key=key, tables=subproblem.tables, rows=answer.choice, keeps=keeps)


def _measure(fleet: Fleet, pipelines: Sequence[Pipeline], packables: Sequence[Packable], problem: Problem) -> Measure:
    """Return the measure of plans: what is paid above caps, and what is paid in total with switching costs."""
    supply = fleet.supply
    held = np.array(
        [
            sum(-(-count * int(per) // size) for size, count in problem.pools[name].held)
            for name, per in zip(supply.pools, supply.units_per_instance, strict=True)
        ],
        dtype=np.int64,
    )
    largest = sum(table.use.max(axis=0) for packable in packables for table in packable.tables)
    most = -(-(np.minimum(supply.limits, largest) + held) // supply.units_per_instance)
    bills = np.zeros((len(supply.pools), int(most.max(initial=0)) + 1))
    for column, name in enumerate(supply.pools):
        pool = problem.pools[name]
        prices = np.full(bills.shape[1] - 1, pool.price_per_hour)
        present = pool.node_prices_per_hour[: len(prices)]
        prices[: len(present)] = present
        bills[column, 1:] = prices.cumsum()
    columns = np.arange(len(supply.pools))
    whole = np.array([pipeline.basis is Basis.INSTANCES for pipeline in pipelines])
    caps = np.array([own_budget(pipeline) for pipeline in pipelines])
    budgets = Budgets(problem)
    members = budgets.members(pipelines)
    fleet_cap = np.inf if problem.budget_per_hour is None else problem.budget_per_hour
    last: list[tuple[State, Counts, Array]] = []  # what the pipelines of a state use and pay by shares

    def known(state: State) -> tuple[Counts, Array]:
        if not last or last[0][0] is not state:
            apart = [state.totals.apart[p] for p in range(len(pipelines))]
            use = np.concatenate([own.use for own in apart])
            last[:] = [(state, use, np.concatenate([own.cost_per_hour for own in apart]))]
        return last[0][1:]

    def measure(totals: Totals, state: State | None) -> tuple[Array, Array]:
        taken = totals.use + held
        instances = np.minimum(-(-taken // supply.units_per_instance), most)  # more are above the limits
        unit_prices = bills[columns, instances] / np.maximum(taken, 1)
        if state is None:
            costs = np.zeros((len(totals.use), len(pipelines)))
        else:
            use, shares = known(state)
            costs = np.where(whole, unit_prices @ use.T, shares)
        for p, own in totals.apart.items():
            costs[:, p] = (unit_prices * own.use).sum(axis=1) if whole[p] else own.cost_per_hour
        paid = costs.sum(axis=1)
        excess = np.maximum(costs - caps, 0.0).sum(axis=1) + np.maximum(paid - fleet_cap, 0.0)
        excess += np.maximum(costs @ members - budgets.per_hour, 0.0).sum(axis=1)
        switching = totals.objective_per_hour - totals.cost_per_hour
        return excess.round(9), paid + switching

    return measure
