"""The record of a pipeline from Prometheus' series: gaps stay gaps, and what cannot be known is named."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_series import DEPLOYMENTS, OWN, a_series, deployments
from small_scenarios import a_scenario

from controller.core.state.spec import PipelineQueries, PipelineSpec
from controller.resources.translate import pipeline_spec
from profiler.samples import Absence, AbsenceReason
from profiler.sources.prometheus_api import Period
from simulations.backtest.record import NoRecord, gap_words, queries, record, runs_of

PERIOD = Period(start_s=1_600_000_000, step_s=60, count=6)
REPLICAS: dict[str, list[float | None]] = {"vad": [2] * 6, "asr-gpu": [1] * 6, "asr-cpu": [0] * 6}
NAN = float("nan")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> PipelineSpec:
    found = pipeline_spec(a_scenario(Path(tmp_path_factory.mktemp("record"))).pipelines[0])
    return replace(found, queries=PipelineQueries(demand="demand", latency="latency"))


def results(**changed: Any) -> dict[str, Any]:
    answers = {
        "demand": [a_series(PERIOD, [8.0] * 6)],
        "latency": [a_series(PERIOD, [0.2] * 6)],
        DEPLOYMENTS: deployments(PERIOD, REPLICAS),
        OWN: [],
    }
    names = {"deployments": DEPLOYMENTS, "own": OWN}
    return answers | {names.get(name, name): value for name, value in changed.items()}


def test_the_queries_are_the_users_and_those_for_replicas(spec: PipelineSpec) -> None:
    assert queries([spec, spec]) == ("demand", "latency", DEPLOYMENTS, OWN)


def test_a_whole_record_has_every_number_and_its_cost(spec: PipelineSpec) -> None:
    found = record(spec, results(), PERIOD)
    assert found.demand.tolist() == [8.0] * 6
    assert found.latency_s is not None
    assert found.known.all()
    cost = found.cost_per_hour({("vad", "cpu"): 0.25, ("asr", "gpu"): 2.0, ("asr", "cpu"): 0.5})  # type: ignore[dict-item]
    assert cost is not None
    assert cost.tolist() == [2.5] * 6


def test_a_gap_is_not_zero(spec: PipelineSpec) -> None:
    demand = [a_series(PERIOD, [8.0, None, NAN, -1.0, 8.0, 8.0])]
    found = record(spec, results(demand=demand), PERIOD)
    assert np.isnan(found.demand).tolist() == [False, True, True, True, False, False]
    assert runs_of(found.known) == (slice(0, 1), slice(4, 6))


def test_a_record_in_two_parts_is_one(spec: PipelineSpec) -> None:
    whole = a_series(PERIOD, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    halves = [{**whole, "values": whole["values"][:3]}, {**whole, "values": whole["values"][3:]}]
    assert record(spec, results(demand=halves), PERIOD).demand.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_several_series_of_demand_are_refused_and_not_added(spec: PipelineSpec) -> None:
    several = [a_series(PERIOD, [8.0] * 6, pod=pod) for pod in ("a", "b")]
    with pytest.raises(NoRecord, match=r"speech/captions: demand.query: returns 2 series"):
        record(spec, results(demand=several), PERIOD)


def test_no_demand_and_a_dead_prometheus_are_errors(spec: PipelineSpec) -> None:
    with pytest.raises(NoRecord, match="has no number from 2020-09-13T12:26:40Z to 2020-09-13T12:32:40Z"):
        record(spec, results(demand=[]), PERIOD)
    dead = Absence(reason=AbsenceReason.UNAVAILABLE, detail="Prometheus: connection refused")
    with pytest.raises(NoRecord, match="connection refused"):
        record(spec, results(demand=dead), PERIOD)


def test_a_latency_in_milliseconds_is_not_used(spec: PipelineSpec) -> None:
    found = record(spec, results(latency=[a_series(PERIOD, [200.0] * 6)]), PERIOD)
    assert found.latency_s is None
    assert any("divide the query by 1000" in note for note in found.notes)


def test_a_latency_that_is_not_there_is_named(spec: PipelineSpec) -> None:
    assert any("no number" in note for note in record(spec, results(latency=[]), PERIOD).notes)
    without = replace(spec, queries=PipelineQueries(demand="demand"))
    assert record(without, results(), PERIOD).notes[0] == "latency not measured: sla.query is not set"


def test_a_workload_that_kube_state_metrics_does_not_list_has_no_replicas(spec: PipelineSpec) -> None:
    listed = {name: values for name, values in REPLICAS.items() if name != "asr-gpu"}
    found = record(spec, results(deployments=deployments(PERIOD, listed)), PERIOD)
    assert found.replicas is not None
    assert found.replicas["asr", "gpu"].tolist() == [0.0] * 6  # type: ignore[index]
    assert any("Deployment/asr-gpu" in note for note in found.notes)


def test_replicas_are_not_known_while_kube_state_metrics_is_down(spec: PipelineSpec) -> None:
    broken = {name: [*values[:4], None, None] for name, values in REPLICAS.items()}
    found = record(spec, results(deployments=deployments(PERIOD, broken)), PERIOD)
    assert found.known.tolist() == [True] * 4 + [False] * 2


def test_the_operators_own_metrics_serve_without_kube_state_metrics(spec: PipelineSpec) -> None:
    places = (("vad", "cpu"), ("asr", "gpu"), ("asr", "cpu"))
    own = [a_series(PERIOD, [3] * 6, stage=stage, pool=pool) for stage, pool in places]
    found = record(spec, results(deployments=[], own=own), PERIOD)
    assert found.replicas is not None
    assert found.replicas["vad", "cpu"].tolist() == [3.0] * 6  # type: ignore[index]
    assert any("sluice_stage_replicas_ready" in note for note in found.notes)


def test_without_replicas_what_ran_is_not_known(spec: PipelineSpec) -> None:
    found = record(spec, results(deployments=[]), PERIOD)
    assert found.replicas is None
    assert found.cost_per_hour({}) is None
    assert found.known.all()
    assert any("replicas not recorded" in note for note in found.notes)


def test_gaps_are_named_with_their_times() -> None:
    known = np.array([False, True, False, True, False, True])
    words = gap_words(known, PERIOD, most=2)
    assert words[0].startswith("no record from 2020-09-13T12:26:40Z to 2020-09-13T12:27:40Z: Prometheus has nothing")
    assert words[1:] == (
        "no record from 2020-09-13T12:28:40Z to 2020-09-13T12:29:40Z",
        "1 further gap, 60 s in all",
    )
