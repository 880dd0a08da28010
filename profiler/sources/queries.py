"""Plans the queries of a read from a back end that supports PromQL, and computes the readings from the results. Pure.

There are few queries: one per preset, expression and window, over all pods of all namespaces and all models of their
servers. Pods are joined to placements here, and the model of each stage is chosen here. The back end computes the ages
of samples, so clocks of two machines are never compared.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, cast

from optimizer.model import PipelineKey
from profiler.samples import (
    DEFAULT_LABELS,
    SILENT_S,
    THROTTLED_SHARE,
    TOO_NEW,
    UNKNOWN_SCRAPES,
    Absence,
    AbsenceReason,
    Answer,
    DeviceFault,
    DeviceQuantity,
    Origin,
    PlacementSamples,
    PlacementTarget,
    Quantity,
    Reading,
    Scrapes,
    SeriesLabels,
    sane,
)
from profiler.sources.base import PlacementId, QueryKind, ReadAnswer, ReadRequest
from profiler.sources.combine import (
    Pod,
    Reporting,
    combine_buckets,
    combine_ratio,
    combine_values,
    reporting,
    whole_answer_percentile,
)
from profiler.sources.device_presets import DeviceFormula, formulas_of
from profiler.sources.models import chosen_models
from profiler.sources.presets import Combine, Divisor, Edge, Formula, LoadedPresets, Preset
from profiler.sources.promql import (
    PodSeries,
    fill,
    fill_devices,
    namespace_matcher,
    of_models,
    pod_matcher,
    pod_models,
    relabelled,
    scalar,
)

_EDGES = frozenset({Quantity.LATENCY_P95_FLOOR, Quantity.LATENCY_P95_CEILING})
_KINDS: Mapping[Quantity, QueryKind] = {
    Quantity.ARRIVAL_RATE: QueryKind.THROUGHPUT,
    Quantity.COMPLETION_RATE: QueryKind.THROUGHPUT,
    Quantity.LATENCY_P95: QueryKind.LATENCY,
    Quantity.LATENCY_P95_FLOOR: QueryKind.LATENCY,
    Quantity.LATENCY_P95_CEILING: QueryKind.LATENCY,
    Quantity.SERVICE_TIME: QueryKind.SERVICE,
    Quantity.BATCH_SIZE: QueryKind.SERVICE,
    Quantity.SERVED_BATCH: QueryKind.SERVICE,
    Quantity.PRESENT_BATCH: QueryKind.SERVICE,
    Quantity.SESSIONS: QueryKind.SERVICE,
}
"""Kinds of the queries for quantities; all others are OTHER."""
_ORDER = {kind: number for number, kind in enumerate(QueryKind)}
_AGGREGATIONS = re.compile(r"\b(\w+)\s+by\s*\(", re.IGNORECASE)
_SERVERS = "prometheus, prometheus_replica, receive_replica, replica"
"""Labels that tell the Prometheus servers of a pair apart: Prometheus Operator's, Thanos' and the usual ones."""
_COUNTED_S = 300.0
"""Time in which scrapes are counted. It is that for which a sample is the value of its series."""
_MAX_AGE_SCRAPES = 3
"""Scrape intervals after which a sample is stale: two scrapes may fail."""
_LEAST_MAX_AGE_S = 15.0
"""Age at which samples are not stale yet if the window allows it: a busy server scrapes and answers late."""
_NONE, _EXPORTED = "none", "exported"
_MAX_AGE_SHARE = 0.75
"""Greatest age of the newest sample, as a share of the window. A window of four scrape intervals is recommended, and
two samples are enough for a rate."""

Results = Mapping[str, Any]
"""For every query the `result` of Prometheus' query API, or the `Absence` in its place."""
PodResults = Mapping[str, PodSeries | Absence]
"""For every query over pods its result with the series by pod, or the `Absence` in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReading:
    """The queries that one reading needs, each with its kind.

    `conclude` takes the results in the same order, then those of `optional`, which may be absent, and returns the
    reading. The series of pods have `labels`.
    """

    queries: Mapping[str, QueryKind]
    conclude: Callable[..., Reading]
    optional: tuple[str, ...] = ()
    labels: SeriesLabels = DEFAULT_LABELS
    is_override: bool = False

    def reading(self, results: Mapping[str, Any]) -> Reading:
        """Return the reading that follows from `results`, or the first `Absence` among the results that it needs.

        They are `PodResults` for the quantities of a placement, `Results` for a scalar.
        """
        own = [results[query] for query in self.queries]
        absence = next((result for result in own if isinstance(result, Absence)), None)
        return self.conclude(*own, *(results[query] for query in self.optional)) if absence is None else absence


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSessions:
    """The queries for the sessions of each pod. They are the same as for the sum over its pods, `formula`."""

    reads: "_Reads"
    formula: Formula
    queries: Mapping[str, QueryKind]
    optional: tuple[str, ...]

    def by_pod(self, results: PodResults) -> Mapping[str, float]:
        """Return the sessions by name of the pods with recent samples. Pods that just became ready are included."""
        ages_s, *copies, values = (results[query] for query in self.queries)
        if isinstance(ages_s, Absence) or isinstance(values, Absence):
            return {}
        target = self.reads.target
        expected = {(target.namespace, pod) for pod in {*target.pods, *target.endpoints}}
        most_s = self.reads.most_age_s([results[query] for query in self.optional])
        fresh = reporting(expected, ages_s.ages(expected), most_s).fresh
        known = [each for each in copies if not isinstance(each, Absence)]
        sessions = _once(values.values(expected), known[0] if known else None, self.formula.value)
        return {pod[1]: sessions[pod] for pod in sorted(fresh) if math.isfinite(sessions.get(pod, math.nan))}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevices:
    """The queries for the devices of one placement's pods. Their results have a series per pod with the default labels.

    A pod counts as reporting if it has a series: the exporters are scraped apart from the servers of the stage.
    """

    pods: frozenset[Pod]
    formulas: Mapping[DeviceQuantity, tuple[str, DeviceFormula]]

    def readings(self, results: PodResults) -> Mapping[DeviceQuantity, Reading]:
        """Return the readings of the placement, an `Absence` where too few pods have a series."""
        return {quantity: self._reading(results[query], own) for quantity, (query, own) in self.formulas.items()}

    def faults(self, results: PodResults) -> Mapping[str, DeviceFault]:
        """Return what is wrong with the devices of pods, by the pod's name; pods without a fault are left out."""
        errors = self._positive(results, DeviceQuantity.ERRORS, 0.0)
        throttled = self._positive(results, DeviceQuantity.THROTTLED, THROTTLED_SHARE)
        return {
            name: DeviceFault(errors=errors.get(name, 0.0), throttled=throttled.get(name, 0.0))
            for name in sorted(errors.keys() | throttled.keys())
        }

    def _reading(self, result: PodSeries | Absence, formula: DeviceFormula) -> Reading:
        if isinstance(result, Absence):
            return result
        values = result.values(self.pods)
        ages_s = dict.fromkeys(values, 0.0)
        return combine_values(formula.combine, reporting(self.pods, ages_s, math.inf), values)

    def _positive(self, results: PodResults, quantity: DeviceQuantity, above: float) -> dict[str, float]:
        if quantity not in self.formulas:
            return {}
        result = results[self.formulas[quantity][0]]
        values = {} if isinstance(result, Absence) else result.values(self.pods)
        return {name: value for (_, name), value in values.items() if sane(value) and value > above}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPlan:
    """The readings of a request and the queries that they need."""

    placements: Mapping[PlacementId, Mapping[Quantity, PlannedReading]]
    sessions: Mapping[PlacementId, PlannedSessions]
    scalars: Mapping[Hashable, PlannedReading]
    scrapes: Mapping[PlacementId, "PlannedScrapes"] = field(default_factory=dict)
    devices: Mapping[PlacementId, PlannedDevices] = field(default_factory=dict)

    def device_queries(self) -> set[str]:
        """Return the queries for the devices of pods, which are among `pod_queries`."""
        return {query for planned in self.devices.values() for query, _ in planned.formulas.values()}

    def pod_queries(self) -> set[str]:
        """Return the queries for all placements, overrides included."""
        own = {query for own in self.placements.values() for planned in own.values() for query in planned.queries}
        own |= {query for planned in self.scrapes.values() for query in planned.queries}
        return own | self.device_queries()

    def user_queries(self) -> set[str]:
        """Return the users' queries for demand, SLA and rules."""
        return {query for planned in self.scalars.values() for query in planned.queries}

    def kinds(self) -> dict[str, QueryKind]:
        """Return the kind of every query. A query with several purposes has the kind that is sent first."""
        kinds: dict[str, QueryKind] = {}
        own = (planned for placement in self.placements.values() for planned in placement.values())
        scrapes = (planned.queries for planned in self.scrapes.values())
        devices = dict.fromkeys(self.device_queries(), QueryKind.OTHER)
        for queries in (*(planned.queries for planned in (*own, *self.scalars.values())), *scrapes, devices):
            for query, kind in queries.items():
                known = kinds.get(query)
                if known is None or _ORDER[kind] < _ORDER[known]:
                    kinds[query] = kind
        return kinds

    def together(self) -> set[tuple[str, ...]]:
        """Return the queries of the readings that need several besides the one for freshness, each set once."""
        return {
            tuple(query for query, kind in planned.queries.items() if kind is not QueryKind.FRESHNESS)
            for own in self.placements.values()
            for planned in own.values()
            if len(planned.queries) > 2
        }

    def single_queries(self) -> set[str]:
        """Return the users' queries, overrides included. Each returns one series; those of presets return many."""
        overrides = {
            query
            for own in self.placements.values()
            for planned in own.values()
            if planned.is_override
            for query in planned.queries
        }
        return overrides | self.user_queries()

    def answer(self, pod_results: Results, user_results: Results, origins: Mapping[PipelineKey, Origin]) -> ReadAnswer:
        """Return the answer to the request, from the results of `pod_queries` and of `user_queries`."""
        labels = {
            query: planned.labels
            for own in self.placements.values()
            for planned in own.values()
            if planned.labels != DEFAULT_LABELS
            for query in (*planned.queries, *planned.optional)
        }
        by_pod: PodResults = {
            query: result if isinstance(result, Absence) else PodSeries(result, labels.get(query, DEFAULT_LABELS))
            for query, result in pod_results.items()
        }
        return ReadAnswer(
            placements={
                key: PlacementSamples(
                    readings={quantity: planned.reading(by_pod) for quantity, planned in own.items()},
                    sessions=self.sessions[key].by_pod(by_pod) if key in self.sessions else {},
                    scrapes=self.scrapes[key].conclude(by_pod) if key in self.scrapes else UNKNOWN_SCRAPES,
                    devices=self.devices[key].readings(by_pod) if key in self.devices else {},
                    device_faults=self.devices[key].faults(by_pod) if key in self.devices else {},
                )
                for key, own in self.placements.items()
            },
            scalars={key: planned.reading(user_results) for key, planned in self.scalars.items()},
            problems=_problems({**pod_results, **user_results}.values()),
            origins=origins,
        )


