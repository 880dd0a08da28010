"""The score of a run, in the simulator and the lab: items, windows, cost, replica changes, cap violations.

Item counts cover the items that arrive in the scored time, [warmup_s, duration_s). Times are seconds since
the run began.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimizer.model import Sla
from optimizer.runtime.compiled import compiled

LOST_AFTER_SLAS = 10.0
"""An item without an answer for this many SLAs is lost."""
CALM_AFTER_S = 360.0
"""A window is calm when no fault is active in it or ended less than this long before it."""
MIN_WINDOW_ITEMS = 20
_SAME_MONEY = 1e-9


class Outcome(IntEnum):
    """The outcome of an item."""

    SERVED = 0
    FILTERED = 1
    """Ended by voice activity detection."""
    SHED = 2
    """Not admitted by the ingress, because the load exceeds what can be served within the SLA."""
    REFUSED = 3
    """Not sent, because its stream found no slot."""
    LOST = 4
    """Accepted, but refused by a stage or without an answer for 10 × SLA."""
    IN_FLIGHT = 5
    """Without an answer when the run ended."""


REQUIRED_SHARE = 0.995
"""The share of the scored windows in which the bound meets the SLA. A good policy reaches it too."""

SERVED, FILTERED, SHED, REFUSED, LOST, IN_FLIGHT = (int(outcome) for outcome in Outcome)
"""The values of Outcome as integers, for compiled code, which has no enumerations."""

# What a tally counts of a window; those of FILTERED to LOST in the order of Outcome.
_WITHIN, _LATE, _FILTERED, _SHED, _REFUSED, _LOST, _YOUNG, _OLD = range(8)
_KINDS = 8
_BIN_SHIFT = 42  # a float64 without its last 42 bits: bins a 1024th of an octave wide, at most 0.1 %
_BINS = 20 * 1024 + 2  # twenty octaves below 10 × SLA; what is faster still falls into the first


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Items:
    """The items of one pipeline, in any order, as arrays of shape (items,).

    `latency_s` is the time from arrival to the last answer, or, for an item in flight, its age when the run ended. It
    is ignored for items that were filtered, shed, refused or lost.
    """

    arrival_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    outcome: NDArray[np.uint8]

    def select(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> "Items":
        """Return the items chosen by a mask or by indexes."""
        return Items(arrival_s=self.arrival_s[chosen], latency_s=self.latency_s[chosen], outcome=self.outcome[chosen])


SlaChanges = Sequence[tuple[float, Sla]]
"""Pairs of a time in seconds and the SLA that holds from then on, in order of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The scored part of a run, [warmup_s, duration_s), in windows of `window_s` (the last one may be shorter)."""

    duration_s: float
    warmup_s: float
    window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The time [from_s, until_s). `until_s` is infinite without an end, and equals `from_s` for a single instant."""

    from_s: float
    until_s: float

    def overlaps(self, other: "Interval") -> bool:
        """Return whether the intervals have a point in time in common."""
        return self.from_s < other.until_s and other.from_s < self.until_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The items that arrived in one window, and whether the SLA was met.

    `sla` is the SLA in force when the window begins. `met` says whether enough of the items that were offered and not
    filtered were answered within the SLA; `met_admitted` leaves shed items out. Both are None if the window has too
    few items to be scored. `p95_s` is None if it is infinite, or if no item was served or lost. `late` counts the
    served items that missed the SLA.
    """

    t_s: float
    length_s: float
    sla: Sla
    offered: int
    served: int
    late: int
    filtered: int
    shed: int
    refused: int
    lost: int
    p95_s: float | None
    met: bool | None
    met_admitted: bool | None
    calm: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemScore:
    """The items of a run as results show them: offered = served + filtered + shed + refused + lost + in_flight.

    `late` counts those of the served that missed the SLA.

    `within_sla_share` = items within the SLA / items offered and not filtered. `sla_windows_met` is the share of the
    scored windows that met the SLA, `sla_windows_met_calm` the same for the calm ones among them, and
    `sla_windows_met_admitted` the share when shed items are left out. Shares are None if there is nothing to count.
    Percentiles are nearest-rank over accepted items, with lost ones as infinite; None where infinite, or without items.
    """

    windows: tuple[Window, ...]
    sla_windows_met: float | None
    sla_windows_met_calm: float | None
    sla_windows_met_admitted: float | None
    within_sla_share: float | None
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    offered: int
    served: int
    late: int
    filtered: int
    shed: int
    refused: int
    lost: int
    in_flight: int

    @property
    def scored_windows(self) -> int:
        """Return the number of windows that had enough items to be scored."""
        return sum(window.met is not None for window in self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A step function of time: `values[i]` from `times_s[i]` until the next time, 0 before the first. Times ascend."""

    times_s: Sequence[float]
    values: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.times_s) != len(self.values):
            raise ValueError(f"times_s: {len(self.times_s)} entries: must be as many as values ({len(self.values)})")
        if any(later < earlier for earlier, later in zip(self.times_s, self.times_s[1:], strict=False)):
            raise ValueError("times_s: must ascend")

    def at(self, t_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the value at each of `t_s`, in the same shape."""
        values = np.concatenate([[0.0], np.asarray(self.values, dtype=np.float64)])
        return values[np.searchsorted(np.asarray(self.times_s, dtype=np.float64), t_s, side="right")]

    def parts(self, from_s: float, until_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the constant parts between two times: their borders, from `from_s` to `until_s`, and their values."""
        edges = _edges([from_s, until_s], self.times_s)
        return edges, self.at(edges[:-1])


class TallyArrays(NamedTuple):
    """The arrays of a Tally, for compiled code: `observe` writes them.

    Attributes:
        counts: items by window and kind (`_WITHIN` to `_OLD`), shape (windows, 8).
        p95_s: the p95 of each closed window, NaN where there is none, shape (windows,).
        fine, peaks: histograms of the served items of the open windows: the number of items and the largest latency
            (s) in each bin, shape (open windows, bins).
        run_fine, run_peaks: the same for all closed windows together, shape (bins,).
        first_open: the index of the first open window, shape (1,).
        base: the latency bits of the first bin, shape (1,).
        slas: rows of a time and the SLA latency from then on, in seconds, shape (SLAs, 2).
        numbers: warm-up, duration and window length, in seconds, shape (3,).
    """

    counts: NDArray[np.int64]
    p95_s: NDArray[np.float64]
    fine: NDArray[np.int64]
    peaks: NDArray[np.float64]
    run_fine: NDArray[np.int64]
    run_peaks: NDArray[np.float64]
    first_open: NDArray[np.int64]
    base: NDArray[np.int64]
    slas: NDArray[np.float64]
    numbers: NDArray[np.float64]


class Tally:
    """Counts the outcomes of one pipeline's items, in memory that does not grow with their number.

    Percentiles come from a histogram whose bins are at most 0.1 % wide. The largest latency in a bin stands for the
    whole bin. A window is closed, and its p95 fixed, when an item arrives `open_windows` windows later. The latency of
    an item is compared with the SLA in force when the item arrived. The percentile of a window is that of the SLA when
    the window begins.
    """

    def __init__(self, sla: Sla, clock: Clock, *, changes: SlaChanges = (), open_windows: int = 1) -> None:
        """Begin without items. Items can be added to `open_windows` consecutive windows at a time."""
        self._slas = ((-math.inf, sla), *changes)
        self._clock = clock
        windows = max(0, math.ceil(round((clock.duration_s - clock.warmup_s) / clock.window_s, 9)))
        lost_after_s = np.array([LOST_AFTER_SLAS * max(sla.latency_s for _, sla in self._slas)])
        base = int(lost_after_s.view(np.int64)[0] >> _BIN_SHIFT) - _BINS + 2
        self.arrays = TallyArrays(
            counts=np.zeros((windows, _KINDS), dtype=np.int64),
            p95_s=np.full(windows, math.nan),
            fine=np.zeros((open_windows, _BINS), dtype=np.int64),
            peaks=np.zeros((open_windows, _BINS)),
            run_fine=np.zeros(_BINS, dtype=np.int64),
            run_peaks=np.zeros(_BINS),
            first_open=np.zeros(1, dtype=np.int64),
            base=np.array([base]),
            slas=np.array([(from_s, sla.latency_s) for from_s, sla in self._slas]),
            numbers=np.array([clock.warmup_s, clock.duration_s, clock.window_s]),
        )

    def record(self, items: Items) -> None:
        """Count items; items that arrive outside the scored time are ignored.

        Raises:
            ValueError: an item belongs to a window that is closed.
        """
        outcome = items.outcome.astype(np.uint8)
        if observe(self.arrays, len(outcome), items.arrival_s, items.latency_s, outcome):
            raise ValueError("arrival_s: in a window that is closed: items must come in the order of their windows")

    def copy(self) -> "Tally":
        """Return a tally with the same counts, which changes independently of this one."""
        (_, sla), *changes = self._slas
        twin = Tally(sla, self._clock, changes=changes, open_windows=len(self.arrays.fine))
        for mine, other in zip(self.arrays, twin.arrays, strict=True):
            other[...] = mine
        return twin

    def score(self, faults: Iterable[Interval] = ()) -> ItemScore:
        """Return the score of the recorded items; `faults` are the intervals of the scenario's faults."""
        counts = self.arrays.counts
        total = counts.sum(axis=0)
        windows = tuple(self._windows(tuple(faults)))
        served = int(total[_WITHIN] + total[_LATE])
        unfiltered = int(total.sum() - total[_FILTERED])
        return ItemScore(
            windows=windows,
            **_window_shares(windows),
            within_sla_share=int(total[_WITHIN]) / unfiltered if unfiltered else None,
            p50_s=self._percentile(50),
            p95_s=self._percentile(95),
            p99_s=self._percentile(99),
            offered=int(total.sum()),
            served=served,
            late=int(total[_LATE]),
            filtered=int(total[_FILTERED]),
            shed=int(total[_SHED]),
            refused=int(total[_REFUSED]),
            lost=int(total[_LOST]),
            in_flight=int(total[_YOUNG] + total[_OLD]),
        )

    def _percentile(self, percent: float) -> float | None:
        fine = self.arrays.run_fine + self.arrays.fine.sum(axis=0)
        peaks = np.maximum(self.arrays.run_peaks, self.arrays.peaks.max(axis=0))
        return _finite(ranked(fine, peaks, int(self.arrays.counts[:, _LOST].sum()), percent))

    def _windows(self, faults: tuple[Interval, ...]) -> Iterable[Window]:
        clock, arrays = self._clock, self.arrays
        disturbed = [
            Interval(from_s=fault.from_s, until_s=max(fault.from_s, fault.until_s) + CALM_AFTER_S) for fault in faults
        ]
        for number, counts in enumerate(arrays.counts):
            from_s = clock.warmup_s + number * clock.window_s
            span = Interval(from_s=from_s, until_s=min(from_s + clock.window_s, clock.duration_s))
            sla = next(sla for since_s, sla in reversed(self._slas) if since_s <= from_s)
            p95_s = arrays.p95_s[number]
            if number >= arrays.first_open[0]:
                slot = number % len(arrays.fine)
                is_open = number < arrays.first_open[0] + len(arrays.fine)
                fine = arrays.fine[slot] if is_open else np.zeros(_BINS, dtype=np.int64)
                p95_s = ranked(fine, arrays.peaks[slot], int(counts[_LOST]), 95.0)
            yield Window(
                t_s=from_s,
                length_s=span.until_s - span.from_s,
                sla=sla,
                offered=int(counts.sum()),
                served=int(counts[_WITHIN] + counts[_LATE]),
                late=int(counts[_LATE]),
                filtered=int(counts[_FILTERED]),
                shed=int(counts[_SHED]),
                refused=int(counts[_REFUSED]),
                lost=int(counts[_LOST]),
                p95_s=_finite(p95_s),
                met=_met(counts.tolist(), sla),
                met_admitted=_met(counts.tolist(), sla, without_shed=True),
                calm=not any(span.overlaps(interval) for interval in disturbed),
            )


@compiled
def observe(
    tally: TallyArrays,
    n: int,
    arrival_s: NDArray[np.float64],
    latency_s: NDArray[np.float64],
    outcome: NDArray[np.uint8],
) -> int:
    """Count the first `n` items; return how many were not counted because their window is closed."""
    counts, fine, peaks, first_open, slas = tally.counts, tally.fine, tally.peaks, tally.first_open, tally.slas
    warmup_s, duration_s, window_s = tally.numbers[0], tally.numbers[1], tally.numbers[2]
    windows, slots, base = len(counts), len(fine), tally.base[0]
    sla_s = lost_after_s = 0.0
    bits = latency_s.view(np.int64)
    late = 0
    window, slot, from_s, until_s = -1, 0, math.inf, -math.inf  # of the previous item
    for i in range(n):
        if not warmup_s <= arrival_s[i] < duration_s:
            continue
        if not from_s <= arrival_s[i] < until_s:
            window = min(int((arrival_s[i] - warmup_s) // window_s), windows - 1)
            # Well inside the window, so that rounding at its edges decides nothing.
            from_s = warmup_s + window * window_s + 1e-6
            until_s = from_s + window_s - 2e-6
            held = 0
            while held + 1 < len(slas) and slas[held + 1, 0] <= arrival_s[i]:
                held += 1
            from_s = max(from_s, slas[held, 0])
            if held + 1 < len(slas):
                until_s = min(until_s, slas[held + 1, 0])
            sla_s, lost_after_s = slas[held, 1], LOST_AFTER_SLAS * slas[held, 1]
            while window >= first_open[0] + slots:
                _close(tally)
            slot = window % slots
        if window < first_open[0]:
            late += 1
            continue
        spent, kind = latency_s[i], outcome[i]
        if kind == SERVED:
            if spent > lost_after_s:
                counts[window, _LOST] += 1
                continue
            counts[window, _LATE if spent > sla_s else _WITHIN] += 1
            index = min(max((bits[i] >> _BIN_SHIFT) - base, 0), _BINS - 1)
            fine[slot, index] += 1
            peaks[slot, index] = max(peaks[slot, index], spent)
        elif kind == IN_FLIGHT:
            counts[window, _LOST if spent > lost_after_s else (_OLD if spent > sla_s else _YOUNG)] += 1
        else:
            counts[window, _FILTERED + kind - FILTERED] += 1
    return late


@compiled
def _close(tally: TallyArrays) -> None:
    """Store the p95 of the first open window, and add its latencies to the histogram of the run."""
    window = tally.first_open[0]
    slot = window % len(tally.fine)
    fine, peaks = tally.fine[slot], tally.peaks[slot]
    if window < len(tally.counts):
        tally.p95_s[window] = ranked(fine, peaks, tally.counts[window, _LOST], 95.0)
    for index in range(_BINS):
        if fine[index] > 0:
            tally.run_fine[index] += fine[index]
            tally.run_peaks[index] = max(tally.run_peaks[index], peaks[index])
            fine[index] = 0
            peaks[index] = 0.0
    tally.first_open[0] = window + 1


@compiled
def ranked(fine: NDArray[np.int64], peaks: NDArray[np.float64], lost: int, percent: float) -> float:
    """Return the nearest-rank percentile (0–100) of latencies in seconds, `lost` of which are infinite.

    The finite ones are in a histogram: `fine` has the number of items in each bin, `peaks` the largest latency in it,
    which stands for the whole bin. NaN if the percentile is infinite or there are no items.
    """
    left = fine.sum() + lost
    left = max(1, np.int64(np.ceil(round(percent / 100 * left, 9))))
    for index in range(len(fine)):
        left -= fine[index]
        if left <= 0:
            return float(peaks[index])
    return float(np.nan)


def score_items(
    items: Items, sla: Sla, clock: Clock, faults: Iterable[Interval] = (), *, changes: SlaChanges = ()
) -> ItemScore:
    """Return the score of one pipeline's items; `faults` are the intervals of the scenario's faults.

    `changes` are the SLAs that later replace `sla`. An answer later than 10 × SLA, and an item in flight for longer
    than that, count as lost.
    """
    tally = Tally(sla, clock, changes=changes)
    tally.record(items.select(np.argsort(items.arrival_s, kind="stable")))
    return tally.score(faults)


def cost(cost_per_hour: Steps, clock: Clock) -> float:
    """Return the cost in USD over the scored time, from the cost per hour of the scheduled replicas."""
    edges, values = cost_per_hour.parts(clock.warmup_s, clock.duration_s)
    return float(np.sum(np.diff(edges) * values) / 3600)


def replica_changes(desired: Iterable[Steps], clock: Clock) -> int:
    """Return the number of replica changes, Σ|Δ desired| over all placements, in the scored time.

    The replicas desired when the scored time begins are not a change.
    """
    return sum(int(np.sum(np.abs(np.diff(series.parts(clock.warmup_s, clock.duration_s)[1])))) for series in desired)


def cap_violations(spend_per_hour: Steps, cap_per_hour: Steps, duration_s: float, excused: Iterable[Interval]) -> int:
    """Return how often spend exceeds the cap without an excuse, warm-up included; an unbroken excess counts once.

    Each of `excused` lasts from a price rise, a budget cut or a take-over until drain + 2 cycles later. In it an excess
    does not count while spend is at its lowest since the interval began.
    """
    excuses = tuple(excused)
    edges = _edges(
        [0.0, duration_s],
        [*spend_per_hour.times_s, *cap_per_hour.times_s, *(t for e in excuses for t in (e.from_s, e.until_s))],
    )
    starts = edges[:-1]
    spend = spend_per_hour.at(starts)
    excess = spend > cap_per_hour.at(starts) + _SAME_MONEY
    for excuse in excuses:
        inside = np.flatnonzero((starts >= excuse.from_s) & (starts < excuse.until_s))
        lowest = np.minimum.accumulate(spend[inside])
        excess[inside[spend[inside] <= lowest + _SAME_MONEY]] = False
    return int(np.count_nonzero(excess & ~np.concatenate([[False], excess[:-1]])))


def _edges(bounds: Sequence[float], times_s: Iterable[float]) -> NDArray[np.float64]:
    from_s, until_s = bounds
    within = (t for t in times_s if from_s < t < until_s)
    return np.unique(np.array([from_s, until_s, *within], dtype=np.float64))


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _met(counts: Sequence[int], sla: Sla, *, without_shed: bool = False) -> bool | None:
    """Return whether enough of a window's unfiltered items were within the SLA; None if too few arrived or count.

    Items in flight that may still be in time do not count, nor do shed items with `without_shed`.
    """
    if sum(counts) - counts[_FILTERED] < MIN_WINDOW_ITEMS:
        return None
    within = counts[_WITHIN]
    counted = within + counts[_LATE] + counts[_REFUSED] + counts[_LOST] + counts[_OLD]
    counted += 0 if without_shed else counts[_SHED]
    # Integers times 100 against the percentile: 95 of 100 items must not fail for 0.95 being a binary fraction.
    return within * 100 >= sla.percentile * counted - 1e-9 if counted else None


def _window_shares(windows: Sequence[Window]) -> dict[str, Any]:
    """Return the shares of the scored windows that met the SLA, named as in `ItemScore`."""
    return {
        "sla_windows_met": _share(window.met for window in windows),
        "sla_windows_met_calm": _share(window.met for window in windows if window.calm),
        "sla_windows_met_admitted": _share(window.met_admitted for window in windows),
    }


def _share(met: Iterable[bool | None]) -> float | None:
    scored = [own for own in met if own is not None]
    return sum(scored) / len(scored) if scored else None


def totals(scores: Sequence[ItemScore]) -> dict[str, Any]:
    """Return windows and items of several pipelines together, named as in `ItemScore`; `windows` is the scored ones."""
    names = ("offered", "served", "late", "filtered", "shed", "refused", "lost", "in_flight")
    return {
        **_window_shares([window for score in scores for window in score.windows]),
        "windows": sum(score.scored_windows for score in scores),
        **{name: sum(getattr(score, name) for score in scores) for name in names},
    }
