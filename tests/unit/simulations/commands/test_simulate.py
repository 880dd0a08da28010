"""`sluice simulate` as a person calls it; the runs themselves are made up."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from experiments import CONTRACT, a_check, a_result

from simulations.commands.simulate import simulate
from simulations.experiment import experiment
from simulations.experiment.experiment import RunRequest
from simulations.experiment.hindsight import BoundRequest
from simulations.results.results import BoundResult, RunResult
from simulations.scenario.scenario import Scenario

SCENARIO = str(CONTRACT / "scenario.yaml")


class Simulator:
    """Stands in for the runs, bounds and self-checks, and knows what was asked for."""

    def __init__(self) -> None:
        self.runs: list[RunRequest] = []
        self.bounds: list[BoundRequest] = []
        self.checks = [a_check()]
        self.error: BaseException | None = None

    def run_and_bound(
        self,
        _: Scenario,
        runs: Sequence[RunRequest],
        bounds: Sequence[BoundRequest],
        *,
        jobs: int,
        progress: Callable[[], None],
    ) -> tuple[tuple[RunResult, ...], tuple[BoundResult, ...]]:
        assert jobs >= 1
        if self.error is not None:
            raise self.error
        self.runs, self.bounds = list(runs), list(bounds)
        results = []
        for request in runs:
            result = a_result(request.policy, seed=request.seed, what_if=request.what_if, tuning=request.tuning)
            results.append(replace(result, cost=10.0 if request.policy == "sluice" else 12.0))
            progress()
        found = [
            BoundResult(what_if=r.what_if, seed=r.seed, cost=8.0, windows_share=0.995, cost_per_hour=None)
            for r in bounds
        ]
        return tuple(results), tuple(found)


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> Simulator:
    found = Simulator()
    monkeypatch.setattr(experiment, "run_and_bound", found.run_and_bound)
    checks = SimpleNamespace(self_checks=lambda seed: tuple(found.checks))
    monkeypatch.setitem(sys.modules, "simulations.engine.self_checks", checks)
    return found


def call(*arguments: str) -> Result:
    return CliRunner().invoke(simulate, [SCENARIO, *arguments])


def test_the_table_has_every_policy_and_what_if(simulator: Simulator) -> None:
    result = call()
    assert result.exit_code == 0, result.output
    assert {run.policy for run in simulator.runs if run.what_if is None} >= {"sluice", "hpa", "static-peak"}
    assert {(run.policy, run.what_if) for run in simulator.runs if run.what_if} == {
        ("sluice", "half-budget"),
        ("sluice", "no-inferentia"),
        ("sluice", "double-load"),
    }
    assert "captions-morning, what if half-budget (3 seeds; bound $8.00)" in result.stdout
    assert result.stdout.startswith(
        "Sluice served 398 of 400 open streams (mean) as promised (99.5 %; the SLA asks for"
    )
    assert "At the peak, if the service time of a stage is not as given" in result.stdout
    assert "1 self-check against theory passed." in result.stdout


def test_every_what_if_and_seed_gets_its_bound(simulator: Simulator) -> None:
    call("--what-if", "half-budget", "--policy", "sluice", "--seeds", "5,6")
    assert [(bound.what_if, bound.seed) for bound in simulator.bounds] == [
        (None, 5),
        (None, 6),
        ("half-budget", 5),
        ("half-budget", 6),
    ]


def test_json_is_all_there_is_on_standard_output(simulator: Simulator, tmp_path: Path) -> None:
    result = call("-o", "json", "--seeds", "4", "--policy", "hpa", "--out", str(tmp_path))
    document: dict[str, Any] = json.loads(result.stdout)
    assert document["seeds"] == [4]
    runs = [(run["policy"], run["what_if"]) for run in document["runs"] if run["tuning"] == "default"]
    assert runs == [("hpa", what_if) for what_if in (None, "half-budget", "no-inferentia", "double-load")]
    assert result.stderr == f"report: {(tmp_path / 'report.html').resolve()}\n"


def test_the_report_and_its_numbers_are_left_in_the_folder(simulator: Simulator, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    result = call("--policy", "sluice", "--policy", "hpa", "--out", str(folder))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"report: {(folder / 'report.html').resolve()}"
    assert "<h1>captions-morning</h1>" in (folder / "report.html").read_text()
    document = json.loads((folder / "results.json").read_text())
    assert document["runs"][0]["cost_over_bound"] == 1.25
    assert document["provenance"]["sha256"].keys() == {
        "scenario.yaml",
        "pools.yaml",
        "live-captions.yaml",
        "azure_llm_2023_conv_1s.csv.gz",
        "simulations/policies/trained.json",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "kada"], "'kada': no such policy; did you mean keda?"),
        (["--policy", "xyz"], "'xyz': no such policy; there are sluice, static-peak"),
        (["--what-if", "halfbudget"], "'halfbudget': no such what-if; did you mean half-budget?"),
        (["--seeds", "1,x"], "'1,x': must be whole numbers of at least 0, such as 1,2,3."),
        (["--seeds", "1,-2"], "must be whole numbers"),
        (["--seeds", "1,1"], "must name each seed once"),
        (["--seeds", ""], "must be whole numbers"),
        (["-o", "yaml"], "'yaml' is not one of"),
        (["--jobs", "0"], "--jobs"),
    ],
)
def test_wrong_usage_is_told_and_nothing_runs(simulator: Simulator, arguments: list[str], message: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert simulator.runs == []


def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(simulator: Simulator, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = call("--out", str(tmp_path / "file" / "below"))
    assert result.exit_code == 2
    assert f"{tmp_path / 'file'} must be a folder with write permission" in result.stderr
    assert simulator.runs == []


def test_parts_that_are_made_one_by_one_are_joined_to_the_report_of_one_process(
    simulator: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, alone = tmp_path / "parts", tmp_path / "alone"
    made = 0
    for index in range(3):
        monkeypatch.setenv("JOB_COMPLETION_INDEX", str(index))
        result = call("--out", str(parts), "--parts", "3")
        assert result.stdout == f"part: {parts / f'part-{index}-of-3.json'}\n"
        assert not (parts / "report.html").exists()
        made += len(simulator.runs) + len(simulator.bounds)
    monkeypatch.delenv("JOB_COMPLETION_INDEX")
    simulator.runs = []
    monkeypatch.setattr(sys, "argv", ["sluice", "simulate", "s.yaml", "--parts", "3", "--join", "--out", "o"])
    joined = call("--out", str(parts), "--parts", "3", "--join")
    assert simulator.runs == [], "nothing is run again"
    monkeypatch.setattr(sys, "argv", ["sluice", "simulate", "s.yaml", "--out", "o"])
    whole = call("--out", str(alone))

    assert made == len(simulator.runs) + len(simulator.bounds)
    for name in ("report.html", "results.json"):
        assert (parts / name).read_bytes() == (alone / name).read_bytes()
    assert joined.stdout.splitlines()[:-1] == whole.stdout.splitlines()[:-1]


def test_the_part_to_make_can_be_named(simulator: Simulator, tmp_path: Path) -> None:
    result = call("--out", str(tmp_path), "--parts", "3", "--part", "2", "-o", "json")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"part: {tmp_path / 'part-2-of-3.json'}\n"


def test_missing_parts_are_told_and_no_report_is_written(simulator: Simulator, tmp_path: Path) -> None:
    call("--out", str(tmp_path), "--parts", "2", "--part", "1")
    result = call("--out", str(tmp_path), "--parts", "2", "--join")
    assert result.exit_code == 1
    assert result.stderr == f"Error: {tmp_path}: part-0-of-2.json: missing; make these parts first\n"
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--join", "--out", "o"], "--join: needs --parts"),
        (["--parts", "2", "--part", "0"], "--parts: needs --out"),
        (["--parts", "2", "--out", "o"], "needs --part, the part to make; in an Indexed Job"),
        (["--parts", "2", "--out", "o", "--part", "2"], "--part: 2: must be below --parts, 2"),
        (["--parts", "0", "--out", "o"], "--parts"),
    ],
)
def test_parts_that_cannot_be_are_wrong_usage(
    simulator: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert simulator.runs == []


def test_an_invalid_scenario_is_told_with_file_and_line(simulator: Simulator, tmp_path: Path) -> None:
    for name in ("pools.yaml", "live-captions.yaml"):
        (tmp_path / name).write_text((CONTRACT / name).read_text())
    path = tmp_path / "scenario.yaml"
    path.write_text((CONTRACT / "scenario.yaml").read_text().replace("static-peak, hpa", "static-peak, hpx"))
    result = CliRunner().invoke(simulate, [str(path)])
    assert result.exit_code == 1
    assert f"{path}:" in result.stderr
    assert "hpx" in result.stderr
    assert simulator.runs == []


def test_what_a_what_if_asks_that_is_not_simulated_is_told_before_anything_runs(
    simulator: Simulator, tmp_path: Path
) -> None:
    for name in ("pools.yaml", "live-captions.yaml"):
        (tmp_path / name).write_text((CONTRACT / name).read_text())
    path = tmp_path / "scenario.yaml"
    path.write_text((CONTRACT / "scenario.yaml").read_text().replace("copies: 8", "copies: 10000"))
    arguments = [str(path), "--policy", "sluice", "--seeds", "7"]

    result = CliRunner().invoke(simulate, arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"{path}:23: whatIf[2].load: ")
    assert simulator.runs == []
    assert CliRunner().invoke(simulate, [*arguments, "--what-if", "half-budget"]).exit_code == 0


def test_an_interrupt_ends_it_as_shells_do(simulator: Simulator) -> None:
    simulator.error = KeyboardInterrupt()
    result = call()
    assert result.exit_code == 130
    assert result.stderr == "interrupted\n"


def test_a_failed_self_check_is_told_everywhere(simulator: Simulator, tmp_path: Path) -> None:
    simulator.checks = [a_check(), a_check(name="M/D/1: mean wait", ok=False)]
    result = call("--out", str(tmp_path))
    assert "self-check failed: M/D/1: mean wait: do not rely on these numbers" in result.stderr
    assert "FAILED self-checks against theory, do not rely on these numbers: M/D/1: mean wait." in result.stdout
    assert 'role="alert"' in (tmp_path / "report.html").read_text()


def test_without_a_terminal_there_is_no_progress_bar(simulator: Simulator) -> None:
    assert call().stderr == ""
