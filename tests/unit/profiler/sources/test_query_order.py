"""The order of queries on a back end that cannot answer all of them, and how they are joined."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import pytest

from profiler.samples import Absence, AbsenceReason
from profiler.sources.base import QueryKind, wrong_query
from profiler.sources.joined_queries import joined
from profiler.sources.prometheus import MOST_OF_TENANT
from profiler.sources.query_order import MOST_CHARACTERS, MOST_JOINED, QueryOrder, unanswered

LATE = Absence(reason=AbsenceReason.UNAVAILABLE, detail="late")
ANSWER: list[Any] = []


def sent(order: QueryOrder, kinds: Mapping[str, QueryKind], joinable: Iterable[str] = ()) -> list[str]:
    return list(chain.from_iterable(order.requests(kinds, frozenset(joinable))))


def results(kinds: Iterable[str], *, lost: Iterable[str]) -> dict[str, Any]:
    gone = set(lost)
    return {query: LATE if query in gone else ANSWER for query in kinds}


ONE_OF_EACH = {f"a-{kind.value}": kind for kind in reversed(QueryKind)}


def test_freshness_and_demand_come_first_then_what_decides_most() -> None:
    assert sent(QueryOrder(), ONE_OF_EACH) == [f"a-{kind.value}" for kind in QueryKind]


@pytest.mark.parametrize("capacity", [1, 2, 3, 5])
def test_no_query_starves_however_few_are_answered(capacity: int) -> None:
    """Besides freshness, which every other reading needs."""
    order, answered = QueryOrder(), dict.fromkeys(ONE_OF_EACH, 0)
    for _ in range(60):
        first = sent(order, ONE_OF_EACH)[: capacity + 1]
        assert "a-Freshness" in first
        for query in first:
            answered[query] += 1
        order.conclude(results(ONE_OF_EACH, lost=ONE_OF_EACH.keys() - set(first)), frozenset())
    assert min(answered.values()) >= 60 // 14
    assert answered["a-Demand"] >= answered["a-Throughput"] >= answered["a-Other"]


def test_the_queries_of_one_reading_have_their_turn_together() -> None:
    kinds = {"age": QueryKind.FRESHNESS, "busy": QueryKind.SERVICE, "batches": QueryKind.SERVICE}
    kinds |= {"capacity": QueryKind.OTHER, "queue": QueryKind.OTHER}
    order, readings, known = QueryOrder(), (("busy", "batches"), ("busy", "capacity")), set[tuple[str, ...]]()
    for _ in range(8):
        first = list(chain.from_iterable(order.requests(kinds, frozenset(), readings)))[:3]
        known |= {reading for reading in readings if set(reading) <= set(first)}
        order.conclude(results(kinds, lost=kinds.keys() - set(first)), frozenset())
    assert known == set(readings)


def test_all_of_many_demands_have_their_turn() -> None:
    kinds = {f"demand-{number:03}": QueryKind.DEMAND for number in range(90)}
    order, seen = QueryOrder(), set[str]()
    for _ in range(3):
        first = sent(order, kinds)[:30]
        seen |= set(first)
        order.conclude(results(kinds, lost=kinds.keys() - set(first)), frozenset())
    assert seen == kinds.keys()


def test_thousands_of_users_queries_are_few_requests() -> None:
    kinds = {f'sum(speech_streams{{namespace="team-{n}"}})': QueryKind.DEMAND for n in range(5000)}
    requests = QueryOrder().requests(kinds, kinds.keys())
    assert len(requests) <= 40
    assert max(map(len, requests)) <= MOST_JOINED
    assert max(len(joined(queries)) for queries in requests) <= MOST_CHARACTERS + 100
    assert sorted(chain.from_iterable(requests)) == sorted(kinds)


def test_queries_that_cannot_be_joined_are_sent_alone() -> None:
    kinds = dict.fromkeys(["p", "q", "17"], QueryKind.DEMAND) | {"rule": QueryKind.RULES}
    assert QueryOrder().requests(kinds, frozenset({"p", "q", "rule"})) == (("p", "q"), ("17",), ("rule",))


def test_a_query_that_is_too_slow_does_not_take_others_with_it_for_long() -> None:
    kinds = {f"demand-{number:03}": QueryKind.DEMAND for number in range(MOST_JOINED)} | {"other": QueryKind.OTHER}
    order, slow, lost_to_it = QueryOrder(), "demand-077", 0
    for _ in range(12):
        requests = order.requests(kinds, kinds.keys())
        late = {query for queries in requests if slow in queries for query in queries}
        lost_to_it += len(late) - 1
        order.conclude(results(kinds, lost=late), late)
    assert (slow,) in order.requests(kinds, kinds.keys())
    assert lost_to_it < MOST_JOINED * 1.5


def test_a_back_end_that_was_down_is_asked_in_large_requests_again() -> None:
    kinds = {f"demand-{number:03}": QueryKind.DEMAND for number in range(MOST_JOINED)}
    order = QueryOrder()
    before = order.requests(kinds, kinds.keys())
    for _ in range(10):
        order.conclude(results(kinds, lost=kinds), kinds.keys())
    assert order.requests(kinds, kinds.keys()) == before


def test_a_refused_query_is_answered_but_sent_alone_from_then_on() -> None:
    kinds = dict.fromkeys(["p", "q", "wrong"], QueryKind.DEMAND)
    refused = Absence(reason=AbsenceReason.UNAVAILABLE, detail=wrong_query("parse error", "wrong"))
    order = QueryOrder()
    found = {"p": ANSWER, "q": ANSWER, "wrong": refused}
    order.conclude(found, frozenset())
    assert order.requests(kinds, kinds.keys()) == (("p", "q"), ("wrong",))
    assert unanswered(kinds, found) == {QueryKind.DEMAND: 0.0}


def test_the_unanswered_share_is_by_kind() -> None:
    kinds = {"age": QueryKind.FRESHNESS, "p": QueryKind.DEMAND, "q": QueryKind.DEMAND}
    assert unanswered(kinds, results(kinds, lost=["q"])) == {QueryKind.FRESHNESS: 0.0, QueryKind.DEMAND: 0.5}


def test_the_demand_is_answered_although_freshness_alone_takes_longer_than_a_cycle() -> None:
    """Each set of labels of a tenant has queries for freshness of its own."""
    kinds = {f"fresh-{number}": QueryKind.FRESHNESS for number in range(20)} | ONE_OF_EACH
    order, answered = QueryOrder(), dict.fromkeys(kinds, 0)
    for _ in range(100):
        first = sent(order, kinds)[:8]
        for query in first:
            answered[query] += 1
        order.conclude(results(kinds, lost=kinds.keys() - set(first)), frozenset())
    assert min(answered.values()) >= 3, answered


def test_what_the_back_end_accepts_at_most_is_kept_and_tried_again_little_by_little() -> None:
    kinds = {f"q{number}": QueryKind.DEMAND for number in range(400)}
    order = QueryOrder()

    def largest() -> int:
        return max(len(request) for request in order.requests(kinds, kinds.keys()))

    assert largest() == MOST_JOINED
    order.conclude(results(kinds, lost=()), frozenset(), accepted=50)
    assert largest() == 50
    order.conclude(results(kinds, lost=()), frozenset())
    assert largest() == 51


class TestTooSlow:
    """What times out goes back: failing is not rewarded."""

    def turns(self, heavy: int, cycles: int, capacity: int = 6) -> tuple[list[int], dict[str, int]]:
        """Return how many demands of others are lost in each cycle, and how often each heavy query was asked."""
        kinds = {f"heavy{number}": QueryKind.RULES for number in range(heavy)}
        kinds |= {f"demand{number}": QueryKind.DEMAND for number in range(4)}
        order, lost, asked = QueryOrder(), list[int](), dict.fromkeys(kinds, 0)
        for _ in range(cycles):
            resting = order.resting(kinds)
            sent_now = list(
                chain.from_iterable(order.requests({q: k for q, k in kinds.items() if q not in resting}, set()))
            )
            answered, slow, workers = set[str](), set[str](), capacity
            for query in sent_now:
                if query.startswith("heavy"):
                    if len(slow) == MOST_OF_TENANT or (order.tried_again(query) and slow):
                        continue  # its lane is full until the deadline
                    slow.add(query)
                    workers -= 1
                if workers <= 0:
                    break
                asked[query] += 1
                if query not in slow:
                    answered.add(query)
            order.conclude(
                results(kinds, lost=kinds.keys() - answered),
                frozenset(slow),
                rested=resting,
                of_tenants=frozenset(kinds),
                alone=frozenset(sent_now),
            )
            lost.append(sum(query not in answered for query in kinds if query.startswith("demand")))
        return lost, asked

    @pytest.mark.parametrize("heavy", [1, 4, 8, 160])
    def test_however_many_are_too_slow_the_demands_of_others_are_answered(self, heavy: int) -> None:
        lost, asked = self.turns(heavy, cycles=100)
        assert sum(lost) == 0
        assert max(asked[query] for query in asked if query.startswith("heavy")) <= 10, "ever more rarely"

    def test_what_is_answered_again_is_asked_in_every_read_again(self) -> None:
        kinds, order = {"q": QueryKind.DEMAND, "other": QueryKind.DEMAND}, QueryOrder()
        order.conclude(results(kinds, lost=["q"]), {"q"}, of_tenants=frozenset(kinds), alone=frozenset(kinds))
        rests = 0
        while order.resting(kinds):
            rests += 1
            order.conclude(
                results(kinds, lost=["q"]), frozenset(), rested=frozenset({"q"}), of_tenants=frozenset(kinds)
            )
        assert 1 <= rests <= 4
        order.conclude(results(kinds, lost=[]), frozenset(), of_tenants=frozenset(kinds), alone=frozenset(kinds))
        assert not order.resting(kinds)

    def test_a_back_end_that_answers_nothing_puts_none_back(self) -> None:
        kinds, order = {"a": QueryKind.DEMAND, "b": QueryKind.RULES}, QueryOrder()
        order.conclude(
            results(kinds, lost=kinds), frozenset(kinds), of_tenants=frozenset(kinds), alone=frozenset(kinds)
        )
        assert not order.resting(kinds)
