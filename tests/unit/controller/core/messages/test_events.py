"""The Events of a pipeline in one cycle."""

from dataclasses import replace

from builders import (
    ENCODER,
    VAD,
    a_spec,
    a_state,
)
from explained import DIRECT, blind_for, by_type, decision_of, measured_by
from planning import Planner

from controller.core.messages.events import events
from controller.core.messages.problems import owned_target, owner_words
from controller.core.state.decision import HoldReason, PipelineDecision
from controller.core.state.snapshot import TargetMissing
from optimizer.model import PipelineKey
from profiler.samples import Origin


def test_an_event_is_written_for_changes_and_for_conditions_that_flip(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    steady = replace(a_state(replicas={VAD: 4, ENCODER: 4}), latency_s=0.2)
    missed = replace(steady, latency_s=0.7)
    well = {name: condition.status for name, condition in by_type(decision_of(steady).pipelines[0]).items()}
    assert events(decision_of(steady).pipelines[0], well) == ()
    assert events(decision_of(steady).pipelines[0], {}) == ()
    (event,) = events(decision_of(missed).pipelines[0], well)
    assert (event.warning, event.reason) == (True, HoldReason.SLA_MISSED.value)
    (event,) = events(decision_of(steady).pipelines[0], {**well, "SLAMet": "False"})
    assert (event.warning, event.reason) == (False, "SLAMet")
    assert len(events(decision_of(missed).pipelines[0], {**well, "SLAMet": "Unknown"})) == 1
    assert events(decision_of(steady).pipelines[0], {**well, "SLAMet": "Unknown"}) == ()
    scaled = replace(steady, targets={**steady.targets, **a_state(replicas={ENCODER: 2}).targets})
    assert events(decision_of(scaled).pipelines[0], well)[0].reason == "Scaled"


def test_every_step_on_the_ladder_is_an_event_and_a_long_loss_is_one_more(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4}, runs_well=True)
    steady = replace(a_state(replicas={VAD: 4, ENCODER: 4}), latency_s=0.2)

    def told(decision: PipelineDecision, status: str, reason: str) -> list[tuple[bool, str]]:
        before = {name: condition.status for name, condition in by_type(decision).items()}
        found = events(decision, {**before, "MetricsAvailable": status}, {"MetricsAvailable": reason})
        return [(event.warning, event.reason) for event in found if "Metrics" in event.reason]

    healthy, fallen = measured_by(steady, Origin()), measured_by(steady, DIRECT)
    assert told(healthy, "True", "Prometheus") == told(fallen, "True", "DirectScrape") == []
    assert told(fallen, "True", "Prometheus") == [(True, "MetricsFromDirectScrape")]
    assert told(healthy, "True", "DirectScrape") == [(False, "MetricsFromPrometheus")]
    short, long = (decision_of(blind_for(seconds)).pipelines[0] for seconds in (30.0, 600.0))
    assert told(short, "True", "DirectScrape") == [(True, "MetricsMissing")]
    assert told(long, "False", "MetricsMissing") == [(True, "MetricsLost")]
    assert told(long, "False", "MetricsLost") == []
    assert told(healthy, "False", "MetricsLost") == [(False, "MetricsAvailable")]
    assert events(fallen, {}) == ()  # how it is from the start is no step


def test_an_event_of_a_recovery_says_what_has_recovered(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    steady = replace(a_state(replicas={VAD: 4, ENCODER: 4}), latency_s=0.2)
    (event,) = events(decision_of(steady).pipelines[0], {"Conflict": "True"})
    assert (event.reason, event.message) == ("ConflictResolved", "condition Conflict is False again")


def test_a_newcomer_is_told_which_pipeline_owns_its_workload(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    reason = owned_target(a_spec().placements()[ENCODER].target, owner_words(PipelineKey("speech/live"), ENCODER[0]))
    missing = TargetMissing(reason=reason, owner=PipelineKey("speech/live"))
    decision = decision_of(a_state(replicas={VAD: 4, ENCODER: missing})).pipelines[0]
    for kind in ("TargetsFound", "Ready"):
        told = by_type(decision)[kind]
        assert (told.status, told.reason) == ("False", "TargetMissing")
        assert "belongs to pipeline speech/live, stage encoder" in told.message
    warnings = {event.reason: event.message for event in events(decision, {}) if event.warning}
    assert "belongs to pipeline speech/live, stage encoder" in warnings["TargetMissing"]
    assert {target.name for target in decision.memory.owned} == {"vad-cpu", "encoder-gpu"}
