import re
from dataclasses import replace

import pytest
from backlogs import a_backlog
from builders import (
    ENCODER,
    ENCODER_GPU,
    NOW_S,
    VAD,
    a_placement,
    a_pool,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    a_target,
    pools,
    seen,
)

from controller.core.assess.standing import standing
from controller.core.cycle import decide
from controller.core.state.carry_over import FailureCause, MetricsLoss, PipelineMemory, PlacementFailure, PoolMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import ExpectedNode, NodePoolState, Snapshot
from controller.core.state.spec import Declared, Mode
from controller.telemetry import Telemetry, described, metric_names
from profiler.samples import Absence, AbsenceReason, DeviceFault, DeviceQuantity, Quantity, Reading
from profiler.sources.base import QueryKind
from profiler.stages import Learned


def exposed(telemetry: Telemetry) -> list[str]:
    return telemetry.exposition().decode().splitlines()


def after(telemetry: Telemetry, snapshot: Snapshot) -> list[str]:
    telemetry.succeeded(snapshot, decide(snapshot, Policy()), 0.2, invalid=1)
    return exposed(telemetry)


def test_the_last_decision_can_be_scraped() -> None:
    lines = after(Telemetry(), a_snapshot(a_state(demand=50.0, replicas={VAD: 1, ENCODER: 3})))
    assert 'sluice_pipeline_demand{namespace="speech",pipeline="captions"} 50.0' in lines
    assert (
        'sluice_stage_replicas_ready{namespace="speech",pipeline="captions",pool="inferentia",stage="encoder"} 3.0'
        in [line for line in lines if "replicas_ready" in line]
    )
    assert "sluice_last_success_timestamp_seconds 10000.0" in lines
    assert "sluice_invalid_resources 1.0" in lines


def test_readings_of_the_network_and_of_devices_have_series_where_they_are_known() -> None:
    state = a_state(replicas={VAD: 1, ENCODER: 1})
    vad = state.samples[VAD]
    known = replace(
        vad,
        readings={**vad.readings, Quantity.RX_QUEUE_PRESSURE: 0.91},
        devices={DeviceQuantity.UTILIZATION: 0.83, DeviceQuantity.NODE_RX_LOSSES_RPS: 7.0},
        device_faults={"vad-0": DeviceFault(errors=2.0)},
    )
    lines = after(Telemetry(), a_snapshot(replace(state, samples={**state.samples, VAD: known})))
    of_vad = '{namespace="speech",pipeline="captions",stage="vad"}'
    assert f"sluice_stage_rx_queue_pressure_ratio{of_vad} 0.91" in lines
    assert f"sluice_stage_device_utilization_ratio{of_vad} 0.83" in lines
    assert f"sluice_stage_node_rx_losses_per_second{of_vad} 7.0" in lines
    assert [line for line in lines if line.startswith("sluice_placement_device_faults{")]
    assert not [line for line in lines if "collective_activity" in line and not line.startswith("#")]


@pytest.mark.parametrize("mode", list(Mode))
def test_what_is_recommended_has_series_in_mode_recommend_alone(mode: Mode) -> None:
    snapshot = a_snapshot(a_state(a_spec(mode=mode), demand=50.0, replicas={VAD: 1, ENCODER: 1}))
    recommended = decide(snapshot, Policy()).pipelines[0].recommended
    lines = [line for line in after(Telemetry(), snapshot) if line.startswith("sluice_stage_replicas_recommended")]
    labels = 'namespace="speech",pipeline="captions",pool="inferentia",stage="encoder"'
    assert (f"sluice_stage_replicas_recommended{{{labels}}} {float(recommended.get(ENCODER, 0))}" in lines) is (
        mode is Mode.RECOMMEND
    )
    assert len(lines) == (3 if mode is Mode.RECOMMEND else 0)


def test_queries_without_an_answer_are_shares_by_kind() -> None:
    telemetry = Telemetry()
    telemetry.read({QueryKind.DEMAND: 0.0, QueryKind.RULES: 0.5})
    telemetry.read({QueryKind.DEMAND: 0.25})
    lines = [line for line in exposed(telemetry) if line.startswith("sluice_metrics_unanswered_ratio")]
    assert lines == ['sluice_metrics_unanswered_ratio{kind="Demand"} 0.25']


