"""Decide the plan for all pipelines: `allocate` is the function that starts every search.

Objectives in this order: never exceed a budget or a pool's limit; serve every pipeline within its SLA; least cost.
Where not every pipeline can be served in full, pipelines are served by priority, as much of each as fits within its
SLA.

Lower bound, packing, shadow prices and advice are for people only. `optimizer.reports.certificate` computes them from
an `Allocation`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import fsum

import numpy as np
from numpy.typing import NDArray

from optimizer.billing import planned_costs_per_hour
from optimizer.fleet.components import components_of, joined
from optimizer.fleet.fleet import Answer, Fleet, Target
from optimizer.fleet.shared_stages import Settled, settle
from optimizer.fleet.whole_instances import packed
from optimizer.latency.predict import stage_load
from optimizer.model import (
    Composition,
    Mixing,
    Pipeline,
    PipelineKey,
    PoolName,
    Problem,
    Stage,
    StageName,
    whole_instances,
)
from optimizer.overload.overload import Share, share_out
from optimizer.overload.tightening import TRIES, Tightening
from optimizer.plan import (
    Limit,
    PipelinePlan,
    PlacementPlan,
    PlacementStep,
    Plan,
    PoolPlan,
    ReplayCheck,
    StagePlan,
    Step,
)
from optimizer.runtime.cache import BoundedCache
from optimizer.runtime.effort import REPLAY
from optimizer.search.greedy import steepest
from optimizer.search.subproblem import TOLERANCE, Choice, Subproblem
from optimizer.search.tables import supply_of
from optimizer.verification import (
    LOOSENINGS,
    MARGIN,
    ROUNDS,
    SUM_ROUNDS,
    Miss,
    cut_down,
    loosened,
    misses,
    replayed_share,
    tightened,
    verdict_of,
)

Counts = NDArray[np.int64]

_ATTEMPTS = ROUNDS + SUM_ROUNDS + 4  # the rounds of one pipeline, and some for others that its plan displaces
_PLANS: BoundedCache[PipelinePlan] = BoundedCache(256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """The result for pipelines planned together: the `Fleet` that was searched, each pipeline's share, and the plan.

    Costs in `plan` are those of the replicas' shares of instances, also for `Basis.INSTANCES`. `least_per_hour` is a
    proven lower bound of what these pipelines pay for whole instances, in USD per hour, None where none was proven.
    `refused` has the later targets that replays refused. `tightened` says that the fleet was searched with smaller
    budgets than the real ones. `bounded_by` is the problem with more choices for which a lower bound must hold; None:
    that of the fleet.
    """

    fleet: Fleet
    shares: Mapping[PipelineKey, Share]
    plan: Plan
    refused: Mapping[PipelineKey, float]
    least_per_hour: float | None = None
    tightened: bool = False
    bounded_by: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The plan for all pipelines, and the components from which it was joined, which reports need.

    `relaxed` has problems whose costs together are at most that of the cheapest plan, where stages are shared between
    pipelines: bounds of the components do not hold there, because these have the chosen replicas of such stages fixed.
    """

    plan: Plan
    components: tuple[Component, ...]
    relaxed: tuple[Problem, ...] = ()


def allocate(
    problem: Problem, *, shares_before: Mapping[PipelineKey, float] | None = None, replayed: bool = True
) -> Plan:
    """Return the plan for all pipelines of `problem`, without the fields that reports fill.

    The plan depends only on the values of the arguments, not on the order of pipelines, pools and stages.
    `shares_before` are the shares (0–1) served of a similar demand; the search for shares starts from them, which saves
    time. They do not change the plan where every share smaller than a servable one can be served too.

    With `Composition.RSS` each plan whose latency comes near the SLA is checked by a replay of the demand. Where the
    replay misses the SLA, the pipeline is planned again for a tighter target, in the last rounds by `Composition.SUM`.
    If that plan also misses, by more than the replay's noise, less of the demand is served. `replayed=False` leaves out
    the replay, to compare the plan with other searches over the same tables.

    Pipelines that share neither pools nor a budget are planned separately and do not affect each other. A stage that
    several pipelines share gets one number of replicas, with which each of them meets its SLA
    (`optimizer.fleet.shared_stages`).
    """
    return allocation_of(problem, shares_before=shares_before, replayed=replayed).plan


