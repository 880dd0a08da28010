"""Rises that came too fast and cost the SLA: the more of the last minutes they cost, the rarer the rises that count."""

from dataclasses import replace

import pytest
from builders import NOW_S, a_placement, a_spec, a_stage, a_state
from hypothesis import given
from hypothesis import strategies as st

from controller.core.assess.demand import stabilised_demand
from controller.core.assess.surprises import (
    LASTING_S,
    LEAST_S,
    MOST,
    growth_share,
    missed_share,
    rise_s,
    surprises,
)
from controller.core.state.carry_over import DemandSample, PipelineMemory, Surprise
from profiler.forecast import GROWTH_SHARE

AHEAD_S = 30.0
STEADY = tuple(DemandSample(t_s=15.0 * k, observed=100.0, forecast=100.0, peak=120.0) for k in range(20))
LAST_S = STEADY[-1].t_s
NEXT_S = LAST_S + 15.0


def now(load: float, *, late: bool, before: tuple[Surprise, ...] = ()) -> tuple[Surprise, ...]:
    return surprises(before, STEADY, (NEXT_S, load), late=late, ahead_s=AHEAD_S)


def bursts(*, missed: bool, cycles: int = 1) -> list[float | None]:
    """Return the demand that is planned for, of a load that doubles in `cycles` cycles, once in 32."""
    memory, spec, found = PipelineMemory(), a_spec(a_stage("a", a_placement("cpu", startup_s=15.0))), []
    for cycle in range(64):
        now_s, risen = NOW_S + 15.0 * cycle, max(0, cycle % 32 - 31 + cycles) / cycles
        late_since_s = now_s if missed and cycle > 31 and cycle % 32 < 5 else None
        state = a_state(spec, demand=100.0 * (1 + risen), memory=replace(memory, missed_since_s=late_since_s))
        answer = stabilised_demand(state, now_s, 15.0)
        assert answer.horizon is not None
        memory = PipelineMemory(
            demand=answer.demand, samples=answer.samples, surprises=answer.horizon.surprises, begun_s=answer.begun_s
        )
        found.append(answer.demand)
    return found


def test_bursts_that_cost_the_sla_are_planned_for_and_others_are_not() -> None:
    before_the_second = 31 + 31
    assert bursts(missed=False)[before_the_second] == pytest.approx(100, rel=0.2)
    assert bursts(missed=True)[before_the_second] == pytest.approx(200, rel=0.05)


def test_a_burst_that_takes_longer_than_a_replica_to_start_is_planned_for_once_it_was_missed_for_so_long() -> None:
    before_the_second = 31 + 28
    assert bursts(missed=True, cycles=4)[before_the_second] == pytest.approx(200, rel=0.05)


def test_the_load_may_rise_for_as_long_as_the_longest_miss_took() -> None:
    found = (Surprise(since_s=0.0, until_s=75.0), Surprise(since_s=200.0, until_s=240.0))
    assert rise_s(a_spec(), found, 0.2, AHEAD_S) == 75
    assert rise_s(a_spec(), found, 0.05, AHEAD_S) == AHEAD_S, "no more than the SLA's percentile allows"
    assert rise_s(a_spec(), found[1:], 0.2, 60.0) == 60, "never less than a replica takes to start"


def test_a_miss_after_a_load_beyond_the_plan_counts_from_the_last_cycle_on() -> None:
    assert now(121.0, late=True) == (Surprise(since_s=LAST_S, until_s=NEXT_S),)


def test_a_miss_at_a_load_within_the_plan_has_another_cause() -> None:
    assert now(120.0, late=True) == ()


def test_a_load_beyond_the_plan_without_a_miss_costs_nothing() -> None:
    assert now(500.0, late=False) == ()


def test_a_miss_that_shows_a_window_after_the_rise_counts() -> None:
    risen = (*STEADY[:-1], replace(STEADY[-1], observed=300.0, forecast=300.0, peak=400.0))
    assert surprises((), risen, (NEXT_S, 300.0), late=True, ahead_s=AHEAD_S)
    longer = (*risen, *(replace(risen[-1], t_s=LAST_S + 15 * k) for k in range(1, 6)))
    assert surprises((), longer, (LAST_S + 90, 300.0), late=True, ahead_s=AHEAD_S) == ()


def test_a_miss_lasts_until_the_latency_is_back_within_the_sla() -> None:
    begun = (Surprise(since_s=LAST_S - 60, until_s=LAST_S),)
    assert now(100.0, late=True, before=begun) == (Surprise(since_s=LAST_S - 60, until_s=NEXT_S),)
    assert now(100.0, late=False, before=begun) == begun


def test_without_a_plan_before_the_load_nothing_is_a_surprise() -> None:
    assert surprises((), (), (NEXT_S, 500.0), late=True, ahead_s=AHEAD_S) == ()
    assert surprises((), STEADY[-1:], (NEXT_S, 500.0), late=True, ahead_s=AHEAD_S) == ()


def test_misses_of_long_ago_and_of_a_clock_that_was_ahead_are_dropped() -> None:
    old = Surprise(since_s=NEXT_S - LASTING_S - 50, until_s=NEXT_S - LASTING_S)
    ahead = Surprise(since_s=NEXT_S + 3600, until_s=NEXT_S + 3700)
    assert now(100.0, late=False, before=(old, ahead)) == ()


def test_only_the_last_misses_are_kept() -> None:
    many = tuple(Surprise(since_s=200.0 + k, until_s=200.5 + k) for k in range(MOST + 5))
    assert now(500.0, late=True, before=many)[0] == many[6]


def test_the_share_is_of_the_last_minutes_or_of_the_time_since_the_load_is_known() -> None:
    found = (Surprise(since_s=0.0, until_s=100.0), Surprise(since_s=900.0, until_s=930.0))
    assert missed_share(found, 0.0, 1000.0) == pytest.approx(30 / LASTING_S)
    assert missed_share(found, 880.0, 1000.0) == pytest.approx(30 / 120)
    assert missed_share(found, 999.0, 1000.0) == pytest.approx(30 / LEAST_S)


@given(missed=st.floats(0.0, 1.0), percentile=st.integers(50, 99))
def test_the_more_was_missed_the_rarer_the_rises_that_count(missed: float, percentile: int) -> None:
    spec = a_spec()
    spec = replace(spec, sla=replace(spec.sla, percentile=percentile))
    share = growth_share(spec, missed)
    assert GROWTH_SHARE <= share < 1
    assert growth_share(spec, min(1.0, missed + 0.1)) >= share
    if missed <= 1 - percentile / 100:
        assert share == GROWTH_SHARE
