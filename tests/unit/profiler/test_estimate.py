import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from optimizer.model import Batching, Cascade, Placement, PlacementKey, PoolName, Routing, ServiceLaw, Sla, StageName
from profiler.batch_times import BatchTimes, SizeTimes
from profiler.estimate import FACTOR_BOUNDS, SMOOTHING, estimate_pipeline
from profiler.samples import Absence, AbsenceReason, AtLeast, DeviceQuantity, PlacementSamples, Quantity, Reading
from profiler.stages import (
    LatencySource,
    Learned,
    PipelineInput,
    PipelineProfile,
    PlacementInput,
    PlacementProfile,
    SharedInput,
    Shares,
    StageInput,
    StageProfile,
)

SLA = Sla(latency_s=0.25)
INTERVAL_S = 15.0
MISSING = Absence(reason=AbsenceReason.MISSING, detail="0 of 2 pods, 2 silent")
STALE = Absence(reason=AbsenceReason.STALE)
NO_TRAFFIC = Absence(reason=AbsenceReason.NO_TRAFFIC)
UNSUPPORTED = Absence(reason=AbsenceReason.UNSUPPORTED)
BUSY: dict[Quantity, Reading] = {
    Quantity.ARRIVAL_RATE: 100.0,
    Quantity.COMPLETION_RATE: 100.0,
    Quantity.LATENCY_MEAN: 0.02,
    Quantity.LATENCY_P95: 0.05,
    Quantity.LATENCY_P99: 0.08,
    Quantity.SERVICE_TIME: 0.02,
    Quantity.BATCH_SIZE: 2.0,
    Quantity.UTILIZATION: 0.5,
    Quantity.QUEUE_DEPTH: 1.0,
    Quantity.SESSIONS: 30.0,
    Quantity.RX_QUEUE_PRESSURE: 0.1,
}


def placement(
    pool: str = "cpu",
    *,
    replicas: int = 2,
    batch_limit: int = 8,
    readings: Mapping[Quantity, Reading] = BUSY,
    **changes: Reading,
) -> PlacementInput:
    """Two replicas under load; `changes` replaces readings by their name."""
    changed = {**readings, **{Quantity[name.upper()]: value for name, value in changes.items()}}
    return PlacementInput(
        prior=Placement(
            pool=PoolName(pool), service=ServiceLaw(fixed_s=0.014, per_item_s=0.003), batch_sizes=(batch_limit,)
        ),
        replicas=replicas,
        batch=batch_limit,
        samples=PlacementSamples(readings=changed),
    )


def stage(
    name: str = "vad",
    *placements: PlacementInput,
    after: Sequence[str] = (),
    pass_ratio: float = 1.0,
) -> StageInput:
    return StageInput(
        name=StageName(name),
        after=tuple(StageName(before) for before in after),
        pass_ratio=pass_ratio,
        routing=Routing.LEAST_LOADED,
        window_s=60.0,
        placements=placements or (placement(),),
    )


def profile_of(
    *stages: StageInput,
    latency: Reading | None = None,
    sla: Sla = SLA,
    learned: Learned | None = None,
) -> PipelineProfile:
    pipeline = PipelineInput(stages=stages, sla=sla, latency_s=latency, demand=None)
    return estimate_pipeline(pipeline, learned or Learned(), interval_s=INTERVAL_S)


def factor_of(factor: float | None = None, batch_limit: int = 8, **changes: Any) -> float:
    learned = Learned(service_factors={} if factor is None else {(StageName("vad"), PoolName("cpu")): factor})
    placed = placement(batch_limit=batch_limit, **changes)
    return profile_of(stage("vad", placed), learned=learned).stages[0].placements[0].service_factor


