"""Rules are floors: they rise once per cooldown, hold until clear for one, and wait where there is no data."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from bounded import bounded
from builders import (
    ENCODER,
    NOW_S,
    VAD,
    a_placement,
    a_pool,
    a_rule,
    a_scaling,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    applied,
    default_stages,
    pools,
    seen,
)
from planning import Planner

from controller.core.cycle import decide
from controller.core.state.carry_over import PipelineMemory, RuleMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, Snapshot
from controller.core.state.spec import Rule, RuleMetric
from optimizer.model import StageName
from profiler.samples import Absence, AbsenceReason, DeviceQuantity, Reading

STAGE = StageName("vad")
MISSING = Absence(reason=AbsenceReason.STALE, detail="90 s old")


def with_rule(rule: Rule, reading: Reading, *, replicas: int = 3, memory: RuleMemory | None = None) -> PipelineState:
    return a_state(
        a_spec(*default_stages(vad_rules=[rule])),
        replicas={VAD: replicas, ENCODER: 1},
        samples={VAD: seen(rx_queue_pressure=reading)},
        memory=PipelineMemory(rules={} if memory is None else {(STAGE, rule.name): memory}),
    )


def floor_and_memory(state: PipelineState, *, now_s: float = NOW_S, zones: int = 1) -> tuple[int | None, RuleMemory]:
    fleet = pools(a_pool("cpu", zones=zones), a_pool("inferentia"), a_pool("gpu"))
    snapshot = Snapshot(now_s=now_s, pipelines=(state,), pools=fleet)
    bounds = bounded(state, snapshot).bounds
    (rule,) = bounds.rules
    return rule.floor, bounds.rule_memories.get((STAGE, rule.name), RuleMemory())


def test_the_floor_is_the_replicas_the_stage_had_when_the_rule_fired_plus_what_it_adds() -> None:
    assert floor_and_memory(with_rule(a_rule(add=2), 0.9))[0] == 5


@pytest.mark.parametrize(
    ("metric", "quantity", "reading", "fires"),
    [
        (RuleMetric.DEVICE_HEADROOM, DeviceQuantity.UTILIZATION, 0.85, True),
        (RuleMetric.DEVICE_HEADROOM, DeviceQuantity.UTILIZATION, 0.75, False),
        (RuleMetric.DEVICE_HEADROOM, DeviceQuantity.UTILIZATION, 1.2, True),
        (RuleMetric.DEVICE_UTILIZATION, DeviceQuantity.UTILIZATION, 0.95, True),
        (RuleMetric.COLLECTIVE_ACTIVITY, DeviceQuantity.COLLECTIVE_ACTIVITY, 0.95, True),
        (RuleMetric.COLLECTIVE_ACTIVITY, DeviceQuantity.COLLECTIVE_ACTIVITY, 0.5, False),
        (RuleMetric.COLLECTIVE_ACTIVITY, DeviceQuantity.UTILIZATION, 0.95, False),
        (RuleMetric.DEVICE_HEADROOM, DeviceQuantity.UTILIZATION, MISSING, False),
    ],
)
def test_rules_on_devices(metric: RuleMetric, quantity: DeviceQuantity, reading: Reading, fires: bool) -> None:
    headroom = metric is RuleMetric.DEVICE_HEADROOM
    rule = replace(a_rule(add=1), metric=metric, above=None if headroom else 0.9, below=0.2 if headroom else None)
    state = with_rule(rule, 0.0)
    samples = replace(state.samples[VAD], devices={quantity: reading})
    floor, _ = floor_and_memory(replace(state, samples={VAD: samples}))
    assert floor == (4 if fires else None)


@pytest.mark.parametrize(("zones", "floor"), [(0, 5), (1, 5), (3, 9)])
def test_per_zone_adds_for_every_zone_and_at_least_once(zones: int, floor: int) -> None:
    assert floor_and_memory(with_rule(a_rule(add=2, per_zone=True), 0.9), zones=zones)[0] == floor


def test_the_floor_counts_replicas_over_all_placements() -> None:
    stage = a_stage("vad", a_placement("cpu"), a_placement("gpu"), rules=[a_rule(add=1)])
    state = a_state(
        a_spec(stage),
        replicas=dict.fromkeys(a_spec(stage).placement_keys(), 2),
        samples={key: seen(rx_queue_pressure=0.9) for key in a_spec(stage).placement_keys()},
    )
    assert floor_and_memory(state)[0] == 5


def followed(*cycles: tuple[float, Reading, int], cooldown_s: float = 60.0) -> list[int | None]:
    """Return the floor after each of `cycles`: its time, the reading, and the replicas that the stage has then."""
    memory, floors = RuleMemory(), []
    for t_s, reading, replicas in cycles:
        state = with_rule(a_rule(add=2, cooldown_s=cooldown_s), reading, replicas=replicas, memory=memory)
        floor, memory = floor_and_memory(state, now_s=NOW_S + t_s)
        floors.append(floor)
    return floors


def test_a_rule_adds_once_per_cooldown_while_it_holds() -> None:
    assert followed((0, 0.9, 3), (30, 0.9, 5), (59, 0.9, 5), (60, 0.9, 5), (105, 0.9, 7), (120, 0.9, 7)) == [
        *(5, 5, 5),
        *(7, 7),
        9,
    ]


def test_a_step_that_was_not_granted_is_not_asked_for_twice() -> None:
    assert followed((0, 0.9, 3), (60, 0.9, 3), (120, 0.9, 3)) == [5, 5, 5]
    assert followed((0, 0.9, 3), (60, 0.9, 2)) == [5, 5]


def test_a_metric_that_clears_meanwhile_has_to_hold_for_a_cooldown_again() -> None:
    assert followed((0, 0.9, 3), (45, 0.5, 5), (60, 0.9, 5), (105, 0.9, 5), (120, 0.9, 5)) == [5, 5, 5, 5, 7]


def test_time_without_data_neither_adds_nor_counts() -> None:
    gap = [(15.0 * cycle, MISSING, 5) for cycle in range(2, 10)]
    floors = followed((0, 0.9, 3), (15, 0.9, 5), *gap, (150, 0.9, 5), (165, 0.9, 5), (180, 0.9, 5))
    assert floors == [5] * 12 + [7], "60 s with data: 15 before the gap of 8 cycles and 45 after it"


def test_a_rule_of_an_earlier_release_that_fired_holds_for_a_cooldown_from_now() -> None:
    fired = RuleMemory(floor=5, fired=True)
    floor, memory = floor_and_memory(with_rule(a_rule(add=2), 0.9, replicas=5, memory=fired))
    assert (floor, memory.holds_since_s) == (5, NOW_S)


def test_what_a_rule_adds_is_within_the_bounds_of_the_placements(planner: Planner) -> None:
    planner.wants({VAD: 3, ENCODER: 1}, runs_well=True)
    spec = a_spec(a_stage("vad", a_placement("cpu", bounds=(0, 6)), rules=[a_rule(add=2)]))
    state = a_state(spec, replicas={VAD: 3}, samples={VAD: seen(rx_queue_pressure=0.9)})
    snapshot, wanted = a_snapshot(state), []
    for _ in range(10):
        decision = decide(snapshot, Policy())
        wanted.append(decision.pipelines[0].desired[VAD])
        snapshot = applied(snapshot, decision)
    assert wanted == [5, 5, 5, 5, 6, 6, 6, 6, 6, 6]


def floors_over(
    rule: Rule, readings: Sequence[tuple[int, float]], memory: RuleMemory, down_s: float
) -> list[int | None]:
    floors = []
    for t_s, reading in readings:
        state = with_rule(rule, reading, memory=memory)
        state = replace(state, spec=replace(state.spec, scaling=a_scaling(down_s=down_s)))
        floor, memory = floor_and_memory(state, now_s=NOW_S + t_s)
        floors.append(floor)
    return floors


def test_the_floor_holds_until_the_rule_has_been_clear_for_one_cooldown() -> None:
    readings = ((0, 0.9), (10, 0.5), (40, 0.9), (50, 0.5), (109, 0.5), (110, 0.5))
    floors = floors_over(a_rule(cooldown_s=60.0), readings, RuleMemory(floor=5, fired=True), down_s=0.0)
    assert floors == [5, 5, 5, 5, 5, None]


def test_the_floor_goes_through_the_scale_down_window() -> None:
    readings = ((0, 0.5), (60, 0.5), (299, 0.5), (300, 0.5))
    floors = floors_over(a_rule(cooldown_s=60.0), readings, RuleMemory(floor=5, fired=True), down_s=300.0)
    assert floors == [5, 5, 5, None]


def test_a_floor_that_has_to_come_back_stays_twice_as_long_each_time() -> None:
    """The metric is clear only because of the floor: it comes back a minute after the floor has ended."""
    rule, memory, ends = a_rule(cooldown_s=60.0), RuleMemory(), list[float]()
    ended_s, held = 0.0, False
    for t_s in range(0, 8 * 3600, 15):
        beyond = not held and t_s - ended_s >= 60
        state = with_rule(rule, 0.9 if beyond else 0.5, memory=memory)
        state = replace(state, spec=replace(state.spec, scaling=a_scaling(down_s=300.0)))
        floor, memory = floor_and_memory(state, now_s=NOW_S + t_s)
        if held and floor is None:
            ends.append(t_s)
            ended_s = t_s
        held = floor is not None
    gaps = [late - early for early, late in itertools.pairwise(ends)]
    assert len(ends) <= 7, "once per five minutes would be eighty times"
    assert all(1.7 <= late / early <= 2.1 for early, late in itertools.pairwise(gaps[:4]))


def test_after_a_quiet_time_a_rule_starts_anew() -> None:
    memory = RuleMemory(returns=5, ended_s=NOW_S - 30 * 3600)
    assert floor_and_memory(with_rule(a_rule(), 0.9, memory=memory))[1].returns == 0


def test_without_data_a_rule_does_not_fire() -> None:
    assert floor_and_memory(with_rule(a_rule(), MISSING)) == (None, RuleMemory())


def test_without_data_a_rule_keeps_its_floor_and_the_cooldown_does_not_run() -> None:
    held = RuleMemory(floor=5, fired=True, clear_since_s=NOW_S - 50)
    floor, memory = floor_and_memory(with_rule(a_rule(cooldown_s=60), MISSING, memory=held))
    assert floor == 5
    floor, _ = floor_and_memory(with_rule(a_rule(cooldown_s=60), 0.5, memory=memory), now_s=NOW_S + 15)
    assert floor == 5


def test_below_fires_when_the_reading_is_below() -> None:
    rule = a_rule(above=None, below=0.2)
    assert floor_and_memory(with_rule(rule, 0.1))[0] == 5
    assert floor_and_memory(with_rule(rule, 0.3))[0] is None


@pytest.mark.parametrize(
    ("metric", "quantity"),
    [
        (RuleMetric.P95, "latency_p95"),
        (RuleMetric.UTILIZATION, "utilization"),
        (RuleMetric.QUEUE, "queue_depth"),
        (RuleMetric.SESSIONS, "sessions"),
    ],
)
def test_every_metric_reads_its_quantity(metric: RuleMetric, quantity: str) -> None:
    rule = a_rule(metric=metric, above=10.0)
    state = with_rule(rule, MISSING)
    assert floor_and_memory(replace(state, samples={**state.samples, VAD: seen(**{quantity: 11.0})}))[0] == 5


def test_a_query_is_read_in_the_metrics_stead() -> None:
    rule = a_rule(metric=None, above=10.0)
    spec = a_spec(*default_stages(vad_rules=[rule]))
    state = a_state(spec, replicas={VAD: 3}, rule_readings={(STAGE, rule.name): 11.0})
    assert floor_and_memory(state)[0] == 5


@pytest.mark.parametrize(
    ("queue", "utilization", "latency_s", "believed"),
    [
        (400.0, 0.05, 0.1, False),
        (400.0, 0.99, 0.1, True),  # an overload begins: what has completed did not wait yet
        (400.0, 0.05, 3.0, True),
        (25.0, 0.05, 0.1, True),
        (400.0, Absence(reason=AbsenceReason.MISSING), 0.1, True),
    ],
)
def test_a_queue_that_latency_and_utilization_contradict_decides_nothing(
    queue: float, utilization: Reading, latency_s: float, believed: bool
) -> None:
    state = with_rule(a_rule(metric=RuleMetric.QUEUE, above=20.0), 0.0)
    readings = seen(queue_depth=queue, utilization=utilization, latency_p95=latency_s, arrival_rate=50.0)
    floor, memory = floor_and_memory(replace(state, samples={VAD: readings}))
    assert memory.fired is believed
    assert (floor is not None) is believed
