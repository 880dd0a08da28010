"""A fleet in shards without a cluster: the real decisions and the real agreement, with statuses that a dict keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from builders import a_snapshot, applied

from controller.core.cycle import decide
from controller.core.state.decision import Decision
from controller.core.state.policy import Policy
from controller.core.state.shards import Entry, Shard, committed
from controller.core.state.snapshot import BudgetState, PipelineState, PoolState, Snapshot
from controller.kube.allowances import Allowances
from controller.kube.claims import Claims
from controller.kube.gateway import BUDGETS, PIPELINES, POOLS, Conflict, Gateway, Invalid, KubeError, NotFound, Resource
from controller.kube.shard_entries import entries_from
from controller.kube.shards import Family, Members
from controller.kube.store import ResourceStore
from controller.resources.pool import MAX_ORPHANS
from optimizer.model import PipelineKey, PoolName, whole_instances

Json = dict[str, Any]
BASE = "sluice-system/sluice"


@dataclass
class Statuses:
    """The shared objects on a server: each write makes a new version. `errors` has what writes of a name meet.

    More than `most_orphans` in a status are against its schema.
    """

    objects: dict[tuple[Resource, str], Json] = field(default_factory=dict)
    errors: dict[str, KubeError] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)
    most_orphans: int = MAX_ORPHANS

    def add(self, kind: Resource, name: str, namespace: str = "") -> Json:
        metadata = {"name": name, "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1"}
        made = {"metadata": {**metadata, **({"namespace": namespace} if namespace else {})}}
        self.objects[kind, name] = made
        return made

    def get(self, kind: Resource, namespace: str | None, name: str) -> Json:
        if (kind, name) not in self.objects:
            raise NotFound(name)
        return self.objects[kind, name]

    def patch_status(
        self, kind: Resource, namespace: str | None, name: str, uid: str, status: Json, version: str | None = None
    ) -> Json:
        if error := self.errors.get(name):
            raise error
        before = self.objects[kind, name]
        if version is not None and version != before["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified")
        if len(status.get("orphans", ())) > self.most_orphans:
            raise Invalid(f"status.orphans: must have at most {self.most_orphans} items")
        self.writes.append(name)
        metadata = {**before["metadata"], "resourceVersion": str(int(before["metadata"]["resourceVersion"]) + 1)}
        merged = {key: value for key, value in {**before.get("status", {}), **status}.items() if value is not None}
        self.objects[kind, name] = {**before, "metadata": metadata, "status": merged}
        return self.objects[kind, name]


class ShardWorld:
    """One operator: its part of the fleet, what it has stored, and its cycles."""

    def __init__(
        self, statuses: Statuses, shard: Shard, snapshot: Snapshot, policy: Policy, stored: Sequence[Json] = ()
    ) -> None:
        gateway = cast("Gateway", statuses)
        self.statuses, self.shard, self.snapshot, self.policy = statuses, shard, snapshot, policy
        family, own = Family(BASE), f"{BASE}-{shard.index}"
        members = Members(shard, own)
        self.claims = Claims(gateway, own, family=family, count=shard.count)
        self.stores = {
            PIPELINES: ResourceStore(members.keeps_pipeline),
            POOLS: ResourceStore(),
            BUDGETS: ResourceStore(),
        }
        for each in stored:
            self.stores[PIPELINES].put(each)
        self.read()
        self.allowances = Allowances(
            gateway, shard=shard, family=family, members=members, claims=self.claims, stores=self.stores, policy=policy
        )

    def read(self) -> None:
        """Read the shared objects, as a watch does."""
        for (kind, _), each in self.statuses.objects.items():
            self.stores[kind].put(each)

    def settle(self) -> Snapshot:
        self.claims.begin(each for store in self.stores.values() for each in store.snapshot().values())
        return self.allowances.settle(self.snapshot)

    def cycle(self, *, fresh: bool = True) -> Decision:
        """Run a cycle and apply it; with `fresh` the shared objects are read before."""
        if fresh:
            self.read()
        decision = decide(self.settle(), self.policy)
        self.allowances.remember(decision)
        self.snapshot = applied(self.snapshot, decision)
        return decision

    def used(self, pool: str) -> int:
        sizes = [
            (placement.prior.per_instance, state.desired(*key))
            for state in self.snapshot.pipelines
            for key, placement in state.spec.placements().items()
            if placement.pool == pool
        ]
        return whole_instances(sizes)


class Fleet:
    """All shards of a fleet. The pipelines of namespace N are those of the shard that N is for."""

    def __init__(
        self,
        states: Sequence[Sequence[PipelineState]],
        pools: Mapping[PoolName, PoolState],
        budgets: Sequence[BudgetState] = (),
        policy: Policy | None = None,
    ) -> None:
        self.pools, self.policy = pools, policy or Policy(advice=False)
        self.statuses = Statuses()
        for name in pools:
            self.statuses.add(POOLS, name)
        for budget in budgets:
            self.statuses.add(BUDGETS, budget.spec.name)
        count = len(states)
        self.shards = [
            ShardWorld(
                self.statuses,
                Shard(index=index, count=count),
                replace(a_snapshot(*own, fleet=pools), budgets=tuple(budgets)),
                self.policy,
            )
            for index, own in enumerate(states)
        ]

    def close(self) -> None:
        for shard in self.shards:
            shard.allowances.close()

    def cycles(self, count: int) -> list[Decision]:
        """Run `count` cycles of each shard, one after the other, and return the last decisions."""
        last: list[Decision] = []
        for _ in range(count):
            last = []
            for shard in self.shards:
                last.append(shard.cycle())
                for name, pool in self.pools.items():
                    assert self.used(name) <= pool.capacity, (name, self.entries(name))
                    assert committed(self.entries(name)) <= pool.capacity, self.entries(name)
        return last

    def used(self, pool: str) -> int:
        return sum(shard.used(pool) for shard in self.shards)

    def entries(self, pool: str) -> tuple[Entry, ...]:
        return entries_from(self.statuses.get(POOLS, None, pool).get("status", {}))

    def load(self, key: PipelineKey, demand: float) -> None:
        for shard in self.shards:
            shard.snapshot = replace(
                shard.snapshot,
                pipelines=tuple(
                    replace(state, demand=demand) if state.spec.key == key else state
                    for state in shard.snapshot.pipelines
                ),
            )
