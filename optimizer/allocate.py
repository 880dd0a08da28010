"""From the question to the answer: `allocate` is the one entry to the search.

Objectives in this order: never above a budget or a pool's limit; every pipeline within its SLA; least cost. Where the
second is impossible, pipelines are served by priority, as much as fits within the SLA.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from optimizer.advice import advise
from optimizer.case import TOLERANCE, Case, Choice
from optimizer.fleet import Answer, Fleet, Remembered, Target, by_priority, own_budget
from optimizer.greedy import steepest
from optimizer.model import Composition, Pipeline, PipelineKey, PoolName, Problem, Stage, StageName
from optimizer.occupancy import whole_instances
from optimizer.options import StageOptions, Supply, supply_of
from optimizer.packing import Packable, Pools, cheaper_packing
from optimizer.plan import Packing, PipelinePlan, PlacementPlan, PlacementStep, Plan, PoolPlan, StagePlan, Step
from optimizer.replay import ROUNDS, replay, tighter_target_s
from optimizer.shortage import Share, share_out

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_PACKING_WORK = 1_000_000
_PLANS: Remembered[tuple[PipelinePlan, tuple[StageOptions, ...]]] = Remembered(2048)


def allocate(
    problem: Problem,
    *,
    shadow_prices: bool = False,
    advice: bool = False,
    previous: Plan | None = None,
    replayed: bool = True,
) -> Plan:
    """Return the plan for all pipelines of `problem`.

    It depends on nothing but the values of its arguments; the order of pipelines and pools does not matter, nor that of
    stages beyond what `after` says. `previous` is a plan for a similar problem: its pool prices save time.

    With `Composition.RSS` the demand of each pipeline is replayed on its plan; where that misses the SLA, it is planned
    anew for a tighter target, at last by `Composition.SUM`. The bound is then that of the tightened targets: a cheaper
    plan that passed a replay by luck is not excluded. `replayed=False` leaves the replay out: for what is compared
    with other searches over the same tables.

    `shadow_prices` asks what one more instance of each pool would save, at the price of one more search per pool;
    `advice` fills the answers for pipelines that cannot be served whole.
    """
    supply = supply_of(problem)
    start = None if previous is None else _unit_prices(previous, supply)
    targets: dict[PipelineKey, Target] = {}
    verify = replayed and problem.composition is Composition.RSS
    for attempt in range(ROUNDS + 2 if verify else 1):
        fleet = Fleet(problem, supply, pool_prices=start, targets=targets)
        shares = _shares(fleet)
        start = fleet.pool_prices
        late = _late(problem, shares) if verify else {}
        tighter = {
            key: _tightened(problem.composition, targets.get(key), sla_s, took, last=attempt >= ROUNDS)
            for key, (sla_s, took) in late.items()
            if targets.get(key) is None or targets[key].composition is problem.composition
        }
        if not tighter or attempt == ROUNDS + 1:
            break
        targets = {**targets, **tighter}
    plan = _plan(problem, fleet, shares, verify=verify)
    if advice and not plan.feasible:
        plan = _with_advice(plan, fleet, shares)
    return _with_shadow_prices(plan, fleet) if shadow_prices and plan.feasible else plan


def _shares(fleet: Fleet) -> Mapping[PipelineKey, Share]:
    """Return how every pipeline is served: whole at least cost where that can be, otherwise as much as fits."""
    limits, budget = fleet.supply.limits, _budget(fleet.problem)
    answers = fleet.together({pipeline.key: 1.0 for pipeline in fleet.problem.pipelines}, limits, budget)
    if answers is None:
        return share_out(fleet, limits, budget)
    return {key: Share(served=1.0, answer=answer, limit=None) for key, answer in answers.items()}


def _plan(problem: Problem, fleet: Fleet, shares: Mapping[PipelineKey, Share], *, verify: bool) -> Plan:
    supply = fleet.supply
    taken = np.sum([s.answer.use for s in shares.values() if s.answer], axis=0, initial=0)
    room = supply.limits - taken
    plans = tuple(_remembered(problem, pipeline, shares[pipeline.key], room) for pipeline in problem.pipelines)
    if verify:
        plans = tuple(
            replace(plan, replayed_latency_s=_replayed_s(pipeline, shares[pipeline.key]))
            for pipeline, plan in zip(problem.pipelines, plans, strict=True)
        )
    instances = {name: _instances(problem, plans, name) for name in supply.pools}
    answers = {key: share.answer for key, share in shares.items() if share.answer is not None and share.served >= 1}
    unit_prices = np.zeros(len(supply.pools)) if fleet.pool_prices is None else fleet.pool_prices
    return Plan(
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
        lower_bound_per_hour=fleet.lower_bound_per_hour(answers) if len(answers) == len(problem.pipelines) else None,
        packing=_packing(problem, supply, shares),
        pool_prices=dict(zip(supply.pools, (unit_prices * supply.units_per_instance).tolist(), strict=True)),
    )


def _budget(problem: Problem) -> float:
    return np.inf if problem.budget_per_hour is None else problem.budget_per_hour


def _unit_prices(plan: Plan, supply: Supply) -> Array:
    """Return the pool prices of `plan` for a unit of each pool, 0 for pools that it does not know."""
    prices = np.array([plan.pool_prices.get(name, 0.0) for name in supply.pools])
    return np.asarray(prices / supply.units_per_instance)


def _late(problem: Problem, shares: Mapping[PipelineKey, Share]) -> Mapping[PipelineKey, tuple[float, float | None]]:
    """Return the pipelines whose replay misses the SLA, each with the SLA and what the replay took."""
    late: dict[PipelineKey, tuple[float, float | None]] = {}
    for pipeline in problem.pipelines:
        share = shares[pipeline.key]
        if share.answer is None or share.served <= 0 or not share.answer.complete:
            continue
        if pipeline.demand.entry_rate_rps <= 0:
            continue
        took = _replayed_s(pipeline, share)
        if took is None or took > pipeline.sla.latency_s:
            late[pipeline.key] = pipeline.sla.latency_s, took
    return late


def _tightened(
    composition: Composition, before: Target | None, sla_s: float, took: float | None, *, last: bool
) -> Target:
    """Return what to plan for next, after a replay that took `took` seconds (None: it says nothing)."""
    if last or took is None:
        return Target(latency_s=sla_s, composition=Composition.SUM)
    target_s = sla_s if before is None else before.latency_s
    return Target(latency_s=tighter_target_s(target_s, sla_s, took), composition=composition)


def _replayed_s(pipeline: Pipeline, share: Share) -> float | None:
    """Return what the share of the demand that is served experiences in a replay, in seconds; None: nothing to see."""
    answer = share.answer
    if answer is None or share.served <= 0 or pipeline.demand.entry_rate_rps <= 0:
        return None
    placed = tuple(
        (stage.name, placement.pool, int(replicas), int(batch))
        for stage, table, row in zip(pipeline.stages, answer.case.tables, answer.choice, strict=True)
        for placement, replicas, batch in zip(stage.placements, table.replicas[row], table.batches[row], strict=True)
    )
    asked = pipeline if share.served >= 1 else replace(pipeline, demand=pipeline.demand.scaled(share.served))
    return _replay_s(asked, placed)


@lru_cache(maxsize=4096)
def _replay_s(pipeline: Pipeline, placed: tuple[tuple[StageName, PoolName, int, int], ...]) -> float | None:
    """Replay a plan once: a plan that has not changed need not be replayed again."""
    seen = replay(
        pipeline,
        {(stage, pool): replicas for stage, pool, replicas, _ in placed},
        {(stage, pool): batch for stage, pool, _, batch in placed},
    )
    return None if seen is None else seen.latency_s


def _packing(problem: Problem, supply: Supply, shares: Mapping[PipelineKey, Share]) -> Packing | None:
    """Return a plan that is billed less, where whole instances cost much more than the shares of them in use."""
    if not all(share.served >= 1 and share.answer is not None for share in shares.values()):
        return None
    packables = []
    for pipeline in by_priority(problem.pipelines):
        answer = shares[pipeline.key].answer
        assert answer is not None
        packables.append(_packable(pipeline, answer.case, answer.choice))
    return cheaper_packing(
        packables,
        Pools(
            prices_per_hour=supply.prices_per_hour,
            units_per_instance=supply.units_per_instance,
            limits=supply.limits,
        ),
        budget_per_hour=_budget(problem),
        work_limit=_PACKING_WORK if problem.work_limit is None else min(problem.work_limit, _PACKING_WORK),
    )


def _packable(pipeline: Pipeline, case: Case, choice: Choice) -> Packable:
    most = own_budget(pipeline)

    def keeps(rows: Choice) -> bool:
        return case.latency(rows) <= case.latency_s and case.cost_per_hour(rows) <= most + TOLERANCE

    return Packable(key=pipeline.key, tables=case.tables, rows=choice, keeps=keeps)


def _with_advice(plan: Plan, fleet: Fleet, shares: Mapping[PipelineKey, Share]) -> Plan:
    """Return the plan with what a person asks of each pipeline that is not served whole, in what the others leave."""
    taken = np.sum([s.answer.use for s in shares.values() if s.answer], axis=0, initial=0)
    left = fleet.supply.limits - taken
    plans = []
    for pipeline, answer in zip(fleet.problem.pipelines, plan.pipelines, strict=True):
        if answer.feasible:
            plans.append(answer)
            continue
        own = shares[pipeline.key].answer
        room = left if own is None else left + own.use
        money = _budget(fleet.problem) - plan.cost_per_hour + answer.cost_per_hour
        said = advise(fleet, pipeline, room, money)
        plans.append(
            replace(
                answer,
                required_budget_per_hour=said.required_budget_per_hour,
                best_latency_s=said.best_latency_s,
            )
        )
    return replace(plan, pipelines=tuple(plans))


def _with_shadow_prices(plan: Plan, fleet: Fleet) -> Plan:
    pools = []
    for pool in plan.pools:
        problem = fleet.problem
        more = replace(problem.pools[pool.name], instances=pool.limit + 1)
        problem = replace(problem, pools={**problem.pools, pool.name: more})
        supply = supply_of(problem)
        relaxed = Fleet(problem, supply, pool_prices=_unit_prices(plan, supply), targets=fleet.targets)
        served = relaxed.together({p.key: 1.0 for p in problem.pipelines}, supply.limits, _budget(problem))
        cost = plan.cost_per_hour if served is None else sum(answer.cost_per_hour for answer in served.values())
        pools.append(replace(pool, shadow_price_per_hour=max(0.0, plan.cost_per_hour - cost)))
    return replace(plan, pools=tuple(pools))


def _instances(problem: Problem, plans: tuple[PipelinePlan, ...], pool: PoolName) -> int:
    replicas = {(plan.key, *key): count for plan in plans for key, count in plan.replicas().items()}
    return whole_instances(
        (placement.per_instance, replicas[pipeline.key, stage.name, pool])
        for pipeline, stage, placement in problem.placements()
        if placement.pool == pool
    )


def _remembered(problem: Problem, pipeline: Pipeline, share: Share, left: Counts) -> PipelinePlan:
    """Return the plan of the pipeline, put into words once: in a large fleet most have not changed."""
    answer = share.answer
    if answer is None:
        return _pipeline_plan(problem, pipeline, share, left)
    tables = answer.case.tables
    most = np.max([table.use.max(axis=0, initial=0) for table in tables], axis=0)  # more room makes no difference
    key = (
        pipeline,
        share.served,
        share.limit,
        problem.composition,
        problem.switching_cost_per_hour,
        tuple(id(table) for table in tables),  # each the table's as long as it is kept
        answer.case.latency_s,
        answer.walk,
        np.minimum(left, most).tobytes(),
    )
    found = _PLANS.get(key)
    if found is None:
        found = _PLANS.put(key, (_pipeline_plan(problem, pipeline, share, left), tables))
    return found[0]


def _pipeline_plan(problem: Problem, pipeline: Pipeline, share: Share, left: Counts) -> PipelinePlan:
    answer = share.answer
    latency_s, next_step, moved = None, None, 0
    steps: tuple[Step, ...] = ()
    if answer is not None:
        if answer.case.composition is not problem.composition:  # planned more carefully than it is predicted
            answer = replace(answer, case=replace(answer.case, composition=problem.composition))
        moved = sum(
            abs(int(count) - placement.current)
            for table, row in zip(answer.case.tables, answer.choice, strict=True)
            for placement, count in zip(table.stage.placements, table.replicas[row], strict=True)
        )
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
        latency_error=None if latency_s is None else _error(stages),
        moved_replicas=moved,
        switching_cost_per_hour=problem.switching_cost_per_hour * moved,
    )


def _error(stages: tuple[StagePlan, ...]) -> float | None:
    """Return the stages' errors, weighed by their latencies: as if all erred the same way."""
    known = [(stage.latency_s, stage.latency_error) for stage in stages]
    total = sum(latency_s for latency_s, _ in known if latency_s is not None)
    if total <= 0 or any(latency_s is None or error is None for latency_s, error in known):
        return None
    return sum(latency_s * error for latency_s, error in known if latency_s is not None and error is not None) / total


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
    replicas, utilization, percentile_s, mean_s, error = [0] * len(batches), None, None, None, None
    if answer is not None:
        table, row = answer.case.tables[index], answer.choice[index]
        replicas, batches = table.replicas[row].tolist(), table.batches[row].tolist()
        if any(replicas):
            utilization, mean_s = float(table.utilization[row]), float(table.mean_s[row])
            percentile_s = float(table.percentile_s[row])
            error = None if table.latency_error is None else float(table.latency_error[row])
    return StagePlan(
        name=stage.name,
        rate_rps=rate,
        utilization=utilization,
        latency_s=percentile_s,
        mean_s=mean_s,
        latency_error=error,
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
