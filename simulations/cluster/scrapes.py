"""Prometheus samples of a pipeline's pods and ingress, and rates over a window.

All targets of a pipeline are scraped at the same time. A level, such as a queue length, is kept as its running sum over
the scrapes as well, so that a mean over any window is a difference of two scrapes.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LOOKBACK_S = 300.0
"""The oldest sample that an instant query returns."""
_EXTRAPOLATION = 1.1  # scrape intervals by which a window may exceed its samples at either end


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """One scrape, the `scrape`th, of `n` targets at `t_s`: `counters` and `levels`, shapes (n, columns).

    `sums` has, over all scrapes so far, the sums of the levels, of the levels times t_s, of their squares, and how
    often they were above zero, one after the other, shape (n, 4 columns). `times` are Σ t and Σ t².
    """

    t_s: float
    scrape: int
    counters: Floats
    levels: Floats
    sums: Floats
    times: tuple[float, float]


class ScrapeHistory:
    """The samples of one job's targets, kept as long as the longest window needs them.

    A target has a number, and samples from its first scrape on. Removed targets are not queried any more.
    """

    def __init__(self, *, keep_s: float, counters: int, levels: int) -> None:
        self._keep_s = keep_s
        self._columns = counters, levels
        self._rows: deque[Samples] = deque()
        self._scrapes = 0
        self._first: dict[int, int] = {}
        self._known = 0
        self._unfound: list[int] = []

    def record(self, t_s: float, counters: Floats, levels: Floats, found: Callable[[int], bool]) -> None:
        """Add a scrape; `found(number)` returns whether a target without scrapes is discovered by now."""
        sums = np.concatenate([levels, levels * t_s, levels * levels, levels > 0], axis=1)
        times = (t_s, t_s * t_s)
        if self._rows:
            before = self._rows[-1]
            sums[: len(before.sums)] += before.sums
            times = (times[0] + before.times[0], times[1] + before.times[1])
        self._unfound += range(self._known, len(levels))
        self._known = len(levels)
        if self._unfound:
            new = [number for number in self._unfound if found(number)]
            self._first |= dict.fromkeys(new, self._scrapes)
            self._unfound = [number for number in self._unfound if number not in self._first]
        self._rows.append(
            Samples(t_s=t_s, scrape=self._scrapes, counters=counters, levels=levels, sums=sums, times=times)
        )
        self._scrapes += 1
        # One row more than the window: sums are differences to the row before it.
        while len(self._rows) > 2 and self._rows[1].t_s < t_s - self._keep_s:
            self._rows.popleft()

    def view(self) -> "Scrapes":
        """Return the current scrapes; later ones do not change the result."""
        return Scrapes(rows=tuple(self._rows), first=self._first, columns=self._columns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scrapes:
    """The scrapes up to a point in time, the newest last; `first` has the first scrape of each target."""

    rows: tuple[Samples, ...]
    first: Mapping[int, int]
    columns: tuple[int, int]

    def window(self, numbers: Sequence[int], now_s: float, window_s: float) -> "ScrapeWindow":
        """Return the samples of these targets in (now_s − window_s, now_s]; `now_s` is not before the newest scrape."""
        return ScrapeWindow(self, numbers, now_s, window_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _TargetGroup:
    """Targets of a window that have the same samples in it, by their places in the window and their numbers.

    `first` is the oldest of the samples; `earlier` is the scrape before it.
    """

    places: list[int]
    numbers: NDArray[np.intp]
    earlier: Samples | None
    first: Samples
    newest: Samples

    @property
    def samples(self) -> int:
        return self.newest.scrape - self.first.scrape + 1

    def sums(self, block: int) -> Floats:
        """Return one of the sums of `Samples.sums`, over the samples in the window."""
        columns = self.newest.levels.shape[1]
        own = slice(block * columns, (block + 1) * columns)
        within: Floats = self.newest.sums[:, own][self.numbers]
        if self.earlier is not None:
            known = self.numbers < len(self.earlier.sums)
            within[known] -= self.earlier.sums[:, own][self.numbers[known]]
        return within


class ScrapeWindow:
    """The samples of some targets within a window of `window_s`, shapes (targets, columns); NaN without samples.

    Each property is computed on first use, because most queries need few of them.
    """

    def __init__(self, scrapes: Scrapes, numbers: Sequence[int], now_s: float, window_s: float) -> None:
        self._scrapes = scrapes
        self._numbers = numbers
        self._now_s = now_s
        self._window_s = window_s

    @cached_property
    def ages_s(self) -> Floats:
        """Ages of the newest samples, shape (targets,), infinite without a sample."""
        ages_s = np.full(len(self._numbers), np.inf)
        if places := self._scraped():
            ages_s[places] = self._now_s - self._scrapes.rows[-1].t_s
        return ages_s

    @cached_property
    def last(self) -> Floats:
        """Newest samples of levels."""
        last = self._nothing(self._scrapes.columns[1])
        places = self._scraped()
        if places and self._now_s - self._scrapes.rows[-1].t_s < LOOKBACK_S:
            last[places] = self._scrapes.rows[-1].levels[[self._numbers[place] for place in places]]
        return last

    @cached_property
    def rates(self) -> Floats:
        """PromQL rates of counters."""

        def rates(part: _TargetGroup) -> Floats:
            return rate(
                part.first.counters[part.numbers],
                part.newest.counters[part.numbers],
                first_s=part.first.t_s,
                last_s=part.newest.t_s,
                samples=part.samples,
                from_s=self._now_s - self._window_s,
                until_s=self._now_s,
            )

        return self._of_each(rates, self._scrapes.columns[0], at_least=2)

    @cached_property
    def increases(self) -> Floats:
        """Increases of counters between the first and the last sample."""

        def increases(part: _TargetGroup) -> Floats:
            start: Floats = part.first.counters[part.numbers]
            end: Floats = part.newest.counters[part.numbers]
            return end - start

        return self._of_each(increases, self._scrapes.columns[0], at_least=2)

    @cached_property
    def means(self) -> Floats:
        """Means of levels."""
        return self._of_each(lambda part: part.sums(0) / part.samples, self._scrapes.columns[1])

    @cached_property
    def mean_squares(self) -> Floats:
        """Means of squared levels."""
        return self._of_each(lambda part: part.sums(2) / part.samples, self._scrapes.columns[1])

    @cached_property
    def busy_shares(self) -> Floats:
        """Shares of the scrapes in which the level was above zero."""
        return self._of_each(lambda part: part.sums(3) / part.samples, self._scrapes.columns[1])

    @cached_property
    def slopes(self) -> Floats:
        """Slopes of levels per second, by least squares."""

        def slopes(part: _TargetGroup) -> Floats:
            before = (0.0, 0.0) if part.earlier is None else part.earlier.times
            t_sum, t_squares = part.newest.times[0] - before[0], part.newest.times[1] - before[1]
            samples = part.samples
            return (samples * part.sums(1) - t_sum * part.sums(0)) / (samples * t_squares - t_sum * t_sum)

        return self._of_each(slopes, self._scrapes.columns[1], at_least=2)

    def _scraped(self) -> list[int]:
        """Return the places of the targets that have been scraped."""
        scrapes = self._scrapes
        if not scrapes.rows:
            return []
        newest, never = scrapes.rows[-1].scrape, scrapes.rows[-1].scrape + 1
        return [place for place, number in enumerate(self._numbers) if scrapes.first.get(number, never) <= newest]

    @cached_property
    def _parts(self) -> list[_TargetGroup]:
        rows, first = self._scrapes.rows, self._scrapes.first
        inside = bisect_right(rows, self._now_s - self._window_s, key=lambda row: row.t_s)
        places: dict[int, list[int]] = {}
        for place in self._scraped():
            begin = max(first[self._numbers[place]] - rows[0].scrape, inside)
            if begin < len(rows):
                places.setdefault(begin, []).append(place)
        return [
            _TargetGroup(
                places=own,
                numbers=np.array([self._numbers[place] for place in own], dtype=np.intp),
                earlier=rows[begin - 1] if begin else None,
                first=rows[begin],
                newest=rows[-1],
            )
            for begin, own in places.items()
        ]

    def _of_each(self, value: Callable[[_TargetGroup], Floats], columns: int, *, at_least: int = 1) -> Floats:
        """Return `value` of the targets with at least `at_least` samples, NaN for the others."""
        made = self._nothing(columns)
        for part in self._parts:
            if part.samples >= at_least:
                made[part.places] = value(part)
        return made

    def _nothing(self, columns: int) -> Floats:
        return np.full((len(self._numbers), columns), np.nan)


def rate(
    start: Floats, end: Floats, *, first_s: float, last_s: float, samples: int, from_s: float, until_s: float
) -> Floats:
    """Return PromQL's rate() of counters that had `samples` (at least 2) samples in (from_s, until_s].

    Prometheus extrapolates to the window's ends, by half a scrape interval where the next sample is farther away than
    that, and never to below zero (`extrapolatedRate` in promql/functions.go).
    """
    sampled_s = last_s - first_s
    interval_s = sampled_s / (samples - 1)
    to_start_s, to_end_s = first_s - from_s, until_s - last_s
    if to_start_s >= _EXTRAPOLATION * interval_s:
        to_start_s = interval_s / 2
    if to_end_s >= _EXTRAPOLATION * interval_s:
        to_end_s = interval_s / 2
    increase = end - start
    with np.errstate(divide="ignore", invalid="ignore"):
        to_zero_s = np.where(increase > 0, sampled_s * start / increase, np.inf)
    covered_s = sampled_s + np.minimum(to_start_s, to_zero_s) + to_end_s
    rates: Floats = increase * covered_s / sampled_s / (until_s - from_s)
    return rates


def quantiles(quantile: float, bounds_s: Floats, counts: Floats) -> Floats:
    """Return the quantile of each row of `counts` (rows, buckets; the last is +Inf), NaN where a row is empty.

    It is interpolated as by histogram_quantile.
    """
    cumulative = np.cumsum(counts, axis=1)
    total = cumulative[:, -1]
    rank = quantile * total
    bucket = np.minimum((cumulative < rank[:, None]).sum(axis=1), len(bounds_s))
    edges = np.concatenate([[0.0], bounds_s])
    rows = np.arange(len(counts))
    below = np.where(bucket > 0, cumulative[rows, bucket - 1], 0.0)
    within = counts[rows, bucket]
    inside = bucket < len(bounds_s)
    low, high = edges[bucket], edges[np.minimum(bucket + 1, len(bounds_s))]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(within > 0, (rank - below) / within, 0.0)
    values = np.where(inside, low + (high - low) * share, bounds_s[-1])
    return np.where(total > 0, values, np.nan)
