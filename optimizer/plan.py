"""The types of a plan: replicas and their cost, the limits that bind, and the proven optimality gap.

Plans are immutable values that `optimizer.allocate` makes. Where a number does not exist, its field is None.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from optimizer.model import PipelineKey, PlacementId, PlacementKey, PlacementName, PoolName, StageName, pool_of

USED = 0.95
"""A plan whose replayed latency is at least this share of the SLA uses the SLA: no later target is tried for it."""


class LimitKind(Enum):
    """The kind of constraint that limits a plan."""

    BUDGET = "Budget"
    POOL = "Pool"
    QUOTA = "Quota"
    """The limit of a pool that is a quota of the account: made of a `POOL` by the caller, who knows of quotas."""
    ALLOWANCE = "Allowance"
    """The limit of a pool that is what a shard of the fleet may use: made of a `POOL` by the caller as well."""
    BOUNDS = "Bounds"
    SLA = "Sla"
    """No allocation within the bounds meets the latency, at any price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The binding constraint.

    `name` is the pool of a `POOL` and of an `ALLOWANCE`, the code of a `QUOTA`, the stage of a `BOUNDS`, and the group
    of a `BUDGET`.

    None for other kinds, and where the budget is that of the pipeline itself or of the whole fleet.
    """

    kind: LimitKind
    name: str | None = None

    def __str__(self) -> str:
        return self.kind.value if self.name is None else f"{self.kind.value}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """The replicas of the placement `name`; each serves batches of up to `batch` items.

    `wait_s` is the batch wait that was chosen, None where there is no choice.
    """

    name: PlacementName
    replicas: int
    batch: int
    wait_s: float | None = None

    @property
    def pool(self) -> PoolName:
        """Return the pool of the placement."""
        return pool_of(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """The plan for one stage: its replicas, with predicted utilisation (0–1) and latency.

    `rate_rps` is the planned arrival rate. `latency_s` is the time in this stage at the SLA's percentile, `mean_s` its
    mean. `latency_error` is the error bar: nine of ten predictions under similar conditions have at most this relative
    error. All predictions are None where the stage has no replica. `placements` has every placement of the stage, also
    those without replicas. `mixing_saves_per_hour` is how much more the cheapest replicas of a single placement would
    cost, in USD, with the other stages as planned; None where no placements are mixed to save money.
    """

    name: StageName
    rate_rps: float
    utilization: float | None
    latency_s: float | None
    mean_s: float | None
    placements: tuple[PlacementPlan, ...]
    latency_error: float | None = None
    mixing_saves_per_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementStep:
    """A change of the placement `name`: replicas before and after the change, and the batch limit after it."""

    name: PlacementName
    before: int
    after: int
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the search: the change of one stage, the end-to-end latency it saved and the cost it added.

    `latency_saved_s` is negative where a step saves money at the price of latency; `cost_added_per_hour` is in USD.
    """

    stage: StageName
    changes: tuple[PlacementStep, ...]
    latency_saved_s: float
    cost_added_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCheck:
    """The check of a plan by a replay of its demand, which decides in both directions.

    `latency_s` is the replayed latency at the SLA's percentile. It is within the SLA, or exceeds it by at most the
    half-width of the replay. None where no replay was needed or no latency could be measured. `composed_s` is the
    latency that the model composes of those of the stages.

    `target_latency_s` is the target for composed latencies that replaced the SLA: an earlier one because replays missed
    the SLA, or a later one because a replay left a part of it unused. Lower bound and gap refer to it. Where it equals
    the SLA, latencies were composed by `Composition.SUM`. None where the SLA was the target. `refused_target_s` is a
    later target whose plan missed the SLA in its replay, None where there was none.

    `left_out` says that there was no replay because the work for the pipeline had reached its limit.
    """

    latency_s: float | None = None
    composed_s: float | None = None
    target_latency_s: float | None = None
    refused_target_s: float | None = None
    left_out: bool = False

    def leaves_unused(self, sla_s: float) -> bool:
        """Return whether the replay leaves so much of an SLA of `sla_s` that a later target is worth a try."""
        return self.latency_s is not None and self.latency_s < USED * sla_s

    def composed_limit_s(self, sla_s: float) -> float:
        """Return up to which composed latency replicas keep an SLA of `sla_s`: the SLA, or a later target."""
        return max(sla_s, self.target_latency_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What it would take to serve the whole demand of a pipeline that is not served in full.

    The plans of the other pipelines are held fixed.

    `required_budget_per_hour` is the least cost that meets the SLA, in USD per hour, without any budget; None where no
    cost does, because of the pools, the bounds or the SLA. `best_latency_s` is the least end-to-end latency at the
    SLA's percentile within budget, pools and bounds; None where these cannot carry the demand at any latency. Both
    fields are None if no advice was requested, or none is needed.
    """

    required_budget_per_hour: float | None = None
    best_latency_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """The plan for one pipeline.

    `served_fraction` is the share of the demand that the plan serves within the SLA and all limits; it is 1 if and only
    if the plan is `feasible`. `limited_by` is the constraint that keeps it from serving more, None when feasible.
    `latency_s` is the predicted end-to-end latency of the served share at the SLA's percentile: that of the replay
    where there is one, else the composed one. `latency_error` is its relative error as in `StagePlan`. Both are None
    where a stage has no replica. `steps` lead from the cheapest
    allocation that carries the load to the planned one. `next_step` would save most latency per dollar beyond the plan;
    None where no step saves latency. `bottleneck` is the stage where the next dollar saves most latency.

    `moved_replicas` is the number of replicas started or stopped by the plan; `switching_cost_per_hour` was charged for
    them in the search.
    """

    key: PipelineKey
    served_fraction: float
    feasible: bool
    limited_by: Limit | None
    latency_s: float | None
    cost_per_hour: float
    bottleneck: StageName
    stages: tuple[StagePlan, ...]
    steps: tuple[Step, ...]
    next_step: Step | None
    latency_error: float | None = None
    moved_replicas: int = 0
    switching_cost_per_hour: float = 0.0
    replay: ReplayCheck = ReplayCheck()
    advice: Advice = Advice()

    @property
    def coarse(self) -> bool:
        """Return whether the work for the pipeline reached its limit: a better plan was not excluded."""
        return self.replay.left_out

    @property
    def sla_unreachable(self) -> bool:
        """Return whether no load at all can be served within the SLA."""
        return self.served_fraction <= 0 and self.limited_by is not None and self.limited_by.kind is LimitKind.SLA

    def replicas(self) -> Mapping[PlacementKey, int]:
        """Return the planned number of replicas of every placement, by its key."""
        return {
            (stage.name, placement.name): placement.replicas for stage in self.stages for placement in stage.placements
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """The use of one pool by a plan: whole instances used, and the most instances there are (`limit`).

    `shadow_price_per_hour` is the saving by one more instance, in USD per hour; None where it was not computed.
    """

    name: PoolName
    instances: int
    limit: int
    shadow_price_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """An alternative plan within the same limits that is billed less for whole instances.

    `cost_per_hour` is the sum of the replicas' shares of instances; it is usually higher than the plan's.
    """

    replicas: Mapping[PlacementId, int]
    cost_per_hour: float
    billed_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan for all pipelines together.

    `cost_per_hour` is the sum of the replicas' shares of instances, `billed_per_hour` the price of the whole instances
    that the replicas use, both in USD. `lower_bound_per_hour` is proven: no plan that meets every SLA costs less, among
    plans that mix placements in a stage as `Stage.mixing` allows. None where nothing is proven. `packing` is another
    plan that is billed less; one is searched for where the bill is more than 5 % above the cost.
    `optimizer.reports.certificate` fills `lower_bound_per_hour` and `packing`.
    """

    pipelines: tuple[PipelinePlan, ...]
    pools: tuple[PoolPlan, ...]
    cost_per_hour: float
    billed_per_hour: float
    lower_bound_per_hour: float | None
    packing: Packing | None = None

    @property
    def feasible(self) -> bool:
        """Return whether every pipeline is served in full within its SLA."""
        return all(pipeline.feasible for pipeline in self.pipelines)

    @property
    def gap(self) -> float | None:
        """Return the optimality gap, cost / lower bound − 1, at least 0.

        None without a lower bound, and where the bound is 0 but the cost is not.
        """
        if self.lower_bound_per_hour is None:
            return None
        if self.lower_bound_per_hour <= 0:
            return 0.0 if self.cost_per_hour <= 0 else None
        return max(0.0, self.cost_per_hour / self.lower_bound_per_hour - 1)

    @property
    def proven_optimal(self) -> bool:
        """Return whether the cost exceeds the lower bound by at most one part in a million."""
        return self.gap is not None and self.gap <= 1e-6

    def of(self, key: PipelineKey) -> PipelinePlan:
        """Return the plan of the pipeline `key`.

        Raises:
            KeyError: this plan has no such pipeline.
        """
        for pipeline in self.pipelines:
            if pipeline.key == key:
                return pipeline
        raise KeyError(key)
