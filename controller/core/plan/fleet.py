"""Plans the whole fleet: acting pipelines are planned together, around the replicas of all others."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from controller.core.assess.assessment import Assessment
from controller.core.assess.optimizer_input import NO_REPLICAS, billed_pool, keeping, optimizer_pool, with_floors
from controller.core.assess.shared import CostShares, planned_with, served_cost_shares
from controller.core.plan.claims import Claims
from controller.core.plan.ledger import EPSILON, entries, ledger_of, totals_of
from controller.core.plan.schedule import Course
from controller.core.state.carry_over import PoolMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Planned, PoolState, Snapshot, unaccounted_per_hour
from controller.core.state.spec import PipelineSpec, PoolSpec
from optimizer.billing import Charge, costs_per_hour
from optimizer.fleet.components import components_of
from optimizer.model import (
    Basis,
    GroupBudget,
    Pipeline,
    PipelineKey,
    Placement,
    PlacementKey,
    Pool,
    PoolName,
    Problem,
    Stage,
)
from optimizer.plan import PipelinePlan, Plan
from optimizer.reports.certificate import certified_plan
from optimizer.runtime.cache import BoundedCache
from optimizer.runtime.effort import Charges, Effort

ADVISED = 32
"""The largest fleet for which plans have advice on unmet demand, which takes some thirty searches per pipeline."""

REMEMBERED = 16
"""The most pipelines in a problem whose plan is cached: most cycles of a quiet fleet have the problem of the last one.
Comparing larger problems takes as long as solving them."""

RELAXED = 1.5
"""The factor by which an SLA that no allocation meets is made longer in each of at most `RELAXATIONS` rounds."""
RELAXATIONS = 10
FIRST_RELAXATION = 0.05
"""Where nothing sheds, the SLA is first made longer by this share, then by twice as much in each round: most of an
overload needs little more time, and a much longer SLA would give up replicas that the budget allows."""

_PLANS: BoundedCache[tuple[Plan, tuple[float, ...]]] = BoundedCache(64)
"""Plans, and what was charged for each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """The plans of all pipelines, and the `pipelines` that they were made for.

    `plan` is the common plan of the pipelines that act, or of all pipelines where none acts. A large fleet, which is
    planned in turns, has no common plan: there, `planned` has the plan of each pipeline's last turn, and `waiting` the
    pipelines that had no turn yet. `unreachable` has the plans of pipelines for which no allocation meets the SLA, or
    none meets it for all of a load that nothing sheds; what `plans` has for them meets the lowest multiple of the SLA
    that can be met. `without_spares` has the pipelines whose declared
    minimums the plans leave out for others. `cost_shares` says how the cost of shared stages is split. `problems` has
    the problem that each of `plans` solves, none in a large fleet. `courses` has what backlogs are scheduled to do.
    """

    plan: Plan | None
    plans: Mapping[PipelineKey, PipelinePlan]
    pipelines: Mapping[PipelineKey, Pipeline]
    problems: Mapping[PipelineKey, Problem] = field(default_factory=dict)
    planned: Mapping[PipelineKey, Planned] | None = None
    waiting: frozenset[PipelineKey] = frozenset()
    unreachable: Mapping[PipelineKey, PipelinePlan] = field(default_factory=dict)
    without_spares: frozenset[PipelineKey] = frozenset()
    cost_shares: CostShares = field(default_factory=dict)
    courses: Mapping[PipelineKey, Course] = field(default_factory=dict)


