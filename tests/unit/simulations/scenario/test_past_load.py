"""The load before a run, as a range query would have returned it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_scenarios import a_scenario

from controller.core.state.spec import HistorySpec
from controller.resources.translate import pipeline_spec
from profiler.samples import Absence
from profiler.season import DemandHistory
from simulations.scenario.load import pipeline_schedules
from simulations.scenario.past_load import PastLoads
from simulations.scenario.scenario import InvalidScenario, Scenario, load_scenario

DAILY = HistorySpec(season_s=600.0, seasons=2, step_s=15.0)


def scenario(folder: Path, rows: list[float], *, streams: bool = False, history: str = "") -> Scenario:
    """Write a small scenario with a history of `rows` levels or counts, one a second."""
    a_scenario(folder, streams=streams)
    (folder / "past.csv").write_text("t_s,x\n" + "".join(f"{index},{value:g}\n" for index, value in enumerate(rows)))
    path = folder / "scenario.yaml"
    text = path.read_text()
    line = next(line for line in text.splitlines() if "load.csv" in line)
    path.write_text(text.replace(line, line.replace("}", f", history: {{{history}}}}}", 1) if history else line))
    return load_scenario(path)


def found(scenario: Scenario, now_s: float, spec: HistorySpec | None = DAILY) -> DemandHistory | Absence | None:
    past = PastLoads(scenario, pipeline_schedules(scenario, seed=1), before_s=90.0)
    return past.history(replace(pipeline_spec(scenario.pipelines[0]), history=spec), now_s)


def levels(history: object) -> list[float]:
    assert isinstance(history, DemandHistory)
    return [round(float(level), 3) for level in np.frombuffer(history.levels, np.float32)]


def test_the_recording_ends_when_the_run_begins(tmp_path: Path) -> None:
    streams = scenario(
        tmp_path, [float(index // 15) for index in range(150)], streams=True,
        history="trace: past.csv, column: streams, series: x",
    )  # fmt: skip
    assert levels(found(streams, 0.0))[-12:-1] == [-1.0, *[float(step) for step in range(10)]]


def test_what_the_run_has_offered_follows(tmp_path: Path) -> None:
    streams = scenario(tmp_path, [3.0] * 2000, streams=True, history="trace: past.csv, column: streams, series: x")
    seen = levels(found(streams, 60.0))
    assert seen[:-5] == [3.0] * (len(seen) - 5)
    assert seen[-3:] == [8.0] * 3, "the load of the run"


def test_streams_under_way_are_those_that_the_arrivals_and_lengths_say(tmp_path: Path) -> None:
    """Two sessions a second that last 10 s on average are 20 at a time, after a while."""
    sessions = "trace: past.csv, column: arrivals, series: x, session: {mean: 10s, cv: '0.5'}"
    seen = levels(found(scenario(tmp_path, [2.0] * 2000, streams=True, history=sessions), 0.0))
    assert seen[-2] == pytest.approx(20.0, rel=0.02)
    assert found(scenario(tmp_path, [2.0] * 2000, streams=True, history=sessions), 0.0) == found(
        scenario(tmp_path, [2.0] * 2000, streams=True, history=sessions), 0.0
    )


def test_requests_are_a_rate(tmp_path: Path) -> None:
    requests = scenario(tmp_path, [4.0] * 2000, history="trace: past.csv, column: arrivals, series: x")
    assert levels(found(requests, 0.0))[-2] == 4.0


def test_without_a_recording_the_history_is_absent(tmp_path: Path) -> None:
    plain = scenario(tmp_path, [1.0] * 3)
    gone = found(plain, 0.0)
    assert isinstance(gone, Absence)
    assert "history" in gone.detail
    assert found(plain, 0.0, None) is None


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ("trace: none.csv, column: streams", "load[0].history.trace"),
        ("trace: past.csv, column: arrivals, series: x", "load[0].history.session: (absent): required"),
        ("trace: past.csv, column: streams, series: x, offset: 1h", 'load[0].history.offset: "1h": must be within'),
    ],
)
def test_a_mistake_in_it_names_the_field(tmp_path: Path, history: str, message: str) -> None:
    with pytest.raises(InvalidScenario) as error:
        scenario(tmp_path, [1.0] * 30, streams=True, history=history)
    assert message in str(error.value)
