"""Checks of `sluice doctor` on metrics: queries, labels, ages, intervals, units and buckets. Pure.

The readings are those of a `MetricSource`, as in the operator. Further queries find out why a reading is absent.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.adoption.check import Check
from controller.adoption.cluster_checks import placement_subject
from controller.adoption.exports import Results, interval_s, scrapes_queries, series
from controller.core.messages.details import demand_of_completions
from controller.core.messages.phrases import count_of, duration, number, reading_words
from controller.core.state.spec import HistorySpec, PipelineSpec, PlacementSpec, StageSpec
from optimizer.model import PlacementId
from profiler.samples import (
    THROUGHPUT,
    TOO_NEW,
    Absence,
    AbsenceReason,
    PlacementSamples,
    PlacementTarget,
    Quantity,
    Reading,
)
from profiler.sources.base import ReadAnswer, is_wrong_query
from profiler.sources.metric_names import completion_counters, renamed_series
from profiler.sources.presets import Combine, Preset
from profiler.sources.promql import fill, namespace_matcher
from profiler.sources.promql_syntax import UnsupportedQuery, longest_window_s, metric_names
from profiler.sources.queries import refines
from profiler.sources.reporting_pods import renamed_words

_WINDOWS = 4
"""Scrape intervals that a window should have: one scrape may fail, and a rate needs two."""
_LEAST_AGE_S = 60.0
_MILLISECONDS = 30.0
"""A latency of so many times the SLA is taken for milliseconds: overload is rarely that deep."""
_MISMATCH = 3.0
"""Greatest ratio of the load that the demand states to what the entry stages see."""
_ENOUGH = 0.9
"""Share of the past levels that must be recorded: a scrape may fail."""
_WIDEST = 2.5
"""Greatest ratio of the bounds of the bucket that holds the SLA."""
_WANTED = (
    *THROUGHPUT,
    Quantity.LATENCY_MEAN,
    Quantity.LATENCY_P95,
    Quantity.SERVICE_TIME,
    Quantity.BATCH_SIZE,
    Quantity.UTILIZATION,
    Quantity.QUEUE_DEPTH,
)
"""What every server should export. The others refine these, or are optional."""
_PROMETHEUS_HINT = "check --prometheus-url"
_QUIET = Absence(reason=AbsenceReason.NO_TRAFFIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What was read: the readings, and the results of `further_queries`. `problem` says why nothing was read."""

    answer: ReadAnswer = field(default_factory=lambda: ReadAnswer(placements={}, scalars={}, problems=()))
    results: Results = field(default_factory=dict)
    problem: str = ""


def further_queries(
    specs: Iterable[PipelineSpec],
    scalars: Mapping[Hashable, str],
    targets: Iterable[PlacementTarget],
    presets: Mapping[str, Preset],
) -> set[str]:
    """Return the queries that the checks need beside the readings themselves."""
    queries: set[str] = set()
    for query in scalars.values():
        for name in _names(query):
            queries |= {_count(name), _age(name), _renamed(name), *scrapes_queries(name)}
            queries |= {_bounds(name)} if name.endswith("_bucket") else set()
    used = {(target.namespace, target.preset) for target in targets}
    for namespace, name in used:
        preset = presets[name]
        queries |= {_labels(preset), _scrapers(preset, namespace), _renamed(preset.freshness)}
        queries |= {*scrapes_queries(preset.freshness, namespace_matcher([namespace]))}
    for spec in specs:
        if spec.history is not None:
            queries.add(_recorded(spec, spec.history))
        for stage in spec.stages:
            if (histogram := _histogram(presets[stage.preset], stage)) is not None:
                queries.add(_bounds(histogram, spec.namespace))
    return queries


def _recorded(spec: PipelineSpec, history: HistorySpec) -> str:
    """Return the query for how many levels of `demand.history` Prometheus has."""
    query, span_s = history.query or spec.queries.demand, history.season_s * (history.seasons + 1)
    return f"count_over_time(({query})[{span_s:.0f}s:{history.step_s:.0f}s])"


