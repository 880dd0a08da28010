"""Measured beats modelled: what a stage's tail and a replica's throughput are, over what the model says. Pure.

Both are learned from what runs, slowly, within bounds, and only where the samples can be compared with the model: no
replica came or went within their window, enough items, the service time settled. A latency is compared where nothing
is overloaded, since near its limit a queue says more about the last minutes than about the model; a throughput where
the replicas have more to do than they can.

Nothing measured keeps what was learned for an hour. Then it fades, so that a stage which is asked for again next week
is planned as declared.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from optimizer.latency.stage import Prediction, StageLoad, capacity_rps, predict
from optimizer.model import LATENCY_FACTORS, Placement, PoolName, Routing, StageName
from profiler.estimate import FACTOR_BOUNDS
from profiler.profile import Correction, PipelineProfile, PlacementProfile, StageProfile
from profiler.samples import Quantity, Reading, sane

LATENCY_TIME_CONSTANT_S = 300.0
"""How fast a measured tail is believed: a percentile of one window is noisy, and a wrong one costs money."""
RELIEF_TIME_CONSTANT_S = 1800.0
"""How fast a slow tail is forgotten while it is measured to be faster: one that comes and goes in minutes is planned
for as slow, instead of moving replicas each time."""
THROUGHPUT_TIME_CONSTANT_S = 120.0
"""How fast a throughput under overload is believed: faster, because items are late meanwhile."""
THROUGHPUT_FACTORS = (0.5, 1.0)
"""A replica is believed to carry at least half of what its service time says, and never more."""
KEPT_S = 3600.0
"""How long a correction stays as it is without a measurement."""
FADING_TIME_CONSTANT_S = 4 * 3600.0
"""How fast it then goes back to nothing."""
MIN_TAIL_ITEMS = 200.0
"""Ten items beyond the 95th percentile, so that it is not one item's time."""
NEGLIGIBLE = 0.02
"""A throughput this close to the law's is the law's."""
_PERCENTILE = 95.0  # what a stage's servers tell, whatever the percentile of the SLA
_HIGHEST_UTILIZATION = 0.9
_SATURATED = 0.95
_FALLING_BEHIND = 1.05  # arrivals over completions
_SERVICE_SETTLED = 0.1  # how far the newest service factor may be from the smoothed one


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPlacement:
    """`replicas` ready ones of `placement` (with its corrected service law), taking batches of up to `batch`."""

    placement: Placement
    replicas: int
    batch: int
    throughput: Correction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStage:
    """A stage as it runs; `load` is what arrives by the model, of which the rate is replaced by the measured one.

    `window_s` is the time that the samples average over. `latency` and `RunningPlacement.throughput` are what was
    learned so far.
    """

    load: StageLoad
    routing: Routing
    window_s: float
    placements: Mapping[PoolName, RunningPlacement]
    latency: Correction | None


def believed(correction: Correction | None, now_s: float) -> float:
    """Return the factor to plan with: as learned for an hour, then fading to 1."""
    if correction is None:
        return 1.0
    return 1 + (correction.factor - 1) * _kept(correction, now_s)


def _kept(correction: Correction, now_s: float) -> float:
    """Return the share of a correction that has not faded."""
    idle_s = max(0.0, now_s - correction.learned_at_s - KEPT_S)
    return math.exp(-idle_s / FADING_TIME_CONSTANT_S)


def with_corrections(
    profile: PipelineProfile,
    running: Mapping[StageName, RunningStage],
    *,
    sla_latency_s: float,
    settled: bool,
    now_s: float,
    interval_s: float,
) -> PipelineProfile:
    """Return `profile` with what its readings say about the model, `interval_s` after the cycle before.

    `settled` says that no replica came or went within the samples' window; otherwise nothing is learned. Stages that
    `running` does not name stay as they are.
    """
    return replace(
        profile,
        stages=tuple(
            _corrected(
                stage,
                running[stage.name],
                sla_latency_s=sla_latency_s,
                settled=settled,
                now_s=now_s,
                interval_s=interval_s,
            )
            if stage.name in running
            else stage
            for stage in profile.stages
        ),
    )


