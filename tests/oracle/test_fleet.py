"""Fleets that compete for pools against an exact solver (HiGHS): bounds hold, costs come close, none is missed."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from fleets import a_fleet, cut, solved
from problems import a_pipeline, a_stage, on, pools

from optimizer.allocate import allocate
from optimizer.fleet.lagrangian import Shared, share_pools
from optimizer.latency.composition import shape_of
from optimizer.model import Composition, Problem
from optimizer.plan import Plan
from optimizer.reports.certificate import certified_plan
from optimizer.search.subproblem import Subproblem


def price(subproblems: list[Subproblem], shared: Shared) -> float:
    assert shared.choices is not None
    return sum(subproblem.price(choice) for subproblem, choice in zip(subproblems, shared.choices, strict=True))


def check(subproblems: list[Subproblem], capacity: np.ndarray, shared: Shared) -> float:
    """Return what the choice costs, which keeps every promise."""
    assert shared.choices is not None
    used = np.sum(
        [subproblem.use(choice) for subproblem, choice in zip(subproblems, shared.choices, strict=True)], axis=0
    )
    assert np.all(used <= capacity)
    for subproblem, choice in zip(subproblems, shared.choices, strict=True):
        assert subproblem.latency(choice) <= subproblem.latency_s * (1 + 1e-9)
    return price(subproblems, shared)


@pytest.mark.parametrize("stress", [False, True])
@pytest.mark.parametrize("share", [0.9, 0.7])
def test_small_fleets_are_optimal_and_mostly_proven_so(share: float, stress: bool) -> None:
    gaps, certificates = [], []
    for seed in range(5):
        subproblems = a_fleet(2 + seed, seed, rows=10, stress=stress)
        capacity = cut(subproblems, share)
        shared, best = share_pools(subproblems, capacity), solved(subproblems, capacity)
        if best.cost is None:
            assert best.infeasible
            assert shared.choices is None
            continue
        assert shared.choices is not None
        cost = check(subproblems, capacity, shared)
        assert cost >= best.cost - 1e-6 * best.cost
        assert shared.bound <= best.cost * (1 + 1e-6)
        gaps.append(cost / best.cost - 1)
        certificates.append(cost / shared.bound - 1)
    print(
        f"{len(gaps)} fleets: gap mean {np.mean(gaps):.3%}, largest {max(gaps):.2%}; "
        f"own certificate mean {np.mean(certificates):.3%}, proven {np.mean(np.array(certificates) < 1e-6):.0%}"
    )
    assert max(gaps) <= 1e-6
    assert np.mean(np.array(certificates) <= 1e-6) >= 0.8


def test_what_cannot_fit_is_proven_not_to() -> None:
    for seed in range(6):
        subproblems = a_fleet(3, seed, rows=8)
        least = np.sum(
            [np.sum([table.use.min(axis=0) for table in subproblem.tables], axis=0) for subproblem in subproblems],
            axis=0,
        )
        capacity = cut(subproblems, 0.02, pools=5)
        if np.all(least <= capacity):
            continue
        assert share_pools(subproblems, capacity).choices is None
        assert solved(subproblems, capacity).infeasible


def test_many_pipelines_come_within_a_hundredth_of_a_percent_of_the_bound() -> None:
    for seed in range(2):
        subproblems = a_fleet(60, seed)
        capacity = cut(subproblems, 0.7)
        shared = share_pools(subproblems, capacity)
        assert check(subproblems, capacity, shared) <= shared.bound * 1.0005


@pytest.mark.parametrize("joins", [False, True])
def test_composed_pipelines_keep_their_latency_at_least_cost_and_the_bound_holds(joins: bool) -> None:
    proven = []
    for seed in range(3 if joins else 6):
        subproblems = a_fleet(2, seed, rows=2 if joins else 5, composition=Composition.RSS, joins=joins)
        subproblems = [_shortened(subproblem, 4 if joins else 3) for subproblem in subproblems]
        capacity = cut(subproblems, 0.8, pools=1)
        best = _everything(subproblems, capacity)
        shared = share_pools(subproblems, capacity)
        if best is None:
            assert shared.choices is None
            continue
        assert shared.bound <= best + 1e-6
        assert shared.choices is not None
        cost = check(subproblems, capacity, shared)
        assert cost >= best - 1e-6
        assert cost <= best * (1.02 if joins else 1 + 1e-9)  # what joins may cost more has no bound that is proven
        proven.append(shared.bound >= cost - 1e-6)
    assert len(proven) >= 2
    assert joins or all(proven)


def test_fleets_composed_by_rss_come_within_a_hundredth_of_a_percent_of_the_bound() -> None:
    for seed in range(2):
        subproblems = a_fleet(60, seed, composition=Composition.RSS)
        capacity = cut(subproblems, 0.7)
        shared = share_pools(subproblems, capacity)
        assert check(subproblems, capacity, shared) <= shared.bound * 1.0005


def test_the_work_goes_beyond_its_limit_by_a_few_looks_at_the_options_at_most() -> None:
    subproblems = a_fleet(20, 1, composition=Composition.RSS)
    capacity = cut(subproblems, 0.7)
    options = sum(len(table) for subproblem in subproblems for table in subproblem.tables)
    for limit in (0, 30_000, 100_000, 300_000):
        assert share_pools(subproblems, capacity, search_effort=limit).work <= limit + 100 * options


def a_problem_of(seed: int, count: int, share: float) -> Problem:
    """Return pipelines of falling priority that share a pool with only `share` of what they want."""
    rng = random.Random(seed)
    asked = []
    for number in range(count):
        stages = [
            a_stage(name, on("cpu", service=(rng.choice((0.01, 0.02)), 0.0)), after=after)
            for name, after in (("a", ()), ("b", ("a",)))
        ]
        asked.append(
            a_pipeline(*stages, key=f"x/p{number}", priority=count - number, rate_rps=rng.choice((60, 110)), sla_s=0.2)
        )
    plenty = Problem(pipelines=tuple(asked), pools=pools(cpu=(0.4, 999)))
    wanted = allocate(plenty).pools[0].instances
    return replace(plenty, pools=pools(cpu=(0.4, int(share * wanted))))


@pytest.mark.parametrize("seed", range(4))
def test_the_important_are_served_as_if_the_others_had_no_load(seed: int) -> None:
    problem = a_problem_of(seed, 4, (0.5, 0.6, 0.75, 0.9)[seed])
    plan = allocate(problem)
    assert not plan.feasible
    whole = 0
    for first in range(1, 5):  # the others have their minimums, which come before anyone's SLA
        calm = tuple(
            pipeline if number < first else replace(pipeline, demand=pipeline.demand.scaled(0.0))
            for number, pipeline in enumerate(problem.pipelines)
        )
        if allocate(replace(problem, pipelines=calm)).feasible:
            whole = first
    assert [answer.feasible for answer in plan.pipelines[:whole]] == [True] * whole
    assert not plan.pipelines[whole].feasible


@pytest.mark.parametrize("composition", Composition)
def test_the_budget_that_is_advised_in_a_fleet_is_the_least_that_does(composition: Composition) -> None:
    problem = replace(a_problem_of(1, 6, 2.0), composition=composition)
    poor = replace(problem.pipelines[2], budget_per_hour=1.0)

    def with_budget(budget: float) -> Plan:
        pipelines = tuple(replace(poor, budget_per_hour=budget) if p.key == poor.key else p for p in problem.pipelines)
        return certified_plan(replace(problem, pipelines=pipelines), advice=True)

    plan = with_budget(1.0)
    assert not plan.of(poor.key).feasible
    assert all(answer.feasible for answer in plan.pipelines if answer.key != poor.key)
    least = plan.of(poor.key).advice.required_budget_per_hour
    assert least is not None
    assert with_budget(least).feasible
    assert not with_budget(0.99 * least).feasible


def test_a_search_effort_leaves_a_plan_and_a_bound() -> None:
    subproblems = a_fleet(20, 1)
    capacity = cut(subproblems, 0.7)
    whole = share_pools(subproblems, capacity)
    costs = []
    for limit in (0, 20_000, 10_000_000):
        shared = share_pools(subproblems, capacity, search_effort=limit)
        costs.append(check(subproblems, capacity, shared))
        assert shared.bound <= price(subproblems, whole) * (1 + 1e-6)
    assert costs[0] >= costs[-1] - 1e-9
    assert share_pools(subproblems, capacity, search_effort=0).work < whole.work


def test_prices_of_a_similar_fleet_save_work_and_cost_nothing() -> None:
    subproblems = a_fleet(40, 2)
    capacity = cut(subproblems, 0.7)
    first = share_pools(subproblems, capacity)
    changed = [*subproblems[:38], *a_fleet(2, 99)]
    again, anew = share_pools(changed, capacity, start=first.unit_prices), share_pools(changed, capacity)
    assert check(changed, capacity, again) <= check(changed, capacity, anew) * 1.0005


def _shortened(subproblem: Subproblem, stages: int) -> Subproblem:
    """Return the case with as few stages as can be enumerated."""
    tables = subproblem.tables[:stages]
    fast = sum(float(table.percentile_s.min()) for table in tables)
    slow = sum(float(table.percentile_s[0]) for table in tables)
    return Subproblem(
        tables=tables,
        prices=subproblem.prices[:stages],
        shape=shape_of([(table.stage.name, table.stage.after) for table in tables]),
        composition=subproblem.composition,
        percentile=subproblem.percentile,
        latency_s=fast + 0.35 * (slow - fast),
        capacity=subproblem.capacity,
    )


def _everything(subproblems: list[Subproblem], capacity: np.ndarray) -> float | None:
    """Return the least price of all combinations of all rows of two cases, or None when none fits."""
    lists = []
    for subproblem in subproblems:
        found = [
            (subproblem.price(choice), tuple(subproblem.use(choice).tolist()))
            for choice in itertools.product(*(range(len(table)) for table in subproblem.tables))
            if subproblem.latency(choice) <= subproblem.latency_s
        ]
        lists.append(sorted(set(found)))
    prices = [np.array([row[0] for row in rows]) for rows in lists]
    uses = [np.array([row[1] for row in rows]) for rows in lists]
    if any(len(rows) == 0 for rows in lists):
        return None
    total = prices[0][:, None] + prices[1][None]
    fits = np.all(uses[0][:, None] + uses[1][None] <= capacity, axis=2)
    return float(total[fits].min()) if fits.any() else None
