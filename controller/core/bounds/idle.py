"""Scale to zero: stages that have had no demand for `scaling.idleAfter` have no replicas."""

from collections.abc import Iterator, Mapping

from controller.core.assess.assessment import Assessment
from controller.core.messages import details
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.decision import ChangeReason, Hold, HoldReason
from optimizer.model import PlacementKey, StageName

IDLE = Mechanism(
    name="idle",
    level=Level.COST,
    evidence=Evidence.PIPELINE,
    does="after `scaling.idleAfter` without demand, a stage whose minimums are all 0 has no replica",
)


def idle_stages(assessment: Assessment) -> frozenset[StageName]:
    """Return the stages that have no replicas while there is no demand: all their minimums are 0, and none is pinned.

    A shared stage is idle only without demand of the other pipelines that use it.
    """
    if not assessment.demand.idle:
        return frozenset()
    spec, pins = assessment.spec, assessment.spec.overrides.pins
    busy = {own.name for own in assessment.pipeline.stages if own.sharing is not None and own.sharing.other_rps > 0}
    pinned = {stage for (stage, _), pin in pins.items() if pin.fits}
    return frozenset(
        stage.name
        for stage in spec.stages
        if stage.name not in busy | pinned | assessment.missing.demands | spec.borrowed.keys()
        and not any(
            placement.prior.min_replicas for placement in stage.placements if (stage.name, placement.name) not in pins
        )
    )


def bounds(assessment: Assessment) -> Iterator[Bound]:
    """Yield the bounds of the stages that are idle."""
    since_s = assessment.demand.idle_since_s
    change = ChangeReason.WAITING if waits(assessment) else ChangeReason.IDLE
    for stage in sorted(idle_stages(assessment)):
        yield IDLE.on(stage, most=0, change=change, since_s=since_s)


def waits(assessment: Assessment) -> bool:
    """Return whether a backlog has no replicas because it waits for cheaper capacity."""
    return assessment.pace is not None and assessment.pace.work is not None and assessment.pace.rate == 0


def holds(assessment: Assessment, replicas: Mapping[PlacementKey, int]) -> Iterator[Hold]:
    """Yield the holds of stages that are and stay at zero: one for the pipeline where these are all its stages.

    `replicas` are those that the pipeline goes to.
    """
    after_s, idle = assessment.spec.scaling.idle_after_s, idle_stages(assessment)
    if after_s is None or not idle:
        return
    if any(assessment.current[key] or replicas[key] for key in replicas if key[0] in idle):
        return
    if waits(assessment):
        yield Hold(reason=HoldReason.WAITING)
        return
    detail = "" if assessment.pace is not None else details.no_demand(after_s)
    everything = len(idle) == len(assessment.spec.stages)
    for stage in [None] if everything else [stage.name for stage in assessment.spec.stages if stage.name in idle]:
        yield Hold(reason=HoldReason.IDLE, stage=stage, detail=detail)