class TestServiceFactor:
    def test_a_server_as_fast_as_its_prior_is_not_corrected(self) -> None:
        assert factor_of(service_time=0.020) == pytest.approx(1.0)

    def test_a_slower_server_moves_the_factor_by_the_smoothing(self) -> None:
        assert factor_of(factor=1.0, service_time=0.030) == pytest.approx(1.0 + SMOOTHING * 0.5)

    @pytest.mark.parametrize(("service_s", "factor"), [(0.008, 0.4), (0.06, 3.0), (2.0, 4.0), (0.001, 0.25)])
    def test_the_first_measurement_counts_in_full_up_to_four_times_the_prior(
        self, service_s: float, factor: float
    ) -> None:
        assert factor_of(service_time=service_s) == pytest.approx(factor)

    def test_one_absurd_sample_does_little_harm(self) -> None:
        assert factor_of(factor=1.0, service_time=20.0) == pytest.approx(1 + SMOOTHING)

    def test_the_law_is_corrected_as_a_whole(self) -> None:
        placed = profile_of(stage("vad", placement(service_time=0.030))).stages[0].placements[0]
        assert placed.service.mean_s(2) == pytest.approx(0.020 * placed.service_factor)
        assert placed.prior.mean_s(2) == pytest.approx(0.020)

    def test_the_last_factor_is_carried_on(self) -> None:
        assert factor_of(factor=1.5, service_time=0.030) == pytest.approx(1.5)

    def test_the_prior_is_taken_at_the_measured_batch_size(self) -> None:
        assert factor_of(batch_size=6.0, service_time=0.032) == pytest.approx(1.0)

    def test_a_batch_size_that_belongs_to_the_service_time_wins(self) -> None:
        assert factor_of(batch_size=1.0, served_batch=6.0, service_time=0.032) == pytest.approx(1.0)

    def test_a_gauge_sees_long_batches_more_often_which_is_no_reason_to_think_the_server_faster(self) -> None:
        # Every size from 1 to 8 as often: what samples over time see, and what items do.
        sizes = range(1, 9)
        lengths_s = {size: 0.014 + 0.003 * size for size in sizes}
        mean = sum(size * lengths_s[size] for size in sizes) / sum(lengths_s.values())
        present = sum(size**2 * lengths_s[size] for size in sizes) / sum(size * lengths_s[size] for size in sizes)
        service_s = sum(size * lengths_s[size] for size in sizes) / sum(sizes)
        found = factor_of(factor=1.0, batch_size=mean, present_batch=present, service_time=service_s)
        assert found == pytest.approx(1.0, abs=0.01 * SMOOTHING)

    def test_a_batch_is_never_taken_as_larger_than_its_limit(self) -> None:
        assert factor_of(batch_size=100.0, batch_limit=2, service_time=0.020) == pytest.approx(1.0)

    @pytest.mark.parametrize(("service_s", "bound"), [(30.0, FACTOR_BOUNDS[1]), (1e-6, FACTOR_BOUNDS[0])])
    def test_it_stays_within_bounds_however_wrong_the_measurement(self, service_s: float, bound: float) -> None:
        factor = 1.0
        for _ in range(100):
            factor = factor_of(factor=factor, service_time=service_s)
        assert factor == pytest.approx(bound, rel=1e-3)

    @pytest.mark.parametrize(
        "changes",
        [
            {"completion_rate": 0.1},
            {"completion_rate": MISSING},
            {"service_time": STALE},
            {"batch_size": MISSING},
            {"service_time": 0.0},
        ],
    )
    def test_without_enough_traffic_or_data_it_stays_as_it_was(self, changes: dict[str, Reading]) -> None:
        readings: dict[str, Reading] = {"service_time": 0.1, **changes}
        assert factor_of(1.3, 8, **readings) == 1.3


class TestReplicasInTheirFirstMinutes:
    """A model that has just been loaded compiles and fills caches: it is slower than it will be."""

    FACTOR, WARM = 1.2, 0.05

    def factor(self, service_s: float, warming: float, before: float | None) -> float:
        seen = replace(placement(service_time=service_s), warming=warming)
        key = StageName("vad"), PoolName("cpu")
        learned = Learned() if before is None else Learned(service_factors={key: before})
        return profile_of(stage("vad", seen), learned=learned).stages[0].placements[0].service_factor

    def test_they_make_no_service_time_longer(self) -> None:
        assert self.factor(0.060, warming=0.5, before=self.FACTOR) == self.FACTOR
        assert self.factor(0.060, warming=self.WARM, before=self.FACTOR) > self.FACTOR
        assert self.factor(0.016, warming=0.5, before=self.FACTOR) < self.FACTOR
        assert self.factor(0.060, warming=1.0, before=None) == pytest.approx(3.0), "it is all that is known"

    def test_nor_a_learned_law(self) -> None:
        key = StageName("vad"), PoolName("cpu")
        usual = replace(placement(service_time=0.020), law_declared=False)
        slow = replace(placement(service_time=0.040), law_declared=False)
        found = profile_of(stage("vad", usual)).stages[0].placements[0]
        assert found.batch_times is not None
        learned = Learned(batch_times={key: found.batch_times})
        for warming, same in ((0.5, True), (self.WARM, False)):
            seen = profile_of(stage("vad", replace(slow, warming=warming)), learned=learned).stages[0].placements[0]
            assert (seen.batch_times == found.batch_times) is same


