"""Variants of a model on shared pools: the plan is the cheapest of all allocations, found by brute force."""

import itertools
import random
from dataclasses import replace

import pytest
from problems import a_pipeline, a_stage, on

from optimizer.allocate import allocate
from optimizer.latency.predict import predicted_latency_s
from optimizer.model import Composition, Pool, PoolName, Problem, Stage

PRICES = {PoolName("cpu"): 0.4, PoolName("gpu"): 1.0}
MOST = 4
SEEDS = range(24)


def a_random_stage(random_: random.Random, name: str, after: tuple[str, ...]) -> Stage:
    """A stage with two to three variants on each of one or two pools: the faster one has more errors."""
    placements = []
    for pool in random_.sample(["cpu", "gpu"], random_.choice([1, 2])):
        service_s, wer = random_.uniform(0.02, 0.06), random_.uniform(0.06, 0.08)
        for variant in ("large", "medium", "small")[: random_.choice([2, 3])]:
            own = on(pool, service=(service_s, 0.0), cv=0.3, bounds=(0, MOST), wer=wer)
            placements.append(replace(own, variant=variant))
            service_s, wer = service_s * random_.uniform(0.4, 0.8), wer + random_.uniform(0.002, 0.02)
    return a_stage(name, *placements, after=after)


def a_problem(seed: int) -> Problem:
    random_ = random.Random(seed)
    stages = (a_random_stage(random_, "encoder", ()), a_random_stage(random_, "decoder", ("encoder",)))
    pipeline = replace(
        a_pipeline(*stages, rate_rps=random_.uniform(10, 60), sla_s=random_.uniform(0.15, 0.4)),
        max_wer=random_.uniform(0.07, 0.11),
    )
    pools = {
        name: Pool(name=name, price_per_hour=price, instances=random_.choice([2, 3, 6]))
        for name, price in PRICES.items()
    }
    return Problem(pipelines=(pipeline,), pools=pools, composition=Composition.SUM)


def cheapest(problem: Problem, *, mixed: bool) -> float | None:
    """Return the least cost over all allocations, without `mixed` over those with one placement per stage."""
    (pipeline,) = problem.pipelines
    usable = [
        (stage.name, own)
        for stage in pipeline.stages
        for own in stage.placements
        if own.wer is None or pipeline.max_wer is None or own.wer <= pipeline.max_wer
    ]
    best: float | None = None
    for numbers in itertools.product(range(MOST + 1), repeat=len(usable)):
        used = [name for (name, _), count in zip(usable, numbers, strict=True) if count]
        if len(set(used)) < len(pipeline.stages) or (not mixed and len(used) > len(pipeline.stages)):
            continue
        cost = sum(count * PRICES[own.pool] for (_, own), count in zip(usable, numbers, strict=True))
        if best is not None and cost >= best - 1e-9:
            continue
        if any(
            sum(count for (_, own), count in zip(usable, numbers, strict=True) if own.pool == pool) > limit.instances
            for pool, limit in problem.pools.items()
        ):
            continue
        replicas = {(name, own.name): count for (name, own), count in zip(usable, numbers, strict=True)}
        latency_s = predicted_latency_s(pipeline, replicas, {}, composition=problem.composition)
        if latency_s is not None and latency_s <= pipeline.sla.latency_s:
            best = cost
    return best


@pytest.mark.parametrize("seed", SEEDS)
def test_variants_are_chosen_at_the_least_cost_and_never_above_the_limit_on_errors(seed: int) -> None:
    problem = a_problem(seed)
    (pipeline,) = problem.pipelines
    (answer,) = allocate(problem).pipelines
    best, unmixed = cheapest(problem, mixed=True), cheapest(problem, mixed=False)
    for stage, planned in zip(pipeline.stages, answer.stages, strict=True):
        by_name = {own.name: own for own in stage.placements}
        for placed in planned.placements:
            wer = by_name[placed.name].wer
            assert not placed.replicas or wer is None or pipeline.max_wer is None or wer <= pipeline.max_wer
    if answer.feasible:
        assert best is not None
        assert best - 1e-9 <= answer.cost_per_hour
    if unmixed is not None:  # of mixes, plans consider only overflow
        assert answer.feasible
        assert answer.cost_per_hour <= unmixed + 1e-9
