"""What Prometheus knows of a namespace: the questions that `sluice init` asks, and what follows from the answers. Pure.

The readings of the presets themselves come from a `profiler.sources.base.MetricSource`, as in the operator.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from profiler.samples import Absence
from profiler.sources.presets import Preset

RECENT_S = 300
"""How far back rates look, in seconds."""
_RANGES_S = (20, 60, 300)
_FEWEST_SAMPLES = 3
"""The time between two scrapes follows from the first of these ranges with so many samples in it."""

_LOAD = "(active|open|current|concurrent)_(streams|sessions|calls|connections)"
_LOAD_NAMES = f"(.+[_:])?{_LOAD}(_total)?|.+_(streams|sessions|calls|connections)_(active|open|current)"
_ENDS = "ingress|gateway|frontend|edge|end_to_end|e2e|pipeline"
_LATENCY_NAMES = f"(.+[_:])?({_ENDS})(_.+)?_(latency|duration)(_.+)?_bucket"
_NOT_OF_USERS = re.compile(
    r"(speech_stage|go|process|pg|postgres|redis|mysql|mongodb|net|node|envoy|kube|apiserver|etcd|container|prometheus"
    r"|nginx|coredns|grpc|sql|vllm|nv)[_:]"
)
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")

Results = Mapping[str, Any]
"""For every query the `result` of Prometheus' query API, or the `Absence` in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMetric:
    """A metric that may measure users' load or latency. `in_namespace`: its series have the namespace's label."""

    name: str
    in_namespace: bool

    def selector(self, namespace: str, suffix: str = "") -> str:
        """Return a PromQL selector of the metric."""
        return self.name + suffix + (f'{{namespace="{namespace}"}}' if self.in_namespace else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exports:
    """What the pods and the ingress of a namespace export.

    `presets` has, by pod and preset, the models that the pod reports (empty for a server without models).
    `stages` has the pipeline and stage in the labels of a pod's own metrics. `calls` are the requests/s from one
    workload to another, as a service mesh sees them. `problem` says why Prometheus did not answer.
    """

    presets: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    stages: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    scrape_interval_s: float | None = None
    loads: tuple[UserMetric, ...] = ()
    latencies: tuple[UserMetric, ...] = ()
    calls: Mapping[tuple[str, str], float] = field(default_factory=dict)
    nginx_rps: float | None = None
    node_prices: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """The queries about `namespace`."""

    namespace: str
    presets: Mapping[str, Preset]

    def queries(self) -> tuple[str, ...]:
        """Return all queries."""
        return (
            *(self._reports(preset) for preset in self.presets.values()),
            *(query for preset in self.presets.values() for query in self._scrapes(preset)),
            *(self._stages, self._loads, self._latencies, self._calls, self.nginx, self._prices),
        )

    def conclude(self, results: Results) -> Exports:
        """Return what follows from the results of `queries`."""
        problems = [result.detail for result in results.values() if isinstance(result, Absence)]
        if len(problems) == len(results):
            return Exports(problem=problems[0] if problems else "Prometheus: not asked")
        return Exports(
            presets=self._presets(results),
            stages={
                labels["pod"]: (labels.get("pipeline", ""), labels["stage"])
                for labels, _ in series(results, self._stages)
                if labels.get("pod") and labels.get("stage")
            },
            scrape_interval_s=max(
                filter(
                    None,
                    (interval_s(results, each.freshness, self._of_namespace) for each in self.presets.values()),
                ),
                default=None,
            ),
            loads=self._metrics(results, self._loads),
            latencies=self._metrics(results, self._latencies),
            calls={
                (labels["source_workload"], labels["destination_workload"]): rate
                for labels, rate in series(results, self._calls)
                if rate > 0 and labels.get("source_workload") and labels.get("destination_workload")
            },
            nginx_rps=next((rate for _, rate in series(results, self.nginx)), None),
            node_prices={
                labels["node"]: price
                for labels, price in series(results, self._prices)
                if labels.get("node") and price > 0
            },
        )

    @property
    def nginx(self) -> str:
        """Return the query for the requests/s that ingress-nginx sends to the namespace."""
        return f'sum(rate(nginx_ingress_controller_requests{{exported_namespace="{self.namespace}"}}[{RECENT_S}s]))'

    @property
    def _of_namespace(self) -> str:
        return f'namespace="{self.namespace}"'

    def _reports(self, preset: Preset) -> str:
        model = "" if preset.model_label is None else f", {preset.model_label}"
        return f"count by (pod{model}) ({preset.freshness}{{{self._of_namespace}}})"

    def _scrapes(self, preset: Preset) -> tuple[str, ...]:
        return scrapes_queries(preset.freshness, self._of_namespace)

    @property
    def _stages(self) -> str:
        names = '__name__=~"speech_stage_(queue_depth|sessions)"'
        return f"count by (pod, pipeline, stage) ({{{names}, {self._of_namespace}}})"

    @property
    def _loads(self) -> str:
        return f'count by (__name__, namespace) ({{__name__=~"{_LOAD_NAMES}"}})'

    @property
    def _latencies(self) -> str:
        return f'count by (__name__, namespace) ({{__name__=~"{_LATENCY_NAMES}"}})'

    @property
    def _calls(self) -> str:
        where = f'reporter="destination", destination_workload_namespace="{self.namespace}"'
        return f"sum by (source_workload, destination_workload) (rate(istio_requests_total{{{where}}}[{RECENT_S}s]))"

    @property
    def _prices(self) -> str:
        return "avg by (node) (node_total_hourly_cost)"

    def _presets(self, results: Results) -> dict[str, dict[str, frozenset[str]]]:
        found: dict[str, dict[str, frozenset[str]]] = {}
        for preset in self.presets.values():
            for labels, _ in series(results, self._reports(preset)):
                if pod := labels.get("pod"):
                    model = labels.get(preset.model_label or "")
                    own = found.setdefault(pod, {})
                    own[preset.name] = own.get(preset.name, frozenset()) | ({model} if model else frozenset())
        return found

    def _metrics(self, results: Results, query: str) -> tuple[UserMetric, ...]:
        """Return the metrics that users may have made, the most telling names first."""
        found = set()
        for labels, _ in series(results, query):
            name, namespace = labels.get("__name__", ""), labels.get("namespace", "")
            if _NAME.fullmatch(name) and namespace in {"", self.namespace} and not _NOT_OF_USERS.match(name):
                found.add(UserMetric(name=name, in_namespace=bool(namespace)))
        return tuple(sorted(found, key=lambda metric: (not metric.in_namespace, _rank(metric.name), metric.name)))


def scrapes_queries(metric: str, matchers: str = "") -> tuple[str, ...]:
    """Return the queries for the most samples that one series of `metric` got in each of `_RANGES_S`."""
    return tuple(f"max(count_over_time({metric}{{{matchers}}}[{range_s}s]))" for range_s in _RANGES_S)


def interval_s(results: Results, metric: str, matchers: str = "") -> float | None:
    """Return the time between two scrapes of `metric` in seconds, from the results of `scrapes_queries`.

    It is that of the shortest range with enough samples: a series that has just begun fills no long one. None if there
    is no such range.
    """
    for range_s, query in zip(_RANGES_S, scrapes_queries(metric, matchers), strict=True):
        counts = [count for _, count in series(results, query)]
        if counts and counts[0] >= _FEWEST_SAMPLES:
            return range_s / counts[0]
    return None


def series(results: Results, query: str) -> Iterable[tuple[Mapping[str, str], float]]:
    """Yield the labels and the value of each series in the result of `query`; nothing if it has no result."""
    result = results.get(query)
    if result is not None and not isinstance(result, Absence):
        yield from _series(result)


def _series(result: Any) -> Iterable[tuple[Mapping[str, str], float]]:
    for each in result:
        match each:
            case {"metric": labels, "value": [_, text]}:
                value = _float(text)
                if math.isfinite(value):
                    yield labels, value


def _float(text: object) -> float:
    try:
        return float(str(text))
    except ValueError:
        return math.nan


def _rank(name: str) -> int:
    """Return how well the name of a metric fits the load of users: streams first, connections last."""
    words = ("stream", "session", "call", "connection")
    return next((rank for rank, word in enumerate(words) if word in name), len(words))
