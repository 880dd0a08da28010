"""What every resource carries: object metadata and status conditions, by the Kubernetes API conventions."""

from typing import Annotated, Any, Literal

from pydantic import Field

from controller.resources.base import Part
from controller.resources.fields import DROP_NULLS, Label, LabelValue

Timestamp = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
"""An RFC 3339 time."""


class Metadata(Part):
    """Standard object metadata. The API server has its own rules for it; these fields matter to Sluice."""

    name: Label
    """Unique within the namespace; a DNS label, because it becomes the value of metric and pod labels."""
    namespace: Label | None = None
    """Where the object lives."""
    labels: Annotated[dict[str, LabelValue], DROP_NULLS] = Field(default_factory=dict)
    """Labels of the object."""
    annotations: Annotated[dict[str, str], DROP_NULLS] = Field(default_factory=dict)
    """Annotations of the object."""
    uid: str = ""
    """Set by the API server."""
    generation: int = 0
    """Set by the API server: counts the changes of the spec."""
    resource_version: str | None = None
    """Set by the API server."""
    creation_timestamp: str | None = None
    """Set by the API server."""
    deletion_timestamp: str | None = None
    """Set by the API server: the object is on its way out."""
    deletion_grace_period_seconds: int | None = None
    """Set by the API server."""
    generate_name: str | None = None
    """Prefix of a name that the API server completes."""
    self_link: str | None = None
    """Set by old API servers."""
    finalizers: list[str] = Field(default_factory=list)
    """What must happen before the object is removed."""
    owner_references: list[dict[str, Any]] = Field(default_factory=list)
    """Objects this one goes with."""
    managed_fields: list[dict[str, Any]] = Field(default_factory=list)
    """Who wrote which field."""


class Condition(Part):
    """One aspect of the state of the object, as metav1.Condition."""

    type: Annotated[str, Field(min_length=1, max_length=63)]
    """The aspect, such as Ready."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    observed_generation: int | None = None
    """The generation of the spec that this is about."""
    last_transition_time: Timestamp
    """When the status last changed."""
    reason: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why, in one CamelCase word for programs."""
    message: Annotated[str, Field(max_length=2048)]
    """Why, for people."""