def allocation_of(
    problem: Problem, *, shares_before: Mapping[PipelineKey, float] | None = None, replayed: bool = True
) -> Allocation:
    """Return the plan of `allocate`, together with the shares and fleets from which reports can be made."""
    if problem.counts_instances:
        return _of_whole_instances(problem, shares_before, replayed)
    return _by_shares(problem, shares_before, replayed)


def _by_shares(problem: Problem, shares_before: Mapping[PipelineKey, float] | None, replayed: bool) -> Allocation:
    """Return the allocation whose shares of instances cost least and keep the budgets."""
    settled = settle(
        problem,
        lambda each: _apart(each, shares_before, replayed).plan,
        lambda each: _apart(each, shares_before, False).plan,
    )
    if settled is None:
        return _apart(problem, shares_before, replayed)
    components = tuple(
        component for part in settled.parts for component in _apart(part, shares_before, replayed).components
    )
    return Allocation(plan=_settled_plan(problem, settled, components), components=components, relaxed=settled.relaxed)


def _apart(problem: Problem, shares_before: Mapping[PipelineKey, float] | None, replayed: bool) -> Allocation:
    """Return the plan of a problem in which no choice of replicas for a stage concerns several pipelines."""
    components = tuple(_component(part, shares_before, replayed) for part in components_of(problem))
    return Allocation(plan=joined(problem, [component.plan for component in components]), components=components)


def _of_whole_instances(
    problem: Problem, shares_before: Mapping[PipelineKey, float] | None, replayed: bool
) -> Allocation:
    """Return an allocation that keeps the budgets on the basis of each pipeline, where instances count as a whole.

    It is found by shares of instances, then rows are exchanged while less is paid. Where a budget is exceeded, the
    search is repeated with a smaller one. Of the allocations that keep all budgets, the one that serves most is
    returned, of equal ones the cheapest. Where pipelines share stages, no rows are exchanged.
    """
    tightening = Tightening(problem=problem)
    best: tuple[tuple[tuple[float, ...], float], Allocation] | None = None
    for attempt in range(1, TRIES + len(problem.pipelines) + 2):  # each withdrawal concerns one pipeline more
        found = _by_shares(tightening.tightened(), shares_before, replayed)
        if not found.relaxed and not any(stage.sharing for p in problem.pipelines for stage in p.stages):
            components = tuple(_packed(component, problem, replayed) for component in found.components)
            found = Allocation(plan=joined(problem, [own.plan for own in components]), components=components)
        if tightening.budgets:
            found = replace(found, components=tuple(replace(own, tightened=True) for own in found.components))
        shares = {plan.key: plan.cost_per_hour for plan in found.plan.pipelines}
        plan = _billed(problem, found.plan, tightening.withdrawn)
        costs = {own.key: own.cost_per_hour for own in plan.pipelines}
        excesses = tightening.excesses(costs)
        if not excesses:
            short = frozenset(own.key for own in plan.pipelines if not own.feasible)
            value = _served_of(problem, {own.key: own.served_fraction for own in plan.pipelines}), -plan.cost_per_hour
            if best is None or value > best[0]:
                best = value, replace(found, plan=plan)
            if attempt >= TRIES or not tightening.raise_for(short):
                break
        elif attempt < TRIES:
            tightening.lower(excesses, shares)
        elif best is not None:
            break
        else:
            tightening.withdraw(excesses, costs)
    assert best is not None, "a plan without replicas costs nothing"
    return best[1]


