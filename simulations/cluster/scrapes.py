"""What Prometheus has of a pipeline's pods and ingress: samples scrape by scrape, and rates over a window.

All targets of a pipeline are scraped at the same instants. A level (a queue, say) is kept as its running sum over the
scrapes as well, so that a mean over any window is a difference of two scrapes.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LOOKBACK_S = 300.0
"""How old the last sample may be for an instant query to give it."""
_EXTRAPOLATION = 1.1  # average scrape intervals that a window may be longer than its samples at either end


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """One scrape, the `scrape`th, of `n` targets at `t_s`: `counters` and `levels`, shapes (n, columns).

    `sums` has, over all scrapes so far, the levels added up, the levels times t_s, their squares, and how often they
    were above zero, one after the other, shape (n, 4 columns). `times` are Σ t and Σ t².
    """

    t_s: float
    scrape: int
    counters: Floats
    levels: Floats
    sums: Floats
    times: tuple[float, float]


class ScrapeHistory:
    """The samples of one job's targets, for as long as the longest window needs them.

    A target has a number and samples from its first scrape on; targets that are gone are not asked for any more.
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
        """Add a scrape; `found(number)` tells whether a target that was never scraped is known by now."""
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
        # One row more than the window: what was before it is where sums begin.
        while len(self._rows) > 2 and self._rows[1].t_s < t_s - self._keep_s:
            self._rows.popleft()

    def view(self) -> "Scrapes":
        """Return what is there now; later scrapes change nothing of it."""
        return Scrapes(rows=tuple(self._rows), first=self._first, columns=self._columns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """The samples of some targets within a window of `window_s`, shapes (targets, columns); NaN where one has none.

    `ages_s`, shape (targets,), are those of the newest samples, infinite where there never was one. `rates` are
    PromQL's, `increases` are the counters' own; `means`, `mean_squares`, `busy_shares` (of the scrapes, those above
    zero) and `slopes` (per second, least squares) are of levels, `last` are their newest samples.
    """

    ages_s: Floats
    rates: Floats
    increases: Floats
    means: Floats
    mean_squares: Floats
    busy_shares: Floats
    slopes: Floats
    last: Floats

    def of(self, rows: Sequence[int]) -> "Window":
        """Return some of the targets."""
        chosen = np.array(rows, dtype=np.intp)
        return Window(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scrapes:
    """The scrapes up to an instant, the newest last; `first` has the first scrape of each target."""

    rows: tuple[Samples, ...]
    first: Mapping[int, int]
    columns: tuple[int, int]

    def window(self, numbers: Sequence[int], now_s: float, window_s: float) -> Window:
        """Return what these targets say about (now_s − window_s, now_s]; now is not before the newest scrape."""
        chosen = np.array(numbers, dtype=np.intp)
        window = self._empty(len(chosen))
        if not self.rows or not len(chosen):
            return window
        newest = self.rows[-1]
        scraped = np.array([self.first.get(number, newest.scrape + 1) for number in numbers])
        told = scraped <= newest.scrape
        window.ages_s[told] = now_s - newest.t_s
        if now_s - newest.t_s < LOOKBACK_S:
            window.last[told] = newest.levels[chosen[told]]
        inside = bisect_right(self.rows, now_s - window_s, key=lambda row: row.t_s)
        begins = np.maximum(scraped - self.rows[0].scrape, inside)
        for begin in np.unique(begins[told & (begins < len(self.rows))]).tolist():
            targets = np.flatnonzero(told & (begins == begin))
            self._fill(window, targets, chosen[targets], begin, now_s, window_s)
        return window

    def _empty(self, targets: int) -> Window:
        counters, levels = self.columns

        def nothing(columns: int) -> Floats:
            return np.full((targets, columns), np.nan)

        return Window(
            ages_s=np.full(targets, np.inf),
            rates=nothing(counters),
            increases=nothing(counters),
            means=nothing(levels),
            mean_squares=nothing(levels),
            busy_shares=nothing(levels),
            slopes=nothing(levels),
            last=nothing(levels),
        )

    def _fill(
        self,
        window: Window,
        targets: NDArray[np.intp],
        numbers: NDArray[np.intp],
        begin: int,
        now_s: float,
        window_s: float,
    ) -> None:
        """Fill in the targets whose samples in the window are those from row `begin` on."""
        first, newest = self.rows[begin], self.rows[-1]
        earlier = self.rows[begin - 1] if begin else None
        samples = newest.scrape - first.scrape + 1
        within = newest.sums[numbers]
        if earlier is not None:
            known = numbers < len(earlier.sums)
            within[known] -= earlier.sums[numbers[known]]
        sums, moments, squares, present = np.split(within, 4, axis=1)
        window.means[targets] = sums / samples
        window.mean_squares[targets] = squares / samples
        window.busy_shares[targets] = present / samples
        if samples < 2:
            return
        before = (0.0, 0.0) if earlier is None else earlier.times
        t_sum, t_squares = newest.times[0] - before[0], newest.times[1] - before[1]
        window.slopes[targets] = (samples * moments - t_sum * sums) / (samples * t_squares - t_sum * t_sum)
        start, end = first.counters[numbers], newest.counters[numbers]
        window.increases[targets] = end - start
        window.rates[targets] = rate(
            start,
            end,
            first_s=first.t_s,
            last_s=newest.t_s,
            samples=samples,
            from_s=now_s - window_s,
            until_s=now_s,
        )


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

    Interpolated as histogram_quantile does it.
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
