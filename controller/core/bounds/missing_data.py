"""Never down on missing data: what is not known is no reason to remove a replica."""

from collections.abc import Iterator

from controller.core.assess.assessment import Assessment
from controller.core.messages import details
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.decision import Hold, HoldReason

NEVER_DOWN = Mechanism(
    name="never down on missing data",
    level=Level.MISSING_DATA,
    evidence=Evidence.PIPELINE,
    does="while the demand, the load of a stage or a workload is not known, no replica is removed",
)


def bounds(assessment: Assessment) -> Iterator[Bound]:
    """Yield the bounds of the placements that keep their replicas.

    Those of another pipeline that serve a shared stage are for that pipeline to keep.
    """
    loss = assessment.demand.loss
    first = next(holds(assessment), None)
    for key, count in assessment.current.items():
        own = assessment.never_down
        if count and key[0] not in assessment.spec.borrowed and (own or key[0] in assessment.missing.demands):
            yield NEVER_DOWN.on(
                key,
                least=count,
                hold=first,
                since_s=None if loss is None else loss.since_s,
                evidence=None if own else Evidence.OTHER_PIPELINE,
            )


def holds(assessment: Assessment) -> Iterator[Hold]:
    """Yield a hold for everything that is missing."""
    for stage in sorted(assessment.missing.demands - assessment.spec.borrowed.keys()):
        yield Hold(reason=HoldReason.METRICS_MISSING, stage=stage, detail=details.DEMAND_OF_ANOTHER)
    if assessment.demand_missing:
        yield Hold(reason=HoldReason.METRICS_MISSING, detail="demand")
    if (found := assessment.demand.contradiction) is not None:
        yield Hold(
            reason=HoldReason.METRICS_MISSING,
            stage=found.stage,
            detail=details.contradicted(found.queried, found.arriving, found.since_s),
        )
    for stage, reading in assessment.missing.samples.items():
        detail = details.missing_reading(reading.placement, reading.quantity, reading.absence)
        yield Hold(reason=HoldReason.METRICS_MISSING, stage=stage, detail=detail)
    for stage in sorted(assessment.missing.too_new):
        yield Hold(reason=HoldReason.TOO_NEW, stage=stage)