def _packed(component: Component, problem: Problem, replayed: bool) -> Component:
    """Return the component with rows exchanged so that less is paid for whole instances within the caps of `problem`.

    Rows whose latency misses the SLA in its replay are not taken: the exchange is repeated with a tighter limit for
    that pipeline. The component is unchanged where that does not help either.
    """
    fleet, before = component.fleet, component.shares
    caps = {pipeline.key: pipeline for pipeline in problem.pipelines}
    own = replace(
        fleet.problem,
        pipelines=tuple(caps[pipeline.key] for pipeline in fleet.problem.pipelines),
        budget_per_hour=problem.budget_per_hour,
        budgets=tuple(each for each in problem.budgets if each.name in fleet.budgets.names),
    )
    answers = {key: share.answer for key, share in before.items() if share.answer is not None}
    if not answers:
        return component
    verify = replayed and problem.composition is Composition.RSS
    limits_s: dict[PipelineKey, float] = {}
    for _ in range(ROUNDS):
        exchanged = packed(fleet, answers, own, limits_s)
        shares = {key: replace(share, answer=exchanged.answers.get(key)) for key, share in before.items()}
        changed = {key for key, answer in answers.items() if exchanged.answers[key].choice != answer.choice}
        missed = misses(fleet, shares) if verify and changed else {}
        late = {key: miss for key, miss in missed.items() if key in changed and not miss.settled}
        if not late:
            least = exchanged.least_per_hour if all(share.served >= 1 for share in shares.values()) else None
            plan = _plan(fleet, shares, verify=verify, refused=component.refused)
            return replace(component, shares=shares, plan=plan, least_per_hour=least)
        for key, miss in late.items():
            limit_s = min(answers[key].subproblem.latency_s, limits_s.get(key, np.inf))
            over = 2.0 if miss.replayed is None else miss.replayed.latency_s / miss.pipeline.sla.latency_s
            limits_s[key] = limit_s * MARGIN / max(over, 1.0)
    return component


def _billed(problem: Problem, plan: Plan, withdrawn: Mapping[PipelineKey, Limit]) -> Plan:
    """Return `plan` with the costs of the pipelines on their own bases, and the bill at the prices of the nodes.

    `withdrawn` has what limits the pipelines that were withdrawn.
    """
    costs = planned_costs_per_hour(problem, plan.pipelines)
    return replace(
        plan,
        pipelines=tuple(
            replace(own, cost_per_hour=costs[own.key], limited_by=withdrawn.get(own.key, own.limited_by))
            for own in plan.pipelines
        ),
        cost_per_hour=fsum(costs.values()),
        billed_per_hour=fsum(problem.pools[pool.name].bill_per_hour(pool.instances) for pool in plan.pools),
    )


def _settled_plan(problem: Problem, settled: Settled, components: Sequence[Component]) -> Plan:
    """Return the plan of `problem`, joined from the `components` of the parts in which it was planned."""
    found = {plan.key: plan for component in components for plan in component.plan.pipelines}
    for key, limit in settled.limits.items():
        served = settled.served[key] * found[key].served_fraction
        found[key] = replace(found[key], served_fraction=served, feasible=False, limited_by=limit)
    plans = tuple(found[pipeline.key] for pipeline in problem.pipelines)
    instances = {name: _instances(problem, plans, name) for name in problem.pools}
    return Plan(
        pipelines=plans,
        pools=tuple(
            PoolPlan(
                name=name,
                instances=instances[name],
                limit=problem.pools[name].instances,
                shadow_price_per_hour=None,
            )
            for name in sorted(problem.pools)
        ),
        cost_per_hour=sum(plan.cost_per_hour for plan in plans),
        billed_per_hour=sum(problem.pools[name].price_per_hour * instances[name] for name in problem.pools),
        lower_bound_per_hour=None,
    )


def fleet_budget(problem: Problem) -> float:
    """Return the budget of all pipelines together, in USD per hour; infinite where there is no limit."""
    return np.inf if problem.budget_per_hour is None else problem.budget_per_hour


def _component(problem: Problem, shares_before: Mapping[PipelineKey, float] | None, replayed: bool) -> Component:
    """Return the plan of pipelines that are planned together; placements are mixed freely only where that is better.

    Plans with and without free mixes are searched for: replays, and the search of a large fleet, may find a cheaper
    plan among fewer. Of equal ones it is that without.
    """
    plain = _overflowing(problem)
    found = _searched(plain, shares_before, replayed)
    if plain is problem:
        return found
    if not any(found.fleet.exhausted(pipeline) for pipeline in problem.pipelines):
        mixed = _searched(problem, shares_before, replayed)
        if _worth(problem, mixed.plan) > _worth(problem, found.plan):
            return mixed
    return replace(found, bounded_by=problem)


