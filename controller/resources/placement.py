"""A placement: one way to run a stage, on one pool, with initial estimates of its service time and capacity."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from sys import intern
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from controller.core.state.spec import GROUP_KIND, SERVE_KIND, SET_KIND, ServeDeployment
from controller.core.state.spec import Target as TargetSpec
from controller.resources.base import Constraint, ListMap, ListSet, Part, constraint
from controller.resources.fields import (
    DROP_NULLS,
    Address,
    ApiVersion,
    ConfigKey,
    DecimalString,
    Duration,
    Kind,
    Label,
    MemoryQuantity,
    PositiveDuration,
    Ratio,
    ServeName,
    Subdomain,
    duration_s,
    quantity_bytes,
)
from controller.resources.manifests import FieldPath
from optimizer.kv_cache import KvCacheShape, SessionGrowth, SwapSpace
from optimizer.model import InvalidProblem, PlacementName, placement_name

Count = Annotated[int, Field(ge=1, le=1024)]
Replicas = Annotated[int, Field(ge=0, le=10_000)]
GroupSize = Annotated[int, Field(ge=1, le=64)]
MAX_VARIANTS = 8
MAX_WORKLOADS = 16
"""The most workloads of a stage: its placements, with each variant counted."""
_SIZE = "[1-9][0-9]{0,3}"
_OWN_KINDS = (GROUP_KIND, SERVE_KIND)
"""Kinds of targets that are no objects of the API server."""


class Target(Part):
    """A workload with a scale subresource, in the pipeline's namespace, an Auto Scaling group of AWS, or a deployment
    of Ray Serve."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda target: (target.kind in _OWN_KINDS) == (target.api_version == "sluice.dev/v1alpha1"),
            cel=f"(self.kind in {list(_OWN_KINDS)}) == (self.apiVersion == 'sluice.dev/v1alpha1')",
            rule=f"must be sluice.dev/v1alpha1 for kind {' and '.join(_OWN_KINDS)}, and for no other kind",
            field="apiVersion",
        ),
        constraint(
            holds=lambda target: target.name is not None or target.kind == SERVE_KIND,
            cel=f"has(self.name) || self.kind == '{SERVE_KIND}'",
            rule=f"needs name; only kind {SERVE_KIND} may do without",
        ),
        constraint(
            holds=lambda target: target.kind != SERVE_KIND or (target.application and target.deployment),
            cel=f"self.kind != '{SERVE_KIND}' || has(self.application) && has(self.deployment)",
            rule=f"kind {SERVE_KIND} needs application and deployment",
        ),
        constraint(
            holds=lambda target: target.kind != SERVE_KIND or target.name or target.address,
            cel=f"self.kind != '{SERVE_KIND}' || has(self.name) || has(self.address)",
            rule=f"kind {SERVE_KIND} needs name (of the RayService) or address",
        ),
        constraint(
            holds=lambda target: (
                target.kind == SERVE_KIND
                or (target.application, target.deployment, target.address, target.worker_group) == (None,) * 4
            ),
            cel=f"self.kind == '{SERVE_KIND}' || !has(self.application) && !has(self.deployment)"
            " && !has(self.address) && !has(self.workerGroup)",
            rule=f"application, deployment, address and workerGroup are of kind {SERVE_KIND} only",
        ),
    )

    api_version: ApiVersion
    """API version of the workload, such as apps/v1; sluice.dev/v1alpha1 for an Auto Scaling group and for Ray Serve."""
    kind: Kind
    """Kind of the workload, such as Deployment, AutoScalingGroup or RayServe. A group must have the tag
    sluice.dev/namespace with the namespace of the pipeline, and its instances are the replicas."""
    name: Subdomain | None = None
    """Name of the workload; for RayServe that of the RayService, if there is one."""
    application: ServeName | None = None
    """For RayServe: name of the Serve application."""
    deployment: ServeName | None = None
    """For RayServe: name of the deployment in the application; its replicas are those of the stage."""
    address: Address | None = None
    """For RayServe: URL of Ray's dashboard, such as http://captions-head-svc.speech.svc:8265; the host must be a
    Service of the pipeline's namespace, unless the operator allows others. By default that of the RayService."""
    worker_group: Label | None = None
    """For RayServe: the worker group of the RayService whose pods the replicas run in. By default any."""

    def reference(self) -> TargetSpec:
        """Return the target as the decision names it."""
        api_version, kind = intern(self.api_version), intern(self.kind)
        if self.kind != SERVE_KIND:
            return TargetSpec(api_version=api_version, kind=kind, name=self.name or "")
        serve = ServeDeployment(
            application=self.application or "",
            deployment=self.deployment or "",
            address=(self.address or "").rstrip("/"),
            service=self.name or "",
            worker_group=self.worker_group or "",
        )
        name = f"{serve.application}/{serve.deployment}"
        return TargetSpec(api_version=api_version, kind=kind, name=name, serve=serve)


