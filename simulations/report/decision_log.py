"""The decisions of a run with their reasons, as a table that can be searched."""

from collections.abc import Sequence

from controller.html import Markup, element
from simulations.report import formats
from simulations.report.table import Row, table
from simulations.results.results import DecisionEntry

MAX_ENTRIES = 400
"""The most decisions of a baseline policy that are listed; the numbers above the table count all decisions."""


def log(entries: Sequence[DecisionEntry], *, name: str, limit: int | None = None) -> Markup:
    """Return the table of `entries`, or of the first `limit`; `name` makes the ids of its fields unique on the page."""
    if not entries:
        return element("p", "No decisions: no replica count changed.")
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
            element(
                "label",
                element("input", type="checkbox", class_="changes-only"),
                " only decisions that changed replicas",
            ),
            " ",
            element("output", class_="found"),
            class_="controls",
        ),
        element("p", summary, class_="note"),
        table(
            ("time", *(["pipeline"] if several else []), "decision and its reason"),
            (_row(entry, several=several) for entry in shown),
            label=f"Decisions of {name}",
            tall=True,
            stacked=False,
        ),
        class_="log",
    )


def _row(entry: DecisionEntry, *, several: bool) -> Row:
    return Row(
        cells=(formats.clock(entry.t_s), *([entry.pipeline] if several else []), _words(entry)),
        style="changed" if entry.changes else None,
    )


def _words(entry: DecisionEntry) -> str:
    """Return the decision once: its reason, after those changes of replicas that the reason does not name itself."""
    changes = [f"{c.stage} {c.before}→{c.after} on {c.placement}" for c in entry.changes]
    unnamed = ", ".join(change for change in changes if change not in entry.reason)
    return f"{unnamed}: {entry.reason}" if unnamed else entry.reason
