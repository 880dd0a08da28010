"""The stated scenarios: they load, they are what their README says, and their traces can be made again."""

import gzip
import importlib.util
import itertools
import shutil
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from simulations.experiment.experiment import run_one
from simulations.policies.catalogue import POLICIES
from simulations.scenario.load import pipeline_schedules
from simulations.scenario.scenario import load_scenario
from simulations.scenario.schedule import Schedule
from simulations.scenario.traces import Column, read_trace

FOLDER = Path(str(resources.files("simulations.scenarios")))
KINDS = ("steady", "bursty", "daily")


def load_of(kind: str, name: str = "scenario") -> tuple[Schedule, float]:
    scenario = load_scenario(FOLDER / kind / f"{name}.yaml")
    seed = scenario.file.seeds[0]
    return pipeline_schedules(scenario, seed=seed)["speech/captions"], scenario.file.clock.duration_s


def levels(kind: str) -> list[float]:
    """Streams at each minute."""
    schedule, duration_s = load_of(kind)
    return [float(level) for level in schedule.active(np.arange(360.0, duration_s, 60.0))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["scenario", "training"])
def test_they_name_every_policy_and_state_their_own_scaling(kind: str, name: str) -> None:
    scenario = load_scenario(FOLDER / kind / f"{name}.yaml")
    assert scenario.file.policies == list(POLICIES)
    scaling = scenario.pipelines[0].spec.scaling
    assert scaling.scale_down.stabilization in {"2m", "3m"}
    assert [stage.name for stage in scenario.pipelines[0].spec.stages] == ["vad", "encoder", "decoder", "lm"]
    assert {pool.metadata.name for pool in scenario.pools} == {"cpu", "inferentia", "gpu"}


def test_steady_load_is_steady() -> None:
    found = levels("steady")
    assert min(found) > 0.75 * max(found)


def test_bursty_load_multiplies_within_minutes() -> None:
    found = levels("bursty")
    assert max(later / max(now, 1.0) for now, later in itertools.pairwise(found)) > 3


def test_the_day_has_a_night_and_a_noon() -> None:
    found = levels("daily")
    noon = max(range(len(found)), key=found.__getitem__)
    assert 18 < noon < 36  # of 54 minutes from minute 6 on
    assert max(found) > 4 * found[-1]


def test_a_cold_start_begins_with_full_load_and_without_a_replica() -> None:
    schedule, _ = load_of("cold-start")
    assert float(schedule.active(np.array([1.5]))[0]) >= 390
    scenario = load_scenario(FOLDER / "cold-start" / "scenario.yaml")
    assert scenario.file.policies == list(POLICIES)
    assert (scenario.file.cold_start, scenario.file.clock.warmup_s) == (True, 0.0)
    result = run_one(scenario, policy="sluice", seed=1)
    placements = result.series.pipelines[0].placements
    assert not any(placement.ready[0] for placement in placements if placement.placement == "gpu")  # they take 30 s
    assert all(
        any(p.ready[-1] for p in placements if p.stage == stage) for stage in ("vad", "encoder", "decoder", "lm")
    )
    (users,) = result.users
    assert users.refused > 0.02 * users.offered  # nobody can be served before the first replica of every stage is ready
    met = [met for met in result.series.pipelines[0].met[-18:] if met is not None]
    assert sum(met) > 0.9 * len(met)


def test_streams_that_never_end_reach_new_replicas_and_none_is_cut() -> None:
    scenario = load_scenario(FOLDER / "endless" / "scenario.yaml")
    assert scenario.file.policies == list(POLICIES)
    moved, stuck = (
        run_one(
            replace(scenario, file=scenario.file.model_copy(update={"hands_over": hands_over})), policy="sluice", seed=1
        )
        for hands_over in (True, False)
    )
    assert moved.sla_windows_met is not None
    assert stuck.sla_windows_met is not None
    assert moved.sla_windows_met >= 0.99 > stuck.sla_windows_met
    assert moved.sessions_cut == 0 < stuck.sessions_cut
    assert moved.cost < stuck.cost


def test_streams_that_are_all_there_from_the_first_second_on_are_served_once_the_full_replica_is_drained(
    tmp_path: Path,
) -> None:
    """100 streams without an end begin on one replica; nothing but a cut moves them."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "endless"
    (folder / "load.csv").write_text("t_s,streams\n" + "".join(f"{t},100\n" for t in range(600)))
    scenario = (folder / "scenario.yaml").read_text().replace("handsOver: true\n", "").replace("25m", "10m")
    (folder / "scenario.yaml").write_text(scenario)
    manifest = (folder / "captions.yaml").read_text()
    results = []
    for mode in ("Drain", "Never"):
        changed = manifest.replace("  scaling:\n", f"  scaling:\n    rebalance: {{mode: {mode}}}\n")
        (folder / "captions.yaml").write_text(changed)
        results.append(run_one(load_scenario(folder / "scenario.yaml"), policy="sluice", seed=1))
    drained, stuck = results
    assert drained.sla_windows_met is not None
    assert stuck.sla_windows_met is not None
    assert drained.sla_windows_met >= 0.99 > stuck.sla_windows_met  # scored from minute three on
    assert drained.sessions_cut <= 100
    assert drained.cost <= stuck.cost


def test_the_jump_is_tenfold_within_seconds_and_can_be_made_again(tmp_path: Path) -> None:
    scenario = load_scenario(FOLDER / "jump" / "scenario.yaml")
    assert scenario.file.policies == list(POLICIES)
    schedule, _ = load_of("jump")
    before, at_once, later, after = schedule.active(np.array([590.0, 620.0, 1100.0, 1700.0]))
    assert 850 < before < 1150
    assert at_once > 9 * before
    assert 8_500 < later < 11_500
    assert after < 1500
    recipe("jump", "make_trace").main(tmp_path)
    assert (tmp_path / "jump.csv.gz").read_bytes() == (FOLDER / "jump" / "jump.csv.gz").read_bytes()


def recipe(folder: str = "daily", name: str = "make_traces") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_same_command_makes_the_same_day(tmp_path: Path) -> None:
    recipe().main(tmp_path)
    for name in ("day.csv.gz", "past-days.csv.gz", "training-day.csv.gz"):
        made, bundled = (gzip.decompress((folder / name).read_bytes()) for folder in (tmp_path, FOLDER / "daily"))
        assert made == bundled


def test_thinning_leaves_the_seconds_as_random_as_they_were() -> None:
    counts = read_trace("day.csv.gz", Column.ARRIVALS, folder=FOLDER / "daily").values
    minutes = counts[: len(counts) // 60 * 60].reshape(-1, 60)
    dispersion = minutes.var(axis=1, ddof=1) / minutes.mean(axis=1)
    assert 0.9 < np.median(dispersion) < 1.4  # Poisson is 1; three times the counts would be 3
