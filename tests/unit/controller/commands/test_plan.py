import json
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from corpus import CONTRACT, EXAMPLES

from controller.commands.plan import plan

DEMAND = "--demand=speech/live-captions=800"
MORE = "--demand=speech/live-captions=1200"
"""A load for which the greedy search takes steps."""
LIGHT = "--demand=speech/live-captions=100"
SHARED_FILE = EXAMPLES / "shared-model.yaml"
EXAMPLE_FILES = sorted(
    EXAMPLES / f"{name}.yaml" for name in ("batch-transcription", "budget", "meeting-notes", "pools")
)


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
    more = json.loads(run(*CONTRACT[:2], MORE, "-o", "json").stdout)["pipelines"][0]
    assert more["steps"][0].keys() == {"stage", "changes", "latency_saved_s", "cost_added_per_hour"}
    assert more["steps"][0]["changes"][0].keys() == {"pool", "replicas", "batch"}
    assert {pool["name"]: pool["limit"] for pool in answer["pools"]} == {"cpu": 40, "gpu": 10, "inferentia": 12}
    assert all(pool["instances"] <= pool["limit"] for pool in answer["pools"])


def test_the_plan_says_what_it_would_cost_with_other_service_times() -> None:
    peak = ("--demand", "speech/live-captions=1200")
    result = run(*CONTRACT[:2], *peak)
    heading, *lines = result.stdout.splitlines()[-5:]
    assert re.fullmatch(r"if the service time of a stage is not as given \(the plan costs \$\d+\.\d\d/h\):", heading)
    assert [line.split(":")[0] for line in lines] == ["  vad", "  encoder", "  decoder", "  lm"]
    for line in lines[:2]:
        assert re.fullmatch(r"  \w+: 50% shorter \$[\d.]+/h \([−+]\d+%\), 50% longer \$[\d.]+/h \(\+\d+%\)", line)
    assert re.search(r"50% longer only \d\d\.\d% of the load is served within the SLA", lines[3])
    answer = json.loads(run(*CONTRACT[:2], *peak, "-o", "json").stdout)
    longer = [one["longer"] for one in answer["sensitivity"]]
    assert [one["cost_per_hour"] > answer["cost_per_hour"] for one in longer[:2]] == [True] * 2
    assert longer[3]["served_fraction"] < 1


def test_the_error_of_declared_service_times_is_told_apart_from_that_of_the_model(tmp_path: Path) -> None:
    def lines(confidence: str) -> tuple[int, str]:
        path = tmp_path / f"{confidence}.yaml"
        text = CONTRACT[1].read_text().replace(", confidence: Low", "")
        path.write_text(re.sub(r"(serviceTime: \{[^}]*)\}", rf"\1, confidence: {confidence}}}", text))
        told = run(CONTRACT[0], path, DEMAND).stdout
        found = re.search(r"p95 \d+ ms ± (\d+)% of 250 ms", told)
        assert found is not None
        return int(found[1]), next(line for line in told.splitlines() if "service times are declared" in line)

    for confidence, error in (("High", 10), ("Medium", 25), ("Low", 50)):
        model, declared = lines(confidence)
        assert model <= 15
        assert f"encoder ± {error}%" in declared


def test_yaml_says_the_same_as_json() -> None:
    as_json, as_yaml = (run(*CONTRACT[:2], DEMAND, "-o", form).stdout for form in ("json", "yaml"))
    left, right = json.loads(as_json), yaml.safe_load(as_yaml)
    assert left.pop("solve_s") >= 0
    assert right.pop("solve_s") >= 0
    assert left == right


def test_the_table_tells_replicas_latency_cost_proof_and_why() -> None:
    result = run(*CONTRACT[:2], MORE)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "speech/live-captions: the SLA is met"
    assert re.fullmatch(
        r"  1,200 streams \(3,750 items/s\), p95 \d+ ms.* of 250 ms.*, \$\d+\.\d\d/h of \$20\.00/h", lines[1]
    )
    assert lines[2].startswith("  service times are declared, not measured, and as wrong as their confidence says: ")
    assert [line.split()[0] for line in lines[4:8]] == ["vad", "encoder", "decoder", "lm"]
    assert re.search(r"^vad .* cpu × \d+$", result.stdout, re.MULTILINE)
    assert re.search(
        r"^  1\. [a-z]+ [+−]\d+ on [a-z]+.*: [+−][\d.]+ ms (for|and|saving) \$", result.stdout, re.MULTILINE
    )
    assert "the next dollar would go to: " in result.stdout
    assert re.search(r"one more (any pool|[a-z]+) instance saves|one more instance of any pool", result.stdout)
    assert re.search(
        r"^optimal: no plan under \$\d+\.\d\d/h meets \d+ ms(, composed of the stages)?$", result.stdout, re.MULTILINE
    )
    assert "only as overflow" in result.stdout
    assert "\x1b" not in result.stdout
    assert not [line for line in lines if line != line.rstrip()]


