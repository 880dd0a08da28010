import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from click.testing import CliRunner

from controller import __main__ as program
from controller.commands.completion import complete_for_kubectl, completion


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint(name, f"controller.commands.{name}:{name}", "sluice.commands") for name in ("validate", "doctor")
    ]
    monkeypatch.setattr(program, "entry_points", EntryPoints(points).select)


def words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *typed: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-sluice", *typed])
    complete_for_kubectl()
    return capsys.readouterr().out.splitlines()


def test_kubectl_gets_commands_with_their_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = words(monkeypatch, capsys, "do")
    assert found[0].startswith("doctor\tCheck manifests against the cluster")
    assert found[-1] == ":4"  # no file names


def test_kubectl_gets_options_and_offers_files_for_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert any(line.startswith("--cluster\t") for line in words(monkeypatch, capsys, "doctor", "--cl"))
    assert words(monkeypatch, capsys, "validate", "") == [":0"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script_for_sluice(shell: str) -> None:
    result = CliRunner().invoke(completion, [shell])
    assert result.exit_code == 0
    assert f"_SLUICE_COMPLETE={shell}_complete" in result.stdout


def test_bash_accepts_the_script() -> None:
    script = CliRunner().invoke(completion, ["bash"]).stdout
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_another_shell_is_wrong_usage() -> None:
    assert CliRunner().invoke(completion, ["tcsh"]).exit_code == 2


def test_the_plug_in_of_kubectl_is_the_same_program_and_completes() -> None:
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    scripts = project["scripts"]
    assert scripts["kubectl-sluice"] == scripts["sluice"]
    assert EntryPoint("", scripts["kubectl_complete-sluice"], "").load() is complete_for_kubectl


def test_every_new_command_is_an_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["sluice.commands"]
    for name in ("init", "doctor", "version", "completion"):
        assert EntryPoint(name, points[name], "").load().name == name
