"""Templates of PromQL, and results of Prometheus' HTTP API as numbers. Pure."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from profiler.samples import Absence, AbsenceReason, Reading, sane
from profiler.sources.combine import Pod

_LONGEST_MATCHER = 2000
"""Characters of a matcher. Proxies may refuse URLs with longer ones."""


def fill(template: str, *, pods: str, window_s: float) -> str:
    """Return `template` with `$pods` replaced by label matchers and `$window` by the window."""
    return template.replace("$pods", pods).replace("$window", f"{round(window_s * 1000)}ms")


def namespace_matcher(namespaces: Iterable[str]) -> str:
    """Return matchers for all pods of the namespaces, or of every namespace if the list would be too long."""
    matcher = f'namespace=~"{_alternatives(namespaces)}"'
    return matcher if len(matcher) <= _LONGEST_MATCHER else 'namespace!=""'


def pod_matcher(namespace: str, pods: Iterable[str]) -> str:
    """Return matchers for exactly these pods."""
    return f'namespace=~"{_alternatives([namespace])}", pod=~"{_alternatives(pods)}"'


def pod_values(result: Any) -> dict[Pod, float]:
    """Return the value of each series by its pod, NaN where it is not a number. Series without a pod are left out."""
    return {pod: value for pod, _, value in _series(result)}


def pod_buckets(result: Any) -> dict[Pod, dict[float, float]]:
    """Return cumulative rates of a histogram by pod and upper bound."""
    buckets: dict[Pod, dict[float, float]] = {}
    for pod, labels, value in _series(result):
        buckets.setdefault(pod, {})[_number(labels.get("le"))] = value
    return buckets


def scalar(result: Any) -> Reading:
    """Return the number of a query that must give exactly one, or an `Absence` with the reason."""
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
