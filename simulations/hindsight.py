"""The clairvoyant bound of a scenario, for each what-if and seed, on the load and the resources that the runs have."""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from controller.resources.pipeline import SpeechPipeline
from controller.resources.translate import pipeline_spec, pool_spec
from optimizer.model import PipelineKey
from simulations.bound.clairvoyant import Bound, Change, clairvoyant_bound
from simulations.load import item_seed, pipeline_schedules
from simulations.results import BoundResult
from simulations.run_series import means
from simulations.scenario import Scenario, resource_changes, with_what_if
from simulations.scoring import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRequest:
    """A bound to find."""

    what_if: str | None
    seed: int


def bound_one(scenario: Scenario, request: BoundRequest) -> BoundResult:
    """Return the bound of a scenario under a what-if and a seed.

    Raises:
        BoundNotFound: the solver failed.
        ValueError: no such what-if.
    """
    scenario = with_what_if(scenario, None if request.what_if is None else scenario.what_if(request.what_if))
    pipelines = tuple(pipeline_spec(resource) for resource in scenario.pipelines)
    loads = pipeline_schedules(scenario, seed=request.seed)
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


def bound_all(
    scenario: Scenario,
    requests: Sequence[BoundRequest],
    *,
    jobs: int = 1,
    progress: Callable[[], None] = lambda: None,
) -> tuple[BoundResult, ...]:
    """Return the bounds in the order of the requests, found in `jobs` processes; `progress` is called after each."""
    if jobs == 1 or len(requests) <= 1:
        found = []
        for request in requests:
            found.append(bound_one(scenario, request))
            progress()
        return tuple(found)
    with ProcessPoolExecutor(
        min(jobs, len(requests)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),  # an interrupt is this process's to handle
    ) as pool:
        waiting = [pool.submit(bound_one, scenario, request) for request in requests]
        try:
            for future in waiting:
                future.result()
                progress()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return tuple(future.result() for future in waiting)


def _changes(scenario: Scenario) -> tuple[Change, ...]:
    """What the resources are after each `set` fault, all of them each time."""
    pipelines = {pipeline_spec(resource).key: pipeline_spec(resource) for resource in scenario.pipelines}
    pools = {pool_spec(resource).name: pool_spec(resource) for resource in scenario.pools}
    changes: list[Change] = []
    for change in resource_changes(scenario):
        if isinstance(change.resource, SpeechPipeline):
            pipeline = pipeline_spec(change.resource)
            pipelines[PipelineKey(pipeline.key)] = pipeline
        else:
            pool = pool_spec(change.resource)
            pools[pool.name] = pool
        changes.append(Change(at_s=change.at_s, pipelines=tuple(pipelines.values()), pools=tuple(pools.values())))
    return tuple(changes)


def _by_window(bound: Bound, scenario: Scenario) -> tuple[float, ...] | None:
    """What the bound's schedule costs per hour in each window."""
    if not bound.times_s:
        return None
    clock = scenario.file.clock
    begun_s = np.arange(clock.warmup_s, clock.duration_s - 1e-9, clock.window_s)
    ended_s = np.minimum(begun_s + clock.window_s, clock.duration_s)
    return means(Steps(times_s=bound.times_s, values=bound.cost_per_hour), begun_s, ended_s)
