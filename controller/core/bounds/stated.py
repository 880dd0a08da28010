"""States the bounds of every pipeline that are known before the plan, and makes the optimizer's input inside them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.core.assess.assessment import Assessment
from controller.core.assess.optimizer_input import inside
from controller.core.assess.skews import skews
from controller.core.bounds import (
    declared,
    drains,
    fragile,
    idle,
    learning,
    missing_data,
    not_ours,
    outages,
    pins,
    rules,
)
from controller.core.bounds.availability import Availability
from controller.core.bounds.resolution import resolve
from controller.core.state.bound import Bound, Bounds, Level, Limits
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Snapshot
from optimizer.model import PipelineKey, PlacementKey


def with_bounds(
    assessments: Sequence[Assessment],
    snapshot: Snapshot,
    availability: Availability,
    policy: Policy,
    without: str | None = None,
) -> Sequence[Assessment]:
    """Return `assessments` with their bounds, and with the optimizer's input inside them.

    The limits of a shared stage are those of the pipeline that declares it. `without` names a mechanism to leave out.
    """
    bounded = {
        each.key: replace(each, bounds=_stated(each, snapshot, availability, policy, Bounds(without=without)))
        for each in assessments
    }
    return tuple(_within(each, bounded) for each in bounded.values())


def _stated(
    assessment: Assessment, snapshot: Snapshot, availability: Availability, policy: Policy, none: Bounds
) -> Bounds:
    """Return the bounds of a pipeline; `none` are those without any mechanism."""
    found = rules.evaluate_rules(
        assessment.state, assessment.profile, snapshot.pools, now_s=snapshot.now_s, interval_s=policy.interval_s
    )
    uneven = tuple(skews(assessment))
    drained = drains.evaluate_drains(assessment, uneven, snapshot.now_s, policy.interval_s)
    known = [
        *not_ours.bounds(assessment),
        *outages.bounds(assessment, availability, policy.composition),
        *pins.bounds(assessment),
        *missing_data.bounds(assessment),
        *declared.bounds(assessment),
        *fragile.bounds(assessment, snapshot),
        *rules.bounds(assessment, found),
        *learning.floors(assessment, snapshot.now_s),
        *idle.bounds(assessment),
        *drained.bounds,
    ]
    stated = none.allowed(known)
    keys = [key for key in assessment.current if key[0] not in assessment.spec.borrowed]
    # Replicas that are kept without data must fit budgets and pools with those of all others: the plan looks at that.
    # Floors are raised from what the plan leaves.
    firm = [own for own in stated if own.mechanism.planned and own.level not in (Level.MISSING_DATA, Level.FLOOR)]
    reach = resolve((own for own in firm if own.level < Level.FLOOR), keys)
    unmeasured = none.allowed(learning.unmeasured(assessment, reach))
    savings = [*(own for own in firm if own.level is Level.COST), *unmeasured]
    return replace(
        none,
        stated=(*stated, *unmeasured),
        limits=resolve([*(own for own in firm if own.level < Level.FLOOR), *savings], keys) if savings else reach,
        reach=reach,
        kept=_kept(stated, reach),
        rules=found.states,
        rule_memories=found.memories,
        failures=availability.failures.get(assessment.key, {}),
        uncreated_since_s=availability.uncreated_since_s.get(assessment.key, {}),
        skews=uneven,
        drains=drained.found,
        drain_memories=drained.memories,
    )


def _kept(stated: Sequence[Bound], reach: Limits) -> Mapping[PlacementKey, int]:
    """Return the replicas that plans keep where budgets and pools allow it: without data, and on missing pools."""
    kept: dict[PlacementKey, int] = {}
    for own in stated:
        if own.mechanism in (missing_data.NEVER_DOWN, not_ours.POOLS) and own.key is not None and own.least:
            kept[own.key] = int(min(own.least, reach.most(own.key)))
    return {key: count for key, count in kept.items() if count}


def _within(assessment: Assessment, bounded: Mapping[PipelineKey, Assessment]) -> Assessment:
    own = assessment.bounds
    limits, reach = own.limits, own.reach
    if assessment.spec.borrowed:
        limits, reach = (
            _with_borrowed(assessment, {key: getattr(each.bounds, name) for key, each in bounded.items()}, mine)
            for name, mine in (("limits", limits), ("reach", reach))
        )
    saves = any(own.of(learning.UNMEASURED))
    pipeline = inside(assessment.pipeline, limits)
    fallback = inside(assessment.pipeline, reach) if saves else None
    return replace(assessment, pipeline=pipeline, fallback=None if fallback == pipeline else fallback)


def _with_borrowed(assessment: Assessment, limits: Mapping[PipelineKey, Limits], own: Limits) -> Limits:
    """Return the limits `own` of a pipeline together with those of the shared stages that others declare."""
    lower, upper, floors = dict(own.lower), dict(own.upper), dict(own.floors)
    for name, (owner, stage) in assessment.spec.borrowed.items():
        theirs = limits.get(owner, Limits())
        lower |= {(name, key[1]): side for key, side in theirs.lower.items() if key[0] == stage}
        upper |= {(name, key[1]): side for key, side in theirs.upper.items() if key[0] == stage}
        if stage in theirs.floors:
            floors[name] = theirs.floors[stage]
    return replace(own, lower=lower, upper=upper, floors=floors)


def outside_limits(assessment: Assessment) -> bool:
    """Return whether current replicas are outside their limits, or a stage that must have a replica has none."""
    current, reach = assessment.current, assessment.bounds.reach
    if any(not reach.least(key) <= count <= reach.most(key) for key, count in current.items()):
        return True
    return any(not any(count for key, count in current.items() if key[0] == stage) for stage in reach.floors)
