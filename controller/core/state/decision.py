"""The decision of a cycle, with its reasons as values. `controller.core.messages` makes the texts from these."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from controller.core.state.carry_over import PipelineMemory, PoolMemory, PriceMemory
from controller.core.state.diagnosis import Finding
from controller.core.state.policy import Policy
from controller.core.state.schedule import DemandFloor
from controller.core.state.shards import Want
from controller.core.state.snapshot import Planned
from controller.core.state.spec import ConfigKey, PipelineSpec, StageKey, Target
from optimizer.model import BatchSettings, PipelineKey, PlacementKey, PlacementName, PoolName, Size, StageName
from optimizer.plan import Limit, PipelinePlan, Plan
from profiler.samples import Absence, DeviceFault, MetricsTier, Reading, Scrapes
from profiler.stages import PipelineProfile

if TYPE_CHECKING:
    from controller.core.state.bound import Bound, Lost


class Outcome(Enum):
    """The kind of decision for a pipeline."""

    SCALE = "Scale"
    STEADY = "Steady"
    HOLD = "Hold"
    """A change is held back, or nothing can be decided; the holds of the decision say why."""


class HoldReason(Enum):
    """Why a change is held back; `messages.sentences.HOLDS` has the texts. The values are condition reasons."""

    PAUSED = "Paused"
    PINNED = "Pinned"
    INVALID_ANNOTATION = "InvalidAnnotation"
    RECOMMEND_ONLY = "RecommendOnly"
    FOLLOWED = "Followed"
    METRICS_MISSING = "MetricsMissing"
    TOO_NEW = "TooNew"
    """Ready replicas that are so new that they cannot have samples yet."""
    TARGET_MISSING = "TargetMissing"
    STABILIZING = "Stabilizing"
    RISE_EXPECTED = "RiseExpected"
    """Past seasons had as much demand again within the scale-down window."""
    ALTERNATING = "Alternating"
    WITHIN_TOLERANCE = "WithinTolerance"
    STEP_LIMITED = "StepLimited"
    AWAITING_TURN = "AwaitingTurn"
    AWAITING_CAPACITY = "AwaitingCapacity"
    CONFLICT = "Conflict"
    SCALE_REFUSED = "ScaleRefused"
    POOL_UNAVAILABLE = "PoolUnavailable"
    FRAGMENTED = "Fragmented"
    CANNOT_START = "CannotStart"
    NOT_CREATED = "NotCreated"
    ROLLING_OUT = "RollingOut"
    NODES_LEAVING = "NodesLeaving"
    ON_TRIAL = "OnTrial"
    POOL_NOT_FOUND = "PoolNotFound"
    SLA_UNREACHABLE = "SLAUnreachable"
    SLA_MISSED = "SLAMissed"
    LEARNING = "Learning"
    OVERHEAD = "Overhead"
    UNEXPLAINED = "Unexplained"
    CROWDED = "Crowded"
    """Sessions stay on crowded replicas."""
    CLOSING = "Closing"
    """Replicas that are to go wait for their sessions to end."""
    IDLE = "Idle"
    OWNER_NOT_ACTING = "OwnerNotActing"
    WAITING = "Waiting"
    """A backlog waits for cheaper capacity."""
    BATCHING_NOT_WRITTEN = "BatchingNotWritten"
    """The batch settings cannot be written for the servers."""


class ChangeReason(Enum):
    """Why a replica count changes."""

    DEMAND = "Demand"
    SLA = "Sla"
    MEASURED_MISS = "MeasuredMiss"
    """The measured latency has exceeded the SLA, although the plan was predicted to meet it."""
    PROBE = "Probe"
    """The first replica on a pool, to measure the service time there."""
    COST = "Cost"
    PRICE = "Price"
    """The price of a pool has changed."""
    RULE = "Rule"
    BUDGET = "Budget"
    POOL = "Pool"
    PLACEMENT = "Placement"
    TRIAL = "Trial"
    NODES_LEAVING = "NodesLeaving"
    BOUNDS = "Bounds"
    QUALITY = "Quality"
    """The word error rate of a placement is above `maxWer`."""
    LEARNING = "Learning"
    """A stage queues whose service times or slots are not known yet."""
    PINNED = "Pinned"
    IDLE = "Idle"
    WAITING = "Waiting"
    METRICS_LOST = "MetricsLost"
    """The safety margin while metrics are missing."""
    REBALANCE = "Rebalance"
    """The sessions of a crowded replica are to attach elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A reason to hold a change back, for a pipeline, one of its stages, or a stage's placement on one pool.

    `until_s` is the time at which the hold ends, None where that is unknown.
    """

    reason: HoldReason
    stage: StageName | None = None
    placement: PlacementName | None = None
    until_s: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """What a placement says of its pool and the cluster shows otherwise.

    `outside` are replicas on nodes that are not of the pool, each with its node. `fits` is how many replicas an
    instance holds where this is not the declared `per_instance`, else None: fewer by the allocatable resources of a
    node, more because nodes run more, or what groups of pods take. `resized_by` names the object that changes the
    requests of its pods.
    """

    stage: StageName
    placement: PlacementName
    outside: Mapping[str, str]
    per_instance: Size
    fits: Size | None
    resized_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChange:
    """A change of the replicas of one placement, to be written if the scale still has `resource_version`.

    `deletion_costs`, by pod, are written first: Kubernetes removes the pods with the lowest cost first.
    """

    stage: StageName
    placement: PlacementName
    target: Target
    before: int
    after: int
    reason: ChangeReason
    resource_version: str
    deletion_costs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWrite:
    """Batch settings to write for the servers of a placement.

    `before` is what is there, None where the key is missing or has no usable value. `restores` says that they were
    written before, and that another client has changed them.
    """

    stage: StageName
    placement: PlacementName
    at: ConfigKey
    settings: BatchSettings
    before: BatchSettings | None
    restores: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleState:
    """A threshold rule in this cycle: its reading, and the floor that it sets, None while it sets no floor."""

    stage: StageName
    name: str
    reading: Reading
    floor: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsUse:
    """The source of a pipeline's metrics. `because` says why no better source is used.

    While the demand is missing (since `lost_since_s`, for `lost_for_s` seconds), the plan is for the last demand times
    the safety factor `margin`.
    """

    tier: MetricsTier = MetricsTier.PROMETHEUS
    because: str = ""
    lost_since_s: float | None = None
    lost_for_s: float | None = None
    margin: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeasonUse:
    """What the history of the demand says of the end of the horizon, from `seasons` seasons of `season_s` seconds.

    `last` is the demand one season before then, and `expected` the seasonal forecast with its `error`; None where the
    history does not say it. `trust` (0–1) is its weight in the forecast. `kept` is the demand that is not given up,
    because it is sure to come back within the scale-down window, None: none. `problem` says why the history was not
    read again, "" where it was.
    """

    seasons: int
    season_s: float
    last: float | None
    expected: float | None
    error: float | None
    trust: float
    kept: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandUse:
    """The demand of one pipeline in its own unit: `planned` is the stabilized demand that the plan is for.

    `before` is the planned demand of the last cycle, and `forecast` the forecast of this cycle, None while the demand
    is missing. `planned` and `before` are None until a demand is known. `known` is the demand known in advance that
    determines `planned`, None where the load does. `no_arrivals_at` has the entry stages that show a demand of 0 where
    the demand query returns no series.

    `ahead_s` is how far ahead the forecast looks: until a replica that is decided now is ready. Of this, `launch_s` is
    for a new node. `falls_at_s` is when a demand that is held above the forecast may fall, None where it is not held.
    `season` is what the history of the demand says, None for a pipeline without `spec.demand.history`. `missed` is the
    share (0–1) of the last minutes for which the SLA was missed because the load rose beyond the plan.
    """

    observed: Reading
    forecast: float | None
    planned: float | None
    before: float | None
    known: DemandFloor | None = None
    no_arrivals_at: tuple[StageName, ...] = ()
    ahead_s: float | None = None
    launch_s: float = 0.0
    falls_at_s: float | None = None
    season: SeasonUse | Absence | None = None
    missed: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """The measured latency exceeds the SLA: since `since_s`, which is `for_s` seconds ago."""

    since_s: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingReplicas:
    """Replicas of one placement that are desired and not ready after this cycle: `count` of them.

    The last of them is expected to be ready in `ready_in_s` seconds, None where that is not known: one has no node, or
    is overdue. `startup_s` is the start-up time that this follows from, the measured one if `measured`.
    """

    stage: StageName
    placement: PlacementName
    count: int
    ready_in_s: float | None
    startup_s: float
    measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStage:
    """A stage whose replicas serve several pipelines: the stage that declares it, and its users, the owner first.

    Of the cost of its replicas, this pipeline pays `cost_share`.
    """

    owner: StageKey
    users: tuple[PipelineKey, ...]
    cost_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyReplica:
    """A replica whose device reports errors, or is throttled; `node` is "" where its node is not known."""

    stage: StageName
    placement: PlacementName
    pod: str
    node: str
    fault: DeviceFault


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """A replica of a stage with session slots that ran out of memory at `at_s`; `slots` are those of a replica."""

    stage: StageName
    placement: PlacementName
    pod: str
    at_s: float
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdedReplica:
    """A ready replica with more than its share of the sessions of a stage, and how many of them it should give up."""

    pod: str
    placement: PlacementName
    sessions: float
    give_up: int

    @property
    def keep(self) -> int:
        """Return how many sessions it should keep at most."""
        return math.ceil(self.sessions - self.give_up)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """The sessions of a stage are on too few of its replicas: those in `crowded`, the fullest first.

    `sessions` are on `replicas`, those that report them. `utilization` is that of the fullest replica for the planned
    load, above 1 where it cannot serve its sessions.
    """

    stage: StageName
    sessions: float
    replicas: int
    utilization: float
    crowded: tuple[CrowdedReplica, ...]


class DrainStep(Enum):
    """How far the drain of a crowded replica is."""

    MISSING = "Missing"
    """Its sessions have not missed the SLA for as long as a cut costs."""
    MAKING_ROOM = "MakingRoom"
    """The other ready replicas cannot take its sessions."""
    DRAINING = "Draining"
    """It, or another replica of its stage, goes."""
    RESTING = "Resting"
    """As many sessions as there are were cut within an hour."""
    UNABLE = "Unable"
    """The controller of its workload does not remove a chosen replica."""
    HELD = "Held"
    """Nothing is removed in this cycle, for another reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """The fullest crowded replica of a stage, and how far its drain is.

    Its sessions have missed the SLA for `missed_s` seconds; they are cut from `cut_cost_s` on.
    """

    stage: StageName
    placement: PlacementName
    pod: str
    sessions: float
    missed_s: float
    cut_cost_s: float
    step: DrainStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """A replica that is to go since `since_s`, and waits for its `sessions` to end, at most until `until_s`.

    `closes` says that it gets no new ones meanwhile.
    """

    stage: StageName
    placement: PlacementName
    pod: str
    sessions: float
    since_s: float
    until_s: float
    closes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSwitch:
    """A stage goes from the placements `before` to those `after`, which run other variants of its model.

    `wer_before` and `wer_after` are the worst word error rates that the placements state, None where one states none;
    `limit` is `sla.maxWer`. At the same load the new variants cost `saving_per_hour` USD less; None where those of
    before cannot serve it within the limits, or (not `known`) where that was not planned.
    """

    stage: StageName
    before: tuple[PlacementName, ...]
    after: tuple[PlacementName, ...]
    wer_before: float | None
    wer_after: float | None
    limit: float | None
    saving_per_hour: float | None
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterDeadline:
    """What a backlog would save (USD) with a deadline that is later by `extension`, a share of the time left."""

    extension: float
    saving: float


