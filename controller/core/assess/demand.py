"""The demand to plan for: forecast over the start-up time, plus headroom, stabilized over the user's windows.

Headroom is the amount by which the load may rise before a new replica is ready. A forecast is held for the user's
scale-down window. Headroom is held no longer than a replica takes to start, because longer would only add cost.

Demand that is known in advance (`spec.demand.atLeast`) is a floor on the result, and no observation: forecasts and
windows stay as measured.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from controller.core.assess.schedule import highest_floor
from controller.core.assess.seasonal import seasonal
from controller.core.assess.surprises import growth_share, missed_share, rise_s, surprises
from controller.core.messages import details
from controller.core.state.carry_over import DemandSample, MetricsLoss, PipelineMemory, Surprise
from controller.core.state.decision import SeasonUse
from controller.core.state.schedule import DemandFloor
from controller.core.state.snapshot import PipelineState
from controller.core.state.spec import DemandUnit, PipelineSpec, StageSpec
from optimizer.model import PoolName, StageName
from profiler.forecast import forecast, growth
from profiler.samples import ABSURD, Absence, AbsenceReason, Quantity, Reading
from profiler.season import Season

NO_LAUNCHES: Mapping[PoolName, float] = MappingProxyType({})

FORECAST_S = 300.0
"""The forecast uses the samples of at least this time, and all of them are kept."""
TRIED_S = 240.0
"""Forecasts are tried on the samples of the horizon and this time before it."""
HISTORY_S = 600.0
"""The growth of the load is computed from the samples of at least this time: bursts are minutes apart."""
SPACING_S = 60.0
"""Of the samples between those of the forecast and `HISTORY_S`, the lowest and the highest in each interval of this
length are kept."""
KEPT = 100
"""Into so many parts the time of the forecast is divided, where it is long. Of older samples than `FORECAST_S`, the
last of each part is kept."""
OLD_BUCKETS = 32
"""Into so many parts the longest stabilization window is divided. Of older samples, the lowest and the highest of each
part are kept."""

SEASON_AFTER_S = 60.0
"""The history of past seasons counts once the demand was observed for this long."""
LEAST_GROWTH_PER_MINUTE = 0.01
"""Assumed growth of a load that was steady when metrics were lost, as a share per minute."""
MOST_GROWTH_PER_MINUTE = 0.25
MOST_MARGIN = 1.5
"""Upper bound of the safety margin while metrics are missing: the planned demand already includes headroom."""


CONTRADICTS = 1.25
"""By this factor more must arrive at an entry stage than the demand query says, before the query is not believed: rates
are means over a window, and lag behind a demand that falls."""
LEAST_CONTRADICTION = 1.0
"""The least arrivals, in units of demand, that contradict a query: single items after the last stream are none."""
CHANCES = 4.0
"""So many standard deviations of a Poisson number of items in a window are no contradiction."""
LAG_S = 30.0
"""How much later than the demand the arrivals may be read: a scrape and a cycle."""
QUIET_S = 600.0
"""For this long nothing must arrive of a demand before that is a contradiction: people are silent for minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """How far ahead to forecast, in seconds; `launch_s` of this is for a new node.

    `season` is what the history of the demand says of then, None without one. `surprises` are the misses of the last
    minutes that the room for growth until then rests on, `missed` the share (0–1) of these minutes that they took.
    `record` is the history seen from now, None without a usable one.
    """

    ahead_s: float
    launch_s: float
    season: SeasonUse | Absence | None = None
    surprises: tuple[Surprise, ...] = ()
    missed: float = 0.0
    record: Season | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """The demand query says `queried`, and the arrivals at the entry stage `stage` say `arriving`, in units of demand.

    `since_s` is since when nothing has arrived, None where more arrives than the query says: then that counts.
    """

    queried: float
    arriving: float
    stage: StageName
    since_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandState:
    """The demand of a pipeline in its unit: observed, forecast, stabilized, and to plan for.

    `forecast` includes headroom, and is None while the demand is missing. `stabilized` is None only until the first
    observation. `floor` is the entry of `spec.demand.atLeast` that is in force, None: none is. `loss` is set while the
    demand is missing. `falls_at_s` is when a demand that is held above the forecast may fall, None where it is not
    held. `samples` are kept for the next cycle.

    `idle_since_s` is since when the demand has been observed as 0 without a gap; it is set only for pipelines with
    `scaling.idleAfter`. `idle` says that this has lasted long enough to scale to zero; `stabilized` is then 0.

    `no_arrivals_at` has the entry stages whose replicas received no items, where this shows a demand of 0 that the
    demand query does not report. It is empty otherwise.

    `contradiction` is set where the demand query contradicts what arrives at the entry stages, for longer than their
    window. `quiet_since_s` is since when nothing has arrived there although the query reports a demand, and
    `contradicted_since_s` since when more arrives than it says.

    `horizon` is how far ahead the forecast looks. `begun_s` is when the demand was first observed, None where that is
    not known.
    """

    observed: Reading
    stabilized: float | None
    samples: tuple[DemandSample, ...]
    floor: DemandFloor | None = None
    forecast: float | None = None
    falls_at_s: float | None = None
    loss: MetricsLoss | None = None
    idle_since_s: float | None = None
    idle: bool = False
    no_arrivals_at: tuple[StageName, ...] = ()
    contradiction: Contradiction | None = None
    quiet_since_s: float | None = None
    contradicted_since_s: float | None = None
    begun_s: float | None = None
    horizon: Horizon | None = None

    @property
    def demand(self) -> float | None:
        """Return the demand to plan for: the stabilized one, but at least the floor. None: neither is known."""
        return self.stabilized if self.floor is None else max(self.stabilized or 0.0, self.floor.demand)

    @property
    def from_floor(self) -> bool:
        """Whether the floor, not the load, determines the demand to plan for."""
        return self.floor is not None and (self.stabilized is None or self.floor.demand > self.stabilized)