def _check_history(spec: PipelineSpec, results: Results) -> Iterator[Check]:
    """Yield whether the demand of enough past seasons is recorded."""
    if spec.history is None:
        return
    history, name, subject = spec.history, "demand.history", str(spec.key)
    result = results.get(_recorded(spec, history), _QUIET)
    if isinstance(result, Absence):
        yield Check(name=name, subject=subject, ok=None, message=f"not read: {reading_words(result)}")
        return
    levels = sum(value for _, value in series(results, _recorded(spec, history)))
    wanted, seasons = history.seasons + 1, levels * history.step_s / history.season_s
    message = f"{number(seasons)} of {wanted} seasons of demand are recorded, the last one included"
    if seasons < _ENOUGH * wanted:
        use = "those are used" if seasons >= 2 else "at least 2 are needed"
        message = f"{message}; {use}; check the retention of Prometheus, or lower demand.history.seasons"
    yield Check(name=name, subject=subject, ok=seasons >= 2, message=message)


def check_metrics(
    spec: PipelineSpec,
    queries: Mapping[Hashable, str],
    targets: Sequence[PlacementTarget],
    metrics: Metrics,
    presets: Mapping[str, Preset],
) -> list[Check]:
    """Return the checks of all metrics of a pipeline; `queries` are its own ones by the id of their reading."""
    if metrics.problem:
        return [Check(name="prometheus", subject=str(spec.key), ok=None, message=metrics.problem)]
    checks: list[Check] = []
    for key, query in queries.items():
        reading = metrics.answer.scalars.get(key, Absence(reason=AbsenceReason.UNAVAILABLE, detail="not read"))
        checks += _check_query(spec, key, query, reading, metrics.results)
    checks += _check_history(spec, metrics.results)
    checks += _check_latency(spec, queries, metrics)
    own = {target.stage: [each for each in targets if each.stage == target.stage] for target in targets}
    for stage in spec.stages:
        checks += _check_window(spec, stage, presets[stage.preset], metrics.results)
        checks += _check_stage_buckets(spec, stage, presets[stage.preset], metrics.results)
        for placement in stage.placements:
            target = next((each for each in own.get(stage.name, ()) if each.placement == placement.name), None)
            if target is not None:
                samples = metrics.answer.placements.get(_id(target), PlacementSamples(readings={}))
                checks += _check_placement(spec, stage, placement, target, samples, metrics.results, presets)
    return [*checks, *_check_load(spec, targets, metrics, queries)]


def _check_query(spec: PipelineSpec, key: Hashable, query: str, reading: Reading, results: Results) -> Iterator[Check]:
    """Yield the checks of a user's query: its answer, and the age and interval of the metrics in it."""
    name, subject = _query_name(key), str(spec.key)
    if name == "demand.query" and (counters := completion_counters(query)):
        yield Check(name="demand.query source", subject=subject, ok=False, message=demand_of_completions(counters))
    if isinstance(reading, Absence):
        unknown = reading.reason in {AbsenceReason.UNAVAILABLE, AbsenceReason.NO_TRAFFIC}
        ok = None if unknown and not is_wrong_query(reading, query) else False
        yield Check(name=name, subject=subject, ok=ok, message=_absent_words(query, reading, results))
        return
    yield Check(name=name, subject=subject, ok=True, message=f"returns {number(reading)}")
    names = _names(query)
    intervals = [each for each in (interval_s(results, one) for one in names) if each]
    ages = [age for one in names for _, age in series(results, _age(one))]
    if ages:
        most_s = max(_LEAST_AGE_S, _WINDOWS * max(intervals, default=0.0))
        oldest = max(ages)
        if oldest > most_s:
            message = f"the newest sample is {duration(oldest)} old: check that its target is still scraped"
            yield Check(name=f"{name} age", subject=subject, ok=False, message=message)
        else:
            message = f"the newest sample is {duration(max(0.0, oldest))} old"
            yield Check(name=f"{name} age", subject=subject, ok=True, message=message)
    window_s = _window_s(query)
    if intervals and window_s:
        yield _window_check(f"{name} window", subject, window_s, max(intervals), "the range in the query")


def _absent_words(query: str, absence: Absence, results: Results) -> str:
    words = reading_words(absence)
    if is_wrong_query(absence, query):
        return f"{words}: correct the query"
    if absence.reason is AbsenceReason.UNAVAILABLE:
        return words if "check " in words else f"{words}: {_PROMETHEUS_HINT}"
    if absence.reason is AbsenceReason.MISSING:
        names = _names(query)
        unknown = [name for name in names if not list(series(results, _count(name)))]
        if unknown:
            found = sorted({other for name in unknown for other in _names_of(results, name)})
            if found:
                return f"Prometheus has no metric {', '.join(unknown)}, but it has {', '.join(found)}: correct the name"
            return f"Prometheus has no metric {', '.join(unknown)}: correct the name, or scrape what exports it"
        if names:
            return f"{', '.join(names)} exists, but no series matches: correct the labels in the query"
    return words


