"""The tables of `docs/reasons.md`: those of conditions and Events are read from it, those of changes and holds are made
from the code.

`PYTHONPATH=tests/support python -m reasons_document docs/reasons.md` writes the latter into the document.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from corpus import ROOT

from controller.core.messages.sentences import CHANGES, HOLDS
from controller.core.state.decision import ChangeReason, HoldReason

DOCUMENT = ROOT / "docs" / "reasons.md"
_MARKED = re.compile(r"(<!-- reasons of (?P<kind>\w+) -->\n)(?P<table>(?:.*\n)*?)(<!-- end -->)")
_EVENT = "Event"
RUNBOOK = ROOT / "docs" / "runbook.md"
_FIRST_LOOK = re.compile(r"<!-- first look at (?P<kind>\w+) -->\n(?P<table>(?:.*\n)*?)<!-- end -->")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedReason:
    """One row of the document: a reason of the condition `type`, or of an Event where `type` is None.

    `state` is the condition's status, or the type of the Event.
    """

    type: str | None
    reason: str
    state: str
    meaning: str
    remedy: str


def listed_reasons() -> Iterator[ListedReason]:
    """Yield every listed reason of every condition, then every listed reason of an Event."""
    for found in _MARKED.finditer(DOCUMENT.read_text()):
        if found["kind"] not in tables():
            for row in found["table"].splitlines()[2:]:
                reason, state, meaning, remedy = (cell.strip() for cell in row.strip("|").split(" | "))
                kind = None if found["kind"] == _EVENT else found["kind"]
                yield ListedReason(type=kind, reason=reason.strip("`"), state=state, meaning=meaning, remedy=remedy)


def first_looks() -> Mapping[str, list[str]]:
    """Return what the runbook has a first look for, by kind: `HEALTH`, `condition`, `Event`; each in its order."""
    return {
        found["kind"]: [
            name for row in found["table"].splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split(" | ")[0])
        ]
        for found in _FIRST_LOOK.finditer(RUNBOOK.read_text())
    }


def tables() -> dict[str, str]:
    """Return the Markdown tables of changes and of holds, made from their texts."""
    return {"change": _texts(CHANGES), "hold": _texts(HOLDS)}


def renewed(text: str) -> str:
    """Return the document with the tables of the code between its marks."""
    now = tables()
    return _MARKED.sub(lambda found: f"{found[1]}{now.get(found['kind'], found['table'])}{found[4]}", text)


def kinds(text: str) -> list[str]:
    """Return what has a table in the document, in its order."""
    return [found["kind"] for found in _MARKED.finditer(text)]


def _texts(texts: Mapping[ChangeReason, str] | Mapping[HoldReason, str]) -> str:
    rows = "".join(f"| `{reason.value}` | {text} |\n" for reason, text in texts.items())
    return f"| reason | text |\n|---|---|\n{rows}"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(renewed(path.read_text()))
