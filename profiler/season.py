"""The seasonal forecast: what the demand did at this time of day in past seasons. Pure.

From each past season, the change from the same phase is taken, times the ratio of the present level to the level of
then. Over the last season, most of all in its last hours, the forecasts of all past seasons are tried (`TRIED`):

* Seasons that were right weigh more, by the inverse of their mean squared error: so a weekday finds the weekdays.
* The error of the forecast is what the seasons differ by, each against the others, or that of the trials where it is
  larger. It is no smaller than the change itself where the forecast has not been better than the last value (`skill`):
  a day unlike the others is not followed. Of a change, only the part beyond the error is sure.

Between two recorded levels, the load may have changed at any time: what is coming is the higher of the two, and no
level between them is an error. Levels that were not recorded are gaps, not zeros: a season with a gap at a time says
nothing about it.
"""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from profiler.samples import Absence, AbsenceReason

TRIED = 96
"""At so many times of the last season the forecast is tried: every 15 minutes of a day."""
DECAY = 1 / 4
"""The time constant, in seasons, with which a trial counts less the longer ago it is: 6 hours of a day."""
LEVEL_S = 60.0
"""The present level is the mean of the samples of this time."""
NOTHING = 0.1
"""At this share of the highest level, the ratio of two levels counts as much as that over the last season."""
ALIKE = 1.25
"""By up to this factor, the load is still like a level that the season had at this phase."""
LEAST_ERROR = 0.01
"""The least error of a season, as a share of the present level. Keeps the weights finite if a season had no error."""
CHANCE = 2.0
"""Differences between the mean squared errors of seasons up to so many times the least of them are taken for chance."""
LOOKS = 12
"""At so many times ahead the highest level to come is looked for."""
MOST_SEASONS = 28
"""The most seasons of a history."""
MOST_LEVELS = 2016
"""The most levels of the seasons of a history: every 5 minutes of 7 days. It bounds the memory of a fleet."""
LEAST_STEP_S = 15.0
"""The shortest time between two levels: that between two cycles."""
GAP = -1.0
"""What stands for a level that was not recorded, in the packed values."""

Floats = NDArray[np.float64]
Samples = Sequence[tuple[float, float]]
"""(time in seconds, load), oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandHistory:
    """The demand as recorded: levels every `step_s` seconds from `begin_s` on, with seasons of `season_s` seconds.

    `most` is how many past seasons are used. `levels` are 4-byte floats, negative for a gap (`packed`), in `unit` of
    the demand: 1 where its own query recorded them, None where another one did and the demand beside it is not known.
    `problem` says why the history was not read again, "" where it was.
    """

    begin_s: float
    step_s: float
    season_s: float
    most: int
    levels: bytes
    unit: float | None = 1.0
    problem: str = ""

    @property
    def end_s(self) -> float:
        """Return the time of the last level."""
        return self.begin_s + self.step_s * (len(self.levels) // 4 - 1)

    @property
    def seasons(self) -> int:
        """Return how many past seasons there are, counted back from the end."""
        return min(self.most, math.floor((self.end_s - self.begin_s) / self.season_s + 1e-9))


def finest_step_s(season_s: float, seasons: int) -> float:
    """Return the shortest time between two levels of a history, in whole seconds; of fewer than 7 seasons that of 7."""
    return max(LEAST_STEP_S, float(math.ceil(season_s * max(seasons, 7) / MOST_LEVELS)))


def period_before(end_s: float, season_s: float, seasons: int, step_s: float) -> tuple[float, int]:
    """Return the time of the first level of a history that ends at `end_s`, and how many levels it has.

    Beyond the past seasons it has the last one, on which they are tried. Times are multiples of `step_s`.
    """
    steps = math.ceil((seasons + 1 + 2 / TRIED) * season_s / step_s)
    return (math.floor(end_s / step_s) - steps) * step_s, steps + 1


def packed(levels: Iterable[float | None]) -> bytes:
    """Return `levels`, with None for a gap, as 4-byte floats."""
    return array("f", (GAP if level is None else level for level in levels)).tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The `expected` change of the load over a time, and its `error` (root mean square), in units of the demand."""

    expected: float
    error: float

    @property
    def sure(self) -> float:
        """Return the part of the change beyond its error: none of a change that is no larger than its error."""
        return math.copysign(beyond_error(abs(self.expected), self.error), self.expected)


