"""Fragile capacity: work that can wait leaves interruptible pools to the live pipelines that name them."""

from collections.abc import Iterator

from controller.core.assess.assessment import Assessment
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.snapshot import Snapshot
from optimizer.model import pool_of

FRAGILE = Mechanism(
    name="fragile capacity",
    level=Level.DECLARED,
    evidence=Evidence.PERSON,
    does="a backlog with `sharesFragile: Never` has no replica on an interruptible pool that a live pipeline names",
)


def bounds(assessment: Assessment, snapshot: Snapshot) -> Iterator[Bound]:
    """Yield the bounds of the placements of a backlog that live pipelines need after an interruption."""
    backlog = assessment.spec.backlog
    if backlog is None or backlog.shares_fragile:
        return
    live = {
        own.pool
        for state in snapshot.pipelines
        if state.spec.backlog is None
        for own in state.spec.placements().values()
    }
    live |= {pool_of(own.key[1]) for each in snapshot.standing for own in each.placements}  # a backlog never stands
    for key, placement in assessment.spec.placements().items():
        pool = snapshot.pools.get(placement.pool)
        if pool is not None and pool.spec.fragile and placement.pool in live:
            yield FRAGILE.on(key, most=0)
