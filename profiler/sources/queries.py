"""Plans the queries of a read from a back end that supports PromQL, and computes the readings from the results. Pure.

There are few queries: one per preset, expression and window, over all pods of all namespaces and all models of their
servers. Pods are joined to placements here, and the model of each stage is chosen here. The back end computes the ages
of samples, so clocks of two machines are never compared.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, cast

from optimizer.model import PipelineKey, PlacementId, pool_of
from profiler.samples import (
    DEFAULT_LABELS,
    TOO_NEW,
    UNKNOWN_SCRAPES,
    Absence,
    AbsenceReason,
    Answer,
    AtLeast,
    Origin,
    PlacementSamples,
    PlacementTarget,
    Quantity,
    Reading,
    SeriesLabels,
)
from profiler.sources.base import QueryKind, ReadAnswer, ReadRequest
from profiler.sources.combine import (
    Pod,
    combine_ratio,
    combine_values,
    of_histogram,
    reporting,
    whole_answer_percentile,
)
from profiler.sources.device_queries import PlannedDevices, planned_devices
from profiler.sources.presets import Combine, Divisor, Edge, Formula, LoadedPresets, Preset
from profiler.sources.promql import PodSeries, fill, namespace_matcher, pod_matcher, scalar
from profiler.sources.promql_syntax import with_quantile_1
from profiler.sources.reporting_pods import PlacementPods, PodQueries, PodResults, once

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
    Quantity.PREFILL_TIME: QueryKind.SERVICE,
    Quantity.PREFIX_HIT_RATE: QueryKind.SERVICE,
    Quantity.WORK_VARIATION: QueryKind.SERVICE,
    Quantity.SESSIONS: QueryKind.SERVICE,
}
"""Kinds of the queries for quantities; all others are OTHER."""
_LEAST_PODS = 2
_STUCK_SHARE = 0.2
"""A pod that completes less than this share of what its neighbours do is stuck: their loads differ by less."""
_STUCK_QUEUE = 2.0
_ORDER = {kind: number for number, kind in enumerate(QueryKind)}

Results = Mapping[str, Any]
"""For every query the `result` of Prometheus' query API, or the `Absence` in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReading:
    """The queries that one reading needs, each with its kind; it is the same for all placements that are read alike.

    `conclude` takes the pods of a placement, the results in the same order, then those of `optional`, which may be
    absent, and returns the reading. The series of pods have `labels`.
    """

    queries: Mapping[str, QueryKind]
    conclude: Callable[..., Reading]
    optional: tuple[str, ...] = ()
    labels: SeriesLabels = DEFAULT_LABELS
    is_override: bool = False

    def of(self, results: Mapping[str, Any]) -> Callable[[PlacementPods | None], Reading]:
        """Return what gives the reading of a placement's pods: the first `Absence` among the results, if there is one.

        `results` are `PodResults` for the quantities of a placement, `Results` for a scalar, which has no pods.
        """
        own = [results[query] for query in self.queries]
        absence = next((result for result in own if isinstance(result, Absence)), None)
        if absence is not None:
            return lambda _: absence
        own += [results[query] for query in self.optional]
        conclude = self.conclude
        return lambda pods: conclude(pods, *own)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedByPod:
    """The queries for a quantity of each pod. They are the same as for the sum over the pods, `formula`."""

    formula: Formula
    queries: Mapping[str, QueryKind]
    optional: tuple[str, ...]

    def by_pod(self, pods: PlacementPods, results: PodResults) -> Mapping[str, float]:
        """Return the values by name of the pods with recent samples. Pods that just became ready are included."""
        ages_s, *copies, values = (results[query] for query in self.queries)
        if isinstance(ages_s, Absence) or isinstance(values, Absence):
            return {}
        target = pods.target
        expected = {(target.namespace, pod) for pod in {*target.pods, *target.endpoints}}
        most_s = pods.most_age_s([results[query] for query in self.optional])
        fresh = reporting(expected, ages_s.ages(expected), most_s).fresh
        known = [each for each in copies if not isinstance(each, Absence)]
        own = once(values, known[0] if known else None, self.formula.value, expected)
        unseen = 0.0 if self.formula.vanishes else math.nan
        return {pod[1]: value for pod in sorted(fresh) if math.isfinite(value := own.get(pod, unseen))}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPlacement:
    """What is read for one placement: the readings and sessions, which others may share, of its `pods`.

    `pods` is None where no query is about them. `sessions`, `queue` (items that wait) and `completions` (items per
    second) are None where only their sum over the pods is known, and `devices` where the pool has none that are read.
    `device_pods` are the pods whose devices are read; `shared_devices` are those of them that have none of their own.
    """

    readings: Mapping[Quantity, PlannedReading]
    sessions: PlannedByPod | None = None
    queue: PlannedByPod | None = None
    completions: PlannedByPod | None = None
    pods: PlacementPods | None = None
    devices: PlannedDevices | None = None
    device_pods: frozenset[Pod] = frozenset()
    shared_devices: frozenset[Pod] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPlan:
    """The readings of a request and the queries that they need."""

    placements: Mapping[PlacementId, PlannedPlacement]
    scalars: Mapping[Hashable, PlannedReading]

    def pod_queries(self) -> set[str]:
        """Return the queries for all placements, overrides included."""
        own = {query for planned in self._readings() for query in planned.queries}
        return own | {query for pods in self._checked() for query in pods.of_scrapes} | self.device_queries()

    def device_queries(self) -> set[str]:
        """Return the queries for the devices of pods, which are among `pod_queries`."""
        planned = {id(own.devices): own.devices for own in self.placements.values() if own.devices is not None}
        return {query for devices in planned.values() for query, _ in devices.formulas.values()}

    def user_queries(self) -> set[str]:
        """Return the users' queries for demand, SLA and rules."""
        return {query for planned in self.scalars.values() for query in planned.queries}

    def kinds(self) -> dict[str, QueryKind]:
        """Return the kind of every query. A query with several purposes has the kind that is sent first."""
        kinds: dict[str, QueryKind] = {}
        own = (planned.queries for planned in (*self._readings(), *self.scalars.values()))
        devices = dict.fromkeys(self.device_queries(), QueryKind.OTHER)
        for queries in (*own, *(pods.of_scrapes for pods in self._checked()), devices):
            for query, kind in queries.items():
                known = kinds.get(query)
                if known is None or _ORDER[kind] < _ORDER[known]:
                    kinds[query] = kind
        return kinds

    def together(self, asked: Collection[str]) -> set[tuple[str, ...]]:
        """Return the queries of the readings that need several besides the one for freshness, each set once.

        Only those that are `asked`.
        """
        sets = (
            tuple(q for q, kind in planned.queries.items() if kind is not QueryKind.FRESHNESS and q in asked)
            for planned in self._readings()
            if len(planned.queries) > 2
        )
        return {queries for queries in sets if queries}

    def tenants(self, request: ReadRequest) -> Mapping[str, str]:
        """Return the namespace of each query that is of one alone: users' queries, and those of a window of its own."""
        owners: dict[str, set[str]] = {}
        for key, planned in self.scalars.items():
            if (owner := request.scalar_owners.get(key)) is not None:
                for query in planned.queries:
                    owners.setdefault(query, set()).add(owner.partition("/")[0])
        for (pipeline, *_), own in self.placements.items():
            for planned in own.readings.values():
                for query in planned.queries:
                    owners.setdefault(query, set()).add(pipeline.partition("/")[0])
        return {query: next(iter(names)) for query, names in owners.items() if len(names) == 1}

    def single_queries(self) -> set[str]:
        """Return the users' queries, overrides included. Each returns one series; those of presets return many."""
        overrides = {query for planned in self._readings() if planned.is_override for query in planned.queries}
        return overrides | self.user_queries()

    def answer(self, pod_results: Results, user_results: Results, origins: Mapping[PipelineKey, Origin]) -> ReadAnswer:
        """Return the answer to the request, from the results of `pod_queries` and of `user_queries`."""
        labels = {
            query: planned.labels
            for planned in self._readings()
            if planned.labels != DEFAULT_LABELS
            for query in (*planned.queries, *planned.optional)
        }
        by_pod: PodResults = {
            query: result
            if isinstance(result, Absence)
            else PodSeries(result, labels.get(query, DEFAULT_LABELS), query)
            for query, result in pod_results.items()
        }
        alike: dict[int, list[tuple[Quantity, Callable[[PlacementPods | None], Reading]]]] = {}

        def samples(own: PlannedPlacement) -> PlacementSamples:
            of_pods = alike.get(id(own.readings))
            if of_pods is None:
                of_pods = [(quantity, planned.of(by_pod)) for quantity, planned in own.readings.items()]
                alike[id(own.readings)] = of_pods
            pods, devices = own.pods, own.devices
            readings = {quantity: reading(pods) for quantity, reading in of_pods}
            return PlacementSamples(
                readings=readings,
                stuck=_stuck(own, readings.get(Quantity.QUEUE_DEPTH), by_pod),
                sessions=own.sessions.by_pod(pods, by_pod) if own.sessions is not None and pods is not None else {},
                scrapes=pods.scrapes(by_pod) if pods is not None and pods.queries.checks else UNKNOWN_SCRAPES,
                devices={} if devices is None else devices.readings(own.device_pods, by_pod, own.shared_devices),
                device_faults={} if devices is None else devices.faults(own.device_pods, by_pod),
            )

        return ReadAnswer(
            placements={key: samples(own) for key, own in self.placements.items()},
            scalars={key: planned.of(user_results)(None) for key, planned in self.scalars.items()},
            problems=_problems({**pod_results, **user_results}.values()),
            origins=origins,
        )

    def _readings(self) -> Iterator[PlannedReading]:
        """Yield the readings of placements; those of placements that are read alike once."""
        for readings in {id(own.readings): own.readings for own in self.placements.values()}.values():
            yield from readings.values()

    def _checked(self) -> Iterable[PodQueries]:
        """Return the queries about pods whose scrapes are checked, those of placements that are read alike once."""
        asked = (own.pods.queries for own in self.placements.values() if own.pods is not None)
        return {id(queries): queries for queries in asked if queries.checks}.values()


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
    # What a tenant's window costs is over the pods of those who have it: the others' are not read for it.
    having: dict[tuple[SeriesLabels, float], set[str]] = {}
    for each in request.placements:
        having.setdefault((each.labels or labels, each.window_s), set()).add(each.namespace)
    matchers = {key: namespace_matcher(sorted(spaces), key[0]) for key, spaces in having.items()}
    alike: dict[Hashable, tuple[PlannedPlacement, PodQueries | None]] = {}
    devices_alike: dict[Hashable, PlannedDevices] = {}

    def of_devices(target: PlacementTarget) -> PlannedDevices | None:
        device, own = request.devices.get(pool_of(target.placement)), target.labels or labels
        if device is None:
            return None
        key = device, own.match, target.window_s
        if key not in devices_alike:
            devices_alike[key] = planned_devices(device, own, namespaces, target.window_s)
        return devices_alike[key]

    def planned(target: PlacementTarget) -> PlannedPlacement:
        if not target.pods:
            return _NO_POD
        own = target.labels or labels
        key = target.preset, own, target.window_s, target.answer
        if key not in alike:
            preset = loaded.usable.get(target.preset)
            queries = None
            if preset is not None:
                queries = PodQueries(
                    preset=preset,
                    labels=own,
                    matchers=matchers[own, target.window_s],
                    window_s=target.window_s,
                    checks=checks,
                )
            problem = "" if queries is not None else loaded.problem(target.preset)
            alike[key] = _planned_alike(queries, target.answer, problem), queries
        shared, queries = alike[key]
        found = replace(
            shared,
            pods=None if queries is None else PlacementPods(target=target, queries=queries, max_age_s=max_age_s),
            devices=of_devices(target),
            device_pods=frozenset((target.namespace, pod) for pod in target.pods),
            shared_devices=frozenset((target.namespace, pod) for pod in target.pods) & request.sharing,
        )
        if not target.overrides:
            return found
        return replace(
            found,
            readings={**shared.readings, **_overriding(target, own)},
            sessions=None if Quantity.SESSIONS in target.overrides else shared.sessions,
            queue=None if Quantity.QUEUE_DEPTH in target.overrides else shared.queue,
            completions=None if Quantity.COMPLETION_RATE in target.overrides else shared.completions,
        )

    return QueryPlan(
        placements={
            (target.pipeline, target.stage, target.placement): planned(target) for target in request.placements
        },
        scalars={
            key: _of_one_series(query, request.scalar_kinds.get(key, QueryKind.DEMAND))
            for key, query in request.scalars.items()
        },
    )


