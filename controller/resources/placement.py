"""A placement: one way to run a stage, on one pool, with the priors that planning starts from."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from controller.resources.base import Constraint, ListSet, Part, constraint
from controller.resources.fields import (
    ApiVersion,
    DecimalString,
    Duration,
    Kind,
    Label,
    MemoryQuantity,
    Ratio,
    Subdomain,
    duration_s,
    quantity_bytes,
)
from optimizer.kv_cache import KvCacheShape

Count = Annotated[int, Field(ge=1, le=1024)]
Replicas = Annotated[int, Field(ge=0, le=10_000)]


class Target(Part):
    """A workload with a scale subresource, in the pipeline's namespace."""

    api_version: ApiVersion
    """Such as apps/v1."""
    kind: Kind
    """Such as Deployment."""
    name: Subdomain
    """Its name."""


class ReplicaBounds(Part):
    """How few and how many replicas there may be."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda bounds: bounds.min <= bounds.max,
            cel="self.min <= self.max",
            rule="must be at least min ({min})",
            field="max",
        ),
    )

    min: Replicas = 0
    """At least, unless the budget forbids it."""
    max: Replicas
    """At most."""


class ServiceTime(Part):
    """The time one batch takes: fixed + items × perItem on average. A prior, corrected by measurement."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda time: duration_s(time.fixed) + duration_s(time.per_item) > 0,
            cel="duration(self.fixed) + duration(self.perItem) > duration('0s')",
            rule="fixed or perItem must be longer than 0s",
        ),
    )

    fixed: Duration = "0s"
    """Per batch."""
    per_item: Duration = "0s"
    """Per item of the batch."""
    cv: DecimalString = "0.3"
    """Coefficient of variation: standard deviation over mean."""
    source: Annotated[str, Field(max_length=256)] | None = None
    """Where the numbers come from."""
    confidence: Literal["Low", "Medium", "High"] = "Low"
    """How far to trust them before there are measurements."""


class Batching(Part):
    """How the server collects items into batches."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda batching: (batching.max is None) != (batching.sizes is None),
            cel="has(self.max) != has(self.sizes)",
            rule="needs exactly one of max and sizes",
        ),
        constraint(
            holds=lambda batching: batching.sizes is None or batching.sizes == sorted(batching.sizes),
            cel="!has(self.sizes) || self.sizes.isSorted()",
            rule="must increase",
            field="sizes",
        ),
    )

    max: Count | None = None
    """The batch limit that the server has."""
    sizes: Annotated[list[Count] | None, ListSet(), Field(min_length=1, max_length=16)] = None
    """Batch limits that the planner may choose from, in increasing order, instead of max."""
    wait: Duration = "0s"
    """How long the first item waits for others."""

    def limits(self) -> tuple[int, ...]:
        """Return the batch limits to choose from, one where the server's is fixed."""
        return tuple(self.sizes or [self.max or 1])


class KvCache(Part):
    """The shape of a model's KV cache on one device, from which the sessions per replica follow."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda cache: cache.shape().session_slots >= 1,
            cel="quantity(self.deviceMemory).asApproximateFloat() * 0.9"
            " - quantity(self.weights).asApproximateFloat() - 1500000000.0"
            " >= double(2 * self.layers * self.kvHeads * self.headDim * self.bytesPerElement"
            " * ((self.tokensPerSession + 15) / 16 * 16))",
            rule="too small: 0.9 of it less weights and 1.5 GB of activations must hold one session",
            field="deviceMemory",
        ),
    )

    layers: Count
    """Layers of the model."""
    kv_heads: Count
    """Heads of keys and values per layer; with grouped-query attention fewer than the query's."""
    head_dim: Count
    """Elements per head."""
    bytes_per_element: Annotated[int, Field(ge=1, le=8)] = 2
    """2 for fp16 and bf16, 1 for fp8 and int8."""
    tokens_per_session: Annotated[int, Field(ge=1, le=10_000_000)]
    """Tokens that a session keeps."""
    device_memory: MemoryQuantity
    """Memory of the replica's devices, such as 24Gi."""
    weights: MemoryQuantity
    """Memory that the model's weights take."""

    def shape(self) -> KvCacheShape:
        """Return the same in numbers."""
        return KvCacheShape(
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            bytes_per_element=self.bytes_per_element,
            tokens_per_session=self.tokens_per_session,
            device_bytes=quantity_bytes(self.device_memory),
            weight_bytes=quantity_bytes(self.weights),
        )


class Memory(Part):
    """What limits the sessions that one replica can hold."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda memory: (memory.sessions is None) != (memory.kv_cache is None),
            cel="has(self.sessions) != has(self.kvCache)",
            rule="needs exactly one of sessions and kvCache",
        ),
    )

    sessions: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Streams whose state one replica can hold."""
    kv_cache: KvCache | None = None
    """The shape of the model's KV cache, from which the sessions follow."""


class Placement(Part):
    """One way to run a stage: on one pool, by one workload."""

    pool: Label
    """The ComputePool."""
    target: Target
    """The workload that is scaled."""
    replicas: ReplicaBounds
    """How few and how many replicas there may be."""
    per_instance: Count = 1
    """Replicas that fit on one instance of the pool: a replica costs price / perInstance."""
    concurrency: Count = 1
    """Batches that one replica serves at once."""
    service_time: ServiceTime
    """The time one batch takes: a prior, corrected by measurement."""
    batching: Batching | None = None
    """How the server collects items into batches. Without it: one by one."""
    memory: Memory | None = None
    """What limits the sessions per replica. Without it: nothing does."""
    wer: Ratio | None = None
    """Word error rate of this model variant."""
    startup: Duration = "30s"
    """From the creation of a replica until it serves."""
