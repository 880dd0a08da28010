"""Reads PromQL with `promql_parser`, the parser of GreptimeDB; restricts queries, and makes trees to evaluate. Pure.

The parser recurses in native code, compiles regular expressions, and panics at some numbers. Therefore strings are set
aside before a query is parsed, nesting and numbers are bounded, and comments are refused. `parse` returns a tree only
for the part of PromQL that the operator can evaluate without Prometheus: what the presets and ordinary queries for load
and latency use, such as selectors by name, rates and means over a window, sums, quotients and quantiles. Not supported
are, for example, `on`, `ignoring` and offsets.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import promql_parser as promql
from promql_parser import AggregateExpr, BinaryExpr, NumberLiteral, StringLiteral, SubqueryExpr, UnaryExpr

OVER_TIME = frozenset({"rate", "increase", "deriv", "avg_over_time", "max_over_time", "min_over_time", "sum_over_time"})
"""The functions of the samples in a window that can be evaluated."""
OF_VALUES = frozenset({"clamp_min", "clamp_max", "histogram_quantile", "timestamp", "time"})
AGGREGATIONS = frozenset({"sum", "avg", "max", "min", "count"})
_OPERATIONS = frozenset(["+", "-", "*", "/", "^", "==", "!=", "<", "<=", ">", ">=", "or"])

_LONGEST = 200_000
"""Most characters of a query: 4,096 of the user's, and the names of the pods in it."""
_DEEPEST = 40
_MOST_OPERATORS = 100
"""Most signs and operators per query. Each may be a level of the tree, and functions over the tree recurse into every
level. A query at all bounds is read in 0.03 s, within 1 MB of the stack."""
_WILDCARDS = 2
"""Most wildcards per alternative of a regular expression. Each further one may multiply the time to match by the length
of the text."""
_ALTERNATIVE = re.compile(r"(?:\\[^A-Za-z0-9\n]|[^\\.*+?()\[\]{}^$|\n]|(?P<wild>\.[*+]?))*")
# Stricter than PromQL, so that all back ends agree where a string ends. The last alternative is an error.
_STRING = re.compile(r""""(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*'|`[^`\\]*`|["'`#§]""")
_KEPT = re.compile(r'"?§([0-9]+)"?')
_OPERATOR = re.compile(r"[-+*/%^]|[<>=!]+|\b(?:or|and|unless|atan2)\b", re.IGNORECASE)
_BRACES = re.compile(r"\{[^{}]*\}")
# In its durations, the parser panics or wraps around.
_LARGE = re.compile(
    r"(?:\boffset|\[|:)\s*[-+]?\s*(?:[0-9.]{10}|[0-9.]+e|0x|inf|nan|[0-9.]{4,}[wy]|[0-9.]{6,}d)", re.IGNORECASE
)
# A back end that takes the modifier for a metric would read the sign as an operator.
_AMBIGUOUS = re.compile(r"(?:\bbool|\)) [-+](?! )")
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")


class UnsupportedQuery(ValueError):
    """A query, or a part of it, is not supported. The message names the part."""


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


@lru_cache(maxsize=2048)
def parse(query: str) -> Expression:
    """Return the syntax tree of `query`.

    Raises:
        UnsupportedQuery: the query is not PromQL, or uses a part of PromQL that cannot be evaluated here.
    """
    read = _Read(query)
    expression = _Evaluable(read).of(read.tree)
    if _is_range(expression):
        raise UnsupportedQuery(f"{query!r}: must give numbers, not the samples of a window")
    return expression


