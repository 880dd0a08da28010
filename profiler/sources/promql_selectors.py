"""Where the selectors of a query are, for all of PromQL. Pure.

The reading is strict: a query that is not understood to its last token is an error, because a selector that is missed
would select without the conditions that the caller adds. That includes extensions of other back ends, such as `or`
among the conditions of a selector.
"""

from dataclasses import dataclass

from profiler.sources.promql_tokens import Cursor, Kind


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_AGGREGATIONS = _words(
    "sum avg count min max group stddev stdvar topk bottomk count_values quantile limitk limit_ratio"
)
# All functions of PromQL except info(), which reads series that no selector of the query names.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorPlace:
    """Where a condition can be added to a selector: at the index `at` of the query.

    `braces` says whether the selector has braces; `at` is then behind the opening one, else behind the name.
    `conditions` says whether there are conditions in them.
    """

    at: int
    braces: bool
    conditions: bool


def selector_places(query: str) -> tuple[SelectorPlace, ...]:
    """Return the places of all selectors of `query`, in its order.

    Raises:
        UnsupportedQuery: a token of the query is not understood where it stands.
    """
    return _Walk(query).places()


class _Walk:
    """Walks over a query, alternating between an operand and what may follow one."""

    def __init__(self, query: str) -> None:
        self._cursor = Cursor(query)
        self._places: list[SelectorPlace] = []
        self._open: list[bool] = []
        """For each open parenthesis: whether it holds arguments, which commas may separate."""

    def places(self) -> tuple[SelectorPlace, ...]:
        self._operand()
        while True:
            while self._rest_of_operand():
                pass
            if self._cursor.next.kind is Kind.END:
                break
            self._operator()
            self._operand()
        if self._open:
            raise self._cursor.refusal()
        return tuple(self._places)

    def _operand(self) -> None:
        """Take one operand and the signs, parentheses and function names in front of it."""
        cursor = self._cursor
        while True:
            token, word, after = cursor.next, cursor.word, cursor.after_next
            if token.kind in {Kind.NUMBER, Kind.STRING}:
                cursor.take()
                return
            if token.text == "{":
                self._selector()
                return
            if token.text in {"+", "-"}:
                cursor.take()
            elif token.text == "(":
                self._open_parenthesis(arguments=False)
            elif token.kind is not Kind.NAME:
                raise cursor.refusal()
            elif after.text == "{":
                cursor.take()
                self._selector()
                return
            elif after.text == "(" and word in _FUNCTIONS | _AGGREGATIONS:
                cursor.take()
                self._open_parenthesis(arguments=True)
                if cursor.next.text == ")":
                    return
            elif word in _AGGREGATIONS and after.text.lower() in _GROUPINGS:
                cursor.take()
                cursor.take()
                cursor.labels()
                self._open_parenthesis(arguments=True)
            elif after.text == "(" or word in _RESERVED:
                raise cursor.refusal()
            else:
                cursor.take()
                if word not in _NUMBERS:
                    self._places.append(SelectorPlace(at=token.at + len(token.text), braces=False, conditions=False))
                return

    def _rest_of_operand(self) -> bool:
        """Take what may follow an operand without an operator; return whether there was any."""
        cursor = self._cursor
        if self._open and cursor.take_if(")"):
            self._open.pop()
            if cursor.word in _GROUPINGS:
                cursor.take()
                cursor.labels()
        elif cursor.take_if("["):
            cursor.expect_kind(Kind.DURATION)
            if cursor.take_if(":") and cursor.next.kind is Kind.DURATION:
                cursor.take()
            cursor.expect("]")
        elif cursor.take_if("offset"):
            cursor.take_if("-")
            cursor.expect_kind(Kind.DURATION)
        elif cursor.take_if("@"):
            if cursor.take_if("start") or cursor.take_if("end"):
                cursor.expect("(")
                cursor.expect(")")
            else:
                cursor.expect_kind(Kind.NUMBER)
        else:
            return False
        return True

    def _operator(self) -> None:
        """Take a comma or a binary operator with its modifiers."""
        cursor = self._cursor
        if self._open and self._open[-1] and cursor.take_if(","):
            return
        if cursor.next.kind is Kind.STRING or cursor.word not in _OPERATORS | _SET_OPERATORS:
            raise cursor.refusal()
        cursor.take()
        modified = False
        while cursor.word in _MODIFIERS:
            # A metric may have one of these names. Where a parenthesis or another operand follows, it has not.
            modifier, modified = cursor.take().text.lower(), True
            if modifier != "bool" and cursor.next.text == "(":
                cursor.labels()
            elif modifier in {"on", "ignoring"}:
                raise cursor.refusal()
        if modified and cursor.next.text in {"+", "-"}:
            raise cursor.refusal()

    def _selector(self) -> None:
        """Take the braces of a selector and its conditions."""
        at = self._cursor.next.at + 1
        self._places.append(SelectorPlace(at=at, braces=True, conditions=bool(self._cursor.matchers())))

    def _open_parenthesis(self, *, arguments: bool) -> None:
        self._cursor.expect("(")
        self._open.append(arguments)
