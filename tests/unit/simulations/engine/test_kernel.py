"""The parts of the compiled loop that can be looked at on their own."""

from bisect import bisect_left

import numpy as np
import pytest

from simulations.engine.kernel import bucket
from simulations.engine.state import LATENCY_BOUNDS_S, cells_of
from simulations.results.histogram import LatencyHistogram


@pytest.mark.parametrize(
    "bounds", [LATENCY_BOUNDS_S, LatencyHistogram(0.25).bounds_s, LatencyHistogram(100.0).bounds_s]
)
def test_a_value_is_in_the_bucket_that_a_search_finds(bounds: tuple[float, ...]) -> None:
    bounds_s = np.array(bounds)
    cells = cells_of(bounds_s)
    near = np.concatenate([np.nextafter(bounds_s, 0), bounds_s, np.nextafter(bounds_s, np.inf)])
    spread = np.exp(np.random.default_rng(1).uniform(np.log(bounds[0] / 3), np.log(bounds[-1] * 3), 2000))
    for value in (0.0, 1e-300, 1e300, *near.tolist(), *spread.tolist()):
        assert bucket(bounds_s, cells, value) == bisect_left(bounds, value), value


def test_bounds_that_are_too_close_together_are_refused() -> None:
    with pytest.raises(ValueError, match="bounds_s"):
        cells_of(np.array([1.0, 1.01]))
