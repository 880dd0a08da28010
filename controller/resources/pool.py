"""The ComputePool resource: a group of nodes of one kind, with its price and capacity."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from controller.core.state.cloud import QUOTA_CODES, Purchase, QuotaFamily, family_of, vcpus_of
from controller.resources.base import Breach, Constraint, ListMap, ListSet, Part, constraint
from controller.resources.fields import (
    DROP_NULLS,
    INSTANCE_TYPE_PATTERN,
    QUOTA_CODE_PATTERN,
    DecimalString,
    GroupName,
    InstanceType,
    LabelValue,
    Number,
    PositiveDuration,
    Ratio,
    Region,
    Subdomain,
    Text,
    duration_s,
)
from controller.resources.metadata import Condition, Metadata, OperatorName, Timestamp, label_keys
from controller.resources.shards import MAX_SHARDS, PoolShard

MAX_NODE_PRICES = 512
"""The most prices of nodes in a status: 32 instance types in 16 zones."""


def _bad_instance_types(price: Any) -> Iterator[Breach]:
    for name in price.by_instance_type or {}:
        if not re.fullmatch(INSTANCE_TYPE_PATTERN, name):
            yield Breach(path=("byInstanceType", name), rule="must be an instance type such as g5.2xlarge")


class AwsPriceSpec(Part):
    """Look-up of the price at AWS, by instance type and region."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda aws: (aws.instance_type is None) != (not aws.instance_types),
            cel="has(self.instanceType) != has(self.instanceTypes)",
            rule="must be instanceType or instanceTypes, and not both",
        ),
        constraint(
            holds=lambda aws: aws.savings is None or aws.purchase == "OnDemand",
            cel="!has(self.savings) || self.purchase == 'OnDemand'",
            rule="must not be given for purchase Spot: savings plans do not apply to it",
            field="savings",
        ),
        constraint(
            holds=lambda aws: aws.savings is None or not aws.savings.startswith("1"),
            cel="!has(self.savings) || !self.savings.startsWith('1')",
            rule="must be less than 1: an instance is not free",
            field="savings",
        ),
        constraint(
            holds=lambda aws: not aws.zones or aws.purchase == "Spot",
            cel="!has(self.zones) || self.purchase == 'Spot'",
            rule="must not be given for purchase OnDemand: its price is the same in all zones",
            field="zones",
        ),
        constraint(
            holds=lambda aws: duration_s(aws.refresh) >= 60,
            cel="duration(self.refresh) >= duration('1m')",
            rule="must be at least 1m",
            field="refresh",
        ),
    )

    instance_type: InstanceType | None = None
    """The instance type of the pool's nodes, such as g5.xlarge."""
    instance_types: Annotated[list[InstanceType], ListSet(), Field(min_length=1, max_length=32)] = Field(
        default_factory=list
    )
    """The instance types of the pool's nodes, where it mixes several. New nodes cost as much as the dearest."""
    region: Region
    """The AWS region, such as us-east-1."""
    purchase: Literal["OnDemand", "Spot"] = "OnDemand"
    """How the instances are bought."""
    savings: Ratio | None = None
    """Share that savings plans or reserved instances take off the on-demand price, such as "0.28"."""
    zones: Annotated[list[Region], ListSet(), Field(max_length=16)] = Field(default_factory=list)
    """Zones whose spot prices count, such as us-east-1a; by default all zones of the region that have a price. New
    nodes cost as much as in the dearest."""
    refresh: PositiveDuration = "1h"
    """Time after which the price is looked up again, at least 1m."""

    def names(self) -> tuple[str, ...]:
        """Return the instance types, of which there is at least one."""
        return (self.instance_type,) if self.instance_type is not None else tuple(self.instance_types)


