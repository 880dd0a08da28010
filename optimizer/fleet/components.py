"""A fleet in parts that share neither pools nor money: what happens in one is nothing to the others."""

from collections.abc import Sequence
from dataclasses import replace
from math import fsum

from optimizer.model import Pipeline, PipelineKey, PoolName, Problem, StageName
from optimizer.plan import Packing, Plan


def parts_of(problem: Problem) -> Sequence[Problem]:
    """Return the smallest problems that can be solved each for itself; together they are `problem`.

    A budget for all makes one of all. Work is given out by the number of pipelines. Pools that nobody uses are in the
    first part.
    """
    if problem.budget_per_hour is not None or len(problem.pipelines) < 2:
        return [problem]
    part_of: dict[PoolName, int] = {}  # the number of the first pipeline of the part
    members: dict[int, list[Pipeline]] = {}
    for number, pipeline in enumerate(problem.pipelines):
        used = {placement.pool for stage in pipeline.stages for placement in stage.placements}
        met = sorted({part_of[pool] for pool in used if pool in part_of})
        first = met[0] if met else number
        members[first] = [p for part in met for p in members.pop(part)] + [pipeline]
        part_of = {pool: first if part in met else part for pool, part in part_of.items()} | dict.fromkeys(used, first)
    if len(members) == 1:
        return [problem]
    return [
        replace(
            problem,
            pipelines=tuple(group),
            pools={
                name: pool
                for name, pool in problem.pools.items()
                if part_of.get(name, 0) == part  # the first pipeline is in the part of that number
            },
            search_effort=None
            if problem.search_effort is None
            else problem.search_effort * len(group) // len(problem.pipelines),
        )
        for part, group in members.items()
    ]


def joined(problem: Problem, plans: Sequence[Plan]) -> Plan:
    """Return the plan for `problem` from those of its parts."""
    if len(plans) == 1:
        return plans[0]
    answers = {answer.key: answer for plan in plans for answer in plan.pipelines}
    bounds = [plan.lower_bound_per_hour for plan in plans]
    known = [bound for bound in bounds if bound is not None]
    return Plan(
        pipelines=tuple(answers[pipeline.key] for pipeline in problem.pipelines),
        pools=tuple(sorted((pool for plan in plans for pool in plan.pools), key=lambda pool: pool.name)),
        cost_per_hour=fsum(plan.cost_per_hour for plan in plans),
        billed_per_hour=fsum(plan.billed_per_hour for plan in plans),
        lower_bound_per_hour=fsum(known) if len(known) == len(bounds) else None,
        packing=_packing(plans),
        pool_prices={name: price for plan in plans for name, price in plan.pool_prices.items()},
    )


def _packing(plans: Sequence[Plan]) -> Packing | None:
    """Return the packings of the parts that have one, beside the plans of those that have none."""
    if all(plan.packing is None for plan in plans):
        return None
    replicas: dict[tuple[PipelineKey, StageName, PoolName], int] = {}
    for plan in plans:
        replicas |= (
            plan.packing.replicas
            if plan.packing is not None
            else {(answer.key, *key): count for answer in plan.pipelines for key, count in answer.replicas().items()}
        )
    found = [plan.packing or plan for plan in plans]
    return Packing(
        replicas=replicas,
        cost_per_hour=fsum(one.cost_per_hour for one in found),
        billed_per_hour=fsum(one.billed_per_hour for one in found),
    )
