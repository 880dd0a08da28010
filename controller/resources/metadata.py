"""Object metadata and status conditions, by the Kubernetes API conventions."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from controller.resources.base import Breach, Constraint, Part
from controller.resources.fields import DROP_NULLS, LABEL_KEY_PATTERN, Label, LabelValue


def label_keys(attribute: str, field: str) -> Constraint:
    """Return the constraint that the keys of the mapping in `attribute`, the manifest's `field`, are label keys."""

    def find(part: Any) -> Iterator[Breach]:
        for key in getattr(part, attribute):
            if not re.fullmatch(LABEL_KEY_PATTERN, key):
                yield Breach(path=(field, key), rule="must be a label key such as sluice.dev/pool")

    return Constraint(
        find=find,
        cel=f"!has(self.{field}) || self.{field}.all(key, key.matches('{LABEL_KEY_PATTERN}'))",
        rule="keys must be label keys such as sluice.dev/pool",
        field=field,
    )


Timestamp = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
"""An RFC 3339 time."""
OperatorName = Annotated[str, Field(max_length=512)]
"""An operator, as NAMESPACE/NAME of its Lease."""


class Metadata(Part):
    """Standard object metadata. The API server validates it further, and sets most of it."""

    name: Label
    """Unique within the namespace; a DNS label, because it becomes the value of metric and pod labels."""
    namespace: Label | None = None
    labels: Annotated[dict[str, LabelValue], DROP_NULLS] = Field(default_factory=dict)
    annotations: Annotated[dict[str, str], DROP_NULLS] = Field(default_factory=dict)
    uid: str = ""
    generation: int = 0
    """Increases with each change of the spec."""
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    generate_name: str | None = None
    self_link: str | None = None
    finalizers: list[str] = Field(default_factory=list)
    owner_references: list[dict[str, Any]] = Field(default_factory=list)
    managed_fields: list[dict[str, Any]] = Field(default_factory=list)


class Condition(Part):
    """A condition of the object, as metav1.Condition."""

    type: Annotated[str, Field(min_length=1, max_length=63)]
    """Type of the condition, such as Ready."""
    status: Literal["True", "False", "Unknown"]
    """Status of the condition."""
    observed_generation: int | None = None
    """The generation of the spec that the condition is based on."""
    last_transition_time: Timestamp
    """Time at which the status last changed."""
    reason: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Reason for the status, as one CamelCase word."""
    message: Annotated[str, Field(max_length=2048)]
    """Explanation of the status for people."""
