"""What each pipeline goes to, and how far this cycle takes it: the plan inside the bounds, and one step towards it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.core.assess.assessment import Assessment
from controller.core.bounds import (
    alternation,
    drains,
    first_window,
    idle,
    learning,
    leaving_nodes,
    measured_miss,
    missing_data,
    no_plan,
    not_ours,
    outages,
    pins,
    steps,
    tolerance,
)
from controller.core.bounds.reasons import reasons_of
from controller.core.bounds.resolution import resolve
from controller.core.plan.floors import FloorPlan
from controller.core.plan.following import Following
from controller.core.plan.ledger import Ledger
from controller.core.state.bound import NO_LIMITS, Bound, Level, Lost, Mechanism
from controller.core.state.carry_over import FeedbackMemory
from controller.core.state.decision import ChangeReason, Hold, HoldReason, SeasonUse
from optimizer.model import PipelineKey, PlacementKey, PoolName, StageName
from optimizer.plan import Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a pipeline goes to, before caps and capacity limit how far it gets in this cycle.

    `planned` is the plan, floors included. `replicas` is where the pipeline goes: the plan, or the replicas that it has
    where these are good enough. `next` is how far one cycle goes. Each lists every placement. `reasons` has the reason
    of each placement whose next replicas differ from the current ones. `bounds` are all bounds in force, and `lost`
    those that are not kept in full; `unmet` has what leaves no room for floors. `follows_plan` is false where the
    current replicas are good enough. `floors` has the replicas of stages that the measured latency asks for, and
    `feedback` what the next cycle knows of that. `trials` has how many replicas placements may have that are on trial.
    """

    planned: Mapping[PlacementKey, int]
    replicas: Mapping[PlacementKey, int]
    next: Mapping[PlacementKey, int]
    holds: tuple[Hold, ...]
    reasons: Mapping[PlacementKey, ChangeReason]
    bounds: tuple[Bound, ...]
    lost: tuple[Lost, ...]
    unmet: Mapping[PlacementKey, Limit]
    follows_plan: bool
    feedback: FeedbackMemory
    floors: Mapping[StageName, int]
    trials: Mapping[PlacementKey, int]


def find_goals(
    assessments: Sequence[Assessment],
    raised: FloorPlan,
    follows: Following,
    ledger: Ledger,
    pressed: Collection[PipelineKey],
    repriced: Mapping[PoolName, float],
    now_s: float,
) -> Mapping[PipelineKey, Goal]:
    """Return the goal of every pipeline.

    Caps outrank savings: a pipeline that holds a share of what the fleet is short of (`pressed`) follows its plan, and
    so does one whose present replicas do not fit beside the goals of the others. `ledger` has the present replicas.
    `repriced` has the pools whose price changed lately, and by how much.
    """

    def goal_of(assessment: Assessment, *, stays: bool) -> Goal:
        return _goal(assessment, raised, follows, repriced, now_s, stays=stays)

    goals = {each.key: goal_of(each, stays=each.key not in pressed) for each in assessments}
    for each in assessments:
        if each.acting:
            ledger.ask(each.key, goals[each.key].replicas)
    shortage = ledger.shortage()
    return {
        each.key: goal_of(each, stays=False) if each.acting and shortage.affects(each) else goals[each.key]
        for each in assessments
    }


