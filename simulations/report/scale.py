"""The axes of charts: their ticks, and the position of a value between the ends."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
_LOG_SPAN = 12.0
"""Beyond this ratio of the largest to the smallest value, a linear axis would flatten the small ones."""
_LOG_TICKS = (1, 2, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis from `low` to `high`, logarithmic if `log`; all `ticks` are between these."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value: 0 at the low end, 1 at the high one; values outside are at the nearer end."""
        inside = min(max(value, self.low), self.high)
        if self.log:
            return math.log(inside / self.low) / math.log(self.high / self.low)
        return (inside - self.low) / (self.high - self.low)


def from_zero(values: Iterable[float], *, ticks: int = 4, whole: bool = False) -> Axis:
    """Return a linear axis from 0 to a round number, at least the largest finite value; about `ticks` ticks.

    With `whole` all ticks are whole numbers.
    """
    top = max((value for value in values if math.isfinite(value)), default=0.0)
    return _linear(0.0, max(top, ticks) if whole else top if top > 0 else 1.0, ticks, whole=whole)


def around(values: Iterable[float], *, ticks: int = 5) -> Axis:
    """Return a linear axis that covers all finite `values` with a margin at both ends, but does not go below 0."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    air = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return _linear(max(0.0, low - air), high + air, ticks)


def of_latencies(values: Iterable[float]) -> Axis:
    """Return an axis for latencies in seconds: linear from 0, or logarithmic if their ratio exceeds `_LOG_SPAN`."""
    known = [value for value in values if value > 0 and math.isfinite(value)]
    if not known or max(known) / min(known) <= _LOG_SPAN:
        return from_zero(known)
    marks = [
        digit * 10.0**power
        for power in range(math.floor(math.log10(min(known))), math.ceil(math.log10(max(known))) + 1)
        for digit in _LOG_TICKS
    ]
    low = max(mark for mark in marks if mark <= min(known) * (1 + 1e-9))
    high = min(mark for mark in marks if mark >= max(known) * (1 - 1e-9))
    inside = [mark for mark in marks if low <= mark <= high]
    return Axis(low=low, high=high, ticks=tuple(_thinned(inside)), log=True)


def of_time(from_s: float, until_s: float, *, ticks: int = 6) -> Axis:
    """Return an axis of time in seconds, with at most about `ticks` ticks, at round times."""
    step = next((s for s in _TIME_STEPS_S if (until_s - from_s) / s <= ticks), _TIME_STEPS_S[-1])
    first, last = math.ceil(from_s / step - 1e-9), math.floor(until_s / step + 1e-9)
    return Axis(low=from_s, high=until_s, ticks=tuple(float(step * n) for n in range(first, last + 1)))


def _linear(low: float, high: float, ticks: int, *, whole: bool = False) -> Axis:
    raw = (high - low) / ticks
    power = 10.0 ** math.floor(math.log10(raw))
    steps = (factor * power for factor in _STEPS)
    step = next(step for step in steps if step >= raw * (1 - 1e-9) and not (whole and step % 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    marks = tuple(float(f"{n * step:.12g}") for n in range(first, last + 1))
    return Axis(low=marks[0], high=marks[-1], ticks=marks)


def _thinned(marks: Sequence[float]) -> Sequence[float]:
    """Keep the powers of ten where there are too many marks."""
    powers = [mark for mark in marks if math.isclose(mark, 10.0 ** round(math.log10(mark)))]
    return marks if len(marks) <= 7 or not powers else powers
