"""Which ComputeBudgets are in force, for which pipelines, and how much each is now."""

from controller.core.assess.schedule import is_open
from controller.core.state.snapshot import Snapshot
from controller.core.state.spec import BudgetSpec
from optimizer.model import GroupBudget


def budget_per_hour(spec: BudgetSpec, now_s: float) -> float:
    """Return how much `spec` allows at `now_s`, in USD per hour: the least of the open periods, or its usual amount."""
    open_now = [period.per_hour for period in spec.periods if is_open(period.windows, now_s, now_s)]
    return min(open_now, default=spec.per_hour)


def group_budgets(snapshot: Snapshot) -> tuple[GroupBudget, ...]:
    """Return every ComputeBudget with its amount now and its pipelines, those that do not act included."""
    return tuple(
        GroupBudget(
            name=state.spec.name,
            per_hour=budget_per_hour(state.spec, snapshot.now_s),
            pipelines=frozenset(
                pipeline.spec.key for pipeline in snapshot.pipelines if pipeline.spec.namespace in state.namespaces
            ),
            held_per_hour=sum(
                orphan.placed * pool.spec.replica_price_per_hour(orphan.per_instance)
                for pool in snapshot.pools.values()
                for orphan in pool.orphans
                if orphan.namespace in state.namespaces
            ),
        )
        for state in snapshot.budgets
    )
