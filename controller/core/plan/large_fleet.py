"""The plan of a large fleet, in turns: each cycle plans the pipelines that need a new plan most.

A plan takes some ten milliseconds, so a cycle cannot plan thousands of pipelines. A pipeline keeps its plan until the
inputs of the plan change: its load or a measured time by more than `MOVED`, a declared value, the price of a pool, or
the nodes that are being removed. A cycle plans up to `PER_TURN` of the changed ones, counted by `plan_size`: those
outside their bounds first, then by the size of the change, the priority, and the age of the plan. Half of that is for
pipelines without a plan while there are any, so that these get one however much the others change. It also plans a few
pipelines with the oldest plans, a few that lack capacity, and the most important ones that lack it, so that no plan
becomes too old. Before its first turn, and after its stages or placements have changed, the plan of a pipeline is its
current replicas.

Each pipeline is planned alone, with the capacity and the money that the others leave. If pools and budgets suffice, the
result is the same as of planning all together. If a pool does not, the pipelines that lack capacity are planned
together with the least important pipelines that hold this capacity, up to `TOGETHER` pipelines. So are pipelines that
pay for whole instances and lack money, and the least important ones on a pool on which more is held than there is: one
alone must not give all of it.

Other budgets of several pipelines are divided in every cycle: first the minimum replicas of all, then the plans, both
by priority. A plan that no longer fits is made again at once, so the plans never cost more than the budgets. A plan
that lacked money is made again when more is left for it.

Pipelines that share a stage get their turn together.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from math import inf

from controller.core.assess.assessment import Assessment
from controller.core.assess.optimizer_input import NO_REPLICAS, billed_pool, keeping, optimizer_pool, with_floors
from controller.core.assess.shared import planned_with, served_cost_shares
from controller.core.bounds.stated import outside_limits
from controller.core.plan.fleet import FleetPlan, affordable, planned_together
from controller.core.plan.ledger import EPSILON, Holdings, PoolTotals, totals_of
from controller.core.state.decision import Decision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Planned, PoolState, Snapshot
from optimizer.allocate import allocate
from optimizer.billing import costs_per_hour, plan_charges
from optimizer.model import (
    Basis,
    GroupBudget,
    Mixing,
    Pipeline,
    PipelineKey,
    Placement,
    PlacementKey,
    Pool,
    PoolName,
    Problem,
    ServiceLaw,
    pool_of,
)
from optimizer.plan import Limit, LimitKind, PipelinePlan, PlacementPlan, StagePlan
from optimizer.runtime.effort import Effort

AT_ONCE = 250
"""The largest fleet that is planned as a whole in every cycle: the sum of its `plan_size`s."""
PER_TURN = 250
_PAIRS = 64  # of placements: several times those of a pipeline with four stages of two or three
_FREE = 4  # plans with free mixes take so many times as long
AGAIN_PER_TURN = 12
TOGETHER = 120
MOVED = 0.02
"""Relative change of a load or time above which a new plan is needed: far below the default tolerance."""
ARRIVED = 1.5 * MOVED
NEVER = 0.2
"""A pipeline that was never planned comes before those with a smaller relative change than this, and among the half of
a turn for such pipelines in any case."""

_MEASURED = ("service", "saturation_rps", "current")


def plan_in_turns(
    assessments: Sequence[Assessment],
    pools: Mapping[PoolName, PoolState],
    policy: Policy,
    now_s: float,
    budgets: Sequence[GroupBudget] = (),
    effort: Effort | None = None,
) -> FleetPlan:
    """Return a plan for every pipeline of a large fleet: a new one in its turn, otherwise the plan of its last turn."""
    by_key = {assessment.key: assessment for assessment in assessments}
    groups = sharing_groups(assessments)
    taken = totals_of((assessment.spec, assessment.held) for assessment in assessments)
    whole = {
        name: optimizer_pool(pool.spec, pool.limit_holding(taken.instances(name)) if pool.firm else pool.open_limit)
        for name, pool in pools.items()
    }
    pipelines = {
        assessment.key: keeping(
            planned_with(assessment.pipeline, assessment, groups.get(assessment.key, ())),
            affordable((assessment,), _beside(assessment, taken, pools) or whole, None).get(
                assessment.key, NO_REPLICAS
            ),
        )
        for assessment in assessments
    }
    planned = {
        assessment.key: own
        for assessment in assessments
        if (own := assessment.state.planned) is not None and _current(own.pipeline).keys() == assessment.current.keys()
    }
    turn = _with_partners(choose(assessments, pipelines, planned, pools), groups)
    holdings = Holdings(assessments, {key: own.plan.replicas() for key, own in planned.items()}, pools, budgets)

    def take(pipeline: Pipeline, plan: PipelinePlan, spare_per_hour: float | None = None) -> None:
        terms = terms_of(pipeline, pools)
        planned[plan.key] = Planned(
            pipeline=pipeline, plan=plan, terms=terms, at_s=now_s, spare_per_hour=spare_per_hour
        )

    capped = _capped(assessments, policy, budgets, groups)
    done: set[PipelineKey] = set()
    for key in turn.now:
        if key in done or key in capped:
            continue
        # Pipelines that share a stage are planned together.
        group = groups.get(key, (key,))
        done.update(group)
        # A pipeline that only reads workloads of others is planned as if it acted instead of these.
        owners = {owner for own in group for owner in by_key[own].owners & by_key.keys()} - set(group)
        replaced = [by_key[own] for own in (*group, *sorted(owners))]
        for each in replaced:
            holdings.release(each)
        plans = _planned_apart([pipelines[own] for own in group], holdings, holdings, pools, policy, effort)
        for member, plan in zip(group, plans, strict=True):
            take(pipelines[member], plan)
        for each in replaced:
            holdings.hold(each, planned[each.key].plan.replicas() if each.key in planned else {})
    short = [
        by_key[key] for key in turn.now if by_key[key].acting and key in planned and lacking(planned[key]) is not None
    ]
    if short or holdings.crowded:
        chosen = _with_givers(short, assessments, planned, budgets, holdings.crowded)
        partners = {own: by_key[own] for each in chosen for own in groups.get(each.key, (each.key,))}
        problem, together = planned_together(tuple(partners.values()), assessments, pools, policy, budgets, effort)
        for pipeline, plan in zip(problem.pipelines, together.pipelines, strict=True):
            take(pipeline, plan)
            holdings.hold(by_key[plan.key], plan.replicas())
        done.update(partners)
    money = Holdings(assessments, {}, pools, budgets)
    order = sorted(capped - turn.waiting, key=lambda key: (-by_key[key].spec.priority, key))
    units = list(dict.fromkeys(groups.get(key, (key,)) for key in order))
    for key in order:
        money.release(by_key[key])
    for unit in units:
        for key in unit:
            money.pay_for(by_key[key], pipelines[key].least())
        if not money.within(policy.budget_per_hour, unit):
            for key in unit:
                money.release(by_key[key])
    due, more = frozenset(turn.now) - done, 0
    for unit in units:
        fits = all(key in planned for key in unit)
        for key in unit:
            money.pay_for(by_key[key], planned[key].plan.replicas() if key in planned else {})
        fits = fits and money.within(policy.budget_per_hour, unit)
        for key in unit:
            money.release(by_key[key])
        spare = money.spare_per_hour(policy.budget_per_hour, unit)
        gains = fits and more < PER_TURN and any(_lacked_money(planned[key], spare) for key in unit)
        if gains or not fits or not due.isdisjoint(unit):
            more += gains
            for key in unit:
                holdings.release(by_key[key])
            plans = _planned_apart([pipelines[key] for key in unit], holdings, money, pools, policy, effort)
            for key, plan in zip(unit, plans, strict=True):
                take(pipelines[key], plan, spare)
                holdings.hold(by_key[key], plan.replicas())
        for key in unit:
            money.pay_for(by_key[key], planned[key].plan.replicas())
    standing = {key: standing_plan(by_key[key], pipelines[key], pools) for key in turn.waiting}
    return FleetPlan(
        plan=None,
        plans={**{key: own.plan for key, own in planned.items()}, **standing},
        pipelines={key: planned[key].pipeline if key in planned else pipeline for key, pipeline in pipelines.items()},
        planned=planned,
        waiting=turn.waiting,
        cost_shares=served_cost_shares(assessments, {key: own.plan for key, own in planned.items()}),
    )


def replanned_apart(
    fleet: FleetPlan,
    assessments: Sequence[Assessment],
    pools: Mapping[PoolName, PoolState],
    policy: Policy,
    budgets: Sequence[GroupBudget],
    effort: Effort | None,
    replicas: Mapping[PipelineKey, Mapping[PlacementKey, int]],
) -> FleetPlan:
    """Return `fleet` with plans that have at least `replicas` for some pipelines, each made alone.

    The plans of the turns stay as they are. So do those of pipelines that share stages, which cannot be planned alone,
    and of those that await their turn, whose plan is their current replicas.
    """
    holdings, by_key = Holdings(assessments, {}, pools, budgets), {each.key: each for each in assessments}
    plans = dict(fleet.plans)
    for each in assessments:
        if each.acting:
            holdings.pay_for(each, plans[each.key].replicas())
    shared = {key for key in replicas if any(stage.sharing for stage in fleet.pipelines[key].stages)}
    for key in sorted(replicas.keys() - fleet.waiting - shared):
        holdings.release(by_key[key])
        raised = with_floors(fleet.pipelines[key], replicas[key])
        (plan,) = _planned_apart([raised], holdings, holdings, pools, policy, effort)
        if plan.served_fraction >= plans[key].served_fraction:
            plans[key] = plan
        holdings.pay_for(by_key[key], plans[key].replicas())
    return replace(fleet, plans=plans)


def planned_at_s(snapshot: Snapshot, decision: Decision) -> Sequence[float | None]:
    """Return when each pipeline of the fleet, in no order, was last planned (epoch seconds), None: never.

    A fleet that is not planned in turns was planned in this cycle.
    """
    own = [None if each.planned is None else each.planned.at_s for each in decision.pipelines]
    if not snapshot.standing and all(at_s is None for at_s in own):
        return [decision.now_s] * len(own)
    return [*own, *(each.planned_at_s for each in snapshot.standing)]


def sharing_groups(assessments: Sequence[Assessment]) -> Mapping[PipelineKey, tuple[PipelineKey, ...]]:
    """Return, for each acting pipeline that shares stages with others that act, all pipelines that it shares with.

    These are also those with which it shares through others, in the order of `assessments`.
    """
    acting = {assessment.key for assessment in assessments if assessment.acting}
    group_of: dict[PipelineKey, set[PipelineKey]] = {}
    for assessment in assessments:
        for owner in assessment.lenders & acting if assessment.acting else ():
            joined = group_of.get(owner, {owner}) | group_of.get(assessment.key, {assessment.key})
            group_of.update(dict.fromkeys(joined, joined))
    order = [assessment.key for assessment in assessments if assessment.key in group_of]
    return {key: tuple(other for other in order if other in group_of[key]) for key in order}


def plan_size(assessment: Assessment) -> int:
    """Return how many plain pipelines take as long to plan: the tables of a stage grow with pairs of its placements."""
    plain = max(1, sum(len(stage.placements) ** 2 for stage in assessment.spec.stages) // _PAIRS)
    return plain if assessment.spec.scaling.mixing is Mixing.OVERFLOW else _FREE * plain


def _with_partners(turn: "Turn", groups: Mapping[PipelineKey, tuple[PipelineKey, ...]]) -> "Turn":
    """Return the turn with all pipelines that share stages with those that have it."""
    now = tuple(dict.fromkeys(own for key in turn.now for own in groups.get(key, (key,))))
    return Turn(now=now, waiting=turn.waiting - set(now))


def _planned_apart(
    pipelines: Sequence[Pipeline],
    holdings: Holdings,
    money: Holdings,
    pools: Mapping[PoolName, PoolState],
    policy: Policy,
    effort: Effort | None,
) -> Sequence[PipelinePlan]:
    """Return the plans of `pipelines` with the instances that all others leave in `holdings`, the money in `money`."""
    names = {name for pipeline in pipelines for name in terms_of(pipeline, pools)}
    whole = any(pipeline.basis is Basis.INSTANCES for pipeline in pipelines)
    problem = Problem(
        pipelines=tuple(pipelines),
        pools={
            name: holdings.pool_left(name) if whole else optimizer_pool(pools[name].spec, holdings.left(name))
            for name in sorted(names)
        },
        budget_per_hour=money.money_left(policy.budget_per_hour),
        budgets=money.budgets_left([pipeline.key for pipeline in pipelines]),
        composition=policy.composition,
        switching_cost_per_hour=policy.switching_cost_per_hour,
        search_effort=policy.search_effort,
        effort=effort,
    )
    return allocate(problem).pipelines


def _beside(
    assessment: Assessment, taken: PoolTotals, pools: Mapping[PoolName, PoolState]
) -> Mapping[PoolName, Pool] | None:
    """Return the pools of a pipeline that pays for whole instances, with the replicas of the others, which are `taken`.

    None for a pipeline that pays for shares of instances: the others make no difference.
    """
    if assessment.spec.basis is not Basis.INSTANCES:
        return None
    own = totals_of([(assessment.spec, assessment.held)])
    return {
        name: billed_pool(
            pools[name],
            pools[name].open_limit,
            ((size, count - own.replicas(name).get(size, 0)) for size, count in taken.replicas(name).items()),
        )
        for name in {own.pool for own in assessment.spec.placements().values()}
    }


def _capped(
    assessments: Sequence[Assessment],
    policy: Policy,
    budgets: Sequence[GroupBudget],
    groups: Mapping[PipelineKey, tuple[PipelineKey, ...]],
) -> frozenset[PipelineKey]:
    """Return the acting pipelines whose budgets are divided by priority: all that share a budget with others.

    Those that pay for whole instances are left out: what they pay depends on the plans of the others.
    """
    acting = {assessment.key: assessment for assessment in assessments if assessment.acting}
    members = {key for budget in budgets for key in budget.pipelines}
    units = (groups.get(key, (key,)) for key in acting if policy.budget_per_hour is not None or key in members)
    return frozenset(
        key for unit in units if all(acting[own].spec.basis is not Basis.INSTANCES for own in unit) for key in unit
    )


def _lacked_money(planned: Planned, spare_per_hour: float) -> bool:
    """Whether the plan lacked money, and less was left for it than `spare_per_hour`."""
    limit = planned.plan.limited_by
    if planned.plan.feasible or limit is None or limit.kind is not LimitKind.BUDGET:
        return False
    return planned.spare_per_hour is None or spare_per_hour > planned.spare_per_hour + EPSILON


def _with_givers(
    short: Sequence[Assessment],
    assessments: Sequence[Assessment],
    planned: Mapping[PipelineKey, Planned],
    budgets: Sequence[GroupBudget],
    crowded: Collection[PoolName],
) -> Sequence[Assessment]:
    """Return the most important pipelines of `short`, which lack capacity, and the least important that hold it.

    Those that hold capacity of the pools `crowded`, where more is held than there is, are among these.
    """
    limits = [limit for assessment in short if (limit := lacking(planned[assessment.key])) is not None]
    names = {*crowded, *(limit.name for limit in limits if limit.kind is LimitKind.POOL)}
    money = any(limit.kind is LimitKind.BUDGET and limit.name is None for limit in limits)
    groups = {limit.name for limit in limits if limit.kind is LimitKind.BUDGET}
    sharing = frozenset(key for group in budgets if group.name in groups for key in group.pipelines)
    takers = sorted(short, key=lambda assessment: (-assessment.spec.priority, assessment.key))[: TOGETHER // 2]
    taking = {assessment.key for assessment in takers}
    givers = [
        assessment
        for assessment in assessments
        if assessment.acting
        and assessment.key not in taking
        and any(
            count and (money or assessment.key in sharing or pool_of(placement) in names)
            for (_, placement), count in assessment.current.items()
        )
    ]
    givers.sort(key=lambda assessment: (assessment.spec.priority, assessment.key))
    return [*takers, *givers[: TOGETHER - len(takers)]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The pipelines to plan `now`, the most urgent first, and the pipelines `waiting` for their first plan."""

    now: tuple[PipelineKey, ...]
    waiting: frozenset[PipelineKey]


