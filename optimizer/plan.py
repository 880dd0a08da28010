"""The types of a plan: replicas and their cost, the limits that bind, and the proven optimality gap.

Plans are values; `optimizer.allocate` makes them. A number that does not exist is None.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from optimizer.model import PipelineKey, PoolName, StageName


class LimitKind(Enum):
    """The kind of constraint that limits a plan."""

    BUDGET = "Budget"
    POOL = "Pool"
    BOUNDS = "Bounds"
    SLA = "Sla"
    """No allocation within the bounds meets the latency, at any price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The binding constraint; `name` is its pool or stage, None for the others."""

    kind: LimitKind
    name: str | None = None

    def __str__(self) -> str:
        return self.kind.value if self.name is None else f"{self.kind.value}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """`replicas` on `pool`, each with batches of up to `batch` items."""

    pool: PoolName
    replicas: int
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """A stage under the plan: predicted utilisation (0–1) and latency at its rate.

    `latency_s` is the stage's own latency at the SLA's percentile, `mean_s` the mean; both are None where the stage
    has no replica. `placements` lists every placement of the stage, those without replicas included. `latency_error`
    is the 90th percentile of the relative error of predictions in this region.
    """

    name: StageName
    rate_rps: float
    utilization: float | None
    latency_s: float | None
    mean_s: float | None
    placements: tuple[PlacementPlan, ...]
    latency_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementStep:
    """A change of one placement: replicas before and after, and the batch limit after."""

    pool: PoolName
    before: int
    after: int
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the search: the change of one stage, the latency it saved and the cost it added.

    `latency_saved_s` is negative where a step saves money at the price of latency.
    """

    stage: StageName
    changes: tuple[PlacementStep, ...]
    latency_saved_s: float
    cost_added_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCheck:
    """The check of a plan by a replay of its demand.

    `latency_s` is the latency of the replay (rounded up to three digits), which keeps the SLA or misses it by at most
    the replay's half-width; None where no replay was needed. `target_latency_s` is the tightened target that replaced
    the SLA because replays missed it (`Composition.SUM` where it equals the SLA), and optimality refers to that target;
    None where the SLA was the target.
    """

    latency_s: float | None = None
    target_latency_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What the whole demand would need where it cannot be served.

    `required_budget_per_hour` is the least cost that meets the SLA without any budget; None when pools, bounds or the
    SLA rule it out at any price. `best_latency_s` is the least end-to-end latency at the SLA's percentile within
    budget, pools and bounds; None when the demand exceeds the capacity at any latency. Both are None without advice.
    """

    required_budget_per_hour: float | None = None
    best_latency_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """The plan for one pipeline.

    `served_fraction` is the largest share of the demand that can be served within the SLA and all limits; 1 when
    `feasible`. `latency_s` is the predicted end-to-end latency of that share at the SLA's percentile, None without
    replicas. `bottleneck` is the stage where the next dollar saves most latency. `steps` lead from the cheapest
    allocation that carries the load to the planned one. `next_step` is the best step beyond the plan, None if no step
    saves latency.

    `latency_error` is the relative error of
    `latency_s`, as in `StagePlan`. `moved_replicas` is the number of replicas that differ from the current ones;
    `switching_cost_per_hour` was charged for them in the search.
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

    def replicas(self) -> Mapping[tuple[StageName, PoolName], int]:
        """Return the planned replicas of every placement."""
        return {
            (stage.name, placement.pool): placement.replicas for stage in self.stages for placement in stage.placements
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """A pool under the plan: whole instances in use, the limit, the saving by one more instance (None: unknown)."""

    name: PoolName
    instances: int
    limit: int
    shadow_price_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """An alternative plan that meets the same limits: more expensive by replicas, cheaper by whole instances billed."""

    replicas: Mapping[tuple[PipelineKey, StageName, PoolName], int]
    cost_per_hour: float
    billed_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan for all pipelines together.

    `cost_per_hour` is the sum of the replicas' shares, `billed_per_hour` that of the whole instances they fill.
    `lower_bound_per_hour` is proven: no plan that meets every SLA costs less, of those that mix pools in a stage only
    as overflow; None where nothing is proven. `packing` is there when whole instances cost more than 5 % above the
    shares and another plan is billed less. `optimizer.reports.certificate` fills these two.
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
        """Return the optimality gap: cost over the proven bound, minus one; None without a bound."""
        if self.lower_bound_per_hour is None:
            return None
        if self.lower_bound_per_hour <= 0:
            return 0.0 if self.cost_per_hour <= 0 else None
        return max(0.0, self.cost_per_hour / self.lower_bound_per_hour - 1)

    @property
    def proven_optimal(self) -> bool:
        """Return whether the cost equals the bound, to a part in a million."""
        return self.gap is not None and self.gap <= 1e-6

    def of(self, key: PipelineKey) -> PipelinePlan:
        """Return the plan of the pipeline `key`.

        Raises:
            KeyError: it is not part of this plan.
        """
        for pipeline in self.pipelines:
            if pipeline.key == key:
                return pipeline
        raise KeyError(key)
