"""What serves one pipeline, and what Prometheus has scraped of it."""

import numpy as np
from numpy.typing import NDArray

from controller.core.spec import PipelineSpec
from optimizer.model import StageName
from simulations.cluster.expressions import Counter, Level
from simulations.cluster.scrapes import ScrapeHistory, Window
from simulations.cluster.workloads import Pod
from simulations.engine.pipeline import PipelineEngine
from simulations.engine.state import LATENCY_BOUNDS_S

OFFERED = 0
"""The column of the ingress's counters; the buckets of latencies follow."""
DISCOVERY_S = 2.0
"""From a pod's start to its first scrape at the earliest, as measured on the lab."""


class Serving:
    """The engine of a pipeline, the pods in it by their numbers there, and their scrapes."""

    def __init__(self, pipeline: PipelineSpec, engine: PipelineEngine, *, keep_s: float) -> None:
        """`keep_s` is the longest window that anybody asks for."""
        self.pipeline = pipeline
        self.engine = engine
        self.pods: list[Pod] = []
        self.draining = 0
        self.slow: dict[StageName, float] = {}
        self._replicas = ScrapeHistory(
            keep_s=keep_s, counters=len(Counter) + 1 + len(LATENCY_BOUNDS_S), levels=len(Level)
        )
        self.ingress_bounds_s = np.array(engine.ingress_bounds_s)
        self._ingress = ScrapeHistory(keep_s=keep_s, counters=2 + len(self.ingress_bounds_s), levels=1)

    def scrape(self, now_s: float) -> None:
        """Take a sample of every replica that is known, and of the ingress."""
        counters = self.engine.counters()
        columns = [
            counters.arrived,
            counters.refused,
            counters.completed,
            counters.batches,
            counters.busy_s,
            counters.service_s,
            counters.latency_sum_s,
        ]
        levels = [counters.queued, counters.in_service, counters.sessions]
        self._replicas.record(
            now_s,
            np.concatenate([np.column_stack(columns), counters.latency_counts], axis=1),
            np.column_stack(levels).astype(np.float64),
            lambda number: self._found(number, now_s),
        )
        ingress = self.engine.ingress()
        self._ingress.record(
            now_s,
            np.array([[ingress.offered, *ingress.latency_counts]], dtype=np.float64),
            np.array([[ingress.active_streams]], dtype=np.float64),
            lambda number: True,  # noqa: ARG005 - the ingress is there before the load
        )

    def replica_window(self, numbers: NDArray[np.intp], now_s: float, window_s: float) -> Window:
        """Return what these replicas say."""
        return self._replicas.window(numbers, now_s, window_s)

    def ingress_window(self, now_s: float, window_s: float) -> Window:
        """Return what the ingress says, in one row."""
        return self._ingress.window(np.zeros(1, dtype=np.intp), now_s, window_s)

    def _found(self, number: int, now_s: float) -> bool:
        """Whether Prometheus has discovered a replica: it looks for pods that run, ready or not."""
        pod = self.pods[number]
        return pod.bound_s is None or pod.bound_s + DISCOVERY_S <= now_s
