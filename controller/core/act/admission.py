"""The load to admit where not all of it can be served: by the plan, and while replicas start."""

import math
from collections.abc import Mapping
from dataclasses import replace

from controller.core.assess.assessment import Assessment
from controller.core.assess.optimizer_input import optimizer_demand
from controller.core.state.policy import Policy
from controller.core.state.snapshot import TargetMissing, TargetState
from controller.core.state.spec import DemandUnit, PlacementKey, PlacementSpec
from optimizer.latency.predict import predicted_latency_s
from optimizer.plan import LimitKind, PipelinePlan
from profiler.stages import GRAIN

_SOON = 0.5
"""Share of the interval within which a starting replica counts as ready: it is then ready for half of the time until
the next decision. With less, slots would be idle while streams are refused; with more, streams would lack a slot."""
_PATIENCE = 10.0
"""How long an admitted stream waits for a slot, as a multiple of the SLA."""
_STEP = 5 * GRAIN
_STEPS = 100
"""Steps below the plan's demand to search: to less than a hundredth of it."""


def admitted_by_plan(assessment: Assessment, plan: PipelinePlan) -> float | None:
    """Return the most demand that the plan can serve, None where no limit is to be published.

    There is no limit where no load at all can meet the SLA, which is a mistake in the SLA; nor where a pool does not
    exist, because its replicas may still be ready.
    """
    if (
        assessment.demand.demand is None
        or plan.served_fraction >= 1
        or (plan.served_fraction <= 0 and assessment.missing.pools)
    ):
        return None
    if plan.served_fraction <= 0 and plan.limited_by is not None and plan.limited_by.kind is LimitKind.SLA:
        return None
    return assessment.planned_demand * plan.served_fraction


def admitted_meanwhile(
    assessment: Assessment,
    plan: PipelinePlan,
    desired: Mapping[PlacementKey, int],
    by_plan: float | None,
    *,
    policy: Policy,
    now_s: float,
) -> float | None:
    """Return the demand to admit until pending replicas are ready, None where none are pending or they are unknown.

    While replicas of `desired` start, it is the number of streams with a slot: the stages would refuse a further stream
    after it was admitted, and it would lose all its chunks. Slots are counted, because a model error could refuse
    servable streams. Where `by_plan` refuses load in any case, it is also the load that the model predicts within the
    SLA for the ready replicas, until these are the planned ones: with more load, all of it would be late.
    """
    if any(isinstance(target, TargetMissing) and target.unreadable for target in assessment.state.targets.values()):
        return None
    there = dict(assessment.state.found())
    if {stage for stage, _ in there} != {stage.name for stage in assessment.spec.stages}:
        return None
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
    if by_plan is not None and coming and (carried := _carried(assessment, held, by_plan, policy)) is not None:
        limits.append(carried)
    return min(limits, default=None)


def _started(placement: PlacementSpec, target: TargetState, since_s: float, until_s: float) -> int:
    """Return how many replicas are due to be ready between the two times. An overdue one may never be ready."""
    return sum(since_s <= replica.since_s + placement.startup_s <= until_s for replica in target.starting)


def _slots(assessment: Assessment, replicas: Mapping[PlacementKey, int]) -> float:
    """Return how many streams find a slot in every stage. A stage without session slots refuses none."""
    least = math.inf
    for stage in assessment.spec.stages:
        slots = {(stage.name, placement.pool): placement.prior.session_slots for placement in stage.placements}
        there = {key: replicas.get(key, 0) for key in slots}
        if any(slots.values()) and not any(there[key] and slots[key] is None for key in slots):
            least = min(least, sum(there[key] * (slots[key] or 0) for key in slots))
    return least


def _carried(assessment: Assessment, serving: Mapping[PlacementKey, int], most: float, policy: Policy) -> float | None:
    """Return the demand that `serving` carries within the SLA, None where that is `most`, or hardly any.

    The result is on a grid: `most` changes a little in every cycle, and the published limit must not.
    """

    def in_time(demand: float) -> bool:
        pipeline = replace(assessment.pipeline, demand=optimizer_demand(assessment.spec, demand))
        latency_s = predicted_latency_s(
            pipeline, serving, assessment.state.memory.batches, composition=policy.composition
        )
        return latency_s is not None and latency_s <= assessment.spec.sla.latency_s

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
