"""The search of one pipeline and its proof, against looking at every choice and against a MILP solver (HiGHS)."""

import random
from dataclasses import replace

import instances
import numpy as np
import pytest
from scipy import optimize

from optimizer.latency.composition import shape_of
from optimizer.model import Composition, StageName
from optimizer.search import exact
from optimizer.search.exact import Solution, solve
from optimizer.search.greedy import search
from optimizer.search.subproblem import Subproblem

SAME = 1e-6


def enumerated(subproblem: Subproblem) -> float:
    """Return the price of the cheapest choice, looking at all of them."""
    rows = [some.ravel() for some in np.indices([len(table) for table in subproblem.tables])]
    use = sum(table.use[some] for table, some in zip(subproblem.tables, rows, strict=True))
    price = sum(prices[some] for prices, some in zip(subproblem.prices, rows, strict=True))
    allowed = np.all(use <= subproblem.capacity, axis=1) & (subproblem._latency(rows) <= subproblem.latency_s)
    return float(np.min(np.asarray(price)[allowed], initial=np.inf))


def by_milp(subproblem: Subproblem) -> float:
    """Return the price of the cheapest choice of a pipeline without joins where percentiles add up, by HiGHS."""
    owner = np.concatenate([np.full(len(table), number) for number, table in enumerate(subproblem.tables)])
    answer = optimize.milp(
        np.concatenate(subproblem.prices),
        integrality=np.ones(len(owner)),
        bounds=optimize.Bounds(0, 1),
        constraints=[
            optimize.LinearConstraint(np.arange(len(subproblem.tables))[:, None] == owner, 1, 1),
            optimize.LinearConstraint(
                np.concatenate([table.percentile_s for table in subproblem.tables])[None], -np.inf, subproblem.latency_s
            ),
            optimize.LinearConstraint(
                np.concatenate([table.use for table in subproblem.tables]).T, -np.inf, subproblem.capacity
            ),
        ],
        options={"mip_rel_gap": 0},
    )
    assert answer.status in {0, 2}, answer.message
    return float(answer.fun) if answer.status == 0 else np.inf


# What each stage, by number, takes from.
DIAMOND = [[], [0], [0], [1, 2]]
JOINS = {
    "diamond": DIAMOND,
    "three branches of one and two stages": [[], [0], [0], [0, 1], [2], [3, 4]],
    "a join inside a branch": [[], [0], [0], [1, 2], [0], [3, 4]],
    "two entries and two exits": [[], [], [0, 1], [2], [2]],
    "two joins in a row": [[], [0], [0], [1, 2], [3], [3], [4, 5]],
}


def small(
    seed: int, composition: Composition, after: list[list[int]] | None = None, *, rows: int = 6, percentile: float = 95
) -> Subproblem:
    """Return a question with few rows, whose pools and SLA bind; in series when `after` says no other thing."""
    rng = random.Random(seed)
    subproblem = replace(
        instances.a_subproblem("stress", seed, limits=False, composition=composition),
        percentile=percentile,
    )
    count = rng.randint(2, 4) if after is None else len(after)
    if after is None:
        after = [[number - 1] * (number > 0) for number in range(count)]
    tables = [subproblem.tables[number % len(subproblem.tables)] for number in range(count)]
    tables = [replace(t, stage=replace(t.stage, name=StageName(f"s{number}"))) for number, t in enumerate(tables)]
    if percentile < 75:  # the percentile of a skewed time may be below its mean
        tables = [replace(t, percentile_s=t.mean_s * np.linspace(0.7, 1.1, len(t))) for t in tables]
    picked = [sorted(rng.sample(range(len(table)), min(len(table), rows))) for table in tables]
    few = tuple(
        replace(
            table,
            replicas=table.replicas[some],
            batches=table.batches[some],
            cost_per_hour=table.cost_per_hour[some],
            objective_per_hour=table.objective_per_hour[some],
            mean_s=table.mean_s[some],
            percentile_s=table.percentile_s[some],
            utilization=table.utilization[some],
            use=table.use[some],
        )
        for table, some in zip(tables, picked, strict=True)
    )
    names = [table.stage.name for table in few]
    subproblem = replace(
        subproblem,
        tables=few,
        prices=tuple(table.cost_per_hour for table in few),
        shape=shape_of([(name, [names[k] for k in sources]) for name, sources in zip(names, after, strict=True)]),
    )
    tables = list(few)
    slow = subproblem.latency(tuple(int(np.argmin(table.cost_per_hour)) for table in tables))
    fast = subproblem.latency(tuple(int(np.argmin(table.percentile_s)) for table in tables))
    subproblem = replace(subproblem, latency_s=fast * (slow / fast) ** rng.uniform(0.0, 0.8))
    most = np.sum([table.use.max(axis=0) for table in tables], axis=0)
    return subproblem.within(np.array([int(rng.uniform(0.3, 1.0) * units) for units in most]))


