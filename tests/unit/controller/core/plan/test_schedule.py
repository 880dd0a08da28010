"""The schedule of work that can wait: the cheapest one, and waiting that costs no deadline."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.assess.backlog import required_rps
from controller.core.plan.schedule import (
    Caution,
    Course,
    Period,
    Schedule,
    Segment,
    Work,
    even_schedule,
    items_done,
    schedule,
    sure_items,
    until,
)

HOUR_S = 3600.0
CHEAP, DEAR = 0.001, 0.004
CAUTION = Caution(tolerance=0.1, interval_s=60.0)


def hour(*segments: tuple[float, float], length_s: float = HOUR_S) -> Period:
    return Period(length_s=length_s, segments=tuple(Segment(rate_rps=rate, item_cost=cost) for rate, cost in segments))


DAY, NIGHT = hour((10.0, DEAR)), hour((10.0, CHEAP), (10.0, DEAR))

segments = st.lists(
    st.tuples(st.floats(0.1, 20), st.sampled_from([0.001, 0.002, 0.004, 0.01])), min_size=0, max_size=3
).map(lambda found: hour(*sorted(found, key=lambda each: each[1])))
periods = st.lists(segments, min_size=1, max_size=8).filter(lambda found: any(each.segments for each in found))
works = st.builds(Work, left=st.floats(1, 1e6), ready_rps=st.floats(0, 20), startup_s=st.floats(0, 1800))


def test_what_can_be_done_at_night_waits_for_it() -> None:
    found = schedule(Work(left=20_000.0), [DAY] * 4 + [NIGHT] * 4, CAUTION)
    assert found.rates == pytest.approx([0.0] * 4 + [20_000 / 4 / HOUR_S] * 4)
    assert found.cost == pytest.approx(20_000 * CHEAP)


def test_what_exceeds_the_night_is_spread_evenly_over_the_rest() -> None:
    night = 4 * 10 * HOUR_S
    found = schedule(Work(left=night + 40_000.0), [DAY] * 4 + [NIGHT] * 4, CAUTION)
    assert found.rates[:4] == pytest.approx([40_000 / 8 / HOUR_S] * 4)
    assert found.rates[4:] == pytest.approx([10 + 40_000 / 8 / HOUR_S] * 4)


def test_a_cheap_present_is_used_before_dear_hours() -> None:
    found = schedule(Work(left=30_000.0), [NIGHT, DAY, DAY], CAUTION)
    assert found.rates == pytest.approx([30_000 / HOUR_S, 0, 0])


def test_a_saving_below_the_tolerance_is_not_waited_for() -> None:
    little = hour((10.0, 0.95 * DEAR))
    assert schedule(Work(left=10_000.0), [DAY, little, little], CAUTION).even
    assert not schedule(Work(left=10_000.0), [DAY, little, little], Caution(tolerance=0.01)).even


def test_work_that_waits_goes_on_waiting_for_any_saving() -> None:
    little = hour((10.0, 0.95 * DEAR))
    assert not schedule(Work(left=10_000.0, waiting=True), [DAY, little, little], CAUTION).even
    assert schedule(Work(left=10_000.0, waiting=True), [DAY, DAY, DAY], CAUTION).even


def test_a_run_that_is_begun_is_stopped_only_for_twice_the_tolerance() -> None:
    less = hour((10.0, 0.85 * DEAR))  # saves 15 %
    later = [*[DAY] * 3, *[less] * 3]
    assert not schedule(Work(left=10_000.0), later, CAUTION).even
    assert schedule(Work(left=10_000.0, ready_rps=1.0), later, CAUTION).even


def test_work_that_the_present_capacity_could_not_catch_up_with_does_not_wait() -> None:
    """At night there is ten times the capacity, or the season is wrong: four hours of the present do 144,000 items."""
    night = hour((100.0, CHEAP))
    assert not schedule(Work(left=140_000.0), [DAY, night, night, night], CAUTION).even
    assert schedule(Work(left=144_000.0), [DAY, night, night, night], CAUTION).even
    assert schedule(Work(left=140_000.0, startup_s=600.0), [DAY, night, night, night], CAUTION).even


def test_less_capacity_than_now_is_believed() -> None:
    closed = hour()
    found = schedule(Work(left=36_000.0), [DAY, DAY, closed, closed], CAUTION)
    assert found.even_rps == pytest.approx(5.0)
    assert sure_items(Work(left=1.0), [DAY, DAY, closed, closed], 0.0) == pytest.approx(72_000)


def test_all_capacity_is_used_where_it_does_not_suffice() -> None:
    found = schedule(Work(left=1e9), [DAY, NIGHT], CAUTION)
    assert (found.rates, found.complete) == ((10.0, 20.0), False)


@given(left=st.floats(1, 30_000), ready_rps=st.floats(0, 10), startup_s=st.floats(0, 1800), count=st.integers(1, 12))
def test_where_nothing_changes_the_pace_is_the_even_one(
    left: float, ready_rps: float, startup_s: float, count: int
) -> None:
    found = schedule(Work(left=left, ready_rps=ready_rps, startup_s=startup_s), [DAY] * count, CAUTION)
    expected = required_rps(left, count * HOUR_S, ready_rps=ready_rps, startup_s=startup_s)
    if expected <= 9.9:
        assert found.rates[0] == pytest.approx(expected, rel=1e-6)


@given(work=works, hours=periods)
def test_a_schedule_is_within_the_capacity_and_does_all_items(work: Work, hours: list[Period]) -> None:
    found = schedule(work, hours, CAUTION)
    assert all(-1e-9 <= rate <= each.most_rps * (1 + 1e-9) for rate, each in zip(found.rates, hours, strict=True))
    assert found.done == items_done(work, hours, found.rates)
    if found.complete:
        assert sum(found.done) >= work.left * (1 - 1e-6)
    else:
        assert found.rates == tuple(each.most_rps for each in hours)


@given(work=works, hours=periods)
def test_it_costs_no_more_than_the_even_pace(work: Work, hours: list[Period]) -> None:
    even = even_schedule(work, hours)
    if even.complete:
        assert schedule(work, hours, CAUTION).cost <= even.cost * (1 + 1e-6)


@given(work=works, hours=periods, dearer=st.floats(1, 3))
def test_a_later_deadline_costs_no_more(work: Work, hours: list[Period], dearer: float) -> None:
    course = Course.of(work, tuple(hours * 2), len(hours) * HOUR_S, CAUTION)
    assert min(course.savings((0.25, 1.0))) >= 0


@given(work=works, hours=periods, caution=st.floats(0, 600))
def test_the_present_capacity_catches_up_with_what_waits(work: Work, hours: list[Period], caution: float) -> None:
    """The season is wrong: from the next cycle on there is what is free now, or what was expected if that is less."""
    found = schedule(work, hours, Caution(tolerance=0.1, interval_s=caution))
    if found.even or found.rates[0] >= even_schedule(work, hours).rates[0]:
        return
    now_rps = hours[0].most_rps
    most = sum(each.length_s * min(now_rps, each.most_rps) for each in hours)
    assert most - now_rps * (caution + work.startup_s) >= work.left * (1 - 1e-9)


def test_the_finish_and_the_cost_follow_the_schedule() -> None:
    course = Course.of(Work(left=20_000.0), tuple([DAY] * 4 + [NIGHT] * 12), 8 * HOUR_S, CAUTION)
    assert (course.changes, course.waits_s) == (True, 4 * HOUR_S)
    assert course.remaining(0.0) == pytest.approx((8 * HOUR_S, 20_000 * CHEAP))
    by_hour = [each.per_hour for each in course.busiest(HOUR_S, 9)]
    busy = pytest.approx(20_000 / 4 * CHEAP)
    assert by_hour == [0.0, 0.0, 0.0, busy, busy, busy, busy, busy, 0.0], "the hour in which it begins included"
    assert [each.per_hour for each in course.busiest(0.4 * HOUR_S, 11)][7:] == [0.0, 0.0, busy, busy]


def test_work_that_no_capacity_is_known_for_has_no_finish() -> None:
    found = Schedule(rates=(0.0,), done=(0.0,), cost=0.0, complete=False, even_rps=0.0, even=True)
    course = Course(work=Work(left=10.0), periods=(DAY,), time_s=HOUR_S, found=found)
    assert course.remaining(0.0) is None


def test_the_last_period_is_cut_at_the_deadline() -> None:
    assert [each.length_s for each in until([DAY, DAY, DAY], 1.5 * HOUR_S)] == [HOUR_S, HOUR_S / 2]
