"""Fills templates of PromQL, and reads numbers from results of Prometheus' query API. Pure."""

import math
import re
from collections.abc import Iterable, Mapping, Set
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from profiler.samples import DEFAULT_LABELS, Absence, AbsenceReason, Reading, SeriesLabels, sane
from profiler.sources.combine import Pod
from profiler.sources.promql_syntax import quoted

_BY = re.compile(r"(?:(?<=\bby)|(?<=\bon))\s*\([^)]*\)", re.IGNORECASE)
_PART = re.compile(r"\(rate\(\S+_(bucket|sum|count)\{")
_LONGEST_MATCHER = 2000
"""Most characters of a matcher. Proxies may refuse URLs with longer ones."""


@lru_cache(maxsize=4096)  # a large fleet fills the same few templates for each of its placements
def fill(template: str, *, pods: str, window_s: float) -> str:
    """Return `template` with `$pods` replaced by the label matchers `pods` and `$window` by `window_s` in ms."""
    return template.replace("$pods", pods).replace("$window", f"{round(window_s * 1000)}ms")


@lru_cache(maxsize=4096)
def fill_devices(
    template: str, namespaces: tuple[str, ...], match: tuple[tuple[str, str], ...], window_s: float
) -> str:
    """Return the `template` of a device preset for all pods of `namespaces`, with the further matchers `match`."""
    pattern = _alternatives(namespaces)
    pattern = pattern if len(pattern) <= _LONGEST_MATCHER else ".+"
    further = "".join(f", {name}={quoted(value)}" for name, value in match)
    filled = template.replace("$namespaces", pattern).replace("$match", further)
    return filled.replace("$window", f"{round(window_s * 1000)}ms")


def namespace_matcher(namespaces: Iterable[str], labels: SeriesLabels = DEFAULT_LABELS) -> str:
    """Return label matchers for all pods of `namespaces`, or of every namespace if the text would be too long."""
    matcher = f'{labels.namespace}=~"{_alternatives(namespaces)}"'
    return (matcher if len(matcher) <= _LONGEST_MATCHER else f'{labels.namespace}!=""') + _matchers(labels)


def pod_matcher(namespace: str, pods: Iterable[str], labels: SeriesLabels = DEFAULT_LABELS) -> str:
    """Return label matchers for exactly the `pods` of `namespace`."""
    named = f'{labels.namespace}=~"{_alternatives([namespace])}", {labels.pod}=~"{_alternatives(pods)}"'
    return named + _matchers(labels)


def relabelled(template: str, labels: SeriesLabels) -> str:
    """Return `template` with the labels of namespace and pod in its `by` and `on` clauses named as in `labels`."""
    names = {DEFAULT_LABELS.namespace: labels.namespace, DEFAULT_LABELS.pod: labels.pod}
    return _BY.sub(lambda by: re.sub(r"\w+", lambda word: names.get(word[0], word[0]), by[0]), template)


def _matchers(labels: SeriesLabels) -> str:
    return "".join(f", {name}={quoted(value)}" for name, value in labels.match)


class PodSeries:
    """The `result` of a query, with its series by pod.

    They are grouped and read once, on first use: a query is over all pods of a fleet, and a placement needs its own.
    """

    def __init__(self, result: Any, labels: SeriesLabels = DEFAULT_LABELS, query: str = "") -> None:
        """`query` is that of the result, if native histograms may be in it."""
        self.result = result if labels == DEFAULT_LABELS else _with_default_names(result, labels)
        if part := _PART.search(query):
            self.result = without_native(self.result, part[1])

    @cached_property
    def _by_pod(self) -> Mapping[Pod, list[Any]]:
        groups: dict[Pod, list[Any]] = {}
        for series in self.result:
            if (pod := _pod_of(series)) is not None:
                groups.setdefault(pod, []).append(series)
        return groups

    @cached_property
    def _ages(self) -> Mapping[Pod, float]:
        return pod_ages(self.result)

    @cached_property
    def all_values(self) -> Mapping[Pod, float]:
        """Return the value of every pod, as `pod_values`."""
        return pod_values(self.result)

    @cached_property
    def _repeated(self) -> Mapping[Pod, float]:
        return {pod: value for pod, value in self.all_values.items() if value > 1}

    @cached_property
    def _buckets(self) -> Mapping[Pod, dict[float, float]]:
        return pod_buckets(self.result)

    def ages(self, pods: Set[Pod]) -> dict[Pod, float]:
        """Return the age of the newest series of each of `pods`."""
        return _only(pods, self._ages)

    def values(self, pods: Set[Pod]) -> dict[Pod, float]:
        """Return the value of each of `pods`, as `pod_values`."""
        return _only(pods, self.all_values)

    def repeated(self, pods: Set[Pod]) -> dict[Pod, float]:
        """Return the values of those of `pods` where they are above 1: most often none."""
        return _only(pods, self._repeated) if self._repeated else {}

    def buckets(self, pods: Set[Pod]) -> dict[Pod, dict[float, float]]:
        """Return the cumulative rates of the histogram of each of `pods`, as `pod_buckets`."""
        return _only(pods, self._buckets)

    def of(self, pods: Set[Pod]) -> list[Any]:
        """Return the series of `pods`."""
        return [series for pod in pods for series in self._by_pod.get(pod, ())]


_Value = TypeVar("_Value")


def _only(pods: Set[Pod], found: Mapping[Pod, _Value]) -> dict[Pod, _Value]:
    return {pod: found[pod] for pod in pods if pod in found}


