"""Tables for the report: columns can be sorted, and on a narrow page each row becomes a list of its cells."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from controller.html import Markup, element


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The cells of a row; `style` is a class of the style sheet."""

    cells: Sequence[object]
    style: str | None = None


def table(
    columns: Sequence[object],
    rows: Iterable[Row | Sequence[object]],
    *,
    label: str,
    tall: bool = False,
    stacked: bool = True,
) -> Markup:
    """Return a table in a frame that scrolls, also by keyboard; `label` names the table for screen readers.

    In a column whose name begins with > the cells are numbers; in one whose name begins with # they are the heads of
    their rows. The characters > and # are not shown. `tall` is for tables with many rows, which scroll in
    a frame. On a narrow page a row is a list of its cells, each with the name of its column if `stacked`.
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
            element("tbody", list(_rows(rows, heads, styles, titles if stacked else [None] * len(heads)))),
        ),
        class_=" ".join(["scroll", *(["tall"] if tall else []), *(["stacked"] if stacked else [])]),
        tabindex=0,
        role="region",
        aria_label=label,
    )


def _rows(
    rows: Iterable[Row | Sequence[object]],
    heads: Sequence[str],
    styles: Sequence[str | None],
    titles: Sequence[object],
) -> Iterator[Markup]:
    for row in rows:
        cells, style = (row.cells, row.style) if isinstance(row, Row) else (row, None)
        yield element(
            "tr",
            [
                element("th", cell, scope="row")
                if head == "#"
                else element("td", cell, class_=c, data_label=str(title) if type(title) is str else None)
                for cell, head, c, title in zip(cells, heads, styles, titles, strict=True)
            ],
            class_=style,
        )
