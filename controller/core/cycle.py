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
    cases = tuple(assess(state, snapshot, availability, policy) for state in snapshot.pipelines)
    world = with_missing_pools(snapshot)
    if len(cases) > AT_ONCE:
        fleet = plan_in_turns(cases, world.pools, policy, snapshot.now_s)
    else:
        fleet = plan_fleet(cases, world.pools, policy)
    ledger = Ledger(snapshot.pipelines, snapshot.pools, policy.budget_per_hour, trials=availability.trials())
    aims = find_aims(cases, fleet, world, policy)
    above = ledger.above_cap(ledger.observed_per_hour())
    excused = {
        case.key: _excused_until_s(case, snapshot.now_s, policy)
        if above or ledger.above_cap(ledger.observed_per_hour(case.key), case.key)
        else None
        for case in cases
    }
    moves = [
        Move(case=case, aim=aims[case.key], plan=fleet.pipelines[case.key], problem=fleet.problems[case.key])
        for case in cases
        if case.acting
    ]
    outcomes = schedule(moves, ledger, policy.composition)
    return Decision(
        now_s=snapshot.now_s,
        policy=policy,
        pipelines=tuple(
            pipeline_decision(
                case,
                plan=fleet.pipelines[case.key],
                aim=aims[case.key],
                planned=None if fleet.planned is None else fleet.planned.get(case.key),
                awaits_turn=case.key in fleet.waiting,
                outcomes=outcomes,
                spend_per_hour=ledger.observed_per_hour(case.key),
                excused_until_s=excused[case.key],
                now_s=snapshot.now_s,
                policy=policy,
            )
            for case in cases
        ),
        pools=tuple(
            pool_decision(name, snapshot, ledger, fleet.plan, availability.pools[name])
            for name in sorted(snapshot.pools)
        ),
        plan=fleet.plan,
    )


def _excused_until_s(case: Assessment, now_s: float, policy: Policy) -> float:
    """Return until when spend above the cap is excused: the drain and two cycles after it began."""
    until_s = now_s + case.spec.scaling.drain_s + 2 * policy.interval_s
    since_before = case.state.memory.excess_excused_until_s
    return until_s if since_before is None else min(until_s, since_before)  # a clock may have been set back
