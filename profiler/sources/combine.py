"""Combines the values of the pods into the reading of a placement. Pure.

A sum needs all pods; a mean, ratio, maximum or percentile needs at least half of them. A value outside ±`ABSURD` counts
as not reported.
"""

import math
from collections.abc import Container, Mapping, Set
from dataclasses import dataclass

from profiler.samples import ABSURD, Absence, AbsenceReason, AtLeast, Reading, sane
from profiler.sources.presets import Combine, Edge, Formula

_SHOWN = 3
_NO_BUCKETS = Absence(reason=AbsenceReason.NOT_A_NUMBER, detail="the histogram has no +Inf bucket, or only that one")
"""Most names of pods in a message."""
Pod = tuple[str, str]
"""Namespace and name."""
Buckets = Mapping[float, float]
"""The cumulative rate of each bucket of a histogram, by upper bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """Which of the `expected` pods have recent samples (`fresh`), and which have only older ones (`stale`).

    The others count for pods that are `excused`: each of these is taken to be as the mean of the others.
    """

    expected: Set[Pod]
    fresh: Set[Pod]
    stale: Set[Pod]
    excused: Set[Pod] = frozenset()

    @property
    def factor(self) -> float:
        """Return by what to multiply a sum over the pods that are not excused."""
        return len(self.expected) / (len(self.expected) - len(self.excused))


def reporting(
    expected: Set[Pod], ages_s: Mapping[Pod, float], max_age_s: float, long_silent: Set[Pod] = frozenset()
) -> Reporting:
    """Return which of the `expected` pods report; `ages_s` has the age in seconds of each pod's newest sample.

    Those of `long_silent` without a sample are excused if they are at most half of the pods.
    """
    fresh = {pod for pod in expected if ages_s.get(pod, math.inf) <= max_age_s}
    excused = {pod for pod in long_silent & expected if pod not in ages_s}
    return Reporting(
        expected=expected,
        fresh=fresh,
        stale={pod for pod in expected - fresh if pod in ages_s},
        excused=excused if 2 * len(excused) <= len(expected) else frozenset(),
    )


def combine_values(how: Combine, pods: Reporting, values: Mapping[Pod, float]) -> Reading:
    """Return the sum, mean or maximum of the pods' values; absent if too few pods report one.

    `values` may have those of other pods too.
    """
    finite = [value for pod in pods.fresh if (value := values.get(pod)) is not None and sane(value)]
    absence = _too_few(pods, len(finite), values, needs_all=how is Combine.SUM)
    if absence is not None:
        return absence
    if how is Combine.MAX:
        return max(finite)
    # Growth rates of gauges are part of some sums and may leave them slightly negative.
    total = max(0.0, math.fsum(finite))
    return _concluded(total * pods.factor if how is Combine.SUM else total / len(finite))


def combine_ratio(
    pods: Reporting, above: Mapping[Pod, float], below: Mapping[Pod, float], *, positive: bool = False
) -> Reading:
    """Return Σ above / Σ below over the pods that report both values; absent if these are too few or idle.

    A `positive` ratio is absent where it is 0: the server counts items, but does not measure what they take.
    """
    both = [pod for pod in pods.fresh if sane(above.get(pod, math.nan)) and sane(below.get(pod, math.nan))]
    absence = _too_few(pods, len(both), above, below, needs_all=False)
    if absence is not None:
        return absence
    denominator = math.fsum(below[pod] for pod in both)
    if denominator <= 0:
        return Absence(reason=AbsenceReason.NO_TRAFFIC)
    numerator = math.fsum(above[pod] for pod in both)
    if positive and numerator == 0:
        return Absence(reason=AbsenceReason.UNSUPPORTED, detail="the server reports 0 for every item")
    return _concluded(numerator / denominator)


def summed_buckets(pods: Reporting, buckets: Mapping[Pod, Buckets]) -> Buckets | Absence:
    """Return the sum of the pods' histograms, for the bounds that all pods have; absent if too few pods report."""
    finite = {
        pod: buckets[pod] for pod in pods.fresh if pod in buckets and all(sane(rate) for rate in buckets[pod].values())
    }
    absence = _too_few(pods, len(finite), buckets, needs_all=False)
    if absence is not None:
        return absence
    bounds = set.intersection(*(set(own) for own in finite.values()))
    return {bound: math.fsum(own[bound] for own in finite.values()) for bound in bounds}


def of_histogram(formula: Formula, summed: Buckets | Absence) -> Reading:
    """Return what `formula` reads off the histogram `summed`, a quantile or the variation; absent where `summed` is."""
    if isinstance(summed, Absence):
        return summed
    if formula.scale != 1:
        summed = {bound * formula.scale: rate for bound, rate in summed.items()}
    if formula.quantile is None:
        reading = histogram_variation(summed)
    else:
        reading = histogram_quantile(formula.quantile, summed, formula.edge)
    return reading if isinstance(reading, Absence) else _concluded(reading)


