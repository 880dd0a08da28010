import random
from itertools import combinations, product
from math import inf

import numpy as np
import pytest

from optimizer.search.mixes import Wanted, beaten, cheapest_mixes

WANTED = Wanted(
    lowest=(0, 0),
    most=(3, 6),
    floor=1,
    needs=((100.0, (50.0, 20.0)),),
    prices_per_hour=(3.0, 1.0),
)


def test_mixes_carry_the_load_with_at_most_one_replica_less_and_come_by_rising_cost() -> None:
    mixes, left_out = cheapest_mixes(WANTED, 100)
    costs = mixes @ np.array(WANTED.prices_per_hour)
    assert left_out == inf
    assert np.all(np.diff(costs) >= 0)
    assert np.all(mixes > 0)
    assert np.all(mixes @ np.array([50.0, 20.0]) >= 100.0 - 20.0)
    assert [1, 3] in mixes.tolist()
    assert [1, 1] not in mixes.tolist()


def test_what_is_left_out_costs_no_less_than_what_is_returned() -> None:
    everything, _ = cheapest_mixes(WANTED, 100)
    costs = (everything @ np.array(WANTED.prices_per_hour)).tolist()
    for rows in range(len(everything)):
        some, left_out = cheapest_mixes(WANTED, rows)
        assert len(some) <= rows
        assert left_out == pytest.approx(costs[len(some)])


def test_all_pairs_are_found_that_brute_force_finds() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        count = rng.randint(2, 3)
        lowest = tuple(rng.choice((0, 0, 1, 2)) for _ in range(count))
        most = tuple(low + rng.randint(0, 5) for low in lowest)
        each = tuple(rng.uniform(5, 50) for _ in range(count))
        rate = rng.uniform(10, 200)
        wanted = Wanted(
            lowest=lowest,
            most=most,
            floor=rng.randint(0, 6),
            needs=((rate, each),),
            prices_per_hour=tuple(rng.choice((0.0, 0.5, 2.0)) for _ in range(count)),
        )
        found = {tuple(row) for row in cheapest_mixes(wanted, 10_000)[0].tolist()}
        for one, two in combinations(range(count), 2):
            for own, other in product(range(lowest[one] + 1, most[one] + 1), range(lowest[two] + 1, most[two] + 1)):
                row = list(lowest)
                row[one], row[two] = own, other
                if sum(row) >= wanted.floor and sum(n * rps for n, rps in zip(row, each, strict=True)) >= rate:
                    assert tuple(row) in found


def test_a_row_is_beaten_by_one_that_is_no_worse_in_all_columns() -> None:
    others = np.array([[2.0, 0.1, 0.3], [1.0, 0.2, 0.5], [1.0, 0.3, 0.4]])
    floors = np.array([[1.0, 0.2, 0.5], [1.5, 0.19, 0.5], [2.0, 0.1, 0.2999], [3.0, 0.1, 0.2]])
    assert beaten(floors, others, 1e-3).tolist() == [True, False, True, False]
    assert beaten(floors, np.zeros((0, 3)), 1e-3).tolist() == [False] * 4
