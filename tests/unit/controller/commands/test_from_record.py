"""`sluice explain --from-record`: recorded decisions made again, and told when they are others."""

import json
from pathlib import Path
from typing import Any

import pytest
from builders import a_snapshot, a_state
from click.testing import CliRunner, Result

from controller.commands.explain import explain
from controller.core.cycle import decide
from controller.core.record import decision_record
from controller.core.state.policy import Policy


def a_record() -> dict[str, Any]:
    snapshot = a_snapshot(a_state())
    record: dict[str, Any] = json.loads(json.dumps(decision_record(snapshot, decide(snapshot, Policy()))))
    return record


def asked(*arguments: str | Path, text: str | None = None) -> Result:
    return CliRunner().invoke(explain, list(map(str, arguments)), input=text)


def test_the_records_of_a_log_are_made_again(tmp_path: Path) -> None:
    log = tmp_path / "operator.jsonl"
    lines: list[Any] = [
        {"message": "started"},
        {"message": "x", "record": a_record()},
        {"message": "y", "record": a_record()},
    ]
    log.write_text("not JSON\n" + "\n".join(map(json.dumps, lines)))
    done = asked("--from-record", log)
    assert done.exit_code == 0, done.output
    assert done.output.count(": same decision") == 2
    assert done.output.splitlines()[-1] == "2 records, 0 differ"


def test_one_record_may_come_from_standard_input_and_is_explained() -> None:
    done = asked("--from-record", "-", "speech/captions", text=json.dumps(a_record()))
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[1] == "  What"  # the first words of an explanation


def test_a_decision_that_is_another_now_is_shown_with_what_differs(tmp_path: Path) -> None:
    record = a_record()
    answer = record["decision"]["pipelines"]["speech/captions"]
    answer["spend_per_hour"] += 1.0
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record, indent=1))
    done = asked("--from-record", path)
    assert done.exit_code == 1
    assert "DIFFERS" in done.output
    assert f"pipelines.speech/captions.spend_per_hour: {answer['spend_per_hour']}, now" in done.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no decision record"),
        ("{}", "has no decision record"),
        ('{"schema": "other"}', "record.schema: 'other': must be"),
        (json.dumps(a_record() | {"snapshot": 1}), "record.snapshot"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    done = asked("--from-record", path)
    assert done.exit_code == 1
    assert words in done.output


def test_a_pipeline_that_no_record_is_about_is_named(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(a_record()))
    done = asked("--from-record", path, "speech/other")
    assert (done.exit_code, "no record is about speech/other" in done.output) == (1, True)


def test_without_a_record_a_pipeline_must_be_named() -> None:
    done = asked()
    assert (done.exit_code, "PIPELINE: is missing" in done.output) == (2, True)
