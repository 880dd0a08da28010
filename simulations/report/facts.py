"""A section of a live run's report about what only its own servers do, such as words that were heard."""

from collections.abc import Sequence
from dataclasses import dataclass

from controller.html import Markup, element
from simulations.report.table import table


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A table of measurements: its name, the names of its columns as in `table`, and the cells of its rows."""

    label: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A section with a title, sentences, and tables; `servers` says in a sentence what the servers are."""

    title: str
    sentences: Sequence[str]
    tables: Sequence[Measured]
    servers: str


def section(facts: Facts) -> Markup:
    """Return the content of the section."""
    return Markup.of(
        [element("p", sentence) for sentence in facts.sentences],
        [
            Markup.of(element("h3", own.label), table(own.columns, own.rows, label=own.label))
            for own in facts.tables
            if own.rows
        ],
    )
