"""The part of PromQL that the operator can evaluate by itself, as a tree. Pure.

It is what the presets and ordinary queries for load and latency are made of: selectors by name, rates and means over a
window, sums, quotients and quantiles. Matching by `on` or `ignoring`, offsets and the like are refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from profiler.sources.promql_tokens import Kind, Token, UnsupportedQuery, seconds, tokens, unquoted

OVER_TIME = frozenset({"rate", "increase", "deriv", "avg_over_time", "max_over_time", "min_over_time", "sum_over_time"})
"""Functions of the samples in a window."""
OF_VALUES = frozenset({"clamp_min", "clamp_max", "histogram_quantile", "timestamp", "time"})
AGGREGATIONS = frozenset({"sum", "avg", "max", "min", "count"})

_PRECEDENCE = (("or",), ("==", "!=", "<", "<=", ">", ">="), ("+", "-"), ("*", "/"))
_COMPARISONS = frozenset(_PRECEDENCE[1])
_MATCHING = frozenset({"on", "ignoring", "group_left", "group_right", "without", "and", "unless", "atan2", "offset"})
_DEEPEST = 40
_MOST_OPERATORS = 100
"""Of a query: each may be a level of the tree, and whoever walks it goes into every level."""
_WILDCARDS = 2
"""Of one alternative of a regular expression: each more may take its length longer to match."""
_ALTERNATIVE = re.compile(r"(?:\\[^A-Za-z0-9\n]|[^\\.*+?()\[\]{}^$|\n]|(?P<wild>\.[*+]?))*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """A condition on a label: `operator` is =, !=, =~ or !~."""

    label: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number."""

    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """The series of one metric; with `window_s` the samples of that time, else the newest."""

    name: str
    matchers: tuple[Matcher, ...]
    window_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subquery:
    """The values of `inside` in the last `window_s`, every `step_s`."""

    inside: "Expression"
    window_s: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function of OVER_TIME or OF_VALUES."""

    function: str
    arguments: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One of AGGREGATIONS over the series that are alike in the labels `by`."""

    operation: str
    by: tuple[str, ...]
    inside: "Expression"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """Arithmetic, a comparison (`as_bool`: 0 or 1 in place of a filter) or `or`, of series alike in all labels."""

    operator: str
    left: "Expression"
    right: "Expression"
    as_bool: bool = False


Expression = Number | Selector | Subquery | Call | Aggregate | Binary


@lru_cache(maxsize=2048)
def parse(query: str) -> Expression:
    """Return the tree of a query.

    Raises:
        UnsupportedQuery: it is not PromQL, or beyond this part of it.
    """
    reader = _Reader(tokens(query))
    expression = reader.binary(0, 0)
    if reader.next.kind is not Kind.END:
        raise reader.refusal()
    if _is_range(expression):
        raise UnsupportedQuery(f"{query!r}: gives the samples of a window instead of numbers")
    return expression


def metric_names(expression: Expression) -> Iterator[str]:
    """Yield the names of the metrics that an expression needs."""
    match expression:
        case Selector():
            yield expression.name
        case Subquery() | Aggregate():
            yield from metric_names(expression.inside)
        case Call():
            for argument in expression.arguments:
                yield from metric_names(argument)
        case Binary():
            yield from metric_names(expression.left)
            yield from metric_names(expression.right)


def longest_window_s(expression: Expression) -> float:
    """Return how far back an expression looks; 0 for one of the newest samples only."""
    match expression:
        case Selector():
            return expression.window_s or 0.0
        case Subquery():
            return expression.window_s + longest_window_s(expression.inside)
        case Aggregate():
            return longest_window_s(expression.inside)
        case Call():
            return max((longest_window_s(argument) for argument in expression.arguments), default=0.0)
        case Binary():
            return max(longest_window_s(expression.left), longest_window_s(expression.right))
        case _:
            return 0.0


