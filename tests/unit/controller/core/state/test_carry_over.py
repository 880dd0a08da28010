"""The state of a cycle for the next one: what no cycle writes is refused by the name of its field."""

import math
from dataclasses import replace
from typing import Any

import pytest

from controller.core.state.carry_over import FURTHEST_S, FeedbackMemory, FeedbackStep, PipelineMemory
from optimizer.model import InvalidProblem, PoolName, StageName
from profiler.stages import Learned

VAD = StageName("vad")
STEP = FeedbackStep(stage=VAD, at_s=1000.0, before_s=0.31, replicas=5, floor_before=0.05)
FEEDBACK = FeedbackMemory(
    floors={VAD: 0.08}, misses=3, step=STEP, useless_until_s={VAD: 2800.0}, room_since_s=FURTHEST_S
)


def test_what_a_cycle_writes_is_accepted() -> None:
    assert PipelineMemory(feedback=FEEDBACK).feedback == FEEDBACK
    assert FeedbackMemory(step=replace(STEP, floor_before=None)).step is not None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"floors": {VAD: 0.0}}, "floors vad"),
        ({"floors": {VAD: -1.0}}, "floors vad"),
        ({"floors": {VAD: 1e300}}, "floors vad"),
        ({"misses": -1}, "misses"),
        ({"misses": 10**12}, "misses"),
        ({"useless_until_s": {VAD: 1e18}}, "useless_until_s vad"),
        ({"room_since_s": -1e18}, "room_since_s"),
        ({"step": replace(STEP, at_s=1e18)}, "step at_s"),
        ({"step": replace(STEP, before_s=-0.1)}, "step before_s"),
        ({"step": replace(STEP, before_s=1e300)}, "step before_s"),
        ({"step": replace(STEP, replicas=0)}, "step replicas"),
        ({"step": replace(STEP, replicas=10**12)}, "step replicas"),
        ({"step": replace(STEP, floor_before=-0.1)}, "step floor_before"),
    ],
)
def test_feedback_that_no_cycle_writes_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidProblem, match=f"feedback {field}"):
        replace(FEEDBACK, **changes)


@pytest.mark.parametrize("overhead_s", [-0.1, 1e300])
def test_overhead_that_no_cycle_measures_is_refused(overhead_s: float) -> None:
    with pytest.raises(InvalidProblem, match="overhead_s"):
        PipelineMemory(learned=Learned(overhead_s=overhead_s))


def test_a_stage_cannot_have_moved_at_no_time() -> None:
    with pytest.raises(InvalidProblem, match="stages_moved_at_s vad"):
        PipelineMemory(stages_moved_at_s={VAD: 1e18})


KEY = (StageName("asr"), PoolName("gpu"))


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
    ],
)
def test_learned_numbers_that_nothing_can_have_measured_are_refused(learned: Learned, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        PipelineMemory(learned=learned)