def query_plan(
    request: ReadRequest,
    loaded: LoadedPresets,
    *,
    max_age_s: float | None = None,
    checks: bool = False,
    labels: SeriesLabels = DEFAULT_LABELS,
) -> QueryPlan:
    """Return the queries for `request`. `labels` are those of series of pods whose target names none.

    Samples older than `max_age_s`, or than three quarters of their window if that is less, are stale. With `checks`,
    pods that are scraped twice count once, pods that are silent for long hold no others back, samples are stale after
    three observed scrape intervals, and the answer has `Scrapes`.
    """
    namespaces = sorted({target.namespace for target in request.placements})
    kinds_of_labels = {target.labels or labels for target in request.placements}
    matchers = {own: namespace_matcher(namespaces, own) for own in kinds_of_labels}
    reads = {
        (target.pipeline, target.stage, target.pool): _Reads(
            target=target,
            preset=loaded.usable[target.preset],
            labels=target.labels or labels,
            matchers=matchers[target.labels or labels],
            checks=checks,
            max_age_s=max_age_s,
        )
        for target in request.placements
        if target.pods and target.preset in loaded.usable
    }
    sessions = {key: _sessions(own) for key, own in reads.items()}
    return QueryPlan(
        sessions={key: planned for key, planned in sessions.items() if planned is not None},
        placements={
            (key := (target.pipeline, target.stage, target.pool)): {
                quantity: _of_placement(target, quantity, reads.get(key), loaded, labels) for quantity in Quantity
            }
            for target in request.placements
        },
        scalars={
            key: PlannedReading(queries={query: request.scalar_kinds.get(key, QueryKind.DEMAND)}, conclude=scalar)
            for key, query in request.scalars.items()
        },
        scrapes={key: PlannedScrapes(reads=own) for key, own in reads.items()} if checks else {},
        devices={
            (target.pipeline, target.stage, target.pool): _of_devices(
                target, request.devices[target.pool], target.labels or labels, namespaces
            )
            for target in request.placements
            if target.pods and target.pool in request.devices
        },
    )


