"""The forecast of the demand. Pure.

Three forecasts are combined: the last value; the recent mean, which suits a noisy level; the last value extrapolated
along the recent slope, damped, which suits a ramp. Each forecast is tried on the past samples, and weighted by the
inverse square of its mean squared error. So noise is smoothed and ramps are followed without a setting;
`tests/bench/bench_forecast.py` prints the errors. With too few samples for the horizon, they are tried over a shorter
time. In the first minutes, the last value is used, extrapolated if it has begun to rise. No forecast is further from
the last value than the load has moved by itself.

A history of past seasons adds a fourth forecast, the seasonal one (`season.py`). Then the errors of all four at this
phase of the past seasons count beside those on the past samples: shortly before a rise that comes every day, only the
seasonal one was right every day. It goes beyond what the load has moved, and below what the others say, only as far as
it is sure.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profiler.season import Season, beyond_error

Samples = Sequence[tuple[float, float]]
"""(time in seconds, load), oldest first."""

MEAN_TIME_CONSTANT_S = 120.0
SLOPE_WINDOW_S = 120.0
SLOPE_DAMPING = 0.8
"""Share of the slope that is extrapolated, because ramps end. Of 0.7 to 1 it costs least on the training scenarios
(`simulations/scenarios/README.md`) with 99.5 % of the windows within the SLA on each."""
ENVELOPE = 2.5
"""A forecast is at most this many times the highest load among the samples. Chosen by the same rule from 1.5 to 6: a
larger value changes nothing, and with a smaller value the forecast of a starting load rises too late."""
GROWTH_SHARE = 0.9
CHANCES = 2.0
"""Least value of the limit of a rise in `growth`, in standard deviations. Chosen by the same rule from 0 to 4."""
MIN_TRIALS = 4
"""Least number of past samples to try forecasts on."""
START_S = 300.0
"""With samples of at least this time, no forecast is made without having been tried."""
STEEP = 0.1
"""Share by which a load must rise twice, before it is extrapolated further than it was seen: noise rises too."""
MOVES = 3.0
"""A forecast is at most this many root mean squares of the past changes over the horizon above the last value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The `expected` load, and the weight (0–1) of the seasonal forecast in it: `trust`."""

    expected: float
    trust: float


def forecast(samples: Samples, now_s: float, horizon_s: float, season: Season | None = None) -> float:
    """Return the load expected at `now_s` + `horizon_s`, in the unit of the samples.

    Samples of the horizon and of some minutes before it work best. `season` is what a history says at `now_s`.

    Raises:
        ValueError: `samples` is empty, a sample is later than `now_s`, or `horizon_s` < 0.
    """
    return weighed_forecast(samples, now_s, horizon_s, season).expected


def weighed_forecast(samples: Samples, now_s: float, horizon_s: float, season: Season | None = None) -> Forecast:
    """Return what `forecast` returns, with how far the season is trusted.

    Raises:
        ValueError: as `forecast`.
    """
    if not samples:
        raise ValueError("samples: (): must not be empty")
    if samples[-1][0] > now_s:
        raise ValueError(f"samples: {samples[-1][0]:g}: must not be later than now_s ({now_s:g})")
    if horizon_s < 0:
        raise ValueError(f"horizon_s: {horizon_s:g}: must be ≥ 0")
    tried_s, trials = _tried(samples, horizon_s)
    highest = max(load for _, load in samples)
    ahead_s = now_s + horizon_s - samples[-1][0]
    change = None if season is None else season.change(ahead_s)
    if len(trials) >= MIN_TRIALS:
        moved = math.sqrt(math.fsum((samples[end][1] - samples[start][1]) ** 2 for start, end in trials) / len(trials))
        # Changes that are no trend grow with the square root of the time.
        moved *= MOVES * math.sqrt(max(1.0, ahead_s / tried_s if tried_s > 0 else 1.0))
        most = min(ENVELOPE * highest, max(samples[-1][1] + moved, highest))
        loads = [method(samples, ahead_s) for method in _METHODS]
    else:
        trials = []
        most = min(ENVELOPE * highest, _extrapolated_start(samples, ahead_s))
        loads = [most] * len(_METHODS)
    errors = [_squared_error(method, samples, trials) for method in _METHODS]
    # Keeps the weights finite if a method had no error.
    least_error = (1e-6 * highest) ** 2 + 1e-12
    least = 0.0
    if season is not None and change is not None:
        alone, _ = _weighed(loads, errors, least_error)
        least = min(alone, most) - beyond_error(min(alone, most) - season.level - change.expected, change.error)
        of_last, of_slope = season.squared_errors_of_slope(ahead_s, SLOPE_WINDOW_S, (0.0, SLOPE_DAMPING))
        own = season.squared_error(samples, trials)
        errors.append((max(errors) if own is None and trials else own or 0.0) + change.error**2)
        errors = [each + more for each, more in zip(errors, (of_last, of_last, of_slope, 0.0), strict=True)]
        loads.append(max(0.0, season.level + change.expected))
        most = max(most, season.level + change.sure)
    expected, share = _weighed(loads, errors, least_error)
    return Forecast(
        expected=max(0.0, least, min(_without_rounding_errors(expected), most)),
        trust=0.0 if change is None else share,
    )


def _weighed(loads: Sequence[float], errors: Sequence[float], least_error: float) -> tuple[float, float]:
    """Return the mean of `loads`, weighted by the inverse squares of their mean squared errors; and the last weight."""
    weights = [(least_error + error) ** -2 for error in errors]
    total = math.fsum(weights)
    return math.fsum(weight * load for weight, load in zip(weights, loads, strict=True)) / total, weights[-1] / total


def _without_rounding_errors(load: float) -> float:
    """Return `load` rounded to ten digits, so that the forecast of a constant load is exactly this load."""
    return float(f"{load:.10g}")


def growth(samples: Samples, horizon_s: float, chance: float, share: float = GROWTH_SHARE) -> float:
    """Return the rise of the load within `horizon_s` that a `share` of the past rises did not exceed.

    A forecast is exceeded half of the time; the rise is the headroom to add to it. It is the empirical quantile
    (nearest rank) of the highest rise after each past sample: small for a steady load, large for a bursty load, and 0
    with fewer than `MIN_TRIALS` past samples.

    The rise is limited to the larger of two amounts: the distance to the highest sample, and `CHANCES` × `chance`,
    where `chance` is the standard deviation of the load. A load at its highest is not expected to repeat its rise;
    `forecast` follows a load that keeps rising.
    """
    _, trials = _tried(samples, horizon_s)
    if len(trials) < MIN_TRIALS:
        return 0.0
    rises = sorted(
        max(0.0, max(load for _, load in samples[origin + 1 : target + 1]) - samples[origin][1])
        for origin, target in trials
    )
    highest = max(load for _, load in samples)
    return min(rises[math.ceil(share * len(rises)) - 1], max(highest - samples[-1][1], CHANCES * chance))


_Trials = Sequence[tuple[int, int]]


def _tried(samples: Samples, horizon_s: float) -> tuple[float, _Trials]:
    """Return the time (s) over which forecasts are tried, and the trials, see `_trials`.

    This is the horizon, or half of the time of the samples where they are too few for it, after the first minutes.
    """
    trials, span_s = _trials(samples, horizon_s), samples[-1][0] - samples[0][0] if samples else 0.0
    if len(trials) >= MIN_TRIALS or span_s < START_S or horizon_s <= span_s / 2:
        return horizon_s, trials
    return span_s / 2, _trials(samples, span_s / 2)


def _trials(samples: Samples, horizon_s: float) -> _Trials:
    """Return pairs of indices: a past sample, and the first sample at least `horizon_s` after it."""
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


def _squared_error(method: _Method, samples: Samples, trials: _Trials) -> float:
    """Return the mean squared error of a method on the `trials`; 0 without any."""
    total = math.fsum(
        (method(samples[: origin + 1], samples[target][0] - samples[origin][0]) - samples[target][1]) ** 2
        for origin, target in trials
    )
    return total / max(1, len(trials))


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


def _extrapolated_start(samples: Samples, ahead_s: float) -> float:
    """Return the last value, extrapolated along the last two steps if the load rose in both steps.

    A load that starts rises several times in a row; a step rises once and is not extrapolated.
    """
    if len(samples) < 3 or not samples[-3][1] < samples[-2][1] < samples[-1][1]:
        return samples[-1][1]
    (since_s, before), (now_s, load) = samples[-3], samples[-1]
    if now_s <= since_s or now_s - samples[0][0] >= START_S:
        return load
    steep = (1 + STEEP) * samples[-3][1] < samples[-2][1] < samples[-1][1] / (1 + STEEP)
    if not steep and ahead_s > now_s - samples[0][0]:
        return load
    return load + SLOPE_DAMPING * (load - before) / (now_s - since_s) * ahead_s


_METHODS: tuple[_Method, ...] = (_last, _mean, _slope)
