"""The operator's decisions in a run, read from the decision records in its log.

A record has the present decision for every pipeline, even if only one of them is new.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.core.record import SCHEMA, recorded_decision_key
from simulations.results.diagnoses import NamedCause, named_causes
from simulations.results.results import PlacementChange


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedDecision:
    """A decision that differs from the previous one for the same pipeline.

    `now_s` is the time of the decision in seconds since the epoch, `pipeline` the key namespace/name. `changes` has the
    placements whose replicas change, `reason` the message, `causes` the causes of a missed SLA that it names.
    """

    now_s: float
    pipeline: str
    changes: tuple[PlacementChange, ...]
    reason: str
    causes: tuple[NamedCause, ...] = ()


class DecisionLog:
    """Follows the operator's log at `path`, and returns the new decisions in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._keys: dict[str, object] = {}

    def latest(self) -> list[LoggedDecision]:
        """Return the decisions that were logged since the last call, in order; none while there is no log."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as log:
            log.seek(self._position)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        return [decision for line in whole.splitlines() for decision in self._new(_record(line))]

    def _new(self, record: Mapping[str, Any] | None) -> Iterator[LoggedDecision]:
        if record is None:
            return
        for key, decision in record["decision"]["pipelines"].items():
            decision_key = recorded_decision_key(decision)
            if self._keys.get(key) != decision_key:
                self._keys[key] = decision_key
                yield _decision(record["decision"]["now_s"], key, decision)


def _record(line: bytes) -> Mapping[str, Any] | None:
    try:
        record = json.loads(line).get("record")
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError):
        return None  # the log has other lines than records
    return record if isinstance(record, dict) and record.get("schema") == SCHEMA else None


def _decision(now_s: float, key: str, decision: Mapping[str, Any]) -> LoggedDecision:
    return LoggedDecision(
        now_s=now_s,
        pipeline=key,
        changes=tuple(
            PlacementChange(stage=c["stage"], placement=c["placement"], before=c["before"], after=c["after"])
            for c in decision["changes"]
        ),
        reason=decision["message"],
        causes=named_causes(decision.get("diagnosis", ())),
    )
