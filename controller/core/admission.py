"""How much load is admitted where not all can be served: by the plan, and meanwhile, while replicas start."""

import math
from collections.abc import Mapping

from controller.core.assessment import Assessment
from controller.core.policy import Policy
from controller.core.problem import GRAIN, pipeline_problem
from controller.core.snapshot import TargetMissing, TargetState
from controller.core.spec import DemandUnit, PlacementKey, PlacementSpec
from optimizer.evaluate import predicted_latency_s
from optimizer.plan import LimitKind, PipelinePlan

_SOON = 0.5
"""Of the interval: what will have started by then serves half of the time until the next decision. Counted later, it
would stand idle beside streams that are turned away; sooner, they would be let in to none."""
_GRAINS = 500
"""How far below the plan's share to look: to less than a hundredth of it."""


def admitted_by_plan(case: Assessment, plan: PipelinePlan) -> float | None:
    """Return the demand beyond which to shed because the plan cannot serve more, None where that helps nobody.

    An SLA that no load at all can meet is a mistake in the SLA, no reason to turn everybody away; nor is a pool that
    does not exist, whose replicas may well serve.
    """
    if case.demand.demand is None or plan.served_fraction >= 1 or (plan.served_fraction <= 0 and case.pools_missing):
        return None
    if plan.served_fraction <= 0 and plan.limited_by is not None and plan.limited_by.kind is LimitKind.SLA:
        return None
    return case.planned_demand * plan.served_fraction


def admitted_meanwhile(
    case: Assessment,
    plan: PipelinePlan,
    desired: Mapping[PlacementKey, int],
    by_plan: float | None,
    *,
    policy: Policy,
    now_s: float,
) -> float | None:
    """Return the demand to admit until what is to come serves, None where that is no less than the plan's.

    While replicas of `desired` start, it is how many streams find a slot: one beyond that is refused by the stages
    anyway, after it was let in, and loses all its chunks. That is counted; no model is believed, whose error would turn
    away who could be served. Where `by_plan` turns some away in any case, it is also what the model says of the
    replicas that serve, until they are those of the plan: of more, all would be late. Where nobody knows what
    serves, nobody is turned away.
    """
    targets = {key: case.state.target(*key) for key in case.spec.placement_keys()}
    if any(isinstance(target, TargetMissing) and target.unreadable for target in targets.values()):
        return None
    there = {key: target for key, target in targets.items() if isinstance(target, TargetState)}
    soon_s = now_s + _SOON * policy.interval_s
    serving = {
        (stage.name, placement.pool): target.ready + _soon(placement, target, soon_s)
        for stage in case.spec.stages
        for placement in stage.placements
        if (target := there.get((stage.name, placement.pool))) is not None
    }
    limits: list[float] = []
    if case.spec.unit is DemandUnit.STREAMS and any(target.ready < desired[key] for key, target in there.items()):
        slots = _slots(case, there, serving)
        if slots < case.planned_demand:
            limits.append(slots)
    if by_plan is not None and any(serving.get(key, 0) < count for key, count in plan.replicas().items()):
        carried = _carried(case, serving, by_plan, policy)
        if carried is not None:
            limits.append(carried)
    return min(limits, default=None)


def _soon(placement: PlacementSpec, target: TargetState, soon_s: float) -> int:
    return sum(replica.since_s + placement.startup_s <= soon_s for replica in target.starting)


def _slots(case: Assessment, there: Mapping[PlacementKey, TargetState], serving: Mapping[PlacementKey, int]) -> float:
    """Return how many streams have or find a slot in every stage. Replicas on their way out hold theirs until the end,
    and take nothing new."""

    def held(key: PlacementKey, slots: int | None) -> float:
        if key not in there:
            return 0.0
        if slots is None:
            return math.inf if serving[key] else 0.0
        return slots * (serving[key] + there[key].terminating)

    return min(
        sum(held((stage.name, placement.pool), placement.prior.session_slots) for placement in stage.placements)
        for stage in case.spec.stages
    )


def _carried(case: Assessment, serving: Mapping[PlacementKey, int], most: float, policy: Policy) -> float | None:
    """Return the demand that `serving` carries within the SLA, None where that is `most`, or next to nothing.

    It is a multiple of the grain: `most` moves from cycle to cycle, and what is published is not to move with it.
    """

    def in_time(demand: float) -> bool:
        asked = pipeline_problem(case.spec, demand, profile=case.profile)
        latency_s = predicted_latency_s(asked, serving, case.state.memory.batches, composition=policy.composition)
        return latency_s is not None and latency_s <= case.spec.sla.latency_s

    if most <= 0 or in_time(most):
        return None
    too_much = math.floor(math.log(most) / GRAIN) + 1
    carried = too_much - _GRAINS
    if not in_time(math.exp(carried * GRAIN)):
        return None
    while too_much - carried > 1:
        middle = (carried + too_much) // 2
        if in_time(math.exp(middle * GRAIN)):
            carried = middle
        else:
            too_much = middle
    return math.exp(carried * GRAIN)
