"""What holds for every profile, whatever the sources say."""

from hypothesis import given
from hypothesis import strategies as st

from optimizer.model import PoolName, ServiceLaw, Sla, StageName
from profiler.estimate import FACTOR_BOUNDS, PlacementInput, StageInput, estimate_pipeline
from profiler.samples import Absence, AbsenceReason, PlacementSamples, Quantity, Reading

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
            pool=PoolName(pool),
            prior=draw(LAWS),
            batch_limit=draw(st.integers(1, 64)),
            replicas=draw(st.integers(0, 5)),
            samples=PlacementSamples(readings=draw(st.dictionaries(st.sampled_from(Quantity), READINGS))),
            factor=draw(st.none() | st.floats(*FACTOR_BOUNDS)),
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
            prior_pass_ratio=draw(st.floats(0.01, 1)),
            pass_ratio=draw(st.none() | st.floats(0.01, 1)),
            window_s=60.0,
            placements=draw(placements()),
        )
        for place, name in enumerate(names)
    )


LATENCIES = st.none() | READINGS
SLA = Sla(latency_s=0.25)


@given(chains(), LATENCIES)
def test_corrections_and_scores_stay_within_their_bounds(
    stages: tuple[StageInput, ...], latency: Reading | None
) -> None:
    profile = estimate_pipeline(stages, sla=SLA, measured_latency_s=latency, settled=True, interval_s=15.0)
    low, high = FACTOR_BOUNDS
    for stage in profile.stages:
        assert 0 < stage.pass_ratio <= 1
        assert isinstance(stage.pressure, Absence) or 0 <= stage.pressure <= 1 + 1e-12
        for placement in stage.placements:
            assert low - 1e-12 <= placement.service_factor <= high + 1e-12
    assert isinstance(profile.latency_s, Absence) or profile.latency_s >= 0


@given(chains(), LATENCIES)
def test_the_order_of_placements_changes_no_reading(stages: tuple[StageInput, ...], latency: Reading | None) -> None:
    def turned(stage: StageInput) -> StageInput:
        return StageInput(
            name=stage.name,
            after=stage.after,
            prior_pass_ratio=stage.prior_pass_ratio,
            pass_ratio=stage.pass_ratio,
            window_s=stage.window_s,
            placements=stage.placements[::-1],
        )

    one = estimate_pipeline(stages, sla=SLA, measured_latency_s=latency, settled=True, interval_s=15.0)
    other = estimate_pipeline(
        [turned(stage) for stage in stages], sla=SLA, measured_latency_s=latency, settled=True, interval_s=15.0
    )
    for before, after in zip(one.stages, other.stages, strict=True):
        for quantity in Quantity:
            assert _same(before.readings[quantity], after.readings[quantity])


@given(chains())
def test_a_running_placement_that_is_silent_never_leaves_the_stage_with_a_number(
    stages: tuple[StageInput, ...],
) -> None:
    for stage in estimate_pipeline(stages, sla=SLA, measured_latency_s=None, settled=True, interval_s=15.0).stages:
        inputs = next(given for given in stages if given.name == stage.name)
        for quantity in Quantity:
            parts = [placed.samples.of(quantity) for placed in inputs.placements if placed.replicas > 0]
            if any(isinstance(part, Absence) and part.reason is not AbsenceReason.NO_TRAFFIC for part in parts):
                assert isinstance(stage.readings[quantity], Absence)


def _same(one: Reading, other: Reading) -> bool:
    if isinstance(one, Absence) or isinstance(other, Absence):
        return isinstance(one, Absence) and isinstance(other, Absence)
    return abs(one - other) <= 1e-9 * max(1.0, abs(one))
