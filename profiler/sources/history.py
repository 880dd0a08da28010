"""The samples of scraped targets, kept for as long as the queries need them, up to `MOST_SAMPLES` per target.

No I/O.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Labels = tuple[tuple[str, str], ...]
"""Label names and values, sorted by name, without the name of the metric."""

MOST_SAMPLES = 200_000
"""Most samples that are kept per target, divided equally among its series."""


@dataclass(slots=True)
class Series:
    """The samples of one series, oldest first; times are in seconds.

    Samples up to `forgotten_s` were dropped because there were too many. Queries that need them cannot be evaluated.
    """

    labels: Labels
    times_s: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))
    forgotten_s: float = -math.inf

    def add(self, at_s: float, value: float, keep_s: float, most: int) -> None:
        """Add the newest sample; drop samples older than `keep_s`, and all but the newest `most`."""
        self.times_s.append(at_s)
        self.values.append(value)
        old = bisect_right(self.times_s, at_s - keep_s)
        if len(self.times_s) - old > most:
            old = len(self.times_s) - most
            self.forgotten_s = self.times_s[old - 1]
        if old > 0:
            del self.times_s[:old]
            del self.values[:old]

    def newest(self, at_s: float) -> int | None:
        """Return the index of the newest sample at `at_s` or before, None if there is none."""
        index = bisect_right(self.times_s, at_s) - 1
        return index if index >= 0 else None

    def within(self, after_s: float, until_s: float) -> slice:
        """Return the slice of the samples in (after_s, until_s]."""
        return slice(bisect_right(self.times_s, after_s), bisect_right(self.times_s, until_s))


class TargetHistory:
    """The samples of one target, by metric. `labels` identify the target and replace exported ones of the same name."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.scraped_s: float | None = None
        """Time of the last scrape, None before the first."""
        self.crowded = False
        """Whether samples younger than `keep_s` were dropped because of `MOST_SAMPLES`."""
        self._labels = dict(labels)
        self._series: dict[str, dict[Labels, Series]] = {}

    def record(self, at_s: float, samples: Sequence[tuple[str, Mapping[str, str], float]], keep_s: float) -> None:
        """Add the `samples` of a scrape at `at_s`, each as (metric, labels, value).

        Samples older than `keep_s` are dropped, and so are series that this scrape does not have.
        """
        series: dict[str, dict[Labels, Series]] = {}
        most = MOST_SAMPLES // max(1, len(samples))
        self.crowded = False
        for name, exported, value in samples:
            labels = tuple(sorted({**exported, **self._labels}.items()))
            known = self._series.get(name, {}).get(labels)
            found = series.setdefault(name, {}).setdefault(labels, known or Series(labels=labels))
            if (
                not found.times_s or found.times_s[-1] < at_s
            ):  # of two samples with the same name and labels the first counts
                found.add(at_s, value, keep_s, most)
            self.crowded |= found.forgotten_s > at_s - keep_s
        self._series = series
        self.scraped_s = at_s

    def of(self, name: str) -> Iterable[Series]:
        """Return the series of the metric `name`."""
        return self._series.get(name, {}).values()
