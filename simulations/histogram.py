"""Latencies as the ingress exports them."""

from bisect import bisect_left


class LatencyHistogram:
    """Counts by latency in buckets 5 % apart around the SLA, so that a percentile near it is read off accurately."""

    def __init__(self, sla_s: float) -> None:
        fine = [sla_s * 1.05**step for step in range(-28, 29)]  # a quarter of the SLA to four times it
        low = [fine[0] / 1.25**step for step in range(12, 0, -1)]
        high = [fine[-1] * 1.25**step for step in range(1, 5)]  # to ten times it, when items are lost
        self.bounds_s = tuple(low + fine + high)
        self.counts = [0] * (len(self.bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, latency_s: float, *, answered: bool) -> None:
        """Count an item; one without an answer is later than every bound."""
        self.counts[bisect_left(self.bounds_s, latency_s) if answered else -1] += 1
        self.sum_s += latency_s
