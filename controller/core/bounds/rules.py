"""Threshold rules: floors on top of the plan.

A floor holds from the time a rule fires until its metric has been clear for a cooldown, and for no less than the
scale-down window. While the metric stays beyond the threshold, the floor rises once per cooldown.

A metric that is clear because of the floor comes back without it. A rule that fires again soon after its floor ended
would start and end the same replicas for ever: each time, the floor then stays for twice as long.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from controller.core.assess.assessment import Assessment
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.carry_over import RuleMemory
from controller.core.state.decision import ChangeReason, RuleState
from controller.core.state.snapshot import PipelineState, PoolState
from controller.core.state.spec import Rule, RuleMetric, StageSpec
from optimizer.model import PoolName, StageName
from profiler.samples import MISSING, Absence, AbsenceReason, DeviceQuantity, Quantity, Reading
from profiler.stages import PipelineProfile, StageProfile

QUANTITIES: Mapping[RuleMetric, Quantity] = {
    RuleMetric.P95: Quantity.LATENCY_P95,
    RuleMetric.UTILIZATION: Quantity.UTILIZATION,
    RuleMetric.QUEUE: Quantity.QUEUE_DEPTH,
    RuleMetric.SESSIONS: Quantity.SESSIONS,
    RuleMetric.RX_QUEUE_PRESSURE: Quantity.RX_QUEUE_PRESSURE,
}
DEVICE_QUANTITIES: Mapping[RuleMetric, DeviceQuantity] = {
    RuleMetric.DEVICE_UTILIZATION: DeviceQuantity.UTILIZATION,
    RuleMetric.DEVICE_HEADROOM: DeviceQuantity.UTILIZATION,
    RuleMetric.COLLECTIVE_ACTIVITY: DeviceQuantity.COLLECTIVE_ACTIVITY,
}


LONGEST_S = 6 * 3600.0
"""The longest time for which a floor outlasts its metric."""
MOSTLY_IDLE = 0.5
"""The utilization up to which a long queue is not believed where items stay for a short time."""
FAR_ABOVE, FEW = 4.0, 10.0
"""A queue is not believed above this many times the items in the stage, plus a few: both are means over a window."""
MOST_RETURNS = 16
SOON = 2.0
"""A rule comes back soon within this multiple of the time for which its metric was clear before the floor ended."""

RULE = Mechanism(
    name="threshold rule",
    level=Level.FLOOR,
    evidence=Evidence.PIPELINE,
    does="a rule that has fired keeps its stage at a floor until its metric has been clear for the cooldown and the "
    "scale-down window; a floor that has to come back stays twice as long",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResults:
    """Every rule of a pipeline with its reading and floor (`states`), and the state for the next cycle (`memories`)."""

    states: tuple[RuleState, ...]
    memories: Mapping[tuple[StageName, str], RuleMemory]


def bounds(assessment: Assessment, results: RuleResults) -> Iterator[Bound]:
    """Yield the floors of the rules that have fired, for stages that the pipeline scales itself."""
    cooldowns_s = {(stage.name, rule.name): rule.cooldown_s for stage in assessment.spec.stages for rule in stage.rules}
    for state in results.states:
        if state.floor is not None and state.stage not in assessment.spec.borrowed:
            key = (state.stage, state.name)
            memory = results.memories[key]
            clear_s = memory.clear_since_s
            held_s = _held_s(cooldowns_s[key], assessment.spec.scaling.down.stabilization_s, memory.returns)
            yield RULE.on(
                state.stage,
                least=state.floor,
                change=ChangeReason.RULE,
                since_s=memory.holds_since_s,
                until_s=None if clear_s is None else clear_s + held_s,
            )


def evaluate_rules(
    state: PipelineState,
    profile: PipelineProfile,
    pools: Mapping[PoolName, PoolState],
    *,
    now_s: float,
    interval_s: float,
) -> RuleResults:
    """Return the results of a pipeline's rules. When a rule fires, the desired replicas plus its own become a floor.

    `interval_s` is the time between cycles.
    """
    profiles = {stage.name: stage for stage in profile.stages}
    states: list[RuleState] = []
    memories: dict[tuple[StageName, str], RuleMemory] = {}
    for stage in state.spec.stages:
        desired = sum(state.desired(stage.name, placement.name) for placement in stage.placements)
        for rule in stage.rules:
            reading = _reading(rule, profiles[stage.name], state)
            before = state.memory.rules.get((stage.name, rule.name), RuleMemory())
            added = rule.add_replicas * (_zones(stage, state, pools) if rule.per_zone else 1)
            held_s = _held_s(rule.cooldown_s, state.spec.scaling.down.stabilization_s, before.returns)
            after = _next(rule, before, reading, desired + added, held_s, now_s=now_s, interval_s=interval_s)
            states.append(RuleState(stage=stage.name, name=rule.name, reading=reading, floor=after.floor))
            if after != RuleMemory():
                memories[(stage.name, rule.name)] = after
    return RuleResults(states=tuple(states), memories=memories)


def _held_s(cooldown_s: float, window_s: float, returns: int) -> float:
    """Return for how long (s) a metric must be clear before its floor ends; it has come back `returns` times."""
    return min(max(cooldown_s, window_s) * 2.0**returns, max(LONGEST_S, cooldown_s, window_s))


def _next(
    rule: Rule, before: RuleMemory, reading: Reading, floor: int, held_s: float, *, now_s: float, interval_s: float
) -> RuleMemory:
    """Return the rule's state after `reading`; `floor` applies if the rule adds replicas now.

    The floor ends when the metric has been clear for `held_s`.
    """
    if isinstance(reading, Absence):
        # Time without data counts towards no cooldown.
        since_s = before.holds_since_s
        moved_s = None if since_s is None else min(now_s, since_s + interval_s)
        return replace(before, holds_since_s=moved_s, clear_since_s=None)
    # It has come back if the floor ended no longer ago than it had been held while the metric was clear.
    ended_s = None if before.ended_s is None else min(now_s, before.ended_s)
    soon = ended_s is not None and now_s - ended_s < SOON * held_s
    if _holds(rule, reading):
        if not before.fired:
            returns = min(MOST_RETURNS, before.returns + 1) if soon else 0
            return RuleMemory(floor=floor, fired=True, holds_since_s=now_s, returns=returns)
        since_s = now_s if before.holds_since_s is None else min(now_s, before.holds_since_s)
        if now_s - since_s < rule.cooldown_s or since_s == now_s:
            return replace(before, holds_since_s=since_s, clear_since_s=None)
        # Replicas of the last step may still be missing, for example at a cap: they are not asked for twice.
        return replace(before, floor=max(floor, before.floor or 0), holds_since_s=now_s, clear_since_s=None)
    if not before.fired:
        return before if soon else RuleMemory()
    since_s = now_s if before.clear_since_s is None else min(now_s, before.clear_since_s)
    if now_s - since_s >= held_s:
        return RuleMemory(returns=before.returns, ended_s=now_s)
    return replace(before, holds_since_s=None, clear_since_s=since_s)


def _holds(rule: Rule, reading: float) -> bool:
    if rule.above is not None:
        return reading > rule.above
    assert rule.below is not None
    return reading < rule.below


def _reading(rule: Rule, profile: StageProfile, state: PipelineState) -> Reading:
    if rule.metric is None:
        return state.rule_readings.get((profile.name, rule.name), MISSING)
    if rule.metric in QUANTITIES:
        found = profile.readings.get(QUANTITIES[rule.metric], MISSING)
        return _plausible_queue(found, profile) if rule.metric is RuleMetric.QUEUE else found
    reading = profile.of_devices(DEVICE_QUANTITIES[rule.metric])
    if rule.metric is RuleMetric.DEVICE_HEADROOM and not isinstance(reading, Absence):
        return max(0.0, 1 - reading)
    return reading


def _plausible_queue(queue: Reading, profile: StageProfile) -> Reading:
    """Return the reading of a queue, absent where what else is measured of the stage contradicts it.

    By Little's law no more items wait than arrive in the time that they stay. A gauge above that, at servers that are
    mostly idle, counts what has long left: it is no reason for replicas.
    """
    arrival_rate, latency_s, utilization = (
        profile.readings.get(quantity, MISSING)
        for quantity in (Quantity.ARRIVAL_RATE, Quantity.LATENCY_P95, Quantity.UTILIZATION)
    )
    if any(isinstance(each, Absence) for each in (queue, arrival_rate, latency_s, utilization)):
        return queue
    assert not isinstance(queue, Absence)
    assert not isinstance(arrival_rate, Absence)
    assert not isinstance(latency_s, Absence)
    assert not isinstance(utilization, Absence)
    staying = arrival_rate * latency_s
    if utilization > MOSTLY_IDLE or queue <= FAR_ABOVE * staying + FEW:
        return queue
    told = f"{queue:.4g} waiting, but {staying:.3g} in the stage by arrivals and p95, at utilization {utilization:.2g}"
    return Absence(reason=AbsenceReason.UNSUPPORTED, detail=told)


def _zones(stage: StageSpec, state: PipelineState, pools: Mapping[PoolName, PoolState]) -> int:
    """Return the most zones of any pool on which the stage has replicas, or of any of its pools while it has none."""
    running = [placement.pool for placement in stage.placements if state.desired(stage.name, placement.name) > 0]
    named = running or [placement.pool for placement in stage.placements]
    return max([1, *(pools[pool].zones for pool in named if pool in pools)])
