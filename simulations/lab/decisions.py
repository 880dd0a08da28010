"""What the operator decided in a run, read from its own log of decision records."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from controller.core.record import SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The replicas of one placement, before and after."""

    stage: str
    pool: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedDecision:
    """A decision that was not the same as the one before it; `now_s` is seconds since the epoch."""

    now_s: float
    pipeline: str
    changes: tuple[Change, ...]
    reason: str


class DecisionLog:
    """Follows the operator's log; `latest()` returns what has been added since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def latest(self) -> list[LoggedDecision]:
        """Return the decisions logged since the last call, in order."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as log:
            log.seek(self._position)
            text = log.read()
        whole, _, _ = text.rpartition(b"\n")
        self._position += len(whole) + bool(whole)
        return [decision for line in whole.splitlines() for decision in _decisions(line)]


def _decisions(line: bytes) -> Iterator[LoggedDecision]:
    try:
        record = json.loads(line).get("record")
    except (json.JSONDecodeError, AttributeError):
        return  # the log has other lines, too
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        return
    for key, decision in record["decision"]["pipelines"].items():
        yield LoggedDecision(
            now_s=record["decision"]["now_s"],
            pipeline=key,
            changes=tuple(
                Change(stage=c["stage"], pool=c["pool"], before=c["before"], after=c["after"])
                for c in decision["changes"]
            ),
            reason=decision["message"],
        )
