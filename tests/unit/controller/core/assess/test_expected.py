"""The demand that is expected in later hours: from the history, from declared times, else the present one."""

import math

from controller.core.assess.demand import DemandState, Horizon
from controller.core.assess.expected import expected_demands
from controller.core.state.schedule import EventFloor
from profiler.samples import Absence, AbsenceReason
from profiler.season import DemandHistory, Season, packed, season

NOW_S = 20 * 86_400.0 + 18 * 3600.0
HOUR_S = 3600.0


def daily(at_s: float) -> float:
    """Return a load of 100 at noon and of 20 at midnight."""
    return 60 - 40 * math.cos(2 * math.pi * at_s / 86_400)


def recorded(load: float) -> Season:
    begin_s, step_s = NOW_S - 8 * 86_400, 300.0
    levels = [daily(begin_s + step_s * index) for index in range(8 * 288 + 1)]
    history = DemandHistory(begin_s=begin_s, step_s=step_s, season_s=86_400.0, most=7, levels=packed(levels))
    found = season(history, [(NOW_S - 60, load), (NOW_S, load)], NOW_S, 60.0)
    assert isinstance(found, Season)
    return found


def known(load: float, record: Season | None = None) -> DemandState:
    horizon = Horizon(ahead_s=60.0, launch_s=0.0, record=record)
    return DemandState(observed=load, stabilized=load, samples=(), horizon=horizon)


def hours(demand: DemandState, *floors: EventFloor, steps: int = 12) -> tuple[float, ...]:
    found = expected_demands(demand, floors, 0.0, NOW_S, HOUR_S, steps)
    assert found is not None
    return found


def test_without_knowledge_the_present_demand_holds() -> None:
    assert hours(known(50.0)) == (50.0,) * 12


def test_the_history_says_when_the_demand_falls_and_comes_back() -> None:
    found = hours(known(daily(NOW_S), recorded(daily(NOW_S))), steps=18)
    assert found[0] == daily(NOW_S)
    assert min(found) == min(found[5:8])  # around midnight
    assert found[6] <= 35
    assert found[17] >= daily(NOW_S + 17 * HOUR_S) * 0.95


def test_an_error_of_the_history_counts_as_demand() -> None:
    """The present load is not that of any season: what the seasons say is not followed."""
    likely, odd = recorded(daily(NOW_S)), recorded(3 * daily(NOW_S))
    likely_fall = daily(NOW_S) - hours(known(daily(NOW_S), likely))[6]
    odd_fall = 3 * daily(NOW_S) - hours(known(3 * daily(NOW_S), odd))[6]
    assert odd_fall / (3 * daily(NOW_S)) < likely_fall / daily(NOW_S)


def test_a_declared_demand_counts_until_it_ends_and_from_before_it_begins() -> None:
    day = EventFloor(name="day", demand=80.0, start_s=NOW_S - HOUR_S, end_s=NOW_S + 2 * HOUR_S)
    next_day = EventFloor(name="next", demand=90.0, start_s=NOW_S + 5 * HOUR_S + 30, end_s=NOW_S + 6 * HOUR_S)
    demand = known(10.0)
    assert hours(demand, day, next_day, steps=7)[1:] == (80.0, 10.0, 10.0, 90.0, 90.0, 10.0)


def test_a_demand_is_held_after_it_falls() -> None:
    record = recorded(daily(NOW_S))
    at_once = expected_demands(known(daily(NOW_S), record), (), 0.0, NOW_S, HOUR_S, 6)
    held = expected_demands(known(daily(NOW_S), record), (), 2 * HOUR_S, NOW_S, HOUR_S, 6)
    assert at_once is not None
    assert held is not None
    assert all(one >= other for one, other in zip(held, at_once, strict=True))
    assert held[3] > at_once[3]


def test_a_demand_that_was_never_observed_is_not_compared_with() -> None:
    missing = Absence(reason=AbsenceReason.MISSING, detail="the query returns no series")
    assert expected_demands(DemandState(observed=missing, stabilized=None, samples=()), (), 0, NOW_S, 60, 3) is None