def beyond_error(amount: float, error: float) -> float:
    """Return the part of `amount` beyond its error, as of a signal in noise: 0 of one that is no larger."""
    return amount * (1 - (error / amount) ** 2) if amount > error else 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Changes:
    """The changes that each season says, until the recorded level `before` and `after` a time.

    Shape (seasons, times); NaN where a season does not say it. `share` (0–1, shape (times,) or (seasons, times)) is how
    far the time is on the way from the one level to the other.
    """

    before: Floats
    after: Floats
    share: Floats

    def means(self, weights: Floats) -> tuple[Floats, Floats]:
        """Return the means over the seasons of both changes; NaN where no season says it."""
        return _mean(self.before, weights), _mean(self.after, weights)

    def between(self) -> Floats:
        """Return the changes on the line between the two levels."""
        return np.where(self.share > 0, (1 - self.share) * self.before + self.share * self.after, self.before)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Origins:
    """Times at which a forecast is made, and the `level` known then, `lag_s` before; `earlier` is that shortly before.

    The shape of each is (times,).
    """

    at_s: Floats
    level: Floats
    lag_s: Floats
    earlier: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Record:
    """A history unpacked: `levels` with NaN for gaps; below `nothing`, a level is too low for ratios."""

    history: DemandHistory
    levels: Floats
    nothing: float

    @classmethod
    def of(cls, history: DemandHistory) -> "Record":
        """Return the record of `history`, which has a unit."""
        assert history.unit is not None
        levels = history.unit * np.frombuffer(history.levels, dtype=np.float32).astype(np.float64)
        levels[levels < 0] = np.nan
        highest = 0.0 if np.isnan(levels).all() else float(np.nanmax(levels))
        return cls(history=history, levels=levels, nothing=NOTHING * highest)

    def past(self, at_s: Floats) -> Floats:
        """Return the recorded levels of each past season at the phases of `at_s`, shape (seasons, times)."""
        seasons_s = self.history.season_s * np.arange(1, self.history.seasons + 1)[:, None]
        before, after, share = self.around(at_s - seasons_s)
        return np.where(share > 0, (1 - share) * before + share * after, before)

    def around(self, at_s: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the recorded levels before and after each time, and how far on the way between them it is (0–1)."""
        place = (at_s - self.history.begin_s) / self.history.step_s
        index = np.floor(place + 1e-9).astype(np.int64)
        share = np.maximum(0.0, place - index)
        share[share < 1e-9] = 0.0
        last = len(self.levels) - 1
        before = np.where((index >= 0) & (index <= last), self.levels[np.clip(index, 0, last)], np.nan)
        after = np.where((index >= -1) & (index < last), self.levels[np.clip(index + 1, 0, last)], np.nan)
        return before, np.where(share > 0, after, before), share

    def earlier_s(self, origins: "Origins") -> Floats:
        """Return times shortly before those of `origins`, with no recorded level between the two in common."""
        return origins.at_s - origins.lag_s - 2 * self.history.step_s

    def origins(self, samples: Samples, at_s: Floats, level: Floats, lag_s: Floats) -> "Origins":
        """Return the times `at_s` with the `level` that was known then, `lag_s` before."""
        found = Origins(at_s=at_s, level=level, lag_s=lag_s, earlier=level)
        return replace(found, earlier=self.today(samples, self.earlier_s(found)))

    def today(self, samples: Samples, at_s: Floats) -> Floats:
        """Return the levels at `at_s`: those of the samples, and before them the recorded ones."""
        times_s, loads = np.array(samples).T
        before, after, share = self.around(at_s)
        return np.where(at_s >= times_s[0], np.interp(at_s, times_s, loads), (1 - share) * before + share * after)

    def changes(self, origins: "Origins", ahead_s: Floats, scales: Floats) -> _Changes:
        """Return the changes from the levels of `origins` until `ahead_s` after them; of shape (times,).

        `scales` are, by season, how many times as high the load has lately been; NaN where that is not known.
        """
        at_s, level = origins.at_s, origins.level
        seasons_s = self.history.season_s * np.arange(1, len(scales) + 1)[:, None]
        low, high, share = self.around(at_s - origins.lag_s - seasons_s)
        tiny = 1e-6 * self.nothing  # two times without load are alike
        alike = level * (self.past(self.earlier_s(origins)) + tiny) / (origins.earlier + tiny)
        # Between the levels around this phase, the load is where it was like before, if that is not far off both.
        least, most = np.minimum(low, high), np.maximum(low, high)
        found = np.isfinite(alike) & (alike >= least / ALIKE) & (alike <= most * ALIKE)
        past = np.where(found, np.clip(alike, least, most), (1 - share) * low + share * high)
        before, after, share = self.around(at_s + ahead_s - seasons_s)
        # The lower the levels, the more their ratio is chance, and the more that of the last season counts.
        usual = np.where(np.isfinite(scales), scales, 1.0)[:, None]
        ratio = (level + self.nothing * usual) / (past + self.nothing)
        return _Changes(before=ratio * (before - past), after=ratio * (after - past), share=share)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Season:
    """A history seen from one moment, `now`, and how far each season is like it.

    `weights` and `scales` are by season, the last one first; the weights add up to 1, and a scale is how many times as
    high as in that season the load has lately been. `recent_error` is the root mean square error of the forecast
    `tried_s` ahead on the trials, None where nothing could be tried. `skill` (0–1) says how much better than the last
    value it was: 0 not at all, 1 where it saved three times what it cost.
    """

    record: Record
    now: Origins
    weights: Floats
    scales: Floats
    recent_error: float | None
    tried_s: float
    skill: float

    @property
    def level(self) -> float:
        """Return the present level."""
        return float(self.now.level[0])

    def change(self, ahead_s: float) -> Change | None:
        """Return the change from the present level until `ahead_s` after now, None where no season says anything."""
        expected, error = (float(each[0]) for each in self._expected(np.array([ahead_s])))
        return None if math.isnan(error) else Change(expected=expected, error=error)

    def changes(self, ahead_s: Sequence[float]) -> list[Change | None]:
        """Return the changes until each of `ahead_s`, as `change` does; beyond a season, those at the same phase."""
        season_s = self.record.history.season_s
        ahead = np.array(ahead_s, dtype=np.float64)
        ahead = np.where(ahead > season_s, ahead % season_s, ahead)
        return [
            None if math.isnan(error) else Change(expected=float(expected), error=float(error))
            for expected, error in zip(*self._expected(ahead), strict=True)
        ]

    def last(self, ahead_s: float) -> float | None:
        """Return the recorded level one season before `ahead_s` after now, None where there is none."""
        before, after, share = self.record.around(self.now.at_s + ahead_s - self.record.history.season_s)
        level = float(((1 - share) * before + share * after)[0])
        return None if math.isnan(level) else level

    def highest_sure(self, within_s: float) -> float:
        """Return the highest level that is sure to be reached within `within_s`, at least the present one."""
        expected, error = self._expected(within_s * np.arange(1, LOOKS + 1) / LOOKS)
        rises = np.isfinite(error) & (expected > 0)
        found = zip(expected[rises], error[rises], strict=True)
        return self.level + max((Change(expected=float(by), error=float(off)).sure for by, off in found), default=0.0)

    def squared_errors_of_slope(self, ahead_s: float, window_s: float, dampings: Sequence[float]) -> list[float]:
        """Return the square of the error, by the mean of the past seasons, that extrapolation has at this phase.

        The slope is that of a `window_s`, times each of `dampings`; 0 is the last value.
        """
        window_s = max(window_s, self.record.history.step_s)
        changes = self._changes(np.array([ahead_s, -float(self.now.lag_s[0]) - window_s]))
        coming = float(np.maximum(*changes.means(self.weights))[0])
        slope = -float(np.nan_to_num(_mean(changes.between(), self.weights)[1])) / window_s
        return [0.0 if math.isnan(coming) else (coming - each * slope * ahead_s) ** 2 for each in dampings]

    def squared_error(self, samples: Samples, trials: Sequence[tuple[int, int]]) -> float | None:
        """Return the mean squared error of the seasonal forecast on `trials`, None where it says nothing about them.

        Trials are pairs of indices of `samples`: when the forecast was made, and what it was for.
        """
        if not trials:
            return None
        levels = np.array([present_level(samples[: origin + 1]) for origin, _ in trials])
        at_s, target_s = (np.array([samples[trial[end]][0] for trial in trials]) for end in (0, 1))
        truth = np.array([samples[target][1] for _, target in trials]) - levels[:, 0]
        origins = self.record.origins(samples, at_s, levels[:, 0], levels[:, 1])
        changes = self.record.changes(origins, target_s - at_s, self.scales)
        return _mean_square(_missed(*changes.means(self.weights), truth))

    def without_season(self, samples: Samples) -> list[tuple[float, float]] | None:
        """Return `samples` less what the season changed since each of them, None where no season says it."""
        times_s = np.array([at_s for at_s, _ in samples])
        trend = _mean(self._changes(times_s - self.now.at_s).between(), self.weights)
        if np.isnan(trend).any():
            return None
        return [(at_s, load - float(by)) for (at_s, load), by in zip(samples, trend, strict=True)]

    def _changes(self, ahead_s: Floats) -> _Changes:
        return self.record.changes(self.now, ahead_s, self.scales)

    def _expected(self, ahead_s: Floats) -> tuple[Floats, Floats]:
        """Return the expected change until each of `ahead_s`, and its error; NaN where it or its error is not known."""
        changes = self._changes(ahead_s)
        one, other = changes.means(self.weights)
        expected, coming = np.maximum(one, other), np.where(one >= other, changes.before, changes.after)
        known = ~np.isnan(coming)
        count = known.sum(axis=0)
        # Each season against the others, with even weights: its distance from their mean.
        among = _mean((coming - expected) ** 2, self.weights) * (count / np.maximum(1, count - 1)) ** 2
        unskilled = (1 - self.skill) * expected**2
        if self.recent_error is None:  # of one season alone nothing says how wrong it is
            return expected, np.sqrt(np.where(count > 1, among, np.nan) + unskilled)
        recent = self.recent_error**2 * np.minimum(1.0, ahead_s / self.tried_s)
        return expected, np.sqrt(np.maximum(np.where(count > 1, among, 0.0), recent) + unskilled)


def season(history: DemandHistory, samples: Samples, now_s: float, ahead_s: float) -> Season | Absence:
    """Return what `history` says at `now_s` about the times `ahead_s` later, beside the recent `samples`.

    `samples` are at least one, and none is after `now_s`.
    """
    if history.unit is None:
        return Absence(reason=AbsenceReason.MISSING, detail="its unit is not known before both queries have a number")
    record = Record.of(history)
    if history.seasons < 1 or record.nothing <= 0:
        return Absence(reason=AbsenceReason.MISSING, detail="less than one season of demand is recorded")
    level, lag_s = present_level(samples)
    tried_s = max(ahead_s, history.season_s / TRIED)
    ages_s = history.season_s * np.arange(TRIED) / TRIED
    counts = np.exp(-ages_s / (DECAY * history.season_s))
    origins_s = now_s - tried_s - ages_s
    then = record.today(samples, origins_s)
    truth = record.today(samples, origins_s + tried_s) - then
    scales = _scales(record, origins_s, then, counts)
    origins = record.origins(samples, origins_s, then, np.zeros(TRIED))
    changes = record.changes(origins, np.full(TRIED, tried_s), scales)
    errors = _missed(changes.before, changes.after, truth)
    squared = _mean(errors.T**2, counts)
    # A season that cannot be tried is taken to be as wrong as the others on average.
    tried = ~np.isnan(squared)
    squared[~tried] = squared[tried].mean() if tried.any() else 0.0
    weights = 1 / (squared + CHANCE * squared.min() + (LEAST_ERROR * level) ** 2 + 1e-12)
    weights /= weights.sum()
    missed = _missed(*changes.means(weights), truth) ** 2
    error = float(_mean(missed[:, None], counts)[0])
    # Relative to the load of the hours around, so that a season of much load does not decide alone.
    hours = np.ones(TRIED // 4 + 1)
    around = np.convolve(np.nan_to_num(then), hours, "same") / np.convolve(~np.isnan(then), hours, "same").clip(1)
    better = np.nan_to_num((truth**2 - missed) / (around**2 + 1e-12)) * counts
    gain, loss = better[better > 0].sum(), -better[better < 0].sum()
    return Season(
        record=record,
        now=record.origins(samples, *(np.array([value]) for value in (now_s, level, lag_s))),
        weights=weights,
        scales=scales,
        recent_error=None if math.isnan(error) else math.sqrt(error),
        tried_s=tried_s,
        skill=max(0.0, min(1.0, 2 * float((gain - loss) / (gain + loss)))) if gain + loss > 0 else 1.0,
    )


def present_level(samples: Samples) -> tuple[float, float]:
    """Return the mean of the samples of the last `LEVEL_S`, and how long before the last one they are on average."""
    end_s = samples[-1][0]
    loads, ages_s = [], []
    for at_s, load in reversed(samples):
        if at_s <= end_s - LEVEL_S:
            break
        loads.append(load)
        ages_s.append(end_s - at_s)
    return math.fsum(loads) / len(loads), math.fsum(ages_s) / len(ages_s)


def _scales(record: Record, at_s: Floats, levels: Floats, counts: Floats) -> Floats:
    """Return how many times as high as in each season the `levels` at `at_s` are; NaN where that is not known.

    It is the median over the times; `counts` says how much each of them counts.
    """
    past = record.past(at_s)
    known = (past > record.nothing) & ~np.isnan(levels)
    ratios = np.where(known, levels / np.where(known, past, 1.0), np.inf)
    order = np.argsort(ratios, axis=1)
    total = np.cumsum(np.take_along_axis(np.where(known, counts, 0.0), order, axis=1), axis=1)
    middle = (total < total[:, -1:] / 2).sum(axis=1)
    found = np.take_along_axis(ratios, np.take_along_axis(order, middle[:, None], axis=1), axis=1)[:, 0]
    return np.where(np.isfinite(found) & (found > 0), found, np.nan)


def _missed(one: Floats, other: Floats, truth: Floats) -> Floats:
    """Return how far `truth` is outside of the range from `one` to `other`; NaN where one of them is."""
    return np.maximum(0.0, truth - np.maximum(one, other)) + np.maximum(0.0, np.minimum(one, other) - truth)


def _mean(values: Floats, weights: Floats) -> Floats:
    """Return the mean over the seasons, weighted, of each column of `values`; NaN where no season has a value."""
    known = ~np.isnan(values)
    total = weights @ known
    mean = weights @ np.where(known, values, 0.0)
    return np.where(total > 0, mean / np.where(total > 0, total, 1.0), np.nan)


def _mean_square(values: Floats) -> float | None:
    """Return the mean square of the values that are known, None where there is none."""
    known = values[~np.isnan(values)]
    return float((known**2).mean()) if len(known) else None
