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


def test_a_demand_of_completed_items_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "completions.yaml"
    text = CONTRACT[1].read_text()
    query = next(line for line in text.splitlines() if line.strip().startswith("query:"))
    own = f"{query.partition('query:')[0]}query: sum(rate(vllm:request_success_total[1m]))"
    path.write_text(text.replace(query, own, 1))
    result = run(CONTRACT[0], path)
    assert result.exit_code == 0
    assert "resources valid" in result.stdout
    assert result.stderr.startswith("warning: ")
    assert "demand.query: vllm:request_success_total: counts completed items" in result.stderr


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
        'metrics.preset: "vlm": must be one of generic, ray-serve, triton, vllm, or the name of a file NAME.toml in '
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


def test_a_dash_is_standard_input() -> None:
    good, bad = CONTRACT[0].read_text(), CONTRACT[0].read_text().replace("device: CPU", "device: TPU")
    assert CliRunner().invoke(validate, ["-"], input=good).stdout == "3 resources valid\n"
    result = CliRunner().invoke(validate, ["-"], input=bad)
    assert result.exit_code == 1
    assert result.stderr.startswith("-:")


def test_a_folder_is_its_manifest_files(tmp_path: Path) -> None:
    for path in CONTRACT:
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "README.md").write_text("# not a manifest")
    assert run(tmp_path).stdout == "4 resources valid\n"
    assert run(tmp_path, tmp_path / CONTRACT[0].name).stdout == "4 resources valid\n"
    (tmp_path / "empty").mkdir()
    result = run(tmp_path / "empty")
    assert result.exit_code == 2
    assert "has no file *.yaml, *.yml or *.json" in result.stderr


@pytest.mark.parametrize("content", ["", "# pools to come\n", "---\n"])
def test_an_empty_file_is_not_valid(tmp_path: Path, content: str) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text(content)
    result = run(path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {path}: nothing to check: empty, or only comments\n"


def test_files_without_resources_of_sluice_are_not_called_valid(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("apiVersion: v1\nkind: ConfigMap\n")
    result = run(path)
    assert result.exit_code == 0
    assert result.stdout == (
        "no SpeechPipeline, ComputePool, ComputeBudget in these files; 1 resource of other kinds not checked\n"
    )


@pytest.mark.parametrize(
    "line", ["  name: {{ .Release.Name }}", "{{- if .Values.on }}", "  x: {{- toYaml .Values.x }}"]
)
def test_a_template_of_helm_is_recognised(tmp_path: Path, line: str) -> None:
    path = tmp_path / "template.yaml"
    path.write_text(f"kind: ComputePool\nmetadata:\n{line}\n")
    assert run(path).stderr.splitlines()[0] == (
        f"{path}:3: is a template of Helm, not a manifest; render it first: helm template CHART | sluice validate -"
    )


@pytest.mark.parametrize(
    ("written", "shown", "rule"),
    [
        ("0.5", "0.5", "must be a string: put it in quotes"),
        (".nan", "NaN", 'must be a decimal number of at least 0 in quotes, such as "0.75"'),
        ("-1", "-1", 'must be a decimal number of at least 0 in quotes, such as "0.75"'),
        ("yes", "true", 'must be a decimal number of at least 0 in quotes, such as "0.75"'),
    ],
)
def test_quotes_are_the_advice_only_where_they_help(tmp_path: Path, written: str, shown: str, rule: str) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(
        "apiVersion: sluice.dev/v1alpha1\nkind: ComputePool\nmetadata: {name: gpu}\nspec:\n  device: GPU\n"
        f"  nodeSelector: {{a: b}}\n  capacity: {{instances: 1}}\n  price: {{perHour: {written}}}\n"
    )
    assert run(path).stderr.splitlines()[0] == f"{path}:8: spec.price.perHour: {shown}: {rule}"
