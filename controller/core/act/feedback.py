"""Closes the loop on the measured latency: steps of capacity beyond the plan while the SLA is missed.

The plan follows a model of the stages, and the model may be wrong. A measured miss of the SLA that persists leads to
more replicas at the stage whose measured latency most exceeds its share of the plan, whatever the model says. A step
that does not lower the latency is taken back, and what is missed is named: a slow gateway must not empty the budget.
What was added is given back in small steps once there has been room for long.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from controller.core.assess.assessment import Assessment
from controller.core.assess.learning import settled
from controller.core.messages import details
from controller.core.state.carry_over import FeedbackMemory, FeedbackStep
from controller.core.state.decision import Hold, HoldReason
from controller.core.state.spec import PlacementKey
from optimizer.latency.stage import capacity_rps
from optimizer.model import PoolName, StageName
from optimizer.plan import PipelinePlan
from profiler.correction import leaves_too_little
from profiler.samples import Absence, Quantity

PATIENCE = 2
"""How many cycles in a row must miss the SLA before a step."""
STEP = 0.25
"""The share of a stage's replicas that a step adds."""
WINDOWS = 3
"""How many windows of the stage's metrics a step has, after its start-up, to lower the latency."""
LOWERED = 0.05
"""The share by which the latency must fall for a step to count as useful. A percentile varies by a few percent."""
USELESS_S = 1800.0
"""How long no other step is made at a stage where one was taken back."""
ROOM = 0.95
"""Capacity is given back where the latency then stays below this share of the SLA, taken to grow as replicas get
fewer."""
GIVE_BACK_S = 600.0
"""How long there must have been room before capacity is given back, and how long until the next such step."""

Attainable = Callable[[Mapping[StageName, int]], Mapping[PlacementKey, int]]
"""Returns the planned replicas, raised to given floors of stages as far as bounds, pools and budget allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """The state for the next cycle, and why no capacity is added although the SLA is missed (None: no such reason)."""

    memory: FeedbackMemory
    hold: Hold | None = None


def floors(memory: FeedbackMemory, assessment: Assessment, plan: PipelinePlan) -> Mapping[StageName, int]:
    """Return the least replicas of the stages whose plan is below their floor.

    A floor is in proportion to the demand, so that what a busy day needed is not kept at night. It counts replicas by
    their capacity, so that a plan with fewer and faster ones is not raised. What is missing is rounded to the nearest
    replica: noise in the demand must not add one.
    """
    least: dict[StageName, int] = {}
    for stage, floor in memory.floors.items():
        weights = _weights(assessment, stage)
        planned = {p.pool: p.replicas for own in plan.stages if own.name == stage for p in own.placements}
        missing = floor * assessment.planned_demand - _weighted(planned, weights)
        used = [weights[pool] for pool, count in planned.items() if count] or [max(weights.values())]
        more = math.floor(missing / min(used) + 0.5)
        if more > 0:
            least[stage] = sum(planned.values()) + more
    return least


def _weights(assessment: Assessment, name: StageName) -> Mapping[PoolName, float]:
    """Return the capacity of a replica on each pool of a stage, relative to the largest."""
    (stage,) = (own for own in assessment.pipeline.stages if own.name == name)
    capacities = {own.pool: capacity_rps(own, own.batch_sizes[-1]) for own in stage.placements}
    largest = max(capacities.values())
    return {pool: capacity / largest for pool, capacity in capacities.items()}


def _weighted(replicas: Mapping[PoolName, int], weights: Mapping[PoolName, float]) -> float:
    return sum(count * weights[pool] for pool, count in replicas.items())


def close_loop(
    assessment: Assessment,
    plan: PipelinePlan,
    aimed: Mapping[PlacementKey, int],
    attainable: Attainable,
    now_s: float,
) -> Feedback:
    """Return the feedback of this cycle on the measured latency of a pipeline that is planned as `plan`.

    `aimed` is what the pipeline aims for without this feedback.
    """
    before, latency_s = assessment.state.memory.feedback, assessment.profile.latency_s
    names = {stage.name for stage in assessment.spec.stages}
    memory = replace(
        before,
        floors={stage: floor for stage, floor in before.floors.items() if stage in names},
        useless_until_s={stage: t for stage, t in before.useless_until_s.items() if t > now_s and stage in names},
        step=before.step if before.step is not None and before.step.stage in names else None,
    )
    unknown = assessment.demand_missing or assessment.planned_demand <= 0
    if not assessment.acting or unknown or isinstance(latency_s, Absence):
        return Feedback(memory=replace(memory, misses=0))
    sla_s = assessment.spec.sla.latency_s
    memory = _judged(memory, assessment, plan, latency_s, now_s)
    if latency_s <= sla_s:
        memory = replace(memory, misses=0)
        return Feedback(memory=_given_back(memory, assessment, plan, latency_s, now_s))
    memory = replace(memory, misses=memory.misses + 1, room_since_s=None)
    if memory.misses < PATIENCE or assessment.learning.floors:
        return Feedback(memory=memory)
    if leaves_too_little(sla_s, assessment.profile.overhead_s):
        return Feedback(memory=memory, hold=_unexplained(memory, assessment, latency_s))
    if memory.step is not None:
        return Feedback(memory=memory, hold=_refused(memory, assessment, plan, latency_s, now_s))
    if not plan.feasible or _grows(assessment, aimed):  # what is missed has a name, or capacity is on its way
        return Feedback(memory=memory)
    return _stepped(memory, assessment, plan, attainable, latency_s, now_s)


def _planned(plan: PipelinePlan, stage: StageName) -> int:
    return sum(placement.replicas for own in plan.stages if own.name == stage for placement in own.placements)


def _current(assessment: Assessment, stage: StageName) -> int:
    return sum(count for key, count in assessment.current.items() if key[0] == stage)


def _grows(assessment: Assessment, aimed: Mapping[PlacementKey, int]) -> bool:
    """Whether replicas are added to a stage without feedback."""
    totals: dict[StageName, int] = {}
    for (stage, _), count in aimed.items():
        totals[stage] = totals.get(stage, 0) + count
    return any(total > _current(assessment, stage) for stage, total in totals.items())


def _starts(assessment: Assessment, stage: StageName) -> bool:
    """Whether replicas of the stage are not ready yet. A pending one stops counting at its pool's deadline."""
    return any(key[0] == stage and target.ready < target.desired for key, target in assessment.state.found())


