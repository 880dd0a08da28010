"""Axes: round ticks, and everything fits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.report.scale import Axis, around, from_zero, of_latencies, of_time

positive = st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=20)


@given(positive)
def test_everything_fits_from_zero(values: list[float]) -> None:
    scale = from_zero(values)
    assert scale.low == 0
    assert scale.high >= max(values) * (1 - 1e-9)
    assert scale.high <= max(values) * 2.6
    assert 2 <= len(scale.ticks) <= 7


@given(positive)
def test_everything_fits_around(values: list[float]) -> None:
    scale = around(values)
    assert scale.low <= min(values)
    assert max(values) <= scale.high
    assert all(0 <= scale.at(value) <= 1 for value in values)


@given(positive)
def test_latencies_fit_and_keep_their_order(values: list[float]) -> None:
    scale = of_latencies(values)
    assert scale.low <= min(values) * (1 + 1e-9)
    assert max(values) <= scale.high * (1 + 1e-9)
    assert [scale.at(value) for value in sorted(values)] == sorted(scale.at(value) for value in values)


@pytest.mark.parametrize(("top", "ticks"), [(1, (0, 1, 2, 3, 4)), (9, (0, 5, 10)), (37, (0, 10, 20, 30, 40))])
def test_counts_have_whole_ticks(top: float, ticks: tuple[float, ...]) -> None:
    assert from_zero([top], whole=True).ticks == ticks


def test_latencies_far_apart_are_logarithmic() -> None:
    near, far = of_latencies([0.1, 0.3]), of_latencies([0.1, 0.25, 4.0])
    assert (near.log, near.low) == (False, 0)
    assert far.log
    assert [far.low, far.high] == pytest.approx([0.1, 5.0])
    assert far.at(math.sqrt(0.1 * 5.0)) == pytest.approx(0.5)


def test_what_is_outside_lies_at_the_end() -> None:
    scale = Axis(low=0.0, high=10.0, ticks=())
    assert [scale.at(value) for value in (-5, 0, 5, 10, 50)] == [0, 0, 0.5, 1, 1]


@pytest.mark.parametrize(
    ("until_s", "ticks"),
    [(60, (0, 10, 20, 30, 40, 50, 60)), (240, (0, 60, 120, 180, 240)), (3000, (0, 600, 1200, 1800, 2400, 3000))],
)
def test_time_has_ticks_at_round_moments(until_s: float, ticks: tuple[float, ...]) -> None:
    assert of_time(0, until_s).ticks == ticks


def test_time_that_begins_late_has_its_first_tick_within() -> None:
    assert of_time(125, 3000).ticks[0] == 600


def test_without_values_there_is_an_axis_still() -> None:
    for scale in (from_zero([]), around([]), of_latencies([]), from_zero([math.inf])):
        assert scale.high > scale.low
