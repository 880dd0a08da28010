"""Object metadata and status conditions, by the Kubernetes API conventions."""

from typing import Annotated, Any, Literal

from pydantic import Field

from controller.resources.base import Part
from controller.resources.fields import DROP_NULLS, Label, LabelValue

Timestamp = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
"""An RFC 3339 time."""


class Metadata(Part):
    """Standard object metadata. The API server validates it further."""

    name: Label
    """Unique within the namespace; a DNS label, because it becomes the value of metric and pod labels."""
    namespace: Label | None = None
    """Namespace of the object."""
    labels: Annotated[dict[str, LabelValue], DROP_NULLS] = Field(default_factory=dict)
    """Labels of the object."""
    annotations: Annotated[dict[str, str], DROP_NULLS] = Field(default_factory=dict)
    """Annotations of the object."""
    uid: str = ""
    """Set by the API server."""
    generation: int = 0
    """Set by the API server: increases with each change of the spec."""
    resource_version: str | None = None
    """Set by the API server."""
    creation_timestamp: str | None = None
    """Set by the API server."""
    deletion_timestamp: str | None = None
    """Set by the API server while the object is being deleted."""
    deletion_grace_period_seconds: int | None = None
    """Set by the API server."""
    generate_name: str | None = None
    """Prefix of a name that the API server completes."""
    self_link: str | None = None
    """Set by old API servers."""
    finalizers: list[str] = Field(default_factory=list)
    """Finalizers, which must be removed before the object is deleted."""
    owner_references: list[dict[str, Any]] = Field(default_factory=list)
    """Owners of the object; it is deleted with them."""
    managed_fields: list[dict[str, Any]] = Field(default_factory=list)
    """Managers of the fields."""


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
