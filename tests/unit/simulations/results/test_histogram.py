"""Latencies as the ingress exports them."""

import itertools

from simulations.results.histogram import LatencyHistogram


def test_the_histogram_is_fine_around_the_sla() -> None:
    bounds = LatencyHistogram(0.25).bounds_s
    near = [bound for bound in bounds if 0.25 / 4 <= bound <= 0.25 * 4]

    assert any(abs(bound - 0.25) < 1e-12 for bound in bounds)
    assert max(later / earlier for earlier, later in itertools.pairwise(near)) < 1.0501
    assert bounds[0] < 0.005
    assert bounds[-1] > 2


def test_a_latency_is_counted_in_the_smallest_bucket_that_holds_it() -> None:
    histogram = LatencyHistogram(0.25)
    histogram.observe(0.25, answered=True)
    histogram.observe(2.5, answered=False)

    at_sla = histogram.bounds_s.index(0.25)
    assert (histogram.counts[at_sla], histogram.counts[-1], sum(histogram.counts)) == (1, 1, 2)
    assert histogram.sum_s == 2.75
