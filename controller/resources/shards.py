"""The entries of shards in the status of what they share."""

from controller.resources.base import Part
from controller.resources.fields import Number
from controller.resources.metadata import Timestamp

MAX_SHARDS = 64


class ShardEntry(Part):
    """What one shard of the fleet uses, and may use. Amounts are instances of a pool, or USD per hour of a budget."""

    shard: int
    """The shard, from 0."""
    of: int
    """The number of shards that this entry was written for."""
    users: int | None = None
    """Pipelines of the shard that may use the resource."""
    awaiting: int | None = None
    """Pipelines that another shard has not handed over yet. While there are any, nothing is divided."""
    unserved: Number | None = None
    """The share of the demand that is not served for lack of the resource, for pipelines of the priority below."""
    priority: int | None = None
    """The highest priority of a pipeline that lacks the resource for its demand."""
    least_priority: int | None = None
    """The lowest priority of a pipeline that uses the resource."""
    price_per_hour: Number | None = None
    """What one more unit would save the shard, in USD per hour."""
    reduce: bool | None = None
    """Whether the shard has to give back what it uses above `allowed`. Written by shard 0."""
    renewed_at: Timestamp | None = None
    """Time at which the shard last renewed the entry."""


class PoolShard(ShardEntry):
    """What one shard of the fleet uses of the pool, and may use, in instances."""

    used: int
    """Instances that its replicas occupy."""
    agreed: int
    """Instances that the shard works within."""
    allowed: int | None = None
    """Instances that it may agree to. Written by shard 0; absent before the first division."""
    lacking: int | None = None
    """Instances that its plans would use beyond those in use; absent until it has planned."""


class BudgetShard(ShardEntry):
    """What one shard of the fleet spends of the budget, and may spend, in USD per hour."""

    used: Number
    """USD per hour of its replicas."""
    agreed: Number
    """USD per hour that the shard works within."""
    allowed: Number | None = None
    """USD per hour that it may agree to. Written by shard 0; absent before the first division."""
    lacking: Number | None = None
    """USD per hour that its plans would spend beyond what is spent; absent until it has planned."""
