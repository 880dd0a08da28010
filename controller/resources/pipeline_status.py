"""The status of a SpeechPipeline: what the operator found, decided and must remember, for people and for restarts.

Numbers that can be fractions are decimal strings.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from controller.resources.base import ListMap, Part
from controller.resources.fields import Label, Number, Text
from controller.resources.metadata import Condition, Timestamp


class Summary(Part):
    """Ready-made words for the columns of `kubectl get`."""

    health: Text | None = None
    """Is it fine: OK, or the first thing that is not."""
    demand: Text | None = None
    """Demand with its unit."""
    latency: Text | None = None
    """Observed latency / SLA."""
    bottleneck: Text | None = None
    """The stage under most pressure now."""
    limited_by: Text | None = None
    """The constraint that binds, or -."""
    cost: Text | None = None
    """Cost / budget in USD per hour."""
    replicas: Text | None = None
    """Replicas, and what they go to."""


class LatencyStatus(Part):
    """The end-to-end latency at the SLA's percentile."""

    seconds: Number | None = None
    """Observed, in seconds."""
    source: Literal["Measured", "Composed"] | None = None
    """Measured by sla.query, or Composed from the stages' own percentiles."""
    predicted_seconds: Number | None = None
    """What the plan promises, in seconds."""
    predicted_error: Number | None = None
    """Error bar of the promise, as a share of it: nine of ten predictions like this one stay within."""
    replayed_seconds: Number | None = None
    """The same latency in a simulated replay of the demand, in seconds."""
    best_seconds: Number | None = None
    """The least latency that budget, pools and bounds allow for the whole demand, in seconds, when the SLA cannot be
    met."""


class ServiceTimeStatus(Part):
    """The mean time of one batch, in seconds, at the batch size observed."""

    prior_seconds: Number | None = None
    """As declared."""
    measured_seconds: Number | None = None
    """As measured."""
    factor: Number | None = None
    """Measured over prior, smoothed and bounded: what the plan multiplies the prior by."""


class PlacementStatus(Part):
    """A stage on one pool."""

    pool: Label
    """The ComputePool."""
    current: int | None = None
    """Replicas that the workload asks for."""
    ready: int | None = None
    """Replicas that serve."""
    terminating: int | None = None
    """Replicas on their way out."""
    desired: int | None = None
    """Replicas that were decided."""
    unconstrained: int | None = None
    """Replicas that the plan wants, before tolerance and step limits."""
    batch: int | None = None
    """Batch limit that the plan was made with."""
    service_time: ServiceTimeStatus | None = None
    """Prior and measured time of one batch."""
    saturation_rate: Number | None = None
    """Items per second that one replica carried at most when it had more to do, where that is less than its service
    time promises: what the plan counts on."""


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
    """Measured over modelled 95th percentile, smoothed and bounded: what the plan multiplies the model by."""
    queue: Number | None = None
    """Items waiting, over all replicas."""
    sessions: Number | None = None
    """Streams that hold a slot, over all replicas."""
    pass_ratio: Number | None = None
    """Share of its items that it passes on, as planned with."""
    pressure: Number | None = None
    """0.40 latency + 0.30 utilization + 0.30 queue, each 0 to 1."""
    absent: Annotated[list[Text], Field(max_length=16)] = Field(default_factory=list)
    """What could not be measured, and why."""
    placements: Annotated[list[PlacementStatus], ListMap(key="pool"), Field(max_length=8)] = Field(default_factory=list)
    """The stage on each of its pools."""


class DecisionStatus(Part):
    """The last decision that changed something, or would have."""

    time: Timestamp
    """When."""
    reason: Annotated[str, Field(max_length=128)]
    """Why, in one word."""
    message: Annotated[str, Field(max_length=4096)]
    """What and why, for people."""


class MemoryStatus(Part):
    """What the operator remembers between cycles and across restarts. Not an interface."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})

    version: int
    """Of the format."""


class MetricsStatus(Part):
    """Where the measured comes from."""

    source: Literal["Prometheus", "DirectScrape", "Holding"] | None = None
    """Prometheus, DirectScrape (the pods' own endpoints) or Holding: nowhere, and the last plan is held."""
    lost_since: Timestamp | None = None
    """Since when the demand cannot be seen."""
    margin: Number | None = None
    """What the demand that was last seen is multiplied by: it grows while nothing is seen."""


class PipelineStatus(Part):
    """What Sluice found and decided."""

    observed_generation: int | None = None
    """The generation of the spec that this status is about."""
    conditions: Annotated[list[Condition], ListMap(key="type"), Field(max_length=16)] = Field(default_factory=list)
    """Ready, SLAMet, MetricsAvailable, TargetsFound, WithinBudget, RuleMetricMissing."""
    summary: Summary | None = None
    """Words for the columns of kubectl get."""
    demand: Number | None = None
    """Demand that was planned for, in the pipeline's unit."""
    observed_demand: Number | None = None
    """Demand that was observed, in the pipeline's unit."""
    metrics: MetricsStatus | None = None
    """Where the measured comes from."""
    entry_rate: Number | None = None
    """Items per second at the entry."""
    latency: LatencyStatus | None = None
    """The end-to-end latency at the SLA's percentile."""
    bottleneck: Annotated[str, Field(max_length=63)] | None = None
    """The stage under most pressure now."""
    next_bottleneck: Annotated[str, Field(max_length=63)] | None = None
    """The stage that the next dollar would go to."""
    limited_by: Annotated[str, Field(max_length=128)] | None = None
    """The constraint that binds: Budget, Pool/<name>, Bounds/<stage> or Sla."""
    cost_per_hour: Number | None = None
    """USD per hour of the plan's replicas."""
    billed_per_hour: Number | None = None
    """USD per hour of the whole instances they take."""
    moved_replicas: int | None = None
    """Replicas that the plan would change."""
    switching_cost_per_hour: Number | None = None
    """What these changes were counted as, in USD per hour, when plans were compared. Nobody pays it."""
    spend_per_hour: Number | None = None
    """USD per hour of what exists now, terminating replicas included."""
    budget_per_hour: Number | None = None
    """USD per hour that may be spent."""
    required_budget_per_hour: Number | None = None
    """The least budget that would meet the SLA for the whole demand, when it cannot be met."""
    lower_bound_per_hour: Number | None = None
    """No plan that meets the SLA costs less than this."""
    gap: Number | None = None
    """Cost over lower bound, less 1."""
    served_fraction: Number | None = None
    """The largest share of the demand that can be served within the SLA."""
    admissible: Number | None = None
    """Demand that can be served within the SLA, in the pipeline's unit: the ingress sheds the rest. Absent: all.

    While replicas start it is what those can serve that have started, where that is less."""
    stages: Annotated[list[StageStatus], ListMap(key="name"), Field(max_length=20)] = Field(default_factory=list)
    """The stages."""
    last_decision: DecisionStatus | None = None
    """The last decision that changed something, or would have."""
    memory: MemoryStatus | None = None
    """What the operator remembers. Not an interface."""