def _corrected(
    stage: StageProfile,
    running: RunningStage,
    *,
    sla_latency_s: float,
    settled: bool,
    now_s: float,
    interval_s: float,
) -> StageProfile:
    placements: list[PlacementProfile] = []
    for profile in stage.placements:
        part = running.placements[profile.pool]
        law_rps = capacity_rps(_saturating_at(part.placement, None), part.placement.batch_sizes[-1])
        throughput = part.throughput
        if settled:
            throughput = _throughput(
                profile, part, law_rps, running.window_s, sla_latency_s, now_s=now_s, interval_s=interval_s
            )
        share = believed(throughput, now_s)
        placements.append(
            replace(
                profile,
                throughput_correction=throughput,
                saturation_rps=share * law_rps if share < 1 - NEGLIGIBLE else None,
            )
        )
    modelled = _tail(placements, running) if settled else None
    latency = running.latency
    if modelled is not None:
        low, high = LATENCY_FACTORS
        ratio = min(high, max(low, modelled.ratio))
        before = 1.0 if latency is None else 1 + (latency.smoothed - 1) * _kept(latency, now_s)
        smoothed = _towards(ratio, before, interval_s, LATENCY_TIME_CONSTANT_S)
        relieved = _towards(smoothed, believed(latency, now_s), interval_s, RELIEF_TIME_CONSTANT_S)
        latency = Correction(factor=max(smoothed, relieved), smoothed=smoothed, learned_at_s=now_s)
    return replace(
        stage,
        placements=tuple(placements),
        latency_correction=latency,
        latency_factor=believed(latency, now_s),
        modelled_p95_s=None if modelled is None else modelled.percentile_s,
    )


