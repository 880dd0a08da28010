"""Computes the load to admit where not all load can be served: with the plan, and while replicas start."""

import math
from collections.abc import Mapping
from dataclasses import replace

from controller.core.assess.assessment import Assessment
from controller.core.assess.optimizer_input import optimizer_demand, stages_sla_s
from controller.core.state.policy import Policy
from controller.core.state.snapshot import TargetMissing, TargetState
from controller.core.state.spec import ColdStart, DemandUnit, PlacementSpec
from optimizer.latency.predict import predicted_latency_s
from optimizer.model import PlacementKey, StageName
from optimizer.plan import PipelinePlan
from profiler.stages import GRAIN

LAPSE_S = 600.0
"""How long a published limit is valid. The status of a pipeline that sheds is written again when half of this time is
over, so a limit outlives a failover, but not an operator that is gone."""
_SOON = 0.5
"""Share of the interval within which a starting replica must become ready to count as ready: it is then ready for half
of the time until the next decision. With less, slots would be idle while streams are refused; with more, streams would
lack a slot."""
_PATIENCE = 10.0
"""How long an admitted stream waits for a slot, as a multiple of the SLA."""
_STEP = 5 * GRAIN
_STEPS = 100
"""How many steps below the plan's demand are searched: down to less than a hundredth of the demand."""


def admitted_by_plan(assessment: Assessment, plan: PipelinePlan) -> float | None:
    """Return the most demand that `plan` can serve, in the pipeline's unit; None where no limit is published.

    There is no limit while the pipeline is idle: a limit of 0 would refuse the load that ends this. There is none where
    no load at all can meet the SLA, which is a mistake in the SLA. There is none either where the plan serves nothing
    because a pool does not exist: the replicas on this pool may still be ready. There is none where nothing sheds.
    """
    if (
        not assessment.spec.sheds
        or assessment.demand.demand is None
        or assessment.demand.idle
        or plan.served_fraction >= 1
        or (plan.served_fraction <= 0 and assessment.missing.pools)
    ):
        return None
    if plan.sla_unreachable:
        return None
    return assessment.planned_demand * plan.served_fraction


def served_by_ready(assessment: Assessment, plan: PipelinePlan, policy: Policy) -> float:
    """Return the share (0–1) of the planned demand that the ready replicas serve within the SLA, by the model."""
    planned = assessment.planned_demand
    ready = {key: target.ready for key, target in assessment.state.found()}
    if planned <= 0 or {stage for stage, _ in ready} != {stage.name for stage in assessment.spec.stages}:
        return 1.0
    carried = _carried(assessment, ready, planned, plan, policy)
    return 1.0 if carried is None else min(1.0, carried / planned)


def admitted_meanwhile(
    assessment: Assessment,
    plan: PipelinePlan,
    desired: Mapping[PlacementKey, int],
    by_plan: float | None,
    *,
    policy: Policy,
    now_s: float,
) -> float | None:
    """Return the demand to admit until pending replicas are ready, in the pipeline's unit; None: no such limit.

    The result is the smaller of two limits. The first applies while replicas of `desired` start: it is the number of
    streams that find a slot. A stream without a slot would be admitted, then refused by a stage, and lose all its
    chunks. Slots are counted, because a model error could refuse servable streams.

    The second applies where the plan itself limits the demand (`by_plan`), until the planned replicas are ready: it is
    the demand that the ready replicas serve within the SLA, by the model. With more load, all items would be late.

    It also applies while another controller sets the replicas, whatever the plan: these are not Sluice's to add.

    While a stage has no ready replica, `scaling.coldStart` decides where it is set: all load or none is admitted.

    There is no limit where a workload cannot be read, or a stage has none, and none where nothing sheds.
    """
    if not assessment.spec.sheds:
        return None
    if any(isinstance(target, TargetMissing) and target.unreadable for target in assessment.state.targets.values()):
        return None
    there = dict(assessment.state.found())
    if {stage for stage, _ in there} != {stage.name for stage in assessment.spec.stages}:
        return None
    cold_start = assessment.spec.scaling.cold_start
    warm = {stage for (stage, _), target in there.items() if target.ready}
    if cold_start is not None and len(warm) < len(assessment.spec.stages):
        return 0.0 if cold_start is ColdStart.REFUSE else None
    soon_s = now_s + max(_SOON * policy.interval_s, _PATIENCE * assessment.spec.sla.latency_s)
    placements = assessment.spec.placements()
    serving = {
        key: target.ready + _started(placements[key], target, now_s - policy.interval_s, soon_s)
        for key, target in there.items()
    }
    held = dict(serving)
    if assessment.spec.unit is DemandUnit.STREAMS:
        # Terminating replicas take no new streams and keep those that they have.
        held |= {
            key: count + there[key].terminating
            for key, count in serving.items()
            if placements[key].prior.session_slots is not None
        }
    limits: list[float] = []
    if assessment.spec.unit is DemandUnit.STREAMS and any(target.ready < desired[key] for key, target in there.items()):
        slots = _slots(assessment, {key: count + len(there[key].stranded) for key, count in held.items()})
        if slots < assessment.planned_demand:
            limits.append(slots)
    coming = assessment.acting and any(serving.get(key, 0) < count for key, count in plan.replicas().items())
    most = by_plan if coming else assessment.planned_demand if assessment.conflicting else None
    if most is not None and (carried := _carried(assessment, held, most, plan, policy)) is not None:
        limits.append(carried)
    return min(limits, default=None)


