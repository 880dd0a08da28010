"""The `sluice` program as a whole."""

import re
import tomllib
from importlib.metadata import EntryPoint, EntryPoints

import click
import pytest
from click.testing import CliRunner
from corpus import ROOT
from program_tables import commands, leaves

from controller import __main__ as program
from controller.commands.help_page import MORE

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


@pytest.mark.parametrize(
    ("name", "hint"), [("sideways", "No such command 'sideways'. See"), ("pln", "'pln'. Did you mean 'plan'? See")]
)
def test_an_unknown_command_is_wrong_usage(name: str, hint: str) -> None:
    result = CliRunner().invoke(program.main, [name])
    assert result.exit_code == 2
    assert hint in result.stderr


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands are those that `pyproject.toml` declares, also where an older version is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = [EntryPoint(name, place, GROUP) for name, place in project["entry-points"][GROUP].items()]
    monkeypatch.setattr(program, "entry_points", EntryPoints(points).select)


def page(command: str, *, option: str = "--help") -> str:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(program.main, [*command.split(), option])
    assert result.exit_code == 0, result.output
    return result.stdout


LEAVES = {name: leaf for top, command in commands().items() for name, leaf in leaves(command, top)}
EXPLAINED = {
    *(
        "ADDRESS",
        "ARN",
        "COMMAND",
        "DEVICE",
        "DIRECTORY",
        "FILE",
        "FOLDER",
        "HOST",
        "LABEL",
        "MODEL",
        "N",
        "NAME",
        "NAMESPACE",
        "PLAN",
        "POOL",
    ),
    *("PORT", "REGION", "SELECTOR", "SERVICE", "SOURCE", "STAGE", "URL", "USD", "VALUE", "UNITS", "SECONDS", "SHARE"),
}
"""Names of values that say what the value is."""


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("command", ["", *commands(), *LEAVES])
def test_help_fits_a_screen_and_cuts_no_text(command: str) -> None:
    text = page(command)
    assert len(text.splitlines()) <= 40
    assert max(len(line) for line in text.splitlines()) <= 80
    assert not re.search(r"[a-z]\.\.\.( |$)", text, re.MULTILINE)


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("command", ["", *LEAVES])
def test_help_has_an_example_and_explains_the_names_of_values(command: str) -> None:
    text = page(command)
    assert re.search(r"^  Examples?:\s+.*sluice ", text, re.MULTILINE)
    assert command in text[text.index("Example") :]
    named = {name for value in re.findall(r"^  (?:-\w, )?--[\w-]+ (\S+)", text, re.MULTILINE) for name in upper(value)}
    assert named - EXPLAINED <= ({"TIME"} if "TIME is a duration such as" in text else set())


def upper(value: str) -> set[str]:
    return set(re.findall(r"\b[A-Z]+\b", value))


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("command", [name for name, leaf in LEAVES.items() if len(leaf.params) > 12])
def test_what_help_leaves_out_is_in_help_all(command: str) -> None:
    flags = {each.opts[-1] for each in LEAVES[command].params if isinstance(each, click.Option) and not each.hidden}
    short, whole = page(command), page(command, option="--help-all") if "--help-all" in page(command) else page(command)
    listed = set(re.findall(r"--[\w-]+", whole))
    assert flags <= listed
    missing = flags - set(re.findall(r"--[\w-]+", short))
    grouped = {name: line for (line, _), names in MORE.items() for name in names}
    assert all(grouped[name] in " ".join(short.split()) for name in missing)


def test_every_option_that_only_help_all_describes_exists() -> None:
    flags = {flag for leaf in LEAVES.values() for each in leaf.params for flag in each.opts}
    assert {name for names in MORE.values() for name in names} <= flags