def planning_demand(
    state: PipelineState,
    now_s: float,
    interval_s: float,
    launches_s: Mapping[PoolName, float] = NO_LAUNCHES,
    shared: Collection[StageName] = (),
) -> DemandState:
    """Return the demand to plan for, with the values that it is computed from.

    It is the stabilized demand, but at least the highest entry of `spec.demand.atLeast` that is active now or before a
    replica that is started now is ready. Such an entry above 0 ends idleness. `launches_s` has how long new nodes of
    elastic pools take. `shared` are the stages that other pipelines use too: what arrives there is not all this one's.
    """
    found = stabilised_demand(state, now_s, interval_s, launches_s, shared)
    floor = highest_floor(state.spec.at_least, now_s, now_s + horizon_s(state.spec, interval_s, launches_s))
    if floor is None:
        return found
    found = replace(found, floor=floor, idle=found.idle and floor.demand <= 0)
    return replace(found, falls_at_s=None) if found.from_floor else found


def stabilised_demand(
    state: PipelineState,
    now_s: float,
    interval_s: float,
    launches_s: Mapping[PoolName, float] = NO_LAUNCHES,
    shared: Collection[StageName] = (),
) -> DemandState:
    """Return the demand by observation, D, as `stabilized`, with the values that it is computed from.

    D = clamp(previous D, lowest forecast of the scale-up window, highest forecast of the scale-down window). The same
    is computed for the forecast plus headroom, with a scale-down window of at most the time until a new replica is
    ready; D is the higher of the two results.

    While the demand is missing, D is the last D times a safety factor that grows with time. The last D without this
    factor counts as a forecast, so that a gap does not shorten a window.
    """
    memory, scaling = state.memory, state.spec.scaling
    earlier = _past(memory.samples, now_s)
    observed, no_arrivals_at = _measured(state)
    ahead = horizon(state.spec, interval_s, launches_s)
    ahead_s, record_s = ahead.ahead_s, _record_s(ahead.ahead_s)
    history = [
        (sample.t_s, sample.observed)
        for sample in earlier
        if sample.observed is not None and sample.t_s >= now_s - max(HISTORY_S, record_s)
    ]
    entries = _own_entries(state, shared)
    quiet_since_s = _quiet_since_s(state, observed, entries, now_s)
    contradiction, contradicted_since_s = _contradiction(state, observed, entries, quiet_since_s, now_s), None
    if contradiction is not None and contradiction.since_s is None:
        # It removes nothing, and adds nothing either: what a window shows of a load that starts is not its forecast.
        assert not isinstance(observed, Absence)
        known = contradiction.arriving if memory.demand is None else memory.demand
        observed = max(observed, min(contradiction.arriving, known))
        before_s = memory.contradicted_since_s
        contradicted_since_s = now_s if before_s is None else min(now_s, before_s)
        # The arrivals are a mean over a window: of a demand that falls they show what it was.
        if now_s - contradicted_since_s < max(stage.metrics_window_s for stage in entries) + LAG_S:
            contradiction = None
    if isinstance(observed, Absence):
        loss = memory.metrics_lost or _loss(memory, state.spec, history, now_s)
        if loss.demand is None:
            return DemandState(observed=observed, stabilized=None, samples=earlier, loss=loss)
        lately = [sample.forecast for sample in earlier if sample.t_s >= now_s - scaling.down.stabilization_s]
        held = DemandSample(
            t_s=now_s, observed=None, forecast=min(loss.demand, max(lately, default=loss.demand)), peak=loss.demand
        )
        idle = _stays_idle(state, observed, loss, now_s)
        return DemandState(
            observed=observed,
            stabilized=min(ABSURD, loss.demand * margin(now_s - loss.since_s, loss.growth_per_minute)),
            samples=_thinned((*earlier, held), now_s, _longest_window_s(state.spec), record_s),
            loss=loss,
            begun_s=memory.begun_s,
            idle_since_s=memory.idle_since_s if idle else None,
            idle=idle,
        )
    recent = [*history, (now_s, observed)]
    newest = [sample for sample in recent if sample[0] >= now_s - record_s]
    # What begins with no load for other reasons than its history would be planned for an opening.
    known = isinstance(state.history, Absence) or now_s - recent[0][0] >= SEASON_AFTER_S
    past = seasonal(state.history if known else None, newest, now_s, ahead_s)
    load = forecast(newest, now_s, ahead_s) if past.forecast is None else past.forecast.expected
    expected = min(ABSURD, max(observed, load))
    # Until a new replica is ready, the load may rise as it did before.
    chance = _chance(state.spec, observed, ahead_s)
    late = memory.missed_since_s is not None
    found = surprises(memory.surprises, earlier, (now_s, observed), late=late, ahead_s=ahead_s)
    missed = missed_share(found, recent[0][0], now_s)
    covered_s = rise_s(state.spec, found, missed, ahead_s)
    rise = growth(recent, covered_s, chance, growth_share(state.spec, missed))
    headroom = past.headroom(rise, recent, chance)
    peak = max(expected, min(ABSURD, observed + headroom))
    samples = (*earlier, DemandSample(t_s=now_s, observed=observed, forecast=expected, peak=peak))
    up_s, down_s = scaling.up.stabilization_s, scaling.down.stabilization_s
    forecasts = [(sample.t_s, sample.forecast) for sample in samples]
    peaks = [(sample.t_s, _peak(sample)) for sample in samples]
    peaks_for_s = min(down_s, ahead_s + interval_s)
    demand = max(
        _clamped(forecasts, now_s, memory.demand, up_s=up_s, down_s=down_s),
        _clamped(peaks, now_s, memory.demand, up_s=up_s, down_s=peaks_for_s),
    )
    kept = past.kept(demand, memory.demand, down_s + ahead_s)
    season = past.use(kept if kept > demand else None)
    demand = kept
    idle_since_s = _idle_since_s(state, observed, now_s)
    idle = _idle_time_over(state.spec, idle_since_s, now_s) and not past.opens()
    falls_at_s = [t_s + down_s for t_s, load in forecasts if load >= demand > peak]
    falls_at_s += [t_s + peaks_for_s for t_s, load in peaks if load >= demand > peak]
    return DemandState(
        observed=observed,
        forecast=peak,
        stabilized=0.0 if idle else demand,
        samples=_thinned(samples, now_s, _longest_window_s(state.spec), record_s),
        falls_at_s=None if idle else max(falls_at_s, default=None),
        idle_since_s=idle_since_s,
        idle=idle,
        no_arrivals_at=no_arrivals_at,
        contradiction=contradiction,
        quiet_since_s=quiet_since_s,
        contradicted_since_s=contradicted_since_s,
        begun_s=now_s if memory.demand is None and memory.begun_s is None else memory.begun_s,
        horizon=replace(ahead, season=season, surprises=found, missed=missed, record=past.season),
    )


