"""Stages of which not enough is known yet: they keep what carries their load, and double it while it does not.

A placement that was never measured is not used to save money. Where it might, one replica is started there first.
"""

from collections.abc import Iterator, Mapping

from controller.core.assess.assessment import Assessment
from controller.core.assess.learned_numbers import settled
from controller.core.assess.optimizer_input import never_measured
from controller.core.state.bound import Bound, Evidence, Level, Limits, Mechanism
from controller.core.state.decision import ChangeReason, Hold, HoldReason
from controller.core.state.snapshot import PipelineState
from controller.core.state.spec import PlacementSpec, StageSpec
from optimizer.model import PlacementKey, StageName
from optimizer.plan import PipelinePlan
from profiler.samples import Absence, Quantity
from profiler.slots import wants_slots
from profiler.stages import Learned, StageProfile

LEARN = Mechanism(
    name="learning",
    level=Level.FLOOR,
    evidence=Evidence.PIPELINE,
    does="a stage whose service times or slots are not known keeps its replicas, and doubles them while it queues",
)
PROBE = Mechanism(
    name="probe",
    level=Level.FLOOR,
    evidence=Evidence.PIPELINE,
    does="where a placement that was never measured might save money, one replica is started there",
)
UNMEASURED = Mechanism(
    name="placement that was never measured",
    level=Level.COST,
    evidence=Evidence.PLACEMENT,
    does="a placement whose service times are not known gets no replica to save money, only where the SLA needs it",
)

BUSY = 0.9
"""A stage whose replicas are busy for a larger share of the time is short of replicas."""
BEHIND = 1.05
"""Arrivals over completions from which a stage falls behind."""
PROBE_ROOM = 0.9
"""A first replica is started somewhere only while the latency is below this share of the SLA: it may be slow."""
WAITING_SHARE = 0.25
"""A stage whose waiting items take a larger share of the SLA to clear is short of replicas."""


def floors(assessment: Assessment, now_s: float) -> Iterator[Bound]:
    """Yield the floor of every stage that runs on replicas of which not enough is known.

    Not enough is known without a service law, and while sessions are refused but nothing says how many a replica holds.
    The stage has at least the replicas that it has now, because no other number is known to carry the load. It gets
    twice as many while it queues or refuses sessions, and again when the new ones have been ready for a window of the
    metrics.
    """
    state, moved_at_s = assessment.state, assessment.stages_moved_at_s
    profiles = {own.name: own for own in assessment.profile.stages}
    for stage, seen_of in zip(state.spec.stages, assessment.seen.stages, strict=True):
        if stage.shared_from is not None:  # learned by its owner
            continue
        own = profiles[stage.name]
        # While all streams that are offered are held, refusals have another cause.
        refuses = wants_slots(seen_of, assessment.seen) is not False and _refuses(stage, own, state, assessment.learned)
        if not refuses and not _unknown(stage, own, state):
            continue
        total = max(1, sum(state.desired(stage.name, placement.name) for placement in stage.placements))
        short = settled(stage, moved_at_s, now_s) and (refuses or _queues(own, state.spec.sla.latency_s))
        yield LEARN.on(
            stage.name,
            least=2 * total if short else total,
            hold=Hold(reason=HoldReason.LEARNING, stage=stage.name),
            change=ChangeReason.LEARNING,
        )


def unmeasured(assessment: Assessment, limits: Limits) -> Iterator[Bound]:
    """Yield the bounds of the placements whose service law is neither declared nor measured.

    While none of a stage is measured, the first placement that may have replicas within `limits` gets them.
    """
    profiles = {own.name: own for own in assessment.profile.stages}
    for stage in assessment.spec.stages:
        if stage.shared_from is not None:
            continue

        def most(placement: PlacementSpec, name: StageName = stage.name) -> float:
            return limits.most((name, placement.name))

        for name in never_measured(stage, profiles[stage.name], most):
            current = assessment.current[stage.name, name]
            yield UNMEASURED.on((stage.name, name), most=current)


