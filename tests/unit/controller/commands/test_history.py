"""Reading what happened: from the Events of a cluster, and from the operator's log."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from api_server import api_server
from builders import ENCODER, VAD, a_snapshot, a_state

from controller.commands.history import history_document, history_in_cluster, history_in_records
from controller.core.cycle import decide
from controller.core.messages.history import History, history_lines
from controller.core.record import decision_record
from controller.core.state.policy import Policy
from controller.kube.gateway import Forbidden, Gateway

EVENTS = "/api/v1/namespaces/speech/events"
RESOURCE = {
    "metadata": {"name": "captions", "namespace": "speech", "uid": "u"},
    "status": {"summary": {"health": "OK", "replicas": "vad:2"}},
}


def an_event(message: str, at: str, *, uid: str = "u", **more: object) -> dict[str, Any]:
    return {
        "metadata": {"name": message, "creationTimestamp": at},
        "involvedObject": {"kind": "SpeechPipeline", "name": "captions", "uid": uid},
        "reason": "SLAMissed",
        "message": message,
        "type": "Warning",
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
        **more,
    }


def in_cluster(folder: Path, *items: dict[str, Any]) -> History:
    with api_server(folder, {EVENTS: list(items)}) as kubeconfig, Gateway(kubeconfig) as gateway:
        return history_in_cluster(gateway, RESOURCE, None)


def test_the_events_of_a_pipeline_are_read_with_its_present_state(tmp_path: Path) -> None:
    new_style: dict[str, Any] = {
        "firstTimestamp": None,
        "lastTimestamp": None,
        "count": None,
        "eventTime": "2026-11-25T10:05:00.5Z",
    }
    history = in_cluster(
        tmp_path, an_event("late", "2026-11-25T10:04:00Z", **new_style), an_event("first", "2026-11-25T10:03:00Z")
    )
    assert [event.message for event in history.events] == ["first", "late"]
    assert history_lines(history)[-1].endswith("now OK; vad:2")
    first, late = history_document(history)
    assert (first["at_s"], first["warning"], late["at_s"]) == ("2026-11-25T10:03:00Z", True, "2026-11-25T10:05:00Z")


def test_events_of_a_deleted_pipeline_of_the_same_name_are_left_out(tmp_path: Path) -> None:
    assert not in_cluster(tmp_path, an_event("other", "2026-11-25T10:03:00Z", uid="before")).events


def test_without_the_right_to_list_events_the_reason_is_raised(tmp_path: Path) -> None:
    with (
        api_server(tmp_path, {EVENTS: 403}) as kubeconfig,
        Gateway(kubeconfig) as gateway,
        pytest.raises(Forbidden, match="events"),
    ):
        history_in_cluster(gateway, RESOURCE, None)


def a_log(path: Path) -> Path:
    """Write the records of three cycles, in the second of which replicas change."""
    records = []
    for number, demand in enumerate([10.0, 200.0, 10.0]):
        replicas = {VAD: 1, ENCODER: 1}
        snapshot = a_snapshot(a_state(demand=demand, replicas=replicas), now_s=1795608000.0 + 60 * number)
        decision = decide(snapshot, Policy())
        assert decision.pipelines[0].changes or number != 1
        if number != 1:
            decision = replace(decision, pipelines=tuple(replace(one, changes=()) for one in decision.pipelines))
        records.append(decision_record(snapshot, decision))
    path.write_text("started\n" + "\n".join(json.dumps({"record": record}) for record in records))
    return path


def test_records_give_the_changes_and_their_causes(tmp_path: Path) -> None:
    lines = history_lines(history_in_records(a_log(tmp_path / "log"), "speech/captions", None))
    assert lines[:2] == ["Changes: 1 event, times in UTC", "  the records begin at 2026-11-25T12:00:00Z"]
    assert lines[2].startswith("  12:01:00  vad 1→")
    assert lines[-1].startswith("  12:02:00  now no change: ")


def test_a_period_counts_back_from_the_last_record(tmp_path: Path) -> None:
    log = a_log(tmp_path / "log")
    assert not history_in_records(log, "speech/captions", 30.0).events
    assert len(history_in_records(log, "speech/captions", 90.0).events) == 1


def test_records_about_other_pipelines_and_damaged_ones_are_named(tmp_path: Path) -> None:
    log = a_log(tmp_path / "log")
    with pytest.raises(click.ClickException, match="no record is about speech/others"):
        history_in_records(log, "speech/others", None)
    log.write_text(json.dumps({"record": {"decision": {"pipelines": {"speech/captions": {}}}}}))
    with pytest.raises(click.ClickException, match=r"log:1: is not a decision record"):
        history_in_records(log, "speech/captions", None)
