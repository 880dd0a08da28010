"""The static peak: the optimizer's allocation for the highest load, unchanged for the whole run.

It knows the whole load in advance, and the highest prices and lowest budgets that the scenario will set, because it
cannot change its allocation later. If no plan at these prices and budgets serves the peak within the SLA, it takes the
plan that serves most of the peak.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controller.core.assess.optimizer_input import optimizer_pipeline, optimizer_pool
from controller.core.state.policy import Policy
from controller.core.state.spec import PipelineSpec, PoolSpec
from optimizer.allocate import allocate
from optimizer.model import PipelineKey, PlacementId, PoolName, Problem
from optimizer.plan import Plan
from simulations.policies.autoscaler import AutoscalerDecision, Briefing, DetailedSnapshot, decision_of
from simulations.scenario.load import peak_demand
from simulations.scenario.schedule import Schedule

_OFTEN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticPeakSettings:
    """The settings of `static-peak`: `latency_headroom` is the share (0–1) of the SLA's latency that is left free."""

    latency_headroom: float = Policy().latency_headroom


class StaticPeak:
    """The baseline `static-peak`: sets the same replicas in every decision."""

    interval_s = _OFTEN_S
    metrics_window_s = _OFTEN_S

    def __init__(self, settings: StaticPeakSettings, briefing: Briefing) -> None:
        self._desired = peak_replicas(settings, briefing)

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> AutoscalerDecision:
        """Return the allocation for the peak."""
        return decision_of(snapshot, self._desired, "the plan for the peak", policy)


def peak_replicas(settings: StaticPeakSettings, briefing: Briefing) -> dict[PlacementId, int]:
    """Return the replicas of every placement for the peak of the load, at the highest prices and the lowest budgets."""
    pools = {pool.name: pool for pool in briefing.pools}
    pipelines = {pipeline.key: pipeline for pipeline in briefing.pipelines}
    for change in briefing.changes:
        if isinstance(change, PoolSpec):
            own = pools[change.name]
            pools[own.name] = replace(own, price_per_hour=max(own.price_per_hour, change.price_per_hour))
        else:
            least = min(pipelines[change.key].budget_per_hour, change.budget_per_hour)
            pipelines[change.key] = replace(pipelines[change.key], budget_per_hour=least)
    plan = peak_plan(
        tuple(pipelines.values()),
        tuple(pools.values()),
        briefing.loads,
        briefing.duration_s,
        latency_headroom=settings.latency_headroom,
        within_budget=True,
    )
    return {
        (pipeline.key, *key): plan.of(pipeline.key).replicas().get(key, 0)
        for pipeline in briefing.pipelines
        for key in pipeline.placement_keys()
    }


def peak_instances(
    pipelines: tuple[PipelineSpec, ...],
    pools: tuple[PoolSpec, ...],
    loads: Mapping[PipelineKey, Schedule],
    duration_s: float,
) -> dict[PoolName, float] | None:
    """Return the instances of each pool, fractions included, in the plan for the highest 20-second mean of the load.

    The plan is made by the operator's optimizer with its default latency headroom and without a budget. The result is
    None when no plan serves the peak.
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
                share = replicas.get((stage.name, placement.name), 0) / placement.prior.per_instance
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
    """Return the optimizer's plan for the highest 20-second mean of the load of each pipeline.

    Budgets are left out unless `within_budget`.
    """
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
