"""The demand to plan for: forecast over the start-up time, plus headroom, stabilised over the user's windows.

A forecast is kept for the user's scale-down window. Headroom, which is what the load may rise to before a new replica
is ready, is kept no longer than a replica takes to start: headroom that was not needed is not paid for afterwards.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from controller.core.messages import details
from controller.core.state.carry_over import DemandSample, MetricsLoss, PipelineMemory
from controller.core.state.snapshot import PipelineState
from controller.core.state.spec import DemandUnit, PipelineSpec
from profiler.demand import forecast, growth
from profiler.samples import ABSURD, Absence, AbsenceReason, Reading

FORECAST_S = 300.0
"""Every sample this recent is kept: the forecast uses them."""
HISTORY_S = 600.0
"""How far back samples count for the growth of the load: bursts are minutes apart."""
SPACING_S = 60.0
"""Of older samples, back to `HISTORY_S`, the lowest and the highest of each such interval are kept."""
OLD_BUCKETS = 32
"""Of samples within the longest stabilisation window, the lowest and the highest of each of so many parts are kept."""

LEAST_GROWTH_PER_MINUTE = 0.01
"""Assumed growth of a load that was steady when metrics were lost, as a share per minute."""
MOST_GROWTH_PER_MINUTE = 0.25
MOST_MARGIN = 1.5
"""Upper bound of the safety margin while metrics are missing: the planned demand already includes headroom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandState:
    """Demand in the pipeline's unit: observed, forecast and stabilised.

    `forecast` includes headroom. It is None while the demand is missing, `demand` only until the first observation;
    `loss` says since when the demand is missing. `falls_at_s` is when a demand held above the forecast is released,
    None when none is held.
    """

    observed: Reading
    demand: float | None
    samples: tuple[DemandSample, ...]
    forecast: float | None = None
    falls_at_s: float | None = None
    loss: MetricsLoss | None = None


def stabilised_demand(state: PipelineState, now_s: float, interval_s: float) -> DemandState:
    """Return D = clamp(previous D, lowest forecast of the scale-up window, highest of the scale-down window).

    The same is done with the forecast plus headroom, over no more than the time until a new replica is ready; D is the
    higher of the two. While the demand is missing, D is the last one times a margin that grows with time, and counts
    as observed: a gap must not shorten a window.
    """
    memory, scaling = state.memory, state.spec.scaling
    earlier = _past(memory.samples, now_s)
    observed = _valid(state.demand)
    history = [
        (sample.t_s, sample.observed)
        for sample in earlier
        if sample.observed is not None and sample.t_s >= now_s - HISTORY_S
    ]
    if isinstance(observed, Absence):
        loss = memory.metrics_lost or _loss(memory, state.spec, history, now_s)
        if loss.demand is None:
            return DemandState(observed=observed, demand=None, samples=earlier, loss=loss)
        known = [sample.forecast for sample in earlier if sample.t_s >= now_s - scaling.down.stabilization_s]
        held = DemandSample(
            t_s=now_s, observed=None, forecast=min(loss.demand, max(known, default=loss.demand)), peak=loss.demand
        )
        return DemandState(
            observed=observed,
            demand=min(ABSURD, loss.demand * margin(now_s - loss.since_s, loss.growth_per_minute)),
            samples=_thinned((*earlier, held), now_s, _longest_window_s(state.spec)),
            loss=loss,
        )
    recent = [*history, (now_s, observed)]
    ahead_s = horizon_s(state.spec, interval_s)
    newest = [sample for sample in recent if sample[0] >= now_s - FORECAST_S]
    expected = min(ABSURD, max(observed, forecast(newest, now_s, ahead_s)))
    # Until a new replica is ready, the load may rise as it did before.
    peak = max(expected, min(ABSURD, observed + growth(recent, ahead_s, _chance(state.spec, observed, ahead_s))))
    samples = (*earlier, DemandSample(t_s=now_s, observed=observed, forecast=expected, peak=peak))
    up_s, down_s = scaling.up.stabilization_s, scaling.down.stabilization_s
    forecasts = [(sample.t_s, sample.forecast) for sample in samples]
    peaks = [(sample.t_s, _peak(sample)) for sample in samples]
    peaks_for_s = min(down_s, ahead_s + interval_s)
    demand = max(
        _clamped(forecasts, now_s, memory.demand, up_s=up_s, down_s=down_s),
        _clamped(peaks, now_s, memory.demand, up_s=up_s, down_s=peaks_for_s),
    )
    falls_at_s = [t_s + down_s for t_s, load in forecasts if load >= demand > peak]
    falls_at_s += [t_s + peaks_for_s for t_s, load in peaks if load >= demand > peak]
    return DemandState(
        observed=observed,
        forecast=peak,
        demand=demand,
        samples=_thinned(samples, now_s, _longest_window_s(state.spec)),
        falls_at_s=max(falls_at_s, default=None),
    )


