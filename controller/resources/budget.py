"""The ComputeBudget resource: a cap on what the pipelines of several namespaces spend together."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from controller.resources.base import Constraint, ListMap, Part, constraint
from controller.resources.fields import DROP_NULLS, DecimalString, LabelKey, LabelValue, Number, Text
from controller.resources.metadata import Condition, Metadata, OperatorName, label_keys
from controller.resources.schedule import MAX_FLOORS, CronEntry
from controller.resources.shards import MAX_SHARDS, BudgetShard

MAX_SHORT = 32
MAX_NAMESPACES = 4096
MAX_SPEC = 131072
NAME_LABEL = "kubernetes.io/metadata.name"
"""The label that every namespace has: its name."""


class LabelRequirement(Part):
    """A requirement on one label, as in Kubernetes' label selectors."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda one: (one.operator in {"In", "NotIn"}) == bool(one.values),
            cel="(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
            rule="needed with In and NotIn, and not allowed with Exists and DoesNotExist",
            field="values",
        ),
    )

    key: LabelKey
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """Relation of the label to the values."""
    values: Annotated[list[LabelValue], Field(max_length=64)] = Field(default_factory=list)
    """Values of the label, with In and NotIn."""


class NamespaceSelector(Part):
    """Which namespaces, by their labels. All requirements must be met; an empty selector selects all namespaces."""

    constraints: ClassVar[tuple[Constraint, ...]] = (label_keys("match_labels", "matchLabels"),)

    match_labels: Annotated[dict[str, LabelValue], Field(max_length=16), DROP_NULLS] = Field(default_factory=dict)
    """Labels with their values, such as kubernetes.io/metadata.name, which is the name of the namespace."""
    match_expressions: Annotated[list[LabelRequirement], Field(max_length=16)] = Field(default_factory=list)
    """Requirements on labels."""


class BudgetPeriod(CronEntry):
    """Times at which the budget is another one, by a cron schedule."""

    per_hour: DecimalString
    """USD per hour in these times."""


class BudgetSpec(Part):
    """The desired state: whose spend is capped, and at how much."""

    namespace_selector: NamespaceSelector
    """The namespaces of the pipelines that have this budget together."""
    per_hour: DecimalString
    """Limit on their spend together in USD per hour, including replicas that overlap during a change."""
    periods: Annotated[list[BudgetPeriod], Field(max_length=MAX_FLOORS)] = Field(default_factory=list)
    """Times with another limit. Where several are open, the lowest counts."""


class ShortStatus(Part):
    """A pipeline that is served in part, because the budget is spent."""

    pipeline: Annotated[str, Field(max_length=127)]
    """The pipeline, as NAMESPACE/NAME."""
    served_fraction: Number
    """The share of its demand that is served."""


class BudgetStatus(Part):
    """What the pipelines spend together. Written by the operator."""

    observed_generation: int | None = None
    """The generation of the spec that this status is based on."""
    operator: OperatorName | None = None
    """The operator that writes this status, as the namespace and the name of its Lease."""
    conditions: Annotated[list[Condition], ListMap(key="type"), Field(max_length=8)] = Field(default_factory=list)
    """WithinBudget says whether the spend is within the limit."""
    limit_per_hour: Number | None = None
    """USD per hour that may be spent now: spec.perHour, or that of an open period."""
    spend_per_hour: Number | None = None
    """USD per hour of the replicas that exist or are desired, terminating ones included."""
    planned_per_hour: Number | None = None
    """USD per hour of the plans."""
    pipelines: int | None = None
    """Number of pipelines that have this budget together."""
    short: Annotated[list[ShortStatus], Field(max_length=MAX_SHORT)] = Field(default_factory=list)
    """Pipelines that are served in part because of this budget; the first 32 by name."""
    short_count: int | None = None
    """Number of pipelines that are served in part because of this budget."""
    namespaces: Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=MAX_NAMESPACES)] = Field(
        default_factory=list
    )
    """The selected namespaces that have pipelines. They count while namespaces cannot be listed."""
    valid_spec: Annotated[str, Field(max_length=MAX_SPEC)] | None = None
    """The last valid spec, as JSON. It stays in force while the spec is invalid."""
    reason: Text | None = None
    """Why pipelines are served in part, and how much of them."""
    shards: Annotated[list[BudgetShard], ListMap(key="shard"), Field(max_length=MAX_SHARDS)] = Field(
        default_factory=list
    )
    """What each shard of the fleet spends, and may spend, where it has several. spendPerHour and pipelines are then
    those of all shards; short, plannedPerHour and reason are of the pipelines of shard 0 only."""


class ComputeBudget(Part):
    """A cap on what the pipelines of several namespaces spend together."""

    api_version: Literal["sluice.dev/v1alpha1"]
    """sluice.dev/v1alpha1"""
    kind: Literal["ComputeBudget"]
    """ComputeBudget"""
    metadata: Metadata
    """Standard object metadata; the name is a DNS label."""
    spec: BudgetSpec
    """The desired state."""
    status: BudgetStatus | None = None
    """What the pipelines spend together. Written by the operator."""
