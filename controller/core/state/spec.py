"""The declared pipelines and pools, validated, with defaults resolved and numbers in base units.

`controller.resources.translate` makes these values from custom resources.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache

from controller.core.state.cloud import AwsPrice, PriceQuote, Purchase, QuotaSource, node_key
from controller.core.state.schedule import CronWindows, DemandFloor
from optimizer.kv_cache import KvCacheShape
from optimizer.model import (
    Basis,
    BatchSettings,
    Cascade,
    Mixing,
    PipelineKey,
    Placement,
    PlacementKey,
    PlacementName,
    PoolName,
    Routing,
    ServiceLaw,
    Size,
    Sla,
    StageName,
)
from profiler.samples import Answer, Quantity, SeriesLabels

StageKey = tuple[PipelineKey, StageName]
"""The key of a stage in the fleet."""

PAUSE_ANNOTATION, PIN_ANNOTATION = "sluice.dev/pause", "sluice.dev/pin"
"""The annotations of a SpeechPipeline that pause it, and that pin the replicas of placements."""

UNDECLARED_SERVICE = ServiceLaw(fixed_s=0.05, cv=0.3)
"""Service law of a placement without `serviceTime`: a placeholder, in the range of speech models, that says nothing."""
UNDECLARED_CV = 0.3
"""Coefficient of variation of a placement whose `serviceTime` has no `cv`: typical of speech models."""
LEAST_OF_PREFILL = 0.01
NO_SLA_S = 100_000.0
"""The latency (s) that plans of a backlog keep, longer than a day: all that counts is that no queue grows."""
BELOW_LIVE = 1_000_000_001
"""By so much the priority of a backlog is lower than declared: below 0, the lowest of a pipeline without one."""
INTERRUPTIBLE = frozenset(
    {
        ("karpenter.sh/capacity-type", "spot"),
        ("eks.amazonaws.com/capacityType", "SPOT"),
        ("cloud.google.com/gke-spot", "true"),
        ("cloud.google.com/gke-preemptible", "true"),
        ("kubernetes.azure.com/scalesetpriority", "spot"),
    }
)
"""Labels that Karpenter, EKS, GKE and AKS give to nodes that the provider may take back at any time."""
UNDECLARED_STARTUP_S = 60.0
"""Start-up time of a placement without `startup`, in seconds: long enough to load a model of some gigabytes."""


class Mode(Enum):
    """What Sluice may change about a pipeline."""

    AUTO = "Auto"
    RECOMMEND = "Recommend"
    """Decide and report, but change nothing."""
    PAUSED = "Paused"


class DemandUnit(Enum):
    """The unit of a pipeline's load."""

    STREAMS = "Streams"
    REQUESTS = "Requests"
    ITEMS = "Items"
    """Items of a backlog: the demand to plan for is its pace, in items per second."""


class ColdStart(Enum):
    """What happens to load for which no replica is ready yet, because the pipeline was scaled to zero."""

    WAIT = "Wait"
    REFUSE = "Refuse"


class RuleMetric(Enum):
    """A metric of the stage that a threshold rule can use instead of a query."""

    P95 = "p95"
    UTILIZATION = "utilization"
    QUEUE = "queue"
    SESSIONS = "sessions"
    RX_QUEUE_PRESSURE = "rxQueuePressure"
    DEVICE_UTILIZATION = "deviceUtilization"
    DEVICE_HEADROOM = "deviceHeadroom"
    COLLECTIVE_ACTIVITY = "collectiveActivity"


