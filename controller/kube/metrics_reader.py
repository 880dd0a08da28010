"""Asks the metric source for what all pipelines need, once per cycle."""

import logging
from collections.abc import Hashable, Mapping, Sequence, Set

from controller.core.state.spec import PipelineSpec, PlacementSpec, StageSpec
from controller.kube.demand_histories import DemandHistories
from controller.kube.observed_windows import ObservedWindows
from optimizer.model import PoolName
from profiler.samples import PlacementTarget, PodEndpoint, SeriesLabels
from profiler.sources.base import MetricSource, QueryKind, ReadAnswer, ReadRequest

_LOG = logging.getLogger(__name__)
_METRICS_SHARE = 0.5  # of the interval; the rest is for the API server and the decision


class MetricsReader:
    """Reads the metrics of each cycle, with windows that follow the scrape intervals observed in the last one."""

    def __init__(self, source: MetricSource, *, interval_s: float, histories: DemandHistories) -> None:
        """`interval_s` is the time between cycles; `histories` has the demand of past days."""
        self.histories = histories
        self._source = source
        self._deadline_s = _METRICS_SHARE * interval_s
        self._windows = ObservedWindows()
        self._problems: tuple[str, ...] = ()

    def with_windows(self, spec: PipelineSpec) -> PipelineSpec:
        """Return `spec` with windows of at least four observed scrape intervals."""
        return self._windows.applied(spec)

    def read(
        self,
        specs: Sequence[PipelineSpec],
        targets: Sequence[PlacementTarget],
        devices: Mapping[PoolName, str],
        sharing: Set[tuple[str, str]] = frozenset(),
    ) -> ReadAnswer:
        """Return the metrics of `targets` and the results of the queries in `specs`; log problems that are new.

        `devices` has the device of each pool, and `sharing` the pods that share theirs with others.
        """
        self.histories.watch(specs)
        queries = {spec.key: user_queries(spec) for spec in specs}
        answer = self._source.read(
            ReadRequest(
                placements=tuple(targets),
                scalars={name: query for own in queries.values() for name, query in own.items()},
                deadline_s=self._deadline_s,
                scalar_owners={name: key for key, own in queries.items() for name in own},
                devices=devices,
                sharing=sharing,
                scalar_kinds={name: _query_kind(name) for own in queries.values() for name in own},
            )
        )
        self._windows.observe(specs, {key: samples.scrapes for key, samples in answer.placements.items()})
        for problem in answer.problems:
            if problem not in self._problems:
                _LOG.warning("metrics: %s", problem)
        self._problems = answer.problems
        return answer


def metrics_target(
    spec: PipelineSpec,
    stage: StageSpec,
    placement: PlacementSpec,
    *,
    pods: frozenset[str],
    endpoints: Mapping[str, PodEndpoint],
    long_ready: frozenset[str] = frozenset(),
    engines: int = 1,
    labels: SeriesLabels | None = None,
) -> PlacementTarget:
    """Return what a metric source reads for a placement whose `pods` must report; `endpoints` are of all its pods.

    `long_ready` are those of `pods` that have had to report for `SILENT_S`. `engines` is how many a pod has, as far as
    that is known. `labels` are those of their series, None: as the stage says.
    """
    return PlacementTarget(
        pipeline=spec.key,
        stage=stage.name,
        placement=placement.name,
        namespace=spec.namespace,
        pods=pods,
        preset=stage.preset,
        window_s=stage.metrics_window_s,
        concurrency=max(placement.prior.concurrency, engines),
        batch_limit=placement.prior.batch_sizes[-1],
        overrides=stage.metric_overrides,
        endpoints=endpoints,
        model=stage.metrics_model,
        answer=stage.metrics_answer,
        long_ready=long_ready,
        labels=stage.metrics_labels if labels is None else labels,
    )


def user_queries(spec: PipelineSpec) -> dict[Hashable, str]:
    """Return the queries in a pipeline's spec, by the id of their result."""
    queries: dict[Hashable, str] = {(spec.key, "demand"): spec.queries.demand}
    if spec.queries.latency is not None:
        queries[(spec.key, "sla")] = spec.queries.latency
    for stage in spec.stages:
        queries |= {(spec.key, stage.name, rule.name): rule.query for rule in stage.rules if rule.query is not None}
    return queries


def _query_kind(name: Hashable) -> QueryKind:
    """Return the kind of the user's query with the id `name`, which `user_queries` made."""
    match name:
        case (_, "demand"):
            return QueryKind.DEMAND
        case (_, "sla"):
            return QueryKind.LATENCY
        case _:
            return QueryKind.RULES
