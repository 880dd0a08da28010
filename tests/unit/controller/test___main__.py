"""The `sluice` program as a whole."""

import re
from importlib.metadata import EntryPoint, EntryPoints

import pytest
from click.testing import CliRunner

from controller import __main__ as program

GROUP = "sluice.commands"


@pytest.fixture
def without_the_lab_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing `sluice lab` fails on the first module that only the extra brings."""
    installed = EntryPoints(
        [
            EntryPoint("lab", "not_installed:lab", GROUP),
            EntryPoint("validate", "controller.commands.validate:validate", GROUP),
        ]
    )
    monkeypatch.setattr(program, "entry_points", installed.select)


def test_every_command_is_listed_with_what_it_does() -> None:
    result = CliRunner().invoke(program.main, ["--help"])

    assert result.exit_code == 0
    for name in ("validate", "plan", "operator", "explain", "demo", "lab"):
        assert f"\n  {name} " in result.stdout
    assert "Not installed" not in result.stdout


@pytest.mark.usefixtures("without_the_lab_extra")
def test_without_the_lab_extra_the_other_commands_are_there_all_the_same() -> None:
    result = CliRunner().invoke(program.main, ["--help"])

    assert result.exit_code == 0
    assert "Not installed: needs not_installed" in result.stdout
    assert CliRunner().invoke(program.main, ["validate", "--help"]).exit_code == 0


@pytest.mark.usefixtures("without_the_lab_extra")
def test_a_command_whose_extra_is_missing_says_what_to_install() -> None:
    result = CliRunner().invoke(program.main, ["lab", "up", "pools.yaml", "--wrong"])

    assert result.exit_code == 1
    assert result.stderr == "Error: lab needs not_installed: install sluice-operator[lab]\n"


def test_an_unknown_command_is_wrong_usage() -> None:
    assert CliRunner().invoke(program.main, ["sideways"]).exit_code == 2


@pytest.mark.parametrize("command", ["validate", "plan", "init", "doctor", "operator", "simulate", "backtest", "demo"])
def test_help_has_an_example_and_names_of_values(command: str) -> None:
    text = CliRunner(env={"COLUMNS": "80"}).invoke(program.main, [command, "--help"]).stdout
    assert "Examples:\n    sluice " in text.replace("  Examples:\n", "Examples:\n")
    assert "--prometheus-url TEXT" not in text
    assert "RANGE" not in text


@pytest.mark.parametrize(("command", "lines"), [([], 24), (["validate"], 24), (["init"], 40), (["plan"], 40)])
def test_help_fits_a_screen(command: list[str], lines: int) -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(program.main, [*command, "--help"])
    assert len(result.stdout.splitlines()) <= lines
    assert not re.search(r"[a-z]\.\.\.", result.stdout)  # a text that is cut
