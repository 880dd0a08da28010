import pytest
from builders import ENCODER, NOW_S, VAD, a_snapshot, a_spec, a_state

from controller.core.cycle import decide
from controller.core.state.carry_over import MetricsLoss, PipelineMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Snapshot
from controller.telemetry import Telemetry
from profiler.samples import Absence, AbsenceReason
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
    assert not [line for line in lines if "nan" in line.lower()]


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
