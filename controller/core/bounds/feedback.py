"""Closes the loop on the measured latency: steps of capacity beyond the plan while the SLA is missed.

The plan follows a model of the stages, and the model may be wrong. A measured miss of the SLA that persists leads to
more replicas at the stage whose measured latency most exceeds its share of the plan, whatever the model says. A step
that does not lower the latency is taken back, and what is missed is named: a slow gateway must not empty the budget.
What was added is given back in small steps once there has been room for long.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from controller.core.assess.assessment import Assessment
from controller.core.assess.learned_numbers import settled
from controller.core.assess.skews import FULL
from controller.core.bounds.learning import LEARN
from controller.core.messages import details
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.carry_over import FeedbackFloor, FeedbackMemory, FeedbackStep
from controller.core.state.decision import ChangeReason, Hold, HoldReason
from optimizer.latency.stage import capacity_rps
from optimizer.model import PlacementKey, PlacementName, StageName
from optimizer.plan import PipelinePlan
from profiler.correction import leaves_too_little
from profiler.samples import Absence, Quantity

PATIENCE = 2
"""How many cycles in a row must miss the SLA with the present replicas before a step."""
STEP = 0.25
"""The share of a stage's replicas that a step adds."""
WINDOWS = 3
"""How many windows of the stage's metrics a step has, after its start-up, to lower the latency."""
LOWERED = 0.05
"""The share by which the latency must fall for a step to count as useful. A percentile varies by a few percent."""
SMOOTHING_S = 90.0
"""Time constant of the latencies that are compared. A step has twice this time to be seen in them."""
GROWN = 1.1
"""Latencies are not compared from this multiple of the demand on: a step that keeps up with the load is useful too."""
USELESS_S = 1800.0
"""How long no other step is made at a stage where one was taken back; twice as long after each further one, so that a
miss which replicas cannot cure does not make a permanent trial."""
MOST_DOUBLINGS = 5
ROOM = 0.95
"""Capacity is given back where the latency then stays below this share of the SLA, taken to grow as replicas get
fewer."""
GIVE_BACK_S = 600.0
"""How long there must have been room before capacity is given back, and how long until the next such step."""

Attainable = Callable[[Mapping[StageName, int]], Mapping[PlacementKey, int]]
"""Returns the planned replicas, raised to given floors of stages as far as bounds, pools and budget allow."""