def _undone(memory: FeedbackMemory, step: FeedbackStep, assessment: Assessment, plan: PipelinePlan) -> bool:
    """Whether replicas of the step were refused, because a pool or the budget has no room for them."""
    floor = floors(memory, assessment, plan).get(step.stage, 0)
    return _current(assessment, step.stage) < min(step.replicas, floor)


def _refused(
    memory: FeedbackMemory, assessment: Assessment, plan: PipelinePlan, latency_s: float, now_s: float
) -> Hold | None:
    """Return the hold about a step whose replicas were refused, None where they were not."""
    step = memory.step
    if step is None or now_s <= step.at_s or not _undone(memory, step, assessment, plan):
        return None
    detail = details.no_room_for_step(assessment.spec.sla, latency_s)
    return Hold(reason=HoldReason.SLA_MISSED, stage=step.stage, detail=detail)


def _judged(
    memory: FeedbackMemory, assessment: Assessment, plan: PipelinePlan, latency_s: float, now_s: float
) -> FeedbackMemory:
    """Return the memory after the step under observation has lowered the latency, or has had its time."""
    step = memory.step
    if step is None:
        return memory
    if now_s < step.at_s + _trial_s(assessment, step.stage) or _starts(assessment, step.stage):
        return memory
    if latency_s <= max(assessment.spec.sla.latency_s, (1 - LOWERED) * step.before_s):
        return replace(memory, step=None)
    kept = {stage: floor for stage, floor in memory.floors.items() if stage != step.stage}
    if step.floor_before is not None:
        kept[step.stage] = step.floor_before
    if _undone(memory, step, assessment, plan):  # it was not carried out, which says nothing of its use
        return replace(memory, floors=kept, step=None)
    return replace(
        memory,
        floors=kept,
        step=None,
        useless_until_s={**memory.useless_until_s, step.stage: now_s + USELESS_S},
    )


def _trial_s(assessment: Assessment, name: StageName) -> float:
    stage = next(own for own in assessment.spec.stages if own.name == name)
    return max(placement.startup_s for placement in stage.placements) + WINDOWS * stage.metrics_window_s


