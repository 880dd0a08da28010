"""What is asked of the optimizer: the declaration, corrected by what was measured."""

from dataclasses import replace

import pytest
from builders import ENCODER, VAD, a_placement, a_spec, a_stage

from controller.core.problem import pipeline_problem
from controller.core.spec import DemandUnit
from optimizer.model import Placement, PoolName, ServiceLaw, StageName
from profiler.profile import LatencySource, PipelineProfile, PlacementProfile, StageProfile
from profiler.samples import Absence, AbsenceReason

SPEC = a_spec(
    a_stage("vad", a_placement("cpu", bounds=(1, 9)), pass_ratio=0.5),
    a_stage("encoder", a_placement("inferentia", bounds=(0, 4)), after=["vad"]),
)
NONE = Absence(reason=AbsenceReason.MISSING)


def vad(**options: object) -> Placement:
    return pipeline_problem(SPEC, 10.0, **options).stages[0].placements[0]  # type: ignore[arg-type]


def test_streams_offer_items_and_hold_a_session_each() -> None:
    spec = replace(SPEC, unit=DemandUnit.STREAMS, chunk_s=0.32)
    demand = pipeline_problem(spec, 800.0).demand
    assert demand.entry_rate_rps == pytest.approx(2500.0)
    assert demand.sessions == 800.0


def test_requests_are_items_and_hold_no_session() -> None:
    demand = pipeline_problem(SPEC, 30.0).demand
    assert (demand.entry_rate_rps, demand.sessions) == (30.0, None)


def test_a_measured_pass_ratio_and_service_time_replace_the_priors() -> None:
    measured = ServiceLaw(fixed_s=0.07, cv=1.0)
    profile = PipelineProfile(
        stages=(
            StageProfile(
                name=StageName("vad"),
                readings={},
                pass_ratio=0.25,
                pass_ratio_measured=0.25,
                pressure=NONE,
                placements=(
                    PlacementProfile(
                        pool=PoolName("cpu"),
                        readings={},
                        prior=ServiceLaw(fixed_s=0.05),
                        service=measured,
                        service_factor=1.4,
                    ),
                ),
            ),
        ),
        bottleneck=None,
        latency_s=NONE,
        latency_source=LatencySource.COMPOSED,
    )
    problem = pipeline_problem(SPEC, 10.0, profile=profile)
    assert problem.stages[0].pass_ratio == 0.25
    assert problem.stages[0].placements[0].service == measured
    assert problem.stages[1].placements[0].service == ServiceLaw(fixed_s=0.05, cv=1.0)


def test_headroom_is_taken_off_the_sla() -> None:
    assert pipeline_problem(SPEC, 10.0, latency_headroom=0.2).sla.latency_s == pytest.approx(0.4)


def test_a_pool_that_cannot_deliver_lowers_the_bounds_the_minimum_included() -> None:
    placement = vad(at_most={VAD: 0})
    assert (placement.min_replicas, placement.max_replicas) == (0, 0)


def test_replicas_to_keep_raise_the_bounds_the_maximum_included() -> None:
    placement = vad(at_least={VAD: 12}, at_most={VAD: 2})
    assert (placement.min_replicas, placement.max_replicas) == (12, 12)


def test_what_runs_is_known_for_the_cost_of_switching() -> None:
    problem = pipeline_problem(SPEC, 10.0, current={VAD: 3})
    assert [stage.placements[0].current for stage in problem.stages] == [3, 0]
    assert problem.stages[1].placements[0].pool == ENCODER[1]
