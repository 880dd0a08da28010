from importlib import resources
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


def test_a_preset_that_there_is_not_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(CONTRACT[1].read_text().replace("preset: vllm", "preset: vlm"))
    result = run(CONTRACT[0], path)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0].endswith(
        'metrics.preset: "vlm": must be one of generic, triton, vllm, or the name of a file NAME.toml in '
        "--presets-directory; did you mean vllm?"
    )


def test_presets_of_a_folder_may_be_named_and_are_checked(tmp_path: Path) -> None:
    generic = resources.files("profiler").joinpath("presets", "generic.toml").read_text(encoding="utf-8")
    (tmp_path / "ours.toml").write_text(generic)
    (tmp_path / "broken.toml").write_text("freshness = 1")
    path = tmp_path / "pipeline.yaml"
    path.write_text(CONTRACT[1].read_text().replace("preset: vllm", "preset: ours"))
    assert run(CONTRACT[0], path, "--presets-directory", tmp_path).exit_code == 0
    path.write_text(CONTRACT[1].read_text().replace("preset: vllm", "preset: broken"))
    result = run(CONTRACT[0], path, "--presets-directory", tmp_path)
    assert result.exit_code == 1
    assert "broken.toml: freshness: 1: must be the name of a metric" in result.stderr


@pytest.mark.parametrize("arguments", [[], ["/no/such/file.yaml"], ["--wrong"]])
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2
