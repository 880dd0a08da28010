"""Where a plan serves nothing, it is no reason to change what serves: the current replicas stay."""

from collections.abc import Iterator, Mapping

from controller.core.assess.assessment import Assessment
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.decision import Hold, HoldReason
from optimizer.model import PlacementKey
from optimizer.plan import PipelinePlan

NO_PLAN = Mechanism(
    name="no plan",
    level=Level.COST,
    evidence=Evidence.PIPELINE,
    does="where no plan serves anything, because of the SLA or of a missing pool, the current replicas stay",
    planned=False,
)


def is_none(assessment: Assessment, plan: PipelinePlan, *, pressed: bool) -> bool:
    """Return whether there is no plan to follow: no demand was ever observed, or `plan` serves nothing.

    A pipeline that is `pressed`, because it holds what the fleet is short of, follows also a plan that serves nothing.
    """
    return assessment.demand.demand is None or lacks_pool(assessment, plan) or (plan.sla_unreachable and not pressed)


def lacks_pool(assessment: Assessment, plan: PipelinePlan) -> bool:
    """Return whether `plan` serves nothing because a pool does not exist.

    A plan without a stage whose only pool does not exist is no plan for the other stages.
    """
    return bool(assessment.missing.pools) and plan.served_fraction <= 0


def bounds(assessment: Assessment, planned: Mapping[PlacementKey, int]) -> Iterator[Bound]:
    """Yield the bounds of the stages that have replicas, at least the declared minimums that are `planned`."""
    hold = Hold(reason=HoldReason.SLA_UNREACHABLE)
    for stage in assessment.spec.stages:
        keys = [(stage.name, placement.name) for placement in stage.placements]
        if not any(assessment.current[key] for key in keys):
            continue
        for key, placement in zip(keys, stage.placements, strict=True):
            least = max(assessment.current[key], min(placement.prior.min_replicas, planned[key]))
            yield NO_PLAN.on(key, least=least, most=least, hold=hold)