def without_native(result: Any, part: str) -> Any:
    """Return the `result` of a query with its native histograms as series with numbers.

    `part` is the series of a classic histogram in whose place they are: `sum`, `count`, or `bucket`. Buckets have the
    bounds of all histograms of the result, so that they can be summed: a bucket that is not listed is empty. A native
    histogram beside a classic one of the same pod does not count.
    """
    native = [each for each in result if isinstance(each, dict) and "histogram" in each]
    if not native:
        return result
    plain = [each for each in result if isinstance(each, dict) and "value" in each]
    if part != "bucket":
        return plain + [{**each, "value": [at, known.get(part)]} for each, at, known in map(_native, native)]
    classic = {_pod_of(each) for each in plain}
    read = [(each, at, _cumulative(known)) for each, at, known in map(_native, native) if _pod_of(each) not in classic]
    known_bounds = {_number(labels.get("le")) for _, labels, _ in _series(plain)}
    bounds = sorted(bound for bound in known_bounds.union(*(own for *_, own in read)) if not math.isnan(bound))
    for each, at, own in read:
        below = 0.0
        for bound in bounds:
            below = own.get(bound, below)
            plain.append({"metric": {**each["metric"], "le": repr(bound)}, "value": [at, repr(below)]})
    return plain


def _native(series: Any) -> tuple[Any, Any, Mapping[str, Any]]:
    """Return a series with the time and the content of its native histogram, which is empty if it is none."""
    match series:
        case {"metric": dict(), "histogram": [at, dict() as content]}:
            return series, at, content
    return {**series, "metric": {}}, None, {}


def _cumulative(histogram: Mapping[str, Any]) -> dict[float, float]:
    """Return the cumulative rates of a native histogram, by both bounds of each of its buckets."""
    found: dict[float, float] = {}
    below = 0.0
    for bucket in histogram.get("buckets", ()):
        match bucket:
            case [_, lower, upper, rate]:
                found.setdefault(_number(lower), below)
                below += _number(rate)
                found[_number(upper)] = below
    return found | {math.inf: _number(histogram.get("count"))}


def of_models(result: Any, label: str, models: Mapping[Pod, str]) -> list[Any]:
    """Return the series of `result` except those whose `label` names another model than that of their pod."""
    found = []
    for series in result:
        model = models.get(_pod_of(series) or ("", ""))
        if model is None or series["metric"].get(label, model) == model:
            found.append(series)
    return found


def pod_models(ages_s: Any, label: str, max_age_s: float) -> dict[Pod, set[str]]:
    """Return the models of each pod, by `label`, whose series in `ages_s` are at most `max_age_s` seconds old."""
    models: dict[Pod, set[str]] = {}
    for pod, labels, age_s in _series(ages_s):
        if label in labels and age_s <= max_age_s:
            models.setdefault(pod, set()).add(labels[label])
    return models


def pod_ages(result: Any) -> dict[Pod, float]:
    """Return the age of the newest series of each pod."""
    ages_s: dict[Pod, float] = {}
    for pod, _, age_s in _series(result):
        ages_s[pod] = min(age_s, ages_s.get(pod, math.inf))
    return ages_s


def pod_values(result: Any) -> dict[Pod, float]:
    """Return the value of each series by its pod, NaN where it is no number or there are several.

    Series without a pod are left out.
    """
    values: dict[Pod, float] = {}
    for pod, _, value in _series(result):
        values[pod] = math.nan if pod in values else value
    return values


def pod_buckets(result: Any) -> dict[Pod, dict[float, float]]:
    """Return the cumulative rates of a histogram, by pod and upper bound of the bucket."""
    buckets: dict[Pod, dict[float, float]] = {}
    for pod, labels, value in _series(result):
        buckets.setdefault(pod, {})[_number(labels.get("le"))] = value
    return buckets


def scalar(result: Any) -> Reading:
    """Return the number in `result`, or an `Absence` with the reason where it does not have exactly one number."""
    match result:
        case []:
            return Absence(reason=AbsenceReason.MISSING, detail="the query returns no series")
        case [{"value": [_, value]}] | [int() | float(), str() as value]:
            number = _number(value)
            if sane(number):
                return number
            return Absence(reason=AbsenceReason.NOT_A_NUMBER, detail=f"the query returns {value!r}")
        case [{"value": _}, *_]:
            detail = f"the query returns {len(result)} series instead of one: aggregate them, for example with sum()"
        case _:
            detail = "the query returns neither a number nor one series with a number"
    return Absence(reason=AbsenceReason.NOT_A_NUMBER, detail=detail)


def _with_default_names(result: Any, labels: SeriesLabels) -> Any:
    """Return `result` with the labels of namespace and pod under their default names, from those of `labels`."""
    own = {labels.namespace: DEFAULT_LABELS.namespace, labels.pod: DEFAULT_LABELS.pod}
    return [
        {**series, "metric": {own.get(name, name): value for name, value in series["metric"].items()}}
        if isinstance(series, dict) and isinstance(series.get("metric"), dict)
        else series
        for series in result
    ]


def _series(result: Any) -> Iterable[tuple[Pod, Mapping[str, str], float]]:
    for series in result:
        match series:
            case {"metric": {"namespace": str() as namespace, "pod": str() as pod} as labels, "value": [_, value]}:
                yield (namespace, pod), labels, _number(value)


def _pod_of(series: Any) -> Pod | None:
    match series:
        case {"metric": {"namespace": str() as namespace, "pod": str() as pod}}:
            return namespace, pod
    return None


def _number(text: object) -> float:
    try:
        return float(str(text))
    except ValueError:
        return math.nan


def _alternatives(values: Iterable[str]) -> str:
    """Return a regular expression for any of `values`, as the inside of a PromQL string."""
    return quoted("|".join(re.escape(value) for value in sorted(set(values))))[1:-1]
