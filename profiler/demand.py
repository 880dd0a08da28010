"""The demand to expect. Pure.

Three simple forecasts are made: the last value; the recent mean, which is right for a noisy level; the last value
carried on along the recent slope, damped, which is right for a ramp. Each is tried on the samples themselves, from
every past moment to the present, and counts by the inverse square of the squared error it would have made there. So
noise is smoothed and ramps are followed without a setting; `tests/bench/bench_forecast.py` prints the errors. With too
few samples for that the last value stands, or what has begun to rise is carried on.
"""

import math
from collections.abc import Callable, Sequence

Samples = Sequence[tuple[float, float]]
"""(time in seconds, load), oldest first."""

MEAN_TIME_CONSTANT_S = 120.0
SLOPE_WINDOW_S = 120.0
SLOPE_DAMPING = 0.8
"""Share of the slope that is believed to last: ramps end. Of 0.7 to 1 the cheapest on the training scenarios
(`simulations/scenarios/README.md`) with 99.5 % of the windows within the SLA on each."""
ENVELOPE = 2.5
"""A forecast is at most this many times the highest load among the samples. By the same rule, of 1.5 to 6: more changes
nothing, and with less a load that comes up is followed late."""
GROWTH_SHARE = 0.9
CHANCES = 2.0
"""By the same rule, of 0 to 4."""
MIN_TRIALS = 4
"""With fewer past moments to try on, nothing is known of the load but its last steps."""


def forecast(samples: Samples, now_s: float, horizon_s: float) -> float:
    """Return the load to expect at `now_s` + `horizon_s`, in the unit of the samples, which are best five minutes.

    `samples` must be some, none later than `now_s`; `horizon_s` ≥ 0. Raises `ValueError`.
    """
    if not samples:
        raise ValueError("samples: (): must not be empty")
    if samples[-1][0] > now_s:
        raise ValueError(f"samples: {samples[-1][0]:g}: must not be later than now_s ({now_s:g})")
    if horizon_s < 0:
        raise ValueError(f"horizon_s: {horizon_s:g}: must be ≥ 0")
    trials = _trials(samples, horizon_s)
    highest = max(load for _, load in samples)
    ahead_s = now_s + horizon_s - samples[-1][0]
    if len(trials) < MIN_TRIALS:
        return min(ENVELOPE * highest, _begun(samples, ahead_s))
    # Keeps the weights finite where a method was never wrong.
    least_error = (1e-6 * highest) ** 2 + 1e-12
    weights = [(least_error + _squared_error(method, samples, trials)) ** -2 for method in _METHODS]
    expected = math.fsum(
        weight * method(samples, ahead_s) for weight, method in zip(weights, _METHODS, strict=True)
    ) / math.fsum(weights)
    return min(ENVELOPE * highest, max(0.0, _without_rounding_errors(expected)))


def _without_rounding_errors(load: float) -> float:
    """A load that stays the same is expected to be the very same: in words, what is next to 15.45 is 15.4 or 15.5."""
    return float(f"{load:.10g}")


def growth(samples: Samples, horizon_s: float, chance: float, share: float = GROWTH_SHARE) -> float:
    """Return by how much the load may rise within `horizon_s`, at most, in `share` of the cases among the samples.

    A forecast is the load to expect, and is exceeded half of the time; whoever must not be short adds this. It is an
    empirical quantile (nearest rank) of the highest rise after each past moment, so it is small for a steady load and
    large for a bursty one. 0 with fewer than `MIN_TRIALS` past moments.

    A load at its highest is not expected to rise once more as it did on its way there: it may come back to the highest
    of the samples, or exceed it by `CHANCES` times `chance`, the standard deviation of the load in its unit. Where it
    goes on to rise, the slope that `forecast` follows says so.
    """
    trials = _trials(samples, horizon_s)
    if len(trials) < MIN_TRIALS:
        return 0.0
    rises = sorted(
        max(0.0, max(load for _, load in samples[origin + 1 : target + 1]) - samples[origin][1])
        for origin, target in trials
    )
    highest = max(load for _, load in samples)
    return min(rises[math.ceil(share * len(rises)) - 1], max(highest - samples[-1][1], CHANCES * chance))


def _trials(samples: Samples, horizon_s: float) -> list[tuple[int, int]]:
    """Return pairs of a past moment and the first sample at least `horizon_s` after it, as indices."""
    trials = []
    target = 0
    for origin in range(2, len(samples)):
        while target < len(samples) and (target <= origin or samples[target][0] < samples[origin][0] + horizon_s):
            target += 1
        if target == len(samples):
            break
        trials.append((origin, target))
    return trials


_Method = Callable[[Samples, float], float]


def _squared_error(method: _Method, samples: Samples, trials: Sequence[tuple[int, int]]) -> float:
    total = math.fsum(
        (method(samples[: origin + 1], samples[target][0] - samples[origin][0]) - samples[target][1]) ** 2
        for origin, target in trials
    )
    return total / len(trials)


def _last(samples: Samples, ahead_s: float) -> float:  # noqa: ARG001
    return samples[-1][1]


def _mean(samples: Samples, ahead_s: float) -> float:  # noqa: ARG001
    end_s = samples[-1][0]
    weights = [math.exp((at_s - end_s) / MEAN_TIME_CONSTANT_S) for at_s, _ in samples]
    return math.fsum(weight * load for weight, (_, load) in zip(weights, samples, strict=True)) / math.fsum(weights)


def _slope(samples: Samples, ahead_s: float) -> float:
    end_s = samples[-1][0]
    recent = [(at_s - end_s, load) for at_s, load in samples if at_s >= end_s - SLOPE_WINDOW_S]
    mean_s = math.fsum(at_s for at_s, _ in recent) / len(recent)
    spread = math.fsum((at_s - mean_s) ** 2 for at_s, _ in recent)
    slope = math.fsum((at_s - mean_s) * load for at_s, load in recent) / spread if spread > 0 else 0.0
    return samples[-1][1] + SLOPE_DAMPING * slope * ahead_s


def _begun(samples: Samples, ahead_s: float) -> float:
    """The last value; where it has risen twice in a row, as while a load comes up, carried on along these rises.

    A step rises once.
    """
    if len(samples) < 3 or not samples[-3][1] < samples[-2][1] < samples[-1][1]:
        return samples[-1][1]
    (since_s, before), (now_s, load) = samples[-3], samples[-1]
    if now_s <= since_s:
        return load
    return load + SLOPE_DAMPING * (load - before) / (now_s - since_s) * ahead_s


_METHODS: tuple[_Method, ...] = (_last, _mean, _slope)
