"""Pauses and pins by annotation: what they decide, when they end, and what stops a pin."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders import (
    ENCODER,
    ENCODER_GPU,
    NOW_S,
    VAD,
    a_pool,
    a_scaling,
    a_snapshot,
    a_spec,
    a_state,
    applied,
    default_pools,
)

from controller.core.cycle import decide
from controller.core.messages.conditions import conditions
from controller.core.messages.explain import explain_pipeline
from controller.core.messages.sentences import hold_details
from controller.core.record import decision_record, differences, recorded_inputs
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.decision import ChangeReason, HoldReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, PoolState
from controller.core.state.spec import Mode, Overrides, Pause, Pin, PipelineSpec
from optimizer.model import Basis, PlacementKey, PoolName, pool_of
from profiler.samples import Absence, AbsenceReason

LATER_S = NOW_S + 3600.0
RUNNING = {VAD: 1, ENCODER: 2}


def overridden(spec: PipelineSpec | None = None, **overrides: object) -> PipelineSpec:
    return replace(spec or a_spec(), overrides=Overrides(**overrides))  # type: ignore[arg-type]


def pinned(pins: Mapping[PlacementKey, Pin], spec: PipelineSpec | None = None) -> PipelineSpec:
    return overridden(spec, pins=pins)


def decided(state: PipelineState, **world: object) -> PipelineDecision:
    return decide(a_snapshot(state, **world), Policy()).pipelines[0]  # type: ignore[arg-type]


def settled(state: PipelineState, cycles: int = 8) -> Mapping[PlacementKey, int]:
    """Return the replicas after some cycles in which all replicas become ready at once."""
    snapshot = a_snapshot(state)
    for _ in range(cycles):
        decision = decide(snapshot, Policy())
        snapshot = applied(snapshot, decision)
    return decision.pipelines[0].desired


def texts(decision: PipelineDecision, reason: HoldReason) -> list[str]:
    return hold_details(decision, [reason])


def test_a_pause_changes_nothing_and_says_what_pauses_until_when() -> None:
    busy = {"demand": 60.0, "replicas": RUNNING}
    assert decided(a_state(**busy)).changes  # type: ignore[arg-type]
    paused = decided(a_state(overridden(pause=Pause(until_s=LATER_S)), **busy))  # type: ignore[arg-type]
    assert not paused.changes
    assert texts(paused, HoldReason.PAUSED) == [
        "paused; replicas left unchanged (annotation sluice.dev/pause, until 1970-01-01T03:46:40Z)"
    ]
    (ready,) = [condition for condition in conditions(paused) if condition.type == "Ready"]
    assert (ready.status, ready.reason) == ("True", "Paused")
    assert "annotation sluice.dev/pause" in ready.message
    assert "  the end of the pause: sluice resume speech/captions" in explain_pipeline(paused, NOW_S)


def test_a_pause_that_has_ended_is_ignored() -> None:
    decision = decided(a_state(overridden(pause=Pause(until_s=NOW_S)), demand=60.0, replicas=RUNNING))
    assert decision.changes
    assert not texts(decision, HoldReason.PAUSED)


def test_a_pause_of_a_pipeline_that_the_spec_pauses_leaves_the_mode_as_the_cause() -> None:
    spec = overridden(a_spec(mode=Mode.PAUSED), pause=Pause(until_s=LATER_S))
    (text,) = texts(decided(a_state(spec)), HoldReason.PAUSED)
    assert text == "paused; replicas left unchanged (spec.mode is Paused)"


def test_a_paused_pipeline_keeps_the_workloads_that_it_owns() -> None:
    owned = decided(a_state(replicas=RUNNING)).memory.owned
    assert owned
    memory = PipelineMemory(owned=owned)
    assert decided(a_state(overridden(pause=Pause()), replicas=RUNNING, memory=memory)).memory.owned == owned


def test_a_pin_keeps_exactly_its_replicas_and_the_other_placements_follow_the_plan() -> None:
    free = settled(a_state(demand=60.0, replicas=RUNNING))
    assert free[ENCODER_GPU] != 3
    held = settled(a_state(pinned({ENCODER_GPU: Pin(replicas=3)}), demand=60.0, replicas=RUNNING))
    assert held[ENCODER_GPU] == 3
    much = settled(a_state(pinned({ENCODER_GPU: Pin(replicas=1)}), demand=200.0, replicas=RUNNING))
    assert much[ENCODER_GPU] == 1
    assert much[ENCODER] > held[ENCODER]


def test_a_pin_changes_replicas_at_once_and_gives_itself_as_the_reason() -> None:
    spec = pinned({ENCODER: Pin(replicas=9)}, a_spec(scaling=a_scaling(tolerance=0.9, up=1, down=1)))
    (change,) = [each for each in decided(a_state(spec, replicas=RUNNING)).changes if each.stage == "encoder"]
    assert (change.before, change.after, change.reason) == (2, 9, ChangeReason.PINNED)


def test_a_pin_removes_replicas_also_while_metrics_are_missing() -> None:
    missing = Absence(reason=AbsenceReason.MISSING)
    state = a_state(pinned({ENCODER_GPU: Pin(replicas=0)}), demand=missing, replicas={**RUNNING, ENCODER_GPU: 5})
    decision = decided(state)
    assert decision.desired[ENCODER_GPU] == 0
    # The plan does not keep them either: it may spend their money elsewhere.
    assert decision.plan is not None
    assert decision.plan.replicas().get(ENCODER_GPU, 0) == 0
    unpinned = replace(state, spec=a_spec())
    assert decided(unpinned).desired[ENCODER_GPU] == 5


def test_a_pin_says_so_until_it_ends() -> None:
    spec = pinned({ENCODER: Pin(replicas=2, until_s=LATER_S), ENCODER_GPU: Pin(replicas=4, until_s=NOW_S)})
    decision = decided(a_state(spec, replicas=RUNNING))
    assert texts(decision, HoldReason.PINNED) == [
        (
            "encoder on inferentia: pinned; the plan does not change these replicas "
            "(2 by annotation sluice.dev/pin, until 1970-01-01T03:46:40Z)"
        )
    ]
    assert decision.desired[ENCODER_GPU] == 0
    lines = explain_pipeline(decision, NOW_S)
    assert any(line.endswith("3600 s left") for line in lines)
    assert "  the end of the pins: sluice resume speech/captions" in lines


def test_the_budget_stops_a_pin_and_a_hold_says_so_while_the_rest_is_served() -> None:
    spec = pinned({ENCODER_GPU: Pin(replicas=10)}, a_spec(budget=6.0))  # 10 × $2/h
    desired = settled(a_state(spec, replicas=RUNNING))
    # A replica of vad costs $0.125/h; two replicas on gpu fit beside it.
    assert desired[ENCODER_GPU] == 2
    assert desired[VAD] >= 1
    decision = decided(a_state(spec, replicas=RUNNING))
    assert decision.plan is not None
    assert decision.plan.served_fraction > 0
    (text,) = texts(decision, HoldReason.PINNED)
    assert "(10 by annotation sluice.dev/pin; the budget has room for 2)" in text


def test_a_pin_above_the_budget_counts_whole_instances_where_these_are_paid() -> None:
    spec = pinned({ENCODER: Pin(replicas=3), VAD: Pin(replicas=9)}, a_spec(budget=4.0, basis=Basis.INSTANCES))
    decision = decided(a_state(spec, replicas=RUNNING))
    # 3 × $1/h are left $1/h, which is two instances at $0.5/h with four replicas each.
    assert any("the budget has room for 8" in text for text in texts(decision, HoldReason.PINNED))


def small_pools(instances: int = 5) -> Mapping[PoolName, PoolState]:
    return {name: replace(pool, spec=replace(pool.spec, instances=instances)) for name, pool in default_pools().items()}


def test_the_pool_stops_a_pin_and_a_hold_says_so() -> None:
    decision = decided(a_state(pinned({ENCODER: Pin(replicas=8)}), replicas=RUNNING), fleet=small_pools())
    assert decision.desired[ENCODER] == 5
    (text,) = texts(decision, HoldReason.PINNED)
    assert "(8 by annotation sluice.dev/pin; pool inferentia has room for 5)" in text


@pytest.mark.parametrize("replicas", [4, 8])
def test_two_stages_that_are_pinned_on_one_small_pool_share_it_and_the_condition_says_what_has_no_room(
    replicas: int,
) -> None:
    vad, encoder = a_spec().stages
    moved = replace(vad.placements[0], prior=replace(vad.placements[0].prior, pool=pool_of(ENCODER[1]), per_instance=1))
    spec = replace(a_spec(), stages=(replace(vad, placements=(moved,)), encoder))
    beside = (VAD[0], ENCODER[1])
    pins = {ENCODER: Pin(replicas=replicas), beside: Pin(replicas=4)}
    snapshot = a_snapshot(a_state(pinned(pins, spec), replicas={beside: 1, ENCODER: 1}), fleet=small_pools())
    for _ in range(4):
        decision = decide(snapshot, Policy())
        snapshot = applied(snapshot, decision)
    (pipeline,) = decision.pipelines
    # The first pin leaves room for one replica of the other stage: without it nothing would be served.
    assert (pipeline.desired[ENCODER], pipeline.desired[beside]) == (4, 1)
    assert pipeline.plan is not None
    assert pipeline.plan.served_fraction > 0
    (ready,) = [condition for condition in conditions(pipeline) if condition.type == "Ready"]
    assert (ready.status, ready.reason) == ("True", "Pinned")
    assert "pool inferentia has room for 1" in ready.message


def test_a_pin_keeps_its_replicas_while_a_node_of_a_pool_of_ready_nodes_is_not_ready() -> None:
    ready_nodes = {
        **default_pools(),
        pool_of(ENCODER[1]): a_pool("inferentia", instances=None, ready=2, ready_nodes=True),
    }
    state = a_state(pinned({ENCODER: Pin(replicas=4)}), replicas={**RUNNING, ENCODER: 3})
    assert decided(state, fleet=ready_nodes).desired[ENCODER] == 3


def test_a_part_of_an_annotation_that_is_not_valid_is_named() -> None:
    spec = overridden(problems=("sluice.dev/pin: 'x': must be STAGE/POOL=REPLICAS",))
    decision = decided(a_state(spec, replicas=RUNNING))
    assert texts(decision, HoldReason.INVALID_ANNOTATION) == [
        "part of an annotation is ignored, because it is not valid (sluice.dev/pin: 'x': must be STAGE/POOL=REPLICAS)"
    ]
    (ready,) = [condition for condition in conditions(decision) if condition.type == "Ready"]
    assert (ready.status, ready.reason) == ("True", "InvalidAnnotation")
    assert "sluice.dev/pin: 'x': must be STAGE/POOL=REPLICAS" in ready.message


def test_a_record_of_a_cycle_with_overrides_is_decided_again_the_same() -> None:
    spec = overridden(pause=Pause(until_s=NOW_S), pins={ENCODER: Pin(replicas=4, until_s=LATER_S)}, problems=("x",))
    snapshot = a_snapshot(a_state(spec, replicas=RUNNING))
    record = json.loads(json.dumps(decision_record(snapshot, decide(snapshot, Policy()))))
    again, policy = recorded_inputs(record)
    assert again == snapshot
    assert not differences(record, decide(again, policy))


def test_pins_of_a_pipeline_that_only_recommends_are_recommended() -> None:
    spec = pinned({ENCODER: Pin(replicas=4)}, a_spec(mode=Mode.RECOMMEND))
    decision = decided(a_state(spec, replicas=RUNNING))
    assert (decision.changes, decision.recommended[ENCODER]) == ((), 4)
