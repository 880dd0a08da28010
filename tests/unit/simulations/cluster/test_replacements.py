"""What users' manifests have that the simulated cluster has not is replaced, with a note."""

from pathlib import Path

import pytest
from corpus import ROOT
from small_scenarios import PIPELINE, STREAMS, a_scenario

from controller.resources.translate import pipeline_spec
from optimizer.model import PipelineKey
from simulations.cluster.ingress_queries import ActiveStreams, LatencyQuantile, RequestRate, parse_query
from simulations.cluster.refusals import check_simulated
from simulations.cluster.replacements import replaced
from simulations.scenario.scenario import InvalidScenario, Scenario, load_scenario

CAPTIONS = PipelineKey("speech/captions")
QUERY = 'sum(rate(sluice_ingress_requests_total{namespace="speech", pipeline="captions"}[10s]))'
ASR = "metrics: {window: 10s}\n      placements:\n        - pool: gpu"


def changed(folder: Path, *replacements: tuple[str, str], streams: bool = False) -> Scenario:
    """Return a small scenario with a changed pipeline, as the simulated cluster runs it."""
    pipeline = PIPELINE.replace(*STREAMS) if streams else PIPELINE
    for old, new in replacements:
        assert old in pipeline
        pipeline = pipeline.replace(old, new, 1)
    scenario = replaced(a_scenario(folder, pipeline=pipeline))
    check_simulated(scenario, what_ifs=(), seeds=(1,))
    return scenario


def test_a_manifest_that_the_simulator_runs_as_it_is_gets_no_note(tmp_path: Path) -> None:
    scenario = a_scenario(tmp_path)

    assert replaced(scenario) == scenario
    assert scenario.notes == ()


@pytest.mark.parametrize("query", ["sum(gateway_open)", "sum((gateway_open)", 'sum(rate(x{pipeline="other"}[1m]))'])
def test_a_query_of_the_demand_that_the_ingress_cannot_answer_becomes_one_that_it_can(
    tmp_path: Path, query: str
) -> None:
    scenario = changed(tmp_path, (QUERY, f"'{query}'"))

    spec = pipeline_spec(scenario.pipelines[0])
    assert parse_query(spec.queries.demand, [CAPTIONS]) == RequestRate(pipeline=CAPTIONS, window_s=60)
    assert scenario.notes == (
        (
            "speech/captions: demand.query is replaced: the simulated ingress reports the rate of requests of the "
            "scenario's load"
        ),
    )


def test_streams_are_counted_where_the_unit_is_streams(tmp_path: Path) -> None:
    old = 'sum(sluice_ingress_active_streams{namespace="speech", pipeline="captions"})'
    scenario = replaced(
        a_scenario(tmp_path, pipeline=PIPELINE.replace(*STREAMS).replace(old, "sum(gateway_open)"), streams=True)
    )

    spec = pipeline_spec(scenario.pipelines[0])
    assert parse_query(spec.queries.demand, [CAPTIONS]) == ActiveStreams(pipeline=CAPTIONS)
    assert "reports the number of streams of" in scenario.notes[0]


def test_a_query_of_the_latency_becomes_that_of_the_slas_percentile(tmp_path: Path) -> None:
    scenario = changed(tmp_path, ("histogram_quantile(0.95,", "max("), ("percentile: 95", "percentile: 90"))

    spec = pipeline_spec(scenario.pipelines[0])
    assert spec.queries.latency is not None
    assert parse_query(spec.queries.latency, [CAPTIONS]) == LatencyQuantile(pipeline=CAPTIONS, window_s=60, share=0.9)
    assert scenario.notes == (
        "speech/captions: sla.query is replaced: the simulated ingress reports the p90 latency of the run",
    )


@pytest.mark.parametrize("mode", ["Recommend", "Paused"])
def test_a_pipeline_that_changes_nothing_runs_as_auto(tmp_path: Path, mode: str) -> None:
    scenario = changed(tmp_path, ("spec:", f"spec:\n  mode: {mode}"))

    assert scenario.pipelines[0].spec.mode == "Auto"
    assert scenario.notes == (f"speech/captions: mode {mode} runs as Auto",)


