"""Several users' queries in one: which can be joined, and to which each series of the result belongs."""

import pytest

from profiler.sources.joined_queries import LABEL, joined, query_of, separated
from profiler.sources.promql_syntax import can_join

QUERIES = ('sum(streams{pipeline="a"})', "x or y", 'sum(rate(requests[1m])) / "no"')


@pytest.mark.parametrize(
    "query",
    [
        "sum(x)",
        'x{a="b"}',
        "sum(x) or vector(0)",
        "-x",
        "sum(x) * on () group_left () y",
        "absent(x)",
        "max_over_time(x[5m])",
    ],
)
def test_expressions_of_series_can_be_joined(query: str) -> None:
    assert can_join(query)


@pytest.mark.parametrize(
    "query",
    [
        "17",
        "vector(1)",
        "scalar(sum(x))",
        "2 * SCALAR (x)",
        "sum(x",
        'x, "sluice_query", "1", "", "") or label_replace(y',
        'x), "sluice_query", "1", "", "") or (y',
        "x # the rest of the line",
        "",
    ],
)
def test_what_is_no_complete_expression_of_series_cannot(query: str) -> None:
    assert not can_join(query)


def test_a_single_query_is_sent_as_it_is() -> None:
    assert joined(["sum(x)"]) == "sum(x)"
    assert separated(["sum(x)"], [{"metric": {}, "value": [1, "2"]}]) == {"sum(x)": [{"metric": {}, "value": [1, "2"]}]}


def test_every_series_goes_back_to_its_query_without_the_label() -> None:
    result = [
        {"metric": {LABEL: "1", "pod": "a"}, "value": [1.0, "5"]},
        {"metric": {LABEL: "1", "pod": "b"}, "value": [1.0, "6"]},
        {"metric": {LABEL: "0"}, "value": [1.0, "7"]},
        {"metric": {}, "value": [1.0, "8"]},
    ]
    assert separated(["p", "q", "r"], result) == {
        "p": [{"metric": {}, "value": [1.0, "7"]}],
        "q": [{"metric": {"pod": "a"}, "value": [1.0, "5"]}, {"metric": {"pod": "b"}, "value": [1.0, "6"]}],
        "r": [],
    }


def test_the_query_of_a_series_is_found_in_the_joined_one() -> None:
    whole = joined(QUERIES)
    assert [query_of(whole, {LABEL: str(number)}) for number in range(3)] == list(QUERIES)
    assert query_of("sum(x)", {"pod": "a"}) == "sum(x)"
