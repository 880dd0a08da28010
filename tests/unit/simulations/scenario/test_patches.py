"""Merge patches: what RFC 7396 shows, and taking them back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.scenario.patches import merged, undo

RFC_7396 = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("document", "patch", "result"), RFC_7396)
def test_merging_does_what_the_examples_of_the_rfc_show(
    document: dict[str, Any], patch: dict[str, Any], result: dict[str, Any]
) -> None:
    assert merged(document, patch) == result


scalars = st.integers(0, 3) | st.text("xy", max_size=1) | st.lists(st.integers(0, 1), max_size=2)
fields = st.sampled_from("abc")
resources = st.dictionaries(fields, st.recursive(scalars, lambda inner: st.dictionaries(fields, inner), max_leaves=6))
patches = st.dictionaries(
    fields, st.recursive(scalars | st.none(), lambda inner: st.dictionaries(fields, inner), max_leaves=6)
)


@given(resources, patches)
def test_undoing_a_merge_patch_restores_the_resource(before: dict[str, Any], patch: dict[str, Any]) -> None:
    after = merged(before, patch)
    assert merged(after, undo(patch, before)) == before
