"""What is known of a pipeline before planning, and which replicas must stay."""

from dataclasses import replace

import pytest
from builders import (
    ENCODER,
    ENCODER_GPU,
    NOW_S,
    VAD,
    a_placement,
    a_pool,
    a_scaling,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    a_target,
    pools,
    seen,
)

from controller.core.assess.assessment import Assessment, MissingReading, assess, most_allowed, out_of_bounds
from controller.core.assess.availability import find_availability
from controller.core.state.carry_over import PipelineMemory, PoolMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, ServingReplica, Snapshot, TargetMissing
from controller.core.state.spec import Mode
from profiler.samples import Absence, AbsenceReason, PlacementSamples, Quantity

RUNNING = {VAD: 2, ENCODER: 3}
MISSING = Absence(reason=AbsenceReason.MISSING)


def assessed(state: PipelineState, snapshot: Snapshot | None = None) -> Assessment:
    world = snapshot or a_snapshot(state)
    return assess(state, world, find_availability(world), Policy())


def test_the_optimizer_plans_the_rounded_demand_from_the_current_replicas() -> None:
    assessment = assessed(a_state(demand=100.0, replicas=RUNNING))
    vad, encoder = assessment.pipeline.stages
    assert assessment.pipeline.demand.entry_rate_rps == assessment.planned_demand
    assert 100.0 <= assessment.planned_demand < 101.1
    assert [placement.current for placement in (*vad.placements, *encoder.placements)] == [2, 3, 0]


def test_replicas_on_nodes_that_are_being_removed_are_placed_anew() -> None:
    leaving = replace(
        a_target(3),
        serving=(ServingReplica(name="a", leaving=True), ServingReplica(name="b"), ServingReplica(name="c")),
    )
    assessment = assessed(a_state(replicas={VAD: 2, ENCODER: leaving}))
    assert assessment.leaving == {ENCODER: 1}
    assert assessment.current[ENCODER] == 3
    assert assessment.pipeline.stages[1].placements[0].current == 2


@pytest.mark.parametrize("mode", list(Mode))
def test_only_mode_auto_acts(mode: Mode) -> None:
    assert assessed(a_state(a_spec(mode=mode), replicas=RUNNING)).acting is (mode is Mode.AUTO)


def test_another_autoscaler_stops_the_pipeline_from_acting() -> None:
    state = replace(a_state(replicas=RUNNING), autoscalers={ENCODER: "HorizontalPodAutoscaler/asr"})
    assessment = assessed(state)
    assert not assessment.acting
    assert assessment.conflicting == {ENCODER: "HorizontalPodAutoscaler/asr"}


@pytest.mark.parametrize("mode", list(Mode))
def test_an_autoscaler_that_follows_is_a_conflict_only_where_sluice_writes_too(mode: Mode) -> None:
    state = replace(a_state(a_spec(mode=mode), replicas=RUNNING), followers={ENCODER: "ScaledObject/asr"})
    assert assessed(state).conflicting == ({ENCODER: "ScaledObject/asr"} if mode is Mode.AUTO else {})


class TestMissing:
    def test_with_all_data_nothing_must_be_kept(self) -> None:
        assessment = assessed(a_state(replicas=RUNNING))
        assert not assessment.never_down
        assert not assessment.kept

    def test_without_demand_all_replicas_are_kept(self) -> None:
        assessment = assessed(a_state(demand=MISSING, replicas=RUNNING))
        assert assessment.demand_missing
        assert assessment.kept == RUNNING

    def test_a_stage_whose_ready_replicas_report_no_load_is_named(self) -> None:
        state = a_state(replicas=RUNNING, samples={ENCODER: PlacementSamples(readings={})})
        assessment = assessed(state)
        reading = MissingReading(pool=ENCODER[1], quantity=Quantity.ARRIVAL_RATE, absence=MISSING)
        assert assessment.missing.samples == {ENCODER[0]: reading}
        assert assessment.never_down

    def test_a_stage_without_traffic_is_not_missing(self) -> None:
        idle = Absence(reason=AbsenceReason.NO_TRAFFIC)
        state = a_state(replicas=RUNNING, samples={ENCODER: seen(arrival_rate=idle, completion_rate=idle)})
        assert not assessed(state).never_down

    def test_a_stage_whose_model_is_ambiguous_is_missing(self) -> None:
        several = Absence(reason=AbsenceReason.AMBIGUOUS, detail="a pod reports 2 models")
        state = a_state(replicas=RUNNING, samples={ENCODER: seen(arrival_rate=several, completion_rate=several)})
        assert assessed(state).missing.samples[ENCODER[0]].absence == several
        assert assessed(state).never_down

    def test_a_workload_that_cannot_be_read_makes_the_spend_unknown(self) -> None:
        for unreadable in (True, False):
            target = TargetMissing(reason="no answer", unreadable=unreadable)
            assessment = assessed(a_state(replicas={VAD: 2, ENCODER: target}))
            assert assessment.missing.targets[ENCODER] == "no answer"
            assert assessment.never_down
            assert assessment.spend_unknown is unreadable

    def test_replicas_on_a_pool_that_does_not_exist_stay(self) -> None:
        state = a_state(replicas=RUNNING)
        assessment = assessed(state, a_snapshot(state, fleet=pools(a_pool("cpu"), a_pool("gpu"))))
        assert assessment.missing.pools == {ENCODER[1]}
        assert assessment.kept == {ENCODER: 3}
        assert assessment.at_most[ENCODER] == 3
        assert assessment.spend_unknown


