"""The plan for the whole fleet: what acts is planned together, around what cannot be moved."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.core.assess.assessment import Assessment
from controller.core.assess.problem import NO_REPLICAS, pool_problem
from controller.core.plan.ledger import EPSILON, entries
from controller.core.state.carry_over import PoolMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Planned, PoolState, Snapshot, unaccounted_per_hour
from controller.core.state.spec import PipelineSpec, PlacementKey, PoolSpec
from optimizer.model import Pipeline, PipelineKey, Pool, PoolName, Problem, whole_instances
from optimizer.plan import PipelinePlan, Plan
from optimizer.reports.certificate import certified_plan
from optimizer.runtime.cache import Remembered

ADVISED = 32
"""Fleets up to this size are told what pipelines that cannot be served would take: some thirty searches for each."""

REMEMBERED = 16
"""Plans of up to so many pipelines are kept: most cycles of a quiet fleet ask what the last one did. The values of a
larger one take as long to compare."""

_PLANS: Remembered[Plan] = Remembered(64)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """`plan` is that of the pipelines that act (of all, where none does); `pipelines` has the others as well.

    Of a large fleet, which is planned in turns, there is no one `plan`; `planned` is then what each keeps of its last
    turn; those `waiting` have not had one.
    """

    plan: Plan | None
    pipelines: Mapping[PipelineKey, PipelinePlan]
    problems: Mapping[PipelineKey, Pipeline]
    planned: Mapping[PipelineKey, Planned] | None = None
    waiting: frozenset[PipelineKey] = frozenset()


def plan_fleet(assessments: Sequence[Assessment], pools: Mapping[PoolName, PoolState], policy: Policy) -> FleetPlan:
    """Return the plan of every pipeline.

    Pipelines that act are planned around what the others hold, those that only recommend as if they acted too.
    """
    acting = [assessment for assessment in assessments if assessment.acting]
    plans: dict[PipelineKey, PipelinePlan] = {}
    problems: dict[PipelineKey, Pipeline] = {}
    plan: Plan | None = None
    for group in (assessments, acting):
        if group and (group is acting or len(acting) < len(assessments)):
            problem, plan = planned_together(group, assessments, pools, policy)
            plans.update({answer.key: answer for answer in plan.pipelines})
            problems.update({asked.key: asked for asked in problem.pipelines})
    return FleetPlan(plan=plan, pipelines=plans, problems=problems)


def with_missing_pools(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with a stand-in for every pool that pipelines name and that does not exist.

    Nothing is added there, and what it costs is not known: it has no price, and as many instances as are in use.
    """
    named = {
        placement.pool for state in snapshot.pipelines for stage in state.spec.stages for placement in stage.placements
    }
    missing = {name: _stand_in(name) for name in named - snapshot.pools.keys()}
    return replace(snapshot, pools={**snapshot.pools, **missing}) if missing else snapshot


def _stand_in(name: PoolName) -> PoolState:
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
    group: Sequence[Assessment], assessments: Sequence[Assessment], pools: Mapping[PoolName, PoolState], policy: Policy
) -> tuple[Problem, Plan]:
    """Return the question and the plan, without the nodes that are to go if that can be.

    Else they are planned with: what runs on them serves to the end.
    """
    advice = policy.advice and len(group) <= ADVISED
    before = {assessment.key: share for assessment in group if (share := assessment.share_before) is not None}
    if any(pool.leaving_instances for pool in pools.values()):
        problem = _problem(group, assessments, pools, policy, without_leaving=True)
        plan = _allocated(problem, advice, before)
        if all(answer.feasible for answer in plan.pipelines):
            return problem, plan
    problem = _problem(group, assessments, pools, policy, without_leaving=False)
    return problem, _allocated(problem, advice, before)


