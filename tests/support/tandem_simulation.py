"""Pipelines under an event simulation that shares no code with the product's, and random ones to try it on."""

from collections.abc import Mapping, Sequence

import numpy as np
from event_simulation import simulate
from numpy.typing import NDArray
from problems import a_pipeline, a_stage, on

from optimizer.model import Pipeline, PlacementKey, PoolName, Routing, Stage, StageName

Array = NDArray[np.float64]

WARM_UP = 0.1


def through(
    pipeline: Pipeline,
    replicas: Mapping[PlacementKey, int],
    batches: Mapping[PlacementKey, int],
    arrivals_s: Array,
    seed: int,
) -> tuple[Array, Array]:
    """Return the time of each item in each stage, shape (stages, items), and from entry to end, after the warm-up.

    One placement of a stage runs, no stage drops items; joins wait for all branches.
    """
    n = len(arrivals_s)
    left: dict[StageName, Array] = {}
    spent = np.empty((len(pipeline.stages), n))
    for k, stage in enumerate(pipeline.stages):
        came = arrivals_s if not stage.after else np.max([left[name] for name in stage.after], axis=0)
        order = np.argsort(came, kind="stable")
        (placement,) = (p for p in stage.placements if replicas.get((stage.name, p.name), 0) > 0)
        spent[k, order] = simulate(
            came[order],
            replicas=replicas[stage.name, placement.name],
            concurrency=placement.concurrency,
            batch=batches[stage.name, placement.name],
            batch_wait_s=placement.batch_wait_s,
            fixed_s=placement.service.fixed_s,
            per_item_s=placement.service.per_item_s,
            cv=placement.service.cv,
            routing=stage.routing,
            seed=1_000 * seed + k,
        )
        left[stage.name] = came + spent[k]
    sources = {name for stage in pipeline.stages for name in stage.after}
    ends = [left[stage.name] for stage in pipeline.stages if stage.name not in sources]
    first = int(WARM_UP * n)
    return spent[:, first:], (np.max(ends, axis=0) - arrivals_s)[first:]


def random_tandem(
    rng: np.random.Generator, routings: Sequence[Routing] = (Routing.PULL, Routing.LEAST_LOADED)
) -> tuple[Pipeline, dict[PlacementKey, int], dict[PlacementKey, int]]:
    """Return 4–8 stages in series, half of them batching, loaded to 0.3–0.9, with replicas and batch limits."""
    stages: list[Stage] = []
    replicas: dict[PlacementKey, int] = {}
    batches: dict[PlacementKey, int] = {}
    rate = 100.0
    for k in range(int(rng.integers(4, 9))):
        name, count, rho = f"s{k}", int(rng.integers(1, 13)), rng.uniform(0.3, 0.9)
        batch = int(rng.choice([2, 4, 8, 16])) if rng.random() < 0.5 else 1
        share = rng.uniform(0.1, 0.6) if batch > 1 else 0.0
        alone_s = rho * count * batch / rate / (1 + share * (batch - 1))
        stages.append(
            a_stage(
                name,
                on(
                    "x",
                    service=((1 - share) * alone_s, share * alone_s),
                    cv=float(rng.choice([0.0, 0.15, 0.3, 0.5])),
                    bounds=(0, count),
                    batches=(batch,),
                ),
                after=(f"s{k - 1}",) if k else (),
                routing=routings[int(rng.integers(len(routings)))],
            )
        )
        replicas[StageName(name), PoolName("x")] = count
        batches[StageName(name), PoolName("x")] = batch
    return a_pipeline(*stages, rate_rps=rate, sla_s=10.0), replicas, batches
