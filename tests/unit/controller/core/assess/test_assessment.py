"""What is known of a pipeline before planning, and what of it is missing."""

from dataclasses import replace

import pytest
from builders import (
    ENCODER,
    NOW_S,
    VAD,
    a_snapshot,
    a_spec,
    a_state,
    a_target,
    seen,
)

from controller.core.assess.assessment import Assessment, MissingReading, assess
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, ServingReplica, Snapshot, TargetMissing
from controller.core.state.spec import Mode
from profiler.samples import Absence, AbsenceReason, PlacementSamples, Quantity

RUNNING = {VAD: 2, ENCODER: 3}
MISSING = Absence(reason=AbsenceReason.MISSING)


def assessed(state: PipelineState, snapshot: Snapshot | None = None) -> Assessment:
    world = snapshot or a_snapshot(state)
    return assess(state, world, Policy())


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


def test_replicas_in_their_first_minutes_are_told_to_the_profiler() -> None:
    startup_s = a_spec().placements()[ENCODER].startup_s
    ages_s = (30.0, 59.0 + startup_s, 61.0 + startup_s, None)
    replicas = tuple(
        ServingReplica(name=f"asr-{index}", ready_s=None if age_s is None else NOW_S - age_s)
        for index, age_s in enumerate(ages_s)
    )
    vad, encoder = assessed(a_state(replicas={VAD: 2, ENCODER: replace(a_target(4), serving=replicas)})).seen.stages
    assert encoder.window_s == 60.0
    assert [placement.warming for placement in (*vad.placements, *encoder.placements)] == [0.0, 0.5, 0.0]


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
    def test_with_all_data_replicas_may_be_removed(self) -> None:
        assessment = assessed(a_state(replicas=RUNNING))
        assert not assessment.never_down

    def test_without_demand_none_may(self) -> None:
        assessment = assessed(a_state(demand=MISSING, replicas=RUNNING))
        assert assessment.demand_missing
        assert assessment.never_down

    def test_a_stage_whose_ready_replicas_report_no_load_is_named(self) -> None:
        state = a_state(replicas=RUNNING, samples={ENCODER: PlacementSamples(readings={})})
        assessment = assessed(state)
        reading = MissingReading(placement=ENCODER[1], quantity=Quantity.ARRIVAL_RATE, absence=MISSING)
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

    def test_a_workload_that_cannot_be_read_is_named(self) -> None:
        assessment = assessed(a_state(replicas={VAD: 2, ENCODER: TargetMissing(reason="no answer", unreadable=True)}))
        assert assessment.missing.targets[ENCODER] == "no answer"
        assert assessment.never_down


def test_a_share_admitted_before_is_of_the_planned_demand() -> None:
    assert assessed(a_state(demand=100.0, replicas=RUNNING)).share_before is None
    limited = assessed(a_state(demand=100.0, replicas=RUNNING, memory=PipelineMemory(admissible=50.0)))
    assert limited.share_before == pytest.approx(0.5, rel=0.02)