class TestUndeclaredLaw:
    """A server that declares no service time and exports none: its throughput at its busy share shows it."""

    def measured(self, *, batch: float, busy: Reading, rate: Reading, concurrency: int = 1) -> PlacementInput:
        """Two replicas without a declared law, with batches of up to 8."""
        seen = placement(utilization=busy, completion_rate=rate, batch_size=batch, service_time=UNSUPPORTED)
        return replace(seen, law_declared=False, prior=replace(seen.prior, concurrency=concurrency))

    def profile(self, measured: PlacementInput, learned: Learned | None = None) -> PlacementProfile:
        return profile_of(stage("vad", measured), learned=learned).stages[0].placements[0]

    @pytest.mark.parametrize(
        ("batch", "concurrency", "service_s"), [(1.0, 1, 0.010), (4.0, 1, 0.040), (4.0, 3, 0.120), (0.5, 1, 0.010)]
    )
    def test_its_first_law_is_what_its_busy_replicas_spend_on_a_batch(
        self, batch: float, concurrency: int, service_s: float
    ) -> None:
        """Two replicas are busy half of the time with 100 items/s: 10 ms for each."""
        found = self.profile(self.measured(batch=batch, busy=0.5, rate=100.0, concurrency=concurrency))
        assert found.service.mean_s(max(1.0, batch)) == pytest.approx(service_s)
        assert found.measured
        assert not found.enough, "one window is not enough to plan with fewer replicas"

    def test_from_batches_of_several_sizes_it_learns_the_law(self) -> None:
        """A batch of n takes 14 ms + n x 3 ms. The load, and with it the size of the batches, goes up and down."""
        key = (StageName("vad"), PoolName("cpu"))
        learned = Learned()
        for cycle in range(80):
            batch, busy = (2.0, 0.4) if cycle // 8 % 2 else (6.0, 0.8)
            rate = 2 * busy * batch / (0.014 + 0.003 * batch)
            found = self.profile(self.measured(batch=batch, busy=busy, rate=rate), learned)
            assert found.batch_times is not None
            learned = Learned(batch_times={key: found.batch_times})
        assert found.enough
        assert found.service.fixed_s == pytest.approx(0.014, rel=0.05)
        assert found.service.per_item_s == pytest.approx(0.003, rel=0.05)

    @pytest.mark.parametrize(("busy", "rate"), [(MISSING, 100.0), (0.5, 0.1), (0.5, MISSING), (0.0, 100.0)])
    def test_without_enough_traffic_or_a_busy_share_nothing_is_learned(self, busy: Reading, rate: Reading) -> None:
        found = self.profile(self.measured(batch=4.0, busy=busy, rate=rate))
        assert (found.measured, found.enough, found.batch_times) == (False, False, None)
        assert found.service == found.prior


class TestPrefill:
    """A server that batches continuously: while n run, an item takes 20 ms + n x 8 ms, 5 of which are prefill."""

    KEY = (StageName("vad"), PoolName("cpu"))
    TIMES = BatchTimes(
        weight=30.0,
        batch=5.0,
        time_s=0.06,
        sizes=tuple(SizeTimes(weight=15.0, batch=size, time_s=0.02 + 0.008 * size) for size in (2.0, 8.0)),
    )

    def profile(self, prefill_s: Reading, *, before_s: float | None = None) -> PlacementProfile:
        seen = placement(completion_rate=40.0, prefill_time=prefill_s, service_time=0.084, batch_size=8.0)
        own = replace(seen, law_declared=False, prior=replace(seen.prior, batching=Batching.CONTINUOUS))
        prefills: dict[PlacementKey, float] = {} if before_s is None else {self.KEY: before_s}
        learned = Learned(batch_times={self.KEY: self.TIMES}, prefills_s=prefills)
        return profile_of(stage("vad", own), learned=learned).stages[0].placements[0]

    def test_what_stalls_all_others_is_told_from_what_is_shared_and_the_capacity_stays(self) -> None:
        without, found = self.profile(UNSUPPORTED).service, self.profile(0.0053).service
        assert without.prefill_s == 0
        assert found.prefill_s == pytest.approx(0.005, rel=0.05), "less the wait for the prefills before it"
        assert found.rate_rps(8) == pytest.approx(without.rate_rps(8))

    def test_a_prefill_in_chunks_stalls_nobody_and_is_not_taken_for_one_that_does(self) -> None:
        assert self.profile(0.05).service == self.profile(UNSUPPORTED).service

    def test_while_nothing_is_measured_it_stays(self) -> None:
        assert self.profile(MISSING, before_s=0.004).service.prefill_s == pytest.approx(0.004)

    def test_a_declared_prefill_is_not_counted_as_a_slower_server(self) -> None:
        law = ServiceLaw(fixed_s=0.02, per_item_s=0.003, prefill_s=0.005, cv=0.3)
        seen = placement(completion_rate=40.0, service_time=0.02 + 0.008 * 4, batch_size=4.0)
        own = replace(seen, prior=replace(seen.prior, batching=Batching.CONTINUOUS, service=law))
        found = profile_of(stage("vad", own)).stages[0].placements[0]
        assert found.measured_factor == pytest.approx(1.0)


