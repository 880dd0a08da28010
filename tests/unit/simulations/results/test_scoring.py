"""Worked examples of scoring."""

import math

import numpy as np
import pytest

from optimizer.model import Sla
from simulations.results.scoring import (
    Clock,
    Interval,
    Items,
    Outcome,
    Steps,
    Tally,
    cap_violations,
    cost,
    replica_changes,
    score_items,
)

SLA = Sla(latency_s=0.25, percentile=95)
CLOCK = Clock(duration_s=60, warmup_s=20, window_s=10)


def items(*groups: tuple[float, int, Outcome, float]) -> Items:
    """Groups of (arrival, how many, outcome, latency)."""
    rows = [(t, latency, outcome) for t, count, outcome, latency in groups for _ in range(count)]
    arrival, latency, outcome = zip(*rows, strict=True) if rows else ((), (), ())
    return Items(
        arrival_s=np.array(arrival, dtype=float),
        latency_s=np.array(latency, dtype=float),
        outcome=np.array(outcome, dtype=np.uint8),
    )


def test_a_window_is_met_when_exactly_the_percentile_is_within_the_sla() -> None:
    met = score_items(items((25, 95, Outcome.SERVED, 0.25), (25, 5, Outcome.SERVED, 0.26)), SLA, CLOCK)
    missed = score_items(items((25, 94, Outcome.SERVED, 0.25), (25, 6, Outcome.SERVED, 0.26)), SLA, CLOCK)

    assert met.sla_windows_met == 1
    assert missed.sla_windows_met == 0


def test_a_window_with_fewer_than_twenty_unfiltered_items_is_not_scored() -> None:
    score = score_items(items((25, 19, Outcome.SERVED, 9), (25, 500, Outcome.FILTERED, 0)), SLA, CLOCK)

    assert [window.met for window in score.windows] == [None] * 4
    assert score.sla_windows_met is None
    assert score.scored_windows == 0


def test_an_item_belongs_to_the_window_in_which_it_arrived() -> None:
    score = score_items(items((29.999, 20, Outcome.SERVED, 2.4), (30, 20, Outcome.SERVED, 0.1)), SLA, CLOCK)

    assert [window.met for window in score.windows] == [False, True, None, None]
    assert [window.t_s for window in score.windows] == [20, 30, 40, 50]


def test_an_item_is_held_to_the_sla_in_force_when_it_arrived_and_a_window_to_the_percentile_as_it_begins() -> None:
    strict, lax = Sla(latency_s=0.1, percentile=95), Sla(latency_s=4, percentile=50)
    score = score_items(
        items(
            (25, 100, Outcome.SERVED, 0.2),
            (34.999, 80, Outcome.SERVED, 0.2),
            (35, 20, Outcome.SERVED, 0.2),
            (45, 100, Outcome.SERVED, 0.1),
            (54, 40, Outcome.SERVED, 30),
            (55, 60, Outcome.SERVED, 3),
        ),
        SLA,
        CLOCK,
        changes=((35, strict), (50, lax)),
    )

    assert [window.met for window in score.windows] == [True, False, True, True]
    assert [window.sla for window in score.windows] == [SLA, SLA, strict, lax]
    assert score.within_sla_share == (100 + 80 + 100 + 60) / 400
    assert (score.served, score.lost) == (400, 0)
    assert [window.p95_s for window in score.windows] == [0.2, 0.2, 0.1, 30]


def test_an_answer_is_lost_after_ten_times_the_sla_in_force() -> None:
    strict = Sla(latency_s=0.01, percentile=95)
    score = score_items(
        items((25, 20, Outcome.SERVED, 0.2), (35, 20, Outcome.SERVED, 0.2)), SLA, CLOCK, changes=((30, strict),)
    )

    assert [(window.served, window.lost) for window in score.windows[:2]] == [(20, 0), (0, 20)]


def test_what_arrives_in_the_warm_up_or_after_the_end_is_not_counted() -> None:
    score = score_items(items((19.9, 50, Outcome.LOST, 0), (60, 50, Outcome.LOST, 0)), SLA, CLOCK)

    assert score.offered == 0
    assert score.within_sla_share is None


