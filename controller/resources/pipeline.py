"""The SpeechPipeline resource: stages with their placements, demand, SLA and budget."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from controller.resources.backlog import Backlog
from controller.resources.base import Constraint, ListMap, Part, constraint
from controller.resources.fields import DecimalString, Duration, PositiveDuration, Query, Ratio
from controller.resources.history import History
from controller.resources.metadata import Metadata
from controller.resources.pipeline_rules import MAX_STAGES, PIPELINE_CONSTRAINTS
from controller.resources.pipeline_status import NOT_ASSESSED, PipelineStatus
from controller.resources.placement import Replicas, SliceRates
from controller.resources.schedule import MAX_FLOORS, ExpectedDemand, LeastDemand
from controller.resources.stage import Stage


def _known_in_advance(demand: "Demand") -> bool:
    return bool(demand.chunk or demand.history or demand.at_least or demand.expected)


class Demand(Part):
    """The load offered to the pipeline, measured at its ingress."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda demand: demand.unit != "Streams" or demand.chunk is not None,
            cel="self.unit != 'Streams' || has(self.chunk)",
            rule="required with unit Streams",
            field="chunk",
        ),
        constraint(
            holds=lambda demand: demand.unit != "Requests" or demand.chunk is None,
            cel="self.unit != 'Requests' || !has(self.chunk)",
            rule="not allowed with unit Requests",
            field="chunk",
        ),
        constraint(
            holds=lambda demand: (demand.unit == "Items") == (demand.backlog is not None),
            cel="(self.unit == 'Items') == has(self.backlog)",
            rule="required with unit Items, and not allowed with another unit",
            field="backlog",
        ),
        constraint(
            holds=lambda demand: (demand.query is None) == (demand.backlog is not None),
            cel="has(self.query) != has(self.backlog)",
            rule="required without backlog, and not allowed beside it: backlog.query has the items left",
            field="query",
        ),
        constraint(
            holds=lambda demand: demand.backlog is None or not _known_in_advance(demand),
            cel="!has(self.backlog) || (!has(self.chunk) && !has(self.history)"
            " && (!has(self.atLeast) || self.atLeast.size() == 0)"
            " && (!has(self.expected) || self.expected.size() == 0))",
            rule="must have no chunk, atLeast, expected and history beside it: its deadline decides its pace",
            field="backlog",
        ),
    )

    unit: Literal["Streams", "Requests", "Items"]
    """Unit of the demand: Streams (concurrent streams, each offering one item per chunk), Requests (per second), or
    Items (of a backlog, which can wait)."""
    chunk: PositiveDuration | None = None
    """Length of audio in one item; only with unit Streams. A stream offers 1 / chunk items per second."""
    query: Query | None = None
    """PromQL for the offered load in this unit, measured at the ingress. Do not sum what the pods have served: pods
    that do not report would be missing. Required without backlog."""
    backlog: Backlog | None = None
    """Work that can wait, with unit Items: it has a deadline and no latency SLA. It gets what live pipelines leave of
    pools and budgets, and gives it back first."""
    at_least: Annotated[list[LeastDemand], ListMap(key="name"), Field(max_length=MAX_FLOORS)] = Field(
        default_factory=list
    )
    """Demand that is known in advance, such as business hours. The planned demand is not below the highest entry that
    is active now or will be before a replica that is started now is ready."""
    admission: Literal["Shed", "None"] = "Shed"
    """Whether the ingress sheds the load above status.admissible. None: nothing sheds; status.admissible is absent, and
    plans count on all of the load."""
    expected: Annotated[list[ExpectedDemand], Field(max_length=MAX_FLOORS)] = Field(default_factory=list)
    """Events that are known in advance and repeat, as cron schedules. They count as the entries of atLeast do: from one
    start-up time before the event until its end."""
    history: History | None = None
    """Past demand that repeats, such as daily. Replicas are started one start-up before a rise that past seasons had,
    as far as they predicted the recent hours; no replica is removed shortly before one. By default off."""


class Sla(Part):
    """The service level: a percentile of the items is answered within the latency."""

    latency: PositiveDuration
    """Maximum time from an item's arrival at the pipeline to the response of the last stage."""
    percentile: Annotated[int, Field(ge=50, le=99)] = 95
    """Percentage of the items that must be answered within the latency."""
    query: Query | None = None
    """PromQL for the measured end-to-end latency at the percentile, in seconds. By default it is computed from the
    latencies of the stages."""
    max_wer: Ratio | None = None
    """Maximum word error rate: placements and variants with a higher wer are not used."""
    max_wer_by_slice: SliceRates | None = None
    """Maximum word error rate for slices of the audio, such as {noisy: "0.15"}: placements and variants whose
    werBySlice states a higher one are not used."""


class Budget(Part):
    """The limit on spend."""

    per_hour: DecimalString
    """Limit on the pipeline's spend in USD per hour, including replicas that overlap during a change."""
    basis: Literal["Replicas", "Instances"] | None = None
    """What spend, cost and limit count. Replicas: the replicas' shares of instances, at price.perHour of their pools.
    Instances: the whole nodes that the replicas take, each at its own price; pipelines on one node share its price in
    proportion. By default Instances for a pipeline that may use an elastic pool, otherwise Replicas."""


