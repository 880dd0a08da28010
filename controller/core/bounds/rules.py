"""Threshold rules: floors on top of the plan.

A floor holds from the time a rule fires until its metric has been clear for a cooldown. While the metric stays beyond
the threshold, the floor rises once per cooldown.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from controller.core.assess.assessment import Assessment
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.carry_over import RuleMemory
from controller.core.state.decision import ChangeReason, RuleState
from controller.core.state.snapshot import PipelineState, PoolState
from controller.core.state.spec import Rule, RuleMetric, StageSpec
from optimizer.model import PoolName, StageName
from profiler.samples import MISSING, Absence, DeviceQuantity, Quantity, Reading
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


RULE = Mechanism(
    name="threshold rule",
    level=Level.FLOOR,
    evidence=Evidence.PIPELINE,
    does="a rule that has fired keeps its stage at a floor until its metric has been clear for the cooldown",
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
            yield RULE.on(
                state.stage,
                least=state.floor,
                change=ChangeReason.RULE,
                since_s=memory.holds_since_s,
                until_s=None if clear_s is None else clear_s + cooldowns_s[key],
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
        desired = sum(state.desired(stage.name, placement.pool) for placement in stage.placements)
        for rule in stage.rules:
            reading = _reading(rule, profiles[stage.name], state)
            before = state.memory.rules.get((stage.name, rule.name), RuleMemory())
            added = rule.add_replicas * (_zones(stage, state, pools) if rule.per_zone else 1)
            after = _next(rule, before, reading, desired + added, now_s=now_s, interval_s=interval_s)
            states.append(RuleState(stage=stage.name, name=rule.name, reading=reading, floor=after.floor))
            if after != RuleMemory():
                memories[(stage.name, rule.name)] = after
    return RuleResults(states=tuple(states), memories=memories)


def _next(
    rule: Rule, before: RuleMemory, reading: Reading, floor: int, *, now_s: float, interval_s: float
) -> RuleMemory:
    """Return the rule's state after `reading`; `floor` applies if the rule adds replicas now."""
    if isinstance(reading, Absence):
        # Time without data counts towards no cooldown.
        since_s = before.holds_since_s
        moved_s = None if since_s is None else min(now_s, since_s + interval_s)
        return RuleMemory(floor=before.floor, fired=before.fired, holds_since_s=moved_s)
    if _holds(rule, reading):
        if not before.fired:
            return RuleMemory(floor=floor, fired=True, holds_since_s=now_s)
        since_s = now_s if before.holds_since_s is None else min(now_s, before.holds_since_s)
        if now_s - since_s < rule.cooldown_s or since_s == now_s:
            return RuleMemory(floor=before.floor, fired=True, holds_since_s=since_s)
        # Replicas of the last step may still be missing, for example at a cap: they are not asked for twice.
        return RuleMemory(floor=max(floor, before.floor or 0), fired=True, holds_since_s=now_s)
    if not before.fired:
        return RuleMemory()
    since_s = now_s if before.clear_since_s is None else min(now_s, before.clear_since_s)
    if now_s - since_s >= rule.cooldown_s:
        return RuleMemory()
    return RuleMemory(floor=before.floor, fired=True, clear_since_s=since_s)


def _holds(rule: Rule, reading: float) -> bool:
    if rule.above is not None:
        return reading > rule.above
    assert rule.below is not None
    return reading < rule.below


def _reading(rule: Rule, profile: StageProfile, state: PipelineState) -> Reading:
    if rule.metric is None:
        return state.rule_readings.get((profile.name, rule.name), MISSING)
    if rule.metric in QUANTITIES:
        return profile.readings.get(QUANTITIES[rule.metric], MISSING)
    reading = profile.of_devices(DEVICE_QUANTITIES[rule.metric])
    if rule.metric is RuleMetric.DEVICE_HEADROOM and not isinstance(reading, Absence):
        return max(0.0, 1 - reading)
    return reading


def _zones(stage: StageSpec, state: PipelineState, pools: Mapping[PoolName, PoolState]) -> int:
    """Return the most zones of any pool on which the stage has replicas, or of any of its pools while it has none."""
    running = [placement.pool for placement in stage.placements if state.desired(stage.name, placement.pool) > 0]
    named = running or [placement.pool for placement in stage.placements]
    return max([1, *(pools[pool].zones for pool in named if pool in pools)])