def _clamped(
    loads: Sequence[tuple[float, float]], now_s: float, before: float | None, *, up_s: float, down_s: float
) -> float:
    """Return `before` within the lowest of the last `up_s` and the highest of the last `down_s` of (time, load)."""
    lowest = min(load for t_s, load in loads if t_s >= now_s - up_s)
    highest = max(load for t_s, load in loads if t_s >= now_s - down_s)
    return max(lowest, min(loads[-1][1] if before is None else before, highest))


def _peak(sample: DemandSample) -> float:
    return sample.forecast if sample.peak is None else sample.peak


def margin(age_s: float, growth_per_minute: float) -> float:
    """Return the safety margin for a demand observed `age_s` ago: 1 + growth × minutes, at most `MOST_MARGIN`."""
    return min(MOST_MARGIN, 1 + growth_per_minute * max(0.0, age_s) / 60)


def _loss(memory: PipelineMemory, spec: PipelineSpec, history: list[tuple[float, float]], now_s: float) -> MetricsLoss:
    """Return the loss that begins now; its growth per minute is the 90th percentile of the recent rises in a minute."""
    demand = memory.demand
    share = growth(history, 60.0, _chance(spec, demand, 60.0)) / demand if demand else 0.0
    return MetricsLoss(
        since_s=now_s,
        demand=demand,
        growth_per_minute=min(MOST_GROWTH_PER_MINUTE, max(LEAST_GROWTH_PER_MINUTE, share)),
    )


def _chance(spec: PipelineSpec, load: float, ahead_s: float) -> float:
    """Return the standard deviation of a Poisson load: of open streams, or of a rate averaged over `ahead_s`."""
    return math.sqrt(load if spec.unit is DemandUnit.STREAMS else load / ahead_s)


def horizon_s(spec: PipelineSpec, interval_s: float) -> float:
    """Return the forecast horizon: replicas decided now are ready after the slowest start-up and one more cycle."""
    return interval_s + max(placement.startup_s for stage in spec.stages for placement in stage.placements)


def _past(samples: tuple[DemandSample, ...], now_s: float) -> tuple[DemandSample, ...]:
    """Return the samples before `now_s`; later ones, from before a clock was set back, become one sample of now.

    A clock that is set back must not lower the demand.
    """
    past = tuple(sample for sample in samples if sample.t_s < now_s)
    ahead = [sample for sample in samples if sample.t_s > now_s]
    if not ahead:
        return past
    return (
        *past,
        DemandSample(t_s=now_s, observed=None, forecast=max(map(_forecast, ahead)), peak=max(map(_peak, ahead))),
    )


def _valid(reading: Reading) -> Reading:
    if isinstance(reading, float | int) and not 0 <= reading <= ABSURD:
        return Absence(reason=AbsenceReason.NOT_A_NUMBER, detail=details.invalid_demand(reading))
    return reading


def _longest_window_s(spec: PipelineSpec) -> float:
    return max(spec.scaling.up.stabilization_s, spec.scaling.down.stabilization_s)


def _thinned(samples: tuple[DemandSample, ...], now_s: float, window_s: float) -> tuple[DemandSample, ...]:
    """Return the part of `samples` that later cycles need: a bounded number, whatever the window and the interval."""
    kept = [sample for sample in samples if sample.t_s >= now_s - FORECAST_S]
    windowed: dict[float, list[DemandSample]] = {}
    older: dict[float, list[DemandSample]] = {}
    for sample in samples:
        if now_s - window_s <= sample.t_s < now_s - FORECAST_S:
            windowed.setdefault(sample.t_s // (window_s / OLD_BUCKETS), []).append(sample)
        elif now_s - HISTORY_S <= sample.t_s < now_s - FORECAST_S:
            older.setdefault(sample.t_s // SPACING_S, []).append(sample)
    for bucket in older.values():
        kept += _distinct(min(bucket, key=_forecast), max(bucket, key=_forecast))
    for bucket in windowed.values():
        # The highest gets the time of the last sample of its part: dropping samples must not make it expire earlier.
        highest = (replace(max(bucket, key=key), t_s=bucket[-1].t_s) for key in (_forecast, _peak))
        kept += _distinct(min(bucket, key=_forecast), min(bucket, key=_peak), *highest)
    return tuple(sorted(kept, key=lambda sample: sample.t_s))


def _distinct(*samples: DemandSample) -> Iterable[DemandSample]:
    return dict.fromkeys(samples)


def _forecast(sample: DemandSample) -> float:
    return sample.forecast