def _started(placement: PlacementSpec, target: TargetState, since_s: float, until_s: float) -> int:
    """Return how many replicas are due to be ready from `since_s` to `until_s`. An overdue one may never be ready."""
    return sum(since_s <= replica.since_s + placement.startup_s <= until_s for replica in target.starting)


def _slots(assessment: Assessment, replicas: Mapping[PlacementKey, int]) -> float:
    """Return how many streams find a slot in every stage of `replicas`. A stage without session slots refuses none.

    What a plan assumes of a replica that has refused none yet is no reason to refuse a stream.
    """
    least = math.inf
    for stage in assessment.spec.stages:
        slots = {
            (stage.name, placement.name): placement.prior.session_slots
            if placement.declared.memory
            else assessment.learned.session_slots.get((stage.name, placement.name))
            for placement in stage.placements
        }
        there = {key: replicas.get(key, 0) for key in slots}
        if any(slots.values()) and not any(there[key] and slots[key] is None for key in slots):
            held = sum(there[key] * (slots[key] or 0) for key in slots)
            least = min(least, held * _own_share(assessment, stage.name))
    return least


def _own_share(assessment: Assessment, name: StageName) -> float:
    """Return the share of a stage's slots that are for this pipeline; those of a shared stage are for all users."""
    sharing = next(own.sharing for own in assessment.pipeline.stages if own.name == name)
    others = 0.0 if sharing is None else sharing.other_sessions
    return assessment.planned_demand / (assessment.planned_demand + others) if others > 0 else 1.0


def _carried(
    assessment: Assessment, serving: Mapping[PlacementKey, int], most: float, plan: PipelinePlan, policy: Policy
) -> float | None:
    """Return the demand that `serving` carries within the SLA; None where it carries `most`, or hardly any demand.

    The result is on a grid, because `most` changes a little in every cycle, and the published limit must not.
    """
    limit_s = plan.replay.composed_limit_s(stages_sla_s(assessment.spec, assessment.profile))

    def in_time(demand: float) -> bool:
        shared = assessment.pipeline.scaled(min(1.0, demand / assessment.planned_demand))
        pipeline = replace(shared, demand=optimizer_demand(assessment.spec, demand))
        latency_s = predicted_latency_s(
            pipeline, serving, assessment.state.memory.batches, composition=policy.composition
        )
        return latency_s is not None and latency_s <= limit_s

    if most <= 0 or in_time(most):
        return None
    too_much = math.floor(math.log(most) / _STEP) + 1
    carried = too_much - _STEPS
    if not in_time(math.exp(carried * _STEP)):
        return None
    while too_much - carried > 1:
        middle = (carried + too_much) // 2
        if in_time(math.exp(middle * _STEP)):
            carried = middle
        else:
            too_much = middle
    return math.exp(carried * _STEP)
