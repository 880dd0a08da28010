"""Split a fleet into components that share neither pools nor budgets with each other, and join their plans."""

from collections.abc import Sequence
from dataclasses import replace
from math import fsum

from optimizer.model import Pipeline, Problem
from optimizer.plan import Plan


def components_of(problem: Problem) -> Sequence[Problem]:
    """Return the components of `problem`: the smallest problems that can be solved independently of each other.

    With a budget for all pipelines there is only one component. A group with a budget is in one. The search effort is
    divided in proportion to the number of pipelines. Pools that no pipeline uses are in the first component.
    """
    if problem.budget_per_hour is not None or len(problem.pipelines) < 2:
        return [problem]
    component_of: dict[tuple[str, str], int] = {}  # of a pool or a budget: the number of the component's first pipeline
    members: dict[int, list[Pipeline]] = {}
    for number, pipeline in enumerate(problem.pipelines):
        used: set[tuple[str, str]] = {
            ("pool", placement.pool) for stage in pipeline.stages for placement in stage.placements
        }
        used |= {("budget", budget.name) for budget in problem.budgets if pipeline.key in budget.pipelines}
        met = sorted({component_of[limit] for limit in used if limit in component_of})
        first = met[0] if met else number
        members[first] = [p for component in met for p in members.pop(component)] + [pipeline]
        component_of = {
            limit: first if component in met else component for limit, component in component_of.items()
        } | dict.fromkeys(used, first)
    if len(members) == 1:
        return [problem]
    return [
        replace(
            problem,
            pipelines=tuple(group),
            # The first pipeline is in component 0, and so are the pools that no pipeline uses.
            pools={
                name: pool for name, pool in problem.pools.items() if component_of.get(("pool", name), 0) == component
            },
            budgets=tuple(b for b in problem.budgets if component_of.get(("budget", b.name), 0) == component),
            search_effort=None
            if problem.search_effort is None
            else problem.search_effort * len(group) // len(problem.pipelines),
        )
        for component, group in members.items()
    ]


def joined(problem: Problem, plans: Sequence[Plan]) -> Plan:
    """Return the plan for `problem`, joined from `plans` of its components, without the fields that reports fill."""
    if len(plans) == 1:
        return plans[0]
    by_key = {pipeline.key: pipeline for plan in plans for pipeline in plan.pipelines}
    return Plan(
        pipelines=tuple(by_key[pipeline.key] for pipeline in problem.pipelines),
        pools=tuple(sorted((pool for plan in plans for pool in plan.pools), key=lambda pool: pool.name)),
        cost_per_hour=fsum(plan.cost_per_hour for plan in plans),
        billed_per_hour=fsum(plan.billed_per_hour for plan in plans),
        lower_bound_per_hour=None,
    )