def _planned_alike(queries: PodQueries | None, answer: Answer, problem: str) -> PlannedPlacement:
    """Return what is read of placements by `queries`; nothing without them, because of `problem`."""
    if queries is None:
        return PlannedPlacement(
            readings={quantity: _without_query(AbsenceReason.MISSING, problem) for quantity in Quantity}
        )
    return PlannedPlacement(
        readings={quantity: _by_preset(queries, quantity, answer) for quantity in Quantity},
        sessions=_by_each_pod(queries, Quantity.SESSIONS),
        queue=_by_each_pod(queries, Quantity.QUEUE_DEPTH),
        completions=_by_each_pod(queries, Quantity.COMPLETION_RATE),
    )


def _by_each_pod(queries: PodQueries, quantity: Quantity) -> PlannedByPod | None:
    """Return what is asked for a quantity of each pod, None where it is no sum over the pods."""
    formula = queries.preset.formulas.get(quantity)
    if formula is None or formula.combine is not Combine.SUM:
        return None
    planned = _by_formula(queries, _KINDS.get(quantity, QueryKind.OTHER), formula)
    return PlannedByPod(formula=formula, queries=planned.queries, optional=planned.optional)


def _stuck(own: PlannedPlacement, waiting: Reading | None, results: PodResults) -> Mapping[str, float]:
    """Return the pods that are stuck; they are looked for only where items wait: a large fleet has many placements."""
    pods = own.pods
    if pods is None or own.queue is None or own.completions is None or len(pods.target.pods) < _LEAST_PODS:
        return {}
    if not isinstance(waiting, float) or waiting < 1:
        return {}
    return stuck_pods(own.queue.by_pod(pods, results), own.completions.by_pod(pods, results))