@pytest.mark.parametrize("width", [80, 160])
def test_on_a_terminal_lines_keep_to_its_width(width: int) -> None:
    for extra in ([DEMAND], ["--demand=speech/live-captions=200:1200:3"], [LIGHT, "--frontier"]):
        arguments = [str(part) for part in [*CONTRACT[:2], *extra]]
        result = CliRunner(env={"FORCE_COLOR": "1", "COLUMNS": str(width)}).invoke(plan, arguments)
        assert result.exit_code == 0
        assert "inferentia" in result.stdout
        plain = re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)
        assert plain != result.stdout
        assert max(map(len, plain.splitlines())) <= width


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
    assert "the SLA cannot be met for the whole load, limited by " in table.stdout
    assert re.search(
        r"  [\d,]+ of 3,000 streams \(9,375 items/s\), \d\d\.\d%, can be served within 250 ms: ", table.stdout
    )
    assert "optimal" not in table.stdout


def test_too_little_money_is_answered_with_what_would_do_and_what_the_money_buys(tmp_path: Path) -> None:
    path = tmp_path / "poor.yaml"
    path.write_text(CONTRACT[1].read_text().replace('perHour: "20"', 'perHour: "15.6"'))
    cost = json.loads(run(*CONTRACT[:2], MORE, "-o", "json").stdout)["cost_per_hour"]
    answer = json.loads(run(CONTRACT[0], path, MORE, "-o", "json").stdout)["pipelines"][0]
    assert answer["limited_by"] == "Budget"
    assert answer["required_budget_per_hour"] == pytest.approx(cost)
    assert answer["best_latency_s"] > 0
    assert answer["admissible"] == pytest.approx(1200 * answer["served_fraction"])
    table = run(CONTRACT[0], path, MORE).stdout
    assert "limited by the budget of $15.60/h" in table
    assert f"the whole load needs a budget of ${math.ceil(cost * 100) / 100:.2f}/h" in table
    assert re.search(r"best latency of the whole load within \$15\.60/h.*: \d+ ms", table)


def test_an_sla_below_the_bare_service_time_is_told_as_such_with_the_best_there_is(tmp_path: Path) -> None:
    path = tmp_path / "hasty.yaml"
    path.write_text(CONTRACT[1].read_text().replace("latency: 250ms", "latency: 25ms"))
    result = run(CONTRACT[0], path, DEMAND)
    assert result.exit_code == 1
    assert "the SLA cannot be met: no allocation within the replica bounds reaches 25 ms" in result.stdout
    assert "none of 800 streams" in result.stdout
    assert "no budget is enough" in result.stdout
    assert re.search(r"best latency of the whole load within \$20\.00/h.*: \d+ ms", result.stdout)


def test_no_load_is_said_to_be_no_load() -> None:
    result = run(*CONTRACT[:2], "--demand=speech/live-captions=0")
    assert result.exit_code == 0
    assert "no load: the plan has the lowest replicas that the bounds allow" in result.stdout


def test_a_range_of_loads_has_one_line_each_with_the_cost_of_a_stream_hour() -> None:
    load = "--demand=speech/live-captions=400:3000:3"
    result = run(*CONTRACT[:2], load)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == (
        "speech/live-captions: 400 to 3,000 streams within 250 ms and a budget of $20.00/h"
    )
    assert re.search(
        r"^ +400 +\$[\d.]+/h +\$0\.01\d+ .*vad \d cpu, encoder .*, lm \d gpu +all$", result.stdout, re.MULTILINE
    )
    assert re.search(r"^ +3,000 +\$[\d.]+/h +- .* \d\d\.\d%: \w+", result.stdout, re.MULTILINE)
    assert "cheapest per stream-hour: $0.01" in result.stdout
    assert "highest of these loads that is served completely within the SLA: 400 streams" in result.stdout
    answer = json.loads(run(*CONTRACT[:2], load, "-o", "json").stdout)
    assert [point["demand"] for point in answer["loads"]] == [400, 1700, 3000]
    assert [answer["loads"][k]["feasible"] for k in (0, 2)] == [True, False]
    first = answer["loads"][0]
    alone = json.loads(run(*CONTRACT[:2], "--demand=speech/live-captions=400", "-o", "json").stdout)["pipelines"][0]
    assert first["cost_per_hour"] == alone["cost_per_hour"]
    assert first["cost_per_stream_hour"] == pytest.approx(alone["cost_per_hour"] / 400)
    assert first["stages"] == alone["stages"]


