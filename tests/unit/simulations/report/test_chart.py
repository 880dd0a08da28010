"""Charts over time: the path follows the steps of the series, and the words are those of its values."""

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.report import scale
from simulations.report.chart import SIDE, Band, Chart, Line, TimeAxis, figure, read_out_axis
from simulations.report.series import Value


def a_chart(
    *values: Value, bands: tuple[Band, ...] = (), missed: tuple[bool, ...] = (), area: bool = False, name: str = "ready"
) -> Chart:
    return Chart(
        title="Replicas",
        unit="count",
        lines=(Line(name=name, values=values, style="pool0", area=area),),
        axis=TimeAxis(t_s=[100.0 + 10 * i for i in range(len(values))], end_s=100.0 + 10 * len(values), bands=bands),
        values=scale.Axis(low=0.0, high=10.0, ticks=(0.0, 5.0, 10.0)),
        words=lambda value: f"{value:g}",
        missed=missed,
        missed_name="missed",
    )


def path(markup: str, style: str = "line pool0") -> str:
    found = re.search(rf'class="{style}" d="([^"]*)"', markup)
    assert found is not None
    return found[1]


def points(drawn: str) -> list[tuple[int, int]]:
    """Every corner of a path, of absolute moves alone."""
    x = y = 0
    corners = []
    for command, numbers in re.findall(r"([MHV])([\d ]+)", drawn):
        first, *rest = map(int, numbers.split())
        match command:
            case "M":
                x, y = first, rest[0]
            case "H":
                x = first
            case _:
                y = first
        corners.append((x, y))
    return corners


def test_a_line_is_level_over_a_window_and_upright_between_two() -> None:
    assert path(figure(a_chart(0.0, 10.0, 10.0, 5.0))) == "M0 1000H250V0H750V500H1000"


def test_a_line_is_broken_where_there_is_no_value() -> None:
    assert path(figure(a_chart(5.0, None, 5.0, 5.0))) == "M0 500H250M500 500H1000"


def test_the_surface_is_closed_along_the_foot_piece_by_piece() -> None:
    drawn = path(figure(a_chart(5.0, None, 5.0, 10.0, area=True)), "area pool0")
    assert drawn == "M0 500H250V1000H0ZM500 500H750V0H1000V1000H500Z"


@given(st.integers(601, 3000), st.dictionaries(st.integers(0, 600), st.floats(0, 10), max_size=5))
def test_a_long_series_is_drawn_with_its_extremes(windows: int, outliers: dict[int, float]) -> None:
    values = [outliers.get(index, 5.0) for index in range(windows)]
    drawn = path(figure(a_chart(*values)))
    heights = {y for _, y in points(drawn)}
    assert min(heights) == round(SIDE * (1 - max(values) / 10))
    assert max(heights) == round(SIDE * (1 - min(values) / 10))


def test_a_very_long_series_takes_no_more_room_than_a_long_one() -> None:
    sizes = [
        len(figure(a_chart(*[float(i * 7919 % 11) for i in range(count)], missed=(True, False) * (count // 2))))
        for count in (2_000, 100_000)
    ]
    assert sizes[1] < 1.5 * sizes[0] < 60_000


@given(st.lists(st.none() | st.integers(0, 10).map(float), min_size=1, max_size=60))
def test_a_short_series_is_drawn_as_it_is(values: list[Value]) -> None:
    corners = points(path(figure(a_chart(*values))))
    for index, value in enumerate(values):
        middle = SIDE * (index + 0.5) / len(values)
        covering = {y for (x0, y), (x1, y1) in pairwise(corners) if x0 < middle < x1 and y == y1}
        if value is not None:
            assert round(SIDE * (1 - value / 10)) in covering


def test_the_read_out_has_the_words_of_every_window() -> None:
    markup = figure(a_chart(1.0, 1.0, None, 4.5))
    assert re.search(r'data-words="([^"]*)"', markup)[1] == "1||–|4.5"  # type: ignore[index]
    assert read_out_axis(a_chart(1.0, 1.0, None, 4.5).axis) == {
        "data_from": "1:40|1:50|2:00|2:10",
        "data_until": "0.2500|0.5000|0.7500|1.0000",
    }


def test_the_read_out_of_windows_taken_together_is_their_range() -> None:
    markup = figure(a_chart(*[float(i % 7) for i in range(800)]))
    assert re.search(r'data-words="([^|]*)\|', markup)[1] == "0 to 1"  # type: ignore[index]


def test_a_fault_is_shaded_and_lettered() -> None:
    band = Band(letter="A", words="no <nodes>", from_s=110.0, until_s=130.0)
    markup = figure(a_chart(1.0, 2.0, 3.0, 4.0, bands=(band,)))
    assert '<rect class="band" x="250" width="500"' in markup
    assert '<span class="letter" style="left:50.0%" title="no &lt;nodes&gt;">A</span>' in markup


def test_a_fault_at_one_moment_is_seen_still() -> None:
    band = Band(letter="B", words="a price", from_s=120.0, until_s=120.0)
    width = re.search(r'class="band" x="500" width="(\d+)"', figure(a_chart(1.0, 2.0, 3.0, 4.0, bands=(band,))))
    assert width is not None
    assert int(width[1]) > 0


def test_missed_windows_are_marked_and_explained_where_there_are_any() -> None:
    markup = figure(a_chart(1.0, 2.0, 3.0, 4.0, missed=(False, True, True, False)))
    assert 'class="mark missed" d="M250 994H750"' in markup
    assert "missed</li>" in markup
    assert "missed</li>" not in figure(a_chart(1.0, missed=(False,)))


def test_a_single_missed_window_of_a_long_run_is_seen() -> None:
    missed = tuple(index == 77_777 for index in range(100_000))
    drawn = re.search(r'class="mark missed" d="M(\d+) 994H(\d+)"', figure(a_chart(*[1.0] * 100_000, missed=missed)))
    assert drawn is not None
    assert int(drawn[1]) <= 778 <= int(drawn[2])


def test_who_does_not_see_the_chart_is_told_what_it_shows() -> None:
    markup = figure(a_chart(1.0, 2.0, 6.0, missed=(False, False, True)))
    assert 'aria-label="Replicas: ready from 1 to 6, 3 on average; missed in 1 window"' in markup
    assert "ready without values" in figure(a_chart(None, None))


class Tags(HTMLParser):
    """Every element and every attribute of a page."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names |= {tag, *(name for name, _ in attrs)}


@pytest.mark.parametrize("name", ["</title><script>", '" onload="', "'><b>", "<!--"])
def test_names_become_no_markup(name: str) -> None:
    assert Tags(figure(a_chart(1.0, name=name))).names == Tags(figure(a_chart(1.0, name="plain"))).names