class ReplicaBounds(Part):
    """Minimum and maximum number of replicas."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda bounds: bounds.min <= bounds.max,
            cel="self.min <= self.max",
            rule="must be at least min ({min})",
            field="max",
        ),
    )

    min: Replicas = 0
    """Minimum number of replicas; the budget takes precedence."""
    max: Replicas
    """Maximum number of replicas."""


_LINE = "duration(self.fixed) + duration(self.perItem) + duration(self.floor)"


def _line_s(time: "ServiceTime") -> float:
    return duration_s(time.fixed) + duration_s(time.per_item) + duration_s(time.floor)


def _are_sizes(names: Iterable[str]) -> bool:
    return all(re.fullmatch(_SIZE, name) for name in names)


def _never_falls(points: Mapping[str, str]) -> bool:
    times = [duration_s(points[size]) for size in sorted(points, key=int)]
    return times[0] > 0 and all(a <= b for a, b in pairwise(times))


class ServiceTime(Part):
    """Mean time to serve one batch of b items: the larger of floor and fixed + b × perItem, or interpolated between
    points. With continuous batching: the time of a mean request while b run. The initial estimate, corrected by
    measurement."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda time: time.points is not None or _line_s(time) > 0,
            cel=f"has(self.points) || {_LINE} > duration('0s')",
            rule="fixed, perItem or floor must be longer than 0s, unless there are points",
        ),
        constraint(
            holds=lambda time: time.points is None or _line_s(time) == 0,
            cel=f"!has(self.points) || {_LINE} == duration('0s')",
            rule="not allowed with fixed, perItem or floor: the points are the whole law",
            field="points",
        ),
        constraint(
            holds=lambda time: time.points is None or _are_sizes(time.points),
            cel=f"!has(self.points) || self.points.all(size, size.matches('{_SIZE}'))",
            rule='the names must be batch sizes in quotes, from "1" to "9999"',
            field="points",
        ),
        constraint(
            holds=lambda time: time.points is None or not _are_sizes(time.points) or _never_falls(time.points),
            cel=None,  # CEL cannot sort the names by their numbers
            rule="must be longer than 0s, and a larger batch must not take less time",
            field="points",
        ),
        constraint(
            holds=lambda time: time.prefix_hit_rate is None or duration_s(time.prefill) > 0,
            cel="!has(self.prefixHitRate) || duration(self.prefill) > duration('0s')",
            rule="needs prefill: the time of a whole prompt, of which a part is saved",
            field="prefixHitRate",
        ),
    )

    fixed: Duration = "0s"
    """Time per batch."""
    per_item: Duration = "0s"
    """Additional time per item of the batch."""
    floor: Duration = "0s"
    """Least time of a batch, however few items it has: the flat part of a roofline."""
    points: Annotated[dict[str, Duration] | None, Field(min_length=1, max_length=16)] = None
    """Times of batches by their size, such as {"1": 12ms, "4": 14ms, "16": 38ms}; instead of fixed, perItem and floor.
    Between the points it is interpolated, beyond the last one continued with the last slope."""
    prefill: Duration = "0s"
    """Only with continuous batching: time of a request's prefill, during which no other request progresses."""
    prefix_hit_rate: Ratio | None = None
    """Share of the tokens of prompts that the prefix cache has already: of prefill, the time of a whole prompt, the
    rest is left. The initial estimate, replaced by measurement where the server exports it (vLLM)."""
    cv: DecimalString | None = None
    """Coefficient of variation: standard deviation divided by mean. By default it is learned."""
    source: Annotated[str, Field(max_length=256)] | None = None
    """Source of these numbers, such as a benchmark; for readers only."""
    confidence: Literal["Low", "Medium", "High"] = "Low"
    """How much to trust these numbers before there are measurements: `sluice plan` widens its error bars by 50 % for
    Low, 25 % for Medium and 10 % for High."""


