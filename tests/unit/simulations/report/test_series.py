"""Long series made shorter: the extremes stay."""

from hypothesis import given
from hypothesis import strategies as st

from simulations.report.series import borders, parts

values = st.lists(st.none() | st.floats(-1e6, 1e6), max_size=200)


@given(values, st.integers(1, 50))
def test_no_extreme_is_lost(series: list[float | None], columns: int) -> None:
    found = parts(series, columns)
    known = [value for value in series if value is not None]
    assert len(found) <= columns
    assert max((p.high for p in found if p.high is not None), default=None) == max(known, default=None)
    assert min((p.low for p in found if p.low is not None), default=None) == min(known, default=None)


@given(st.integers(0, 1000), st.integers(1, 50))
def test_parts_follow_one_another(count: int, columns: int) -> None:
    edges = borders(count, columns)
    assert [begin for begin, _ in edges] == [0, *(end for _, end in edges)][: len(edges)]
    assert (edges[-1][1] if edges else 0) == count


def test_a_short_series_stays_as_it_is() -> None:
    found = parts([3.0, None, 5.0], 3)
    assert [(p.begin, p.end, p.first, p.low, p.high, p.last) for p in found] == [
        (0, 1, 3.0, 3.0, 3.0, 3.0),
        (1, 2, None, None, None, None),
        (2, 3, 5.0, 5.0, 5.0, 5.0),
    ]


def test_a_gap_within_a_part_leaves_its_known_values() -> None:
    (part,) = parts([None, 4.0, 9.0, None], 1)
    assert (part.first, part.low, part.high, part.last) == (None, 4.0, 9.0, None)
