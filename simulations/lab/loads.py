"""Who starts when in a run, and what serving the peak of that load all the time would cost."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from optimizer.allocate import allocate

from controller.core.problem import pipeline_problem, pool_problem
from controller.core.spec import DemandUnit, PipelineSpec, PoolSpec
from controller.resources.fields import duration_s
from optimizer.model import PipelineKey, PoolName, Problem
from simulations import schedule as schedules
from simulations.lab.observer import Observation
from simulations.scenario import Load, Scenario
from simulations.schedule import Replay, Schedule, SessionLength
from simulations.scoring import Steps, cost
from simulations.traces import Column, read_trace

_PEAK_WINDOW_S = 20


def load_schedule(scenario: Scenario, pipeline: PipelineSpec, *, seed: int, scale: float) -> Schedule:
    """Return who starts when: all load entries of the pipeline, spikes included, thinned to a share of `scale`."""
    duration = scenario.file.clock.duration_s
    total = Schedule.of(np.empty(0), np.empty(0))
    for index, load in enumerate(scenario.file.load):
        if load.pipeline == pipeline.key:
            own_seed = schedules.derived_seed(seed, index)
            make = schedules.stream_schedule if pipeline.unit is DemandUnit.STREAMS else schedules.request_schedule
            total = total.merged(make(_replay(scenario, load), duration, own_seed))
    for index, fault in enumerate(scenario.file.faults):
        if fault.spike is not None and fault.spike.pipeline == pipeline.key:
            own_seed = schedules.derived_seed(seed, len(scenario.file.load), index)
            until_s = min(fault.interval.until_s, duration)
            total = schedules.with_spike(total, fault.interval.from_s, until_s, fault.spike.factor, own_seed)
    return schedules.thinned(total, scale, seed) if scale < 1 else total


def _replay(scenario: Scenario, load: Load) -> Replay:
    return Replay(
        trace=read_trace(load.trace, Column(load.column), folder=scenario.path.parent),
        copies=load.copies or 1,
        speed=load.speed or 1.0,
        offset_s=duration_s(load.offset) if load.offset else 0.0,
        session=None
        if load.session is None
        else SessionLength(mean_s=duration_s(load.session.mean), cv=load.session.cv),
    )


def static_peak_cost(
    scenario: Scenario,
    pipelines: tuple[PipelineSpec, ...],
    pools: tuple[PoolSpec, ...],
    loads: Mapping[PipelineKey, Schedule],
    observations: Iterable[Observation],
) -> float | None:
    """Return what the plan for the highest 20-second mean of the load costs when it runs all the time, in USD.

    The same optimizer makes that plan, without a budget; prices are those that held. None when no plan serves the peak.
    """
    clock = scenario.file.clock
    peaks = {pipeline.key: peak_demand(loads[pipeline.key], pipeline, clock.duration_s) for pipeline in pipelines}
    plan = allocate(
        Problem(
            pipelines=tuple(replace(pipeline_problem(p, peaks[p.key]), budget_per_hour=None) for p in pipelines),
            pools={pool.name: pool_problem(pool, pool.instances or 0) for pool in pools},
        )
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
    seen = list(observations)
    cost_per_hour = Steps(
        times_s=[moment.t_s for moment in seen],
        values=[sum(moment.price_per_hour[pool] * count for pool, count in instances.items()) for moment in seen],
    )
    return cost(cost_per_hour, clock)


def peak_demand(load: Schedule, pipeline: PipelineSpec, until_s: float) -> float:
    """Return the highest 20-second mean of a load, in the pipeline's unit."""
    edges = np.arange(0.0, until_s + 1.0)
    if pipeline.unit is DemandUnit.STREAMS:
        level = load.active(edges[:-1] + 0.5).astype(float)
    else:
        level = np.histogram(load.start_s, edges)[0].astype(float)
    width = min(_PEAK_WINDOW_S, len(level))
    return float(np.convolve(level, np.ones(width) / width, mode="valid").max())