def test_the_series_of_a_deleted_pipeline_end_with_it() -> None:
    telemetry = Telemetry()
    after(telemetry, a_snapshot(a_state(replicas={VAD: 1, ENCODER: 1})))
    empty = Snapshot(now_s=10_015.0, pipelines=(), pools={})
    assert not [line for line in after(telemetry, empty) if 'pipeline="captions"' in line]


def test_a_number_that_does_not_exist_has_no_series() -> None:
    lines = after(Telemetry(), a_snapshot(a_state(demand=Absence(reason=AbsenceReason.MISSING))))
    assert not [
        line for line in lines if line.startswith(("sluice_pipeline_demand", "sluice_pipeline_observed_demand"))
    ]
    assert not [line for line in lines if not line.startswith("#") and line.lower().endswith("nan")]


def test_the_demand_to_admit_has_a_series_only_while_there_is_a_limit() -> None:
    name = 'sluice_pipeline_admissible{namespace="speech",pipeline="captions"}'
    limited = a_snapshot(a_state(a_spec(budget=2.0), demand=500.0, replicas={VAD: 1, ENCODER: 1}))
    admissible = decide(limited, Policy()).pipelines[0].admissible
    assert admissible is not None
    assert f"{name} {admissible}" in after(Telemetry(), limited)
    enough = a_snapshot(a_state(demand=10.0, replicas={VAD: 1, ENCODER: 1}))
    assert not [line for line in after(Telemetry(), enough) if line.startswith(name)]


def test_the_time_outside_the_stages_has_a_series_once_it_is_known() -> None:
    name = 'sluice_pipeline_overhead_seconds{namespace="speech",pipeline="captions"}'
    known = PipelineMemory(learned=Learned(overhead_s=0.042))
    replicas = {VAD: 1, ENCODER: 1}
    assert f"{name} 0.042" in after(Telemetry(), a_snapshot(a_state(replicas=replicas, memory=known)))
    lines = after(Telemetry(), a_snapshot(a_state(replicas=replicas)))
    assert not [line for line in lines if line.startswith(name)]


def test_where_the_metrics_come_from_and_how_old_they_are_can_be_alerted_on() -> None:
    labels = 'namespace="speech",pipeline="captions"'
    lines = after(Telemetry(), a_snapshot(a_state(demand=50.0)))
    assert f'sluice_metrics_source{{{labels},source="Prometheus"}} 1.0' in lines
    assert f"sluice_demand_unseen_seconds{{{labels}}} 0.0" in lines
    loss = MetricsLoss(since_s=NOW_S - 120, demand=50.0, growth_per_minute=0.1)
    gone = a_state(demand=Absence(reason=AbsenceReason.MISSING), memory=PipelineMemory(demand=50.0, metrics_lost=loss))
    lines = after(Telemetry(), a_snapshot(gone))
    assert f'sluice_metrics_source{{{labels},source="Holding"}} 1.0' in lines
    assert f"sluice_demand_unseen_seconds{{{labels}}} 120.0" in lines
    assert f"sluice_demand_safety_factor{{{labels}}} 1.2" in lines
    assert len([line for line in lines if line.startswith("sluice_metrics_source{")]) == 1


def test_failures_are_counted_and_the_series_of_the_last_decision_stay() -> None:
    telemetry = Telemetry()
    after(telemetry, a_snapshot(a_state(replicas={VAD: 1, ENCODER: 1})))
    telemetry.failed(10.0)
    lines = exposed(telemetry)
    assert 'sluice_cycles_total{outcome="failure"} 1.0' in lines
    assert [line for line in lines if line.startswith("sluice_pipeline_demand{")]


def test_cycles_are_counted_from_zero_before_the_first_one() -> None:
    assert 'sluice_cycles_total{outcome="failure"} 0.0' in exposed(Telemetry())
    assert not [line for line in exposed(Telemetry()) if "_created" in line]


