"""The metrics that a policy gets: the results that Prometheus would return, changed by faults."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from controller.core.state.spec import DemandUnit, PipelineSpec, PlacementSpec, StageSpec
from optimizer.model import PipelineKey
from profiler.samples import Absence, AbsenceReason, PlacementSamples, Quantity, Reading
from profiler.sources.combine import histogram_quantile
from profiler.sources.queries import stuck_pods
from simulations.cluster.expressions import Counter, Level, PodSamples
from simulations.cluster.ingress_queries import ActiveStreams, IngressQuery, ItemsLeft, LatencyQuantile, RequestRate
from simulations.cluster.metric_faults import MetricFaults, ReadingNoise
from simulations.cluster.pods import Pod, Workload
from simulations.cluster.readings import OnDemand, placement_readings
from simulations.cluster.scrapes import ScrapeWindow, quantiles
from simulations.cluster.serving import OFFERED, Serving
from simulations.engine.state import DEFAULT_QUEUE_LIMIT, LATENCY_BOUNDS_S
from simulations.policies.autoscaler import IngressReading, ReplicaReading
from simulations.results.histogram import TRITON_SUMMARY_S
from simulations.scenario.scenario import ScenarioFile, of_stage

_BOUNDS_S = np.array(LATENCY_BOUNDS_S)
_RATES = (Counter.ARRIVED, Counter.COMPLETED, Counter.BUSY_S)
"""The counters whose rates are in a replica's reading."""
_NO_SERIES = Absence(reason=AbsenceReason.MISSING, detail="the query returns no series")


class SimulatedMetrics:
    """The results of metrics queries at `now_s`. Most are computed on first use, but always as of `now_s`."""

    def __init__(
        self,
        servings: Mapping[PipelineKey, Serving],
        disturbances: MetricFaults,
        *,
        now_s: float,
        grace_s: float,
        file: ScenarioFile,
    ) -> None:
        """Take the scrapes up to `now_s`. A pod is expected to report once it has been ready for `grace_s` seconds.

        `file` says which models the servers have, and when the first token of an answer leaves.
        """
        self._file = file
        self._now_s = now_s
        self._grace_s = grace_s
        self._scraped = {key: _Scraped(serving, now_s) for key, serving in servings.items()}
        self._disturbances = disturbances.now()

    def scalar(self, query: IngressQuery, text: str) -> Reading:
        """Return the result of one of the user's queries; `text` is the query as the user wrote it."""
        scraped = self._scraped[query.pipeline]
        key, unit = query.pipeline, scraped.pipeline.unit
        if self._disturbances.lost(key):
            return _NO_SERIES
        match query:
            case ActiveStreams() if unit is DemandUnit.STREAMS:
                value = float(scraped.ingress_window(1.0).last[0, 0])
            case ItemsLeft() if unit is DemandUnit.ITEMS:
                value = float(scraped.ingress_window(1.0).last[0, 1])
            case RequestRate() if unit is DemandUnit.REQUESTS:
                value = float(scraped.ingress_window(query.window_s).rates[0, OFFERED])
            case LatencyQuantile():
                rates = scraped.ingress_window(query.window_s).rates[0, OFFERED + 1 :]
                if math.isnan(rates[-1]):
                    return _NO_SERIES
                buckets = dict(
                    zip((*scraped.ingress_bounds_s.tolist(), math.inf), np.cumsum(rates).tolist(), strict=True)
                )
                found = histogram_quantile(query.share, buckets)
                if isinstance(found, Absence):
                    return Absence(reason=AbsenceReason.NOT_A_NUMBER, detail="the query gives 'NaN'")
                value = found
            case _:
                return _NO_SERIES
        noise = self._disturbances.noise(key, text, self._now_s)
        return _NO_SERIES if math.isnan(value) else value if noise is None else noise.on(value)

    def samples(
        self, pipeline: PipelineSpec, stage: StageSpec, placement: PlacementSpec, workload: Workload | None
    ) -> PlacementSamples:
        """Return the samples of a placement's pods over the stage's window; without `workload` there are no pods."""
        scraped = self._scraped[pipeline.key]
        reporting = [
            pod
            for pod in ([] if workload is None else workload.pods)
            # Times of the API server have whole seconds.
            if not pod.leaving and pod.ready_s is not None and math.floor(pod.ready_s) <= self._now_s - self._grace_s
        ]

        def make() -> Mapping[Quantity, Reading]:
            names = [(pipeline.namespace, pod.name) for pod in reporting]
            lost = self._disturbances.lost(pipeline.key)
            hidden = frozenset(name for name in names if lost or self._disturbances.hides(pipeline.key, name[1]))
            prior = placement.prior
            pods = PodSamples(
                window=scraped.window(reporting, stage.metrics_window_s),
                summary=scraped.window(reporting, TRITON_SUMMARY_S),
                bounds_s=_BOUNDS_S,
                concurrency=prior.concurrency,
                queue_limit=DEFAULT_QUEUE_LIMIT if stage.queue_limit is None else stage.queue_limit,
                first_token_share=of_stage(self._file.first_token, pipeline.key, stage.name, 1.0),
                other_models=of_stage(self._file.other_models, pipeline.key, stage.name, ()),
                # The servers' own, of which the policies may not be told.
                work_cv=0.0 if workload is None else workload.placement.prior.service.cv,
            )
            readings = placement_readings(stage, placement, names, pods, hidden)
            noise = self._disturbances.noise(pipeline.key, f"{stage.name} {placement.name}", self._now_s)
            return readings if noise is None else {what: noise.on(value) for what, value in readings.items()}

        def sessions() -> Mapping[str, float]:
            if self._disturbances.lost(pipeline.key):
                return {}
            shown = [pod for pod in reporting if not self._disturbances.hides(pipeline.key, pod.name)]
            last = scraped.window(shown, stage.metrics_window_s).last[:, Level.SESSIONS].tolist()
            found = zip((pod.name for pod in shown if pod.number is not None), last, strict=True)
            return {name: count for name, count in found if not math.isnan(count)}

        def stuck() -> Mapping[str, float]:
            if self._disturbances.lost(pipeline.key):
                return {}
            shown = [pod for pod in reporting if not self._disturbances.hides(pipeline.key, pod.name)]
            window = scraped.window(shown, stage.metrics_window_s)
            names = [pod.name for pod in shown if pod.number is not None]
            waiting = dict(zip(names, window.means[:, Level.QUEUED].tolist(), strict=True))
            completed = dict(zip(names, window.rates[:, Counter.COMPLETED].tolist(), strict=True))
            return stuck_pods(
                {name: value for name, value in waiting.items() if not math.isnan(value)},
                {name: value for name, value in completed.items() if not math.isnan(value)},
            )

        return PlacementSamples(readings=OnDemand(make), sessions=OnDemand(sessions), stuck=OnDemand(stuck))

    def replicas(
        self, pipeline: PipelineKey, placement: PlacementSpec, ready: Sequence[Pod], window_s: float
    ) -> tuple[ReplicaReading, ...]:
        """Return the reading of each of the `ready` pods; pods with fewer than two samples are left out."""
        if self._disturbances.lost(pipeline):
            return ()
        shown = [pod for pod in ready if not self._disturbances.hides(pipeline, pod.name)]
        scraped = self._scraped[pipeline].replicas(window_s)
        noise = self._disturbances.noise(pipeline, f"replicas of {placement.target}", self._now_s)
        concurrency = placement.prior.concurrency
        readings = []
        for pod in shown:
            arrived, completed, busy_s, queued, in_service, sessions, p95_s = scraped[pod.number]
            if math.isnan(arrived):
                continue
            assert pod.ready_s is not None
            p95 = None if math.isnan(p95_s) else p95_s
            # Positional arguments are faster: this runs for every pod and tick.
            own = ReplicaReading(
                pod.ready_s, arrived, completed, busy_s / concurrency, queued, in_service, sessions, p95
            )
            readings.append(own if noise is None else _noisy(own, noise))
        return tuple(readings)

    def ingress(self, key: PipelineKey, window_s: float) -> IngressReading | None:
        """Return the reading of a pipeline's ingress over the last `window_s`; None if there are too few samples."""
        scraped = self._scraped[key]
        if self._disturbances.lost(key):
            return None
        window = scraped.ingress_window(window_s)
        offered_rps = float(window.rates[0, OFFERED])
        if math.isnan(offered_rps):
            return None
        noise = self._disturbances.noise(key, "ingress", self._now_s)
        factor = [1.0] * 4 if noise is None else [noise.factor() for _ in range(4)]
        counts = window.increases[:, OFFERED + 1 :]
        p50_s, p95_s = (float(quantiles(share, scraped.ingress_bounds_s, counts)[0]) for share in (0.5, 0.95))
        streams = float(window.means[0, 0]) if scraped.pipeline.unit is DemandUnit.STREAMS else 0.0
        return IngressReading(
            offered_rps=offered_rps * factor[0],
            active_streams=streams * factor[1],
            latency_p50_s=None if math.isnan(p50_s) else p50_s * factor[2],
            latency_p95_s=None if math.isnan(p95_s) else p95_s * factor[3],
        )


