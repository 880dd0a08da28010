"""Spend and occupied instances of the fleet while replicas change, and the caps that no change may exceed."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, fsum, inf
from types import MappingProxyType
from typing import TypeVar

from controller.core.assess.assessment import Assessment
from controller.core.assess.optimizer_input import billed_pool
from controller.core.assess.shared import CostShares
from controller.core.messages import details
from controller.core.plan.nodes import Placed, instance_costs_per_hour
from controller.core.state.snapshot import (
    PipelineState,
    PoolState,
    TargetState,
    claimed_per_hour,
    most_replicas,
    unaccounted_per_hour,
)
from controller.core.state.spec import PipelineSpec, PoolSpec
from optimizer.billing import Occupancy, occupancy
from optimizer.model import (
    Basis,
    GroupBudget,
    PipelineKey,
    PlacementKey,
    PlacementName,
    Pool,
    PoolName,
    Size,
    pool_of,
    share_instances,
    whole_instances,
)
from optimizer.plan import Limit, LimitKind

EPSILON = 1e-9
"""Sums of the same prices in another order differ by less than this."""
FLEET = "*"
"""Name of the limit that is the budget of all pipelines together: no object of Kubernetes can have it."""

Scope = PipelineKey | GroupBudget | None
"""What a cap is for: a pipeline, a group of them, or None for the fleet."""
K = TypeVar("K")


class PoolTotals:
    """The replicas on each pool, counted by size: how many of them fill one instance."""

    def __init__(self) -> None:
        self._replicas: dict[PoolName, dict[Size, int]] = {}
        self._rounded: dict[PoolName, int] = {}

    def move(self, pool: PoolName, per_instance: Size, before: int, after: int) -> None:
        """Replace `before` replicas of a placement on `pool` by `after`; `per_instance` is their size."""
        sizes = self._replicas.setdefault(pool, {})
        sizes[per_instance] = sizes.get(per_instance, 0) + after - before
        rounded = -(-after // per_instance) - -(-before // per_instance)
        self._rounded[pool] = self._rounded.get(pool, 0) + rounded

    def instances(self, pool: PoolName) -> int:
        """Return the whole instances of `pool` that the replicas occupy, see `optimizer.model.whole_instances`."""
        sizes = {size: count for size, count in self._replicas.get(pool, {}).items() if count}
        if share_instances(sizes):
            return whole_instances(sizes.items())
        return self._rounded[pool]

    def pools(self) -> Collection[PoolName]:
        """Return the pools that have or had replicas."""
        return self._replicas.keys()

    def replicas(self, pool: PoolName) -> Mapping[Size, int]:
        """Return the replicas on `pool` by their size."""
        return self._replicas.get(pool, {})

    def occupancy(self, pool: PoolName, held: Collection[tuple[Size, int]]) -> Occupancy:
        """Return the occupancy of `pool` by the replicas and those `held`: pairs (replicas per instance, replicas)."""
        sizes = [(size, count) for size, count in (*self.replicas(pool).items(), *held) if count]
        if share_instances(size for size, _ in sizes):
            return occupancy(sizes)
        rounded = self._rounded.get(pool, 0) + sum(-(-count // size) for size, count in held)
        return Occupancy(shared=False, instances=rounded, units=Fraction(rounded))


def totals_of(held: Iterable[tuple[PipelineSpec, Mapping[PlacementKey, int]]]) -> PoolTotals:
    """Return the totals of `held`, pairs of a pipeline and its replicas."""
    totals = PoolTotals()
    for spec, replicas in held:
        for key, placement in spec.placements().items():
            totals.move(placement.pool, placement.prior.per_instance, 0, replicas.get(key, 0))
    return totals


class Replicas(MutableMapping[K, int]):
    """Desired replicas by placement, with the totals of the pools.

    `totals` counts the desired replicas, `occupied` all replicas that exist while the changes happen.
    """

    def __init__(
        self,
        replicas: Mapping[K, int],
        where: Mapping[K, tuple[PoolName, Size]],
        *,
        occupied: Mapping[K, Callable[[int], int]],
    ) -> None:
        """`where` has the pool and the size (replicas per instance) of every placement.

        `occupied` has, for every placement, a function from its desired replicas to the most that exist on the way.
        """
        self._where = where
        self._occupied = occupied
        self._replicas: dict[K, int] = {}
        self.totals = PoolTotals()
        self.occupied = PoolTotals()
        self.update(replicas)

    def __getitem__(self, name: K) -> int:
        return self._replicas[name]

    def __setitem__(self, name: K, count: int) -> None:
        before = self._replicas.get(name)
        self.totals.move(*self._where[name], before or 0, count)
        self.occupied.move(
            *self._where[name], 0 if before is None else self._occupied[name](before), self._occupied[name](count)
        )
        self._replicas[name] = count

    def __delitem__(self, name: K) -> None:
        before = self._replicas.pop(name)
        self.totals.move(*self._where[name], before, 0)
        self.occupied.move(*self._where[name], self._occupied[name](before), 0)

    def __iter__(self) -> Iterator[K]:
        return iter(self._replicas)

    def __len__(self) -> int:
        return len(self._replicas)


NO_TRIALS: Mapping[PoolName, int] = MappingProxyType({})
NOT_SHARED: CostShares = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One placement in the ledger; `price_per_hour` is the price of a replica in USD.

    `existing` counts the pods that run or start, `terminating` the pods that stop. `placed` has those with a node where
    Sluice does not scale the workload: only these count against others. None: Sluice scales it.
    """

    price_per_hour: float
    per_instance: Size
    desired: int
    existing: int
    terminating: int
    placed: int | None = None

    @property
    def observed_per_hour(self) -> float:
        """Return the present spend in USD per hour, of the replicas `observed`."""
        return self.observed * self.price_per_hour

    @property
    def observed(self) -> int:
        """Return the replicas that count as present: the desired or the existing ones, whichever are more."""
        return max(self.desired, self.existing + self.terminating) if self.placed is None else self.placed

    @property
    def counted(self) -> int:
        """Return the replicas that count against others before any change."""
        return self.desired if self.placed is None else self.placed

    @property
    def claimed(self) -> int:
        """Return the replicas that are desired beyond those `placed`."""
        return 0 if self.placed is None else max(0, self.desired, self.existing + self.terminating) - self.placed

    def occupied(self, desired: int) -> int:
        """Return the most replicas that exist on the way to `desired`: terminating ones count until they are gone."""
        return desired if self.placed is not None else most_replicas(desired, self.existing, self.terminating)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Whether the fleet exceeds its cap, which pipelines exceed theirs, and which pools have too few instances."""

    fleet: bool
    pipelines: frozenset[PipelineKey]
    pools: frozenset[PoolName]

    def affects(self, assessment: Assessment) -> bool:
        """Whether the pipeline or the fleet is above its cap, or the pipeline uses a pool with too few instances."""
        if self.fleet or assessment.key in self.pipelines:
            return True
        return any(count and pool_of(placement) in self.pools for (_, placement), count in assessment.current.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    """What a ledger knows of the `pipelines` that pay for whole instances; empty without any.

    `pools` have the prices of the nodes in use, `running_per_hour` what the running replicas of each placement pay for
    their nodes. `observed_per_hour` is a cache of `Ledger._observed_by_pool`.
    """

    pipelines: frozenset[PipelineKey] = frozenset()
    pools: Mapping[PoolName, Pool] = field(default_factory=dict)
    running_per_hour: Mapping[tuple[PipelineKey, PlacementKey], float] = field(default_factory=dict)
    observed_per_hour: dict[Scope, Mapping[PoolName, float]] = field(default_factory=dict)


class Ledger:
    """The spend and the instances of the fleet during one cycle, each pipeline's on the basis of its budget.

    `pools` are those of the snapshot. `after` has the desired replicas after the cycle, at first the present ones; the
    methods refer to `after`. Placements whose workload is missing or whose pool does not exist are left out.
    Unaccounted replicas count as spend of the fleet and as occupied instances.

    Of workloads that Sluice does not scale, only the replicas with a node count. What is claimed beyond them refuses
    further replicas, and takes none away.
    """

    def __init__(
        self,
        states: Iterable[PipelineState],
        pools: Mapping[PoolName, PoolState],
        fleet_budget_per_hour: float | None,
        *,
        trials: Mapping[PoolName, int] = NO_TRIALS,
        cost_shares: CostShares = NOT_SHARED,
        budgets: Sequence[GroupBudget] = (),
        not_acting: Collection[PipelineKey] = (),
        excused: Mapping[Scope, float] = MappingProxyType({}),
    ) -> None:
        """`trials` has, for each pool that failed before, how many replicas may be added to it over all pipelines.

        `not_acting` are the pipelines whose workloads Sluice does not scale. `cost_shares` says how the cost of shared
        stages is split. The fleet pays for each replica once. `budgets` are the caps of groups of pipelines.
        `excused` is by how much the replicas that there are may exceed the caps, see `controller.core.plan.caps`.
        """
        states = tuple(states)
        self.pools = pools
        self._entries = {
            (state.spec.key, key): entry
            for state in states
            for key, entry in entries(state, pools, acting=state.spec.key not in not_acting).items()
        }
        self._limits = {name: pool.open_limit for name, pool in pools.items()}
        self._kept = {name: pool.kept_limit for name, pool in pools.items()}
        self._unaccounted_per_hour = unaccounted_per_hour(pools.values())
        self._caps: dict[PipelineKey | None, float] = {state.spec.key: state.spec.budget_per_hour for state in states}
        self._whole = self._whole_instances(states)
        if fleet_budget_per_hour is not None:
            self._caps[None] = fleet_budget_per_hour
        self.budgets = tuple(budgets)
        self._trials = trials
        self._excused = excused
        self._of_pipeline: dict[PipelineKey, list[tuple[PipelineKey, PlacementKey]]] = {}
        self._paid: dict[PipelineKey, list[tuple[tuple[PipelineKey, PlacementKey], float]]] = {}
        self._payers: dict[tuple[PipelineKey, PlacementKey], tuple[PipelineKey, ...]] = {}
        for name in self._entries:
            self._of_pipeline.setdefault(name[0], []).append(name)
            shares = cost_shares.get((name[0], name[1][0]), {name[0]: 1.0})
            self._payers[name] = tuple(key for key in shares if key in self._caps)
            for payer, share in shares.items():
                self._paid.setdefault(payer, []).append((name, share))
        self._claimed: dict[PoolName, list[tuple[Size, int]]] = {
            name: list(pool.claimed.items()) for name, pool in pools.items()
        }
        for name, entry in self._entries.items():
            if entry.claimed:
                self._claimed[pool_of(name[1][1])].append((entry.per_instance, entry.claimed))
        self.after = Replicas(
            {name: entry.counted for name, entry in self._entries.items()},
            {name: (pool_of(name[1][1]), entry.per_instance) for name, entry in self._entries.items()},
            occupied={name: entry.occupied for name, entry in self._entries.items()},
        )

    def ask(self, pipeline: PipelineKey, replicas: Mapping[PlacementKey, int]) -> None:
        """Set the desired replicas of `pipeline`, for placements that the ledger has."""
        for key, count in replicas.items():
            if (pipeline, key) in self.after:
                self.after[(pipeline, key)] = count

    def desired(self, pipeline: PipelineKey, key: PlacementKey, current: int) -> int:
        """Return the replicas of a placement after the cycle: `current` where Sluice scales none."""
        entry = self._entries.get((pipeline, key))
        return current if entry is None or entry.placed is not None else self.after[(pipeline, key)]

    def placements(self, pipeline: PipelineKey) -> Sequence[tuple[PipelineKey, PlacementKey]]:
        """Return the placements of `pipeline` that the ledger has."""
        return self._of_pipeline.get(pipeline, ())

    def spend_per_hour(self, scope: Scope = None) -> float:
        """Return the highest spend of `scope` while the changes happen, in USD per hour.

        Where whole instances count, running replicas may be spread over more of them than plans need. These are paid
        for already: replicas that fit there cost nothing more.
        """
        spent = self._priced(scope, lambda name, entry: entry.occupied(self.after[name]), self.after.occupied)
        if self._whole.pipelines:
            observed = self._observed_by_pool(scope)
            return sum(max(spent.get(pool, 0.0), cost) for pool, cost in observed.items()) + self._unaccounted_of(scope)
        return sum(spent.values()) + self._unaccounted_of(scope)

    def observed_per_hour(self, scope: Scope = None) -> float:
        """Return the present spend of `scope`, in USD per hour."""
        return sum(self._observed_by_pool(scope).values()) + self._unaccounted_of(scope)

    def _observed_by_pool(self, scope: Scope) -> Mapping[PoolName, float]:
        """Return the present spend of `scope` for its replicas on each pool, in USD per hour."""
        if scope in self._whole.observed_per_hour:
            return self._whole.observed_per_hour[scope]
        observed: dict[PoolName, float] = {}
        for payer, name, entry, share in self._of(scope):
            whole = payer in self._whole.pipelines
            cost = self._whole.running_per_hour[name] if whole else entry.observed_per_hour
            observed[pool_of(name[1][1])] = observed.get(pool_of(name[1][1]), 0.0) + share * cost
        if self._whole.pipelines:
            self._whole.observed_per_hour[scope] = observed
        return observed

    def existing_per_hour(self, scope: Scope, pipelines: Collection[PipelineKey]) -> float:
        """Return what `scope` pays for the replicas of `pipelines` that exist, in USD per hour."""
        return sum(
            share
            * (
                self._whole.running_per_hour[name]
                if payer in self._whole.pipelines
                else min(entry.observed, entry.existing + entry.terminating) * entry.price_per_hour
            )
            for payer, name, entry, share in self._of(scope)
            if name[0] in pipelines
        )

    def cost_per_hour(self, scope: Scope = None) -> float:
        """Return the cost of `scope` after all changes, in USD per hour."""
        costs = self._priced(scope, lambda name, _: self.after[name], self.after.totals)
        return sum(costs.values()) + self._unaccounted_of(scope)

    def cost_with(self, pipeline: PipelineKey, replicas: Mapping[PlacementKey, int]) -> float:
        """Return the cost of `pipeline` with `replicas` of its placements beside the others, in USD per hour."""
        before = {name: self.after[name] for name in self.placements(pipeline)}
        self.ask(pipeline, replicas)
        cost = self.cost_per_hour(pipeline)
        self.after.update(before)
        return cost

    def replica_prices_per_hour(self, assessment: Assessment) -> Mapping[PlacementKey, float]:
        """Return what a pipeline pays for one replica of each placement, in USD per hour, by its share of instances."""
        return {
            key: assessment.cost_share(key[0])
            * self.pools[placement.pool].spec.replica_price_per_hour(placement.prior.per_instance)
            for key, placement in assessment.spec.placements().items()
        }

    def cost_of(self, assessment: Assessment, replicas: Mapping[PlacementKey, int]) -> float:
        """Return what a pipeline pays for `replicas` beside the others, on the basis of its budget, in USD per hour."""
        if assessment.spec.basis is Basis.INSTANCES:
            return self.cost_with(assessment.key, replicas)
        prices = self.replica_prices_per_hour(assessment)
        return sum(prices[key] * count for key, count in replicas.items())

    def above_cap(self, per_hour: float, scope: Scope = None) -> bool:
        """Whether `per_hour` is more than the cap of `scope` allows."""
        return per_hour > self._cap(scope) + EPSILON

    def exceeds(self, scope: Scope = None) -> bool:
        """Whether the cost of `scope` is above its cap, and above what is excused of that."""
        return self.cost_per_hour(scope) > self._cap(scope) + self._excused.get(scope, 0.0) + EPSILON

    def excess_per_hour(self, scope: Scope = None) -> float:
        """Return by how much the present spend of `scope` is above its cap, in USD per hour; negative where it is not.

        That of the fleet is without what is unaccounted: nothing of it can be removed.
        """
        return self.observed_per_hour(scope) - self._cap(scope)

    def rise_per_hour(self, scope: Scope, rises: Mapping[PoolName, float]) -> float:
        """Return by how much (USD per hour) what `scope` has costs more where prices of instances rose by `rises`."""
        return sum(
            share
            * min(entry.observed, entry.existing + entry.terminating)
            / entry.per_instance
            * rises[pool_of(name[1][1])]
            for _, name, entry, share in self._of(scope)
            if pool_of(name[1][1]) in rises
        )

    def shares_per_hour(self, pipeline: PipelineKey) -> float:
        """Return the present spend of a pipeline if it paid for its own shares of instances only, in USD per hour."""
        return sum(share * entry.observed_per_hour for _, _, entry, share in self._of(pipeline))

    def excuses(self, scope: Scope) -> bool:
        """Whether a part of what `scope` has is above its cap and excused."""
        return self._excused.get(scope, 0.0) > 0

    def _cap(self, scope: Scope) -> float:
        return scope.per_hour if isinstance(scope, GroupBudget) else self._caps.get(scope, inf)

    def group(self, limit: Limit) -> GroupBudget | None:
        """Return the budget of a group that `limit` names, None if it is another limit."""
        named = (budget for budget in self.budgets if limit.kind is LimitKind.BUDGET and limit.name == budget.name)
        return next(named, None)

    def groups_of(self, *pipelines: PipelineKey) -> Sequence[GroupBudget]:
        """Return the budgets of the groups that one of `pipelines` is in."""
        return [budget for budget in self.budgets if not budget.pipelines.isdisjoint(pipelines)]

    def instances(self, pool: PoolName) -> int:
        """Return how many whole instances of `pool` the desired replicas need."""
        return self.after.totals.instances(pool)

    def in_use(self, pool: PoolName) -> float:
        """Return how many instances of `pool` pods use or wait for now; shared instances count in parts."""
        return fsum(
            (entry.existing + entry.terminating) / entry.per_instance
            for name, entry in self._entries.items()
            if pool_of(name[1][1]) == pool
        )

    def overfull(self, pool: PoolName) -> bool:
        """Whether the desired replicas need more instances of `pool` than may be used or are left for later."""
        return self.instances(pool) > self._kept[pool]

    def _full(self, pool: PoolName) -> bool:
        """Whether the desired replicas and those claimed need more instances of `pool` than may be used."""
        if not self._claimed[pool]:
            return self.instances(pool) > self._limits[pool]
        return self.after.totals.occupancy(pool, self._claimed[pool]).instances > self._limits[pool]

    def claimed(self, pool: PoolName) -> int:
        """Return the replicas that are desired on `pool`, that have no node, and that Sluice does not scale."""
        return sum(count for _, count in self._claimed[pool])

    def claimed_per_hour(self, scope: Scope) -> float:
        """Return the cost of the replicas that `scope` would pay for, and that have no node, in USD per hour."""
        paid = sum(share * entry.claimed * entry.price_per_hour for _, _, entry, share in self._of(scope))
        return paid + (sum(map(claimed_per_hour, self.pools.values())) if scope is None else 0.0)

    def crowded(self, pool: PoolName) -> bool:
        """Whether replicas would occupy more instances of `pool`, while the changes happen, than its ceiling allows.

        False for a pool without a firm ceiling: its limit may be its ready nodes, and terminating replicas on a lost
        node occupy none of these. The allowance of a shard counts them: another shard has the rest.
        """
        state = self.pools[pool]
        kept = state.firm or state.bound_by_allowance
        return kept and self.after.occupied.instances(pool) > self._limits[pool]

    def no_capacity(self, placement: PlacementName, limit: Limit) -> str:
        """Return the text about `limit`, which leaves no capacity for a replica of `placement`."""
        pool = self.pools.get(pool_of(placement))
        if limit.kind is LimitKind.POOL and pool is not None and pool.allowance is not None and pool.bound_by_allowance:
            return details.no_allowance(placement, pool.allowance.amount, pool.capacity)
        if limit.name == FLEET:
            return details.no_fleet_budget(placement)
        return details.no_capacity(placement, limit)

    def shortage(self) -> Shortage:
        """Return the caps that the desired replicas exceed, and the pools that have too few instances for them.

        Nodes of a pool without a ceiling that are not ready for a moment are no shortage.
        """
        above = {key for key in self._caps if key is not None and self.exceeds(key)}
        for budget in filter(self.exceeds, self.budgets):
            above |= budget.pipelines & self._caps.keys()
        return Shortage(
            fleet=self.exceeds(),
            pipelines=frozenset(above),
            pools=frozenset(name for name, pool in self.pools.items() if pool.firm and self.overfull(name)),
        )

    def price_per_hour(self, pipeline: PipelineKey, key: PlacementKey) -> float:
        """Return the price of one replica of the placement `key`, in USD per hour."""
        return self._entries[(pipeline, key)].price_per_hour

    def refusal(self, pipeline: PipelineKey, key: PlacementKey) -> Limit | None:
        """Return the limit that one more replica would exceed while the changes happen, None when it fits."""
        return self._limit(
            pipeline,
            key,
            lambda scope: self.spend_per_hour(scope) + self.claimed_per_hour(scope),
            lambda: self._full(pool_of(key[1])) or self.crowded(pool_of(key[1])),
        )

    def limit_beyond(self, pipeline: PipelineKey, key: PlacementKey, *, runs: bool = False) -> Limit | None:
        """Return the limit that one more replica would exceed after all changes, None when it fits then.

        A replica that `runs` may stay on nodes that are not ready for a moment, and gives way to no claim.
        """
        if runs:
            stays = not self.pools[pool_of(key[1])].firm
            return self._limit(pipeline, key, self.cost_per_hour, lambda: not stays and self.overfull(pool_of(key[1])))
        return self._limit(
            pipeline,
            key,
            lambda scope: self.cost_per_hour(scope) + self.claimed_per_hour(scope),
            lambda: self._full(pool_of(key[1])),
        )

    def _limit(
        self, pipeline: PipelineKey, key: PlacementKey, paid: Callable[[Scope], float], full: Callable[[], bool]
    ) -> Limit | None:
        """Return the limit that one more replica would exceed, where `paid` returns what a scope pays."""
        name = (pipeline, key)
        self.after[name] += 1
        try:
            for scope in self.caps_of(*name):
                if (scope is not None or None in self._caps) and self.above_cap(paid(scope), scope):
                    group = scope.name if isinstance(scope, GroupBudget) else scope or FLEET
                    return Limit(kind=LimitKind.BUDGET, name=None if scope == pipeline else group)
            return Limit(kind=LimitKind.POOL, name=pool_of(key[1])) if full() else None
        finally:
            self.after[name] -= 1

    def concerns(self, scope: Scope, pipeline: PipelineKey, key: PlacementKey) -> bool:
        """Whether `scope` pays for the replicas of a placement of `pipeline`, or for a part of them."""
        if scope is None:
            return True
        payers = self._payers.get((pipeline, key), ())
        return scope in payers if isinstance(scope, str) else not scope.pipelines.isdisjoint(payers)

    def caps_of(self, pipeline: PipelineKey, key: PlacementKey) -> Sequence[Scope]:
        """Return what has a cap on the spend for a placement of `pipeline`."""
        payers = self._payers[(pipeline, key)]
        return [*payers, *self.groups_of(*payers), None]

    def on_trial(self, pool: PoolName) -> bool:
        """Whether `pool` is on trial and gets no further replica in this cycle."""
        if pool not in self._trials:
            return False
        added = sum(
            max(0, self.after[name] - entry.desired)
            for name, entry in self._entries.items()
            if pool_of(name[1][1]) == pool
        )
        return added >= self._trials[pool]

    def _priced(
        self,
        scope: Scope,
        count: Callable[[tuple[PipelineKey, PlacementKey], Entry], int],
        totals: PoolTotals,
    ) -> Mapping[PoolName, float]:
        """Return what `scope` pays on each pool for `count` replicas of each placement; `totals` has those of all."""
        there: dict[PoolName, tuple[Occupancy, float]] = {}

        def charge(payer: PipelineKey, name: tuple[PipelineKey, PlacementKey], entry: Entry) -> float:
            pool, replicas = pool_of(name[1][1]), count(name, entry)
            if payer not in self._whole.pipelines:
                return replicas * entry.price_per_hour
            if pool not in there:
                occupied = totals.occupancy(pool, self._whole.pools[pool].held)
                there[pool] = occupied, occupied.unit_price_per_hour(self._whole.pools[pool])
            occupied, price = there[pool]
            return price * float(occupied.weight(entry.per_instance, replicas))

        costs: dict[PoolName, float] = {}
        for payer, name, entry, share in self._of(scope):
            costs[pool_of(name[1][1])] = costs.get(pool_of(name[1][1]), 0.0) + share * charge(payer, name, entry)
        return costs

    def _whole_instances(self, states: Iterable[PipelineState]) -> _Whole:
        """Return what is known of the pipelines that pay for whole instances."""
        paying = frozenset(state.spec.key for state in states if state.spec.basis is Basis.INSTANCES)
        if not paying:
            return _Whole()
        billed = {name: billed_pool(pool, 0) for name, pool in self.pools.items()}
        nodes = {(state.spec.key, key): target.nodes for state in states for key, target in state.found()}
        placed = (
            Placed(
                name=name,
                pool=pool_of(name[1][1]),
                per_instance=entry.per_instance,
                replicas=entry.observed,
                nodes=nodes[name],
            )
            for name, entry in self._entries.items()
        )
        running = instance_costs_per_hour(placed, billed, self.pools)
        return _Whole(pipelines=paying, pools=billed, running_per_hour=running)

    def _unaccounted_of(self, scope: Scope) -> float:
        if isinstance(scope, GroupBudget):
            return scope.held_per_hour
        return self._unaccounted_per_hour if scope is None else 0.0

    def _of(self, scope: Scope) -> Iterator[tuple[PipelineKey, tuple[PipelineKey, PlacementKey], Entry, float]]:
        """Yield the entries that `scope` pays for, each with who pays on its own basis, and the share that it pays.

        The fleet pays for each entry once, on the basis of the pipeline that owns it.
        """
        if scope is None:
            return ((name[0], name, entry, 1.0) for name, entry in self._entries.items())
        pipelines = scope.pipelines if isinstance(scope, GroupBudget) else (scope,)
        return (
            (payer, name, self._entries[name], share)
            for payer in sorted(pipelines)
            for name, share in self._paid.get(payer, ())
        )


def ledger_of(
    assessments: Sequence[Assessment],
    pools: Mapping[PoolName, PoolState],
    fleet_budget_per_hour: float | None,
    *,
    trials: Mapping[PoolName, int] = NO_TRIALS,
    cost_shares: CostShares = NOT_SHARED,
    budgets: Sequence[GroupBudget] = (),
    excused: Mapping[Scope, float] = MappingProxyType({}),
) -> Ledger:
    """Return the ledger of `assessments`, see `Ledger`."""
    return Ledger(
        (each.state for each in assessments),
        pools,
        fleet_budget_per_hour,
        trials=trials,
        cost_shares=cost_shares,
        budgets=budgets,
        not_acting=frozenset(each.key for each in assessments if not each.acting),
        excused=excused,
    )


def entries(
    state: PipelineState, pools: Mapping[PoolName, PoolState], *, acting: bool = True
) -> Mapping[PlacementKey, Entry]:
    """Return the ledger's values for the placements of `state` that have a workload and an existing pool.

    `acting` says whether Sluice scales them. Placements whose workload another pipeline owns are left out: the replicas
    count there.
    """
    priced: dict[PlacementKey, Entry] = {}
    for key, placement in state.spec.placements().items():
        target = state.target(*key)
        if placement.pool in pools and isinstance(target, TargetState) and target.owner is None:
            per_instance = placement.prior.per_instance
            priced[key] = Entry(
                price_per_hour=pools[placement.pool].spec.replica_price_per_hour(per_instance),
                per_instance=per_instance,
                desired=target.desired,
                existing=target.existing,
                terminating=target.terminating,
                placed=None if acting else target.placed,
            )
    return priced


class Payments:
    """What several pipelines pay together, each on its own basis, while their replicas change."""

    def __init__(self) -> None:
        self._per_hour = 0.0  # of those that pay for shares of instances
        self._units: dict[PoolName, tuple[float, float]] = {}  # instances of the others: in parts, and rounded up

    def move(
        self, pool: PoolSpec, per_instance: Size, before: int, after: int, *, basis: Basis, share: float = 1.0
    ) -> None:
        """Replace `before` replicas of a placement on `pool`, of whose cost `share` (0–1) is paid, by `after`."""
        exact = share * (after - before) / per_instance
        if basis is Basis.REPLICAS:
            self._per_hour += exact * pool.price_per_hour
            return
        rounded = share * (-(-after // per_instance) - -(-before // per_instance))
        parts, whole = self._units.get(pool.name, (0.0, 0.0))
        self._units[pool.name] = parts + exact, whole + rounded

    def per_hour(self, totals: PoolTotals, billed: Mapping[PoolName, Pool]) -> float:
        """Return what is paid in USD per hour; `totals` has the replicas of all pipelines, `billed` the prices."""
        paid = self._per_hour
        for name, (parts, whole) in self._units.items():
            occupied = totals.occupancy(name, billed[name].held)
            paid += occupied.unit_price_per_hour(billed[name]) * (parts if occupied.shared else whole)
        return paid


class Holdings:
    """The instances and the money that each pipeline holds, to plan one pipeline alone with what is left.

    A pipeline holds the current replicas that it owns, or its planned ones where it acts and they are more. What those
    claim that do not act leaves no room for further replicas, and takes away none that exist.
    """

    def __init__(
        self,
        assessments: Sequence[Assessment],
        planned: Mapping[PipelineKey, Mapping[PlacementKey, int]],
        pools: Mapping[PoolName, PoolState],
        budgets: Sequence[GroupBudget] = (),
    ) -> None:
        """`budgets` are the caps of groups of pipelines."""
        self._pools = pools
        whole = any(assessment.spec.basis is Basis.INSTANCES for assessment in assessments)
        self._billed = {name: billed_pool(pool, 0) for name, pool in pools.items()} if whole else {}
        self._totals = PoolTotals()
        self._unaccounted_per_hour = unaccounted_per_hour(pools.values())
        self._fleet = Payments()
        self._groups = [(budget, Payments()) for budget in budgets]
        self._held: dict[PipelineKey, Mapping[PlacementKey, int]] = {}
        self._existing: dict[PipelineKey, Assessment] = {}
        for assessment in assessments:
            self.hold(assessment, planned.get(assessment.key, {}))
        self._limits = {name: pool.limit_holding(self._totals.instances(name)) for name, pool in pools.items()}
        self._claimed, self._claimed_per_hour = self._claims(assessments)
        self.crowded = frozenset(name for name, limit in self._limits.items() if self._totals.instances(name) > limit)
        """The pools on which more instances are held than there are."""

    def _claims(self, assessments: Sequence[Assessment]) -> tuple[Mapping[PoolName, float], Mapping[str | None, float]]:
        """Return the claimed instances of each pool, and the claimed money of each budget by name (None: the fleet)."""
        instances = {
            name: fsum(count / size for size, count in pool.claimed.items()) for name, pool in self._pools.items()
        }
        money: dict[str | None, float] = {None: sum(map(claimed_per_hour, self._pools.values()))}
        for each in assessments:
            for key, count in each.claimed.items():
                placement = each.spec.placements()[key]
                if placement.pool not in self._pools:
                    continue
                instances[placement.pool] += float(count / placement.prior.per_instance)
                price = self._pools[placement.pool].spec.replica_price_per_hour(placement.prior.per_instance)
                for name in (None, *(budget.name for budget, _ in self._groups if each.key in budget.pipelines)):
                    money[name] = money.get(name, 0.0) + count * price
        return instances, money

    def _present(self, pool: PoolName) -> float:
        """Return the instances of `pool` that replicas of the released pipelines occupy."""
        return fsum(
            count / each.spec.placements()[key].prior.per_instance
            for each in self._existing.values()
            for key, count in each.existing.items()
            if pool_of(key[1]) == pool
        )

    def _present_per_hour(self) -> float:
        """Return the cost of the replicas of the released pipelines that exist, in USD per hour."""
        return sum(
            count
            * self._pools[pool_of(key[1])].spec.replica_price_per_hour(each.spec.placements()[key].prior.per_instance)
            for each in self._existing.values()
            for key, count in each.existing.items()
            if pool_of(key[1]) in self._pools
        )

    def _unclaimed(self, left_per_hour: float, budget: str | None) -> float:
        """Return how much of what is left of a budget may be planned with, in USD per hour."""
        claimed = self._claimed_per_hour.get(budget, 0.0)
        if not claimed:
            return max(0.0, left_per_hour)
        return max(0.0, left_per_hour - claimed, min(left_per_hour, self._present_per_hour()))

    def hold(self, assessment: Assessment, planned: Mapping[PlacementKey, int]) -> None:
        """Count the current replicas of a pipeline, and the `planned` ones where it acts, as held.

        Replicas of shared stages that belong to others are paid for with the pipeline's share.
        """
        wanted: Mapping[PlacementKey, int] = planned if assessment.acting else {}
        borrowed = assessment.spec.borrowed
        self._count(
            assessment,
            {
                key: assessment.current[key] if key[0] in borrowed else max(count, wanted.get(key, 0))
                for key, count in assessment.held.items()
            },
        )

    def pay_for(self, assessment: Assessment, replicas: Mapping[PlacementKey, int]) -> None:
        """Count `replicas` of a pipeline as held, and no others that it runs; of shared stages the current ones."""
        borrowed = assessment.spec.borrowed
        self._count(
            assessment,
            {key: assessment.current[key] if key[0] in borrowed else replicas.get(key, 0) for key in assessment.held},
        )

    def release(self, assessment: Assessment) -> None:
        """Count no replica of a pipeline as held."""
        self._count(assessment, {})
        self._existing[assessment.key] = assessment

    def _count(self, assessment: Assessment, after: Mapping[PlacementKey, int]) -> None:
        before = self._held.get(assessment.key, {})
        groups = [paid for budget, paid in self._groups if assessment.key in budget.pipelines]
        basis = assessment.spec.basis
        for key, placement in assessment.spec.placements().items():
            pool, size = placement.pool, placement.prior.per_instance
            was, now = before.get(key, 0), after.get(key, 0)
            if pool not in self._pools or was == now:
                continue
            spec = self._pools[pool].spec
            if key[0] not in assessment.spec.borrowed:
                self._totals.move(pool, size, was, now)
                self._fleet.move(spec, size, was, now, basis=basis)
            for paid in groups:
                paid.move(spec, size, was, now, basis=basis, share=assessment.cost_share(key[0]))
        self._held[assessment.key] = after
        self._existing.pop(assessment.key, None)

    def left(self, pool: PoolName) -> int:
        """Return the instances of `pool` that no pipeline holds, without those that are being removed.

        On a crowded pool, the released pipelines may keep those that they have.
        """
        left = max(0, self._limits[pool] - self._pools[pool].leaving_instances - self._totals.instances(pool))
        if pool in self.crowded:  # those who give are planned together
            return max(left, ceil(self._present(pool)))
        if not self._claimed[pool]:
            return left
        return max(0, left - ceil(self._claimed[pool]), min(left, ceil(self._present(pool))))

    def pool_left(self, pool: PoolName) -> Pool:
        """Return `pool` with the instances that no pipeline holds, for plans that count whole instances."""
        return billed_pool(self._pools[pool], self.left(pool), self._totals.replicas(pool).items())

    def money_left(self, budget_per_hour: float | None) -> float | None:
        """Return the part of the fleet's budget that no pipeline holds, in USD per hour; None without a budget."""
        if budget_per_hour is None:
            return None
        held = self._fleet.per_hour(self._totals, self._billed)
        return self._unclaimed(budget_per_hour - self._unaccounted_per_hour - held, None)

    def budgets_left(self, pipelines: Collection[PipelineKey]) -> tuple[GroupBudget, ...]:
        """Return the budgets of the groups of `pipelines`, with the part that no pipeline holds."""
        return tuple(
            replace(
                budget,
                per_hour=self._unclaimed(
                    budget.per_hour - budget.held_per_hour - paid.per_hour(self._totals, self._billed), budget.name
                ),
            )
            for budget, paid in self._groups
            if not budget.pipelines.isdisjoint(pipelines)
        )

    def within(self, budget_per_hour: float | None, pipelines: Collection[PipelineKey]) -> bool:
        """Whether the fleet's budget and those of the groups of `pipelines` allow what is held."""
        return self._unspent_per_hour(budget_per_hour, pipelines) >= -EPSILON

    def spare_per_hour(self, budget_per_hour: float | None, pipelines: Collection[PipelineKey]) -> float:
        """Return the least that the fleet's budget and those of the groups of `pipelines` leave, in USD per hour."""
        return max(0.0, self._unspent_per_hour(budget_per_hour, pipelines))

    def _unspent_per_hour(self, budget_per_hour: float | None, pipelines: Collection[PipelineKey]) -> float:
        """Return the least unspent amount, negative where more is held than a budget allows."""
        caps = [
            budget.per_hour - budget.held_per_hour - paid.per_hour(self._totals, self._billed)
            for budget, paid in self._groups
            if not budget.pipelines.isdisjoint(pipelines)
        ]
        if budget_per_hour is not None:
            held = self._fleet.per_hour(self._totals, self._billed)
            caps.append(budget_per_hour - self._unaccounted_per_hour - held)
        return min(caps, default=inf)
