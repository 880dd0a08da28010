"""A stage of a pipeline: what it takes, how items reach its replicas, its metrics, rules and placements."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from controller.resources.base import Constraint, ListMap, ListSet, Part, constraint
from controller.resources.fields import DecimalString, Duration, Label, PositiveDuration, PositiveRatio, Query
from controller.resources.placement import Placement
from profiler.samples import Quantity

MAX_AFTER = 16
MAX_PLACEMENTS = 8


class MetricOverride(Part):
    """A query of the user's own for one quantity, instead of the preset's."""

    quantity: Annotated[Quantity, Field(strict=False)]
    """What it measures."""
    query: Query
    """PromQL."""


class Metrics(Part):
    """How the servers of the stage are read."""

    preset: Literal["generic", "triton", "vllm"] = "generic"
    """The server's metric names."""
    window: PositiveDuration = "1m"
    """Rates and percentiles are over this time; at least four scrape intervals."""
    overrides: Annotated[list[MetricOverride], ListMap(key="quantity"), Field(max_length=12)] = Field(
        default_factory=list
    )
    """Queries that replace the preset's."""


class ThresholdRule(Part):
    """A floor on top of the plan: while a metric is beyond its threshold, the stage has so many replicas more."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda rule: (rule.metric is None) != (rule.query is None),
            cel="has(self.metric) != has(self.query)",
            rule="needs exactly one of metric and query",
        ),
        constraint(
            holds=lambda rule: (rule.above is None) != (rule.below is None),
            cel="has(self.above) != has(self.below)",
            rule="needs exactly one of above and below",
        ),
    )

    name: Label
    """Unique within the stage."""
    metric: Literal["p95", "utilization", "queue", "sessions", "rxQueuePressure"] | None = None
    """What is looked at: p95 in seconds; queue in waiting items and sessions in streams, both over all replicas of the
    stage; utilization and rxQueuePressure as shares from 0 to 1."""
    query: Query | None = None
    """PromQL for what is looked at, instead of metric."""
    above: DecimalString | None = None
    """Fires while the value is above."""
    below: DecimalString | None = None
    """Fires while the value is below."""
    add_replicas: Annotated[int, Field(ge=1, le=1000)]
    """The floor is the replicas the stage had when the rule fired, and these."""
    per: Literal["Zone"] | None = None
    """Zone: addReplicas for each zone that the pool has ready nodes in."""
    cooldown: Duration = "60s"
    """The floor stays until the metric has been clear for so long."""


class Stage(Part):
    """A step of the pipeline, run by the replicas of its placements."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda stage: any(placement.replicas.max >= 1 for placement in stage.placements),
            cel="self.placements.exists(p, p.replicas.max >= 1)",
            rule="at least one placement must allow a replica (replicas.max of 1 or more)",
            field="placements",
        ),
        constraint(
            holds=lambda stage: (
                all(rule.metric != "sessions" for rule in stage.rules)
                or any(placement.memory is not None for placement in stage.placements)
            ),
            cel="!has(self.rules) || self.rules.all(r, !has(r.metric) || r.metric != 'sessions')"
            " || self.placements.exists(p, has(p.memory))",
            rule="metric sessions needs a placement with memory",
            field="rules",
        ),
    )

    name: Label
    """Unique within the pipeline."""
    after: Annotated[list[Label] | None, ListSet(), Field(max_length=MAX_AFTER)] = None
    """Earlier stages it takes from. Without it: the stage before. []: the entry. Two or more: an item waits for all."""
    pass_ratio: PositiveRatio = "1"  # noqa: S105 - not a password
    """Share of its items that it passes on: a prior, then measured."""
    routing: Literal["Pull", "RoundRobin", "LeastLoaded", "Random", "Sticky"] | None = None
    """How items reach the replicas. Without it: Sticky for a stage with memory, else LeastLoaded."""
    metrics: Metrics = Metrics()
    """How its servers are read."""
    queue_limit: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Items that may wait per replica; beyond it the stage refuses."""
    rules: Annotated[list[ThresholdRule], ListMap(key="name"), Field(max_length=8)] = Field(default_factory=list)
    """Floors on top of the plan."""
    placements: Annotated[list[Placement], ListMap(key="pool"), Field(min_length=1, max_length=MAX_PLACEMENTS)]
    """Ways to run it, one per pool, in order of preference."""