class TestTrial:
    """A pool whose failure is over, before a replica has become ready there."""

    def on_trial(self, demand: float) -> Assessment:
        state = a_state(demand=demand, replicas={VAD: 2, ENCODER: 3})
        after = PoolMemory(unavailable_until_s=NOW_S - 1, backoff_s=600.0, reason="full")
        fleet = pools(a_pool("cpu"), a_pool("inferentia", memory=after), a_pool("gpu"))
        return assessed(state, a_snapshot(state, fleet=fleet))

    def test_while_the_sla_is_met_plans_may_use_the_pool(self) -> None:
        assessment = self.on_trial(10.0)
        assert assessment.on_trial == {ENCODER: 1}
        assert assessment.pipeline.stages[1].placements[0].max_replicas == 20
        assert most_allowed(assessment, ENCODER, assessment.spec.placements()[ENCODER].prior) == 4

    def test_missing_replicas_go_elsewhere(self) -> None:
        assessment = self.on_trial(1000.0)
        assert assessment.at_most[ENCODER] == 4
        assert [placement.max_replicas for placement in assessment.pipeline.stages[1].placements] == [4, 20]


def test_a_share_admitted_before_is_of_the_planned_demand() -> None:
    assert assessed(a_state(demand=100.0, replicas=RUNNING)).share_before is None
    limited = assessed(a_state(demand=100.0, replicas=RUNNING, memory=PipelineMemory(admissible=50.0)))
    assert limited.share_before == pytest.approx(0.5, rel=0.02)


def test_bounds_are_broken_by_too_few_too_many_and_none() -> None:
    spec = a_spec(a_stage("vad", a_placement("cpu", bounds=(2, 4))))
    for replicas, broken in ((0, True), (1, True), (2, False), (4, False), (5, True)):
        assert out_of_bounds(assessed(a_state(spec, replicas={VAD: replicas}))) is broken


def test_a_placement_with_too_many_errors_may_have_no_replica() -> None:
    spec = a_spec()
    vad, encoder = spec.stages
    poor = replace(encoder.placements[0], prior=replace(encoder.placements[0].prior, wer=0.2))
    spec = replace(spec, max_wer=0.1, stages=(vad, replace(encoder, placements=(poor, encoder.placements[1]))))
    assessment = assessed(a_state(spec, replicas=RUNNING))
    assert most_allowed(assessment, ENCODER, poor.prior) == 0
    assert most_allowed(assessment, ENCODER_GPU, encoder.placements[1].prior) == 20


def test_an_idle_stage_may_have_no_replica() -> None:
    for minimum, idle in ((0, True), (1, False)):
        stages = (
            a_stage("vad", a_placement("cpu")),
            a_stage("asr", a_placement("cpu", bounds=(minimum, 4)), after=["vad"]),
        )
        spec = a_spec(*stages, scaling=replace(a_scaling(down_s=30.0), idle_after_s=60.0))
        asleep = assessed(a_state(spec, demand=0.0, memory=PipelineMemory(demand=0.0, idle_since_s=NOW_S - 90)))
        assert asleep.idle == ({"vad", "asr"} if idle else {"vad"})
        assert out_of_bounds(asleep) is not idle
        assert not assessed(a_state(spec, demand=0.1, memory=asleep.state.memory)).idle
