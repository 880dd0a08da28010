"""The ComputePool resource: a group of nodes of one kind, with its price and capacity."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from controller.resources.base import Breach, Constraint, ListMap, Part, constraint
from controller.resources.fields import (
    DROP_NULLS,
    INSTANCE_TYPE_PATTERN,
    DecimalString,
    LabelValue,
    Number,
    PositiveDuration,
    Subdomain,
    Text,
    duration_s,
)
from controller.resources.metadata import Condition, Metadata, Timestamp, label_keys


def _bad_instance_types(price: Any) -> Iterator[Breach]:
    for name in price.by_instance_type or {}:
        if not re.fullmatch(INSTANCE_TYPE_PATTERN, name):
            yield Breach(path=("byInstanceType", name), rule="must be an instance type such as g5.2xlarge")


class Price(Part):
    """The price of an instance."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            find=_bad_instance_types,
            cel=f"!has(self.byInstanceType) || self.byInstanceType.all(name, name.matches('{INSTANCE_TYPE_PATTERN}'))",
            rule="keys must be instance types such as g5.2xlarge",
            field="byInstanceType",
        ),
    )

    per_hour: DecimalString
    """USD per instance and hour, as a decimal string."""
    by_instance_type: Annotated[dict[str, DecimalString], Field(min_length=1, max_length=64), DROP_NULLS] | None = None
    """USD per hour of nodes by their label node.kubernetes.io/instance-type, as decimal strings, for budgets that count
    whole instances. Nodes of other types, and new nodes in plans, cost perHour."""


class Capacity(Part):
    """What bounds the pool: at least one of the fields. The smallest bound counts."""

    instances: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Maximum number of instances."""
    node_pool: Subdomain | None = None
    """The NodePool of Karpenter that makes the nodes of this pool. Its spec.limits are the bound where they convert to
    instances; without such limits, instances is required too. Replicas may be pending while a node is on its way."""
    ready_nodes: bool = False
    """Whether the ready nodes are the bound, because nothing adds nodes to the pool."""


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

    pending_deadline: PositiveDuration | None = None
    """The pool counts as unavailable when a replica has been unschedulable for longer than this. By default 5m for the
    device CPU and 15m for accelerators, whose nodes take longer to start and to be found."""
    backoff: Backoff = Backoff()
    """Time for which plans avoid the pool; afterwards one replica is tried."""


class PoolSpec(Part):
    """The desired state: the nodes of the pool, their price and capacity."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda spec: (
                spec.capacity.instances is not None or spec.capacity.node_pool is not None or spec.capacity.ready_nodes
            ),
            cel="has(self.capacity.instances) || has(self.capacity.nodePool) || self.capacity.readyNodes",
            rule="must say what bounds the pool: instances, nodePool or readyNodes: true; the smallest bound counts",
            field="capacity",
        ),
        label_keys("node_selector", "nodeSelector"),
    )

    device: Literal["CPU", "Inferentia", "Trainium", "GPU"]
    """The kind of device."""
    node_selector: Annotated[dict[str, LabelValue], Field(min_length=1, max_length=16), DROP_NULLS]
    """Labels of the pool's nodes."""
    price: Price
    """The price of an instance."""
    capacity: Capacity = Capacity()
    """What bounds the pool."""
    unavailable: Unavailable = Unavailable()
    """When the pool counts as unavailable, and for how long."""


class PoolBounds(Part):
    """The bounds of spec.capacity, in instances; a bound that is not stated or not known is absent."""

    instances: int | None = None
    """spec.capacity.instances."""
    node_pool: int | None = None
    """What the limits of the NodePool allow."""
    ready_nodes: int | None = None
    """Ready nodes, with spec.capacity.readyNodes."""


class PoolStatus(Part):
    """The observed state of the pool. Written by the operator."""

    observed_generation: int | None = None
    """The generation of the spec that this status is based on."""
    conditions: Annotated[list[Condition], ListMap(key="type"), Field(max_length=8)] = Field(default_factory=list)
    """Conditions of the pool: Available says whether replicas can be scheduled on it, CapacityKnown whether the limits
    of its NodePool are known, and NodesExclusive whether its nodes are in no other pool."""
    in_use: Number | None = None
    """Instances in use by replicas; a replica that shares an instance counts as a fraction."""
    free: Number | None = None
    """Instances that are not in use, up to the limit."""
    planned: int | None = None
    """Whole instances that the current plan uses."""
    limit: int | None = None
    """Maximum number of instances: the smallest bound of spec.capacity."""
    bounds: PoolBounds | None = None
    """The bounds of spec.capacity, in instances."""
    arriving: int | None = None
    """Nodes that Karpenter has launched for the pool and that have not registered yet."""
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
    node_launch_seconds: Number | None = None
    """Time in seconds that a new node of an elastic pool takes until it registers, as measured."""
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