def probes(
    assessment: Assessment,
    plan: PipelinePlan,
    planned: Mapping[PlacementKey, int],
    prices_per_hour: Mapping[PlacementKey, float],
) -> Iterator[Bound]:
    """Yield the bound of the placement on which one replica is started to measure it, where that can pay.

    It can where the `planned` replicas of the stage's other placements cost more than twice as much as the replica.
    """
    if not plan.feasible or assessment.never_down or (key := _probe(assessment)) is None:
        return
    others = sum(prices_per_hour[own] * count for own, count in planned.items() if own[0] == key[0])
    if others > 2 * prices_per_hour[key]:
        yield PROBE.on(key, least=1, change=ChangeReason.PROBE)


def _probe(assessment: Assessment) -> PlacementKey | None:
    """Return a placement to measure with one replica, None where there is none, or where the latency leaves no room.

    Its stage runs on known placements alone. Users choose the order by the order of the placements.
    """
    state, latency_s = assessment.state, assessment.profile.latency_s
    if assessment.demand.loss is not None or isinstance(latency_s, Absence):
        return None
    if latency_s > PROBE_ROOM * state.spec.sla.latency_s or any(assessment.bounds.of(LEARN)):
        return None
    profiles = {own.name: own for own in assessment.profile.stages}
    for stage in state.spec.stages:
        own = profiles[stage.name]
        if stage.shared_from is not None or stage.cascade is not None or _unknown(stage, own, state):
            continue  # in a cascade the one replica could get all items
        if all(state.desired(stage.name, each.name) == 0 for each in own.placements):
            continue
        for placement, measured in zip(stage.placements, own.placements, strict=True):
            key = (stage.name, placement.name)
            hindered = any(bound.most == 0 and bound.mechanism is not UNMEASURED for bound in _of(assessment, key))
            if not placement.declared.service and not measured.measured and not hindered:
                return key
    return None


def _of(assessment: Assessment, key: PlacementKey) -> Iterator[Bound]:
    return (bound for bound in assessment.bounds.stated if bound.key == key)


def _unknown(stage: StageSpec, profile: StageProfile, state: PipelineState) -> bool:
    """Return whether the stage has replicas with a service law neither declared nor measured enough, or none at all."""
    running = [own for own in profile.placements if state.desired(stage.name, own.name) > 0]
    if not running:
        return not any(placement.declared.service for placement in stage.placements) and not any(
            own.enough for own in profile.placements
        )
    return any(not own.enough for own in running)


def _refuses(stage: StageSpec, profile: StageProfile, state: PipelineState, learned: Learned) -> bool:
    """Return whether replicas refuse sessions of which it is not known how many they hold."""
    for placement, own in zip(stage.placements, profile.placements, strict=True):
        refused_rps = own.readings.get(Quantity.SESSION_REFUSALS)
        if (
            not placement.declared.memory
            and (stage.name, placement.name) not in learned.session_slots
            and state.desired(stage.name, placement.name) > 0
            and isinstance(refused_rps, float | int)
            and refused_rps > 0
        ):
            return True
    return False


def _queues(profile: StageProfile, sla_s: float) -> bool:
    busy, waiting, arrivals_rps, completions_rps = (
        _number(profile, quantity)
        for quantity in (
            Quantity.UTILIZATION,
            Quantity.QUEUE_DEPTH,
            Quantity.ARRIVAL_RATE,
            Quantity.COMPLETION_RATE,
        )
    )
    if completions_rps is None:
        return False
    if arrivals_rps is not None and arrivals_rps > BEHIND * completions_rps:
        return True
    if waiting is not None and waiting > WAITING_SHARE * sla_s * completions_rps:
        return True
    # A server with batches is busy nearly all the time from well below its limit on.
    batched = (_number(profile, Quantity.BATCH_SIZE) or 1.0) > 1
    return busy is not None and busy > BUSY and not batched


def _number(profile: StageProfile, quantity: Quantity) -> float | None:
    reading = profile.readings.get(quantity)
    return None if reading is None or isinstance(reading, Absence) else reading
