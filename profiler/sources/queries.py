"""What to ask a back end that speaks PromQL, and what follows from its answers. Pure.

Few queries: one per preset, expression and window, over all pods of all namespaces asked for; pods are joined to
placements here. Ages are computed by whoever evaluates the queries, so that the clocks of two machines never meet.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from optimizer.model import PipelineKey
from profiler.samples import Absence, AbsenceReason, Origin, PlacementSamples, PlacementTarget, Quantity, Reading
from profiler.sources.base import PlacementId, ReadAnswer, ReadRequest
from profiler.sources.combine import combine_buckets, combine_ratio, combine_values, reporting
from profiler.sources.presets import Combine, Divisor, Formula, Preset
from profiler.sources.promql import fill, namespace_matcher, pod_buckets, pod_matcher, pod_values, scalar

_EDGES = frozenset({Quantity.LATENCY_P95_FLOOR, Quantity.LATENCY_P95_CEILING})
_MAX_AGE_SHARE = 0.75
"""Of the window: four scrape intervals are recommended for it, two still work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One reading: the queries it needs, and what is concluded from their results, in the same order."""

    queries: tuple[str, ...]
    conclude: Callable[..., Reading]

    def reading(self, answers: Mapping[str, Any]) -> Reading:
        """Return the reading, given the API's `result` for every query, or the `Absence` that stands for one."""
        results = [answers[query] for query in self.queries]
        absence = next((result for result in results if isinstance(result, Absence)), None)
        return self.conclude(*results) if absence is None else absence


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsQuestion:
    """The sessions of each pod, from the same queries as those of the placement."""

    target: PlacementTarget
    max_age_s: float
    queries: tuple[str, ...]

    def by_pod(self, answers: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the sessions of the pods that tell them, by name: of the young ones too, which have the fewest."""
        ages_s, values = (answers[query] for query in self.queries)
        if isinstance(ages_s, Absence) or isinstance(values, Absence):
            return {}
        asked = {(self.target.namespace, pod) for pod in {*self.target.pods, *self.target.endpoints}}
        fresh = reporting(asked, pod_values(ages_s), self.max_age_s).fresh
        told = pod_values(values)
        return {pod[1]: told[pod] for pod in sorted(fresh) if math.isfinite(told.get(pod, math.nan))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Those of a request: about its placements, and the users' own."""

    placements: Mapping[PlacementId, Mapping[Quantity, Question]]
    sessions: Mapping[PlacementId, "SessionsQuestion"]
    scalars: Mapping[Hashable, Question]

    def of_pods(self) -> set[str]:
        """Return the queries about placements."""
        return {query for own in self.placements.values() for question in own.values() for query in question.queries}

    def of_users(self) -> set[str]:
        """Return the users' own queries."""
        return {query for question in self.scalars.values() for query in question.queries}

    def answer(
        self, of_pods: Mapping[str, Any], of_users: Mapping[str, Any], origins: Mapping[PipelineKey, Origin]
    ) -> ReadAnswer:
        """Return the answer to the request, given those to the queries."""
        return ReadAnswer(
            placements={
                key: PlacementSamples(
                    readings={what: question.reading(of_pods) for what, question in own.items()},
                    sessions=self.sessions[key].by_pod(of_pods) if key in self.sessions else {},
                )
                for key, own in self.placements.items()
            },
            scalars={key: question.reading(of_users) for key, question in self.scalars.items()},
            problems=_problems({**of_pods, **of_users}.values()),
            origins=origins,
        )


def questions(request: ReadRequest, presets: Mapping[str, Preset], *, max_age_s: float | None = None) -> Questions:
    """Return what to ask for `request`; samples older than `max_age_s`, or most of the window, are stale."""
    everyone = namespace_matcher(target.namespace for target in request.placements)
    sessions = (_sessions(target, everyone, presets, max_age_s) for target in request.placements)
    return Questions(
        sessions={
            (question.target.pipeline, question.target.stage, question.target.pool): question
            for question in sessions
            if question is not None
        },
        placements={
            (target.pipeline, target.stage, target.pool): {
                quantity: _about(target, quantity, everyone, presets, max_age_s) for quantity in Quantity
            }
            for target in request.placements
        },
        scalars={key: Question(queries=(query,), conclude=scalar) for key, query in request.scalars.items()},
    )


def _about(
    target: PlacementTarget, quantity: Quantity, everyone: str, presets: Mapping[str, Preset], max_age_s: float | None
) -> Question:
    if not target.pods:
        return _unasked(AbsenceReason.MISSING, "no pod is ready for long enough to have samples")
    if quantity in target.overrides:
        pods = pod_matcher(target.namespace, target.pods)
        query = fill(target.overrides[quantity], pods=pods, window_s=target.window_s)
        return Question(queries=(query,), conclude=scalar)
    if quantity in _EDGES and Quantity.LATENCY_P95 in target.overrides:
        return _unasked(AbsenceReason.UNSUPPORTED, "the user's own query tells the percentile, and no bucket of it")
    preset = presets.get(target.preset)
    if preset is None:
        known = ", ".join(sorted(presets))
        return _unasked(AbsenceReason.UNSUPPORTED, f"metrics.preset: {target.preset!r}: must be one of {known}")
    if quantity not in preset.formulas:
        return _unasked(AbsenceReason.UNSUPPORTED, f"{preset.name} does not export it")
    return _by_preset(target, preset, preset.formulas[quantity], everyone, _most_age_s(target, max_age_s))


def _most_age_s(target: PlacementTarget, max_age_s: float | None) -> float:
    most_s = target.window_s * _MAX_AGE_SHARE
    return most_s if max_age_s is None else min(most_s, max_age_s)


def _sessions(
    target: PlacementTarget, everyone: str, presets: Mapping[str, Preset], max_age_s: float | None
) -> SessionsQuestion | None:
    """Return how to ask for the sessions of single pods; None where they are not told one by one."""
    preset = presets.get(target.preset)
    if not target.pods or preset is None or Quantity.SESSIONS in target.overrides:
        return None
    formula = preset.formulas.get(Quantity.SESSIONS)
    if formula is None or formula.combine is not Combine.SUM:
        return None
    most_s = _most_age_s(target, max_age_s)
    queries = _by_preset(target, preset, formula, everyone, most_s).queries
    return SessionsQuestion(target=target, max_age_s=most_s, queries=queries)


def _unasked(reason: AbsenceReason, detail: str) -> Question:
    return Question(queries=(), conclude=lambda: Absence(reason=reason, detail=detail))


def _by_preset(target: PlacementTarget, preset: Preset, formula: Formula, everyone: str, max_age_s: float) -> Question:
    ages_s = f"time() - max by (namespace, pod) (timestamp({preset.freshness}{{$pods}}))"
    templates = [ages_s, formula.value, *([] if formula.over is None else [formula.over])]
    return Question(
        queries=tuple(fill(template, pods=everyone, window_s=target.window_s) for template in templates),
        conclude=partial(_combined, target, formula, max_age_s),
    )


def _combined(
    target: PlacementTarget, formula: Formula, max_age_s: float, ages_s: Any, value: Any, over: Any = None
) -> Reading:
    pods = reporting({(target.namespace, pod) for pod in target.pods}, pod_values(ages_s), max_age_s)
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
