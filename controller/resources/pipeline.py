"""The SpeechPipeline resource as a user writes it: stages, placements, and what is asked of them together."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from controller.resources.base import Constraint, ListMap, Part, constraint
from controller.resources.fields import DecimalString, Duration, PositiveDuration, Query, Ratio
from controller.resources.metadata import Metadata
from controller.resources.pipeline_rules import MAX_STAGES, PIPELINE_CONSTRAINTS
from controller.resources.pipeline_status import PipelineStatus
from controller.resources.placement import Replicas
from controller.resources.stage import Stage


class Demand(Part):
    """The load offered to the pipeline, read where it enters."""

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
    )

    unit: Literal["Streams", "Requests"]
    """What is counted: concurrent streams, each offering one item per chunk, or requests per second."""
    chunk: PositiveDuration | None = None
    """Streams only: the length of audio in one item. A stream offers 1 / chunk items per second."""
    query: Query
    """PromQL for the offered load in this unit, at the ingress: never the sum of what the reporting pods served."""


class Sla(Part):
    """What is promised: a percentile of the items is answered within the latency."""

    latency: PositiveDuration
    """From an item's arrival at the entry to the last stage's answer."""
    percentile: Annotated[int, Field(ge=50, le=99)] = 95
    """The share of items, in percent, that must be answered within the latency."""
    query: Query | None = None
    """PromQL for the measured end-to-end latency at the percentile, in seconds. Without it: composed of the stages."""
    max_wer: Ratio | None = None
    """Quality: placements that state a worse word error rate are not used."""


class Budget(Part):
    """What may be spent."""

    per_hour: DecimalString
    """USD per hour that are never exceeded, transitions included."""


class UpStep(Part):
    """How many replicas a stage may gain in one cycle: the larger of the two."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda step: step.percent > 0 or step.replicas > 0,
            cel="self.percent > 0 || self.replicas > 0",
            rule="percent or replicas must be above 0",
        ),
    )

    percent: Annotated[int, Field(ge=0, le=1000)] = 100
    """Share of the stage's replicas."""
    replicas: Replicas = 4
    """Number of replicas."""


class DownStep(UpStep):
    """How many replicas a stage may lose in one cycle: the larger of the two."""

    percent: Annotated[int, Field(ge=0, le=1000)] = 50
    """Share of the stage's replicas."""
    replicas: Replicas = 2
    """Number of replicas."""


class ScaleUp(Part):
    """How cautious to be with more demand."""

    stabilization: Duration = "0s"
    """Demand rises to the lowest forecast of this window."""
    max_step: UpStep = UpStep()
    """How much a stage may gain in one cycle."""


class ScaleDown(Part):
    """How cautious to be with less demand."""

    stabilization: Duration = "5m"
    """Demand falls to the highest forecast of this window."""
    max_step: DownStep = DownStep()
    """How much a stage may lose in one cycle."""
    drain: Duration = "60s"
    """How long a terminating replica may finish its sessions."""


class Scaling(Part):
    """How cautious to be with changes."""

    tolerance: Ratio = "0.1"
    """Act when the SLA would be missed, or when at least this share of the pipeline's cost is saved."""
    scale_up: ScaleUp = ScaleUp()
    """More demand."""
    scale_down: ScaleDown = ScaleDown()
    """Less demand."""


class PipelineSpec(Part):
    """What is asked: the load, the promise, the money, and the stages with their ways to run."""

    constraints: ClassVar[tuple[Constraint, ...]] = PIPELINE_CONSTRAINTS

    mode: Literal["Auto", "Recommend", "Paused"] = "Auto"
    """Auto acts; Recommend decides and reports but changes nothing; Paused does neither."""
    priority: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """Who is served first when the constraints cannot serve all: the higher."""
    demand: Demand
    """The load offered to the pipeline, read where it enters."""
    sla: Sla
    """What is promised."""
    budget: Budget
    """What may be spent."""
    scaling: Scaling = Scaling()
    """How cautious to be with changes."""
    stages: Annotated[list[Stage], ListMap(key="name"), Field(min_length=1, max_length=MAX_STAGES)]
    """The steps, each after those it takes from."""


class SpeechPipeline(Part):
    """A speech pipeline: stages that items go through, under a latency promise and a budget."""

    api_version: Literal["sluice.dev/v1alpha1"]
    """sluice.dev/v1alpha1"""
    kind: Literal["SpeechPipeline"]
    """SpeechPipeline"""
    metadata: Metadata
    """Standard object metadata; the name is a DNS label."""
    spec: PipelineSpec
    """What is asked."""
    status: PipelineStatus | None = None
    """What Sluice found and decided. Written by the operator."""