def test_whether_this_replica_leads_is_asked_at_every_scrape() -> None:
    telemetry = Telemetry()
    assert "sluice_leader 1.0" in exposed(telemetry), "alone it leads"
    leads = [False, True]
    telemetry.leads(lambda: leads.pop(0))
    assert "sluice_leader 0.0" in exposed(telemetry)
    assert "sluice_leader 1.0" in exposed(telemetry)


def test_a_fleet_of_thousands_has_series_of_its_pipelines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.telemetry.DETAILED", 0)
    lines = after(Telemetry(), a_snapshot(a_state(demand=50.0, replicas={VAD: 1, ENCODER: 3})))
    assert [line for line in lines if line.startswith("sluice_pipeline_demand{")]
    assert not [line for line in lines if line.startswith("sluice_stage")]
    assert "sluice_pipelines 1.0" in lines


def of(lines: list[str], name: str) -> dict[str, float]:
    """The series of a metric: their labels as exposed, and their values."""
    found = [line.rpartition(" ") for line in lines if re.match(rf"sluice_{name}[{{ ]", line)]
    return {series.removeprefix(f"sluice_{name}"): float(value) for series, _, value in found}


CAPTIONS = 'namespace="speech",pipeline="captions"'


def test_health_and_limit_are_those_of_the_status() -> None:
    lines = after(Telemetry(), a_snapshot(a_state(demand=10.0, replicas={VAD: 1, ENCODER: 1})))
    assert of(lines, "pipeline_health") == {f'{{health="OK",{CAPTIONS}}}': 1}
    assert not of(lines, "pipeline_limited")
    short = a_snapshot(a_state(a_spec(budget=2.0), demand=500.0, replicas={VAD: 1, ENCODER: 1}))
    lines = after(Telemetry(), short)
    assert of(lines, "pipeline_health") == {f'{{health="Overloaded",{CAPTIONS}}}': 1}
    assert of(lines, "pipeline_limited") == {f'{{limited_by="Budget",{CAPTIONS}}}': 1}


def test_holds_are_counted_by_reason_and_mode_and_unit_can_be_joined() -> None:
    lines = after(Telemetry(), a_snapshot(a_state(a_spec(mode=Mode.PAUSED), replicas={VAD: 1, ENCODER: 1})))
    assert of(lines, "pipeline_hold")[f'{{{CAPTIONS},reason="Paused"}}'] == 1
    assert of(lines, "pipeline_info") == {f'{{mode="Paused",{CAPTIONS},unit="Requests"}}': 1}


def test_the_last_change_keeps_its_time_until_the_pipeline_is_deleted() -> None:
    telemetry = Telemetry()
    snapshot = a_snapshot(a_state(demand=100.0, replicas={VAD: 1, ENCODER: 1}))
    decision = decide(snapshot, Policy())
    (reason,) = {change.reason.value for change in decision.pipelines[0].changes}
    series = {f'{{{CAPTIONS},reason="{reason}"}}': NOW_S}
    assert of(after(telemetry, snapshot), "pipeline_last_change_timestamp_seconds") == series
    later = a_snapshot(a_state(demand=10.0, replicas={VAD: 1, ENCODER: 1}), now_s=NOW_S + 15)
    assert not decide(later, Policy()).pipelines[0].changes
    assert of(after(telemetry, later), "pipeline_last_change_timestamp_seconds") == series
    empty = Snapshot(now_s=NOW_S + 30, pipelines=(), pools={})
    after(telemetry, empty)
    assert not of(after(telemetry, later), "pipeline_last_change_timestamp_seconds"), "a new pipeline of the same name"


@pytest.mark.parametrize(("latency_s", "missed"), [(0.4, 0.0), (0.6, 1.0)])
def test_a_missed_sla_is_one_and_an_unknown_latency_no_series(latency_s: float, missed: float) -> None:
    state = replace(a_state(a_spec(sla_s=0.5), replicas={VAD: 1, ENCODER: 1}), latency_s=latency_s)
    assert of(after(Telemetry(), a_snapshot(state)), "pipeline_sla_missed") == {f"{{{CAPTIONS}}}": missed}
    unknown = replace(state, latency_s=Absence(reason=AbsenceReason.MISSING))
    assert not of(after(Telemetry(), a_snapshot(unknown)), "pipeline_sla_missed")


