"""Prometheus samples of a pipeline's pods and ingress, and rates over a window.

All targets of a pipeline are scraped at the same time. Of a level, such as a queue length, the running sum over all
scrapes is kept too, so the mean over any window is a difference of two scrapes.
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
"""The age (s) from which on an instant query ignores a sample."""
_EXTRAPOLATION = 1.1  # scrape intervals by which a window may exceed its samples at either end


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """The samples of one scrape of n targets at `t_s`; `counters` and `levels` have shape (n, columns).

    `scrape` is the number of the scrape, from 0. `sums` has four blocks of columns, each a sum over all scrapes so far:
    of the levels, of level times t_s, of squared levels, and of the scrapes with a level above zero; shape
    (n, 4 columns). `times` has Σ t_s and Σ t_s² over all scrapes so far.
    """

    t_s: float
    scrape: int
    counters: Floats
    levels: Floats
    sums: Floats
    times: tuple[float, float]


class ScrapeHistory:
    """The samples of the targets of one scrape job, kept as long as the longest window needs them.

    A target is identified by its row, and has samples from its first scrape on. Rows of removed targets stay, but are
    not queried any more.
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
        """Add a scrape at `t_s`; `found(number)` returns whether a target without scrapes is discovered by then."""
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
        """Return the scrapes so far; later ones do not change the result."""
        return Scrapes(rows=tuple(self._rows), first=self._first, columns=self._columns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scrapes:
    """The scrapes up to a point in time, the newest last; `first` has the number of each target's first scrape.

    `columns` has the numbers of columns of counters and of levels.
    """

    rows: tuple[Samples, ...]
    first: Mapping[int, int]
    columns: tuple[int, int]

    def window(self, numbers: Sequence[int], now_s: float, window_s: float) -> "ScrapeWindow":
        """Return the samples of the targets `numbers` in (now_s − window_s, now_s]; no scrape may be after `now_s`."""
        return ScrapeWindow(self, numbers, now_s, window_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _TargetGroup:
    """The targets of a window that have the same samples in it.

    `numbers` are their numbers, and `places` their rows in the window. `first` is the oldest of the samples, `earlier`
    the scrape before it.
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
        """Return one of the four blocks of `Samples.sums`, summed over the samples in the window only."""
        columns = self.newest.levels.shape[1]
        own = slice(block * columns, (block + 1) * columns)
        within: Floats = self.newest.sums[:, own][self.numbers]
        if self.earlier is not None:
            known = self.numbers < len(self.earlier.sums)
            within[known] -= self.earlier.sums[:, own][self.numbers[known]]
        return within


class ScrapeWindow:
    """The samples of some targets within a window of time.

    Properties have shape (targets, columns) unless they say otherwise, and are NaN for targets with too few samples.
    Each is computed on first use, because most queries need few of them.
    """

    def __init__(self, scrapes: Scrapes, numbers: Sequence[int], now_s: float, window_s: float) -> None:
        self._scrapes = scrapes
        self._numbers = numbers
        self._now_s = now_s
        self._window_s = window_s

    @cached_property
    def ages_s(self) -> Floats:
        """The age (s) of the newest sample of each target, shape (targets,); infinite without a sample."""
        ages_s = np.full(len(self._numbers), np.inf)
        if places := self._scraped():
            ages_s[places] = self._now_s - self._scrapes.rows[-1].t_s
        return ages_s

    @cached_property
    def last(self) -> Floats:
        """The newest samples of levels, unless they are older than LOOKBACK_S; they may be older than the window."""
        last = self._nothing(self._scrapes.columns[1])
        places = self._scraped()
        if places and self._now_s - self._scrapes.rows[-1].t_s < LOOKBACK_S:
            last[places] = self._scrapes.rows[-1].levels[[self._numbers[place] for place in places]]
        return last

    @cached_property
    def rates(self) -> Floats:
        """The PromQL rates of counters, per second."""

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
        """The increases of counters from the first to the last sample in the window."""

        def increases(part: _TargetGroup) -> Floats:
            start: Floats = part.first.counters[part.numbers]
            end: Floats = part.newest.counters[part.numbers]
            return end - start

        return self._of_each(increases, self._scrapes.columns[0], at_least=2)

    @cached_property
    def means(self) -> Floats:
        """The means of levels."""
        return self._of_each(lambda part: part.sums(0) / part.samples, self._scrapes.columns[1])

    @cached_property
    def mean_squares(self) -> Floats:
        """The means of squared levels."""
        return self._of_each(lambda part: part.sums(2) / part.samples, self._scrapes.columns[1])

    @cached_property
    def busy_shares(self) -> Floats:
        """The shares (0–1) of the scrapes in which a level was above zero."""
        return self._of_each(lambda part: part.sums(3) / part.samples, self._scrapes.columns[1])

    @cached_property
    def slopes(self) -> Floats:
        """The slopes of levels per second, by least squares."""

        def slopes(part: _TargetGroup) -> Floats:
            before = (0.0, 0.0) if part.earlier is None else part.earlier.times
            t_sum, t_squares = part.newest.times[0] - before[0], part.newest.times[1] - before[1]
            samples = part.samples
            return (samples * part.sums(1) - t_sum * part.sums(0)) / (samples * t_squares - t_sum * t_sum)

        return self._of_each(slopes, self._scrapes.columns[1], at_least=2)

    def _scraped(self) -> list[int]:
        """Return the rows, in the window, of the targets that have been scraped."""
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

    `start` and `end` are the first and the last sample, at `first_s` and `last_s`. Prometheus extrapolates to the ends
    of the window. Where an end is at least 1.1 scrape intervals away from the samples, it extrapolates by half an
    interval only. It never extrapolates to below zero (`extrapolatedRate` in promql/functions.go).
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
    """Return a quantile (0–1) of each row of `counts`, interpolated as by histogram_quantile; NaN for an empty row.

    `counts` has shape (rows, buckets) and is not cumulative. `bounds_s` are the upper bounds of all buckets except the
    last, +Inf.
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