class TestPassRatio:
    def ratio(
        self,
        *,
        offered: Reading = 45.0,
        completed: Reading = 100.0,
        prior: float = 0.6,
        last: float | None = None,
        settled: tuple[bool, bool] = (True, True),
        waiting: float = 1.0,
        window_s: float = 60.0,
    ) -> StageProfile:
        first = stage("vad", placement(completion_rate=completed), pass_ratio=prior)
        then = stage("encoder", placement(arrival_rate=offered, queue_depth=waiting), after=["vad"])
        learned = Learned(pass_ratios={} if last is None else {first.name: last})
        stages = [
            replace(own, settled=moves, window_s=window_s) for own, moves in zip((first, then), settled, strict=True)
        ]
        return profile_of(*stages, learned=learned).stages[0]

    def test_it_is_what_the_next_stage_was_offered_per_completion_smoothed(self) -> None:
        found = self.ratio()
        assert found.pass_ratio_measured == pytest.approx(0.45)
        # A quarter of the time constant of 60 s: 1 - exp(-15 / 60) = 0.221 of the way from 0.6 to 0.45.
        assert found.pass_ratio == pytest.approx(0.6 - 0.221 * 0.15, abs=1e-4)

    def test_the_first_measurement_replaces_a_ratio_that_was_not_declared(self) -> None:
        found = self.ratio(prior=1.0)
        deviation = math.sqrt(0.45 * 0.55 / 6000)
        assert found.pass_ratio == pytest.approx(0.45 + 3 * deviation), "as many as chance may hide"
        assert found.pass_ratio_known
        few = self.ratio(prior=1.0, offered=0.1, completed=1.0)
        assert few.pass_ratio == pytest.approx(0.1 + 3 * math.sqrt(0.09 / 60))
        assert 0.45 < self.ratio(prior=1.0, last=0.6).pass_ratio < 0.6, "later ones are smoothed"

    @pytest.mark.parametrize(
        "fields",
        [{"waiting": 30.0}, {"settled": (True, False)}, {"offered": 0.1, "completed": 0.2}, {"offered": MISSING}],
    )
    def test_until_a_measurement_can_be_trusted_a_ratio_that_was_not_declared_is_one(self, fields: Any) -> None:
        found = self.ratio(prior=1.0, **fields)
        assert (found.pass_ratio, found.pass_ratio_known) == (1.0, False)

    def test_a_default_that_is_nearly_right_is_smoothed_because_rates_of_two_stages_differ(self) -> None:
        found = self.ratio(prior=1.0, offered=90.0)
        assert found.pass_ratio == pytest.approx(1 - 0.221 * 0.1, abs=1e-4)
        assert found.pass_ratio_known

    def test_a_rise_that_is_no_chance_counts_within_the_window(self) -> None:
        found = self.ratio(offered=100.0, last=0.5).pass_ratio
        assert found == pytest.approx(0.5 + (1 - math.exp(-15 / 60)) * 0.5)
        quick = self.ratio(offered=100.0, last=0.5, window_s=15.0).pass_ratio
        assert quick == pytest.approx(0.5 + (1 - math.exp(-1)) * 0.5)
        chance = self.ratio(offered=1.2, completed=2.0, last=0.5, window_s=15.0).pass_ratio
        assert chance == pytest.approx(0.5 + (1 - math.exp(-15 / 60)) * 0.1)
        fall = self.ratio(offered=10.0, last=0.5, window_s=15.0).pass_ratio
        assert fall == pytest.approx(0.5 - (1 - math.exp(-15 / 60)) * 0.4)

    def test_it_converges_to_the_measured_one(self) -> None:
        last: float | None = None
        for _ in range(60):
            last = self.ratio(last=last).pass_ratio
        assert last == pytest.approx(0.45, rel=1e-3)

    @pytest.mark.parametrize("settled", [(False, True), (True, False)])
    def test_while_its_replicas_or_the_next_ones_come_and_go_it_stays_because_counters_go_with_them(
        self, settled: tuple[bool, bool]
    ) -> None:
        found = self.ratio(last=0.5, settled=settled)
        assert found.pass_ratio == 0.5
        assert found.pass_ratio_measured == pytest.approx(0.45)

    def test_a_stage_that_falls_behind_was_offered_more_than_it_has_counted(self) -> None:
        behind = self.ratio(last=0.6, waiting=30.0)
        assert behind.pass_ratio == 0.6
        assert behind.pass_ratio_measured == pytest.approx(0.45)
        assert self.ratio(last=0.6, waiting=10.0).pass_ratio < 0.6, "what waits clears within the SLA"
        assert self.ratio(last=0.3, waiting=30.0).pass_ratio > 0.3, "it was offered that much at least"

    def test_fan_out_is_followed_up_to_a_hundred(self) -> None:
        assert self.ratio(offered=250.0).pass_ratio_measured == pytest.approx(2.5)
        last: float | None = None
        for _ in range(60):
            last = self.ratio(offered=250.0, last=last).pass_ratio
        assert last == pytest.approx(2.5, rel=1e-3)
        assert self.ratio(offered=1e6).pass_ratio_measured == 100.0

    @pytest.mark.parametrize(("offered", "completed"), [(MISSING, 100.0), (45.0, MISSING), (45.0, 0.2), (0.0, 100.0)])
    def test_without_data_or_traffic_it_stays_as_it_was(self, offered: Reading, completed: Reading) -> None:
        found = self.ratio(last=0.5, offered=offered, completed=completed)
        assert found.pass_ratio == 0.5
        assert isinstance(found.pass_ratio_measured, Absence)

    def test_the_last_stage_keeps_its_prior(self) -> None:
        assert profile_of(stage("lm", pass_ratio=0.9)).stages[0].pass_ratio == 0.9

    def test_of_a_stage_that_feeds_two_the_mean_is_taken(self) -> None:
        stages = [
            stage("vad", placement(completion_rate=100.0)),
            stage("a", placement(arrival_rate=40.0), after=["vad"]),
            stage("b", placement(arrival_rate=60.0), after=["vad"]),
        ]
        assert profile_of(*stages).stages[0].pass_ratio_measured == pytest.approx(0.5)