def plan_fleet(
    assessments: Sequence[Assessment],
    pools: Mapping[PoolName, PoolState],
    policy: Policy,
    budgets: Sequence[GroupBudget] = (),
    effort: Effort | None = None,
) -> FleetPlan:
    """Return the plan of every pipeline, within `budgets` of groups of them, charging `effort`.

    Acting pipelines are planned around the replicas of the others. Pipelines that do not act get the plan that they
    would have if all acted. A pipeline that only reads workloads of others gets the plan that it would have if it acted
    instead of these.
    """
    acting = [assessment for assessment in assessments if assessment.acting]
    owning = [assessment for assessment in assessments if not assessment.owners]
    plan: Plan | None = None
    found = FleetPlan(plan=None, plans={}, pipelines={})
    for group in (owning, acting):
        if group and (group is acting or len(acting) < len(owning)):
            plan, own = _planned_group(group, assessments, pools, policy, budgets, effort)
            found = _joined(found, own)
    for assessment in assessments:
        if assessment.owners:
            others = [other for other in assessments if other.key not in assessment.owners]
            _, own = _planned_group((assessment,), others, pools, policy, budgets, effort)
            found = _joined(found, own)
    return replace(found, plan=plan, cost_shares=served_cost_shares(assessments, found.plans))


def _planned_group(
    group: Sequence[Assessment],
    assessments: Sequence[Assessment],
    pools: Mapping[PoolName, PoolState],
    policy: Policy,
    budgets: Sequence[GroupBudget],
    effort: Effort | None,
) -> tuple[Plan, FleetPlan]:
    """Return the common plan of `group`, and what each of its pipelines follows: a plan that it can reach."""
    problem, plan = planned_together(group, assessments, pools, policy, budgets, effort)
    problem, plan = _with_fallbacks(problem, plan, group, policy)
    unshed = frozenset(assessment.key for assessment in group if not assessment.spec.sheds)
    hopeless = {own.key: own for own in plan.pipelines if _needs_longer_sla(own, unshed)}
    followed = plan
    if hopeless:
        problem, followed = _relaxed(problem, plan, group, policy, unshed)
    return plan, FleetPlan(
        plan=plan,
        plans={own.key: own for own in followed.pipelines},
        pipelines={own.key: own for own in problem.pipelines},
        problems=dict.fromkeys((own.key for own in problem.pipelines), problem),
        unreachable=hopeless,
        without_spares=frozenset(
            each.key
            for each, own in zip(group, problem.pipelines, strict=True)
            if any(own.least().get(key, 0) < count for key, count in each.pipeline.least().items())
        ),
    )


def replanned(
    fleet: FleetPlan,
    assessments: Sequence[Assessment],
    policy: Policy,
    replicas: Mapping[PipelineKey, Mapping[PlacementKey, int]],
) -> FleetPlan:
    """Return `fleet` with plans that have at least `replicas` for some pipelines; the plans of all others stay.

    `replicas` are at least those planned, and have room beside the plans of the others.
    """
    plans, common = dict(fleet.plans), fleet.plan
    for problem in {id(fleet.problems[key]): fleet.problems[key] for key in replicas}.values():
        keys = [own.key for own in problem.pipelines if fleet.problems[own.key] is problem]
        least = replace(
            problem,
            pipelines=tuple(
                with_floors(own, replicas[own.key]) if own.key in replicas else keeping(own, plans[own.key].replicas())
                for own in problem.pipelines
            ),
        )
        found = _allocated(least, *_context([each for each in assessments if each.key in keys], policy))
        if any(found.of(key).served_fraction < plans[key].served_fraction for key in keys):
            continue
        raised = {key: found.of(key) for key in keys if key in replicas}
        same = common is not None and {own.key for own in common.pipelines} == {own.key for own in problem.pipelines}
        if common is not None and same and not fleet.unreachable:
            common = replace(found, pipelines=tuple(raised.get(own.key, own) for own in common.pipelines))
        plans |= raised
    return replace(fleet, plan=common, plans=plans)


def _joined(one: FleetPlan, other: FleetPlan) -> FleetPlan:
    """Return both together; where they have the same pipeline, `other` counts."""
    return FleetPlan(
        plan=None,
        plans={**one.plans, **other.plans},
        pipelines={**one.pipelines, **other.pipelines},
        problems={**one.problems, **other.problems},
        unreachable={
            **{key: own for key, own in one.unreachable.items() if key not in other.plans},
            **other.unreachable,
        },
        without_spares=(one.without_spares - other.plans.keys()) | other.without_spares,
    )


