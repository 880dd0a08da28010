"""The parts of a record that are replayed, and their scenarios."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_scenarios import PIPELINE, POOLS, STREAMS

from controller.core.state.spec import PipelineSpec
from controller.resources.manifests import parse_documents
from controller.resources.translate import pipeline_spec
from controller.resources.validation import validate_documents
from profiler.season import DemandHistory
from profiler.sources.prometheus_api import Period
from simulations.backtest.pieces import (
    Piece,
    assumptions,
    documents_of,
    pieces,
    recorded_settings,
    requests_per_s,
    without_session,
    write_scenario,
)
from simulations.backtest.record import PipelineRecord
from simulations.scenario.load import pipeline_schedules
from simulations.scenario.past_load import PastLoads
from simulations.scenario.scenario import load_scenario
from simulations.scenario.traces import Column, read_trace

NOTHING = np.zeros(3000)
INSTANCES = {"cpu": 3, "gpu": 2}
PERIOD = Period(start_s=1_600_000_000, step_s=60, count=60)


def known(*runs: tuple[int, int]) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    found = np.zeros(3000, dtype=bool)
    for first, end in runs:
        found[first:end] = True
    return found


def a_spec(pipeline: str = PIPELINE) -> PipelineSpec:
    (found,) = validate_documents(parse_documents(pipeline, Path("x.yaml"))).pipelines
    return pipeline_spec(found)


def a_record(spec: PipelineSpec, *, replicas: bool = True) -> PipelineRecord:
    steps = np.arange(PERIOD.count, dtype=float)
    return PipelineRecord(
        spec=spec,
        demand=steps,
        latency_s=None,
        replicas=dict.fromkeys(spec.placements(), steps + 1) if replicas else None,
        notes=(),
    )


def test_a_run_is_replayed_after_a_warm_up_and_a_short_one_is_left_out() -> None:
    assert pieces(known((10, 110), (200, 220)), NOTHING, 60) == (Piece(first=10, scored=20, end=110),)


def test_a_long_run_is_cut_into_days_which_overlap_by_the_warm_up() -> None:
    found = pieces(known((0, 2890)), NOTHING, 60)
    assert found == (
        Piece(first=0, scored=10, end=970),
        Piece(first=960, scored=970, end=1930),
        Piece(first=1920, scored=1930, end=2890),
    )


def test_many_requests_are_cut_too() -> None:
    assert len(pieces(known((0, 1000)), np.full(3000, 100.0), 60)) == 2  # 6 million requests
    spec = a_spec()
    assert requests_per_s([a_record(spec)])[5] == 5.0
    assert requests_per_s([a_record(a_spec(PIPELINE.replace(*STREAMS)))]).sum() == 0


def test_the_recorded_replicas_are_those_of_the_piece_or_none() -> None:
    piece = Piece(first=10, scored=20, end=40)
    settings = recorded_settings([a_record(a_spec())], piece, 60)
    assert settings is not None
    assert settings.counts["speech/captions", "vad", "cpu"][:2] == (11, 12)  # type: ignore[index]
    assert recorded_settings([a_record(a_spec(), replicas=False)], piece, 60) is None


@pytest.mark.parametrize("streams", [False, True])
def test_the_scenario_of_a_piece_is_valid_and_has_its_load(tmp_path: Path, *, streams: bool) -> None:
    text = PIPELINE.replace(*STREAMS) if streams else PIPELINE
    text = text.replace("sluice_ingress_", "my_own_").replace("spec:\n", "spec:\n  mode: Recommend\n", 1)
    text = text.replace("kind: Deployment, name: vad", "kind: StatefulSet, name: vad")
    text = text.replace(
        "metrics: {window: 10s}\n", "metrics: {window: 10s, overrides: [{quantity: arrivalRate, query: up}]}\n", 1
    )
    spec, piece = a_spec(text), Piece(first=10, scored=20, end=40)
    written = [document.data for document in parse_documents(f"{text}---\n{POOLS}", Path("x.yaml"))]
    documents = documents_of(written, {spec.key: spec}, INSTANCES)  # type: ignore[arg-type]

    scenario = load_scenario(write_scenario(tmp_path, piece, [a_record(spec)], documents, PERIOD))

    assert (scenario.file.clock.duration_s, scenario.file.clock.warmup_s) == (1800.0, 600.0)
    own = pipeline_spec(scenario.pipelines[0])
    assert own.mode.value == "Auto"
    assert own.stages[0].metric_overrides == {}
    assert own.placements()["vad", "cpu"].target.name == "vad-statefulset"  # type: ignore[index]
    assert [pool.spec.capacity.instances for pool in scenario.pools] == [3, 2]
    (load,) = scenario.file.load
    assert load.trace is not None
    trace = read_trace(load.trace, Column(load.column), folder=tmp_path)
    assert trace.column is (Column.STREAMS if streams else Column.RATE_PER_S)
    assert trace.values[:3].tolist() == [10.0, 11.0, 12.0]


def test_the_record_before_a_piece_is_the_history_of_its_demand(tmp_path: Path) -> None:
    text = PIPELINE.replace("    query: sum(", "    history: {}\n    query: sum(", 1)
    spec, piece = a_spec(text), Piece(first=10, scored=20, end=40)
    assert spec.history is not None
    written = [document.data for document in parse_documents(f"{text}---\n{POOLS}", Path("x.yaml"))]
    documents = documents_of(written, {spec.key: spec}, INSTANCES)  # type: ignore[arg-type]
    record = a_record(spec)
    record.demand[3] = np.nan

    scenario = load_scenario(write_scenario(tmp_path, piece, [record], documents, PERIOD))

    past = PastLoads(scenario, pipeline_schedules(scenario, seed=1), before_s=0.0)
    found = past.history(pipeline_spec(scenario.pipelines[0]), 0.0)
    assert isinstance(found, DemandHistory)
    levels = np.frombuffer(found.levels, np.float32)
    assert levels[-3:].tolist() == [-1.0, 5.0, 0.0], "each five minutes: unknown before the gap, recorded, begins now"

    first = replace(piece, first=0, scored=10)
    (load,) = load_scenario(write_scenario(tmp_path, first, [record], documents, PERIOD)).file.load
    assert load.history is None


def test_a_learned_law_becomes_the_law_of_the_simulated_servers(tmp_path: Path) -> None:
    text = PIPELINE.replace('          serviceTime: {fixed: 10ms, cv: "0.3"}\n          startup: 5s\n', "")
    spec = a_spec(text)
    stage = spec.stages[0]
    law = replace(stage.placements[0].prior.service, fixed_s=0.012, cv=0.4)
    placed = replace(stage.placements[0], prior=replace(stage.placements[0].prior, service=law, session_slots=7))
    learned = replace(spec, stages=(replace(stage, placements=(placed,)), *spec.stages[1:]))
    written = [document.data for document in parse_documents(f"{text}---\n{POOLS}", Path("x.yaml"))]
    documents = documents_of(written, {spec.key: learned}, INSTANCES)  # type: ignore[arg-type]
    path = write_scenario(tmp_path, Piece(first=0, scored=10, end=40), [a_record(spec)], documents, PERIOD)
    prior = pipeline_spec(load_scenario(path).pipelines[0]).stages[0].placements[0].prior
    assert (prior.service.fixed_s, prior.service.cv, prior.session_slots) == (0.012, 0.4, 7)


def test_what_is_assumed_is_named() -> None:
    text = PIPELINE.replace("          startup: 5s\n", "").replace(*STREAMS)
    found = "\n".join(assumptions([a_spec(text)], 60, None))
    assert "constant within each step of 60 s" in found
    assert "no session lengths" in found
    assert "speech/captions vad on cpu: start-up time 60 s" in found
    assert "left out" not in found
    known = "\n".join(assumptions([a_spec(text)], 60, 480.0))
    assert "streams last 480 s on average (--session)" in known
    assert "no session lengths" not in known


def test_sticky_streams_need_a_length_and_get_it(tmp_path: Path) -> None:
    sticky = PIPELINE.replace(*STREAMS).replace("    - name: asr\n", "    - name: asr\n      routing: Sticky\n")
    spec = a_spec(sticky)
    assert without_session([spec, a_spec(), a_spec(PIPELINE.replace(*STREAMS))]) == (spec.key,)
    written = [document.data for document in parse_documents(f"{sticky}---\n{POOLS}", Path("x.yaml"))]
    documents = documents_of(written, {spec.key: spec}, INSTANCES)  # type: ignore[arg-type]
    piece = Piece(first=0, scored=10, end=40)
    path = write_scenario(tmp_path, piece, [a_record(spec)], documents, PERIOD, session_s=480.0)
    (load,) = load_scenario(path).file.load
    assert load.session is not None
    assert (load.session.mean, load.session.cv) == ("480s", 1.3)
