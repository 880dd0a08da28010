"""The tables of `docs/reasons.md`, made from the list in the code.

`PYTHONPATH=tests/support python -m reasons_document docs/reasons.md` writes them into the document.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path

from controller.core.messages.decisions import CHANGES, HOLDS
from controller.core.messages.reasons import ListedReason, listed_reasons
from controller.core.state.decision import ChangeReason, HoldReason

_MARKED = re.compile(r"(<!-- reasons of (?P<kind>\w+) -->\n)(?:.*\n)*?(<!-- end -->)")
_EVENT = "Event"


def tables() -> dict[str, str]:
    """Return the Markdown table of every condition type, of the Events, of changes and of holds."""

    def kind(each: ListedReason) -> str:
        return _EVENT if each.type is None else each.type.value

    listed = {name: _table(name, list(group)) for name, group in groupby(listed_reasons(), key=kind)}
    return {**listed, "change": _texts(CHANGES), "hold": _texts(HOLDS)}


def renewed(text: str) -> str:
    """Return the document with the tables of the code between its marks."""
    now = tables()
    return _MARKED.sub(lambda found: f"{found[1]}{now[found['kind']]}{found[3]}", text)


def kinds(text: str) -> list[str]:
    """Return what has a table in the document, in its order."""
    return [found["kind"] for found in _MARKED.finditer(text)]


def _table(name: str, rows: Iterable[ListedReason]) -> str:
    state = "type" if name == _EVENT else "status"
    lines = [f"| reason | {state} | meaning | remedy |", "|---|---|---|---|"]
    lines += [f"| `{row.reason}` | {row.state} | {row.meaning} | {row.remedy} |" for row in rows]
    return "\n".join(lines) + "\n"


def _texts(texts: Mapping[ChangeReason, str] | Mapping[HoldReason, str]) -> str:
    rows = "".join(f"| `{reason.value}` | {text} |\n" for reason, text in texts.items())
    return f"| reason | text |\n|---|---|\n{rows}"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(renewed(path.read_text()))
