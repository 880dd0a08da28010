"""Caps on spend, and what exceeds them without a change of the pipeline: a rise of prices, nodes that others left.

Of a large fleet, so is the part of an excess that the pipelines give that a cycle does not assess.

Replicas that serve are not ended at one reading of a price, nor because a neighbour left a node that both paid for.
Such an excess is excused for a time: nothing is added, and the conditions say so. Then the caps apply again. The last
replicas of a pipeline are excused for as long as their own shares of the nodes are within its budget.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.core.assess.assessment import Assessment
from controller.core.assess.prices import EXCUSED_S, next_price
from controller.core.assess.standing import left_to_standing
from controller.core.plan.ledger import EPSILON, Ledger, Scope
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PoolState, StandingPipeline
from optimizer.model import Basis, GroupBudget, PipelineKey, PoolName


@dataclass(frozen=True, slots=True, kw_only=True)
class Excused:
    """By how much each scope may exceed its cap with the replicas that it has, in USD per hour; most have nothing.

    `left_alone_since_s` is since when pipelines pay more than their budget only because of the rest of their nodes.
    """

    per_hour: Mapping[Scope, float] = field(default_factory=dict)
    left_alone_since_s: Mapping[PipelineKey, float] = field(default_factory=dict)

    def assessed(self, assessments: Sequence[Assessment]) -> Sequence[Assessment]:
        """Return the assessments with budgets for their plans that have room for what is excused."""
        return tuple(
            _with_budget(each, each.spec.budget_per_hour + more) if (more := self.per_hour.get(each.key)) else each
            for each in assessments
        )

    def policy(self, policy: Policy) -> Policy:
        """Return the policy with a budget of the fleet that has room for what is excused."""
        more = self.per_hour.get(None)
        if not more or policy.budget_per_hour is None:
            return policy
        return replace(policy, budget_per_hour=policy.budget_per_hour + more)

    def budgets(self, budgets: Sequence[GroupBudget]) -> Sequence[GroupBudget]:
        """Return the budgets of groups with room for what is excused."""
        return tuple(replace(each, per_hour=each.per_hour + self.per_hour.get(each, 0.0)) for each in budgets)


def excused(
    assessments: Sequence[Assessment],
    ledger: Ledger,
    pools: Mapping[PoolName, PoolState],
    standing: Mapping[str | None, Sequence[StandingPipeline]],
    now_s: float,
) -> Excused:
    """Return what is excused at `now_s`; `ledger` has the present replicas and the declared caps.

    `standing` has the pipelines that stand and count in each ComputeBudget, by its name, and in the fleet's (None).
    """
    rises = {
        name: rise
        for name, pool in pools.items()
        if (rise := pool.spec.price_per_hour - next_price(pool, now_s).counted) > EPSILON
    }
    whole = [each for each in assessments if each.spec.basis is Basis.INSTANCES]
    stands = any(standing.values())
    if not rises and not whole and not stands and not any(budget.falling_per_hour for budget in ledger.budgets):
        return Excused()
    alone: dict[PipelineKey, float] = {}
    rests: dict[PipelineKey, float] = {}
    for each in whole:
        key, spent = each.key, ledger.observed_per_hour(each.key)
        over, rest = spent - each.spec.budget_per_hour, spent - ledger.shares_per_hour(each.key)
        serves = any(count and each.state.ready(*own) for own, count in each.current.items())
        if not serves or not EPSILON < over <= rest + EPSILON:
            continue
        before_s = each.state.memory.left_alone_since_s
        alone[key] = now_s if before_s is None else min(now_s, before_s)
        if now_s - alone[key] < EXCUSED_S:
            rests[key] = rest
        elif all(count <= 1 for count in _of_stages(each).values()):
            rests[key] = rest  # its last replicas
    per_hour: dict[Scope, float] = {}
    scopes: list[Scope] = [*(each.key for each in assessments), *ledger.budgets, None]
    for scope in scopes:
        over = ledger.excess_per_hour(scope)
        if over <= EPSILON:
            continue
        others: Sequence[StandingPipeline] = ()
        if not isinstance(scope, str):
            others = standing.get(None if scope is None else scope.name, ())
        own = rests if scope is None else {key: rest for key, rest in rests.items() if _in(scope, key)}
        more = ledger.rise_per_hour(scope, rises) + sum(own.values())
        more += sum(_rise_per_hour(each, rises) for each in others)
        if isinstance(scope, GroupBudget):
            more += scope.falling_per_hour
        if more < over and others:
            more += _left_per_hour(over - max(0.0, more), assessments, ledger, scope, others, pools)
        if more > 0:
            per_hour[scope] = min(over, more)
    return Excused(per_hour=per_hour, left_alone_since_s=alone)


def _rise_per_hour(standing: StandingPipeline, rises: Mapping[PoolName, float]) -> float:
    """Return by how much (USD per hour) a pipeline that stands costs more where prices of instances rose by `rises`."""
    return sum(
        own.occupied / own.prior.per_instance * rises[own.prior.pool]
        for own in standing.placements
        if own.prior.pool in rises
    )


def _left_per_hour(
    over: float,
    assessments: Sequence[Assessment],
    ledger: Ledger,
    scope: Scope,
    standing: Sequence[StandingPipeline],
    pools: Mapping[PoolName, PoolState],
) -> float:
    """Return how much (USD per hour) of what is `over` the cap of `scope` is left to the pipelines that stand."""
    return left_to_standing(
        over,
        (
            (each.spec.priority, ledger.observed_per_hour(each.key))
            for each in assessments
            if each.acting and (scope is None or _in(scope, each.key))
        ),
        ((each.priority, each.cost_per_hour(pools)) for each in standing if each.gives),
    )


def _with_budget(assessment: Assessment, per_hour: float) -> Assessment:
    fallback = assessment.fallback
    return replace(
        assessment,
        pipeline=replace(assessment.pipeline, budget_per_hour=per_hour),
        fallback=None if fallback is None else replace(fallback, budget_per_hour=per_hour),
    )


def _of_stages(assessment: Assessment) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for (stage, _), count in assessment.current.items():
        counts[stage] = counts.get(stage, 0) + count
    return counts


def _in(scope: PipelineKey | GroupBudget, key: PipelineKey) -> bool:
    return key == scope if isinstance(scope, str) else key in scope.pipelines
