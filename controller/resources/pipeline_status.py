"""The status of a SpeechPipeline: what the operator observed and decided, and its memory for restarts.

Numbers that can be fractions are decimal strings.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from controller.core.messages.conditions import not_assessed
from controller.resources.base import ListMap, Part
from controller.resources.fields import Label, Number, Text
from controller.resources.metadata import Condition, OperatorName, Timestamp
from controller.resources.placement import MAX_WORKLOADS
from controller.resources.schedule import MAX_SCHEDULE

MAX_CAUSES = 16


class CauseStatus(Part):
    """A cause of an incident, with the evidence for it."""

    cause: Annotated[str, Field(max_length=63)]
    """Name of the cause, as in the reason of the condition Diagnosis."""
    because: Annotated[str, Field(max_length=63)] | None = None
    """The form of the cause, where it has several."""
    stage: Annotated[str, Field(max_length=63)] | None = None
    """The stage; absent for a cause of the whole pipeline."""
    confidence: Number
    """How certain it is, from 0 to 1."""
    evidence: Annotated[list[Text], Field(max_length=8)] = Field(default_factory=list)
    """What speaks for it."""
    remedy: Text
    """What would help."""
    cost_per_hour: Number | None = None
    """USD per hour that the remedy costs; absent where that is not known."""


class Summary(Part):
    """Texts for the columns of `kubectl get`."""

    health: Text | None = None
    """OK, or the most severe problem."""
    demand: Text | None = None
    """Demand with its unit."""
    latency: Text | None = None
    """Observed latency / SLA."""
    bottleneck: Text | None = None
    """The stage under most pressure at present."""
    limited_by: Text | None = None
    """The binding constraint, or -."""
    cost: Text | None = None
    """Spend / budget in USD per hour."""
    replicas: Text | None = None
    """Replicas of each stage, before and after the changes."""


class LatencyStatus(Part):
    """The end-to-end latency at the SLA's percentile."""

    seconds: Number | None = None
    """Observed, in seconds."""
    source: Literal["Measured", "Composed"] | None = None
    """Measured by sla.query, or Composed from the stages' own percentiles."""
    overhead_seconds: Number | None = None
    """Measured time of an item outside the stages, in seconds. Plans leave the stages that much less of the SLA."""
    predicted_seconds: Number | None = None
    """Predicted by the plan, in seconds."""
    predicted_error: Number | None = None
    """Error bar of the prediction, as a share of it: nine of ten such predictions are within."""
    replayed_seconds: Number | None = None
    """The latency in a simulated replay of the demand on the plan, in seconds."""
    best_seconds: Number | None = None
    """The lowest latency that budget, pools and bounds allow for the whole demand, in seconds. Present only when the
    SLA cannot be met."""


class ServiceTimePoint(Part):
    """The mean time of batches of one size."""

    batch: int
    """Items of the batch."""
    seconds: Number
    """Its time, in seconds."""


class ServiceTimeStatus(Part):
    """The time of one batch: its mean at the batch size observed, and the service law that plans use."""

    prior_seconds: Number | None = None
    """As declared, in seconds. Absent without a declared service time."""
    measured_seconds: Number | None = None
    """As measured, in seconds."""
    factor: Number | None = None
    """Measured over prior, smoothed and bounded. The plan multiplies the prior by it. Absent without a prior."""
    fixed_seconds: Number | None = None
    """Fixed part of the service time that plans use, in seconds: the prior corrected by measurement, or without a
    prior, the one learned. Absent until one is known."""
    per_item_seconds: Number | None = None
    """Part of it for each item of a batch, in seconds."""
    floor_seconds: Number | None = None
    """Least time of a batch, in seconds. Present only where the law has one."""
    points: Annotated[list[ServiceTimePoint] | None, ListMap(key="batch")] = None
    """Times of batches by size, where the law is not a line: then fixedSeconds and perItemSeconds are 0."""
    prefill_seconds: Number | None = None
    """Time of a request's prefill, during which no other progresses, in seconds. Present only where the law has one."""
    cv: Number | None = None
    """Coefficient of variation of the service time that plans use."""
    relative_error: Number | None = None
    """Error bar of a learned service time, as a share of it, for the largest batch. Absent with a prior."""
    measured_batch: Number | None = None
    """Size of the largest batches that a learned service time was measured at; larger ones are planned on the safe
    side. Absent with a prior."""