class Price(Part):
    """The price of an instance: declared, or looked up at AWS."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda price: price.per_hour is not None or price.aws is not None,
            cel="has(self.perHour) || has(self.aws)",
            rule="required without aws",
            field="perHour",
        ),
        constraint(
            holds=lambda price: price.aws is None or price.by_instance_type is None,
            cel="!has(self.aws) || !has(self.byInstanceType)",
            rule="must not be given with aws, which has the price of each instance type",
            field="byInstanceType",
        ),
        Constraint(
            find=_bad_instance_types,
            cel=f"!has(self.byInstanceType) || self.byInstanceType.all(name, name.matches('{INSTANCE_TYPE_PATTERN}'))",
            rule="keys must be instance types such as g5.2xlarge",
            field="byInstanceType",
        ),
    )

    per_hour: DecimalString | None = None
    """USD per instance and hour, as a decimal string. With aws, it counts while no price of AWS is known."""
    aws: AwsPriceSpec | None = None
    """Look-up of the price at AWS. The operator needs rights for it; see the page on AWS."""
    by_instance_type: Annotated[dict[str, DecimalString], Field(min_length=1, max_length=64), DROP_NULLS] | None = None
    """USD per hour of nodes by their label node.kubernetes.io/instance-type, as decimal strings, for budgets that count
    whole instances. Nodes of other types, and new nodes in plans, cost perHour."""


_CODES_OF = {
    purchase.value: sorted(code for (_, of), code in QUOTA_CODES.items() if of is purchase) for purchase in Purchase
}
"""The codes of quotas by the purchase that they are for."""


class QuotaSpec(Part):
    """A quota of the AWS account on vCPUs, which bounds the instances of the pool."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda quota: (quota.family is None) != (quota.code is None),
            cel="has(self.family) != has(self.code)",
            rule="must be family or code, and not both",
        ),
        constraint(
            holds=lambda quota: quota.family != "Trn" or quota.purchase == "OnDemand",
            cel="!has(self.family) || self.family != 'Trn' || self.purchase == 'OnDemand'",
            rule="must be given as code for Trn on Spot: public sources disagree about it",
            field="family",
        ),
        constraint(
            holds=lambda quota: quota.code not in _CODES_OF["Spot"] or quota.purchase == "Spot",
            cel=f"!has(self.code) || !(self.code in {_CODES_OF['Spot']}) || self.purchase == 'Spot'",
            rule="is a quota on Spot instances: needs purchase: Spot",
            field="code",
        ),
        constraint(
            holds=lambda quota: quota.code not in _CODES_OF["OnDemand"] or quota.purchase == "OnDemand",
            cel=f"!has(self.code) || !(self.code in {_CODES_OF['OnDemand']}) || self.purchase == 'OnDemand'",
            rule="is a quota on on-demand instances: needs purchase: OnDemand",
            field="code",
        ),
    )

    family: Literal["Standard", "G", "P", "Inf", "Trn"] | None = None
    """The family of instance types: Standard (A, C, D, H, I, M, R, T, Z), G (with VT), P, Inf or Trn."""
    code: Annotated[str, Field(pattern=QUOTA_CODE_PATTERN, max_length=10)] | None = None
    """The code of the quota in Service Quotas for EC2, such as L-1945791B, where the family does not determine it."""
    purchase: Literal["OnDemand", "Spot"] = "OnDemand"
    """How the instances are bought: Spot has quotas of its own."""
    region: Region
    """The AWS region, such as us-east-1."""
    vcpus_per_instance: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """vCPUs of an instance. By default those of the largest type of price.aws."""


