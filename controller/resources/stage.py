"""A stage of a pipeline: its predecessors, routing, metrics, rules and placements."""

from decimal import Decimal
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from controller.resources.base import Constraint, ListMap, ListSet, Part, constraint
from controller.resources.fields import (
    DecimalString,
    Duration,
    Label,
    MemoryQuantity,
    MetricsWindow,
    ModelName,
    PassRatio,
    PodSeriesLabel,
    Query,
    Ratio,
    SeriesLabel,
    SeriesValue,
    duration_s,
)
from controller.resources.placement import Memory, Placement, Workload
from optimizer.model import InvalidProblem, Link
from profiler.samples import Answer, Quantity

CONTINUOUS_PRESETS = ("vllm",)
"""Presets of servers that batch continuously, unless the placement says otherwise."""
MAX_AFTER = 16
MAX_PLACEMENTS = 8


class MetricOverride(Part):
    """A user's query for one quantity, which replaces the preset's."""

    quantity: Annotated[Quantity, Field(strict=False)]
    """The quantity that the query measures."""
    query: Query
    """PromQL for the quantity."""


class LabelMatch(Part):
    """A label that series must have."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda match: not match.value.startswith("~"),
            cel="!self.value.startsWith('~')",
            rule="must not begin with ~: the value is compared as it is, not as a regular expression",
            field="value",
        ),
    )

    label: SeriesLabel
    """Name of the label, such as cluster."""
    value: SeriesValue
    """Its value."""


class MetricLabels(Part):
    """The labels of the servers' series. They replace those that the operator is set to."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda labels: labels.namespace != labels.pod,
            cel="self.__namespace__ != self.pod",  # CEL reserves the word, so the API server escapes it
            rule="must not be the label that has the namespace",
            field="pod",
        ),
    )

    namespace: PodSeriesLabel = "namespace"
    """Name of the label that has the namespace of the pod, such as exported_namespace."""
    pod: PodSeriesLabel = "pod"
    """Name of the label that has the name of the pod, such as exported_pod."""
    match: Annotated[list[LabelMatch], ListMap(key="label"), Field(max_length=8)] = Field(default_factory=list)
    """Labels that the series must have, such as cluster where several clusters share a back end."""