def _overflowing(problem: Problem) -> Problem:
    """Return the problem without free mixes, the same where there are none."""
    if all(stage.mixing is Mixing.OVERFLOW for pipeline in problem.pipelines for stage in pipeline.stages):
        return problem
    return replace(
        problem,
        pipelines=tuple(
            replace(pipeline, stages=tuple(replace(stage, mixing=Mixing.OVERFLOW) for stage in pipeline.stages))
            for pipeline in problem.pipelines
        ),
    )


def _worth(problem: Problem, plan: Plan) -> tuple[tuple[float, ...], float]:
    """Return what is served of each priority, and the negative cost with that of switching: the greater is better."""
    cost = fsum(own.cost_per_hour + own.switching_cost_per_hour for own in plan.pipelines)
    return _served_of(problem, {own.key: own.served_fraction for own in plan.pipelines}), round(-cost, 9)


def _searched(problem: Problem, shares_before: Mapping[PipelineKey, float] | None, replayed: bool) -> Component:
    fleet = Fleet(problem, supply_of(problem), shares_before=shares_before)
    shares = _shares(fleet)
    verify = replayed and problem.composition is Composition.RSS
    refused: Mapping[PipelineKey, float] = {}
    if verify:
        fleet, shares, refused = _loosened(*_verified(fleet, shares))
    plan = _plan(fleet, shares, verify=verify, refused=refused)
    return Component(fleet=fleet, shares=shares, plan=plan, refused=refused)


def without_budgets(fleet: Fleet, pipeline: Pipeline, capacity: Counts) -> Answer | None:
    """Return how `pipeline` of the fleet is served in full within `capacity`, whatever it costs; None if it cannot be.

    It is the plan that `allocate` would make for it alone: targets of plans that serve less do not hold for it.
    """
    problem = replace(
        fleet.problem,
        pipelines=(replace(pipeline, budget_per_hour=None),),
        budget_per_hour=None,
        budgets=(),
        switching_cost_per_hour=0.0,  # no money of a budget
    )
    alone = Fleet(problem, replace(fleet.supply, limits=capacity))
    if alone.together({pipeline.key: 1.0}, capacity, np.inf) is None:
        return None
    shares = _shares(alone)
    if problem.composition is Composition.RSS:
        _, shares, _ = _loosened(*_verified(alone, shares))
    share = shares[pipeline.key]
    return share.answer if share.served >= 1 else None


def _shares(fleet: Fleet) -> Mapping[PipelineKey, Share]:
    """Return how every pipeline is served: in full at least cost where possible, otherwise as much as fits."""
    limits, budget = fleet.supply.limits, fleet_budget(fleet.problem)
    answers = fleet.together({pipeline.key: 1.0 for pipeline in fleet.problem.pipelines}, limits, budget)
    if answers is None:
        return share_out(fleet, limits, budget)
    return {key: Share(served=1.0, answer=answer, limit=None) for key, answer in answers.items()}


def _plan(
    fleet: Fleet, shares: Mapping[PipelineKey, Share], *, verify: bool, refused: Mapping[PipelineKey, float]
) -> Plan:
    problem, supply = fleet.problem, fleet.supply
    occupied = np.sum([s.answer.use for s in shares.values() if s.answer], axis=0, initial=0)
    capacity = supply.limits - occupied
    plans = tuple(_remembered(problem, pipeline, shares[pipeline.key], capacity) for pipeline in problem.pipelines)
    if verify:
        plans = tuple(
            _with_replay(fleet, pipeline, shares[pipeline.key], plan, refused.get(pipeline.key))
            for pipeline, plan in zip(problem.pipelines, plans, strict=True)
        )
    plans = tuple(
        replace(plan, replay=replace(plan.replay, left_out=True)) if fleet.exhausted(pipeline) else plan
        for pipeline, plan in zip(problem.pipelines, plans, strict=True)
    )
    instances = {name: _instances(problem, plans, name) for name in supply.pools}
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
        lower_bound_per_hour=None,
    )


