"""Backlogs against brute force: every schedule of whole replicas, and every plan of whole replicas."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from backlogs import a_backlog
from builders import NOW_S, a_placement, a_pool, a_snapshot, a_state, pools
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core.cycle import decide
from controller.core.plan.schedule import Period, Segment, Work, cheapest
from controller.core.state.policy import Policy
from optimizer.model import Mixing, pool_of

HOUR_S = 3600.0
ITEM_S = {"gpu": 2.0, "dear": 1.0}
"""How long a replica takes for an item, by pool."""
STARTING = 1.001
"""The pace is so much higher for the cycle until replicas are ready."""
Hour = tuple[tuple[int, float], tuple[int, float]]
"""The replicas that two pools leave in an hour, and the price of one (USD per hour)."""


def choices(hour: Hour) -> Iterator[tuple[int, float]]:
    """Yield all replicas that can run in an hour, and what they cost."""
    (most, price), (others, dearer) = hour
    for one, other in product(range(most + 1), range(others + 1)):
        yield one + other, one * price + other * dearer


def least_cost(hours: Sequence[Hour], items: int) -> float | None:
    """Return the cost of the cheapest schedule of whole replicas that do an item per hour; None: there is none."""
    best = {0: 0.0}
    for hour in hours:
        found: dict[int, float] = {}
        for done, cost in best.items():
            for count, more in choices(hour):
                total = min(items, done + count)
                found[total] = min(found.get(total, float("inf")), cost + more)
        best = found
    return best.get(items)


def period(hour: Hour) -> Period:
    found = sorted((price, count) for count, price in hour if count)
    return Period(
        length_s=HOUR_S,
        segments=tuple(Segment(rate_rps=count / HOUR_S, item_cost=price) for price, count in found),
    )


offers = (
    st.tuples(st.integers(0, 3), st.sampled_from([0.5, 1.0, 1.5])),
    st.tuples(st.integers(0, 3), st.sampled_from([1.0, 2.0, 4.0])),
)


@settings(max_examples=200, deadline=None)
@given(hours=st.lists(st.tuples(*offers), min_size=1, max_size=6), items=st.integers(1, 30))
def test_no_schedule_of_whole_replicas_is_cheaper(hours: list[Hour], items: int) -> None:
    """Whole items on whole replicas: the price of an item does not fall with the rate, so the cost is the same."""
    periods = [period(hour) for hour in hours]
    if not any(each.segments for each in periods):
        return
    found, best = cheapest(Work(left=float(items)), periods), least_cost(hours, items)
    assert found.complete == (best is not None)
    if best is not None:
        assert abs(found.cost - best) <= 1e-6 * (1 + best)


@settings(max_examples=100, deadline=None)
@given(hours=st.lists(st.tuples(*offers), min_size=1, max_size=6), items=st.integers(1, 30))
def test_followed_hour_by_hour_with_whole_replicas_it_costs_at_most_one_replica_more(
    hours: list[Hour], items: int
) -> None:
    """In each hour, the schedule of the hours that are left is rounded up to whole replicas."""
    best = least_cost(hours, items)
    if best is None:
        return
    left, spent = items, 0.0
    for index in range(len(hours)):
        if not left:
            break
        rest = [period(hour) for hour in hours[index:]]
        found = cheapest(Work(left=float(left)), rest)
        rate = found.rates[0] * HOUR_S
        count = min(left, -int(-(rate - 1e-6) // 1))
        spent += min(cost for replicas, cost in choices(hours[index]) if replicas >= count)
        left -= count
    assert left == 0
    assert spent <= best + 1e-6 + max(price for hour in hours for count, price in hour if count)


def plans(most: dict[str, int]) -> Iterator[tuple[float, dict[str, int]]]:
    """Yield the items per second of every choice of replicas within the pools."""
    for counts in product(*(range(count + 1) for count in most.values())):
        chosen = dict(zip(most, counts, strict=True))
        yield sum(count / ITEM_S[pool] for pool, count in chosen.items()), chosen


@settings(max_examples=60, deadline=None)
@given(
    pace=st.floats(0.05, 4.0),
    most=st.fixed_dictionaries({pool: st.integers(0, 4) for pool in ITEM_S}),
    prices=st.fixed_dictionaries({pool: st.sampled_from([0.5, 1.0, 2.0, 3.5]) for pool in ITEM_S}),
    budget=st.floats(1.0, 20.0),
)
def test_the_plan_has_the_cheapest_replicas_that_sustain_the_pace(
    pace: float, most: dict[str, int], prices: dict[str, float], budget: float
) -> None:
    """Replicas are used in full: of all choices within the budget, none that does the pace is cheaper."""

    def cost(chosen: dict[str, int]) -> float:
        return sum(prices[pool] * count for pool, count in chosen.items())

    affordable = [(rate, cost(chosen)) for rate, chosen in plans(most) if cost(chosen) <= budget]
    least = min((spent for rate, spent in affordable if rate >= pace), default=None)
    enough = min((spent for rate, spent in affordable if rate >= pace * STARTING), default=None)
    placements = [a_placement(pool, service_s=ITEM_S[pool], bounds=(0, most[pool])) for pool in ITEM_S]
    spec = a_backlog(*placements, due_s=NOW_S + HOUR_S, budget=budget)
    spec = replace(spec, scaling=replace(spec.scaling, mixing=Mixing.FREE))
    time_s = 0.9 * HOUR_S
    state = a_state(spec, demand=pace * time_s, replicas={})
    state = replace(state, memory=replace(state.memory, begun_s=NOW_S))
    fleet = pools(*(a_pool(pool, price=prices[pool], instances=4, ready=4) for pool in ITEM_S))
    own = decide(a_snapshot(state, fleet=fleet), Policy(interval_s=1.0)).pipelines[0]
    chosen = {pool_of(key[1]): count for key, count in own.desired.items()}
    spent = sum(prices[pool] * count for pool, count in chosen.items())
    assert spent <= budget + 1e-9
    if enough is not None:
        assert least is not None
        assert sum(count / ITEM_S[pool] for pool, count in chosen.items()) >= pace
        assert least - 1e-9 <= spent <= enough + 1e-9