class Capacity(Part):
    """What bounds the pool: at least one of the fields. The smallest bound counts."""

    instances: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Maximum number of instances."""
    node_pool: Subdomain | None = None
    """The NodePool of Karpenter that makes the nodes of this pool. Its spec.limits are the bound where they convert to
    instances; without such limits, instances is required too. Replicas may be pending while a node is on its way."""
    auto_scaling_group: GroupName | None = None
    """The Auto Scaling group of AWS that makes the nodes of this pool. Its MaxSize is the bound. Replicas may be
    pending while a node is on its way. The operator reads the group in the region of --aws-region."""
    quota: QuotaSpec | None = None
    """A quota of the AWS account: the bound is what it leaves for the pool beside other instances of the account."""
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


_VCPUS_RULE = "needs vcpusPerInstance where price.aws names no instance type whose vCPUs follow from its size"


def _unknown_vcpus(spec: Any) -> Iterator[Breach]:
    if spec.capacity.quota is not None and vcpus_per_instance(spec) is None:
        yield Breach(path=("capacity", "quota"), rule=_VCPUS_RULE)


_SAME_RULE = "must have the region of price.aws, and purchase: Spot where price.aws has it"


def _quota_of_others(spec: Any) -> Iterator[Breach]:
    """Yield how the quota contradicts the instances that price.aws names: it would bound others."""
    quota, aws = spec.capacity.quota, spec.price.aws
    if quota is None or aws is None:
        return
    if quota.region != aws.region or (aws.purchase == "Spot" and quota.purchase != "Spot"):
        yield Breach(path=("capacity", "quota"), rule=_SAME_RULE)
    family = quota.family or next((one.value for (one, _), code in QUOTA_CODES.items() if code == quota.code), None)
    for name in aws.names():
        if family is not None and (found := family_of(name)) is not QuotaFamily(family):
            of = "another quota, whose code must be given" if found is None else f"family {found.value}"
            yield Breach(path=("capacity", "quota"), rule=f"is not the one of {name} (price.aws), which is of {of}")


class PoolSpec(Part):
    """The desired state: the nodes of the pool, their price and capacity."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda spec: (
                spec.capacity.instances is not None
                or spec.capacity.node_pool is not None
                or spec.capacity.auto_scaling_group is not None
                or spec.capacity.quota is not None
                or spec.capacity.ready_nodes
            ),
            cel="has(self.capacity.instances) || has(self.capacity.nodePool) || has(self.capacity.autoScalingGroup) || "
            "has(self.capacity.quota) || self.capacity.readyNodes",
            rule="must say what bounds the pool: instances, nodePool, autoScalingGroup, quota or readyNodes: true; "
            "the smallest bound counts",
            field="capacity",
        ),
        Constraint(
            find=_unknown_vcpus,
            cel="!has(self.capacity.quota) || has(self.capacity.quota.vcpusPerInstance) || has(self.price.aws)",
            rule=_VCPUS_RULE,
            field="capacity.quota",
        ),
        Constraint(
            find=_quota_of_others,
            cel="!has(self.capacity.quota) || !has(self.price.aws) || (self.capacity.quota.region == "
            "self.price.aws.region && (self.price.aws.purchase != 'Spot' || self.capacity.quota.purchase == 'Spot'))",
            rule=_SAME_RULE,
            field="capacity.quota",
        ),
        constraint(
            holds=lambda spec: spec.capacity.node_pool is None or spec.capacity.auto_scaling_group is None,
            cel="!has(self.capacity.nodePool) || !has(self.capacity.autoScalingGroup)",
            rule="must not have nodePool and autoScalingGroup: one of them makes the nodes",
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


def vcpus_per_instance(spec: PoolSpec) -> int | None:
    """Return the vCPUs that an instance of the pool takes of its quota, None where neither field nor type says it."""
    quota, aws = spec.capacity.quota, spec.price.aws
    if quota is not None and quota.vcpus_per_instance is not None:
        return quota.vcpus_per_instance
    known = [vcpus_of(name) for name in (() if aws is None else aws.names())]
    return None if not known or None in known else max(count for count in known if count is not None)


class PoolBounds(Part):
    """The bounds of spec.capacity, in instances; a bound that is not stated or not known is absent."""

    instances: int | None = None
    """spec.capacity.instances."""
    node_pool: int | None = None
    """What the limits of the NodePool allow."""
    auto_scaling_group: int | None = None
    """MaxSize of the Auto Scaling group."""
    quota: int | None = None
    """What the quota of the AWS account leaves for the pool."""
    ready_nodes: int | None = None
    """Ready nodes, with spec.capacity.readyNodes."""


class NodePrice(Part):
    """The price of a node by its instance type and zone."""

    instance_type: Text
    """The instance type."""
    zone: Text | None = None
    """The zone, where prices differ by zone."""
    per_hour: Number
    """USD per hour."""


class PriceStatus(Part):
    """Where the price of the pool comes from. The operator resumes from it after a restart."""

    source: Literal["Declared", "Bundled", "Listed", "Spot"]
    """Listed: the price list of AWS. Spot: its spot price history. Bundled: the table that ships with Sluice. Declared:
    price.perHour."""
    as_of: Timestamp | None = None
    """The time as of which this was the price. A declared price has none."""
    lookup: Text | None = None
    """What was looked up. After a restart the price counts only while the spec has the same look-up."""
    at: Text | None = None
    """The instance type, and for spot the zone, of the dearest node, whose price counts for new nodes."""
    day_low_per_hour: Number | None = None
    """Lowest spot price of the last day in USD per hour, over the types and zones of the pool."""
    day_high_per_hour: Number | None = None
    """Highest spot price of the last day in USD per hour."""
    nodes: Annotated[list[NodePrice], Field(max_length=MAX_NODE_PRICES)] = Field(default_factory=list)
    """Prices of nodes by instance type and zone."""
    changed_at: Timestamp | None = None
    """Time at which the price last changed."""
    before_per_hour: Number | None = None
    """The price before that, in USD per hour."""
    counted_per_hour: Number | None = None
    """The price that counts against budgets for replicas that run, while a rise is recent, in USD per hour."""
    risen_at: Timestamp | None = None
    """Time since which the price has been above that."""
    problem: Text | None = None
    """Why this is not the present price."""


MAX_ORPHANS = 100


class OrphanStatus(Part):
    """A workload that Sluice scaled and that no pipeline has any more."""

    namespace: Text
    """Its namespace."""
    api_version: Text
    """Its API version."""
    kind: Text
    """Its kind."""
    name: Text
    """Its name."""
    address: Text | None = None
    """For RayServe: URL of Ray's dashboard, where the pipeline named one."""
    ray_service: Text | None = None
    """For RayServe: name of the RayService, where the pipeline named one."""
    pipeline: Text
    """The pipeline that had it, as NAMESPACE/NAME."""
    replicas: int
    """The replicas that Sluice set last."""
    per_instance: int
    """How many of them fill an instance."""
    instances_per_replica: int | None = None
    """How many instances a replica takes; absent where it takes one, or a part of one."""


class QuotaStatus(Part):
    """The quota of the AWS account that bounds the pool."""

    code: Text
    """Code of the quota in Service Quotas for EC2."""
    name: Text
    """Its family and purchase."""
    region: Text
    """The AWS region."""
    limit_vcpus: Number | None = None
    """The quota, in vCPUs."""
    used_by_others_vcpus: Number | None = None
    """vCPUs of the account's instances that count for this quota and are not of this pool."""
    vcpus_per_instance: int | None = None
    """vCPUs of an instance of the pool."""
    as_of: Timestamp | None = None
    """The time as of which these were the numbers."""
    increase_to_vcpus: int | None = None
    """The quota with which one more instance would be allowed, where the quota is what bounds the pool."""
    worth_per_hour: Number | None = None
    """What that instance would save, in USD per hour."""
    problem: Text | None = None
    """Why the numbers are not known, or older than they should be."""


class PoolStatus(Part):
    """The observed state of the pool. Written by the operator."""

    observed_generation: int | None = None
    """The generation of the spec that this status is based on."""
    operator: OperatorName | None = None
    """The operator that writes this status, as the namespace and the name of its Lease."""
    orphans: Annotated[list[OrphanStatus], Field(max_length=MAX_ORPHANS)] = Field(default_factory=list)
    """Workloads that Sluice scaled and that no pipeline has any more. They count until someone sets their replicas."""
    conditions: Annotated[list[Condition], ListMap(key="type"), Field(max_length=10)] = Field(default_factory=list)
    """Conditions of the pool: Available says whether replicas can be scheduled on it, CapacityKnown whether the limits
    of its NodePool or Auto Scaling group are known, NodesExclusive whether its nodes are in no other pool, PriceCurrent
    whether the price of price.aws is that of AWS, QuotaSuffices whether the quota allows an instance,
    ProviderPermits whether the provider lets its autoscaler launch nodes, ReplicasOwned whether a pipeline has every
    workload that Sluice scaled there, and GrowthOpen whether no replicas are asked for there that Sluice does not
    scale."""
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
    """Nodes that Karpenter or the Auto Scaling group has launched for the pool and that have not registered yet."""
    zones: int | None = None
    """Number of distinct zones of the ready nodes, at least 1."""
    price_per_hour: Number | None = None
    """Price in USD per instance and hour on which the current plan is based."""
    price: PriceStatus | None = None
    """Where this price comes from, and when it changed."""
    quota: QuotaStatus | None = None
    """The quota of spec.capacity.quota."""
    shadow_price_per_hour: Number | None = None
    """Saving that one more instance would allow, in USD per hour."""
    unavailable_until: Timestamp | None = None
    """Time until which plans avoid the pool."""
    backoff_seconds: Number | None = None
    """Time in seconds for which plans will avoid the pool after the next failure."""
    node_launch_seconds: Number | None = None
    """Time in seconds that a new node of an elastic pool takes until it registers, as measured."""
    node_pool_instances: int | None = None
    """Nodes that the limits of the NodePool last allowed. They are planned with while it has no node."""
    reason: Text | None = None
    """Why the pool is unavailable."""
    shards: Annotated[list[PoolShard], ListMap(key="shard"), Field(max_length=MAX_SHARDS)] = Field(default_factory=list)
    """What each shard of the fleet uses of the pool, and may use, where it has several. inUse, free, planned and limit
    are then those of all shards, and the other fields are what shard 0 knows."""


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
