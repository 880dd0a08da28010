"""Charts over time, each an SVG that stretches with the page. Axes and legend are HTML, so text keeps its size.

A series has a value per window and is drawn as a step function.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.html import Markup, element
from simulations.report import formats, scale
from simulations.report.scale import Axis
from simulations.report.series import Value, borders, parts

SIDE = 1000
"""The width and the height of a plot in units of its SVG."""
_COLUMNS = 600
_READ_OUT_COLUMNS = 400
_DIGITS = 4
_NEAR_END = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A fault in a chart, shaded from `from_s` to `until_s` and marked with a letter; `words` describe the fault."""

    letter: str
    words: str
    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """The time axis that all charts of a run share: the starts of the windows, `t_s`, and the end of the last one.

    `words` turns a time (s) into text.
    """

    t_s: Sequence[float]
    end_s: float
    bands: tuple[Band, ...] = ()
    words: Callable[[float], str] = formats.clock

    @property
    def scale(self) -> Axis:
        """Return the axis from the start of the first window to the end of the last one."""
        return scale.of_time(self.t_s[0], self.end_s)

    def edge(self, window: int) -> float:
        """Return the time (s) at which a window begins; for the index after the last window, the end of that window."""
        return self.t_s[window] if window < len(self.t_s) else self.end_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A series with its name in the legend. `style` is a class of the style sheet, which sets colour and dashes.

    With `area` the area under the line is filled.
    """

    name: str
    values: Sequence[Value]
    style: str
    area: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The content of a chart over time.

    `axis` is the time axis, `values` the axis of the values; `words` turns a value into text. `missed` says for each
    window whether it is marked in red at the bottom, `beyond` whether it is marked at the top because its value is
    infinite. `missed_name` and `beyond_name` are the names of these marks in the legend.
    """

    title: str
    unit: str
    lines: tuple[Line, ...]
    axis: TimeAxis
    values: Axis
    words: Callable[[float], str]
    missed: Sequence[bool] = ()
    missed_name: str = ""
    beyond: Sequence[bool] = ()
    beyond_name: str = ""


def figure(chart: Chart) -> Markup:
    """Return the chart as an HTML figure, with axes and legend."""
    time = chart.axis.scale
    paths = [_steps(line, chart) for line in chart.lines]
    marks = [
        mark
        for windows, style, y in ((chart.missed, "missed", SIDE - 6), (chart.beyond, "beyond", 6))
        if any(windows)
        for mark in [element("path", class_=f"mark {style}", d=_segments(windows, chart.axis, y))]
    ]
    plot = element(
        "svg",
        [_band(band, time) for band in chart.axis.bands],
        [element("path", class_="grid", d=f"M0 {_y(tick, chart.values)}H{SIDE}") for tick in chart.values.ticks],
        [
            element("path", class_="area " + line.style, d=_area(path))
            for line, path in zip(chart.lines, paths, strict=True)
            if line.area
        ],
        [
            element(
                "path",
                class_="line " + line.style,
                d=path,
                data_name=line.name,
                data_words=_read_out(line, chart.words),
            )
            for line, path in zip(chart.lines, paths, strict=True)
        ],
        marks,
        viewBox=f"0 0 {SIDE} {SIDE}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{chart.title}: {_in_words(chart)}",
    )
    return element(
        "figure",
        element("figcaption", element("strong", chart.title), " ", element("span", chart.unit, class_="unit")),
        element(
            "div",
            element(
                "div",
                [
                    element("span", chart.words(tick), style=f"bottom:{chart.values.at(tick) * 100:.1f}%")
                    for tick in chart.values.ticks
                ],
                class_="y",
                aria_hidden="true",
            ),
            element(
                "div",
                plot,
                [_band_label(band, time) for band in chart.axis.bands],
                element("div", class_="cursor", hidden=True),
                class_="plot",
            ),
            element(
                "div",
                [
                    element(
                        "span",
                        chart.axis.words(tick),
                        class_="last" if time.at(tick) > _NEAR_END else None,
                        style=f"left:{time.at(tick) * 100:.1f}%",
                    )
                    for tick in time.ticks
                ],
                class_="x",
                aria_hidden="true",
            ),
            class_="frame",
        ),
        element(
            "ul",
            [element("li", swatch("line " + line.style), line.name) for line in chart.lines],
            any(chart.missed) and element("li", swatch("mark missed"), chart.missed_name),
            any(chart.beyond) and element("li", swatch("mark beyond"), chart.beyond_name),
            class_="legend",
        ),
        element("output", class_="read-out"),
        class_="chart",
    )


