"""Users' queries held to the data of their own namespace, where the operator is told to.

Every selector of a query gets the condition `namespace="…"` in addition to its own, so nothing else can be selected
by it. What is a selector is decided the careful way: a query that is not understood to its last token is refused. That
includes what other back ends have beyond PromQL, such as `or` among the conditions of a selector.
"""

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache

from optimizer.model import PipelineKey
from profiler.samples import Absence, AbsenceReason, PlacementTarget, Quantity
from profiler.sources.base import MetricSource, PlacementId, ReadAnswer, ReadRequest
from profiler.sources.promql import fill, pod_matcher
from profiler.sources.promql_tokens import Kind, Token, UnsupportedQuery, tokens


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_AGGREGATIONS = _words(
    "sum avg count min max group stddev stdvar topk bottomk count_values quantile limitk limit_ratio"
)
# All of PromQL's but info(), which reads series that no selector of the query names.
_FUNCTIONS = _words(
    """abs absent absent_over_time avg_over_time ceil changes clamp clamp_max clamp_min count_over_time days_in_month
    day_of_month day_of_week day_of_year delta deriv double_exponential_smoothing exp first_over_time floor
    histogram_avg histogram_count histogram_fraction histogram_quantile histogram_stddev histogram_stdvar histogram_sum
    holt_winters hour idelta increase irate label_join label_replace last_over_time ln log10 log2 mad_over_time
    max_over_time min_over_time minute month pi predict_linear present_over_time quantile_over_time rate resets round
    scalar sgn sort sort_by_label sort_by_label_desc sort_desc sqrt stddev_over_time stdvar_over_time sum_over_time time
    timestamp ts_of_first_over_time ts_of_last_over_time ts_of_max_over_time ts_of_min_over_time vector year acos acosh
    asin asinh atan atanh cos cosh deg rad sin sinh tan tanh"""
)
_GROUPINGS = frozenset({"by", "without"})
_SET_OPERATORS = frozenset({"and", "or", "unless", "atan2"})
_OPERATORS = frozenset({"+", "-", "*", "/", "%", "^", "==", "!=", "<", "<=", ">", ">="})
_MODIFIERS = frozenset({"bool", "on", "ignoring", "group_left", "group_right"})
_RESERVED = _GROUPINGS | _SET_OPERATORS | _MODIFIERS | {"offset", "start", "end", "default", "if", "ifnot", "with"}
_NUMBERS = frozenset({"inf", "nan"})


@lru_cache(maxsize=4096)
def restricted(query: str, namespace: str) -> str:
    """Return `query`, unable to see series of another namespace.

    Raises:
        UnsupportedQuery: it is not understood well enough to say so.
    """
    return _Restriction(query, namespace).result()


class RestrictedSource:
    """A `MetricSource` that asks another one, users' queries only within the namespace of their pipeline."""

    def __init__(self, source: MetricSource) -> None:
        self._source = source

    def read(self, request: ReadRequest) -> ReadAnswer:
        """See `MetricSource.read`. A query that cannot be restricted is not asked and reads as `Unsupported`."""
        scalars: dict[Hashable, str] = {}
        refused: dict[Hashable, Absence] = {}
        for key, query in request.scalars.items():
            try:
                scalars[key] = restricted(query, _namespace(request.asked_by.get(key)))
            except UnsupportedQuery as error:
                refused[key] = _refusal(error, query)
        refused_overrides: dict[PlacementId, dict[Quantity, Absence]] = {}
        targets = []
        for target in request.placements:
            overrides, unusable = _overrides(target)
            targets.append(replace(target, overrides=overrides))
            refused_overrides[target.pipeline, target.stage, target.pool] = unusable
        answer = self._source.read(replace(request, placements=tuple(targets), scalars=scalars))
        absences = [*refused.values(), *(absence for own in refused_overrides.values() for absence in own.values())]
        told = dict.fromkeys(absence.detail for absence in absences)
        return replace(
            answer,
            placements={
                key: replace(samples, readings={**samples.readings, **refused_overrides.get(key, {})})
                for key, samples in answer.placements.items()
            },
            scalars={**answer.scalars, **refused},
            problems=(*answer.problems, *told),
        )


def _overrides(target: PlacementTarget) -> tuple[dict[Quantity, str], dict[Quantity, Absence]]:
    usable: dict[Quantity, str] = {}
    refused: dict[Quantity, Absence] = {}
    for quantity, template in target.overrides.items():
        query = fill(template, pods=pod_matcher(target.namespace, target.pods), window_s=target.window_s)
        try:
            usable[quantity] = restricted(query, target.namespace)
        except UnsupportedQuery as error:
            refused[quantity] = _refusal(error, template)
    return usable, refused


def _namespace(key: PipelineKey | None) -> str:
    if key is None:
        raise UnsupportedQuery("whose it is: is not known")
    return key.partition("/")[0]


def _refusal(error: UnsupportedQuery, query: str) -> Absence:
    return Absence(
        reason=AbsenceReason.UNSUPPORTED,
        detail=f"queries are restricted to their own namespace, and this one cannot be: {error}, in: {query}",
    )