class ConfigMapKey(Part):
    """A key of a ConfigMap in the pipeline's namespace."""

    config_map: Subdomain
    """Name of the ConfigMap, which must exist."""
    key: ConfigKey
    """Key in its data."""


class Batching(Part):
    """How the server forms batches."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda batching: (batching.max is None) != (batching.sizes is None),
            cel="has(self.max) != has(self.sizes)",
            rule="needs exactly one of max and sizes",
        ),
        constraint(
            holds=lambda batching: batching.sizes is None or batching.sizes == sorted(batching.sizes),
            cel="!has(self.sizes) || self.sizes.isSorted()",
            rule="must be in increasing order",
            field="sizes",
        ),
        constraint(
            holds=lambda batching: batching.kind != "Continuous" or duration_s(batching.wait) == 0,
            cel="!has(self.kind) || self.kind != 'Continuous' || duration(self.wait) == duration('0s')",
            rule="not allowed with kind Continuous: a request joins at once",
            field="wait",
        ),
        constraint(
            holds=lambda batching: batching.waits is None or batching.kind != "Continuous",
            cel="!has(self.waits) || !has(self.kind) || self.kind != 'Continuous'",
            rule="not allowed with kind Continuous: a request joins at once",
            field="waits",
        ),
        constraint(
            holds=lambda batching: batching.waits is None or duration_s(batching.wait) == 0,
            cel="!has(self.waits) || duration(self.wait) == duration('0s')",
            rule="not allowed with waits: state it as one of them",
            field="wait",
        ),
        constraint(
            holds=lambda batching: (
                batching.waits is None or list(batching.waits) == sorted(batching.waits, key=duration_s)
            ),
            cel="!has(self.waits) || self.waits.map(wait, duration(wait)).isSorted()",
            rule="must be in increasing order",
            field="waits",
        ),
    )

    kind: Literal["Continuous", "Dynamic"] | None = None
    """Dynamic: a batch starts when the one before it ends. Continuous: a request joins at once while fewer than max
    run. By default Continuous with metrics.preset vllm, otherwise Dynamic."""
    max: Count | None = None
    """Maximum batch size of the server; with kind Continuous the most requests that run at once."""
    sizes: Annotated[list[Count] | None, ListSet(), Field(min_length=1, max_length=16)] = None
    """Maximum batch sizes that the planner may choose from, in increasing order; instead of max."""
    wait: Duration = "0s"
    """Maximum time that the first item of a batch waits for further items."""
    waits: Annotated[list[Duration] | None, ListSet(), Field(min_length=1, max_length=8)] = None
    """Maximum waits that the planner may choose from, in increasing order; instead of wait. Not with Continuous."""
    apply: ConfigMapKey | None = None
    """Where the operator writes the maximum batch size and the wait, for a server that re-reads them: JSON such as
    {"max": 8, "waitMicroseconds": 5000}. By default what the planner chooses is only reported."""

    def limits(self) -> tuple[int, ...]:
        """Return the maximum batch sizes that the planner may choose from: `sizes`, or only `max`."""
        return tuple(self.sizes or [self.max or 1])

    def waits_s(self) -> tuple[float, ...]:
        """Return the maximum waits (s) that the planner may choose from: `waits`, or only `wait`."""
        return tuple(dict.fromkeys(duration_s(wait) for wait in self.waits or [self.wait]))


class SessionLength(Part):
    """How long sessions last."""

    mean: PositiveDuration
    """Mean length."""
    cv: DecimalString = "1"
    """Coefficient of variation: standard deviation divided by mean."""


class Growth(Part):
    """Sessions whose tokens grow while they last. Sessions begin independently of one another."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda growth: growth.most is None or growth.most >= growth.start,
            cel="!has(self.most) || self.most >= self.start",
            rule="must be at least start ({start})",
            field="most",
        ),
    )

    tokens_per_minute: Annotated[int, Field(ge=1, le=10_000_000)]
    """Tokens that a session gains in a minute."""
    session: SessionLength
    """How long sessions last."""
    start: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Tokens of a new session, such as those of its prompt."""
    most: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Most tokens of a session, such as the context of the model."""
    percentile: Annotated[int, Field(ge=50, le=99)] = 99
    """Percentage of the time in which the sessions of a replica together are within its memory."""

    def growth(self) -> SessionGrowth:
        """Return the growth of sessions, with times in seconds."""
        return SessionGrowth(
            tokens_per_s=self.tokens_per_minute / 60,
            length_s=duration_s(self.session.mean),
            length_cv=float(self.session.cv),
            start_tokens=self.start,
            most_tokens=self.most,
            percentile=float(self.percentile),
        )


