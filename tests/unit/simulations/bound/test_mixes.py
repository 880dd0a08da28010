import itertools

import numpy as np
import pytest

from simulations.bound.mixes import cheapest_mixes

RATES, COSTS, MOST = [3.0, 7.0, 12.5], [1.0, 2.1, 3.9], [4, 3, 2]


def cheapest(rate: float) -> float:
    """By looking at every mix."""
    return min(
        sum(n * cost for n, cost in zip(mix, COSTS, strict=True))
        for mix in itertools.product(*(range(most + 1) for most in MOST))
        if sum(n * each for n, each in zip(mix, RATES, strict=True)) >= rate - 1e-9
    )


@pytest.mark.parametrize("rate", [0.5, 3.0, 9.9, 10.0, 26.0, 57.9])
def test_lines_are_below_the_cheapest_mix_and_touch_it_at_the_full_rate(rate: float) -> None:
    lines = cheapest_mixes(RATES, COSTS, MOST, 58.0).lines(rate, 2)
    assert lines[0].cost == pytest.approx(cheapest(rate))
    for line in lines:
        for slack in np.linspace(0, rate, 101):
            assert line.cost - line.slope * slack <= cheapest(rate - slack) + 1e-6


def test_a_rate_that_a_mix_misses_by_nothing_costs_no_further_replica() -> None:
    lines = cheapest_mixes([5.0], [1.0], [10], 40.0).lines(5.0 * (1 + 1e-7), 1)
    assert lines[0].cost == pytest.approx(1.0)
    assert lines[0].slope == pytest.approx(0.2)


@pytest.mark.parametrize("rate", [-1.0, 0.0, 1e-15, 58.5])
def test_there_is_no_line_where_nothing_is_asked_for_or_no_mix_suffices(rate: float) -> None:
    assert cheapest_mixes(RATES, COSTS, MOST, 60.0).lines(rate, 2) == []


def test_kinds_that_carry_nothing_are_left_out() -> None:
    assert cheapest_mixes([0.0, 2.0], [0.1, 1.0], [5, 5], 3.0).lines(3.0, 1)[0].cost == pytest.approx(2.0)


def test_too_many_mixes_are_not_looked_at() -> None:
    mixes = cheapest_mixes([1.0, 1.1], [1.0, 1.05], [10_000, 10_000], 5000.0)
    assert mixes.lines(4999.0, 1) == []
