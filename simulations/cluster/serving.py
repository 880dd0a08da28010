"""The simulated data plane of one pipeline: its engine, its pods and their scraped samples."""

import numpy as np

from controller.core.state.spec import PipelineSpec
from optimizer.model import StageName
from simulations.cluster.expressions import Counter, Level
from simulations.cluster.pods import Pod
from simulations.cluster.scrapes import ScrapeHistory
from simulations.engine.pipeline_engine import PipelineEngine
from simulations.engine.state import LATENCY_BOUNDS_S

OFFERED = 0
"""The column of offered items in the counters of the ingress; the latency buckets follow."""
DISCOVERY_S = 2.0
"""The least time from a pod's start to its first scrape, as measured on the lab."""


class Serving:
    """The engine of a pipeline, its pods by their numbers there, and the scrapes of replicas and ingress (number 0)."""

    def __init__(self, pipeline: PipelineSpec, engine: PipelineEngine, *, keep_s: float) -> None:
        """Keep samples for `keep_s` seconds, the longest window of any query."""
        self.pipeline = pipeline
        self.engine = engine
        self.pods: list[Pod] = []
        self.draining = 0
        self.published: float | None = None  # the admissible load; the ingress reads it later
        self.slow: dict[StageName, float] = {}
        self.replicas = ScrapeHistory(
            keep_s=keep_s, counters=len(Counter) + 1 + len(LATENCY_BOUNDS_S), levels=len(Level)
        )
        self.ingress_bounds_s = np.array(engine.ingress_bounds_s)
        self.ingress = ScrapeHistory(keep_s=keep_s, counters=2 + len(self.ingress_bounds_s), levels=2)

    def scrape(self, now_s: float) -> None:
        """Add a sample of every discovered replica and of the ingress."""
        counters = self.engine.counters()
        columns = [
            counters.arrived,
            counters.refused,
            counters.completed,
            counters.batches,
            counters.busy_s,
            counters.service_s,
            counters.latency_sum_s,
            counters.refused_sessions,
        ]
        levels = [counters.queued, counters.in_service, counters.sessions]
        self.replicas.record(
            now_s,
            np.concatenate([np.array(columns).T, counters.latency_counts], axis=1),
            np.array(levels, dtype=np.float64).T,
            lambda number: self._discovered(number, now_s),
        )
        ingress = self.engine.ingress()
        self.ingress.record(
            now_s,
            np.concatenate([[float(ingress.offered)], ingress.latency_counts])[np.newaxis],
            np.array([[float(ingress.active_streams), float(ingress.in_flight)]]),
            lambda number: True,  # noqa: ARG005 - the ingress exists before the load
        )

    def _discovered(self, number: int, now_s: float) -> bool:
        """Return whether Prometheus has discovered a replica; it discovers running pods, ready or not."""
        pod = self.pods[number]
        return pod.bound_s is None or pod.bound_s + DISCOVERY_S <= now_s
