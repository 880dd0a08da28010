from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from corpus import CONTRACT

from controller.commands.validate import validate


def run(*arguments: object) -> Result:
    return CliRunner().invoke(validate, [str(argument) for argument in arguments])


def test_valid_files_are_counted() -> None:
    result = run(*CONTRACT)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "4 resources valid\n", "")


def test_pools_that_were_not_checked_are_mentioned() -> None:
    result = run(CONTRACT[1])
    assert result.exit_code == 0
    assert "references to pools were not checked" in result.stdout


def test_each_mistake_is_a_line_on_stderr(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(CONTRACT[1].read_text().replace("{min: 1, max: 60}", "{min: 61, max: 60}"))
    result = run(CONTRACT[0], path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"{path}:36: spec.stages[0].placements[0].replicas.max: 60: must be at least min (61)",
        "1 error",
    ]


@pytest.mark.parametrize("arguments", [[], ["/no/such/file.yaml"], ["--wrong"]])
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2