def histogram_variation(buckets: Buckets) -> Reading:
    """Return the coefficient of variation of the values that a histogram counts, `AtLeast` where some are above it.

    Values count as the middle of their bucket, or as the last finite bound. At three buckets per decade (1, 2, 5) the
    result is 0.05 too high on average, for lengths with a coefficient of variation of 0.5 to 2.
    """
    bounds = sorted(buckets)
    if len(bounds) < 2 or bounds[-1] != math.inf:
        return _NO_BUCKETS
    if buckets[math.inf] <= 0:
        return Absence(reason=AbsenceReason.NO_TRAFFIC)
    counted: list[tuple[float, float]] = []
    lower_bound = below = 0.0
    for bound in bounds:
        up_to = max(below, buckets[bound])  # as in `histogram_quantile`
        counted.append((lower_bound if bound == math.inf else (lower_bound + bound) / 2, up_to - below))
        lower_bound, below = bound, up_to
    total = math.fsum(rate for _, rate in counted)
    mean = math.fsum(middle * rate for middle, rate in counted) / total
    if mean <= 0:
        return Absence(reason=AbsenceReason.NOT_A_NUMBER, detail="the histogram counts nothing above zero")
    # Around the mean: the difference of two large sums would be 1e-8 where all values are of one bucket.
    variation = math.sqrt(math.fsum((middle - mean) ** 2 * rate for middle, rate in counted) / total) / mean
    return AtLeast(variation) if counted[-1][1] > 0 else variation


def histogram_quantile(quantile: float, buckets: Buckets, edge: Edge = Edge.INSIDE) -> Reading:
    """Return a quantile (0–1) of a histogram, interpolated within its bucket as by PromQL's histogram_quantile.

    Interpolation is linear, and the first bucket starts at zero. A quantile above the last finite bound is `AtLeast`
    that bound. `edge` selects a bound of the bucket instead of the interpolated value.
    """
    bounds = sorted(buckets)
    if len(bounds) < 2 or bounds[-1] != math.inf:
        return _NO_BUCKETS
    total = buckets[math.inf]
    if total <= 0:
        return Absence(reason=AbsenceReason.NO_TRAFFIC)
    rank = quantile * total
    lower_bound, below = 0.0, 0.0
    for bound in bounds[:-1]:
        # Each bucket's rate is extrapolated separately, so a cumulative rate may fall by a rounding error.
        up_to = max(below, buckets[bound])
        if up_to >= rank:
            if edge is not Edge.INSIDE:
                return lower_bound if edge is Edge.FLOOR else bound
            return lower_bound + (bound - lower_bound) * (rank - below) / (up_to - below)
        lower_bound, below = bound, up_to
    return AtLeast(bounds[-2])


def whole_answer_percentile(
    coarse: Reading, *, bucket: tuple[Reading, Reading], first: Reading, means: tuple[Reading, Reading]
) -> Reading:
    """Return a percentile of the time to the end of an answer, in seconds, where its histogram has wide buckets.

    `coarse` is the interpolated percentile, and `bucket` has the bounds of its bucket. In the lowest bucket, the result
    is instead `first`, the percentile of the time to the first token, plus the mean time from the first token to the
    end, at most the upper bound. `means` has the mean times to the end and to the first token. Interpolation within a
    lowest bucket of 0.3 s reads an answer of 20 ms as 285 ms.
    """
    match coarse, *bucket, first, *means:
        case float(), 0.0, float() as ceiling_s, float() as first_s, float() as mean_s, float() as first_mean_s:
            return min(ceiling_s, first_s + max(0.0, mean_s - first_mean_s))
    return coarse


def _concluded(value: float) -> Reading:
    """Return `value`, or an absence if it is outside ±`ABSURD` although its parts are not."""
    if sane(value):
        return value
    return Absence(reason=AbsenceReason.NOT_A_NUMBER, detail=f"{value:g}: must be at most {ABSURD:g}")


def _too_few(pods: Reporting, usable: int, *found: Container[Pod], needs_all: bool) -> Absence | None:
    """Return the absence if too few pods have a `usable` value, else None; pods in all of `found` have any value."""
    expected = len(pods.expected) - len(pods.excused)
    needed = expected if needs_all else math.ceil(expected / 2)
    if usable and usable >= needed:
        return None
    reported = {pod for pod in pods.fresh if all(pod in each for each in found)}
    silent = (pods.expected - pods.fresh - pods.stale - pods.excused) | (pods.fresh - reported)
    if usable:
        reason = AbsenceReason.PARTIAL
    elif reported:
        reason = AbsenceReason.NOT_A_NUMBER
    elif pods.stale:
        reason = AbsenceReason.STALE
    else:
        reason = AbsenceReason.MISSING
    parts = [f"{usable} of {expected} pods"]
    parts += [f"{len(pods.stale)} stale ({_names(pods.stale)})"] if pods.stale else []
    parts += [f"{len(silent)} silent ({_names(silent)})"] if silent else []
    return Absence(reason=reason, detail=", ".join(parts))


def _names(pods: Set[Pod]) -> str:
    names = sorted(name for _, name in pods)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
