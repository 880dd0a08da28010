"""Tolerance: replicas that meet the SLA stay as they are while the plan saves less than `scaling.tolerance`."""

from collections.abc import Callable, Iterator, Mapping

from controller.core.assess.assessment import Assessment
from controller.core.assess.optimizer_input import stages_sla_s
from controller.core.bounds.idle import idle_stages
from controller.core.bounds.stated import outside_limits
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.decision import Hold, HoldReason
from optimizer.model import Composition, Pipeline, PlacementKey
from optimizer.plan import PipelinePlan
from optimizer.verification import keeps_sla

TOLERANCE = Mechanism(
    name="tolerance",
    level=Level.COST,
    evidence=Evidence.PIPELINE,
    does="replicas that meet the SLA stay while the plan saves less than `scaling.tolerance` of their cost",
    planned=False,
)
_EPSILON = 1e-9

Cost = Callable[[Mapping[PlacementKey, int]], float]
"""Returns what a pipeline pays for replicas of its own placements, in USD per hour."""


def bounds(assessment: Assessment) -> Iterator[Bound]:
    """Yield the bounds of a pipeline whose replicas are good enough."""
    hold = Hold(reason=HoldReason.WITHIN_TOLERANCE)
    for key, count in assessment.current.items():
        yield TOLERANCE.on(key, least=count, most=count, hold=hold)


def good_enough(
    assessment: Assessment,
    plan: PipelinePlan,
    pipeline: Pipeline,
    composition: Composition,
    *,
    planned: Mapping[PlacementKey, int],
    current: Mapping[PlacementKey, int],
    stays: Mapping[PlacementKey, int],
    cost_per_hour: Cost,
) -> bool:
    """Return whether the current replicas are within their limits and meet the SLA, and `planned` saves too little.

    `planned` are the replicas of `plan`, floors included. `current` are the present ones, but those of shared stages as
    they are going to be, and `stays` these raised to the floors. Nodes that are being removed, and idle stages, leave
    no time for tolerance.
    """
    if planned == current or assessment.leaving or idle_stages(assessment) or outside_limits(assessment):
        return False
    # Compared with the SLA itself: the headroom of plans absorbs small changes.
    if not in_time(assessment, plan, pipeline, current, composition):
        return False
    own = {key: count for key, count in stays.items() if key[0] not in assessment.spec.borrowed}
    cost = cost_per_hour(own)
    saving = cost - cost_per_hour({key: planned[key] for key in own})
    return saving <= _EPSILON or saving < assessment.spec.scaling.tolerance * cost - _EPSILON


def in_time(
    assessment: Assessment,
    plan: PipelinePlan,
    pipeline: Pipeline,
    serving: Mapping[PlacementKey, int],
    composition: Composition,
) -> bool:
    """Return whether `serving` replicas meet the SLA for the load that `plan` serves, with the present batch limits."""
    current = assessment.state.memory.batches
    batches = {
        (stage.name, placement.name): current.get((stage.name, placement.name), placement.batch)
        for stage in plan.stages
        for placement in stage.placements
    }
    left_s = max(stages_sla_s(assessment.spec, assessment.profile), pipeline.sla.latency_s)
    # A replay, which errs less, is compared with what plans aim at: with the whole SLA, nothing would be left for luck.
    # One more only for a plan that has had one, so that the account of the pipeline bounds them.
    limit_s, replays = plan.replay.composed_limit_s(left_s), plan.replay.latency_s is not None
    served = pipeline.scaled(plan.served_fraction)
    return keeps_sla(served, serving, batches, composition, limit_s=limit_s, replays=replays)