def read_out_axis(axis: TimeAxis) -> dict[str, str]:
    """Return the HTML attributes by which the script finds the windows under the pointer, the same for all charts."""
    cuts = borders(len(axis.t_s), _READ_OUT_COLUMNS)
    return {
        "data_from": "|".join(axis.words(axis.edge(begin)) for begin, _ in cuts),
        "data_until": "|".join(f"{axis.scale.at(axis.edge(end)):.{_DIGITS}f}" for _, end in cuts),
    }


def _read_out(line: Line, words: Callable[[float], str]) -> str:
    """Return the texts of a line for the parts of the time, joined by |; a text like the one before is empty."""
    texts, last, last_part = [], "", None
    for part in parts(line.values, _READ_OUT_COLUMNS):
        if last_part is not None and (part.low, part.high) == (last_part.low, last_part.high):
            texts.append("")
            continue
        text = _part_words(part.low, part.high, words)
        texts.append("" if text == last else text)
        last, last_part = text, part
    return "|".join(texts)


def _part_words(low: Value, high: Value, words: Callable[[float], str]) -> str:
    if low is None or high is None:
        return formats.MISSING
    first, last = words(low), words(high)
    return first if first == last else f"{first} to {last}"


def _in_words(chart: Chart) -> str:
    """Return the chart as a sentence, for screen readers."""
    texts = []
    for line in chart.lines:
        known = [value for value in line.values if value is not None]
        if known:
            middle = math.fsum(known) / len(known)
            low, mean, high = chart.words(min(known)), chart.words(middle), chart.words(max(known))
            texts.append(
                f"{line.name} {low}" if low == high else f"{line.name} from {low} to {high}, {mean} on average"
            )
        else:
            texts.append(f"{line.name} without values")
    if any(chart.missed):
        texts.append(f"{chart.missed_name} in {formats.plural(sum(chart.missed), 'window')}")
    return "; ".join(texts)


def _y(value: float, values: Axis) -> int:
    return round(SIDE * (1 - values.at(value)))


def _steps(line: Line, chart: Chart) -> str:
    """Return the line as a path: horizontal over each window, vertical between them, with gaps at missing values."""
    time, strokes, at_y = chart.axis.scale, list[str](), None
    before: tuple[Value, ...] | None = None
    until = ""  # where the last level ends; it is drawn when the level changes
    for part in parts(line.values, _COLUMNS):
        if part.low is None or part.high is None:
            strokes.append(until)
            until, at_y, before = "", None, None
            continue
        values = (part.first, part.low, part.high, part.last)
        if values != before:
            x = round(SIDE * time.at(chart.axis.edge(part.begin)))
            for y in dict.fromkeys(_y(value, chart.values) for value in values if value is not None):
                if at_y is None:
                    strokes.append(f"M{x} {y}")
                elif y != at_y:
                    strokes.append(f"H{x}V{y}")
                at_y = y
        before = values
        until = f"H{round(SIDE * time.at(chart.axis.edge(part.end)))}"
    return "".join([*strokes, until])


def _area(path: str) -> str:
    """Return the area under a line: the same strokes, each piece closed along the bottom."""
    closed = ""
    for piece in filter(None, path.split("M")):
        start = piece.split("H")[0].split(" ")[0]
        closed += f"M{piece}V{SIDE}H{start}Z"
    return closed


def _segments(windows: Sequence[bool], axis: TimeAxis, y: int) -> str:
    """Return an SVG path with strokes at height `y` over the marked windows.

    Windows that are drawn as one are marked if one of them is.
    """
    time, path, begun = axis.scale, "", None
    for begin, end in [*borders(len(windows), _COLUMNS), (len(windows), len(windows))]:
        marked = any(windows[begin:end])
        if marked and begun is None:
            begun = begin
        elif not marked and begun is not None:
            from_x, until_x = (round(SIDE * time.at(axis.edge(edge))) for edge in (begun, begin))
            path += f"M{from_x} {y}H{max(until_x, from_x + 2)}"
            begun = None
    return path


def _band(band: Band, time: Axis) -> Markup:
    from_x, until_x = SIDE * time.at(band.from_s), SIDE * time.at(band.until_s)
    return element("rect", class_="band", x=f"{from_x:.0f}", width=f"{max(until_x - from_x, 3):.0f}", y=0, height=SIDE)


def _band_label(band: Band, time: Axis) -> Markup:
    middle = (time.at(band.from_s) + time.at(band.until_s)) / 2
    return element("span", band.letter, class_="letter", style=f"left:{middle * 100:.1f}%", title=band.words)


def swatch(style: str) -> Markup:
    """Return a short piece of a line in `style`, for a legend."""
    return element(
        "svg", element("path", class_=style, d="M1 5H23"), class_="swatch", viewBox="0 0 24 10", aria_hidden="true"
    )