class _Scraped:
    """The samples that Prometheus has of one pipeline at a point in time."""

    def __init__(self, serving: Serving, now_s: float) -> None:
        self.pipeline = serving.pipeline
        self.ingress_bounds_s = serving.ingress_bounds_s
        self._now_s = now_s
        self._numbers = [number for number, pod in enumerate(serving.pods) if not pod.gone and not pod.leaving]
        self._replicas, self._ingress = serving.replicas.view(), serving.ingress.view()
        self._each: dict[float, dict[int | None, tuple[float, ...]]] = {}

    def window(self, pods: Sequence[Pod], window_s: float) -> ScrapeWindow:
        """Return the samples of `pods` over the last `window_s`; pods that were never ready are left out."""
        numbers = [pod.number for pod in pods if pod.number is not None]
        return self._replicas.window(numbers, self._now_s, window_s)

    def replicas(self, window_s: float) -> Mapping[int | None, tuple[float, ...]]:
        """Return the values of each serving pod by number: rates of `_RATES`, means of every `Level`, p95 latency."""
        if window_s not in self._each:
            window = self._replicas.window(self._numbers, self._now_s, window_s)
            p95_s = quantiles(0.95, _BOUNDS_S, window.increases[:, len(Counter) :])
            columns = np.concatenate([window.rates[:, _RATES], window.means, p95_s[:, np.newaxis]], axis=1)
            self._each[window_s] = dict(zip(self._numbers, map(tuple, columns.tolist()), strict=True))
        return self._each[window_s]

    def ingress_window(self, window_s: float) -> ScrapeWindow:
        """Return the samples of the ingress, in one row."""
        return self._ingress.window([0], self._now_s, window_s)


def _noisy(reading: ReplicaReading, noise: ReadingNoise) -> ReplicaReading:
    ready_since_s, *values, p95_s = reading
    noisy = [value * noise.factor() for value in values]
    factor = noise.factor()  # drawn with or without a latency, so that later draws stay the same
    return ReplicaReading._make((ready_since_s, *noisy, None if p95_s is None else p95_s * factor))