class BatchingStatus(Part):
    """The batch settings that the operator writes for the servers of a placement."""

    max: int
    """Maximum batch size."""
    wait_microseconds: int
    """Maximum wait of the first item of a batch, in microseconds."""
    in_force: bool
    """Whether the servers have these settings: until then plans meet the SLA also with those of before."""


class PlacementStatus(Part):
    """A stage on one pool, with one variant of its model."""

    pool: Label
    """The ComputePool."""
    variant: Annotated[str, Field(max_length=63)] = ""
    """The variant of the model; empty where the placement has no variants."""
    current: int | None = None
    """Replicas in the scale of the workload."""
    ready: int | None = None
    """Replicas that are ready."""
    terminating: int | None = None
    """Replicas that are terminating."""
    updated: int | None = None
    """Replicas of the new revision. Present only while a roll-out is in progress."""
    desired: int | None = None
    """Replicas after the changes of this cycle."""
    recommended: int | None = None
    """In mode Recommend: replicas that Sluice would set in this cycle. KEDA can follow this number."""
    unconstrained: int | None = None
    """Replicas in the plan, before tolerance and step limits."""
    batch: int | None = None
    """Batch limit in the plan."""
    batch_wait_seconds: Number | None = None
    """Wait of the first item of a batch in the plan, in seconds. Present only where it is chosen."""
    batching: BatchingStatus | None = None
    """What is written for the servers. Present only with batching.apply."""
    service_time: ServiceTimeStatus | None = None
    """Prior, measured and learned time of one batch."""
    startup_seconds: Number | None = None
    """Measured start-up time, in seconds. Present only where startup is not declared."""
    saturation_rate: Number | None = None
    """Highest measured items per second of one replica under overload. Present where it is below what the service time
    allows; the plan then uses it as the capacity."""


MAX_CROWDED = 64
"""The most replicas of a stage that `status.stages[].rebalance` names."""


class RebalanceStatus(Part):
    """A replica that should give up sessions."""

    pod: Annotated[str, Field(max_length=253)]
    """The pod."""
    sessions: Number | None = None
    """Sessions that it reports."""
    give_up: int
    """Sessions that it should give up."""
    keep: int
    """Sessions that it should keep at most: advice that is read twice moves nothing twice."""


class StageStatus(Part):
    """A stage over all its placements."""

    name: Label
    """The stage."""
    rate: Number | None = None
    """Items per second that arrive."""
    utilization: Number | None = None
    """Busy share of the replicas, 0 to 1."""
    p95_seconds: Number | None = None
    """95th percentile of the stage's own latency, in seconds."""
    latency_factor: Number | None = None
    """Measured over modelled 95th percentile, smoothed and bounded. The plan multiplies the model's latency by it."""
    queue: Number | None = None
    """Items waiting, over all replicas."""
    sessions: Number | None = None
    """Streams that hold a slot, over all replicas."""
    rx_queue_pressure: Number | None = None
    """How near the kernel is to losing what arrives for the worst pod, 0 to 1."""
    device_utilization: Number | None = None
    """Busy share of the accelerators of the replicas, 0 to 1, beside the servers' own utilization."""
    collective_activity: Number | None = None
    """Traffic of the links between the accelerators of the busiest replica over their rate, 0 to 1."""
    pass_ratio: Number | None = None
    """Items passed on per item received, as used in the plan."""
    cascade_share: Number | None = None
    """Measured share of the items that go on to the placement cascade.to. Absent until it is measured."""
    shared_from: Annotated[str, Field(max_length=317)] | None = None
    """The stage of another pipeline whose replicas serve this stage, as NAMESPACE/PIPELINE/STAGE."""
    cost_share: Number | None = None
    """Share of the replicas' cost that this pipeline pays, 0 to 1: that of its items. Present for a shared stage."""
    pressure: Number | None = None
    """0.40 latency + 0.30 utilization + 0.30 queue (or rxQueuePressure, if that is larger), each 0 to 1."""
    rebalance: Annotated[list[RebalanceStatus], ListMap(key="pod"), Field(max_length=MAX_CROWDED)] = Field(
        default_factory=list
    )
    """Replicas with more than their share of sticky sessions, the fullest first, while that costs the SLA. An ingress
    that can move sessions without a cut moves them to the replicas with the fewest."""
    absent: Annotated[list[Text], Field(max_length=24)] = Field(default_factory=list)
    """Quantities that could not be measured, each with the reason."""
    placements: Annotated[
        list[PlacementStatus], ListMap(key="pool", also="variant"), Field(max_length=MAX_WORKLOADS)
    ] = Field(default_factory=list)
    """The stage on each of its pools, with each variant."""


