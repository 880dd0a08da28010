"""The table of the operator's metrics in `docs/monitoring.md`, made from the code.

`PYTHONPATH=tests/support python -m metrics_document docs/monitoring.md` writes it into the document.
"""

import re
import sys
from pathlib import Path

from corpus import ROOT

from controller.telemetry import described

DOCUMENT = ROOT / "docs" / "monitoring.md"
_MARKED = re.compile(r"(<!-- metrics of the operator -->\n)(?:.*\n)*?(<!-- end -->)")


def table() -> str:
    """Return the Markdown table of all metrics."""
    rows = (
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.text} |\n"
        for metric in described()
    )
    return "| metric | kind | labels | meaning |\n|---|---|---|---|\n" + "".join(rows)


def renewed(text: str) -> str:
    """Return the document with the present table between its marks."""
    return _MARKED.sub(lambda found: f"{found[1]}{table()}{found[2]}", text)


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(renewed(document.read_text()))