def test_lost_items_are_infinitely_late() -> None:
    score = score_items(items((25, 98, Outcome.SERVED, 0.1), (25, 2, Outcome.LOST, math.inf)), SLA, CLOCK)

    assert score.p50_s == 0.1
    assert score.p95_s == 0.1
    assert score.p99_s is None
    assert score.lost == 2


@pytest.mark.parametrize("outcome", [Outcome.SHED, Outcome.REFUSED])
def test_items_that_are_not_accepted_stay_out_of_percentiles_and_miss_the_window(outcome: Outcome) -> None:
    score = score_items(items((25, 60, Outcome.SERVED, 0.1), (25, 40, outcome, 0)), SLA, CLOCK)

    assert score.p99_s == 0.1
    assert (score.sla_windows_met, score.sla_windows_met_calm) == (0, 0)
    assert score.sla_windows_met_admitted == (1 if outcome is Outcome.SHED else 0)
    assert score.within_sla_share == 0.6


def test_a_window_is_met_by_the_share_of_what_was_offered() -> None:
    few_shed = score_items(items((25, 95, Outcome.SERVED, 0.1), (25, 5, Outcome.SHED, 0)), SLA, CLOCK)
    one_more = score_items(items((25, 94, Outcome.SERVED, 0.1), (25, 6, Outcome.SHED, 0)), SLA, CLOCK)

    assert (few_shed.sla_windows_met, one_more.sla_windows_met) == (1, 0)


def test_late_items_are_counted_among_the_served_ones() -> None:
    score = score_items(items((25, 60, Outcome.SERVED, 0.1), (25, 40, Outcome.SERVED, 0.5)), SLA, CLOCK)

    assert (score.served, score.late) == (100, 40)


def test_filtered_items_count_for_nothing_but_themselves() -> None:
    score = score_items(items((25, 30, Outcome.SERVED, 0.1), (25, 70, Outcome.FILTERED, 99)), SLA, CLOCK)

    assert score.within_sla_share == 1
    assert score.p99_s == 0.1
    assert (score.offered, score.filtered) == (100, 70)


def test_an_answer_after_ten_slas_is_no_answer() -> None:
    score = score_items(items((25, 1, Outcome.SERVED, 2.51), (25, 1, Outcome.IN_FLIGHT, 2.51)), SLA, CLOCK)

    assert (score.served, score.in_flight, score.lost) == (0, 0, 2)


def test_an_item_in_flight_is_late_once_the_sla_has_passed_and_undecided_before() -> None:
    young = score_items(items((55, 95, Outcome.SERVED, 0.1), (59, 50, Outcome.IN_FLIGHT, 0.2)), SLA, CLOCK)
    old = score_items(items((55, 95, Outcome.SERVED, 0.1), (59, 50, Outcome.IN_FLIGHT, 0.3)), SLA, CLOCK)

    assert young.sla_windows_met == 1
    assert old.sla_windows_met == 0


def test_windows_are_calm_outside_faults_and_six_minutes_after_they_began_or_ended() -> None:
    clock = Clock(duration_s=2000, warmup_s=0, window_s=100)
    at_once = Interval(from_s=100, until_s=100)
    lasting = Interval(from_s=800, until_s=1100)
    score = score_items(items(), SLA, clock, [at_once, lasting])

    calm = [window.t_s for window in score.windows if window.calm]
    assert calm == [0, 500, 600, 700, 1500, 1600, 1700, 1800, 1900]


def test_calm_windows_are_scored_apart() -> None:
    bad, good = (25.0, 20, Outcome.LOST, 0.0), (45.0, 20, Outcome.SERVED, 0.1)
    fault = Interval(from_s=-340, until_s=-335)  # 6 minutes later is 25 s
    score = score_items(items(bad, good), SLA, CLOCK, [fault])

    assert score.sla_windows_met == 0.5
    assert score.sla_windows_met_calm == 1


def test_percentiles_are_those_of_the_nearest_rank() -> None:
    rows = items(*((25.0, 1, Outcome.SERVED, float(tenth) / 10) for tenth in range(20, 0, -1)))
    score = score_items(rows, SLA, CLOCK)

    assert (score.p50_s, score.p95_s, score.p99_s) == (1.0, 1.9, 2.0)
    assert score.windows[0].p95_s == 1.9


