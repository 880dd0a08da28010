"""Plans the queries of a read from a back end that supports PromQL, and computes the readings from the results. Pure.

There are few queries: one per preset, expression and window, over all pods of all namespaces and all models of their
servers. Pods are joined to placements here, and the model of each stage is chosen here. The back end computes the ages
of samples, so clocks of two machines are never compared.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from optimizer.model import PipelineKey
from profiler.samples import (
    Absence,
    AbsenceReason,
    Answer,
    Origin,
    PlacementSamples,
    PlacementTarget,
    Quantity,
    Reading,
)
from profiler.sources.base import PlacementId, QueryKind, ReadAnswer, ReadRequest
from profiler.sources.combine import (
    combine_buckets,
    combine_ratio,
    combine_values,
    reporting,
    whole_answer_percentile,
)
from profiler.sources.models import chosen_models
from profiler.sources.presets import Combine, Divisor, Edge, Formula, Preset
from profiler.sources.promql import (
    PodSeries,
    fill,
    namespace_matcher,
    of_models,
    pod_matcher,
    pod_models,
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

    `conclude` takes the results in the same order and returns the reading.
    """

    queries: Mapping[str, QueryKind]
    conclude: Callable[..., Reading]
    is_override: bool = False

    def reading(self, results: Mapping[str, Any]) -> Reading:
        """Return the reading that follows from `results`, or the first `Absence` among the results that it needs.

        They are `PodResults` for the quantities of a placement, `Results` for a scalar.
        """
        own = [results[query] for query in self.queries]
        absence = next((result for result in own if isinstance(result, Absence)), None)
        return self.conclude(*own) if absence is None else absence


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSessions:
    """The queries for the sessions of each pod of `target`. They are the same as for the sum over its pods.

    Pods whose newest sample is older than `max_age_s` seconds are left out.
    """

    target: PlacementTarget
    max_age_s: float
    queries: Mapping[str, QueryKind]

    def by_pod(self, results: PodResults) -> Mapping[str, float]:
        """Return the sessions by name of the pods with recent samples. Pods that just became ready are included."""
        ages_s, values = (results[query] for query in self.queries)
        if isinstance(ages_s, Absence) or isinstance(values, Absence):
            return {}
        expected = {(self.target.namespace, pod) for pod in {*self.target.pods, *self.target.endpoints}}
        fresh = reporting(expected, ages_s.ages(expected), self.max_age_s).fresh
        sessions = values.values(expected)
        return {pod[1]: sessions[pod] for pod in sorted(fresh) if math.isfinite(sessions.get(pod, math.nan))}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPlan:
    """The readings of a request and the queries that they need."""

    placements: Mapping[PlacementId, Mapping[Quantity, PlannedReading]]
    sessions: Mapping[PlacementId, PlannedSessions]
    scalars: Mapping[Hashable, PlannedReading]

    def pod_queries(self) -> set[str]:
        """Return the queries for all placements, overrides included."""
        return {query for own in self.placements.values() for planned in own.values() for query in planned.queries}

    def user_queries(self) -> set[str]:
        """Return the users' queries for demand, SLA and rules."""
        return {query for planned in self.scalars.values() for query in planned.queries}

    def kinds(self) -> dict[str, QueryKind]:
        """Return the kind of every query. A query with several purposes has the kind that is sent first."""
        kinds: dict[str, QueryKind] = {}
        own = (planned for placement in self.placements.values() for planned in placement.values())
        for planned in (*own, *self.scalars.values()):
            for query, kind in planned.queries.items():
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
        by_pod: PodResults = {
            query: result if isinstance(result, Absence) else PodSeries(result) for query, result in pod_results.items()
        }
        return ReadAnswer(
            placements={
                key: PlacementSamples(
                    readings={quantity: planned.reading(by_pod) for quantity, planned in own.items()},
                    sessions=self.sessions[key].by_pod(by_pod) if key in self.sessions else {},
                )
                for key, own in self.placements.items()
            },
            scalars={key: planned.reading(user_results) for key, planned in self.scalars.items()},
            problems=_problems({**pod_results, **user_results}.values()),
            origins=origins,
        )


def query_plan(request: ReadRequest, presets: Mapping[str, Preset], *, max_age_s: float | None = None) -> QueryPlan:
    """Return the queries for `request`.

    Samples older than `max_age_s`, or than three quarters of their window if that is less, are stale.
    """
    all_namespaces = namespace_matcher(target.namespace for target in request.placements)
    sessions = (_sessions(target, all_namespaces, presets, max_age_s) for target in request.placements)
    return QueryPlan(
        sessions={
            (planned.target.pipeline, planned.target.stage, planned.target.pool): planned
            for planned in sessions
            if planned is not None
        },
        placements={
            (target.pipeline, target.stage, target.pool): {
                quantity: _of_placement(target, quantity, all_namespaces, presets, max_age_s) for quantity in Quantity
            }
            for target in request.placements
        },
        scalars={
            key: PlannedReading(queries={query: request.scalar_kinds.get(key, QueryKind.DEMAND)}, conclude=scalar)
            for key, query in request.scalars.items()
        },
    )


