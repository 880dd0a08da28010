"""From the question to the answer: `allocate` is the one entry to the search.

Objectives in this order: never above a budget or a pool's limit; every pipeline within its SLA; least cost. Where the
second is impossible, pipelines are served by priority, as much as fits within the SLA.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from optimizer.fleet.components import joined, parts_of
from optimizer.fleet.fleet import Answer, Fleet, Target, by_priority, own_budget
from optimizer.model import Composition, Pipeline, PipelineKey, PoolName, Problem, Stage, StageName, whole_instances
from optimizer.overload.overload import Share, share_out
from optimizer.plan import Packing, PipelinePlan, PlacementPlan, PlacementStep, Plan, PoolPlan, StagePlan, Step
from optimizer.reports.advice import advise
from optimizer.reports.packing import Packable, Pools, cheaper_packing
from optimizer.runtime.cache import BoundedCache
from optimizer.search.greedy import steepest
from optimizer.search.subproblem import TOLERANCE, Choice, Subproblem
from optimizer.search.tables import StageOptions, Supply, supply_of
from optimizer.verification import ROUNDS, SUM_ROUNDS, Miss, cut_down, misses, tightened, verdict_of

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_PACKING_WORK = 1_000_000
_ATTEMPTS = ROUNDS + SUM_ROUNDS + 4  # what one pipeline may need, and some for others that it makes room for
_PLANS: BoundedCache[tuple[PipelinePlan, tuple[StageOptions, ...]]] = BoundedCache(256)


def allocate(
    problem: Problem,
    *,
    shadow_prices: bool = False,
    advice: bool = False,
    previous: Plan | None = None,
    shares_before: Mapping[PipelineKey, float] | None = None,
    replayed: bool = True,
) -> Plan:
    """Return the plan for all pipelines of `problem`.

    It depends on nothing but the values of its arguments; the order of pipelines and pools does not matter, nor that of
    stages beyond what `after` says. `previous` is a plan for a similar problem: its pool prices save time. So do
    `shares_before`, what was served of a similar demand, as shares: where less can be served whenever more can, they
    change nothing of the answer.

    With `Composition.RSS` the demand of each pipeline that comes near its SLA is replayed on its plan; where that
    misses the SLA, it is planned anew for a tighter target, at last by `Composition.SUM`. If even that misses by more
    than the replay's noise, less of the demand is served. The bound is then that of the tightened targets: a cheaper
    plan that passed a replay by luck is not excluded. `replayed=False` leaves the replay out: for what is compared with
    other searches over the same tables.

    Pipelines that share neither pools nor money are planned apart: what happens to one is nothing to the others.

    `shadow_prices` asks what one more instance of each pool would save, at the price of one more search per pool;
    `advice` fills the answers for pipelines that cannot be served whole.
    """
    plans = [
        _allocate(
            part,
            shadow_prices=shadow_prices,
            advice=advice,
            previous=previous,
            shares_before=shares_before,
            replayed=replayed,
        )
        for part in parts_of(problem)
    ]
    return joined(problem, plans)


def _allocate(
    problem: Problem,
    *,
    shadow_prices: bool,
    advice: bool,
    previous: Plan | None,
    shares_before: Mapping[PipelineKey, float] | None,
    replayed: bool,
) -> Plan:
    supply = supply_of(problem)
    start = None if previous is None else _unit_prices(previous, supply)
    fleet = Fleet(problem, supply, pool_prices=start, shares_before=shares_before)
    shares = _shares(fleet)
    verify = replayed and problem.composition is Composition.RSS
    if verify:
        fleet, shares = _verified(fleet, shares)
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
    occupied = np.sum([s.answer.use for s in shares.values() if s.answer], axis=0, initial=0)
    capacity = supply.limits - occupied
    plans = tuple(_remembered(problem, pipeline, shares[pipeline.key], capacity) for pipeline in problem.pipelines)
    if verify:
        plans = tuple(
            replace(
                plan,
                replayed_latency_s=None
                if (verdict := verdict_of(fleet, pipeline, share)) is None
                else verdict.latency_s,
                target_latency_s=None if (target := fleet.targets.get(plan.key)) is None else target.latency_s,
            )
            for pipeline, plan, share in (
                (pipeline, plan, shares[pipeline.key]) for pipeline, plan in zip(problem.pipelines, plans, strict=True)
            )
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


def _verified(fleet: Fleet, shares: Mapping[PipelineKey, Share]) -> tuple[Fleet, Mapping[PipelineKey, Share]]:
    """Return plans that pass their replays, and the fleet with the targets that they were planned for.

    Where no target helps, plans that miss by no more than the noise are returned if they serve all, otherwise plans
    for less of the demand: of the last targets that all could be planned for, or of the ones that were too tight for
    that, whichever serves more.
    """
    targets: dict[PipelineKey, Target] = {}
    rounds: dict[PipelineKey, int] = {}
    near: tuple[Fleet, Mapping[PipelineKey, Share]] | None = None
    last: dict[bool, tuple[Fleet, Mapping[PipelineKey, Share], Mapping[PipelineKey, Miss]]] = {}  # by: all whole
    for attempt in range(_ATTEMPTS):
        missed = misses(fleet, shares)
        late = {key: miss for key, miss in missed.items() if not miss.settled}
        whole = all(share.served >= 1 for share in shares.values())
        last[whole] = fleet, shares, late
        if whole and not late:
            near = fleet, shares
        for key, miss in missed.items():
            rounds[key] = rounds.get(key, 0) + 1
            target = tightened(targets.get(key), miss, rounds[key])
            if target is not None:
                targets[key] = target
        if attempt == _ATTEMPTS - 1 or targets == fleet.targets:
            break
        fleet = Fleet(
            fleet.problem,
            fleet.supply,
            pool_prices=fleet.pool_prices,
            targets=dict(targets),
            shares_before=fleet.shares_before,
        )
        shares = _shares(fleet)
    if near is not None:
        return near
    found = []
    for asked, given, unsettled in last.values():
        cut = {key: cut_down(asked, unsettled[key], one) if key in unsettled else one for key, one in given.items()}
        found.append((asked, cut))
    return max(found, key=lambda one: _served(one[0].problem, one[1]))


def _served(problem: Problem, shares: Mapping[PipelineKey, Share]) -> tuple[float, ...]:
    """Return how much is served of each priority, the highest first, to three digits."""
    priorities = sorted({pipeline.priority for pipeline in problem.pipelines}, reverse=True)
    return tuple(
        round(sum(shares[p.key].served for p in problem.pipelines if p.priority == priority), 3)
        for priority in priorities
    )


def _packing(problem: Problem, supply: Supply, shares: Mapping[PipelineKey, Share]) -> Packing | None:
    """Return a plan that is billed less, where whole instances cost much more than the shares of them in use."""
    if not all(share.served >= 1 and share.answer is not None for share in shares.values()):
        return None
    packables = []
    for pipeline in by_priority(problem.pipelines):
        answer = shares[pipeline.key].answer
        assert answer is not None
        packables.append(_packable(pipeline, answer.subproblem, answer.choice))
    return cheaper_packing(
        packables,
        Pools(
            prices_per_hour=supply.prices_per_hour,
            units_per_instance=supply.units_per_instance,
            limits=supply.limits,
        ),
        budget_per_hour=_budget(problem),
        search_effort=_PACKING_WORK if problem.search_effort is None else min(problem.search_effort, _PACKING_WORK),
    )


def _packable(pipeline: Pipeline, subproblem: Subproblem, choice: Choice) -> Packable:
    most = own_budget(pipeline)

    def keeps(rows: Choice) -> bool:
        return subproblem.latency(rows) <= subproblem.latency_s and subproblem.cost_per_hour(rows) <= most + TOLERANCE

    return Packable(key=pipeline.key, tables=subproblem.tables, rows=choice, keeps=keeps)


def _with_advice(plan: Plan, fleet: Fleet, shares: Mapping[PipelineKey, Share]) -> Plan:
    """Return the plan with what a person asks of each pipeline that is not served whole, in what the others leave."""
    occupied = np.sum([s.answer.use for s in shares.values() if s.answer], axis=0, initial=0)
    left = fleet.supply.limits - occupied
    plans = []
    for pipeline, answer in zip(fleet.problem.pipelines, plan.pipelines, strict=True):
        if answer.feasible:
            plans.append(answer)
            continue
        own = shares[pipeline.key].answer
        capacity = left if own is None else left + own.use
        money = _budget(fleet.problem) - plan.cost_per_hour + answer.cost_per_hour
        said = advise(fleet, pipeline, capacity, money)
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
    tables = answer.subproblem.tables
    most = np.max([table.use.max(axis=0, initial=0) for table in tables], axis=0)  # more room makes no difference
    key = (
        pipeline,
        share.served,
        share.limit,
        problem.composition,
        problem.switching_cost_per_hour,
        tuple(id(table) for table in tables),  # each the table's as long as it is kept
        answer.subproblem.latency_s,
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
        if answer.subproblem.composition is not problem.composition:  # planned more carefully than it is predicted
            answer = replace(answer, subproblem=replace(answer.subproblem, composition=problem.composition))
        moved = sum(
            abs(int(count) - placement.current)
            for table, row in zip(answer.subproblem.tables, answer.choice, strict=True)
            for placement, count in zip(table.stage.placements, table.replicas[row], strict=True)
        )
    if answer is not None and answer.complete:
        latency_s = answer.subproblem.latency(answer.choice)
        subproblem = answer.subproblem.within(left + answer.use)
        better = steepest(subproblem.priced([table.cost_per_hour for table in subproblem.tables]), answer.choice)
        next_step = None if better is None else _step(subproblem, answer.choice, better)
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
        table, row = answer.subproblem.tables[index], answer.choice[index]
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
        _step(answer.subproblem, before, after)
        for before, after in pairwise(answer.walk.direct(answer.subproblem).visited)
    )


def _step(subproblem: Subproblem, before: Choice, after: Choice) -> Step:
    """Return the change of one stage between two choices."""
    index = next(k for k, (old, new) in enumerate(zip(before, after, strict=True)) if old != new)
    table, old, new = subproblem.tables[index], before[index], after[index]
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
        latency_saved_s=subproblem.latency(before) - subproblem.latency(after),
        cost_added_per_hour=float(table.cost_per_hour[new] - table.cost_per_hour[old]),
    )
