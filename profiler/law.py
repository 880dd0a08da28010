"""Learns the service law of a placement whose numbers were not declared, from the batches that its replicas serve.

A weighted least-squares fit through the mean service times by size: a straight line, or one that begins behind a knee
(a roofline). What was never served is not known: beyond the largest sizes that were, a batch may take as much longer
as it is larger, and the error bar covers that. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from optimizer.model import ServiceLaw
from profiler.batch_times import LEAST_WEIGHT, BatchTimes, SizeTimes

KNOWN = 0.15
"""The largest relative error at which a law is known."""
ENOUGH_WEIGHT = 16.0
"""How many measurements are enough to plan with fewer replicas however much they scatter."""
ASSUMED_SHARE = 0.5
"""The share of the service time of a mean batch that is assumed to be per item, and the standard error of that share,
where measurements say nothing."""
EXPLORED = 1.5
"""Up to this multiple of the largest size seen a batch is planned half-way between what the fit and the safe side say:
if it were all on the safe side, no plan would ever let batches grow."""
KNEE_EVIDENCE = 4.0
"""A knee is fitted where it lowers the sum of squared standard errors by more than this."""
SAFE = 1.05
"""A law is known only where a full batch takes at most this many times longer than planned."""
MOST_STALL = 1.2
"""A prefill of up to this many times the time per item is one that stalls all others: both are measured."""
LEAST_NOISE = 0.02
"""The least relative error of one measurement: no server is steadier."""
_LEAST_ERROR = 0.03  # of what lies beyond the sizes seen
_LEAST_REST = 0.01  # of the time per item that is no prefill: a law without any time is none
_STRAIGHT = 0.015  # a law is written as a line where that changes a full batch by a smaller share


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLaw:
    """A service law, and the error bar of the service time of a full batch that it gives, as a share of it.

    It was measured up to batches of `measured_batch`. `known` says that the error is small, `enough` that the times of
    the sizes seen are known: plans may then use fewer replicas. Larger batches come only then, and until they do the
    law errs towards longer ones.
    """

    law: ServiceLaw
    relative_error: float
    known: bool
    enough: bool
    measured_batch: float


@dataclass(frozen=True, slots=True)
class _Fit:
    """T(b) = `time_at_knee_s` + `slope_s` · max(0, b − `knee`), with the covariance of both."""

    knee: float
    time_at_knee_s: float
    slope_s: float
    variance_time: float
    covariance: float
    variance_slope: float
    unexplained: float  # sum of squared standard errors

    def time_s(self, batch: float) -> float:
        return self.time_at_knee_s + self.slope_s * max(0.0, batch - self.knee)

    def deviation_s(self, batch: float) -> float:
        distance = max(0.0, batch - self.knee)
        variance = self.variance_time + 2 * distance * self.covariance + distance**2 * self.variance_slope
        return math.sqrt(max(0.0, variance))

    def law(self, cv: float) -> ServiceLaw:
        fixed_s = max(0.0, self.time_at_knee_s - self.slope_s * self.knee)
        return ServiceLaw(
            fixed_s=fixed_s, per_item_s=self.slope_s, floor_s=self.time_at_knee_s if self.knee else 0.0, cv=cv
        )


def fitted_law(times: BatchTimes, limit: int, cv: float) -> FittedLaw:
    """Return the law that fits `times` at a replica with batches of at most `limit` items."""
    sizes, noise = times.by_size, max(LEAST_NOISE, math.sqrt(times.variance))
    if limit == 1:
        error = noise / math.sqrt(times.weight)
        return _fitted(ServiceLaw(fixed_s=times.time_s, cv=cv), times, error, error, seen=1.0, safe=True)
    fit, seen = _fit(sizes, noise), _largest(sizes, limit)
    time_s, deviation_s, distance = fit.time_s(seen), fit.deviation_s(seen), limit - seen
    steepest = time_s / seen  # all of the time is per item
    doubted = fit.slope_s + _doubt(fit, seen, limit) * (steepest - fit.slope_s)
    planned = max(doubted, min(steepest, fit.slope_s + math.sqrt(fit.variance_slope)))
    step = min(float(limit), EXPLORED * seen)
    explored_s = time_s + (step - seen) * (fit.slope_s + planned) / 2
    full_s = explored_s + (limit - step) * planned
    least_slope = max(0.0, fit.slope_s - math.sqrt(fit.variance_slope)) / 4
    shortest_s = time_s + least_slope * distance
    longest_s = time_s + max(planned, steepest) * distance
    if distance < 1:  # the sizes seen are full ones
        shortest_s = longest_s = full_s
    measured_error = 2 * deviation_s / time_s
    beyond = _LEAST_ERROR if distance >= 1 else 0.0
    error = max(longest_s / full_s - 1, 1 - shortest_s / full_s) + measured_error + beyond
    law = fit.law(cv)
    if abs(law.mean_s(limit) / full_s - 1) > _STRAIGHT:
        law = _bent(fit, ((seen, time_s), (step, explored_s), (float(limit), full_s)), cv)
    return _fitted(law, times, error, measured_error, seen=seen, safe=longest_s <= SAFE * full_s)


def with_prefill(law: ServiceLaw, prefill_s: float) -> ServiceLaw:
    """Return the law of the work that is shared, where `law` is the time in service with the prefills of all.

    While n run, each waits for n prefills: what stalls all others is a part of the time per item. A prefill that is
    longer than that does not stall them (it is done in chunks between their steps), and `law` stays as it is.
    """
    if not law.linear or not 0 < prefill_s <= MOST_STALL * law.per_item_s:
        return law
    rest_s = max(_LEAST_REST * law.per_item_s, law.per_item_s - prefill_s)
    return replace(law, per_item_s=rest_s, prefill_s=prefill_s)


def _fitted(
    law: ServiceLaw, times: BatchTimes, error: float, measured_error: float, *, seen: float, safe: bool
) -> FittedLaw:
    known = times.weight >= LEAST_WEIGHT and error <= KNOWN and safe
    return FittedLaw(
        law=law,
        relative_error=error,
        known=known,
        enough=times.weight >= (LEAST_WEIGHT if measured_error <= KNOWN else ENOUGH_WEIGHT),
        measured_batch=seen,
    )


def _largest(sizes: Sequence[SizeTimes], limit: int) -> float:
    """Return the mean of the largest sizes that were measured often enough, at most `limit`."""
    weight = batch = 0.0
    for own in reversed(sizes):
        share = own.weight if weight + own.weight < LEAST_WEIGHT else LEAST_WEIGHT - weight
        weight, batch = weight + share, batch + share * own.batch
        if weight >= LEAST_WEIGHT:
            break
    return min(float(limit), max(1.0, batch / weight))


def _doubt(fit: _Fit, seen: float, limit: int) -> float:
    """Return how far (0 to 1) plans go from the slope of `fit` beyond `seen` to a time that is all per item.

    A law that has shown its knee, or half of whose time is per item, goes on as it is where half of the sizes were
    seen. One that has been flat so far may have its knee right behind.
    """
    if fit.knee > 0:
        return 1.0
    share = fit.slope_s * seen / fit.time_s(seen)
    return min(1.0, max(0.0, 1 - 2 * share, 1 - 2 * seen / limit))


def _fit(sizes: Sequence[SizeTimes], noise: float) -> _Fit:
    """Return the line through the means of `sizes`, or the one behind a knee where it explains them clearly better."""
    line = _line(sizes, noise, 0.0)
    inner = [own.batch for own in sizes[(0 if len(sizes) > 2 else 1) : -1]]
    bent = [_line(sizes, noise, knee) for knee in inner]
    best = min(bent, key=lambda fit: fit.unexplained, default=line)
    return best if best.unexplained < line.unexplained - KNEE_EVIDENCE else line


def _line(sizes: Sequence[SizeTimes], noise: float, knee: float) -> _Fit:
    """Return the fit with this knee: ridge regression towards the assumed share, of which no part is below 0."""
    assumed = ASSUMED_SHARE * (
        sum(own.weight * own.time_s for own in sizes) / sum(own.weight * own.batch for own in sizes)
    )
    # Times are measured from the weighted mean of the distances, which makes both parameters independent.
    weights = [own.weight / (noise * own.time_s) ** 2 for own in sizes]
    distances = [max(0.0, own.batch - knee) for own in sizes]
    precision = sum(weights)
    middle = sum(w * d for w, d in zip(weights, distances, strict=True)) / precision
    mean_s = sum(w * own.time_s for w, own in zip(weights, sizes, strict=True)) / precision
    spread = sum(w * (d - middle) ** 2 for w, d in zip(weights, distances, strict=True))
    shared = sum(w * (d - middle) * own.time_s for w, d, own in zip(weights, distances, sizes, strict=True))
    variance_slope = 1 / (spread + assumed**-2)
    slope_s = max(0.0, variance_slope * (shared + assumed**-1))
    variance_mean, lever = 1 / precision, middle
    if mean_s - slope_s * (middle + knee) < 0:  # all of the time beyond the knee is per item
        spans = [max(knee, own.batch) for own in sizes]
        square = sum(w * b * b for w, b in zip(weights, spans, strict=True))
        slope_s = sum(w * b * own.time_s for w, b, own in zip(weights, spans, sizes, strict=True)) / square
        variance_slope, variance_mean, lever = 1 / square, 0.0, -knee
        mean_s = slope_s * (middle + knee)
    at_knee_s = mean_s - slope_s * middle
    unexplained = sum(
        w * (own.time_s - at_knee_s - slope_s * d) ** 2 for w, d, own in zip(weights, distances, sizes, strict=True)
    )
    scale = max(1.0, unexplained / max(1, len(sizes) - (3 if knee else 2)))
    return _Fit(
        knee=knee,
        time_at_knee_s=at_knee_s,
        slope_s=slope_s,
        variance_time=scale * (variance_mean + lever**2 * variance_slope),
        covariance=-scale * lever * variance_slope,
        variance_slope=scale * variance_slope,
        unexplained=unexplained,
    )


def _bent(fit: _Fit, beyond: Sequence[tuple[float, float]], cv: float) -> ServiceLaw:
    """Return `fit` up to the first of the (batch, seconds) `beyond`, and the straight lines between these after it.

    Points have whole sizes: each takes the time of the bent line at the next whole size.
    """
    corners = [(1.0, fit.time_s(1.0)), (fit.knee, fit.time_s(fit.knee)), *beyond]
    corners = [(batch, time_s) for batch, time_s in corners if batch >= 1]
    points: dict[int, float] = {}
    for batch, _ in corners:
        points[math.ceil(batch)] = _interpolated(corners, math.ceil(batch))
    return ServiceLaw(points=tuple(sorted(points.items())), cv=cv)


def _interpolated(corners: Sequence[tuple[float, float]], batch: float) -> float:
    for (one, one_s), (other, other_s) in pairwise(corners):
        if batch <= other and other > one:
            return one_s + (batch - one) * (other_s - one_s) / (other - one)
    return corners[-1][1]