class LateReason(Enum):
    """Why a backlog is not done by its deadline. The values are condition reasons."""

    DEADLINE_PASSED = "DeadlinePassed"
    BUDGET_TOO_LOW = "BudgetTooLow"
    CAPACITY_TOO_SMALL = "CapacityTooSmall"
    """Of pools, quotas or replica bounds."""
    STARTUP_TOO_LONG = "StartupTooLong"
    """Replicas that start now are ready too late."""
    HELD_BACK = "HeldBack"
    """The replicas are fewer than planned: a pause, a pin, or a hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogOutlook:
    """What is expected of work that can wait. Times are in seconds since the epoch, rates in items per second.

    `left` are the items left, `due_s` is the deadline, and `required_rps` the pace that meets it, reserve included.
    `rate_rps` is what the planned replicas do, `finish_s` when they are done, and `cost` (USD) what this costs from now
    on. Each is None where it is not known. `met` says whether the work is done by the deadline. `waits_until_s` is when
    cheaper capacity is expected that the work waits for, None: it does not wait. `late` is set where `met` is False.
    `unmeasured` is a stage whose service time is not known yet, so that rate, finish and cost are not; None: there is
    none.
    """

    left: Reading
    due_s: float | None
    required_rps: float | None
    rate_rps: float | None = None
    finish_s: float | None = None
    met: bool | None = None
    cost: float | None = None
    later: tuple[LaterDeadline, ...] = ()
    waits_until_s: float | None = None
    late: LateReason | None = None
    unmeasured: StageName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDecision:
    """The decision for one pipeline, and the values that it was made from.

    `spend_per_hour` is max(desired, existing) × price, terminating replicas included, before the changes. `desired` has
    the replicas of every placement after the changes, `unconstrained` the replicas that the plan and the rules ask for,
    before tolerance and step limits. `recommended` has, in mode Recommend, the replicas that the pipeline's own
    workloads would get if this pipeline alone were in mode Auto. `admissible` is the load to admit, in the pipeline's
    unit, None where no limit is published. `admitted_meanwhile` is the limit until pending replicas are ready, None
    where there is none; `admissible` is not above it. `planned` is the plan that a large fleet keeps for the next
    cycle. `floors` has the least replicas of stages whose plan is below what the measured latency has shown to be
    needed. `shared` has the stages that serve other pipelines too. `mismatches` are placements whose pods are not on
    their pool, or do not fit as declared. `budgets` has the ComputeBudgets of the pipeline, by name, with what they
    allow now in USD per hour. `miss` is set while the latency exceeds the SLA. `starting` has the replicas that are
    desired and not ready. `faulty` has the replicas whose devices report errors, or are throttled. `bounds` are all
    bounds in force, `lost` those that are not kept in full, and `goal` where the pipeline goes inside them. `unmet`
    has the limits that leave no room for the floors of stages, by the placement where they have none. `skews` has the
    stages whose sessions are on too few replicas, `sessions_unread` those with sticky streams on several replicas that
    report no sessions. `drains` has the crowded replicas whose sessions may be cut. `switches` has the stages that go
    to other variants of their model in this cycle. `out_of_memory` has the replicas with sessions that ran out of
    memory lately. `diagnosis` has the causes that speak for a missed SLA, the most certain first. `closings` has the
    replicas that wait for their sessions to end, and `takes_sessions` the pods whose label is to change: to whether
    they get new ones. `batch_writes` has the batch settings to write for servers.
    `backlog` is what is expected of work that can wait, None for a pipeline without a backlog.
    """

    spec: PipelineSpec
    demand: DemandUse
    profile: PipelineProfile
    plan: PipelinePlan | None
    holds: tuple[Hold, ...]
    changes: tuple[ReplicaChange, ...]
    rules: tuple[RuleState, ...]
    desired: Mapping[PlacementKey, int]
    unconstrained: Mapping[PlacementKey, int]
    spend_per_hour: float
    admissible: float | None
    memory: PipelineMemory
    metrics: MetricsUse = field(default_factory=MetricsUse)
    scrapes: Mapping[PlacementKey, Scrapes] = field(default_factory=dict)
    planned: Planned | None = None
    admitted_meanwhile: float | None = None
    floors: Mapping[StageName, int] = field(default_factory=dict)
    shared: Mapping[StageName, SharedStage] = field(default_factory=dict)
    recommended: Mapping[PlacementKey, int] = field(default_factory=dict)
    mismatches: tuple[Mismatch, ...] = ()
    budgets: Mapping[str, float] = field(default_factory=dict)
    miss: Miss | None = None
    starting: tuple[StartingReplicas, ...] = ()
    faulty: tuple[FaultyReplica, ...] = ()
    bounds: "tuple[Bound, ...]" = ()
    lost: "tuple[Lost, ...]" = ()
    goal: Mapping[PlacementKey, int] = field(default_factory=dict)
    unmet: Mapping[PlacementKey, Limit] = field(default_factory=dict)
    skews: tuple[Skew, ...] = ()
    sessions_unread: tuple[StageName, ...] = ()
    drains: tuple[Drain, ...] = ()
    switches: tuple[VariantSwitch, ...] = ()
    out_of_memory: tuple[OutOfMemory, ...] = ()
    diagnosis: tuple[Finding, ...] = ()
    closings: tuple[Closing, ...] = ()
    takes_sessions: Mapping[str, bool] = field(default_factory=dict)
    batch_writes: tuple[BatchWrite, ...] = ()
    backlog: BacklogOutlook | None = None

    @property
    def refused(self) -> float | None:
        """Return the observed demand above the limit in force, which an ingress that obeys it refuses.

        None where the demand is not known. It is 0 where there is no limit: what stages refuse is not included.
        """
        if isinstance(self.demand.observed, Absence):
            return None
        return 0.0 if self.admissible is None else max(0.0, self.demand.observed - self.admissible)

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
    """The decision for one pool: instances in use, planned and usable (`limit`), and its failures (`memory`).

    `price` has the price of an instance, and the one before its last change. `claimed` is how many replicas are desired
    there that have no node and that Sluice does not scale. `want` is what plans lack there, if shards divide the pool.
    """

    name: PoolName
    in_use: float
    planned: int
    limit: int
    zones: int
    shadow_price_per_hour: float | None
    memory: PoolMemory
    price: PriceMemory | None = None
    claimed: int = 0
    want: Want | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortPipeline:
    """A pipeline that a ComputeBudget keeps from being served in full: the share (0–1) of its demand that is served."""

    key: PipelineKey
    served_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetDecision:
    """The money of one ComputeBudget in USD per hour: what it allows now, what its pipelines spend, and their plans.

    `pipelines` are those in the namespaces that it selects, and `short` the ones that get less because of it.
    """

    name: str
    limit_per_hour: float
    spend_per_hour: float
    planned_per_hour: float
    pipelines: tuple[PipelineKey, ...]
    short: tuple[ShortPipeline, ...]

    @property
    def exceeded(self) -> bool:
        """Return whether more is spent than is allowed."""
        return self.spend_per_hour > self.limit_per_hour + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision for one snapshot under `policy`. A fleet without pipelines, or planned in turns, has no `plan`."""

    now_s: float
    policy: Policy
    pipelines: tuple[PipelineDecision, ...]
    pools: tuple[PoolDecision, ...]
    plan: Plan | None
    budgets: tuple[BudgetDecision, ...] = ()