class TestDevices:
    def with_devices(self, pool: str, replicas: int, **readings: Reading) -> PlacementInput:
        own = placement(pool, replicas=replicas)
        devices = {DeviceQuantity[name]: reading for name, reading in readings.items()}
        return replace(own, samples=replace(own.samples, devices=devices))

    def read(self, *placements: PlacementInput, quantity: DeviceQuantity = DeviceQuantity.UTILIZATION) -> Reading:
        return profile_of(stage("asr", *placements)).stages[0].of_devices(quantity)

    def test_the_utilization_is_the_mean_of_the_replicas_with_devices(self) -> None:
        gpu, neuron = self.with_devices("gpu", 1, UTILIZATION=0.9), self.with_devices("inf", 3, UTILIZATION=0.5)
        assert self.read(gpu, neuron, placement("cpu")) == pytest.approx(0.6)

    def test_errors_add_up_and_the_busiest_links_count(self) -> None:
        one = self.with_devices("gpu", 1, ERRORS=2.0, COLLECTIVE_ACTIVITY=0.95)
        two = self.with_devices("gpu2", 1, ERRORS=1.0, COLLECTIVE_ACTIVITY=0.2)
        assert self.read(one, two, quantity=DeviceQuantity.ERRORS) == 3
        assert self.read(one, two, quantity=DeviceQuantity.COLLECTIVE_ACTIVITY) == 0.95

    def test_a_pool_whose_exporter_is_missing_makes_it_absent_and_one_without_replicas_does_not(self) -> None:
        silent = self.with_devices("inf", 1, UTILIZATION=STALE)
        found = self.read(self.with_devices("gpu", 1, UTILIZATION=0.9), silent)
        assert isinstance(found, Absence)
        assert found.detail.startswith("pool inf")
        assert self.read(self.with_devices("gpu", 1, UTILIZATION=0.9), replace(silent, replicas=0)) == 0.9

    def test_without_devices_it_is_unsupported_and_not_zero(self) -> None:
        found = self.read(placement("cpu"))
        assert isinstance(found, Absence)
        assert found.reason is AbsenceReason.UNSUPPORTED


