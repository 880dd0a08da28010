"""What one shard uses of pools and ComputeBudgets that several shards share, and what its plans lack of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from controller.core.assess.assessment import Assessment
from controller.core.assess.batching import with_batching
from controller.core.assess.budgets import group_budgets
from controller.core.assess.learned_numbers import with_learned_numbers
from controller.core.assess.standing import scales, with_standing
from controller.core.bounds.overrides import with_overrides
from controller.core.plan.fleet import FleetPlan
from controller.core.plan.ledger import Ledger, totals_of
from controller.core.state.decision import Decision, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.shards import MILLS, Want
from controller.core.state.snapshot import PoolState, Snapshot
from optimizer.latency.stage import carried_rps
from optimizer.model import Pipeline, PipelineKey, Placement, PlacementKey, PoolName, Size
from optimizer.plan import LimitKind, PipelinePlan

_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What replicas occupy now: whole instances of each pool, and thousandths of a USD per hour of each budget."""

    pools: Mapping[PoolName, int]
    budgets: Mapping[str, int]


def used_now(snapshot: Snapshot, policy: Policy) -> Used:
    """Return what the replicas in `snapshot` use, terminating and unreadable ones included.

    Of workloads that Sluice does not scale only the replicas with a node count, as everywhere in a cycle.
    """
    snapshot = with_learned_numbers(with_batching(with_overrides(with_standing(snapshot), policy)))
    budgets = group_budgets(snapshot)
    ledger = Ledger(
        snapshot.pipelines,
        snapshot.pools,
        None,
        budgets=budgets,
        not_acting=frozenset(state.spec.key for state in snapshot.pipelines if not scales(state)),
    )
    return Used(
        pools={
            name: ledger.after.occupied.occupancy(name, pool.unaccounted.items()).instances
            for name, pool in snapshot.pools.items()
        },
        budgets={
            budget.name: ceil(max(ledger.observed_per_hour(budget), ledger.spend_per_hour(budget)) * MILLS - _EPSILON)
            for budget in budgets
        },
    )


def pool_wants(
    assessments: Sequence[Assessment],
    fleet: FleetPlan,
    planned: Mapping[PipelineKey, Mapping[PlacementKey, int]],
    pools: Mapping[PoolName, PoolState],
    after: Mapping[PoolName, int],
) -> Mapping[PoolName, Want]:
    """Return what the plans lack of each pool of which this shard has an allowance.

    `planned` has the replicas that plans and floors ask for, and `after` the instances that replicas
    need after this cycle.
    """
    divided = {name: pool for name, pool in pools.items() if pool.allowance is not None}
    if not divided:
        return {}
    acting = [each for each in assessments if each.acting]
    goal = totals_of((each.spec, planned[each.key] if each.acting else each.held) for each in assessments)
    short: dict[PoolName, list[tuple[int, float, float]]] = {}
    least: dict[PoolName, int] = {}
    savings: dict[PoolName, list[tuple[float, float]]] = {}
    for each in acting:
        plan, pipeline = fleet.unreachable.get(each.key, fleet.plans[each.key]), fleet.pipelines[each.key]
        for name, instances in _instances(pipeline, planned[each.key]).items():
            if instances and name in divided:
                least[name] = min(each.spec.priority, least.get(name, each.spec.priority))
        lacking = _lacking(pipeline, plan)
        if lacking is not None and lacking[0] in divided:
            short.setdefault(lacking[0], []).append((each.spec.priority, lacking[1], lacking[2]))
        elif plan.feasible:
            for name, saving in _savings(pipeline, plan, divided, pools):
                savings.setdefault(name, []).append(saving)
    found: dict[PoolName, Want] = {}
    for name, pool in divided.items():
        needed = goal.instances(name) if name in goal.pools() else 0
        growth, full = max(0, needed - after[name]), needed >= pool.open_limit
        missing = short.get(name, [])
        if missing:
            top = max(priority for priority, _, _ in missing)
            more = sum(instances for _, instances, _ in missing)
            rank = [(instances, unserved) for priority, instances, unserved in missing if priority == top]
            found[name] = Want(
                lacking=growth + max(1, ceil(more - _EPSILON)),
                unserved=sum(i * u for i, u in rank) / sum(i for i, _ in rank),
                priority=top,
                least_priority=least.get(name),
            )
        elif full and (worth := savings.get(name)):
            found[name] = Want(
                lacking=growth + max(1, ceil(sum(instances for instances, _ in worth) - _EPSILON)),
                least_priority=least.get(name),
                price_per_hour=max(price for _, price in worth),
            )
        else:
            found[name] = Want(lacking=growth, least_priority=least.get(name))
    return found


