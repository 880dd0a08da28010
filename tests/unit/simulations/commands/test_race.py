"""`sluice race` refuses what the rivals cannot run, before anything starts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from experiments import a_result

from simulations.commands import race as command
from simulations.commands.race import race
from simulations.lab.race.entrants import Lap
from simulations.lab.race.kept import FinishedLap
from simulations.results.results import Provenance
from simulations.scenario.scenario import Scenario

RACE = Path(__file__).parents[4] / "simulations" / "scenarios" / "race" / "day.yaml"
DEMO = RACE.parents[1] / "demo" / "scenario.yaml"
BACKLOG = RACE.parents[1] / "backlog" / "scenario.yaml"


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a lab was started")

    monkeypatch.setattr(command, "ensure", refuse)


def test_metrics_that_the_rivals_cannot_read_are_an_error_that_names_the_stage() -> None:
    answer = CliRunner().invoke(race, [str(DEMO), "--entrant", "hpa", "--not-simulated"])
    assert answer.exit_code == 1
    assert "stage encoder: metrics.preset: 'triton': must be generic in a race" in answer.stderr


def test_an_entrant_that_there_is_not_is_wrong_usage() -> None:
    answer = CliRunner().invoke(race, [str(RACE), "--entrant", "knative"])
    assert answer.exit_code == 2
    assert "'knative' is not one of 'sluice', 'static-peak', 'hpa', 'hpa:trained'" in answer.stderr


def test_a_backlog_is_for_sluice_alone() -> None:
    answer = CliRunner().invoke(race, [str(BACKLOG), "--entrant", "hpa", "--entrant", "sluice"])
    assert answer.exit_code == 2
    assert "hpa: not for a scenario with spec.demand.backlog; only sluice is" in " ".join(answer.stderr.split())


def test_an_invalid_scenario_is_named_by_field(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text("name: x\nmanifests: [none.yaml]\nduration: 1m\npace: 0.5\nload: []\n")
    answer = CliRunner().invoke(race, [str(file)])
    assert answer.exit_code == 1
    assert "pace" in answer.output + answer.stderr


def test_each_entrant_runs_once_for_each_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, Scenario]] = []

    class Stop(Exception):
        pass

    def laps(found: list[Lap], *_: object) -> None:
        asked.extend((own.entrant.name, own.seed, own.scenario) for own in found)
        raise Stop

    monkeypatch.setattr(command, "_live", laps)
    with pytest.raises(Stop):
        race.main(
            [str(RACE), "--entrant", "sluice", "--entrant", "hpa", "--seed", "4", "--seed", "5"], standalone_mode=False
        )
    assert [(name, seed) for name, seed, _ in asked] == [("sluice", 4), ("hpa", 4), ("sluice", 5), ("hpa", 5)]


def test_a_race_goes_on_where_it_ended_and_repeats_late_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, int]] = []
    lags = {("sluice", 1): 0.001, ("hpa", 1): 0.050}

    def finish(own: Lap, made: Provenance, settings: Mapping[str, object], *_: object) -> FinishedLap:
        ran.append((own.entrant.name, own.seed))
        return FinishedLap(
            made=made,
            settings=settings,
            kubernetes="v1.33.0",
            static_peak_cost=None,
            generator_lag_p99_s=lags[own.entrant.name, own.seed],
            max_lag_s=0.005,
            result=replace(a_result(own.entrant.policy), seed=own.seed),
        )

    monkeypatch.setattr(command, "ensure", lambda _: "programs")
    monkeypatch.setattr(command, "_run", finish)
    arguments = [str(RACE), "--entrant", "sluice", "--entrant", "hpa", "--seed", "1", "--not-simulated"]
    arguments += ["--out", str(tmp_path)]
    answer = CliRunner().invoke(race, arguments)
    assert answer.exit_code == 1
    assert "late by 50.0 ms (p99)" in answer.stderr
    assert "Runs to repeat: hpa, seed 1" in answer.stderr
    lags["hpa", 1] = 0.002
    answer = CliRunner().invoke(race, arguments)
    assert answer.exit_code == 0, answer.stderr
    assert "run 1 of 2: sluice, seed 1: kept in" in answer.stderr
    assert ran == [("sluice", 1), ("hpa", 1), ("hpa", 1)]
    assert (tmp_path / "report.html").exists()
