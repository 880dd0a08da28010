"""What holds for every profile, whatever the sources say."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from optimizer.model import MOST_PASSED, Placement, PoolName, Routing, ServiceLaw, Sla, StageName
from profiler.estimate import FACTOR_BOUNDS, estimate_pipeline
from profiler.samples import Absence, AbsenceReason, PlacementSamples, Quantity, Reading
from profiler.stages import Learned, PipelineInput, PipelineProfile, PlacementInput, StageInput

READINGS = st.one_of(
    st.floats(min_value=0, max_value=1e6),
    st.builds(Absence, reason=st.sampled_from(AbsenceReason)),
)
LAWS = st.builds(ServiceLaw, fixed_s=st.floats(1e-4, 1), per_item_s=st.floats(0, 1))


@st.composite
def placements(draw: st.DrawFn) -> tuple[PlacementInput, ...]:
    pools = draw(st.lists(st.sampled_from(["cpu", "inferentia", "gpu"]), min_size=1, unique=True))
    return tuple(
        PlacementInput(
            prior=Placement(pool=PoolName(pool), service=draw(LAWS), batch_sizes=(draw(st.integers(1, 64)),)),
            replicas=draw(st.integers(0, 5)),
            batch=1,
            samples=PlacementSamples(readings=draw(st.dictionaries(st.sampled_from(Quantity), READINGS))),
        )
        for pool in pools
    )


@st.composite
def chains(draw: st.DrawFn) -> tuple[StageInput, ...]:
    names = [StageName(f"stage-{number}") for number in range(draw(st.integers(1, 4)))]
    return tuple(
        StageInput(
            name=name,
            after=tuple(names[max(0, place - 1) : place]),
            pass_ratio=draw(st.floats(0.01, MOST_PASSED)),
            routing=Routing.LEAST_LOADED,
            window_s=60.0,
            placements=draw(placements()),
        )
        for place, name in enumerate(names)
    )


LATENCIES = st.none() | READINGS
SLA = Sla(latency_s=0.25)


@st.composite
def inputs(draw: st.DrawFn) -> tuple[PipelineInput, Learned]:
    stages = draw(chains())
    pipeline = PipelineInput(stages=stages, sla=SLA, latency_s=draw(LATENCIES), demand=None)
    factors, ratios = st.none() | st.floats(*FACTOR_BOUNDS), st.none() | st.floats(0.01, MOST_PASSED)
    keys = [(stage.name, placement.name) for stage in stages for placement in stage.placements]
    learned = Learned(
        service_factors={key: factor for key in keys if (factor := draw(factors)) is not None},
        pass_ratios={stage.name: ratio for stage in stages if (ratio := draw(ratios)) is not None},
    )
    return pipeline, learned


def estimated(given: tuple[PipelineInput, Learned]) -> PipelineProfile:
    pipeline, learned = given
    return estimate_pipeline(pipeline, learned, interval_s=15.0)


@given(inputs())
def test_corrections_and_scores_stay_within_their_bounds(given: tuple[PipelineInput, Learned]) -> None:
    profile = estimated(given)
    low, high = FACTOR_BOUNDS
    for stage in profile.stages:
        assert 0 < stage.pass_ratio <= MOST_PASSED
        assert isinstance(stage.pressure, Absence) or 0 <= stage.pressure <= 1 + 1e-12
        for placement in stage.placements:
            assert low - 1e-12 <= placement.service_factor <= high + 1e-12
    assert isinstance(profile.latency_s, Absence) or profile.latency_s >= 0


@given(inputs())
def test_the_order_of_placements_changes_no_reading(given: tuple[PipelineInput, Learned]) -> None:
    pipeline, learned = given
    turned = replace(
        pipeline, stages=tuple(replace(stage, placements=stage.placements[::-1]) for stage in pipeline.stages)
    )
    one, other = estimated(given), estimated((turned, learned))
    for before, after in zip(one.stages, other.stages, strict=True):
        for quantity in Quantity:
            assert _same(before.readings[quantity], after.readings[quantity])


@given(inputs())
def test_a_running_placement_that_is_silent_never_leaves_the_stage_with_a_number(
    given: tuple[PipelineInput, Learned],
) -> None:
    for stage, running in zip(estimated(given).stages, given[0].stages, strict=True):
        for quantity in Quantity:
            parts = [placed.samples.of(quantity) for placed in running.placements if placed.replicas > 0]
            if any(isinstance(part, Absence) and part.reason is not AbsenceReason.NO_TRAFFIC for part in parts):
                assert isinstance(stage.readings[quantity], Absence)


def _same(one: Reading, other: Reading) -> bool:
    if isinstance(one, Absence) or isinstance(other, Absence):
        return isinstance(one, Absence) and isinstance(other, Absence)
    return abs(one - other) <= 1e-9 * max(1.0, abs(one))
