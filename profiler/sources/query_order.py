"""The order in which queries are sent to a back end that may not answer all of them in time, and how they are joined.

Freshness comes first, because every reading of pods needs it, then the demand, then what decides most. A query that
was not sent moves up by one place in every cycle, in the end to the first, so that none waits for ever.

A query of a tenant that was sent and not answered in time moves back instead: it is asked ever more rarely, alone, and
last, so that what is too slow takes nothing from others. Those of presets, which all share, do not. No I/O.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from typing import Any

from profiler.samples import Absence, AbsenceReason
from profiler.sources.base import QueryKind, is_wrong_query
from profiler.sources.joined_queries import joined

MOST_JOINED = 200
"""Most queries in a joined one."""
MOST_CHARACTERS = 16_000
"""Most characters of a joined query: VictoriaMetrics refuses 16 KiB by default."""
_WRAPPING = len(joined(["", ""])) // 2 + 4
"""Characters that joining adds to each query, or a few more."""
_ALONE = 4
"""Times a query was too slow for its joined query, each time for a quarter as large a one, until it is sent alone."""
_PLACES = {
    QueryKind.FRESHNESS: 0,
    QueryKind.DEMAND: 1,
    # Others overtake the demand after three cycles without an answer: a back end so slow needs to be shared.
    QueryKind.THROUGHPUT: 4,
    QueryKind.LATENCY: 5,
    QueryKind.SERVICE: 6,
    QueryKind.RULES: 7,
    QueryKind.OTHER: 8,
}
MOST_TURNS = 32
"""The most cycles between two attempts at a query that is too slow."""
_SHARED_AFTER = 3
"""Cycles without an answer in the second place until a query shares the first with those of freshness."""
_KINDS = {kind: number for number, kind in enumerate(QueryKind)}


class QueryOrder:
    """Orders and joins the queries of each read, and remembers which ones earlier reads did not answer."""

    def __init__(self) -> None:
        self._missed: dict[str, int] = {}
        """Reads in a row without an answer."""
        self._apart: dict[str, int] = {}
        """How much smaller a joined query with this one must be, because others with it were not answered in time."""
        self._most = MOST_JOINED
        """Most queries in a joined one that the back end accepts."""
        self._slow: dict[str, tuple[int, int]] = {}
        """How often in a row a query of a tenant was too slow when sent alone, and for how many reads it rests."""

    def resting(self, kinds: Mapping[str, QueryKind]) -> frozenset[str]:
        """Return the queries of `kinds` that are not sent in this read, because they were too slow in earlier ones."""
        self._slow = {query: state for query, state in self._slow.items() if query in kinds}
        return frozenset(query for query, (_, turns) in self._slow.items() if turns > 0)

    def tried_again(self, query: str) -> bool:
        """Return whether a query was too slow before."""
        return query in self._slow

    def requests(
        self, kinds: Mapping[str, QueryKind], joinable: Set[str], together: Iterable[Collection[str]] = ()
    ) -> tuple[tuple[str, ...], ...]:
        """Return the queries in the order to send them, those that are sent as one together.

        `kinds` has every query with its kind; those of `joinable` may be joined with others. `together` are the sets of
        queries that a reading needs: where one of a set got no answer, all of them move up, since one alone is useless.
        """
        self._missed = {query: count for query, count in self._missed.items() if query in kinds}
        self._apart = {query: count for query, count in self._apart.items() if query in kinds}
        missed = dict(self._missed)
        for queries in together:
            most = max(self._missed.get(query, 0) for query in queries)
            missed |= {query: max(most, missed.get(query, 0)) for query in queries}
        found: list[list[str]] = []
        before: object = None
        length = 0

        def rank(query: str) -> tuple[object, ...]:
            place, late = _PLACES[kinds[query]], missed.get(query, 0)
            level = 0 if not place or late >= place + _SHARED_AFTER else max(1, place - late)
            late += 0 if place else _SHARED_AFTER + 1  # freshness first, unless another waits for longer
            slow = query in self._slow
            apart = self._apart.get(query, 0)
            return slow, level, -late, _KINDS[kinds[query]], apart, query not in joinable, query

        for query in sorted(kinds, key=rank):
            apart = self._apart.get(query, 0)
            alike = (kinds[query], apart) if query in joinable and query not in self._slow else query
            most = max(1, self._most >> 2 * apart)
            if alike != before or len(found[-1]) >= most or length + len(query) > MOST_CHARACTERS:
                found.append([])
                before, length = alike, 0
            found[-1].append(query)
            length += len(query) + _WRAPPING
        return tuple(map(tuple, found))

    def conclude(
        self,
        results: Mapping[str, Any],
        slow: Set[str],
        accepted: int | None = None,
        *,
        rested: Set[str] = frozenset(),
        of_tenants: Set[str] = frozenset(),
        alone: Set[str] = frozenset(),
    ) -> None:
        """Take the results of a read: `slow` are the queries that were sent and not answered in time.

        `rested` were not asked, `of_tenants` are users' queries, and `alone` were sent by themselves. `accepted` is the
        size of the largest joined query that was answered, where a larger one was refused. Then
        larger ones are tried again little by little.
        """
        self._most = min(MOST_JOINED, self._most + 1) if accepted is None else max(1, accepted)
        self._slow = {query: (times, turns - (query in rested)) for query, (times, turns) in self._slow.items()}
        lost = {query for query, result in results.items() if is_unanswered(query, result)}
        for query, result in results.items():
            if query in rested:
                continue
            if query in lost and query in slow and query in of_tenants:
                self._missed.pop(query, None)
            elif query in lost:
                self._missed[query] = self._missed.get(query, 0) + 1
            else:
                self._missed.pop(query, None)
                self._apart.pop(query, None)
                self._slow.pop(query, None)
            if isinstance(result, Absence) and is_wrong_query(result, query):
                self._apart[query] = _ALONE
        if len(lost) < len(results):  # else it is the back end that is slow, not one of the queries
            for query in slow & lost:
                self._apart[query] = min(_ALONE, self._apart.get(query, 0) + 1)
                if query in of_tenants and (query in alone or self._apart[query] >= _ALONE):
                    times = self._slow.get(query, (0, 0))[0] + 1
                    self._slow[query] = times, min(MOST_TURNS, 2**times)


def is_unanswered(query: str, result: Any) -> bool:
    """Return whether `result` says that there was no answer to `query`; a refusal of the query is one."""
    if not isinstance(result, Absence) or is_wrong_query(result, query):
        return False
    return result.reason is AbsenceReason.UNAVAILABLE


def unanswered(kinds: Mapping[str, QueryKind], results: Mapping[str, Any]) -> dict[QueryKind, float]:
    """Return the share (0–1) of the queries of each kind that `results` leave unanswered."""
    asked = dict.fromkeys(QueryKind, 0)
    lost = dict.fromkeys(QueryKind, 0)
    for query, kind in kinds.items():
        asked[kind] += 1
        lost[kind] += is_unanswered(query, results[query])
    return {kind: lost[kind] / count for kind, count in asked.items() if count}