class DecisionStatus(Part):
    """The last decision that changed replicas."""

    time: Timestamp
    """When it was made."""
    reason: Annotated[str, Field(max_length=128)]
    """Reason of its first change, one CamelCase word."""
    message: Annotated[str, Field(max_length=4096)]
    """The changes and their reasons."""


class MemoryStatus(Part):
    """State that the operator keeps between cycles and across restarts. Not an interface."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})

    version: int
    """Version of the format."""


class MetricsStatus(Part):
    """The source of the metrics."""

    source: Literal["Prometheus", "CloudWatch", "DirectScrape", "Holding"] | None = None
    """Prometheus, CloudWatch, DirectScrape (the pods' own endpoints) or Holding (no source has metrics; the last demand
    holds)."""
    lost_since: Timestamp | None = None
    """Since when the demand has been missing."""
    margin: Number | None = None
    """Safety factor on the last known demand. It grows while the demand is missing."""


class LaterDeadlineStatus(Part):
    """What a later deadline would save."""

    extension: Annotated[str, Field(max_length=8)]
    """By how much of the time left it is later."""
    saving: Number
    """USD that the items left would cost less, at present prices and with the capacity that is free now."""


class BacklogStatus(Part):
    """Work that can wait."""

    left: Number | None = None
    """Items left. Absent while the query gives no answer."""
    required_rate: Number | None = None
    """Items per second that meet the deadline, with a reserve."""
    rate: Number | None = None
    """Items per second of the planned replicas; while paused, of those that run. Absent while the time of an item is
    not known."""
    deadline: Timestamp | None = None
    """When the last item must be done. Absent with within while nothing is left, and while it is not known."""
    waits_until: Timestamp | None = None
    """When cheaper capacity is expected that the work waits for. Absent where it does not wait."""
    expected_finish: Timestamp | None = None
    """When the planned replicas are done. Absent where nothing is planned, while the time of an item is not known, and
    beyond 100 years."""
    met: bool | None = None
    """Whether the last item is expected to be done by the deadline. Absent while the items left, or how long one takes,
    are not known."""
    expected_cost: Number | None = None
    """USD that the items left cost. Absent while the time of an item or a price is not known."""
    later: Annotated[list[LaterDeadlineStatus], Field(max_length=4)] = Field(default_factory=list)
    """What later deadlines would save. Absent where nothing is scheduled: after the deadline, in another mode than
    Auto, and while a cost is not known."""


class PipelineStatus(Part):
    """What Sluice observed and decided."""

    observed_generation: int | None = None
    """The generation of the spec that this status is about."""
    operator: OperatorName | None = None
    """The operator that scales this pipeline, as the namespace and the name of its Lease. No other one does, while that
    one renews its Lease."""
    conditions: Annotated[list[Condition], ListMap(key="type"), Field(max_length=24)] = Field(default_factory=list)
    """Ready, SLAMet or DeadlineMet, MetricsAvailable, TargetsFound, ScalesAccepted, PoolsAvailable, WithinBudget,
    RuleMetricMissing, Conflict, MeasurementsPlausible, PlacementsMatch, ScrapesHealthy, DevicesHealthy, SessionsSpread,
    MemorySuffices, Shedding, PlannedInFull, Diagnosis, OneOperator."""
    diagnosis: Annotated[list[CauseStatus], Field(max_length=MAX_CAUSES)] = Field(default_factory=list)
    """The causes that speak for a missed SLA, the most certain first."""
    summary: Summary | None = None
    """Texts for the columns of kubectl get."""
    demand: Number | None = None
    """Planned demand, in the pipeline's unit."""
    at_least: Label | None = None
    """Entry of spec.demand.atLeast that determines the planned demand. Absent: none does."""
    expected: Annotated[str, Field(max_length=MAX_SCHEDULE)] | None = None
    """Schedule of the entry of spec.demand.expected that determines the planned demand. Absent: none does."""
    observed_demand: Number | None = None
    """Observed demand, in the pipeline's unit."""
    demand_history: Annotated[str, Field(max_length=1024)] | None = None
    """What the history of the demand says of the time when a replica that is started now is ready, and how far the
    forecast trusts it. Absent without spec.demand.history."""
    backlog: BacklogStatus | None = None
    """What is expected of spec.demand.backlog. Absent without one."""
    metrics: MetricsStatus | None = None
    """The source of the metrics."""
    entry_rate: Number | None = None
    """Items per second at the entry."""
    latency: LatencyStatus | None = None
    """The end-to-end latency at the SLA's percentile."""
    bottleneck: Annotated[str, Field(max_length=63)] | None = None
    """The stage under most pressure at present."""
    next_bottleneck: Annotated[str, Field(max_length=63)] | None = None
    """The stage where the next dollar would save most latency."""
    limited_by: Annotated[str, Field(max_length=128)] | None = None
    """The binding constraint: Budget, Budget/<ComputeBudget>, Pool/<name>, Bounds/<stage> or Sla."""
    cost_per_hour: Number | None = None
    """USD per hour of the plan on budgetBasis; of shared replicas, this pipeline's share."""
    billed_per_hour: Number | None = None
    """USD per hour of the whole instances that they occupy. Shared replicas count at the pipeline that scales them."""
    moved_replicas: int | None = None
    """Replicas that the plan changes."""
    switching_cost_per_hour: Number | None = None
    """Weight of these changes when plans were compared, in USD per hour. It is not billed."""
    spend_per_hour: Number | None = None
    """USD per hour, on budgetBasis, of the replicas that exist or are desired, terminating ones included; of shared
    ones, its share."""
    budget_basis: Annotated[str, Field(max_length=16)] | None = None
    """What costPerHour, spendPerHour and budgetPerHour count: spec.budget.basis, or its default."""
    budget_per_hour: Number | None = None
    """USD per hour that may be spent."""
    required_budget_per_hour: Number | None = None
    """The lowest budget that meets the SLA for the whole demand. Present only when the SLA cannot be met."""
    lower_bound_per_hour: Number | None = None
    """Lower bound in USD per hour: no plan that meets the SLA costs less."""
    gap: Number | None = None
    """Optimality gap: cost / lower bound - 1."""
    served_fraction: Number | None = None
    """The largest share of the demand that can be served within the SLA."""
    admissible: Number | None = None
    """Demand that can be served within the SLA, in the pipeline's unit. The ingress sheds the rest. Absent: no limit.

    While replicas start, it is lowered to the demand that the ready replicas can serve."""
    admissible_until: Timestamp | None = None
    """Until when admissible is valid. The operator renews it. Once this time is past, there is no limit."""
    stages: Annotated[list[StageStatus], ListMap(key="name"), Field(max_length=20)] = Field(default_factory=list)
    """The stages."""
    last_decision: DecisionStatus | None = None
    """The last decision that changed replicas."""
    memory: MemoryStatus | None = None
    """State that the operator keeps. Not an interface."""


def _without_an_operator() -> dict[str, object]:
    condition = not_assessed()
    return {
        "conditions": [
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "lastTransitionTime": "1970-01-01T00:00:00Z",
            }
        ],
        "summary": {"health": condition.reason},
    }


NOT_ASSESSED = _without_an_operator()
"""The status that the API server gives a new pipeline: none of thousands has to wait for a write to have one."""
