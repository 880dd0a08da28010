"""Step limits: a stage gains and loses at most `maxStep` replicas in a cycle."""

from collections.abc import Iterator, Mapping

from controller.core.assess.assessment import Assessment
from controller.core.bounds.idle import idle_stages
from controller.core.bounds.outages import OUTAGE
from controller.core.bounds.pins import PIN
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.decision import Hold, HoldReason
from optimizer.model import PlacementKey

MAX_STEP = Mechanism(
    name="step limit",
    level=Level.STEP,
    evidence=Evidence.PERSON,
    does="a stage gains and loses at most `maxStep` replicas in a cycle; a fallback is not limited, nor is the "
    "beginning or the end of a cascade",
    planned=False,
)


def bounds(assessment: Assessment, goal: Mapping[PlacementKey, int]) -> Iterator[Bound]:
    """Yield the bounds of the placements for which one step does not lead to `goal`.

    The limits are per stage and direction. A fallback from a pool that does not deliver is not limited, because the
    replicas that it replaces are gone. Nor is the part of a fallback that a cap postponed to a later cycle, and nor are
    pinned placements. The first models of a cascade begin and end together: all items come to them while one serves.
    """
    if idle_stages(assessment):
        # There is no load. Once the entry stages have no replicas, nothing may show that the other stages need none.
        return
    current, scaling = assessment.current, assessment.spec.scaling
    pinned = {bound.key for bound in assessment.bounds.of(PIN)}
    out = {bound.key for bound in assessment.bounds.of(OUTAGE)}
    leaves = {
        own.stage
        for own in assessment.bounds.of(OUTAGE, PIN)
        if own.key is not None and own.most is not None and current[own.key] > own.most
    }
    for stage in assessment.spec.stages:
        keys = [(stage.name, placement.name) for placement in stage.placements]
        if stage.name in leaves or bool(stage.first(current)) != bool(stage.first(goal)):
            continue
        total = sum(current[key] for key in keys)
        ups, downs = scaling.up.most(total), scaling.down.most(total)
        if assessment.pace is not None:
            downs = total  # the capacity that work gives back is needed now
        if any(key in out for key in keys):
            ups = sum(goal.values())
        for key in keys:
            if key in pinned:
                continue
            change = max(-downs, min(ups, goal[key] - current[key]))
            ups -= max(0, change)
            downs -= max(0, -change)
            if current[key] + change != goal[key]:
                yield MAX_STEP.on(
                    key,
                    least=current[key] + min(0, change),
                    most=current[key] + max(0, change),
                    hold=Hold(reason=HoldReason.STEP_LIMITED, stage=key[0]),
                )


def ready_beyond(assessment: Assessment, goal: Mapping[PlacementKey, int]) -> Iterator[tuple[PlacementKey, int]]:
    """Yield the placements with ready replicas beyond their `goal` that nothing but savings removes, and how many."""
    pinned = {bound.key for bound in assessment.bounds.of(PIN)}
    for key, count in assessment.current.items():
        least = int(min(count, assessment.state.ready(*key), assessment.bounds.reach.most(key)))
        if least > goal[key] and key not in pinned and key[0] not in assessment.spec.borrowed:
            yield key, least