def _goal(
    assessment: Assessment,
    raised: FloorPlan,
    follows: Following,
    repriced: Mapping[PoolName, float],
    now_s: float,
    *,
    stays: bool,
) -> Goal:
    """Return the goal of a pipeline. With `stays`, it may keep replicas that are good enough."""
    key, keys = assessment.key, tuple(assessment.current)
    unraised, planned = raised.unraised[key], raised.raised[key].replicas
    found, staying = raised.raised[key], list[Bound]()
    follows_plan = key in follows.pipelines or not stays
    if no_plan.is_none(assessment, raised.fleet.plans[key], pressed=not stays):
        staying = assessment.bounds.allowed(no_plan.bounds(assessment, unraised))
    elif not follows_plan:
        staying = assessment.bounds.allowed(tolerance.bounds(assessment))
    if staying:
        still, shared = resolve(staying, keys), follows.shared(key)
        base = {own: count if own[0] in shared else still.clamped(own, count) for own, count in unraised.items()}
        found = raised.room.raised(assessment, base, raised.asked(assessment))
    stated = [bound for bound in assessment.bounds.stated if bound.mechanism is not not_ours.NOT_ACTING]
    # The plan has weighed the declared minimums against the caps: what it has left out is not asked for again.
    firm = [replace(own, least=None) if own.level is Level.DECLARED else own for own in stated if own.level < Level.SLA]
    if assessment.pace is not None:  # its plan keeps without data what live pipelines leave
        firm = [own for own in firm if own.mechanism is not missing_data.NEVER_DOWN]
    drained = list(assessment.bounds.of(drains.DRAIN))
    firm += drained
    kept = [bound for bound in raised.bounds[key] if bound.mechanism is measured_miss.KEEP] if stays else []
    kept = [bound for bound in kept if all(bound.key != own.key for own in drained)]  # sessions miss because it stays
    inside = not (staying or kept or any(own.level is not Level.DECLARED for own in firm))  # as plans are anyway
    limits = NO_LIMITS if inside else resolve([*firm, *kept], keys)
    replicas = {own: limits.clamped(own, found.replicas[own]) for own in keys}
    held = kept and replicas != {own: resolve(firm, keys).clamped(own, found.replicas[own]) for own in keys}
    if staying and replicas == planned:
        staying = []  # the plan is no other
    wanted = {own: min(replicas[own], planned[own]) for own in keys}
    step = assessment.bounds.allowed(
        [
            *steps.bounds(assessment, replicas),
            *leaving_nodes.bounds(assessment, wanted),
            *first_window.bounds(assessment, replicas, now_s),
            *(alternation.bounds(assessment, replicas, now_s) if stays else ()),
        ]
    )
    one = resolve([*step, *drained], keys) if step else NO_LIMITS
    after = {own: one.clamped(own, replicas[own]) for own in keys}
    bounds = (*stated, *_floors_of(raised, key), *kept, *staying, *step)
    return Goal(
        planned=planned,
        replicas=replicas,
        next=after,
        holds=tuple(_holds(assessment, raised, replicas, after, [*staying, *step, *(kept if held else ())])),
        reasons=reasons_of(assessment, after, unraised, bounds, repriced),
        bounds=bounds,
        lost=(*assessment.bounds.reach.lost, *limits.lost),
        unmet=found.refused,
        follows_plan=follows_plan,
        feedback=raised.feedback[key].memory,
        floors=raised.floors(key),
        trials={
            bound.key: bound.most
            for bound in stated
            if bound.mechanism in (outages.TRIAL, outages.PATIENT_TRIAL) and bound.key and bound.most is not None
        },
    )


def _holds(
    assessment: Assessment,
    raised: FloorPlan,
    replicas: Mapping[PlacementKey, int],
    after: Mapping[PlacementKey, int],
    binding: Sequence[Bound],
) -> list[Hold]:
    """Return why the pipeline does not go further, or elsewhere, in the order in which people read it.

    `binding` are the bounds that hold something back in this cycle.
    """
    key, fleet = assessment.key, raised.fleet
    plan = fleet.plans[key]
    unreachable = plan.sla_unreachable or fleet.unreachable.get(key, plan).sla_unreachable

    def of(*mechanisms: Mechanism) -> list[Hold]:
        return list(dict.fromkeys(own.hold for own in binding if own.mechanism in mechanisms and own.hold is not None))

    held: list[Hold] = []
    if unreachable and not no_plan.lacks_pool(assessment, plan):
        held.append(Hold(reason=HoldReason.SLA_UNREACHABLE))
    else:
        held += of(tolerance.TOLERANCE)
    held += [bound.hold for bound in assessment.bounds.of(learning.LEARN) if bound.hold is not None]
    if (hold := raised.feedback[key].hold) is not None:
        held.append(hold)
    held += [
        *of(measured_miss.KEEP),
        *not_ours.holds(assessment),
        *not_ours.missing_pool_holds(assessment),
        *missing_data.holds(assessment),
        *not_ours.missing_target_holds(assessment),
        *outages.holds(assessment),
        *leaving_nodes.holds(assessment),
        *pins.holds(assessment, replicas),
        *of(steps.MAX_STEP),
        *of(first_window.FIRST_WINDOW, alternation.ALTERNATE),
        *idle.holds(assessment, after),
    ]
    for (stage, placement), limit in raised.raised[key].refused.items():  # those of its own budget are in `unmet`
        if limit.name is not None:
            detail = raised.room.no_capacity(placement, limit)
            held.append(Hold(reason=HoldReason.AWAITING_CAPACITY, stage=stage, detail=detail))
    if _held_high(assessment) and after == assessment.current:
        held.append(Hold(reason=HoldReason.STABILIZING, until_s=assessment.demand.falls_at_s))
    season = assessment.demand.horizon.season if assessment.demand.horizon else None
    if isinstance(season, SeasonUse) and season.kept is not None and after == assessment.current:
        held.append(Hold(reason=HoldReason.RISE_EXPECTED))
    return held


def _floors_of(raised: FloorPlan, key: PipelineKey) -> Iterator[Bound]:
    return (bound for bound in raised.bounds[key] if bound.level is Level.FLOOR)


def _held_high(assessment: Assessment) -> bool:
    """Whether the scale-down window holds a demand that is above the forecast by more than the tolerance."""
    demand, forecast = assessment.demand.demand, assessment.demand.forecast
    if assessment.demand.falls_at_s is None or demand is None or forecast is None:
        return False
    return forecast < demand * (1 - assessment.spec.scaling.tolerance)
