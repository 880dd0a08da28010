"""What scenario faults do to the answers of Prometheus, beside losing them: half said, noisy, standing still.

`MetricsProxy` applies them to what the real server has answered. They are compared by identity: two alike may overlap,
and each ends by itself.
"""

import math
import random
import re
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Chooser = Callable[[str, Mapping[str, str]], bool]
"""Whether the series with these labels that answers this query is one of those meant."""

_AGES = re.compile(r"\btimestamp\(")
"""In a query that asks how old samples are, which no noise makes older."""
_PODS = re.compile(r"-[a-z0-9]+-[a-z0-9]+$")
"""What a Deployment adds to its own name for that of a pod."""


class Disturbance(Protocol):
    """Changes what is asked of Prometheus, and what it answers."""

    def asked(self, query: str) -> tuple[str, float | None]:
        """Return the query to ask instead, and the time (seconds since the epoch) to ask it for; None: now."""
        ...

    def answered(self, query: str, series: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the series of an answer, as `query` finds them now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partial:
    """`share` of the pods say nothing, the same for as long as the fault lasts. The ingress is no pod."""

    chosen: Chooser
    share: float
    seed: str

    def asked(self, query: str) -> tuple[str, float | None]:
        """Change nothing."""
        return query, None

    def answered(self, query: str, series: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Leave the series of the silent pods out."""
        return [one for one in series if not self._silent(query, one["metric"])]

    def _silent(self, query: str, labels: Mapping[str, str]) -> bool:
        if "pod" not in labels or not self.chosen(query, labels):
            return False
        return zlib.crc32(f"{self.seed}/{labels['pod']}".encode()) / 2**32 < self.share


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noise:
    """Numbers are multiplied by log-normal noise of mean 1, one factor for each workload and query."""

    chosen: Chooser
    cv: float
    seed: str

    def asked(self, query: str) -> tuple[str, float | None]:
        """Change nothing."""
        return query, None

    def answered(self, query: str, series: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Multiply; of a histogram the bounds, so that its quantiles are what is noisy."""
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
class Standstill:
    """No sample comes in since `since_s`: what was known then is answered, and its age grows."""

    since_s: float = field(default_factory=time.time)

    def asked(self, query: str) -> tuple[str, float | None]:
        """Ask what was known then, by a clock that has gone on."""
        age_s = max(0.0, time.time() - self.since_s)
        return re.sub(r"\btime\(\)", f"(time() + {age_s:.3f})", query), self.since_s

    def answered(self, query: str, series: list[dict[str, Any]]) -> list[dict[str, Any]]:  # noqa: ARG002
        """Change nothing."""
        return series
