"""Parts of an experiment: joined, they say what one process says, and parts of something else are refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from small_scenarios import a_scenario

from simulations.experiment.experiment import planned_runs, run_and_bound
from simulations.experiment.hindsight import BoundRequest
from simulations.experiment.parts import InvalidPart, Split
from simulations.experiment.provenance import provenance
from simulations.results.results import BoundResult, RunResult
from simulations.scenario.scenario import Scenario

STEP = ((0.0, 10.0), (40.0, 60.0))


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    folder = tmp_path_factory.mktemp("scenario")
    return a_scenario(folder, load=STEP, warmup_s=20, seeds="[1, 2]", policies="[sluice, hpa]")


def split_in(scenario: Scenario, parts: int, *, seeds: tuple[int, ...] = (1, 2)) -> Split:
    runs = planned_runs(scenario, seeds=seeds)
    bounds = tuple(BoundRequest(what_if=None, seed=seed) for seed in seeds)
    return Split(runs=runs, bounds=bounds, parts=parts, inputs=provenance(scenario, (), runs))


@pytest.fixture(scope="module")
def folder(scenario: Scenario, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parts of the experiment, each made for itself."""
    made = tmp_path_factory.mktemp("parts") / "out"
    split = split_in(scenario, 3)
    for number in (2, 0, 1):
        split.write(made, number, *run_and_bound(scenario, *split.part(number)))
    return made


def timeless(results: tuple[RunResult, ...]) -> list[RunResult]:
    return [replace(result, wall_s=0.0) for result in results]


def test_joined_parts_are_what_one_process_finds(scenario: Scenario, folder: Path) -> None:
    split = split_in(scenario, 3)
    results, bounds = split.join(folder)
    alone, alone_bounds = run_and_bound(scenario, split.runs, split.bounds)

    assert timeless(results) == timeless(alone)
    assert repr(timeless(results)) == repr(timeless(alone)), "also the types are the same"
    assert repr(bounds) == repr(alone_bounds)


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 50])
def test_each_run_and_bound_is_in_one_part(scenario: Scenario, parts: int) -> None:
    split = split_in(scenario, parts)
    chosen = [split.part(number) for number in range(parts)]
    runs = [run for each, _ in chosen for run in each]
    bounds = [bound for _, each in chosen for bound in each]
    assert sorted(map(repr, runs)) == sorted(map(repr, split.runs))
    assert sorted(map(repr, bounds)) == sorted(map(repr, split.bounds))


def test_what_takes_long_is_spread_over_the_parts(scenario: Scenario) -> None:
    split = split_in(scenario, 2)
    ours = [sum(run.policy == "sluice" for run in split.part(number)[0]) for number in range(2)]
    assert ours == [sum(run.policy == "sluice" for run in split.runs) / 2] * 2


def test_missing_parts_are_named(scenario: Scenario, folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "part-1-of-3.json", tmp_path)
    with pytest.raises(InvalidPart, match=r"part-0-of-3\.json, part-2-of-3\.json: missing"):
        split_in(scenario, 3).join(tmp_path)


def test_parts_of_other_arguments_files_or_versions_are_refused(scenario: Scenario, folder: Path) -> None:
    with pytest.raises(InvalidPart, match=r"part-0-of-3\.json: was made with other arguments"):
        split_in(scenario, 3, seeds=(1, 3)).join(folder)
    split = split_in(scenario, 3)
    changed = {"files": replace(split.inputs, sha256={}), "versions": replace(split.inputs, versions={"sluice": "2"})}
    for name, inputs in changed.items():
        with pytest.raises(InvalidPart, match=f"was made with other {name}"):
            replace(split, inputs=inputs).join(folder)


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"results": 1, "found": []}', "\xff"])
def test_a_damaged_part_is_refused(scenario: Scenario, folder: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "part-2-of-3.json").write_text(damage)
    with pytest.raises(InvalidPart, match=r"part-2-of-3\.json: cannot be read as a part"):
        split_in(scenario, 3).join(tmp_path)


def test_a_part_without_some_of_its_runs_is_refused(scenario: Scenario, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "part-1-of-3.json"
    document = json.loads(path.read_text())
    document["results"].pop()
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidPart, match=r"part-1-of-3\.json: lacks some of its runs"):
        split_in(scenario, 3).join(tmp_path)


def test_only_whole_parts_appear_and_anyone_may_read_them(scenario: Scenario, tmp_path: Path) -> None:
    split = split_in(scenario, 50)
    found: tuple[tuple[RunResult, ...], tuple[BoundResult, ...]] = ((), ())
    path = split.write(tmp_path / "a" / "b", 49, *found)
    assert [each.name for each in path.parent.iterdir()] == ["part-49-of-50.json"]
    assert path.stat().st_mode & 0o777 == 0o644