def test_a_range_of_requests_is_priced_by_the_thousand_beside_the_other_pipelines() -> None:
    result = run(
        *EXAMPLE_FILES,
        "--demand=archive/batch-transcription=10:20:2",
        "--demand=meetings/meeting-notes=100",
        "--instances=c7i=20",
        "-o",
        "json",
    )
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["unit"] == "Requests"
    for point in answer["loads"]:
        assert point["cost_per_stream_hour"] is None
        assert point["cost_per_1000_requests"] == pytest.approx(point["cost_per_hour"] / (point["demand"] * 3.6))
        assert point["billed_per_hour"] > point["cost_per_hour"]


def test_a_range_that_nowhere_meets_the_sla_is_a_no() -> None:
    result = run(*CONTRACT[:2], "--demand=speech/live-captions=4000:5000:2")
    assert result.exit_code == 1
    assert "none of these loads can be served completely within the SLA" in result.stdout


def test_the_frontier_goes_from_the_cheapest_plan_to_the_fastest() -> None:
    result = run(*CONTRACT[:2], LIGHT, "--frontier", "-o", "json")
    assert result.exit_code == 0
    corners = json.loads(result.stdout)["corners"]
    assert len(corners) > 5
    for cheaper, faster in pairwise(corners):
        assert cheaper["cost_per_hour"] < faster["cost_per_hour"]
        assert cheaper["latency_s"] > faster["latency_s"]
    assert {corner["meets_sla"] == (corner["latency_s"] <= 0.25) for corner in corners} == {True}
    assert corners[-1]["meets_sla"]
    table = run(*CONTRACT[:2], LIGHT, "--frontier")
    assert table.exit_code == 0
    lines = table.stdout.splitlines()
    assert lines[0] == ("speech/live-captions: cost of latency at 100 streams, from the cheapest plan to the fastest")
    assert re.search(r"^ *\d+ ms +\$[\d.]+/h +vad \d+ cpu, encoder ", lines[2])
    assert re.search(r"^ *\d+ ms +\$[\d.]+/h +−[\d.]+ ms for \$[\d.]+/h +[a-z]+ \d+ ", lines[3])
    assert re.search(r"^the SLA of 250 ms costs (about )?\$\d+\.\d\d/h$", table.stdout, re.MULTILINE)
    assert re.search(r"^best latency for \$20\.00/h: (about )?[\d.]+ ms$", table.stdout, re.MULTILINE)