@lru_cache(maxsize=1024)
def _key(stage: StageName, placement: PlacementName) -> PlacementKey:
    """Return the key of a placement: one object for all pipelines with these names, of which there are thousands."""
    return stage, placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A threshold rule: it adds `add_replicas` as a floor while a metric is above or below a threshold.

    Exactly one of `metric` and `query` is set, and exactly one of `above` and `below`. With `per_zone` the replicas are
    added for each zone, and again after every `cooldown_s` seconds in which the metric stays there. The floor ends when
    the metric has been clear for `cooldown_s` seconds.
    """

    name: str
    metric: RuleMetric | None
    query: str | None
    above: float | None
    below: float | None
    add_replicas: int
    per_zone: bool
    cooldown_s: float


GROUP_KIND = "AutoScalingGroup"
"""The kind of a target that is an Auto Scaling group of AWS."""
SET_KIND = "LeaderWorkerSet"
"""The kind of a target whose replicas are groups of pods."""
SERVE_KIND = "RayServe"
"""The kind of a target that is a deployment of a Ray Serve application."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeDeployment:
    """A deployment of an application of Ray Serve.

    `address` is the URL of Ray's dashboard, "": that of the head of the RayService named `service`. Without a `service`
    ("") it is scaled by Serve's own API. `worker_group` is the group of Ray workers that its replicas run on, "": any.
    """

    application: str
    deployment: str
    address: str = ""
    service: str = ""
    worker_group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A workload with a scale subresource, in the pipeline's namespace, an Auto Scaling group, or a Serve deployment.

    `serve` says which deployment it is, None for the other kinds; its `name` is then APPLICATION/DEPLOYMENT.
    """

    api_version: str
    kind: str
    name: str
    serve: ServeDeployment | None = None

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def heeds_costs(self) -> bool:
        """Whether its controller lets Sluice choose which replicas go, by their deletion costs."""
        return self.kind in ("Deployment", "ReplicaSet", GROUP_KIND)

    @property
    def is_group(self) -> bool:
        """Whether the target is an Auto Scaling group."""
        return self.kind == GROUP_KIND

    @property
    def identity(self) -> "Target":
        """Return what tells the workload from all others: a RayService is the same wherever its head answers."""
        if self.serve is None:
            return self
        address = "" if self.serve.service else self.serve.address
        return replace(self, serve=replace(self.serve, address=address, worker_group=""))

    @property
    def of_groups(self) -> bool:
        """Whether each replica of the target is a group of pods, one of which leads it."""
        return self.kind == SET_KIND


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """A key of a ConfigMap in the pipeline's namespace."""

    config_map: str
    key: str

    def __str__(self) -> str:
        return f"ConfigMap {self.config_map}, key {self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedBatching:
    """The batch limits and waits to choose from, and the key `at` which the choice is written for the servers."""

    at: ConfigKey
    sizes: tuple[int, ...]
    waits_s: tuple[float, ...]

    @property
    def unset(self) -> BatchSettings:
        """Return the settings of a server that finds no value: the largest limit, and the shortest wait."""
        return BatchSettings(limit=self.sizes[-1], wait_s=self.waits_s[0])

    def allows(self, settings: BatchSettings) -> bool:
        """Return whether `settings` are among those to choose from."""
        return settings.limit in self.sizes and settings.wait_s in self.waits_s

    def free(self, placement: Placement) -> Placement:
        """Return `placement` with the choice between all settings."""
        waits_s = self.waits_s if len(self.waits_s) > 1 else ()
        return replace(
            placement, batch_sizes=self.sizes, batch_wait_s=self.waits_s[0], batch_waits_s=waits_s, in_force=()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Which numbers of a placement the user declared; the others are placeholders.

    `service` is the mean service time, `cv` its coefficient of variation, `startup` the start-up time, and `memory` the
    session slots. Without `service` there is no declared `cv`.
    """

    service: bool = True
    cv: bool = True
    startup: bool = True
    memory: bool = True


def left_of_prefill(hit_rate: float) -> float:
    """Return the share of a prefill that is left where the prefix cache has `hit_rate` (0–1) of the tokens.

    The last token of a prompt is computed in any case.
    """
    return max(LEAST_OF_PREFILL, 1 - hit_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSpec:
    """A declared placement: `prior` has its bounds and the declared service law, `startup_s` is its start-up time.

    Where `declared` is false, `prior` and `startup_s` have the placeholders of this module, and no session slots.
    `source` and `confidence` say where the service law comes from and how reliable it is. `stated_per_instance` is the
    declared number of replicas per instance where the cluster shows another one, which is then in `prior`.
    `wer_by_slice` has the word error rates for slices of the audio, `prior` that of all. `prefix_hit_rate` is the share
    (0–1) of the tokens of prompts that need no prefill; the law in `prior` has what is left of it. `cache` is the KV
    cache that the session slots follow from, None where they are stated. `applied` is set where the operator writes the
    batch settings for the servers; in a cycle, `prior` then has those in force.
    """

    target: Target
    prior: Placement
    startup_s: float
    declared: Declared = Declared()
    source: str | None = None
    confidence: str | None = None
    stated_per_instance: Size | None = None
    wer_by_slice: Mapping[str, float] = field(default_factory=dict)
    prefix_hit_rate: float = 0.0
    cache: KvCacheShape | None = None
    applied: AppliedBatching | None = None

    def with_prefix_hits(self, rate: float) -> "PlacementSpec":
        """Return the placement with `rate` (0–1) of the tokens of prompts in the prefix cache: it shortens prefills."""
        law = self.prior.service
        kept = left_of_prefill(rate) / left_of_prefill(self.prefix_hit_rate)
        prior = replace(self.prior, service=replace(law, prefill_s=law.prefill_s * kept))
        return replace(self, prior=prior, prefix_hit_rate=rate)

    @property
    def name(self) -> PlacementName:
        """Return the name of the placement within its stage."""
        return self.prior.name

    @property
    def pool(self) -> PoolName:
        """Return the pool of the placement."""
        return self.prior.pool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcessWer:
    """A stated word error rate above its limit; of a slice of the audio, or None: of all."""

    wer: float
    limit: float
    of_slice: str | None = None

    @property
    def field(self) -> str:
        """Return the field of the limit."""
        return "maxWer" if self.of_slice is None else f"maxWerBySlice.{self.of_slice}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeSpec:
    """A declared cascade (`optimizer.model.Cascade`): `share` of the items go on to the placement `to`.

    `share` is the declared one until there is a measurement. `wer` is the word error rate of both models together,
    None: each counts with its share of the items. `alone` has what the placements state of their own models: the word
    error rate, and those by slice. `confidence` is what servers decide by.
    """

    to: PlacementName
    share: float
    declared_share: float
    wer: float | None = None
    confidence: float | None = None
    alone: Mapping[PlacementName, tuple[float | None, Mapping[str, float]]] = field(default_factory=dict)

    @property
    def planned(self) -> Cascade:
        """Return the cascade for plans."""
        return Cascade(to=self.to, share=self.share)

    def mixed(self, own: float | None, of_the_last: float | None) -> float | None:
        """Return the word error rate of both models, of which each makes its `own` on its items; None: not stated.

        It is too high where the first model errs most on the items that it passes on, as it should.
        """
        if own is None or of_the_last is None:
            return None
        return (1 - self.share) * own + self.share * of_the_last


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """A declared stage; `pass_ratio` is the prior, above 1 for fan-out.

    `after` has the earlier stages; empty: the load enters here.

    `metrics_model` is the model of the server that serves the stage, None for the only one. `metrics_answer` is the
    answer to which latencies are measured. `metrics_labels` are those of the servers' series, None for those that the
    operator is set to. Records of earlier versions have none of these.

    `shared_from` names the stage of another pipeline whose replicas serve this stage too, None where the stage has its
    own. It is then resolved by `controller.core.state.shared`: `placements` and what belongs to the servers are those
    of the other stage, and there are no rules. With a `cascade`, the word error rates of the first placements are those
    of the mixture.
    """

    name: StageName
    after: tuple[StageName, ...]
    pass_ratio: float
    routing: Routing
    queue_limit: int | None
    preset: str
    metrics_window_s: float
    metric_overrides: Mapping[Quantity, str]
    rules: tuple[Rule, ...]
    placements: tuple[PlacementSpec, ...]
    metrics_model: str | None = None
    metrics_answer: Answer = Answer.WHOLE
    metrics_labels: SeriesLabels | None = None
    shared_from: StageKey | None = None
    cascade: CascadeSpec | None = None

    def first(self, replicas: Mapping[PlacementKey, int]) -> tuple[PlacementKey, ...]:
        """Return the first placements of a cascade of which `replicas` has some; none without a cascade."""
        keys = [(self.name, own.name) for own in self.placements if self.cascade and own.name != self.cascade.to]
        return tuple(key for key in keys if replicas.get(key, 0) > 0)

    def with_share(self, share: float) -> "StageSpec":
        """Return the stage, which has a cascade, with `share` of its items going on.

        The word error rates of its first placements become those of the mixture.
        """
        assert self.cascade is not None
        cascade = replace(self.cascade, share=share)
        last_wer, last_by_slice = cascade.alone[cascade.to]

        def mixed(placement: PlacementSpec) -> PlacementSpec:
            wer, by_slice = cascade.alone[placement.name]
            if placement.name != cascade.to:
                wer = cascade.mixed(wer, last_wer) if cascade.wer is None else cascade.wer
                both = {name: cascade.mixed(own, last_by_slice.get(name)) for name, own in by_slice.items()}
                by_slice = {name: own for name, own in both.items() if own is not None}
            return replace(placement, prior=replace(placement.prior, wer=wer), wer_by_slice=by_slice)

        return replace(self, cascade=cascade, placements=tuple(map(mixed, self.placements)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPolicy:
    """The scaling limits in one direction: the stabilization window, and the step limit per stage and cycle.

    The step limit is the larger of `max_share` of the stage's replicas and `max_replicas`.
    """

    stabilization_s: float
    max_share: float
    max_replicas: int

    def most(self, replicas: int) -> int:
        """Return how many replicas a stage with `replicas` may gain or lose in one cycle.

        At least one: a share of zero replicas would keep a stage without replicas at zero.
        """
        return max(1, math.ceil(self.max_share * replicas - 1e-9), self.max_replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Limits on the changes to a pipeline. A terminating replica has `drain_s` seconds to finish its sessions.

    A pipeline without demand for `idle_after_s` seconds is scaled to zero, None: never. `cold_start` says what happens
    to its load while a stage has no ready replica, None: the user does not say. A session is cut, to move it off a
    crowded replica, once it has missed the SLA for `cut_cost_s` seconds, None: never. A session that is cut because its
    replica is no longer needed costs `session_cut_cost` (USD). `mixing` says which placements of a stage may be used
    together.
    """

    tolerance: float
    up: StepPolicy
    down: StepPolicy
    drain_s: float
    idle_after_s: float | None = None
    cold_start: ColdStart | None = None
    cut_cost_s: float | None = None
    session_cut_cost: float = 0.0
    mixing: Mixing = Mixing.OVERFLOW


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineQueries:
    """The PromQL for the demand of a pipeline and for its end-to-end latency.

    `latency` None: the latency is composed of the latencies of the stages.
    """

    demand: str
    latency: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySpec:
    """The demand of the last `seasons` seasons of `season_s` seconds, read every `step_s`; mirrors `demand.history`.

    `query` is its PromQL, None: that of the demand.
    """

    season_s: float
    seasons: int
    step_s: float
    query: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogSpec:
    """Work that can wait; mirrors `demand.backlog`. Exactly one of `deadline_s` and `within_s` is set.

    All items are to be done by `deadline_s` (seconds since the epoch), or `within_s` seconds after the backlog was last
    empty. With `shares_fragile` it may use interruptible pools that live pipelines name too.
    """

    deadline_s: float | None = None
    within_s: float | None = None
    shares_fragile: bool = False

    def due_s(self, begun_s: float) -> float:
        """Return the deadline of a backlog that was last empty at `begun_s`, in seconds since the epoch."""
        if self.deadline_s is not None:
            return self.deadline_s
        assert self.within_s is not None
        return begun_s + self.within_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A pause by annotation, which ends at `until_s`; None: when the annotation is removed."""

    until_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The replicas that an annotation sets for a placement until `until_s`; None: until the annotation is removed.

    In a cycle, `fits` of them are within the budgets and the pool; `short_of` names what has no room for the others.
    """

    replicas: int
    until_s: float | None = None
    fits: int | None = None
    short_of: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What the annotations of a SpeechPipeline set for a time, beside its spec.

    `problems` has a text for each part of an annotation that is ignored, because it is not valid.
    """

    pause: Pause | None = None
    pins: Mapping[PlacementKey, Pin] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


NO_OVERRIDES = Overrides()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """A declared SpeechPipeline; mirrors the resource. `chunk_s` is set for unit Streams: a stream offers 1 / `chunk_s`
    items per second. `at_least` is the demand that is known in advance. `sheds` says that the ingress keeps the load
    within `status.admissible`. `declared_basis` is `budget.basis`; without one `with_basis` chooses it, and the
    replicas' shares count where it has not. `overrides` are those of its annotations. `history` is None without
    `demand.history`. `backlog` is set for work that can wait: it has no latency SLA, `queries.demand` has its
    items, and `priority` is below that of every pipeline without a backlog.
    """

    key: PipelineKey
    namespace: str
    name: str
    uid: str
    generation: int
    mode: Mode
    priority: int
    unit: DemandUnit
    chunk_s: float | None
    queries: PipelineQueries
    sla: Sla
    max_wer: float | None
    budget_per_hour: float
    scaling: Scaling
    stages: tuple[StageSpec, ...]
    at_least: tuple[DemandFloor, ...] = ()
    sheds: bool = True
    declared_basis: Basis | None = None
    overrides: Overrides = NO_OVERRIDES
    max_wer_by_slice: Mapping[str, float] = field(default_factory=dict)
    history: HistorySpec | None = None
    backlog: BacklogSpec | None = None

    def excess_wer(self, placement: PlacementSpec) -> ExcessWer | None:
        """Return by what a placement breaks `sla.maxWer` or `sla.maxWerBySlice`; None where it states nothing worse."""
        wer = placement.prior.wer
        if wer is not None and self.max_wer is not None and wer > self.max_wer:
            return ExcessWer(wer=wer, limit=self.max_wer)
        for name, limit in self.max_wer_by_slice.items():
            own = placement.wer_by_slice.get(name)
            if own is not None and own > limit:
                return ExcessWer(wer=own, limit=limit, of_slice=name)
        return None

    @property
    def basis(self) -> Basis:
        """Return what the budget and the cost of the pipeline count."""
        return self.declared_basis or Basis.REPLICAS

    def placement_keys(self) -> tuple[PlacementKey, ...]:
        """Return the key of every placement, in the order declared."""
        return tuple(_key(stage.name, own.name) for stage in self.stages for own in stage.placements)

    def placements(self) -> Mapping[PlacementKey, PlacementSpec]:
        """Return every placement by its key, in the order declared."""
        return {_key(stage.name, own.name): own for stage in self.stages for own in stage.placements}

    @property
    def borrowed(self) -> Mapping[StageName, StageKey]:
        """Return the stages that replicas of another pipeline serve, each with the stage that these belong to."""
        return {stage.name: stage.shared_from for stage in self.stages if stage.shared_from is not None}

    @property
    def items_per_unit_s(self) -> float:
        """Return the items per second at the entry that one unit of demand offers."""
        return 1.0 if self.chunk_s is None else 1.0 / self.chunk_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPeriod:
    """A time in which a ComputeBudget is `per_hour` USD instead of its usual amount."""

    per_hour: float
    windows: CronWindows


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One of the `matchExpressions` of a label selector. Its text is as in a query to the API server."""

    key: str
    operator: str
    values: frozenset[str]

    def __str__(self) -> str:
        match self.operator:
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
        return f"{self.key} {self.operator.lower()} ({','.join(sorted(self.values))})"

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether `labels` meet the requirement; one with an unknown operator is never met."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSelector:
    """A label selector: an object must have all of `labels` and meet all `requirements`."""

    labels: Mapping[str, str]
    requirements: tuple[Requirement, ...] = ()

    def __str__(self) -> str:
        return ",".join([*(f"{key}={value}" for key, value in self.labels.items()), *map(str, self.requirements)])

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the selector matches an object with `labels`."""
        return self.labels.items() <= labels.items() and all(one.holds(labels) for one in self.requirements)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpec:
    """A declared ComputeBudget: a cap on what the pipelines in the namespaces of `selector` cost together.

    It is `per_hour` USD, or that of the periods that are open.
    """

    name: str
    uid: str
    generation: int
    selector: LabelSelector
    per_hour: float
    periods: tuple[BudgetPeriod, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """A declared ComputePool.

    Its bounds, of which the smallest counts: `instances`, the limits of the Karpenter NodePool `node_pool`, the MaxSize
    of the Auto Scaling group `auto_scaling_group`, what the `quota` of the account leaves, and with `ready_nodes` the
    ready nodes. Records of earlier versions have `instances` only. `node_prices_per_hour` has the prices in USD per
    hour of nodes by instance type; other nodes cost `price_per_hour`. `looked_up` is the look-up that `price_per_hour`
    comes from, and `price` its answer; both are None for a price that is declared.
    """

    name: PoolName
    uid: str
    generation: int
    device: str
    node_selector: Mapping[str, str]
    price_per_hour: float
    instances: int | None
    pending_deadline_s: float
    backoff_initial_s: float
    backoff_max_s: float
    node_pool: str | None = None
    ready_nodes: bool = False
    node_prices_per_hour: Mapping[str, float] = field(default_factory=dict)
    looked_up: AwsPrice | None = None
    price: PriceQuote | None = None
    quota: QuotaSource | None = None
    auto_scaling_group: str | None = None

    @property
    def fixed(self) -> bool:
        """Whether the ready nodes are a bound. They are the only one of a pool that names none, as in old records."""
        return self.ready_nodes or (self.instances is None and not self.elastic and self.quota is None)

    @property
    def fragile(self) -> bool:
        """Return whether the provider may take the nodes back: they are bought as spot instances, or labelled so."""
        bought = [source.purchase for source in (self.looked_up, self.quota) if source is not None]
        return Purchase.SPOT in bought or not INTERRUPTIBLE.isdisjoint(self.node_selector.items())

    @property
    def elastic(self) -> bool:
        """Return whether nodes are made when replicas need them, and removed when they are empty."""
        return self.node_pool is not None or self.auto_scaling_group is not None

    @property
    def launcher(self) -> str:
        """Return what makes the nodes of an elastic pool, such as `NodePool gpu`."""
        if self.auto_scaling_group is not None:
            return f"Auto Scaling group {self.auto_scaling_group}"
        return f"NodePool {self.node_pool}"

    def node_price_per_hour(self, instance_type: str, zone: str = "") -> float:
        """Return the price of a node of `instance_type` in `zone` in USD per hour."""
        prices = self.price.by_node if self.price is not None else self.node_prices_per_hour
        zonal = prices.get(node_key(instance_type, zone))
        return prices.get(instance_type, self.price_per_hour) if zonal is None else zonal

    def replica_price_per_hour(self, per_instance: Size) -> float:
        """Return the price of one replica in USD per hour, where `per_instance` replicas share an instance."""
        return self.price_per_hour / per_instance


def live_pools(specs: Iterable[PipelineSpec]) -> frozenset[PoolName]:
    """Return the pools that those of `specs` name that have no backlog."""
    return frozenset(own.pool for spec in specs if spec.backlog is None for own in spec.placements().values())


def with_basis(spec: PipelineSpec, pools: Mapping[PoolName, PoolSpec]) -> PipelineSpec:
    """Return `spec` with whole instances as basis where it declares no basis and may use an elastic pool."""
    if spec.declared_basis is not None:
        return spec
    elastic = any(own.pool in pools and pools[own.pool].elastic for own in spec.placements().values())
    return replace(spec, declared_basis=Basis.INSTANCES) if elastic else spec
