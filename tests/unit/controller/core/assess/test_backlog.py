"""The pace of a backlog: what is left over the time left, and what is not known is no empty backlog."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.assess.backlog import LEAST_S, Pace, begun_s, pace_of, required_rps, usable_s
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.spec import BacklogSpec
from profiler.samples import Absence, AbsenceReason, Reading

NOW_S = 10_000.0
HOUR_S = 3600.0
MISSING = Absence(reason=AbsenceReason.MISSING, detail="the query returns no series")


def paced(
    left: Reading,
    *,
    spec: BacklogSpec | None = None,
    memory: PipelineMemory | None = None,
    ready_rps: float = 0.0,
    startup_s: float = 0.0,
) -> Pace:
    return pace_of(
        spec or BacklogSpec(deadline_s=NOW_S + HOUR_S),
        left,
        memory or PipelineMemory(begun_s=NOW_S),
        ready_rps=ready_rps,
        most_rps=100.0,
        startup_s=startup_s,
        now_s=NOW_S,
    )


@given(
    left=st.floats(1, 1e9),
    time_s=st.floats(LEAST_S, 1e6),
    ready_rps=st.floats(0, 1e3),
    startup_s=st.floats(0, 3600),
)
def test_the_required_rate_does_all_items_in_time(
    left: float, time_s: float, ready_rps: float, startup_s: float
) -> None:
    rate = required_rps(left, time_s, ready_rps=ready_rps, startup_s=startup_s)
    ready = min(rate, ready_rps)
    done = ready * time_s + (rate - ready) * max(LEAST_S, time_s - startup_s)
    assert done == pytest.approx(left)


@given(left=st.floats(1, 1e6), due_in_s=st.floats(-1e5, 1e6), since_s=st.floats(-1e5, 0))
def test_the_pace_is_a_finite_number_at_any_deadline(left: float, due_in_s: float, since_s: float) -> None:
    spec = BacklogSpec(deadline_s=NOW_S + due_in_s)
    pace = paced(left, spec=spec, memory=PipelineMemory(begun_s=max(0.0, NOW_S + since_s)), startup_s=600.0)
    assert pace.rate is not None
    assert 0 < pace.rate <= 100
    assert math.isfinite(pace.rate)


@given(left=st.floats(1, 1e4), sooner_s=st.floats(60, 1e5), later_s=st.floats(0, 1e5))
def test_a_later_deadline_asks_for_no_higher_pace(left: float, sooner_s: float, later_s: float) -> None:
    begun = PipelineMemory(begun_s=NOW_S)
    sooner = paced(left, spec=BacklogSpec(deadline_s=NOW_S + sooner_s), memory=begun)
    later = paced(left, spec=BacklogSpec(deadline_s=NOW_S + sooner_s + later_s), memory=begun)
    assert sooner.rate is not None
    assert later.rate is not None
    assert later.rate <= sooner.rate * (1 + 1e-9)


def test_missing_data_keeps_the_last_pace() -> None:
    pace = paced(MISSING, memory=PipelineMemory(begun_s=NOW_S - HOUR_S, demand=3.0))
    assert (pace.rate, pace.left) == (3.0, MISSING)


def test_a_backlog_that_was_never_observed_has_no_pace() -> None:
    assert paced(MISSING, memory=PipelineMemory()).rate is None


@pytest.mark.parametrize("reading", [-1.0, math.nan, math.inf, 1e18])
def test_what_is_no_number_of_items_is_not_an_empty_backlog(reading: float) -> None:
    pace = paced(reading, memory=PipelineMemory(begun_s=NOW_S, demand=3.0))
    assert isinstance(pace.left, Absence)
    assert pace.rate == 3.0


def test_an_empty_backlog_needs_nothing_and_begins_anew() -> None:
    pace = paced(0.0, spec=BacklogSpec(within_s=HOUR_S), memory=PipelineMemory(begun_s=NOW_S - HOUR_S))
    assert (pace.rate, pace.begun_s) == (0.0, NOW_S)
    later = paced(5.0, spec=BacklogSpec(within_s=HOUR_S), memory=PipelineMemory(begun_s=pace.begun_s))
    assert later.due_s == NOW_S + HOUR_S


def test_an_empty_backlog_has_the_deadline_that_is_a_date_and_no_other() -> None:
    assert paced(0.0, spec=BacklogSpec(within_s=HOUR_S)).due_s is None
    assert paced(0.0, spec=BacklogSpec(deadline_s=NOW_S + 60)).due_s == NOW_S + 60


def test_more_items_do_not_move_the_deadline() -> None:
    begun = NOW_S - HOUR_S
    pace = paced(5.0, spec=BacklogSpec(within_s=2 * HOUR_S), memory=PipelineMemory(begun_s=begun))
    assert (pace.begun_s, pace.due_s) == (begun, begun + 2 * HOUR_S)


def test_a_clock_that_was_set_back_does_not_put_the_begin_ahead() -> None:
    assert begun_s(5.0, PipelineMemory(begun_s=NOW_S + HOUR_S), NOW_S) == NOW_S


def test_ready_replicas_are_not_counted_as_starting() -> None:
    """Near the deadline, ten minutes of start-up would otherwise start replicas that are ready too late."""
    spec = BacklogSpec(deadline_s=NOW_S + 660)
    begun = PipelineMemory(begun_s=NOW_S - 9 * HOUR_S)
    enough = paced(100.0, spec=spec, memory=begun, ready_rps=1.0, startup_s=600.0)
    none = paced(100.0, spec=spec, memory=begun, startup_s=600.0)
    assert enough.rate == pytest.approx(100 / usable_s(NOW_S - 9 * HOUR_S, NOW_S + 660, NOW_S))
    assert none.rate == pytest.approx(100 / LEAST_S)


def test_after_the_deadline_the_work_goes_on_as_fast_as_the_replicas_allow() -> None:
    assert paced(1e6, spec=BacklogSpec(deadline_s=NOW_S - HOUR_S)).rate == 100.0
