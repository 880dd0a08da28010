"""Corrections of the model by measurement: a stage's 95th percentile and a replica's throughput. Pure.

Where the coefficient of variation of the service times is not declared, it is fitted to the percentile first, and the
correction is of what no variation explains.

Both corrections are learned slowly, and only from samples that can be compared with the model: no replica of the stage
started or stopped within their window, there were enough items, and the service factor has settled. Latency is
compared without overload, because a queue near its limit depends on the load of the last minutes, which the model does
not know. Throughput is compared under overload.

Without measurements a correction stays for an hour and then fades: a stage that gets load again next week is planned as
declared.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from optimizer.latency.stage import Prediction, StageLoad, capacity_rps, predict
from optimizer.model import (
    LATENCY_FACTORS,
    Batching,
    Placement,
    PlacementKey,
    PlacementName,
    Routing,
    StageName,
)
from profiler.estimate import FACTOR_BOUNDS, MOST_CHANGE, composed_latency_s
from profiler.receive import limit_rps
from profiler.samples import Absence, Quantity, sane
from profiler.stages import (
    Correction,
    Learned,
    PipelineInput,
    PipelineProfile,
    PlacementInput,
    PlacementProfile,
    StageInput,
    StageProfile,
    to_grain,
)

LATENCY_TIME_CONSTANT_S = 300.0
"""Time constant of the latency correction: a percentile of one window is noisy, and a wrong one costs money."""
RELIEF_TIME_CONSTANT_S = 1800.0
"""Time constant of a latency correction that decreases. It is long, so that a latency that rises and falls within
minutes does not change replicas each time."""
OVERHEAD_TIME_CONSTANT_S = 60.0
"""Time constant of the overhead. It is short, because few cycles can be compared, and until it is known replicas are
added where they help little."""
OVERHEAD_RELIEF_TIME_CONSTANT_S = 20.0
"""Time constant of an overhead that decreases. It is shorter still: a gateway takes its time always. What is not there
in calm moments was a queue that the stages' percentiles had not shown yet, and would cost replicas for nothing."""
THROUGHPUT_TIME_CONSTANT_S = 120.0
"""Time constant of the throughput correction. It is shorter, because items are late until the correction is learned."""
CV_TIME_CONSTANT_S = 300.0
"""Time constant of a fitted coefficient of variation, for the same reason as that of the latency correction."""
MOST_CV = 2.0
"""The largest coefficient of variation that is fitted; speech models are below 1."""
THROUGHPUT_FACTORS = (0.02, 1.0)
"""Bounds of the observed throughput over the one implied by the service time."""
KEPT_S = 3600.0
"""How long a correction stays unchanged without a measurement."""
FADING_TIME_CONSTANT_S = 4 * 3600.0
"""Time constant with which a correction fades after `KEPT_S`."""
MIN_TAIL_ITEMS = 200.0
"""Least number of items for a comparison: ten of them are beyond the 95th percentile."""
NEGLIGIBLE = 0.02
"""Deviations of the throughput below this share are ignored."""
NEGLIGIBLE_OVERHEAD = 0.05
LEAST_SHARE = 0.3
"""Where the measured overhead leaves a smaller share of the SLA, the SLA is missed at any cost, and the stages are
planned as without overhead: money spent on them would be wasted."""
_PERCENTILE = 95.0  # the percentile that servers report, whatever that of the SLA
_HIGHEST_UTILIZATION = 0.9
_SATURATED = 0.95
_FALLING_BEHIND = 1.05  # arrivals over completions
_CV_STEP = 0.05
_SERVICE_SETTLED = 0.1  # how far the newest service factor may be from the smoothed one


def believed(correction: Correction | None, now_s: float) -> float:
    """Return the factor that plans use: the learned one for `KEPT_S` after its last measurement, then fading to 1.

    Without a correction the factor is 1.
    """
    if correction is None:
        return 1.0
    return 1 + (correction.factor - 1) * _kept(correction, now_s)