class Metrics(Part):
    """How to read the metrics of the stage's servers."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda metrics: metrics.model is None or metrics.preset not in {"generic", "ray-serve"},
            cel="!has(self.model) || !(self.preset in ['generic', 'ray-serve'])",
            rule="not allowed with presets generic and ray-serve, whose metrics name no model",
            field="model",
        ),
        constraint(
            holds=lambda metrics: metrics.answer is None or metrics.preset not in {"generic", "ray-serve", "triton"},
            cel="!has(self.answer) || !(self.preset in ['generic', 'ray-serve', 'triton'])",
            rule="needs preset vllm or one of your own: these servers do not measure the first token of an answer",
            field="answer",
        ),
    )

    preset: Label = "generic"
    """The kind of server, which determines the metric names: generic, ray-serve, triton, vllm, or one of your own."""
    model: ModelName | None = None
    """The model of the server that serves the stage, as the server labels it (Triton model, an ensemble included; vLLM
    model_name). Required only if a pod serves several models."""
    answer: Annotated[Answer, Field(strict=False)] | None = None
    """Where the latency of a streamed answer ends: First (its first token) or Whole (its end). By default Whole."""
    window: MetricsWindow = "1m"
    """Time window of rates and percentiles, at most 10m; use at least four scrape intervals. Where these are longer,
    the operator lengthens it."""
    labels: MetricLabels | None = None
    """The labels of the servers' series, by default those that the operator is set to. Only for Prometheus: direct
    scrapes know the pod."""
    overrides: Annotated[list[MetricOverride], ListMap(key="quantity"), Field(max_length=12)] = Field(
        default_factory=list
    )
    """Queries that replace those of the preset."""


_RATIOS = ("utilization", "rxQueuePressure", "deviceUtilization", "deviceHeadroom", "collectiveActivity")
_IS_RATIO = f"has(self.metric) && self.metric in {list(_RATIOS)}"


class ThresholdRule(Part):
    """Adds replicas to the plan while a metric is above or below a threshold."""

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
        constraint(
            holds=lambda rule: rule.metric not in _RATIOS or rule.above is None or Decimal(rule.above) < 1,
            cel=f"!({_IS_RATIO} && has(self.above)) || double(self.above) < 1.0",
            rule="must be less than 1: the metric is a ratio from 0 to 1, so the rule would never fire",
            field="above",
        ),
        constraint(
            holds=lambda rule: rule.metric not in _RATIOS or rule.below is None or 0 < Decimal(rule.below) <= 1,
            cel=f"!({_IS_RATIO} && has(self.below)) || (double(self.below) > 0.0 && double(self.below) <= 1.0)",
            rule="must be above 0 and at most 1: the metric is a ratio from 0 to 1",
            field="below",
        ),
    )

    name: Label
    """Name of the rule, unique within the stage."""
    metric: (
        Literal[
            "p95",
            "utilization",
            "queue",
            "sessions",
            "rxQueuePressure",
            "deviceUtilization",
            "deviceHeadroom",
            "collectiveActivity",
        ]
        | None
    ) = None
    """The metric: p95 in seconds; queue (waiting items) and sessions (streams), each the sum over all replicas of the
    stage; all others as ratios from 0 to 1. deviceUtilization is that of the accelerators of the replicas,
    deviceHeadroom what is left of it, and collectiveActivity the traffic of the links between them over their rate."""
    query: Query | None = None
    """PromQL to use instead of metric."""
    above: DecimalString | None = None
    """The rule fires while the value is above this threshold."""
    below: DecimalString | None = None
    """The rule fires while the value is below this threshold."""
    add_replicas: Annotated[int, Field(ge=1, le=1000)]
    """The stage's minimum becomes the replicas it had when the rule fired, plus this number. It rises again after every
    cooldown in which the rule still fires."""
    per: Literal["Zone"] | None = None
    """With Zone, addReplicas is multiplied by the number of zones in which the pool has ready nodes."""
    cooldown: Duration = "60s"
    """Time for which the rule must not fire before its replicas are removed, and time between two additions of replicas
    while it fires."""


class SharedFrom(Part):
    """The stage of another pipeline in the same namespace whose replicas serve this stage too."""

    pipeline: Label
    """Name of the pipeline that declares the stage with its placements."""
    stage: Label
    """Name of the stage there."""


class Transfer(Part):
    """What items carry to a replica of the stage, over a link of its own, one item after the other."""

    bytes_per_item: MemoryQuantity
    """Bytes of one item, such as 40Mi: the hidden states of an encoder, or the KV cache of a prompt."""
    bandwidth: MemoryQuantity
    """Bytes per second of the link of one replica, such as 3Gi."""
    fixed: Duration = "0s"
    """Additional time of each item, such as that of a round trip."""


class Cascade(Part):
    """A cheap model first, and a better one for the items that it is uncertain about."""

    to: Annotated[str, Field(min_length=1, max_length=127)]
    """Placement with the better model, as POOL or POOL:VARIANT. All other placements of the stage come first; while
    none of them has a replica, all items go to this one."""
    share: Ratio
    """Share of the items that go on to it. The initial estimate, replaced by measurement."""
    confidence: Ratio | None = None
    """Confidence below which the servers send an item on; for readers only."""
    wer: Ratio | None = None
    """Word error rate of both models together. By default each counts with its share of the items."""


def _way_back(memory: Memory | None) -> Link | None:
    """Return how sessions come back from swap; None where there is none, and where other rules are broken."""
    try:
        shape = None if memory is None else memory.shape
    except InvalidProblem:
        return None
    return None if shape is None else shape.swap_link


def _cascades_to_one(stage: "Stage") -> bool:
    names = [own.name for _, own in stage.workloads()]
    return stage.cascade is None or stage.placements is None or (stage.cascade.to in names and len(names) > 1)


_WORKLOADS = "self.placements.map(p, has(p.variants) ? p.variants.map(v, p.pool + ':' + v.name) : [p.pool])"
_HAVE_MEMORY = "has(p.memory) || has(p.variants) && p.variants.exists(v, has(v.memory))"
_HAVE_SWAP = (
    "has(p.memory) && has(p.memory.swap)"
    " || has(p.variants) && p.variants.exists(v, has(v.memory) && has(v.memory.swap))"
)


def _of_the_servers(name: str, field: str, unset: str) -> Constraint:
    """Return the rule that a shared stage does not declare `field`; `unset` is the CEL expression for its default."""

    def holds(stage: "Stage") -> bool:
        return stage.shared_from is None or not stage.declares(name)

    return constraint(
        holds=holds,
        cel=f"!has(self.sharedFrom) || ({unset})",
        rule="not allowed with sharedFrom: declare it at the stage that this one is shared from",
        field=field,
    )


_CONTINUOUS = (
    "(has(p.batching) && has(p.batching.kind) ? p.batching.kind == 'Continuous'"
    f" : has(self.metrics) && self.metrics.preset in {list(CONTINUOUS_PRESETS)})"
)


class Stage(Part):
    """A stage of the pipeline, served by the replicas of its placements, or by those of another pipeline's stage."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda stage: stage.placements is not None or stage.shared_from is not None,
            cel="has(self.placements) || has(self.sharedFrom)",
            rule="required without sharedFrom",
            field="placements",
        ),
        constraint(
            holds=lambda stage: stage.placements is None or stage.shared_from is None,
            cel="!has(self.placements) || !has(self.sharedFrom)",
            rule="not allowed with sharedFrom: the placements are those of the stage that it names",
            field="placements",
        ),
        _of_the_servers("routing", "routing", "!has(self.routing)"),
        # The API server fills in the default of metrics: only another value shows that it was set.
        _of_the_servers(
            "metrics",
            "metrics",
            "!has(self.metrics) || self.metrics.preset == 'generic' && self.metrics.window == '1m'"
            " && !has(self.metrics.labels) && (!has(self.metrics.overrides) || size(self.metrics.overrides) == 0)",
        ),
        _of_the_servers("transfer", "transfer", "!has(self.transfer)"),
        _of_the_servers("cascade", "cascade", "!has(self.cascade)"),
        _of_the_servers("queue_limit", "queueLimit", "!has(self.queueLimit)"),
        _of_the_servers("rules", "rules", "!has(self.rules) || size(self.rules) == 0"),
        constraint(
            holds=lambda stage: (
                stage.placements is None or any(own.placement.replicas.max >= 1 for _, own in stage.workloads())
            ),
            cel="!has(self.placements) || self.placements.exists(p, p.replicas.max >= 1 || has(p.variants))",
            rule="at least one placement must allow a replica (replicas.max of 1 or more)",
            field="placements",
        ),
        constraint(
            holds=lambda stage: len({stage.continuous(own.placement) for _, own in stage.workloads()}) <= 1,
            cel=f"!has(self.placements) || !self.placements.exists(p, {_CONTINUOUS})"
            f" || self.placements.all(p, {_CONTINUOUS})",
            rule="all placements must have the same batching.kind (by default Continuous with metrics.preset vllm,"
            " otherwise Dynamic)",
            field="placements",
        ),
        constraint(
            holds=lambda stage: all(
                stage.continuous(own.placement)
                for _, own in stage.workloads()
                if own.placement.service_time is not None and duration_s(own.placement.service_time.prefill) > 0
            ),
            cel="!has(self.placements) || self.placements.all(p, !has(p.serviceTime)"
            f" || duration(p.serviceTime.prefill) == duration('0s') || {_CONTINUOUS})",
            rule="serviceTime.prefill needs batching.kind Continuous",
            field="placements",
        ),
        constraint(
            holds=lambda stage: stage.transfer is None or all(way is None for way in stage.ways_back),
            cel=f"!has(self.transfer) || !has(self.placements) || !self.placements.exists(p, {_HAVE_SWAP})",
            rule="not allowed together with memory.swap",
            field="transfer",
        ),
        constraint(
            holds=lambda stage: len(set(stage.ways_back)) <= 1,
            cel=None,  # the time depends on the bytes of a session, by renewal theory
            rule="memory.swap must bring sessions back in the same time, with the same hit, in all placements",
            field="placements",
        ),
        constraint(
            holds=_cascades_to_one,
            cel=f"!has(self.cascade) || !has(self.placements) || {_WORKLOADS}.exists(n, self.cascade.to in n)"
            f" && {_WORKLOADS}.map(n, size(n)).sum() > 1",
            rule="must be one of at least two placements of the stage, as POOL or POOL:VARIANT",
            field="cascade.to",
        ),
        constraint(
            holds=lambda stage: (
                stage.cascade is None
                or (stage.routing != "Sticky" and all(own.placement.memory is None for _, own in stage.workloads()))
            ),
            cel="!has(self.cascade) || (!has(self.routing) || self.routing != 'Sticky')"
            f" && (!has(self.placements) || !self.placements.exists(p, {_HAVE_MEMORY}))",
            rule="not allowed where sessions stay with a replica (memory, or routing Sticky)",
            field="cascade",
        ),
        constraint(
            holds=lambda stage: (
                stage.cascade is None or all(own.placement.service_time is not None for _, own in stage.workloads())
            ),
            cel="!has(self.cascade) || !has(self.placements) || self.placements.all(p, has(p.serviceTime)"
            " || has(p.variants) && p.variants.all(v, has(v.serviceTime)))",
            rule="needs the serviceTime of all placements: a first replica to measure it would get all items",
            field="cascade",
        ),
    )

    name: Label
    """Name of the stage, unique within the pipeline."""
    after: Annotated[list[Label] | None, ListSet(), Field(max_length=MAX_AFTER)] = None
    """Earlier stages whose items it takes. By default the previous stage; [] makes it an entry of the pipeline. With
    several, an item waits until all of them have passed it on."""
    pass_ratio: PassRatio = "1"  # noqa: S105 - not a password
    """Items that it passes on per item that it takes: below 1 for a filter, above 1 for fan-out such as n-best. The
    initial estimate, replaced by measurement."""
    routing: Literal["Pull", "RoundRobin", "LeastLoaded", "Random", "Sticky"] | None = None
    """How items are distributed to the replicas. By default Sticky if a placement has memory, else LeastLoaded."""
    transfer: Transfer | None = None
    """What items carry to a replica of this stage. It adds latency, and its link may be what bounds the replica. By
    default items are there at once."""
    cascade: Cascade | None = None
    """A cheap model first, and a better one for the items that it is uncertain about. By default the placements serve
    beside one another."""
    metrics: Metrics = Metrics()
    """How to read the metrics of the stage's servers."""
    queue_limit: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Maximum number of items that wait per replica; further items are refused. By default there is no limit."""
    rules: Annotated[list[ThresholdRule], ListMap(key="name"), Field(max_length=8)] = Field(default_factory=list)
    """Rules that add replicas to the plan."""
    placements: Annotated[
        list[Placement] | None, ListMap(key="pool"), Field(min_length=1, max_length=MAX_PLACEMENTS)
    ] = None
    """Where the stage can run: one placement per pool, in order of preference. Required without sharedFrom."""
    shared_from: SharedFrom | None = None
    """A stage of another pipeline in the same namespace whose replicas serve this stage too; instead of placements,
    routing, transfer, cascade, metrics, queueLimit and rules. That pipeline scales them, for the load of all; each pays
    for its share."""

    def continuous(self, placement: Placement) -> bool:
        """Return whether the servers of a placement of this stage batch continuously."""
        kind = None if placement.batching is None else placement.batching.kind
        return self.metrics.preset in CONTINUOUS_PRESETS if kind is None else kind == "Continuous"

    def workloads(self) -> list[tuple[int, Workload]]:
        """Return the workloads of the placements, each after the index of its placement."""
        return [(index, own) for index, placement in enumerate(self.placements or ()) for own in placement.workloads()]

    @property
    def ways_back(self) -> list[Link | None]:
        """Return how idle sessions come back to the devices of each workload."""
        return [_way_back(own.placement.memory) for _, own in self.workloads()]

    def declares(self, name: str) -> bool:
        """Return whether the field `name` has another value than its default."""
        return bool(getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True))