def test_a_tally_of_pieces_gives_percentiles_within_a_thousandth_in_memory_that_does_not_grow() -> None:
    rng = np.random.default_rng(1)
    arrival_s, latency_s = np.sort(rng.uniform(20, 60, 40_000)), rng.lognormal(-2, 0.6, 40_000)
    tally = Tally(SLA, CLOCK, open_windows=2)
    size = sum(array.nbytes for array in tally.arrays)
    for piece in np.array_split(np.arange(40_000), 13):
        tally.record(
            Items(arrival_s=arrival_s[piece], latency_s=latency_s[piece], outcome=np.zeros(len(piece), dtype=np.uint8))
        )
    score = tally.score()

    assert score.p50_s == pytest.approx(np.quantile(latency_s, 0.50, method="inverted_cdf"), rel=1e-3)
    assert score.p99_s == pytest.approx(np.quantile(latency_s, 0.99, method="inverted_cdf"), rel=1e-3)
    for window in score.windows:
        inside = latency_s[(arrival_s >= window.t_s) & (arrival_s < window.t_s + 10)]
        assert window.p95_s == pytest.approx(np.quantile(inside, 0.95, method="inverted_cdf"), rel=1e-3)
        assert window.served == len(inside)
    assert sum(array.nbytes for array in tally.arrays) == size


def test_an_item_of_a_window_that_is_closed_is_refused() -> None:
    tally = Tally(SLA, CLOCK)
    tally.record(items((45, 1, Outcome.SERVED, 0.1)))

    with pytest.raises(ValueError, match="arrival_s"):
        tally.record(items((25, 1, Outcome.SERVED, 0.1)))


def test_cost_is_the_integral_of_the_rate_over_scored_time_alone() -> None:
    rate = Steps(times_s=[0, 30], values=[3600, 7200])

    assert cost(rate, CLOCK) == pytest.approx(10 * 1 + 30 * 2)


def test_replica_changes_add_up_over_placements_and_ignore_the_warm_up() -> None:
    one = Steps(times_s=[0, 10, 25, 40], values=[1, 4, 6, 3])
    other = Steps(times_s=[0], values=[2])

    assert replica_changes([one, other], CLOCK) == 5


def test_every_maximal_interval_above_the_cap_is_one_violation() -> None:
    spend = Steps(times_s=[0, 10, 11, 12, 30], values=[5, 11, 12, 10, 10.5])
    cap = Steps(times_s=[0], values=[10])

    assert cap_violations(spend, cap, 60, []) == 2


def test_spend_at_the_cap_is_no_violation_whatever_rounding_did() -> None:
    assert cap_violations(Steps(times_s=[0], values=[0.1 * 3]), Steps(times_s=[0], values=[0.3]), 60, []) == 0


def test_an_excess_after_a_price_rise_is_excused_while_spend_does_not_rise() -> None:
    cap = Steps(times_s=[0], values=[10])
    excuse = Interval(from_s=10, until_s=40)

    falling = Steps(times_s=[0, 10, 20, 35], values=[9, 15, 12, 10])
    rising = Steps(times_s=[0, 10, 20, 25, 35], values=[9, 15, 12, 13, 10])
    too_long = Steps(times_s=[0, 10, 45], values=[9, 15, 10])

    assert cap_violations(falling, cap, 60, [excuse]) == 0
    assert cap_violations(rising, cap, 60, [excuse]) == 1
    assert cap_violations(too_long, cap, 60, [excuse]) == 1
    assert cap_violations(falling, cap, 60, []) == 1


def test_a_second_excuse_covers_what_its_own_price_rise_brought() -> None:
    cap = Steps(times_s=[0], values=[10])
    spend = Steps(times_s=[0, 10, 20, 30], values=[9, 15, 18, 10])

    assert cap_violations(spend, cap, 60, [Interval(from_s=10, until_s=40), Interval(from_s=20, until_s=50)]) == 0


def test_a_step_function_whose_times_do_not_ascend_is_refused() -> None:
    with pytest.raises(ValueError, match="times_s"):
        Steps(times_s=[1, 0], values=[1, 2])
