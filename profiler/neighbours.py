"""Learns how replicas on one instance slow each other, from service times beside idle and busy neighbours. Pure.

On a card that is time-sliced, a batch takes longer while a neighbour computes: T = T_alone · (1 + Σ x·e), where e is
the exposure to a neighbour, its replicas on the same instance times their busy share, and x the addition while one is
busy. An additive model is simple, and near what cards do (encoder 1.66 times as long beside a decoder, 2.02 beside a
language model, on an H100). Batches grow with the load as exposures do, so times are compared with others of about
their size, and what the size still explains is a part of the fit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from optimizer.model import require
from profiler.batch_times import (
    LARGEST,
    SIZE_MEMORY_S,
    SMALLEST,
    BatchTimes,
    SizeTimes,
    measurable,
    size_class,
    with_times,
)
from profiler.law import LEAST_NOISE

Array = NDArray[np.float64]

MOST_NEIGHBOURS = 3
"""The most neighbours of a placement whose additions are learned; further ones do not count."""
MOST_ADDITION = 4.0
"""No neighbour slows a replica by more than this, whatever an absurd sample says."""
MOST_EXPOSURE = 64.0
"""The largest exposure that counts: so many busy neighbours on one instance."""
MOST_CHANGE = 4.0
"""A measurement counts as at most this many times above or below the mean of its size."""
KNOWN = 0.2
"""An addition is known where its standard error is below this, or below this share of it."""
ENOUGH_WEIGHT = 16.0
"""How many independent measurements an addition needs: a machine that is busy with something else for a while looks
like a neighbour."""
SIGNIFICANT = 3.0
"""An addition that is below so many of its standard errors is none."""
_PRIOR_PRECISION = 0.0025
"""Of the assumption that neighbours do not slow each other: noise of 5 % of a measurement against an addition of 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Replicas of a placement, `name`, on the instances of another one's replicas: `count` beside each, on average.

    They are busy for a share `busy` (0–1) of the time, None: not known. `planned` is the exposure to plan with: that on
    full instances at the planned load, whatever is beside a replica at the moment. Otherwise a plan with one replica
    would have it alone, and the next one would not.
    """

    name: str
    count: float
    busy: float | None
    planned: float

    @property
    def exposure(self) -> float | None:
        """Return the exposure to them now, None where it is not known."""
        return None if self.busy is None else self.count * self.busy


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeExposure:
    """Measurements of batches of one class of sizes: means of service time, log size, and exposures."""

    size: int
    weight: float
    time_s: float
    log_batch: float
    exposures: tuple[float, ...]

    @property
    def features(self) -> tuple[float, ...]:
        """Return what explains the times."""
        return (self.log_batch, *self.exposures)

    def __post_init__(self) -> None:
        """Refuse values that no measurement gives."""
        for name in ("weight", "time_s"):
            value = getattr(self, name)
            require(SMALLEST <= value <= LARGEST, f"interference {name}", value, f"must be {SMALLEST:g} to {LARGEST:g}")
        for value in self.features:
            require(0 <= value <= LARGEST, "interference exposure", value, f"must be 0 to {LARGEST:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """What was measured beside `neighbours` of a placement.

    `spread` has the weighted squares and products of the deviations of log size and exposures from the means of their
    class, row by row, `shared` their products with the deviations of the relative times, `square` the squares of these.
    """

    neighbours: tuple[str, ...] = ()
    sizes: tuple[SizeExposure, ...] = ()
    spread: tuple[float, ...] = (0.0,)
    shared: tuple[float, ...] = (0.0,)
    square: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that no measurement gives."""
        count = len(self.neighbours)
        fits = count <= MOST_NEIGHBOURS and len(self.spread) == (count + 1) ** 2 and len(self.shared) == count + 1
        fits = fits and all(len(size.exposures) == count for size in self.sizes)
        require(fits, "interference neighbours", count, "must fit the numbers")
        for value in (*self.spread, *self.shared, self.square):
            require(abs(value) <= LARGEST, "interference", value, f"must be within {LARGEST:g}")

    @property
    def weight(self) -> float:
        """Return the weight of all measurements."""
        return math.fsum(size.weight for size in self.sizes)


