"""What is said of the history of the demand."""

from dataclasses import replace

import pytest
from builders import ENCODER, VAD, a_state
from explained import decision_of
from planning import Planner

from controller.core.messages.explain import explain_pipeline
from controller.core.messages.sentences import demand_reason, season_words
from controller.core.state.decision import PipelineDecision, SeasonUse
from profiler.samples import Absence, AbsenceReason

DAYS = SeasonUse(seasons=7, season_s=86_400.0, last=412.0, expected=430.0, error=12.0, trust=0.63)


@pytest.fixture
def decision(planner: Planner) -> PipelineDecision:
    planner.wants({VAD: 4, ENCODER: 4})
    return decision_of(a_state(demand=50.0, replicas={VAD: 4, ENCODER: 4})).pipelines[0]


def with_season(decision: PipelineDecision, season: SeasonUse | Absence) -> PipelineDecision:
    return replace(decision, demand=replace(decision.demand, season=season))


def test_it_says_what_the_history_expects_and_how_far_it_is_trusted(decision: PipelineDecision) -> None:
    words = season_words(with_season(decision, DAYS))
    assert words == "history: 7 days; same time yesterday 412; it expects 430 ± 12; trusted 63%"
    assert words in "\n".join(explain_pipeline(with_season(decision, DAYS), 0.0))
    hours = replace(DAYS, season_s=3600.0, seasons=1, last=None, problem="connection refused")
    assert season_words(with_season(decision, hours)) == (
        "history: 1 season of 3,600 s; same time in the last season not recorded; it expects 430 ± 12; trusted 63%; "
        "not read again: connection refused"
    )


def test_without_a_usable_history_it_says_why(decision: PipelineDecision) -> None:
    assert season_words(decision) == ""
    gone = Absence(reason=AbsenceReason.UNAVAILABLE, detail="connection refused")
    assert season_words(with_season(decision, gone)) == "no history of the demand is used: connection refused"


def test_a_demand_that_is_kept_for_a_rise_says_so(decision: PipelineDecision) -> None:
    kept = with_season(decision, replace(DAYS, kept=60.0))
    kept = replace(kept, demand=replace(kept.demand, planned=60.0, forecast=50.0, observed=50.0))
    assert demand_reason(kept).startswith("held: by demand.history it is back")


def test_room_for_rarer_rises_says_what_such_rises_have_cost(decision: PipelineDecision) -> None:
    demand = replace(decision.demand, observed=50.0, forecast=60.0, planned=60.0, ahead_s=30.0, season=None, known=None)
    usual = demand_reason(replace(decision, demand=demand))
    assert usual == "what the load may reach until a new replica is ready, 30 s ahead"
    missed = demand_reason(replace(decision, demand=replace(demand, missed=0.12)))
    assert missed == f"{usual}; rarer rises count, after such rises cost 12% of the last minutes"