def _of_devices(
    target: PlacementTarget, device: str, labels: SeriesLabels, namespaces: Sequence[str]
) -> PlannedDevices:
    return PlannedDevices(
        pods=frozenset((target.namespace, pod) for pod in target.pods),
        formulas={
            quantity: (fill_devices(formula.value, tuple(namespaces), labels.match, target.window_s), formula)
            for quantity, formula in formulas_of(device).items()
        },
    )


def _of_placement(
    target: PlacementTarget,
    quantity: Quantity,
    reads: "_Reads | None",
    loaded: LoadedPresets,
    labels: SeriesLabels,
) -> PlannedReading:
    if not target.pods:
        return _without_query(TOO_NEW.reason, TOO_NEW.detail)
    kind = _KINDS.get(quantity, QueryKind.OTHER)
    if quantity in target.overrides:
        pods = pod_matcher(target.namespace, target.pods, target.labels or labels)
        query = fill(target.overrides[quantity], pods=pods, window_s=target.window_s)
        return PlannedReading(queries={query: kind}, conclude=lambda found: scalar(found.result), is_override=True)
    if quantity in _EDGES and Quantity.LATENCY_P95 in target.overrides:
        return _without_query(AbsenceReason.UNSUPPORTED, "the override of latencyP95 gives no histogram bucket")
    if reads is None:
        return _without_query(AbsenceReason.MISSING, loaded.problem(target.preset))
    preset = reads.preset
    formula = preset.formula(quantity, target.answer)
    if formula is None:
        return _without_query(AbsenceReason.UNSUPPORTED, f"{preset.name} does not export it")
    plan = partial(_by_preset, reads, kind)
    if refines(preset, quantity, target.answer):
        return _whole_percentile(plan, preset, quantity)
    return plan(formula)