def test_queries_of_rules_and_metrics_of_other_servers_are_left_out(tmp_path: Path) -> None:
    rules = "rules: [{name: gone, query: sum(up), above: '1', addReplicas: 1}, {name: kept, metric: queue, above: '9',"
    metrics = "metrics: {window: 10s, preset: ours, overrides: [{quantity: latencyP95, query: max(a)}]}"
    scenario = changed(
        tmp_path, (ASR, ASR.replace("metrics: {window: 10s}", f"{metrics}\n      {rules} addReplicas: 1}}]"))
    )

    stage = pipeline_spec(scenario.pipelines[0]).stages[1]
    assert (stage.preset, stage.metrics_window_s, stage.metric_overrides) == ("generic", 10, {})
    assert [rule.name for rule in stage.rules] == ["kept"]
    assert scenario.notes == (
        "speech/captions: asr: metrics.preset ours is replaced by generic: its metrics are not simulated",
        "speech/captions: asr: metrics.overrides are left out: the simulated pods export the preset's metrics",
        "speech/captions: asr: rules with a query are left out: gone",
    )


def test_other_workloads_run_as_deployments_with_names_of_their_own(tmp_path: Path) -> None:
    scenario = changed(tmp_path, ("kind: Deployment, name: asr-gpu", "kind: StatefulSet, name: vad"))

    targets = [str(p.target) for stage in pipeline_spec(scenario.pipelines[0]).stages for p in stage.placements]
    assert targets == ["Deployment/vad", "Deployment/vad-statefulset", "Deployment/asr-cpu"]
    assert scenario.notes == ("speech/captions: StatefulSet/vad run as Deployments",)


SHARED = f"""\
name: shared
manifests: [{ROOT}/crds/examples/pools.yaml, {ROOT}/crds/examples/shared-model.yaml]
duration: 4m
instances: {{c7i: 20, g6: 12}}
load:
  - {{pipeline: telephony/calls, trace: load.csv, column: streams}}
whatIf:
  - {{name: rich, set: {{SpeechPipeline/telephony/voicemail: {{spec: {{budget: {{perHour: "9"}}}}}}}}}}
"""


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "load.csv").write_text("t_s,streams\n0,40\n60,80\n")
    (tmp_path / "scenario.yaml").write_text(SHARED)
    return tmp_path / "scenario.yaml"


def test_a_shared_stage_has_servers_of_its_own_and_pools_the_instances_of_the_scenario(shared: Path) -> None:
    scenario = replaced(load_scenario(shared, own_servers=True))
    check_simulated(scenario, what_ifs=["rich"], seeds=(1,))

    calls, voicemail = map(pipeline_spec, scenario.pipelines)
    assert voicemail.borrowed == {}
    asr, recognizer = voicemail.stages[0], calls.stages[0]
    assert (asr.name, asr.preset, asr.placements[0].prior) == ("asr", "triton", recognizer.placements[0].prior)
    assert asr.placements[0].target.name == "recognizer-voicemail"
    assert scenario.notes[0] == (
        "telephony/voicemail: asr has servers of its own: servers shared with calls recognizer are not simulated, and "
        "cost less than separate ones"
    )
    assert {pool.metadata.name: pool.spec.capacity.instances for pool in scenario.pools} == {
        "c7i": 20,
        "inf2": 16,
        "g6": 12,
        "p4d": 2,
    }


def test_the_lab_refuses_a_shared_stage_with_its_line(shared: Path) -> None:
    with pytest.raises(InvalidScenario, match=r"shared-model\.yaml:46: spec\.stages\[0\]\.sharedFrom"):
        load_scenario(shared)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{cpu: 3}", r"instances\.cpu: 3: no such pool in the manifests; there are c7i, g6, inf2"),
        ("{c7i: -1}", "c7i: must be a whole number from 0 to 100000"),
        ("{c7i: 1.5}", "c7i: must be a whole number from 0 to 100000"),
        ("20", "must map ComputePools to numbers of instances"),
    ],
)
def test_wrong_instances_are_named(shared: Path, value: str, message: str) -> None:
    shared.write_text(SHARED.replace("{c7i: 20, g6: 12}", value))
    with pytest.raises(InvalidScenario, match=message):
        load_scenario(shared, own_servers=True)
