"""Readings as the operator's metric source gives them, made from what was scraped of simulated pods."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar

import numpy as np

from controller.core.state.spec import PlacementSpec, StageSpec
from profiler.samples import Absence, AbsenceReason, Quantity, Reading
from profiler.sources.combine import (
    Buckets,
    Pod,
    combine_ratio,
    combine_values,
    quantile_of,
    reporting,
    summed_buckets,
)
from profiler.sources.presets import Combine, Divisor, Formula, Preset, load_presets
from simulations.cluster.expressions import EXPRESSIONS, Expression, PodSamples, upper_bounds_s
from simulations.cluster.scrapes import LOOKBACK_S, Floats

Key = TypeVar("Key")
Value = TypeVar("Value")

MAX_AGE_SHARE = 0.75
"""Of the window: a pod whose newest sample is older counts as stale, as for `profiler.sources.prometheus`."""


@cache
def presets() -> Mapping[str, Preset]:
    """Return the bundled presets."""
    return load_presets()


class OnDemand(Mapping[Key, Value]):
    """A mapping that is made when somebody looks at it: most policies look at little of what they are told."""

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
    """Return every quantity of the pods that ought to report, `names`, in the order of the rows of `pods`.

    `hidden` are those of them whose series stay away.
    """
    if not names:
        nobody = Absence(reason=AbsenceReason.MISSING, detail="no pod is ready for long enough to have samples")
        return dict.fromkeys(Quantity, nobody)
    preset = presets()[stage.preset]
    window_s = stage.metrics_window_s
    ages_s = {
        name: float(age_s)
        for name, age_s in zip(names, pods.window.ages_s, strict=True)
        if age_s < LOOKBACK_S and name not in hidden
    }
    who = reporting(set(names), ages_s, window_s * MAX_AGE_SHARE)
    shown = [(row, name) for row, name in enumerate(names) if name not in hidden]
    divisors = {
        Divisor.ONE: 1,
        Divisor.CONCURRENCY: placement.prior.concurrency,
        Divisor.BATCH_SLOTS: placement.prior.concurrency * placement.prior.batch_sizes[-1],
    }

    def by_pod(values: Floats, expression: Expression) -> dict[Pod, float]:
        kept = values.tolist()
        return {name: kept[row] for row, name in shown if expression.tells_nan or kept[row] == kept[row]}

    @cache  # a preset has several quantiles of the same histogram
    def summed(value: Callable[[PodSamples], Floats]) -> Buckets | Absence:
        bounds, values = upper_bounds_s(stage.preset).tolist(), value(pods)
        buckets = {
            name: dict(zip(bounds, values[row].tolist(), strict=True))
            for row, name in shown
            if not np.isnan(values[row, -1])
        }
        return summed_buckets(who, buckets)

    def reading(formula: Formula, expression: Expression) -> Reading:
        match formula.combine:
            case Combine.QUANTILE:
                return quantile_of(formula, summed(expression.value))
            case Combine.RATIO:
                assert expression.over is not None
                above, below = expression.value(pods), expression.over(pods)
                return combine_ratio(who, by_pod(above, expression), by_pod(below, expression))
            case how:
                combined = combine_values(how, who, by_pod(expression.value(pods), expression))
                return combined if isinstance(combined, Absence) else combined / divisors[formula.divide_by]

    return {
        quantity: reading(preset.formulas[quantity], EXPRESSIONS[preset.name][quantity])
        if quantity in preset.formulas
        else Absence(reason=AbsenceReason.UNSUPPORTED, detail=f"{preset.name} does not export it")
        for quantity in Quantity
    }