def test_spend_above_the_budget_is_excused_while_replicas_drain() -> None:
    replicas = {VAD: 1, ENCODER: 9}
    lines = after(Telemetry(), a_snapshot(a_state(a_spec(budget=2.0), replicas=replicas)))
    assert of(lines, "pipeline_budget_excused") == {f"{{{CAPTIONS}}}": 1}
    lines = after(Telemetry(), a_snapshot(a_state(a_spec(budget=20.0), replicas=replicas)))
    assert of(lines, "pipeline_budget_excused") == {f"{{{CAPTIONS}}}": 0}


def test_the_spend_of_the_fleet_includes_replicas_that_no_cycle_can_change() -> None:
    telemetry = Telemetry()
    fleet = pools(a_pool("cpu", price=0.5, unaccounted={4: 8}), a_pool("inferentia"), a_pool("gpu"))
    snapshot = a_snapshot(a_state(replicas={VAD: 4, ENCODER: 1}), fleet=fleet)
    telemetry.succeeded(snapshot, decide(snapshot, Policy(budget_per_hour=50.0)), 0.2, invalid=0)
    lines = exposed(telemetry)
    assert of(lines, "pipeline_spend_usd_per_hour") == {f"{{{CAPTIONS}}}": pytest.approx(1.5)}
    assert of(lines, "fleet_spend_usd_per_hour") == {"": pytest.approx(2.5)}
    assert of(lines, "fleet_budget_usd_per_hour") == {"": 50.0}
    assert not of(after(telemetry, snapshot), "fleet_budget_usd_per_hour"), "no budget, no series"


def test_readings_are_counted_by_their_result() -> None:
    silent = Absence(reason=AbsenceReason.STALE)
    state = a_state(demand=silent, replicas={VAD: 1, ENCODER: 1}, samples={VAD: seen(completion_rate=silent)})
    readings = of(after(Telemetry(), a_snapshot(state)), "metric_readings")
    assert readings['{result="Answered"}'] == 3, "arrivals of both stages with replicas, completions of one"
    assert readings['{result="Stale"}'] == 2, "the demand, and completions of the other"
    assert readings['{result="Missing"}'] == 0, "what most servers do not export is not needed"
    assert set(readings) == {f'{{result="{name}"}}' for name in ("Answered", *(each.value for each in AbsenceReason))}


def test_a_pool_has_its_price_and_its_replicas_by_state() -> None:
    waiting = a_target(4, ready=1, existing=4, terminating=2, pending_since_s=[NOW_S] * 2, starting_since_s=[NOW_S])
    fleet = pools(a_pool("cpu"), a_pool("inferentia", price=0.76, ready=7, leaving=1), a_pool("gpu"))
    lines = after(Telemetry(), a_snapshot(a_state(replicas={VAD: 1, ENCODER: waiting}), fleet=fleet))
    replicas = {name: value for name, value in of(lines, "pool_replicas").items() if "inferentia" in name}
    assert list(replicas.values()) == [1, 1, 2, 0, 2]
    assert [name.split('"')[3] for name in replicas] == ["ready", "starting", "pending", "stranded", "terminating"]
    assert of(lines, "pool_price_usd_per_hour")['{pool="inferentia"}'] == 0.76
    assert of(lines, "pool_ready_instances")['{pool="inferentia"}'] == 7
    assert of(lines, "pool_leaving_instances")['{pool="inferentia"}'] == 1
    assert of(lines, "pool_failing_placements")['{cause="CannotStart",pool="inferentia"}'] == 0