def check(subproblem: Subproblem, solution: Solution, best: float) -> None:
    if solution.walk is None:
        assert best == np.inf
        return
    answer = solution.walk.answer
    assert subproblem.fits(answer)
    assert subproblem.latency(answer) <= subproblem.latency_s * (1 + 1e-9)
    assert subproblem.price(answer) >= best - SAME
    assert solution.bound <= best + SAME


@pytest.mark.parametrize("composition", Composition)
def test_plans_of_small_pipelines_are_the_cheapest_there_are(composition: Composition) -> None:
    infeasible = 0
    for seed in range(150):
        subproblem = small(seed, composition)
        best, solution = enumerated(subproblem), solve(subproblem)
        check(subproblem, solution, best)
        infeasible += best == np.inf
        assert (np.inf if solution.walk is None else subproblem.price(solution.walk.answer)) == pytest.approx(best), (
            seed
        )
        assert solution.bound == pytest.approx(best), seed
    assert 10 <= infeasible <= 100


@pytest.mark.parametrize("composition", Composition)
def test_the_proof_does_not_rest_on_the_search(composition: Composition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "walked", lambda *_: None)
    monkeypatch.setattr(exact, "descended", lambda *_: (False, None))
    for seed in range(150):
        subproblem = small(seed, composition)
        best, solution = enumerated(subproblem), solve(subproblem)
        check(subproblem, solution, best)
        assert solution.bound == pytest.approx(best), seed


@pytest.mark.parametrize("composition", Composition)
@pytest.mark.parametrize("after", JOINS.values(), ids=JOINS)
def test_plans_of_small_pipelines_with_joins_are_the_cheapest_there_are(
    composition: Composition, after: list[list[int]]
) -> None:
    rows = 6 if len(after) < 5 else 4 if len(after) < 7 else 3
    infeasible = moved = 0
    for seed in range(30):
        subproblem = small(seed, composition, after, rows=rows, percentile=50 if seed % 5 == 0 else 95)
        best, solution, walk = enumerated(subproblem), solve(subproblem), search(subproblem)
        check(subproblem, solution, best)
        infeasible += best == np.inf
        moved += walk is None or subproblem.price(walk.answer) > best + SAME
        assert (np.inf if solution.walk is None else subproblem.price(solution.walk.answer)) == pytest.approx(best), (
            seed
        )
        assert solution.bound == pytest.approx(best), seed
    assert infeasible <= 20
    assert moved, "the search alone is not enough"


def test_branches_that_share_stages_have_a_bound() -> None:
    after = [[], [0], [0], [1, 2], [2], [3, 4]]
    for seed in range(20):
        subproblem = small(seed, Composition.SUM, after, rows=4)
        assert subproblem.shape.tree is None
        check(subproblem, solve(subproblem), enumerated(subproblem))


def test_no_disagreement_with_a_solver_where_pools_bind() -> None:
    infeasible = 0
    for seed in range(60):
        subproblem = instances.a_subproblem("stress", seed, limits=True)
        best, solution = by_milp(subproblem), solve(subproblem, search_effort=10**7)
        check(subproblem, solution, best)
        infeasible += best == np.inf
        assert (np.inf if solution.walk is None else subproblem.price(solution.walk.answer)) == pytest.approx(best), (
            seed
        )
        assert solution.bound == pytest.approx(best), seed
    assert 5 <= infeasible <= 40


def test_a_plan_costs_what_it_may_or_there_is_none() -> None:
    for seed in range(20):
        subproblem = instances.a_subproblem("stress", seed, limits=False)
        solution = solve(subproblem)
        assert solution.walk is not None
        price = subproblem.price(solution.walk.answer)
        less = solve(subproblem, price * 0.999)
        assert less.walk is None
        assert less.bound == np.inf
        again = solve(subproblem, price)
        assert again.walk is not None
        assert subproblem.price(again.walk.answer) == pytest.approx(price)


def test_the_search_alone_is_nearly_always_right_where_no_pool_binds() -> None:
    gaps = []
    for seed in range(150):
        subproblem = instances.a_subproblem("stress", seed, limits=False)
        walk, solution = search(subproblem), solve(subproblem)
        assert walk is not None
        gaps.append(subproblem.price(walk.answer) / solution.bound - 1)
    print(f"exact {np.mean(np.array(gaps) < SAME):.1%}, mean gap {np.mean(gaps):.3%}, largest {max(gaps):.1%}")
    assert np.mean(np.array(gaps) < SAME) >= 0.9
    assert np.mean(gaps) <= 0.001


def test_the_order_of_stages_and_pools_does_not_matter() -> None:
    for seed in range(20):
        subproblem = instances.a_subproblem("stress", seed, limits=True)
        order = list(range(len(subproblem.tables)))
        random.Random(seed).shuffle(order)
        swapped = replace(
            subproblem,
            tables=tuple(subproblem.tables[stage] for stage in order),
            prices=tuple(subproblem.prices[stage] for stage in order),
        )
        one, two = solve(subproblem), solve(swapped)
        assert one.bound == pytest.approx(two.bound)
        if one.walk is not None and two.walk is not None:
            assert tuple(one.walk.answer[stage] for stage in order) == two.walk.answer
