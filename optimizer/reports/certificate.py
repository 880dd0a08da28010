"""Add to a plan what only people need: its lower bound, a packing that is billed less, shadow prices and advice.

Each is computed only if an option requests it. The planned replicas do not depend on any of them.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import fsum

import numpy as np

from optimizer.allocate import Allocation, Component, allocation_of, fleet_budget
from optimizer.fleet.fleet import Fleet
from optimizer.model import Basis, PipelineKey, PoolName, Problem
from optimizer.plan import Plan
from optimizer.reports.advice import advice_for
from optimizer.reports.packing import packing_for
from optimizer.search.tables import supply_of

_ROUNDING = 1e-9
"""Sums of the same prices in another order differ by less than this."""


def certified_plan(
    problem: Problem,
    *,
    shares_before: Mapping[PipelineKey, float] | None = None,
    lower_bound: bool = True,
    packing: bool = False,
    shadow_prices: bool = False,
    advice: bool = False,
) -> Plan:
    """Return the plan of `optimizer.allocate` with the fields that the options name; the other fields stay empty.

    `shares_before` is as in `allocate`. `shadow_prices` takes one more search for each pool, `advice` some thirty for
    each pipeline that is not served in full.
    """
    allocation = allocation_of(problem, shares_before=shares_before)
    plan = allocation.plan
    if advice:
        plan = _with_advice(allocation)
    prices = _shadow_prices(allocation) if shadow_prices else {}
    return replace(
        plan,
        pools=tuple(replace(pool, shadow_price_per_hour=prices.get(pool.name)) for pool in plan.pools),
        lower_bound_per_hour=_lower_bound_per_hour(allocation) if lower_bound else None,
        packing=packing_for(allocation)
        if packing and not allocation.relaxed and not problem.counts_instances  # these are packed already
        else None,
    )


def _lower_bound_per_hour(allocation: Allocation) -> float | None:
    """Return a proven lower bound of the cost of serving everything, in USD per hour.

    None where the plan does not serve everything, or no bound is known. Where replays have tightened targets, the bound
    is for those targets: a cheaper plan that would pass its replay is not excluded. Where pipelines share stages, it is
    the sum of the least costs of each of them alone with its share of the price of these stages.

    Where the costs count whole instances, it is the cost of the plan if all combinations of rows that keep the budgets
    were tried (`optimizer.fleet.whole_instances`). Otherwise it counts the replicas' shares of instances, at the lowest
    price of a node: what is paid is never below that, but the gap then includes the empty rest of the instances.
    """
    if allocation.relaxed:
        if not allocation.plan.feasible:
            return None
        apart = [_lower_bound_per_hour(allocation_of(_by_least_shares(problem))) for problem in allocation.relaxed]
        known = [bound for bound in apart if bound is not None]
        return fsum(known) if len(known) == len(apart) else None
    bounds = []
    for component in allocation.components:
        answers = {key: share.answer for key, share in component.shares.items() if share.answer and share.served >= 1}
        if len(answers) < len(component.shares):
            return None
        bound = component.least_per_hour
        if bound is None:
            fleet = component.fleet
            problem = component.bounded_by or fleet.problem
            if component.tightened or problem is not fleet.problem:  # what its search proved does not hold for these
                fleet = Fleet(problem, fleet.supply, pool_prices=fleet.pool_prices, targets=fleet.targets)
            bound = fleet.lower_bound_per_hour(answers)
        if bound is None:
            return None
        bounds.append(bound)
    return bounds[0] if len(bounds) == 1 else fsum(bounds)


def _by_least_shares(problem: Problem) -> Problem:
    """Return the problem in which replicas cost their shares of instances at the lowest price of a node.

    Whole instances that each pipeline would pay for alone may cost more together than those that they share. Budgets
    are left out: those of the search may be smaller than the real ones.
    """
    if not problem.counts_instances:
        return problem
    return replace(
        problem,
        pipelines=tuple(
            replace(pipeline, basis=Basis.REPLICAS, budget_per_hour=None) for pipeline in problem.pipelines
        ),
        budget_per_hour=None,
        budgets=(),
        pools={name: replace(pool, price_per_hour=pool.least_price_per_hour) for name, pool in problem.pools.items()},
    )


def _shadow_prices(allocation: Allocation) -> Mapping[PoolName, float]:
    """Return the saving by one more instance of each pool, in USD per hour, where its component is served in full."""
    return {
        pool.name: _shadow_price(component, pool.name)
        for component in allocation.components
        if component.plan.feasible and not any(map(component.fleet.exhausted, component.fleet.problem.pipelines))
        for pool in component.plan.pools
    }


def _shadow_price(component: Component, name: PoolName) -> float:
    fleet, plan = component.fleet, component.plan
    pool = fleet.problem.pools[name]
    larger = replace(pool, instances=pool.instances + 1)
    problem = replace(fleet.problem, pools={**fleet.problem.pools, name: larger})
    supply = supply_of(problem)
    prices = np.zeros(len(supply.pools)) if fleet.pool_prices is None else fleet.pool_prices
    relaxed = Fleet(problem, supply, pool_prices=prices, targets=fleet.targets)
    answers = relaxed.together({p.key: 1.0 for p in problem.pipelines}, supply.limits, fleet_budget(problem))
    # Shares of instances on both sides, also where costs count whole instances.
    cost = plan.cost_per_hour if answers is None else sum(answer.cost_per_hour for answer in answers.values())
    saving = plan.cost_per_hour - cost
    return saving if saving > _ROUNDING else 0.0


def _with_advice(allocation: Allocation) -> Plan:
    advice = {key: found for component in allocation.components for key, found in advice_for(component).items()}
    plans = tuple(
        plan if (found := advice.get(plan.key)) is None else replace(plan, advice=found)
        for plan in allocation.plan.pipelines
    )
    return replace(allocation.plan, pipelines=plans)
