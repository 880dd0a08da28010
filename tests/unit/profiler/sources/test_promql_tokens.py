import pytest

from profiler.sources.promql_tokens import Kind, UnsupportedQuery, seconds, tokens, unquoted


def kinds(query: str) -> list[tuple[Kind, str]]:
    return [(token.kind, token.text) for token in tokens(query)[:-1]]


def test_a_query_is_its_tokens() -> None:
    assert kinds('sum by(le) (rate(a:b{x=~"y\\"|z"}[1m30s:5s])) * 1e-6 >= .5') == [
        *[(Kind.NAME, "sum"), (Kind.NAME, "by"), (Kind.OPERATOR, "("), (Kind.NAME, "le"), (Kind.OPERATOR, ")")],
        *[(Kind.OPERATOR, "("), (Kind.NAME, "rate"), (Kind.OPERATOR, "("), (Kind.NAME, "a:b"), (Kind.OPERATOR, "{")],
        *[(Kind.NAME, "x"), (Kind.OPERATOR, "=~"), (Kind.STRING, '"y\\"|z"'), (Kind.OPERATOR, "}")],
        *[(Kind.OPERATOR, "["), (Kind.DURATION, "1m30s"), (Kind.OPERATOR, ":"), (Kind.DURATION, "5s")],
        *[(Kind.OPERATOR, "]"), (Kind.OPERATOR, ")"), (Kind.OPERATOR, ")"), (Kind.OPERATOR, "*")],
        *[(Kind.NUMBER, "1e-6"), (Kind.OPERATOR, ">="), (Kind.NUMBER, ".5")],
    ]


@pytest.mark.parametrize(
    "query",
    ["a # b", "a{x='y}", 'a{x="y\n"}', "a;b", "a\\-b", "ä", "$pods", "a{x=`\\`}", "5mm", "0x1f", "1.2.3", "a!b"],
)
def test_what_is_no_token_is_refused(query: str) -> None:
    with pytest.raises(UnsupportedQuery, match="is not understood"):
        tokens(query)


def test_durations_are_seconds() -> None:
    assert [seconds(text) for text in ("60000ms", "1m30s", "2h", "1d", "1w", "1y")] == [
        *[60.0, 90.0, 7200.0],
        *[86_400.0, 604_800.0, 31_536_000.0],
    ]


def test_strings_are_what_they_stand_for() -> None:
    assert [unquoted(text) for text in (r'"a\\.b\"\n"', r"'a\'b'", "`a.b`")] == ['a\\.b"\n', "a'b", "a.b"]
    with pytest.raises(UnsupportedQuery, match="escape"):
        unquoted(r'"\x41"')