def _idle_since_s(state: PipelineState, observed: float, now_s: float) -> float | None:
    if state.spec.scaling.idle_after_s is None or observed > 0:
        return None
    before_s = state.memory.idle_since_s
    return now_s if before_s is None else min(now_s, before_s)


def _idle_time_over(spec: PipelineSpec, since_s: float | None, until_s: float) -> bool:
    """Whether the time from `since_s` to `until_s` is long enough to scale to zero, also for the scale-down window."""
    idle_after_s = spec.scaling.idle_after_s
    if idle_after_s is None or since_s is None:
        return False
    return until_s - since_s >= max(idle_after_s, spec.scaling.down.stabilization_s)


def _stays_idle(state: PipelineState, observed: Absence, loss: MetricsLoss, now_s: float) -> bool:
    """Whether a pipeline that is idle stays so while its demand is missing.

    It does while the demand query is answered with no series, as it may be without load. A source that gives no answer
    hides new demand: after `scaling.idleAfter` without an answer, the pipeline is no longer idle.
    """
    samples = state.memory.samples
    if not samples or not _idle_time_over(state.spec, state.memory.idle_since_s, samples[-1].t_s):
        return False
    return observed.reason is AbsenceReason.MISSING or not _idle_time_over(state.spec, loss.since_s, now_s)