def choose(
    assessments: Sequence[Assessment],
    pipelines: Mapping[PipelineKey, Pipeline],
    kept: Mapping[PipelineKey, Planned],
    pools: Mapping[PoolName, PoolState],
) -> Turn:
    """Return the pipelines to plan in this cycle; `pipelines` are as of now, `kept` has the plans of earlier turns."""
    due: list[tuple[int, float, int, float, PipelineKey]] = []
    unchanged: list[tuple[float, PipelineKey]] = []
    short: list[tuple[int, float, PipelineKey]] = []
    for assessment in assessments:
        rank = _rank(assessment, pipelines[assessment.key], pools)
        at_s = kept[assessment.key].at_s if assessment.key in kept else -inf
        if rank is not None:
            due.append((rank[0], -rank[1], -assessment.spec.priority, at_s, assessment.key))
        elif lacking(kept[assessment.key]) is not None:  # it has a plan, since nothing has changed
            short.append((-assessment.spec.priority, at_s, assessment.key))
        else:
            unchanged.append((at_s, assessment.key))
    # By priority, so that the least important do not take what became free, and by age, so that none waits for ever.
    orders = (sorted(short), sorted(own[1:] for own in short), sorted(unchanged))
    again = list(dict.fromkeys(key for order in orders for *_, key in order[:AGAIN_PER_TURN]))
    sizes = {assessment.key: plan_size(assessment) for assessment in assessments}
    urgent = [key for *_, key in sorted(due)]
    chosen = set(_up_to(PER_TURN // 2, [key for key in urgent if key not in kept], sizes))
    left = PER_TURN - sum(sizes[key] for key in chosen)
    chosen.update(_up_to(left, [key for key in urgent if key not in chosen], sizes))
    now = [*(key for key in urgent if key in chosen), *again]
    chosen.update(again)
    waiting = frozenset(
        assessment.key for assessment in assessments if assessment.key not in kept and assessment.key not in chosen
    )
    return Turn(now=tuple(now), waiting=waiting)


def _up_to(most: int, keys: Sequence[PipelineKey], sizes: Mapping[PipelineKey, int]) -> list[PipelineKey]:
    """Return the first of `keys` until their sizes have reached `most`."""
    through = accumulate((sizes[key] for key in keys), initial=0)
    return [key for key, before in zip(keys, through, strict=False) if before < most]


def _rank(assessment: Assessment, pipeline: Pipeline, pools: Mapping[PoolName, PoolState]) -> tuple[int, float] | None:
    """Return (rank, change): the lowest rank is most urgent, then the largest change. None: no new plan is needed."""
    planned = assessment.state.planned
    if planned is not None:
        change = _change(planned, pipeline, assessment.current, pools)
        if change <= MOVED:
            return None
        return (0 if outside_limits(assessment) else 1), change
    before, now = assessment.state.memory.planned_demand, assessment.demand.demand
    moved = 0.0 if before is None or now is None else _difference(before, now)
    return (0 if outside_limits(assessment) else 1), max(moved, NEVER)


def _change(
    planned: Planned, pipeline: Pipeline, current: Mapping[PlacementKey, int], pools: Mapping[PoolName, PoolState]
) -> float:
    """Return the largest relative change of an input since the plan; infinite for a declared value.

    Pool terms count 1 more: they change for all pipelines of the pool, and the most changed of these come first.
    """
    before = planned.pipeline
    same_terms = planned.terms == terms_of(pipeline, pools)
    if before == pipeline and same_terms:
        return 0.0
    if declared(before) != declared(pipeline):
        return inf
    then = _current(before)
    # Once the planned replicas run, a plan without changes replaces the old one.
    moved = 0.0 if current == then else ARRIVED if current == planned.plan.replicas() else 1.0
    changes = (_difference(old, new) for old, new in zip(measured(before), measured(pipeline), strict=True))
    return max([moved, *changes]) + (0.0 if same_terms else 1.0)


def _current(pipeline: Pipeline) -> Mapping[PlacementKey, int]:
    """Return the replicas of every placement when `pipeline` was planned."""
    return {
        (stage.name, placement.name): placement.current for stage in pipeline.stages for placement in stage.placements
    }


def declared(pipeline: Pipeline) -> object:
    """Return the declared values of a pipeline, for comparison: they do not drift."""
    return (
        (pipeline.sla, pipeline.budget_per_hour, pipeline.basis, pipeline.priority, pipeline.max_wer),
        pipeline.demand.sessions is None,
        tuple(
            (
                *(stage.name, stage.after, stage.routing, None if stage.sharing is None else stage.sharing.owner),
                tuple(_declared_of(placement) for placement in stage.placements),
            )
            for stage in pipeline.stages
        ),
    )


def _declared_of(placement: Placement) -> tuple[object, ...]:
    return (
        placement.saturation_rps is None,
        *(getattr(placement, field.name) for field in fields(Placement) if field.name not in _MEASURED),
    )


def measured(pipeline: Pipeline) -> Iterator[float]:
    """Yield the measured numbers of a pipeline: loads, times and ratios, which differ a little in every cycle."""
    yield pipeline.demand.entry_rate_rps
    yield pipeline.demand.sessions or 0.0
    for stage in pipeline.stages:
        yield stage.pass_ratio
        yield stage.latency_factor
        yield 0.0 if stage.sharing is None else stage.sharing.other_rps
        yield 0.0 if stage.sharing is None else stage.sharing.other_sessions
        for placement in stage.placements:
            yield from (getattr(placement.service, field.name) for field in fields(ServiceLaw))
            yield placement.saturation_rps or 0.0


def terms_of(pipeline: Pipeline, pools: Mapping[PoolName, PoolState]) -> Mapping[PoolName, tuple[float, int]]:
    """Return, for each pool that a pipeline may use, the price of an instance and how many are being removed."""
    used = {placement.pool: pools[placement.pool] for stage in pipeline.stages for placement in stage.placements}
    return {name: (pool.spec.price_per_hour, pool.leaving_instances) for name, pool in used.items()}


def _difference(before: float, now: float) -> float:
    return abs(now - before) / max(abs(now), abs(before)) if now != before else 0.0


def lacking(planned: Planned) -> Limit | None:
    """Return what makes the plan infeasible and a plan together with others may free, None otherwise.

    This is a pool, or the budget of a pipeline that pays for whole instances.
    """
    limit = planned.plan.limited_by
    if limit is None or planned.plan.feasible:
        return None
    whole = planned.pipeline.basis is Basis.INSTANCES
    return limit if limit.kind is LimitKind.POOL or (limit.kind is LimitKind.BUDGET and whole) else None


def standing_plan(assessment: Assessment, pipeline: Pipeline, pools: Mapping[PoolName, PoolState]) -> PipelinePlan:
    """Return the current replicas as the plan of a pipeline that has not had its turn.

    Where it pays for whole instances, its cost is that of instances which it shares with no other pipeline.
    """
    own = {name: billed_pool(pools[name], 0) for name in terms_of(pipeline, pools)}
    cost = costs_per_hour(plan_charges(pipeline, assessment.current), own)[assessment.key]
    return PipelinePlan(
        key=assessment.key,
        served_fraction=1.0,
        feasible=True,
        limited_by=None,
        latency_s=None,
        cost_per_hour=cost,
        bottleneck=pipeline.stages[0].name,
        stages=tuple(
            StagePlan(
                name=stage.name,
                rate_rps=pipeline.demand.entry_rate_rps * pipeline.visit_ratios[stage.name],
                utilization=None,
                latency_s=None,
                mean_s=None,
                latency_error=None,
                placements=tuple(
                    PlacementPlan(
                        name=placement.name,
                        replicas=assessment.current[(stage.name, placement.name)],
                        batch=assessment.state.memory.batches.get(
                            (stage.name, placement.name), placement.batch_sizes[-1]
                        ),
                    )
                    for placement in stage.placements
                ),
            )
            for stage in pipeline.stages
        ),
        steps=(),
        next_step=None,
        latency_error=None,
        moved_replicas=0,
        switching_cost_per_hour=0.0,
    )
