"""Laps that a race keeps: read as they were written, and only for the same race."""

from dataclasses import replace
from pathlib import Path

import pytest
from experiments import a_result

from simulations.experiment.provenance import provenance
from simulations.lab.race.entrants import ENTRANTS, Lap, lap
from simulations.lab.race.kept import FinishedLap, KeptLaps
from simulations.policies.catalogue import POLICIES
from simulations.results.results import Provenance
from simulations.scenario.scenario import load_scenario

RACE = Path(__file__).parents[5] / "simulations" / "scenarios" / "race" / "day.yaml"
SETTINGS = {"target_utilization": 0.5, "windows": (1, 2)}


@pytest.fixture(name="own", scope="module")
def a_lap() -> Lap:
    return lap(ENTRANTS["hpa:trained"], load_scenario(RACE, policies=POLICIES, live=True), seed=2, interval_s=1.0)


@pytest.fixture(name="made", scope="module")
def files_and_versions(own: Lap) -> Provenance:
    return provenance(own.scenario, ())


def finished(made: Provenance) -> FinishedLap:
    return FinishedLap(
        made=made,
        settings=SETTINGS,
        kubernetes="v1.33.0",
        static_peak_cost=None,
        generator_lag_p99_s=0.001,
        max_lag_s=0.005,
        result=replace(a_result("hpa", windows=30), p95_s=None),
    )


def test_a_kept_lap_is_read_as_it_was(tmp_path: Path, own: Lap, made: Provenance) -> None:
    kept = KeptLaps(folder=tmp_path / "laps")
    assert kept.read(own, made, SETTINGS) is None
    kept.write(own, finished(made))
    found = kept.read(own, made, SETTINGS)
    assert found is not None
    assert found.result == finished(made).result
    assert [path.name for path in kept.folder.iterdir()] == ["hpa-trained-2.json.gz"]


def test_a_lap_of_another_race_does_not_count(tmp_path: Path, own: Lap, made: Provenance) -> None:
    kept = KeptLaps(folder=tmp_path)
    kept.write(own, finished(made))
    load = replace(made, sha256={**made.sha256, "captions.yaml": "0" * 64})
    release = replace(made, versions={**made.versions, "sluice": "99.0"})
    assert kept.read(own, load, SETTINGS) is None
    assert kept.read(own, release, SETTINGS) is None
    assert kept.read(own, made, {**SETTINGS, "target_utilization": 0.6}) is None
    assert kept.read(replace(own, seed=3), made, SETTINGS) is None
    assert kept.read(replace(own, entrant=ENTRANTS["hpa"]), made, SETTINGS) is None


def test_a_file_that_was_cut_short_does_not_count(tmp_path: Path, own: Lap, made: Provenance) -> None:
    kept = KeptLaps(folder=tmp_path)
    kept.write(own, finished(made))
    content = kept.path(own).read_bytes()
    kept.path(own).write_bytes(content[: len(content) // 2])
    assert kept.read(own, made, SETTINGS) is None
