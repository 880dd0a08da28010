"""Rates, means and slopes over scrapes, against Prometheus' own worked cases and against plain sums."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.sources.combine import histogram_quantile
from simulations.cluster.scrapes import LOOKBACK_S, Floats, ScrapeHistory, ScrapeWindow, quantiles, rate

ONE = [0]


def column(*values: float) -> Floats:
    return np.array(values, dtype=np.float64).reshape(-1, 1)


def history(
    samples: list[tuple[float, list[float], list[float]]],
    *,
    keep_s: float = 100.0,
    found_s: dict[int, float] | None = None,
) -> ScrapeHistory:
    """Scrapes of (time, counter of each target, level of each target)."""
    made = ScrapeHistory(keep_s=keep_s, counters=1, levels=1)
    for t_s, counters, levels in samples:
        made.record(
            t_s,
            column(*counters),
            column(*levels),
            lambda number, t_s=t_s: (found_s or {}).get(number, 0.0) <= t_s,  # type: ignore[misc]
        )
    return made


def steady(rate_rps: float = 10.0, until_s: float = 60.0, level: float = 0.0) -> ScrapeHistory:
    return history([(t + 0.5, [rate_rps * (t + 0.5)], [level]) for t in range(int(until_s))])


def test_a_steady_counter_has_its_rate() -> None:
    assert steady().view().window(ONE, 60.0, 30.0).rates[0, 0] == pytest.approx(10.0)


def test_a_rate_is_extrapolated_to_the_ends_of_the_window_as_prometheus_does() -> None:
    # promql/functions.go: samples every 5 s at 0, 10, …, 50 (from 0 to 25 s), rate over the 50 s before t = 50: the
    # sampled 25 s are extended by half an interval at the far end, and by nothing below zero at the near one.
    assert rate(column(0), column(50), first_s=0, last_s=25, samples=6, from_s=0, until_s=50)[0, 0] == pytest.approx(
        50 * 27.5 / 25 / 50
    )


def test_a_rate_is_not_extrapolated_to_below_zero() -> None:
    # A counter that was 1 when first seen cannot have begun more than 1 item ago.
    found = rate(column(1), column(11), first_s=10, last_s=20, samples=11, from_s=9.2, until_s=20)[0, 0]
    assert found == pytest.approx(10 * (10 + min(0.8, 1.0)) / 10 / 10.8)
    found = rate(column(0.1), column(10.1), first_s=10, last_s=20, samples=11, from_s=9.2, until_s=20)[0, 0]
    assert found == pytest.approx(10 * (10 + 0.1) / 10 / 10.8)


def test_one_sample_is_no_rate_but_a_level() -> None:
    window = steady(level=4.0).view().window(ONE, 60.0, 1.0)

    assert math.isnan(window.rates[0, 0])
    assert window.means[0, 0] == window.last[0, 0] == 4.0


def test_a_step_in_load_moves_the_rate_by_the_share_of_the_window_that_has_it() -> None:
    def seen_at(now_s: int) -> float:
        made = history([(t, [10.0 * t + 90.0 * max(0, t - 30)], [0.0]) for t in range(now_s + 1)])
        return float(made.view().window(ONE, now_s, 20.0).rates[0, 0])

    seen = [seen_at(now_s) for now_s in (30, 35, 40, 50, 60)]

    assert seen == pytest.approx([10.0, 32.5, 55.0, 100.0, 100.0], rel=0.06)


def test_a_target_has_no_samples_before_it_is_found() -> None:
    def seen_at(now_s: int, window_s: float) -> ScrapeWindow:
        made = history([(t, [10.0 * t] * 2, [1.0] * 2) for t in range(now_s + 1)], found_s={1: 12.0})
        return made.view().window([0, 1], now_s, window_s)

    early, late = seen_at(11, 10.0), seen_at(20, 15.0)

    assert early.ages_s.tolist() == [0.0, math.inf]
    assert np.isnan(early.rates[:, 0]).tolist() == [False, True]
    # 80 in the 8 s from 12 to 20, extended by half an interval.
    assert late.rates[1, 0] == pytest.approx(80 * 8.5 / 8 / 15)


def test_a_target_that_joins_later_has_a_mean_of_its_own_samples() -> None:
    made = history([(t, [0.0] * (1 + (t >= 10)), [2.0, 6.0][: 1 + (t >= 10)]) for t in range(21)])

    assert made.view().window([0, 1], 20.0, 15.0).means[:, 0].tolist() == [2.0, 6.0]


def test_without_new_scrapes_samples_grow_old_and_then_there_are_none() -> None:
    made = steady()

    window = made.view().window(ONE, 80.0, 30.0)
    assert window.ages_s[0] == pytest.approx(20.5)
    # Ten samples are left in the window: their increase is spread over all of it, extended by half an interval.
    assert window.rates[0, 0] == pytest.approx(10.0 * (9 + 0.5 + 0.5) / 30)
    assert math.isnan(made.view().window(ONE, 95.0, 30.0).rates[0, 0])
    assert made.view().window(ONE, 60.0 + LOOKBACK_S - 1, 30.0).last[0, 0] == 0.0
    assert math.isnan(made.view().window(ONE, 60.0 + LOOKBACK_S, 30.0).last[0, 0])


def test_a_view_is_of_its_instant_whatever_comes_later() -> None:
    made = steady(until_s=40.0)
    view = made.view()
    made.record(100.5, column(0.0), column(9.0), lambda number: True)
    made.record(200.5, column(0.0), column(9.0), lambda number: True)

    assert view.window(ONE, 40.0, 30.0).rates[0, 0] == pytest.approx(10.0)


@given(st.lists(st.floats(0, 50), min_size=5, max_size=40), st.integers(2, 30))
def test_means_squares_and_slopes_over_a_window_are_those_of_its_samples(levels: list[float], window_s: int) -> None:
    made = history([(t + 0.25, [0.0], [level]) for t, level in enumerate(levels)], keep_s=30.0)
    now_s = len(levels) - 0.5
    inside = [(t + 0.25, level) for t, level in enumerate(levels) if t + 0.25 > now_s - window_s]

    window: ScrapeWindow = made.view().window(ONE, now_s, window_s)

    values = np.array([level for _, level in inside])
    assert window.means[0, 0] == pytest.approx(values.mean(), abs=1e-9)
    assert window.mean_squares[0, 0] == pytest.approx((values**2).mean(), abs=1e-6)
    assert window.busy_shares[0, 0] == pytest.approx((values > 0).mean(), abs=1e-9)
    if len(inside) > 1:
        slope = np.polyfit([t_s for t_s, _ in inside], values, 1)[0]
        assert window.slopes[0, 0] == pytest.approx(slope, abs=1e-6)


@given(
    st.lists(st.integers(0, 20), min_size=4, max_size=4),
    st.floats(0.01, 0.99),
)
def test_quantiles_are_those_of_histogram_quantile(counts: list[int], share: float) -> None:
    bounds = np.array([0.1, 0.2, 0.5])
    found = quantiles(share, bounds, np.array([counts], dtype=np.float64))[0]
    cumulative = dict(zip((*bounds.tolist(), math.inf), np.cumsum(counts).tolist(), strict=True))
    expected = histogram_quantile(share, cumulative)
    if isinstance(expected, float):
        assert found == pytest.approx(expected)
    else:
        assert math.isnan(found)
