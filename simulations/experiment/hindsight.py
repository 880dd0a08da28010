"""The clairvoyant bound of a scenario for a what-if and a seed, with the load and the resources that runs get."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from controller.resources.pipeline import SpeechPipeline
from controller.resources.pool import ComputePool
from controller.resources.translate import pipeline_spec, pool_spec
from optimizer.model import PipelineKey
from simulations.bound.clairvoyant import Bound, Epoch, clairvoyant_bound
from simulations.results.results import BoundResult
from simulations.results.run_series import means
from simulations.results.scoring import Steps
from simulations.scenario.load import item_seed, pipeline_schedules
from simulations.scenario.scenario import Scenario, resource_changes, with_what_if
from simulations.scenario.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRequest:
    """The what-if (None: no change) and the seed for which to find the bound of a scenario."""

    what_if: str | None
    seed: int


def bound_one(
    scenario: Scenario, request: BoundRequest, *, schedules: Mapping[str, Schedule] | None = None
) -> BoundResult:
    """Return the bound of a scenario under a what-if and a seed.

    `schedules` is the load of each pipeline; if None, it is made from scenario and seed.

    Raises:
        BoundNotFound: the solver failed.
        ValueError: there is no such what-if.
    """
    scenario = with_what_if(scenario, None if request.what_if is None else scenario.what_if(request.what_if))
    pipelines = tuple(pipeline_spec(resource) for resource in scenario.pipelines)
    loads = pipeline_schedules(scenario, seed=request.seed) if schedules is None else schedules
    bound = clairvoyant_bound(
        pipelines,
        tuple(pool_spec(resource) for resource in scenario.pools),
        {pipeline.key: loads[pipeline.key] for pipeline in pipelines},
        scenario.file.clock,
        seeds={pipeline.key: item_seed(request.seed, index) for index, pipeline in enumerate(pipelines)},
        faults=scenario.file.faults,
        changes=_changes(scenario),
    )
    return BoundResult(
        what_if=request.what_if,
        seed=request.seed,
        cost=bound.cost,
        windows_share=bound.windows_share,
        cost_per_hour=_by_window(bound, scenario),
    )


def _changes(scenario: Scenario) -> tuple[Epoch, ...]:
    """Return all resources as they are after each change by a `set` fault, sorted by time."""
    pipelines = {pipeline_spec(resource).key: pipeline_spec(resource) for resource in scenario.pipelines}
    pools = {pool_spec(resource).name: pool_spec(resource) for resource in scenario.pools}
    changes: list[Epoch] = []
    for change in resource_changes(scenario):
        if isinstance(change.resource, SpeechPipeline):
            pipeline = pipeline_spec(change.resource)
            pipelines[PipelineKey(pipeline.key)] = pipeline
        elif isinstance(change.resource, ComputePool):
            pool = pool_spec(change.resource)
            pools[pool.name] = pool
        changes.append(Epoch(at_s=change.at_s, pipelines=tuple(pipelines.values()), pools=tuple(pools.values())))
    return tuple(changes)


def _by_window(bound: Bound, scenario: Scenario) -> tuple[float, ...] | None:
    """Return the cost (USD per hour) of the bound's schedule in each window; None if there is no schedule."""
    if not bound.times_s:
        return None
    clock = scenario.file.clock
    begun_s = np.arange(clock.warmup_s, clock.duration_s - 1e-9, clock.window_s)
    ended_s = np.minimum(begun_s + clock.window_s, clock.duration_s)
    return means(Steps(times_s=bound.times_s, values=bound.cost_per_hour), begun_s, ended_s)
