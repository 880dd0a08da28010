"""Replicas that run out of memory in the simulator: sessions whose tokens grow (`memory.kvCache.growth`).

Each session holds the tokens of its age at its replica. A replica whose sessions together hold more than its memory is
ended and starts again, as a container that is OOMKilled; its sessions go on elsewhere, with empty state.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from controller.core.state.spec import PipelineSpec, PlacementSpec
from optimizer.kv_cache import KvCacheShape
from simulations.cluster.pods import Pod, Workload, Workloads
from simulations.engine.pipeline_engine import PipelineEngine

LOOK_S = 1.0
"""The time between two looks at the memory of all replicas."""


def by_mean_tokens(pipeline: PipelineSpec) -> PipelineSpec:
    """Return `pipeline` with as many sessions per replica as fit where all hold the mean tokens (`ignoreGrowth`)."""
    stages = tuple(
        replace(stage, placements=tuple(map(_by_mean, stage.placements)))
        if any(_grows(placement) for placement in stage.placements)
        else stage
        for stage in pipeline.stages
    )
    return pipeline if stages == pipeline.stages else replace(pipeline, stages=stages)


def grows(pipeline: PipelineSpec) -> bool:
    """Return whether the sessions of a stage grow in the memory of its replicas."""
    return any(_grows(placement) for stage in pipeline.stages for placement in stage.placements)


def _grows(placement: PlacementSpec) -> bool:
    return placement.cache is not None and placement.cache.growth is not None


def _by_mean(placement: PlacementSpec) -> PlacementSpec:
    if placement.cache is None or placement.cache.growth is None:
        return placement
    return replace(placement, prior=replace(placement.prior, session_slots=max(1, placement.cache.mean_slots)))


def out_of_memory(workloads: Workloads, engine: PipelineEngine, pipeline: PipelineSpec) -> Iterator[Pod]:
    """Yield the serving replicas of `pipeline` whose sessions hold more tokens than fit."""
    for workload in workloads.workloads.values():
        if workload.pipeline.key == pipeline.key and _grows(workload.placement):
            yield from _too_full(workload, engine)


def _too_full(workload: Workload, engine: PipelineEngine) -> Iterator[Pod]:
    cache = workload.placement.cache
    assert cache is not None
    numbers, ages_s = engine.session_ages(workload.key[0])
    for pod in [pod for pod in workload.pods if pod.number is not None]:
        if _tokens(cache, ages_s[numbers == pod.number]) > cache.most_tokens:
            yield pod


def _tokens(cache: KvCacheShape, ages_s: np.ndarray) -> float:
    """Return the tokens that sessions of these ages (s) hold."""
    growth = cache.growth
    assert growth is not None
    tokens = growth.start_tokens + ages_s * growth.tokens_per_s - cache.shared_tokens
    if growth.most_tokens is not None:
        tokens = np.minimum(tokens, growth.most_tokens - cache.shared_tokens)
    return float(np.maximum(tokens, 0.0).sum() + cache.cross_frames * len(ages_s))
