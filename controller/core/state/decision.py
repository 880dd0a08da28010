"""The decision of a cycle, with its reasons as values. `controller.core.messages` makes text from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from controller.core.state.carry_over import PipelineMemory, PoolMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Planned
from controller.core.state.spec import PipelineSpec, Target
from optimizer.model import PipelineKey, PoolName, StageName
from optimizer.plan import PipelinePlan, Plan
from profiler.samples import MetricsTier, Reading
from profiler.stages import PipelineProfile


class Outcome(Enum):
    """The kind of decision for a pipeline."""

    SCALE = "Scale"
    STEADY = "Steady"
    HOLD = "Hold"
    """A change is held back, or nothing can be decided; `holds` says why."""


class HoldReason(Enum):
    """Why a change is held back; `messages.decisions.HOLDS` has the texts. The values are condition reasons."""

    PAUSED = "Paused"
    RECOMMEND_ONLY = "RecommendOnly"
    METRICS_MISSING = "MetricsMissing"
    TARGET_MISSING = "TargetMissing"
    STABILIZING = "Stabilizing"
    WITHIN_TOLERANCE = "WithinTolerance"
    STEP_LIMITED = "StepLimited"
    AWAITING_TURN = "AwaitingTurn"
    AWAITING_CAPACITY = "AwaitingCapacity"
    CONFLICT = "Conflict"
    SCALE_REFUSED = "ScaleRefused"
    POOL_UNAVAILABLE = "PoolUnavailable"
    FRAGMENTED = "Fragmented"
    CANNOT_START = "CannotStart"
    ON_TRIAL = "OnTrial"
    POOL_NOT_FOUND = "PoolNotFound"
    SLA_UNREACHABLE = "SLAUnreachable"
    SLA_MISSED = "SLAMissed"


class ChangeReason(Enum):
    """Why a replica count changes."""

    DEMAND = "Demand"
    SLA = "Sla"
    COST = "Cost"
    RULE = "Rule"
    BUDGET = "Budget"
    POOL = "Pool"
    PLACEMENT = "Placement"
    TRIAL = "Trial"
    NODES_LEAVING = "NodesLeaving"
    BOUNDS = "Bounds"
    METRICS_LOST = "MetricsLost"
    """The safety margin while metrics are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A reason to hold a change back, for a pipeline, one of its stages, or a stage's placement on one pool.

    `until_s` is when it ends, where that is known.
    """

    reason: HoldReason
    stage: StageName | None = None
    pool: PoolName | None = None
    until_s: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChange:
    """A write to make: the replicas of one placement, decided on `resource_version`.

    `deletion_costs` are written to pods before: pods with the lowest cost are removed first.
    """

    stage: StageName
    pool: PoolName
    target: Target
    before: int
    after: int
    reason: ChangeReason
    resource_version: str
    deletion_costs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleState:
    """A threshold rule in this cycle: its reading, and the floor that it holds (None: none)."""

    stage: StageName
    name: str
    reading: Reading
    floor: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsUse:
    """The source of a pipeline's metrics; `because` says why it is not a better one.

    While the demand is missing, the plan is for the last one, observed `lost_for_s` ago, times `margin`.
    """

    tier: MetricsTier = MetricsTier.PROMETHEUS
    because: str = ""
    lost_since_s: float | None = None
    lost_for_s: float | None = None
    margin: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandUse:
    """The demand of one pipeline in its own unit: `planned` is the stabilised demand D that was planned for.

    `before` is the planned demand of the last cycle, `forecast` the forecast of this cycle. Each is None while no
    demand was ever observed.
    """

    observed: Reading
    forecast: float | None
    planned: float | None
    before: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDecision:
    """The decision for one pipeline, and what it was made from.

    `spend_per_hour` is max(desired, existing) × price, terminating replicas included, before the changes. `desired` is
    every placement's replicas after the changes, `unconstrained` those of the plan and the rules, before tolerance and
    step limits. `admissible` is the load in the pipeline's unit that can be served within the SLA (None: no limit is
    published), `admitted_meanwhile` the one until pending replicas are ready (None: none are pending, or they are
    unknown). `planned` is the plan that a large fleet keeps for the next cycle.
    """

    spec: PipelineSpec
    demand: DemandUse
    profile: PipelineProfile
    plan: PipelinePlan | None
    holds: tuple[Hold, ...]
    changes: tuple[ReplicaChange, ...]
    rules: tuple[RuleState, ...]
    desired: Mapping[tuple[StageName, PoolName], int]
    unconstrained: Mapping[tuple[StageName, PoolName], int]
    spend_per_hour: float
    admissible: float | None
    memory: PipelineMemory
    metrics: MetricsUse = field(default_factory=MetricsUse)
    planned: Planned | None = None
    admitted_meanwhile: float | None = None

    @property
    def key(self) -> PipelineKey:
        """Return the pipeline's key."""
        return self.spec.key

    @property
    def outcome(self) -> Outcome:
        """Return the kind of decision: a change takes precedence over holds."""
        if self.changes:
            return Outcome.SCALE
        return Outcome.HOLD if self.holds else Outcome.STEADY


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDecision:
    """The instances of one pool in use and planned, its limits, and its failures."""

    name: PoolName
    in_use: float
    planned: int
    limit: int
    zones: int
    shadow_price_per_hour: float | None
    memory: PoolMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision for one snapshot under `policy`. `plan` is None without pipelines and in fleets planned in turns."""

    now_s: float
    policy: Policy
    pipelines: tuple[PipelineDecision, ...]
    pools: tuple[PoolDecision, ...]
    plan: Plan | None