def test_the_name_after_frontier_may_be_left_out_before_files() -> None:
    result = run("--frontier", *CONTRACT[:2], "--demand=speech/live-captions=20", "-o", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["name"] == "live-captions"


def test_a_load_that_nothing_carries_has_no_frontier() -> None:
    result = run(*CONTRACT[:2], "--demand=speech/live-captions=100000", "--frontier")
    assert result.exit_code == 1
    assert "no allocation within pools and replica bounds has capacity for 100,000 streams" in result.stdout


def test_the_composition_can_be_chosen_and_is_told() -> None:
    answers = {
        mode: json.loads(run(*CONTRACT[:2], DEMAND, "-o", "json", f"--composition={mode}").stdout)
        for mode in ("sum", "rss")
    }
    assert {mode: answer["composition"] for mode, answer in answers.items()} == {"sum": "Sum", "rss": "Rss"}
    assert answers["rss"]["cost_per_hour"] <= answers["sum"]["cost_per_hour"]
    assert "percentiles summed" in run(*CONTRACT[:2], DEMAND, "--composition=sum").stdout


def test_a_plan_that_may_not_search_still_answers() -> None:
    answer = json.loads(run(*CONTRACT[:2], DEMAND, "-o", "json", "--search-effort=0").stdout)
    assert answer["feasible"]
    proven = json.loads(run(*CONTRACT[:2], DEMAND, "-o", "json").stdout)
    assert answer["cost_per_hour"] >= proven["cost_per_hour"]


def test_what_runs_now_is_kept_where_a_change_does_not_pay(tmp_path: Path) -> None:
    now = tmp_path / "now.json"
    now.write_text(run(*CONTRACT[:2], DEMAND, "-o", "json").stdout)
    same = run(*CONTRACT[:2], DEMAND, f"--current={now}")
    assert "compared with the current replicas: nothing changes" in same.stdout
    more = run(*CONTRACT[:2], "--demand=speech/live-captions=1000", f"--current={now}")
    assert re.search(r"compared with the current replicas: vad \d+→\d+ on cpu, .* \(\d+ replicas", more.stdout)


def test_instances_can_be_replaced() -> None:
    result = run(*CONTRACT[:2], DEMAND, "--instances=inferentia=0", "-o", "json")
    pools = {pool["name"]: pool for pool in json.loads(result.stdout)["pools"]}
    assert (pools["inferentia"]["limit"], pools["inferentia"]["instances"]) == (0, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "speech/live-captions: missing; every pipeline in the files needs one"),
        (["--demand=live-captions=8"], "'live-captions': is not in these files"),
        (["--demand=speech/live-captions=many"], "must be NAME=N"),
        (["--demand=many"], "'speech/live-captions=many': must be NAME=N"),
        (["--demand=8", DEMAND], "is given twice"),
        (["--demand=speech/live-captions=-1"], "must be NAME=N"),
        (["--demand=speech/live-captions=nan"], "must be NAME=N"),
        (["--demand=speech/live-captions=1_000"], "must be NAME=N with a number ≥ 0, written as 1000 or 2.5"),
        (["--demand=speech/live-captions=١٠"], "must be NAME=N"),
        (["--demand=speech/live-captions=1:1_0"], "HIGH must be a number"),
        ([DEMAND, DEMAND], "is given twice"),
        ([DEMAND, "--instances=gpu=1.5"], "must be a whole number"),
        ([DEMAND, "--instances=tpu=1"], "'tpu': is not in these files"),
        ([DEMAND, "-o", "xml"], "xml"),
        (["--demand=live-captions=8"], "did you mean 'speech/live-captions'?"),
        (["--demand=speech/live-caption=8"], "did you mean 'speech/live-captions'?"),
        (["--demand=other/thing=8"], "the files have speech/live-captions"),
        (["--demand=speech/live-captions=9:3"], "'speech/live-captions=9:3': LOW must be below HIGH"),
        (["--demand=speech/live-captions=3:3"], "LOW must be below HIGH"),
        (["--demand=speech/live-captions=-1:3"], "LOW must be a number ≥ 0"),
        (["--demand=speech/live-captions=1:many"], "HIGH must be a number ≥ 0"),
        (["--demand=speech/live-captions=1:nan"], "HIGH must be a number ≥ 0"),
        (["--demand=speech/live-captions=1:3:1"], "STEPS must be a whole number from 2 to 1,000"),
        (["--demand=speech/live-captions=1:3:2.5"], "STEPS must be a whole number from 2 to 1,000"),
        (["--demand=speech/live-captions=1:3:4:5"], "must be NAME=N or NAME=LOW:HIGH[:STEPS]"),
        (["--demand=speech/live-captions=1e308"], "must be at most 1e+12 items per second"),
        (["--demand=speech/live-captions=1:3", "--frontier"], "--frontier needs one load"),
        ([DEMAND, "--frontier=speech/captions"], "did you mean 'speech/live-captions'?"),
        ([DEMAND, "--search-effort=-1"], "--search-effort"),
        ([DEMAND, "--composition=max"], "--composition"),
        ([DEMAND, f"--current={CONTRACT[0]}"], "must be a plan as `sluice plan -o json` prints it"),
    ],
)
def test_wrong_usage_is_2_and_says_what(options: list[str], message: str) -> None:
    result = run(*CONTRACT[:2], *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr


def test_the_name_of_the_only_pipeline_can_be_left_out_of_the_demand() -> None:
    for short, long in (("--demand=100", LIGHT), ("--demand=400:3000:3", "--demand=speech/live-captions=400:3000:3")):
        answers = [json.loads(run(*CONTRACT[:2], option, "-o", "json").stdout) for option in (short, long)]
        assert {key: value for key, value in answers[0].items() if key != "solve_s"} == {
            key: value for key, value in answers[1].items() if key != "solve_s"
        }


def test_the_demand_of_one_of_several_pipelines_needs_its_name() -> None:
    result = run(*EXAMPLE_FILES, "--demand=100", "--instances=c7i=20")
    assert result.exit_code == 2
    assert (
        "--demand: '100': must be NAME=N with a number ≥ 0; the files have archive/batch-transcription, "
        "meetings/meeting-notes" in result.stderr
    )


def test_only_one_pipeline_may_have_a_range_and_a_frontier_is_that_of_one() -> None:
    both = ["--demand=archive/batch-transcription=10", "--demand=meetings/meeting-notes=100", "--instances=c7i=20"]
    ranged = run(*EXAMPLE_FILES, *[f"{load}:200" if "=c7i" not in load else load for load in both])
    assert ranged.exit_code == 2
    assert "only one pipeline may have a range" in ranged.stderr
    curve = run(*EXAMPLE_FILES, *both, "--frontier")
    assert curve.exit_code == 2
    assert (
        "the files have several pipelines; name one of archive/batch-transcription, meetings/meeting-notes"
        in curve.stderr
    )


def test_an_earlier_plan_of_something_else_is_not_what_runs_now(tmp_path: Path) -> None:
    now = tmp_path / "now.json"
    now.write_text('{"pipelines": []}')
    result = run(*CONTRACT[:2], DEMAND, f"--current={now}")
    assert result.exit_code == 2
    assert "must be a plan of a pipeline of these files" in result.stderr


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


def without(removed: str, folder: Path) -> Path:
    """Write the contract's pipeline without `removed` to a file in `folder` and return its path."""
    manifest = CONTRACT[1].read_text()
    assert manifest.count(removed) == 1
    path = folder / "captions.yaml"
    path.write_text(manifest.replace(removed, ""))
    return path


LM_TIME = 'serviceTime: {fixed: 15ms, perItem: 2ms, cv: "0.5"}'


def learned_file(folder: Path) -> Path:
    learned = {
        "fixed_s": 0.015,
        "per_item_s": 0.002,
        "cv": 0.5,
        "startup_s": None,
        "session_slots": None,
        "relative_error": 0.05,
    }
    stages = [{"name": "lm", "placements": [{"pool": "gpu", "learned": learned}]}]
    path = folder / "learned.json"
    path.write_text(json.dumps({"namespace": "speech", "name": "live-captions", "stages": stages}))
    return path


def test_numbers_that_are_not_declared_are_named_and_nothing_is_planned(tmp_path: Path) -> None:
    manifest = without(LM_TIME, tmp_path)
    result = run(CONTRACT[0], manifest, DEMAND)
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert re.fullmatch(
        re.escape(str(manifest)) + r":\d+: spec\.stages\[3\]\.placements\[0\]\.serviceTime: \(absent\): "
        "not declared; give it, or --learned FILE with what the operator has measured",
        line,
    )


def test_a_cv_that_is_not_declared_is_named(tmp_path: Path) -> None:
    result = run(CONTRACT[0], without(', cv: "0.5"', tmp_path), DEMAND)
    assert result.exit_code == 1
    assert "spec.stages[3].placements[0].serviceTime.cv: (absent): not declared; give it" in result.stderr


def test_a_plan_with_learned_numbers_is_that_with_the_same_numbers_declared(tmp_path: Path) -> None:
    declared, learned = (
        json.loads(run(CONTRACT[0], *files, DEMAND, "-o", "json").stdout)
        for files in (
            [CONTRACT[1]],
            [without(LM_TIME, tmp_path), f"--learned={learned_file(tmp_path)}"],
        )
    )
    assert declared.pop("solve_s") >= 0
    assert learned.pop("solve_s") >= 0
    assert learned == declared


def test_a_learned_file_without_the_placement_does_not_stand_in(tmp_path: Path) -> None:
    manifest = without(LM_TIME, tmp_path)
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"namespace": "speech", "name": "live-captions", "stages": []}))
    result = run(CONTRACT[0], manifest, DEMAND, f"--learned={other}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "serviceTime: (absent): not declared, and not in the file of --learned" in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "must be JSON, as `sluice explain -o json` prints it"),
        ("[]", "document: must be a mapping of fields"),
        ('{"namespace": "speech", "name": "other", "stages": []}', "is about speech/other, which is not in the"),
    ],
)
def test_a_learned_file_of_another_form_is_wrong_usage(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    path.write_text(content)
    result = run(*CONTRACT[:2], DEMAND, f"--learned={path}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert str(path) in result.stderr


def test_a_learned_number_without_end_is_wrong_usage(tmp_path: Path) -> None:
    path = learned_file(tmp_path)
    path.write_text(path.read_text().replace("0.015", "1" + "0" * 400))
    result = run(*CONTRACT[:2], DEMAND, f"--learned={path}")
    assert result.exit_code == 2
    assert "must be JSON" in result.stderr


def test_only_one_learned_file_is_taken_for_a_pipeline(tmp_path: Path) -> None:
    path = learned_file(tmp_path)
    result = run(*CONTRACT[:2], DEMAND, f"--learned={path}", f"--learned={path}")
    assert result.exit_code == 2
    assert "a second file about speech/live-captions" in result.stderr


SHARED = (EXAMPLES / "pools.yaml", SHARED_FILE, "--demand=telephony/calls=200", "--instances=c7i=20")


def test_a_shared_stage_is_planned_once_for_the_sum_and_its_cost_is_split() -> None:
    result = run(*SHARED, "--demand=telephony/voicemail=50", "-o", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    answer = json.loads(result.stdout)
    calls, voicemail = answer["pipelines"]
    recognizer, asr = calls["stages"][0], voicemail["stages"][0]
    assert recognizer["placements"] == asr["placements"]
    assert recognizer["rate_rps"] == asr["rate_rps"] == pytest.approx(400 + 50)
    assert answer["cost_per_hour"] == pytest.approx(calls["cost_per_hour"] + voicemail["cost_per_hour"], abs=1e-5)
    replicas = {
        (p["name"], s["name"], e["pool"]): e["replicas"]
        for p in answer["pipelines"]
        for s in p["stages"]
        for e in s["placements"]
    }
    own = {key: count for key, count in replicas.items() if key[1] != "asr"}
    prices = {"g6": 0.8048, "c7i": 0.357}
    size = {"punctuation": 4}
    total = sum(count * prices[pool] / size.get(stage, 1) for (_, stage, pool), count in own.items())
    assert answer["cost_per_hour"] == pytest.approx(total, abs=1e-5)
    assert answer["lower_bound_per_hour"] <= answer["cost_per_hour"] + 1e-6
    alone = json.loads(run(*SHARED, "--demand=telephony/voicemail=0", "-o", "json").stdout)["pipelines"][0]
    assert alone["stages"][0]["rate_rps"] == 400


def test_without_advice_no_budget_is_called_too_small() -> None:
    result = run(*SHARED, "--demand=telephony/voicemail=200")
    assert result.exit_code == 1
    assert "telephony/voicemail: the SLA cannot be met for the whole load, limited by the budget" in result.stdout
    assert "no budget is enough" not in result.stdout


def test_a_range_or_a_frontier_of_pipelines_that_share_a_stage_is_refused() -> None:
    ranged = run(*SHARED, "--demand=telephony/voicemail=10:20:2")
    assert ranged.exit_code == 2
    assert "telephony/voicemail: a range is not possible where pipelines share a stage" in ranged.stderr
    curve = run(*SHARED, "--demand=telephony/voicemail=10", "--frontier=telephony/calls")
    assert curve.exit_code == 2
    assert "not possible where pipelines share a stage" in curve.stderr


def test_a_compute_budget_in_the_files_caps_the_pipelines_of_the_namespaces_that_it_selects(tmp_path: Path) -> None:
    budget = tmp_path / "budget.yaml"
    files = (EXAMPLES / "pools.yaml", EXAMPLES / "batch-transcription.yaml", budget)
    arguments = (*files, "--demand=archive/batch-transcription=40", "--instances=c7i=20", "-o", "json")
    text = (EXAMPLES / "budget.yaml").read_text().replace('perHour: "60"', 'perHour: "2"')

    budget.write_text(text)
    outside = json.loads(run(*arguments).stdout)["pipelines"][0]
    assert outside["limited_by"] != "Budget/research"

    budget.write_text(
        f"{text}---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: archive, labels: {{team: research}}}}\n"
    )
    result = run(*arguments)
    inside = json.loads(result.stdout)["pipelines"][0]
    assert result.exit_code == 1
    assert inside["limited_by"] == "Budget/research"
    assert inside["cost_per_hour"] <= 2.0 < outside["cost_per_hour"]


def test_a_compute_budget_that_selects_no_pipeline_is_named(tmp_path: Path) -> None:
    budget = {
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "ComputeBudget",
        "metadata": {"name": "team"},
        "spec": {"namespaceSelector": {"matchLabels": {"team": "research"}}, "perHour": "5"},
    }
    (tmp_path / "budget.yaml").write_text(yaml.safe_dump(budget))
    result = run(*CONTRACT[:2], tmp_path / "budget.yaml", DEMAND)
    assert result.exit_code == 0
    assert result.stderr == "ComputeBudget team selects none of the pipelines in these files\n"
