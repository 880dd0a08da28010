"""What targets showed, scrape by scrape, for as long as somebody looks back on it. Nothing is read here."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Labels = tuple[tuple[str, str], ...]
"""Names and values, sorted by name; that of the metric is not among them."""

_MOST_SAMPLES = 600
"""Of a series, whatever the window."""


@dataclass(slots=True)
class Series:
    """The samples of one series, oldest first; times are seconds."""

    labels: Labels
    times_s: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, at_s: float, value: float, keep_s: float) -> None:
        """Add the newest sample and forget those older than `keep_s`."""
        self.times_s.append(at_s)
        self.values.append(value)
        old = max(bisect_right(self.times_s, at_s - keep_s), len(self.times_s) - _MOST_SAMPLES)
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
        self._labels = dict(labels)
        self._series: dict[str, dict[Labels, Series]] = {}

    def record(self, at_s: float, samples: Iterable[tuple[str, Mapping[str, str], float]], keep_s: float) -> None:
        """Add a scrape: (metric, labels, value) each. A series that is not in it any more has ended."""
        series: dict[str, dict[Labels, Series]] = {}
        for name, own, value in samples:
            labels = tuple(sorted({**own, **self._labels}.items()))
            known = self._series.get(name, {}).get(labels)
            found = series.setdefault(name, {}).setdefault(labels, known or Series(labels=labels))
            if not found.times_s or found.times_s[-1] < at_s:  # of two with one name and labels the first counts
                found.add(at_s, value, keep_s)
        self._series = series
        self.scraped_s = at_s

    def of(self, name: str) -> Iterable[Series]:
        """Return the series of a metric."""
        return self._series.get(name, {}).values()
