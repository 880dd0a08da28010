"""The answer and why: what to run, what it costs, what limits it, and how good it provably is.

Plans are values; `optimizer.allocate` makes them. A number that does not exist is None, never a stand-in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from optimizer.model import PipelineKey, PoolName, StageName


class LimitKind(Enum):
    """What keeps a plan from being better."""

    BUDGET = "Budget"
    POOL = "Pool"
    BOUNDS = "Bounds"
    SLA = "Sla"
    """No allocation within the bounds reaches the latency, at any price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The constraint that binds; `name` is the pool or the stage it belongs to, where there is one."""

    kind: LimitKind
    name: str | None = None

    def __str__(self) -> str:
        return self.kind.value if self.name is None else f"{self.kind.value}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """`replicas` on `pool`, each taking batches of up to `batch` items."""

    pool: PoolName
    replicas: int
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """A stage under the plan: predicted utilisation (0–1) and latency at its rate.

    `latency_s` is the stage's own latency at the SLA's percentile, `mean_s` the mean. Both are None when the
    stage has no replica. `placements` lists every placement of the stage, those with no replica included.
    `latency_error` is the relative error of `latency_s` that nine of ten predictions in this region stay within.
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
    """One move of the search: what it changed in a stage, what it bought and what it cost.

    `latency_saved_s` is negative where a move trades latency for money.
    """

    stage: StageName
    changes: tuple[PlacementStep, ...]
    latency_saved_s: float
    cost_added_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """The plan for one pipeline.

    `served_fraction` is the largest share of the demand that the constraints let it serve within the SLA; 1 when
    `feasible`. `latency_s` is the predicted end-to-end latency at the SLA's percentile for the share served, None
    when nothing runs. `bottleneck` is the stage where the next dollar buys most latency. `steps` lead from the
    cheapest allocation that carries the load to the planned one. `next_step` is the best move not made: what
    the next dollar would buy, or None when nothing can be bought.

    `replayed_latency_s` is the latency of a simulated replay of the demand (rounded up to three digits) on the plan,
    which a plan composed by `Composition.RSS` has passed, or missed by less than the replay's noise; None where none
    was needed. `target_latency_s` is what was planned for instead of the SLA because replays had taken too long (by
    `Composition.SUM` where it is the SLA itself): optimal is then said of that target; None where it was the SLA.
    `latency_error` is the error bar of `latency_s`, relative, as in `StagePlan`.
    `moved_replicas` differ from what runs now, which was charged `switching_cost_per_hour` in the search.
    `required_budget_per_hour` is the least budget at which the SLA could be met for the whole demand, all else equal;
    `best_latency_s` the least latency that budget, pools and bounds allow for it. Both are None when nobody asked,
    or when there is none.
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
    replayed_latency_s: float | None = None
    latency_error: float | None = None
    moved_replicas: int = 0
    switching_cost_per_hour: float = 0.0
    required_budget_per_hour: float | None = None
    best_latency_s: float | None = None
    target_latency_s: float | None = None

    def replicas(self) -> Mapping[tuple[StageName, PoolName], int]:
        """Return the planned replicas of every placement."""
        return {
            (stage.name, placement.pool): placement.replicas for stage in self.stages for placement in stage.placements
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """A pool under the plan: whole instances in use, the limit, what one more would save (None: unknown)."""

    name: PoolName
    instances: int
    limit: int
    shadow_price_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Another plan that meets the same promises: dearer by shares of instances, cheaper by the whole ones billed."""

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
        """Whether every pipeline is served whole and within its SLA."""
        return all(pipeline.feasible for pipeline in self.pipelines)

    @property
    def gap(self) -> float | None:
        """Cost over the proven bound, minus one; None without a bound."""
        if self.lower_bound_per_hour is None:
            return None
        if self.lower_bound_per_hour <= 0:
            return 0.0 if self.cost_per_hour <= 0 else None
        return max(0.0, self.cost_per_hour / self.lower_bound_per_hour - 1)

    @property
    def proven_optimal(self) -> bool:
        """Whether the cost equals the bound, to a part in a million."""
        return self.gap is not None and self.gap <= 1e-6

    def of(self, key: PipelineKey) -> PipelinePlan:
        """Return the plan of the pipeline `key`; `KeyError` when it is not part of this plan."""
        for pipeline in self.pipelines:
            if pipeline.key == key:
                return pipeline
        raise KeyError(key)
