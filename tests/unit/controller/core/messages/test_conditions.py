"""The conditions of a pipeline."""

import re
from dataclasses import replace

import pytest
from builders import (
    ENCODER,
    ENCODER_GPU,
    NOW_S,
    VAD,
    a_placement,
    a_rule,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    default_stages,
    seen,
)
from explained import DIRECT, MISSING, blind_for, by_type, decision_of, explain, measured_by, section
from planning import Planner

from controller.core.cycle import decide
from controller.core.messages.events import events
from controller.core.messages.phrases import MOST_CHARACTERS
from controller.core.state.carry_over import DemandSample, PipelineMemory
from controller.core.state.decision import Hold, HoldReason
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, ServingReplica, TargetMissing, TargetState
from controller.core.state.spec import Mode
from optimizer.model import Basis, StageName
from profiler.samples import Absence, AbsenceReason, AtLeast, DeviceFault, DeviceQuantity, Origin, Scrapes
from profiler.stages import Correction, Learned


def test_all_is_well(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    state = replace(a_state(replicas={VAD: 4, ENCODER: 4}), latency_s=0.2)
    found = by_type(decision_of(state).pipelines[0])
    assert {name: condition.status for name, condition in found.items()} == {
        "Ready": "True",
        "SLAMet": "True",
        "MetricsAvailable": "True",
        "TargetsFound": "True",
        "PoolsAvailable": "True",
        "WithinBudget": "True",
        "RuleMetricMissing": "False",
        "ScalesAccepted": "True",
        "Conflict": "False",
        "MeasurementsPlausible": "True",
        "PlacementsMatch": "True",
        "ScrapesHealthy": "True",
        "DevicesHealthy": "True",
        "MemorySuffices": "True",
        "SessionsSpread": "True",
        "Shedding": "False",
        "PlannedInFull": "True",
        "Diagnosis": "False",
    }


@pytest.mark.parametrize(
    ("scrapes", "reason", "message"),
    [
        (
            Scrapes(unlabelled="series of up have no label pod", silent=("a",)),
            "PodLabelsMissing",
            "encoder on inferentia: series of up have no label pod",
        ),
        (
            Scrapes(excused=("a", "b", "c", "d"), silent=("a", "b", "c", "d")),
            "PodsSilent",
            "encoder on inferentia: no samples of a, b, c and 1 more for 600 s; the other pods count for them",
        ),
        (
            Scrapes(duplicated=("a",)),
            "PodsScrapedTwice",
            "encoder on inferentia: a scraped more than once, by several jobs or Prometheus servers; counted once",
        ),
        (Scrapes(silent=("a",), interval_s=15.0), "ScrapedOnce", ""),
    ],
)
def test_faults_of_scrapes_are_named_with_the_pods(
    planner: Planner, scrapes: Scrapes, reason: str, message: str
) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    state = a_state(replicas={VAD: 4, ENCODER: 4})
    samples = {**state.samples, ENCODER: replace(state.samples[ENCODER], scrapes=scrapes)}
    found = by_type(decision_of(replace(state, samples=samples)).pipelines[0])["ScrapesHealthy"]
    assert (found.status, found.reason, found.message) == (str(reason == "ScrapedOnce"), reason, message)


def test_without_readings_of_errors_the_devices_are_not_taken_to_be_healthy(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    state = a_state(replicas={VAD: 4, ENCODER: 4})
    lost = {DeviceQuantity.ERRORS: Absence(reason=AbsenceReason.MISSING, detail="no series")}
    samples = {**state.samples, ENCODER: replace(state.samples[ENCODER], devices=lost)}
    (decision,) = decision_of(replace(state, samples=samples)).pipelines
    found = by_type(decision)["DevicesHealthy"]
    assert (found.status, found.reason) == ("Unknown", "DevicesUnread")
    assert "encoder" in found.message
    for before in ("True", "False"):
        written = events(decision, {"DevicesHealthy": before})
        assert not [each for each in written if each.reason.startswith("Devices")], "nothing has recovered or failed"


@pytest.mark.parametrize(
    ("faults", "reason", "message"),
    [
        ({}, "NoFaults", ""),
        ({"a": DeviceFault(errors=1.5)}, "DeviceErrors", "node n-1: 2 device errors, at a of encoder"),
        (
            {"b": DeviceFault(throttled=0.25)},
            "DevicesThrottled",
            "a node that is not known: a device throttled for 25% of the time, at b of encoder",
        ),
        (
            {"a": DeviceFault(errors=1.0), "b": DeviceFault(errors=9.0, throttled=0.1)},
            "DeviceErrors",
            (
                "a node that is not known: 9 device errors and a device throttled for 10% of the time, "
                "at b of encoder; node n-1: 1 device error, at a of encoder"
            ),
        ),
    ],
)
def test_faults_of_devices_name_the_node_and_are_an_event(
    planner: Planner, faults: dict[str, DeviceFault], reason: str, message: str
) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    state = a_state(replicas={VAD: 4, ENCODER: 4})
    target = state.targets[ENCODER]
    assert isinstance(target, TargetState)
    serving = (ServingReplica(name="a", node="n-1"),)
    samples = {**state.samples, ENCODER: replace(state.samples[ENCODER], device_faults=faults)}
    targets = {**state.targets, ENCODER: replace(target, serving=serving)}
    (decision,) = decision_of(replace(state, samples=samples, targets=targets)).pipelines
    found = by_type(decision)["DevicesHealthy"]
    assert (found.status, found.reason, found.message) == (str(not faults), reason, message)
    written = [each for each in events(decision, {"DevicesHealthy": "True"}) if each.reason.startswith("Devices")]
    assert [(each.warning, each.reason) for each in written] == ([(True, "DevicesFaulty")] if faults else [])


@pytest.mark.parametrize(("ago_s", "slots", "named"), [(60.0, 120, True), (7200.0, 120, False), (60.0, None, False)])
def test_a_replica_with_sessions_that_ran_out_of_memory_is_named_for_an_hour(
    planner: Planner, ago_s: float, slots: int | None, named: bool
) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    vad, encoder = default_stages()
    held = replace(encoder.placements[0], prior=replace(encoder.placements[0].prior, session_slots=slots))
    spec = a_spec(vad, replace(encoder, placements=(held, *encoder.placements[1:])))
    state = a_state(spec, replicas={VAD: 4, ENCODER: 4})
    target = state.targets[ENCODER]
    assert isinstance(target, TargetState)
    serving = (ServingReplica(name="a", out_of_memory_s=NOW_S - ago_s), ServingReplica(name="b"))
    targets = {**state.targets, ENCODER: replace(target, serving=serving)}
    (decision,) = decision_of(replace(state, targets=targets)).pipelines
    found = by_type(decision)["MemorySuffices"]
    assert (found.status, found.reason) == (("False", "OutOfMemory") if named else ("True", "NoneKilled"))
    assert ("encoder on inferentia: a ran out of memory" in found.message) is named
    assert ("120 sessions per replica" in found.message) is named
    written = [each.reason for each in events(decision, {"MemorySuffices": "True"}) if each.warning]
    assert ("OutOfMemory" in written) is named


@pytest.mark.parametrize(
    ("learned", "message"),
    [
        (
            Learned(service_factors={ENCODER: 995.0}),
            "encoder on inferentia: measured service time is 995 × the declared one, at the limit (1000)",
        ),
        (
            Learned(service_factors={VAD: 0.001}),
            "vad on cpu: measured service time is 0.001 × the declared one, at the limit (0.001)",
        ),
        (
            Learned(latency_corrections={VAD[0]: Correction(factor=1.99, smoothed=1.99, learned_at_s=NOW_S)}),
            "vad: measured p95 is 1.99 × the modelled one, at the limit (2)",
        ),
        (
            Learned(throughput_corrections={VAD: Correction(factor=0.0201, smoothed=0.02, learned_at_s=NOW_S)}),
            "vad on cpu: measured throughput is 0.0201 × the implied one, at the limit (0.02)",
        ),
    ],
)
def test_a_correction_at_its_bound_is_a_condition(learned: Learned, message: str) -> None:
    state = a_state(replicas={VAD: 4, ENCODER: 4}, memory=PipelineMemory(learned=learned))
    found = by_type(decision_of(state).pipelines[0])["MeasurementsPlausible"]
    assert (found.status, found.reason, found.message) == ("False", "CorrectionAtLimit", message)


@pytest.mark.parametrize(
    "learned",
    [
        Learned(service_factors={ENCODER: 900.0, VAD: 0.0012}),
        Learned(latency_corrections={VAD[0]: Correction(factor=1.9, smoothed=1.9, learned_at_s=NOW_S)}),
        Learned(throughput_corrections={VAD: Correction(factor=1.0, smoothed=1.0, learned_at_s=NOW_S)}),
    ],
)
def test_a_correction_within_its_bounds_is_none_however_large(learned: Learned) -> None:
    state = a_state(replicas={VAD: 4, ENCODER: 4}, memory=PipelineMemory(learned=learned))
    found = by_type(decision_of(state).pipelines[0])["MeasurementsPlausible"]
    assert (found.status, found.reason, found.message) == ("True", "AllPlausible", "")


@pytest.mark.parametrize(
    ("state", "condition", "status", "reason"),
    [
        (a_state(demand=MISSING, replicas={VAD: 1, ENCODER: 1}), "MetricsAvailable", "False", "MetricsMissing"),
        (a_state(demand=MISSING, replicas={VAD: 1, ENCODER: 1}), "Ready", "False", "MetricsMissing"),
        (a_state(replicas={VAD: TargetMissing(reason="gone")}), "TargetsFound", "False", "TargetMissing"),
        (replace(a_state(), latency_s=0.7), "SLAMet", "False", "Measured"),
        (replace(a_state(), latency_s=MISSING), "SLAMet", "Unknown", "Missing"),
        (a_state(a_spec(budget=1.0), replicas={VAD: 1, ENCODER: 4}), "WithinBudget", "False", "Draining"),
        (
            a_state(a_spec(budget=1.2, basis=Basis.INSTANCES), replicas={VAD: 1, ENCODER: 1}),
            "WithinBudget",
            "False",
            "Draining",
        ),
        (a_state(a_spec(budget=1.2), replicas={VAD: 1, ENCODER: 1}), "WithinBudget", "True", "WithinBudget"),
        (a_state(a_spec(a_stage("vad", a_placement("trainium")))), "Ready", "False", "PoolNotFound"),
        (
            a_state(a_spec(*default_stages(vad_rules=[a_rule()])), samples={VAD: seen(rx_queue_pressure=MISSING)}),
            "RuleMetricMissing",
            "True",
            "MetricsMissing",
        ),
        (a_state(a_spec(mode=Mode.PAUSED)), "Ready", "True", "Paused"),
    ],
)
def test_what_is_wrong_is_a_condition(
    planner: Planner, state: PipelineState, condition: str, status: str, reason: str
) -> None:
    found = by_type(decision_of(state).pipelines[0])[condition]
    assert (found.status, found.reason) == (status, reason)


def test_where_the_metrics_come_from_is_told_where_it_is_not_the_best_place(planner: Planner) -> None:
    steady = replace(a_state(replicas={VAD: 4, ENCODER: 4}), latency_s=0.2)
    found = by_type(measured_by(steady, Origin()))["MetricsAvailable"]
    assert (found.status, found.reason, found.message) == ("True", "Prometheus", "")
    found = by_type(measured_by(steady, DIRECT))["MetricsAvailable"]
    assert (found.status, found.reason) == ("True", "DirectScrape")
    assert "metrics are read from the pods directly (Unavailable: Prometheus: refused)" in found.message
    decision = decide(a_snapshot(replace(steady, metrics=DIRECT)), Policy())
    assert "metrics are read from the pods directly" in section(explain(decision, steady.spec.key), "Why")


def test_while_the_demand_is_lost_it_is_told_since_when_and_what_is_planned_for(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4}, runs_well=True)
    decision = measured_by(blind_for(120.0), DIRECT)
    found = by_type(decision)["MetricsAvailable"]
    assert (found.status, found.reason) == ("False", "MetricsMissing")
    assert (
        "demand has been missing for 120 s (Stale: newest sample 90 s old; Unavailable: Prometheus: refused)"
        in found.message
    )
    assert (
        "planned for the last known 200 requests/s plus a safety margin of 2%; no replica is removed" in found.message
    )
    lost = by_type(decision_of(blind_for(600.0)).pipelines[0])["MetricsAvailable"]
    assert (lost.status, lost.reason) == ("False", "MetricsLost")


def test_a_latency_that_is_unknown_is_said_to_be_so_with_the_reason(planner: Planner) -> None:
    found = by_type(decision_of(replace(a_state(), latency_s=MISSING)).pipelines[0])["SLAMet"]
    assert found.message.startswith("p95 unknown (SLA 500 ms): ")


def test_a_latency_above_the_last_bucket_is_never_said_to_meet_the_sla(planner: Planner) -> None:
    for least_s, status, words in ((0.1, "Unknown", "at least 0.1 s"), (0.9, "False", "p95 at least 900 ms of 500 ms")):
        found = by_type(decision_of(replace(a_state(), latency_s=AtLeast(least_s))).pipelines[0])["SLAMet"]
        assert found.status == status
        assert words in found.message
        assert "500 ms" in found.message


def test_a_stage_above_its_last_bucket_never_makes_the_composed_latency_meet_the_sla(planner: Planner) -> None:
    samples = {VAD: seen(latency_p95=AtLeast(0.1)), ENCODER: seen(latency_p95=0.05)}
    state = a_state(replicas={VAD: 1, ENCODER: 1}, samples=samples)
    found = by_type(decision_of(state).pipelines[0])["SLAMet"]
    assert (found.status, found.reason) == ("Unknown", "AboveBuckets")
    assert "vad is at least 0.1 s" in found.message
    assert "sla.latency is 0.5 s" in found.message


def test_a_demand_that_only_the_stages_show_to_be_zero_names_what_shows_it(planner: Planner) -> None:
    """At night all series may vanish: replicas are removed, and nothing holds them for want of metrics."""
    planner.wants({VAD: 1, ENCODER: 1}, runs_well=True)
    no_traffic = Absence(reason=AbsenceReason.NO_TRAFFIC)
    memory = PipelineMemory(demand=40.0, samples=(DemandSample(t_s=NOW_S - 900, observed=40.0, forecast=40.0),))
    state = a_state(
        demand=Absence(reason=AbsenceReason.MISSING),
        replicas={VAD: 4, ENCODER: 4},
        samples={
            VAD: seen(arrival_rate=0.0, latency_p95=no_traffic),
            ENCODER: seen(arrival_rate=no_traffic, completion_rate=no_traffic),
        },
        memory=memory,
    )
    decision = decision_of(state).pipelines[0]
    assert {change.after for change in decision.changes} == {1}
    available = by_type(decision)["MetricsAvailable"]
    words = "demand.query returns no series; demand is 0, because no items arrive at stage vad"
    assert (available.status, available.reason, available.message) == ("True", "Prometheus", words)
    assert words in section(explain(decision_of(state), state.spec.key), "Why")


@pytest.mark.parametrize(
    ("basis", "words"), [(Basis.INSTANCES, "$1.50/h of $9.00/h for whole instances"), (None, "$1.12/h of $9.00/h")]
)
def test_the_spend_is_on_the_basis_of_the_budget_and_says_so(basis: Basis | None, words: str) -> None:
    state = a_state(a_spec(budget=9.0, basis=basis), demand=10.0, replicas={VAD: 1, ENCODER: 1})
    decision = decide(a_snapshot(state), Policy()).pipelines[0]
    assert by_type(decision)["WithinBudget"].message == f"spend {words}"


def test_six_missing_workloads_are_one_line_with_six_names(planner: Planner) -> None:
    names = ("vad", "enhance", "encode", "decode", "punctuate", "translate")
    spec = a_spec(*(a_stage(name, a_placement("cpu")) for name in names))
    gone = {
        key: TargetMissing(reason=f"{placement.target}: not found in namespace speech")
        for key, placement in spec.placements().items()
    }
    decision = decision_of(a_state(spec, replicas=gone)).pipelines[0]
    found = by_type(decision)
    listed = ", ".join(f"{name}-cpu" for name in names)
    message = (
        "cannot read or scale a workload; its stage is left unchanged and no replica is removed: "
        f"{listed} (not found in namespace speech)"
    )
    assert found["TargetsFound"].message == message
    for told in (found["Ready"].message, *(event.message for event in events(decision, {}) if event.warning)):
        assert listed in told
        assert told.count("not found") == told.count("cannot read") == 1
        assert len(told) <= MOST_CHARACTERS


def test_holds_with_the_same_cause_name_it_once(planner: Planner) -> None:
    decision = decision_of(a_state(replicas={VAD: 1, ENCODER: 1})).pipelines[0]
    outages = [
        Hold(reason=HoldReason.CANNOT_START, stage=VAD[0], placement=VAD[1], detail="CrashLoopBackOff"),
        Hold(reason=HoldReason.CANNOT_START, stage=ENCODER[0], placement=ENCODER[1], detail="CrashLoopBackOff"),
        Hold(reason=HoldReason.CANNOT_START, stage=ENCODER[0], placement=ENCODER_GPU[1], detail="ImagePullBackOff"),
    ]
    message = by_type(replace(decision, holds=tuple(outages)))["PoolsAvailable"].message
    assert message == (
        "replicas have nodes but do not become ready; planned without them where possible: "
        "vad on cpu, encoder on inferentia (CrashLoopBackOff); encoder on gpu (ImagePullBackOff)"
    )


def test_a_message_that_is_too_long_ends_with_how_much_is_left_out(planner: Planner) -> None:
    decision = decision_of(a_state(replicas={VAD: 1, ENCODER: 1})).pipelines[0]
    holds = tuple(
        Hold(reason=HoldReason.CANNOT_START, stage=StageName(f"stage-{index}"), detail=f"pod-{index}: " + "x" * 40)
        for index in range(12)
    )
    message = by_type(replace(decision, holds=holds))["PoolsAvailable"].message
    assert len(message) <= MOST_CHARACTERS
    assert message.startswith("replicas have nodes but do not become ready")
    assert "stage-0 (pod-0: xxx" in message
    assert re.search(r"; and \d+ more$", message)