class TestPressure:
    def test_it_is_the_weighted_sum_of_latency_utilisation_and_queue(self) -> None:
        # p95 50 of 250 ms; half busy; the receive pressure 0.1 is above
        # the queue: one waiting item clears in 10 of 250 ms.
        assert profile_of(stage()).stages[0].pressure == pytest.approx(0.40 * 0.2 + 0.30 * 0.5 + 0.30 * 0.1)

    @pytest.mark.parametrize(("received", "queue"), [(0.9, 0.9), (0.01, 0.04), (2.0, 1.0), (MISSING, 0.04)])
    def test_receive_pressure_counts_as_queue_when_it_is_the_larger_and_known(
        self, received: Reading, queue: float
    ) -> None:
        found = profile_of(stage("vad", placement(rx_queue_pressure=received))).stages[0].pressure
        assert found == pytest.approx(0.40 * 0.2 + 0.30 * 0.5 + 0.30 * queue)

    def test_it_is_never_above_one(self) -> None:
        drowning = placement(latency_p95=9.0, utilization=1.2, queue_depth=1e6)
        assert profile_of(stage("vad", drowning)).stages[0].pressure == pytest.approx(1.0)

    def test_items_that_wait_while_none_completes_are_a_full_queue(self) -> None:
        stuck = placement(queue_depth=5.0, completion_rate=0.0, utilization=0.0, latency_p95=0.0)
        assert profile_of(stage("vad", stuck)).stages[0].pressure == pytest.approx(0.30)

    @pytest.mark.parametrize("quantity", ["latency_p95", "utilization", "queue_depth", "completion_rate"])
    def test_a_stage_that_cannot_be_read_has_none(self, quantity: str) -> None:
        unread: dict[str, Any] = {quantity: STALE}
        found = profile_of(stage("vad", placement("cpu", replicas=2, **unread))).stages[0].pressure
        assert isinstance(found, Absence)
        assert found.reason is AbsenceReason.STALE

    def test_the_bottleneck_is_the_stage_under_most_pressure(self) -> None:
        stages = [stage("vad"), stage("encoder", placement(utilization=0.9), after=["vad"])]
        assert profile_of(*stages).bottleneck == "encoder"

    def test_of_equals_the_first_is_the_bottleneck(self) -> None:
        assert profile_of(stage("vad"), stage("encoder", after=["vad"])).bottleneck == "vad"

    def test_a_stage_that_cannot_be_read_is_no_candidate(self) -> None:
        stages = [stage("vad", placement(queue_depth=MISSING, utilization=1.0)), stage("encoder", after=["vad"])]
        assert profile_of(*stages).bottleneck == "encoder"

    def test_without_any_readings_there_is_no_bottleneck(self) -> None:
        assert profile_of(stage("vad", placement(readings={}))).bottleneck is None


class TestPlacementsTogether:
    def readings(self, *placements: PlacementInput) -> Mapping[Quantity, Reading]:
        return profile_of(stage("vad", *placements)).stages[0].readings

    def test_rates_and_queues_add_up(self) -> None:
        found = self.readings(placement("cpu"), placement("gpu", arrival_rate=20.0, queue_depth=4.0))
        assert found[Quantity.ARRIVAL_RATE] == 120.0
        assert found[Quantity.QUEUE_DEPTH] == 5.0

    def test_utilisation_is_weighted_by_replicas(self) -> None:
        found = self.readings(placement("cpu", replicas=3, utilization=0.2), placement("gpu", replicas=1))
        assert found[Quantity.UTILIZATION] == pytest.approx((3 * 0.2 + 0.5) / 4)

    def test_of_percentiles_the_worst_placement_counts(self) -> None:
        found = self.readings(placement("cpu"), placement("gpu", latency_p95=0.09))
        assert found[Quantity.LATENCY_P95] == 0.09

    @pytest.mark.parametrize("quantity", list(BUSY))
    def test_what_one_running_placement_does_not_tell_the_stage_does_not_know(self, quantity: Quantity) -> None:
        found = self.readings(placement("cpu"), placement("gpu", readings={**BUSY, quantity: MISSING}))
        assert found[quantity] == Absence(reason=AbsenceReason.MISSING, detail="pool gpu: 0 of 2 pods, 2 silent")

    def test_a_placement_without_replicas_has_no_say(self) -> None:
        found = self.readings(placement("cpu"), placement("gpu", replicas=0, readings={}))
        assert found[Quantity.ARRIVAL_RATE] == 100.0

    def test_a_placement_without_traffic_has_no_say_in_ratios(self) -> None:
        found = self.readings(placement("cpu"), placement("gpu", latency_p95=NO_TRAFFIC))
        assert found[Quantity.LATENCY_P95] == 0.05

    def test_a_stage_without_traffic_says_so(self) -> None:
        assert self.readings(placement("cpu", latency_p95=NO_TRAFFIC))[Quantity.LATENCY_P95] == NO_TRAFFIC

    def test_a_stage_without_replicas_has_readings_of_nothing(self) -> None:
        found = self.readings(placement("cpu", replicas=0))
        assert all(isinstance(reading, Absence) for reading in found.values())
        assert set(found) == set(Quantity)


