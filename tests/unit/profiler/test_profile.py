"""One entry, and one value of what was learned that goes in and comes out."""

import math
from dataclasses import replace

import pytest

from optimizer.model import Demand, Placement, PoolName, Routing, ServiceLaw, Sla, StageName
from profiler.profile import profile_pipeline
from profiler.samples import NO_SAMPLES, PlacementSamples, Quantity
from profiler.stages import Learned, PipelineInput, PlacementInput, StageInput

VAD, KEY = StageName("vad"), (StageName("vad"), PoolName("cpu"))


def samples(*, service_s: float) -> PlacementSamples:
    return PlacementSamples(
        readings={Quantity.COMPLETION_RATE: 40.0, Quantity.SERVICE_TIME: service_s, Quantity.BATCH_SIZE: 1.0}
    )


def on(pool: str, measured: PlacementSamples) -> PlacementInput:
    return PlacementInput(
        prior=Placement(pool=PoolName(pool), service=ServiceLaw(fixed_s=0.02)), replicas=2, batch=1, samples=measured
    )


STAGE = StageInput(
    name=VAD,
    after=(),
    pass_ratio=1.0,
    routing=Routing.LEAST_LOADED,
    window_s=60.0,
    placements=(on("cpu", samples(service_s=0.03)),),
)
PIPELINE = PipelineInput(stages=(STAGE,), sla=Sla(latency_s=0.25), latency_s=None, demand=Demand(entry_rate_rps=100.0))


def test_what_is_learned_continues_from_cycle_to_cycle() -> None:
    learned, factors = Learned(), []
    for cycle in range(3):
        profile, learned = profile_pipeline(PIPELINE, learned, now_s=15.0 * cycle, interval_s=15.0)
        assert learned.service_factors == {KEY: profile.stages[0].placements[0].service_factor}
        factors.append(learned.service_factors[KEY])
    assert factors == [pytest.approx(1.5)] * 3, "the first measurement counts in full"
    faster = replace(STAGE.placements[0], samples=samples(service_s=0.02))
    sped_up = replace(PIPELINE, stages=(replace(STAGE, placements=(faster,)),))
    for cycle in range(3, 6):
        profile, learned = profile_pipeline(sped_up, learned, now_s=15.0 * cycle, interval_s=15.0)
        factors.append(learned.service_factors[KEY])
    assert factors[2] > factors[3] > factors[4] > factors[5] > 1.0


@pytest.mark.parametrize(("read", "engines"), [(2.0, 2), (1.5, 1), (0.0, 4), (math.inf, 64), (math.nan, 4), (None, 4)])
def test_the_engines_of_a_replica_are_those_that_were_told_last(read: float | None, engines: int) -> None:
    told: PlacementSamples = NO_SAMPLES if read is None else PlacementSamples(readings={Quantity.ENGINES: read})
    pipeline = replace(PIPELINE, stages=(replace(STAGE, placements=(on("cpu", told),)),))
    learned = profile_pipeline(pipeline, Learned(engines={KEY: 4}), now_s=0.0, interval_s=15.0)[1]
    assert learned.engines == {KEY: engines}


def test_a_start_up_time_that_was_measured_lasts_until_the_next_one() -> None:
    def learned_with(startup_s: float | None, before: Learned) -> Learned:
        placements = (replace(STAGE.placements[0], startup_s=startup_s),)
        pipeline = replace(PIPELINE, stages=(replace(STAGE, placements=placements),))
        return profile_pipeline(pipeline, before, now_s=0.0, interval_s=15.0)[1]

    first = learned_with(33.0, Learned())
    assert first.startups_s == {KEY: 33.0}
    gone = learned_with(None, first)
    assert gone.startups_s == {KEY: 33.0}, "no pod is ready"
    assert learned_with(21.0, gone).startups_s == {KEY: 21.0}
    assert learned_with(None, Learned()).startups_s == {}


def test_a_stage_that_was_never_compared_with_the_model_has_no_correction() -> None:
    _, learned = profile_pipeline(PIPELINE, Learned(), now_s=0.0, interval_s=15.0)
    assert not learned.pass_ratios
    assert not learned.latency_corrections
    assert not learned.throughput_corrections


def test_a_placement_that_was_never_measured_has_the_factor_of_its_siblings_and_learns_none() -> None:
    siblings = (on("cpu", samples(service_s=0.04)), on("gpu", samples(service_s=0.08)), on("tpu", NO_SAMPLES))
    pipeline = replace(PIPELINE, stages=(replace(STAGE, placements=siblings),))
    _, learned = profile_pipeline(pipeline, Learned(), now_s=0.0, interval_s=15.0)
    assert set(learned.service_factors) == {KEY, (VAD, PoolName("gpu"))}
    profile, _ = profile_pipeline(pipeline, learned, now_s=15.0, interval_s=15.0)
    tpu = profile.stages[0].placements[2]
    assert not tpu.measured
    assert tpu.service_factor == pytest.approx(8**0.5), "the geometric mean of 2 and 4"
    assert tpu.service.fixed_s == pytest.approx(0.02 * 8**0.5)


def test_the_first_measurement_of_a_placement_replaces_what_its_siblings_suggested() -> None:
    siblings = (on("cpu", samples(service_s=0.04)), on("gpu", samples(service_s=0.01)))
    pipeline = replace(PIPELINE, stages=(replace(STAGE, placements=siblings),))
    profile, _ = profile_pipeline(pipeline, Learned(service_factors={KEY: 2.0}), now_s=0.0, interval_s=15.0)
    assert profile.stages[0].placements[1].service_factor == pytest.approx(0.5)


def test_the_share_of_prompts_in_the_prefix_cache_is_learned_slowly() -> None:
    def learned_with(rate: float | None, before: Learned) -> Learned:
        readings = {} if rate is None else {Quantity.PREFIX_HIT_RATE: rate}
        stage = replace(STAGE, placements=(on("cpu", PlacementSamples(readings=readings)),))
        pipeline = replace(PIPELINE, stages=(stage,))
        return profile_pipeline(pipeline, before, now_s=0.0, interval_s=15.0)[1]

    first = learned_with(0.4, Learned())
    assert first.shares.prefix == {KEY: 0.4}
    later = learned_with(0.8, first).shares.prefix[KEY]
    assert 0.4 < later < 0.45, "a cache that was just filled says little"
    for unusable in (None, math.nan, 1.5, -0.1):
        assert learned_with(unusable, first).shares.prefix == {KEY: 0.4}
