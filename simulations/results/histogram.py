"""Latency histograms: the ingress's own, and the bucket bounds of those that servers export."""

from bisect import bisect_left

WORKER_LATENCY_S = (0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0, 5.0, 10.0)
"""Upper bounds of speech_stage_latency_seconds, in seconds, as the lab's workers export it."""
VLLM_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
"""Upper bounds of vllm:time_to_first_token_seconds, in seconds (vllm/v1/metrics/loggers.py)."""
VLLM_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""Upper bounds of vLLM's histograms of whole requests, in seconds (vllm/v1/metrics/loggers.py)."""
VLLM_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)
"""Upper bounds of vllm:request_generation_tokens, in tokens (vllm/v1/metrics/loggers.py, for 32,768 tokens)."""
MEAN_TOKENS = 150.0
"""Tokens that an item of mean work generates, at the lab's workers and in the simulator."""
TRITON_SUMMARY_S = 60.0
"""The seconds before now that a latency summary of Triton covers, as the lab's workers imitate it."""


class LatencyHistogram:
    """Counts items by latency. Buckets near the SLA are 5 % wide, so that percentiles near the SLA are accurate."""

    def __init__(self, sla_s: float) -> None:
        fine = [sla_s * 1.05**step for step in range(-28, 29)]  # a quarter of the SLA to four times it
        low = [fine[0] / 1.25**step for step in range(12, 0, -1)]
        high = [fine[-1] * 1.25**step for step in range(1, 5)]  # to ten times the SLA, after which items are lost
        self.bounds_s = tuple(low + fine + high)
        self.counts = [0] * (len(self.bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, latency_s: float, *, answered: bool) -> None:
        """Count an item with its latency in seconds; an item without an answer counts in the last bucket."""
        self.counts[bisect_left(self.bounds_s, latency_s) if answered else -1] += 1
        self.sum_s += latency_s
