"""What workloads that Sluice does not scale ask for beyond what they occupy: it stops growth, and removes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.core.assess.assessment import Assessment
from controller.core.assess.shared import served_cost_shares
from controller.core.plan.ledger import PoolTotals, ledger_of, totals_of
from controller.core.state.snapshot import PoolState
from optimizer.model import GroupBudget, PoolName


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What is claimed beside a group of pipelines, and what the group has at present.

    `present` are the replicas of the group that exist, `held` those that occupy instances beside it, and `wanted` these
    with the claimed ones. `claimed_per_hour` and `present_per_hour` have the money of each budget by its name, None is
    that of the fleet, in USD per hour.
    """

    present: PoolTotals
    held: PoolTotals
    wanted: PoolTotals
    claimed_per_hour: Mapping[str | None, float]
    present_per_hour: Mapping[str | None, float]

    @classmethod
    def beside(
        cls,
        group: Sequence[Assessment],
        others: Sequence[Assessment],
        pools: Mapping[PoolName, PoolState],
        budgets: Sequence[GroupBudget] = (),
    ) -> "Claims":
        """Return what `others`, and workloads that no pipeline has, claim beside `group`."""
        fleet = [*group, *others]
        ledger = ledger_of(fleet, pools, None, cost_shares=served_cost_shares(fleet, {}), budgets=budgets)
        keys, scopes = {each.key for each in group}, (None, *budgets)
        held, wanted = (totals_of((each.spec, each.held) for each in others) for _ in range(2))
        for each in others:
            for key, count in each.claimed.items():
                placement = each.spec.placements()[key]
                held_there = each.held[key]
                wanted.move(placement.pool, placement.prior.per_instance, held_there, held_there + count)
        for name, pool in pools.items():
            for per_instance, count in pool.claimed.items():
                wanted.move(name, per_instance, 0, count)
        return cls(
            present=totals_of((each.spec, each.existing) for each in group),
            held=held,
            wanted=wanted,
            claimed_per_hour={_name(scope): ledger.claimed_per_hour(scope) for scope in scopes},
            present_per_hour={_name(scope): ledger.existing_per_hour(scope, keys) for scope in scopes},
        )

    def instances(self, pool: PoolName, left: int) -> int:
        """Return how many of the `left` instances of `pool` may be planned with."""
        claimed = self.wanted.instances(pool) - self.held.instances(pool)
        return max(0, left - claimed, min(left, self.present.instances(pool)))

    def money(self, left_per_hour: float, budget: str | None) -> float:
        """Return how much of the money that is left of `budget` may be planned with, in USD per hour."""
        claimed, present = self.claimed_per_hour[budget], self.present_per_hour[budget]
        return max(0.0, left_per_hour - claimed, min(left_per_hour, present))


def _name(scope: GroupBudget | None) -> str | None:
    return None if scope is None else scope.name
