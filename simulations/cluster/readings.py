"""Readings in the form of the operator's metric source, made from the samples of simulated pods."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

import numpy as np

from controller.core.state.spec import PlacementSpec, StageSpec
from profiler.samples import TOO_NEW, Absence, AbsenceReason, Answer, Quantity, Reading
from profiler.sources.combine import (
    Buckets,
    Pod,
    combine_ratio,
    combine_values,
    of_histogram,
    reporting,
    summed_buckets,
    whole_answer_percentile,
)
from profiler.sources.models import chosen_models
from profiler.sources.presets import Combine, Divisor, Edge, Formula, Preset, load_presets
from profiler.sources.queries import refines
from simulations.cluster.expressions import EXPRESSIONS, FIRST_TOKEN, Expression, PodSamples
from simulations.cluster.scrapes import LOOKBACK_S, Floats

Key = TypeVar("Key")
Value = TypeVar("Value")

MAX_AGE_SHARE = 0.75
"""A pod whose newest sample is older than this share of the window is stale, as in `profiler.sources.prometheus`."""


@cache
def presets() -> Mapping[str, Preset]:
    """Return the bundled presets by name."""
    return load_presets()


class OnDemand(Mapping[Key, Value]):
    """A mapping that is computed on first use, because most policies read few of their inputs."""

    def __init__(self, make: Callable[[], Mapping[Key, Value]]) -> None:
        self._make = make
        self._made: Mapping[Key, Value] | None = None

    def _all(self) -> Mapping[Key, Value]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __getitem__(self, key: Key) -> Value:
        return self._all()[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def placement_readings(
    stage: StageSpec, placement: PlacementSpec, names: Sequence[Pod], pods: PodSamples, hidden: frozenset[Pod]
) -> dict[Quantity, Reading]:
    """Return every quantity of a placement, combined over its pods as the stage's preset defines.

    `names` are the pods that are expected to report, in the order of the rows of `pods`; the series of those in
    `hidden` are missing.
    """
    if not names:
        return dict.fromkeys(Quantity, TOO_NEW)
    preset = presets()[stage.preset]
    window_s = stage.metrics_window_s
    ages_s = {
        name: float(age_s)
        for name, age_s in zip(names, pods.window.ages_s, strict=True)
        if age_s < LOOKBACK_S and name not in hidden
    }
    pods_reporting = reporting(set(names), ages_s, window_s * MAX_AGE_SHARE)
    shown = [(row, name) for row, name in enumerate(names) if name not in hidden]
    divisors = {
        Divisor.ONE: 1,
        Divisor.CONCURRENCY: placement.prior.concurrency,
        Divisor.BATCH_SLOTS: placement.prior.concurrency * placement.prior.batch_sizes[-1],
    }

    def by_pod(values: Floats, expression: Expression) -> dict[Pod, float]:
        kept = values.tolist()
        return {name: kept[row] for row, name in shown if expression.exports_nan or kept[row] == kept[row]}

    @cache  # a preset has several quantiles of the same histogram
    def summed(histogram: Expression) -> Buckets | Absence:
        bounds, values = [*histogram.upper_bounds, np.inf], histogram.value(pods)
        buckets = {
            name: dict(zip(bounds, values[row].tolist(), strict=True))
            for row, name in shown
            if not np.isnan(values[row, -1])
        }
        return summed_buckets(pods_reporting, buckets)

    def reading(formula: Formula, expression: Expression) -> Reading:
        match formula.combine:
            case how if how.of_histogram:
                return of_histogram(formula, summed(expression))
            case Combine.RATIO:
                assert expression.over is not None
                above, below = expression.value(pods), expression.over(pods)
                return combine_ratio(
                    pods_reporting, by_pod(above, expression), by_pod(below, expression), positive=formula.positive
                )
            case how:
                combined = combine_values(how, pods_reporting, by_pod(expression.value(pods), expression))
                return combined if isinstance(combined, Absence) else combined / divisors[formula.divide_by]

    def of_answer(quantity: Quantity, answer: Answer, edge: Edge | None = None) -> Reading:
        formula = preset.formula(quantity, answer)
        if formula is None:
            return Absence(reason=AbsenceReason.UNSUPPORTED, detail=f"{preset.name} does not export it")
        if formula.per_model and isinstance(models, Absence):
            return models
        whole = EXPRESSIONS[preset.name][quantity]
        expression = FIRST_TOKEN[preset.name].get(quantity, whole) if answer is Answer.FIRST else whole
        return reading(formula if edge is None else replace(formula, edge=edge), expression)

    def percentile_of_whole(quantity: Quantity) -> Reading:
        mean = Quantity.LATENCY_MEAN
        return whole_answer_percentile(
            of_answer(quantity, Answer.WHOLE),
            bucket=(of_answer(quantity, Answer.WHOLE, Edge.FLOOR), of_answer(quantity, Answer.WHOLE, Edge.CEILING)),
            first=of_answer(quantity, Answer.FIRST),
            means=(of_answer(mean, Answer.WHOLE), of_answer(mean, Answer.FIRST)),
        )

    served = {stage.metrics_model or str(stage.name), *pods.other_models}
    models = chosen_models({name: served for _, name in shown}, stage.metrics_model)
    answer = stage.metrics_answer
    return {
        quantity: percentile_of_whole(quantity) if refines(preset, quantity, answer) else of_answer(quantity, answer)
        for quantity in Quantity
    }
