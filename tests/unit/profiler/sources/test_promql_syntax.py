"""Selectors are found in all of PromQL; the part that the operator can evaluate has a tree, the rest is refused."""

import re

import pytest
from tenant_queries import REFUSED

from profiler.samples import Quantity
from profiler.sources.presets import Formula, load_presets
from profiler.sources.promql import fill, namespace_matcher
from profiler.sources.promql_syntax import (
    Aggregate,
    Binary,
    Call,
    Matcher,
    Number,
    Selector,
    Subquery,
    UnsupportedQuery,
    can_join,
    longest_window_s,
    metric_names,
    parse,
)

_SIGNED = re.compile(r"bool -|\) -b")
# PromQL, but it cannot be restricted.
NO_PROMQL = [query for query in REFUSED if " or " not in query.partition("}")[0] and not _SIGNED.search(query)]
A, B, C = (Selector(name=name, matchers=()) for name in "abc")


def test_every_query_of_every_preset_is_understood_but_those_of_ray_serve_whose_queues_are_of_all_replicas() -> None:
    for name, preset in load_presets().items():
        for quantity, formula in preset.formulas.items():
            if name == "ray-serve" and quantity in {Quantity.ARRIVAL_RATE, Quantity.QUEUE_DEPTH}:
                with pytest.raises(UnsupportedQuery):
                    parse(fill(formula.value, pods=namespace_matcher(["speech"]), window_s=60.0))
                continue
            assert understood(formula)
        assert all(map(understood, preset.first.values()))


def understood(formula: Formula) -> bool:
    queries = [
        fill(each, pods=namespace_matcher(["speech", "batch-1"]), window_s=60.0)
        for each in (formula.value, formula.over)
        if each
    ]
    return all(parse(query) and list(metric_names(query)) for query in queries)


def test_the_usual_query_of_a_latency_is_understood() -> None:
    query = 'histogram_quantile(0.95, sum by (le) (rate(x_bucket{namespace="speech"}[1m])))'
    rate = Selector(name="x_bucket", matchers=(Matcher(label="namespace", operator="=", value="speech"),), window_s=60)
    inside = Aggregate(operation="sum", by=("le",), inside=Call(function="rate", arguments=(rate,)))
    assert parse(query) == Call(function="histogram_quantile", arguments=(Number(value=0.95), inside))
    assert list(metric_names(query)) == ["x_bucket"]
    assert longest_window_s(query) == 60


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
    query = "avg_over_time(rate(a[30s])[1m:5s])"
    expression = parse(query)
    assert isinstance(expression, Call)
    assert isinstance(expression.arguments[0], Subquery)
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
def test_a_subquery_of_a_subquery_is_refused(inside: str) -> None:
    query = f"max_over_time({inside}[24h:9s])"
    with pytest.raises(UnsupportedQuery, match=re.escape(f"{inside}[1d:9s]: is a subquery of a subquery")):
        parse(query)
    parse("max_over_time(a[1h:9s]) / max_over_time(b[1h:9s])")


def test_the_longest_chain_of_operators_can_be_walked() -> None:
    query = f"a{'+a' * 100}"
    assert list(metric_names(query)) == ["a"] * 101
    assert hash(parse(query))


@pytest.mark.parametrize("pattern", ["(a+)+b", "a{3}", "[a-z]+", ".*.*.*x", r"\d+", "^a$", "a*"])
def test_a_regular_expression_that_may_take_long_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedQuery, match="regular expression"):
        parse(f"a{{x=~`{pattern}`}}" if "\\" not in pattern else f'a{{x=~"{pattern.replace(chr(92), chr(92) * 2)}"}}')


@pytest.mark.parametrize("pattern", ["vad|enc", r"vad\\-1|vad\\-2", "speech.*", ".+", "a.c", ""])
def test_alternatives_and_a_few_wildcards_are_understood(pattern: str) -> None:
    assert list(metric_names(f'a{{x=~"{pattern}"}}')) == ["a"]


def test_names_and_windows_are_known_of_all_of_promql() -> None:
    query = 'topk(scalar(a), {__name__=~".+"} offset 1h) / on (x) max_over_time((rate(b[5m]))[1h:]) or (-c > bool 1)'
    assert metric_names(query) == ("a", "b", "c")
    assert longest_window_s(query) == 3900
    assert metric_names('{"a b"} + {"c"} + d') == ("d",)
    with pytest.raises(UnsupportedQuery):
        parse('{"c"}')


def test_numbers_labels_and_functions_select_no_series() -> None:
    query = "time() + inf * scalar(vector(1) > bool on (pod) vector(2))"
    assert metric_names(query) == ()
    assert not can_join(query)
    assert not can_join("SCALAR (a)")
    assert not can_join("a # comment")
    assert can_join("sum(a)")


@pytest.mark.parametrize("query", [*NO_PROMQL, "sum()", "sum by (a) ()"])
def test_what_is_not_read_to_the_end_is_no_promql(query: str) -> None:
    with pytest.raises(UnsupportedQuery):
        metric_names(query)


@pytest.mark.parametrize(
    "query", [r'a{x=~"[a-z]+"}', "topk(3, a)", "max_over_time(max_over_time(a[1h:9s])[1h:9s])", "a @ 5"]
)
def test_promql_that_cannot_be_evaluated_is_promql(query: str) -> None:
    metric_names(query)
    with pytest.raises(UnsupportedQuery):
        parse(query)


def test_the_value_of_a_string_is_that_of_prometheus() -> None:
    expression = parse(r"""a{x="\\.\"\n\x41", y='it\'s', z=`a.b`}""")
    assert isinstance(expression, Selector)
    assert [matcher.value for matcher in expression.matchers] == ['\\."\nA', "it's", "a.b"]
    with pytest.raises(UnsupportedQuery, match="escape"):
        parse(r'a{x="\d"}')


@pytest.mark.parametrize("window", ["1500ms", "60000ms", "1m30s"])
def test_windows_are_read_to_the_millisecond(window: str) -> None:
    expected = {"1500ms": 1.5, "60000ms": 60.0, "1m30s": 90.0}[window]
    assert longest_window_s(f"rate(a[{window}])") == expected
