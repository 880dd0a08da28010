"""Backlogs against brute force: every schedule of whole replicas, and every plan of whole replicas."""

from collections.abc import Iterator, Sequence
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core.plan.schedule import Period, Segment, Work, cheapest

HOUR_S = 3600.0
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