def restricted_to(query: str, conditions: Sequence[tuple[str, str]]) -> str:
    """Return `query` with the `conditions` in every selector: that each label has exactly its value.

    Raises:
        UnsupportedQuery: the query is not PromQL, reads series that no selector of it names, can be read in two ways,
            or does not keep its meaning when it is printed.
    """
    read = _Read(query)
    named = [(label, f"§{len(read.strings) + number}") for number, (label, _) in enumerate(conditions)]
    condition = ", ".join(f'{label}="{value}"' for label, value in named)
    text = _text(read.tree, condition)
    if _AMBIGUOUS.search(text):
        raise UnsupportedQuery("a sign after a modifier of an operator: put the operand in parentheses")
    again = _parsed(_requoted(text))
    for node in _nodes(again):
        if isinstance(node, promql.VectorSelector):
            own = {(each.name, each.value) for each in node.matchers.matchers if each.op == promql.MatchOp.Equal}
            if node.matchers.or_matchers or not own.issuperset(named):
                raise UnsupportedQuery("`or` in braces: is not supported")
    if _without(again, named) != _without(read.tree, ()):
        raise UnsupportedQuery("does not keep its meaning when it is printed")
    strings = (*read.strings, *(quoted(value) for _, value in conditions))
    return _KEPT.sub(lambda kept: strings[int(kept[1])], text)


@lru_cache(maxsize=16_384)  # two queries of each of 5,000 pipelines, and stages' own
def can_join(query: str) -> bool:
    """Return whether `query` is one complete expression that returns series, so that it can be an operand.

    A query that is not understood to its last token could reach beyond its operand, and change the number of another.
    """
    try:
        tree = _Read(query).tree
    except UnsupportedQuery:
        return False
    # Of all functions of series, only scalar() returns something else than series.
    return not _calls(tree, "scalar") and _selects(tree)


@lru_cache(maxsize=2048)
def metric_names(query: str) -> tuple[str, ...]:
    """Return the names of the metrics that a query selects, in its order, except names in quotation marks.

    Raises:
        UnsupportedQuery: the query is not PromQL.
    """
    names = (node.name for node in _nodes(_Read(query).tree) if isinstance(node, promql.VectorSelector))
    return tuple(name for name in names if name is not None and _NAME.fullmatch(name))


@lru_cache(maxsize=2048)
def longest_window_s(query: str) -> float:
    """Return how far back a query looks without its offsets, in seconds; 0 if it uses the newest samples only.

    Raises:
        UnsupportedQuery: the query is not PromQL.
    """

    def longest_s(node: promql.Expr) -> float:
        own = node.range if isinstance(node, promql.MatrixSelector | SubqueryExpr) else None
        return (own.total_seconds() if own else 0.0) + max((longest_s(part) for part in _inside(node)), default=0.0)

    return longest_s(_Read(query).tree)


@lru_cache(maxsize=16_384)
def with_quantile_1(query: str) -> str | None:
    """Return `query` with 1 for the quantile of every histogram_quantile().

    It is None where that says nothing: there is none, the query cannot be read, or `or` puts other series beside it.
    """
    try:
        read = _Read(query)
    except UnsupportedQuery:
        return None
    unions = (node for node in _nodes(read.tree) if isinstance(node, BinaryExpr) and str(node.op) == "or")
    if any(_selects(side) and not _calls(side, "histogram_quantile") for each in unions for side in _inside(each)):
        return None
    text, changed = _text(read.tree, ""), _text(read.tree, "", quantile="1")
    return None if changed == text else read.restored(changed)