def stuck_pods(waiting: Mapping[str, float], completed: Mapping[str, float]) -> Mapping[str, float]:
    """Return the pods before which items wait and that complete hardly any, with how many wait there.

    `completed` are items per second. The others of the placement, by their median, complete many times as many and
    have fewer waiting: a queue alone may be that of a slow stage, and nothing completed that of an idle one.
    """
    known = waiting.keys() & completed.keys()
    if len(known) < _LEAST_PODS:
        return {}
    usual = median(completed[pod] for pod in known)
    queue = median(waiting[pod] for pod in known)
    return {
        pod: waiting[pod]
        for pod in sorted(known)
        if waiting[pod] >= max(1.0, _STUCK_QUEUE * queue) and completed[pod] <= _STUCK_SHARE * usual
    }


def _by_preset(queries: PodQueries, quantity: Quantity, answer: Answer) -> PlannedReading:
    preset = queries.preset
    formula = preset.formula(quantity, answer)
    if formula is None:
        return _without_query(AbsenceReason.UNSUPPORTED, f"{preset.name} does not export it")
    plan = partial(_by_formula, queries, _KINDS.get(quantity, QueryKind.OTHER))
    if refines(preset, quantity, answer):
        return _whole_percentile(plan, preset, quantity)
    return plan(formula)


