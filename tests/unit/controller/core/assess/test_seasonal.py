"""A history in the demand to plan for: ahead of a rise by a start-up, nothing given up before one."""

from dataclasses import replace

import pytest
from builders import NOW_S, a_placement, a_scaling, a_spec, a_stage, a_state

from controller.core.assess.demand import DemandState, stabilised_demand
from controller.core.codec import decode, encode
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.decision import SeasonUse
from controller.core.state.snapshot import PipelineState
from profiler.samples import MISSING, Absence, AbsenceReason
from profiler.season import DemandHistory, packed, period_before

STARTUP_S, CYCLE_S, DOWN_S, HOUR_S = 60.0, 15.0, 120.0, 3600.0
BEGIN_S = NOW_S // HOUR_S * HOUR_S
SCALING = replace(a_scaling(up_s=0.0, down_s=DOWN_S), idle_after_s=300.0)
SPEC = a_spec(a_stage("a", a_placement("cpu", startup_s=STARTUP_S)), scaling=SCALING)


def breaks(at_s: float) -> float:
    """A load of 200 every hour, with a break of 3 minutes from the 30th minute on, and from the 50th minute none."""
    phase_s = at_s % HOUR_S
    if phase_s >= 50 * 60:
        return 0.0
    return 20.0 if 30 * 60 <= phase_s < 33 * 60 else 200.0


def history(now_s: float) -> DemandHistory:
    begin_s, count = period_before(now_s, HOUR_S, 7, CYCLE_S)
    levels = packed(breaks(begin_s + index * CYCLE_S) for index in range(count))
    return DemandHistory(begin_s=begin_s, step_s=CYCLE_S, season_s=HOUR_S, most=7, levels=levels)


def followed(*, known: bool, until_s: float = HOUR_S) -> dict[float, DemandState]:
    memory, found = PipelineMemory(), {}
    for index in range(int((until_s + 300) / CYCLE_S)):
        now_s = BEGIN_S + index * CYCLE_S
        state = a_state(SPEC, demand=breaks(now_s), memory=memory)
        answer = stabilised_demand(replace(state, history=history(now_s) if known else None), now_s, CYCLE_S)
        memory = PipelineMemory(
            demand=answer.demand, samples=answer.samples, metrics_lost=answer.loss, idle_since_s=answer.idle_since_s
        )
        found[now_s - BEGIN_S] = answer
    return found


@pytest.fixture(scope="module")
def with_history() -> dict[float, DemandState]:
    return followed(known=True)


@pytest.fixture(scope="module")
def without() -> dict[float, DemandState]:
    return followed(known=False)


def test_nothing_is_given_up_for_a_break_that_ends_within_the_scale_down_window(
    with_history: dict[float, DemandState], without: dict[float, DemandState]
) -> None:
    last_s = 33 * 60 - CYCLE_S
    assert (without[last_s].demand or 0.0) < 150.0
    assert with_history[last_s].demand == pytest.approx(200.0)
    held = with_history[last_s].horizon
    assert held is not None
    assert isinstance(held.season, SeasonUse)


def test_a_pipeline_that_was_idle_opens_one_start_up_before_its_hour(
    with_history: dict[float, DemandState], without: dict[float, DemandState]
) -> None:
    before_s = HOUR_S - STARTUP_S - CYCLE_S
    assert without[before_s].idle
    assert without[before_s].demand == 0.0
    assert not with_history[before_s].idle
    assert with_history[before_s].demand == pytest.approx(200.0)
    assert with_history[before_s - 120.0].idle, "and not earlier"


def test_where_the_load_stays_down_the_window_alone_keeps_it(with_history: dict[float, DemandState]) -> None:
    assert with_history[50 * 60 + DOWN_S + STARTUP_S + 2 * CYCLE_S].demand == pytest.approx(0.0, abs=0.1)


def test_it_says_how_far_it_is_trusted(with_history: dict[float, DemandState]) -> None:
    found = with_history[HOUR_S - STARTUP_S - CYCLE_S].horizon
    assert found is not None
    season = found.season
    assert isinstance(season, SeasonUse)
    assert (season.seasons, season.season_s, season.last) == (7, HOUR_S, 200.0)
    assert season.expected == pytest.approx(200.0)
    assert season.trust > 0.9


def test_a_history_that_is_absent_changes_nothing_and_says_why() -> None:
    gone = Absence(reason=AbsenceReason.UNAVAILABLE, detail="connection refused")
    state = a_state(SPEC, demand=200.0, memory=PipelineMemory(demand=150.0))
    plain = stabilised_demand(state, NOW_S, CYCLE_S)
    found = stabilised_demand(replace(state, history=gone), NOW_S, CYCLE_S)
    assert found.demand == plain.demand
    assert found.horizon is not None
    assert found.horizon.season == gone


def test_in_its_first_minute_a_pipeline_has_no_past() -> None:
    opening_s = NOW_S + HOUR_S
    state = a_state(a_spec(), demand=0.0)
    found = stabilised_demand(replace(state, history=history(NOW_S)), opening_s, CYCLE_S)
    assert found.horizon is not None
    assert found.horizon.season is None


def test_a_missing_demand_is_held_as_without_history() -> None:
    state = a_state(SPEC, demand=MISSING, memory=PipelineMemory(demand=150.0))
    found = stabilised_demand(replace(state, history=history(NOW_S)), NOW_S, CYCLE_S)
    assert found.demand == stabilised_demand(state, NOW_S, CYCLE_S).demand


def test_a_recorded_history_repeats_the_decision() -> None:
    state = replace(a_state(SPEC, demand=200.0, memory=PipelineMemory()), history=history(NOW_S))
    read = decode(PipelineState, encode(state))
    assert read.history == state.history
    assert stabilised_demand(read, NOW_S, CYCLE_S) == stabilised_demand(state, NOW_S, CYCLE_S)
