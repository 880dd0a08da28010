"""The readiness page as Markdown and as HTML in one file."""

from collections.abc import Iterator, Sequence
from importlib.resources import files

from controller.html import Markup, element, page
from controller.readiness.points import Point, Readiness, Section, State

_CLASS = {State.OK: "ok", State.BLOCKS: "blocks", State.RISK: "risk", State.UNKNOWN: "unknown", State.NOTE: None}


def markdown(pages: Sequence[Readiness]) -> str:
    """Return the pages as one Markdown document."""
    return "\n".join(line for one in pages for line in _lines(one))


def html(pages: Sequence[Readiness]) -> str:
    """Return the pages as one HTML page, for screens of any width and for print."""
    names = ", ".join(one.name for one in pages)
    style = (files("controller.readiness") / "style.css").read_text()
    return page(f"Readiness of {names}", element("main", [_article(one) for one in pages]), style=style)


def _lines(one: Readiness) -> Iterator[str]:
    yield from (f"# Readiness of {one.name}", "", f"**{one.verdict}**")
    blockers = one.points_in(State.BLOCKS)
    yield from ("" for _ in blockers[:1])
    yield from (f"- **blocks**: {title}: {text}" for title, text in blockers)
    for section in one.sections:
        yield from ("", f"## {section.title}", "")
        yield from (f"- {_label(point)}{point.text}" for point in section.points)
        if section.rows:
            yield from ("", f"| {' | '.join(section.columns)} |", f"|{'---|' * len(section.columns)}")
            yield from (f"| {' | '.join(_cell(cell) for cell in row)} |" for row in section.rows)
    yield ""


def _label(point: Point) -> str:
    return f"**{point.state.value}**: " if point.state.value else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _article(one: Readiness) -> Markup:
    blockers = one.points_in(State.BLOCKS)
    return element(
        "article",
        element("h1", f"Readiness of {one.name}"),
        element("p", element("b", one.verdict, class_="blocks" if blockers else "ok")),
        blockers and element("ul", [element("li", f"{title}: {text}") for title, text in blockers]),
        [_section(section) for section in one.sections],
    )


def _section(section: Section) -> Markup:
    return element(
        "section",
        element("h2", section.title),
        element("ul", [element("li", _marked(point), point.text) for point in section.points]),
        section.rows
        and element(
            "div",
            element(
                "table",
                element("thead", element("tr", [element("th", name, scope="col") for name in section.columns])),
                element("tbody", [element("tr", [element("td", cell) for cell in row]) for row in section.rows]),
            ),
            class_="wide",
        ),
    )


def _marked(point: Point) -> Markup | None:
    if not point.state.value:
        return None
    return Markup.of(element("b", point.state.value, class_=_CLASS[point.state]), ": ")