class UpStep(Part):
    """Maximum number of replicas that a stage may gain in one cycle: the larger of percent and replicas."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda step: step.percent > 0 or step.replicas > 0,
            cel="self.percent > 0 || self.replicas > 0",
            rule="percent or replicas must be above 0",
        ),
    )

    percent: Annotated[int, Field(ge=0, le=1000)] = 100
    """Percentage of the stage's replicas."""
    replicas: Replicas = 4
    """Number of replicas."""


class DownStep(UpStep):
    """Maximum number of replicas that a stage may lose in one cycle: the larger of percent and replicas."""

    percent: Annotated[int, Field(ge=0, le=1000)] = 50
    """Percentage of the stage's replicas."""
    replicas: Replicas = 2
    """Number of replicas."""


class ScaleUp(Part):
    """How to follow rising demand."""

    stabilization: Duration = "0s"
    """Plan for more demand only up to the lowest forecast of this window."""
    max_step: UpStep = UpStep()
    """Maximum number of replicas that a stage may gain in one cycle."""


class ScaleDown(Part):
    """How to follow falling demand."""

    stabilization: Duration = "5m"
    """Plan for less demand only down to the highest forecast of this window."""
    max_step: DownStep = DownStep()
    """Maximum number of replicas that a stage may lose in one cycle."""
    drain: Duration = "60s"
    """Time that a terminating replica has to finish its sessions."""


class Rebalance(Part):
    """What happens to sticky sessions that stay on too few replicas, where the ingress does not move them."""

    mode: Literal["Drain", "Never"] = "Never"
    """Drain: the fullest replica is removed, one at a time, once the others can take its sessions, which are cut and
    come back elsewhere; replicas are added first where room is missing. Never: Sluice cuts no session for this."""
    cut_cost: Duration = "60s"
    """What a cut costs: a session is cut once it has missed the SLA for this time because its replica is crowded."""


class Scaling(Part):
    """How fast and how readily to change replicas."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda scaling: scaling.cold_start is None or scaling.idle_after is not None,
            cel="!has(self.coldStart) || has(self.idleAfter)",
            rule="allowed only with idleAfter: without it no stage goes to zero",
            field="coldStart",
        ),
    )

    tolerance: Ratio = "0.1"
    """Minimum saving, as a share of the pipeline's cost, for which replicas change while the SLA is met."""
    mixing: Literal["Free", "Overflow"] = "Overflow"
    """When a stage uses several placements at once. Overflow: a further one only when those before it are full or at
    their bounds. Free: also any two together where that costs less; it pays where a stage needs few instances, and a
    plan takes about four times as long."""
    scale_up: ScaleUp = ScaleUp()
    """How to follow rising demand."""
    scale_down: ScaleDown = ScaleDown()
    """How to follow falling demand."""
    idle_after: Duration | None = None
    """Time without demand after which stages whose placements all have replicas.min 0 go to zero replicas; at least
    scaleDown.stabilization. As soon as there is demand, each stage gets replicas again. By default, every stage keeps
    at least one."""
    cold_start: Literal["Wait", "Refuse"] | None = None
    """What happens to load while a stage has no ready replica. Wait: all of it is admitted. Refuse: status.admissible
    is 0, also before the first demand; demand.query must count what is refused. By default, load is admitted until the
    first cycle sees it, then as far as ready replicas have session slots."""
    rebalance: Rebalance = Rebalance()
    """What happens to sticky sessions that stay on too few replicas, where the ingress does not move them."""
    session_cut_cost: DecimalString = "0"
    """Cost of a session that is cut because its replica is no longer needed, in USD. Such a replica stays until it has
    cost as much as the cuts of its sessions would. If its pod has the label sluice.dev/sessions, Sluice sets it to
    closed meanwhile: the Service selects open, so that new sessions go elsewhere. 0: replicas do not wait."""


class PipelineSpec(Part):
    """The desired state: demand, SLA, budget, and the stages with their placements."""

    constraints: ClassVar[tuple[Constraint, ...]] = PIPELINE_CONSTRAINTS

    mode: Literal["Auto", "Recommend", "Paused"] = "Auto"
    """Auto scales; Recommend plans and reports without scaling; Paused does neither. A workload belongs to one pipeline
    in mode Auto; others may name it as well."""
    priority: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """Pipelines with a higher priority are served first when capacity is short."""
    demand: Demand
    """The load offered to the pipeline, measured at its ingress."""
    sla: Sla | None = None
    """The service level: a percentile of the items is answered within the latency. Required without
    demand.backlog."""
    budget: Budget
    """The limit on spend."""
    scaling: Scaling = Scaling()
    """How fast and how readily to change replicas."""
    stages: Annotated[list[Stage], ListMap(key="name"), Field(min_length=1, max_length=MAX_STAGES)]
    """The stages; each comes later in the list than the stages it takes items from."""


class SpeechPipeline(Part):
    """A speech pipeline: stages that items pass through, with a latency SLA and a budget."""

    api_version: Literal["sluice.dev/v1alpha1"]
    """sluice.dev/v1alpha1"""
    kind: Literal["SpeechPipeline"]
    """SpeechPipeline"""
    metadata: Metadata
    """Standard object metadata; the name is a DNS label."""
    spec: PipelineSpec
    """The desired state."""
    status: Annotated[PipelineStatus | None, Field(json_schema_extra={"default": NOT_ASSESSED})] = None
    """The observed state and the last decision. Written by the operator."""
