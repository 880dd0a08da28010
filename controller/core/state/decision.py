"""The answer of a cycle, with its reasons inside. Words are made from it in `controller.core.messages.explain`
alone."""

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
    """What a cycle does about a pipeline."""

    SCALE = "Scale"
    STEADY = "Steady"
    HOLD = "Hold"
    """It would change something, or cannot know; `holds` says why not now."""


class HoldReason(Enum):
    """Why not now. The values are condition reasons."""

    PAUSED = "Paused"
    RECOMMEND_ONLY = "RecommendOnly"
    METRICS_MISSING = "MetricsMissing"
    """Without data nothing scales down."""
    TARGET_MISSING = "TargetMissing"
    STABILIZING = "Stabilizing"
    WITHIN_TOLERANCE = "WithinTolerance"
    STEP_LIMITED = "StepLimited"
    AWAITING_TURN = "AwaitingTurn"
    """The fleet is so large that not all are planned in one cycle, and this one has not had its first turn."""
    AWAITING_CAPACITY = "AwaitingCapacity"
    """The overlap of the move does not fit under the cap yet; or what replaces a replica is not ready yet."""
    CONFLICT = "Conflict"
    """Somebody else sets the replicas of a workload too: the pipeline is left to them."""
    SCALE_REFUSED = "ScaleRefused"
    """The API server did not take the last change; it is tried again."""
    POOL_UNAVAILABLE = "PoolUnavailable"
    """The pool cannot deliver: planned without it for a while."""
    FRAGMENTED = "Fragmented"
    """The pool has room for the replica, but not in one piece, or not for its pod: planned without it for a while."""
    CANNOT_START = "CannotStart"
    """Replicas have nodes and do not become ready: planned without them for a while."""
    ON_TRIAL = "OnTrial"
    """After a failure one replica is tried first; the others wait for it."""
    POOL_NOT_FOUND = "PoolNotFound"
    SLA_UNREACHABLE = "SLAUnreachable"
    """No allocation reaches the SLA, which is no reason to take away what serves late."""
    SLA_MISSED = "SLAMissed"
    """Items are late now, whatever the model says: nothing that serves is taken away."""


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
    """The margin for what is not seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A reason not to act, for the whole pipeline, one of its stages or a stage's placement on one pool.

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

    `deletion_costs` are to be written to pods before: they say who goes first.
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
    """A threshold rule this cycle: what it read, and the floor it holds (None: none)."""

    stage: StageName
    name: str
    reading: Reading
    floor: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsUse:
    """Where the numbers of a pipeline came from, and why not from a better place.

    While its demand is lost, the last one, seen `lost_for_s` ago, was planned for times `margin`.
    """

    tier: MetricsTier = MetricsTier.PROMETHEUS
    because: str = ""
    lost_since_s: float | None = None
    lost_for_s: float | None = None
    margin: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDecision:
    """What is decided for one pipeline, and from what.

    `demand` is the stabilised demand D that was planned for, `demand_before` that of the cycle before, `forecast` what
    this cycle expects, all in the pipeline's unit, None while no demand was ever seen. `spend_per_hour` is
    max(desired, existing) × price, terminating replicas included, before the changes. `desired` is every placement's
    replicas after the changes; `unconstrained` what plan and rules want there, before tolerance and step limits.
    `admissible` is the load in the pipeline's unit that can be served within the SLA (None: no limit is published);
    `admitted_meanwhile` is it while replicas are to come that will serve more (None: there are none, or nobody knows).
    `planned` is what a large fleet keeps for the next cycle.
    """

    spec: PipelineSpec
    observed: Reading
    forecast: float | None
    demand: float | None
    demand_before: float | None
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
        """Return what the cycle does: changes win over holds."""
        if self.changes:
            return Outcome.SCALE
        return Outcome.HOLD if self.holds else Outcome.STEADY


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDecision:
    """What is known of one pool: instances in use and planned, and its memory."""

    name: PoolName
    in_use: float
    planned: int
    limit: int
    zones: int
    shadow_price_per_hour: float | None
    memory: PoolMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer to one Snapshot under `policy`. `plan` is None where no pipeline could be planned."""

    now_s: float
    policy: Policy
    pipelines: tuple[PipelineDecision, ...]
    pools: tuple[PoolDecision, ...]
    plan: Plan | None