def _holds_a_session(cache: "KvCache") -> bool:
    """Return whether a session fits, also where other rules are broken, which say so themselves."""
    if (cache.tokens_per_session is None) == (cache.growth is None):
        return True
    try:
        return cache.shape(swap=None).session_slots >= 1
    except InvalidProblem:
        return True


class KvCache(Part):
    """The shape of a model's KV cache and its device memory, from which the sessions per replica are computed."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=_holds_a_session,
            cel="!has(self.tokensPerSession) || quantity(self.deviceMemory).asApproximateFloat() * 0.9"
            " - quantity(self.weights).asApproximateFloat() - 1500000000.0"
            " >= double(2 * self.layers * self.kvHeads * self.headDim * self.bytesPerElement"
            " * ((self.tokensPerSession + 15) / 16 * 16))",
            rule="too small: 90 % of it, minus weights and 1.5 GB for activations, must hold at least one session",
            field="deviceMemory",
        ),
        constraint(
            holds=lambda cache: (cache.tokens_per_session is None) != (cache.growth is None),
            cel="has(self.tokensPerSession) != has(self.growth)",
            rule="needs exactly one of tokensPerSession and growth",
        ),
        constraint(
            holds=lambda cache: cache.shared_tokens < cache.least_tokens or cache.shared_tokens == 0,
            cel="self.sharedTokens == 0 || self.sharedTokens < (has(self.tokensPerSession) ? self.tokensPerSession"
            " : has(self.growth) ? self.growth.start : 1)",
            rule="must be less than tokensPerSession or growth.start: a session has tokens of its own after them",
            field="sharedTokens",
        ),
    )

    layers: Count
    """Number of layers of the model."""
    kv_heads: Count
    """Number of key/value heads per layer; with grouped-query attention fewer than query heads."""
    head_dim: Count
    """Number of elements per head."""
    bytes_per_element: Annotated[int, Field(ge=1, le=8)] = 2
    """Bytes per element: 2 for fp16 and bf16, 1 for fp8 and int8."""
    tokens_per_session: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Tokens that one session keeps in the cache."""
    growth: Growth | None = None
    """How the tokens of a session grow while it lasts; instead of tokensPerSession."""
    shared_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Tokens of a prefix that all sessions have in common, such as instructions, and that the server keeps once."""
    device_memory: MemoryQuantity
    """Total memory of the replica's devices, such as 24Gi."""
    weights: MemoryQuantity
    """Memory used by the model's weights."""

    @property
    def least_tokens(self) -> int:
        """Return the tokens of a session when it begins."""
        return self.tokens_per_session or (0 if self.growth is None else self.growth.start)

    def shape(self, swap: "Swap | None") -> KvCacheShape:
        """Return the shape of the KV cache, with memory in bytes; idle sessions go to `swap`."""
        return KvCacheShape(
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            bytes_per_element=self.bytes_per_element,
            tokens_per_session=self.tokens_per_session or 1,
            growth=None if self.growth is None else self.growth.growth(),
            device_bytes=quantity_bytes(self.device_memory),
            weight_bytes=quantity_bytes(self.weights),
            shared_tokens=self.shared_tokens,
            swap=None
            if swap is None
            else SwapSpace(
                capacity_bytes=quantity_bytes(swap.bytes_),
                bytes_per_s=quantity_bytes(swap.bandwidth),
                hit=float(swap.hit),
            ),
        )