def test_a_pool_has_the_replicas_of_pipelines_that_are_not_assessed() -> None:
    encoder = a_target(9, ready=6, pending_since_s=[NOW_S, NOW_S], starting_since_s=[NOW_S])
    snapshot = replace(
        a_snapshot(), pipelines=(), standing=(standing(a_state(replicas={ENCODER: encoder}), None, None),)
    )
    found = of(after(Telemetry(), snapshot), "pool_replicas")
    counts = {state: found[f'{{pool="inferentia",state="{state}"}}'] for state in ("ready", "starting", "pending")}
    assert counts == {"ready": 6, "starting": 1, "pending": 2}


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.RECOMMEND])
def test_replicas_that_are_asked_for_or_leave_are_not_counted_as_ready(mode: Mode) -> None:
    encoder = a_target(9, ready=2, existing=4, terminating=3, starting_since_s=[NOW_S] * 2)
    state = a_state(a_spec(mode=mode), replicas={ENCODER: encoder})
    snapshot = replace(a_snapshot(), pipelines=(), standing=(standing(state, None, None),))
    found = of(after(Telemetry(), snapshot), "pool_replicas")
    counts = {name.split('"')[3]: count for name, count in found.items() if "inferentia" in name and count}
    assert counts == {"ready": 2, "starting": 2, "terminating": 3}


def test_a_pipeline_that_was_made_again_has_no_series_of_the_one_before() -> None:
    state, telemetry = a_state(demand=50.0), Telemetry()
    assert of(after(telemetry, a_snapshot(state)), "pipeline_demand")
    again = replace(a_snapshot(), pipelines=(), standing=(standing(state, None, None),))
    assert not of(after(telemetry, again), "pipeline_demand")


def test_nodes_on_their_way_are_those_of_elastic_pools() -> None:
    coming = (ExpectedNode(name="inferentia-x", since_s=NOW_S),)
    elastic = a_pool("inferentia", node_pool=NodePoolState(instances=5, claims=coming))
    fleet = pools(a_pool("cpu"), elastic, a_pool("gpu"))
    lines = after(Telemetry(), a_snapshot(a_state(replicas={VAD: 1, ENCODER: 1}), fleet=fleet))
    assert of(lines, "pool_arriving_nodes") == {'{pool="inferentia"}': 1}
    assert of(lines, "pool_limit")['{pool="inferentia"}'] == 5


def test_a_workload_that_two_pipelines_name_is_counted_once() -> None:
    own = a_state(a_spec(name="own"), replicas={VAD: 1, ENCODER: 2})
    shown = replace(
        a_state(a_spec(name="copy", mode=Mode.RECOMMEND)),
        targets={key: replace(target, owner=own.spec.key) for key, target in own.targets.items() if key != ENCODER_GPU},
    )
    replicas = of(after(Telemetry(), a_snapshot(own, shown)), "pool_replicas")
    assert replicas['{pool="inferentia",state="ready"}'] == 2


def test_placements_that_fail_on_a_pool_that_delivers_are_counted_by_cause() -> None:
    outage = PoolMemory(unavailable_until_s=NOW_S + 300, backoff_s=300.0, reason="no node takes it")
    failures = {ENCODER: PlacementFailure(cause=FailureCause.FRAGMENTED, outage=outage)}
    state = a_state(replicas={VAD: 1, ENCODER: 1, ENCODER_GPU: 1}, memory=PipelineMemory(failures=failures))
    failing = of(after(Telemetry(), a_snapshot(state)), "pool_failing_placements")
    assert {name for name, count in failing.items() if count} <= {'{cause="Fragmented",pool="inferentia"}'}


def test_a_learned_service_time_is_compared_with_a_declared_one_only() -> None:
    known = PipelineMemory(learned=Learned(service_factors={ENCODER: 2.5}))
    lines = after(Telemetry(), a_snapshot(a_state(replicas={VAD: 1, ENCODER: 3}, memory=known)))
    name = f'{{{CAPTIONS},pool="inferentia",stage="encoder"}}'
    assert of(lines, "placement_service_factor") == {name: 2.5}
    guessed = a_spec(
        a_stage("vad", a_placement("cpu")),
        a_stage("encoder", replace(a_placement("inferentia"), declared=Declared(service=False)), after=["vad"]),
    )
    lines = after(Telemetry(), a_snapshot(a_state(guessed, replicas={VAD: 1, ENCODER: 3}, memory=known)))
    assert not of(lines, "placement_service_factor")


def test_refused_streams_are_shown_by_stage() -> None:
    refusing = a_state(replicas={VAD: 1, ENCODER: 1}, samples={VAD: seen(session_refusals=0.5)})
    refusals = of(after(Telemetry(), a_snapshot(refusing)), "stage_refusals_per_second")
    assert refusals == {f'{{{CAPTIONS},stage="vad"}}': 0.5}


