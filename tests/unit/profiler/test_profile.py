"""One entry, and one value of what was learned that goes in and comes out."""

from optimizer.model import Demand, Placement, PoolName, Routing, ServiceLaw, Sla, StageName
from profiler.profile import profile_pipeline
from profiler.samples import PlacementSamples, Quantity
from profiler.stages import Learned, PipelineInput, PlacementInput, StageInput

VAD, KEY = StageName("vad"), (StageName("vad"), PoolName("cpu"))
PIPELINE = PipelineInput(
    stages=(
        StageInput(
            name=VAD,
            after=(),
            pass_ratio=1.0,
            routing=Routing.LEAST_LOADED,
            window_s=60.0,
            placements=(
                PlacementInput(
                    prior=Placement(pool=KEY[1], service=ServiceLaw(fixed_s=0.02)),
                    replicas=2,
                    batch=1,
                    samples=PlacementSamples(
                        readings={
                            Quantity.COMPLETION_RATE: 40.0,
                            Quantity.SERVICE_TIME: 0.03,
                            Quantity.BATCH_SIZE: 1.0,
                        }
                    ),
                ),
            ),
        ),
    ),
    sla=Sla(latency_s=0.25),
    latency_s=None,
    demand=Demand(entry_rate_rps=100.0),
    settled=True,
)


def test_what_is_learned_continues_from_cycle_to_cycle() -> None:
    learned, factors = Learned(), []
    for cycle in range(3):
        profile, learned = profile_pipeline(PIPELINE, learned, now_s=15.0 * cycle, interval_s=15.0)
        assert learned.service_factors == {KEY: profile.stages[0].placements[0].service_factor}
        factors.append(learned.service_factors[KEY])
    assert 1.0 < factors[0] < factors[1] < factors[2] < 1.5


def test_a_stage_that_was_never_compared_with_the_model_has_no_correction() -> None:
    _, learned = profile_pipeline(PIPELINE, Learned(), now_s=0.0, interval_s=15.0)
    assert learned.pass_ratios == {VAD: 1.0}
    assert not learned.latency_corrections
    assert not learned.throughput_corrections
