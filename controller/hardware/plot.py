"""The plot of the cheapest hardware over the load, as SVG: what each pool costs, one on top of the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

from controller.html import Markup, element

_WIDTH, _HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 44, 48
_TICKS = 5
_LINE, _LETTER = 18, 7
_COLOURS = ("#3b6fb6", "#d98b2b", "#4b9b6a", "#b5527b", "#7a68b8", "#8a8a8a")
_FONT = "font: 12px system-ui, sans-serif; fill: #333"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPlot:
    """The cost of each of `pools` in USD per hour at each of `loads`, shape (pools, loads); NaN-free.

    `title` and `unit` (of the loads) are texts. Loads ascend, and where no plan serves one, all its costs are 0.
    """

    title: str
    unit: str
    loads: Sequence[float]
    pools: Sequence[str]
    costs: Sequence[Sequence[float]]


def svg(plot: CostPlot) -> str:
    """Return the plot as an SVG document that stands alone."""
    totals = [sum(own[k] for own in plot.costs) for k in range(len(plot.loads))]
    top, right = _nice(max(totals, default=0.0)), plot.loads[-1]
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(load: float) -> float:
        return round(_LEFT + width * (load / right if right else 0.0), 1)

    def y(cost: float) -> float:
        return round(_TOP + height * (1 - cost / top), 1)

    parts: list[Markup] = [_text(plot.title, _LEFT, _TOP - 28, bold=True)]
    for k in range(_TICKS + 1):
        cost, load = top * k / _TICKS, right * k / _TICKS
        parts += [
            element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y(cost), y2=y(cost), stroke="#ddd"),
            _text(f"${cost:g}", _LEFT - 8, y(cost) + 4, anchor="end"),
            _text(f"{load:,.4g}", x(load), _HEIGHT - _BOTTOM + _LINE, anchor="middle"),
        ]
    below, legend = [0.0] * len(plot.loads), _LEFT + 60
    for number, (pool, costs) in enumerate(zip(plot.pools, plot.costs, strict=True)):
        above = [low + own for low, own in zip(below, costs, strict=True)]
        edge = [f"{x(load)},{y(cost)}" for load, cost in zip(plot.loads, above, strict=True)]
        back = [f"{x(load)},{y(cost)}" for load, cost in reversed([*zip(plot.loads, below, strict=True)])]
        colour = _COLOURS[number % len(_COLOURS)]
        parts += [
            element("polygon", element("title", pool), points=" ".join([*edge, *back]), fill=colour),
            element("rect", x=legend, y=_TOP - 18, width=10, height=10, fill=colour),
            _text(pool, legend + 15, _TOP - 9),
        ]
        below, legend = above, legend + 35 + _LETTER * len(pool)
    parts += [
        _text(plot.unit, _LEFT + width / 2, _HEIGHT - 10, anchor="middle"),
        _text("USD per hour", 12, _TOP - 9),
    ]
    white = element("rect", width=_WIDTH, height=_HEIGHT, fill="#fff")
    return str(
        element(
            "svg",
            white,
            *parts,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
            width=_WIDTH,
            height=_HEIGHT,
            role="img",
        )
    )


def _text(words: str, x: float, y: float, *, anchor: str = "start", bold: bool = False) -> Markup:
    style = _FONT + ("; font-weight: 600" if bold else "")
    return element("text", words, x=round(x, 1), y=round(y, 1), text_anchor=anchor, style=style)


def _nice(value: float) -> float:
    """Return the least number of the form 1, 2, 2.5 or 5 times a power of ten that is at least `value`."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * power >= value - 1e-12)
