"""The ComputePool resource: a kind of hardware to rent, its price and how much of it there is."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from controller.resources.base import Breach, Constraint, ListMap, Part, constraint
from controller.resources.fields import (
    DROP_NULLS,
    LABEL_KEY_PATTERN,
    DecimalString,
    LabelValue,
    Number,
    PositiveDuration,
    Text,
    duration_s,
)
from controller.resources.metadata import Condition, Metadata, Timestamp


class Price(Part):
    """What one instance costs."""

    per_hour: DecimalString
    """USD per instance and hour, as a decimal string."""


class Capacity(Part):
    """How much of the pool may be used."""

    instances: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Never plan beyond this many instances. Without it: as many as there are ready nodes."""


class Backoff(Part):
    """How long the pool is planned without after it could not deliver; doubled with every failure."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda backoff: duration_s(backoff.initial) <= duration_s(backoff.max),
            cel="duration(self.initial) <= duration(self.max)",
            rule="must be at least initial ({initial})",
            field="max",
        ),
    )

    initial: PositiveDuration = "5m"
    """The first time."""
    max: PositiveDuration = "1h"
    """At most."""


class Unavailable(Part):
    """When a pool counts as unable to deliver, and for how long. Nothing waits for it for ever."""

    pending_deadline: PositiveDuration = "5m"
    """A replica that could not be scheduled for longer than this: the pool cannot deliver."""
    backoff: Backoff = Backoff()
    """The plan is made without the pool for this long, then one replica is tried again."""


def _bad_label_keys(spec: Any) -> Iterator[Breach]:
    for key in spec.node_selector:
        if not re.fullmatch(LABEL_KEY_PATTERN, key):
            yield Breach(path=("nodeSelector", key), rule="must be a label key such as sluice.dev/pool")


class PoolSpec(Part):
    """What the pool is."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            find=_bad_label_keys,
            cel=f"self.nodeSelector.all(key, key.matches('{LABEL_KEY_PATTERN}'))",
            rule="keys must be label keys such as sluice.dev/pool",
            field="nodeSelector",
        ),
    )

    device: Literal["CPU", "Inferentia", "Trainium", "GPU"]
    """The kind of hardware."""
    node_selector: Annotated[dict[str, LabelValue], Field(min_length=1, max_length=16), DROP_NULLS]
    """Labels of the nodes that are this pool."""
    price: Price
    """What one instance costs."""
    capacity: Capacity = Capacity()
    """How much of the pool may be used."""
    unavailable: Unavailable = Unavailable()
    """When the pool counts as unable to deliver, and for how long."""


class PoolStatus(Part):
    """What the pool does. Written by the operator."""

    observed_generation: int | None = None
    """The generation of the spec that this status is about."""
    conditions: Annotated[list[Condition], ListMap(key="type"), Field(max_length=8)] = Field(default_factory=list)
    """Available: replicas that are asked for get a node."""
    in_use: Number | None = None
    """Instances that running replicas take, fractions for shared ones."""
    free: Number | None = None
    """Instances that could still be used."""
    planned: int | None = None
    """Whole instances that the current plan uses."""
    limit: int | None = None
    """Instances that may be used: the declared ceiling, else the ready nodes."""
    zones: int | None = None
    """Distinct zones of the ready nodes, at least 1."""
    price_per_hour: Number | None = None
    """USD per instance and hour that the current plan was made with."""
    shadow_price_per_hour: Number | None = None
    """What one instance more would save, in USD per hour."""
    unavailable_until: Timestamp | None = None
    """The pool is planned without until then."""
    backoff_seconds: Number | None = None
    """Seconds that the pool is planned without the next time it cannot deliver."""
    reason: Text | None = None
    """Why the pool cannot deliver."""


class ComputePool(Part):
    """A kind of hardware to rent: the nodes that it is, its price per instance and how many there may be."""

    api_version: Literal["sluice.dev/v1alpha1"]
    """sluice.dev/v1alpha1"""
    kind: Literal["ComputePool"]
    """ComputePool"""
    metadata: Metadata
    """Standard object metadata; the name is a DNS label."""
    spec: PoolSpec
    """What the pool is."""
    status: PoolStatus | None = None
    """What the pool does. Written by the operator."""