def _with_fallbacks(problem: Problem, plan: Plan, group: Sequence[Assessment], policy: Policy) -> tuple[Problem, Plan]:
    """Return the problem and its plan with never measured placements for pipelines that need them to be served."""
    keys = {assessment.key for assessment in group}
    fallbacks = {
        assessment.key: planned_with(assessment.fallback, assessment, keys)
        for assessment in group
        if assessment.fallback is not None and not plan.of(assessment.key).feasible
    }
    if not fallbacks:
        return problem, plan
    wider = replace(
        problem,
        pipelines=tuple(
            keeping(fallbacks[own.key], own.least()) if own.key in fallbacks else own for own in problem.pipelines
        ),
    )
    found = _allocated(wider, *_context(group, policy))
    served = sum(found.of(key).served_fraction - plan.of(key).served_fraction for key in fallbacks)
    return (wider, found) if served > 0 else (problem, plan)


def _needs_longer_sla(plan: PipelinePlan, unshed: Collection[PipelineKey]) -> bool:
    """Whether a plan within the SLA cannot be followed: it serves nothing, or a part of a load that nothing sheds."""
    return plan.sla_unreachable or (plan.key in unshed and not plan.feasible)


def _relaxed(
    problem: Problem, plan: Plan, group: Sequence[Assessment], policy: Policy, unshed: Collection[PipelineKey]
) -> tuple[Problem, Plan]:
    """Return the problem and its plan with longer SLAs for the pipelines of `group` whose SLA no allocation meets.

    Replicas that miss the SLA by a little serve people better than a queue that grows. Where measured overhead leaves
    the stages too little of the SLA, no money can make up for it: the stages get all of the SLA then.

    Where nothing sheds (`unshed`), all of the load must be met: a plan for a part of it has a queue that grows.
    """
    whole_s = {assessment.key: assessment.spec.sla.latency_s * (1 - policy.latency_headroom) for assessment in group}
    advice, before = _context(group, policy)
    within = plan

    def longer_s(pipeline: Pipeline, turn: int) -> float:
        if pipeline.key not in unshed:
            return RELAXED * pipeline.sla.latency_s
        return whole_s[pipeline.key] * (1 + FIRST_RELAXATION * 2.0**turn)

    turn, accounts = 0, {} if problem.effort is None else problem.effort.own
    while turn < RELAXATIONS:
        hopeless = {own.key for own in plan.pipelines if _needs_longer_sla(own, unshed)}
        if not hopeless:
            break
        problem = replace(
            problem,
            pipelines=tuple(
                replace(own, sla=replace(own.sla, latency_s=max(longer_s(own, turn), whole_s[own.key])))
                if own.key in hopeless
                else own
                for own in problem.pipelines
            ),
        )
        plan = _allocated(problem, False, before)
        # Where the account of one is exhausted, fewer lengths are tried.
        turn += 3 if any(accounts[key].exhausted for key in hopeless if key in accounts) else 1
    problem, plan = _not_below(problem, plan, within, unshed, before)
    return problem, _allocated(problem, advice, before) if advice else plan


def _not_below(
    problem: Problem,
    plan: Plan,
    within: Plan,
    unshed: Collection[PipelineKey],
    before: Mapping[PipelineKey, float],
) -> tuple[Problem, Plan]:
    """Return the problem and its plan with at least the replicas of `within` for pipelines where nothing sheds.

    `within` is the plan within the SLA. A longer SLA needs fewer replicas, but those are affordable, and keep latencies
    short. Where they would take something from what is served, `plan` stays.
    """
    kept = replace(
        problem,
        pipelines=tuple(
            keeping(own, within.of(own.key).replicas())
            if own.key in unshed and not within.of(own.key).feasible
            else own
            for own in problem.pipelines
        ),
    )
    if kept == problem:
        return problem, plan
    found = _allocated(kept, False, before)
    as_much = all(found.of(own.key).served_fraction >= own.served_fraction for own in plan.pipelines)
    return (kept, found) if as_much else (problem, plan)