def _overriding(target: PlacementTarget, labels: SeriesLabels) -> dict[Quantity, PlannedReading]:
    """Return the readings of a placement that the user's queries replace."""
    pods = pod_matcher(target.namespace, target.pods, labels)
    found: dict[Quantity, PlannedReading] = {}
    for quantity, template in target.overrides.items():
        query = fill(template, pods=pods, window_s=target.window_s)
        found[quantity] = _of_one_series(query, _KINDS.get(quantity, QueryKind.OTHER), is_override=True)
    if Quantity.LATENCY_P95 in found:
        reason = "the override of latencyP95 gives no histogram bucket"
        for edge in _EDGES - found.keys():
            found[edge] = _without_query(AbsenceReason.UNSUPPORTED, reason)
    return found


def _of_one_series(query: str, kind: QueryKind, *, is_override: bool = False) -> PlannedReading:
    """Return the reading of a user's query that returns one number.

    PromQL's histogram_quantile() does not tell a quantile at the last finite bound from one above it. The same query
    for the quantile 1 does: it returns the same number only if items are above that bound, and the quantile too.
    """
    top = with_quantile_1(query) if kind in {QueryKind.LATENCY, QueryKind.OTHER} else None

    def conclude(_: PlacementPods | None, *results: Any) -> Reading:
        readings = [scalar(each.result if isinstance(each, PodSeries) else each) for each in results]
        absent = next((each for each in readings if isinstance(each, Absence)), None)
        reading, *tops = readings
        if absent is not None or isinstance(reading, Absence):
            return absent or reading
        return AtLeast(reading) if 0 < reading in tops else reading

    queries = dict.fromkeys((query, *([] if top is None else [top])), kind)
    return PlannedReading(queries=queries, conclude=conclude, is_override=is_override)


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

    def conclude(pods: PlacementPods, *results: Any) -> Reading:
        known = dict(zip((*queries, *parts[0].optional), results, strict=True))
        coarse, floor_s, ceiling_s, first, whole_s, first_s = (part.of(known)(pods) for part in parts)
        return whole_answer_percentile(coarse, bucket=(floor_s, ceiling_s), first=first, means=(whole_s, first_s))

    queries = {query: kind for part in parts for query, kind in part.queries.items()}
    return PlannedReading(queries=queries, optional=parts[0].optional, labels=parts[0].labels, conclude=conclude)


