"""The decision record: made again from a file, refused when it is another's."""

import json
from dataclasses import replace

import pytest
import sharing
from builders import ENCODER, ENCODER_GPU, VAD, a_placement, a_snapshot, a_spec, a_stage, a_state, a_target
from planning import Planner

from controller.core.codec import InvalidRecord
from controller.core.cycle import decide
from controller.core.record import (
    SCHEMA,
    decision_key,
    decision_record,
    differences,
    recorded_decision_key,
    recorded_inputs,
)
from controller.core.state.decision import Decision, Hold, HoldReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.schedule import EventFloor, TimeZone, WeeklyFloor
from controller.core.state.spec import Declared, Mode


def test_a_recorded_decision_can_be_made_again(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 1, ENCODER_GPU: 2})
    snapshot = a_snapshot(a_state(replicas={VAD: 4, ENCODER: a_target(2, pending_since_s=[1.0])}))
    policy = Policy(budget_per_hour=30.0)
    decision = decide(snapshot, policy)
    record = json.loads(json.dumps(decision_record(snapshot, decision)))
    assert record["schema"] == SCHEMA
    assert record["decision"]["pipelines"]["speech/captions"]["outcome"] == "Scale"
    assert decide(*recorded_inputs(record)) == decision
    with pytest.raises(InvalidRecord, match=r"record\.policy"):
        recorded_inputs({**record, "policy": None})


def test_a_record_has_what_is_recommended_and_a_changed_recommendation_is_another_decision(planner: Planner) -> None:
    def recommending(encoders: int) -> Decision:
        planner.wants({VAD: 4, ENCODER: encoders})
        return decide(snapshot, Policy())

    state = a_state(a_spec(mode=Mode.RECOMMEND), replicas={VAD: 4, ENCODER: 2})
    snapshot = a_snapshot(replace(state, followers={ENCODER: "ScaledObject/asr"}))
    three, four = recommending(3), recommending(4)
    records = [json.loads(json.dumps(decision_record(snapshot, each))) for each in (three, four)]
    recorded = [record["decision"]["pipelines"]["speech/captions"] for record in records]
    assert recorded_decision_key(recorded[0]) != recorded_decision_key(recorded[1])
    assert decision_key(three.pipelines[0]) != decision_key(four.pipelines[0])
    assert recorded_inputs(records[1])[0] == snapshot
    assert [*differences(records[0], four)]
    assert not differences(records[1], four)


def test_a_record_keeps_what_was_not_declared_and_an_old_one_declared_everything(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    undeclared = replace(a_placement("cpu"), declared=Declared(service=False, cv=False, startup=False, memory=False))
    spec = a_spec(a_stage("vad", undeclared), a_stage("encoder", a_placement("gpu"), after=["vad"]))
    snapshot = a_snapshot(a_state(spec, replicas={VAD: 4}))
    record = json.loads(json.dumps(decision_record(snapshot, decide(snapshot, Policy()))))
    assert recorded_inputs(record)[0] == snapshot
    (pipeline,) = record["snapshot"]["pipelines"]
    for stage in pipeline["spec"]["stages"]:
        for placement in stage["placements"]:
            del placement["declared"]
    (old,) = recorded_inputs(record)[0].pipelines
    assert {placement.declared for placement in old.spec.placements().values()} == {Declared()}


def test_a_record_from_before_models_and_answers_is_read(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    snapshot = a_snapshot(a_state(replicas={VAD: 4, ENCODER: 4}))
    record = json.loads(json.dumps(decision_record(snapshot, decide(snapshot, Policy()))))
    for pipeline in record["snapshot"]["pipelines"]:
        for stage in pipeline["spec"]["stages"]:
            del stage["metrics_model"], stage["metrics_answer"]
    assert recorded_inputs(record) == (snapshot, Policy())


def test_a_record_has_known_demand_with_its_time_zone_and_an_old_one_has_none(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    zone = TimeZone(name="Europe/Berlin", first_offset_s=3600.0, changes=((5000.0, 7200.0), (9000.0, 3600.0)))
    hours = WeeklyFloor(name="hours", demand=40.0, from_s=0.0, until_s=3600.0, days=(0, 4), zone=zone)
    event = EventFloor(name="event", demand=400.0, start_s=0.0, end_s=1e6)
    snapshot = a_snapshot(a_state(replace(a_spec(), at_least=(hours, event)), replicas={VAD: 4, ENCODER: 4}))
    decision = decide(snapshot, Policy())
    record = json.loads(json.dumps(decision_record(snapshot, decision)))
    assert recorded_inputs(record)[0] == snapshot
    assert record["decision"]["pipelines"]["speech/captions"]["at_least"] == "event"
    assert differences(record, decision) == ()
    del record["snapshot"]["pipelines"][0]["spec"]["at_least"]
    assert recorded_inputs(record)[0].pipelines[0].spec.at_least == ()


@pytest.mark.parametrize("broken", [{}, {"schema": "v0"}, {"schema": SCHEMA}, {"schema": SCHEMA, "snapshot": 1}])
def test_a_record_of_another_form_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(InvalidRecord):
        recorded_inputs(broken)  # type: ignore[arg-type]


def test_a_decision_is_a_new_one_when_its_changes_holds_or_limit_differ(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 1, ENCODER_GPU: 2})
    snapshot = a_snapshot(a_state(replicas={VAD: 4, ENCODER: a_target(2, pending_since_s=[1.0])}))
    decision = decide(snapshot, Policy())
    (pipeline,) = decision.pipelines
    others = [
        replace(pipeline, demand=replace(pipeline.demand, observed=12.0, planned=34.0, forecast=56.0)),
        replace(pipeline, changes=()),
        replace(pipeline, desired={VAD: 9}),
        replace(pipeline, holds=(Hold(reason=HoldReason.PAUSED),)),
        replace(pipeline, admissible=7.0),
    ]

    def recorded(other: PipelineDecision) -> object:
        record = json.loads(json.dumps(decision_record(snapshot, replace(decision, pipelines=(other,)))))
        return recorded_decision_key(record["decision"]["pipelines"][other.key])

    assert pipeline.changes
    assert pipeline.admissible is None
    assert [decision_key(other) == decision_key(pipeline) for other in others] == [True, False, False, False, False]
    assert [recorded(other) == recorded(pipeline) for other in others] == [True, False, False, False, False]


def test_a_record_keeps_what_is_shared() -> None:
    snapshot, policy = sharing.the_world(demands=(10.0, 60.0)), Policy()
    decision = decide(snapshot, policy)
    record = json.loads(json.dumps(decision_record(snapshot, decision)))
    assert decide(*recorded_inputs(record)) == decision