class Swap(Part):
    """Where the caches of idle sessions go while the device is full, such as a local NVMe disk."""

    bytes_: Annotated[MemoryQuantity, Field(alias="bytes")]
    """Memory of one replica for such sessions, such as 400Gi."""
    bandwidth: MemoryQuantity
    """Bytes per second at which sessions come back while others are written, such as 7Gi."""
    hit: Ratio
    """Share of the items whose session is on the device, so that nothing has to come back."""


class Memory(Part):
    """The limit on the sessions of one replica."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda memory: (memory.sessions is None) != (memory.kv_cache is None),
            cel="has(self.sessions) != has(self.kvCache)",
            rule="needs exactly one of sessions and kvCache",
        ),
        constraint(
            holds=lambda memory: memory.swap is None or memory.kv_cache is not None,
            cel="!has(self.swap) || has(self.kvCache)",
            rule="needs kvCache: how long a session takes to come back depends on its bytes",
            field="swap",
        ),
    )

    sessions: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Maximum number of sessions (streams) per replica."""
    kv_cache: KvCache | None = None
    """The shape of the model's KV cache, from which the sessions are computed."""
    swap: Swap | None = None
    """Where idle sessions go while the device is full: a replica holds more of them, and some items wait until theirs
    is back. By default nowhere."""

    @property
    def shape(self) -> KvCacheShape | None:
        """Return the shape of the KV cache, None where the sessions are stated."""
        return None if self.kv_cache is None else self.kv_cache.shape(self.swap)


SliceRates = Annotated[dict[str, Ratio], Field(min_length=1, max_length=16), DROP_NULLS]
"""Word error rates by slice of the audio, such as noisy or accented."""


class Variant(Part):
    """A variant of the stage's model, such as another precision or size, as a workload of its own. What it does not
    state is as the placement states it."""

    name: Label
    """Name of the variant, such as int8."""
    target: Target
    """The workload to scale, which runs this variant."""
    replicas: ReplicaBounds | None = None
    """Minimum and maximum number of replicas of this variant. By default from 0 to the maximum of the placement."""
    per_instance: Count | None = None
    """Replicas of this variant that fit on one instance."""
    instances_per_replica: GroupSize | None = None
    """Instances that one replica of this variant takes."""
    concurrency: Count | None = None
    """Batches that one replica serves at the same time."""
    service_time: ServiceTime | None = None
    """Mean time to serve one batch."""
    batching: Batching | None = None
    """How the server forms batches."""
    memory: Memory | None = None
    """The limit on the sessions of one replica."""
    wer: Ratio | None = None
    """Word error rate of this variant."""
    wer_by_slice: SliceRates | None = None
    """Word error rate of this variant for slices of the audio, such as {noisy: "0.14"}."""
    startup: Duration | None = None
    """Time from when a replica has a node until it is ready."""


_INHERITED = (
    *("per_instance", "instances_per_replica", "concurrency", "service_time", "batching", "memory"),
    *("wer", "wer_by_slice", "startup"),
)


