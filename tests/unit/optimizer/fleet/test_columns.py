from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from optimizer.fleet.columns import Form, Found, Options, Query, list_columns

SIZES = (3, 4, 3)


def options(seed: int, limit: float) -> Options:
    """Return the options of one pipeline of three stages, with one pool and money."""
    rng, total = np.random.default_rng(seed), sum(SIZES)
    cost = rng.uniform(1, 9, total).round(2)
    return Options(
        cost=cost,
        mean=(2 / cost + rng.uniform(0, 0.1, total)).round(3),
        excess=np.zeros(total),
        use=np.column_stack((rng.integers(1, 4, total).astype(float), cost)),
        start=np.cumsum([0, *SIZES]),
        bounds=np.array([0, len(SIZES)]),
        limits=np.array([limit]),
        paths=np.ones((len(SIZES), 1), dtype=np.int64),
        path_count=np.ones(1, dtype=np.int64),
    )


def found_at(of: Options, prices: tuple[float, float], window: float) -> Found:
    found = Found(
        option=np.full((1, 64, len(SIZES)), -1, dtype=np.int64),
        counts=np.zeros(1, dtype=np.int64),
        complete=np.zeros(1, dtype=np.int64),
        values=np.empty(1),
    )
    charged = np.nonzero(np.array(prices))[0]
    query = Query(prices=np.array(prices), charged=charged, window=window, listing=True, labels=64, allowed=1_000_000)
    list_columns(of, Form(weights=np.ones((len(SIZES), 2)), spread=np.zeros(1)), query, found)
    return found


def found_plans(of: Options, prices: tuple[float, float], window: float) -> list[NDArray[np.int64]]:
    found = found_at(of, prices, window)
    return list(found.option[0, : found.counts[0]])


def listed(of: Options, prices: tuple[float, float], window: float) -> tuple[list[float], bool, float]:
    """Return the priced costs of the plans listed, whether they are complete, and the bound."""
    found = found_at(of, prices, window)
    plans = found_plans(of, prices, window)
    assert all(of.mean[plan].sum() <= of.limits[0] + 1e-9 for plan in plans)
    priced = of.cost + of.use @ np.array(prices)
    return [float(priced[plan].sum()) for plan in plans], bool(found.complete[0]), float(found.values[0])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("limit", [1.5, 2.5, 9.0])
def test_the_best_plan_comes_first_and_all_are_within_the_window(seed: int, limit: float) -> None:
    of, prices = options(seed, limit), (0.7, 0.0)
    priced = of.cost + of.use @ np.array(prices)
    ranges = [range(of.start[stage], of.start[stage + 1]) for stage in range(len(SIZES))]
    every = [plan for plan in product(*ranges) if of.mean[list(plan)].sum() <= limit]
    costs, complete, value = listed(of, prices, 2.0)
    if not every:
        assert (costs, value) == ([], np.inf)
        return
    best = min(priced[list(plan)].sum() for plan in every)
    assert costs[0] == pytest.approx(best)
    assert value == pytest.approx(best)
    assert complete
    assert all(cost <= best + 2.0 + 1e-6 for cost in costs)
    # Of the plans left out, each is matched by one listed that costs no more and uses no more of the pool.
    plans = found_plans(of, prices, 2.0)
    for plan in every:
        if priced[list(plan)].sum() <= best + 2.0 - 1e-6:
            assert any(
                of.cost[one].sum() <= of.cost[list(plan)].sum() + 1e-9
                and of.use[one, 0].sum() <= of.use[list(plan), 0].sum()
                for one in plans
            )


def test_a_limit_that_no_plan_keeps_lists_nothing() -> None:
    assert listed(options(0, 0.01), (0.0, 0.0), 1.0) == ([], True, np.inf)
