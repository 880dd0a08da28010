"""What no cycle has written is refused: an edited status must not stop the cycle of all pipelines."""

import math

import pytest

from controller.core.state.carry_over import PipelineMemory
from optimizer.model import PoolName, StageName
from profiler.stages import Learned

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
