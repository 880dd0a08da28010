"""The stated scenario `night`: recordings wait for the night, are done by the morning, and cost less."""

import importlib.util
from importlib import resources
from pathlib import Path

import numpy as np

from controller.core.state.spec import DemandUnit
from simulations.experiment.experiment import run_one
from simulations.results.results import RunResult
from simulations.scenario.scenario import load_scenario, with_what_if

FOLDER = Path(str(resources.files("simulations.scenarios"))) / "night"
DUSK_S = 5 * 60.0
"""Until 19:00, the captions have nearly all of the cheap pool."""


def of_archive(result: RunResult) -> np.ndarray:
    """Return the desired replicas of the archive on the expensive pool, by window."""
    (own,) = [each for each in result.series.pipelines if each.pipeline == "speech/archive"]
    (gpu,) = [each for each in own.placements if each.placement == "gpu"]
    return np.array(gpu.desired)


def cost_of(result: RunResult, name: str) -> float:
    (own,) = [each for each in result.series.pipelines if each.pipeline == name]
    return float(sum(np.sum(each.cost_per_hour) for each in own.placements))


def test_recordings_wait_for_the_night_and_cost_less_than_at_an_even_pace() -> None:
    scenario = load_scenario(FOLDER / "scenario.yaml")
    (unknown,) = scenario.file.what_if
    waits = run_one(scenario, policy="sluice", seed=1)
    even = run_one(with_what_if(scenario, unknown), policy="sluice", seed=1)
    for result in (waits, even):
        (archive,) = [users for users in result.users if users.unit is DemandUnit.ITEMS]
        assert archive.as_promised == archive.offered == 800  # all in time
        assert result.cap_violations == 0
        assert result.shed + result.refused == 0
    live = [[users for users in result.users if users.unit is DemandUnit.STREAMS] for result in (waits, even)]
    assert live[0][0].share is not None
    assert live[0][0].share >= 0.95
    clock = scenario.file.clock
    windows = int((DUSK_S - clock.warmup_s) / clock.window_s)
    assert of_archive(even)[:windows].any()
    assert of_archive(waits).sum() <= 0.2 * of_archive(even).sum()
    assert cost_of(waits, "speech/archive") <= 0.7 * cost_of(even, "speech/archive")


def test_the_traces_can_be_made_again(tmp_path: Path) -> None:
    found = importlib.util.spec_from_file_location("make_trace", FOLDER / "make_trace.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    vars(module)["FOLDER"] = tmp_path
    module.written("past-days.csv", module.BEGINS_H - 72, module.BEGINS_H)
    module.written("day.csv", module.BEGINS_H, module.BEGINS_H + 16)
    for name in ("past-days.csv", "day.csv"):
        assert (tmp_path / name).read_text() == (FOLDER / name).read_text()
