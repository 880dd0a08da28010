"""Learns the service law of a placement whose numbers were not declared, from the batches that its replicas serve.

A weighted least-squares line through the mean service time of batches against their size. Sizes that hardly vary do not
show how much of the time is per item: until they do, half of it is assumed to be, with an error bar to match. Pure.
"""

import math
from dataclasses import dataclass

from optimizer.model import ServiceLaw, require

MEMORY_S = 3600.0
"""Time constant with which older measurements lose weight: what serves changes with its next release."""
KNOWN = 0.15
"""The largest relative error at which a law is known well enough to plan with fewer replicas than there are."""
LEAST_WEIGHT, ENOUGH_WEIGHT = 4.0, 16.0
"""The fewest independent measurements of a known law, and how many are enough whatever the error: sizes that have not
varied by then will not soon, and the law errs towards longer batches."""
ASSUMED_SHARE = 0.5
"""The share of the service time of a mean batch that is assumed to be per item, and the standard error of that share,
where measurements say nothing."""
MOST_CHANGE = 4.0
"""A measurement counts as at most this many times longer or shorter than those before it allow, so that one absurd
sample does little harm. While fewer than `LEAST_WEIGHT` are known, the newest replaces those that it contradicts."""
SMALLEST, LARGEST = 1e-9, 1e9
"""Bounds of the weights, sizes and times (s) of measurements; squares of them are within the range of a float."""
_LEAST_NOISE = 0.02  # relative error of one measurement; no server is steadier


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimes:
    """Measured service times of batches: weighted means over measurements, and their total `weight`.

    `batch` and `time_s` are the means of size and service time, `batch_variance`, `time_variance` and `covariance` the
    weighted second moments around them.
    """

    weight: float
    batch: float
    time_s: float
    batch_variance: float = 0.0
    time_variance: float = 0.0
    covariance: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that no measurement gives: an edited status must not stop the cycle of all pipelines."""
        for name in ("weight", "batch", "time_s"):
            value = getattr(self, name)
            require(SMALLEST <= value <= LARGEST, name, value, f"must be {SMALLEST:g} to {LARGEST:g}")
        for name in ("batch_variance", "time_variance", "covariance"):
            value = getattr(self, name)
            least = -(LARGEST**2) if name == "covariance" else 0.0
            require(least <= value <= LARGEST**2, name, value, f"must be {least:g} to {LARGEST**2:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLaw:
    """A service law and the relative standard error of the service time of a full batch that it gives."""

    law: ServiceLaw
    relative_error: float
    known: bool


def with_measurement(
    times: BatchTimes | None, batch: float, time_s: float, *, weight: float, age_s: float
) -> BatchTimes:
    """Return `times`, which are `age_s` old, with a measurement of mean service time `time_s` at mean size `batch`.

    `weight` is the share of the measurement that is new: consecutive windows overlap.
    """
    time_s, weight = min(LARGEST, max(SMALLEST, time_s)), max(SMALLEST, weight)
    if times is None:
        return BatchTimes(weight=weight, batch=batch, time_s=time_s)
    # Between none and all of the time is per item.
    one, other = times.time_s, times.time_s * batch / times.batch
    low, high = max(SMALLEST, min(one, other) / MOST_CHANGE), min(LARGEST, max(one, other) * MOST_CHANGE)
    if times.weight < LEAST_WEIGHT and not low <= time_s <= high:
        return BatchTimes(weight=weight, batch=batch, time_s=time_s)
    time_s = min(high, max(low, time_s))
    before = times.weight * math.exp(-max(0.0, age_s) / MEMORY_S)
    total = before + weight
    old, new = before / total, weight / total
    more, longer = batch - times.batch, time_s - times.time_s
    return BatchTimes(
        weight=total,
        batch=times.batch + new * more,
        time_s=times.time_s + new * longer,
        batch_variance=old * (times.batch_variance + new * more * more),
        time_variance=old * (times.time_variance + new * longer * longer),
        covariance=old * (times.covariance + new * more * longer),
    )


def fitted_law(times: BatchTimes, limit: int, cv: float) -> FittedLaw:
    """Return the law that fits `times` at a replica with batches of at most `limit` items.

    Where the share of the time that is per item is uncertain, the law errs towards longer batches: planned replicas
    then carry the load whatever the truth is.
    """
    mean_s = times.time_s
    if limit == 1:
        noise = max(_LEAST_NOISE, math.sqrt(times.time_variance) / mean_s)
        error = noise / math.sqrt(times.weight)
        law = ServiceLaw(fixed_s=mean_s, per_item_s=0.0, cv=cv)
        return FittedLaw(law=law, relative_error=error, known=_known(times, error))
    steepest = mean_s / times.batch  # all of the time is per item
    assumed, doubt = ASSUMED_SHARE * steepest, ASSUMED_SHARE * steepest
    measured = times.covariance / times.batch_variance if times.batch_variance > 0 else 0.0
    unexplained = max(0.0, times.time_variance - measured * times.covariance)
    noise2 = max((_LEAST_NOISE * mean_s) ** 2, unexplained)
    precision = times.weight * times.batch_variance / noise2
    variance = 1 / (precision + doubt**-2)
    evidence = times.weight * times.covariance / noise2  # precision times `measured`, which may be infinite
    slope = min(steepest, max(0.0, variance * (evidence + assumed * doubt**-2)))
    distance = limit - times.batch
    full_s = mean_s + slope * distance
    error = math.sqrt(noise2 / times.weight + distance**2 * variance) / full_s
    if error > KNOWN:
        slope = min(steepest, slope + math.sqrt(variance))
    law = ServiceLaw(fixed_s=max(0.0, mean_s - slope * times.batch), per_item_s=slope, cv=cv)
    return FittedLaw(law=law, relative_error=error, known=_known(times, error))


def _known(times: BatchTimes, error: float) -> bool:
    return times.weight >= (LEAST_WEIGHT if error <= KNOWN else ENOUGH_WEIGHT)