def _towards(goal: float, start: float, interval_s: float, time_constant_s: float) -> float:
    """Return how far an exponential approach from `start` has come after `interval_s`; never past the `goal`."""
    return goal + (start - goal) * math.exp(-interval_s / time_constant_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    """Measured over modelled 95th percentile, and the modelled one; means over the placements by their items."""

    ratio: float
    percentile_s: float


def _tail(placements: Sequence[PlacementProfile], running: RunningStage) -> _Tail | None:
    """Return how the stage's tail compares with the model, None where it cannot be compared.

    Each placement is compared by itself: the stage's own percentile is that of the slowest.
    """
    serving = [profile for profile in placements if running.placements[profile.pool].replicas > 0]
    rates = [_number(profile.readings.get(Quantity.ARRIVAL_RATE)) for profile in serving]
    offered_rps = math.fsum(rate for rate in rates if rate is not None)
    parts: list[tuple[float, float, float]] = []  # items per second, measured over modelled, modelled
    for profile, rate_rps in zip(serving, rates, strict=True):
        completions_rps = _number(profile.readings.get(Quantity.COMPLETION_RATE))
        p95_s = _number(profile.readings.get(Quantity.LATENCY_P95))
        if rate_rps is None or completions_rps is None or p95_s is None or p95_s <= 0 or rate_rps <= 0:
            return None
        if rate_rps > _FALLING_BEHIND * completions_rps or not _service_settled(profile):
            return None
        part = running.placements[profile.pool]
        # A server with batches is busy nearly all the time from well below its limit on.
        if part.batch == 1 and (_number(profile.readings.get(Quantity.UTILIZATION)) or 0.0) > _HIGHEST_UTILIZATION:
            return None
        sessions = running.load.sessions
        predicted = _modelled(
            replace(
                running.load,
                rate_rps=rate_rps,
                sessions=None if sessions is None else sessions * rate_rps / offered_rps,
            ),
            _saturating_at(part.placement, profile.saturation_rps),
            part.replicas,
            part.batch,
            running.routing,
        )
        if predicted is None or predicted.utilization > _HIGHEST_UTILIZATION or predicted.percentile_s <= 0:
            return None
        parts.append((completions_rps, _ratio(profile, p95_s, predicted), predicted.percentile_s))
    total_rps = math.fsum(items_rps for items_rps, _, _ in parts)
    if total_rps * running.window_s < MIN_TAIL_ITEMS:
        return None
    return _Tail(
        ratio=math.fsum(items * ratio for items, ratio, _ in parts) / total_rps,
        percentile_s=math.fsum(items * modelled for items, _, modelled in parts) / total_rps,
    )


@lru_cache(maxsize=1 << 15)
def _modelled(load: StageLoad, placement: Placement, replicas: int, batch: int, routing: Routing) -> Prediction | None:
    """Return what the model predicts; of thousands of stages most are as they were a cycle ago."""
    return predict(load, placement, replicas, batch=batch, routing=routing, percentile=_PERCENTILE)


def _saturating_at(placement: Placement, rate_rps: float | None) -> Placement:
    return placement if placement.saturation_rps == rate_rps else replace(placement, saturation_rps=rate_rps)


def _ratio(profile: PlacementProfile, p95_s: float, predicted: Prediction) -> float:
    """Return the measured p95 over the modelled one, as far as the measurement tells.

    Of a histogram it is known to lie between the bounds of a bucket, no more, and what is interpolated may be twice as
    long. Within them the means say how far the model is off: sums over counts, which no bucket blurs.
    """
    floor_s = _number(profile.readings.get(Quantity.LATENCY_P95_FLOOR))
    ceiling_s = _number(profile.readings.get(Quantity.LATENCY_P95_CEILING))
    if floor_s is None or ceiling_s is None:
        return p95_s / predicted.percentile_s
    mean_s = _number(profile.readings.get(Quantity.LATENCY_MEAN))
    ratio = 1.0 if mean_s is None or predicted.mean_s <= 0 else mean_s / predicted.mean_s
    return min(max(ratio, floor_s / predicted.percentile_s), max(ceiling_s, p95_s) / predicted.percentile_s)


def _throughput(
    profile: PlacementProfile,
    part: RunningPlacement,
    law_rps: float,
    window_s: float,
    sla_latency_s: float,
    *,
    now_s: float,
    interval_s: float,
) -> Correction | None:
    """Return what one replica was seen to carry, over what its service time says: None where that is the same.

    Only replicas that are busy all the time, fall behind and answer late show their limit. One that carries more than
    it was believed to corrects that at once. The service times tell nothing of a batch limit that is not the largest.
    """
    before = part.throughput
    completions_rps = _number(profile.readings.get(Quantity.COMPLETION_RATE))
    if completions_rps is None or part.replicas == 0 or completions_rps * window_s < MIN_TAIL_ITEMS:
        return before
    if part.batch != part.placement.batch_sizes[-1] or not _service_settled(profile):
        return before
    share = completions_rps / part.replicas / law_rps
    if share >= believed(before, now_s):
        return None if before is None or share >= 1 else replace(before, factor=share, smoothed=share)
    if not _saturated(profile, completions_rps, sla_latency_s):
        return before
    goal = max(THROUGHPUT_FACTORS[0], share)
    factor = _towards(goal, believed(before, now_s), interval_s, THROUGHPUT_TIME_CONSTANT_S)
    return Correction(factor=factor, smoothed=factor, learned_at_s=now_s)


def _saturated(profile: PlacementProfile, completions_rps: float, sla_latency_s: float) -> bool:
    utilization = _number(profile.readings.get(Quantity.UTILIZATION))
    p95_s = _number(profile.readings.get(Quantity.LATENCY_P95))
    arrivals_rps = _number(profile.readings.get(Quantity.ARRIVAL_RATE))
    queue = _number(profile.readings.get(Quantity.QUEUE_DEPTH))
    if utilization is None or p95_s is None or arrivals_rps is None or queue is None:
        return False
    behind = arrivals_rps > _FALLING_BEHIND * completions_rps or queue > sla_latency_s * completions_rps
    return utilization >= _SATURATED and p95_s > sla_latency_s and behind


def _service_settled(profile: PlacementProfile) -> bool:
    """Whether the smoothed service time has arrived at the measured one: what is left is not the mean's fault."""
    if profile.measured_factor is None:
        return True
    low, high = FACTOR_BOUNDS
    newest = min(high, max(low, profile.measured_factor))
    return abs(newest - profile.service_factor) <= _SERVICE_SETTLED * profile.service_factor


def _number(reading: Reading | None) -> float | None:
    return reading if isinstance(reading, float | int) and sane(reading) else None
