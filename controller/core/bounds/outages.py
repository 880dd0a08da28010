"""Pools and placements that do not deliver: plans leave them out, then try them again with one replica.

`controller.core.bounds.availability` finds what fails, and until when.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from controller.core.assess.assessment import Assessment
from controller.core.assess.optimizer_input import optimizer_demand, stages_sla_s
from controller.core.bounds.availability import Availability, unavailable, with_node
from controller.core.messages import details
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.carry_over import FailureCause, PlacementFailure, PoolMemory
from controller.core.state.decision import ChangeReason, Hold, HoldReason
from controller.core.state.snapshot import TargetState
from optimizer.latency.predict import predicted_latency_s
from optimizer.model import Composition, PlacementKey, pool_of
from profiler.samples import Absence

OUTAGE = Mechanism(
    name="pool or placement that cannot deliver",
    level=Level.CAP,
    evidence=Evidence.PLACEMENT,
    does="where replicas get no node or do not start, there are no more than have one; the rest goes elsewhere",
)
TRIAL = Mechanism(
    name="trial after a failure, while the SLA is at risk",
    level=Level.CAP,
    evidence=Evidence.PLACEMENT,
    does="after a failure one replica is tried; the others go elsewhere, because the SLA does not wait",
)
PATIENT_TRIAL = Mechanism(
    name="trial after a failure",
    level=Level.STEP,
    evidence=Evidence.PLACEMENT,
    does="after a failure one replica is tried, and the others wait for it",
    planned=False,
)


def bounds(assessment: Assessment, availability: Availability, composition: Composition) -> Iterator[Bound]:
    """Yield the bounds of placements that fail, or are on trial."""
    failures = availability.failures.get(assessment.key, {})
    out: dict[PlacementKey, int | None] = {}
    for key, hold in _outages(assessment, availability):
        pool = hold.reason is HoldReason.POOL_UNAVAILABLE
        out[key] = _most(assessment, availability, key, failures.get(key))
        yield OUTAGE.on(
            key,
            most=out[key],
            hold=hold,
            change=ChangeReason.POOL if pool else ChangeReason.PLACEMENT,
            until_s=hold.until_s,
            evidence=Evidence.POOL if pool else None,
        )
    trials = _trials(assessment, availability, out.keys())
    if not trials:
        return
    waits = _meets_sla(assessment, {key: most for key, most in out.items() if most is not None}, composition)
    for key, allowed in trials.items():
        yield (PATIENT_TRIAL if waits else TRIAL).on(
            key,
            most=assessment.current[key] + allowed,
            hold=Hold(reason=HoldReason.ON_TRIAL, stage=key[0], placement=key[1]),
            change=ChangeReason.TRIAL,
        )


def _outages(assessment: Assessment, availability: Availability) -> Iterator[tuple[PlacementKey, Hold]]:
    """Yield the placements that plans leave out, each with why and until when."""
    failures = availability.failures.get(assessment.key, {})
    for stage, name in assessment.current:
        memory, failure = availability.pools.get(pool_of(name), PoolMemory()), failures.get((stage, name))
        if unavailable(memory, availability.now_s):
            reason = HoldReason.POOL_UNAVAILABLE
        elif failure is not None and unavailable(failure.outage, availability.now_s):
            reason, memory = HoldReason(failure.cause.value), failure.outage
        else:
            continue
        hold = Hold(
            reason=reason, stage=stage, placement=name, until_s=memory.unavailable_until_s, detail=memory.reason
        )
        yield (stage, name), hold


def _most(
    assessment: Assessment, availability: Availability, key: PlacementKey, failure: PlacementFailure | None
) -> int | None:
    """Return the most replicas of a placement that fails: those with a node, or with one on its way.

    Where replicas fail to start, those that are starting are subtracted too. Such a placement has no bound (None) while
    its stage has no other usable placement. The bound is never below the ready replicas. During a roll-out, failed
    replicas of the new revision are not subtracted: fewer replicas would end ready ones of the revision before.
    """
    target = assessment.state.target(*key)
    if not isinstance(target, TargetState):
        return None
    if availability.out(pool_of(key[1])) or failure is None:
        arriving = availability.arriving.get(assessment.key, {}).get(key, 0)
        return min(target.desired, with_node(target) + arriving)
    if failure.cause is not FailureCause.CANNOT_START:
        return target.desired if target.rolling else with_node(target)
    if not _elsewhere(assessment, availability, key):
        return None
    failed = 0 if target.rolling else len(target.starting)
    return max(min(target.ready, target.desired), with_node(target) - failed)


def _elsewhere(assessment: Assessment, availability: Availability, key: PlacementKey) -> bool:
    """Whether the stage of the placement `key` has another placement that can be used."""
    failures = availability.failures.get(assessment.key, {})
    return any(
        other != key
        and pool_of(other[1]) in availability.pools
        and other not in failures
        and not availability.out(pool_of(other[1]))
        for other, _ in assessment.state.found()
        if other[0] == key[0]
    )


def _trials(
    assessment: Assessment, availability: Availability, out: Collection[PlacementKey]
) -> Mapping[PlacementKey, int]:
    """Return how many replicas (0 or 1) each placement may get whose backoff is over, while none is ready since."""
    allowed: dict[PlacementKey, int] = {}
    failures = availability.failures.get(assessment.key, {})
    for key, target in assessment.state.found():
        if key in out:
            continue
        waits = bool(target.waiting or target.starting or target.uncreated)
        if availability.pools.get(pool_of(key[1]), PoolMemory()).unavailable_until_s is not None:
            allowed[key] = 0 if waits or pool_of(key[1]) in availability.waiting else 1
        elif key in failures:
            allowed[key] = 0 if waits else 1
    return {key: count for key, count in allowed.items() if not (count and _begins(assessment, key))}


def _begins(assessment: Assessment, key: PlacementKey) -> bool:
    """Return whether a replica of `key` would begin a cascade: one alone would get all items, so all start together."""
    stage = next(own for own in assessment.spec.stages if own.name == key[0])
    return bool(stage.first({key: 1})) and not stage.first(assessment.current)


def _meets_sla(assessment: Assessment, most: Mapping[PlacementKey, int], composition: Composition) -> bool:
    """Whether the replicas that have a node serve the demand within the SLA, so that there is time for a trial."""
    demand = assessment.demand
    if demand.demand is None or isinstance(demand.observed, Absence):
        return False
    state = assessment.state
    placed = {
        key: min(target.existing - len(target.pending) - len(target.stranded), most.get(key, target.desired))
        for key, target in state.found()
    }
    offered = replace(assessment.pipeline, demand=optimizer_demand(state.spec, demand.demand))
    latency_s = predicted_latency_s(offered, placed, state.memory.batches, composition=composition)
    return latency_s is not None and latency_s <= stages_sla_s(state.spec, assessment.profile)


def holds(assessment: Assessment) -> Iterator[Hold]:
    """Yield a hold for every placement that plans leave out, and for every roll-out in progress."""
    yield from (bound.hold for bound in assessment.bounds.of(OUTAGE) if bound.hold is not None)
    for (stage, pool), target in assessment.state.found():
        if target.rolling and stage not in assessment.spec.borrowed:
            new = sum(replica.updated for replica in (*target.pending, *target.stranded, *target.starting))
            detail = details.rolling_out(target.updated, target.existing, new)
            yield Hold(reason=HoldReason.ROLLING_OUT, stage=stage, placement=pool, detail=detail)
