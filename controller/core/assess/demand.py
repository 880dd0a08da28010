"""The demand to plan for: the forecast over the start-up time and the room to rise, stabilised over the user's windows.

A forecast is kept for the user's scale-down window. What the load may rise to beyond it, until a new replica serves, is
kept no longer than that takes: room that was not needed is no reason to pay for it for minutes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from controller.core.state.carry_over import DemandSample, MetricsLoss, PipelineMemory
from controller.core.state.snapshot import PipelineState
from controller.core.state.spec import DemandUnit, PipelineSpec
from profiler.demand import forecast, growth
from profiler.samples import ABSURD, Absence, AbsenceReason, Reading

FORECAST_S = 300.0
"""How far back a forecast looks: every sample this recent is kept."""
HISTORY_S = 600.0
"""How far back is looked for how fast the load rises: bursts are minutes apart."""
SPACING_S = 60.0
"""Of older samples the lowest and the highest are kept of each such time, as far back as `HISTORY_S`,"""
OLD_BUCKETS = 32
"""and, while they are in the longest window, of each of so many parts of it."""

LEAST_GROWTH_PER_MINUTE = 0.01
"""What a load that was steady when it was last seen may grow by, unseen."""
MOST_GROWTH_PER_MINUTE = 0.25
MOST_MARGIN = 1.5
"""However long nothing has been seen: what was planned for has room to rise in it already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandState:
    """Demand in the pipeline's unit: observed, forecast and stabilised.

    `forecast` has the room to rise in it. It is None when the demand is missing, `demand` also when it was never seen;
    `loss` says since when it is missing. `falls_at_s` is when a demand above the forecast is released, None when none
    is held.
    """

    observed: Reading
    forecast: float | None
    demand: float | None
    samples: tuple[DemandSample, ...]
    falls_at_s: float | None
    loss: MetricsLoss | None = None


def stabilised_demand(state: PipelineState, now_s: float, interval_s: float) -> DemandState:
    """Return D = clamp(previous D, lowest forecast of the scale-up window, highest of the scale-down window).

    The same is done with what the load may rise to, over no more than the time until what is decided now serves; D is
    the higher of the two. A cycle without demand keeps the D from before the loss, times a margin that grows with the
    time since, and counts as one in which that D was offered: a gap must not shorten a window.
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
            return DemandState(
                observed=observed, forecast=None, demand=None, samples=earlier, falls_at_s=None, loss=loss
            )
        known = [sample.forecast for sample in earlier if sample.t_s >= now_s - scaling.down.stabilization_s]
        held = DemandSample(
            t_s=now_s, observed=None, forecast=min(loss.demand, max(known, default=loss.demand)), peak=loss.demand
        )
        return DemandState(
            observed=observed,
            forecast=None,
            demand=min(ABSURD, loss.demand * margin(now_s - loss.since_s, loss.growth_per_minute)),
            samples=_thinned((*earlier, held), now_s, _longest_window_s(state.spec)),
            falls_at_s=None,
            loss=loss,
        )
    recent = [*history, (now_s, observed)]
    ahead_s = horizon_s(state.spec, interval_s)
    newest = [sample for sample in recent if sample[0] >= now_s - FORECAST_S]
    expected = min(ABSURD, max(observed, forecast(newest, now_s, ahead_s)))
    # Between now and when a new replica serves, the load may rise as it did before.
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
    """Return by what to multiply a demand that was last seen `age_s` ago: min(MOST_MARGIN, 1 + growth × minutes).

    It is at least 1, so that time alone never lowers what is planned for, and the budget bounds what is made of it.
    """
    return min(MOST_MARGIN, 1 + growth_per_minute * max(0.0, age_s) / 60)


def _loss(memory: PipelineMemory, spec: PipelineSpec, history: list[tuple[float, float]], now_s: float) -> MetricsLoss:
    """Return the loss that begins now: the demand may go on to rise as it did, nine times out of ten, in a minute."""
    demand = memory.demand
    share = growth(history, 60.0, _chance(spec, demand, 60.0)) / demand if demand else 0.0
    return MetricsLoss(
        since_s=now_s,
        demand=demand,
        growth_per_minute=min(MOST_GROWTH_PER_MINUTE, max(LEAST_GROWTH_PER_MINUTE, share)),
    )


def _chance(spec: PipelineSpec, load: float, ahead_s: float) -> float:
    """Return the standard deviation of a Poisson load: of streams under way, or of a rate averaged over `ahead_s`."""
    return math.sqrt(load if spec.unit is DemandUnit.STREAMS else load / ahead_s)


def horizon_s(spec: PipelineSpec, interval_s: float) -> float:
    """Return how far ahead to look: what is decided now serves after the slowest start-up and one more cycle."""
    return interval_s + max(placement.startup_s for stage in spec.stages for placement in stage.placements)


def _past(samples: tuple[DemandSample, ...], now_s: float) -> tuple[DemandSample, ...]:
    """Return the samples before `now_s`. Those after it, from before a clock was set back, count as one of now: a
    clock alone lowers nothing.
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
        rule = f"must be from 0 to {ABSURD:g}"
        return Absence(reason=AbsenceReason.NOT_A_NUMBER, detail=f"demand.query answered {reading!r}: {rule}")
    return reading


def _longest_window_s(spec: PipelineSpec) -> float:
    return max(spec.scaling.up.stabilization_s, spec.scaling.down.stabilization_s)


def _thinned(samples: tuple[DemandSample, ...], now_s: float, window_s: float) -> tuple[DemandSample, ...]:
    """Return what later cycles can need of `samples`: a bounded number, whatever the window and the interval."""
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
        # The highest stands for all of its part, to the end: what is dropped must not leave the window sooner.
        highest = (replace(max(bucket, key=key), t_s=bucket[-1].t_s) for key in (_forecast, _peak))
        kept += _distinct(min(bucket, key=_forecast), min(bucket, key=_peak), *highest)
    return tuple(sorted(kept, key=lambda sample: sample.t_s))


def _distinct(*samples: DemandSample) -> Iterable[DemandSample]:
    return dict.fromkeys(samples)


def _forecast(sample: DemandSample) -> float:
    return sample.forecast
