"""The load of a scenario."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import a_placement, a_spec, a_stage
from small_scenarios import a_scenario

from controller.core.state.spec import DemandUnit, PipelineSpec
from simulations.scenario.load import load_notes, peak_demand, pipeline_schedules
from simulations.scenario.scenario import Scenario, load_scenario
from simulations.scenario.schedule import Schedule

CONTRACT = Path(__file__).parents[3] / "contract"
DEMO = Path(__file__).parents[4] / "simulations" / "scenarios" / "demo"
SCENARIO = """\
name: test
manifests: [pools.yaml, live-captions.yaml]
duration: 4m
load:
  - pipeline: speech/live-captions
    trace: azure_llm_2023_code_1s.csv.gz
    column: arrivals
    offset: 1110s
    session: {mean: 60s, cv: "1.3"}
"""


def scenario(folder: Path, extra: str = "") -> Scenario:
    for name in ("pools.yaml", "live-captions.yaml"):
        (folder / name).write_text((CONTRACT / name).read_text())
    (folder / "scenario.yaml").write_text(SCENARIO + extra)
    return load_scenario(folder / "scenario.yaml")


def test_the_demo_offers_a_load_that_at_least_doubles_and_falls_again() -> None:
    schedule = pipeline_schedules(load_scenario(DEMO / "scenario.yaml"), seed=1)["speech/captions"]
    level = schedule.active(np.arange(0.0, 240.0, 0.5))
    mean_20s = level.reshape(-1, 40).mean(axis=1)
    peak = int(mean_20s.argmax())

    assert mean_20s[peak] > 2 * mean_20s[1]
    assert mean_20s[-1] < mean_20s[peak] / 2


def test_seeds_are_runs_of_their_own(tmp_path: Path) -> None:
    runs = [pipeline_schedules(scenario(tmp_path), seed=seed)["speech/live-captions"] for seed in (1, 1, 2)]

    assert runs[0].end_s.tolist() == runs[1].end_s.tolist()
    assert runs[0].end_s.tolist() != runs[2].end_s.tolist()


def test_a_scale_thins_the_sessions(tmp_path: Path) -> None:
    whole = pipeline_schedules(scenario(tmp_path), seed=1)["speech/live-captions"]
    half = pipeline_schedules(scenario(tmp_path), seed=1, scale=0.5)["speech/live-captions"]

    assert len(half) == pytest.approx(len(whole) / 2, rel=0.15)
    assert set(half.start_s) < set(whole.start_s)


def test_a_spike_in_the_faults_is_in_the_load(tmp_path: Path) -> None:
    plain = pipeline_schedules(scenario(tmp_path), seed=1)["speech/live-captions"]
    fault = "faults: [{at: 100s, for: 20s, spike: {pipeline: speech/live-captions, factor: 3}}]\n"
    spiked = pipeline_schedules(scenario(tmp_path, fault), seed=1)["speech/live-captions"]
    before, during, after = np.array([99.0]), np.array([110.0]), np.array([121.0])

    assert spiked.active(before) == plain.active(before)
    assert spiked.active(during) == pytest.approx(3 * plain.active(during), rel=0.05)
    assert spiked.active(after) == plain.active(after)


def requests(*spans: tuple[float, float, float]) -> Schedule:
    """Requests evenly at (rate, from, until)."""
    start_s = np.concatenate([np.arange(from_s, until_s, 1 / rate) for rate, from_s, until_s in spans])
    return Schedule(start_s=start_s, end_s=start_s)


def streams(count: int, from_s: float, until_s: float) -> Schedule:
    return Schedule(start_s=np.full(count, from_s), end_s=np.full(count, until_s))


def a_pipeline() -> PipelineSpec:
    return a_spec(a_stage("asr", a_placement("cpu", service_s=0.05)))


def test_the_peak_is_the_highest_mean_of_twenty_seconds() -> None:
    burst = requests((2.0, 0.0, 60.0), (40.0, 30.0, 40.0))
    assert peak_demand(burst, a_pipeline(), 60.0) == pytest.approx(2 + 40 * 10 / 20)


def test_the_peak_of_streams_is_a_number_of_streams_at_once() -> None:
    spec = replace(a_pipeline(), unit=DemandUnit.STREAMS, chunk_s=0.5)
    assert peak_demand(streams(7, 10.0, 50.0), spec, 60.0) == pytest.approx(7)
    assert peak_demand(streams(8, 10.0, 20.0), spec, 60.0) == pytest.approx(4)


def test_a_run_shorter_than_the_window_is_its_own_mean() -> None:
    assert peak_demand(requests((3.0, 0.0, 10.0)), a_pipeline(), 10.0) == pytest.approx(3.0)


def test_a_trace_that_is_shorter_than_the_run_is_named_with_what_follows(tmp_path: Path) -> None:
    scenario = a_scenario(tmp_path, load=((0.0, 4.0),), duration_s=120)
    (tmp_path / "load.csv").write_text("Time,asr\n0,4\n10,\n20,4\n30,4\n")
    text = scenario.path.read_text()
    load = "trace: load.csv, column: rate_per_s"
    counts = {}
    for at_end in ("repeat", "end"):
        scenario.path.write_text(text.replace(load, f"{load}, series: asr, atEnd: {at_end}, speed: 2"))
        chosen = load_scenario(scenario.path)
        gap, shorter = load_notes(chosen)
        assert gap.startswith("speech/captions: load.csv: 1 of 4 values are missing")
        assert shorter == (
            "speech/captions: load.csv: lasts 20 s of the run's 120 s: "
            + {"repeat": "it is repeated (atEnd: repeat)", "end": "it ends then (atEnd: end)"}[at_end]
        )
        counts[at_end] = pipeline_schedules(chosen, seed=1)["speech/captions"].start_s
    assert counts["end"].max() < 20
    assert counts["repeat"].max() > 100


def test_a_trace_that_is_as_long_as_the_run_gets_no_note(tmp_path: Path) -> None:
    assert load_notes(a_scenario(tmp_path, duration_s=120)) == ()