class _Restriction:
    """Walks over a query, in turns expecting an operand and what may follow one, and notes where to insert what."""

    def __init__(self, query: str, namespace: str) -> None:
        self._query = query
        self._tokens = tokens(query)
        self._at = 0
        quoted = namespace.replace("\\", "\\\\").replace('"', '\\"')
        self._condition = f'namespace="{quoted}"'
        self._insertions: list[tuple[int, str]] = []
        self._open: list[bool] = []
        """The parentheses that are open: whether they hold arguments, which commas may separate."""

    def result(self) -> str:
        self._operand()
        while True:
            while self._rest_of_operand():
                pass
            if self._next.kind is Kind.END:
                break
            self._operator()
            self._operand()
        if self._open:
            raise self._refusal()
        pieces, at = [], 0
        for where, text in self._insertions:
            pieces += [self._query[at:where], text]
            at = where
        return "".join([*pieces, self._query[at:]])

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    @property
    def _after(self) -> Token:
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    def _operand(self) -> None:
        """Take an operand, and what may stand before one, up to where another would be one too many."""
        while True:
            token = self._next
            word = token.text.lower()
            if token.kind in {Kind.NUMBER, Kind.STRING}:
                self._at += 1
                return
            if token.text == "{":
                self._selector()
                return
            if token.text in {"+", "-"}:
                self._at += 1
            elif token.text == "(":
                self._open_parenthesis(arguments=False)
            elif token.kind is not Kind.NAME:
                raise self._refusal()
            elif self._after.text == "{":
                self._at += 1
                self._selector()
                return
            elif self._after.text == "(" and word in _FUNCTIONS | _AGGREGATIONS:
                self._at += 1
                self._open_parenthesis(arguments=True)
                if self._next.text == ")":
                    return
            elif word in _AGGREGATIONS and self._after.text.lower() in _GROUPINGS:
                self._at += 2
                self._labels()
                if self._next.text != "(":
                    raise self._refusal()
                self._open_parenthesis(arguments=True)
            elif self._after.text == "(" or word in _RESERVED:
                raise self._refusal()
            else:
                self._at += 1
                if word not in _NUMBERS:
                    self._insertions.append((token.at + len(token.text), f"{{{self._condition}}}"))
                return

    def _rest_of_operand(self) -> bool:
        """Take what may follow an operand without an operator; return whether there was any."""
        match self._next.text.lower():
            case ")" if self._open:
                self._open.pop()
                self._at += 1
                if self._next.text.lower() in _GROUPINGS:
                    self._at += 1
                    self._labels()
            case "[":
                self._at += 1
                self._expect(Kind.DURATION)
                if self._next.text == ":":
                    self._at += 1
                    if self._next.kind is Kind.DURATION:
                        self._at += 1
                self._expect_text("]")
            case "offset":
                self._at += 1
                if self._next.text == "-":
                    self._at += 1
                self._expect(Kind.DURATION)
            case "@":
                self._at += 1
                if self._next.text.lower() in {"start", "end"}:
                    self._at += 1
                    self._expect_text("(")
                    self._expect_text(")")
                else:
                    self._expect(Kind.NUMBER)
            case _:
                return False
        return True

    def _operator(self) -> None:
        """Take a comma or a binary operator with its modifiers."""
        word = self._next.text.lower()
        if self._next.text == "," and self._open and self._open[-1]:
            self._at += 1
            return
        if self._next.kind is Kind.STRING or word not in _OPERATORS | _SET_OPERATORS:
            raise self._refusal()
        self._at += 1
        modified = False
        while (modifier := self._next.text.lower()) in _MODIFIERS and self._next.kind is Kind.NAME:
            # One of these names is no metric where a parenthesis or another operand follows.
            modified = True
            self._at += 1
            if modifier != "bool" and self._next.text == "(":
                self._labels()
            elif modifier in {"on", "ignoring"}:
                raise self._refusal()
        if modified and self._next.text in {"+", "-"}:
            raise self._refusal()

    def _selector(self) -> None:
        """Take the conditions of a selector, from its brace on, each `label operator "text"`."""
        begin = self._next.at + 1
        self._expect_text("{")
        first = True
        while self._next.text != "}" or self._next.kind is Kind.STRING:
            if not first:
                self._expect_text(",")
                if self._next.text == "}":
                    break
            first = False
            self._expect(Kind.NAME)
            if self._next.text not in {"=", "!=", "=~", "!~"}:
                raise self._refusal()
            self._at += 1
            self._expect(Kind.STRING)
        self._expect_text("}")
        self._insertions.append((begin, self._condition if first else f"{self._condition}, "))

    def _labels(self) -> None:
        self._expect_text("(")
        while self._next.kind is Kind.NAME:
            self._at += 1
            if self._next.text != ",":
                break
            self._at += 1
        self._expect_text(")")

    def _open_parenthesis(self, *, arguments: bool) -> None:
        self._expect_text("(")
        self._open.append(arguments)

    def _expect(self, kind: Kind) -> None:
        if self._next.kind is not kind:
            raise self._refusal()
        self._at += 1

    def _expect_text(self, text: str) -> None:
        if self._next.kind is not Kind.OPERATOR or self._next.text != text:
            raise self._refusal()
        self._at += 1

    def _refusal(self) -> UnsupportedQuery:
        shown = self._next.text or "the end"
        return UnsupportedQuery(f"{shown!r} at {self._next.at}: is not understood there")
