"""Compile all functions of the optimizer ahead of the first decision: `python -m optimizer.warm_up`.

Run it where the program is installed. The compiled code is kept in the cache of `optimizer.runtime.compiled`; a process
that finds it there compiles nothing. Otherwise the first decision has to wait for the compiler.
"""

from dataclasses import replace

import numpy as np

from optimizer.allocate import allocate
from optimizer.model import (
    BatchChoice,
    Batching,
    Composition,
    Demand,
    Pipeline,
    PipelineKey,
    Placement,
    Pool,
    PoolName,
    Problem,
    Routing,
    ServiceLaw,
    Sla,
    Stage,
    StageName,
)
from optimizer.replay.queues import ServerGroup, serve
from optimizer.reports.certificate import certified_plan

_POOLS = ("a", "b")
_BATCHES = BatchChoice(batch_sizes=(1, 4))
_NO_BOUND_PROVES_S = 0.04
"""A latency with which the exact search has to merge partial choices: bounds prove the problems with others."""


def warm_up() -> None:
    """Call all compiled functions, with enough and with too few resources, and replay all ways to serve items."""
    for composition in Composition:
        for routing in Routing:
            allocate(_problem(1, instances=4, routing=routing, composition=composition))
        for joins in (False, True):
            for pipelines, instances in ((1, 20), (1, 3), (8, 40), (8, 12)):
                problem = _problem(pipelines, instances=instances, joins=joins, composition=composition)
                certified_plan(problem, shadow_prices=pipelines == 1, advice=True)
            allocate(_problem(1, instances=8, joins=joins, composition=composition, latency_s=_NO_BOUND_PROVES_S))
    certified_plan(replace(_problem(8, instances=40), budget_per_hour=10.0), advice=True)
    for batches in (BatchChoice(batch_sizes=(4,), batch_wait_s=0.01), BatchChoice(batching=Batching.CONTINUOUS)):
        allocate(_problem(1, instances=8, batches=batches))
    for routing in Routing:
        for continuous in (False, True):
            group = ServerGroup(replicas=2, service=ServiceLaw(fixed_s=0.01, cv=0.3), batch=2, continuous=continuous)
            serve(np.arange(3.0), np.zeros(3, dtype=np.int64), groups=[group], routing=routing, seed=1)


def _problem(
    pipelines: int,
    *,
    instances: int,
    joins: bool = False,
    routing: Routing = Routing.LEAST_LOADED,
    composition: Composition = Composition.RSS,
    latency_s: float = 0.2,
    batches: BatchChoice = _BATCHES,
) -> Problem:
    return Problem(
        pipelines=tuple(_pipeline(number, joins, routing, latency_s, batches) for number in range(pipelines)),
        pools={
            PoolName(name): Pool(name=PoolName(name), price_per_hour=1.0 + number, instances=instances)
            for number, name in enumerate(_POOLS)
        },
        composition=composition,
    )


def _pipeline(number: int, joins: bool, routing: Routing, latency_s: float, batches: BatchChoice) -> Pipeline:
    after = ((), ("s0",), ("s0",) if joins else ("s1",), ("s1", "s2") if joins else ("s2",))
    return Pipeline(
        key=PipelineKey(f"warm/{number}"),
        stages=tuple(_stage(f"s{position}", names, routing, batches) for position, names in enumerate(after)),
        demand=Demand(entry_rate_rps=100.0 + 10 * number, sessions=50.0 if number % 2 else None),
        sla=Sla(latency_s=latency_s),
    )


def _stage(name: str, after: tuple[str, ...], routing: Routing, batches: BatchChoice) -> Stage:
    return Stage(
        name=StageName(name),
        placements=tuple(
            Placement(
                pool=PoolName(pool),
                service=ServiceLaw(fixed_s=0.012 / (1 + number), per_item_s=0.004 / (1 + 2 * number), cv=0.3 * number),
                max_replicas=6,
                per_instance=1 + number,
                batching=batches.batching,
                batch_sizes=batches.batch_sizes,
                batch_wait_s=batches.batch_wait_s,
            )
            for number, pool in enumerate(_POOLS)
        ),
        after=tuple(StageName(other) for other in after),
        routing=routing,
    )


if __name__ == "__main__":
    warm_up()
