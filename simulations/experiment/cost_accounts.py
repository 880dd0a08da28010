"""The accounts of one run of Sluice, from which its cost breakdown is made.

In each cycle the plan is made twice more from the same Snapshot: for the demand as observed, and for the forecast
without the scale-down window. What they cost less than the plan in force is the price of the window and of not knowing
the load. What the observed demand costs without queues follows from the true service times.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.core.assess.optimizer_input import optimizer_pipeline
from controller.core.state.decision import Decision
from controller.core.state.policy import Policy
from controller.core.state.spec import PipelineSpec
from optimizer.latency.stage import capacity_rps
from optimizer.model import Pipeline, PipelineKey, Placement, PlacementKey, PoolName, Stage
from profiler.samples import Absence
from simulations.policies.autoscaler import Autoscaler, DetailedSnapshot
from simulations.policies.sluice import with_demand
from simulations.results import scoring, spending
from simulations.results.cost_breakdown import CostBreakdown, CostPart
from simulations.results.scoring import Clock, Steps
from simulations.results.spending import Observation, Replicas

_Prices = Mapping[PoolName, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Levels:
    """The cost (USD per hour) of one demand, each with one more thing than the one before.

    `ideal` is on the cheapest pools, `pooled` on those of the plan, both in fractions of replicas and full batches;
    `whole` is in whole replicas; `planned` is the plan for the demand, `ahead` for its forecast, `in_force` the plan
    that is followed.
    """

    ideal: float = 0.0
    pooled: float = 0.0
    whole: float = 0.0
    planned: float = 0.0
    ahead: float = 0.0
    in_force: float = 0.0

    def __add__(self, other: "_Levels") -> "_Levels":
        return _Levels(
            ideal=self.ideal + other.ideal,
            pooled=self.pooled + other.pooled,
            whole=self.whole + other.whole,
            planned=self.planned + other.planned,
            ahead=self.ahead + other.ahead,
            in_force=self.in_force + other.in_force,
        )


@dataclass(slots=True, kw_only=True)
class CostAccounts:
    """The accounts of a run: `add` takes each cycle, `breakdown` is made from them at the end.

    `pipelines` have the true service times. `autoscaler` is the policy that makes the plans for other demands.
    """

    pipelines: Sequence[PipelineSpec]
    autoscaler: Autoscaler
    _times_s: list[float] = field(default_factory=list)
    _levels: list[_Levels] = field(default_factory=list)

    def add(self, snapshot: DetailedSnapshot, policy: Policy, decision: Decision) -> None:
        """Add a cycle: its Snapshot, and the Decision that was made from it under `policy`."""
        prices = {name: pool.spec.price_per_hour for name, pool in snapshot.pools.items()}
        observed, forecast = {}, {}
        for own in decision.pipelines:
            if not isinstance(own.demand.observed, Absence):
                observed[own.key] = own.demand.observed
            if own.demand.forecast is not None:
                forecast[own.key] = own.demand.forecast
        planned, ahead = (self._replicas(snapshot, policy, demands) for demands in (observed, forecast))
        levels = _Levels()
        decided = {each.key: each for each in decision.pipelines}
        for spec in self.pipelines:
            if spec.key not in decided or (plan := decided[spec.key].plan) is None:
                continue
            in_force = plan.replicas()
            # While the demand is missing, all of the plan is for what is assumed of it.
            demand = observed.get(spec.key, decided[spec.key].demand.planned or 0.0)
            levels += _levels(
                optimizer_pipeline(spec, demand, known_only=False),
                prices,
                planned=planned.get(spec.key, in_force),
                ahead=ahead.get(spec.key, in_force),
                in_force=in_force,
            )
        self._times_s.append(max(0.0, decision.now_s))
        self._levels.append(levels)

    def breakdown(self, observations: Sequence[Observation], clock: Clock) -> CostBreakdown:
        """Return the breakdown of the cost of the scored time, in which `observations` were made."""

        def planned_cost(level: str) -> float:
            values = [getattr(each, level) for each in self._levels]
            return scoring.cost(Steps(times_s=self._times_s, values=values), clock)

        def paid(count: Callable[[Replicas], int]) -> float:
            return scoring.cost(spending.steps(observations, lambda seen: self._cost_of(seen, count)), clock)

        ideal, pooled, whole, planned, ahead, in_force = map(planned_cost, _Levels.__dataclass_fields__)
        ready, scheduled = paid(lambda own: own.ready), paid(lambda own: own.scheduled)
        draining = paid(lambda own: own.terminating)
        return CostBreakdown(
            parts={
                CostPart.WORK: ideal,
                CostPart.POOLS: pooled - ideal,
                CostPart.ROUNDING: whole - pooled,
                CostPart.QUEUES: planned - whole,
                CostPart.GROWTH: ahead - planned,
                CostPart.WINDOW: in_force - ahead,
                CostPart.STARTING: scheduled - draining - ready,
                CostPart.HELD: ready - in_force,
                CostPart.DRAINING: draining,
                CostPart.INSTANCES: spending.cost(observations, clock) - scheduled,
            }
        )

    def _replicas(
        self, snapshot: DetailedSnapshot, policy: Policy, demands: Mapping[PipelineKey, float]
    ) -> Mapping[PipelineKey, Mapping[PlacementKey, int]]:
        """Return the planned replicas of each pipeline in `demands`, for this demand instead of the measured one."""
        if not demands:
            return {}
        states = tuple(
            with_demand(state, demands[state.spec.key]) if state.spec.key in demands else state
            for state in snapshot.pipelines
        )
        decision = self.autoscaler(replace(snapshot, pipelines=states), policy)
        return {own.key: own.plan.replicas() for own in decision.pipelines if own.plan and own.key in demands}

    def _cost_of(self, seen: Observation, count: Callable[[Replicas], int]) -> float:
        return sum(
            price * count(seen.placements[key])
            for pipeline in self.pipelines
            for key, price in spending.replica_prices(pipeline, seen.price_per_hour).items()
        )


def _levels(
    pipeline: Pipeline,
    prices: _Prices,
    *,
    planned: Mapping[PlacementKey, int],
    ahead: Mapping[PlacementKey, int],
    in_force: Mapping[PlacementKey, int],
) -> _Levels:
    """Return the levels of cost of `pipeline` at its demand, with the replicas of three plans."""

    def cost(replicas: Mapping[PlacementKey, int]) -> float:
        return sum(
            _price(placement, prices) * replicas.get((stage.name, placement.name), 0)
            for stage in pipeline.stages
            for placement in stage.placements
        )

    ideal = pooled = whole = 0.0
    for stage in pipeline.stages:
        loads = {placement.name: _load(pipeline, stage, placement) for placement in stage.placements}
        used = {placement.name: planned.get((stage.name, placement.name), 0) for placement in stage.placements}
        # A mix has the share of its replicas in the work that makes all of them equally busy.
        busy = sum(used[name] / loads[name] for name in loads if loads[name] > 0)
        ideal += min(_price(placement, prices) * loads[placement.name] for placement in stage.placements)
        for placement in stage.placements:
            needed = used[placement.name] / busy if busy else 0.0
            pooled += _price(placement, prices) * needed
            least = max(placement.min_replicas, math.ceil(needed - 1e-9), 1 if used[placement.name] else 0)
            whole += _price(placement, prices) * min(least, max(used[placement.name], placement.min_replicas))
    return _Levels(
        ideal=ideal, pooled=pooled, whole=whole, planned=cost(planned), ahead=cost(ahead), in_force=cost(in_force)
    )


def _load(pipeline: Pipeline, stage: Stage, placement: Placement) -> float:
    """Return how many replicas of `placement` alone carry the load of `stage` in full batches, a fraction included."""
    rate_rps = pipeline.demand.entry_rate_rps * pipeline.visit_ratios[stage.name]
    replicas = rate_rps / max(capacity_rps(placement, batch) for batch in placement.batch_sizes)
    if placement.session_slots is None or pipeline.demand.sessions is None:
        return replicas
    return max(replicas, pipeline.demand.sessions / placement.session_slots)


def _price(placement: Placement, prices: _Prices) -> float:
    return prices.get(placement.pool, 0.0) / float(placement.per_instance)
