"""Texts about backlogs: what is left, when it is done, and why a deadline is missed; no latency."""

from dataclasses import replace

import pytest
from backlogs import ITEM_S, a_backlog
from builders import NOW_S, a_placement, a_pool, a_snapshot, a_state, pools

from controller.core.cycle import decide
from controller.core.messages.conditions import ConditionValue, conditions
from controller.core.messages.events import events
from controller.core.messages.explain import explain_pipeline, reason_sentence
from controller.core.messages.summary import ready, summary
from controller.core.state.decision import PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.spec import Mode
from profiler.samples import Absence, AbsenceReason, Reading

HOUR_S = 3600.0
MISSING = Absence(reason=AbsenceReason.MISSING, detail="the query returns no series")


def decided(
    left: Reading,
    *,
    due_in_s: float = HOUR_S,
    budget: float = 100.0,
    gpus: int = 10,
    startup_s: float = 0.0,
    mode: Mode = Mode.AUTO,
) -> PipelineDecision:
    placement = a_placement("gpu", service_s=ITEM_S, startup_s=startup_s)
    spec = replace(a_backlog(placement, due_s=NOW_S + due_in_s, budget=budget), mode=mode)
    state = a_state(spec, demand=left, replicas={})
    state = replace(state, memory=replace(state.memory, begun_s=NOW_S - 1))
    return decide(a_snapshot(state, fleet=pools(a_pool("gpu", instances=gpus, ready=gpus))), Policy()).pipelines[0]


def deadline_met(decision: PipelineDecision) -> ConditionValue:
    (found,) = [own for own in conditions(decision) if own.type == "DeadlineMet"]
    return found


def test_the_columns_have_items_and_the_finish_in_place_of_demand_and_latency() -> None:
    columns = summary(decided(3240.0))
    assert columns["demand"] == "3,240 items left"
    assert columns["latency"] == "01-01T03:22Z / 01-01T03:46Z"


def test_the_columns_of_an_unknown_number_are_empty() -> None:
    assert summary(decided(MISSING))["demand"] == "-"
    assert summary(decided(MISSING))["latency"].startswith("- / ")


def test_no_text_names_a_latency() -> None:
    for decision in (decided(3240.0), decided(1e6), decided(MISSING), decided(0.0)):
        text = "\n".join([reason_sentence(decision), *explain_pipeline(decision, NOW_S), str(conditions(decision))])
        assert "p95" not in text
        assert "100,000 s" not in text
        assert "SLA" not in text


def test_the_explanation_says_items_pace_finish_and_cost() -> None:
    text = "\n".join(explain_pipeline(decided(3240.0), NOW_S))
    assert "3,240 items left, expected finish 1970-01-01T03:22:55Z, deadline 1970-01-01T03:46:40Z" in text
    assert "pace: planned 1.5 items/s, 1 items/s meets the deadline with its reserve" in text
    assert "expected cost $1.80" in text


@pytest.mark.parametrize(
    ("decision", "reason", "why"),
    [
        (decided(7200.0, budget=2.5), "BudgetTooLow", "limited by the budget of $2.50/h"),
        (decided(1e6), "CapacityTooSmall", "limited by pool gpu"),
        (decided(1e5, due_in_s=-100), "DeadlinePassed", "goes on as fast as budgets and pools allow"),
        (decided(600.0, due_in_s=300, startup_s=600), "StartupTooLong", "replicas that start now are ready too late"),
        (decided(3240.0, mode=Mode.PAUSED), "HeldBack", "fewer replicas than planned"),
    ],
    ids=["budget", "pool", "passed", "startup", "held"],
)
def test_a_missed_deadline_says_why(decision: PipelineDecision, reason: str, why: str) -> None:
    found = deadline_met(decision)
    assert (found.status, found.reason) == ("False", reason)
    assert why in found.message
    assert not ready(decision)
    assert summary(decision)["health"] == "DeadlineMissed"
    assert any(event.warning and event.reason == "DeadlineMissed" for event in events(decision, {}))


@pytest.mark.parametrize(
    ("left", "status", "reason"),
    [(3240.0, "True", "InTime"), (0.0, "True", "Empty"), (MISSING, "Unknown", "ItemsUnknown")],
    ids=["runs", "empty", "unknown"],
)
def test_a_deadline_that_is_met_or_not_known(left: Reading, status: str, reason: str) -> None:
    assert (deadline_met(decided(left)).status, deadline_met(decided(left)).reason) == (status, reason)


def test_a_deadline_that_is_met_again_gets_an_event() -> None:
    found = events(decided(3240.0), {"DeadlineMet": "False"})
    assert any(not event.warning and event.reason == "DeadlineMet" for event in found)
