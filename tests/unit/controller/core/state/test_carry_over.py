"""The state of a cycle for the next one: what no cycle writes is refused by the name of its field."""

import math
from dataclasses import replace
from typing import Any

import pytest

from controller.core.state.carry_over import (
    FURTHEST_S,
    FeedbackFloor,
    FeedbackMemory,
    FeedbackStep,
    PipelineMemory,
)
from optimizer.model import InvalidProblem, PlacementKey, PoolName, StageName
from profiler.stages import Learned, ReceiveLimit

VAD = StageName("vad")
FLOOR = FeedbackFloor(replicas=5.0, demand=60.0, planned=4.0)
STEP = FeedbackStep(stage=VAD, at_s=1000.0, before_s=0.31, demand=60.0, replicas=5, floor_before=FLOOR)
FEEDBACK = FeedbackMemory(
    floors={VAD: FLOOR},
    misses=2,
    step=STEP,
    kept={VAD: STEP},
    useless_until_s={VAD: 2800.0},
    latency_s=0.6,
    lowest_s=0.55,
    met_since_s=FURTHEST_S,
    room_since_s=FURTHEST_S,
)


def test_what_a_cycle_writes_is_accepted() -> None:
    assert PipelineMemory(feedback=FEEDBACK).feedback == FEEDBACK
    assert FeedbackMemory(step=replace(STEP, floor_before=None)).step is not None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"misses": -1}, "misses"),
        ({"misses": 10**12}, "misses"),
        ({"useless_until_s": {VAD: 1e18}}, "useless_until_s vad"),
        ({"room_since_s": -1e18}, "room_since_s"),
        ({"met_since_s": -1e18}, "met_since_s"),
        ({"latency_s": -0.1}, "latency_s"),
        ({"lowest_s": 1e300}, "lowest_s"),
    ],
)
def test_feedback_that_no_cycle_writes_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidProblem, match=f"feedback {field}"):
        replace(FEEDBACK, **changes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("at_s", 1e18),
        ("before_s", -0.1),
        ("before_s", 1e300),
        ("demand", -1.0),
        ("replicas", 0),
        ("replicas", 10**12),
    ],
)
def test_a_step_that_no_cycle_makes_is_refused(field: str, value: float) -> None:
    changes: dict[str, Any] = {field: value}
    with pytest.raises(InvalidProblem, match=f"feedback step {field}"):
        replace(STEP, **changes)


@pytest.mark.parametrize("field", ["replicas", "demand", "planned"])
@pytest.mark.parametrize("value", [0.0, -1.0, 1e300])
def test_a_floor_that_no_cycle_sets_is_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidProblem, match=f"feedback floor {field}"):
        replace(FLOOR, **{field: value})


@pytest.mark.parametrize("overhead_s", [-0.1, 1e300])
def test_overhead_that_no_cycle_measures_is_refused(overhead_s: float) -> None:
    with pytest.raises(InvalidProblem, match="overhead_s"):
        PipelineMemory(learned=Learned(overhead_s=overhead_s))


def test_a_stage_cannot_have_moved_at_no_time() -> None:
    with pytest.raises(InvalidProblem, match="stages_moved_at_s vad"):
        PipelineMemory(stages_moved_at_s={VAD: 1e18})


KEY: PlacementKey = (StageName("asr"), PoolName("gpu"))


def test_learned_numbers_of_a_cycle_are_kept() -> None:
    learned = Learned(cvs={KEY: 2.0}, startups_s={KEY: 0.0}, session_slots={KEY: 1}, sessions_held={KEY: 9})
    assert PipelineMemory(learned=learned).learned == learned


@pytest.mark.parametrize(
    ("learned", "field"),
    [
        (Learned(cvs={KEY: -0.1}), "cvs"),
        (Learned(cvs={KEY: 2.1}), "cvs"),
        (Learned(startups_s={KEY: math.nan}), "startups_s"),
        (Learned(session_slots={KEY: 0}), "session_slots"),
        (Learned(session_slots={KEY: 2_000_000_000}), "session_slots"),
        (Learned(sessions_held={KEY: -1}), "sessions_held"),
        (Learned(engines={KEY: 65}), "engines"),
        (Learned(receive_limits={KEY: ReceiveLimit(packets_per_s=0.0, packets_per_item=1.0)}), "packets_per_s"),
        (Learned(receive_limits={KEY: ReceiveLimit(packets_per_s=1.0, packets_per_item=math.inf)}), "packets_per_item"),
        (
            Learned(receive_limits={KEY: ReceiveLimit(packets_per_s=1.0, packets_per_item=1.0, lost_at_s=1e99)}),
            "lost_at_s",
        ),
    ],
)
def test_learned_numbers_that_nothing_can_have_measured_are_refused(learned: Learned, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        PipelineMemory(learned=learned)


def test_a_time_that_no_cycle_writes_is_refused_for_missing_replicas() -> None:
    key = (VAD, PoolName("cpu"))
    assert PipelineMemory(uncreated_since_s={key: 0.0}).uncreated_since_s == {key: 0.0}
    with pytest.raises(InvalidProblem, match="uncreated_since_s"):
        PipelineMemory(uncreated_since_s={key: 1e18})
