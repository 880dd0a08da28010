"""Cost, replica changes and cap violations from observed replicas, for the simulator and the lab.

Pure. Times are seconds since the run began, money is USD.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType

from controller.core.plan.nodes import Placed, instance_costs_per_hour
from controller.core.state.spec import PipelineSpec
from optimizer.model import Basis, PipelineKey, PlacementId, Pool, PoolName, Size
from simulations.results import scoring
from simulations.results.scoring import Clock, Interval, Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The replicas of a placement at one time; `existing` also counts `terminating` and unscheduled pods.

    `nodes` has the number of scheduled pods on each node.
    """

    desired: int
    existing: int
    terminating: int
    ready: int
    scheduled: int
    nodes: Mapping[str, Size] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePrices:
    """The prices of a pool's nodes in USD per hour: `by_type` for the instance types in `types`, which are by node."""

    price_per_hour: float
    by_type: Mapping[str, float] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)

    def node_price_per_hour(self, node: str) -> float:
        """Return the price of the node named `node` in USD per hour."""
        return self.by_type.get(self.types.get(node, ""), self.price_per_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The cluster `t_s` seconds after the run began, money in USD per hour.

    `spend_per_hour` is max(desired, existing) × price of each pipeline: the cap limits it. `cost_per_hour` is the price
    of all scheduled replicas: it is paid. `budget_per_hour` and `price_per_hour` (of an instance) are the resources'
    current values. Spend and cost are on the basis of each pipeline's budget. `whole_per_hour` has the part of the cost
    of each placement of the pipelines that pay for whole instances.
    """

    t_s: float
    placements: Mapping[PlacementId, Replicas]
    spend_per_hour: Mapping[PipelineKey, float]
    cost_per_hour: float
    budget_per_hour: Mapping[PipelineKey, float]
    price_per_hour: Mapping[PoolName, float]
    whole_per_hour: Mapping[PlacementId, float] = field(default_factory=dict)


NO_PRICES: Mapping[PoolName, NodePrices] = MappingProxyType({})


def observation(
    t_s: float,
    pipelines: Sequence[PipelineSpec],
    placements: Mapping[PlacementId, Replicas],
    *,
    budget_per_hour: Mapping[PipelineKey, float],
    price_per_hour: Mapping[PoolName, float],
    node_prices: Mapping[PoolName, NodePrices] = NO_PRICES,
) -> Observation:
    """Return the observation of `placements` at `price_per_hour` (USD per instance); a pool without a price is free.

    `node_prices` has the prices of nodes for pipelines that pay for whole instances; the others of a pool cost as much
    as its instances.
    """
    spend: dict[PipelineKey, float] = {}
    cost_per_hour = 0.0
    prices = {name: NodePrices(price_per_hour=price) for name, price in price_per_hour.items()} | dict(node_prices)
    spent = _whole_per_hour(pipelines, placements, prices, lambda replicas: max(replicas.desired, replicas.existing))
    whole = _whole_per_hour(pipelines, placements, prices, lambda replicas: replicas.scheduled)
    for pipeline in pipelines:
        spend[pipeline.key] = sum(cost for key, cost in spent.items() if key[0] == pipeline.key)
        if pipeline.basis is Basis.INSTANCES:
            cost_per_hour += sum(cost for key, cost in whole.items() if key[0] == pipeline.key)
            continue
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
        whole_per_hour=whole,
    )


def _whole_per_hour(
    pipelines: Sequence[PipelineSpec],
    placements: Mapping[PlacementId, Replicas],
    prices: Mapping[PoolName, NodePrices],
    count: Callable[[Replicas], int],
) -> Mapping[PlacementId, float]:
    """Return what `count` of the replicas cost each placement that pays for whole instances, in USD per hour."""
    paying = {pipeline.key for pipeline in pipelines if pipeline.basis is Basis.INSTANCES}
    if not paying:
        return {}
    placed = [
        Placed(
            name=(pipeline.key, stage.name, placement.name),
            pool=placement.pool,
            per_instance=placement.prior.per_instance,
            replicas=count(placements[pipeline.key, stage.name, placement.name]),
            nodes=placements[pipeline.key, stage.name, placement.name].nodes,
        )
        for pipeline in pipelines
        for stage in pipeline.stages
        for placement in stage.placements
        if placement.pool in prices
    ]
    pools = {name: Pool(name=name, price_per_hour=own.price_per_hour, instances=0) for name, own in prices.items()}
    costs = instance_costs_per_hour(placed, pools, prices)
    return {name: cost for name, cost in costs.items() if name[0] in paying}


def replica_prices(pipeline: PipelineSpec, price_per_hour: Mapping[PoolName, float]) -> dict[PlacementId, float]:
    """Return the price of one replica of each placement, in USD per hour; 0 on a pool without a price."""
    return {
        (pipeline.key, stage.name, placement.name): price_per_hour.get(placement.pool, 0.0)
        / placement.prior.per_instance
        for stage in pipeline.stages
        for placement in stage.placements
    }


def placement_costs(seen: Observation, pipeline: PipelineSpec) -> dict[PlacementId, float]:
    """Return what each placement of `pipeline` cost in USD per hour when it was `seen`."""
    whole = {key: cost for key, cost in seen.whole_per_hour.items() if key[0] == pipeline.key}
    prices = replica_prices(pipeline, seen.price_per_hour)
    return {key: whole.get(key, 0.0) if whole else p * seen.placements[key].scheduled for key, p in prices.items()}


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