def _of_placement(
    target: PlacementTarget,
    quantity: Quantity,
    all_namespaces: str,
    presets: Mapping[str, Preset],
    max_age_s: float | None,
) -> PlannedReading:
    if not target.pods:
        return _without_query(AbsenceReason.MISSING, "no pod has been ready for long enough to have samples")
    if quantity in target.overrides:
        pods = pod_matcher(target.namespace, target.pods)
        query = fill(target.overrides[quantity], pods=pods, window_s=target.window_s)
        return PlannedReading(
            queries={query: _KINDS.get(quantity, QueryKind.OTHER)},
            conclude=lambda found: scalar(found.result),
            is_override=True,
        )
    if quantity in _EDGES and Quantity.LATENCY_P95 in target.overrides:
        return _without_query(AbsenceReason.UNSUPPORTED, "the override of latencyP95 gives no histogram bucket")
    preset = presets.get(target.preset)
    if preset is None:
        known = ", ".join(sorted(presets))
        return _without_query(AbsenceReason.UNSUPPORTED, f"metrics.preset: {target.preset!r}: must be one of {known}")
    formula = preset.formula(quantity, target.answer)
    if formula is None:
        return _without_query(AbsenceReason.UNSUPPORTED, f"{preset.name} does not export it")
    kind = _KINDS.get(quantity, QueryKind.OTHER)
    plan = partial(_by_preset, target, preset, all_namespaces, _most_age_s(target, max_age_s), kind)
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
        known = dict(zip(queries, results, strict=True))
        coarse, floor_s, ceiling_s, first, whole_s, first_s = (part.reading(known) for part in parts)
        return whole_answer_percentile(coarse, bucket=(floor_s, ceiling_s), first=first, means=(whole_s, first_s))

    queries = {query: kind for part in parts for query, kind in part.queries.items()}
    return PlannedReading(queries=queries, conclude=conclude)


def _most_age_s(target: PlacementTarget, max_age_s: float | None) -> float:
    most_s = target.window_s * _MAX_AGE_SHARE
    return most_s if max_age_s is None else min(most_s, max_age_s)


def _sessions(
    target: PlacementTarget, all_namespaces: str, presets: Mapping[str, Preset], max_age_s: float | None
) -> PlannedSessions | None:
    """Return the queries for the sessions of each pod; None where only their sum over the pods is known."""
    preset = presets.get(target.preset)
    if not target.pods or preset is None or Quantity.SESSIONS in target.overrides:
        return None
    formula = preset.formulas.get(Quantity.SESSIONS)
    if formula is None or formula.combine is not Combine.SUM:
        return None
    most_s = _most_age_s(target, max_age_s)
    queries = _by_preset(target, preset, all_namespaces, most_s, _KINDS[Quantity.SESSIONS], formula).queries
    return PlannedSessions(target=target, max_age_s=most_s, queries=queries)


def _without_query(reason: AbsenceReason, detail: str) -> PlannedReading:
    return PlannedReading(queries={}, conclude=lambda: Absence(reason=reason, detail=detail))


def _by_preset(
    target: PlacementTarget, preset: Preset, all_namespaces: str, max_age_s: float, kind: QueryKind, formula: Formula
) -> PlannedReading:
    labels = "namespace, pod" if preset.model_label is None else f"namespace, pod, {preset.model_label}"
    ages_s = f"time() - max by ({labels}) (timestamp({preset.freshness}{{$pods}}))"
    values = (formula.value,) if formula.over is None else (formula.value, formula.over)
    templates = {ages_s: QueryKind.FRESHNESS, **dict.fromkeys(values, kind)}
    return PlannedReading(
        queries={
            fill(template, pods=all_namespaces, window_s=target.window_s): own for template, own in templates.items()
        },
        conclude=partial(_combined, target, formula, preset.model_label if formula.per_model else None, max_age_s),
    )


def _combined(
    target: PlacementTarget, formula: Formula, model_label: str | None, max_age_s: float, *results: PodSeries
) -> Reading:
    """Return the reading of a placement; `results` are those of the ages, the value and the divisor, if there is one.

    With `model_label`, only the series of one model per pod count.
    """
    expected = {(target.namespace, pod) for pod in target.pods}
    if model_label is not None:
        own = [result.of(expected) for result in results]
        models = chosen_models(pod_models(own[0], model_label, max_age_s), target.model)
        if isinstance(models, Absence):
            return models
        results = tuple(PodSeries(of_models(result, model_label, models)) for result in own)
    ages_s, value, *divisors = results
    pods = reporting(expected, ages_s.ages(expected), max_age_s)
    match formula.combine:
        case Combine.RATIO:
            above, below = value.values(expected), divisors[0].values(expected)
            return combine_ratio(pods, above, below, positive=formula.positive)
        case Combine.QUANTILE:
            return combine_buckets(pods, formula, value.buckets(expected))
        case _:
            reading = combine_values(formula.combine, pods, value.values(expected))
            return reading if isinstance(reading, Absence) else reading / _divisor(formula.divide_by, target)


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
