"""`sluice lab` without a lab: arguments, output and exit status."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from controller.ending import Interrupted
from simulations.commands import lab as command
from simulations.lab.cluster.standing import StandingLab, occupy
from simulations.lab.host.processes import ProcessError
from simulations.lab.session.fault_actions import FaultRefused
from simulations.lab.session.run import Options
from simulations.lab.session.view import RunView
from simulations.scenario.scenario import Scenario

CONTRACT = Path(__file__).parents[3] / "contract"
SCENARIO = """\
name: step
manifests: [pools.yaml, live-captions.yaml]
duration: 4m
seeds: [7, 8]
load:
  - pipeline: speech/live-captions
    trace: azure_llm_2023_code_1s.csv.gz
    column: arrivals
    session: {mean: 60s, cv: "1.3"}
"""


class Runs:
    """Replaces runs on the lab: `options` are those of the calls; `failure` is raised instead of a report."""

    def __init__(self) -> None:
        self.options: list[Options] = []
        self.folders: list[Path] = []
        self.failure: BaseException | None = None
        self.lag_s = 0.001

    def ensure(self, progress: Any) -> object:
        progress("building Kubernetes")
        return object()

    @contextlib.contextmanager
    def run(
        self, _: Scenario, options: Options, folder: Path, __: object, view: RunView, ___: object
    ) -> Iterator[tuple[Any, Any]]:
        assert folder.is_dir()
        self.options.append(options)
        self.folders.append(folder)
        view.say("replaying")
        if self.failure is not None:
            raise self.failure
        yield object(), SimpleNamespace(operator_log=folder / "no-operator.log")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs()
    monkeypatch.setattr(command, "ensure", runs.ensure)
    monkeypatch.setattr(command, "run", runs.run)
    monkeypatch.setattr(
        command,
        "lab_result",
        lambda _: SimpleNamespace(
            backlogs=(),
            summary=SimpleNamespace(generator_lag_p99_s=runs.lag_s),
            to_json=lambda: {"summary": {"generator_lag_p99_s": runs.lag_s}},
        ),
    )
    monkeypatch.setattr(command, "live_page", lambda *_, **__: "<!doctype html>")
    return runs


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario in the current folder, apart from the lab of this machine."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "intranet")
    monkeypatch.setenv("SLUICE_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name in ("pools.yaml", "live-captions.yaml"):
        (tmp_path / name).write_text((CONTRACT / name).read_text())
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(command.lab, [str(argument) for argument in arguments])


def test_the_last_line_on_stdout_is_the_absolute_path_of_the_report(runs: Runs, scenario: Path) -> None:
    result = invoke("run", scenario, "--report", "deep/er/report.json")

    path = scenario.parent / "deep" / "er" / "report.json"
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, f"report: {path}")
    assert json.loads(path.read_text()) == {"summary": {"generator_lag_p99_s": runs.lag_s}}


def test_what_happens_meanwhile_is_told_line_by_line_when_stdout_is_piped(runs: Runs, scenario: Path) -> None:
    assert invoke("run", scenario).stdout.splitlines()[:-2] == ["building Kubernetes", "replaying"]
    assert len(runs.options) == 1


def test_without_a_place_for_the_report_it_goes_below_the_current_folder(runs: Runs, scenario: Path) -> None:
    assert invoke("run", scenario).stdout.endswith(f"report: {scenario.parent}/reports/step-7.json\n")
    assert invoke("run", scenario, "--seed", 3).stdout.endswith(f"report: {scenario.parent}/reports/step-3.json\n")
    assert [options.seed for options in runs.options] == [7, 3]


def test_flags_reach_the_run(runs: Runs, scenario: Path) -> None:
    invoke("run", scenario, "--scale", "0.25", "--interval", "5", "--no-operator")
    assert runs.options == [Options(seed=7, scale=0.25, operator=False, interval_s=5.0)]


@pytest.mark.parametrize(
    ("line", "arguments", "interval_s"),
    [("", (), 2.0), ("interval: 3s\n", (), 3.0), ("interval: 3s\n", ("--interval", 4), 4.0)],
)
def test_the_interval_is_that_of_the_option_or_the_scenario_or_the_lab(
    runs: Runs, scenario: Path, line: str, arguments: tuple[object, ...], interval_s: float
) -> None:
    scenario.write_text(scenario.read_text() + line)
    invoke("run", scenario, *arguments)
    assert [options.interval_s for options in runs.options] == [interval_s]


def test_the_run_s_folder_goes_with_it(runs: Runs, scenario: Path) -> None:
    invoke("run", scenario)
    runs.failure = ProcessError("etcd ended with exit status 1")
    invoke("run", scenario)
    assert len(runs.folders) == 2
    assert not any(folder.exists() for folder in runs.folders)


def test_clients_keep_away_from_proxies_on_their_way_to_the_lab(runs: Runs, scenario: Path) -> None:
    invoke("run", scenario)
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "intranet,127.0.0.1"
    assert runs.options


def test_a_load_that_was_late_makes_the_run_invalid_and_says_what_to_do(runs: Runs, scenario: Path) -> None:
    runs.lag_s = 0.0051
    result = invoke("run", scenario)

    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].startswith("report: "), "it is there all the same"
    assert result.stderr.splitlines()[-1] == (
        "invalid: the load generator was late by 5.1 ms (p99), more than 5 ms: "
        "this machine is too slow for the load; reduce it with --scale"
    )


def test_an_invalid_scenario_is_told_line_by_line(runs: Runs, scenario: Path) -> None:
    scenario.write_text(SCENARIO.replace("duration: 4m", "duration: 4x").replace("seeds: [7, 8]", "warm: 5s"))
    result = invoke("run", scenario)

    assert (result.exit_code, result.stdout) == (1, "")
    assert sorted(line.split(": ")[:2] for line in result.stderr.splitlines()) == [
        [f"{scenario}:3", "duration"],
        [f"{scenario}:4", "warm"],
    ]
    assert runs.options == []


def test_a_policy_that_there_is_not_is_a_mistake_in_the_lab_too(runs: Runs, scenario: Path) -> None:
    scenario.write_text(f"{SCENARIO}policies: [sluice, keeda]\n")
    result = invoke("run", scenario)

    assert result.exit_code == 1
    assert result.stderr == f'{scenario}:10: policies[1]: "keeda": no such policy; did you mean keda?\n'
    assert runs.options == []


def test_a_mistake_in_a_manifest_is_told_where_it_is(runs: Runs, scenario: Path) -> None:
    manifest = scenario.parent / "live-captions.yaml"
    manifest.write_text(manifest.read_text().replace("{min: 1, max: 60}", "{min: 61, max: 60}"))
    result = invoke("run", scenario)

    assert result.exit_code == 1
    assert result.stderr == f"{manifest}:36: spec.stages[0].placements[0].replicas.max: 60: must be at least min (61)\n"
    assert runs.options == []


def test_a_manifest_that_the_lab_cannot_run_is_refused_before_anything_is_built(runs: Runs, scenario: Path) -> None:
    pools = scenario.parent / "pools.yaml"
    pools.write_text(pools.read_text().replace("capacity: {", "capacity: {readyNodes: true} # "))
    result = invoke("run", scenario)
    assert result.exit_code == 1
    assert "spec.capacity.instances: must be given; the lab creates that many nodes" in result.stderr
    assert "building" not in result.stdout
    assert runs.options == []


def test_a_load_that_nobody_can_carry_is_told_before_anything_is_built(runs: Runs, scenario: Path) -> None:
    scenario.write_text(SCENARIO.replace("column: arrivals", "column: arrivals\n    copies: 10000"))
    result = invoke("run", scenario)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"{scenario}:6: load[0]: ")
    assert runs.options == []


@pytest.mark.parametrize(
    "failure",
    [ProcessError("etcd ended"), FaultRefused("set ComputePool/gpu: no")],
)
def test_what_ends_a_run_is_told_in_a_line(runs: Runs, scenario: Path, failure: Exception) -> None:
    runs.failure = failure
    result = invoke("run", scenario)
    assert result.exit_code == 1
    assert "report: " not in result.stdout
    assert result.stderr == f"Error: {failure}\n"


def test_a_run_that_a_signal_ends_has_no_report(runs: Runs, scenario: Path) -> None:
    runs.failure = Interrupted(signal.SIGTERM)
    result = invoke("run", scenario)
    assert result.exit_code == 143
    assert "report: " not in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "/no/such/scenario.yaml"],
        ["run", "scenario.yaml", "--scale", "0"],
        ["run", "scenario.yaml", "--scale", "1.5"],
        ["run", "scenario.yaml", "--scale", "nan"],
        ["run", "scenario.yaml", "--interval", "inf"],
        ["run", "scenario.yaml", "--report", "pools.yaml/report.json"],
        ["run", "scenario.yaml", "--interval", "0.1"],
        ["run", "scenario.yaml", "--seed", "-1"],
        ["run", "scenario.yaml", "--wrong"],
        ["run", "scenario.yaml", "scenario.yaml"],
        ["up", "/no/such/manifest.yaml"],
        ["down", "now"],
        ["sideways"],
    ],
)
def test_wrong_usage_is_2(runs: Runs, scenario: Path, arguments: list[str]) -> None:
    assert invoke(*arguments).exit_code == 2
    assert runs.options == []
    assert scenario.exists()


@pytest.mark.usefixtures("scenario")
def test_down_with_none_up_says_so_and_is_fine() -> None:
    result = invoke("down")
    assert (result.exit_code, result.stdout) == (0, "no lab is up\n")


def test_down_ends_nobody_else_when_the_lab_was_killed(scenario: Path) -> None:
    folder = scenario.parent / "cache" / "standing"
    os.close(occupy(folder))
    StandingLab(pid=os.getpid(), kubeconfig="", kubectl="", prometheus_url="", operator_url="").write(folder)

    assert invoke("down").stdout == "no lab is up\n"


def test_down_while_the_lab_is_starting_is_too_early(scenario: Path) -> None:
    lock = occupy(scenario.parent / "cache" / "standing")
    result = invoke("down")
    os.close(lock)
    assert (result.exit_code, result.stderr) == (1, "Error: the lab is starting or stopping; try again in a moment\n")


@pytest.mark.usefixtures("runs")
def test_up_twice_is_refused(scenario: Path) -> None:
    folder = scenario.parent / "cache" / "standing"
    lock = occupy(folder)
    result = invoke("up", "pools.yaml")
    os.close(lock)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == f"Error: a lab is already up in {folder}; stop it with: sluice lab down"


def test_up_checks_the_manifests_first(scenario: Path) -> None:
    manifest = scenario.parent / "live-captions.yaml"
    manifest.write_text(manifest.read_text().replace("percentile: 95", "percentile: 101"))
    result = invoke("up", "pools.yaml", "live-captions.yaml")
    assert result.exit_code == 1
    assert "spec.sla.percentile: 101" in result.stderr
    assert not (scenario.parent / "cache").exists()


def test_up_refuses_what_the_lab_cannot_run_before_anything_is_built(scenario: Path) -> None:
    result = invoke("up", "live-captions.yaml")
    assert result.exit_code == 1
    assert "pool cpu: must be among the manifests" in result.stderr
    assert not (scenario.parent / "cache").exists()


def test_up_tells_how_building_goes(runs: Runs, scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert invoke("up", "pools.yaml").stderr.startswith("building Kubernetes\n")


@pytest.mark.usefixtures("runs")
def test_a_lab_that_does_not_come_up_is_told_with_the_end_of_its_log(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no etcd here\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    result = invoke("up", "pools.yaml")

    assert result.exit_code == 1
    assert "the lab did not come up" in result.stderr
    assert result.stderr.endswith("no etcd here\n")
    os.close(occupy(scenario.parent / "cache" / "standing"))  # and the next call may start one
