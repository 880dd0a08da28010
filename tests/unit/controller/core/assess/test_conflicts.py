from dataclasses import replace

import pytest
from builders import ENCODER, NOW_S, VAD, a_snapshot, a_state
from planning import Planner

from controller.core.assess.conflicts import ENOUGH, FORGET_S, TRUCE_S, conflicting, conflicts
from controller.core.cycle import decide
from controller.core.messages.conditions import conditions
from controller.core.messages.summary import health
from controller.core.state.carry_over import Conflict, PipelineMemory
from controller.core.state.decision import HoldReason
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState


def a_contest(changes: int = ENOUGH, at_s: float = NOW_S, found: int = 1) -> Conflict:
    return Conflict(changes=changes, changed_at_s=at_s, written=3, found=found)


def state(*, written: int | None = None, conflict: Conflict | None = None, autoscaler: str = "") -> PipelineState:
    memory = PipelineMemory(conflicts={} if conflict is None else {ENCODER: conflict})
    return replace(
        a_state(demand=100.0, replicas={VAD: 1, ENCODER: 1}, memory=memory),
        written={} if written is None else {ENCODER: written},
        autoscalers={ENCODER: autoscaler} if autoscaler else {},
    )


def test_replicas_that_stay_as_they_were_written_are_nobody_elses() -> None:
    assert conflicts(state(written=1), NOW_S) == {}


def test_every_change_by_somebody_else_is_counted() -> None:
    first = conflicts(state(written=3), NOW_S)
    assert first == {ENCODER: a_contest(changes=1)}
    assert conflicts(state(written=3, conflict=first[ENCODER]), NOW_S + 60) == {ENCODER: a_contest(2, NOW_S + 60)}


@pytest.mark.parametrize("later_s", [FORGET_S + 1, -1.0])
def test_changes_of_long_ago_and_of_the_future_are_forgotten(later_s: float) -> None:
    assert conflicts(state(conflict=a_contest()), NOW_S + later_s) == {}
    assert conflicts(state(written=3, conflict=a_contest()), NOW_S + later_s)[ENCODER].changes == 1


def test_one_change_too_few_is_no_contest_and_a_truce_ends() -> None:
    for conflict, later_s, expected in (
        (a_contest(ENOUGH - 1, found=9), 0.0, False),
        (a_contest(found=9), 0.0, True),
        (a_contest(found=9), TRUCE_S - 1, True),
        (a_contest(found=9), TRUCE_S, False),
    ):
        now_s = NOW_S + later_s
        assert bool(conflicting(state(), {ENCODER: conflict}, now_s)) is expected


def test_replicas_that_another_removed_are_restored_first_and_ever_later(planner: Planner) -> None:
    for changes, later_s, restored in (
        (3, 0.0, True),
        (4, 29.0, False),
        (4, 30.0, True),
        (5, 89.0, False),
        (9, 599.0, False),
    ):
        found = conflicting(state(), {ENCODER: a_contest(changes)}, NOW_S + later_s)
        assert (not found) is restored, (changes, later_s)
    planner.wants({VAD: 1, ENCODER: 5})
    (decision,) = decide(a_snapshot(state(written=3, conflict=a_contest(ENOUGH - 1))), Policy()).pipelines
    assert [(change.before, change.after) for change in decision.changes] == [(1, 5)]


def test_while_another_sets_fewer_replicas_than_needed_the_limit_is_theirs() -> None:
    """No more load is admitted than the replicas serve that the other controller left."""
    found = state(autoscaler="HorizontalPodAutoscaler/asr")
    (decision,) = decide(a_snapshot(found), Policy()).pipelines
    assert decision.admissible is not None
    assert decision.admissible < 100.0


def test_a_contested_pipeline_is_left_alone_and_says_why(planner: Planner) -> None:
    for found, words in (
        (state(autoscaler="HorizontalPodAutoscaler/asr"), "HorizontalPodAutoscaler/asr"),
        (state(conflict=a_contest(ENOUGH + 1)), "1 found after 3 written"),
    ):
        planner.wants({VAD: 1, ENCODER: 5})
        (decision,) = decide(a_snapshot(found), Policy()).pipelines
        assert decision.changes == ()
        assert decision.holds[0].reason is HoldReason.CONFLICT
        conflict = next(condition for condition in conditions(decision) if condition.type == "Conflict")
        assert conflict.status == "True"
        assert words in conflict.message
        assert health(decision).value == "Conflict"


def test_what_the_cycles_before_have_counted_is_remembered(planner: Planner) -> None:
    planner.wants({VAD: 1, ENCODER: 5})
    (decision,) = decide(a_snapshot(state(written=3)), Policy()).pipelines
    assert decision.memory.conflicts == {ENCODER: a_contest(changes=1)}
    assert decision.changes  # once is nobody's habit


def test_a_change_that_the_server_did_not_take_is_told_and_tried_again(planner: Planner) -> None:
    planner.wants({VAD: 1, ENCODER: 5})
    found = replace(state(), refused={ENCODER: "403 you may not"})
    (decision,) = decide(a_snapshot(found), Policy()).pipelines
    assert decision.changes
    accepted = next(condition for condition in conditions(decision) if condition.type == "ScalesAccepted")
    assert (accepted.status, accepted.reason) == ("False", "ScaleRefused")
    assert "403 you may not" in accepted.message