def _kept(correction: Correction, now_s: float) -> float:
    """Return the share of a correction that has not faded."""
    idle_s = max(0.0, now_s - correction.learned_at_s - KEPT_S)
    return math.exp(-idle_s / FADING_TIME_CONSTANT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """An observed placement, its profile so far, and the `placement` with the service time that plans use."""

    running: PlacementInput
    profile: PlacementProfile
    placement: Placement

    @property
    def replicas(self) -> int:
        return self.running.replicas

    def reading(self, quantity: Quantity) -> float | None:
        """Return the reading of `quantity`, None where it is absent or not a usable number."""
        reading = self.profile.readings.get(quantity)
        return reading if isinstance(reading, float | int) and sane(reading) else None

    def saturating_at(self, rate_rps: float | None) -> Placement:
        """Return `placement` with the saturation rate `rate_rps`."""
        placement = self.placement
        return placement if placement.saturation_rps == rate_rps else replace(placement, saturation_rps=rate_rps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cycle:
    """Values that all stages of a pipeline share in one cycle. `demand_known`: without it nothing can be learned."""

    sla_latency_s: float
    demand_known: bool
    now_s: float
    interval_s: float


def with_corrections(
    profile: PipelineProfile, pipeline: PipelineInput, learned: Learned, *, now_s: float, interval_s: float
) -> PipelineProfile:
    """Return `profile` with the corrections of the model, updated from its readings; `learned` is `interval_s` old.

    Nothing is learned of a stage while its replicas start or stop, nor while the demand is missing: the model needs
    the number of streams.
    """
    cycle = _Cycle(
        sla_latency_s=pipeline.sla.latency_s,
        demand_known=pipeline.demand is not None,
        now_s=now_s,
        interval_s=interval_s,
    )
    complete: dict[StageName, bool] = {}  # whether neither the stage nor any before it drops or multiplies items
    stages: list[StageProfile] = []
    for stage, running in zip(profile.stages, pipeline.stages, strict=True):
        sessions = None if pipeline.demand is None else pipeline.demand.sessions
        observed = running
        if (shared := running.shared) is not None:
            # With the streams of the others unknown, the model cannot be compared with the samples, which are of all.
            observed = running if shared.other_sessions is not None else replace(running, settled=False)
            sessions = ((sessions or 0.0) + (shared.other_sessions or 0.0)) or None
        all_arrive = all(complete[name] for name in running.after)
        complete[stage.name] = all_arrive and to_grain(stage.pass_ratio) == 1
        periodic = sessions is not None and all_arrive and shared is None
        load = StageLoad(rate_rps=0.0, sessions=sessions, periodic=periodic, first_answer=running.first_answer)
        stages.append(_corrected(stage, observed, load, learned, cycle))
    overhead_s = _overhead(stages, pipeline, learned.overhead_s, cycle)
    return replace(profile, stages=tuple(stages), overhead_s=overhead_s)


def _overhead(
    stages: Sequence[StageProfile], pipeline: PipelineInput, before_s: float | None, cycle: _Cycle
) -> float | None:
    """Return the time that no stage accounts for: measured end to end minus composed of the stages, smoothed.

    It is compared only while every stage can be compared with the model: a queue that grows or shrinks is in the
    latencies of the stages at another time than in that of the whole. It rises from zero: one comparison may be one of
    latencies of different moments.
    """
    measured_s = pipeline.latency_s
    if measured_s is None or isinstance(measured_s, Absence) or any(own.modelled_p95_s is None for own in stages):
        return before_s
    composed_s = composed_latency_s(
        pipeline.stages, {own.name: own.readings for own in stages}, pipeline.sla.percentile
    )
    if isinstance(composed_s, Absence):
        return before_s
    goal_s = max(0.0, measured_s - composed_s)
    from_s = before_s or 0.0
    constant_s = OVERHEAD_TIME_CONSTANT_S if goal_s > from_s else OVERHEAD_RELIEF_TIME_CONSTANT_S
    return _towards(goal_s, from_s, cycle.interval_s, constant_s)


def left_to_stages_s(sla_s: float, overhead_s: float | None) -> float:
    """Return how much of the SLA (s) the time outside the stages leaves to them; None: that time is not known.

    A measured overhead below `NEGLIGIBLE_OVERHEAD` of the SLA is within the error of the measurement.
    """
    if overhead_s is None or overhead_s < NEGLIGIBLE_OVERHEAD * sla_s or leaves_too_little(sla_s, overhead_s):
        return sla_s
    return sla_s * to_grain(1 - overhead_s / sla_s)


def leaves_too_little(sla_s: float, overhead_s: float | None) -> bool:
    """Return whether the time outside the stages leaves them less than `LEAST_SHARE` of the SLA (s)."""
    return overhead_s is not None and overhead_s > (1 - LEAST_SHARE) * sla_s


def _corrected(
    stage: StageProfile, running: StageInput, load: StageLoad, learned: Learned, cycle: _Cycle
) -> StageProfile:
    parts: list[_Part] = []
    for profile, placement in zip(stage.placements, running.placements, strict=True):
        law = placement.prior.service if placement.law_declared else profile.service
        service = replace(law, cv=profile.service.cv) if not placement.cv_declared else law
        service = service.scaled(to_grain(profile.service_factor))
        part = _Part(
            running=placement,
            profile=profile,
            placement=replace(placement.prior, service=service, saturation_rps=None),
        )
        law_rps = capacity_rps(part.placement, part.placement.batch_sizes[-1])
        throughput = learned.throughput_corrections.get((stage.name, profile.name))
        if cycle.demand_known and running.settled:
            throughput = _throughput(part, throughput, law_rps, running.window_s, cycle)
        limits = (
            believed(throughput, cycle.now_s) * law_rps,
            _received_rps(learned, (stage.name, profile.name), cycle),
        )
        most_rps = min(limit for limit in limits if limit is not None)
        corrected = replace(
            profile,
            throughput_correction=throughput,
            saturation_rps=most_rps if most_rps < (1 - NEGLIGIBLE) * law_rps else None,
        )
        parts.append(replace(part, profile=corrected))
    modelled = _tail(parts, running, load) if cycle.demand_known and running.settled else None
    latency = learned.latency_corrections.get(stage.name)
    profiles = tuple(
        _with_cv(
            part,
            learned.cvs.get((stage.name, part.profile.name)),
            _measured_cv(part, running.window_s),
            None if modelled is None else modelled.cvs.get(part.profile.name),
            cycle,
        )
        for part in parts
    )
    if modelled is not None:
        low, high = LATENCY_FACTORS
        before = 1.0 if latency is None else 1 + (latency.smoothed - 1) * _kept(latency, cycle.now_s)
        ratio = min(high, max(low, min(before * MOST_CHANGE, max(before / MOST_CHANGE, modelled.ratio))))
        smoothed = _towards(ratio, before, cycle.interval_s, LATENCY_TIME_CONSTANT_S)
        relieved = _towards(smoothed, believed(latency, cycle.now_s), cycle.interval_s, RELIEF_TIME_CONSTANT_S)
        latency = Correction(factor=max(smoothed, relieved), smoothed=smoothed, learned_at_s=cycle.now_s)
    return replace(
        stage,
        placements=profiles,
        latency_correction=latency,
        latency_factor=believed(latency, cycle.now_s),
        modelled_p95_s=None if modelled is None else modelled.percentile_s,
    )


def _received_rps(learned: Learned, key: PlacementKey, cycle: _Cycle) -> float | None:
    """Return the items per second that a replica can receive, None while nothing limits it."""
    limit = limit_rps(learned.receive_limits.get(key), cycle.now_s)
    return None if limit is None else to_grain(limit)


def _towards(goal: float, start: float, interval_s: float, time_constant_s: float) -> float:
    """Return the value after `interval_s` of an exponential approach from `start` to `goal`."""
    return goal + (start - goal) * math.exp(-interval_s / time_constant_s)


def _measured_cv(part: _Part, window_s: float) -> float | None:
    """Return the coefficient of variation of the items' work that the server itself counts; None without enough items.

    Only with continuous batching is it that of the law: otherwise the law has that of batches.
    """
    cv, completions_rps = part.reading(Quantity.WORK_VARIATION), part.reading(Quantity.COMPLETION_RATE)
    if part.running.prior.batching is not Batching.CONTINUOUS or cv is None or completions_rps is None:
        return None
    return min(MOST_CV, cv) if cv >= 0 and completions_rps * window_s >= MIN_TAIL_ITEMS else None


def _with_cv(
    part: _Part, before: float | None, measured: float | None, fitted: float | None, cycle: _Cycle
) -> PlacementProfile:
    """Return the profile of `part` with the coefficient of variation learned `before`, moved towards that of now.

    That is the `measured` one, else the one `fitted` to the latency; None where there is none.
    """
    profile, now = part.profile, fitted if measured is None else measured
    if part.running.cv_declared or (before is None and now is None):
        return profile
    cv = before if before is not None else profile.service.cv if measured is None else measured
    if now is not None:
        cv = _towards(now, cv, cycle.interval_s, CV_TIME_CONSTANT_S)
    return replace(profile, service=replace(profile.service, cv=cv), learned_cv=cv)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    """Measured over modelled 95th percentile (`ratio`), and the modelled one; both are means over all items.

    `cvs` has the coefficients of variation that explain most of the difference, of placements without a declared one;
    `ratio` is then what they do not explain.
    """

    ratio: float
    percentile_s: float
    cvs: Mapping[PlacementName, float]


def _tail(parts: Sequence[_Part], stage: StageInput, load: StageLoad) -> _Tail | None:
    """Return the comparison of a stage's measured 95th percentile with the model, None where it is not possible.

    Each placement is compared separately, because the percentile of the stage is that of its slowest placement.
    """
    serving = [part for part in parts if part.replicas > 0]
    rates = [part.reading(Quantity.ARRIVAL_RATE) for part in serving]
    offered_rps = math.fsum(rate for rate in rates if rate is not None)
    tails: list[tuple[float, float, float]] = []  # items per second, measured over modelled, modelled
    cvs: dict[PlacementName, float] = {}
    for part, rate_rps in zip(serving, rates, strict=True):
        completions_rps = part.reading(Quantity.COMPLETION_RATE)
        p95_s = part.reading(Quantity.LATENCY_P95)
        if rate_rps is None or completions_rps is None or p95_s is None or p95_s <= 0 or rate_rps <= 0:
            return None
        if rate_rps > _FALLING_BEHIND * completions_rps or not _service_settled(part.profile):
            return None
        batch = part.running.batch
        # A server with batches is busy nearly all the time from well below its limit on.
        if batch == 1 and (part.reading(Quantity.UTILIZATION) or 0.0) > _HIGHEST_UTILIZATION:
            return None
        sessions = None if load.sessions is None else load.sessions * rate_rps / offered_rps
        predict_with = partial(_modelled_with, part, replace(load, rate_rps=rate_rps, sessions=sessions), stage.routing)
        cv = part.placement.service.cv
        predicted = predict_with(cv)
        if predicted is None or predicted.utilization > _HIGHEST_UTILIZATION or predicted.percentile_s <= 0:
            return None
        ratio = _ratio(part, p95_s, predicted)
        if not part.running.cv_declared and _measured_cv(part, stage.window_s) is None:
            ratio, cvs[part.profile.name] = _fitted_cv(part, p95_s, ratio, cv, predict_with)
        tails.append((completions_rps, ratio, predicted.percentile_s))
    total_rps = math.fsum(items_rps for items_rps, _, _ in tails)
    if total_rps * stage.window_s < MIN_TAIL_ITEMS:
        return None
    return _Tail(
        ratio=math.fsum(items * ratio for items, ratio, _ in tails) / total_rps,
        percentile_s=math.fsum(items * modelled for items, _, modelled in tails) / total_rps,
        cvs=cvs,
    )


def _fitted_cv(
    part: _Part, p95_s: float, ratio: float, cv: float, predict_with: Callable[[float], Prediction | None]
) -> tuple[float, float]:
    """Return measured over modelled latency at the coefficient of variation that makes it nearest to 1, and the latter.

    `ratio` is measured over modelled at the present `cv`. Latencies grow with the variation, so the grid is searched by
    halves. The present one stays where no other is nearer.
    """
    found = [(ratio, cv)]
    low, high = 0, round(MOST_CV / _CV_STEP)
    while low <= high:
        middle = (low + high) // 2
        predicted = predict_with(middle * _CV_STEP)
        if predicted is None or predicted.percentile_s <= 0:
            high = middle - 1
            continue
        other = _ratio(part, p95_s, predicted)
        found.append((other, middle * _CV_STEP))
        if other > 1:
            low = middle + 1
        else:
            high = middle - 1
    return min(found, key=lambda each: abs(math.log(each[0])))


def _modelled_with(part: _Part, load: StageLoad, routing: Routing, cv: float) -> Prediction | None:
    """Return the prediction for `part` with the coefficient of variation `cv` of its service times."""
    placement = part.saturating_at(part.profile.saturation_rps)
    if cv != placement.service.cv:
        placement = replace(placement, service=replace(placement.service, cv=cv))
    return _modelled(load, placement, part.replicas, part.running.batch, routing)


@lru_cache(maxsize=1 << 15)
def _modelled(load: StageLoad, placement: Placement, replicas: int, batch: int, routing: Routing) -> Prediction | None:
    """Return the prediction of the model, cached: most stages are unchanged since the last cycle."""
    return predict(load, placement, replicas, batch=batch, routing=routing, percentile=_PERCENTILE)


def _ratio(part: _Part, p95_s: float, predicted: Prediction) -> float:
    """Return the measured p95 over the modelled one.

    A histogram gives only the bounds of the bucket that holds the percentile; the interpolated value may be twice as
    long as the true one. Within these bounds the ratio of the mean latencies is used, which are sums over counts and
    depend on no bucket.
    """
    floor_s = part.reading(Quantity.LATENCY_P95_FLOOR)
    ceiling_s = part.reading(Quantity.LATENCY_P95_CEILING)
    if floor_s is None or ceiling_s is None:
        return p95_s / predicted.percentile_s
    mean_s = part.reading(Quantity.LATENCY_MEAN)
    ratio = 1.0 if mean_s is None or predicted.mean_s <= 0 else mean_s / predicted.mean_s
    return min(max(ratio, floor_s / predicted.percentile_s), max(ceiling_s, p95_s) / predicted.percentile_s)


def _throughput(
    part: _Part, before: Correction | None, law_rps: float, window_s: float, cycle: _Cycle
) -> Correction | None:
    """Return the correction of one replica's throughput; None where `law_rps`, implied by its service time, is reached.

    Only replicas that are always busy, fall behind and miss the SLA show their limit. More completions than the
    correction allows raise it at once. With a batch limit below the largest one, throughput is not compared.
    """
    completions_rps = part.reading(Quantity.COMPLETION_RATE)
    if completions_rps is None or part.replicas == 0 or completions_rps * window_s < MIN_TAIL_ITEMS:
        return before
    if part.running.batch != part.placement.batch_sizes[-1] or not _service_settled(part.profile):
        return before
    share = completions_rps / part.replicas / law_rps
    if share >= believed(before, cycle.now_s):
        return None if before is None or share >= 1 else replace(before, factor=share, smoothed=share)
    if not _saturated(part, completions_rps, cycle.sla_latency_s):
        return before
    goal = max(THROUGHPUT_FACTORS[0], share)
    factor = _towards(goal, believed(before, cycle.now_s), cycle.interval_s, THROUGHPUT_TIME_CONSTANT_S)
    return Correction(factor=factor, smoothed=factor, learned_at_s=cycle.now_s)


def _saturated(part: _Part, completions_rps: float, sla_latency_s: float) -> bool:
    """Whether the replicas are always busy, fall behind and miss the SLA."""
    utilization = part.reading(Quantity.UTILIZATION)
    p95_s = part.reading(Quantity.LATENCY_P95)
    arrivals_rps = part.reading(Quantity.ARRIVAL_RATE)
    queue = part.reading(Quantity.QUEUE_DEPTH)
    if utilization is None or p95_s is None or arrivals_rps is None or queue is None:
        return False
    behind = arrivals_rps > _FALLING_BEHIND * completions_rps or queue > sla_latency_s * completions_rps
    return utilization >= _SATURATED and p95_s > sla_latency_s and behind


def _service_settled(profile: PlacementProfile) -> bool:
    """Whether the smoothed service factor is close to the newest one, so that it causes no deviation of the latency."""
    if profile.measured_factor is None:
        return True
    low, high = FACTOR_BOUNDS
    newest = min(high, max(low, profile.measured_factor))
    return abs(newest - profile.service_factor) <= _SERVICE_SETTLED * profile.service_factor
