"""Chooses the batch settings that Sluice writes for servers: those in force stay unless others save enough.

Plans count on the settings in force only. Where other settings are chosen, the fleet is planned again, so that the SLA
is met with both until the servers have the new ones.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from controller.core.assess.assessment import Assessment
from controller.core.assess.batching import present, settled, with_settings, writable
from controller.core.assess.optimizer_input import has_law
from controller.core.plan.fleet import FleetPlan
from controller.core.state.decision import BatchWrite, Hold, HoldReason
from optimizer.allocate import allocate
from optimizer.model import (
    BatchSettings,
    Pipeline,
    Placement,
    PlacementKey,
    PoolName,
    Problem,
    Size,
    Stage,
    whole_instances,
)
from optimizer.plan import PipelinePlan

_EPSILON = 1e-9
Settings = Mapping[PlacementKey, BatchSettings]
_Change = Callable[[Stage, Placement], Placement]


def with_choices(assessments: Sequence[Assessment], fleet: FleetPlan) -> Sequence[Assessment]:
    """Return the assessments with the settings that are chosen now; the same ones where no other settings are.

    Nothing is chosen while servers may still have earlier settings, while metrics are missing, and for shared stages,
    nor in a large fleet, which is planned in turns.
    """
    chosen = {each.key: found for each in assessments if (found := _chosen(each, fleet))}
    if not chosen:
        return assessments
    return tuple(_decided(each, chosen[each.key]) if each.key in chosen else each for each in assessments)


def batch_writes(assessment: Assessment) -> Iterator[BatchWrite]:
    """Yield the settings that were decided and are not what the ConfigMaps have."""
    state = assessment.state
    for key, memory in state.memory.batching.items():
        applied, found = assessment.spec.placements()[key].applied, state.batching[key]
        if applied is None or memory.decided in (None, found.settings) or not _may_write(assessment, key):
            continue
        assert memory.decided is not None
        yield BatchWrite(
            stage=key[0],
            placement=key[1],
            at=applied.at,
            settings=memory.decided,
            before=found.settings,
            restores=any(own == memory.decided for own, _ in memory.seen),
        )


def holds(assessment: Assessment) -> Iterator[Hold]:
    """Yield a hold for every placement of an acting pipeline whose settings cannot be written."""
    for (stage, placement), found in assessment.state.batching.items():
        problem = found.problem or found.refused
        if problem and assessment.acting:
            yield Hold(reason=HoldReason.BATCHING_NOT_WRITTEN, stage=stage, placement=placement, detail=problem)


def _may_write(assessment: Assessment, key: PlacementKey) -> bool:
    return assessment.acting and writable(assessment.state, key)


def _chosen(assessment: Assessment, fleet: FleetPlan) -> Settings:
    """Return the settings to decide for placements of a pipeline; none where those in force stay."""
    state, memories = assessment.state, assessment.state.memory.batching
    problem = fleet.problems.get(assessment.key)
    if problem is None or not memories or assessment.never_down or not settled(memories):
        return {}
    profiles = {stage.name: stage for stage in assessment.profile.stages}
    placements = assessment.spec.placements()
    shared = {stage.name for stage in assessment.pipeline.stages if stage.sharing is not None}
    open_ = [
        key
        for key in memories
        if key[0] not in shared and _may_write(assessment, key) and has_law(placements[key], profiles.get(key[0]))
    ]
    if not open_:
        return {}
    now, forced = dict[PlacementKey, BatchSettings](), dict[PlacementKey, BatchSettings]()
    for key in open_:
        applied = placements[key].applied
        assert applied is not None
        now[key] = present(applied, state.batching[key])
        if memories[key].decided is None:
            forced[key] = now[key] if applied.allows(now[key]) else applied.unset
    found = _search(assessment, _alone(problem, assessment, fleet), open_, now)
    return {**forced, **{key: settings for key, settings in found.items() if settings != now[key]}}


def _alone(problem: Problem, assessment: Assessment, fleet: FleetPlan) -> Problem:
    """Return the problem of a pipeline beside the plans of the others: to plan all again for each would take too long.

    Where it shares a stage, all are planned.
    """
    others = [own for own in problem.pipelines if own.key != assessment.key]
    (own,) = (own for own in problem.pipelines if own.key == assessment.key)
    if not others or any(stage.sharing is not None for stage in own.stages):
        return problem
    plans = {other.key: fleet.plans[other.key] for other in others}
    taken: dict[PoolName, list[tuple[Size, int]]] = {name: [] for name in problem.pools}
    for other in others:
        counts = plans[other.key].replicas()
        for stage in other.stages:
            for placement in stage.placements if not stage.borrowed else ():
                taken[placement.pool].append((placement.per_instance, counts[stage.name, placement.name]))
    money = problem.budget_per_hour
    return replace(
        problem,
        pipelines=(own,),
        pools={
            name: replace(pool, instances=max(0, pool.instances - whole_instances(taken[name])))
            for name, pool in problem.pools.items()
        },
        budget_per_hour=None if money is None else max(0.0, money - _cost_per_hour(plans.values())),
        budgets=tuple(
            replace(
                group,
                per_hour=max(
                    0.0, group.per_hour - _cost_per_hour(plan for key, plan in plans.items() if key in group.pipelines)
                ),
                pipelines=frozenset({own.key}),
            )
            for group in problem.budgets
            if own.key in group.pipelines
        ),
    )


def _cost_per_hour(plans: Iterable[PipelinePlan]) -> float:
    return sum(plan.cost_per_hour for plan in plans)


def _search(
    assessment: Assessment,
    problem: Problem,
    keys: Sequence[PlacementKey],
    now: Settings,
) -> Settings:
    """Return the settings of the placements `keys` that are worth a change from those of `now`."""

    def solved(fixed: Settings) -> PipelinePlan:
        return _planned(assessment, problem, keys, fixed)

    placements = assessment.spec.placements()
    free_waits_s = {key: own.waits_s[0] for key in keys if (own := placements[key].applied) is not None}
    free = solved({})
    if not _worth(free, solved(now), assessment.spec.scaling.tolerance):
        return {}
    used = {
        (stage.name, own.name): BatchSettings(
            limit=own.batch, wait_s=free_waits_s[stage.name, own.name] if own.wait_s is None else own.wait_s
        )
        for stage in free.stages
        for own in stage.placements
        if own.replicas and (stage.name, own.name) in free_waits_s
    }
    found = {key: used.get(key, now[key]) for key in keys}
    for key in keys:  # only what the saving needs
        back = {**found, key: now[key]}
        if found[key] != now[key] and not _worth(free, solved(back), 0.0):
            found = back
    return found


def _worth(plan: PipelinePlan, kept: PipelinePlan, tolerance: float) -> bool:
    """Return whether `plan` serves more of the demand within the SLA than `kept`, or as much for enough less money."""
    if plan.feasible != kept.feasible:
        return plan.feasible
    if abs(plan.served_fraction - kept.served_fraction) > _EPSILON:
        return plan.served_fraction > kept.served_fraction
    saving = kept.cost_per_hour - plan.cost_per_hour
    return saving > _EPSILON and saving >= tolerance * kept.cost_per_hour - _EPSILON


def _planned(assessment: Assessment, problem: Problem, keys: Sequence[PlacementKey], fixed: Settings) -> PipelinePlan:
    """Return the plan of a pipeline where the placements `keys` choose their settings, unless they are `fixed`."""
    declared = assessment.spec.placements()

    def free(stage: Stage, placement: Placement) -> Placement:
        key = stage.name, placement.name
        applied = declared[key].applied
        if key not in keys or applied is None:
            return placement
        return placement.with_settings(fixed[key]) if key in fixed else applied.free(placement)

    pipelines = tuple(
        replace(_changed(own, free), sla=assessment.pipeline.sla) if own.key == assessment.key else own
        for own in problem.pipelines
    )
    return allocate(replace(problem, pipelines=pipelines, effort=None)).of(assessment.key)


def _changed(pipeline: Pipeline, change: _Change) -> Pipeline:
    stages = (replace(own, placements=tuple(change(own, each) for each in own.placements)) for own in pipeline.stages)
    return replace(pipeline, stages=tuple(stages))


def _decided(assessment: Assessment, chosen: Settings) -> Assessment:
    """Return the assessment with `chosen` decided: plans meet the SLA with these settings and those in force."""

    def both(stage: Stage, placement: Placement) -> Placement:
        settings = chosen.get((stage.name, placement.name))
        if settings is None:
            return placement
        now = BatchSettings(limit=placement.batch_sizes[0], wait_s=placement.batch_wait_s)
        return with_settings(placement, tuple(dict.fromkeys((now, settings))))

    memory, fallback = assessment.state.memory, assessment.fallback
    batching = {key: replace(own, decided=chosen.get(key, own.decided)) for key, own in memory.batching.items()}
    return replace(
        assessment,
        state=replace(assessment.state, memory=replace(memory, batching=batching)),
        pipeline=_changed(assessment.pipeline, both),
        fallback=None if fallback is None else _changed(fallback, both),
    )
