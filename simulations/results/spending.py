"""Cost, replica changes and cap violations from observed replicas, for the simulator and the lab.

Pure. Times are seconds since the run began, money is USD.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from controller.core.state.spec import PipelineSpec
from optimizer.model import PipelineKey, PoolName, StageName
from simulations.results import scoring
from simulations.results.scoring import Clock, Interval, Steps

PlacementKey = tuple[PipelineKey, StageName, PoolName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The replicas of a placement at one time; `existing` also counts `terminating` and unscheduled pods."""

    desired: int
    existing: int
    terminating: int
    ready: int
    scheduled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The cluster `t_s` seconds after the run began, money in USD per hour.

    `spend_per_hour` is max(desired, existing) × price of each pipeline: the cap limits it. `cost_per_hour` is the price
    of all scheduled replicas: it is paid. `budget_per_hour` and `price_per_hour` (of an instance) are the resources'
    current values.
    """

    t_s: float
    placements: Mapping[PlacementKey, Replicas]
    spend_per_hour: Mapping[PipelineKey, float]
    cost_per_hour: float
    budget_per_hour: Mapping[PipelineKey, float]
    price_per_hour: Mapping[PoolName, float]


def observation(
    t_s: float,
    pipelines: Sequence[PipelineSpec],
    placements: Mapping[PlacementKey, Replicas],
    *,
    budget_per_hour: Mapping[PipelineKey, float],
    price_per_hour: Mapping[PoolName, float],
) -> Observation:
    """Return the observation of `placements` at `price_per_hour` (USD per instance); a pool without a price is free."""
    spend: dict[PipelineKey, float] = {}
    cost_per_hour = 0.0
    for pipeline in pipelines:
        spend[pipeline.key] = 0.0
        for key, price in replica_prices(pipeline, price_per_hour).items():
            replicas = placements[key]
            spend[pipeline.key] += price * max(replicas.desired, replicas.existing)
            cost_per_hour += price * replicas.scheduled
    return Observation(
        t_s=t_s,
        placements=placements,
        spend_per_hour=spend,
        cost_per_hour=cost_per_hour,
        budget_per_hour=budget_per_hour,
        price_per_hour=price_per_hour,
    )


def replica_prices(pipeline: PipelineSpec, price_per_hour: Mapping[PoolName, float]) -> dict[PlacementKey, float]:
    """Return the price of one replica of each placement, in USD per hour; 0 on a pool without a price."""
    return {
        (pipeline.key, stage.name, placement.pool): price_per_hour.get(placement.pool, 0.0)
        / placement.prior.per_instance
        for stage in pipeline.stages
        for placement in stage.placements
    }


def at(observations: Sequence[Observation], t_s: float) -> Observation | None:
    """Return the last observation up to `t_s`; None if there is none."""
    return next((seen for seen in reversed(observations) if seen.t_s <= t_s), None)


def steps(observations: Sequence[Observation], value: Callable[[Observation], float]) -> Steps:
    """Return `value` of the observations as a step function over time."""
    return Steps(times_s=[seen.t_s for seen in observations], values=[value(seen) for seen in observations])


def cost(observations: Sequence[Observation], clock: Clock) -> float:
    """Return the cost of the scheduled replicas over the scored time, in USD."""
    return scoring.cost(steps(observations, lambda seen: seen.cost_per_hour), clock)


def cost_of_instances(observations: Sequence[Observation], instances: Mapping[PoolName, float], clock: Clock) -> float:
    """Return the cost (USD) of running `instances` of each pool for the whole scored time, at the observed prices."""
    return scoring.cost(
        steps(observations, lambda seen: sum(seen.price_per_hour[pool] * count for pool, count in instances.items())),
        clock,
    )


def replica_changes(observations: Sequence[Observation], clock: Clock) -> int:
    """Return the number of replica changes, Σ|Δ desired| over all placements, in the scored time."""
    keys = observations[0].placements.keys() if observations else ()
    return scoring.replica_changes(
        [steps(observations, lambda seen, key=key: seen.placements[key].desired) for key in keys],  # type: ignore[misc]
        clock,
    )


def cap_violations(
    observations: Sequence[Observation], pipeline: PipelineSpec, *, interval_s: float, duration_s: float
) -> int:
    """Return how often a pipeline's spend exceeded its cap without an excuse; decisions are `interval_s` apart."""
    return scoring.cap_violations(
        steps(observations, lambda seen: seen.spend_per_hour[pipeline.key]),
        steps(observations, lambda seen: _cap(pipeline, seen)),
        duration_s,
        _excused(observations, pipeline, interval_s),
    )


def _excused(observations: Sequence[Observation], pipeline: PipelineSpec, interval_s: float) -> list[Interval]:
    """Return the intervals in which an excess is excused.

    Each begins at the take-over, a price rise or a budget cut, and ends drain + 2 cycles later.
    """
    pools = {placement.pool for stage in pipeline.stages for placement in stage.placements}
    begun_s = [seen.t_s for seen in observations[:1]]
    for before, after in pairwise(observations):
        dearer = any(after.price_per_hour.get(pool, 0) > before.price_per_hour.get(pool, 0) for pool in pools)
        if dearer or _cap(pipeline, after) < _cap(pipeline, before):
            begun_s.append(after.t_s)
    allowed_s = pipeline.scaling.drain_s + 2 * interval_s
    return [Interval(from_s=t_s, until_s=t_s + allowed_s) for t_s in begun_s]


def _cap(pipeline: PipelineSpec, seen: Observation) -> float:
    return seen.budget_per_hour.get(pipeline.key, math.inf)
