"""What holds for every forecast, whatever the load."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.forecast import ENVELOPE, Samples, forecast

HORIZONS_S = st.floats(0, 900)


@st.composite
def histories(draw: st.DrawFn) -> Samples:
    loads = draw(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
    steps_s = draw(st.lists(st.floats(0.5, 60), min_size=len(loads), max_size=len(loads)))
    return list(zip(itertools.accumulate(steps_s), loads, strict=True))


@given(histories(), HORIZONS_S)
def test_it_is_a_load_within_reach_of_those_seen(samples: Samples, horizon_s: float) -> None:
    expected = forecast(samples, samples[-1][0], horizon_s)
    assert 0 <= expected <= ENVELOPE * max(load for _, load in samples)


@given(histories(), HORIZONS_S, st.sampled_from([0.5, 2.0, 1024.0]))
def test_the_unit_of_the_load_does_not_matter(samples: Samples, horizon_s: float, factor: float) -> None:
    above_zero = [(at_s, load + 1.0) for at_s, load in samples]
    scaled = [(at_s, load * factor) for at_s, load in above_zero]
    now_s = samples[-1][0]
    expected = factor * forecast(above_zero, now_s, horizon_s)
    assert forecast(scaled, now_s, horizon_s) == pytest.approx(expected, rel=1e-3)


@given(st.floats(0, 1e6), st.integers(1, 30), HORIZONS_S)
def test_a_constant_load_stays(load: float, count: int, horizon_s: float) -> None:
    samples = [(15.0 * cycle, load) for cycle in range(count)]
    assert forecast(samples, samples[-1][0], horizon_s) == pytest.approx(load)
