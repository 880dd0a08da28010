"""The parser of the part of PromQL that the operator can evaluate without Prometheus. Pure.

It covers what the presets and ordinary queries for load and latency use: selectors by name, rates and means over a
window, sums, quotients and quantiles. Matching by `on` or `ignoring`, offsets and the like are not supported.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from profiler.sources.promql_tokens import Cursor, Kind, UnsupportedQuery, seconds, unquoted

OVER_TIME = frozenset({"rate", "increase", "deriv", "avg_over_time", "max_over_time", "min_over_time", "sum_over_time"})
"""Functions of the samples in a window."""
OF_VALUES = frozenset({"clamp_min", "clamp_max", "histogram_quantile", "timestamp", "time"})
AGGREGATIONS = frozenset({"sum", "avg", "max", "min", "count"})

_PRECEDENCE = (("or",), ("==", "!=", "<", "<=", ">", ">="), ("+", "-"), ("*", "/"))
_COMPARISONS = frozenset(_PRECEDENCE[1])
_MATCHING = frozenset({"on", "ignoring", "group_left", "group_right", "without", "and", "unless", "atan2", "offset"})
_DEEPEST = 40
_MOST_OPERATORS = 100
"""Per query. Each operator may be a level of the tree, and functions over the tree recurse into every level."""
_WILDCARDS = 2
"""Per alternative of a regular expression. Each further wildcard may multiply the time to match by the length."""
_ALTERNATIVE = re.compile(r"(?:\\[^A-Za-z0-9\n]|[^\\.*+?()\[\]{}^$|\n]|(?P<wild>\.[*+]?))*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """A condition on a label; `operator` is =, !=, =~ or !~."""

    label: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number."""

    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """The series of one metric: their samples of the last `window_s`, or their newest samples where it is None."""

    name: str
    matchers: tuple[Matcher, ...]
    window_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subquery:
    """The values of `inside` over the last `window_s`, one every `step_s`."""

    inside: "Expression"
    window_s: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a function in OVER_TIME or OF_VALUES."""

    function: str
    arguments: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One of AGGREGATIONS over the series with the same values of the labels `by`."""

    operation: str
    by: tuple[str, ...]
    inside: "Expression"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """Arithmetic, a comparison or `or`, between series with the same labels.

    With `as_bool` a comparison gives 0 or 1 instead of filtering.
    """

    operator: str
    left: "Expression"
    right: "Expression"
    as_bool: bool = False


Expression = Number | Selector | Subquery | Call | Aggregate | Binary


@lru_cache(maxsize=2048)
def parse(query: str) -> Expression:
    """Return the tree of a query.

    Raises:
        UnsupportedQuery: the query is not PromQL, or uses a part of it that is not supported.
    """
    cursor = Cursor(query)
    expression = _Parser(cursor).binary(0, 0)
    if cursor.next.kind is not Kind.END:
        raise cursor.refusal()
    if _is_range(expression):
        raise UnsupportedQuery(f"{query!r}: must give numbers, not the samples of a window")
    return expression


def metric_names(expression: Expression) -> Iterator[str]:
    """Yield the names of the metrics that an expression selects, in its order."""
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
    """Return how far back an expression looks, in seconds; 0 if it uses the newest samples only."""
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