def _check_latency(spec: PipelineSpec, queries: Mapping[Hashable, str], metrics: Metrics) -> Iterator[Check]:
    """Yield the checks of the unit and the buckets of `sla.query`."""
    key = (spec.key, "sla")
    query, reading, sla_s = queries.get(key), metrics.answer.scalars.get(key), spec.sla.latency_s
    if query is None or not isinstance(reading, float):
        return
    subject = str(spec.key)
    if reading > _MILLISECONDS * sla_s:
        message = (
            f"returns {number(reading)}, read as seconds, and sla.latency is {duration(sla_s)}: if these are "
            "milliseconds, divide the query by 1000"
        )
        yield Check(name="sla.query unit", subject=subject, ok=False, message=message)
    else:
        message = f"{duration(reading)} now, sla.latency is {duration(sla_s)}"
        yield Check(name="sla.query unit", subject=subject, ok=True, message=message)
    for name in _names(query):
        if name.endswith("_bucket"):
            scale = 1000.0 if any(unit in name for unit in ("_milliseconds", "_ms_", "_millis")) else 1.0
            bounds = [bound / scale for bound in _bounds_of(metrics.results, _bounds(name))]
            yield _bucket_check("sla.query buckets", subject, name, bounds, sla_s)


def _check_stage_buckets(spec: PipelineSpec, stage: StageSpec, preset: Preset, results: Results) -> Iterator[Check]:
    """Yield the check that the latency histogram of a stage's servers has bounds on both sides of the SLA."""
    histogram = _histogram(preset, stage)
    if histogram is None:
        return
    bounds = _bounds_of(results, _bounds(histogram, spec.namespace))
    if bounds:
        subject, sla_s = f"{spec.key} {stage.name}", spec.sla.latency_s
        refined = refines(preset, Quantity.LATENCY_P95, stage.metrics_answer)
        if bounds[-1] < sla_s or (bounds[0] >= sla_s and not refined):
            yield _bucket_check("buckets", subject, histogram, bounds, sla_s)
        else:
            message = f"{histogram} has bounds from {duration(bounds[0])} to {duration(bounds[-1])}"
            yield Check(name="buckets", subject=subject, ok=True, message=message)


def _bucket_check(name: str, subject: str, histogram: str, bounds: Sequence[float], sla_s: float) -> Check:
    if not bounds:
        return Check(name=name, subject=subject, ok=None, message=f"the buckets of {histogram} were not read")
    if bounds[-1] < sla_s:
        message = (
            f"the last bucket of {histogram} ends at {duration(bounds[-1])}, below the SLA of {duration(sla_s)}: a "
            "miss cannot be seen. Add bounds above the SLA"
        )
        return Check(name=name, subject=subject, ok=False, message=message)
    above = next(bound for bound in bounds if bound >= sla_s)
    below = max((bound for bound in bounds if bound < sla_s), default=0.0)
    if above > sla_s and (below == 0 or above / below > _WIDEST):
        message = (
            f"the SLA of {duration(sla_s)} is within the bucket from {duration(below)} to {duration(above)} of "
            f"{histogram}, too wide to tell. Add a bound at {duration(sla_s)}"
        )
        return Check(name=name, subject=subject, ok=False, message=message)
    message = f"{histogram} has bounds on both sides of the SLA ({duration(below)}, {duration(above)})"
    return Check(name=name, subject=subject, ok=True, message=message)


def _check_window(spec: PipelineSpec, stage: StageSpec, preset: Preset, results: Results) -> Iterator[Check]:
    interval = interval_s(results, preset.freshness, namespace_matcher([spec.namespace]))
    subject = f"{spec.key} {stage.name}"
    if interval is not None:
        yield _window_check("window", subject, stage.metrics_window_s, interval, "metrics.window")


def _window_check(name: str, subject: str, window_s: float, interval: float, what: str) -> Check:
    if window_s < _WINDOWS * interval * 0.99:
        need = math.ceil(_WINDOWS * interval - 1e-6)
        message = f"{what} is {duration(window_s)} and scrapes come each {duration(interval)}: set at least {need}s"
        return Check(name=name, subject=subject, ok=False, message=message)
    message = f"{duration(window_s)}; scrapes come each {duration(interval)}"
    return Check(name=name, subject=subject, ok=True, message=message)


