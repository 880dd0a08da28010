"""Which device a stage should run on: the plans with the stage on each of its placements, and where the best changes.

All plans are for one pipeline alone, and for hardware that is still to be chosen: budget, the capacity of pools, and
the bounds of placements do not apply.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil, inf

from optimizer.allocate import allocate
from optimizer.model import (
    Demand,
    Pipeline,
    PipelineKey,
    PlacementName,
    PoolName,
    Problem,
    Size,
    StageName,
    whole_instances,
)
from optimizer.plan import PipelinePlan, StagePlan

_MOST_INSTANCES = 10_000
_MOST_REPLICAS = 10_000
_HALVINGS = 6
"""Halvings of the interval between two loads in which the cheaper of two devices changes: to a hundredth of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """From `demand` on, up to the highest load that was compared, `cheaper` costs less than `other`."""

    demand: Demand
    cheaper: PlacementName
    other: PlacementName


@dataclass(frozen=True, slots=True, kw_only=True)
class MixPoint:
    """The cheapest plan of the pipeline at one load, with what each pool costs in USD per hour."""

    demand: Demand
    plan: PipelinePlan
    cost_per_hour: Mapping[PoolName, float]
    instances: Mapping[PoolName, int]


def replicas_by_work(load: float, device_s: float, utilization: float) -> int:
    """Return the replicas by plain arithmetic: `load` times the device seconds of a unit of it, at `utilization` (0–1).

    It knows nothing of queues: 10,000 streams of 0.35 device seconds a second at a utilization of 0.7 are 5,000.
    """
    return ceil(load * device_s / utilization - 1e-9)


class Devices:
    """The plans of one pipeline on hardware that is to be chosen. Each plan is made once."""

    def __init__(self, problem: Problem, key: PipelineKey) -> None:
        """Compare the placements of the pipeline `key` of `problem`.

        Raises:
            KeyError: no pipeline has this key.
        """
        matching = [pipeline for pipeline in problem.pipelines if pipeline.key == key]
        if not matching:
            raise KeyError(key)
        self.pipeline = _unbound(matching[0])
        self._problem = replace(
            problem,
            pipelines=(self.pipeline,),
            pools={name: replace(pool, instances=_MOST_INSTANCES) for name, pool in problem.pools.items()},
            budget_per_hour=None,
            budgets=(),
            switching_cost_per_hour=0.0,
        )
        self._known: dict[tuple[StageName | None, PlacementName | None, Demand], PipelinePlan] = {}

    def plan(
        self, demand: Demand, stage: StageName | None = None, placement: PlacementName | None = None
    ) -> PipelinePlan:
        """Return the cheapest plan for `demand`, with `stage` on `placement` only where these are given."""
        asked = (stage, placement, demand)
        if asked not in self._known:
            only = self.pipeline.bounded(
                lambda s, p: (0, 0 if s.name == stage and p.name != placement else p.max_replicas)
            )
            problem = replace(self._problem, pipelines=(replace(only, demand=demand),))
            (self._known[asked],) = allocate(problem).pipelines
        return self._known[asked]

    def cost_per_hour(self, demand: Demand, stage: StageName, placement: PlacementName) -> float:
        """Return the cost of the pipeline with `stage` on `placement`, in USD per hour; infinite where it cannot be."""
        found = self.plan(demand, stage, placement)
        return found.cost_per_hour if found.feasible else inf

    def stage_cost_per_hour(self, planned: StagePlan) -> float:
        """Return what the replicas of a planned stage cost, in USD per hour."""
        (stage,) = (own for own in self.pipeline.stages if own.name == planned.name)
        placements = {own.name: own for own in stage.placements}
        return sum(
            each.replicas * self._problem.pools[each.pool].replica_price_per_hour(placements[each.name])
            for each in planned.placements
        )

    def mix(self, demands: Sequence[Demand]) -> tuple[MixPoint, ...]:
        """Return the cheapest plan at each of `demands`."""
        points = []
        for demand in demands:
            plan = self.plan(demand)
            sizes: dict[PoolName, list[tuple[Size, int]]] = {}
            costs: dict[PoolName, float] = {}
            for stage, planned in zip(self.pipeline.stages, plan.stages, strict=True):
                placements = {own.name: own for own in stage.placements}
                for each in planned.placements:
                    own, pool = placements[each.name], self._problem.pools[each.pool]
                    if each.replicas:
                        sizes.setdefault(own.pool, []).append((own.per_instance, each.replicas))
                        costs[own.pool] = costs.get(own.pool, 0.0) + each.replicas * pool.replica_price_per_hour(own)
            instances = {pool: whole_instances(taken) for pool, taken in sizes.items()}
            points.append(MixPoint(demand=demand, plan=plan, cost_per_hour=costs, instances=instances))
        return tuple(points)

    def break_evens(self, stage: StageName, demands: Sequence[Demand]) -> tuple[BreakEven, ...]:
        """Return the loads from which one placement of `stage` stays cheaper than another that was cheaper below.

        `demands` are the loads that are compared, ascending. Costs are steps of whole replicas, so that two devices may
        change places several times: the last change counts.
        """
        (own,) = (each for each in self.pipeline.stages if each.name == stage)
        found = []
        for one, two in combinations([placement.name for placement in own.placements], 2):
            signs = [self._sign(demand, stage, one, two) for demand in demands]
            changes = [k for k in range(1, len(signs)) if signs[k] != signs[k - 1]]
            decided = [k for k in changes if signs[k] and any(sign == -signs[k] for sign in signs[:k])]
            if not decided or any(sign not in {0, signs[decided[-1]]} for sign in signs[decided[-1] :]):
                continue
            k, sign = decided[-1], signs[decided[-1]]
            demand = self._change(demands[k - 1], demands[k], stage, one, two, sign)
            cheaper, other = (one, two) if sign < 0 else (two, one)
            found.append(BreakEven(demand=demand, cheaper=cheaper, other=other))
        return tuple(sorted(found, key=lambda each: each.demand.entry_rate_rps))

    def _sign(self, demand: Demand, stage: StageName, one: PlacementName, two: PlacementName) -> int:
        costs = [self.cost_per_hour(demand, stage, name) for name in (one, two)]
        return (costs[0] > costs[1] + 1e-9) - (costs[1] > costs[0] + 1e-9)

    def _change(
        self, low: Demand, high: Demand, stage: StageName, one: PlacementName, two: PlacementName, sign: int
    ) -> Demand:
        """Return a load between `low` and `high` from which the comparison has this `sign`, to a hundredth."""
        for _ in range(_HALVINGS):
            middle = high.scaled((low.entry_rate_rps / high.entry_rate_rps + 1) / 2)
            if self._sign(middle, stage, one, two) == sign:
                high = middle
            else:
                low = middle
        return high


def _unbound(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline without bounds of its placements; placements that `maxWer` excludes stay without replicas."""
    open_ = pipeline.bounded(lambda _, p: (0, _MOST_REPLICAS if p.max_replicas else 0))
    return replace(open_, budget_per_hour=None)
