"""What was measured of the service times of a placement's batches: one mean for each class of sizes. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from optimizer.model import require

SIZE_MEMORY_S = 12 * 3600.0
"""Time constant with which the means of each size lose weight: the sizes of a busy hour are known until the next."""
MEMORY_S = 3600.0
"""Time constant of the mean over all sizes, which newer measurements are checked against."""
MOST_WEIGHT = 32.0
"""The largest weight of the mean of one size: older measurements of it are then forgotten for newer ones."""
CLASS_RATIO = 1.5
"""Largest over smallest size of a class, so that a few dozen means say all of any server."""
LEAST_WEIGHT = 4.0
"""The fewest independent measurements that say something."""
MOST_CHANGE = 4.0
"""A measurement counts as at most this many times longer or shorter than those before it allow, so that one absurd
sample does little harm. While fewer than `LEAST_WEIGHT` are known, the newest replaces those that it contradicts."""
CONTRADICTION = 0.25
"""A measurement that is further (in log time) from those of its own size shows that what serves has changed: the other
sizes then lose half of the weight that is new."""
SMALLEST, LARGEST = 1e-9, 1e9
"""Bounds of the weights, sizes and times (s) of measurements; squares of them are within the range of a float."""
_NEGLIGIBLE = 0.01  # weight below which the mean of a size is forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTimes:
    """Measured service times of batches of about one size: weighted means of size and time, and their weight."""

    weight: float
    batch: float
    time_s: float

    def __post_init__(self) -> None:
        """Refuse values that no measurement gives: an edited status must not stop the cycle of all pipelines."""
        _require_measured(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimes:
    """Measured service times of batches: the total `weight` of the measurements, and means of size and time over them.

    `variance` is that of one measurement, relative to the mean of its size. `sizes` are the means by size, in ascending
    order; none are those of a status that was written before sizes were kept apart.
    """

    weight: float
    batch: float
    time_s: float
    variance: float = 0.0
    sizes: tuple[SizeTimes, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that no measurement gives."""
        _require_measured(self)
        require(0 <= self.variance <= LARGEST, "variance", self.variance, f"must be 0 to {LARGEST:g}")
        ascending = all(one.batch < other.batch for one, other in pairwise(self.sizes))
        require(ascending, "sizes", [own.batch for own in self.sizes], "must ascend")

    @property
    def by_size(self) -> tuple[SizeTimes, ...]:
        """The means by size, at least one."""
        return self.sizes or (SizeTimes(weight=self.weight, batch=self.batch, time_s=self.time_s),)


def _require_measured(times: SizeTimes | BatchTimes) -> None:
    for name in ("weight", "batch", "time_s"):
        value = getattr(times, name)
        require(SMALLEST <= value <= LARGEST, name, value, f"must be {SMALLEST:g} to {LARGEST:g}")


def measurable(value: float) -> float:
    """Return the nearest value that a measurement may have."""
    return min(LARGEST, max(SMALLEST, value))


def with_measurement(
    times: BatchTimes | None, batch: float, time_s: float, *, weight: float, age_s: float
) -> BatchTimes:
    """Return `times`, which are `age_s` old, with a measurement of mean service time `time_s` at mean size `batch`.

    `weight` is the share of the measurement that is new: consecutive windows overlap.
    """
    time_s, weight = measurable(time_s), max(SMALLEST, weight)
    first = BatchTimes(
        weight=weight, batch=batch, time_s=time_s, sizes=(SizeTimes(weight=weight, batch=batch, time_s=time_s),)
    )
    if times is None:
        return first
    low, high = _allowed_s(times, batch)
    low, high = max(SMALLEST, low / MOST_CHANGE), min(LARGEST, high * MOST_CHANGE)
    if times.weight < LEAST_WEIGHT and not low <= time_s <= high:
        return first
    time_s, age_s = min(high, max(low, time_s)), max(0.0, age_s)
    total = times.weight * math.exp(-age_s / MEMORY_S) + weight
    new = weight / total
    sizes, deviation = _with_size(_weighted(times.by_size, math.exp(-age_s / SIZE_MEMORY_S)), batch, time_s, weight)
    return BatchTimes(
        weight=total,
        batch=times.batch + new * (batch - times.batch),
        time_s=times.time_s + new * (time_s - times.time_s),
        variance=times.variance if deviation is None else times.variance + new * (deviation**2 - times.variance),
        sizes=sizes,
    )


def with_times(times: BatchTimes, times_s: Mapping[float, float]) -> BatchTimes:
    """Return `times` with other service times (s) of its sizes, by their mean batch."""
    sizes = tuple(replace(own, time_s=measurable(times_s[own.batch])) for own in times.by_size)
    before_s = math.fsum(own.weight * own.time_s for own in times.by_size)
    by = math.fsum(own.weight * own.time_s for own in sizes) / before_s
    return replace(times, time_s=measurable(times.time_s * by), sizes=sizes)


def _allowed_s(times: BatchTimes | SizeTimes, batch: float) -> tuple[float, float]:
    """Return the shortest and longest time of a batch of `batch` items: none or all of the time is per item."""
    one, other = times.time_s, times.time_s * batch / times.batch
    return min(one, other), max(one, other)


def _weighted(sizes: Iterable[SizeTimes], share: float) -> list[SizeTimes]:
    """Return `sizes` with `share` of their weights, without those of which next to nothing is left."""
    return [
        SizeTimes(weight=own.weight * share, batch=own.batch, time_s=own.time_s)
        for own in sizes
        if own.weight * share > _NEGLIGIBLE
    ]


def _with_size(
    sizes: list[SizeTimes], batch: float, time_s: float, weight: float
) -> tuple[tuple[SizeTimes, ...], float | None]:
    """Return `sizes` with a measurement, and by how much (log time) it differs from the mean of its own size."""
    own = next((size for size in sizes if size_class(size.batch) == size_class(batch)), None)
    others = [size for size in sizes if size is not own]
    deviation = None
    if own is not None:
        low, high = _allowed_s(own, batch)
        deviation = math.log(time_s / math.sqrt(low * high))
        if time_s > high * math.exp(CONTRADICTION) or time_s < low * math.exp(-CONTRADICTION):
            others = _weighted(others, 1 - min(1.0, weight) / 2)
        total = min(MOST_WEIGHT, own.weight + weight)
        new = min(1.0, weight / total)
        batch, time_s = own.batch + new * (batch - own.batch), own.time_s + new * (time_s - own.time_s)
        weight = total
    merged = [*others, SizeTimes(weight=weight, batch=batch, time_s=time_s)]
    return tuple(sorted(merged, key=lambda size: size.batch)), deviation


def size_class(batch: float) -> int:
    """Return the class of sizes of a batch."""
    return max(0, round(math.log(batch, CLASS_RATIO)))
