"""Bounds of the spec: `replicas.min`, `replicas.max`, `maxWer`, and a replica of every stage that is not idle."""

from collections.abc import Iterator

from controller.core.assess.assessment import Assessment
from controller.core.bounds.idle import idle_stages
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.decision import ChangeReason

REPLICAS = Mechanism(
    name="replicas.min and replicas.max",
    level=Level.DECLARED,
    evidence=Evidence.PERSON,
    does="every placement stays within its declared bounds, and a stage that is not idle has a replica",
)
QUALITY = Mechanism(
    name="maxWer",
    level=Level.DECLARED,
    evidence=Evidence.PERSON,
    does="a placement whose word error rate is above `sla.maxWer` or `sla.maxWerBySlice` has no replica",
)


def bounds(assessment: Assessment) -> Iterator[Bound]:
    """Yield the bounds of the pipeline's own stages."""
    idle = idle_stages(assessment)
    for stage in assessment.spec.stages:
        if stage.shared_from is not None:
            continue
        if stage.name not in idle:
            yield REPLICAS.on(stage.name, least=1, change=ChangeReason.BOUNDS)
        for placement in stage.placements:
            prior = placement.prior
            yield REPLICAS.on(
                (stage.name, placement.name),
                least=prior.min_replicas,
                most=prior.max_replicas,
                change=ChangeReason.BOUNDS,
            )
            if assessment.spec.excess_wer(placement) is not None:
                yield QUALITY.on((stage.name, placement.name), most=0, change=ChangeReason.QUALITY)
