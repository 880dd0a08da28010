"""The load as who is told it sees it, and the allocation for its peak: what a run is compared with."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from controller.core.assess.optimizer_input import optimizer_pipeline, optimizer_pool
from controller.core.state.policy import Policy
from controller.core.state.spec import DemandUnit, PipelineSpec, PoolSpec
from optimizer.allocate import allocate
from optimizer.model import PipelineKey, PoolName, Problem
from optimizer.plan import Plan
from simulations.scenario.schedule import Schedule

_PEAK_WINDOW_S = 20


def peak_instances(
    pipelines: tuple[PipelineSpec, ...],
    pools: tuple[PoolSpec, ...],
    loads: Mapping[PipelineKey, Schedule],
    duration_s: float,
) -> dict[PoolName, float] | None:
    """Return the instances of each pool in the plan for the highest 20-second mean of the load.

    The operator's own optimizer makes that plan, with the headroom that its plans leave, without a budget. None when
    no plan serves the peak.
    """
    plan = peak_plan(
        pipelines, pools, loads, duration_s, latency_headroom=Policy().latency_headroom, within_budget=False
    )
    if not plan.feasible:
        return None
    instances: dict[PoolName, float] = {}
    for pipeline in pipelines:
        replicas = plan.of(pipeline.key).replicas()
        for stage in pipeline.stages:
            for placement in stage.placements:
                share = replicas.get((stage.name, placement.pool), 0) / placement.prior.per_instance
                instances[placement.pool] = instances.get(placement.pool, 0.0) + share
    return instances


def peak_plan(
    pipelines: Sequence[PipelineSpec],
    pools: Sequence[PoolSpec],
    loads: Mapping[PipelineKey, Schedule],
    duration_s: float,
    *,
    latency_headroom: float,
    within_budget: bool,
) -> Plan:
    """Return the operator's own plan for the highest 20-second mean of the load."""
    problems = []
    for pipeline in pipelines:
        peak = peak_demand(loads[pipeline.key], pipeline, duration_s)
        problem = optimizer_pipeline(pipeline, peak, latency_headroom=latency_headroom)
        problems.append(problem if within_budget else replace(problem, budget_per_hour=None))
    return allocate(
        Problem(
            pipelines=tuple(problems),
            pools={pool.name: optimizer_pool(pool, pool.instances or 0) for pool in pools},
            composition=Policy().composition,
        )
    )


def peak_demand(load: Schedule, pipeline: PipelineSpec, until_s: float) -> float:
    """Return the highest 20-second mean of a load, in the pipeline's unit."""
    level = demand_by_second(load, pipeline, until_s)
    width = min(_PEAK_WINDOW_S, len(level))
    return float(np.convolve(level, np.ones(width) / width, mode="valid").max())


def demand_by_second(load: Schedule, pipeline: PipelineSpec, until_s: float) -> NDArray[np.float64]:
    """Return a load in the pipeline's unit for each second: streams in its middle, or requests that come in it."""
    edges = np.arange(0.0, until_s + 1.0)
    if pipeline.unit is DemandUnit.STREAMS:
        return load.active(edges[:-1] + 0.5).astype(float)
    return np.histogram(load.start_s, edges)[0].astype(float)