class TestEndToEndLatency:
    def test_the_measured_one_is_used_and_labelled(self) -> None:
        found = profile_of(stage(), latency=0.21)
        assert found.latency_s == 0.21
        assert found.latency_source is LatencySource.MEASURED

    @pytest.mark.parametrize("latency", [None, MISSING])
    def test_without_a_measured_one_the_stages_make_it_up_labelled_so(self, latency: Reading | None) -> None:
        found = profile_of(stage("vad"), stage("encoder", after=["vad"]), latency=latency)
        assert found.latency_s == pytest.approx(0.04 + math.sqrt(2) * 0.03), "means 20 ms, p95 30 ms above them"
        assert found.latency_source is LatencySource.COMPOSED

    def test_of_parallel_branches_the_slower_counts(self) -> None:
        found = profile_of(
            stage("vad"),
            stage("a", placement(latency_p95=0.01), after=["vad"]),
            stage("b", placement(latency_p95=0.07), after=["vad"]),
            stage("join", after=["a", "b"]),
        )
        assert found.latency_s == pytest.approx(3 * 0.02 + math.sqrt(0.03**2 + 0.05**2 + 0.03**2))

    def test_a_stage_without_a_mean_counts_with_its_percentile(self) -> None:
        unknown = stage("encoder", placement(latency_mean=MISSING), after=["vad"])
        assert profile_of(stage("vad"), unknown).latency_s == pytest.approx(0.02 + 0.05 + 0.03)

    def test_a_mean_above_the_percentile_makes_the_composed_latency_no_higher_than_their_sum(self) -> None:
        skewed = stage("encoder", placement(latency_mean=0.9), after=["vad"])
        assert profile_of(stage("vad"), skewed).latency_s == pytest.approx(0.05 + 0.05)

    def test_a_stage_that_moves_freezes_its_own_ratio_and_that_of_the_stage_before(self) -> None:
        stages = [
            stage("a", placement(completion_rate=100.0), pass_ratio=1.0),
            stage("b", placement(arrival_rate=50.0, completion_rate=50.0), after=["a"], pass_ratio=1.0),
            replace(stage("c", placement(arrival_rate=25.0, completion_rate=25.0), after=["b"]), settled=False),
            stage("d", placement(arrival_rate=5.0), after=["c"]),
        ]
        ratios = [own.pass_ratio for own in profile_of(*stages).stages]
        assert ratios[0] < 1, "a and b do not move"
        assert ratios[1:] == [1.0, 1.0, 1.0]

    def test_a_higher_promise_is_composed_of_higher_percentiles(self) -> None:
        assert profile_of(stage(), sla=Sla(latency_s=0.25, percentile=99)).latency_s == 0.08

    def test_it_is_absent_when_one_stage_is(self) -> None:
        found = profile_of(stage("vad"), stage("encoder", placement(latency_p95=STALE), after=["vad"]))
        assert isinstance(found.latency_s, Absence)
        assert found.latency_s.reason is AbsenceReason.STALE
        assert "encoder" in found.latency_s.detail


class TestAboveTheLastBucket:
    def test_a_measured_latency_that_may_miss_the_sla_is_unknown_with_the_bound_and_the_sla(self) -> None:
        for least_s in (0.1, 0.25):
            found = profile_of(stage(), latency=AtLeast(least_s))
            assert isinstance(found.latency_s, Absence)
            assert found.latency_s.reason is AbsenceReason.ABOVE_BUCKETS
            assert f"sla.query is at least {least_s:g} s" in found.latency_s.detail
            assert "sla.latency is 0.25 s" in found.latency_s.detail
            assert found.latency_source is LatencySource.MEASURED, "the stages do not replace it"

    def test_one_that_misses_it_in_any_case_is_its_bound(self) -> None:
        assert profile_of(stage(), latency=AtLeast(0.3)).latency_s == 0.3

    @pytest.mark.parametrize(("percentile", "quantity"), [(95.0, Quantity.LATENCY_P95), (99.0, Quantity.LATENCY_P99)])
    def test_one_stage_or_placement_makes_the_composed_latency_unknown(
        self, percentile: float, quantity: Quantity
    ) -> None:
        sla = Sla(latency_s=0.25, percentile=percentile)
        beyond = placement("gpu", readings={**BUSY, quantity: AtLeast(0.1)})
        slower = placement("cpu", readings={**BUSY, quantity: 0.12})
        for stages in ([stage("vad", slower, beyond)], [stage("vad"), stage("asr", beyond, after=["vad"])]):
            found = profile_of(*stages, sla=sla).latency_s
            assert isinstance(found, Absence)
            assert found.reason is AbsenceReason.ABOVE_BUCKETS
            assert f"{stages[-1].name} is at least 0.1" in found.detail

    def test_bounds_that_miss_the_sla_together_are_a_miss(self) -> None:
        beyond = placement(latency_p95=AtLeast(0.2), latency_mean=0.2)
        found = profile_of(stage("vad", beyond), stage("asr", beyond, after=["vad"]))
        assert found.latency_s == pytest.approx(0.4)


