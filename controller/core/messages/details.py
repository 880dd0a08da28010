"""The details of holds and outages, as text: what they concern, and why. Made from values."""

from controller.core.state.carry_over import Conflict
from controller.core.state.snapshot import PendingReplica
from optimizer.model import PoolName
from optimizer.plan import Limit
from profiler.samples import ABSURD, Absence, Quantity

REPLACEMENTS_NOT_READY = "the replacements of these replicas are not ready"


def conflict(pool: PoolName, cause: str | Conflict) -> str:
    """Return which other controller sets the replicas of a workload: an autoscaler by name, or what shows another."""
    if isinstance(cause, str):
        return f"{pool}: {cause} sets the replicas too"
    return (
        f"{pool}: another controller sets the replicas too: {cause.found} found after {cause.written} written, "
        f"{cause.changes} times so far"
    )


def on_pool(pool: PoolName, reason: str) -> str:
    """Return `reason`, which concerns a placement, with the pool of the placement."""
    return f"{pool}: {reason}"


def no_capacity(pool: PoolName, limit: Limit) -> str:
    """Return which limit leaves no capacity for a replica."""
    return f"no capacity on {pool} within {limit}"


def missing_reading(pool: PoolName, quantity: Quantity, absence: Absence) -> str:
    """Return which quantity is missing, and why."""
    return f"{quantity.value} on {pool}: {absence.reason.value} {absence.detail}".rstrip()


def invalid_demand(value: float) -> str:
    """Return why a demand cannot be used."""
    return f"demand.query returned {value!r}: must be from 0 to {ABSURD:g}"


def pending(replica: PendingReplica) -> str:
    """Return which replica does not become ready, and why."""
    return f"{replica.name}: {replica.reason}"
