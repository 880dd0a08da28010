"""A scenario's metrics faults other than losses: partial, noisy and stale answers of Prometheus.

`MetricsProxy` applies them to the answers of the real server. Each fault stands for itself even if it equals another:
when two faults overlap, the end of one does not end the other.
"""

import math
import random
import re
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

Chooser = Callable[[str, Mapping[str, str]], bool]
"""Returns whether the fault affects the series with the given labels in the answer to the given query."""

_AGES = re.compile(r"\btimestamp\(")
"""Matches in queries for the age of samples; noise must not change an age."""
_PODS = re.compile(r"-[a-z0-9]+-[a-z0-9]+$")
"""Matches the suffix of a pod's name that follows the name of its Deployment."""


class MetricFault:
    """Changes queries of Prometheus and their answers; a kind of fault overrides what it changes."""

    __slots__ = ()

    def changed_query(self, query: str) -> tuple[str, float | None]:
        """Return the query to send instead, and its evaluation time (seconds since the epoch); None: now."""
        return query, None

    def changed_series(self, query: str, series: list[dict[str, Any]]) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return the series that the answer to `query` has under the fault."""
        return series


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartialMetrics(MetricFault):
    """`share` of the pods have no metrics, the same pods while the fault lasts. The ingress is not a pod."""

    chosen: Chooser
    share: float
    seed: str

    @override
    def changed_series(self, query: str, series: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [one for one in series if not self._silent(query, one["metric"])]

    def _silent(self, query: str, labels: Mapping[str, str]) -> bool:
        if "pod" not in labels or not self.chosen(query, labels):
            return False
        return zlib.crc32(f"{self.seed}/{labels['pod']}".encode()) / 2**32 < self.share


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoisyMetrics(MetricFault):
    """Values are multiplied by log-normal noise, one factor per workload and query.

    The noise has mean 1 and the coefficient of variation `cv`. Of a histogram the bounds get it: its quantiles vary.
    """

    chosen: Chooser
    cv: float
    seed: str

    @override
    def changed_series(self, query: str, series: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if _AGES.search(query):
            return series
        now = f"{time.time():.3f}"
        return [self._noisy(one, f"{query} {now}") if self.chosen(query, one["metric"]) else one for one in series]

    def _noisy(self, series: dict[str, Any], what: str) -> dict[str, Any]:
        labels = dict(series["metric"])
        workload = _PODS.sub("", labels.get("pod", ""))
        variance = math.log1p(self.cv**2)
        chance = random.Random(f"{self.seed} {what} {labels.get('namespace')}/{workload}")
        factor = chance.lognormvariate(-variance / 2, math.sqrt(variance))
        at_s, value = series["value"]
        if "le" in labels:
            labels["le"] = repr(float(labels["le"]) * factor)
            return {**series, "metric": labels}
        return {**series, "value": [at_s, repr(float(value) * factor)]}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StaleMetrics(MetricFault):
    """No new sample since `since_s` (seconds since the epoch): answers are those of that time, and their age grows."""

    since_s: float = field(default_factory=time.time)

    @override
    def changed_query(self, query: str) -> tuple[str, float | None]:
        """Return the query, evaluated at `since_s`, except that `time()` in it is still the present time."""
        age_s = max(0.0, time.time() - self.since_s)
        return re.sub(r"\btime\(\)", f"(time() + {age_s:.3f})", query), self.since_s
