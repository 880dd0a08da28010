"""Tables for the report, which scroll where the page is narrow."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from controller.html import Markup, element


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The cells of a row; `style` is a class of the style sheet."""

    cells: Sequence[object]
    style: str | None = None


def table(
    columns: Sequence[object], rows: Iterable[Row | Sequence[object]], *, label: str, tall: bool = False
) -> Markup:
    """Return a table in a frame that scrolls, also by keyboard; `label` names the table for screen readers.

    In a column whose name begins with > the cells are numbers; in one whose name begins with # they are the heads of
    their rows. The characters > and # are not shown. `tall` is for tables with many rows.
    """
    heads = [name[:1] if isinstance(name, str) else "" for name in columns]
    styles = ["n" if head == ">" else None for head in heads]
    titles = [
        name[1:] if isinstance(name, str) and head in {">", "#"} else name
        for name, head in zip(columns, heads, strict=True)
    ]
    return element(
        "div",
        element(
            "table",
            element(
                "thead",
                element(
                    "tr",
                    [element("th", title, scope="col", class_=c) for title, c in zip(titles, styles, strict=True)],
                ),
            ),
            element("tbody", list(_rows(rows, heads, styles))),
        ),
        class_="scroll tall" if tall else "scroll",
        tabindex=0,
        role="region",
        aria_label=label,
    )


def _rows(
    rows: Iterable[Row | Sequence[object]], heads: Sequence[str], styles: Sequence[str | None]
) -> Iterator[Markup]:
    for row in rows:
        cells, style = (row.cells, row.style) if isinstance(row, Row) else (row, None)
        yield element(
            "tr",
            [
                element("th", cell, scope="row") if head == "#" else element("td", cell, class_=c)
                for cell, head, c in zip(cells, heads, styles, strict=True)
            ],
            class_=style,
        )
