"""What the samples say about the model: learned slowly, within bounds, and only from what can be compared."""

import math
from dataclasses import replace
from typing import Any

import pytest

from optimizer.latency.stage import StageLoad, predict
from optimizer.model import (
    LATENCY_FACTORS,
    Batching,
    Demand,
    Placement,
    PoolName,
    Routing,
    ServiceLaw,
    Sla,
    StageName,
    pool_of,
)
from profiler.correction import (
    CV_TIME_CONSTANT_S,
    KEPT_S,
    LATENCY_TIME_CONSTANT_S,
    MOST_CV,
    OVERHEAD_RELIEF_TIME_CONSTANT_S,
    OVERHEAD_TIME_CONSTANT_S,
    believed,
    with_corrections,
)
from profiler.samples import NO_SAMPLES, Absence, AbsenceReason, Quantity, Reading
from profiler.stages import (
    Correction,
    LatencySource,
    Learned,
    PipelineInput,
    PipelineProfile,
    PlacementInput,
    PlacementProfile,
    StageInput,
    StageProfile,
)

NOW_S = 1_000_000.0
INTERVAL_S = 15.0
SLA_S = 0.5
MISSING = Absence(reason=AbsenceReason.MISSING)
STAGE, CPU, GPU = StageName("encoder"), PoolName("cpu"), PoolName("gpu")
LAW = ServiceLaw(fixed_s=0.05, cv=1.0)
DEMAND = Demand(entry_rate_rps=40.0)


def modelled_s(rate_rps: float, replicas: int = 4, *, service: ServiceLaw = LAW, batch: int = 1) -> float:
    placement = Placement(pool=CPU, service=service, batch_sizes=(batch,))
    load = StageLoad(rate_rps=rate_rps)
    predicted = predict(load, placement, replicas, batch=batch, routing=Routing.LEAST_LOADED, percentile=95)
    assert predicted is not None
    return predicted.percentile_s


def mean_s(rate_rps: float) -> float:
    placement = Placement(pool=CPU, service=LAW)
    predicted = predict(
        StageLoad(rate_rps=rate_rps), placement, 4, batch=1, routing=Routing.LEAST_LOADED, percentile=95
    )
    assert predicted is not None
    return predicted.mean_s


def on(
    pool: PoolName,
    *,
    rate_rps: float = 40.0,
    slower: float = 1.0,
    service_factor: float = 1.0,
    measured_factor: float | None = 1.0,
    **readings: Reading,
) -> PlacementProfile:
    """Four replicas, at half of what they can, whose 95th percentile is `slower` times the model's."""
    busy = rate_rps * 0.05 / 4
    found: dict[Quantity, Reading] = {
        Quantity.ARRIVAL_RATE: rate_rps,
        Quantity.COMPLETION_RATE: rate_rps,
        Quantity.UTILIZATION: busy,
        Quantity.QUEUE_DEPTH: 1.0,
        Quantity.LATENCY_P95: slower * modelled_s(rate_rps) if busy < 0.9 else 9.0,
        **{Quantity[name.upper()]: value for name, value in readings.items()},
    }
    return PlacementProfile(
        name=pool,
        readings=found,
        prior=LAW,
        service=LAW,
        service_factor=service_factor,
        measured_factor=measured_factor,
    )


