"""Metrics from Prometheus, or whatever speaks its query API.

Few queries: one per preset, expression and window, over all pods of all namespaces asked for; pods are joined to
placements here. Queries are evaluated at the back end's own present, and ages are computed by it, so that the clocks
of the two machines never meet.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from profiler.samples import Absence, AbsenceReason, PlacementSamples, PlacementTarget, Quantity, Reading
from profiler.sources.base import ReadAnswer, ReadRequest
from profiler.sources.combine import combine_buckets, combine_ratio, combine_values, reporting
from profiler.sources.presets import Combine, Divisor, Formula, Preset, load_presets
from profiler.sources.prometheus_api import PrometheusApi
from profiler.sources.promql import fill, namespace_matcher, pod_buckets, pod_matcher, pod_values, scalar

_EDGES = frozenset({Quantity.LATENCY_P95_FLOOR, Quantity.LATENCY_P95_CEILING})
_MAX_AGE_SHARE = 0.75
"""Of the window: four scrape intervals are recommended for it, two still work."""


class PrometheusSource:
    """A `MetricSource` over the back end at `url`; `token_file` and `ca_file` are as in `PrometheusApi`."""

    def __init__(self, url: str, *, token_file: Path | None = None, ca_file: Path | None = None) -> None:
        self._api = PrometheusApi(url, token_file=token_file, ca_file=ca_file)
        self._presets = load_presets()

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def read(self, request: ReadRequest) -> ReadAnswer:
        """See `MetricSource.read`."""
        everyone = namespace_matcher(target.namespace for target in request.placements)
        placements = {
            (target.pipeline, target.stage, target.pool): {
                quantity: self._question(target, quantity, everyone) for quantity in Quantity
            }
            for target in request.placements
        }
        scalars = {key: _Question(queries=(query,), conclude=scalar) for key, query in request.scalars.items()}
        questions = [question for readings in placements.values() for question in readings.values()]
        queries = {query for question in [*questions, *scalars.values()] for query in question.queries}
        answers = self._api.ask(sorted(queries), request.deadline_s)
        return ReadAnswer(
            placements={
                key: PlacementSamples(readings={what: question.reading(answers) for what, question in readings.items()})
                for key, readings in placements.items()
            },
            scalars={key: question.reading(answers) for key, question in scalars.items()},
            problems=_problems(answers.values()),
        )

    def _question(self, target: PlacementTarget, quantity: Quantity, everyone: str) -> "_Question":
        if not target.pods:
            return _unasked(AbsenceReason.MISSING, "no pod is ready for long enough to have samples")
        if quantity in target.overrides:
            pods = pod_matcher(target.namespace, target.pods)
            query = fill(target.overrides[quantity], pods=pods, window_s=target.window_s)
            return _Question(queries=(query,), conclude=scalar)
        if quantity in _EDGES and Quantity.LATENCY_P95 in target.overrides:
            return _unasked(AbsenceReason.UNSUPPORTED, "the user's own query tells the percentile, and no bucket of it")
        preset = self._presets.get(target.preset)
        if preset is None:
            known = ", ".join(sorted(self._presets))
            return _unasked(AbsenceReason.UNSUPPORTED, f"metrics.preset: {target.preset!r}: must be one of {known}")
        if quantity not in preset.formulas:
            return _unasked(AbsenceReason.UNSUPPORTED, f"{preset.name} does not export it")
        return _by_preset(target, preset, preset.formulas[quantity], everyone)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """One reading: the queries it needs, and what is concluded from their results, in the same order."""

    queries: tuple[str, ...]
    conclude: Callable[..., Reading]

    def reading(self, answers: Mapping[str, Any]) -> Reading:
        results = [answers[query] for query in self.queries]
        absence = next((result for result in results if isinstance(result, Absence)), None)
        return self.conclude(*results) if absence is None else absence


def _unasked(reason: AbsenceReason, detail: str) -> _Question:
    return _Question(queries=(), conclude=lambda: Absence(reason=reason, detail=detail))


def _by_preset(target: PlacementTarget, preset: Preset, formula: Formula, everyone: str) -> _Question:
    ages_s = f"time() - max by (namespace, pod) (timestamp({preset.freshness}{{$pods}}))"
    templates = [ages_s, formula.value, *([] if formula.over is None else [formula.over])]
    return _Question(
        queries=tuple(fill(template, pods=everyone, window_s=target.window_s) for template in templates),
        conclude=partial(_combined, target, formula),
    )


def _combined(target: PlacementTarget, formula: Formula, ages_s: Any, value: Any, over: Any = None) -> Reading:
    pods = reporting(
        {(target.namespace, pod) for pod in target.pods}, pod_values(ages_s), target.window_s * _MAX_AGE_SHARE
    )
    match formula.combine:
        case Combine.RATIO:
            return combine_ratio(pods, pod_values(value), pod_values(over))
        case Combine.QUANTILE:
            return combine_buckets(pods, formula, pod_buckets(value))
        case _:
            reading = combine_values(formula.combine, pods, pod_values(value))
            return reading if isinstance(reading, Absence) else reading / _divisor(formula.divide_by, target)


def _divisor(divisor: Divisor, target: PlacementTarget) -> int:
    match divisor:
        case Divisor.ONE:
            return 1
        case Divisor.CONCURRENCY:
            return target.concurrency
        case Divisor.BATCH_SLOTS:
            return target.concurrency * target.batch_limit


def _problems(answers: Iterable[Any]) -> tuple[str, ...]:
    counts = Counter(answer.detail for answer in answers if isinstance(answer, Absence))
    return tuple(detail if count == 1 else f"{detail} ({count} queries)" for detail, count in sorted(counts.items()))
