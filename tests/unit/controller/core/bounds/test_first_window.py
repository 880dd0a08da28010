"""Without memory, what runs is the first sample of the scale-down window."""

from dataclasses import replace

import pytest
from builders import ENCODER, NOW_S, VAD, a_scaling, a_snapshot, a_spec, a_state, a_target, applied, default_pools

from controller.core.cycle import decide
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.decision import HoldReason
from controller.core.state.policy import Policy

FRESH = PipelineMemory(begun_s=NOW_S)


def encoders(cycles: int, *, memory: PipelineMemory = FRESH, down_s: float = 300.0) -> list[int]:
    spec = a_spec(scaling=a_scaling(down_s=down_s))
    snapshot = a_snapshot(a_state(spec, demand=20.0, replicas={VAD: 1, ENCODER: 13}, memory=memory))
    found = []
    for _ in range(cycles):
        decision = decide(snapshot, Policy())
        found.append(decision.pipelines[0].desired[ENCODER])
        snapshot = applied(snapshot, decision)
    return found


def test_a_new_or_restored_pipeline_loses_no_ready_replica_within_the_window() -> None:
    counts = encoders(25)
    assert set(counts[:20]) == {13}
    assert counts[-1] < 13


@pytest.mark.parametrize("down_s", [0.0, 60.0])
def test_the_window_is_that_of_the_pipeline(down_s: float) -> None:
    counts = encoders(8, down_s=down_s)
    assert counts.index(next(count for count in counts if count < 13)) == down_s / 15


def test_it_is_told_and_until_when() -> None:
    state = a_state(demand=20.0, replicas={VAD: 1, ENCODER: 13}, memory=FRESH)
    (decision,) = decide(a_snapshot(state), Policy()).pipelines
    (hold,) = (hold for hold in decision.holds if hold.reason is HoldReason.STABILIZING)
    assert hold.until_s == NOW_S + 300


def test_a_cap_and_a_person_go_before_it() -> None:
    tight = a_state(a_spec(budget=4.0), demand=20.0, replicas={VAD: 1, ENCODER: 13}, memory=FRESH)
    assert decide(a_snapshot(tight), Policy()).pipelines[0].desired[ENCODER] < 13
    spec = a_spec()
    encoder = spec.stages[1].placements[0]
    low = replace(encoder, prior=replace(encoder.prior, max_replicas=5))
    spec = replace(spec, stages=(spec.stages[0], replace(spec.stages[1], placements=(low,))))
    bounded = a_state(spec, demand=20.0, replicas={VAD: 1, ENCODER: 13}, memory=FRESH)
    assert decide(a_snapshot(bounded), Policy()).pipelines[0].desired[ENCODER] == 5


def test_replicas_that_are_not_ready_are_not_kept() -> None:
    target = a_target(13, ready=2, pending_since_s=[NOW_S - 10] * 11)
    state = a_state(demand=20.0, replicas={VAD: 1, ENCODER: target}, memory=FRESH)
    (decision,) = decide(a_snapshot(state, fleet=default_pools()), Policy()).pipelines
    assert decision.desired[ENCODER] == 2