def _with_replay(
    fleet: Fleet, pipeline: Pipeline, share: Share, plan: PipelinePlan, refused_s: float | None
) -> PipelinePlan:
    """Return the plan with the latency of its replay, and the target that took the place of the SLA."""
    verdict, target = verdict_of(fleet, pipeline, share), fleet.targets.get(plan.key)
    return replace(
        plan,
        latency_s=plan.latency_s if verdict is None else verdict.latency_s,
        latency_error=plan.latency_error if verdict is None else verdict.error,
        replay=ReplayCheck(
            latency_s=None if verdict is None else verdict.latency_s,
            composed_s=plan.latency_s,
            target_latency_s=None if target is None else target.latency_s,
            refused_target_s=refused_s,
        ),
    )


def _verified(fleet: Fleet, shares: Mapping[PipelineKey, Share]) -> tuple[Fleet, Mapping[PipelineKey, Share]]:
    """Return a fleet with the targets that replays made necessary, and shares of its pipelines that pass their replays.

    Where no targets help, the last plans that serve everything and miss by no more than the replays' noise are
    returned. Without such plans less of the demand is served. There are two candidates for that: the last plans that
    served everything and the last that did not. The one that serves more after the cut is returned.
    """
    targets: dict[PipelineKey, Target] = {}
    rounds: dict[PipelineKey, int] = {}
    near: tuple[Fleet, Mapping[PipelineKey, Share]] | None = None
    last: dict[bool, tuple[Fleet, Mapping[PipelineKey, Share], Mapping[PipelineKey, Miss]]] = {}  # by: all in full
    for attempt in range(_ATTEMPTS):
        missed = misses(fleet, shares)
        late = {key: miss for key, miss in missed.items() if not miss.settled}
        in_full = all(share.served >= 1 for share in shares.values())
        last[in_full] = fleet, shares, late
        if in_full and not late:
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
    candidates = []
    for searched, planned, unsettled in last.values():
        cut = {
            key: cut_down(searched, unsettled[key], share) if key in unsettled else share
            for key, share in planned.items()
        }
        candidates.append((searched, cut))
    return max(candidates, key=lambda candidate: _served(candidate[0].problem, candidate[1]))


def _loosened(
    fleet: Fleet, shares: Mapping[PipelineKey, Share]
) -> tuple[Fleet, Mapping[PipelineKey, Share], Mapping[PipelineKey, float]]:
    """Return a fleet with later targets, plans that serve more or cost less, and the targets that replays refused.

    The composed latency is the longer the more it errs on the safe side. Where the replays of plans leave a part of the
    SLA unused, the plans are made again for targets that are later by as much. Replays decide which are kept: no plan
    is taken whose replay, with its half-width, exceeds the SLA. In the last round, pipelines whose later target was
    refused keep their present one, or each would keep all others from saving.
    """
    problem, value = fleet.problem, _value(fleet, shares)
    refused: dict[PipelineKey, float] = {}
    for turn in range(LOOSENINGS):
        targets = dict(fleet.targets)
        for pipeline in problem.pipelines:
            if pipeline.key in refused and turn == LOOSENINGS - 1 and len(problem.pipelines) > 1:
                continue
            target = _later(fleet, pipeline, shares[pipeline.key], refused.get(pipeline.key, np.inf))
            if target is not None:
                targets[pipeline.key] = target
        if targets == fleet.targets:
            break
        later = Fleet(
            problem,
            fleet.supply,
            pool_prices=fleet.pool_prices,
            targets=targets,
            shares_before=fleet.shares_before,
        )
        found = _shares(later)
        late = {p.key for p in problem.pipelines if not _keeps(later, p, found[p.key])}
        for key in late & targets.keys():
            refused[key] = targets[key].latency_s
        if not late and _value(later, found) >= value:  # the same plan: none is cheaper up to the later target
            fleet, shares, value = later, found, _value(later, found)
        elif not late:
            break
    return fleet, shares, refused