FEEDBACK = Mechanism(
    name="feedback of the measured latency",
    level=Level.FLOOR,
    evidence=Evidence.PIPELINE,
    does="a measured miss that lasts adds replicas in steps beyond the plan; a step that does not help is taken back",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """The state for the next cycle, and why no capacity is added although the SLA is missed (None: no such reason)."""

    memory: FeedbackMemory
    hold: Hold | None = None


def bounds(assessment: Assessment, plan: PipelinePlan, memory: FeedbackMemory) -> Iterator[Bound]:
    """Yield the floors of the stages whose plan is below what the measured latency has shown to be needed."""
    for stage, least in floors(memory, assessment, plan).items():
        yield FEEDBACK.on(
            stage, least=least, change=ChangeReason.MEASURED_MISS, since_s=assessment.state.memory.missed_since_s
        )


def floors(memory: FeedbackMemory, assessment: Assessment, plan: PipelinePlan) -> Mapping[StageName, int]:
    """Return the least replicas of the stages whose plan is below their floor.

    A floor is in proportion to the demand, so that what a busy day needed is not kept at night. Above the demand at
    which it was set, it grows no more than the plan does, and one replica of it does not grow: one more at night may be
    twice what the plan needs, but says nothing of twice as many at a hundred times the load. It counts replicas by
    their capacity, so that a plan with fewer and faster ones is not raised. What is missing is rounded to the nearest
    replica: noise in the demand must not add one. While nothing may be removed, the plan contains what runs, floors
    included: they would be added once more.
    """
    least: dict[StageName, int] = {}
    if assessment.never_down:
        return least
    turning = _turning(assessment, plan)
    for stage, floor in memory.floors.items():
        if stage in turning:
            continue
        weights, planned = _weights(assessment, stage), _of_stage(plan.replicas(), stage)
        missing = _wanted(stage, floor, assessment, plan) - _weighted(planned, weights)
        used = [weights[pool] for pool, count in planned.items() if count] or [max(weights.values())]
        more = math.floor(missing / min(used) + 0.5)
        if more > 0:
            least[stage] = sum(planned.values()) + more
    return least


def _turning(assessment: Assessment, plan: PipelinePlan) -> Collection[StageName]:
    """Return the stages whose cascade begins or ends: what was measured before says nothing of the replicas to come."""
    now, then = assessment.current, plan.replicas()
    return {stage.name for stage in assessment.spec.stages if bool(stage.first(now)) != bool(stage.first(then))}


def _wanted(stage: StageName, floor: FeedbackFloor, assessment: Assessment, plan: PipelinePlan) -> float:
    """Return the replicas of `floor` at the present demand, counted by their capacity."""
    growth = assessment.planned_demand / floor.demand
    if growth <= 1:
        return floor.replicas * growth
    growth = min(growth, max(1.0, _carried(plan.replicas(), stage, assessment) / floor.planned))
    one = min(1.0, max(0.0, floor.replicas - floor.planned))
    return (floor.replicas - one) * growth + one


def _weights(assessment: Assessment, name: StageName) -> Mapping[PlacementName, float]:
    """Return the capacity of a replica of each placement of a stage, relative to the largest."""
    (stage,) = (own for own in assessment.pipeline.stages if own.name == name)
    capacities = {own.name: capacity_rps(own, own.batch_sizes[-1]) for own in stage.placements}
    largest = max(capacities.values())
    return {placement: capacity / largest for placement, capacity in capacities.items()}


def _weighted(replicas: Mapping[PlacementName, int], weights: Mapping[PlacementName, float]) -> float:
    return sum(count * weights[placement] for placement, count in replicas.items())


def _of_stage(replicas: Mapping[PlacementKey, int], stage: StageName) -> Mapping[PlacementName, int]:
    return {placement: count for (name, placement), count in replicas.items() if name == stage}


def _total(replicas: Mapping[PlacementKey, int], stage: StageName) -> int:
    return sum(_of_stage(replicas, stage).values())


def _carried(replicas: Mapping[PlacementKey, int], stage: StageName, assessment: Assessment) -> float:
    """Return the replicas of `stage`, counted by their capacity."""
    return _weighted(_of_stage(replicas, stage), _weights(assessment, stage))


def _floor(replicas: float, stage: StageName, assessment: Assessment, plan: PipelinePlan) -> FeedbackFloor:
    """Return the floor of `replicas`, counted by their capacity, of `stage` at the present demand."""
    least = min(_weights(assessment, stage).values())
    planned = max(least, _carried(plan.replicas(), stage, assessment))
    return FeedbackFloor(replicas=max(least, replicas), demand=assessment.planned_demand, planned=planned)


def close_loop(
    assessment: Assessment,
    plan: PipelinePlan,
    aimed: Mapping[PlacementKey, int],
    attainable: Attainable,
    *,
    now_s: float,
    interval_s: float,
) -> Feedback:
    """Return the feedback of this cycle on the measured latency of a pipeline that is planned as `plan`.

    `aimed` is what the pipeline aims for without this feedback. The last cycle was `interval_s` ago.
    """
    before, latency_s = assessment.state.memory.feedback, assessment.profile.latency_s
    names = {stage.name for stage in assessment.spec.stages} - set(_turning(assessment, plan))
    memory = _of_now(before, names, now_s)
    unknown = assessment.demand_missing or assessment.planned_demand <= 0
    if not assessment.acting or unknown or isinstance(latency_s, Absence):
        return Feedback(memory=replace(memory, misses=0))
    sla_s = assessment.spec.sla.latency_s
    smooth_s, lowest_s = memory.latency_s, memory.lowest_s
    weight = 1 - math.exp(-interval_s / SMOOTHING_S)
    memory = replace(
        memory,
        latency_s=latency_s if smooth_s is None else smooth_s + weight * (latency_s - smooth_s),
        lowest_s=latency_s if memory.misses == 0 or lowest_s is None else min(lowest_s, latency_s),
    )
    memory = _judged(memory, assessment, plan, now_s)
    if latency_s <= sla_s:
        met_since_s = now_s if memory.met_since_s is None else min(now_s, memory.met_since_s)
        memory = replace(memory, misses=0, met_since_s=met_since_s)
        if now_s - met_since_s >= GIVE_BACK_S:
            memory = replace(memory, kept={})
        if now_s - met_since_s >= USELESS_S:
            memory = replace(memory, vain={})
        if assessment.never_down:
            return Feedback(memory=memory)
        return Feedback(memory=_given_back(memory, assessment, plan, latency_s, now_s))
    misses = memory.misses + _of_present_replicas(assessment, now_s)
    memory = replace(memory, misses=min(PATIENCE, misses), met_since_s=None, room_since_s=None)
    if memory.misses < PATIENCE:
        return Feedback(memory=memory)
    if leaves_too_little(sla_s, assessment.profile.overhead_s):
        return Feedback(memory=memory, hold=_unexplained(memory, assessment, latency_s))
    if memory.step is not None:
        return Feedback(memory=memory, hold=_refused(memory, assessment, plan, latency_s, now_s))
    starts = any(_starts(assessment, stage.name) for stage in assessment.spec.stages)
    if not plan.feasible or starts or _grows(assessment, aimed):  # what is missed has a name, or capacity is on its way
        return Feedback(memory=memory)
    return _stepped(memory, assessment, plan, attainable, latency_s, now_s)


def _of_now(memory: FeedbackMemory, names: Collection[StageName], now_s: float) -> FeedbackMemory:
    """Return `memory` without stages that are not in `names`, and without times of a clock that was set back since."""
    step = memory.step
    return replace(
        memory,
        floors={stage: floor for stage, floor in memory.floors.items() if stage in names},
        step=replace(step, at_s=min(now_s, step.at_s)) if step is not None and step.stage in names else None,
        kept={stage: first for stage, first in memory.kept.items() if stage in names},
        useless_until_s={
            stage: min(t, now_s + _useless_s(memory.vain.get(stage, 1)))
            for stage, t in memory.useless_until_s.items()
            if t > now_s and stage in names
        },
    )


def _grows(assessment: Assessment, aimed: Mapping[PlacementKey, int]) -> bool:
    """Whether replicas are added to a stage without feedback."""
    names = (stage.name for stage in assessment.spec.stages)
    return any(_total(aimed, name) > _total(assessment.current, name) for name in names)


def _starts(assessment: Assessment, stage: StageName) -> bool:
    """Whether replicas of the stage are not ready yet: neither pending ones nor failing ones count for ever."""
    return any(
        key[0] == stage and target.ready < target.desired and key not in assessment.bounds.failures
        for key, target in assessment.state.found()
    )


def _of_present_replicas(assessment: Assessment, now_s: float) -> bool:
    """Whether what is missed is missed by the replicas of now, not by those of before the last change.

    The latency of the whole pipeline holds what every stage was like for a window. A pipeline whose replicas never rest
    would wait for ever: a miss that has lasted for several windows counts in any case.
    """
    stages, missed_since_s = assessment.spec.stages, assessment.state.memory.missed_since_s
    lasts_s = 0.0 if missed_since_s is None else now_s - missed_since_s
    moved_at_s = assessment.stages_moved_at_s
    return lasts_s >= WINDOWS * max(stage.metrics_window_s for stage in stages) or all(
        settled(stage, moved_at_s, now_s) for stage in stages
    )


def _undone(memory: FeedbackMemory, step: FeedbackStep, assessment: Assessment, plan: PipelinePlan) -> bool:
    """Whether replicas of the step were refused, because a pool or the budget has no room for them."""
    floor = floors(memory, assessment, plan).get(step.stage, 0)
    return _total(assessment.current, step.stage) < min(step.replicas, floor)


def _refused(
    memory: FeedbackMemory, assessment: Assessment, plan: PipelinePlan, latency_s: float, now_s: float
) -> Hold | None:
    """Return the hold about a step whose replicas were refused, None where they were not."""
    step = memory.step
    if step is None or now_s <= step.at_s or not _undone(memory, step, assessment, plan):
        return None
    detail = details.no_room_for_step(assessment.spec.sla, latency_s)
    return Hold(reason=HoldReason.SLA_MISSED, stage=step.stage, detail=detail)


def _judged(memory: FeedbackMemory, assessment: Assessment, plan: PipelinePlan, now_s: float) -> FeedbackMemory:
    """Return the memory after the step under observation has lowered the latency, or has had its time."""
    step, latency_s = memory.step, memory.latency_s
    if step is None or latency_s is None:
        return memory
    if now_s < step.at_s + _trial_s(assessment, step.stage) or _starts(assessment, step.stage):
        return memory
    if latency_s <= max(assessment.spec.sla.latency_s, (1 - LOWERED) * step.before_s):
        first = memory.kept.get(step.stage)
        first = step if first is None else replace(first, before_s=(1 - LOWERED) * first.before_s)
        return replace(memory, step=None, kept={**memory.kept, step.stage: first}, vain={})
    if assessment.planned_demand > GROWN * step.demand:
        return replace(memory, step=replace(step, at_s=now_s, before_s=latency_s, demand=assessment.planned_demand))
    if _undone(memory, step, assessment, plan):  # it was not carried out, which says nothing of its use
        return replace(memory, floors=_floors_before(memory, step), step=None)
    return replace(_taken_back(memory, step, now_s), step=None)


def _floors_before(memory: FeedbackMemory, step: FeedbackStep) -> Mapping[StageName, FeedbackFloor]:
    kept = {stage: floor for stage, floor in memory.floors.items() if stage != step.stage}
    return kept if step.floor_before is None else {**kept, step.stage: step.floor_before}


def _useless_s(times: int) -> float:
    """Return how long (s) no step is made at a stage where steps were taken back so many `times` in a row."""
    return float(USELESS_S * 2 ** min(MOST_DOUBLINGS, times - 1))


def _taken_back(memory: FeedbackMemory, step: FeedbackStep, now_s: float) -> FeedbackMemory:
    """Return the memory without `step` and all later ones of its stage, which have not lowered the latency."""
    vain = {**memory.vain, step.stage: memory.vain.get(step.stage, 0) + 1}
    return replace(
        memory,
        floors=_floors_before(memory, step),
        kept={stage: first for stage, first in memory.kept.items() if stage != step.stage},
        useless_until_s={**memory.useless_until_s, step.stage: now_s + _useless_s(vain[step.stage])},
        vain=vain,
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
    least, planned = floors(memory, assessment, plan).get(stage, 0), _total(plan.replicas(), stage)
    # Tolerance may keep more replicas than the floor: the latency is that of all of them.
    running = max(least, _total(assessment.current, stage))
    fewest = math.ceil(running * latency_s / (ROOM * assessment.spec.sla.latency_s))
    if planned < least <= fewest:
        return replace(memory, room_since_s=None)
    since_s = now_s if memory.room_since_s is None else min(now_s, memory.room_since_s)
    if now_s - since_s < GIVE_BACK_S:
        return replace(memory, room_since_s=since_s)
    kept = max(fewest, planned + (least - planned) // 2)
    if kept > planned and least > planned:
        fewer = _wanted(stage, memory.floors[stage], assessment, plan) * kept / least
        lower[stage] = _floor(fewer, stage, assessment, plan)
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
    crowded = {own.stage for own in assessment.bounds.skews if own.utilization >= FULL}
    helpless = memory.useless_until_s.keys() | assessment.missing.owners
    learning = {
        bound.stage for bound in assessment.bounds.of(LEARN)
    }  # they have no share yet, and double by themselves while they queue
    # New replicas get no sessions that stay on a crowded one. Where these are drained, the drain adds what it needs.
    drained = crowded if assessment.spec.scaling.cut_cost_s is not None else set[StageName]()
    useful = [name for name in ranked if name not in helpless | learning | drained]
    if not useful:
        hold = None
        if crowded and not learning:
            hold = Hold(reason=HoldReason.CROWDED, detail=", ".join(sorted(crowded)))
        elif not learning:
            hold = _unexplained(memory, assessment, latency_s)
        return Feedback(memory=memory, hold=hold)
    name = useful[0]
    stage = next(own for own in assessment.spec.stages if own.name == name)
    if not settled(stage, assessment.stages_moved_at_s, now_s):
        return Feedback(memory=memory)
    if (first := memory.kept.get(name)) is not None and assessment.planned_demand <= GROWN * first.demand:
        # Each step was followed by a lower latency, which may have been noise: together they must have lowered it too.
        if _compared_s(memory) > (1 - LOWERED) * first.before_s:
            memory = _taken_back(memory, first, now_s)
            return Feedback(memory=memory, hold=_unexplained(memory, assessment, latency_s))
    elif first is not None:
        memory = replace(memory, kept={own: step for own, step in memory.kept.items() if own != name})
    current = _total(assessment.current, name)
    total = max(_total(plan.replicas(), name), current)
    total += max(1, math.ceil(STEP * total))
    total = min(total, current + assessment.spec.scaling.up.most(current))
    replicas = attainable({**floors(memory, assessment, plan), name: total})
    reached = _total(replicas, name)
    if reached <= current:
        detail = details.no_room_for_step(assessment.spec.sla, latency_s)
        return Feedback(memory=memory, hold=Hold(reason=HoldReason.SLA_MISSED, stage=name, detail=detail))
    floor = _floor(_carried(replicas, name, assessment), name, assessment, plan)
    before = memory.floors.get(name)
    # Replicas beyond the plan for another reason stay if the step is taken back.
    if current > _total(plan.replicas(), name):
        present = _carried(assessment.current, name, assessment)
        if before is None or present > _wanted(name, before, assessment, plan):
            before = _floor(present, name, assessment, plan)
    step = FeedbackStep(
        stage=name,
        at_s=now_s,
        before_s=_compared_s(memory),
        demand=assessment.planned_demand,
        replicas=reached,
        floor_before=before,
    )
    return Feedback(memory=replace(memory, floors={**memory.floors, name: floor}, step=step))


def _compared_s(memory: FeedbackMemory) -> float:
    """Return the latency (s) that a step must lower: smoothed, but at least the lowest since the SLA is missed.

    Single percentiles would be compared while they are high by chance, and what follows would be lower without a step.
    The smoothed one follows a sudden rise too late.
    """
    return max(memory.latency_s or 0.0, memory.lowest_s or 0.0)


def _unexplained(memory: FeedbackMemory, assessment: Assessment, latency_s: float) -> Hold:
    """Return why the SLA is missed although no stage can be helped by more replicas."""
    profile = assessment.profile
    excess_s = latency_s - assessment.spec.sla.latency_s
    overhead = profile.overhead_s is not None and profile.overhead_s >= excess_s
    silent = [
        stage.name for stage in profile.stages if isinstance(stage.readings.get(Quantity.LATENCY_P95), Absence | None)
    ]
    detail = details.unexplained(
        assessment.spec.sla, latency_s, profile.overhead_s, tried=sorted(memory.useless_until_s), silent=silent
    )
    return Hold(reason=HoldReason.OVERHEAD if overhead else HoldReason.UNEXPLAINED, detail=detail)
