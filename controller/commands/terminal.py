"""Text and tables on standard output: with colours and wrapping on a terminal, plain otherwise."""

import textwrap
from collections.abc import Iterable, Sequence

import click
from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

COLUMNS = 80
"""The width of wrapped lines, where no terminal says that it is another."""
_PLAIN_WIDTH = 160
_UNLIMITED = 100_000
_INDENT = "  "


class Page:
    """Prints the lines and tables of a command to standard output.

    A terminal wraps lines at its width. Elsewhere they are whole, or wrapped at `wrapped_at` columns.
    """

    def __init__(self, *, wrapped_at: int | None = None) -> None:
        self._console = Console(highlight=False)
        self._fancy = self._console.is_terminal
        self._wrapped_at = self._console.width if self._fancy else wrapped_at
        if not self._fancy:
            self._console = Console(highlight=False, width=_PLAIN_WIDTH, no_color=True)

    def say(self, line: str = "", *, indent: int = 0, style: str = "") -> None:
        """Print `line`, wrapped between words; `indent` counts steps of two spaces."""
        before = _INDENT * indent
        if self._wrapped_at is not None:
            after = before + 2 * _INDENT
            line = textwrap.fill(
                line,
                self._wrapped_at,
                initial_indent=before,
                subsequent_indent=after,
                break_long_words=False,
                break_on_hyphens=False,
            )
        else:
            line = before + line
        self._print(Text(line, style=style))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table; a column whose name begins with > is aligned to the right.

        Where the terminal is too narrow for whole words, print each row as lines instead: a cut name is no name.
        """
        shape = box.SIMPLE_HEAD if self._fancy else None
        table = Table(box=shape, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(Text(column.lstrip(">")), justify="right" if column.startswith(">") else "left")
        cells = [tuple(row) for row in rows]
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        if not self._fancy or self._fits(table):
            self._print(table)
            return
        names = [column.lstrip(">") for column in columns]
        for row in cells:
            self.say(f"{names[0]} {row[0]}", style="bold")
            for name, cell in zip(names[1:], row[1:], strict=True):
                self.say(f"{name}: {cell}", indent=1)

    def _fits(self, table: Table) -> bool:
        unlimited = self._console.options.update(max_width=_UNLIMITED)
        return Measurement.get(self._console, unlimited, table).minimum <= self._console.width

    def _print(self, what: RenderableType) -> None:
        with self._console.capture() as captured:
            self._console.print(what, soft_wrap=isinstance(what, Text))
        text = "\n".join(line.rstrip() for line in captured.get().splitlines())
        click.echo(text, color=True if self._fancy else None)


def show(lines: Iterable[str]) -> None:
    """Print `lines`, wrapped at the width of the terminal or at 80 columns; leading spaces are their indentation."""
    page = Page(wrapped_at=COLUMNS)
    for line in lines:
        text = line.lstrip(" ")
        page.say(text, indent=(len(line) - len(text)) // len(_INDENT))
