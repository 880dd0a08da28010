"""Selectors are found in all of PromQL; the part that the operator can evaluate has a tree, the rest is refused."""

import pytest
from tenant_queries import REFUSED

from profiler.sources.presets import load_presets
from profiler.sources.promql import fill, namespace_matcher
from profiler.sources.promql_syntax import (
    Aggregate,
    Binary,
    Call,
    Matcher,
    Number,
    Selector,
    SelectorPlace,
    Subquery,
    longest_window_s,
    metric_names,
    parse,
    selector_places,
)
from profiler.sources.promql_tokens import UnsupportedQuery

A, B, C = (Selector(name=name, matchers=()) for name in "abc")


def test_every_query_of_every_preset_is_understood() -> None:
    for preset in load_presets().values():
        for formula in (*preset.formulas.values(), *preset.first.values()):
            for template in filter(None, (formula.value, formula.over)):
                query = parse(fill(template, pods=namespace_matcher(["speech", "batch-1"]), window_s=60.0))
                assert list(metric_names(query))


def test_the_usual_query_of_a_latency_is_understood() -> None:
    query = 'histogram_quantile(0.95, sum by (le) (rate(x_bucket{namespace="speech"}[1m])))'
    rate = Selector(name="x_bucket", matchers=(Matcher(label="namespace", operator="=", value="speech"),), window_s=60)
    inside = Aggregate(operation="sum", by=("le",), inside=Call(function="rate", arguments=(rate,)))
    assert parse(query) == Call(function="histogram_quantile", arguments=(Number(value=0.95), inside))
    assert list(metric_names(parse(query))) == ["x_bucket"]
    assert longest_window_s(parse(query)) == 60


def test_operators_bind_as_in_promql() -> None:
    def binary(operator: str, left: object, right: object) -> object:
        return Binary(operator=operator, left=left, right=right)  # type: ignore[arg-type]

    two = Number(value=2.0)
    assert parse("a + b * c") == binary("+", A, binary("*", B, C))
    assert parse("a - b - c") == binary("-", binary("-", A, B), C)
    assert parse("a ^ b ^ c") == binary("^", A, binary("^", B, C))
    assert parse("-a ^ 2") == binary("*", Number(value=-1.0), binary("^", A, two))
    assert parse("a or b + c") == binary("or", A, binary("+", B, C))
    assert parse("(a + b) * c") == binary("*", binary("+", A, B), C)
    assert parse("a > bool 2") == Binary(operator=">", left=A, right=two, as_bool=True)


def test_a_subquery_looks_back_over_what_is_inside() -> None:
    query = parse("avg_over_time(rate(a[30s])[1m:5s])")
    assert isinstance(query, Call)
    assert isinstance(query.arguments[0], Subquery)
    assert longest_window_s(query) == 90


@pytest.mark.parametrize(
    "query",
    [
        "",
        "a b",
        "sum(a",
        "a)",
        "a{x}",
        "a{x=y}",
        '{x="y"}',
        "a[5m]",
        "sum(a[5m])",
        "rate(a)",
        "rate(a[5m], 1)",
        "rate(a[0s])",
        "rate(sum(a)[5m])",
        "a + a[5m]",
        "a offset 5m",
        "a @ 5",
        "a / on(x) b",
        "a * ignoring(x) group_left b",
        "a and b",
        "a unless b",
        "a % b",
        "sum without (x) (a)",
        "topk(3, a)",
        "label_replace(a, 'x', '$1', 'y', '(.*)')",
        "quantile_over_time(0.9, a[5m])",
        "avg_over_time(a[1000000s:1ms])",
        f"{'(' * 100}a{')' * 100}",
        f"{'-' * 100_000}a",
        f"a{'^a' * 100_000}",
        f"a{'+a' * 2_000}",
    ],
)
def test_anything_else_is_refused(query: str) -> None:
    with pytest.raises(UnsupportedQuery):
        parse(query)


@pytest.mark.parametrize("inside", ["max_over_time(a[1h:9s])", "sum(-max_over_time(a[1h:9s]) * 2)"])
def test_a_subquery_of_a_subquery_is_refused_with_its_position(inside: str) -> None:
    query = f"max_over_time({inside}[24h:9s])"
    with pytest.raises(UnsupportedQuery, match=rf"'\[' at {query.rindex('[')}: is a subquery of a subquery"):
        parse(query)
    parse("max_over_time(a[1h:9s]) / max_over_time(b[1h:9s])")


def test_the_longest_chain_of_operators_can_be_walked() -> None:
    query = parse(f"a{'+a' * 100}")
    assert list(metric_names(query)) == ["a"] * 101
    assert hash(query)


@pytest.mark.parametrize("pattern", ["(a+)+b", "a{3}", "[a-z]+", ".*.*.*x", r"\d+", "^a$", "a*"])
def test_a_regular_expression_that_may_take_long_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedQuery, match="regular expression"):
        parse(f"a{{x=~`{pattern}`}}" if "\\" not in pattern else f'a{{x=~"{pattern.replace(chr(92), chr(92) * 2)}"}}')


@pytest.mark.parametrize("pattern", ["vad|enc", r"vad\\-1|vad\\-2", "speech.*", ".+", "a.c", ""])
def test_alternatives_and_a_few_wildcards_are_understood(pattern: str) -> None:
    assert list(metric_names(parse(f'a{{x=~"{pattern}"}}'))) == ["a"]


def test_a_selector_is_found_with_its_braces_and_conditions() -> None:
    query = 'up + down{} / sum by (x) (rate(a{x="y"}[5m]))'
    assert selector_places(query) == (
        SelectorPlace(at=query.index(" +"), braces=False, conditions=False),
        SelectorPlace(at=query.index("{}") + 1, braces=True, conditions=False),
        SelectorPlace(at=query.index("x="), braces=True, conditions=True),
    )


def test_numbers_labels_and_functions_are_no_selectors() -> None:
    assert selector_places("time() + inf * scalar(vector(1) > bool on (pod) vector(2))") == ()


@pytest.mark.parametrize("query", [*REFUSED, "sum()", "sum by (a) ()"])
def test_a_query_that_is_not_understood_to_the_end_has_no_selectors(query: str) -> None:
    with pytest.raises(UnsupportedQuery):
        selector_places(query)


def test_selectors_are_found_where_a_query_cannot_be_evaluated() -> None:
    for query in (
        r'a{x=~"[a-z]+"}',
        r'a{x="\x41"}',
        f"a{'+a' * 2_000}",
        "max_over_time(max_over_time(a[1h:9s])[1h:9s])",
    ):
        assert selector_places(query)
        with pytest.raises(UnsupportedQuery):
            parse(query)