def _measured(state: PipelineState) -> tuple[Reading, tuple[StageName, ...]]:
    """Return the observed demand, and the stages that show that it is 0 where the demand query returns no series.

    Series may vanish while there is no load. They may also vanish with the ingress that exports them. An empty answer
    therefore counts as 0 only if the ready replicas of every entry stage report that no items arrive. A demand that was
    never observed stays absent: its query may be wrong.
    """
    observed = _valid(state.demand)
    if not (isinstance(observed, Absence) and observed.reason is AbsenceReason.MISSING):
        return observed, ()
    entries = tuple(stage for stage in state.spec.stages if not stage.after)
    if state.memory.demand is None or not all(_receives_nothing(state, stage) for stage in entries):
        return observed, ()
    return 0.0, tuple(stage.name for stage in entries)


def _own_entries(state: PipelineState, shared: Collection[StageName]) -> Sequence[StageSpec]:
    """Return the entry stages whose replicas serve this pipeline alone; `shared` are those that others use too."""
    return [stage for stage in state.spec.stages if not stage.after and stage.name not in shared]


def _contradiction(
    state: PipelineState,
    observed: Reading,
    entries: Sequence[StageSpec],
    quiet_since_s: float | None,
    now_s: float,
) -> Contradiction | None:
    """Return how the demand query contradicts the arrivals at the entry stages, None where it does not.

    A sum over an ingress that is no longer scraped, or with a label that was renamed, is a number like any other. What
    arrives at the entry stages was sent, so the demand is at least that. A gauge of requests that is never counted down
    shows as a demand of which nothing arrives: this may also be a pause, so the demand counts.
    """
    if isinstance(observed, Absence):
        return None
    for stage in entries:
        names = [placement.name for placement in stage.placements]
        if stage.cascade is not None:  # what goes on to its last placement has come before
            names = list(stage.cascade.planned.entered(name for name in names if state.ready(stage.name, name)))
        rates = [state.samples_of(stage.name, name).of(Quantity.ARRIVAL_RATE) for name in names]
        arriving = sum(rate for rate in rates if not isinstance(rate, Absence)) / state.spec.items_per_unit_s
        # In a window, so many items come by chance.
        chance = CHANCES * math.sqrt(observed / (state.spec.items_per_unit_s * stage.metrics_window_s))
        if LEAST_CONTRADICTION < arriving <= ABSURD and arriving > CONTRADICTS * observed + chance:
            return Contradiction(queried=observed, arriving=arriving, stage=stage.name)
        if quiet_since_s is not None and now_s - quiet_since_s >= QUIET_S:
            return Contradiction(queried=observed, arriving=0.0, stage=stage.name, since_s=quiet_since_s)
    return None


def _quiet_since_s(state: PipelineState, observed: Reading, entries: Sequence[StageSpec], now_s: float) -> float | None:
    """Return since when a demand is observed of which nothing arrives at any of `entries`, None where it does."""
    if isinstance(observed, Absence) or observed <= 0 or not entries:
        return None
    if not all(_receives_nothing(state, stage) for stage in entries):
        return None
    before_s = state.memory.quiet_since_s
    return now_s if before_s is None else min(now_s, before_s)


def _receives_nothing(state: PipelineState, stage: StageSpec) -> bool:
    """Whether `stage` has ready replicas, and those of each placement report that no items arrived in the window."""
    serving = [placement.name for placement in stage.placements if state.ready(stage.name, placement.name)]
    arrivals = [state.samples_of(stage.name, name).of(Quantity.ARRIVAL_RATE) for name in serving]
    return bool(arrivals) and all(not isinstance(rate, Absence) and rate == 0 for rate in arrivals)