def refines(preset: Preset, quantity: Quantity, answer: Answer) -> bool:
    """Return whether `quantity` is a percentile that `whole_answer_percentile` makes more precise."""
    first = preset.first.get(quantity)
    return (
        answer is Answer.WHOLE and first is not None and (first.combine, first.edge) == (Combine.QUANTILE, Edge.INSIDE)
    )


def _whole_percentile(plan: Callable[[Formula], PlannedReading], preset: Preset, quantity: Quantity) -> PlannedReading:
    """Return the plan of a percentile of the whole answer, with the readings of `whole_answer_percentile`."""
    whole, mean = preset.formulas[quantity], Quantity.LATENCY_MEAN
    formulas = (
        *(whole, replace(whole, edge=Edge.FLOOR), replace(whole, edge=Edge.CEILING)),
        *(preset.first[quantity], preset.formulas[mean], preset.first[mean]),
    )
    parts = [plan(formula) for formula in formulas]

    def conclude(*results: Any) -> Reading:
        known = dict(zip((*queries, *parts[0].optional), results, strict=True))
        coarse, floor_s, ceiling_s, first, whole_s, first_s = (part.reading(known) for part in parts)
        return whole_answer_percentile(coarse, bucket=(floor_s, ceiling_s), first=first, means=(whole_s, first_s))

    queries = {query: kind for part in parts for query, kind in part.queries.items()}
    return PlannedReading(queries=queries, optional=parts[0].optional, labels=parts[0].labels, conclude=conclude)


