"""Decisions in the operator's log, read while the operator writes it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from builders import a_pool, a_snapshot, a_spec, a_state, applied, pools

from controller.core.cycle import decide
from controller.core.messages.diagnosis import cause_words
from controller.core.record import decision_record
from controller.core.state.diagnosis import Because, Cause, Finding
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Snapshot
from simulations.lab.session.decisions import DecisionLog

FLEET = pools(a_pool("cpu"), a_pool("inferentia"), a_pool("gpu"))


def record(snapshot: Snapshot) -> dict[str, Any]:
    return decision_record(snapshot, decide(snapshot, Policy()))


def line(record: dict[str, Any]) -> bytes:
    return json.dumps({"level": "info", "message": "…", "record": record}).encode() + b"\n"


def test_a_record_of_the_operator_tells_changes_and_reason(tmp_path: Path) -> None:
    log = tmp_path / "operator.log"
    log.write_bytes(line(record(a_snapshot(a_state(demand=10.0), fleet=FLEET))))

    (decision,) = DecisionLog(log).latest()

    assert (decision.now_s, decision.pipeline) == (10_000.0, "speech/captions")
    assert sorted((change.stage, change.before) for change in decision.changes) == [("encoder", 0), ("vad", 0)]
    assert all(change.after >= 1 for change in decision.changes)
    assert "10" in decision.reason


def test_each_decision_is_told_once_as_the_log_grows(tmp_path: Path) -> None:
    log = tmp_path / "operator.log"
    followed = DecisionLog(log)
    assert followed.latest() == [], "the operator has not begun"

    before = a_snapshot(a_state(demand=10.0), fleet=FLEET)
    whole = line(record(before))
    log.write_bytes(whole[:50])
    assert followed.latest() == [], "half a line"
    log.write_bytes(whole)
    assert len(followed.latest()) == 1
    assert followed.latest() == []

    after = applied(before, decide(before, Policy()))
    with log.open("ab") as more:
        more.write(line(record(after)))
    (decision,) = followed.latest()
    assert decision.changes == ()


def test_a_pipeline_whose_decision_is_no_other_is_not_told_again_with_those_of_others(tmp_path: Path) -> None:
    quiet, busy = a_spec(name="quiet"), a_spec(name="busy")
    log = tmp_path / "operator.log"
    first = a_snapshot(a_state(quiet), a_state(busy, demand=10.0), fleet=FLEET)
    second = replace(a_snapshot(a_state(quiet), a_state(busy, demand=100.0), fleet=FLEET), now_s=first.now_s + 15)
    log.write_bytes(line(record(first)) + line(record(second)))

    told = [(decision.now_s, decision.pipeline) for decision in DecisionLog(log).latest()]

    assert told == [(10_000.0, "speech/quiet"), (10_000.0, "speech/busy"), (10_015.0, "speech/busy")]


def test_the_causes_of_a_missed_sla_are_read_with_their_evidence(tmp_path: Path) -> None:
    snapshot = a_snapshot(a_state(demand=10.0), fleet=FLEET)
    decision = decide(snapshot, Policy())
    (own,) = decision.pipelines
    finding = Finding(
        cause=Cause.DATA_PLANE, because=Because.RETRIES, confidence=0.8, numbers={"arrives": 90.0, "offered": 40.0}
    )
    diagnosed = replace(decision, pipelines=(replace(own, diagnosis=(finding,)),))
    log = tmp_path / "operator.log"
    log.write_bytes(line(decision_record(snapshot, diagnosed)) + line(decision_record(snapshot, decision)))

    named, well = DecisionLog(log).latest()

    (cause,) = named.causes
    words = cause_words(finding, own)
    assert (cause.cause, cause.because, cause.stage, cause.confidence) == ("DataPlane", "Retries", None, 0.8)
    assert (cause.evidence, cause.remedy, cause.cost_per_hour) == (words.evidence, words.remedy, None)
    assert cause.evidence == ("90 items/s arrive, and the demand is 40 items/s",)
    assert well.causes == ()


def test_other_lines_and_other_schemas_are_passed_over(tmp_path: Path) -> None:
    good = record(a_snapshot(a_state(), fleet=FLEET))
    log = tmp_path / "operator.log"
    log.write_bytes(
        b'Traceback (most recent call last):\n\n[1]\n"text"\n\xff\n{"record": 3}\n'
        + line({**good, "schema": "sluice.dev/decision-record/v0"})
        + line(good)
    )
    assert len(DecisionLog(log).latest()) == 1
