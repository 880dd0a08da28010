"""One cycle: makes a decision from a snapshot. Every step is a pure function."""

from controller.core.act.rollout import roll_out
from controller.core.act.targets import find_aims
from controller.core.answer import binding_quotas, budget_decisions, pipeline_decision, pool_decision
from controller.core.assess.assessment import assess, observed_uses
from controller.core.assess.availability import find_availability
from controller.core.assess.budgets import group_budgets
from controller.core.assess.elastic_pools import launches_s
from controller.core.assess.learning import with_learned_numbers
from controller.core.assess.overrides import with_overrides
from controller.core.assess.shared import with_shared_stages
from controller.core.assess.windows import with_short_windows_named
from controller.core.plan.fleet import plan_fleet, with_missing_pools
from controller.core.plan.large_fleet import AT_ONCE, plan_in_turns
from controller.core.state.decision import Decision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Snapshot


def decide(snapshot: Snapshot, policy: Policy) -> Decision:
    """Return the decision for `snapshot` under `policy`. The same input gives the same decision."""
    snapshot = with_learned_numbers(with_overrides(snapshot, policy))
    snapshot = with_short_windows_named(snapshot, policy.scrape_interval_s)
    availability = find_availability(snapshot)
    shared = observed_uses(snapshot)
    assessments = with_shared_stages(
        tuple(assess(state, snapshot, availability, policy, shared=shared) for state in snapshot.pipelines)
    )
    world, budgets = with_missing_pools(snapshot), group_budgets(snapshot)
    if len(assessments) > AT_ONCE:
        fleet = plan_in_turns(assessments, world.pools, policy, snapshot.now_s, budgets)
    else:
        fleet = plan_fleet(assessments, world.pools, policy, budgets)
    aims = find_aims(assessments, fleet, world, policy)
    launches, quotas = launches_s(snapshot), binding_quotas(snapshot)
    rollout = roll_out(assessments, fleet, aims, snapshot, policy, availability.trials())
    return Decision(
        now_s=snapshot.now_s,
        policy=policy,
        pipelines=tuple(
            pipeline_decision(
                each, fleet, aims[each.key], rollout.pipelines[each.key], snapshot.now_s, policy, launches, quotas
            )
            for each in assessments
        ),
        pools=tuple(
            pool_decision(name, snapshot, rollout, fleet.plan, availability.pools[name])
            for name in sorted(snapshot.pools)
        ),
        plan=fleet.plan,
        budgets=budget_decisions(assessments, fleet, rollout, budgets),
    )
