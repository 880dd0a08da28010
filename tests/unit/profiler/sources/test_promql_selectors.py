"""Every selector of a query is found; a query with a token that is not understood has none."""

import pytest
from tenant_queries import REFUSED

from profiler.sources.promql_selectors import SelectorPlace, selector_places
from profiler.sources.promql_tokens import UnsupportedQuery


def test_a_selector_is_found_with_its_braces_and_conditions() -> None:
    query = 'up + down{} / sum by (x) (rate(a{x="y"}[5m]))'
    assert selector_places(query) == (
        SelectorPlace(at=query.index(" +"), braces=False, conditions=False),
        SelectorPlace(at=query.index("{}") + 1, braces=True, conditions=False),
        SelectorPlace(at=query.index("x="), braces=True, conditions=True),
    )


def test_numbers_labels_and_functions_are_no_selectors() -> None:
    assert selector_places("time() + inf * scalar(vector(1) > bool on (pod) vector(2))") == ()


@pytest.mark.parametrize("query", REFUSED)
def test_a_query_that_is_not_understood_to_the_end_is_an_error(query: str) -> None:
    with pytest.raises(UnsupportedQuery):
        selector_places(query)
