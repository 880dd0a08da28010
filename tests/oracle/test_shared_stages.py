"""Pipelines that share a stage against brute force over all allocations: none that can be served is missed."""

import itertools
import random
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from optimizer.latency.predict import predicted_latency_s
from optimizer.model import (
    Demand,
    Pipeline,
    PipelineKey,
    Placement,
    PlacementKey,
    Pool,
    PoolName,
    Problem,
    ServiceLaw,
    Sharing,
    Sla,
    Stage,
    StageName,
    pool_of,
)
from optimizer.reports.certificate import certified_plan

OWNER, BORROWER = PipelineKey("speech/owner"), PipelineKey("speech/borrower")
FAST, SLOW = PoolName("fast"), PoolName("slow")
MOST = 3
PRICES = {FAST: 2.0, SLOW: 0.7}
Counts = Mapping[PlacementKey, int]


def a_problem(seed: int) -> Problem:
    """Return two pipelines, of two and of two or three stages, that share the first stage of one of them."""
    random_ = random.Random(seed)
    rates = {key: random_.choice([3.0, 8.0, 15.0]) for key in (OWNER, BORROWER)}
    total = sum(rates.values())

    def placements() -> tuple[Placement, ...]:
        fixed_s = random_.choice([0.02, 0.04, 0.06])
        pools = [FAST, SLOW] if random_.random() < 0.8 else [random_.choice([FAST, SLOW])]
        return tuple(
            Placement(
                pool=pool,
                service=ServiceLaw(fixed_s=fixed_s * (1 if pool == FAST else 2.5), cv=0.3),
                max_replicas=MOST,
            )
            for pool in pools
        )

    served = placements()

    def shared(key: PipelineKey, name: str, after: tuple[StageName, ...]) -> Stage:
        return Stage(
            name=StageName(name),
            placements=served,
            after=after,
            sharing=Sharing(
                owner=OWNER,
                stage=StageName("encoder"),
                borrowed=key != OWNER,
                cost_share=rates[key] / total,
                other_rps=total - rates[key],
            ),
        )

    def pipeline(key: PipelineKey, stages: tuple[Stage, ...]) -> Pipeline:
        return Pipeline(
            key=key,
            stages=stages,
            demand=Demand(entry_rate_rps=rates[key]),
            sla=Sla(latency_s=random_.choice([0.15, 0.25, 0.4, 0.8])),
            budget_per_hour=random_.choice([6.0, 20.0]),
        )

    first = StageName("vad")
    ahead = () if random_.random() < 0.5 else (Stage(name=first, placements=placements()),)
    return Problem(
        pipelines=(
            pipeline(
                OWNER,
                (
                    shared(OWNER, "encoder", ()),
                    Stage(name=StageName("decoder"), placements=placements(), after=(StageName("encoder"),)),
                ),
            ),
            pipeline(
                BORROWER,
                (
                    *ahead,
                    shared(BORROWER, "asr", tuple(stage.name for stage in ahead)),
                    Stage(name=StageName("speech"), placements=placements(), after=(StageName("asr"),)),
                ),
            ),
        ),
        pools={
            name: Pool(name=name, price_per_hour=price, instances=random_.choice([2, 4, 6]))
            for name, price in PRICES.items()
        },
    )


def allocations(pipeline: Pipeline, encoder: Counts) -> Iterator[tuple[float, np.ndarray, float]]:
    """Yield cost, use of both pools and own cost of each allocation that meets the SLA with `encoder` replicas."""
    own = [stage for stage in pipeline.stages if stage.sharing is None]
    (shared,) = (stage for stage in pipeline.stages if stage.sharing is not None)
    counts = {(shared.name, pool): count for (_, pool), count in encoder.items()}
    price = sum(PRICES[pool_of(name)] * count for (_, name), count in encoder.items())
    keys = [(stage.name, placement.name) for stage in own for placement in stage.placements]
    for numbers in itertools.product(range(MOST + 1), repeat=len(keys)):
        chosen = dict(zip(keys, numbers, strict=True))
        cost = sum(PRICES[pool_of(name)] * count for (_, name), count in chosen.items())
        if pipeline.budget_per_hour is not None and cost + shared.cost_share * price > pipeline.budget_per_hour + 1e-9:
            continue
        latency_s = predicted_latency_s(pipeline, {**chosen, **counts}, {})
        if latency_s is not None and latency_s <= pipeline.sla.latency_s:
            use = [sum(count for (_, own_pool), count in chosen.items() if own_pool == pool) for pool in PRICES]
            yield cost, np.array(use), price


def cheapest(problem: Problem) -> float | None:
    """Return the least cost of serving both pipelines, over all allocations; None if none serves both."""
    owner, borrower = problem.pipelines
    limits = np.array([problem.pools[pool].instances for pool in PRICES])
    names = [placement.name for placement in owner.stages[0].placements]
    best: float | None = None
    for numbers in itertools.product(range(MOST + 1), repeat=len(names)):
        encoder = {(StageName("encoder"), name): count for name, count in zip(names, numbers, strict=True)}
        taken = np.array([encoder.get((StageName("encoder"), pool), 0) for pool in PRICES])
        price = sum(PRICES[pool_of(name)] * count for (_, name), count in encoder.items())
        ones: dict[tuple[int, ...], float] = {}
        twos: dict[tuple[int, ...], float] = {}
        for found, pipeline in ((ones, owner), (twos, borrower)):
            for cost, use, _ in allocations(pipeline, encoder):
                key = tuple(use.tolist())
                found[key] = min(cost, found.get(key, np.inf))
        for (one, cost_one), (two, cost_two) in itertools.product(ones.items(), twos.items()):
            if np.all(taken + np.array(one) + np.array(two) <= limits):
                cost = price + cost_one + cost_two
                best = cost if best is None else min(best, cost)
    return best


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 36), marks=pytest.mark.extended)])
def test_what_brute_force_can_serve_is_served_at_nearly_its_cost(seeds: range) -> None:
    gaps = []
    for seed in seeds:
        problem = a_problem(seed)
        best, plan = cheapest(problem), certified_plan(problem)
        assert plan.feasible == (best is not None), f"seed {seed}: {best}, {plan.pipelines}"
        if best is None:
            continue
        shared = {placement.pool: placement.replicas for placement in plan.of(OWNER).stages[0].placements}
        borrowed = next(stage for stage in plan.of(BORROWER).stages if stage.name == "asr")
        assert {placement.pool: placement.replicas for placement in borrowed.placements} == shared
        for pipeline, own in zip(problem.pipelines, plan.pipelines, strict=True):
            latency_s = predicted_latency_s(pipeline, own.replicas(), {})
            assert latency_s is not None
            assert latency_s <= pipeline.sla.latency_s * (1 + 1e-9)
            assert own.cost_per_hour <= (pipeline.budget_per_hour or np.inf) + 1e-9
        assert all(pool.instances <= pool.limit for pool in plan.pools)
        assert plan.lower_bound_per_hour is None or plan.lower_bound_per_hour <= best + 1e-9
        gaps.append(plan.cost_per_hour / best - 1)
    print(f"{len(gaps)} of {len(seeds)} can be served: gap mean {np.mean(gaps):.2%}, largest {max(gaps):.2%}")
    assert min(gaps) >= -1e-9
    assert max(gaps) <= 0.1
