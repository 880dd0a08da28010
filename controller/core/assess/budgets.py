"""Which ComputeBudgets are in force, for which pipelines, and how much each is now."""

import math
from collections.abc import Iterable
from dataclasses import replace

from controller.core.assess.schedule import is_open
from controller.core.assess.standing import standing_costs
from controller.core.state.shards import MILLS, Allowance
from controller.core.state.snapshot import PipelineState, Snapshot
from controller.core.state.spec import BudgetSpec
from optimizer.model import GroupBudget

APPROACH_S = 600.0
"""A budget that falls is approached over this time: what runs goes in steps, and nothing is added meanwhile."""
_STEPS = 20


def budget_per_hour(spec: BudgetSpec, now_s: float) -> float:
    """Return how much `spec` allows at `now_s`, in USD per hour: the least of the open periods, or its usual amount."""
    open_now = [period.per_hour for period in spec.periods if is_open(period.windows, now_s, now_s)]
    return min(open_now, default=spec.per_hour)


def _ahead_s(states: Iterable[PipelineState], snapshot: Snapshot) -> float:
    """Return how long a replica of `states` takes that starts now, with its node, until it is ready, in seconds."""
    times_s = (
        placement.startup_s + (pool.memory.launch_s or 0.0)
        for state in states
        for placement in state.spec.placements().values()
        if (pool := snapshot.pools.get(placement.pool)) is not None
    )
    return max(times_s, default=0.0)


def _falling_per_hour(spec: BudgetSpec, now_s: float) -> float:
    """Return how much more than its amount now what runs may still cost, because the budget fell a short time ago."""
    now = budget_per_hour(spec, now_s)
    parts = (step / _STEPS for step in range(1, _STEPS))
    return max(0.0, *((1 - part) * (budget_per_hour(spec, now_s - part * APPROACH_S) - now) for part in parts))


def group_budgets(snapshot: Snapshot) -> tuple[GroupBudget, ...]:
    """Return every ComputeBudget with its amount and its pipelines, those that do not act included.

    It is the amount now, or, where that is more, the one when a replica that starts now is ready: what a known morning
    needs must start before the budget of the night is over.
    """
    members = {
        state.spec.name: [each for each in snapshot.pipelines if each.spec.namespace in state.namespaces]
        for state in snapshot.budgets
    }
    whole = tuple(
        GroupBudget(
            name=state.spec.name,
            per_hour=max(
                budget_per_hour(state.spec, snapshot.now_s),
                budget_per_hour(state.spec, snapshot.now_s + _ahead_s(members[state.spec.name], snapshot)),
            )
            if state.spec.periods
            else state.spec.per_hour,
            falling_per_hour=_falling_per_hour(state.spec, snapshot.now_s) if state.spec.periods else 0.0,
            pipelines=frozenset(pipeline.spec.key for pipeline in members[state.spec.name]),
            held_per_hour=sum(
                orphan.placed * pool.spec.replica_price_per_hour(orphan.per_instance)
                for pool in snapshot.pools.values()
                for orphan in pool.orphans
                if orphan.namespace in state.namespaces
            )
            + math.fsum(standing_costs(snapshot, state.namespaces).values()),
        )
        for state in snapshot.budgets
    )
    return tuple(_allowed(each, state.allowance) for each, state in zip(whole, snapshot.budgets, strict=True))


def _allowed(budget: GroupBudget, allowance: Allowance | None) -> GroupBudget:
    """Return a budget with what this shard may spend of it; spend beyond that stays, unless it is to be given back."""
    if allowance is None or allowance.amount / MILLS >= budget.per_hour:
        return budget
    per_hour = allowance.amount / MILLS
    stays = budget.falling_per_hour if allowance.firm else budget.falling_per_hour + budget.per_hour - per_hour
    return replace(budget, per_hour=per_hour, falling_per_hour=stays)
