"""Random fleets whose budgets count whole instances, and their bill worked out replica by replica."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from problems import a_pipeline, a_stage, on

from optimizer.model import (
    Basis,
    Composition,
    GroupBudget,
    PipelineKey,
    PlacementId,
    Pool,
    PoolName,
    Problem,
)
from optimizer.plan import Plan

Counts = Mapping[PlacementId, int]


def nodes_of(replicas: Iterable[Fraction]) -> list[list[Fraction]]:
    """The nodes that a scheduler fills which puts the largest replica first on the fullest node that takes it."""
    nodes: list[list[Fraction]] = []
    for share in sorted(replicas, reverse=True):
        fitting = [node for node in nodes if sum(node) + share <= 1]
        if fitting:
            max(fitting, key=sum).append(share)
        else:
            nodes.append([share])
    return nodes


def bills(problem: Problem, counts: Counts) -> dict[PipelineKey, float]:
    """What each pipeline pays, on its own basis, if the nodes of a pool are filled one after the other."""
    paid = {pipeline.key: 0.0 for pipeline in problem.pipelines}
    for name, pool in problem.pools.items():
        own = [
            (pipeline, placement.per_instance, counts[pipeline.key, stage.name, name])
            for pipeline, stage, placement in problem.placements()
            if placement.pool == name and counts[pipeline.key, stage.name, name]
        ]
        everything = [(size, count) for _, size, count in own]
        everything += [(size, count) for size, count in pool.held if count]
        sizes = sorted({size for size, _ in everything})
        shared = all(large % small == 0 for small, large in pairwise(sizes))
        groups = [everything] if shared else [[each] for each in everything]
        filled = [nodes_of(Fraction(1, size) for size, count in group for _ in range(count)) for group in groups]
        used = sum(len(nodes) for nodes in filled)
        there = [*pool.node_prices_per_hour, *[pool.price_per_hour] * used][:used]
        # Where sizes do not divide each other, each placement has nodes of its own.
        weights = [Fraction(count, size) if shared else Fraction(-(-count // size)) for size, count in everything]
        for (pipeline, size, count), weight in zip(own, weights, strict=False):
            if pipeline.basis is Basis.REPLICAS:
                paid[pipeline.key] += pool.price_per_hour * count / size
            else:
                paid[pipeline.key] += sum(there) * float(weight / sum(weights))
    return paid


def counts_of(plan: Plan) -> dict[PlacementId, int]:
    return {(own.key, *place): count for own in plan.pipelines for place, count in own.replicas().items()}


def a_random_fleet(
    seed: int, *, most_pipelines: int = 3, most_replicas: int = 6, budgets: bool = True, only_instances: bool = False
) -> Problem:
    """Up to three pipelines on two pools, with budgets that often bind, nodes of several prices, and held replicas."""
    chance = random.Random(seed)
    sizes = chance.choice([(1, 2, 4), (1, 2, 3), (4, 8)])
    pipelines = []
    for number in range(chance.randint(1, most_pipelines)):
        stages = [
            a_stage(
                f"s{k}",
                *(
                    on(
                        pool,
                        service=(chance.choice((0.005, 0.01, 0.02)), 0.0),
                        bounds=(chance.choice((0, 0, 0, 1)), chance.randint(1, most_replicas)),
                        per_instance=chance.choice(sizes),
                    )
                    for pool in chance.sample(("cpu", "gpu"), chance.randint(1, 2))
                ),
            )
            for k in range(chance.randint(1, 2))
        ]
        pipeline = a_pipeline(
            *stages,
            key=f"speech/p{number}",
            rate_rps=chance.choice((10.0, 60.0, 150.0)),
            sla_s=chance.choice((0.05, 0.1, 0.2)),
            budget=chance.uniform(0.3, 8) if budgets and chance.random() < 0.7 else None,
            priority=chance.randint(0, 1),
        )
        whole = only_instances or chance.random() < 0.75
        pipelines.append(replace(pipeline, basis=Basis.INSTANCES if whole else Basis.REPLICAS))
    groups = []
    if budgets:
        apart = random.Random(f"groups of {seed}")
        for number in range(apart.choice((0, 1, 2))):
            keys = [pipeline.key for pipeline in pipelines]
            members = frozenset(apart.sample(keys, apart.randint(1, len(keys))))
            groups.append(GroupBudget(name=f"team-{number}", per_hour=apart.uniform(0.3, 8), pipelines=members))
    return Problem(
        pipelines=tuple(pipelines),
        pools={
            PoolName(name): Pool(
                name=PoolName(name),
                price_per_hour=price,
                instances=chance.randint(0, 8),
                node_prices_per_hour=tuple(
                    sorted(
                        (price * chance.choice((0.0, 0.5, 0.9, 1.5)) for _ in range(chance.choice((0, 0, 3)))),
                        reverse=True,
                    )
                ),
                held=() if chance.random() < 0.6 else ((chance.choice(sizes), chance.randint(0, 5)),),
            )
            for name, price in (("cpu", 1.0), ("gpu", 2.6))
        },
        budget_per_hour=chance.uniform(1, 12) if budgets and chance.random() < 0.3 else None,
        composition=chance.choice(tuple(Composition)),
        budgets=tuple(groups),
    )