class Placement(Part):
    """One way to run a stage: on one pool, as one workload, or as one workload per variant of the model."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda placement: (placement.target is None) != (placement.variants is None),
            cel="has(self.target) != has(self.variants)",
            rule="needs exactly one of target and variants",
        ),
        constraint(
            holds=lambda placement: placement.variants is None or placement.replicas.min == 0,
            cel="!has(self.variants) || self.replicas.min == 0",
            rule="min must be 0 with variants: state it in the variant",
            field="replicas",
        ),
        constraint(
            holds=lambda placement: all(own.in_groups or own.instances == 1 for own in placement.workloads()),
            cel="(has(self.variants) ? self.variants.all(v, (has(v.instancesPerReplica) ? v.instancesPerReplica"
            f" : has(self.instancesPerReplica) ? self.instancesPerReplica : 1) == 1 || v.target.kind == '{SET_KIND}')"
            " : !has(self.instancesPerReplica) || self.instancesPerReplica == 1 || has(self.target)"
            f" && self.target.kind == '{SET_KIND}')",
            rule=f"above 1 only where the target is a {SET_KIND}: the replicas of other kinds are single pods",
            field="instancesPerReplica",
        ),
        constraint(
            holds=lambda placement: all(
                own.instances == 1 or own.placement.per_instance == 1 for own in placement.workloads()
            ),
            cel="!has(self.instancesPerReplica) || self.instancesPerReplica == 1 || self.perInstance == 1",
            rule="not allowed with instancesPerReplica above 1: a replica takes whole instances",
            field="perInstance",
        ),
    )

    pool: Label
    """Name of the ComputePool."""
    target: Target | None = None
    """The workload to scale. Required without variants."""
    variants: Annotated[list[Variant] | None, ListMap(key="name"), Field(min_length=1, max_length=MAX_VARIANTS)] = None
    """Variants of the model, of which the planner chooses the cheapest that keeps the SLA and maxWer; instead of
    target."""
    replicas: ReplicaBounds
    """Minimum and maximum number of replicas; with variants those of each variant that states none of its own."""
    per_instance: Count = 1
    """Replicas that fit on one instance of the pool. A replica costs the instance's price / perInstance."""
    instances_per_replica: GroupSize | None = None
    """Instances that one replica takes: a group of pods on as many nodes (LeaderWorkerSet); instead of perInstance."""
    concurrency: Count = 1
    """Batches that one replica serves at the same time."""
    service_time: ServiceTime | None = None
    """Mean time to serve one batch. The initial estimate, corrected by measurement. By default it is learned."""
    batching: Batching | None = None
    """How the server forms batches. By default items are served one by one."""
    memory: Memory | None = None
    """The limit on the sessions of one replica. By default no limit is known."""
    wer: Ratio | None = None
    """Word error rate of the model."""
    wer_by_slice: SliceRates | None = None
    """Word error rate of the model for slices of the audio, such as {noisy: "0.14"}."""
    startup: Duration | None = None
    """Time from when a replica has a node until it is ready. By default it is measured, and 60s before that."""

    def workloads(self) -> "list[Workload]":
        """Return the workload of the placement, or those of its variants."""
        if self.variants is None:
            return [Workload(placement=self, path=())]
        return [
            Workload(placement=self._of(variant), path=("variants", index), variant=variant.name)
            for index, variant in enumerate(self.variants)
        ]

    def _of(self, variant: Variant) -> "Placement":
        stated = {name: getattr(variant, name) for name in _INHERITED if getattr(variant, name) is not None}
        bounds = variant.replicas or self.replicas
        return self.model_copy(update={**stated, "target": variant.target, "replicas": bounds, "variants": None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload of a placement: the placement as it is for it, and its `path` in the placement as written."""

    placement: Placement
    path: FieldPath
    variant: str | None = None

    @property
    def target(self) -> Target:
        """Return the workload to scale."""
        target = self.placement.target
        assert target is not None, "validation requires a target without variants"
        return target

    @property
    def name(self) -> PlacementName:
        """Return the name of the placement within its stage."""
        return placement_name(self.placement.pool, self.variant)

    @property
    def instances(self) -> int:
        """Return how many instances a replica takes, at least 1."""
        return self.placement.instances_per_replica or 1

    @property
    def in_groups(self) -> bool:
        """Return whether the replicas are groups of pods."""
        target = self.placement.target
        return target is not None and target.kind == SET_KIND
