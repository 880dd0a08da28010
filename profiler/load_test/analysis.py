"""What the windows of a load test show: how a server batches, its service law, and how sure that is. Pure."""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from optimizer.model import Batching, ServiceLaw
from profiler.batch_times import BatchTimes, SizeTimes
from profiler.law import LEAST_NOISE, fitted_law
from profiler.load_test.observed import Window, by_concurrency, latencies_s, rate_rps

TOGETHER = 0.5
"""Share of the answers that come together with another, beyond chance, from which on a server answers batches."""
GAIN = 1.25
"""A server whose throughput grows less than this with concurrency serves one item at a time."""
SATURATED = 1.05
"""Throughput that grows less than this with twice the concurrency has reached the server's capacity."""
FITS = 0.06
"""Largest error of a line or roofline at a size that was measured; laws that bend more are written as points."""
LIES = 0.1
"""Counters that differ more from the throughput of a saturated server than this are not used."""
_TOGETHER_S, _TOGETHER_SHARE = 0.0005, 0.1
"""Answers no further apart than the larger of both (the share is of the mean time between two) come together."""
_MOST_BY_CHANCE = 0.9
"""No more than this share counts as chance: answers that are so dense say little, and are taken as those of batches."""
_RESAMPLES = 100
_LEAST_COUNT = 3  # batches of one size


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """A service law with how the server batches.

    `limit` is the most items in a batch (Dynamic) or running (Continuous), None where the load did not reach it; the
    law then holds up to `measured`. `concurrency` is how many batches run at once. `relative_error` is half the 95 %
    interval of the capacity over it. `saturation_rps` is the highest throughput seen, `capacity_rps` what the law
    allows. `counters_used` says whether sizes and times come from the server's own counters. `notes` are for people.
    """

    batching: Batching
    limit: int | None
    measured: int
    concurrency: int
    law: ServiceLaw
    relative_error: float
    saturation_rps: float
    capacity_rps: float
    counters_used: bool
    notes: tuple[str, ...] = ()


Sizes = Mapping[int, tuple[int, float]]
"""Batches by size: their number and their total time in seconds."""


def analysed(windows: Sequence[Window], *, continuous: bool | None = None, limit: int | None = None) -> Analysis:
    """Return what the closed-loop `windows` show, at least those of one client and of more.

    `continuous` and `limit` are what is known beforehand: how the server batches, and the size of a full batch.

    Raises:
        ValueError: no window has an answer.
    """
    levels = {level: own for level, own in by_concurrency(windows).items() if rate_rps(own) > 0}
    if 1 not in levels:
        raise ValueError("no answer to a single client")
    rates = {level: rate_rps(own) for level, own in levels.items()}
    gain = max(rates.values()) / rates[1]
    if continuous is None and gain < GAIN:
        return _one_at_a_time(levels, rates)
    if continuous is None:
        continuous = _beyond_chance(levels) < TOGETHER
    if continuous:
        return _continuous(levels, limit)
    return _dynamic(levels, rates, limit)


def _one_at_a_time(levels: Mapping[int, Sequence[Window]], rates: Mapping[int, float]) -> Analysis:
    """A server without batches: the time of an item is what its throughput leaves while it is never idle."""
    highest = max(rates.values())
    cv = _scatter(latencies_s(levels[1]), 1 / highest)

    def capacity(chosen: Mapping[int, Sequence[Window]]) -> float:
        return max(rate_rps(own) for own in chosen.values())

    return Analysis(
        batching=Batching.DYNAMIC,
        limit=1,
        measured=1,
        concurrency=1,
        law=ServiceLaw(fixed_s=1 / highest, cv=cv),
        relative_error=_resampled(levels, capacity, cv, sum(level.answers for level in _summed(levels).values())),
        saturation_rps=highest,
        capacity_rps=highest,
        counters_used=False,
    )


