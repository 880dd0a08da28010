"""One cycle: makes a decision from a snapshot. Every step is a pure function."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from controller.core.act.goals import find_goals
from controller.core.act.rollout import roll_out
from controller.core.answer import PoolFacts, budget_decisions, pipeline_decision, pool_decision
from controller.core.assess.assessment import assess, at_pace, observed_uses
from controller.core.assess.batching import with_batching
from controller.core.assess.budgets import group_budgets
from controller.core.assess.learned_numbers import with_learned_numbers
from controller.core.assess.neighbours import ALONE, neighbours_of
from controller.core.assess.prices import recent_changes
from controller.core.assess.shared import served_cost_shares, with_shared_stages
from controller.core.assess.standing import standing_costs, standing_payers, with_standing
from controller.core.assess.windows import with_short_windows_named
from controller.core.bounds.availability import find_availability
from controller.core.bounds.elastic_pools import launches_s
from controller.core.bounds.overrides import with_overrides
from controller.core.bounds.stated import with_bounds
from controller.core.diagnose.diagnosis import with_diagnosis
from controller.core.plan.backlogs import Backlogs, Limits, apart, with_backlogs
from controller.core.plan.batching import with_choices
from controller.core.plan.caps import excused
from controller.core.plan.fleet import plan_fleet, replanned, with_missing_pools
from controller.core.plan.floors import Room, raise_plans
from controller.core.plan.following import following
from controller.core.plan.large_fleet import AT_ONCE, plan_in_turns, plan_size, replanned_apart
from controller.core.plan.ledger import ledger_of
from controller.core.plan.shard_use import pool_wants
from controller.core.state.decision import Decision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Snapshot
from optimizer.model import PipelineKey
from optimizer.runtime.effort import Effort


def decide(
    snapshot: Snapshot, policy: Policy, without: str | None = None, beat: Callable[[], None] | None = None
) -> Decision:
    """Return the decision for `snapshot` under `policy`. The same input gives the same decision.

    `without` names a mechanism to leave out, to see what it does; the operator leaves none out. `beat` is called while
    plans are searched.
    """
    # Assess: what the snapshot means for each pipeline.
    snapshot = with_learned_numbers(with_batching(with_overrides(with_standing(snapshot), policy)))
    snapshot = with_short_windows_named(snapshot, policy.scrape_interval_s)
    now_s, launches, shared = snapshot.now_s, launches_s(snapshot), observed_uses(snapshot)
    beside = neighbours_of(snapshot)
    assessments = with_shared_stages(
        tuple(
            assess(
                state,
                snapshot,
                policy,
                launches_s=launches,
                shared=shared,
                neighbours=beside.get(state.spec.key, ALONE),
            )
            for state in snapshot.pipelines
        )
    )
    # Bound: what each mechanism allows, and the plan inside that.
    availability = find_availability(snapshot, frozenset(each.key for each in assessments if not each.acting))
    bounded = partial(with_bounds, snapshot=snapshot, availability=availability, policy=policy, without=without)
    unbounded = {each.key: each for each in assessments if each.pace is not None}
    assessments = bounded(assessments)
    pools, budgets = with_missing_pools(snapshot).pools, group_budgets(snapshot)
    present = ledger_of(
        assessments, pools, policy.budget_per_hour, cost_shares=served_cost_shares(assessments, {}), budgets=budgets
    )
    excuse = excused(assessments, present, pools, standing_payers(snapshot), now_s)
    assessments, within, groups = excuse.assessed(assessments), excuse.policy(policy), excuse.budgets(budgets)
    # Work that can wait is planned with what the plans of all others leave.
    live, backlogs = apart(assessments)
    keys = [each.key for each in live]
    effort = None if policy.search_effort is None else Effort.shared(policy.search_effort, keys, beat)
    # A fleet of which some pipelines stand is a large one, however few are assessed now.
    if snapshot.standing or sum(map(plan_size, live)) > AT_ONCE:
        fleet = plan_in_turns(live, pools, within, now_s, groups, effort)
        replan = partial(replanned_apart, fleet, live, pools, within, groups, effort)
    else:
        fleet = plan_fleet(live, pools, within, groups, effort)
        if (chosen := with_choices(live, fleet)) is not live:
            live = chosen
            fleet = plan_fleet(live, pools, within, groups, effort)
        replan = partial(replanned, fleet, live, within)
    ledger_with = partial(
        ledger_of,
        pools=pools,
        fleet_budget_per_hour=policy.budget_per_hour,
        budgets=budgets,
        excused=excuse.per_hour,
    )
    ledger = ledger_with(live, cost_shares=fleet.cost_shares)
    shortage = ledger.shortage()
    pressed = {each.key for each in live if shortage.affects(each)}
    follows = following(live, fleet, ledger, policy, pressed)
    raised = raise_plans(live, fleet, Room(ledger, live, fleet), follows, replan, policy, now_s)
    fleet = raised.fleet
    if raised.staying:
        follows = following(live, fleet, ledger, policy, pressed, before=follows, staying=raised.staying)
    if backlogs:
        raised, backlogs = with_backlogs(
            raised,
            Backlogs(
                first=live,
                waiting=backlogs,
                limits=Limits(pools=pools, policy=within, budgets=groups),
                ledger_with=lambda own, shares: ledger_with(own, cost_shares=shares),
                at_pace=lambda key, rate: excuse.assessed(bounded([at_pace(unbounded[key], rate, now_s)]))[0],
                following={*follows.pipelines, *(each.key for each in backlogs)},
                now_s=now_s,
                beat=beat,
            ),
        )
        found = {each.key: each for each in (*live, *backlogs)}
        assessments = tuple(found[each.key] for each in assessments)
        ledger = ledger_with(assessments, cost_shares=raised.fleet.cost_shares)
        fleet = raised.fleet
        waiting = {each.key for each in backlogs}
        pressed |= waiting  # they follow their plan: what they hold may be needed
        follows = replace(follows, pipelines={*follows.pipelines, *waiting})
    else:
        assessments = live
    # Act: one step of the roll-out.
    goals = find_goals(assessments, raised, follows, ledger, pressed, recent_changes(snapshot.pools, now_s), now_s)
    rollout = roll_out(assessments, fleet, goals, snapshot, policy, availability.trials(), excuse.per_hour)
    facts = PoolFacts.of(snapshot, launches)
    planned = {key: goal.planned for key, goal in goals.items()}
    wants = pool_wants(assessments, fleet, planned, snapshot.pools, rollout.instances)
    return Decision(
        now_s=now_s,
        policy=policy,
        pipelines=tuple(
            with_diagnosis(
                each,
                pipeline_decision(
                    each,
                    fleet,
                    goals[each.key],
                    rollout.pipelines[each.key],
                    facts,
                    now_s,
                    policy,
                    excuse.left_alone_since_s.get(each.key),
                ),
                policy.interval_s,
                now_s,
            )
            for each in assessments
        ),
        pools=tuple(
            pool_decision(name, snapshot, rollout, fleet.plan, availability.pools[name], wants.get(name))
            for name in sorted(snapshot.pools)
        ),
        plan=fleet.plan,
        budgets=budget_decisions(assessments, fleet, rollout, budgets, _standing_members(snapshot)),
    )


def _standing_members(snapshot: Snapshot) -> Mapping[str, Mapping[PipelineKey, float]]:
    """Return what the pipelines of each ComputeBudget that stand cost, by the name of the budget."""
    return {state.spec.name: standing_costs(snapshot, state.namespaces) for state in snapshot.budgets}
