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
from corpus import ROOT
from experiments import CONTRACT, a_check, a_result

from simulations.commands.simulate import simulate
from simulations.experiment import experiment
from simulations.experiment.experiment import Executor, RunRequest
from simulations.experiment.hindsight import BoundRequest
from simulations.results.results import BoundResult, RunResult
from simulations.scenario.scenario import Scenario, load_scenario

SCENARIO = str(CONTRACT / "scenario.yaml")


class Simulator:
    """Stands in for the runs, bounds and self-checks, and knows what was asked for."""

    def __init__(self) -> None:
        self.runs: list[RunRequest] = []
        self.bounds: list[BoundRequest] = []
        self.checks = [a_check()]

    def run_and_bound(
        self,
        _: Scenario,
        runs: Sequence[RunRequest],
        bounds: Sequence[BoundRequest],
        *,
        jobs: int,
        progress: Callable[[], None],
        executor: Executor | None = None,
    ) -> tuple[tuple[RunResult, ...], tuple[BoundResult, ...]]:
        assert jobs >= 1
        assert executor is None
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


EXAMPLES = [str(ROOT / "crds" / "examples" / f"{name}.yaml") for name in ("meeting-notes", "pools")]
GRAFANA = """\
"Time","captions","notes"
2026-11-01 00:00:00,34.2,1
2026-11-01 00:01:00,NaN,1
2026-11-01 00:02:00,40,1
2026-11-01 00:03:00,10,1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with an export of Grafana."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grafana.csv").write_text(GRAFANA)
    return tmp_path


def of_manifests(*arguments: str) -> Result:
    return CliRunner().invoke(simulate, [*EXAMPLES, *arguments])


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
        (["--executor", "ray"], "--executor: Ray is not installed: pip install 'sluice-operator[ray]'"),
        (["--executor", "ray", "--jobs", "2"], "--jobs: is for --executor local"),
        (["--executor", "cloud"], "'cloud' is not one of"),
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


def test_a_failed_self_check_is_told_everywhere(simulator: Simulator, tmp_path: Path) -> None:
    simulator.checks = [a_check(), a_check(name="M/D/1: mean wait", ok=False)]
    result = call("--out", str(tmp_path))
    assert "self-check failed: M/D/1: mean wait: do not rely on these numbers" in result.stderr
    assert "FAILED self-checks against theory, do not rely on these numbers: M/D/1: mean wait." in result.stdout
    assert 'role="alert"' in (tmp_path / "report.html").read_text()


def test_without_a_terminal_there_is_no_progress_bar(simulator: Simulator) -> None:
    assert call().stderr == ""


def test_manifests_and_a_trace_are_simulated_and_leave_a_scenario_to_edit(simulator: Simulator, folder: Path) -> None:
    result = of_manifests("--trace", "grafana.csv", "--series", "captions", "--instances", "c7i=20", "-o", "json")

    assert result.exit_code == 0, result.output
    assert {run.policy for run in simulator.runs} == {"sluice"}
    notes = json.loads(result.stdout)["notes"]
    assert "meetings/meeting-notes: mode Recommend runs as Auto" in notes
    assert any("grafana.csv: 1 of 4 values are missing" in note for note in notes)
    for note in notes:
        assert f"note: {note}\n" in result.stderr
    assert "note: scenario: scenario.yaml: edit it, and run `sluice simulate scenario.yaml`\n" in result.stderr
    scenario = load_scenario(folder / "scenario.yaml", own_servers=True)
    assert (scenario.file.duration, scenario.file.begins) == ("240s", "2026-11-01T00:00:00Z")
    assert scenario.file.instances == {"c7i": 20}
    (load,) = scenario.file.load
    assert (load.trace, load.column, load.series) == ("grafana.csv", "streams", "captions")

    again = CliRunner().invoke(simulate, ["scenario.yaml", "-o", "json"])
    assert json.loads(again.stdout)["notes"] == notes


def test_the_same_command_keeps_the_scenario_and_another_one_keeps_what_was_edited(
    simulator: Simulator, folder: Path
) -> None:
    load = ("--demand", "100", "--instances", "c7i=20")
    assert of_manifests(*load).exit_code == 0
    assert of_manifests(*load).exit_code == 0
    edited = (folder / "scenario.yaml").read_text().replace("window: 1m", "window: 30s")
    (folder / "scenario.yaml").write_text(edited)

    result = of_manifests(*load)
    assert result.exit_code == 2
    assert "--scenario: scenario.yaml: exists with other content, perhaps your changes; run it with" in result.stderr
    assert (folder / "scenario.yaml").read_text() == edited
    assert of_manifests(*load, "--scenario", "runs/other.yaml").exit_code == 0
    trace = (folder / "runs" / "other-meetings-meeting-notes.csv").read_text()
    assert trace == "t_s,streams\n0,100\n3600,100\n"


@pytest.mark.parametrize(
    ("names", "arguments"),
    [
        (["batch-transcription", "pools"], ["--demand", "20"]),
        (["meeting-notes", "pools"], ["--demand", "20"]),
        (["shared-model", "pools"], ["--demand", "telephony/calls=9", "--demand", "telephony/voicemail=3"]),
        (["budget", "meeting-notes", "pools"], ["--demand", "20"]),
        (
            ["batch-transcription", "meeting-notes", "shared-model", "pools", "budget"],
            [
                "--demand",
                "archive/batch-transcription=20",
                "--demand",
                "meetings/meeting-notes=20",
                "--trace",
                "telephony/calls=grafana.csv",
                "--series",
                "telephony/calls=notes",
                "--demand",
                "telephony/voicemail=3",
            ],
        ),
    ],
    ids=lambda value: value[0],
)
@pytest.mark.usefixtures("folder")
def test_the_examples_are_simulated(simulator: Simulator, names: list[str], arguments: list[str]) -> None:
    files = [str(ROOT / "crds" / "examples" / f"{name}.yaml") for name in names]
    asked = CliRunner().invoke(simulate, [*files, *arguments])
    assert asked.exit_code == 2
    assert "--instances: c7i: a pool without spec.capacity.instances needs it (--instances c7i=N)" in asked.stderr
    assert not Path("scenario.yaml").exists()

    result = CliRunner().invoke(simulate, [*files, *arguments, "--instances", "c7i=20"])
    assert result.exit_code == 0, result.output
    assert simulator.runs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "meeting-notes.yaml: has resources and no load; give --trace FILE with recorded load, or --demand N"),
        (
            ["--trace", "grafana.csv"],
            "grafana.csv:1: has no column 'streams', but 2 series; name one (`series`, or --series): captions, notes",
        ),
        (["--trace", "gone.csv"], "--trace: gone.csv: no such file or bundled trace"),
        (
            ["--demand", "1:9"],
            "--demand: meetings/meeting-notes: a range of loads is for `sluice plan`; a run needs one",
        ),
        (["--demand", "9", "--trace", "grafana.csv"], "--demand: meetings/meeting-notes: has --trace too"),
        (["--demand", "9", "--series", "notes"], "--series: meetings/meeting-notes: needs --trace"),
        (["--demand", "9", "--session", "soon"], "'soon': must be a time above 0, such as 8m."),
        (["--demand", "9", "--session", "0s"], "'0s': must be a time above 0"),
        (["--demand", "9", "--instances", "g6=1.5"], "--instances: 'g6=1.5': must be a whole number"),
        (["--demand", "9", SCENARIO], "name one SCENARIO, or MANIFESTs with --trace or --demand, and not both"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_wrong_usage_of_manifests_is_named_and_nothing_is_written(
    simulator: Simulator, arguments: list[str], message: str
) -> None:
    result = of_manifests("--instances", "c7i=20", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert simulator.runs == []
    assert not Path("scenario.yaml").exists()


def test_several_pipelines_need_a_load_each_by_name(simulator: Simulator, folder: Path) -> None:
    files = [str(ROOT / "crds" / "examples" / f"{name}.yaml") for name in ("shared-model", "pools")]
    limits = ["--instances", "c7i=20"]
    unnamed = CliRunner().invoke(simulate, [*files, *limits, "--trace", "grafana.csv"])
    assert "--trace: 'grafana.csv': must begin with NAMESPACE/NAME=; the files have telephony/calls, " in unnamed.stderr
    missing = CliRunner().invoke(simulate, [*files, *limits, "--demand", "telephony/calls=3"])
    assert "--trace: telephony/voicemail: missing; every pipeline in the files needs one (--trace" in missing.stderr


def test_a_scenario_names_its_own_load(simulator: Simulator) -> None:
    result = call("--trace", "grafana.csv")
    assert result.exit_code == 2
    assert "--trace: is for MANIFESTs" in result.stderr


def test_a_manifest_without_service_times_leaves_no_files(simulator: Simulator, folder: Path) -> None:
    text = Path(EXAMPLES[0]).read_text().replace('serviceTime: {fixed: 90ms, cv: "0.35"}', "startup: 5s")
    (folder / "unknown.yaml").write_text(text)
    result = CliRunner().invoke(simulate, ["unknown.yaml", EXAMPLES[1], "--demand", "9", "--instances", "c7i=20"])
    assert result.exit_code == 1
    assert "placements[0].serviceTime: (absent): required in a scenario" in result.stderr
    assert {path.name for path in folder.iterdir()} == {"unknown.yaml", "grafana.csv"}


def test_the_instances_of_a_scenario_can_be_replaced_and_are_part_of_parts(
    simulator: Simulator, tmp_path: Path
) -> None:
    part = ("--out", str(tmp_path), "--parts", "1", "--part", "0")
    assert call(*part, "--instances", "gpu=3").exit_code == 0
    result = call("--out", str(tmp_path), "--parts", "1", "--join")
    assert result.exit_code == 1
    assert "was made with other arguments" in result.stderr
    assert "'tpu': is not in these files" in call("--instances", "tpu=3").stderr