def test_interval_and_memory_of_the_process_can_be_scraped() -> None:
    telemetry = Telemetry()
    telemetry.runs_every(15.0)
    lines = exposed(telemetry)
    assert "sluice_cycle_interval_seconds 15.0" in lines
    assert [line for line in lines if line.startswith("process_resident_memory_bytes ")]


def test_every_series_that_is_exposed_is_described_with_its_labels() -> None:
    telemetry = Telemetry()
    telemetry.wrote("Scaled")
    telemetry.requested("GET")
    lines = after(telemetry, a_snapshot(a_state(demand=100.0, replicas={VAD: 1, ENCODER: 1})))
    labels_of = {metric.name: set(metric.labels) for metric in described()}
    names = metric_names()
    for line in lines:
        if not line.startswith("#"):
            name, labels = re.fullmatch(r"(\w+)(?:{(.*)})? \S+", line).groups()  # type: ignore[union-attr]
            assert name in names
            if name in labels_of:
                assert set(re.findall(r'(\w+)="', labels or "")) == labels_of[name]


def test_a_refused_status_and_the_difference_of_clocks_have_series() -> None:
    telemetry, snapshot = Telemetry(), a_snapshot(a_state(demand=50.0))
    decision = decide(snapshot, Policy())
    name = 'sluice_pipeline_status_refused{namespace="speech",pipeline="captions"}'
    telemetry.succeeded(snapshot, decision, 0.2, 0)
    assert f"{name} 0.0" in exposed(telemetry)
    assert not [line for line in exposed(telemetry) if line.startswith("sluice_clock_skew_seconds")]
    telemetry.measures_skew(lambda: -300.5)
    telemetry.succeeded(snapshot, decision, 0.2, 0, refused={decision.pipelines[0].key})
    assert f"{name} 1.0" in exposed(telemetry)
    assert "sluice_clock_skew_seconds -300.5" in exposed(telemetry)


def test_the_time_above_the_sla_is_counted_beside_the_time_in_which_the_latency_was_known() -> None:
    """Four cycles of 15 s: missed, unknown, met, and missed after a pause of an hour, which counts for one minute."""
    telemetry = Telemetry()
    state = replace(a_state(a_spec(sla_s=0.5), replicas={VAD: 1, ENCODER: 1}), latency_s=0.4)
    after(telemetry, a_snapshot(state))
    unknown = Absence(reason=AbsenceReason.MISSING)
    for latency_s, later_s in ((0.6, 15.0), (unknown, 30.0), (0.4, 45.0), (0.6, 3645.0)):
        lines = after(telemetry, a_snapshot(replace(state, latency_s=latency_s), now_s=NOW_S + later_s))
    assert of(lines, "pipeline_sla_missed_seconds_total") == {f"{{{CAPTIONS}}}": 75.0}
    assert of(lines, "pipeline_sla_known_seconds_total") == {f"{{{CAPTIONS}}}": 90.0}
    assert not of(after(telemetry, Snapshot(now_s=NOW_S, pipelines=(), pools={})), "pipeline_sla_known_seconds_total")


@pytest.mark.parametrize(("latency_s", "seconds"), [(0.4, 0.0), (0.6, 95.0), (None, None)])
def test_the_time_since_which_the_sla_is_missed_is_0_while_it_is_met(
    latency_s: float | None, seconds: float | None
) -> None:
    reading = Absence(reason=AbsenceReason.MISSING) if latency_s is None else latency_s
    memory = PipelineMemory(missed_since_s=NOW_S - 95)
    state = replace(a_state(a_spec(sla_s=0.5), replicas={VAD: 1, ENCODER: 1}, memory=memory), latency_s=reading)
    found = of(after(Telemetry(), a_snapshot(state)), "pipeline_sla_missed_for_seconds")
    assert found == ({} if seconds is None else {f"{{{CAPTIONS}}}": seconds})


