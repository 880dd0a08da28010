"""The search of one pipeline and its proof, against looking at every choice and against a MILP solver (HiGHS)."""

import itertools
import random
from dataclasses import replace

import instances
import numpy as np
import pytest
from scipy import optimize

from optimizer import merge
from optimizer.case import Case
from optimizer.composition import shape_of
from optimizer.greedy import search
from optimizer.merge import Solution, solve
from optimizer.model import Composition, StageName

SAME = 1e-6


def enumerated(case: Case) -> float:
    """Return the price of the cheapest choice, looking at all of them."""
    return min(
        (
            case.price(choice)
            for choice in itertools.product(*(range(len(table)) for table in case.tables))
            if case.fits(choice) and case.latency(choice) <= case.latency_s
        ),
        default=np.inf,
    )


def by_milp(case: Case) -> float:
    """Return the price of the cheapest choice of a pipeline without joins where percentiles add up, by HiGHS."""
    owner = np.concatenate([np.full(len(table), number) for number, table in enumerate(case.tables)])
    answer = optimize.milp(
        np.concatenate(case.prices),
        integrality=np.ones(len(owner)),
        bounds=optimize.Bounds(0, 1),
        constraints=[
            optimize.LinearConstraint(np.arange(len(case.tables))[:, None] == owner, 1, 1),
            optimize.LinearConstraint(
                np.concatenate([table.percentile_s for table in case.tables])[None], -np.inf, case.latency_s
            ),
            optimize.LinearConstraint(np.concatenate([table.use for table in case.tables]).T, -np.inf, case.room),
        ],
        options={"mip_rel_gap": 0},
    )
    assert answer.status in {0, 2}, answer.message
    return float(answer.fun) if answer.status == 0 else np.inf


def small(seed: int, composition: Composition, *, joins: bool = False) -> Case:
    """Return a question with few rows, whose pools and SLA bind; two branches when `joins`."""
    rng = random.Random(seed)
    case = instances.a_case("stress", seed, limits=False, composition=composition)
    count = 4 if joins else rng.randint(2, 4)
    picked = [sorted(rng.sample(range(len(table)), min(len(table), 6))) for table in case.tables[:count]]
    tables = tuple(
        replace(
            table,
            replicas=table.replicas[rows],
            batches=table.batches[rows],
            cost_per_hour=table.cost_per_hour[rows],
            objective_per_hour=table.objective_per_hour[rows],
            mean_s=table.mean_s[rows],
            percentile_s=table.percentile_s[rows],
            utilization=table.utilization[rows],
            use=table.use[rows],
        )
        for table, rows in zip(case.tables[:count], picked, strict=True)
    )
    names = [StageName(table.stage.name) for table in tables]
    after = [[], [names[0]], [names[0]], names[1:3]] if joins else [names[max(i - 1, 0) : i] for i in range(count)]
    case = replace(
        case,
        tables=tables,
        prices=tuple(table.cost_per_hour for table in tables),
        shape=shape_of(list(zip(names, after, strict=True))),
    )
    slow = case.latency(tuple(int(np.argmin(table.cost_per_hour)) for table in tables))
    fast = case.latency(tuple(int(np.argmin(table.percentile_s)) for table in tables))
    case = replace(case, latency_s=fast * (slow / fast) ** rng.uniform(0.0, 0.8))
    most = np.sum([table.use.max(axis=0) for table in tables], axis=0)
    return case.within(np.array([int(rng.uniform(0.3, 1.0) * units) for units in most]))


def check(case: Case, solution: Solution, best: float) -> None:
    if solution.walk is None:
        assert best == np.inf
        return
    answer = solution.walk.answer
    assert case.fits(answer)
    assert case.latency(answer) <= case.latency_s * (1 + 1e-9)
    assert case.price(answer) >= best - SAME
    assert solution.bound <= best + SAME


@pytest.mark.parametrize("composition", Composition)
def test_plans_of_small_pipelines_are_the_cheapest_there_are(composition: Composition) -> None:
    infeasible = 0
    for seed in range(150):
        case = small(seed, composition)
        best, solution = enumerated(case), solve(case)
        check(case, solution, best)
        infeasible += best == np.inf
        assert (np.inf if solution.walk is None else case.price(solution.walk.answer)) == pytest.approx(best), seed
        assert solution.bound == pytest.approx(best), seed
    assert 10 <= infeasible <= 100


@pytest.mark.parametrize("composition", Composition)
def test_the_proof_does_not_rest_on_the_search(composition: Composition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "walked", lambda *_: None)
    monkeypatch.setattr(merge, "descended", lambda *_: (False, None))
    for seed in range(150):
        case = small(seed, composition)
        best, solution = enumerated(case), solve(case)
        check(case, solution, best)
        assert solution.bound == pytest.approx(best), seed


@pytest.mark.parametrize("composition", Composition)
def test_no_choice_of_a_pipeline_with_a_join_undercuts_the_bound(composition: Composition) -> None:
    for seed in range(40):
        case = small(seed, composition, joins=True)
        solution, best = solve(case), enumerated(case)
        assert solution.bound <= best + SAME
        if solution.walk is not None:
            assert case.price(solution.walk.answer) >= best - SAME


def test_no_disagreement_with_a_solver_where_pools_bind() -> None:
    infeasible = 0
    for seed in range(60):
        case = instances.a_case("stress", seed, limits=True)
        best, solution = by_milp(case), solve(case, work_limit=10**7)
        check(case, solution, best)
        infeasible += best == np.inf
        assert (np.inf if solution.walk is None else case.price(solution.walk.answer)) == pytest.approx(best), seed
        assert solution.bound == pytest.approx(best), seed
    assert 5 <= infeasible <= 40


def test_a_plan_costs_what_it_may_or_there_is_none() -> None:
    for seed in range(20):
        case = instances.a_case("stress", seed, limits=False)
        solution = solve(case)
        assert solution.walk is not None
        price = case.price(solution.walk.answer)
        less = solve(case, price * 0.999)
        assert less.walk is None
        assert less.bound == np.inf
        again = solve(case, price)
        assert again.walk is not None
        assert case.price(again.walk.answer) == pytest.approx(price)


def test_the_search_alone_is_nearly_always_right_where_no_pool_binds() -> None:
    gaps = []
    for seed in range(150):
        case = instances.a_case("stress", seed, limits=False)
        walk, solution = search(case), solve(case)
        assert walk is not None
        gaps.append(case.price(walk.answer) / solution.bound - 1)
    print(f"exact {np.mean(np.array(gaps) < SAME):.1%}, mean gap {np.mean(gaps):.3%}, largest {max(gaps):.1%}")
    assert np.mean(np.array(gaps) < SAME) >= 0.9
    assert np.mean(gaps) <= 0.001


def test_the_order_of_stages_and_pools_does_not_matter() -> None:
    for seed in range(20):
        case = instances.a_case("stress", seed, limits=True)
        order = list(range(len(case.tables)))
        random.Random(seed).shuffle(order)
        swapped = replace(
            case,
            tables=tuple(case.tables[stage] for stage in order),
            prices=tuple(case.prices[stage] for stage in order),
        )
        one, two = solve(case), solve(swapped)
        assert one.bound == pytest.approx(two.bound)
        if one.walk is not None and two.walk is not None:
            assert tuple(one.walk.answer[stage] for stage in order) == two.walk.answer
