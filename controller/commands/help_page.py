"""The page of `sluice COMMAND --help`: examples, and texts that are shortened where a command has many options."""

import re
from collections.abc import Iterable

import click

_MANY = 12
"""With more options than this, a page has one clause about each; docs/reference/commands.md has the whole texts."""
_CLAUSE = re.compile(r"(?P<clause>.*?)(; |\. (?! )|, such as |, comma-separated|$)(?P<rest>.*)", re.DOTALL)
_NOTE = re.compile(r"  \[[^\]]*\]$")


def examples(*commands: str) -> str:
    """Return the text below a page of help: `commands`, a line each."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


class HelpFormatter(click.HelpFormatter):
    """Writes lists of options compactly where they are long."""

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write the names and texts in `rows`."""
        rows = list(rows)
        if len(rows) <= _MANY:
            super().write_dl(rows, col_max, col_spacing)
            return
        super().write_dl([(name, _shortened(text)) for name, text in rows], 36, col_spacing)


class HelpContext(click.Context):
    """The context of a command whose help is written by `HelpFormatter`."""

    formatter_class = HelpFormatter


def _shortened(text: str) -> str:
    """Return the first clause of the text of an option, with the default that click adds."""
    note = _NOTE.search(text)
    found = _CLAUSE.match(text[: note.start()] if note else text)
    assert found is not None
    return found["clause"].rstrip(".") + "." + (note[0] if note else "")
