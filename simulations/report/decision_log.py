"""What was decided and why, as a table that can be searched."""

from collections.abc import Sequence

from simulations.report import formats
from simulations.report.html import Markup, element
from simulations.report.table import Row, table
from simulations.results.results import DecisionEntry

MAX_ENTRIES = 400
"""Of a rival's decisions no more than this many are listed; the numbers above them count all."""


def log(entries: Sequence[DecisionEntry], *, name: str, limit: int | None = None) -> Markup:
    """Return the log; `name` makes its fields unique on the page. With `limit`, the first so many."""
    if not entries:
        return element("p", "Nothing was decided: every replica stayed as it was.")
    shown = entries[:limit]
    several = len({entry.pipeline for entry in entries}) > 1
    scaling = sum(bool(entry.changes) for entry in entries)
    summary = f"{formats.plural(len(entries), 'decision')}, {scaling} of which changed replicas."
    if len(shown) < len(entries):
        summary += f" The first {len(shown)} are listed."
    return element(
        "div",
        element(
            "p",
            element("label", "Search ", element("input", type="search", class_="search", id=f"search-{name}")),
            " ",
            element("label", element("input", type="checkbox", class_="changes-only"), " only what changed replicas"),
            " ",
            element("output", class_="found"),
            class_="controls",
        ),
        element("p", summary, class_="note"),
        table(
            ("at", *(["pipeline"] if several else []), "replicas", "reason"),
            (_row(entry, several=several) for entry in shown),
            label=f"Decisions of {name}",
            tall=True,
        ),
        class_="log",
    )


def _row(entry: DecisionEntry, *, several: bool) -> Row:
    changes = [element("div", f"{c.stage} {c.before} → {c.after} on {c.pool}") for c in entry.changes]
    return Row(
        cells=(
            formats.clock(entry.t_s),
            *([entry.pipeline] if several else []),
            changes or formats.MISSING,
            entry.reason,
        ),
        style="changed" if changes else None,
    )