def corrected(
    *placements: PlacementProfile,
    latency: Correction | None = None,
    throughput: Correction | None = None,
    settled: bool = True,
    known: bool = True,
    now_s: float = NOW_S,
    interval_s: float = INTERVAL_S,
    replicas: int = 4,
    batch: int = 1,
    service: ServiceLaw = LAW,
    cv_declared: bool = True,
    cv: float | None = None,
    **law: Any,
) -> StageProfile:
    profiles = placements or (on(CPU),)
    stage = StageProfile(
        name=STAGE,
        readings={},
        pass_ratio=1.0,
        pass_ratio_measured=MISSING,
        pressure=MISSING,
        placements=profiles,
    )
    running = StageInput(
        name=STAGE,
        after=(),
        pass_ratio=1.0,
        routing=Routing.LEAST_LOADED,
        window_s=60.0,
        settled=settled,
        placements=tuple(
            PlacementInput(
                prior=Placement(pool=pool_of(profile.name), service=service, **law),
                replicas=replicas,
                batch=batch,
                samples=NO_SAMPLES,
                cv_declared=cv_declared,
            )
            for profile in profiles
        ),
    )
    pipeline = PipelineInput(
        stages=(running,), sla=Sla(latency_s=SLA_S), latency_s=None, demand=DEMAND if known else None
    )
    learned = Learned(
        latency_corrections={} if latency is None else {STAGE: latency},
        throughput_corrections={}
        if throughput is None
        else {(STAGE, profile.name): throughput for profile in profiles},
        cvs={} if cv is None else {(STAGE, profile.name): cv for profile in profiles},
    )
    profile = PipelineProfile(
        stages=(stage,), bottleneck=None, latency_s=MISSING, latency_source=LatencySource.COMPOSED
    )
    after = with_corrections(profile, pipeline, learned, now_s=now_s, interval_s=interval_s)
    return after.stages[0]


def timed(latency_p95: Reading | None = None, *, utilization: float = 0.5) -> PlacementProfile:
    """A placement as fast as the model, or with that percentile, whose mean latency is known too."""
    p95_s = modelled_s(40.0) if latency_p95 is None else latency_p95
    return on(CPU, latency_p95=p95_s, utilization=utilization, latency_mean=mean_s(40.0))


def two_stages(
    *placements: PlacementProfile,
    measured: Reading | None = None,
    before_s: float | None = None,
    settled: tuple[bool, bool] = (True, True),
) -> PipelineProfile:
    """Two stages in series, and what is measured from end to end."""
    names = [StageName("vad"), StageName("encoder")]
    profiles = tuple(
        StageProfile(
            name=name,
            readings=own.readings,
            pass_ratio=1.0,
            pass_ratio_measured=MISSING,
            pressure=MISSING,
            placements=(own,),
        )
        for name, own in zip(names, placements or (timed(), timed()), strict=True)
    )
    prior = PlacementInput(prior=Placement(pool=CPU, service=LAW), replicas=4, batch=1, samples=NO_SAMPLES)
    running = tuple(
        StageInput(
            name=name,
            after=tuple(names[:number]),
            pass_ratio=1.0,
            routing=Routing.LEAST_LOADED,
            window_s=60.0,
            settled=settled[number],
            placements=(prior,),
        )
        for number, name in enumerate(names)
    )
    pipeline = PipelineInput(stages=running, sla=Sla(latency_s=SLA_S), latency_s=measured, demand=DEMAND)
    profile = PipelineProfile(
        stages=profiles, bottleneck=None, latency_s=MISSING, latency_source=LatencySource.MEASURED
    )
    return with_corrections(profile, pipeline, Learned(overhead_s=before_s), now_s=NOW_S, interval_s=INTERVAL_S)


def after_cycles(count: int, *, interval_s: float = INTERVAL_S, **stage: Any) -> StageProfile:
    """The same samples in `count` cycles."""
    now_s, seen = NOW_S, corrected(interval_s=interval_s, **stage)
    for _ in range(count - 1):
        now_s += interval_s
        seen = after(seen, now_s=now_s, interval_s=interval_s, **stage)
    return seen


def after(before: StageProfile, *, placement: PlacementProfile | None = None, **stage: Any) -> StageProfile:
    placements = (placement,) if placement is not None else ()
    return corrected(
        *placements,
        latency=before.latency_correction,
        throughput=before.placements[0].throughput_correction,
        **stage,
    )