def _given_back(
    memory: FeedbackMemory, assessment: Assessment, plan: PipelinePlan, latency_s: float, now_s: float
) -> FeedbackMemory:
    """Return the memory with less capacity beyond the plan, where the latency has left room for long.

    Half of what is beyond the plan is given back at a time, or as much as there is room for.
    """
    if not memory.floors:
        return replace(memory, room_since_s=None)
    stage = min(memory.floors, key=lambda name: (_excess(assessment, plan, name), name))
    lower = {name: floor for name, floor in memory.floors.items() if name != stage}
    least, planned = floors(memory, assessment, plan).get(stage, 0), _planned(plan, stage)
    fewest = math.ceil(least * latency_s / (ROOM * assessment.spec.sla.latency_s))
    if planned < least <= fewest:
        return replace(memory, room_since_s=None)
    since_s = now_s if memory.room_since_s is None else min(now_s, memory.room_since_s)
    if now_s - since_s < GIVE_BACK_S:
        return replace(memory, room_since_s=since_s)
    kept = max(fewest, planned + (least - planned) // 2)
    if kept > planned and least > planned:
        lower[stage] = memory.floors[stage] * kept / least
    return replace(memory, floors=lower, room_since_s=now_s)


def _excess(assessment: Assessment, plan: PipelinePlan, name: StageName) -> float:
    """Return the measured 95th percentile of a stage over its latency in the plan; 0 where one is not known."""
    profile = next(own for own in assessment.profile.stages if own.name == name)
    measured_s = profile.readings.get(Quantity.LATENCY_P95)
    share_s = next((own.latency_s for own in plan.stages if own.name == name), None)
    if measured_s is None or isinstance(measured_s, Absence) or not share_s:
        return 0.0
    return measured_s / share_s


def _stepped(
    memory: FeedbackMemory,
    assessment: Assessment,
    plan: PipelinePlan,
    attainable: Attainable,
    latency_s: float,
    now_s: float,
) -> Feedback:
    """Return the feedback with a step at the stage whose latency most exceeds its share, or with what prevents it."""
    excesses = {stage.name: _excess(assessment, plan, stage.name) for stage in assessment.spec.stages}
    ranked = sorted((name for name in excesses if excesses[name] > 1), key=lambda name: -excesses[name])
    helpless = memory.useless_until_s.keys() | assessment.missing.owners
    useful = [name for name in ranked if name not in helpless]
    if not useful:
        return Feedback(memory=memory, hold=_unexplained(memory, assessment, latency_s))
    name = useful[0]
    stage = next(own for own in assessment.spec.stages if own.name == name)
    if not settled(stage, assessment.learning.stages_moved_at_s, now_s):
        return Feedback(memory=memory)
    current = _current(assessment, name)
    total = max(_planned(plan, name), current)
    total += max(1, math.ceil(STEP * total))
    total = min(total, current + assessment.spec.scaling.up.most(current))
    replicas = attainable({**floors(memory, assessment, plan), name: total})
    reached = sum(count for key, count in replicas.items() if key[0] == name)
    if reached <= current:
        detail = details.no_room_for_step(assessment.spec.sla, latency_s)
        return Feedback(memory=memory, hold=Hold(reason=HoldReason.SLA_MISSED, stage=name, detail=detail))
    weights, demand = _weights(assessment, name), assessment.planned_demand
    floor = _weighted({key[1]: count for key, count in replicas.items() if key[0] == name}, weights) / demand
    before = memory.floors.get(name)
    if current > _planned(plan, name):  # replicas beyond the plan for another reason stay if the step is taken back
        present = {key[1]: count for key, count in assessment.current.items() if key[0] == name}
        before = max(before or 0.0, _weighted(present, weights) / demand)
    step = FeedbackStep(stage=name, at_s=now_s, before_s=latency_s, replicas=reached, floor_before=before)
    return Feedback(memory=replace(memory, floors={**memory.floors, name: floor}, step=step))


def _unexplained(memory: FeedbackMemory, assessment: Assessment, latency_s: float) -> Hold:
    """Return why the SLA is missed although no stage can be helped by more replicas."""
    overhead_s = assessment.profile.overhead_s or 0.0
    excess_s = latency_s - assessment.spec.sla.latency_s
    reason = HoldReason.OVERHEAD if overhead_s >= excess_s else HoldReason.UNEXPLAINED
    detail = details.unexplained(assessment.spec.sla, latency_s, overhead_s, sorted(memory.useless_until_s))
    return Hold(reason=reason, detail=detail)
