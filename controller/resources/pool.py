"""The ComputePool resource: a group of nodes of one kind, with its price and capacity."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from controller.resources.base import Constraint, ListMap, Part, constraint
from controller.resources.fields import (
    DROP_NULLS,
    DecimalString,
    LabelValue,
    Number,
    PositiveDuration,
    Text,
    duration_s,
)
from controller.resources.metadata import Condition, Metadata, Timestamp, label_keys


class Price(Part):
    """The price of an instance."""

    per_hour: DecimalString
    """USD per instance and hour, as a decimal string."""


class Capacity(Part):
    """The capacity of the pool."""

    instances: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Maximum number of instances. By default the number of ready nodes."""


class Backoff(Part):
    """Time for which plans avoid the pool after replicas did not start on it; doubled after each failure."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda backoff: duration_s(backoff.initial) <= duration_s(backoff.max),
            cel="duration(self.initial) <= duration(self.max)",
            rule="must be at least initial ({initial})",
            field="max",
        ),
    )

    initial: PositiveDuration = "5m"
    """Time after the first failure."""
    max: PositiveDuration = "1h"
    """Maximum time."""


class Unavailable(Part):
    """When the pool counts as unavailable, and for how long."""

    pending_deadline: PositiveDuration = "5m"
    """The pool counts as unavailable when a replica has been unschedulable for longer than this."""
    backoff: Backoff = Backoff()
    """Time for which plans avoid the pool; afterwards one replica is tried."""


class PoolSpec(Part):
    """The desired state: the nodes of the pool, their price and capacity."""

    constraints: ClassVar[tuple[Constraint, ...]] = (label_keys("node_selector", "nodeSelector"),)

    device: Literal["CPU", "Inferentia", "Trainium", "GPU"]
    """The kind of device."""
    node_selector: Annotated[dict[str, LabelValue], Field(min_length=1, max_length=16), DROP_NULLS]
    """Labels of the pool's nodes."""
    price: Price
    """The price of an instance."""
    capacity: Capacity = Capacity()
    """The capacity of the pool."""
    unavailable: Unavailable = Unavailable()
    """When the pool counts as unavailable, and for how long."""


class PoolStatus(Part):
    """The observed state of the pool. Written by the operator."""

    observed_generation: int | None = None
    """The generation of the spec that this status is based on."""
    conditions: Annotated[list[Condition], ListMap(key="type"), Field(max_length=8)] = Field(default_factory=list)
    """Conditions of the pool: Available says whether replicas can be scheduled on it."""
    in_use: Number | None = None
    """Instances in use by replicas; a replica that shares an instance counts as a fraction."""
    free: Number | None = None
    """Instances that are not in use, up to the limit."""
    planned: int | None = None
    """Whole instances that the current plan uses."""
    limit: int | None = None
    """Maximum number of instances: spec.capacity.instances, else the number of ready nodes."""
    zones: int | None = None
    """Number of distinct zones of the ready nodes, at least 1."""
    price_per_hour: Number | None = None
    """Price in USD per instance and hour on which the current plan is based."""
    shadow_price_per_hour: Number | None = None
    """Saving that one more instance would allow, in USD per hour."""
    unavailable_until: Timestamp | None = None
    """Time until which plans avoid the pool."""
    backoff_seconds: Number | None = None
    """Time in seconds for which plans will avoid the pool after the next failure."""
    reason: Text | None = None
    """Why the pool is unavailable."""


class ComputePool(Part):
    """A group of nodes of one kind, with the price of an instance and the number that may be used."""

    api_version: Literal["sluice.dev/v1alpha1"]
    """sluice.dev/v1alpha1"""
    kind: Literal["ComputePool"]
    """ComputePool"""
    metadata: Metadata
    """Standard object metadata; the name is a DNS label."""
    spec: PoolSpec
    """The desired state."""
    status: PoolStatus | None = None
    """The observed state. Written by the operator."""