def budget_wants(decision: Decision) -> Mapping[str, Want]:
    """Return what the plans lack of each ComputeBudget, in thousandths of a USD per hour."""
    own = {each.key: each for each in decision.pipelines}
    found: dict[str, Want] = {}
    for budget in decision.budgets:
        growth = max(0, ceil((budget.planned_per_hour - budget.spend_per_hour) * MILLS - _EPSILON))
        priorities = [own[key].spec.priority for key in budget.pipelines if key in own]
        short = [
            (own[each.key].spec.priority, 1 - each.served_fraction, _missing_mills(own[each.key], each.served_fraction))
            for each in budget.short
            if each.key in own
        ]
        top = max((priority for priority, _, _ in short), default=0)
        rank = [(unserved, mills) for priority, unserved, mills in short if priority == top]
        found[budget.name] = Want(
            lacking=growth + sum(mills for _, _, mills in short),
            unserved=sum(u * m for u, m in rank) / sum(m for _, m in rank) if rank else 0.0,
            priority=top,
            least_priority=min(priorities, default=None),
        )
    return found


def _missing_mills(decision: PipelineDecision, served: float) -> int:
    """Return about how much more a pipeline would cost that is served in part, at least one thousandth."""
    cost = decision.spec.budget_per_hour if decision.plan is None else decision.plan.cost_per_hour
    return max(1, ceil(cost * (1 / served - 1) * MILLS)) if served > 0 else max(1, ceil(cost * MILLS))


def _instances(pipeline: Pipeline, replicas: Mapping[PlacementKey, int]) -> Mapping[PoolName, float]:
    counts: dict[PoolName, float] = {}
    for stage in pipeline.stages:
        for placement in stage.placements:
            count = float(replicas.get((stage.name, placement.name), 0) / placement.per_instance)
            counts[placement.pool] = counts.get(placement.pool, 0.0) + count
    return counts


def _lacking(pipeline: Pipeline, plan: PipelinePlan) -> tuple[PoolName, float, float] | None:
    """Return the pool that keeps a plan from serving all, the instances that it lacks, and the share not served.

    The lack follows from what the plan serves with what it has there; where that is nothing, it is one replica.
    """
    limit = plan.limited_by
    if plan.feasible or limit is None or limit.kind is not LimitKind.POOL or limit.name is None:
        return None
    name, served = PoolName(limit.name), min(1.0, max(0.0, plan.served_fraction))
    has = _instances(pipeline, plan.replicas()).get(name, 0.0)
    sizes: list[Size] = [own.per_instance for stage in pipeline.stages for own in stage.placements if own.pool == name]
    one = float(1 / min(sizes)) if sizes else 1.0
    return name, max(one, has * (1 / served - 1)) if served > 0 else max(one, has), 1 - served


def _savings(
    pipeline: Pipeline,
    plan: PipelinePlan,
    divided: Mapping[PoolName, PoolState],
    pools: Mapping[PoolName, PoolState],
) -> Iterator[tuple[PoolName, tuple[float, float]]]:
    """Yield, for each divided pool, how many instances of it would replace dearer replicas, and what one would save.

    It is an estimate by the capacity of replicas: the plan has no search for it.
    """
    planned = {(stage.name, own.name): own for stage in plan.stages for own in stage.placements}
    for stage in pipeline.stages:
        known = [(each, planned[key]) for each in stage.placements if (key := (stage.name, each.name)) in planned]
        for cheap, has in known:
            room, rate = cheap.max_replicas - has.replicas, carried_rps(stage, cheap, has.batch)
            if cheap.pool not in divided or room <= 0 or rate <= 0:
                continue
            for dear, other in known:
                if dear.pool == cheap.pool or not other.replicas:
                    continue
                exchanged = rate / carried_rps(stage, dear, other.batch)  # replicas of `dear` that one replaces
                saved = exchanged * _price_per_hour(dear, pools) - _price_per_hour(cheap, pools)
                if saved > _EPSILON:
                    replicas = min(room, other.replicas / exchanged)
                    yield cheap.pool, (float(replicas / cheap.per_instance), saved * float(cheap.per_instance))


def _price_per_hour(placement: Placement, pools: Mapping[PoolName, PoolState]) -> float:
    """Return the price of a replica in USD per hour."""
    pool = pools.get(placement.pool)
    return 0.0 if pool is None else pool.spec.replica_price_per_hour(placement.per_instance)
