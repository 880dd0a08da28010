"""From the question to the answer: `allocate` is the one entry to the search.

Objectives in this order: never above a budget or a pool's limit; every pipeline within its SLA; least cost. Where the
second is impossible, pipelines are served by priority, as much as fits within the SLA.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from optimizer.case import Case, Choice
from optimizer.fleet import Answer, Fleet
from optimizer.greedy import steepest
from optimizer.model import Pipeline, PipelineKey, PoolName, Problem, Stage, StageName
from optimizer.occupancy import whole_instances
from optimizer.options import supply_of
from optimizer.plan import PipelinePlan, PlacementPlan, PlacementStep, Plan, PoolPlan, StagePlan, Step
from optimizer.shortage import Share, share_out


def allocate(problem: Problem, *, shadow_prices: bool = False) -> Plan:
    """Return the plan for all pipelines of `problem`.

    It depends on nothing but the values of `problem`; the order of pipelines and pools does not matter, nor that of
    stages beyond what `after` says. `shadow_prices` asks what one more instance of each pool would save, at the price
    of one more search per pool.
    """
    supply = supply_of(problem)
    fleet = Fleet(problem, supply)
    budget = np.inf if problem.budget_per_hour is None else problem.budget_per_hour
    answers = fleet.together({pipeline.key: 1.0 for pipeline in problem.pipelines}, supply.limits, budget)
    if answers is not None:
        shares: Mapping[PipelineKey, Share] = {
            key: Share(served=1.0, answer=answer, limit=None) for key, answer in answers.items()
        }
    else:
        shares = share_out(fleet, supply.limits, budget)
    taken = np.sum([s.answer.use for s in shares.values() if s.answer], axis=0, initial=0)
    room = supply.limits - taken
    plans = tuple(_pipeline_plan(pipeline, shares[pipeline.key], room) for pipeline in problem.pipelines)
    instances = {name: _instances(problem, plans, name) for name in supply.pools}
    plan = Plan(
        pipelines=plans,
        pools=tuple(
            PoolPlan(
                name=name,
                instances=instances[name],
                limit=problem.pools[name].instances,
                shadow_price_per_hour=None,
            )
            for name in supply.pools
        ),
        cost_per_hour=sum(plan.cost_per_hour for plan in plans),
        billed_per_hour=sum(problem.pools[name].price_per_hour * instances[name] for name in supply.pools),
        lower_bound_per_hour=None if answers is None else fleet.lower_bound_per_hour(answers),
    )
    return _with_shadow_prices(plan, problem) if shadow_prices and plan.feasible else plan


def _with_shadow_prices(plan: Plan, problem: Problem) -> Plan:
    pools = []
    for pool in plan.pools:
        more = replace(problem.pools[pool.name], instances=pool.limit + 1)
        relaxed = allocate(replace(problem, pools={**problem.pools, pool.name: more}))
        pools.append(replace(pool, shadow_price_per_hour=max(0.0, plan.cost_per_hour - relaxed.cost_per_hour)))
    return replace(plan, pools=tuple(pools))


def _instances(problem: Problem, plans: tuple[PipelinePlan, ...], pool: PoolName) -> int:
    replicas = {(plan.key, *key): count for plan in plans for key, count in plan.replicas().items()}
    return whole_instances(
        (placement.per_instance, replicas[pipeline.key, stage.name, pool])
        for pipeline, stage, placement in problem.placements()
        if placement.pool == pool
    )


def _pipeline_plan(pipeline: Pipeline, share: Share, left: np.ndarray) -> PipelinePlan:
    answer = share.answer
    latency_s, next_step = None, None
    steps: tuple[Step, ...] = ()
    if answer is not None and answer.complete:
        latency_s = answer.case.latency(answer.choice)
        case = answer.case.within(left + answer.use)
        better = steepest(case.priced([table.cost_per_hour for table in case.tables]), answer.choice)
        next_step = None if better is None else _step(case, answer.choice, better)
        steps = _steps(answer)
    stages = tuple(_stage_plan(pipeline, stage, index, share) for index, stage in enumerate(pipeline.stages))
    return PipelinePlan(
        key=pipeline.key,
        served_fraction=share.served,
        feasible=share.served >= 1,
        limited_by=share.limit,
        latency_s=latency_s,
        cost_per_hour=0.0 if answer is None else answer.cost_per_hour,
        bottleneck=_bottleneck(pipeline, stages, steps, next_step),
        stages=stages,
        steps=steps,
        next_step=next_step,
    )


def _bottleneck(
    pipeline: Pipeline, stages: tuple[StagePlan, ...], steps: tuple[Step, ...], next_step: Step | None
) -> StageName:
    """Where the next dollar goes; failing that, where the last went; failing that, where items spend most time."""
    if next_step is not None:
        return next_step.stage
    bought = [step for step in steps if step.latency_saved_s > 0]
    if bought:
        return bought[-1].stage
    return min(pipeline.stages, key=lambda s: (-(_by_name(stages)[s.name].latency_s or 0.0), s.name)).name


def _by_name(stages: tuple[StagePlan, ...]) -> Mapping[StageName, StagePlan]:
    return {stage.name: stage for stage in stages}


def _stage_plan(pipeline: Pipeline, stage: Stage, index: int, share: Share) -> StagePlan:
    rate = pipeline.demand.entry_rate_rps * pipeline.visit_ratios[stage.name] * share.served
    answer, batches = share.answer, [p.batch_sizes[0] for p in stage.placements]
    replicas, utilization, percentile_s, mean_s = [0] * len(batches), None, None, None
    if answer is not None:
        table, row = answer.case.tables[index], answer.choice[index]
        replicas, batches = table.replicas[row].tolist(), table.batches[row].tolist()
        if any(replicas):
            utilization, mean_s = float(table.utilization[row]), float(table.mean_s[row])
            percentile_s = float(table.percentile_s[row])
    return StagePlan(
        name=stage.name,
        rate_rps=rate,
        utilization=utilization,
        latency_s=percentile_s,
        mean_s=mean_s,
        placements=tuple(
            PlacementPlan(pool=placement.pool, replicas=count, batch=batch)
            for placement, count, batch in zip(stage.placements, replicas, batches, strict=True)
        ),
    )


def _steps(answer: Answer) -> tuple[Step, ...]:
    return tuple(
        _step(answer.case, before, after) for before, after in pairwise(answer.walk.direct(answer.case).visited)
    )


def _step(case: Case, before: Choice, after: Choice) -> Step:
    """Return the change of one stage between two choices."""
    index = next(k for k, (old, new) in enumerate(zip(before, after, strict=True)) if old != new)
    table, old, new = case.tables[index], before[index], after[index]
    changes = [
        PlacementStep(
            pool=placement.pool,
            before=int(table.replicas[old, k]),
            after=int(table.replicas[new, k]),
            batch=int(table.batches[new, k]),
        )
        for k, placement in enumerate(table.stage.placements)
        if table.replicas[old, k] != table.replicas[new, k]
        or (table.replicas[new, k] and table.batches[old, k] != table.batches[new, k])
    ]
    return Step(
        stage=table.stage.name,
        changes=tuple(changes),
        latency_saved_s=case.latency(before) - case.latency(after),
        cost_added_per_hour=float(table.cost_per_hour[new] - table.cost_per_hour[old]),
    )