def _check_placement(
    spec: PipelineSpec,
    stage: StageSpec,
    placement: PlacementSpec,
    target: PlacementTarget,
    samples: PlacementSamples,
    results: Results,
    presets: Mapping[str, Preset],
) -> Iterator[Check]:
    """Yield the checks of a placement's metrics: labels, duplicates, and each quantity that is absent."""
    subject, preset = placement_subject(spec, stage.name, placement), presets[stage.preset]
    if not target.pods:
        yield Check(name="metrics", subject=subject, ok=None, message=TOO_NEW.detail)
        return
    labels = [found for found, _ in series(results, _labels(preset))]
    pods = {found.get("pod") for found in labels if found.get("namespace") == target.namespace}
    answered = not isinstance(results.get(_labels(preset)), Absence)
    if answered and not pods & target.pods and not stage.metric_overrides:
        yield Check(name="labels", subject=subject, ok=False, message=_label_words(target, preset, labels, results))
        return
    twice = sorted(
        found.get("pod", "")
        for found, count in series(results, _scrapers(preset, target.namespace))
        if count > 1 and found.get("pod") in target.pods
    )
    if twice:
        message = f"pod {twice[0]} is scraped more than once, so sums count it again: keep one scrape job for it"
        yield Check(name="scrape jobs", subject=subject, ok=False, message=message)
    absent: dict[Absence, list[str]] = {}
    for quantity in dict.fromkeys((*_WANTED, *stage.metric_overrides)):
        reading = samples.of(quantity)
        if isinstance(reading, Absence):
            # Without items, a summary has percentiles that are NaN.
            idle = reading.reason is AbsenceReason.NOT_A_NUMBER and samples.of(Quantity.ARRIVAL_RATE) == 0
            absent.setdefault(_QUIET if idle else reading, []).append(quantity.value)
    for absence, names in absent.items():
        ok = None if absence.reason in {AbsenceReason.NO_TRAFFIC, AbsenceReason.UNAVAILABLE} else False
        message = f"{', '.join(names)}: {_reason_words(absence, preset, names)}"
        yield Check(name="metrics", subject=subject, ok=ok, message=message)
    yield from _unit_check(spec, subject, samples)
    if not absent:
        rate, tail = samples.of(Quantity.ARRIVAL_RATE), samples.of(Quantity.LATENCY_P95)
        shown = [f"{number(rate)} items/s" if isinstance(rate, float) else "", ""]
        shown[1] = f"p95 {duration(tail)}" if isinstance(tail, float) else ""
        message = (
            f"preset {preset.name} answers for {count_of(len(target.pods), 'pod')}: {', '.join(filter(None, shown))}"
        )
        yield Check(name="metrics", subject=subject, ok=True, message=message)


def _reason_words(absence: Absence, preset: Preset, names: Sequence[str]) -> str:
    if absence.reason is AbsenceReason.NO_TRAFFIC:
        return "not known while there is no traffic"
    if preset.name == "triton" and Quantity.LATENCY_P95.value in names and absence.reason is AbsenceReason.MISSING:
        return "start Triton with --metrics-config summary_latencies=true"
    words = reading_words(absence)
    if absence.reason is AbsenceReason.MISSING:
        return f"{words}. The server must export them; docs/metrics.md has the names"
    return words


def _label_words(target: PlacementTarget, preset: Preset, labels: Sequence[Mapping[str, str]], results: Results) -> str:
    if not labels and (renamed := _names_of(results, preset.freshness)):
        return renamed_words(preset.name, preset.freshness, renamed)
    if any(found.get("exported_pod") in target.pods for found in labels):
        return f"{preset.freshness} has its pod in exported_pod: set honorLabels: true in its scrape job"
    first = min(target.pods)
    return (
        f"no series {preset.freshness} has the labels namespace={target.namespace} and pod={first}: let Prometheus "
        f"scrape the pods with these labels, or correct metrics.preset ({preset.name})"
    )


def _unit_check(spec: PipelineSpec, subject: str, samples: PlacementSamples) -> Iterator[Check]:
    for quantity in (Quantity.LATENCY_P95, Quantity.SERVICE_TIME):
        reading = samples.of(quantity)
        if isinstance(reading, float) and reading > _MILLISECONDS * spec.sla.latency_s:
            message = (
                f"{quantity.value} is {number(reading)}, read as seconds, and the SLA is "
                f"{duration(spec.sla.latency_s)}: export seconds, not milliseconds"
            )
            yield Check(name="unit", subject=subject, ok=False, message=message)


