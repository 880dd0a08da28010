"""PromQL as tokens. Pure. What is not known to be one is refused, so that nobody is led to misread a query."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class UnsupportedQuery(ValueError):
    """A query that is not understood here: the message names what of it, for whoever wrote it."""


class Kind(Enum):
    """What a token is."""

    STRING = "string"
    DURATION = "duration"
    NUMBER = "number"
    NAME = "name"
    """Of a metric, label, function or keyword."""
    OPERATOR = "operator"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A piece of a query, which begins at `at`."""

    kind: Kind
    text: str
    at: int


_UNITS_S: Mapping[str, float] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_SIMPLE_ESCAPES = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "t": "\t", "r": "\r"}

# No leading colon: it would be mistaken for that of a subquery. Comments, and names in quotes, are left out as well.
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
    """Return the tokens of a query, an END last.

    Raises:
        UnsupportedQuery: something in it is none.
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
    """Return the seconds of a DURATION's text."""
    return sum(int(number) * _UNITS_S[unit] for number, unit in _PART.findall(duration))


def unquoted(string: str) -> str:
    r"""Return what a STRING's text stands for.

    Raises:
        UnsupportedQuery: it has another escape than ``\\``, a quotation mark, ``\n``, ``\t`` or ``\r``.
    """
    inside = string[1:-1]
    if string[0] == "`":
        return inside

    def plain(match: re.Match[str]) -> str:
        if match[1] not in _SIMPLE_ESCAPES:
            raise UnsupportedQuery(f"{string}: the escape {match[0]} is not understood")
        return _SIMPLE_ESCAPES[match[1]]

    return _ESCAPE.sub(plain, inside)