def _later(fleet: Fleet, pipeline: Pipeline, share: Share, refused_s: float) -> Target | None:
    """Return the later target to try for a pipeline, as `loosened`; None where there is none."""
    answer, target = share.answer, fleet.targets.get(pipeline.key)
    account = fleet.account(pipeline)
    if answer is None or share.served <= 0 or not answer.complete:
        return None
    if account is not None and not account.spares((LOOSENINGS + 1) * REPLAY):
        return None
    if target is not None and target.composition is not Composition.RSS:
        return None
    least = sum(float(table.cost_per_hour.min()) for table in answer.subproblem.tables)
    if share.served >= 1 and answer.cost_per_hour <= least + TOLERANCE:  # no plan is cheaper
        return None
    replayed = replayed_share(fleet, pipeline, share)
    if replayed is None:
        return None
    composed_s = answer.subproblem.latency(answer.choice)
    return loosened(target, composed_s, replayed, pipeline.sla.latency_s, refused_s)


def _keeps(fleet: Fleet, pipeline: Pipeline, share: Share) -> bool:
    """Return whether the plan keeps the SLA in its replay; plans that serve nothing do."""
    answer = share.answer
    if answer is None or share.served <= 0 or not answer.complete or pipeline.demand.entry_rate_rps <= 0:
        return True
    replayed = replayed_share(fleet, pipeline, share)
    return replayed is not None and replayed.keeps(pipeline.sla.latency_s)


def _value(fleet: Fleet, shares: Mapping[PipelineKey, Share]) -> tuple[tuple[float, ...], float]:
    """Return what is served of each priority, and the negative cost: the greater of two plans is the better one."""
    cost = fsum(share.answer.cost_per_hour for share in shares.values() if share.answer is not None)
    return _served(fleet.problem, shares), round(-cost, 9)


def _served(problem: Problem, shares: Mapping[PipelineKey, Share]) -> tuple[float, ...]:
    return _served_of(problem, {key: share.served for key, share in shares.items()})


def _served_of(problem: Problem, served: Mapping[PipelineKey, float]) -> tuple[float, ...]:
    """Return the sum of the shares served for each priority, the highest priority first, rounded to three digits."""
    priorities = sorted({pipeline.priority for pipeline in problem.pipelines}, reverse=True)
    return tuple(
        round(sum(served[p.key] for p in problem.pipelines if p.priority == priority), 3) for priority in priorities
    )


def _instances(problem: Problem, plans: tuple[PipelinePlan, ...], pool: PoolName) -> int:
    replicas = {(plan.key, *key): count for plan in plans for key, count in plan.replicas().items()}
    return whole_instances(
        (placement.per_instance, replicas[pipeline.key, stage.name, placement.name])
        for pipeline, stage, placement in problem.placements()
        if placement.pool == pool and not stage.borrowed
    )


def _remembered(problem: Problem, pipeline: Pipeline, share: Share, left: Counts) -> PipelinePlan:
    """Return the plan of the pipeline, cached: in a large fleet most plans have not changed since the last cycle."""
    answer = share.answer
    if answer is None:
        return _pipeline_plan(problem, pipeline, share, left)
    tables = answer.subproblem.tables
    most = np.max([table.use.max(axis=0, initial=0) for table in tables], axis=0)  # more capacity makes no difference
    key = (
        pipeline,
        share.served,
        share.limit,
        problem.composition,
        problem.switching_cost_per_hour,
        tuple(table.digest for table in tables),
        answer.subproblem.latency_s,
        answer.walk,
        np.minimum(left, most).tobytes(),
    )
    known = _PLANS.get(key)
    return known or _PLANS.put(key, _pipeline_plan(problem, pipeline, share, left))


