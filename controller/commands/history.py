"""Reads what happened to a pipeline: from its Events, or from the operator's log of decision records."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from controller.commands.from_record import records
from controller.core.codec import InvalidRecord
from controller.core.messages.history import History, PastEvent, make_history
from controller.core.messages.phrases import timestamp
from controller.core.messages.reasons import EventReason

if TYPE_CHECKING:
    from controller.kube.gateway import Gateway

Json = dict[str, Any]


def history_in_cluster(gateway: "Gateway", resource: Json, period_s: float | None) -> History:
    """Return the history of the SpeechPipeline `resource` in the last `period_s` seconds (None: all) by its Events.

    Raises:
        KubeError: the Events cannot be listed.
    """
    from controller.kube.gateway import EVENTS

    metadata, summary = resource["metadata"], (resource.get("status") or {}).get("summary") or {}
    fields = f"involvedObject.kind=SpeechPipeline,involvedObject.name={metadata['name']}"
    items = [item for page in gateway.pages(EVENTS, metadata["namespace"], fieldSelector=fields) for item in page.items]
    return make_history(
        _past(items, metadata["uid"]),
        now_s=gateway.server_clock.now_s(),
        period_s=period_s,
        state=f"{summary.get('health', 'no decision yet')}; {summary.get('replicas', 'no replicas known')}",
    )


def history_in_records(path: Path, key: str, period_s: float | None) -> History:
    """Return the history of the pipeline `key` in the file of decision records `path` (`-`: standard input).

    It ends with the last record, from which `period_s` counts back.

    Raises:
        click.ClickException: no record is about `key`, or one is damaged.
    """
    events: list[PastEvent] = []
    begin_s = last_s = 0.0
    message: str | None = None
    for number, record in records(path):
        try:
            decision = _part(record, "decision")
            answer = _part(decision, "pipelines").get(key)
            if not isinstance(answer, dict):
                continue
            at_s, text = float(decision["now_s"]), str(answer["message"])
        except (InvalidRecord, KeyError, TypeError, ValueError) as error:
            raise click.ClickException(f"{path}:{number}: is not a decision record: {error!r}") from None
        begin_s = at_s if message is None else min(begin_s, at_s)
        last_s, message = max(last_s, at_s), text
        if answer.get("changes"):
            events.append(PastEvent(at_s=at_s, until_s=at_s, reason=EventReason.SCALED.value, message=text))
    if message is None:
        raise click.ClickException(f"{path}: no record is about {key}")
    return make_history(events, now_s=last_s, period_s=period_s, state=message, records_begin_s=begin_s)


def history_document(history: History) -> list[Json]:
    """Return the events of `history` as JSON."""
    return [
        {**asdict(event), "at_s": timestamp(event.at_s), "until_s": timestamp(event.until_s)}
        for event in history.events
    ]


def _past(items: list[Json], uid: str) -> Iterator[PastEvent]:
    """Yield the Events in `items` about the object with this `uid`: one of the same name may have been deleted."""
    for item in items:
        if item["involvedObject"].get("uid") not in {uid, None}:
            continue
        first = item.get("firstTimestamp") or item.get("eventTime") or item["metadata"]["creationTimestamp"]
        last = item.get("lastTimestamp") or first
        yield PastEvent(
            at_s=datetime.fromisoformat(first).timestamp(),
            until_s=datetime.fromisoformat(last).timestamp(),
            reason=item.get("reason") or "",
            message=item.get("message") or "",
            warning=item.get("type") == "Warning",
            count=item.get("count") or 1,
        )


def _part(document: Json, name: str) -> Json:
    part = document[name]
    if not isinstance(part, dict):
        raise InvalidRecord(f"{name}: {part!r}: must be a mapping")
    return part
