"""The page of `sluice readiness` as values: sections of points and tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """What a point means for a launch."""

    OK = "ok"
    BLOCKS = "blocks"
    RISK = "risk"
    UNKNOWN = "not measured"
    NOTE = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One statement."""

    state: State
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The points about one subject, and a table of text; `columns` and `rows` are empty without a table."""

    title: str
    points: tuple[Point, ...]
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """The page of one pipeline; `name` is namespace/name."""

    name: str
    sections: tuple[Section, ...]

    def points_in(self, state: State) -> tuple[tuple[str, str], ...]:
        """Return the points in `state`, each as the title of its section and its text."""
        return tuple(
            (section.title, point.text) for section in self.sections for point in section.points if point.state is state
        )

    @property
    def blocked(self) -> bool:
        """Return whether a point blocks the launch."""
        return bool(self.points_in(State.BLOCKS))

    @property
    def verdict(self) -> str:
        """Return the result in one sentence."""
        blockers, risks = len(self.points_in(State.BLOCKS)), len(self.points_in(State.RISK))
        unknown = len(self.points_in(State.UNKNOWN))
        result = f"{blockers} blocking" if blockers else "nothing blocks a launch"
        return f"{result}; {_counted(risks, 'risk')}; {_counted(unknown, 'number')} not measured"


def ok(text: str) -> Point:
    """Return a point that is in order."""
    return Point(state=State.OK, text=text)


def blocks(text: str) -> Point:
    """Return a point that blocks a launch."""
    return Point(state=State.BLOCKS, text=text)


def risk(text: str) -> Point:
    """Return a point to decide on before a launch."""
    return Point(state=State.RISK, text=text)


def unknown(text: str) -> Point:
    """Return a point that names what was not measured."""
    return Point(state=State.UNKNOWN, text=text)


def note(text: str) -> Point:
    """Return a point that only informs."""
    return Point(state=State.NOTE, text=text)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def table(title: str, points: Sequence[Point], columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Section:
    """Return a section with a table."""
    return Section(title=title, points=tuple(points), columns=tuple(columns), rows=tuple(map(tuple, rows)))
