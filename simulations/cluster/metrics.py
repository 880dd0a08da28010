"""What a policy is told of a pipeline: the answers that Prometheus would give now, with what faults do to them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controller.core.spec import DemandUnit, PlacementSpec, StageSpec
from profiler.samples import Absence, AbsenceReason, PlacementSamples, Quantity, Reading
from profiler.sources.combine import histogram_quantile
from simulations.cluster.disturbances import Disturbances
from simulations.cluster.expressions import SUMMARY_WINDOW_S, Counter, Level, Pods
from simulations.cluster.queries import ActiveStreams, IngressQuery, LatencyQuantile, RequestRate
from simulations.cluster.readings import Readings, placement_readings
from simulations.cluster.scrapes import quantiles
from simulations.cluster.serving import OFFERED, Serving
from simulations.cluster.workloads import Pod, Workload
from simulations.engine.state import DEFAULT_QUEUE_LIMIT, LATENCY_BOUNDS_S
from simulations.policies.base import IngressReading, ReplicaReading

_BOUNDS_S = np.array(LATENCY_BOUNDS_S)
_NO_SERIES = Absence(reason=AbsenceReason.MISSING, detail="the query finds no series")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Metrics:
    """The answers at `now_s`. A pod need not report before it has been ready for `grace_s`."""

    disturbances: Disturbances
    now_s: float
    grace_s: float

    def scalar(self, serving: Serving, query: IngressQuery, what: str) -> Reading:
        """Return the answer to one of the users' own queries, which asks `serving`'s ingress; `what` tells it apart."""
        key = serving.pipeline.key
        if self.disturbances.lost(key):
            return _NO_SERIES
        match query:
            case ActiveStreams():
                if serving.pipeline.unit is not DemandUnit.STREAMS:
                    return _NO_SERIES
                value = float(serving.ingress_window(self.now_s, 1.0).last[0, 0])
            case RequestRate():
                if serving.pipeline.unit is not DemandUnit.REQUESTS:
                    return _NO_SERIES
                value = float(serving.ingress_window(self.now_s, query.window_s).rates[0, OFFERED])
            case LatencyQuantile():
                rates = serving.ingress_window(self.now_s, query.window_s).rates[0, OFFERED + 1 :]
                if np.isnan(rates[-1]):
                    return _NO_SERIES
                bounds = (*serving.ingress_bounds_s, math.inf)
                buckets = dict(zip(bounds, np.cumsum(rates).tolist(), strict=True))
                found = histogram_quantile(query.share, buckets)
                if isinstance(found, Absence):
                    return Absence(reason=AbsenceReason.NOT_A_NUMBER, detail="the query gives 'NaN'")
                value = found
        if math.isnan(value):
            return _NO_SERIES
        noise = self.disturbances.noise(key, what, self.now_s)
        return value if noise is None else noise.on(value)

    def samples(
        self, serving: Serving, stage: StageSpec, placement: PlacementSpec, workload: Workload | None
    ) -> PlacementSamples:
        """Return what a placement's pods say of themselves over the stage's window."""
        key = serving.pipeline.key
        reporting = [
            pod
            for pod in ([] if workload is None else workload.pods)
            # The API server has whole seconds.
            if not pod.leaving and pod.ready_s is not None and math.floor(pod.ready_s) <= self.now_s - self.grace_s
        ]
        names = [(serving.pipeline.namespace, pod.name) for pod in reporting]
        lost = self.disturbances.lost(key)
        hidden = frozenset(name for name in names if lost or self.disturbances.hides(key, name[1]))
        numbers = _numbers(reporting)
        window = serving.replica_window(numbers, self.now_s, stage.metrics_window_s)
        summary = (
            window
            if stage.metrics_window_s == SUMMARY_WINDOW_S
            else serving.replica_window(numbers, self.now_s, SUMMARY_WINDOW_S)
        )
        prior = placement.prior
        pods = Pods(
            window=window,
            summary=summary,
            bounds_s=_BOUNDS_S,
            concurrency=prior.concurrency,
            batch_limit=prior.batch_sizes[-1],
            queue_limit=DEFAULT_QUEUE_LIMIT if stage.queue_limit is None else stage.queue_limit,
            session_slots=prior.session_slots,
        )
        noise = self.disturbances.noise(key, f"{stage.name} {placement.pool}", self.now_s)

        def make() -> dict[Quantity, Reading]:
            readings = placement_readings(stage, placement, names, pods, hidden)
            return readings if noise is None else {what: noise.on(value) for what, value in readings.items()}

        return PlacementSamples(readings=Readings(make))

    def replicas(
        self, serving: Serving, placement: PlacementSpec, workload: Workload, window_s: float
    ) -> tuple[ReplicaReading, ...]:
        """Return what every ready replica says; those without two samples within the window are left out."""
        pipeline = serving.pipeline.key
        if self.disturbances.lost(pipeline):
            return ()
        ready = [
            pod
            for pod in workload.pods
            if not pod.leaving and pod.ready_s is not None and not self.disturbances.hides(pipeline, pod.name)
        ]
        window = serving.replica_window(_numbers(ready), self.now_s, window_s)
        p95_s = quantiles(0.95, _BOUNDS_S, window.increases[:, len(Counter) :]).tolist()
        rates, means = window.rates.tolist(), window.means.tolist()
        noise = self.disturbances.noise(pipeline, f"replicas of {placement.target}", self.now_s)
        readings = []
        for row, pod in enumerate(ready):
            own = rates[row]
            if math.isnan(own[Counter.ARRIVED]):
                continue
            factor = [1.0] * 7 if noise is None else [noise.factor() for _ in range(7)]
            assert pod.ready_s is not None
            readings.append(
                ReplicaReading(
                    ready_since_s=pod.ready_s,
                    arrival_rate_rps=own[Counter.ARRIVED] * factor[0],
                    completion_rate_rps=own[Counter.COMPLETED] * factor[1],
                    utilization=own[Counter.BUSY_S] / placement.prior.concurrency * factor[2],
                    queued=means[row][Level.QUEUED] * factor[3],
                    in_service=means[row][Level.IN_SERVICE] * factor[4],
                    sessions=means[row][Level.SESSIONS] * factor[5],
                    latency_p95_s=None if math.isnan(p95_s[row]) else p95_s[row] * factor[6],
                )
            )
        return tuple(readings)

    def ingress(self, serving: Serving, window_s: float) -> IngressReading | None:
        """Return what the ingress says; None when it says nothing."""
        key = serving.pipeline.key
        if self.disturbances.lost(key):
            return None
        window = serving.ingress_window(self.now_s, window_s)
        offered_rps = float(window.rates[0, OFFERED])
        if math.isnan(offered_rps):
            return None
        noise = self.disturbances.noise(key, "ingress", self.now_s)
        factor = [1.0] * 4 if noise is None else [noise.factor() for _ in range(4)]
        counts = window.increases[:, OFFERED + 1 :]
        p50_s, p95_s = (float(quantiles(share, serving.ingress_bounds_s, counts)[0]) for share in (0.5, 0.95))
        streams = float(window.means[0, 0]) if serving.pipeline.unit is DemandUnit.STREAMS else 0.0
        return IngressReading(
            offered_rps=offered_rps * factor[0],
            active_streams=streams * factor[1],
            latency_p50_s=None if math.isnan(p50_s) else p50_s * factor[2],
            latency_p95_s=None if math.isnan(p95_s) else p95_s * factor[3],
        )


def _numbers(pods: Sequence[Pod]) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    return np.array([pod.number for pod in pods], dtype=np.intp)