NOTHING = Interference()


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowding:
    """By how much neighbours slow a replica: `now`, and `planned` at the planned load, both as factors.

    `additions` has what is known of each neighbour, `unknown` those beside which nothing was compared yet.
    """

    now: float = 1.0
    planned: float = 1.0
    additions: Mapping[str, float] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()

    @property
    def growth(self) -> float:
        """Return by how much service times grow from now to the planned load; never below 1.

        Neighbours may always become busy again.
        """
        return max(1.0, self.planned / self.now)


UNCROWDED = Crowding()


def with_exposure(
    known: Interference, batch: float, time_s: float, exposures: Mapping[str, float], *, weight: float, age_s: float
) -> Interference:
    """Return `known`, which is `age_s` old, with a measurement: batches of mean size `batch` took `time_s`.

    `weight` is the share of the measurement that is new.
    """
    known = _with_names(known, exposures)
    kept = math.exp(-max(0.0, age_s) / SIZE_MEMORY_S)
    found = [min(MOST_EXPOSURE, max(0.0, exposures.get(name, 0.0))) for name in known.neighbours]
    features = [math.log(max(1.0, batch)), *found]
    size = size_class(batch)
    own = next((each for each in known.sizes if each.size == size), None)
    spread = [kept * value for value in known.spread]
    shared, square = [kept * value for value in known.shared], kept * known.square
    others = tuple(_aged(each, kept) for each in known.sizes if each is not own and each.weight * kept > SMALLEST)
    if own is None:
        new = SizeExposure(
            size=size, weight=weight, time_s=measurable(time_s), log_batch=features[0], exposures=tuple(found)
        )
    else:
        before = own.weight * kept
        time_s = min(own.time_s * MOST_CHANGE, max(own.time_s / MOST_CHANGE, time_s))
        share = weight / (before + weight)
        apart = [value - mean for value, mean in zip(features, own.features, strict=True)]
        off = time_s / own.time_s - 1
        counts = before * share  # Welford's update of a weighted covariance
        spread = [
            old + counts * a * b for old, (a, b) in zip(spread, ((a, b) for a in apart for b in apart), strict=True)
        ]
        shared = [old + counts * a * off for old, a in zip(shared, apart, strict=True)]
        square += counts * off * off
        new = SizeExposure(
            size=size,
            weight=before + weight,
            time_s=measurable(own.time_s + share * (time_s - own.time_s)),
            log_batch=own.log_batch + share * apart[0],
            exposures=tuple(mean + share * a for mean, a in zip(own.exposures, apart[1:], strict=True)),
        )
    return Interference(
        neighbours=known.neighbours,
        sizes=tuple(sorted((*others, new), key=lambda each: each.size)),
        spread=tuple(spread),
        shared=tuple(shared),
        square=square,
    )


@lru_cache(maxsize=1024)  # asked several times for one placement
def additions(known: Interference) -> Mapping[str, float]:
    """Return the addition while one replica of each neighbour is busy (0: none), of those that are known."""
    if not known.neighbours or known.weight < ENOUGH_WEIGHT:
        return {}
    width = len(known.neighbours) + 1
    precision = np.array(known.spread).reshape(width, width) + _PRIOR_PRECISION * np.eye(width)
    slopes = _slopes(known, precision)
    explained = float(slopes @ known.shared)
    noise = max(LEAST_NOISE**2, max(0.0, known.square - explained) / known.weight)
    # Relative to the mean, at which they are slowed already, so that a slope is x / (1 + Σ x·e).
    mean = math.fsum(
        size.weight * slope * exposure
        for size in known.sizes
        for slope, exposure in zip(slopes[1:], size.exposures, strict=True)
    )
    slowed = 1 / max(1 / (1 + MOST_ADDITION), 1 - mean / known.weight)
    found: dict[str, float] = {}
    variances = noise * np.diag(np.linalg.inv(precision))
    for index, name in enumerate(known.neighbours, start=1):
        error = math.sqrt(variances[index]) * slowed
        addition = min(MOST_ADDITION, float(slopes[index]) * slowed)
        if error <= max(KNOWN, KNOWN * addition):
            found[name] = addition if addition >= SIGNIFICANT * error else 0.0
    return found