def test_demand_above_the_limit_is_refused_and_unknown_demand_has_no_series() -> None:
    limited = a_snapshot(a_state(a_spec(budget=2.0), demand=500.0, replicas={VAD: 1, ENCODER: 1}))
    admissible = decide(limited, Policy()).pipelines[0].admissible
    assert admissible is not None
    assert of(after(Telemetry(), limited), "pipeline_refused_demand") == {f"{{{CAPTIONS}}}": 500.0 - admissible}
    enough = a_snapshot(a_state(demand=10.0, replicas={VAD: 1, ENCODER: 1}))
    assert of(after(Telemetry(), enough), "pipeline_refused_demand") == {f"{{{CAPTIONS}}}": 0.0}
    blind = a_snapshot(a_state(demand=Absence(reason=AbsenceReason.MISSING), replicas={VAD: 1, ENCODER: 1}))
    assert not of(after(Telemetry(), blind), "pipeline_refused_demand")


def test_replicas_that_start_have_the_time_until_they_are_ready_where_it_is_known() -> None:
    encoder = a_stage("encoder", a_placement("inferentia", startup_s=60.0), after=["vad"])
    spec = a_spec(a_stage("vad", a_placement("cpu")), encoder)
    labels = f'{{{CAPTIONS},pool="inferentia"}}'
    for target, count, ready_in_s in (
        (a_target(4), None, None),
        (a_target(4, ready=2, starting_since_s=[NOW_S - 20, NOW_S - 40]), 2.0, 40.0),
        (a_target(4, ready=2, starting_since_s=[NOW_S - 20], pending_since_s=[NOW_S - 20]), 2.0, None),
    ):
        state = a_state(replace(spec, mode=Mode.PAUSED), replicas={VAD: 1, ENCODER: target})
        lines = after(Telemetry(), a_snapshot(state))
        assert of(lines, "pipeline_starting_replicas") == ({} if count is None else {labels: count})
        assert of(lines, "pipeline_ready_in_seconds") == ({} if ready_in_s is None else {labels: ready_in_s})


def of_backlog(left: Reading, due_in_s: float = 3600.0) -> dict[str, float]:
    """Return the series of a backlog, by the name of their metric."""
    state = a_state(a_backlog(due_s=NOW_S + due_in_s), demand=left, replicas={})
    state = replace(state, memory=replace(state.memory, begun_s=NOW_S))
    lines = after(Telemetry(), a_snapshot(state, fleet=pools(a_pool("gpu", instances=10, ready=10))))
    own = [line for line in lines if 'pipeline="archive"' in line and "{" in line]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in own}


def test_a_backlog_has_items_rates_and_times_and_no_latency() -> None:
    series = of_backlog(3240.0)
    assert series["sluice_pipeline_backlog_items"] == 3240
    assert series["sluice_pipeline_backlog_required_per_second"] == pytest.approx(1.0, rel=0.02)
    assert series["sluice_pipeline_backlog_planned_per_second"] == 1.5
    assert series["sluice_pipeline_backlog_finish_seconds"] == pytest.approx(3240 / 1.5, rel=0.02)
    assert series["sluice_pipeline_backlog_deadline_seconds"] == 3600
    assert series["sluice_pipeline_backlog_late"] == 0
    assert not any("latency" in name or "sla" in name or name.endswith("served_ratio") for name in series)


def test_a_backlog_that_is_late_says_so() -> None:
    assert of_backlog(1e6)["sluice_pipeline_backlog_late"] == 1
    assert of_backlog(10.0, -60.0)["sluice_pipeline_backlog_deadline_seconds"] == -60


def test_what_is_not_known_of_a_backlog_has_no_series() -> None:
    names = of_backlog(Absence(reason=AbsenceReason.MISSING)).keys()
    known = {"sluice_pipeline_backlog_deadline_seconds", "sluice_pipeline_backlog_required_per_second"}
    assert {name for name in names if "backlog" in name} <= known
    assert not any("backlog" in name for name in described_of_live())


def described_of_live() -> set[str]:
    lines = after(Telemetry(), a_snapshot(a_state(demand=50.0, replicas={VAD: 1, ENCODER: 3})))
    return {line.partition("{")[0] for line in lines if not line.startswith("#")}
