"""How a run is scored, the same for the simulator and the lab: items, windows, money, changes.

Everything about items is counted over those that arrive in scored time, [warmup_s, duration_s). Times are seconds since
the run began.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

LOST_AFTER_SLAS = 10.0
"""An item without an answer for this many SLAs is lost."""
CALM_AFTER_S = 360.0
"""A window is calm when no fault began or ended this recently."""
MIN_WINDOW_ITEMS = 20
_SAME_MONEY = 1e-9


class Outcome(IntEnum):
    """What became of an item."""

    SERVED = 0
    FILTERED = 1
    """Voice activity detection ended its way."""
    SHED = 2
    """Turned away at the ingress, beyond what can be served within the SLA."""
    LOST = 3
    """Refused, or without an answer for 10 × SLA."""
    IN_FLIGHT = 4
    """Without an answer when the run ended."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Items:
    """The items of one pipeline, arrays of shape (items,), in any order.

    `latency_s` is from arrival to the last answer; for an item in flight, its age when the run ended. It is not looked
    at for items that were filtered, shed or lost.
    """

    arrival_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    outcome: NDArray[np.uint8]

    def select(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> "Items":
        """The items that a mask or indexes choose."""
        return Items(arrival_s=self.arrival_s[chosen], latency_s=self.latency_s[chosen], outcome=self.outcome[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sla:
    """`percentile` percent of the items are to be answered within `latency_s`."""

    latency_s: float
    percentile: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """What part of a run is scored, in windows of `window_s` (the last one may be shorter)."""

    duration_s: float
    warmup_s: float
    window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """[from_s, until_s); `until_s` is infinite for what does not end, and equals `from_s` for what happens at once."""

    from_s: float
    until_s: float

    def overlaps(self, other: "Interval") -> bool:
        """Whether they have an instant in common."""
        return self.from_s < other.until_s and other.from_s < self.until_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window. `met` is None where it is not scored; `p95_s` is None without items that count, or when infinite."""

    t_s: float
    length_s: float
    offered: int
    served: int
    p95_s: float | None
    met: bool | None
    calm: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemScore:
    """The items of a run: offered = served + filtered + shed + lost + in_flight.

    `within_sla_share` = items within the SLA / items offered and not filtered. Shares are None where there is nothing
    to share; percentiles (nearest rank, lost items infinite) are None when infinite or without items.
    """

    windows: tuple[Window, ...]
    sla_windows_met: float | None
    sla_windows_met_calm: float | None
    within_sla_share: float | None
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    offered: int
    served: int
    filtered: int
    shed: int
    lost: int
    in_flight: int

    @property
    def scored_windows(self) -> int:
        """The number of windows that had enough items to be scored."""
        return sum(window.met is not None for window in self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A step function: `values[i]` holds from `times_s[i]` until the next one; 0 before the first. Times ascend."""

    times_s: Sequence[float]
    values: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.times_s) != len(self.values):
            raise ValueError(f"times_s: {len(self.times_s)} entries: must be as many as values ({len(self.values)})")
        if any(later < earlier for earlier, later in zip(self.times_s, self.times_s[1:], strict=False)):
            raise ValueError("times_s: must ascend")

    def at(self, t_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values at these instants."""
        values = np.concatenate([[0.0], np.asarray(self.values, dtype=np.float64)])
        return values[np.searchsorted(np.asarray(self.times_s, dtype=np.float64), t_s, side="right")]

    def parts(self, from_s: float, until_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The constant parts between two instants: where each begins, with `until_s` last, and the value of each."""
        edges = _edges([from_s, until_s], self.times_s)
        return edges, self.at(edges[:-1])


def percentile(latencies_s: NDArray[np.float64], percent: float) -> float | None:
    """The nearest-rank percentile; None when it is infinite or there is nothing to rank."""
    if not len(latencies_s):
        return None
    rank = max(1, math.ceil(round(percent / 100 * len(latencies_s), 9)))
    value = float(np.partition(latencies_s, rank - 1)[rank - 1])
    return value if math.isfinite(value) else None


def score_items(items: Items, sla: Sla, clock: Clock, faults: Iterable[Interval] = ()) -> ItemScore:
    """Score the items of one pipeline; `faults` are the intervals in which the scenario disturbs the run.

    An answer later than 10 × SLA, and an item in flight for longer than that, count as lost.
    """
    scored = items.select((items.arrival_s >= clock.warmup_s) & (items.arrival_s < clock.duration_s))
    scored = _settled(scored, sla)
    outcome = scored.outcome
    counts = {kind: int(np.count_nonzero(outcome == kind)) for kind in Outcome}
    within = (outcome == Outcome.SERVED) & (scored.latency_s <= sla.latency_s)
    unfiltered = len(outcome) - counts[Outcome.FILTERED]
    latencies_s = _latencies(scored)
    windows = tuple(_windows(scored, sla, clock, tuple(faults)))
    return ItemScore(
        windows=windows,
        sla_windows_met=_share([window.met for window in windows if window.met is not None]),
        sla_windows_met_calm=_share([window.met for window in windows if window.met is not None and window.calm]),
        within_sla_share=int(np.count_nonzero(within)) / unfiltered if unfiltered else None,
        p50_s=percentile(latencies_s, 50),
        p95_s=percentile(latencies_s, 95),
        p99_s=percentile(latencies_s, 99),
        offered=len(outcome),
        served=counts[Outcome.SERVED],
        filtered=counts[Outcome.FILTERED],
        shed=counts[Outcome.SHED],
        lost=counts[Outcome.LOST],
        in_flight=counts[Outcome.IN_FLIGHT],
    )


def cost(cost_per_hour: Steps, clock: Clock) -> float:
    """USD over the scored time, of what scheduled replicas cost per hour, starting and draining ones included."""
    edges, values = cost_per_hour.parts(clock.warmup_s, clock.duration_s)
    return float(np.sum(np.diff(edges) * values) / 3600)


def replica_changes(desired: Iterable[Steps], clock: Clock) -> int:
    """Σ|Δ desired| over all placements in the scored time; what holds when it begins is no change."""
    return sum(int(np.sum(np.abs(np.diff(series.parts(clock.warmup_s, clock.duration_s)[1])))) for series in desired)


def cap_violations(spend_per_hour: Steps, cap_per_hour: Steps, duration_s: float, excused: Iterable[Interval]) -> int:
    """The number of maximal intervals of unexcused excess of spend over the cap, warm-up included.

    In an excused interval (from a price rise, a budget cut or a take-over until the drain + 2 cycles later) an excess
    is forgiven as long as spend is not above the lowest that it has been since the interval began.
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


def _settled(items: Items, sla: Sla) -> Items:
    """Items that took too long become lost ones, whether they were answered in the end or not."""
    too_late = items.latency_s > LOST_AFTER_SLAS * sla.latency_s
    answered = (items.outcome == Outcome.SERVED) | (items.outcome == Outcome.IN_FLIGHT)
    outcome = np.where(too_late & answered, np.uint8(Outcome.LOST), items.outcome)
    return Items(arrival_s=items.arrival_s, latency_s=items.latency_s, outcome=outcome)


def _latencies(items: Items) -> NDArray[np.float64]:
    """What percentiles are taken of: served items, and lost ones as infinite."""
    counted = items.select((items.outcome == Outcome.SERVED) | (items.outcome == Outcome.LOST))
    return np.where(counted.outcome == Outcome.LOST, math.inf, counted.latency_s)


def _windows(items: Items, sla: Sla, clock: Clock, faults: tuple[Interval, ...]) -> Iterable[Window]:
    disturbed = [
        Interval(from_s=fault.from_s, until_s=max(fault.from_s, fault.until_s) + CALM_AFTER_S) for fault in faults
    ]
    count = max(0, math.ceil(round((clock.duration_s - clock.warmup_s) / clock.window_s, 9)))
    index = np.minimum((items.arrival_s - clock.warmup_s) // clock.window_s, count - 1).astype(np.int64)
    order = np.argsort(index, kind="stable")
    bounds = np.searchsorted(index[order], np.arange(count + 1))
    for number in range(count):
        inside = items.select(order[bounds[number] : bounds[number + 1]])
        from_s = clock.warmup_s + number * clock.window_s
        span = Interval(from_s=from_s, until_s=min(from_s + clock.window_s, clock.duration_s))
        yield Window(
            t_s=from_s,
            length_s=span.until_s - span.from_s,
            offered=len(inside.outcome),
            served=int(np.count_nonzero(inside.outcome == Outcome.SERVED)),
            p95_s=percentile(_latencies(inside), 95),
            met=_met(inside, sla),
            calm=not any(span.overlaps(interval) for interval in disturbed),
        )


def _met(items: Items, sla: Sla) -> bool | None:
    """Whether enough items were within the SLA.

    Shed items stay out, as they do of percentiles. So does an item in flight that may still be in time.
    """
    if np.count_nonzero(items.outcome != Outcome.FILTERED) < MIN_WINDOW_ITEMS:
        return None
    within = int(np.count_nonzero((items.outcome == Outcome.SERVED) & (items.latency_s <= sla.latency_s)))
    late = (items.outcome == Outcome.LOST) | (
        ((items.outcome == Outcome.SERVED) | (items.outcome == Outcome.IN_FLIGHT)) & (items.latency_s > sla.latency_s)
    )
    counted = within + int(np.count_nonzero(late))
    # Integers times 100 against the percentile: 95 of 100 items must not fail for 0.95 being a binary fraction.
    return within * 100 >= sla.percentile * counted - 1e-9 if counted else None


def _share(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None