class TestLatencyFactor:
    def test_a_stage_that_is_as_the_model_says_is_not_corrected(self) -> None:
        assert after_cycles(100).latency_factor == pytest.approx(1.0)

    def test_a_slower_tail_is_believed_after_a_while_and_not_before(self) -> None:
        slow = on(CPU, slower=1.5)
        first = corrected(slow)
        assert first.latency_factor < 1.03
        seen = first
        for cycle in range(1, 60):
            seen = after(seen, placement=slow, now_s=NOW_S + cycle * INTERVAL_S)
        assert seen.latency_factor == pytest.approx(1.5, abs=0.03)

    def test_it_does_not_depend_on_how_often_one_looks(self) -> None:
        slow = on(CPU, slower=1.5)
        seldom = corrected(slow, interval_s=60.0)
        often = corrected(slow)
        for cycle in range(1, 4):
            often = after(often, placement=slow, now_s=NOW_S + cycle * INTERVAL_S)
        assert often.latency_factor == pytest.approx(seldom.latency_factor)

    @pytest.mark.parametrize(("slower", "bound"), [(1000.0, LATENCY_FACTORS[1]), (0.001, LATENCY_FACTORS[0])])
    def test_one_absurd_sample_hardly_moves_it_and_many_no_further_than_the_bound(
        self, slower: float, bound: float
    ) -> None:
        absurd = on(CPU, slower=slower)
        seen = corrected(absurd)
        assert abs(seen.latency_factor - 1) < 0.05
        for cycle in range(1, 1600):
            seen = after(seen, placement=absurd, now_s=NOW_S + cycle * INTERVAL_S)
        assert seen.latency_factor == pytest.approx(bound, rel=1e-3)

    def test_a_tail_that_comes_and_goes_in_minutes_is_planned_for_as_slow(self) -> None:
        seen, found = corrected(), []
        for cycle in range(960):
            now_s = NOW_S + cycle * INTERVAL_S
            seen = after(seen, placement=on(CPU, slower=1.5 if cycle // 20 % 2 else 1.0), now_s=now_s)
            found.append(seen.latency_factor)
        settled = found[480:]
        assert min(settled) > 1.25
        assert max(settled) - min(settled) < 0.08

    @pytest.mark.parametrize(
        "slow",
        [
            on(CPU, slower=1.5, latency_p95=MISSING),
            on(CPU, slower=1.5, arrival_rate=MISSING),
            on(CPU, slower=1.5, completion_rate=MISSING),
            on(CPU, slower=1.5, completion_rate=30.0),
            on(CPU, slower=1.5, utilization=0.97),
            on(CPU, slower=1.5, rate_rps=1.0),
            on(CPU, rate_rps=75.0, utilization=MISSING),
            on(CPU, slower=1.5, measured_factor=1.4),
            on(CPU, latency_p95=math.nan),
            on(CPU, slower=1.5, arrival_rate=1e300, completion_rate=1e300),
        ],
        ids=[
            *("no percentile", "no arrivals", "no completions", "falling behind", "saturated"),
            *("too few items", "near its limit", "service time moves", "nan", "absurd rates"),
        ],
    )
    def test_what_cannot_be_compared_teaches_nothing(self, slow: PlacementProfile) -> None:
        assert corrected(slow).latency_correction is None

    def test_a_batch_server_that_is_always_busy_may_be_far_from_its_limit(self) -> None:
        law = ServiceLaw(fixed_s=0.05, per_item_s=0.001, cv=0.3)
        p95_s = 1.5 * modelled_s(400.0, service=law, batch=16)
        slow = on(CPU, rate_rps=400.0, utilization=0.97, latency_p95=p95_s)
        seen = corrected(slow, service=law, batch=16, batch_sizes=(16,))
        assert seen.latency_correction is not None
        assert seen.latency_correction.factor > 1

    def test_rates_that_cannot_be_added_up_teach_nothing(self) -> None:
        absurd = {Quantity.ARRIVAL_RATE: 1e308, Quantity.COMPLETION_RATE: 1e308}
        both = [replace(on(pool), readings={**on(pool).readings, **absurd}) for pool in (CPU, GPU)]
        assert corrected(*both).latency_correction is None

    def test_nothing_is_learned_while_replicas_come_or_go(self) -> None:
        before = Correction(factor=1.2, smoothed=1.2, learned_at_s=NOW_S - 15)
        assert corrected(on(CPU, slower=1.9), settled=False, latency=before).latency_correction == before

    def test_nothing_is_learned_while_the_demand_is_missing(self) -> None:
        assert corrected(on(CPU, slower=1.9), known=False).latency_correction is None

    def test_without_samples_it_stays_for_an_hour_and_then_fades(self) -> None:
        learned = Correction(factor=1.5, smoothed=1.5, learned_at_s=NOW_S)
        silent = on(CPU, latency_p95=MISSING)
        kept = corrected(silent, latency=learned, now_s=NOW_S + KEPT_S)
        assert kept.latency_factor == 1.5
        later = [
            corrected(silent, latency=learned, now_s=NOW_S + hours * 3600).latency_factor for hours in (2, 5, 24, 240)
        ]
        assert later == sorted(later, reverse=True)
        assert later[0] < 1.5
        assert later[-1] == pytest.approx(1.0)

    def test_a_clock_that_was_set_back_does_not_amplify_it(self) -> None:
        assert believed(Correction(factor=1.5, smoothed=1.5, learned_at_s=NOW_S), NOW_S - 1e9) == 1.5

    def test_every_placement_is_held_against_its_own_prediction(self) -> None:
        """The stage's percentile is that of the slower pool, which the model knows to be slower."""
        both = corrected(on(CPU), on(GPU, slower=1.5), interval_s=1e6)
        assert both.latency_factor == pytest.approx(1.25)

    def test_it_goes_to_what_is_measured_by_the_stated_time_constant(self) -> None:
        slow = on(CPU, slower=2.0)
        assert corrected(slow, interval_s=LATENCY_TIME_CONSTANT_S).latency_factor == pytest.approx(2 - math.exp(-1))


def varying(p95_s: float, **readings: Any) -> PlacementProfile:
    """Four replicas with that percentile, whose services were assumed to vary by a third."""
    profile = on(CPU, latency_p95=p95_s, **readings)
    return replace(profile, service=replace(LAW, cv=0.3), prior=replace(LAW, cv=0.3))


class TestVariation:
    def test_one_that_is_not_declared_is_fitted_slowly_and_explains_the_tail(self) -> None:
        seen = corrected(varying(modelled_s(40.0)), cv_declared=False, interval_s=INTERVAL_S)
        (placed,) = seen.placements
        expected = 0.3 + (1.0 - 0.3) * (1 - math.exp(-INTERVAL_S / CV_TIME_CONSTANT_S))
        assert placed.learned_cv == placed.service.cv == pytest.approx(expected, abs=0.01)
        assert seen.latency_factor == pytest.approx(1.0, abs=0.01)

    def test_a_declared_one_stays_and_the_tail_is_corrected(self) -> None:
        seen = corrected(on(CPU, slower=1.5), interval_s=1e6)
        assert (seen.placements[0].learned_cv, seen.placements[0].service.cv) == (None, LAW.cv)
        assert seen.latency_factor == pytest.approx(1.5)

    def test_what_no_variation_explains_is_corrected(self) -> None:
        seen = corrected(varying(10.0), cv_declared=False, interval_s=1e9)
        assert seen.placements[0].learned_cv == pytest.approx(MOST_CV)
        assert seen.latency_factor > 1.5
        fast = corrected(varying(0.02), cv_declared=False, interval_s=1e9)
        assert fast.placements[0].learned_cv == pytest.approx(0.0, abs=0.1)
        assert fast.latency_factor < 0.9

    def test_within_a_bucket_of_the_histogram_it_is_fitted_to_the_mean(self) -> None:
        p95_s = modelled_s(40.0)
        bucket = {"latency_p95_floor": 0.1 * p95_s, "latency_p95_ceiling": 9 * p95_s, "latency_mean": mean_s(40.0)}
        seen = corrected(varying(3 * p95_s, **bucket), cv_declared=False, interval_s=1e9)
        assert seen.placements[0].learned_cv == pytest.approx(1.0, abs=0.05)

    def test_a_bucket_without_a_mean_says_nothing_about_it(self) -> None:
        bucket: dict[str, Reading] = {"latency_p95_floor": 0.001, "latency_p95_ceiling": 9.0}
        seen = corrected(varying(0.1, **bucket), cv_declared=False, interval_s=1e9)
        assert seen.placements[0].learned_cv == pytest.approx(0.3)

    def test_it_stays_while_nothing_can_be_compared(self) -> None:
        assert corrected(varying(0.1), cv_declared=False, settled=False).placements[0].learned_cv is None
        silent = replace(varying(0.1), service=replace(LAW, cv=0.8))
        assert corrected(silent, cv_declared=False, settled=False, cv=0.8).placements[0].learned_cv == 0.8

    def test_one_that_a_continuous_server_counts_is_taken_and_the_tail_is_corrected(self) -> None:
        continuous: dict[str, Any] = {"cv_declared": False, "batching": Batching.CONTINUOUS}
        first = corrected(varying(0.4, work_variation=0.7), **continuous)
        assert first.placements[0].learned_cv == pytest.approx(0.7)
        assert first.latency_factor > 1
        later = corrected(varying(0.4, work_variation=0.7), **continuous, cv=0.2, interval_s=CV_TIME_CONSTANT_S)
        assert later.placements[0].learned_cv == pytest.approx(0.7 - 0.5 * math.exp(-1))
        unsettled = corrected(varying(0.4, work_variation=0.7), **continuous, settled=False)
        assert unsettled.placements[0].learned_cv == pytest.approx(0.7)

    def test_one_that_is_counted_is_not_that_of_batches_nor_of_a_few_items(self) -> None:
        batches = corrected(varying(modelled_s(40.0), work_variation=0.0), cv_declared=False, interval_s=1e9)
        assert batches.placements[0].learned_cv == pytest.approx(1.0, abs=0.05)
        few = varying(0.1, work_variation=0.7, completion_rate=1.0, arrival_rate=1.0)
        rare = corrected(few, cv_declared=False, batching=Batching.CONTINUOUS)
        assert rare.placements[0].learned_cv is None


OVERLOADED = {"rate_rps": 80.0, "completion_rate": 60.0, "utilization": 1.0, "queue_depth": 500.0, "latency_p95": 5.0}


def test_within_a_bucket_of_the_histogram_the_means_tell_how_far_the_model_is_off() -> None:
    p95_s = modelled_s(40.0)
    bucket: dict[str, Any] = {
        "latency_p95": 1.8 * p95_s,
        "latency_p95_floor": 0.5 * p95_s,
        "latency_p95_ceiling": 2 * p95_s,
    }
    right = corrected(on(CPU, **bucket, latency_mean=mean_s(40.0)))
    slow = corrected(on(CPU, **bucket, latency_mean=1.3 * mean_s(40.0)))
    assert right.latency_correction is not None
    assert slow.latency_correction is not None
    assert right.latency_correction.smoothed == pytest.approx(1.0)
    assert slow.latency_correction.smoothed == pytest.approx(1 + 0.3 * (1 - math.exp(-INTERVAL_S / 300)))


def test_no_mean_takes_a_percentile_out_of_its_bucket() -> None:
    p95_s = modelled_s(40.0)
    bucket: dict[str, Any] = {
        "latency_p95": 1.8 * p95_s,
        "latency_p95_floor": 1.5 * p95_s,
        "latency_p95_ceiling": 2 * p95_s,
    }
    stage = corrected(on(CPU, **bucket, latency_mean=mean_s(40.0)))
    assert stage.latency_correction is not None
    assert stage.latency_correction.smoothed == pytest.approx(1 + 0.5 * (1 - math.exp(-INTERVAL_S / 300)))


def overloaded(**readings: Any) -> PlacementProfile:
    """Four replicas which by their service time carry 80 items/s, and carry 60."""
    return on(CPU, **{**OVERLOADED, **readings})


class TestOverhead:
    """The time of an item that no stage accounts for."""

    def overhead(self, *stages: PlacementProfile, measured: Reading | None = 0.3, **options: Any) -> float | None:
        return two_stages(*stages, measured=measured, **options).overhead_s

    def test_it_is_what_the_measured_latency_exceeds_the_composed_one_by(self) -> None:
        composed_s = 2 * mean_s(40.0) + math.sqrt(2) * (modelled_s(40.0) - mean_s(40.0))
        assert self.overhead(measured=composed_s + 0.12, before_s=0.12) == pytest.approx(0.12)

    def test_it_is_smoothed_from_zero_falls_faster_than_it_rises_and_is_never_negative(self) -> None:
        composed_s = 2 * mean_s(40.0) + math.sqrt(2) * (modelled_s(40.0) - mean_s(40.0))
        risen = 0.12 * (1 - math.exp(-INTERVAL_S / OVERHEAD_TIME_CONSTANT_S))
        assert self.overhead(measured=composed_s + 0.12) == pytest.approx(risen)
        fallen = self.overhead(measured=0.001, before_s=0.1)
        assert fallen == pytest.approx(0.1 * math.exp(-INTERVAL_S / OVERHEAD_RELIEF_TIME_CONSTANT_S))
        assert self.overhead(measured=0.001) == 0.0

    @pytest.mark.parametrize("measured", [None, MISSING])
    def test_without_a_measured_latency_it_stays_as_it_was(self, measured: Reading | None) -> None:
        assert self.overhead(measured=measured, before_s=0.07) == 0.07

    @pytest.mark.parametrize("settled", [(True, False), (False, True)])
    def test_while_a_stage_moves_it_stays_as_it_was(self, settled: tuple[bool, bool]) -> None:
        assert self.overhead(measured=5.0, before_s=0.07, settled=settled) == 0.07

    def test_while_a_stage_cannot_be_compared_it_stays_as_it_was(self) -> None:
        assert self.overhead(timed(), timed(utilization=0.99), measured=5.0, before_s=0.07) == 0.07
        assert self.overhead(timed(), timed(MISSING), measured=5.0) is None


def test_a_stage_that_moves_stops_learning_for_itself_alone() -> None:
    slow = timed(1.5 * modelled_s(40.0))
    moves, stays = two_stages(slow, slow, settled=(False, True)).stages
    assert moves.latency_correction is None
    assert stays.latency_correction is not None
    assert stays.latency_correction.factor > 1


class TestThroughput:
    def test_replicas_that_fall_behind_show_what_they_carry(self) -> None:
        seen = corrected(overloaded())
        assert seen.placements[0].saturation_rps is not None
        assert seen.placements[0].saturation_rps > 19
        for cycle in range(1, 60):
            seen = after(seen, placement=overloaded(), now_s=NOW_S + cycle * INTERVAL_S)
        assert seen.placements[0].saturation_rps == pytest.approx(15.0, rel=0.02)

    @pytest.mark.parametrize(
        "readings",
        [
            {"utilization": 0.9},
            {"utilization": MISSING},
            {"queue_depth": 1.0, "rate_rps": 60.0},
            {"latency_p95": 0.4},
            {"latency_p95": MISSING},
            {"completion_rate": 1.0},
            {"completion_rate": 80.0},
            {"measured_factor": 1.3},
        ],
        ids=lambda readings: next(iter(readings)),
    )
    def test_only_replicas_that_are_busy_behind_and_late_show_it(self, readings: dict[str, Any]) -> None:
        placement = corrected(overloaded(**readings)).placements[0]
        assert (placement.throughput_correction, placement.saturation_rps) == (None, None)

    def test_a_replica_is_believed_to_carry_a_tenth_of_its_law_where_it_does(self) -> None:
        seen = corrected(overloaded(completion_rate=8.0), interval_s=1e6)
        assert seen.placements[0].saturation_rps == pytest.approx(2.0)

    def test_one_that_carries_more_than_it_was_believed_to_corrects_that_at_once(self) -> None:
        learned = Correction(factor=0.6, smoothed=0.6, learned_at_s=NOW_S)
        busy = overloaded(completion_rate=72.0)
        assert corrected(busy, throughput=learned).placements[0].saturation_rps == pytest.approx(18.0)
        free = on(CPU, rate_rps=70.0)
        seen = corrected(free, throughput=replace(learned, factor=0.8, smoothed=0.8)).placements[0]
        assert seen.saturation_rps == pytest.approx(17.5)

    def test_it_is_forgotten_when_the_law_is_reached(self) -> None:
        learned = Correction(factor=0.6, smoothed=0.6, learned_at_s=NOW_S)
        seen = corrected(overloaded(completion_rate=81.0), throughput=learned).placements[0]
        assert (seen.throughput_correction, seen.saturation_rps) == (None, None)

    def test_it_is_forgotten_slowly(self) -> None:
        learned = Correction(factor=0.6, smoothed=0.6, learned_at_s=NOW_S)
        calm = on(CPU, rate_rps=20.0)
        found = [
            corrected(calm, throughput=learned, now_s=NOW_S + hours * 3600).placements[0].saturation_rps
            for hours in (1, 5, 100)
        ]
        assert found[0] == pytest.approx(12.0)
        assert found[1] is not None
        assert 12 < found[1] < 20
        assert found[2] is None


@pytest.mark.parametrize(("ratio", "periodic"), [(1.0, True), (1.003, True), (0.5, False), (3.0, False)])
def test_streams_come_at_even_intervals_until_a_stage_drops_or_multiplies_their_items(
    ratio: float, periodic: bool
) -> None:
    law = ServiceLaw(fixed_s=0.05, cv=0.2)
    placement, asr = Placement(pool=CPU, service=law), StageName("asr")
    profiles = [
        StageProfile(
            name=name,
            readings={},
            pass_ratio=ratio,
            pass_ratio_measured=MISSING,
            pressure=MISSING,
            placements=(replace(on(CPU), prior=law, service=law),),
        )
        for name in (STAGE, asr)
    ]
    running = tuple(
        StageInput(
            name=name,
            after=after,
            pass_ratio=1.0,
            routing=Routing.STICKY,
            window_s=60.0,
            placements=(PlacementInput(prior=placement, replicas=4, batch=1, samples=NO_SAMPLES),),
        )
        for name, after in ((STAGE, ()), (asr, (STAGE,)))
    )
    demand = Demand(entry_rate_rps=40.0, sessions=40.0)
    pipeline = PipelineInput(stages=running, sla=Sla(latency_s=SLA_S), latency_s=None, demand=demand)
    profile = PipelineProfile(
        stages=tuple(profiles), bottleneck=None, latency_s=MISSING, latency_source=LatencySource.COMPOSED
    )
    seen = with_corrections(profile, pipeline, Learned(), now_s=NOW_S, interval_s=INTERVAL_S).stages[1]
    load = StageLoad(rate_rps=40.0, sessions=40.0, periodic=periodic)
    expected = predict(load, placement, 4, batch=1, routing=Routing.STICKY, percentile=95)
    assert expected is not None
    assert seen.modelled_p95_s == pytest.approx(expected.percentile_s)
