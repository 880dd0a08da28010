"""One reconcile: what to do about the world as it is. Every step is a function from values to values."""

from controller.core.act.rollout import Move, schedule
from controller.core.act.targets import find_aims
from controller.core.answer import pipeline_decision, pool_decision
from controller.core.assess.assessment import Assessment, assess
from controller.core.assess.availability import find_availability
from controller.core.plan.fleet import plan_fleet, with_missing_pools
from controller.core.plan.large_fleet import AT_ONCE, plan_in_turns
from controller.core.plan.ledger import Ledger
from controller.core.state.decision import Decision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Snapshot


def decide(snapshot: Snapshot, policy: Policy) -> Decision:
    """Return what to do about `snapshot`. Same input, same answer."""
    availability = find_availability(snapshot)
    assessments = tuple(assess(state, snapshot, availability, policy) for state in snapshot.pipelines)
    world = with_missing_pools(snapshot)
    if len(assessments) > AT_ONCE:
        fleet = plan_in_turns(assessments, world.pools, policy, snapshot.now_s)
    else:
        fleet = plan_fleet(assessments, world.pools, policy)
    ledger = Ledger(snapshot.pipelines, snapshot.pools, policy.budget_per_hour, trials=availability.trials())
    aims = find_aims(assessments, fleet, world, policy)
    above = ledger.above_cap(ledger.observed_per_hour())
    excused = {
        assessment.key: _excused_until_s(assessment, snapshot.now_s, policy)
        if above or ledger.above_cap(ledger.observed_per_hour(assessment.key), assessment.key)
        else None
        for assessment in assessments
    }
    moves = [
        Move(
            assessment=assessment,
            aim=aims[assessment.key],
            plan=fleet.pipelines[assessment.key],
            problem=fleet.problems[assessment.key],
        )
        for assessment in assessments
        if assessment.acting
    ]
    outcomes = schedule(moves, ledger, policy.composition)
    return Decision(
        now_s=snapshot.now_s,
        policy=policy,
        pipelines=tuple(
            pipeline_decision(
                assessment,
                plan=fleet.pipelines[assessment.key],
                aim=aims[assessment.key],
                planned=None if fleet.planned is None else fleet.planned.get(assessment.key),
                awaits_turn=assessment.key in fleet.waiting,
                outcomes=outcomes,
                spend_per_hour=ledger.observed_per_hour(assessment.key),
                excused_until_s=excused[assessment.key],
                now_s=snapshot.now_s,
                policy=policy,
            )
            for assessment in assessments
        ),
        pools=tuple(
            pool_decision(name, snapshot, ledger, fleet.plan, availability.pools[name])
            for name in sorted(snapshot.pools)
        ),
        plan=fleet.plan,
    )


def _excused_until_s(assessment: Assessment, now_s: float, policy: Policy) -> float:
    """Return until when spend above the cap is excused: the drain and two cycles after it began."""
    until_s = now_s + assessment.spec.scaling.drain_s + 2 * policy.interval_s
    since_before = assessment.state.memory.excess_excused_until_s
    return until_s if since_before is None else min(until_s, since_before)  # a clock may have been set back
