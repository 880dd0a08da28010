import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from corpus import CONTRACT

from controller.commands.plan import plan

DEMAND = "--demand=speech/live-captions=800"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(plan, [str(argument) for argument in arguments])


def test_the_contract_example_has_a_plan_with_all_fields() -> None:
    result = run(*CONTRACT[:2], DEMAND, "-o", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    answer = json.loads(result.stdout)
    assert {
        "feasible",
        "cost_per_hour",
        "billed_per_hour",
        "lower_bound_per_hour",
        "gap",
        "proven_optimal",
        "solve_s",
    } <= (answer.keys())
    (pipeline,) = answer["pipelines"]
    assert (pipeline["namespace"], pipeline["name"], pipeline["demand"]) == ("speech", "live-captions", 800)
    assert (pipeline["entry_rate_rps"], pipeline["served_fraction"], pipeline["limited_by"]) == (2500, 1, None)
    assert pipeline["latency_s"] <= pipeline["sla_s"] == 0.25
    assert pipeline["cost_per_hour"] <= 20
    assert [stage["name"] for stage in pipeline["stages"]] == ["vad", "encoder", "decoder", "lm"]
    assert [stage["rate_rps"] for stage in pipeline["stages"]] == [2500, 1125, 1125, 1125]
    assert pipeline["stages"][0]["placements"][0].keys() == {"pool", "replicas", "batch"}
    assert pipeline["steps"][0].keys() == {"stage", "changes", "latency_saved_s", "cost_added_per_hour"}
    assert pipeline["steps"][0]["changes"][0].keys() == {"pool", "replicas", "batch"}
    assert {pool["name"]: pool["limit"] for pool in answer["pools"]} == {"cpu": 40, "gpu": 10, "inferentia": 12}
    assert all(pool["instances"] <= pool["limit"] for pool in answer["pools"])


def test_yaml_says_the_same_as_json() -> None:
    as_json, as_yaml = (run(*CONTRACT[:2], DEMAND, "-o", form).stdout for form in ("json", "yaml"))
    left, right = json.loads(as_json), yaml.safe_load(as_yaml)
    assert left.pop("solve_s") >= 0
    assert right.pop("solve_s") >= 0
    assert left == right


def test_the_table_tells_replicas_latency_cost_and_why() -> None:
    result = run(*CONTRACT[:2], DEMAND)
    assert result.exit_code == 0
    for words in (
        "speech/live-captions",
        "feasible",
        "of 250 ms",
        "of $20.00/h",
        "vad",
        "cpu ×",
        "the next dollar",
        "proven",
    ):
        assert words in result.stdout
    assert "\x1b" not in result.stdout


def test_an_infeasible_plan_is_printed_and_the_answer_is_no() -> None:
    result = run(*CONTRACT[:2], "--demand=speech/live-captions=3000", "-o", "json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert not answer["feasible"]
    assert 0 < answer["pipelines"][0]["served_fraction"] < 1
    assert answer["pipelines"][0]["limited_by"]
    assert answer["gap"] is None
    table = run(*CONTRACT[:2], "--demand=speech/live-captions=3000")
    assert table.exit_code == 1
    assert "of 3,000 streams" in table.stdout


def test_instances_can_be_replaced() -> None:
    result = run(*CONTRACT[:2], DEMAND, "--instances=inferentia=0", "-o", "json")
    pools = {pool["name"]: pool for pool in json.loads(result.stdout)["pools"]}
    assert (pools["inferentia"]["limit"], pools["inferentia"]["instances"]) == (0, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "speech/live-captions: every pipeline needs one"),
        (["--demand=live-captions=8"], "'live-captions': is not in these files"),
        (["--demand=speech/live-captions=many"], "must be NAME=N"),
        (["--demand=speech/live-captions=-1"], "must be NAME=N"),
        (["--demand=speech/live-captions=nan"], "must be NAME=N"),
        ([DEMAND, DEMAND], "is given twice"),
        ([DEMAND, "--instances=gpu=1.5"], "must be a whole number"),
        ([DEMAND, "--instances=tpu=1"], "'tpu': is not in these files"),
        ([DEMAND, "-o", "xml"], "xml"),
    ],
)
def test_wrong_usage_is_2_and_says_what(options: list[str], message: str) -> None:
    result = run(*CONTRACT[:2], *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr


def test_pools_must_be_in_the_files() -> None:
    result = run(CONTRACT[1], DEMAND)
    assert result.exit_code == 2
    assert "no ComputePool cpu, gpu, inferentia" in result.stderr


def test_invalid_manifests_are_reported_as_validate_does(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(CONTRACT[1].read_text().replace("{min: 1, max: 60}", "{min: 61, max: 60}"))
    result = run(CONTRACT[0], path, DEMAND)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{path}:36: spec.stages[0].placements[0].replicas.max" in result.stderr