def _clamped(
    loads: Sequence[tuple[float, float]], now_s: float, before: float | None, *, up_s: float, down_s: float
) -> float:
    """Return `before`, but at least the lowest load of the last `up_s` and at most the highest of the last `down_s`.

    `loads` are pairs of time and load, oldest first. Where `before` is None, the last load takes its place.
    """
    lowest = min(load for t_s, load in loads if t_s >= now_s - up_s)
    highest = max(load for t_s, load in loads if t_s >= now_s - down_s)
    return max(lowest, min(loads[-1][1] if before is None else before, highest))


def _peak(sample: DemandSample) -> float:
    return sample.planned


def margin(age_s: float, growth_per_minute: float) -> float:
    """Return the safety factor for a demand observed `age_s` ago: 1 + growth × minutes, at most `MOST_MARGIN`."""
    return min(MOST_MARGIN, 1 + growth_per_minute * max(0.0, age_s) / 60)


def _loss(memory: PipelineMemory, spec: PipelineSpec, history: list[tuple[float, float]], now_s: float) -> MetricsLoss:
    """Return the loss of the demand that begins now; its growth is the 90th percentile of recent rises in a minute."""
    demand = memory.demand
    share = growth(history, 60.0, _chance(spec, demand, 60.0)) / demand if demand else 0.0
    return MetricsLoss(
        since_s=now_s,
        demand=demand,
        growth_per_minute=min(MOST_GROWTH_PER_MINUTE, max(LEAST_GROWTH_PER_MINUTE, share)),
    )


def _chance(spec: PipelineSpec, load: float, ahead_s: float) -> float:
    """Return the standard deviation of a Poisson load: of the open streams, or of a request rate over `ahead_s`."""
    return math.sqrt(load if spec.unit is DemandUnit.STREAMS else load / ahead_s)


def horizon(spec: PipelineSpec, interval_s: float, launches_s: Mapping[PoolName, float] = NO_LAUNCHES) -> Horizon:
    """Return how far ahead to forecast.

    Replicas decided now are ready after one cycle, the launch of a node where the pool is elastic, and the start-up.
    """
    slowest_s, launch_s = max(
        (launch_s + placement.startup_s, launch_s)
        for stage in spec.stages
        for placement in stage.placements
        for launch_s in (launches_s.get(placement.pool, 0.0),)
    )
    return Horizon(ahead_s=interval_s + slowest_s, launch_s=launch_s)


def horizon_s(spec: PipelineSpec, interval_s: float, launches_s: Mapping[PoolName, float] = NO_LAUNCHES) -> float:
    """Return how far ahead to forecast, in seconds."""
    return horizon(spec, interval_s, launches_s).ahead_s


def _past(samples: tuple[DemandSample, ...], now_s: float) -> tuple[DemandSample, ...]:
    """Return the samples before `now_s`, and one sample at `now_s` for all later ones.

    Later samples exist after a clock was set back. The new sample has their highest values, so that the demand does not
    fall.
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


def _record_s(ahead_s: float) -> float:
    """Return the time (s) whose samples a forecast `ahead_s` ahead uses: the horizon, and as long as it is tried."""
    return max(FORECAST_S, ahead_s + TRIED_S)


def _thinned(
    samples: tuple[DemandSample, ...], now_s: float, window_s: float, record_s: float
) -> tuple[DemandSample, ...]:
    """Return the `samples` that later cycles need. Their number is bounded for every window, horizon and interval.

    Of the time `record_s` of the forecast, the samples that are kept say nothing of how high they are: a forecast from
    the lowest and highest would see more noise than there is.
    """
    kept = [sample for sample in samples if sample.t_s >= now_s - FORECAST_S]
    windowed: dict[float, list[DemandSample]] = {}
    older: dict[float, list[DemandSample]] = {}
    even: dict[float, DemandSample] = {}
    for sample in samples:
        if now_s - record_s <= sample.t_s < now_s - FORECAST_S:
            even[sample.t_s // (record_s / KEPT)] = sample
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
    return tuple(sorted(dict.fromkeys((*kept, *even.values())), key=lambda sample: sample.t_s))


def _distinct(*samples: DemandSample) -> Iterable[DemandSample]:
    return dict.fromkeys(samples)


def _forecast(sample: DemandSample) -> float:
    return sample.forecast
