"""What runs is judged by the model that plans are made with."""

from dataclasses import replace

import pytest

from optimizer.allocate import allocate
from optimizer.latency.predict import predicted_latency_s, stage_load
from optimizer.latency.stage import StageLoad
from optimizer.model import (
    Composition,
    Demand,
    Pipeline,
    PipelineKey,
    Placement,
    PlacementKey,
    Pool,
    PoolName,
    Problem,
    ServiceLaw,
    Sla,
    Stage,
    StageName,
)

CPU, GPU = PoolName("cpu"), PoolName("gpu")
A, B, C = StageName("a"), StageName("b"), StageName("c")


def stage(name: StageName, *after: StageName, slots: int | None = None) -> Stage:
    return Stage(
        name=name,
        placements=(
            Placement(
                pool=CPU,
                service=ServiceLaw(fixed_s=0.02, per_item_s=0.004, cv=0.4),
                max_replicas=20,
                batch_sizes=(1, 4),
                session_slots=slots,
            ),
            Placement(pool=GPU, service=ServiceLaw(fixed_s=0.01, cv=0.4), max_replicas=20, session_slots=slots),
        ),
        after=after,
    )


def pipeline(*stages: Stage, rate: float = 100.0, sessions: float | None = None) -> Pipeline:
    return Pipeline(
        key=PipelineKey("n/p"),
        stages=stages,
        demand=Demand(entry_rate_rps=rate, sessions=sessions),
        sla=Sla(latency_s=0.3),
    )


@pytest.mark.parametrize("composition", Composition)
@pytest.mark.parametrize("stages", [(stage(A), stage(B, A)), (stage(A), stage(B), stage(C, A, B))])
def test_a_plan_is_predicted_to_do_what_it_says(composition: Composition, stages: tuple[Stage, ...]) -> None:
    pools = {name: Pool(name=name, price_per_hour=1.0, instances=40) for name in (CPU, GPU)}
    asked = pipeline(*stages)
    plan = allocate(Problem(pipelines=(asked,), pools=pools, composition=composition)).of(asked.key)
    batches = {(own.name, placed.name): placed.batch for own in plan.stages for placed in own.placements}
    predicted = predicted_latency_s(asked, plan.replicas(), batches, composition=composition)
    assert predicted == pytest.approx(plan.latency_s)


@pytest.mark.parametrize("composition", Composition)
def test_a_stage_that_was_measured_to_be_slower_than_modelled_is_predicted_and_planned_so(
    composition: Composition,
) -> None:
    pools = {name: Pool(name=name, price_per_hour=1.0, instances=40) for name in (CPU, GPU)}
    modelled, measured = pipeline(stage(A)), pipeline(replace(stage(A), latency_factor=1.5))
    allocation: dict[PlacementKey, int] = {(A, CPU): 2, (A, GPU): 3}
    expected_s = predicted_latency_s(modelled, allocation, {}, composition=composition)
    slower_s = predicted_latency_s(measured, allocation, {}, composition=composition)
    assert expected_s is not None
    assert slower_s == pytest.approx(1.5 * expected_s)
    (planned,) = allocate(Problem(pipelines=(measured,), pools=pools, composition=composition)).pipelines
    batches = {(own.name, placed.name): placed.batch for own in planned.stages for placed in own.placements}
    predicted_s = predicted_latency_s(measured, planned.replicas(), batches, composition=composition)
    assert predicted_s == pytest.approx(planned.latency_s)


def test_a_stage_that_runs_nowhere_or_is_overloaded_has_no_latency() -> None:
    asked = pipeline(stage(A), stage(B, A))
    assert predicted_latency_s(asked, {(A, GPU): 4}, {}) is None
    assert predicted_latency_s(asked, {(A, GPU): 4, (B, GPU): 1}, {}) is None
    assert predicted_latency_s(asked, {(A, GPU): 4, (B, GPU): 4}, {}) is not None


def test_too_few_session_slots_have_no_latency() -> None:
    asked = pipeline(stage(A, slots=30), sessions=100.0)
    assert predicted_latency_s(asked, {(A, GPU): 3}, {}) is None
    assert predicted_latency_s(asked, {(A, GPU): 4}, {}) is not None


def behind(first: Stage, *, rate: float = 30.0, sessions: float | None = None, cv2: float = 1.0) -> StageLoad:
    """Return the load of stage b behind `first`."""
    asked = pipeline(first, stage(B, A), rate=rate, sessions=sessions)
    asked = replace(asked, demand=replace(asked.demand, arrival_cv2=cv2))
    return stage_load(asked, asked.stages[1])


@pytest.mark.parametrize("cv2", [0.0, 1.0, 4.0])
def test_a_stage_behind_fan_out_has_the_load_of_as_many_more_requests(cv2: float) -> None:
    tripled = behind(replace(stage(A), pass_ratio=3.0), cv2=cv2)
    assert tripled == behind(stage(A), rate=90.0, cv2=cv2)
    assert tripled.arrival_cv2 >= 0


def test_the_calls_of_a_stream_do_not_come_at_even_intervals() -> None:
    assert behind(stage(A), sessions=10.0).periodic
    for ratio in (0.5, 3.0):
        assert not behind(replace(stage(A), pass_ratio=ratio), sessions=10.0).periodic
    load = behind(replace(stage(A), pass_ratio=3.0), sessions=10.0)
    assert (load.rate_rps, load.sessions) == (90.0, 10.0)