def _allocated(problem: Problem, advice: bool, shares_before: Mapping[PipelineKey, float]) -> Plan:
    """Return the plan for `problem`; the result of an equal problem is reused.

    The lower bound is computed for a single pipeline only: a bound of several is in no status.
    """
    single = len(problem.pipelines) == 1
    if len(problem.pipelines) > REMEMBERED:
        return certified_plan(problem, shares_before=shares_before, lower_bound=single, advice=advice)
    key = (
        problem.pipelines,
        tuple(sorted(problem.pools.items())),
        problem.budget_per_hour,
        problem.composition,
        problem.switching_cost_per_hour,
        problem.search_effort,
        advice,
        tuple(sorted(shares_before.items())),
    )
    known = _PLANS.get(key)
    return known or _PLANS.put(
        key, certified_plan(problem, shares_before=shares_before, lower_bound=single, advice=advice)
    )


def _problem(
    group: Sequence[Assessment],
    assessments: Sequence[Assessment],
    pools: Mapping[PoolName, PoolState],
    policy: Policy,
    *,
    without_leaving: bool,
) -> Problem:
    """Return the question of `group`, around what the others of `assessments` hold."""
    keys = {assessment.key for assessment in group}
    others = [assessment for assessment in assessments if assessment.key not in keys]
    held_per_hour = sum(
        entry.observed_per_hour for assessment in others for entry in entries(assessment.state, pools).values()
    )
    held_per_hour += unaccounted_per_hour(pools.values())
    budget = None if policy.budget_per_hour is None else max(0.0, policy.budget_per_hour - held_per_hour)
    held = [(assessment.spec, assessment.current) for assessment in others]
    placed = [(assessment.spec, assessment.current) for assessment in assessments]
    left = {
        name: pool_problem(
            pool.spec,
            max(
                0,
                pool.limit_holding(_instances(name, placed))
                - _instances(name, held)
                - (pool.leaving_instances if without_leaving else 0),
            ),
        )
        for name, pool in pools.items()
    }
    kept = affordable(group, left, budget)
    return Problem(
        pipelines=tuple(
            assessment.problem(policy, at_least=kept.get(assessment.key, NO_REPLICAS)) for assessment in group
        ),
        pools=left,
        budget_per_hour=budget,
        composition=policy.composition,
        switching_cost_per_hour=policy.switching_cost_per_hour,
        search_effort=policy.search_effort,
    )


def affordable(
    group: Sequence[Assessment], pools: Mapping[PoolName, Pool], budget_per_hour: float | None
) -> Mapping[PipelineKey, Mapping[PlacementKey, int]]:
    """Return the replicas to keep of the pipelines that never go down, as far as caps allow, by priority.

    Above a cap something has to go, and the plan says best what.
    """
    kept: dict[PipelineKey, Mapping[PlacementKey, int]] = {}
    chosen: list[tuple[PipelineSpec, Mapping[PlacementKey, int]]] = []
    total_per_hour = 0.0
    for assessment in sorted(group, key=lambda assessment: (-assessment.spec.priority, assessment.key)):
        cost_per_hour = sum(
            pools[placement.pool].replica_price_per_hour(placement.prior)
            * assessment.kept.get((stage.name, placement.pool), 0)
            for stage in assessment.spec.stages
            for placement in stage.placements
        )
        if not assessment.kept or cost_per_hour > assessment.spec.budget_per_hour + EPSILON:
            continue
        if budget_per_hour is not None and total_per_hour + cost_per_hour > budget_per_hour + EPSILON:
            continue
        if any(
            _instances(name, [*chosen, (assessment.spec, assessment.kept)]) > pool.instances
            for name, pool in pools.items()
        ):
            continue
        chosen.append((assessment.spec, assessment.kept))
        total_per_hour += cost_per_hour
        kept[assessment.key] = assessment.kept
    return kept


def _instances(pool: PoolName, held: Iterable[tuple[PipelineSpec, Mapping[PlacementKey, int]]]) -> int:
    return whole_instances(
        (placement.prior.per_instance, replicas.get((stage.name, pool), 0))
        for spec, replicas in held
        for stage in spec.stages
        for placement in stage.placements
        if placement.pool == pool
    )
