"""Fills templates of PromQL, and reads numbers from results of Prometheus' query API. Pure."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from profiler.samples import Absence, AbsenceReason, Reading, sane
from profiler.sources.combine import Pod

_LONGEST_MATCHER = 2000
"""Most characters of a matcher. Proxies may refuse URLs with longer ones."""


def fill(template: str, *, pods: str, window_s: float) -> str:
    """Return `template` with `$pods` replaced by the label matchers `pods` and `$window` by `window_s` in ms."""
    return template.replace("$pods", pods).replace("$window", f"{round(window_s * 1000)}ms")


def namespace_matcher(namespaces: Iterable[str]) -> str:
    """Return label matchers for all pods of `namespaces`, or of every namespace if the text would be too long."""
    matcher = f'namespace=~"{_alternatives(namespaces)}"'
    return matcher if len(matcher) <= _LONGEST_MATCHER else 'namespace!=""'


def pod_matcher(namespace: str, pods: Iterable[str]) -> str:
    """Return label matchers for exactly the `pods` of `namespace`."""
    return f'namespace=~"{_alternatives([namespace])}", pod=~"{_alternatives(pods)}"'


def pod_values(result: Any) -> dict[Pod, float]:
    """Return the value of each series by its pod, NaN where it is no number. Series without a pod are left out."""
    return {pod: value for pod, _, value in _series(result)}


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


def _series(result: Any) -> Iterable[tuple[Pod, Mapping[str, str], float]]:
    for series in result:
        match series:
            case {"metric": {"namespace": str() as namespace, "pod": str() as pod} as labels, "value": [_, value]}:
                yield (namespace, pod), labels, _number(value)


def _number(text: object) -> float:
    try:
        return float(str(text))
    except ValueError:
        return math.nan


def _alternatives(values: Iterable[str]) -> str:
    """Return a regular expression for any of `values`, as the inside of a PromQL string."""
    pattern = "|".join(re.escape(value) for value in sorted(set(values)))
    return pattern.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