def _sessions(reads: "_Reads") -> PlannedSessions | None:
    """Return the queries for the sessions of each pod; None where only their sum over the pods is known."""
    formula = reads.preset.formulas.get(Quantity.SESSIONS)
    if Quantity.SESSIONS in reads.target.overrides or formula is None or formula.combine is not Combine.SUM:
        return None
    planned = _by_preset(reads, _KINDS[Quantity.SESSIONS], formula)
    return PlannedSessions(reads=reads, formula=formula, queries=planned.queries, optional=planned.optional)


def _without_query(reason: AbsenceReason, detail: str) -> PlannedReading:
    return PlannedReading(queries={}, conclude=lambda: Absence(reason=reason, detail=detail))


@dataclass(frozen=True, kw_only=True)  # no slots: cached properties need a __dict__
class _Reads:
    """What the readings of one placement by a preset share: the queries about its pods, and what follows from them.

    With `checks`, queries show which pods are scraped twice, how often, and which are silent for long. Samples older
    than `max_age_s` are stale; None: it follows from the window and the scrape interval. All of it is worked out once
    for all quantities: a fleet has a hundred thousand readings.
    """

    target: PlacementTarget
    preset: Preset
    labels: SeriesLabels
    matchers: str
    checks: bool
    max_age_s: float | None
    _seen: dict[tuple[object, ...], "_Pods | Absence"] = field(default_factory=dict, compare=False)

    def fill(self, template: str) -> str:
        own = template if self.labels == DEFAULT_LABELS else relabelled(template, self.labels)
        return fill(own, pods=self.matchers, window_s=self.target.window_s)

    @cached_property
    def ages(self) -> str:
        """Return the query for the ages of the newest samples, by pod and model."""
        model = "" if self.preset.model_label is None else f", {self.preset.model_label}"
        return self.fill(f"time() - max by (namespace, pod{model}) (timestamp({self.preset.freshness}{{$pods}}))")

    @cached_property
    def copies(self) -> str:
        """Return the query for how often each pod is scraped, at one address by several jobs or Prometheus servers.

        Only series with a sample in the last half of the window count: a server that has gone must not halve the
        numbers of another while its own leave the window.
        """
        recent = f"timestamp({self.preset.freshness}{{$pods}}) > time() - {self.target.window_s / 2:g}"
        jobs = f"count by (namespace, pod, instance, job, {_SERVERS}) ({recent})"
        return self.fill(f"max by (namespace, pod) (count by (namespace, pod, instance) ({jobs}))")

    @cached_property
    def lately(self) -> str:
        """Return the query for the pods without a present sample that had one in the last `SILENT_S`."""
        name = f"{self.preset.freshness}{{$pods}}"
        had = f"max by (namespace, pod) (present_over_time({name}[{SILENT_S:.0f}s]))"
        return self.fill(f"{had} unless max by (namespace, pod) ({name})")

    @cached_property
    def scrapes(self) -> str:
        """Return the query for the samples of each pod in `_COUNTED_S`, for series that are older than that."""
        name = f"{self.preset.freshness}{{$pods}}"
        counted = f"{_COUNTED_S:.0f}s"
        return self.fill(f"max by (namespace, pod) (count_over_time({name}[{counted}]) and {name} offset {counted})")

    @cached_property
    def strangers(self) -> str:
        """Return the query for series without the label of a pod, and for those with one called exported_…."""
        name, labels = self.preset.freshness, self.labels
        return (
            f'label_replace(count({name}{{{labels.pod}=""}}), "found", "{_NONE}", "", "") or '
            f'label_replace(count({name}{{exported_pod!=""}}), "found", "{_EXPORTED}", "", "")'
        )

    @cached_property
    def optional(self) -> tuple[str, ...]:
        """Return the queries that readings use if they are answered."""
        return (self.lately, self.scrapes) if self.checks else ()

    @cached_property
    def expected(self) -> frozenset[Pod]:
        return frozenset((self.target.namespace, pod) for pod in self.target.pods)

    def pods(
        self, ages_s: PodSeries, optional: Sequence[PodSeries | Absence], model_label: str | None = None
    ) -> "_Pods | Absence":
        """Return which pods report, from their ages and the results of `optional`, and with `model_label` their models.

        Without a model that can be told for the pods, return the `Absence`.
        """
        key = (model_label, ages_s, *optional)
        if key not in self._seen:
            self._seen[key] = self._pods(ages_s, optional, model_label)
        return self._seen[key]

    def _pods(
        self, ages_s: PodSeries, optional: Sequence[PodSeries | Absence], model_label: str | None
    ) -> "_Pods | Absence":
        most_s, known = self.most_age_s(optional), ages_s
        models: Mapping[Pod, str] | None = None
        if model_label is not None:
            own = ages_s.of(self.expected)
            chosen = chosen_models(pod_models(own, model_label, most_s), self.target.model)
            if isinstance(chosen, Absence):
                return chosen
            models, known = chosen, PodSeries(of_models(own, model_label, chosen))
        found = reporting(self.expected, known.ages(self.expected), most_s, self._long_silent(optional))
        return _Pods(reporting=found, models=models)

    def interval_s(self, optional: Sequence[PodSeries | Absence]) -> float | None:
        """Return the observed time between two scrapes, None where it is not known."""
        match optional:
            case [_, PodSeries() as scrapes] if counts := scrapes.values(self.expected):
                return usual_interval_s(_COUNTED_S / max(counts.values()))
        return None

    def _long_silent(self, optional: Sequence[PodSeries | Absence]) -> set[Pod]:
        match optional:
            case [PodSeries() as lately, _]:
                ready = {(self.target.namespace, pod) for pod in self.target.long_ready}
                return ready - lately.values(ready).keys()
        return set()

    def most_age_s(self, optional: Sequence[PodSeries | Absence]) -> float:
        """Return the greatest age of a sample in use: three scrape intervals, or as the window says if unknown."""
        of_window_s = self.target.window_s * _MAX_AGE_SHARE
        if self.max_age_s is not None:
            return min(of_window_s, self.max_age_s)
        interval_s = self.interval_s(optional)
        if interval_s is None:
            return of_window_s
        return max(_MAX_AGE_SCRAPES * interval_s, min(of_window_s, _LEAST_MAX_AGE_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pods:
    """Which pods of a placement report, and with a model label the model of each."""

    reporting: Reporting
    models: Mapping[Pod, str] | None


_USUAL_S = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0)


def usual_interval_s(interval_s: float) -> float:
    """Return the usual scrape interval that `interval_s` is within an eighth of, else `interval_s`."""
    nearest = min(_USUAL_S, key=lambda usual: abs(usual - interval_s))
    return nearest if abs(nearest - interval_s) <= nearest / 8 else interval_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedScrapes:
    """The queries that show how the pods of a placement are scraped."""

    reads: _Reads

    @property
    def queries(self) -> dict[str, QueryKind]:
        """Return the queries with their kinds."""
        own = self.reads
        return {
            own.ages: QueryKind.FRESHNESS,
            own.copies: QueryKind.FRESHNESS,
            own.lately: QueryKind.THROUGHPUT,
            own.scrapes: QueryKind.OTHER,
            own.strangers: QueryKind.OTHER,
        }

    def conclude(self, results: PodResults) -> Scrapes:
        """Return what the results show; nothing where the ages are not known."""
        own, expected = self.reads, self.reads.expected
        ages_s, copies = results[own.ages], results[own.copies]
        if isinstance(ages_s, Absence):
            return UNKNOWN_SCRAPES
        optional = [results[query] for query in own.optional]
        found = own.pods(ages_s, optional)
        assert isinstance(found, _Pods)
        pods = found.reporting
        twice = {} if isinstance(copies, Absence) else copies.values(expected)
        return Scrapes(
            interval_s=own.interval_s(optional),
            duplicated=tuple(sorted(pod for (_, pod), count in twice.items() if count > 1)),
            silent=tuple(sorted(pod for _, pod in expected - pods.fresh)),
            excused=tuple(sorted(pod for _, pod in pods.excused)),
            unlabelled="" if pods.fresh or pods.stale else self._unlabelled(results[own.strangers]),
        )

    def _unlabelled(self, strangers: PodSeries | Absence) -> str:
        """Return why no series has the name of one of the pods, if there are series of other pods or of none."""
        if isinstance(strangers, Absence):
            return ""
        labels, name = self.reads.labels, self.reads.preset.freshness
        found = {series["metric"].get("found") for series in strangers.result if isinstance(series, dict)}
        if _EXPORTED in found and labels.pod != "exported_pod":
            return (
                f"{name} has its pods in the label exported_pod: set metrics.labels (pod: exported_pod, namespace: "
                "exported_namespace), --pod-label and --namespace-label, or honorLabels in the scrape job"
            )
        if _NONE in found:
            return (
                f"series of {name} have no label {labels.pod}: let the scrape job add it, or name the label that has "
                "the pod in metrics.labels or --pod-label"
            )
        return ""


def _by_preset(reads: _Reads, kind: QueryKind, formula: Formula) -> PlannedReading:
    values = (formula.value,) if formula.over is None else (formula.value, formula.over)
    checks = (reads.copies,) if reads.checks else ()
    return PlannedReading(
        queries={
            reads.ages: QueryKind.FRESHNESS,
            **dict.fromkeys(checks, QueryKind.FRESHNESS),
            **{reads.fill(template): kind for template in values},
        },
        optional=reads.optional,
        labels=reads.labels,
        conclude=partial(_combined, reads, formula),
    )


def _combined(reads: _Reads, formula: Formula, *found: PodSeries | Absence) -> Reading:
    """Return the reading of a placement.

    `found` are the results for the ages, for the copies with `reads.checks`, for the value, for the divisor if there is
    one, and for `reads.optional`. Series of a model count only where the model is that of the pod.
    """
    target, expected = reads.target, reads.expected
    required = len(found) - len(reads.optional)
    results, optional = cast(tuple[PodSeries, ...], found[:required]), found[required:]
    ages_s, *used = results
    copies = used.pop(0) if reads.checks else None
    model_label = reads.preset.model_label if formula.per_model else None
    known = reads.pods(ages_s, optional, model_label)
    if isinstance(known, Absence):
        return known
    pods = known.reporting
    if model_label is not None and known.models is not None:
        used = [PodSeries(of_models(result.of(expected), model_label, known.models)) for result in used]
    value, *divisors = used
    match formula.combine:
        case Combine.RATIO:
            above = _once(value.values(expected), copies, formula.value)
            below = _once(divisors[0].values(expected), copies, formula.over or "")
            return combine_ratio(pods, above, below, positive=formula.positive)
        case Combine.QUANTILE:
            return combine_buckets(pods, formula, value.buckets(expected))
        case _:
            values = _once(value.values(expected), copies, formula.value)
            if formula.vanishes:  # the same scrape has the sample that shows the pod's freshness
                values = dict.fromkeys(pods.fresh, 0.0) | values
            reading = combine_values(formula.combine, pods, values)
            return reading if isinstance(reading, Absence) else reading / _divisor(formula.divide_by, target)


def _once(values: dict[Pod, float], copies: PodSeries | None, template: str) -> dict[Pod, float]:
    """Return the values of pods, each counted once although its pod is scraped as often as `copies` has.

    Only `sum` adds copies up: a `max` or `avg` over them is that of one.
    """
    if copies is None or not _adds_up(template):
        return values
    several = {pod: count for pod, count in copies.values(values.keys()).items() if count > 1}
    return values | {pod: values[pod] / count for pod, count in several.items()} if several else values


@cache
def _adds_up(template: str) -> bool:
    return set(map(str.lower, _AGGREGATIONS.findall(template))) == {"sum"}


def _divisor(divisor: Divisor, target: PlacementTarget) -> int:
    match divisor:
        case Divisor.ONE:
            return 1
        case Divisor.CONCURRENCY:
            return target.concurrency
        case Divisor.BATCH_SLOTS:
            return target.concurrency * target.batch_limit


def _problems(results: Iterable[Any]) -> tuple[str, ...]:
    counts = Counter(result.detail for result in results if isinstance(result, Absence))
    return tuple(detail if count == 1 else f"{detail} ({count} queries)" for detail, count in sorted(counts.items()))
