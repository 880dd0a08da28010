"""A chart of cost against SLA: a point per policy, with its range over the seeds and its name.

It is drawn twice, for wide and for narrow pages, because it depends on the width where names fit without overlap.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controller.html import Markup, element
from simulations.report import formats, scale
from simulations.report.scale import Axis

_SIZES = (("wide", 860, 440), ("narrow", 330, 420))
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 14, 40
_LETTER, _LINE = 6.8, 15
_LINEAR_BELOW = 0.002
"""The axis of missed windows is linear below this share and logarithmic above, so 0.1 % and 1 % lie well apart."""
_MISSED_TICKS = (0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
_REACH = (12, 20, 30, 42, 56)
_TICK_GAP = 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A policy in the chart: mean cost (USD) and mean share (0–1) of windows met, with their ranges over the seeds.

    `style` is the class of its verdict: `best`, `dominated` or `broke`. `words` are shown under the pointer.
    """

    name: str
    cost: float
    costs: tuple[float, float]
    met: float
    mets: tuple[float, float]
    style: str
    trained: bool
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    left: float
    top: float
    width: float
    height: float

    def meets(self, other: "_Box") -> bool:
        return (
            self.left < other.left + other.width
            and other.left < self.left + self.width
            and self.top < other.top + other.height
            and other.top < self.top + self.height
        )

    def within(self, width: float, height: float) -> bool:
        return (
            self.left >= _LEFT
            and self.top >= 0
            and self.left + self.width <= width
            and self.top + self.height <= height
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plane:
    """The positions of values on a drawing of `width` × `height` pixels."""

    width: float
    height: float
    costs: Axis
    worst: float

    def x(self, cost: float) -> float:
        return _LEFT + self.costs.at(cost) * (self.width - _LEFT - _RIGHT)

    def y(self, met: float) -> float:
        depth = math.log1p((1 - met) / _LINEAR_BELOW) / math.log1p(self.worst / _LINEAR_BELOW)
        return _TOP + depth * (self.height - _TOP - _BOTTOM)


def cost_against_sla(points: Sequence[Point], bound: float | None, required: float) -> Markup:
    """Return the chart with lines at the `required` share of windows (0–1) and at the cost of the `bound`, in USD.

    Earlier `points` are drawn on top of later ones, and their names are placed first.
    """
    return element(
        "div",
        [_drawing(name, width, height, points, bound, required) for name, width, height in _SIZES],
        class_="scatter",
    )


def _drawing(
    name: str, width: int, height: int, points: Sequence[Point], bound: float | None, required: float
) -> Markup:
    costs = scale.around([cost for point in points for cost in point.costs] + ([] if bound is None else [bound]))
    worst = max([1 - point.mets[0] for point in points] + [1 - required]) * 1.15
    plane = _Plane(width=width, height=height, costs=costs, worst=min(worst, 1.0))
    foot = height - _BOTTOM
    return element(
        "svg",
        list(_axes(plane, foot)),
        bound is not None and element("path", class_="line bound", d=f"M{plane.x(bound):.1f} {_TOP}V{foot}"),
        element("path", class_="line sla", d=f"M{_LEFT} {plane.y(required):.1f}H{width - _RIGHT}"),
        [_range(point, plane) for point in points],
        [_marker(point, plane) for point in reversed(points)],
        list(_names(points, plane)),
        class_=name,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label="Cost against the share of windows within the SLA, a point per policy; the numbers are in the table",
    )


def _axes(plane: _Plane, foot: float) -> Iterator[Markup]:
    last_y = -math.inf
    for missed in _MISSED_TICKS:
        if missed > plane.worst:
            break
        y = plane.y(1 - missed)
        if y - last_y < _TICK_GAP / 2:
            continue
        last_y = y
        yield element("path", class_="grid", d=f"M{_LEFT} {y:.1f}H{plane.width - _RIGHT}")
        yield element("text", formats.share(1 - missed), x=_LEFT - 6, y=f"{y + 4:.1f}", text_anchor="end")
    last_x = -math.inf
    for tick in plane.costs.ticks:
        x = plane.x(tick)
        if x - last_x < 2.4 * _TICK_GAP:
            continue
        last_x = x
        yield element("path", class_="grid", d=f"M{x:.1f} {_TOP}V{foot}")
        anchor = "end" if x > plane.width - _TICK_GAP else "middle"
        yield element("text", formats.money(tick), x=f"{x:.1f}", y=foot + 16, text_anchor=anchor)
    yield element(
        "text", "cost of the run (USD)", x=f"{(plane.width + _LEFT) / 2:.0f}", y=foot + 33, text_anchor="middle"
    )


def _range(point: Point, plane: _Plane) -> Markup:
    x, y = plane.x(point.cost), plane.y(point.met)
    return element(
        "path",
        class_=f"range {point.style}",
        d=f"M{plane.x(point.costs[0]):.1f} {y:.1f}H{plane.x(point.costs[1]):.1f}"
        f"M{x:.1f} {plane.y(point.mets[0]):.1f}V{plane.y(point.mets[1]):.1f}",
    )


def _marker(point: Point, plane: _Plane) -> Markup:
    x, y = plane.x(point.cost), plane.y(point.met)
    shape = (
        f"M{x:.1f} {y - 7:.1f}l7 7l-7 7l-7 -7Z"
        if point.trained
        else f"M{x - 5.5:.1f} {y:.1f}a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0 -11 0Z"
    )
    return element("path", element("title", point.words), class_=f"point {point.style}", d=shape)


def _names(points: Sequence[Point], plane: _Plane) -> Iterator[Markup]:
    """Yield the names, each at the nearest free place around its point; a name without a free place is left out."""
    taken = [_Box(left=plane.x(p.cost) - 7, top=plane.y(p.met) - 7, width=14, height=14) for p in points]
    for point in points:
        x, y = plane.x(point.cost), plane.y(point.met)
        width = _LETTER * len(point.name)
        for box in _places(x, y, width):
            if box.within(plane.width, plane.height - _BOTTOM) and not any(box.meets(other) for other in taken):
                taken.append(box)
                yield from _name(point, box, x, y)
                break


def _places(x: float, y: float, width: float) -> Iterator[_Box]:
    for reach in _REACH:
        for across, up in ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1)):
            left = x + reach * across - (width if across < 0 else width / 2 if across == 0 else 0)
            yield _Box(left=left, top=y + reach * up - _LINE / 2, width=width, height=_LINE)


def _name(point: Point, box: _Box, x: float, y: float) -> Iterator[Markup]:
    near_x = min(max(x, box.left), box.left + box.width)
    near_y = min(max(y, box.top), box.top + box.height)
    if math.hypot(near_x - x, near_y - y) > _REACH[0] + 2:
        yield element("path", class_="leader", d=f"M{x:.1f} {y:.1f}L{near_x:.1f} {near_y:.1f}")
    yield element("text", point.name, class_=f"name {point.style}", x=f"{box.left:.1f}", y=f"{box.top + _LINE - 4:.1f}")
