"""What targets showed, scrape by scrape, for as long as somebody looks back on it, as far as there is room for it.
Nothing is read here.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Labels = tuple[tuple[str, str], ...]
"""Names and values, sorted by name; that of the metric is not among them."""

MOST_SAMPLES = 200_000
"""Of one target, in equal shares of its series."""


@dataclass(slots=True)
class Series:
    """The samples of one series, oldest first; times are seconds.

    Those up to `forgotten_s` had to make room: what they were is not known, which is not that there were none.
    """

    labels: Labels
    times_s: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))
    forgotten_s: float = -math.inf

    def add(self, at_s: float, value: float, keep_s: float, most: int) -> None:
        """Add the newest sample and forget those older than `keep_s`, and all but the newest `most`."""
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
        """Return the index of the newest sample at `at_s` or before."""
        index = bisect_right(self.times_s, at_s) - 1
        return index if index >= 0 else None

    def within(self, after_s: float, until_s: float) -> slice:
        """Return which samples are in (after_s, until_s]."""
        return slice(bisect_right(self.times_s, after_s), bisect_right(self.times_s, until_s))


class TargetHistory:
    """What one target showed, by metric. `labels` are those that say who it is; they win over what it says itself."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.scraped_s: float | None = None
        """When it was last read, None: never yet."""
        self.crowded = False
        """Whether samples that were to be kept have been forgotten for want of room."""
        self._labels = dict(labels)
        self._series: dict[str, dict[Labels, Series]] = {}

    def record(self, at_s: float, samples: Sequence[tuple[str, Mapping[str, str], float]], keep_s: float) -> None:
        """Add a scrape: (metric, labels, value) each. A series that is not in it any more has ended."""
        series: dict[str, dict[Labels, Series]] = {}
        most = MOST_SAMPLES // max(1, len(samples))
        self.crowded = False
        for name, own, value in samples:
            labels = tuple(sorted({**own, **self._labels}.items()))
            known = self._series.get(name, {}).get(labels)
            found = series.setdefault(name, {}).setdefault(labels, known or Series(labels=labels))
            if not found.times_s or found.times_s[-1] < at_s:  # of two with one name and labels the first counts
                found.add(at_s, value, keep_s, most)
            self.crowded |= found.forgotten_s > at_s - keep_s
        self._series = series
        self.scraped_s = at_s

    def of(self, name: str) -> Iterable[Series]:
        """Return the series of a metric."""
        return self._series.get(name, {}).values()