def _context(group: Sequence[Assessment], policy: Policy) -> tuple[bool, Mapping[PipelineKey, float]]:
    """Return whether plans of `group` come with advice, and the shares that the last plans admitted."""
    before = {assessment.key: share for assessment in group if (share := assessment.share_before) is not None}
    return policy.advice and len(group) <= ADVISED, before


def with_missing_pools(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with a placeholder for every pool that a pipeline names but that does not exist.

    A placeholder gets no new replica. Its price is unknown and counts as 0, and its instances are those in use.
    """
    named = {own.pool for state in snapshot.pipelines for own in state.spec.placements().values()}
    missing = {name: _placeholder(name) for name in named - snapshot.pools.keys()}
    return replace(snapshot, pools={**snapshot.pools, **missing}) if missing else snapshot


def _placeholder(name: PoolName) -> PoolState:
    spec = PoolSpec(
        name=name,
        uid="",
        generation=0,
        device="",
        node_selector={},
        price_per_hour=0.0,
        instances=None,
        pending_deadline_s=math.inf,
        backoff_initial_s=math.inf,
        backoff_max_s=math.inf,
    )
    return PoolState(spec=spec, ready_instances=0, zones=1, memory=PoolMemory())


def planned_together(
    group: Sequence[Assessment],
    assessments: Sequence[Assessment],
    pools: Mapping[PoolName, PoolState],
    policy: Policy,
    budgets: Sequence[GroupBudget],
    effort: Effort | None = None,
) -> tuple[Problem, Plan]:
    """Return the problem and the plan of `group`, which is part of `assessments`.

    Nodes that are being removed are left out if all pipelines can be served without them. Otherwise they are included:
    their replicas are ready until the node is gone.
    """
    advice, before = _context(group, policy)
    if any(pool.leaving_instances for pool in pools.values()):
        problem = replace(_problem(group, assessments, pools, policy, budgets, without_leaving=True), effort=effort)
        plan = _allocated(problem, advice, before)
        if all(own.feasible for own in plan.pipelines):
            return problem, plan
    problem = replace(_problem(group, assessments, pools, policy, budgets, without_leaving=False), effort=effort)
    plan = _allocated(problem, advice, before)
    beside = _beside_claims(problem, group, assessments, pools, budgets)
    if beside != problem:
        # What is claimed stops growth. So that the growth of one does not take what another has, each keeps of its
        # present replicas what it would have without the claims. Who shares nothing with what is claimed is planned
        # as if there were no claims.
        free = components_of(problem)
        apart = {own.key for part in components_of(beside) if part in free for own in part.pipelines}
        kept = {
            each.key: {key: min(n, each.existing.get(key, 0)) for key, n in plan.of(each.key).replicas().items()}
            for each in group
            if each.key not in apart
        }

        def beside_kept(own: Pipeline) -> Pipeline:
            return keeping(own, kept[own.key]) if own.key in kept else own

        def only_kept(own: Pipeline) -> Pipeline:
            return own.bounded(lambda stage, placement: (kept[own.key][stage.name, placement.name],) * 2)

        whole, problem = problem, replace(beside, pipelines=tuple(map(beside_kept, beside.pipelines)))
        plan = _allocated(problem, advice, before)
        if any(plan.of(own).replicas()[key] < n for own, counts in kept.items() for key, n in counts.items()):
            # A first replica of one comes before the others of another: then none of them grows.
            pipelines = tuple(only_kept(own) if own.key in kept else own for own in whole.pipelines)
            problem = replace(whole, pipelines=pipelines)
            plan = _allocated(problem, advice, before)
    needs = _without_spares(problem, plan, group)
    if needs == problem:
        return problem, plan
    found = _allocated(needs, advice, before)
    # Who shares nothing with those that gain keeps its minimums.
    gain = {own.key: found.of(own.key).served_fraction - own.served_fraction for own in plan.pipelines}
    parts = [[own.key for own in part.pipelines] for part in components_of(problem)]
    gaining = {key for part in parts if sum(map(gain.__getitem__, part)) > 0 for key in part}
    pairs = zip(problem.pipelines, needs.pipelines, strict=True)
    mixed = replace(problem, pipelines=tuple(need if need.key in gaining else own for own, need in pairs))
    if mixed == problem:
        return problem, plan
    return mixed, found if mixed == needs else _allocated(mixed, advice, before)


def _beside_claims(
    problem: Problem,
    group: Sequence[Assessment],
    assessments: Sequence[Assessment],
    pools: Mapping[PoolName, PoolState],
    budgets: Sequence[GroupBudget],
) -> Problem:
    """Return `problem` with the instances and the money that what is claimed beside `group` leaves for it."""
    keys = {each.key for each in group}
    others = [each for each in assessments if each.key not in keys]
    if not (any(pool.claimed for pool in pools.values()) or any(each.claimed for each in others)):
        return problem
    beside = Claims.beside(group, others, pools, budgets)
    money = problem.budget_per_hour
    used = {placement.pool for _, _, placement in problem.placements()}
    return replace(
        problem,
        pools={
            name: replace(pool, instances=beside.instances(name, pool.instances)) if name in used else pool
            for name, pool in problem.pools.items()
        },
        budget_per_hour=None if money is None else beside.money(money, None),
        budgets=tuple(replace(each, per_hour=beside.money(each.per_hour, each.name)) for each in problem.budgets),
    )


def _without_spares(problem: Problem, plan: Plan, group: Sequence[Assessment]) -> Problem:
    """Return `problem` without minimums of `replicas.min` where others lack what they take.

    A minimum beyond the need of its pipeline ranks below the demand of others of the same and of higher priority, and
    below its own. One of higher priority keeps the replicas that it has. Where the plan leaves room, the minimum is
    raised as a floor.
    """
    short = [own for own in problem.pipelines if not plan.of(own.key).feasible]
    if not short:
        return problem
    spares = {each.key: {bound.key for bound in each.bounds.spares()} for each in group}

    def rivals(pipeline: Pipeline, pool: PoolName) -> list[Pipeline]:
        return [own for own in short if own.key == pipeline.key or _shares(problem, own, pipeline, pool)]

    def need(pipeline: Pipeline) -> Pipeline:
        def bounded(stage: Stage, placement: Placement) -> tuple[int, int]:
            least = placement.min_replicas
            if least and (stage.name, placement.name) in spares[pipeline.key]:
                others = rivals(pipeline, placement.pool)
                if others:
                    outranks = pipeline.priority > max(own.priority for own in others)
                    least = min(least, placement.current) if outranks else 0
            return least, placement.max_replicas

        return pipeline.bounded(bounded) if spares[pipeline.key] else pipeline

    return replace(problem, pipelines=tuple(map(need, problem.pipelines)))


def _allocated(problem: Problem, advice: bool, shares_before: Mapping[PipelineKey, float]) -> Plan:
    """Return the plan for `problem`, from the cache if an equal problem was solved before.

    The lower bound is computed for a single pipeline only: the bound of several pipelines is in no status. Shadow
    prices take one more search for each pool, so they come with advice, and only where the plan is cached.
    """
    single = len(problem.pipelines) == 1
    solve = partial(
        certified_plan,
        problem,
        shares_before=shares_before,
        lower_bound=single,
        shadow_prices=advice and len(problem.pipelines) <= REMEMBERED,
        advice=advice,
    )
    if len(problem.pipelines) > REMEMBERED:
        return solve()
    key = (
        problem.pipelines,
        tuple(sorted(problem.pools.items())),
        problem.budget_per_hour,
        problem.budgets,
        problem.composition,
        problem.switching_cost_per_hour,
        problem.search_effort,
        problem.effort is None,
        advice,
        tuple(sorted(shares_before.items())),
    )
    charges = Charges(problem.effort, [pipeline.key for pipeline in problem.pipelines])
    known = _PLANS.get(key)
    # What a plan took is charged also where it is known, or a decision would depend on those before it.
    if known is not None and charges.repeat(known[1]):
        return known[0]
    plan = solve()
    return plan if charges.exhausted else _PLANS.put(key, (plan, charges.made()))[0]


def _shares(problem: Problem, short: Pipeline, other: Pipeline, pool: PoolName) -> bool:
    """Whether `short`, which is not served in full, could use what replicas of `other` on `pool` take."""
    if problem.budget_per_hour is not None or any({short.key, other.key} <= each.pipelines for each in problem.budgets):
        return True
    return any(placement.pool == pool for stage in short.stages for placement in stage.placements)


def _problem(
    group: Sequence[Assessment],
    assessments: Sequence[Assessment],
    pools: Mapping[PoolName, PoolState],
    policy: Policy,
    budgets: Sequence[GroupBudget],
    *,
    without_leaving: bool,
) -> Problem:
    """Return the problem of `group`, with the instances and the money that the other `assessments` leave for it."""
    keys = {assessment.key for assessment in group}
    others = [assessment for assessment in assessments if assessment.key not in keys]
    held_per_hour = _observed_per_hour(others, assessments, pools)
    held_per_hour += unaccounted_per_hour(pools.values()) + _paid_across(group, assessments, pools)
    budget = None if policy.budget_per_hour is None else max(0.0, policy.budget_per_hour - held_per_hour)
    held = totals_of((assessment.spec, assessment.held) for assessment in others)
    placed = totals_of(
        (assessment.spec, assessment.present if assessment.key in keys else assessment.held)
        for assessment in assessments
    )
    instances = {
        name: max(
            0,
            pool.limit_holding(placed.instances(name))
            - held.instances(name)
            - (pool.leaving_instances if without_leaving else 0),
        )
        for name, pool in pools.items()
    }
    paid = _paid_per_hour(others, assessments, pools) if budgets else {}
    groups = tuple(
        replace(
            each,
            per_hour=max(0.0, each.per_hour - each.held_per_hour - sum(paid.get(key, 0.0) for key in each.pipelines)),
        )
        for each in budgets
        if not each.pipelines.isdisjoint(keys)
    )
    if any(assessment.spec.basis is Basis.INSTANCES for assessment in group):
        left = {name: billed_pool(pool, instances[name], held.replicas(name).items()) for name, pool in pools.items()}
    else:
        left = {name: optimizer_pool(pool.spec, instances[name]) for name, pool in pools.items()}
    kept = affordable(group, left, budget, groups)
    return Problem(
        pipelines=tuple(
            keeping(planned_with(assessment.pipeline, assessment, keys), kept.get(assessment.key, NO_REPLICAS))
            for assessment in group
        ),
        pools=left,
        budget_per_hour=budget,
        budgets=groups,
        composition=policy.composition,
        switching_cost_per_hour=policy.switching_cost_per_hour,
        search_effort=policy.search_effort,
    )


def _observed_per_hour(
    others: Sequence[Assessment], assessments: Sequence[Assessment], pools: Mapping[PoolName, PoolState]
) -> float:
    """Return the present spend for the replicas of `others`, which are part of `assessments`, in USD per hour."""
    if any(assessment.spec.basis is Basis.INSTANCES for assessment in others):
        ledger = ledger_of(assessments, pools, None)
        return sum(ledger.observed_per_hour(assessment.key) for assessment in others)
    return sum(
        entry.observed_per_hour
        for assessment in others
        for entry in entries(assessment.state, pools, acting=assessment.acting).values()
    )


def _paid_per_hour(
    others: Sequence[Assessment], assessments: Sequence[Assessment], pools: Mapping[PoolName, PoolState]
) -> Mapping[PipelineKey, float]:
    """Return the present spend of each of `others`, in USD per hour: of shared stages its share."""
    ledger = ledger_of(assessments, pools, None, cost_shares=served_cost_shares(assessments, {}))
    return {assessment.key: ledger.observed_per_hour(assessment.key) for assessment in others}


def _paid_across(
    group: Sequence[Assessment], assessments: Sequence[Assessment], pools: Mapping[PoolName, PoolState]
) -> float:
    """Return what pipelines outside `group` pay for shared stages of it, less what it pays for theirs, in USD per hour.

    Plans count what each pipeline pays. The budget of the fleet counts each replica once.
    """
    keys = {assessment.key for assessment in group}
    paid = 0.0
    for assessment in assessments:
        inside = assessment.key in keys
        for name, (owner, _) in assessment.spec.borrowed.items():
            if inside != (owner in keys):
                cost = sum(
                    pools[placement.pool].spec.replica_price_per_hour(placement.prior.per_instance)
                    * assessment.current[key]
                    for key, placement in assessment.spec.placements().items()
                    if key[0] == name
                )
                paid += assessment.cost_share(name) * (-cost if inside else cost)
    return paid


def affordable(
    group: Sequence[Assessment],
    pools: Mapping[PoolName, Pool],
    budget_per_hour: float | None,
    budgets: Sequence[GroupBudget] = (),
) -> Mapping[PipelineKey, Mapping[PlacementKey, int]]:
    """Return the replicas that pipelines of `group` must keep, by pipeline, where budgets and pools allow it.

    The pipelines are considered by priority. For a pipeline that is left out, the plan chooses which replicas go.
    """
    kept: dict[PipelineKey, Mapping[PlacementKey, int]] = {}
    chosen: list[tuple[PipelineSpec, Mapping[PlacementKey, int]]] = []
    charges: list[Charge] = []
    costs: Mapping[PipelineKey, float] = {}
    caps: dict[PipelineKey, float] = {}
    whole = any(assessment.spec.basis is Basis.INSTANCES for assessment in group)
    for assessment in sorted(group, key=lambda assessment: (-assessment.spec.priority, assessment.key)):
        if not assessment.bounds.kept:
            continue
        more = [*_kept_charges(assessment)]
        # Shares of instances add up, whole instances do not.
        then = costs_per_hour([*charges, *more], pools) if whole else {**costs, **costs_per_hour(more, pools)}
        cap = assessment.pipeline.budget_per_hour
        own = {**caps, assessment.key: math.inf if cap is None else cap}
        limits = [
            *((cost, own[key]) for key, cost in then.items()),
            *((sum(then.get(key, 0.0) for key in budget.pipelines), budget.per_hour) for budget in budgets),
            *([] if budget_per_hour is None else [(sum(then.values()), budget_per_hour)]),
        ]
        if any(cost > most + EPSILON for cost, most in limits):
            continue
        totals = totals_of([*chosen, (assessment.spec, assessment.bounds.kept)])
        if any(totals.instances(name) > pool.instances for name, pool in pools.items()):
            continue
        chosen.append((assessment.spec, assessment.bounds.kept))
        charges += more
        costs, caps = then, own
        kept[assessment.key] = assessment.bounds.kept
    return kept


def _kept_charges(assessment: Assessment) -> Iterator[Charge]:
    """Yield the charges of the replicas that a pipeline must keep."""
    for key, placement in assessment.spec.placements().items():
        yield Charge(
            pipeline=assessment.key,
            basis=assessment.spec.basis,
            pool=placement.pool,
            per_instance=placement.prior.per_instance,
            replicas=assessment.bounds.kept.get(key, 0),
            cost_share=assessment.cost_share(key[0]),
            borrowed=key[0] in assessment.spec.borrowed,
        )
