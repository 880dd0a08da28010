"""The parser of PromQL. Pure.

It reads nearly all of PromQL (not `info()`, comments and quoted names), strictly: a query that is not understood to its
last token is an error. `selector_places` finds every selector of a query. `parse` returns a syntax tree, but only for
the part of PromQL that the operator can evaluate without Prometheus: what the presets and ordinary queries for load and
latency use, such as selectors by name, rates and means over a window, sums, quotients and quantiles. Not supported are,
for example, `on`, `ignoring` and offsets.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from profiler.sources.promql_tokens import Cursor, Kind, UnsupportedQuery, seconds, unquoted


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OVER_TIME = frozenset({"rate", "increase", "deriv", "avg_over_time", "max_over_time", "min_over_time", "sum_over_time"})
"""The functions of the samples in a window that can be evaluated."""
OF_VALUES = frozenset({"clamp_min", "clamp_max", "histogram_quantile", "timestamp", "time"})
AGGREGATIONS = frozenset({"sum", "avg", "max", "min", "count"})

_ALL_AGGREGATIONS = _words(
    "sum avg count min max group stddev stdvar topk bottomk count_values quantile limitk limit_ratio"
)
# All functions of PromQL except info(), which reads series that no selector of the query names.
_ALL_FUNCTIONS = _words(
    """abs absent absent_over_time avg_over_time ceil changes clamp clamp_max clamp_min count_over_time days_in_month
    day_of_month day_of_week day_of_year delta deriv double_exponential_smoothing exp first_over_time floor
    histogram_avg histogram_count histogram_fraction histogram_quantile histogram_stddev histogram_stdvar histogram_sum
    holt_winters hour idelta increase irate label_join label_replace last_over_time ln log10 log2 mad_over_time
    max_over_time min_over_time minute month pi predict_linear present_over_time quantile_over_time rate resets round
    scalar sgn sort sort_by_label sort_by_label_desc sort_desc sqrt stddev_over_time stdvar_over_time sum_over_time time
    timestamp ts_of_first_over_time ts_of_last_over_time ts_of_max_over_time ts_of_min_over_time vector year acos acosh
    asin asinh atan atanh cos cosh deg rad sin sinh tan tanh"""
)
_COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
_PRECEDENCE = (
    frozenset({"or"}),
    frozenset({"and", "unless"}),
    _COMPARISONS,
    frozenset({"+", "-"}),
    frozenset({"*", "/", "%", "atan2"}),
)
_NOT_EVALUATED = frozenset({"and", "unless", "%", "atan2"})
_GROUPINGS = frozenset({"by", "without"})
_MODIFIERS = frozenset({"bool", "on", "ignoring", "group_left", "group_right"})
_KEYWORDS = _MODIFIERS | {"without", "and", "unless", "atan2", "offset"}
_RESERVED = _KEYWORDS | {"by", "or", "start", "end", "default", "if", "ifnot", "with"}
"""Words that a query may use as names of metrics, although some back ends read them as keywords."""
_NUMBERS = frozenset({"inf", "nan"})
_DEEPEST = 40
_MOST_OPERATORS = 100
"""Most operators per query. Each may be a level of the tree, and functions over the tree recurse into every level."""
_WILDCARDS = 2
"""Most wildcards per alternative of a regular expression. Each further one may multiply the time to match by the length
of the text."""
_ALTERNATIVE = re.compile(r"(?:\\[^A-Za-z0-9\n]|[^\\.*+?()\[\]{}^$|\n]|(?P<wild>\.[*+]?))*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """A condition on the value of a label; `operator` is =, !=, =~ or !~."""

    label: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number in a query."""

    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """The series of one metric: their samples of the last `window_s` seconds; with None, their newest samples."""

    name: str
    matchers: tuple[Matcher, ...]
    window_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subquery:
    """The values of `inside` over the last `window_s` seconds, one every `step_s` seconds."""

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
    """An aggregation of `inside`, such as `sum by (pod) (…)`; `operation` is one of AGGREGATIONS.

    The series with the same values of the labels `by` become one. With `by` empty, all series become one.
    """

    operation: str
    by: tuple[str, ...]
    inside: "Expression"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A binary operation between series with the same labels: arithmetic, a comparison or `or`.

    With `as_bool` a comparison gives 0 or 1 instead of filtering.
    """

    operator: str
    left: "Expression"
    right: "Expression"
    as_bool: bool = False


Expression = Number | Selector | Subquery | Call | Aggregate | Binary


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorPlace:
    """Where a condition can be added to a selector: at the index `at` of the query.

    `braces` says whether the selector has braces. If so, `at` is behind the opening brace, otherwise behind the name of
    the metric. `conditions` says whether there are conditions in the braces.
    """

    at: int
    braces: bool
    conditions: bool


@lru_cache(maxsize=2048)
def parse(query: str) -> Expression:
    """Return the syntax tree of `query`.

    Raises:
        UnsupportedQuery: the query is not PromQL, or uses a part of PromQL that cannot be evaluated here.
    """
    parser = _Parser(query)
    expression = parser.whole()
    if parser.not_evaluated is not None:
        raise parser.not_evaluated
    if _is_range(expression):
        raise UnsupportedQuery(f"{query!r}: must give numbers, not the samples of a window")
    return expression


def selector_places(query: str) -> tuple[SelectorPlace, ...]:
    """Return the places of all selectors of `query`, from left to right.

    Raises:
        UnsupportedQuery: a token of the query is unknown, not expected at its place, or can be read in two ways.
    """
    parser = _Parser(query)
    parser.whole()
    if parser.ambiguous is not None:
        raise parser.ambiguous
    return tuple(parser.places)


def metric_names(expression: Expression) -> Iterator[str]:
    """Yield the names of the metrics that an expression selects, in its order."""
    if isinstance(expression, Selector):
        yield expression.name
    for part in _inside(expression):
        yield from metric_names(part)


def longest_window_s(expression: Expression) -> float:
    """Return how far back an expression looks, in seconds; 0 if it uses the newest samples only."""
    own_s = expression.window_s or 0.0 if isinstance(expression, Selector | Subquery) else 0.0
    return own_s + max((longest_window_s(part) for part in _inside(expression)), default=0.0)


def _inside(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case Subquery() | Aggregate():
            return (expression.inside,)
        case Call():
            return expression.arguments
        case Binary():
            return expression.left, expression.right
        case _:
            return ()


class _Parser:
    """Recursive descent over the tokens of a query; `depth` counts parentheses and signs, and is bounded.

    `not_evaluated` is the error of the first part that cannot be evaluated, `ambiguous` that of the first token that
    other back ends may read in another way. The tree of a query with `not_evaluated` has no meaning.
    """

    def __init__(self, query: str) -> None:
        self._cursor = Cursor(query)
        self.places: list[SelectorPlace] = []
        self.not_evaluated: UnsupportedQuery | None = None
        self.ambiguous: UnsupportedQuery | None = None
        self._subqueries = 0
        self._operators = 0

    def whole(self) -> Expression:
        expression = self._binary(0, 0)
        if self._cursor.next.kind is not Kind.END:
            raise self._cursor.refusal()
        return expression

    def _note_not_evaluated(self, error: UnsupportedQuery | str | None = None) -> None:
        """Note that the query cannot be evaluated: because of `error`, or of the token at the cursor."""
        if self.not_evaluated is None:
            error = self._cursor.refusal() if error is None else error
            self.not_evaluated = error if isinstance(error, UnsupportedQuery) else UnsupportedQuery(error)

    def _note_ambiguous(self, error: UnsupportedQuery) -> None:
        if self.ambiguous is None:
            self.ambiguous = error

    def _binary(self, level: int, depth: int) -> Expression:
        if depth > _DEEPEST:
            raise UnsupportedQuery(f"parentheses: more than {_DEEPEST} levels deep")
        if level == len(_PRECEDENCE):
            return self._unary(depth)
        left = self._binary(level + 1, depth)
        while (operator := self._cursor.word) in _PRECEDENCE[level]:
            if operator in _NOT_EVALUATED:
                self._note_not_evaluated()
            self._cursor.take()
            as_bool = self._modifiers(operator)
            right = self._binary(level + 1, depth)
            if _is_range(left) or _is_range(right):
                self._note_not_evaluated(f"{operator!r}: cannot be applied to the samples of a window")
            left = self._joined(operator, left, right, as_bool=as_bool)
        return left

    def _modifiers(self, operator: str) -> bool:
        """Take the modifiers of a binary operator; return whether `bool` is among them."""
        cursor = self._cursor
        as_bool = modified = False
        while cursor.word in _MODIFIERS:
            # A metric may have one of these names. Before a parenthesis or another operand it is a modifier.
            if cursor.word != "bool" or operator not in _COMPARISONS:
                self._note_not_evaluated()
            modifier, modified = cursor.take().text.lower(), True
            as_bool |= modifier == "bool"
            if modifier != "bool" and cursor.next.text == "(":
                cursor.labels()
            elif modifier in {"on", "ignoring"}:
                raise cursor.refusal()
        if modified and cursor.next.text in {"+", "-"}:
            self._note_ambiguous(cursor.refusal())
        return as_bool

    def _unary(self, depth: int) -> Expression:
        if depth > _DEEPEST:
            raise UnsupportedQuery(f"signs: more than {_DEEPEST} in a row")
        if self._cursor.take_if("-"):
            return self._joined("*", Number(value=-1.0), self._unary(depth + 1))
        if self._cursor.take_if("+"):
            return self._unary(depth + 1)
        before = self._subqueries
        operand = self._operand(depth)
        base = self._with_suffixes(operand, nested=self._subqueries > before)
        if self._cursor.take_if("^"):
            self._modifiers("^")
            return self._joined("^", base, self._unary(depth + 1))
        return base

    def _joined(self, operator: str, left: Expression, right: Expression, *, as_bool: bool = False) -> Binary:
        self._operators += 1
        if self._operators > _MOST_OPERATORS:
            self._note_not_evaluated(f"operators: more than {_MOST_OPERATORS}")
        return Binary(operator=operator, left=left, right=right, as_bool=as_bool)

    def _operand(self, depth: int) -> Expression:
        cursor = self._cursor
        token, word, refusal = cursor.next, cursor.word, cursor.refusal()
        if cursor.take_if("("):
            inside = self._binary(0, depth + 1)
            cursor.expect(")")
            return inside
        if token.kind is Kind.NUMBER:
            cursor.take()
            return Number(value=float(token.text))
        if token.kind is Kind.STRING:
            self._note_not_evaluated()
            cursor.take()
            return Number(value=math.nan)
        if token.text == "{":
            self._note_not_evaluated()
            return self._selector("")
        cursor.expect_kind(Kind.NAME)
        if cursor.next.text == "{":
            return self._selector(token.text)
        if word in _ALL_AGGREGATIONS and cursor.word in {"(", *_GROUPINGS}:
            return self._aggregate(word, depth)
        if cursor.next.text == "(":
            return self._call(word, depth)
        if word in _RESERVED:
            self._note_ambiguous(refusal)
        if word in _KEYWORDS:
            self._note_not_evaluated(refusal)
        if word not in _NUMBERS:
            self.places.append(SelectorPlace(at=token.at + len(token.text), braces=False, conditions=False))
        return Selector(name=token.text, matchers=())

    def _aggregate(self, operation: str, depth: int) -> Expression:
        if operation not in AGGREGATIONS:
            self._note_not_evaluated(f"{operation}(): must be one of {', '.join(sorted(AGGREGATIONS))}")
        by = self._grouping()
        if not (arguments := self._arguments(depth)):
            raise UnsupportedQuery(f"{operation}(): takes other arguments")
        if by is None:
            by = self._grouping()
        if len(arguments) != 1:
            self._note_not_evaluated(f"{operation}(): takes other arguments")
            return Number(value=math.nan)
        if _is_range(arguments[0]):
            self._note_not_evaluated(f"{operation}: cannot be applied to the samples of a window")
        return Aggregate(operation=operation, by=by or (), inside=arguments[0])

    def _grouping(self) -> tuple[str, ...] | None:
        if self._cursor.word not in _GROUPINGS:
            return None
        if self._cursor.word == "without":
            self._note_not_evaluated()
        self._cursor.take()
        return self._cursor.labels()

    def _call(self, function: str, depth: int) -> Expression:
        if function not in _ALL_FUNCTIONS:
            raise UnsupportedQuery(f"{function}(): is not a supported function")
        if function not in OVER_TIME | OF_VALUES:
            self._note_not_evaluated(f"{function}(): must be one of {', '.join(sorted(OVER_TIME | OF_VALUES))}")
        arguments = self._arguments(depth)
        expected = {"time": 0, "timestamp": 1, "clamp_min": 2, "clamp_max": 2, "histogram_quantile": 2}.get(function, 1)
        ranges = [_is_range(argument) for argument in arguments]
        if len(arguments) != expected or any(is_range is not (function in OVER_TIME) for is_range in ranges):
            self._note_not_evaluated(f"{function}(): takes other arguments")
        return Call(function=function, arguments=arguments)

    def _arguments(self, depth: int) -> tuple[Expression, ...]:
        self._cursor.expect("(")
        if self._cursor.take_if(")"):
            return ()
        arguments = [self._binary(0, depth + 1)]
        while self._cursor.take_if(","):
            arguments.append(self._binary(0, depth + 1))
        self._cursor.expect(")")
        return tuple(arguments)

    def _selector(self, name: str) -> Selector:
        """Take the braces of the selector of the metric `name`, with the conditions, and return the selector."""
        at = self._cursor.next.at + 1
        conditions = self._cursor.matchers()
        self.places.append(SelectorPlace(at=at, braces=True, conditions=bool(conditions)))
        matchers = []
        try:
            for label, operator, string in conditions:
                value = unquoted(string.text)
                if operator in {"=~", "!~"}:
                    require_simple(value)
                matchers.append(Matcher(label=label, operator=operator, value=value))
        except UnsupportedQuery as error:
            self._note_not_evaluated(error)
        return Selector(name=name, matchers=tuple(matchers))

    def _with_suffixes(self, inside: Expression, *, nested: bool) -> Expression:
        """Take the windows, offsets and times behind `inside`, and return it with them; `nested`: it has a subquery."""
        cursor = self._cursor
        while True:
            if cursor.next.text == "[":
                inside = self._with_window(inside, nested=nested)
                nested |= isinstance(inside, Subquery)
                continue
            if cursor.word not in {"offset", "@"}:
                return inside
            self._note_not_evaluated()
            if cursor.take_if("offset"):
                cursor.take_if("-")
                cursor.expect_kind(Kind.DURATION)
            else:
                cursor.expect("@")
                if cursor.take_if("start") or cursor.take_if("end"):
                    cursor.expect("(")
                    cursor.expect(")")
                else:
                    cursor.expect_kind(Kind.NUMBER)

    def _with_window(self, inside: Expression, *, nested: bool) -> Expression:
        cursor = self._cursor
        at = cursor.next.at
        cursor.expect("[")
        window_s = seconds(cursor.expect_kind(Kind.DURATION).text)
        if window_s <= 0:
            self._note_not_evaluated("the window: must be above 0")
        if cursor.take_if(":"):
            if cursor.next.kind is not Kind.DURATION:
                self._note_not_evaluated()
            step_s = seconds(cursor.take().text) if cursor.next.kind is Kind.DURATION else window_s
            if not 0 < window_s / 10_000 <= step_s:
                self._note_not_evaluated("the step of a subquery: must be at least a ten-thousandth of its window")
            if nested:  # the numbers of steps would multiply
                self._note_not_evaluated(f"'[' at {at}: is a subquery of a subquery")
            self._subqueries += 1
            inside = Subquery(inside=inside, window_s=window_s, step_s=step_s)
        elif isinstance(inside, Selector) and inside.window_s is None:
            inside = Selector(name=inside.name, matchers=inside.matchers, window_s=window_s)
        else:
            self._note_not_evaluated("a window: must follow a selector")
        cursor.expect("]")
        return inside


def _is_range(expression: Expression) -> bool:
    return isinstance(expression, Subquery) or (isinstance(expression, Selector) and expression.window_s is not None)


def require_simple(pattern: str) -> None:
    """Check that a regular expression matches fast, and means the same in Prometheus and in Python.

    Raises:
        UnsupportedQuery: the expression is not alternatives of plain text with a few wildcards each.
    """
    for alternative in re.split(r"(?<!\\)\|", pattern):
        match = _ALTERNATIVE.fullmatch(alternative)
        wildcards = len(re.findall(r"(?<!\\)\.[*+]", alternative))
        if match is None or wildcards > _WILDCARDS:
            rule = f"must be alternatives (|) of plain text with at most {_WILDCARDS} of .* and .+ each"
            raise UnsupportedQuery(f"the regular expression {pattern!r}: {rule}")
