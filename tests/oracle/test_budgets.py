"""Budgets of groups of pipelines, against trying every combination of choices of small fleets."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.allocate import allocate
from optimizer.fleet.fleet import Fleet
from optimizer.model import Composition, GroupBudget, Mixing, Pipeline, PipelineKey, Problem
from optimizer.plan import Limit, LimitKind
from optimizer.reports.certificate import certified_plan
from optimizer.search.tables import supply_of

CLOSE = 1e-6


def a_small_pipeline(rng: random.Random, key: str, priority: int) -> Pipeline:
    stages = []
    for name in "ab"[: rng.choice((1, 2))]:
        speed = rng.choice((0.008, 0.015, 0.03))
        stages.append(
            a_stage(
                name,
                on("cpu", service=(speed, 0.0), bounds=(0, 4), per_instance=rng.choice((1, 2))),
                on("gpu", service=(speed, 0.0), bounds=(0, 4)),
            )
        )
    for number in range(1, len(stages)):
        stages[number] = replace(stages[number], after=(stages[number - 1].name,))
    return a_pipeline(*stages, key=key, rate_rps=rng.choice((30.0, 60.0, 90.0)), sla_s=0.2, priority=priority)


def a_small_fleet(seed: int) -> Problem:
    """Return three pipelines, of which two groups have about the money that the best plan without budgets costs."""
    rng = random.Random(seed)
    pipelines = [a_small_pipeline(rng, f"t{number % 2}/p{number}", rng.choice((0, 0, 1))) for number in range(3)]
    problem = replace(
        a_problem(*pipelines, where=pools(cpu=(0.4, rng.randint(2, 5)), gpu=(0.6, 14))),
        composition=Composition.SUM,
    )
    plan = allocate(problem)
    groups = {
        name: frozenset(rng.sample([p.key for p in pipelines], rng.choice((1, 2))))
        for name in "ab"[: rng.choice((1, 2))]
    }
    return replace(
        problem,
        budgets=tuple(
            GroupBudget(
                name=name,
                per_hour=rng.uniform(0.85, 1.4) * sum(plan.of(key).cost_per_hour for key in keys),
                pipelines=keys,
            )
            for name, keys in groups.items()
        ),
    )


def fitting(problem: Problem) -> Iterator[float]:
    """Yield the cost of every combination of choices that serves all pipelines within pools and budgets."""
    supply = supply_of(problem)
    fleet = Fleet(problem, supply)
    found = []
    for pipeline in problem.pipelines:
        subproblem = fleet.subproblem(pipeline, 1.0, Mixing.OVERFLOW)
        rows = itertools.product(*(range(len(table)) for table in subproblem.tables))
        kept: list[tuple[float, tuple[int, ...]]] = []
        for cost, use in sorted(
            (subproblem.cost_per_hour(row), tuple(subproblem.use(row)))
            for row in rows
            if subproblem.latency(row) <= subproblem.latency_s
        ):  # a choice that costs more and uses no less of any pool is never needed
            if not any(all(mine >= other for mine, other in zip(use, less, strict=True)) for _, less in kept):
                kept.append((cost, use))
        found.append(kept)
    for choice in itertools.product(*found):
        costs = dict(zip([pipeline.key for pipeline in problem.pipelines], [cost for cost, _ in choice], strict=True))
        used = np.sum([use for _, use in choice], axis=0)
        if (used <= supply.limits).all() and all(
            sum(costs[key] for key in budget.pipelines) <= budget.per_hour + CLOSE for budget in problem.budgets
        ):
            yield sum(costs.values())


def test_plans_within_budgets_of_groups_are_nearly_always_those_of_trying_everything() -> None:
    served = bound = exact = 0
    for seed in range(100):
        problem = a_small_fleet(seed)
        plan = certified_plan(problem)
        best = min(fitting(problem), default=None)
        for budget in problem.budgets:
            spent = sum(own.cost_per_hour for own in plan.pipelines if own.key in budget.pipelines)
            assert spent <= budget.per_hour + CLOSE, seed
        # More than was tried may be possible: stages that mix pools in another way than as overflow.
        assert plan.feasible >= (best is not None), seed
        if best is not None:
            served += 1
            bound += best > min(fitting(replace(problem, budgets=()))) + CLOSE
            exact += plan.cost_per_hour <= best + CLOSE
            # As for the budget of the whole fleet: with a price on money, a combination is not always the cheapest.
            assert best - CLOSE <= plan.cost_per_hour <= 1.1 * best, seed
            assert plan.lower_bound_per_hour is not None
            assert plan.lower_bound_per_hour <= best + CLOSE, seed
    assert served >= 60
    assert bound >= 5, "budgets changed too few plans"
    assert exact >= 0.97 * served


def stages_on(pool: str) -> Pipeline:
    return a_pipeline(a_stage("a", on(pool, service=(0.03, 0.0), bounds=(0, 9))), rate_rps=90.0)


def a_tenant(key: str, priority: int = 0) -> Pipeline:
    return replace(stages_on("cpu"), key=PipelineKey(key), priority=priority)


def test_a_group_gives_way_by_priority_and_others_are_not_touched() -> None:
    tenants = a_tenant("a/low"), a_tenant("a/high", priority=1), a_tenant("b/other")
    free = allocate(a_problem(*tenants))
    alone = free.of(PipelineKey("a/high")).cost_per_hour
    group = GroupBudget(name="team-a", per_hour=1.4 * alone, pipelines=frozenset(p.key for p in tenants[:2]))
    plan = allocate(replace(a_problem(*tenants), budgets=(group,)))
    low, high, other = (plan.of(PipelineKey(key)) for key in ("a/low", "a/high", "b/other"))
    assert high.feasible
    assert other.feasible
    assert 0 < low.served_fraction < 1
    assert low.limited_by == Limit(kind=LimitKind.BUDGET, name="team-a")
    assert low.cost_per_hour + high.cost_per_hour <= group.per_hour + CLOSE


def test_the_tightest_of_several_budgets_is_named() -> None:
    tenant = a_tenant("a/one")
    cost = allocate(a_problem(tenant)).cost_per_hour
    groups = tuple(
        GroupBudget(name=name, per_hour=share * cost, pipelines=frozenset({tenant.key}))
        for name, share in (("wide", 0.9), ("narrow", 0.5))
    )
    limited = allocate(replace(a_problem(replace(tenant, budget_per_hour=0.7 * cost)), budgets=groups))
    assert limited.pipelines[0].limited_by == Limit(kind=LimitKind.BUDGET, name="narrow")
    own = allocate(replace(a_problem(replace(tenant, budget_per_hour=0.4 * cost)), budgets=groups))
    assert own.pipelines[0].limited_by == Limit(kind=LimitKind.BUDGET)


def test_a_group_shares_a_component_only_with_its_pipelines() -> None:
    tenants = a_tenant("a/one"), replace(stages_on("gpu"), key=PipelineKey("a/two")), a_tenant("b/other")
    group = GroupBudget(name="a", per_hour=0.0, pipelines=frozenset({tenants[1].key}))
    plan = allocate(replace(a_problem(*tenants), budgets=(group,)))
    assert [own.served_fraction for own in plan.pipelines] == [1.0, 0.0, 1.0]