def _without_query(reason: AbsenceReason, detail: str) -> PlannedReading:
    absence = Absence(reason=reason, detail=detail)
    return PlannedReading(queries={}, conclude=lambda _: absence)


_NO_POD = PlannedPlacement(readings={quantity: _without_query(TOO_NEW.reason, TOO_NEW.detail) for quantity in Quantity})


def _by_formula(queries: PodQueries, kind: QueryKind, formula: Formula) -> PlannedReading:
    values = (formula.value,) if formula.over is None else (formula.value, formula.over)
    checks = (queries.copies,) if queries.checks else ()
    return PlannedReading(
        queries={
            queries.ages: QueryKind.FRESHNESS,
            **dict.fromkeys(checks, QueryKind.FRESHNESS),
            **{queries.fill(template): kind for template in values},
        },
        optional=queries.optional,
        labels=queries.labels,
        conclude=partial(_combined, formula),
    )


def _combined(formula: Formula, placement: PlacementPods, *found: PodSeries | Absence) -> Reading:
    """Return the reading of a placement.

    `found` are the results for the ages, for the copies if scrapes are checked, for the value, for the divisor if there
    is one, and for the optional queries. Series of a model count only where the model is that of the pod.
    """
    queries, expected = placement.queries, placement.expected
    required = len(found) - len(queries.optional)
    results, optional = cast(tuple[PodSeries, ...], found[:required]), found[required:]
    ages_s, *used = results
    copies = used.pop(0) if queries.checks else None
    label = queries.preset.model_label if formula.per_model else None
    known = placement.known(ages_s, optional, label)
    if isinstance(known, Absence):
        return known
    pods = known.reporting
    if label is not None and known.models is not None:
        used = [placement.of_model(result, label, known.models) for result in used]
    value, *divisors = used
    match formula.combine:
        case Combine.RATIO:
            above = once(value, copies, formula.value, expected)
            below = once(divisors[0], copies, formula.over or "", expected)
            return combine_ratio(pods, above, below, positive=formula.positive)
        case how if how.of_histogram:
            reading = of_histogram(formula, placement.summed_buckets(pods, value))
            if isinstance(reading, Absence) and reading.reason is AbsenceReason.MISSING and pods.fresh:
                return replace(reading, detail=f"{reading.detail}: {queries.missing_histogram(formula.value)}")
            return reading
        case _:
            values = once(value, copies, formula.value, expected)
            if formula.vanishes:  # the same scrape has the sample that shows the pod's freshness
                values = {pod: values.get(pod, 0.0) for pod in pods.fresh}
            reading = combine_values(formula.combine, pods, values)
            return reading if isinstance(reading, Absence) else reading / _divisor(formula.divide_by, placement.target)


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
