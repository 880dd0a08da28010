"""What is asked of the optimizer: the declaration, corrected by what was measured."""

from dataclasses import replace

import pytest
from builders import ENCODER, VAD, a_placement, a_spec, a_stage

from controller.core.assess.optimizer_input import (
    inside,
    keeping,
    optimizer_pipeline,
    stages_sla_s,
    with_floors,
)
from controller.core.bounds.idle import IDLE
from controller.core.bounds.outages import OUTAGE
from controller.core.bounds.resolution import resolve
from controller.core.state.bound import Bound
from controller.core.state.spec import DemandUnit
from optimizer.model import Mixing, Pipeline, Placement, PoolName, ServiceLaw, StageName
from profiler.samples import Absence, AbsenceReason
from profiler.stages import LatencySource, PipelineProfile, PlacementProfile, StageProfile

SPEC = a_spec(
    a_stage("vad", a_placement("cpu", bounds=(1, 9)), pass_ratio=0.5),
    a_stage("encoder", a_placement("inferentia", bounds=(0, 4)), after=["vad"]),
)
NONE = Absence(reason=AbsenceReason.MISSING)


def vad(**options: object) -> Placement:
    return optimizer_pipeline(SPEC, 10.0, **options).stages[0].placements[0]  # type: ignore[arg-type]


def bounds_of(pipeline: Pipeline) -> tuple[int, int]:
    placement = pipeline.stages[0].placements[0]
    return placement.min_replicas, placement.max_replicas


def test_streams_offer_items_and_hold_a_session_each() -> None:
    spec = replace(SPEC, unit=DemandUnit.STREAMS, chunk_s=0.32)
    demand = optimizer_pipeline(spec, 800.0).demand
    assert demand.entry_rate_rps == pytest.approx(2500.0)
    assert demand.sessions == 800.0


def test_requests_are_items_and_hold_no_session() -> None:
    demand = optimizer_pipeline(SPEC, 30.0).demand
    assert (demand.entry_rate_rps, demand.sessions) == (30.0, None)


def test_a_measured_pass_ratio_and_service_time_replace_the_priors() -> None:
    problem = optimizer_pipeline(SPEC, 10.0, profile=a_profile(pass_ratio=0.25, service_factor=1.4))
    vad_stage, encoder_stage = problem.stages
    assert vad_stage.pass_ratio == pytest.approx(0.25, rel=0.01)
    assert vad_stage.placements[0].service.fixed_s == pytest.approx(0.07, rel=0.01)
    assert encoder_stage.placements[0].service == ServiceLaw(fixed_s=0.05, cv=1.0)


def test_measured_fan_out_is_planned_for_up_to_a_hundred() -> None:
    for measured, planned in ((2.5, pytest.approx(2.5, rel=0.01)), (100.0, 100.0)):
        pipeline = optimizer_pipeline(SPEC, 10.0, profile=a_profile(pass_ratio=measured, service_factor=1.0))
        assert pipeline.visit_ratios[StageName("encoder")] == planned


def test_noise_in_what_was_measured_asks_the_same_question() -> None:
    one = optimizer_pipeline(SPEC, 10.0, profile=a_profile(pass_ratio=0.25, service_factor=1.4))
    other = optimizer_pipeline(SPEC, 10.0, profile=a_profile(pass_ratio=0.2495, service_factor=1.402))
    assert one == other


def a_profile(*, pass_ratio: float, service_factor: float) -> PipelineProfile:
    return PipelineProfile(
        stages=(
            StageProfile(
                name=StageName("vad"),
                readings={},
                pass_ratio=pass_ratio,
                pass_ratio_measured=pass_ratio,
                pressure=NONE,
                placements=(
                    PlacementProfile(
                        name=PoolName("cpu"),
                        readings={},
                        prior=ServiceLaw(fixed_s=0.05),
                        service=ServiceLaw(fixed_s=0.05, cv=1.0).scaled(service_factor),
                        service_factor=service_factor,
                    ),
                ),
            ),
        ),
        bottleneck=None,
        latency_s=NONE,
        latency_source=LatencySource.COMPOSED,
    )


def test_headroom_is_taken_off_the_sla() -> None:
    assert optimizer_pipeline(SPEC, 10.0, latency_headroom=0.2).sla.latency_s == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("overhead_s", "left_s"),
    [(None, 0.5), (0.0, 0.5), (0.024, 0.5), (0.1, 0.4), (0.26, 0.24), (0.49, 0.5), (3.0, 0.5)],
    ids=["unknown", "none", "negligible", "some", "half", "nearly all", "more than there is"],
)
def test_measured_overhead_leaves_the_stages_less_of_the_sla(overhead_s: float | None, left_s: float) -> None:
    profile = replace(a_profile(pass_ratio=0.5, service_factor=1.0), overhead_s=overhead_s)
    assert stages_sla_s(SPEC, profile) == pytest.approx(left_s, rel=0.01)
    assert optimizer_pipeline(SPEC, 10.0, profile=profile).sla.latency_s == stages_sla_s(SPEC, profile)


def test_without_a_profile_the_stages_have_all_of_the_sla() -> None:
    assert stages_sla_s(SPEC, None) == 0.5


def test_limits_take_the_place_of_the_declared_bounds_the_minimum_included() -> None:
    out = Bound(mechanism=OUTAGE, stage=VAD[0], placement=VAD[1], most=0)
    assert bounds_of(inside(optimizer_pipeline(SPEC, 10.0), resolve([out], [VAD]))) == (0, 0)


def test_a_stage_without_a_floor_may_have_no_replica() -> None:
    none = resolve([Bound(mechanism=IDLE, stage=VAD[0], most=0)], [VAD])
    idle = inside(optimizer_pipeline(SPEC, 0.0), none)
    assert [stage.min_replicas for stage in idle.stages] == [0, 1]


def test_floors_are_the_least_of_the_placements_and_of_the_stage() -> None:
    raised = with_floors(optimizer_pipeline(SPEC, 10.0), {VAD: 5})
    assert (raised.stages[0].placements[0].min_replicas, raised.stages[0].min_replicas) == (5, 5)


def test_replicas_to_keep_raise_the_bounds_the_maximum_included() -> None:
    pipeline = keeping(optimizer_pipeline(SPEC, 10.0), {VAD: 12})
    assert bounds_of(pipeline) == (12, 12)
    assert bounds_of(keeping(pipeline, {VAD: 3})) == (12, 12)


def test_what_runs_is_known_for_the_cost_of_switching() -> None:
    problem = optimizer_pipeline(SPEC, 10.0, current={VAD: 3})
    assert [stage.placements[0].current for stage in problem.stages] == [3, 0]
    assert problem.stages[1].placements[0].pool == ENCODER[1]


@pytest.mark.parametrize("mixing", [Mixing.FREE, Mixing.OVERFLOW])
def test_every_stage_mixes_placements_as_the_pipeline_says(mixing: Mixing) -> None:
    spec = replace(SPEC, scaling=replace(SPEC.scaling, mixing=mixing))
    assert {stage.mixing for stage in optimizer_pipeline(spec, 10.0).stages} == {mixing}