def quoted(value: str) -> str:
    """Return `value` as a PromQL string."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


class _Read:
    """A query with its `tree`. Strings are in `strings`; in the tree, §n stands for the one with the number n."""

    def __init__(self, query: str) -> None:
        if len(query) > _LONGEST:
            raise UnsupportedQuery(f"{len(query)} characters: must be at most {_LONGEST}")
        self.strings: list[str] = []
        code = _STRING.sub(self._set_aside, query)
        _require_shallow(_BRACES.sub(" ", code))
        self.tree = _parsed(code)
        if _calls(self.tree, "info"):
            raise UnsupportedQuery("info(): reads series that no selector of the query names")

    def _set_aside(self, match: re.Match[str]) -> str:
        if len(match[0]) == 1:
            at = match.start()
            raise UnsupportedQuery(f"{match.string[at : at + 20]!r} at {at}: is not understood")
        self.strings.append(match[0])
        return f'"§{len(self.strings) - 1}"'

    def shown(self, node: promql.Expr) -> str:
        """Return a part of the tree as text."""
        return self.restored(_text(node, ""))

    def restored(self, text: str) -> str:
        """Return `text` with the strings in their places."""
        return _KEPT.sub(lambda kept: self.strings[int(kept[1])], text)

    def string(self, kept: str) -> str:
        """Return the value of the string for which `kept` stands."""
        text = self.strings[int(kept[1:])]
        try:
            literal = promql.parse(text)
        except ValueError:
            raise UnsupportedQuery(f"{text}: has an escape that is not understood") from None
        assert isinstance(literal, StringLiteral)
        return literal.val


def _require_shallow(code: str) -> None:
    """Check that the parser can read `code`, a query without strings and braces, and does not panic."""
    deep = deepest = 0
    for bracket in re.findall(r"[(\[\])]", code):
        deep += 1 if bracket in "([" else -1
        deepest = max(deepest, deep)
    if deepest > _DEEPEST:
        raise UnsupportedQuery(f"parentheses: more than {_DEEPEST} levels deep")
    if len(_OPERATOR.findall(code)) > _MOST_OPERATORS:
        raise UnsupportedQuery(f"operators and signs: more than {_MOST_OPERATORS}")
    if large := _LARGE.search(code):
        raise UnsupportedQuery(f"{large[0]!r}: is no duration, or is too long")


def _parsed(code: str) -> promql.Expr:
    try:
        return promql.parse(code)
    except (ValueError, OverflowError, RecursionError) as error:
        raise UnsupportedQuery(f"{error}") from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # derives from BaseException, and has no name to import
            raise
        raise UnsupportedQuery("cannot be read") from None


def _inside(node: promql.Expr) -> tuple[promql.Expr, ...]:
    match node:
        case promql.ParenExpr() | UnaryExpr() | SubqueryExpr():
            return (node.expr,)
        case promql.MatrixSelector():
            return (node.vector_selector,)
        case BinaryExpr():
            return node.lhs, node.rhs
        case AggregateExpr():
            return (node.expr,) if node.param is None else (node.param, node.expr)
        case promql.Call():
            return tuple(node.args)
    return ()


def _nodes(node: promql.Expr) -> Iterator[promql.Expr]:
    yield node
    for part in _inside(node):
        yield from _nodes(part)


def _calls(node: promql.Expr, function: str) -> bool:
    return any(isinstance(part, promql.Call) and part.func.name == function for part in _nodes(node))


def _selects(node: promql.Expr) -> bool:
    return any(isinstance(part, promql.VectorSelector) for part in _nodes(node))


def _text(node: promql.Expr, condition: str, quantile: str = "") -> str:
    """Return PromQL for `node`, with the text `condition` in every selector. The library does not print changes.

    With `quantile`, each histogram_quantile() gets that quantile.
    """
    parts = (
        [] if isinstance(node, promql.MatrixSelector) else [_text(part, condition, quantile) for part in _inside(node)]
    )
    match node:
        case promql.VectorSelector() | promql.MatrixSelector():
            plain = " ".join(node.prettify().split())
            name = _NAME.match(plain)
            at = name.end() if name else 0
            rest = plain[at:]
            if not condition:
                return plain
            return f"{plain[:at]}{{{condition}, {rest[1:]}" if rest[:1] == "{" else f"{plain[:at]}{{{condition}}}{rest}"
        case promql.ParenExpr():
            return f"({parts[0]})"
        case UnaryExpr():
            return f"-{parts[0]}"
        case SubqueryExpr():
            return f"{parts[0]}[{node.prettify().rpartition('[')[2]}"
        case BinaryExpr():
            modifier = "" if node.modifier is None else str(node.modifier)
            return " ".join(filter(None, (parts[0], str(node.op), modifier, parts[1])))
        case AggregateExpr():
            grouping = "" if node.modifier is None else f" {node.modifier} "
            return f"{node.op}{grouping}({', '.join(parts)})"
        case promql.Call():
            if quantile and node.func.name == "histogram_quantile":
                parts[0] = quantile
            return f"{node.func.name}({', '.join(parts)})"
    return node.prettify()


def _requoted(text: str) -> str:
    """Return `text` with quotation marks around what stands for a string: the library omits some."""
    return _KEPT.sub(r'"§\1"', text)


def _without(node: promql.Expr, named: Sequence[tuple[str, str]]) -> str:
    """Return the library's text of `node` without the conditions `named`, blanks and empty braces."""
    text = "".join(node.prettify().split())
    for label, value in named:
        text = re.sub(rf',?\b{label}="{value}"', "", text)
    return text.replace("{,", "{").replace("{}", "")


