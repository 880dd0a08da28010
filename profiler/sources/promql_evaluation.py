"""Evaluates queries over scraped samples, with the same results as Prometheus. Pure.

Rates are extrapolated to the ends of their window as in Prometheus (`extrapolatedRate` in its promql/functions.go), so
both sources give the same number. One rule differs: rate() of a series younger than the window is the mean since its
first sample, so that the time before the first scrape does not count as idle.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from profiler.samples import Absence
from profiler.sources.combine import histogram_quantile
from profiler.sources.history import MOST_SAMPLES, Labels, Series, TargetHistory
from profiler.sources.promql_syntax import (
    Aggregate,
    Binary,
    Call,
    Expression,
    Matcher,
    Number,
    Selector,
    Subquery,
    UnsupportedQuery,
)

Vector = dict[Labels, float]
Value = float | Vector

_EXTRAPOLATION = 1.1
"""Longest gap at an end of the window that is extrapolated in full, in average intervals between samples."""
_MOST_LOOKS = 1_000_000
"""Limit of the work for the steps of a query's subqueries: parts of the query evaluated, series selected, and samples
in windows.

Evaluation outside of subqueries needs no limit: it looks at each stored sample once, and their number is limited.
"""


class Evaluation:
    """Evaluates queries over the samples of `targets` at the time `at_s`.

    Parts that several queries share are evaluated once. A sample is the value of its series for `lookback_s` seconds.
    """

    def __init__(self, targets: Sequence[TargetHistory], *, at_s: float, lookback_s: float) -> None:
        self._targets = targets
        self._at_s = at_s
        self._lookback_s = lookback_s
        self._made: dict[Expression, Value] = {}
        self._looks = 0
        self._selected: dict[tuple[str, tuple[Matcher, ...]], tuple[Series, ...]] = {}

    def result(self, expression: Expression) -> list[Any]:
        """Return the value of `expression` in the form of `result` in Prometheus' query API: series, or a number.

        Raises:
            UnsupportedQuery: the types of the query do not fit, its subqueries take too many steps, or it looks back
                further than samples are kept.
        """
        self._looks = 0
        value = self._value(expression, self._at_s)
        if isinstance(value, float):
            return [self._at_s, repr(value)]
        return [{"metric": dict(labels), "value": [self._at_s, number]} for labels, number in value.items()]

    def _value(self, expression: Expression, at_s: float) -> Value:
        if at_s != self._at_s:  # a step of a subquery: too many to store
            self._look(1, at_s)
            return self._evaluate(expression, at_s)
        if expression not in self._made:
            self._made[expression] = self._evaluate(expression, at_s)
        return self._made[expression]

    def _look(self, looks: int, at_s: float) -> None:
        """Add `looks` to the work of the query if `at_s` is a step of a subquery.

        Raises:
            UnsupportedQuery: the work is above `_MOST_LOOKS`.
        """
        if at_s != self._at_s:
            self._looks += looks
            if self._looks > _MOST_LOOKS:
                raise UnsupportedQuery(f"subqueries: their steps look at more than {_MOST_LOOKS} series and samples")

    def _evaluate(self, expression: Expression, at_s: float) -> Value:
        match expression:
            case Number():
                return expression.value
            case Selector():
                return self._newest(expression, at_s)
            case Aggregate():
                return _aggregated(expression, self._vector(expression.inside, at_s))
            case Binary():
                return self._binary(expression, at_s)
            case Call():
                return self._call(expression, at_s)
            case Subquery():
                raise UnsupportedQuery("the samples of a window: must be inside of a function such as avg_over_time()")

    def _vector(self, expression: Expression, at_s: float) -> Vector:
        value = self._value(expression, at_s)
        if isinstance(value, float):
            raise UnsupportedQuery(f"{value:g}: must be series, not a number")
        return value

    def _series(self, name: str, matchers: tuple[Matcher, ...]) -> tuple[Series, ...]:
        key = (name, matchers)
        if key not in self._selected:
            self._selected[key] = tuple(
                series for target in self._targets for series in target.of(name) if _fits(series.labels, matchers)
            )
        return self._selected[key]

    def _newest(self, selector: Selector, at_s: float) -> Vector:
        return {series.labels: value for series, _, value in self._instants(selector, at_s)}

    def _instants(self, selector: Selector, at_s: float) -> list[tuple[Series, float, float]]:
        found = []
        selected = self._series(selector.name, selector.matchers)
        self._look(len(selected), at_s)
        for series in selected:
            index = series.newest(at_s)
            if index is None:
                _require_known(series, selector.name, at_s - self._lookback_s)
            elif series.times_s[index] > at_s - self._lookback_s:
                found.append((series, series.times_s[index], series.values[index]))
        return found

    def _call(self, call: Call, at_s: float) -> Value:
        match call.function, call.arguments:
            case "time", ():
                return at_s
            case "timestamp", (Selector() as selector,):
                return {series.labels: sampled_s for series, sampled_s, _ in self._instants(selector, at_s)}
            case (("clamp_min" | "clamp_max"), (inside, bound)):
                limit = self._value(bound, at_s)
                if not isinstance(limit, float):
                    raise UnsupportedQuery(f"{call.function}(): the bound must be a number, not series")
                clamp = max if call.function == "clamp_min" else min
                return {labels: clamp(value, limit) for labels, value in self._vector(inside, at_s).items()}
            case "histogram_quantile", (share, inside):
                quantile = self._value(share, at_s)
                if not isinstance(quantile, float):
                    raise UnsupportedQuery("histogram_quantile(): the quantile must be a number, not series")
                return _quantiles(quantile, self._vector(inside, at_s))
            case function, (inside,) if function in _OVER_TIME:
                return self._over_time(function, inside, at_s)
            case function, _:
                raise UnsupportedQuery(f"{function}(): takes other arguments")

    def _over_time(self, function: str, inside: Expression, at_s: float) -> Vector:
        summary = _OVER_TIME[function]
        found: Vector = {}
        if isinstance(inside, Subquery):
            for labels, (times_s, values) in self._steps(inside, at_s).items():
                number = summary(times_s, values, at_s - inside.window_s, at_s)
                if number is not None:
                    found[labels] = number
            return found
        assert isinstance(inside, Selector)
        assert inside.window_s is not None
        from_s = at_s - inside.window_s
        for series in self._series(inside.name, inside.matchers):
            _require_known(series, inside.name, from_s)
            part = series.within(from_s, at_s)
            self._look(1 + part.stop - part.start, at_s)
            sampled_s = series.times_s[part]
            since_s = sampled_s[0] if function == "rate" and part.start == 0 and sampled_s else from_s
            number = summary(sampled_s, series.values[part], since_s, at_s)
            if number is not None:
                found[series.labels] = number
        return found

    def _steps(self, subquery: Subquery, at_s: float) -> Mapping[Labels, tuple[list[float], list[float]]]:
        """Return the times and values of a subquery, by series. Its steps are at whole multiples of `step_s`."""
        samples: dict[Labels, tuple[list[float], list[float]]] = {}
        first = math.floor((at_s - subquery.window_s) / subquery.step_s) + 1
        for step in range(first, math.floor(at_s / subquery.step_s) + 1):
            step_s = step * subquery.step_s
            for labels, value in self._vector(subquery.inside, step_s).items():
                times_s, values = samples.setdefault(labels, ([], []))
                times_s.append(step_s)
                values.append(value)
        return samples

    def _binary(self, expression: Binary, at_s: float) -> Value:
        left, right = self._value(expression.left, at_s), self._value(expression.right, at_s)
        if expression.operator == "or":
            if isinstance(left, float) or isinstance(right, float):
                raise UnsupportedQuery("or: both sides must be series, not numbers")
            return right | left
        compares = expression.operator in _COMPARE
        if compares and not expression.as_bool:
            return _filtered(_COMPARE[expression.operator], left, right)
        apply = _as_bool(_COMPARE[expression.operator]) if compares else _ARITHMETIC[expression.operator]
        if isinstance(left, float):
            if isinstance(right, float):
                return apply(left, right)
            return {labels: apply(left, value) for labels, value in right.items()}
        if isinstance(right, float):
            return {labels: apply(value, right) for labels, value in left.items()}
        return {labels: apply(value, right[labels]) for labels, value in left.items() if labels in right}


def _require_known(series: Series, name: str, after_s: float) -> None:
    """Raise `UnsupportedQuery` if samples later than `after_s` were dropped."""
    if series.forgotten_s > after_s:
        raise UnsupportedQuery(f"{name}: looks back further than the {MOST_SAMPLES} samples kept per target")


def _fits(labels: Labels, matchers: tuple[Matcher, ...]) -> bool:
    if not matchers:
        return True
    own = dict(labels)
    return all(_fits_one(own.get(matcher.label, ""), matcher) for matcher in matchers)


def _fits_one(value: str, matcher: Matcher) -> bool:
    match matcher.operator:
        case "=":
            return value == matcher.value
        case "!=":
            return value != matcher.value
        case "=~":
            return _pattern(matcher.value).fullmatch(value) is not None
        case _:
            return _pattern(matcher.value).fullmatch(value) is None


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.DOTALL)


def _aggregated(aggregate: Aggregate, vector: Vector) -> Vector:
    groups: dict[Labels, list[float]] = {}
    by = sorted(aggregate.by)
    for labels, value in vector.items():
        own = dict(labels)
        groups.setdefault(tuple((name, own[name]) for name in by if name in own), []).append(value)
    return {labels: _AGGREGATE[aggregate.operation](values) for labels, values in groups.items()}


def _quantiles(quantile: float, vector: Vector) -> Vector:
    groups: dict[Labels, dict[float, float]] = {}
    for labels, value in vector.items():
        bound = dict(labels).get("le")
        if bound is None:
            continue
        try:
            upper = float(bound)
        except ValueError:
            continue
        rest = tuple(label for label in labels if label[0] != "le")
        groups.setdefault(rest, {})[upper] = value
    found: Vector = {}
    for labels, buckets in groups.items():
        reading = histogram_quantile(quantile, buckets) if 0 < quantile <= 1 else math.nan
        found[labels] = math.nan if isinstance(reading, Absence) else reading
    return found


def _filtered(holds: Callable[[float, float], bool], left: Value, right: Value) -> Value:
    if isinstance(left, float):
        if isinstance(right, float):
            raise UnsupportedQuery("a comparison of two numbers: needs `bool`")
        return {labels: value for labels, value in right.items() if holds(left, value)}
    if isinstance(right, float):
        return {labels: value for labels, value in left.items() if holds(value, right)}
    return {labels: value for labels, value in left.items() if labels in right and holds(value, right[labels])}


def _as_bool(holds: Callable[[float, float], bool]) -> Callable[[float, float], float]:
    return lambda one, other: float(holds(one, other))


def _divided(one: float, other: float) -> float:
    if other:
        return one / other
    return math.nan if not one or math.isnan(one) else math.copysign(math.inf, one) * math.copysign(1.0, other)


def _power(one: float, other: float) -> float:
    try:
        return math.pow(one, other)
    except (ValueError, OverflowError):
        return math.nan


def increase(times_s: Sequence[float], values: Sequence[float], from_s: float, until_s: float) -> float | None:
    """Return PromQL's increase() of a counter's samples in (from_s, until_s], None for fewer than two samples.

    A counter that falls has restarted at zero.
    """
    if len(times_s) < 2:
        return None
    grown = values[-1] - values[0]
    before = values[0]
    for value in values:
        if value < before:
            grown += before
        before = value
    sampled_s = times_s[-1] - times_s[0]
    if sampled_s <= 0:
        return None
    interval_s = sampled_s / (len(times_s) - 1)
    to_start_s, to_end_s = times_s[0] - from_s, until_s - times_s[-1]
    if to_start_s >= _EXTRAPOLATION * interval_s:
        to_start_s = interval_s / 2
    if grown > 0 and values[0] >= 0:
        to_start_s = min(to_start_s, sampled_s * values[0] / grown)  # never to below zero
    if to_end_s >= _EXTRAPOLATION * interval_s:
        to_end_s = interval_s / 2
    return grown * (sampled_s + to_start_s + to_end_s) / sampled_s


def _rate(times_s: Sequence[float], values: Sequence[float], from_s: float, until_s: float) -> float | None:
    grown = increase(times_s, values, from_s, until_s)
    return None if grown is None else grown / (until_s - from_s)


def _slope(times_s: Sequence[float], values: Sequence[float], from_s: float, until_s: float) -> float | None:  # noqa: ARG001
    if len(times_s) < 2:
        return None
    mean_s, mean = _mean(times_s), _mean(values)
    spread = _sum([(at_s - mean_s) ** 2 for at_s in times_s])
    if spread <= 0:
        return None
    return _sum([(at_s - mean_s) * (value - mean) for at_s, value in zip(times_s, values, strict=True)]) / spread


_Summary = Callable[[Sequence[float], Sequence[float], float, float], float | None]


def _of_values(summary: Callable[[Sequence[float]], float]) -> _Summary:
    return lambda times_s, values, from_s, until_s: summary(values) if len(values) else None  # noqa: ARG005


def _sum(values: Sequence[float]) -> float:
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):  # infinities of both signs
        return math.nan


def _mean(values: Sequence[float]) -> float:
    return _sum(values) / len(values)


_OVER_TIME: Mapping[str, _Summary] = {
    "rate": _rate,
    "increase": increase,
    "deriv": _slope,
    "avg_over_time": _of_values(_mean),
    "max_over_time": _of_values(max),
    "min_over_time": _of_values(min),
    "sum_over_time": _of_values(_sum),
}
_AGGREGATE: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": _sum,
    "avg": _mean,
    "max": max,
    "min": min,
    "count": lambda values: float(len(values)),
}
_ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divided,
    "^": _power,
}
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
