"""Splits PromQL into tokens, and has a cursor over the tokens for the parsers of queries. Pure.

Text that is not a known token is an error, so that no query is misread.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class UnsupportedQuery(ValueError):
    """A query, or a part of it, is not supported. The message names the part."""


class Kind(Enum):
    """The kind of a token."""

    STRING = "string"
    DURATION = "duration"
    NUMBER = "number"
    NAME = "name"
    """The name of a metric, label or function, or a keyword."""
    OPERATOR = "operator"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A piece of a query; `at` is the index of its first character."""

    kind: Kind
    text: str
    at: int


_UNITS_S: Mapping[str, float] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_MATCH_OPERATORS = ("=", "!=", "=~", "!~")
_SIMPLE_ESCAPES = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "t": "\t", "r": "\r"}

# Names have no leading colon: it would be mistaken for that of a subquery. Comments and quoted names are not supported.
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<string>"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*'|`[^`\\]*`)
    |(?P<duration>(?:[0-9]+(?:ms|[smhdwy]))+(?![A-Za-z0-9_.]))
    |(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_.]))
    |(?P<name>[A-Za-z_][A-Za-z0-9_:]*)
    |(?P<operator>=~|!~|!=|==|<=|>=|[-+*/%^<>=(){}\[\],:@])""",
    re.VERBOSE,
)
_PART = re.compile(r"([0-9]+)(ms|[smhdwy])")
_ESCAPE = re.compile(r"\\(.)")


def tokens(query: str) -> tuple[Token, ...]:
    """Return the tokens of `query`, followed by an END.

    Raises:
        UnsupportedQuery: a part of the query is not a token.
    """
    found: list[Token] = []
    at = 0
    while at < len(query):
        match = _TOKEN.match(query, at)
        if match is None:
            raise UnsupportedQuery(f"{query[at : at + 20]!r} at {at}: is not understood")
        if match.lastgroup != "space":
            found.append(Token(kind=Kind(match.lastgroup), text=match.group(), at=at))
        at = match.end()
    return (*found, Token(kind=Kind.END, text="", at=at))


def seconds(duration: str) -> float:
    """Return the seconds of `duration`, the text of a DURATION such as `1h30m`."""
    return sum(int(number) * _UNITS_S[unit] for number, unit in _PART.findall(duration))


def unquoted(string: str) -> str:
    r"""Return the value of `string`, the text of a STRING, without its quotation marks and escapes.

    Raises:
        UnsupportedQuery: `string` has an escape other than ``\\``, a quotation mark, ``\n``, ``\t`` or ``\r``.
    """
    inside = string[1:-1]
    if string[0] == "`":
        return inside

    def plain(match: re.Match[str]) -> str:
        if match[1] not in _SIMPLE_ESCAPES:
            raise UnsupportedQuery(f"{string}: the escape {match[0]} is not understood")
        return _SIMPLE_ESCAPES[match[1]]

    return _ESCAPE.sub(plain, inside)


class Cursor:
    """A position in the tokens of a query, with methods that take the next tokens.

    Keywords are compared in lower case, as in PromQL. `take` and the methods that expect a certain token raise
    `UnsupportedQuery` where the query ends or has another token.
    """

    def __init__(self, query: str) -> None:
        self._tokens = tokens(query)
        self._index = 0

    @property
    def next(self) -> Token:
        """The token at the cursor."""
        return self._tokens[self._index]

    @property
    def word(self) -> str:
        """The text of `next` in lower case."""
        return self.next.text.lower()

    def refusal(self) -> UnsupportedQuery:
        """Return the error that names the token at the cursor."""
        shown = self.next.text or "the end"
        return UnsupportedQuery(f"{shown!r} at {self.next.at}: is not understood there")

    def take(self) -> Token:
        """Return the token at the cursor and move on."""
        token = self.next
        if token.kind is Kind.END:
            raise self.refusal()
        self._index += 1
        return token

    def take_if(self, text: str) -> bool:
        """Move on and return True if the token at the cursor is the operator or keyword `text`."""
        if self.next.kind in {Kind.OPERATOR, Kind.NAME} and self.word == text:
            self._index += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Move on over the operator or keyword `text`, which must be at the cursor."""
        if not self.take_if(text):
            raise self.refusal()

    def expect_kind(self, kind: Kind) -> Token:
        """Return the token at the cursor, which must be a `kind`, and move on."""
        if self.next.kind is not kind:
            raise self.refusal()
        return self.take()

    def labels(self) -> tuple[str, ...]:
        """Take a list of labels, `(a, b)`, and return their names."""
        self.expect("(")
        names: list[str] = []
        while self.next.kind is Kind.NAME:
            names.append(self.take().text)
            if not self.take_if(","):
                break
        self.expect(")")
        return tuple(names)

    def matchers(self) -> tuple[tuple[str, str, Token], ...]:
        """Take the conditions of a selector, `{label="value", …}`; return (label, operator, STRING) for each."""
        self.expect("{")
        found: list[tuple[str, str, Token]] = []
        while self.next.kind is Kind.NAME:
            label = self.take().text
            operator, string = self.take().text, self.take()
            if operator not in _MATCH_OPERATORS or string.kind is not Kind.STRING:
                raise UnsupportedQuery(
                    f"{label}: must be compared with a string by one of {', '.join(_MATCH_OPERATORS)}"
                )
            found.append((label, operator, string))
            if not self.take_if(","):
                break
        self.expect("}")
        return tuple(found)