# -- continuous batching


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What a closed loop of some clients showed: its answers, and how many came per second."""

    answers: int
    rate_rps: float


def _continuous(levels: Mapping[int, Sequence[Window]], limit: int | None) -> Analysis:
    """A server whose items run beside each other."""
    prefill_s, lone_s = _prefill_s(levels[1]), latencies_s(levels[1])
    cv = _scatter(lone_s, _mean(lone_s) - prefill_s)
    analysis = of_levels(_summed(levels), prefill_s=prefill_s, cv=cv, limit=limit)
    full = analysis.measured if analysis.batching is Batching.CONTINUOUS else analysis.concurrency
    inside = {level: own for level, own in levels.items() if level <= full}
    answers = sum(level.answers for size, level in _summed(levels).items() if size >= full / 2)

    def capacity(chosen: Mapping[int, Sequence[Window]]) -> float:
        return _beside_law(_summed(chosen), full, prefill_s, cv).rate_rps(full)

    return replace(analysis, relative_error=_resampled(inside, capacity, cv, answers))


def _summed(levels: Mapping[int, Sequence[Window]]) -> dict[int, Level]:
    found = {
        size: Level(answers=sum(len(window.served) for window in own), rate_rps=rate_rps(own))
        for size, own in levels.items()
    }
    return {size: level for size, level in found.items() if level.answers}


def of_levels(levels: Mapping[int, Level], *, prefill_s: float, cv: float, limit: int | None = None) -> Analysis:
    """Return the law of a server that batches continuously, of which closed loops of so many clients are known.

    A closed loop of n clients keeps n running, which takes each n / X(n) by Little's law, and each waits for the
    prefills of the others: n / X(n) = W(n) + n·p. `limit` is the most that run, where it is known.
    """
    rates = {size: level.rate_rps for size, level in levels.items()}
    found = limit if limit is not None else _places(rates)
    full = found or max(levels)
    law = _beside_law({size: level for size, level in levels.items() if size <= full}, full, prefill_s, cv)
    highest, capacity = max(rates.values()), law.rate_rps(full)
    services = sum(level.answers for size, level in levels.items() if size >= full / 2)
    analysis = Analysis(
        batching=Batching.CONTINUOUS,
        limit=found,
        measured=full,
        concurrency=1,
        law=law,
        relative_error=_sampling_error(cv, services),
        saturation_rps=highest,
        capacity_rps=capacity,
        counters_used=False,
        notes=_said_of_limit(found, max(levels)),
    )
    if found is not None and not prefill_s and law.mean_s(full) <= (1 + FITS) * law.mean_s(1):
        # Items beside each other that do not slow down: so many servers.
        one = ServiceLaw(fixed_s=full / highest, cv=cv)
        kind = Batching.DYNAMIC
        return replace(analysis, batching=kind, limit=1, measured=1, concurrency=full, law=one, capacity_rps=highest)
    return analysis


def _beside_law(levels: Mapping[int, Level], full: int, prefill_s: float, cv: float) -> ServiceLaw:
    sizes = {
        size: (level.answers, level.answers * max(1e-9, size / level.rate_rps - size * prefill_s))
        for size, level in levels.items()
    }
    return replace(_law(sizes, full, cv), prefill_s=prefill_s)


def _places(rates: Mapping[int, float]) -> int | None:
    """Return how many items run at most: where the throughput of n that run is that of the saturated server.

    None while the throughput still grows.
    """
    levels = sorted(rates)
    saturated = next((one for one in levels if _flat(rates, one)), None)
    if saturated is None:
        return None
    highest_rps = float(np.median([rates[level] for level in levels if level >= saturated]))
    below = [level for level in levels if level < saturated and rates[level] < highest_rps / SATURATED]
    if len(below) < 2:
        return saturated
    # The line through the times of the levels that were not saturated, extended: n / T(n) is the throughput of n.
    slope_s, fixed_s = np.polyfit(below, [level / rates[level] for level in below], 1)
    left = 1 - highest_rps * max(0.0, slope_s)
    places = highest_rps * fixed_s / left if left > 0 and fixed_s > 0 else math.inf
    return max(below[-1], min(saturated, round(places))) if places < math.inf else saturated


def _flat(rates: Mapping[int, float], level: int) -> bool:
    """Return whether throughput grows no more from `level` on, as far as twice as many clients were tried."""
    beyond = [rates[other] for other in rates if other >= 2 * level]
    return bool(beyond) and float(np.median(beyond)) < SATURATED * rates[level]


def _prefill_s(windows: Sequence[Window]) -> float:
    """Return the time to the first token of a single client, in seconds; 0 where answers are not streamed."""
    firsts = [
        answer.first_s - answer.due_s for window in windows for answer in window.served if answer.first_s is not None
    ]
    return float(np.median(firsts)) if firsts else 0.0


# -- batches that start when the last one ends


def _dynamic(levels: Mapping[int, Sequence[Window]], rates: Mapping[int, float], limit: int | None) -> Analysis:
    lone_s = _mean(latencies_s(levels[1]))
    notes: list[str] = []
    truthful = _truthful(levels, rates)
    counters_used = truthful is True
    if truthful is False:
        notes.append(
            "the server's counters contradict the throughput of its answers and are not used: batches follow from "
            "answers that come together"
        )

    def sizes_of(chosen: Mapping[int, Sequence[Window]]) -> Sizes:
        return _counted_sizes(chosen) if counters_used else _seen_sizes(chosen, lone_s)

    sizes = sizes_of(levels)
    found = limit or _full(levels, sizes, counters_used)
    largest = found or max(_often(sizes))
    size, (count, total_s) = min(sizes.items())
    cv = _scatter(latencies_s(levels[1]), min(lone_s, total_s / count) if size == 1 else lone_s)

    def law_of(chosen: Mapping[int, Sequence[Window]]) -> ServiceLaw:
        return _law(sizes_of(chosen), largest, cv)

    law = law_of(levels)
    highest, capacity = max(rates.values()), law.rate_rps(largest)
    services = sum(count for size, (count, _) in sizes.items() if size >= largest / 2)
    # How many batches run at once: the counters know the time of each, answers only what lies between two.
    concurrency = max(1, round(highest / capacity)) if counters_used else 1
    if limit is None:
        notes.extend(_said_of_limit(found, max(levels)))
    return Analysis(
        batching=Batching.DYNAMIC,
        limit=found,
        measured=largest,
        concurrency=concurrency,
        law=law,
        relative_error=_resampled(levels, lambda chosen: law_of(chosen).rate_rps(largest), cv, services),
        saturation_rps=highest,
        capacity_rps=capacity * concurrency,
        counters_used=counters_used,
        notes=tuple(notes),
    )


def _beyond_chance(levels: Mapping[int, Sequence[Window]]) -> float:
    """Return the share of the answers to many clients that came together with another, beyond that of chance.

    Of answers independent of each other, at rate r, the share 1 − exp(−2·g·r) has another within g (a Poisson process).
    """
    many = max(level for level in levels if level <= 16)
    together = chance = count = 0.0
    for window in levels[many]:
        ends = np.sort([answer.done_s for answer in window.served])
        if len(ends) < 2:
            continue
        gap_s = max(_TOGETHER_S, _TOGETHER_SHARE / window.served_rps)
        near = np.diff(ends) <= gap_s
        together += np.sum(np.append(near, False) | np.append(False, near))
        chance += len(ends) * min(_MOST_BY_CHANCE, 1 - math.exp(-2 * gap_s * window.served_rps))
        count += len(ends)
    return (together - chance) / (count - chance) if count else 0.0


def batches_of(window: Window, lone_s: float) -> Iterable[tuple[int, float]]:
    """Yield size and time (s) of the batches that the answers of a window came in, but for the first.

    Answers of one batch come together. While clients wait, the server begins a batch when it has answered the last one,
    so that a batch takes the time between. `lone_s` is the time of one item.
    """
    gap_s = max(_TOGETHER_S, 0.1 * lone_s)
    ends = np.sort([answer.done_s for answer in window.served])
    if not len(ends):
        return
    first = np.flatnonzero(np.append(True, np.diff(ends) > gap_s))
    starts = np.append(first, len(ends))
    for before, (one, other) in zip(first, pairwise(starts[1:]), strict=False):
        yield int(other - one), float(ends[one] - ends[before])


def mean_batch(windows: Sequence[Window], analysis: Analysis, inside: float | None = None) -> float:
    """Return the mean size of the batches in `windows`; with continuous batching the items that run.

    `inside` is the mean number of requests inside, where it is not that of the clients.
    """
    if analysis.batching is Batching.CONTINUOUS:
        running = inside if inside is not None else float(max(window.concurrency for window in windows))
        return max(1.0, min(running, float(analysis.limit or running)))
    if analysis.counters_used and all(window.counted is not None for window in windows):
        return _counted_batch(windows)
    if analysis.measured == 1:
        return 1.0
    lone_s = analysis.law.mean_s(1)
    sizes = [size for window in windows for size, _ in batches_of(window, lone_s)]
    return float(np.mean(sizes)) if sizes else 1.0


def _seen_sizes(levels: Mapping[int, Sequence[Window]], lone_s: float) -> Sizes:
    sizes: dict[int, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for level, windows in levels.items():
        for window in windows:
            for size, time_s in batches_of(window, lone_s) if level > 1 else _singles(window):
                count, total_s = sizes[size]
                sizes[size] = count + 1, total_s + time_s
    return dict(sizes)


def _singles(window: Window) -> Iterable[tuple[int, float]]:
    return ((1, answer.latency_s) for answer in window.served)


def _counted_sizes(levels: Mapping[int, Sequence[Window]]) -> Sizes:
    """Return the batches that the counters saw, by mean size of a window, rounded."""
    sizes: dict[int, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for windows in levels.values():
        for window in windows:
            if (counted := window.counted) is None:
                continue
            size = max(1, round(counted.items / counted.batches))
            # A mean size between two whole ones: the time is brought to the whole one by the share of each item.
            time_s = counted.time_s * (1 + (size * counted.batches / counted.items - 1) / 2)
            count, total_s = sizes[size]
            sizes[size] = count + round(counted.batches), total_s + time_s
    return dict(sizes)


def _truthful(levels: Mapping[int, Sequence[Window]], rates: Mapping[int, float]) -> bool | None:
    """Return whether the counters agree with the answers at the highest load; None without counters.

    They agree where they count the items that were answered, and a whole number of batches at once is busy.
    """
    windows = [window for window in levels[max(rates)] if window.counted is not None]
    if not windows:
        return None
    items = sum(window.counted.items for window in windows if window.counted)
    busy_s = sum(window.counted.time_s for window in windows if window.counted)
    length_s = sum(window.end_s - window.start_s for window in windows)
    answered = sum(len(window.served) for window in windows)
    busy = busy_s / length_s
    return abs(items / max(1, answered) - 1) <= LIES and busy >= 1 - LIES and abs(busy / round(busy) - 1) <= LIES


def _full(levels: Mapping[int, Sequence[Window]], sizes: Sizes, counters_used: bool) -> int | None:
    """Return the size of full batches: that of nearly all while at least twice as many clients wait; None else."""
    most = max(levels)
    if counters_used:
        if all(window.counted is None for window in levels[most]):
            return None
        mean = _counted_batch(levels[most])
        return round(mean) if most >= 2 * mean * (1 - LIES) else None
    largest = max(_often(sizes))
    return largest if most >= 2 * largest else None


def _counted_batch(windows: Sequence[Window]) -> float:
    """Return the mean size of the batches that the counters saw in `windows`."""
    own = [window.counted for window in windows if window.counted is not None]
    return sum(each.items for each in own) / sum(each.batches for each in own)


def _often(sizes: Sizes) -> Sizes:
    """Return the sizes with enough batches to say something, at least the most frequent."""
    least = min(_LEAST_COUNT, max(count for count, _ in sizes.values()))
    return {size: own for size, own in sizes.items() if own[0] >= least}


def _scatter(lone_s: NDArray[np.float64], mean_s: float) -> float:
    """Return the coefficient of variation of service times: that of the answers to one client, which wait alike.

    Half the distance of the 16th and the 84th percentile is the standard deviation without the outliers of a network.
    """
    if len(lone_s) < _LEAST_COUNT or mean_s <= 0:
        return 0.0
    low, high = np.percentile(lone_s, [16, 84])
    return round(float(high - low) / 2 / mean_s, 3)


# -- the law


def _law(sizes: Sizes, full: int, cv: float) -> ServiceLaw:
    """Return the line or roofline through the times by size, or points where neither fits."""
    means = [
        SizeTimes(weight=float(count), batch=float(size), time_s=max(1e-9, total_s / count))
        for size, (count, total_s) in sorted(_often(sizes).items())
    ]
    weight = sum(own.weight for own in means)
    times = BatchTimes(
        weight=weight,
        batch=sum(own.weight * own.batch for own in means) / weight,
        time_s=sum(own.weight * own.time_s for own in means) / weight,
        variance=max(LEAST_NOISE, cv) ** 2,
        sizes=tuple(means),
    )
    law = fitted_law(times, full, cv).law
    errors = [
        abs(law.mean_s(own.batch) / own.time_s - 1) - 2 * max(LEAST_NOISE, cv) / math.sqrt(own.weight) for own in means
    ]
    if len(means) > 2 and max(errors) > FITS:
        return _points(means, cv)
    return law


def _points(means: Sequence[SizeTimes], cv: float) -> ServiceLaw:
    """Return the law of points at about each doubling of the size; a larger batch never takes less time."""
    chosen = [own for k, own in enumerate(means) if k in {0, len(means) - 1} or _next(means, k)]
    points: list[tuple[int, float]] = []
    for own in chosen:
        points.append((round(own.batch), max(own.time_s, points[-1][1] if points else 0.0)))
    return ServiceLaw(points=tuple(points), cv=cv)


def _next(means: Sequence[SizeTimes], k: int) -> bool:
    """Return whether size k is the first of its octave."""
    return math.floor(math.log2(means[k].batch)) > math.floor(math.log2(means[k - 1].batch))


def _resampled(
    levels: Mapping[int, Sequence[Window]],
    capacity: Callable[[Mapping[int, Sequence[Window]]], float],
    cv: float,
    services: float,
) -> float:
    """Return half the 95 % interval of `capacity` over its median, by the bootstrap over windows of each level.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13 (percentile interval). The same
    windows give the same interval.
    """
    draws = random.Random(1)
    found = []
    for _ in range(_RESAMPLES):
        chosen = {level: draws.choices(own, k=len(own)) for level, own in levels.items()}
        try:
            found.append(capacity(chosen))
        except ValueError:  # no batch was drawn
            continue
    if not found:
        return math.inf
    low, middle, high = np.percentile(found, [2.5, 50, 97.5])
    # Few windows show too little of their scatter: it is at least that of the `services` that were seen.
    return max(float((high - low) / 2 / middle), _sampling_error(cv, services))


def _sampling_error(cv: float, services: float) -> float:
    """Return half the 95 % interval of a mean of so many service times with `cv`, as a share of it."""
    return 1.96 * max(LEAST_NOISE, cv) / math.sqrt(max(1.0, services))


def _said_of_limit(found: int | None, most: int) -> tuple[str, ...]:
    if found is not None:
        return ()
    said = (
        f"{most} clients did not fill the server: its limit (batching.max) is not known, and the law holds up to the "
        "batches seen; raise --max-concurrency"
    )
    return (said,)


def _mean(values: NDArray[np.float64]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