class _Reader:
    """Reads tokens by recursive descent; `depth` bounds it."""

    def __init__(self, found: tuple[Token, ...]) -> None:
        self._tokens = found
        self._at = 0
        self._subqueries = 0
        self._operators = 0

    @property
    def next(self) -> Token:
        return self._tokens[self._at]

    def refusal(self) -> UnsupportedQuery:
        shown = self.next.text or "the end"
        return UnsupportedQuery(f"{shown!r} at {self.next.at}: is not understood there")

    def binary(self, level: int, depth: int) -> Expression:
        if depth > _DEEPEST:
            raise UnsupportedQuery(f"parentheses: more than {_DEEPEST} levels deep")
        if level == len(_PRECEDENCE):
            return self._unary(depth)
        left = self.binary(level + 1, depth)
        while (operator := self.next.text.lower()) in _PRECEDENCE[level]:
            self._take()
            as_bool = operator in _COMPARISONS and self._taken("bool")
            self._no_matching()
            right = self.binary(level + 1, depth)
            if _is_range(left) or _is_range(right):
                raise UnsupportedQuery(f"{operator!r}: is between the samples of a window")
            left = self._joined(operator, left, right, as_bool=as_bool)
        self._no_matching()
        return left

    def _unary(self, depth: int) -> Expression:
        if depth > _DEEPEST:
            raise UnsupportedQuery(f"signs: more than {_DEEPEST} in a row")
        if self._taken("-"):
            return self._joined("*", Number(value=-1.0), self._unary(depth + 1))
        if self._taken("+"):
            return self._unary(depth + 1)
        before = self._subqueries
        operand = self._operand(depth)
        base = self._with_window(operand, nested=self._subqueries > before)
        if self._taken("^"):
            return self._joined("^", base, self._unary(depth + 1))
        return base

    def _joined(self, operator: str, left: Expression, right: Expression, *, as_bool: bool = False) -> Binary:
        self._operators += 1
        if self._operators > _MOST_OPERATORS:
            raise UnsupportedQuery(f"operators: more than {_MOST_OPERATORS}")
        return Binary(operator=operator, left=left, right=right, as_bool=as_bool)

    def _operand(self, depth: int) -> Expression:
        token = self.next
        if self._taken("("):
            inside = self.binary(0, depth + 1)
            self._expect(")")
            return inside
        if token.kind is Kind.NUMBER:
            self._take()
            return Number(value=float(token.text))
        if token.kind is not Kind.NAME:
            raise self.refusal()
        self._take()
        word = token.text.lower()
        if word in AGGREGATIONS and self.next.text.lower() in {"(", "by"}:
            return self._aggregate(word, depth)
        if self.next.text == "(":
            return self._call(word, depth)
        return Selector(name=token.text, matchers=self._matchers())

    def _aggregate(self, operation: str, depth: int) -> Expression:
        by = self._labels() if self._taken("by") else None
        self._expect("(")
        inside = self.binary(0, depth + 1)
        self._expect(")")
        if by is None:
            by = self._labels() if self._taken("by") else ()
        if _is_range(inside):
            raise UnsupportedQuery(f"{operation}: is of the samples of a window")
        return Aggregate(operation=operation, by=by, inside=inside)

    def _labels(self) -> tuple[str, ...]:
        self._expect("(")
        names: list[str] = []
        while self.next.kind is Kind.NAME:
            names.append(self._take().text)
            if not self._taken(","):
                break
        self._expect(")")
        return tuple(names)

    def _call(self, function: str, depth: int) -> Expression:
        if function not in OVER_TIME | OF_VALUES:
            raise UnsupportedQuery(f"{function}(): is none of {', '.join(sorted(OVER_TIME | OF_VALUES))}")
        self._expect("(")
        arguments: list[Expression] = []
        while self.next.text != ")":
            arguments.append(self.binary(0, depth + 1))
            if not self._taken(","):
                break
        self._expect(")")
        expected = {"time": 0, "timestamp": 1, "clamp_min": 2, "clamp_max": 2, "histogram_quantile": 2}.get(function, 1)
        ranges = [_is_range(argument) for argument in arguments]
        if len(arguments) != expected or any(is_range is not (function in OVER_TIME) for is_range in ranges):
            raise UnsupportedQuery(f"{function}(): takes other arguments")
        return Call(function=function, arguments=tuple(arguments))

    def _matchers(self) -> tuple[Matcher, ...]:
        found: list[Matcher] = []
        if self._taken("{"):
            while self.next.kind is Kind.NAME:
                label = self._take().text
                operator, string = self._take().text, self._take()
                if operator not in {"=", "!=", "=~", "!~"} or string.kind is not Kind.STRING:
                    raise UnsupportedQuery(f"{label}: is not compared with a string")
                value = unquoted(string.text)
                if operator in {"=~", "!~"}:
                    require_simple(value)
                found.append(Matcher(label=label, operator=operator, value=value))
                if not self._taken(","):
                    break
            self._expect("}")
        return tuple(found)

    def _with_window(self, inside: Expression, *, nested: bool) -> Expression:
        """Return `inside`, with a window where one follows; `nested` says that there is a subquery inside."""
        at = self.next.at
        if not self._taken("["):
            return inside
        if self.next.kind is not Kind.DURATION:
            raise self.refusal()
        window_s = seconds(self._take().text)
        if window_s <= 0:
            raise UnsupportedQuery("the window: must be above 0")
        if self._taken(":"):
            if self.next.kind is not Kind.DURATION:
                raise self.refusal()
            step_s = seconds(self._take().text)
            if not 0 < window_s / 10_000 <= step_s:
                raise UnsupportedQuery("the step of a subquery: must be a ten-thousandth of its window or more")
            if nested:  # every step of it would be as many steps again
                raise UnsupportedQuery(f"'[' at {at}: is a subquery of a subquery")
            self._subqueries += 1
            found: Expression = Subquery(inside=inside, window_s=window_s, step_s=step_s)
        elif isinstance(inside, Selector) and inside.window_s is None:
            found = Selector(name=inside.name, matchers=inside.matchers, window_s=window_s)
        else:
            raise UnsupportedQuery("a window: must stand behind the name of a metric")
        self._expect("]")
        return found

    def _no_matching(self) -> None:
        if self.next.text.lower() in _MATCHING or self.next.text in {"@", "%"}:
            raise self.refusal()

    def _take(self) -> Token:
        token = self.next
        if token.kind is Kind.END:
            raise self.refusal()
        self._at += 1
        return token

    def _taken(self, text: str) -> bool:
        if self.next.kind in {Kind.OPERATOR, Kind.NAME} and self.next.text.lower() == text:
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._taken(text):
            raise self.refusal()


def _is_range(expression: Expression) -> bool:
    return isinstance(expression, Subquery) or (isinstance(expression, Selector) and expression.window_s is not None)


def require_simple(pattern: str) -> None:
    """Refuse a regular expression that could take long to match, or that means something else elsewhere.

    Raises:
        UnsupportedQuery: it is more than alternatives of letters and a few wildcards.
    """
    for alternative in re.split(r"(?<!\\)\|", pattern):
        match = _ALTERNATIVE.fullmatch(alternative)
        wildcards = len(re.findall(r"(?<!\\)\.[*+]", alternative))
        if match is None or wildcards > _WILDCARDS:
            rule = f"must be alternatives (|) of plain text with at most {_WILDCARDS} of .* and .+ each"
            raise UnsupportedQuery(f"the regular expression {pattern!r}: {rule}")