class _Evaluable:
    """Makes the tree to evaluate from that of the library."""

    def __init__(self, read: _Read) -> None:
        self._read = read

    def of(self, node: promql.Expr) -> Expression:
        """Return the tree for `node`.

        Raises:
            UnsupportedQuery: a part of it cannot be evaluated.
        """
        match node:
            case promql.ParenExpr():
                return self.of(node.expr)
            case NumberLiteral():
                return Number(value=node.val)
            case UnaryExpr():
                return Binary(operator="*", left=Number(value=-1.0), right=self.of(node.expr))
            case promql.VectorSelector():
                return self._selector(node, None)
            case promql.MatrixSelector():
                return self._selector(node.vector_selector, node.range.total_seconds())
            case SubqueryExpr():
                return self._subquery(node)
            case promql.Call(func=function, args=arguments) if function.name in OVER_TIME | OF_VALUES:
                return Call(function=function.name, arguments=tuple(self.of(each) for each in arguments))
            case AggregateExpr() if str(node.op) in AGGREGATIONS:
                grouping = node.modifier
                if grouping is None or grouping.type == promql.AggModifierType.By:
                    by = () if grouping is None else tuple(grouping.labels)
                    return Aggregate(operation=str(node.op), by=by, inside=self.of(node.expr))
            case BinaryExpr() if str(node.op) in _OPERATIONS:
                modifier = "" if node.modifier is None else str(node.modifier)
                if modifier in {"", "bool"}:
                    left, right = self.of(node.lhs), self.of(node.rhs)
                    return Binary(operator=str(node.op), left=left, right=right, as_bool=modifier == "bool")
        known = f"functions: {', '.join(sorted(OVER_TIME | OF_VALUES | AGGREGATIONS))}; no `on`, `ignoring`, `without`"
        raise UnsupportedQuery(f"{self._read.shown(node)}: cannot be evaluated without Prometheus ({known})")

    def _selector(self, node: promql.VectorSelector, window_s: float | None) -> Selector:
        if node.name is None or not _NAME.fullmatch(node.name) or node.offset or node.at or node.matchers.or_matchers:
            raise UnsupportedQuery(f"{self._read.shown(node)}: must have a name and no offset, @ or `or`")
        matchers = []
        for each in node.matchers.matchers:
            operator, value = _operator(each), self._read.string(each.value)
            if operator in {"=~", "!~"}:
                require_simple(value)
            matchers.append(Matcher(label=each.name, operator=operator, value=value))
        return Selector(name=node.name, matchers=tuple(matchers), window_s=window_s)

    def _subquery(self, node: SubqueryExpr) -> Subquery:
        shown = self._read.shown(node)
        if any(isinstance(part, SubqueryExpr) for part in _nodes(node.expr)):  # the numbers of steps would multiply
            raise UnsupportedQuery(f"{shown}: is a subquery of a subquery")
        window_s = node.range.total_seconds() if node.range else 0.0
        step_s = node.step.total_seconds() if node.step else 0.0
        if node.offset or node.at or not 0 < window_s / 10_000 <= step_s:
            raise UnsupportedQuery(f"{shown}: must have a step of a ten-thousandth of its window or more, no offset")
        return Subquery(inside=self.of(node.expr), window_s=window_s, step_s=step_s)


def _operator(matcher: promql.Matcher) -> str:
    pairs = ((promql.MatchOp.Equal, "="), (promql.MatchOp.NotEqual, "!="), (promql.MatchOp.Re, "=~"))
    return next((text for operator, text in pairs if matcher.op == operator), "!~")


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