def _check_load(
    spec: PipelineSpec, targets: Sequence[PlacementTarget], metrics: Metrics, queries: Mapping[Hashable, str]
) -> Iterator[Check]:
    """Yield the check that the demand, in its unit, is the load that the entry stages see."""
    key = (spec.key, "demand")
    demand = metrics.answer.scalars.get(key)
    if key not in queries or not isinstance(demand, float):
        return
    entries = {stage.name for stage in spec.stages if not stage.after}
    subject, stated = str(spec.key), demand * spec.items_per_unit_s
    for entry in sorted(entries):
        rates = [
            metrics.answer.placements[_id(target)].of(Quantity.ARRIVAL_RATE)
            for target in targets
            if target.stage == entry and _id(target) in metrics.answer.placements and target.pods
        ]
        if not rates or any(isinstance(rate, Absence) for rate in rates):
            continue
        seen = math.fsum(rate for rate in rates if isinstance(rate, float))
        if min(stated, seen) <= 0:
            if max(stated, seen) > 0:
                words = f"demand states {number(stated)} items/s and {entry} gets {number(seen)}"
                message = f"{words}: run doctor again with traffic"
                yield Check(name="demand unit", subject=subject, ok=None, message=message)
            continue
        if not 1 / _MISMATCH <= stated / seen <= _MISMATCH:
            message = (
                f"demand states {number(stated)} items/s, but {entry} gets {number(seen)}: correct demand.unit, "
                f"demand.chunk ({number(1 / spec.items_per_unit_s)} s) or demand.query"
            )
            yield Check(name="demand unit", subject=subject, ok=False, message=message)
        else:
            message = f"demand states {number(stated)} items/s, {entry} gets {number(seen)}"
            yield Check(name="demand unit", subject=subject, ok=True, message=message)


def _id(target: PlacementTarget) -> PlacementId:
    return target.pipeline, target.stage, target.placement


def _query_name(key: Hashable) -> str:
    match key:
        case (_, "demand"):
            return "demand.query"
        case (_, "sla"):
            return "sla.query"
        case (_, stage, rule):
            return f"{stage} rule {rule}"
    return str(key)


def _names(query: str) -> tuple[str, ...]:
    """Return the names of the metrics in a query; none if it cannot be read."""
    try:
        return tuple(dict.fromkeys(metric_names(query)))
    except UnsupportedQuery:
        return ()


def _window_s(query: str) -> float:
    try:
        return longest_window_s(query)
    except UnsupportedQuery:
        return 0.0


def _histogram(preset: Preset, stage: StageSpec) -> str | None:
    formula = preset.formula(Quantity.LATENCY_P95, stage.metrics_answer)
    if formula is None or formula.combine is not Combine.QUANTILE or Quantity.LATENCY_P95 in stage.metric_overrides:
        return None
    return _names(fill(formula.value, pods=namespace_matcher(["any"]), window_s=60.0))[0]


def _renamed(name: str) -> str:
    base = name.removesuffix("_bucket")
    native = f"{_count_by_name(base)} or " if base != name else ""
    return f"{native}count by (__name__) ({renamed_series(name)})"


def _count_by_name(name: str) -> str:
    return f'count by (__name__) ({{__name__="{name}"}})'


def _names_of(results: Results, name: str) -> list[str]:
    """Return the names that the metric `name` may have now."""
    return sorted({labels["__name__"] for labels, _ in series(results, _renamed(name)) if "__name__" in labels})


def _count(name: str) -> str:
    return f"count({name})"


def _age(name: str) -> str:
    return f"time() - max(timestamp({name}))"


def _bounds(name: str, namespace: str | None = None) -> str:
    return f"count by (le) ({name}{'' if namespace is None else f'{{{namespace_matcher([namespace])}}}'})"


def _bounds_of(results: Results, query: str) -> list[float]:
    """Return the finite upper bounds of a histogram, in increasing order."""
    bounds = [_float(labels.get("le")) for labels, _ in series(results, query)]
    return sorted(bound for bound in bounds if math.isfinite(bound))


def _labels(preset: Preset) -> str:
    return f"count by (namespace, pod, exported_pod) ({preset.freshness})"


def _scrapers(preset: Preset, namespace: str) -> str:
    jobs = "namespace, pod, job, instance, prometheus, prometheus_replica"
    return f"count by (namespace, pod) (count by ({jobs}) ({preset.freshness}{{{namespace_matcher([namespace])}}}))"


def _float(text: Any) -> float:
    try:
        return float(str(text))
    except ValueError:
        return math.nan