class TestSharedStages:
    """The rates of a stage that serves several pipelines are those of all their items."""

    def profiles(self, *, asr_ratio: float = 1.0) -> Sequence[StageProfile]:
        everyone = placement(arrival_rate=400.0, completion_rate=400.0)
        shared = replace(
            stage("asr", everyone, after=["vad"], pass_ratio=asr_ratio), shared=SharedInput(other_sessions=0.0)
        )
        last = stage("notes", placement(arrival_rate=45.0), after=["asr"])
        return profile_of(stage("vad", placement(completion_rate=100.0), pass_ratio=0.6), shared, last).stages

    def test_the_ratio_before_it_is_that_of_the_stages_behind_it(self) -> None:
        assert self.profiles()[0].pass_ratio_measured == pytest.approx(0.45)
        assert self.profiles(asr_ratio=0.5)[0].pass_ratio_measured == pytest.approx(0.9)

    def test_its_own_ratio_is_the_declared_one(self) -> None:
        assert isinstance(self.profiles()[1].pass_ratio_measured, Absence)
        assert self.profiles(asr_ratio=0.5)[1].pass_ratio == 0.5


class TestCascade:
    """The cpu has the first model, the gpu the one that uncertain items go on to."""

    CASCADE = Cascade(to=PoolName("gpu"), share=0.2)

    def staged(self, *, replicas: int = 2, settled: bool = True, warming: float = 0.0, **last: Reading) -> StageInput:
        first = replace(placement("cpu", replicas=replicas), warming=warming)
        slow: dict[str, Any] = {"arrival_rate": 30.0, "completion_rate": 30.0, "latency_mean": 0.1, **last}
        then = placement("gpu", **slow)
        return replace(stage("asr", then, first), cascade=self.CASCADE, settled=settled)

    def of(self, own: StageInput, share: float | None = None) -> StageProfile:
        shares = Shares(cascade={} if share is None else {own.name: share})
        return profile_of(own, learned=Learned(shares=shares)).stages[0]

    def test_the_load_of_the_stage_is_that_of_its_first_placements(self) -> None:
        readings = self.of(self.staged()).readings
        assert readings[Quantity.ARRIVAL_RATE] == readings[Quantity.COMPLETION_RATE] == 100.0
        alone = self.of(self.staged(replicas=0)).readings
        assert alone[Quantity.ARRIVAL_RATE] == 30.0, "without them it is that of the last one"

    def test_latencies_are_those_of_the_slower_path_and_the_mean_of_all_items(self) -> None:
        readings = self.of(self.staged(latency_p95=0.2)).readings
        assert readings[Quantity.LATENCY_MEAN] == pytest.approx(0.02 + 0.3 * 0.1)
        assert readings[Quantity.LATENCY_P95] == pytest.approx(0.02 + 0.1 + math.sqrt(0.03**2 + 0.1**2))
        bounded = self.of(self.staged(latency_p95=AtLeast(0.2))).readings[Quantity.LATENCY_P95]
        assert isinstance(bounded, AtLeast)

    def test_while_nothing_goes_on_they_are_those_of_the_first_placements(self) -> None:
        idle = self.staged(arrival_rate=0.0, completion_rate=0.0, latency_mean=NO_TRAFFIC, latency_p95=NO_TRAFFIC)
        readings = self.of(idle).readings
        assert readings[Quantity.LATENCY_P95] == 0.05
        lost = self.of(self.staged(latency_p95=MISSING)).readings[Quantity.LATENCY_P95]
        assert isinstance(lost, Absence), "what is missing is not nothing"

    def test_the_share_that_goes_on_is_measured_and_smoothed(self) -> None:
        assert self.of(self.staged()).cascade_share == pytest.approx(0.3), "the first measurement counts in full"
        later = self.of(self.staged(), share=0.2).cascade_share
        assert later is not None
        assert 0.2 < later < 0.3

    @pytest.mark.parametrize(
        "own",
        [
            {"settled": False},
            {"replicas": 0},
            {"arrival_rate": MISSING},
            {"warming": 0.5},
        ],
    )
    def test_it_stays_as_it_was_where_it_cannot_be_measured(self, own: dict[str, Any]) -> None:
        assert self.of(self.staged(**own), share=0.2).cascade_share == 0.2
        assert self.of(self.staged(**own)).cascade_share is None

    def test_retries_make_no_share_above_one(self) -> None:
        assert self.of(self.staged(arrival_rate=140.0)).cascade_share == 1.0
