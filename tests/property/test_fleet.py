"""What holds for every fleet: the order of pipelines and pools does not matter."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import a_pipeline, a_stage, on, pools

from optimizer.allocate import allocate
from optimizer.model import Composition, Pipeline, Pool, PoolName, Problem
from optimizer.reports.certificate import certified_plan


def a_fleet(seed: int, count: int, composition: Composition) -> Problem:
    rng = random.Random(seed)

    def pipeline(number: int) -> Pipeline:
        names = ["a", "b", "c"][: rng.randint(1, 3)]
        stages = [
            a_stage(
                name,
                *(
                    on(pool, service=(rng.choice((0.008, 0.015, 0.03)), 0.0), per_instance=rng.choice((1, 2)))
                    for pool in rng.sample(("cpu", "inferentia", "gpu"), 2)
                ),
                after=names[max(0, index - 1) : index],
            )
            for index, name in enumerate(names)
        ]
        return a_pipeline(
            *stages, key=f"x/p{number}", rate_rps=rng.choice((50, 100, 150)), sla_s=rng.choice((0.1, 0.15, 0.3))
        )

    plenty = Problem(
        pipelines=tuple(pipeline(number) for number in range(count)),
        pools=pools(cpu=(0.4, 99), inferentia=(0.8, 99), gpu=(1.7, 99)),
        composition=composition,
    )
    wanted = {pool.name: pool.instances for pool in allocate(plenty, replayed=False).pools}
    most = max(wanted, key=lambda name: wanted[name])
    scarce = replace(plenty.pools[most], instances=max(1, round(rng.choice((0.6, 0.8)) * wanted[most])))
    return replace(plenty, pools={**plenty.pools, most: scarce})


def shuffled(problem: Problem, seed: int) -> Problem:
    rng = random.Random(seed)
    pipelines, names = list(problem.pipelines), list(problem.pools)
    rng.shuffle(pipelines)
    rng.shuffle(names)
    order: dict[PoolName, Pool] = {name: problem.pools[name] for name in names}
    return replace(problem, pipelines=tuple(pipelines), pools=order)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(0, 100), st.sampled_from(Composition))
def test_the_order_of_pipelines_and_pools_does_not_matter(
    seed: int, count: int, order: int, composition: Composition
) -> None:
    problem = a_fleet(seed, count, composition)
    plan, other = certified_plan(problem), certified_plan(shuffled(problem, order))
    for pipeline in problem.pipelines:
        assert plan.of(pipeline.key).replicas() == other.of(pipeline.key).replicas()
    assert plan.lower_bound_per_hour == pytest.approx(other.lower_bound_per_hour)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 9), st.sampled_from((0, 1_000, 100_000)))
def test_whatever_the_search_effort_there_is_a_plan_within_the_pools(seed: int, count: int, limit: int) -> None:
    problem = replace(a_fleet(seed, count, Composition.SUM), search_effort=limit)
    plan = certified_plan(problem)
    assert all(pool.instances <= pool.limit for pool in plan.pools)
    if plan.feasible and plan.lower_bound_per_hour is not None:
        assert plan.lower_bound_per_hour <= plan.cost_per_hour + 1e-6