def crowding(known: Interference, neighbours: Sequence[Neighbour]) -> Crowding:
    """Return by how much `neighbours` slow a replica, as far as it is known; unknown ones add nothing."""
    if not neighbours:
        return UNCROWDED
    added = additions(known)
    now = planned = 1.0
    for each in neighbours:
        if each.name in added:
            now += added[each.name] * (each.exposure or 0.0)
            planned += added[each.name] * each.planned
    return Crowding(
        now=now,
        planned=planned,
        additions={each.name: added[each.name] for each in neighbours if each.name in added},
        unknown=tuple(each.name for each in neighbours if each.count > 0 and each.name not in added),
    )


def alone(times: BatchTimes, known: Interference) -> BatchTimes:
    """Return measured service times without what neighbours added to them, as far as it is known."""
    added = additions(known)
    if not any(added.values()):
        return times
    factors = {
        size.size: 1
        + math.fsum(
            added.get(name, 0.0) * exposure for name, exposure in zip(known.neighbours, size.exposures, strict=True)
        )
        for size in known.sizes
    }

    def without(size: SizeTimes) -> float:
        return size.time_s / factors.get(size_class(size.batch), 1.0)

    return with_times(times, {size.batch: without(size) for size in times.by_size})


def _with_names(known: Interference, exposures: Mapping[str, float]) -> Interference:
    """Return `known` with a place for the neighbours in `exposures`, instead of others where there is no room.

    Beside those that are known it had none of the new ones.
    """
    most_first = sorted(exposures, key=lambda name: (-exposures[name], name))
    new = [name for name in most_first if name not in known.neighbours][:MOST_NEIGHBOURS]
    if not new:
        return known
    gone = [name for name in known.neighbours if name not in exposures]
    excess = len(known.neighbours) + len(new) - MOST_NEIGHBOURS
    dropped = gone[: max(0, excess)]
    new = new[: MOST_NEIGHBOURS - len(known.neighbours) + len(dropped)]
    kept = [index for index, name in enumerate(known.neighbours) if name not in dropped]
    rows = [0, *(1 + index for index in kept)]  # the first is of the size
    width, before = len(rows) + len(new), len(known.neighbours) + 1
    spread = [
        known.spread[rows[row] * before + rows[column]] if row < len(rows) and column < len(rows) else 0.0
        for row in range(width)
        for column in range(width)
    ]
    nothing = (0.0,) * len(new)
    return Interference(
        neighbours=(*(known.neighbours[index] for index in kept), *new),
        sizes=tuple(
            replace(size, exposures=(*(size.exposures[index] for index in kept), *nothing)) for size in known.sizes
        ),
        spread=tuple(spread),
        shared=(*(known.shared[row] for row in rows), *nothing),
        square=known.square,
    )


def _aged(size: SizeExposure, kept: float) -> SizeExposure:
    return replace(size, weight=size.weight * kept)


def _slopes(known: Interference, precision: Array) -> Array:
    """Return the slopes of relative times over log size and exposures: ridge regression, no exposure's below 0.

    The exposure with the least slope is left out until none is negative.
    """
    shared, rows = np.array(known.shared), list(range(len(known.shared)))
    while True:
        slopes = np.zeros(len(shared))
        slopes[rows] = np.linalg.solve(precision[np.ix_(rows, rows)], shared[rows])
        least = min(rows[1:], key=lambda row: slopes[row], default=0)
        if least == 0 or slopes[least] >= 0:
            return slopes
        rows.remove(least)