class _Parser:
    """Recursive descent over the tokens of a query; `depth` counts parentheses and signs, and is bounded."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._subqueries = 0
        self._operators = 0

    def binary(self, level: int, depth: int) -> Expression:
        if depth > _DEEPEST:
            raise UnsupportedQuery(f"parentheses: more than {_DEEPEST} levels deep")
        if level == len(_PRECEDENCE):
            return self._unary(depth)
        cursor = self._cursor
        left = self.binary(level + 1, depth)
        while (operator := cursor.word) in _PRECEDENCE[level]:
            cursor.take()
            as_bool = operator in _COMPARISONS and cursor.take_if("bool")
            self._no_matching()
            right = self.binary(level + 1, depth)
            if _is_range(left) or _is_range(right):
                raise UnsupportedQuery(f"{operator!r}: cannot be applied to the samples of a window")
            left = self._joined(operator, left, right, as_bool=as_bool)
        self._no_matching()
        return left

    def _unary(self, depth: int) -> Expression:
        if depth > _DEEPEST:
            raise UnsupportedQuery(f"signs: more than {_DEEPEST} in a row")
        if self._cursor.take_if("-"):
            return self._joined("*", Number(value=-1.0), self._unary(depth + 1))
        if self._cursor.take_if("+"):
            return self._unary(depth + 1)
        before = self._subqueries
        operand = self._operand(depth)
        base = self._with_window(operand, nested=self._subqueries > before)
        if self._cursor.take_if("^"):
            return self._joined("^", base, self._unary(depth + 1))
        return base

    def _joined(self, operator: str, left: Expression, right: Expression, *, as_bool: bool = False) -> Binary:
        self._operators += 1
        if self._operators > _MOST_OPERATORS:
            raise UnsupportedQuery(f"operators: more than {_MOST_OPERATORS}")
        return Binary(operator=operator, left=left, right=right, as_bool=as_bool)

    def _operand(self, depth: int) -> Expression:
        cursor = self._cursor
        token = cursor.next
        if cursor.take_if("("):
            inside = self.binary(0, depth + 1)
            cursor.expect(")")
            return inside
        if token.kind is Kind.NUMBER:
            cursor.take()
            return Number(value=float(token.text))
        cursor.expect_kind(Kind.NAME)
        word = token.text.lower()
        if word in AGGREGATIONS and cursor.word in {"(", "by"}:
            return self._aggregate(word, depth)
        if cursor.next.text == "(":
            return self._call(word, depth)
        return Selector(name=token.text, matchers=self._matchers())

    def _aggregate(self, operation: str, depth: int) -> Expression:
        cursor = self._cursor
        by = cursor.labels() if cursor.take_if("by") else None
        cursor.expect("(")
        inside = self.binary(0, depth + 1)
        cursor.expect(")")
        if by is None:
            by = cursor.labels() if cursor.take_if("by") else ()
        if _is_range(inside):
            raise UnsupportedQuery(f"{operation}: cannot be applied to the samples of a window")
        return Aggregate(operation=operation, by=by, inside=inside)

    def _call(self, function: str, depth: int) -> Expression:
        cursor = self._cursor
        if function not in OVER_TIME | OF_VALUES:
            raise UnsupportedQuery(f"{function}(): must be one of {', '.join(sorted(OVER_TIME | OF_VALUES))}")
        cursor.expect("(")
        arguments: list[Expression] = []
        while cursor.next.text != ")":
            arguments.append(self.binary(0, depth + 1))
            if not cursor.take_if(","):
                break
        cursor.expect(")")
        expected = {"time": 0, "timestamp": 1, "clamp_min": 2, "clamp_max": 2, "histogram_quantile": 2}.get(function, 1)
        ranges = [_is_range(argument) for argument in arguments]
        if len(arguments) != expected or any(is_range is not (function in OVER_TIME) for is_range in ranges):
            raise UnsupportedQuery(f"{function}(): takes other arguments")
        return Call(function=function, arguments=tuple(arguments))

    def _matchers(self) -> tuple[Matcher, ...]:
        if self._cursor.next.text != "{":
            return ()
        found = [
            Matcher(label=label, operator=operator, value=unquoted(string.text))
            for label, operator, string in self._cursor.matchers()
        ]
        for matcher in found:
            if matcher.operator in {"=~", "!~"}:
                require_simple(matcher.value)
        return tuple(found)

    def _with_window(self, inside: Expression, *, nested: bool) -> Expression:
        """Return `inside`, with a window where one follows; `nested` says whether `inside` contains a subquery."""
        cursor = self._cursor
        at = cursor.next.at
        if not cursor.take_if("["):
            return inside
        window_s = seconds(cursor.expect_kind(Kind.DURATION).text)
        if window_s <= 0:
            raise UnsupportedQuery("the window: must be above 0")
        if cursor.take_if(":"):
            step_s = seconds(cursor.expect_kind(Kind.DURATION).text)
            if not 0 < window_s / 10_000 <= step_s:
                raise UnsupportedQuery("the step of a subquery: must be at least a ten-thousandth of its window")
            if nested:  # the numbers of steps would multiply
                raise UnsupportedQuery(f"'[' at {at}: is a subquery of a subquery")
            self._subqueries += 1
            found: Expression = Subquery(inside=inside, window_s=window_s, step_s=step_s)
        elif isinstance(inside, Selector) and inside.window_s is None:
            found = Selector(name=inside.name, matchers=inside.matchers, window_s=window_s)
        else:
            raise UnsupportedQuery("a window: must follow a selector")
        cursor.expect("]")
        return found

    def _no_matching(self) -> None:
        if self._cursor.word in _MATCHING or self._cursor.next.text in {"@", "%"}:
            raise self._cursor.refusal()


def _is_range(expression: Expression) -> bool:
    return isinstance(expression, Subquery) or (isinstance(expression, Selector) and expression.window_s is not None)


def require_simple(pattern: str) -> None:
    """Accept only regular expressions that match fast, and that mean the same in Prometheus and here.

    Raises:
        UnsupportedQuery: the expression is not alternatives of plain text with a few wildcards each.
    """
    for alternative in re.split(r"(?<!\\)\|", pattern):
        match = _ALTERNATIVE.fullmatch(alternative)
        wildcards = len(re.findall(r"(?<!\\)\.[*+]", alternative))
        if match is None or wildcards > _WILDCARDS:
            rule = f"must be alternatives (|) of plain text with at most {_WILDCARDS} of .* and .+ each"
            raise UnsupportedQuery(f"the regular expression {pattern!r}: {rule}")