def _pipeline_plan(problem: Problem, pipeline: Pipeline, share: Share, left: Counts) -> PipelinePlan:
    answer = share.answer
    latency_s, next_step, moved = None, None, 0
    steps: tuple[Step, ...] = ()
    if answer is not None:
        if (
            answer.subproblem.composition is not problem.composition
        ):  # planned for a tighter target: shown by the problem's own composition
            answer = replace(answer, subproblem=replace(answer.subproblem, composition=problem.composition))
        moved = sum(
            abs(count - placement.current)
            for table, row in zip(answer.subproblem.tables, answer.choice, strict=True)
            for placement, count, _ in table.placed(row)
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
        bottleneck=_bottleneck(stages, steps, next_step),
        stages=stages,
        steps=steps,
        next_step=next_step,
        latency_error=None if latency_s is None else _error(stages),
        moved_replicas=moved,
        switching_cost_per_hour=problem.switching_cost_per_hour * moved,
    )


def _error(stages: tuple[StagePlan, ...]) -> float | None:
    """Return the mean of the stages' errors, weighted by latency: it assumes that all stages err in one direction."""
    known = [(stage.latency_s, stage.latency_error) for stage in stages]
    total = sum(latency_s for latency_s, _ in known if latency_s is not None)
    if total <= 0 or any(latency_s is None or error is None for latency_s, error in known):
        return None
    return sum(latency_s * error for latency_s, error in known if latency_s is not None and error is not None) / total


def _bottleneck(stages: tuple[StagePlan, ...], steps: tuple[Step, ...], next_step: Step | None) -> StageName:
    """Return the stage of the next step, else of the last step that saved latency, else with the highest latency."""
    if next_step is not None:
        return next_step.stage
    bought = [step for step in steps if step.latency_saved_s > 0]
    if bought:
        return bought[-1].stage
    return min(stages, key=lambda stage: (-(stage.latency_s or 0.0), stage.name)).name


def _stage_plan(pipeline: Pipeline, stage: Stage, index: int, share: Share) -> StagePlan:
    rate = stage_load(pipeline.scaled(share.served), stage).rate_rps
    answer, placed = share.answer, [(p, 0, p.batch_sizes[0]) for p in stage.placements]
    utilization, percentile_s, mean_s, error = None, None, None, None
    if answer is not None:
        table, row = answer.subproblem.tables[index], answer.choice[index]
        placed = list(table.placed(row))
        if any(replicas for _, replicas, _ in placed):
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
        mixing_saves_per_hour=None if answer is None else _saved_by_mixing(answer, index),
        placements=tuple(
            PlacementPlan(
                name=own.name,
                replicas=count,
                batch=batch,
                wait_s=placement.batch_wait_s if own.batch_waits_s else None,
            )
            for own, (placement, count, batch) in zip(stage.placements, placed, strict=True)
        ),
    )


def _saved_by_mixing(answer: Answer, index: int) -> float | None:
    """Return `StagePlan.mixing_saves_per_hour` of the stage at position `index`."""
    subproblem, choice = answer.subproblem, answer.choice
    table, row = subproblem.tables[index], choice[index]
    if table.stage.mixing is not Mixing.FREE or table.stage.cascade is not None:
        return None
    in_use = np.count_nonzero(table.replicas > [p.min_replicas for p in table.stage.placements], axis=1)
    if in_use[row] < 2:
        return None
    enough = subproblem.latencies(choice, index) <= max(subproblem.latency_s, subproblem.latency(choice))
    alone = np.nonzero((in_use < 2) & enough & subproblem.fitting(choice, index))[0]
    saved = float(table.cost_per_hour[alone].min(initial=np.inf) - table.cost_per_hour[row])
    return saved if TOLERANCE < saved < np.inf else None


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
        PlacementStep(name=placement.name, before=count_before, after=count, batch=batch)
        for (placement, count_before, batch_before), (_, count, batch) in zip(
            table.placed(old), table.placed(new), strict=True
        )
        if count_before != count or (count and batch_before != batch)
    ]
    return Step(
        stage=table.stage.name,
        changes=tuple(changes),
        latency_saved_s=subproblem.latency(before) - subproblem.latency(after),
        cost_added_per_hour=float(table.cost_per_hour[new] - table.cost_per_hour[old]),
    )
