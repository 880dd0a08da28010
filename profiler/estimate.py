"""Estimates from samples: corrected service laws, pass ratios, pressure, the bottleneck, end-to-end latency.

Pure. The readings of several placements are combined per stage: rates and counts are summed, percentiles and receive
pressure are those of the worst placement, means are weighted by replicas. A placement without ready replicas does not
count, nor does one whose reading is `NoTraffic` while another placement has a number. Any other absent reading of a
placement makes the stage's reading absent, because the other placements alone would look like less load.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from optimizer.model import MOST_PASSED, Batching, PlacementKey, PlacementName, ServiceLaw, StageName
from profiler.batch_times import with_measurement
from profiler.law import fitted_law, with_prefill
from profiler.neighbours import NOTHING, alone, crowding
from profiler.samples import (
    THROUGHPUT,
    Absence,
    AbsenceReason,
    AtLeast,
    DeviceQuantity,
    PlacementSamples,
    Quantity,
    Reading,
)
from profiler.stages import (
    LatencySource,
    Learned,
    PipelineInput,
    PipelineProfile,
    PlacementInput,
    PlacementProfile,
    StageInput,
    StageProfile,
)

SMOOTHING = 0.3
"""Weight of the newest measurement in a service factor: it follows half of a change within two cycles. The first
measurement counts in full."""
MOST_CHANGE, MOST_CHANGE_AT_FIRST = 2.0, 4.0
"""A measurement counts as at most this many times above or below the factor so far, so that one absurd sample does
little harm. The first one may differ more, because declared service times are often wrong by several times."""
PASS_RATIO_TIME_CONSTANT_S = 60.0
"""Time constant of the pass ratio: speech changes slowly, and a wrong ratio affects every stage."""
_FILTERS = 0.7
"""A stage of which no ratio is declared filters if its first one is below this: delays alone do not make it so low."""
_RISEN, _DEVIATIONS = 1.3, 3.0
"""A pass ratio that is so many times that of before, and so many standard deviations above it, has risen. The rates of
two stages are off by a tenth and more against each other while the load changes."""
FACTOR_BOUNDS = (1e-3, 1e3)
"""Bounds of measured over prior service time: wide enough for every mistake but one in the unit of a metric."""
FAN_OUT = 1.1
"""A stage that is declared to multiply nothing does so from this measured ratio on. Below it, items of a queue that
shrinks or is tried again look like fan-out."""
MOST_WARMING = 0.1
"""With a larger share of replicas in their first minutes, no service time gets longer: they are slower then than later,
and what was learned of them would add replicas for as long as it takes to learn the opposite."""
MIN_ITEMS = 30.0
"""Least number of items within the window for a correction."""
_LEAST_DAMPING = 0.05
"""Lower bound of the damping. Where the service time grows nearly in proportion to the batch, the damping would get to
zero and the variance to infinity."""
_BOUNDED = 1.5
"""Divisor of the greatest possible variance of the batch size, which only batches of 1 and of the limit have. Fitted to
simulated servers, together with the way in which both bounds of the variance are combined
(`tests/oracle/test_service_times.py`)."""
LATENCY_WEIGHT, UTILIZATION_WEIGHT, QUEUE_WEIGHT = 0.40, 0.30, 0.30
_PRESSURE = (Quantity.LATENCY_P95, Quantity.UTILIZATION, Quantity.QUEUE_DEPTH, Quantity.COMPLETION_RATE)


def estimate_pipeline(pipeline: PipelineInput, learned: Learned, *, interval_s: float) -> PipelineProfile:
    """Return the profile of `pipeline`, not yet with corrections of the model; `learned` is `interval_s` seconds old.

    A pass ratio stays as learned while replicas of its stage, or of a next one, start or stop. A replica that is gone
    is missing from the sum of its own stage, while part of its items is still in the sums of the other stages. Without
    a measured end-to-end latency the latency is composed of the latencies of the stages.
    """
    stages = pipeline.stages
    readings = {stage.name: _stage_readings(stage) for stage in stages}
    weight = 1 - math.exp(-interval_s / PASS_RATIO_TIME_CONSTANT_S)
    profiles = tuple(_stage_profile(stage, pipeline, readings, learned, weight, interval_s) for stage in stages)
    if pipeline.latency_s is None or isinstance(pipeline.latency_s, Absence):
        latency_s, source = composed_latency_s(stages, readings, pipeline.sla.percentile), LatencySource.COMPOSED
    else:
        latency_s, source = pipeline.latency_s, LatencySource.MEASURED
    if isinstance(latency_s, AtLeast) and latency_s <= pipeline.sla.latency_s:
        latency_s = _above_buckets(pipeline, readings, latency_s, source)
    return PipelineProfile(
        stages=profiles, bottleneck=_bottleneck(profiles), latency_s=latency_s, latency_source=source
    )


def _above_buckets(
    pipeline: PipelineInput,
    readings: Mapping[StageName, Mapping[Quantity, Reading]],
    least_s: float,
    source: LatencySource,
) -> Absence:
    """Return the absence of a latency that is above the last bound of a histogram, which is not above the SLA."""
    if source is LatencySource.MEASURED:
        bounds = f"sla.query is at least {least_s:g} s"
    else:
        quantity = _percentile(pipeline.sla.percentile)
        own = [(name, each[quantity]) for name, each in readings.items()]
        bounds = ", ".join(f"{name} is at least {least:g} s" for name, least in own if isinstance(least, AtLeast))
    return Absence(
        reason=AbsenceReason.ABOVE_BUCKETS,
        detail=f"the latency of {bounds}, the last finite bound of its histogram, and sla.latency is "
        f"{pipeline.sla.latency_s:g} s: add bounds above it",
    )


def composed_latency_s(
    stages: Sequence[StageInput], readings: Mapping[StageName, Mapping[Quantity, Reading]], percentile: float
) -> Reading:
    """Return the end-to-end latency in seconds: Σ mean + √Σ(percentile − mean)² along the slowest path.

    The 95th percentiles of the stages are used for every `percentile` up to 95, the 99th percentiles above it. The
    result is absent where the percentile of a stage is, and `AtLeast` where one is. Where a stage has no mean, its
    percentile takes its place, which makes the result higher. It may be too low where parallel branches join, because
    an item waits for the slower branch. On independent stages its error is that of `optimizer.model.Composition.RSS`.
    """
    quantity = _percentile(percentile)
    until: dict[StageName, tuple[float, float]] = {}  # mean, and the sum of the squared distances to it
    for stage in stages:
        own_s, mean_s = readings[stage.name][quantity], readings[stage.name][Quantity.LATENCY_MEAN]
        if isinstance(own_s, Absence):
            return Absence(reason=own_s.reason, detail=f"{stage.name} {quantity.value}: {own_s.detail}".rstrip(": "))
        centre_s = own_s if isinstance(mean_s, Absence) else min(mean_s, own_s)
        before = max((until[name] for name in stage.after), key=_composed, default=(0.0, 0.0))
        until[stage.name] = before[0] + centre_s, before[1] + (own_s - centre_s) ** 2
    longest_s = max(map(_composed, until.values()))
    bounded = any(isinstance(readings[stage.name][quantity], AtLeast) for stage in stages)
    return AtLeast(longest_s) if bounded else longest_s


def _percentile(percentile: float) -> Quantity:
    return Quantity.LATENCY_P95 if percentile <= 95 else Quantity.LATENCY_P99


def _composed(parts: tuple[float, float]) -> float:
    return parts[0] + math.sqrt(parts[1])


def pressure(readings: Mapping[Quantity, Reading], sla_latency_s: float) -> Reading:
    """Return the pressure of a stage, 0–1: 0.40 · latency + 0.30 · utilization + 0.30 · queue, each at most 1.

    Latency is the stage's p95 as a share of `sla_latency_s`. Queue is the time to clear the waiting items at the
    present completion rate, as a share of `sla_latency_s`, or the receive pressure of the worst pod if that is known
    and larger: what waits in the kernel is not in the server's queue yet. The pressure is absent where another of the
    readings is.
    """
    own = [readings[quantity] for quantity in _PRESSURE]
    for reading in own:
        if isinstance(reading, Absence):
            return reading
    p95_s, utilization, queue, completions_rps = (reading for reading in own if not isinstance(reading, Absence))
    clears_in_s = 0.0 if queue <= 0 else math.inf if completions_rps <= 0 else queue / completions_rps
    received = readings.get(Quantity.RX_QUEUE_PRESSURE)
    before_the_server = received if isinstance(received, float) else 0.0
    return (
        LATENCY_WEIGHT * min(1.0, p95_s / sla_latency_s)
        + UTILIZATION_WEIGHT * min(1.0, utilization)
        + QUEUE_WEIGHT * min(1.0, max(clears_in_s / sla_latency_s, before_the_server))
    )


def _stage_profile(
    stage: StageInput,
    pipeline: PipelineInput,
    readings: Mapping[StageName, Mapping[Quantity, Reading]],
    learned: Learned,
    weight: float,
    interval_s: float,
) -> StageProfile:
    own = readings[stage.name]
    measured = _measured_pass_ratio(stage, pipeline.stages, readings)
    known = stage.name in learned.pass_ratios
    before = stage.pass_ratio if stage.shared is not None else learned.pass_ratios.get(stage.name, stage.pass_ratio)
    ratio = before if isinstance(measured, Absence) else measured
    following = [other for other in pipeline.stages if stage.name in other.after]
    behind = any(_falls_behind(readings[other.name], pipeline.sla.latency_s) for other in following)
    if behind:
        # Items that it refuses and gets again are no fan-out.
        ratio = max(before, min(ratio, 1.0))
    share = learned.shares.cascade.get(stage.name)
    if stage.settled and (escalated := _measured_cascade_share(stage)) is not None:
        share = escalated if share is None else share + weight * (escalated - share)
    items = _items(own, stage.window_s)
    if not all(other.settled for other in (stage, *following)):
        weight = 0.0
    elif not known and stage.pass_ratio == 1 and (behind or ratio < _FILTERS):
        # The default says nothing that the first measurement should be mixed with, but few items say little more.
        ratio = min(1.0, ratio + _DEVIATIONS * _deviation(ratio, items))
        weight = 0.0 if behind else 1.0
    elif known and _has_risen(ratio, before, items):
        weight = 1 - math.exp(-interval_s / stage.window_s)
    keys = [(stage.name, placement.name) for placement in stage.placements]
    factors = [learned.service_factors.get(key) for key in keys]
    shared = _shared_factor(factors)
    return StageProfile(
        name=stage.name,
        readings=own,
        pass_ratio=before + weight * (ratio - before),
        pass_ratio_measured=measured,
        pass_ratio_known=known or (weight > 0 and not isinstance(measured, Absence)),
        pressure=pressure(own, pipeline.sla.latency_s),
        devices=_device_readings(stage),
        cascade_share=share,
        crowdings={
            placement.name: crowding(learned.interference.get(key, NOTHING), placement.neighbours)
            for placement, key in zip(stage.placements, keys, strict=True)
            if placement.neighbours
        },
        placements=tuple(
            _placement_profile(_with_cv(placement, learned.cvs.get(key)), factor, shared, stage.window_s)
            if placement.law_declared
            else _learned_profile(placement, learned, key, stage.window_s, interval_s)
            for placement, key, factor in zip(stage.placements, keys, factors, strict=True)
        ),
    )


def _shared_factor(factors: Sequence[float | None]) -> float:
    """Return the factor of a placement that was never measured: the geometric mean of those measured in its stage.

    The numbers of one stage come from one benchmark, so they are likely to be wrong by the same factor.
    """
    known = [factor for factor in factors if factor is not None]
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if known else 1.0


def _with_cv(placement: PlacementInput, cv: float | None) -> PlacementInput:
    """Return `placement` with the learned coefficient of variation `cv` where none is declared."""
    if placement.cv_declared or cv is None:
        return placement
    return replace(placement, prior=replace(placement.prior, service=replace(placement.prior.service, cv=cv)))


def _placement_profile(
    placement: PlacementInput, learned: float | None, shared: float, window_s: float
) -> PlacementProfile:
    """Return the profile of a placement; `learned` is its service factor so far, None if it was never measured."""
    ratio, factor = _measured_service_ratio(placement, window_s), learned
    if ratio is not None:
        before, most = (1.0, MOST_CHANGE_AT_FIRST) if factor is None else (factor, MOST_CHANGE)
        low, high = FACTOR_BOUNDS
        goal = min(high, max(low, min(before * most, max(before / most, ratio))))
        if factor is not None and placement.warming > MOST_WARMING:
            goal = min(goal, factor)
        factor = goal if factor is None else factor + SMOOTHING * (goal - factor)
    measured = factor is not None
    factor = shared if factor is None else factor
    law = placement.prior.service
    return PlacementProfile(
        name=placement.name,
        readings=placement.samples.readings,
        prior=law,
        service=law.scaled(factor),
        service_factor=factor,
        measured=measured,
        measured_factor=ratio,
    )


def _learned_profile(
    placement: PlacementInput, learned: Learned, key: PlacementKey, window_s: float, interval_s: float
) -> PlacementProfile:
    """Return the profile of a placement without a declared service law: the law that fits what was measured."""
    prior, limit = placement.prior.service, placement.prior.batch_sizes[-1]
    times, cv = learned.batch_times.get(key), learned.cvs.get(key, prior.cv)
    known = learned.interference.get(key, NOTHING)
    crowded = crowding(known, placement.neighbours).now
    law = prior if times is None else fitted_law(alone(times, known), limit, cv).law.scaled(crowded)
    measured = measured_batch(placement, law, window_s)
    if measured is not None and times is not None and placement.warming > MOST_WARMING:
        measured = None if measured[1] > law.mean_s(measured[0]) else measured
    if measured is not None:
        weight = min(1.0, interval_s / window_s)
        times = with_measurement(times, *measured, weight=weight, age_s=interval_s)
    if times is None:
        return PlacementProfile(
            name=placement.name,
            readings=placement.samples.readings,
            prior=prior,
            service=prior,
            service_factor=1.0,
            measured=False,
            known=False,
            enough=False,
        )
    fitted = fitted_law(alone(times, known), limit, cv)
    law = fitted.law.scaled(crowded)
    prefill_s = _prefill_s(placement, learned.prefills_s.get(key))
    return PlacementProfile(
        name=placement.name,
        readings=placement.samples.readings,
        prior=prior,
        service=with_prefill(law, prefill_s),
        service_factor=1.0,
        known=fitted.known,
        enough=fitted.enough,
        relative_error=fitted.relative_error,
        measured_batch=fitted.measured_batch,
        batch_times=times,
        measured_factor=None if measured is None else measured[1] / law.mean_s(measured[0]),
    )


def _prefill_s(placement: PlacementInput, before_s: float | None) -> float:
    """Return the time of a request's prefill alone (s), smoothed; 0 while it was never measured.

    A prefill waits for those before it, as in an M/D/1 queue with the arrivals of one engine: the measured time m is
    p + λ·p² / (2·(1 − λ·p)), of which p is the smaller root.
    """
    if placement.prior.batching is not Batching.CONTINUOUS:
        return 0.0
    measured_s = placement.samples.of(Quantity.PREFILL_TIME)
    completions_rps = placement.samples.of(Quantity.COMPLETION_RATE)
    if isinstance(measured_s, Absence) or isinstance(completions_rps, Absence) or measured_s <= 0:
        return before_s or 0.0
    engines = max(1, placement.replicas * placement.prior.concurrency)
    load = completions_rps / engines * measured_s
    alone_s = 2 * measured_s / (1 + load + math.sqrt(1 + load * load))
    return alone_s if before_s is None else before_s + SMOOTHING * (alone_s - before_s)


def measured_batch(placement: PlacementInput, law: ServiceLaw, window_s: float) -> tuple[float, float] | None:
    """Return mean size and mean service time (s) of the batches of the last window; None without enough traffic.

    A server that exports no service time is measured by its throughput at its busy share.
    """
    samples, limit = placement.samples, placement.prior.batch_sizes[-1]
    completions_rps = samples.of(Quantity.COMPLETION_RATE)
    if isinstance(completions_rps, Absence) or completions_rps * window_s < MIN_ITEMS:
        return None
    service_s, batch = samples.of(Quantity.SERVICE_TIME), _served_batch(samples, law, limit)
    if isinstance(batch, Absence):
        batch = 1.0
    batch = min(float(limit), max(1.0, batch))
    if isinstance(service_s, Absence):
        busy = samples.of(Quantity.UTILIZATION)
        if isinstance(busy, Absence):
            return None
        service_s = busy * placement.replicas * placement.prior.concurrency * batch / completions_rps
    return (batch, service_s) if service_s > 0 else None


def _measured_service_ratio(placement: PlacementInput, window_s: float) -> float | None:
    """Return the measured over the prior service time, at the measured batch size; None without enough traffic."""
    samples, law, limit = placement.samples, placement.prior.service, placement.prior.batch_sizes[-1]
    completions_rps = samples.of(Quantity.COMPLETION_RATE)
    service_s = samples.of(Quantity.SERVICE_TIME)
    batch = _served_batch(samples, law, limit)
    if isinstance(completions_rps, Absence) or isinstance(service_s, Absence) or isinstance(batch, Absence):
        return None
    if completions_rps * window_s < MIN_ITEMS or service_s <= 0:
        return None
    return service_s / law.occupied_s(min(float(limit), max(1.0, batch)))


def _served_batch(samples: PlacementSamples, law: ServiceLaw, limit: int) -> Reading:
    """Return the size of the batch in which an item is served: the mean over items, not over batches."""
    served, mean = samples.of(Quantity.SERVED_BATCH), samples.of(Quantity.BATCH_SIZE)
    if not isinstance(served, Absence):
        return served if isinstance(mean, Absence) else _forming(served, mean, law, limit)
    present = samples.of(Quantity.PRESENT_BATCH)
    if isinstance(present, Absence) or isinstance(mean, Absence) or mean <= 0:
        return mean
    # A gauge that is sampled over time counts a batch b by its service time s(b), so the mean over items is
    # E[b² / s] / E[b / s]. With a linear s(b), to the first order in b around its mean, and without skew (the same
    # holds to this order with continuous batching, where the mean service time is E[b] / E[b / s]):
    variance = max(0.0, mean * (present - mean))
    slope = (law.slope_s(mean) + law.prefill_s) / law.occupied_s(mean)
    weight = mean - slope * variance
    if weight <= 0:
        return present
    return (mean * mean + variance - 2 * slope * mean * variance) / weight


def _forming(served: float, mean: float, law: ServiceLaw, limit: int) -> float:
    """Return the mean over items of their batch size; `served` is its value if all services took equally long.

    A batch consists of the items that arrived during the service before it. The length of that service varies at
    random, and with the size of its own batch. For λ items/s and a service S = (a + b·n)·G of n items, with mean(G) = 1
    and var(G) = cv², the variance of n is λ·mean(S) + λ²·var(S), and var(S) contains the variance of n again. The
    variance is bounded, since a batch has from 1 to `limit` items.
    """
    if not 1 < mean < limit:
        return served
    slope = law.slope_s(mean) * mean / law.mean_s(mean)  # by how much the service grows with the batch, both in shares
    varied = 1 + law.cv * law.cv
    free = ((served - mean) * mean + (law.cv * (mean - 1)) ** 2) / max(_LEAST_DAMPING, 1 - slope * slope * varied)
    if free <= 0:
        return served
    most = (limit - mean) * (mean - 1) / _BOUNDED
    return mean + 1 / math.hypot(1 / free, 1 / most) / mean


def _measured_pass_ratio(
    stage: StageInput, stages: Sequence[StageInput], readings: Mapping[StageName, Mapping[Quantity, Reading]]
) -> Reading:
    """Return the items that the next stages were offered per item that `stage` completed, at most `MOST_PASSED`.

    More than 1 is fan-out: each item causes several calls of the next stage. Retries of refused items count as well,
    because the next stage has to take them. The ratio is the mean over the next stages, because each of them gets every
    item that is passed on.

    The rates of a stage that serves several pipelines are those of all. Its own ratio is therefore the declared one,
    and where it is the next stage, the rates behind it show what it was offered.
    """
    if stage.shared is not None:
        return Absence(reason=AbsenceReason.UNSUPPORTED, detail="the stage serves other pipelines too")
    offered = _offered(stage, stages, readings)
    if not offered:
        return Absence(reason=AbsenceReason.UNSUPPORTED, detail="no stage follows")
    completions_rps = readings[stage.name][Quantity.COMPLETION_RATE]
    if isinstance(completions_rps, Absence):
        return completions_rps
    if completions_rps * stage.window_s < MIN_ITEMS:
        return Absence(reason=AbsenceReason.NO_TRAFFIC, detail=f"fewer than {MIN_ITEMS:.0f} items in the window")
    total_rps = 0.0
    for rate in offered:
        if isinstance(rate, Absence):
            return rate
        total_rps += rate
    ratio = total_rps / len(offered) / completions_rps
    # A ratio of zero would plan no replica after this stage. It means that the next stage lost its input, not that all
    # items were filtered.
    if ratio <= 0:
        return Absence(reason=AbsenceReason.NO_TRAFFIC, detail="nothing was passed on")
    if stage.pass_ratio <= 1 < ratio < FAN_OUT:
        return 1.0
    return min(MOST_PASSED, ratio)


def _items(readings: Mapping[Quantity, Reading], window_s: float) -> float:
    """Return how many items a stage completed in the window of its metrics; 0 where that is not known."""
    completions_rps = readings[Quantity.COMPLETION_RATE]
    return 0.0 if isinstance(completions_rps, Absence) else completions_rps * window_s


def _has_risen(ratio: float, before: float, items: float) -> bool:
    """Return whether more is passed on than before, by more than the chance of as many items explains.

    Such a rise is more load for all later stages: a voice activity detector that lets noise pass, for one.
    """
    if items <= 0 or ratio <= _RISEN * before:
        return False
    return ratio > before + _DEVIATIONS * _deviation(before, items)


def _deviation(ratio: float, items: float) -> float:
    """Return the standard deviation of the share of `items` that are passed on, where each is with chance `ratio`."""
    return math.sqrt(ratio * max(0.0, 1 - ratio) / items) if items > 0 else 1.0


def _measured_cascade_share(stage: StageInput) -> float | None:
    """Return the share of the items of a cascade that went on to its last placement; None where it does not show.

    It does not without enough items, nor while replicas have begun to serve within the window.
    """
    first, last = _tiers(stage)
    if not last or any(placement.warming for placement in (*first, *last)):
        return None  # before the first ones were ready, all items went to the last one
    done, went_on = (
        _stage_reading(quantity, tier)
        for quantity, tier in ((Quantity.COMPLETION_RATE, first), (Quantity.ARRIVAL_RATE, last))
    )
    if isinstance(done, Absence) or isinstance(went_on, Absence) or done * stage.window_s < MIN_ITEMS:
        return None
    return min(1.0, went_on / done)


def _offered(
    stage: StageInput, stages: Sequence[StageInput], readings: Mapping[StageName, Mapping[Quantity, Reading]]
) -> list[Reading]:
    """Return the items per second of this pipeline that each stage after `stage` was offered, as far as they show."""
    rates: list[Reading] = []
    for other in stages:
        if stage.name not in other.after:
            continue
        if other.shared is None:
            rates.append(readings[other.name][Quantity.ARRIVAL_RATE])
            continue
        rates += [
            rate if isinstance(rate, Absence) else rate / other.pass_ratio for rate in _offered(other, stages, readings)
        ]
    return rates


def _falls_behind(readings: Mapping[Quantity, Reading], sla_latency_s: float) -> bool:
    """Whether the waiting items of a stage take longer than the whole SLA to clear.

    Some servers count an item when it is completed, so the measured arrivals of such a stage are too low.
    """
    queue, completions_rps = readings[Quantity.QUEUE_DEPTH], readings[Quantity.COMPLETION_RATE]
    if isinstance(queue, Absence) or isinstance(completions_rps, Absence):
        return False
    return queue > sla_latency_s * completions_rps


def _bottleneck(profiles: Sequence[StageProfile]) -> StageName | None:
    """Return the stage with the highest pressure, the first of equals; None where no stage has one."""
    scores = [(profile.pressure, profile.name) for profile in profiles if not isinstance(profile.pressure, Absence)]
    return max(scores, key=lambda score: score[0])[1] if scores else None


_Part = tuple[float, int]
"""A reading and the replicas behind it."""


def _total(parts: Sequence[_Part]) -> float:
    return sum(value for value, _ in parts)


def _worst(parts: Sequence[_Part]) -> float:
    worst = max(value for value, _ in parts)
    return AtLeast(worst) if any(isinstance(value, AtLeast) for value, _ in parts) else worst


def _mean(parts: Sequence[_Part]) -> float:
    return sum(value * replicas for value, replicas in parts) / sum(replicas for _, replicas in parts)


_OVER_PLACEMENTS: Mapping[Quantity, Callable[[Sequence[_Part]], float]] = {
    Quantity.ARRIVAL_RATE: _total,
    Quantity.COMPLETION_RATE: _total,
    Quantity.LATENCY_MEAN: _mean,
    Quantity.LATENCY_P95: _worst,
    Quantity.LATENCY_P95_FLOOR: _worst,
    Quantity.LATENCY_P95_CEILING: _worst,
    Quantity.LATENCY_P99: _worst,
    Quantity.SERVICE_TIME: _mean,
    Quantity.BATCH_SIZE: _mean,
    Quantity.SERVED_BATCH: _mean,
    Quantity.PRESENT_BATCH: _mean,
    Quantity.PREFILL_TIME: _mean,
    Quantity.PREFIX_HIT_RATE: _mean,
    Quantity.WORK_VARIATION: _mean,
    Quantity.UTILIZATION: _mean,
    Quantity.QUEUE_DEPTH: _total,
    Quantity.SESSIONS: _total,
    Quantity.SESSION_REFUSALS: _total,
    Quantity.RX_QUEUE_PRESSURE: _worst,
    Quantity.ENGINES: _mean,
}


def _stage_readings(stage: StageInput) -> dict[Quantity, Reading]:
    serving = [placement for placement in stage.placements if placement.replicas > 0]
    readings = {quantity: _stage_reading(quantity, serving) for quantity in Quantity}
    first, last = _tiers(stage)
    if last:
        readings |= {quantity: _stage_reading(quantity, first) for quantity in THROUGHPUT}
        readings |= _through_both(first, last)
    return readings


def _tiers(stage: StageInput) -> tuple[list[PlacementInput], list[PlacementInput]]:
    """Return the serving placements that items come to first, and those that only the uncertain ones go on to."""
    serving = [placement for placement in stage.placements if placement.replicas > 0]
    if stage.cascade is None:
        return serving, []
    entered = stage.cascade.entered(placement.name for placement in serving)
    return [own for own in serving if own.name in entered], [own for own in serving if own.name not in entered]


def _through_both(first: Sequence[PlacementInput], last: Sequence[PlacementInput]) -> dict[Quantity, Reading]:
    """Return the latencies of a cascade: those of the items that take the slower path, and the mean of all items.

    The percentiles are composed as those of stages in series (`composed_latency_s`). While nothing goes on to the last
    placement, they are those of the first ones.
    """
    done, went_on = (
        _stage_reading(quantity, tier)
        for quantity, tier in ((Quantity.COMPLETION_RATE, first), (Quantity.ARRIVAL_RATE, last))
    )
    means = [_stage_reading(Quantity.LATENCY_MEAN, tier) for tier in (first, last)]
    found: dict[Quantity, Reading] = {}
    for quantity in (Quantity.LATENCY_MEAN, Quantity.LATENCY_P95, Quantity.LATENCY_P99):
        one, two = (_stage_reading(quantity, tier) for tier in (first, last))
        if isinstance(two, Absence) and two.reason is AbsenceReason.NO_TRAFFIC:
            found[quantity] = one
        elif isinstance(one, Absence) or isinstance(two, Absence):
            found[quantity] = one if isinstance(one, Absence) else two
        elif quantity is Quantity.LATENCY_MEAN:
            known = not isinstance(done, Absence) and not isinstance(went_on, Absence) and done > 0
            found[quantity] = one + two * (min(1.0, went_on / done) if known else 1.0)  # type: ignore[operator]
        else:
            centres = [
                own if isinstance(mean, Absence) else min(mean, own)
                for mean, own in zip(means, (one, two), strict=True)
            ]
            whole = sum(centres) + math.hypot(one - centres[0], two - centres[1])
            found[quantity] = AtLeast(whole) if isinstance(one, AtLeast) or isinstance(two, AtLeast) else whole
    return found


_DEVICES_OVER_PLACEMENTS: Mapping[DeviceQuantity, Callable[[Sequence[_Part]], float]] = {
    DeviceQuantity.UTILIZATION: _mean,
    DeviceQuantity.MEMORY_BYTES: _worst,
    DeviceQuantity.LATENCY_P99_S: _worst,
    DeviceQuantity.COLLECTIVE_ACTIVITY: _worst,
    DeviceQuantity.ERRORS: _total,
    DeviceQuantity.THROTTLED: _worst,
    DeviceQuantity.RX_PACKETS_RPS: _total,
    DeviceQuantity.CPU_THROTTLED: _worst,
    DeviceQuantity.NODE_RX_LOSSES_RPS: _worst,
}


def _device_readings(stage: StageInput) -> dict[DeviceQuantity, Reading]:
    """Return the readings of a stage's devices. Placements for whose pool no exporter has a quantity do not count."""
    found: dict[DeviceQuantity, Reading] = {}
    for quantity, over in _DEVICES_OVER_PLACEMENTS.items():
        own = [
            (placement, placement.samples.devices[quantity])
            for placement in stage.placements
            if placement.replicas > 0 and quantity in placement.samples.devices
        ]
        absent = [_of_placement(placement.name, reading) for placement, reading in own if isinstance(reading, Absence)]
        if absent:
            found[quantity] = absent[0]
        elif own:
            found[quantity] = over([(reading, each.replicas) for each, reading in own if isinstance(reading, float)])
    return found


_NONE_READY = Absence(reason=AbsenceReason.MISSING, detail="no replica is ready")


@lru_cache(maxsize=1024)
def _of_placement(placement: PlacementName, absence: Absence) -> Absence:
    """Return `absence` with `placement` in its detail. Cached: a large fleet has tens of thousands of equal ones."""
    return Absence(reason=absence.reason, detail=f"pool {placement}: {absence.detail}".rstrip(": "))


def _stage_reading(quantity: Quantity, serving: Sequence[PlacementInput]) -> Reading:
    if not serving:
        return _NONE_READY
    parts: list[_Part] = []
    idle: Absence | None = None
    for placement in serving:
        reading = placement.samples.of(quantity)
        if not isinstance(reading, Absence):
            parts.append((reading, placement.replicas))
        elif reading.reason is AbsenceReason.NO_TRAFFIC:
            idle = reading
        else:
            return _of_placement(placement.name, reading)
    if not parts:
        assert idle is not None
        return idle
    return _OVER_PLACEMENTS[quantity](parts)
