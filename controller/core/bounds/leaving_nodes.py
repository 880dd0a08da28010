"""Replicas on nodes that are being removed, or are dead: replaced before the nodes are gone, or instead of them."""

from collections.abc import Iterator, Mapping

from controller.core.assess.assessment import Assessment
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.decision import ChangeReason, Hold, HoldReason
from controller.core.state.snapshot import TargetState
from optimizer.model import PlacementKey

REPLACE = Mechanism(
    name="nodes that are being removed",
    level=Level.SLA,
    evidence=Evidence.POOL,
    does="replicas on nodes that are being removed, or have not been ready for long, are replaced first; the step "
    "limit does not apply",
    planned=False,
)


def bounds(assessment: Assessment, wanted: Mapping[PlacementKey, int]) -> Iterator[Bound]:
    """Yield the bounds of placements that need replacements, to have `wanted` replicas on other nodes.

    The replacements are added until enough replicas on other nodes are ready. At `replicas.max`, the workload's
    controller replaces the replicas when they end.
    """
    if assessment.never_down:
        return
    for key, leaving in assessment.leaving.items():
        target = assessment.state.target(*key)
        assert isinstance(target, TargetState)
        if target.ready - target.leaving < wanted[key]:
            least = int(min(wanted[key] + leaving, assessment.bounds.limits.most(key)))
            yield REPLACE.on(key, least=least, change=ChangeReason.NODES_LEAVING)


def holds(assessment: Assessment) -> Iterator[Hold]:
    """Yield a hold for placements on such nodes whose controller chooses itself which replicas go.

    A StatefulSet removes its last replicas: replacements would be the next ones to go, without end.
    """
    for (stage, pool), target in assessment.state.found():
        if target.leaving and (stage, pool) not in assessment.leaving and stage not in assessment.spec.borrowed:
            yield Hold(reason=HoldReason.NODES_LEAVING, stage=stage, placement=pool)
