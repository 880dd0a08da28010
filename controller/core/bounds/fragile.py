"""Fragile capacity: work that can wait leaves interruptible pools to the live pipelines that name them."""

from collections.abc import Iterator

from controller.core.assess.assessment import Assessment
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.snapshot import Snapshot
from controller.core.state.spec import live_pools
from optimizer.model import pool_of

FRAGILE = Mechanism(
    name="fragile capacity",
    level=Level.DECLARED,
    evidence=Evidence.PERSON,
    does="a backlog with `sharesFragile: Never` has no replica on an interruptible pool that a live pipeline names, or "
    "that shards divide",
)


def bounds(assessment: Assessment, snapshot: Snapshot) -> Iterator[Bound]:
    """Yield the bounds of the placements of a backlog that live pipelines need after an interruption.

    Which pipelines of other shards name a pool is not known, so each pool that shards divide counts as named.
    """
    backlog = assessment.spec.backlog
    if backlog is None or backlog.shares_fragile:
        return
    live = live_pools(state.spec for state in snapshot.pipelines) | snapshot.named_by_others
    live |= {pool_of(own.key[1]) for each in snapshot.standing for own in each.placements}  # a backlog never stands
    for key, placement in assessment.spec.placements().items():
        pool = snapshot.pools.get(placement.pool)
        if pool is not None and pool.spec.fragile and (placement.pool in live or pool.allowance is not None):
            yield FRAGILE.on(key, most=0)
