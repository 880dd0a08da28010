"""Plans that pay for whole instances, against every allocation there is, billed node by node."""

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pytest
from problems import a_pipeline, a_stage, on
from whole_instances import bills, counts_of

from optimizer.latency.predict import predicted_latency_s
from optimizer.model import (
    Basis,
    Composition,
    GroupBudget,
    PipelineKey,
    PlacementId,
    Pool,
    PoolName,
    Problem,
    Size,
)
from optimizer.reports.certificate import certified_plan

Counts = dict[PlacementId, int]


def a_small_problem(seed: int, *, pools_each: int) -> Problem:
    chance = random.Random(seed)
    sizes = chance.choice([(1, 2, 4), (2, 4, 8), (2, 3)])
    pipelines = []
    for number in range(chance.randint(1, 2)):
        stages = [
            a_stage(
                f"s{k}",
                *(
                    on(
                        pool,
                        service=(chance.choice((0.008, 0.012, 0.02)), 0.0),
                        bounds=(0, 4),
                        per_instance=chance.choice(sizes),
                    )
                    for pool in chance.sample(("cpu", "gpu"), pools_each)
                ),
            )
            for k in range(chance.randint(1, 2))
        ]
        pipelines.append(
            replace(
                a_pipeline(
                    *stages,
                    key=f"speech/p{number}",
                    rate_rps=chance.choice((40.0, 90.0, 140.0)),
                    sla_s=chance.choice((0.05, 0.1)),
                    budget=chance.choice((None, chance.uniform(0.8, 6))),
                ),
                basis=Basis.INSTANCES,
            )
        )
    prices = tuple(sorted((chance.uniform(0.6, 1.4) for _ in range(chance.choice((0, 3)))), reverse=True))
    return Problem(
        pipelines=tuple(pipelines),
        pools={
            PoolName("cpu"): Pool(
                name=PoolName("cpu"), price_per_hour=1.0, instances=chance.randint(1, 5), node_prices_per_hour=prices
            ),
            PoolName("gpu"): Pool(name=PoolName("gpu"), price_per_hour=1.7, instances=chance.randint(1, 5)),
        },
        composition=Composition.SUM,
    )


def allocations(problem: Problem, *, mixed: bool) -> Iterator[Counts]:
    """Every allocation that serves all pipelines within SLA, pools and budgets; without `mixed`, one pool per stage."""
    served: list[list[Counts]] = []
    for pipeline in problem.pipelines:
        keys = [(stage.name, p.name) for stage in pipeline.stages for p in stage.placements]
        found = []
        for numbers in itertools.product(range(5), repeat=len(keys)):
            replicas = dict(zip(keys, numbers, strict=True))
            used = [sum(1 for p in stage.placements if replicas[stage.name, p.name]) for stage in pipeline.stages]
            if not mixed and max(used) > 1:
                continue
            latency_s = predicted_latency_s(pipeline, replicas, {}, composition=problem.composition)
            if latency_s is not None and latency_s <= pipeline.sla.latency_s:
                found.append({(pipeline.key, *key): count for key, count in replicas.items()})
        served.append(found)
    sizes = {(own.key, stage.name, p.name): p.per_instance for own, stage, p in problem.placements()}
    for parts in itertools.product(*served):
        counts = {key: count for part in parts for key, count in part.items()}
        if all(
            _instances([(sizes[key], count) for key, count in counts.items() if key[2] == name and count])
            <= pool.instances
            for name, pool in problem.pools.items()
        ):
            yield counts


def _instances(taken: list[tuple[Size, int]]) -> int:
    sizes = sorted({size for size, _ in taken})
    if all(large % small == 0 for small, large in itertools.pairwise(sizes)):
        largest = sizes[-1] if sizes else 1
        return -(-sum(count * (largest // size) for size, count in taken) // largest)
    return sum(-(-count // size) for size, count in taken)


def least(problem: Problem, *, mixed: bool) -> float | None:
    """The least that all pipelines pay within their budgets; None where no allocation serves them."""
    return least_of(problem, [bills(problem, counts) for counts in allocations(problem, mixed=mixed)])


def least_of(problem: Problem, bills_of_all: Iterable[Mapping[PipelineKey, float]]) -> float | None:
    """The least of the bills of all allocations that are within the budgets of `problem`."""
    best = None
    for paid in bills_of_all:
        within = all(own.budget_per_hour is None or paid[own.key] <= own.budget_per_hour for own in problem.pipelines)
        within &= all(sum(paid[key] for key in group.pipelines) <= group.per_hour + 1e-9 for group in problem.budgets)
        if within and (best is None or sum(paid.values()) < best):
            best = sum(paid.values())
    return best


@pytest.mark.parametrize("seed", range(40))
def test_with_one_pool_for_each_stage_the_plan_is_the_cheapest_and_proven_so(seed: int) -> None:
    problem = a_small_problem(seed, pools_each=1)
    plan, best = certified_plan(problem), least(problem, mixed=False)
    paid = bills(problem, counts_of(plan))
    for own in problem.pipelines:
        assert own.budget_per_hour is None or paid[own.key] <= own.budget_per_hour + 1e-9
        assert plan.of(own.key).cost_per_hour == pytest.approx(paid[own.key])
    assert plan.feasible == (best is not None)
    if best is not None:
        assert plan.cost_per_hour == pytest.approx(best)
        assert plan.proven_optimal


@pytest.mark.parametrize("seed", [seed for seed in range(16) if seed != 5])  # to try all of 5 takes minutes
def test_with_two_pools_for_each_stage_the_plan_is_no_dearer_than_without_mixes(seed: int) -> None:
    problem = a_small_problem(1000 + seed, pools_each=2)
    plan, best, unmixed = certified_plan(problem), least(problem, mixed=True), least(problem, mixed=False)
    if unmixed is not None:
        assert plan.feasible
        assert plan.cost_per_hour <= unmixed + 1e-9
    if plan.feasible:
        assert best is not None
        assert plan.cost_per_hour >= best - 1e-9


@pytest.mark.extended
def test_budgets_of_groups_hold_for_pipelines_of_both_bases_and_bounds_with_them() -> None:
    served = bound = 0
    for seed in range(18):
        chance = random.Random(f"groups of {seed}")
        problem = a_small_problem(seed, pools_each=1 + seed % 2)
        whole, *others = problem.pipelines
        problem = replace(problem, pipelines=(whole, *(replace(own, basis=Basis.REPLICAS) for own in others)))
        all_bills = [bills(problem, counts) for counts in allocations(problem, mixed=True)]
        free = least_of(problem, all_bills)
        if free is None:
            continue
        keys = frozenset(own.key for own in problem.pipelines)
        group = GroupBudget(name="team", per_hour=free * chance.uniform(0.8, 1.3), pipelines=keys)
        problem = replace(problem, budgets=(group,))
        plan, best = certified_plan(problem), least_of(problem, all_bills)
        paid = bills(problem, counts_of(plan))
        assert sum(paid.values()) <= group.per_hour + 1e-6, seed
        assert not plan.feasible or best is not None, seed
        served += plan.feasible
        bound += best is None
        if plan.feasible and plan.lower_bound_per_hour is not None:
            assert best is not None
            assert best - 1e-6 <= plan.cost_per_hour, seed
            assert plan.lower_bound_per_hour <= best + 1e-6, seed
    assert served >= 4
    assert bound >= 1, "the budget of the group changed too few plans"
