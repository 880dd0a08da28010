"""Agrees with the other shards on what each may use of pools and budgets, before a cycle decides.

The state of the agreement is in the status of the shared resources. Each write is refused if the object has changed
since it was read, and is then made again from its present state. `controller.core.plan.shards` has the rules.
"""

import logging
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import blake2b

from controller.core.assess.budgets import group_budgets
from controller.core.plan.shard_use import budget_wants, used_now
from controller.core.plan.shards import Memory, Use, agreed, allowance, divided, without_gone, worth_writing
from controller.core.state.decision import Decision
from controller.core.state.policy import Policy
from controller.core.state.shards import MILLS, Allowance, Entry, Shard, Want
from controller.core.state.snapshot import Orphan, Snapshot
from controller.kube.claims import Claims
from controller.kube.gateway import BUDGETS, PIPELINES, POOLS, Conflict, Gateway, Invalid, Json, KubeError, Resource
from controller.kube.shard_entries import entries_from, entry_documents
from controller.kube.shards import Family, Members
from controller.kube.status import orphan_documents
from controller.kube.store import KeptResource, ResourceStore
from controller.kube.turns import EVERY
from controller.resources.pool import MAX_ORPHANS
from optimizer.model import PipelineKey

_LOG = logging.getLogger(__name__)
_ATTEMPTS = 5
_PARALLEL = 8
_RELEASED_AT_ONCE = 1000
"""Pipelines that are handed over in one cycle: so many small writes take a few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """A resource that shards share: how much there is in parts of 1/`unit`, and what this shard uses of it.

    `firm` says that nothing may stay above the limit. `orphans` are the workloads of this shard that no pipeline has
    any more.
    """

    kind: Resource
    resource: KeptResource
    limit: int
    firm: bool
    use: Use
    unit: int = 1
    orphans: tuple[Orphan, ...] = ()


class Allowances:
    """The allowances of one shard, and for shard 0 their division."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        shard: Shard,
        family: Family,
        members: Members,
        claims: Claims,
        stores: Mapping[Resource, ResourceStore],
        policy: Policy,
    ) -> None:
        """`family` has the Leases of all shards, `members` the namespaces of this one.

        `stores` are those of pipelines, pools and budgets.
        """
        self._gateway = gateway
        self._shard = shard
        self._family = family
        self._members = members
        self._claims = claims
        self._stores = stores
        self._policy = policy
        self._wants: dict[tuple[Resource, str], Want] = {}
        self._least: deque[Mapping[tuple[Resource, str], int | None]] = deque(maxlen=EVERY)
        self._memories: dict[str, Memory] = {}
        self._gone_since_s: dict[int, float] = {}
        self._threads = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="allowances")

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)

    def remember(self, decision: Decision) -> None:
        """Keep what the plans of `decision` lack, for the entries of the next cycle."""
        pools = {(POOLS, str(each.name)): each.want for each in decision.pools if each.want is not None}
        budgets = {(BUDGETS, name): want for name, want in budget_wants(decision).items()}
        self._wants = {**pools, **budgets}
        # Of a large fleet, a decision has a part of the pipelines that are quiet: the lowest priority is of several.
        self._least.append({key: want.least_priority for key, want in self._wants.items()})
        for key, want in self._wants.items():
            known = [least for own in self._least if (least := own.get(key)) is not None]
            self._wants[key] = replace(want, least_priority=min(known, default=None))

    def settle(self, snapshot: Snapshot) -> Snapshot:
        """Return `snapshot` with the allowances of this shard, after its entries are written.

        Pipelines of other shards are released once the entries say so. In a cycle in which an entry could not be
        written, none of the pipelines that use the resource is claimed: then less than was agreed to is used.
        """
        shared = self._shared(snapshot)
        found = list(self._threads.map(lambda each: self._settled(each, snapshot.now_s), shared.values()))
        unwritten = {key for key, (_, stored) in zip(shared, found, strict=True) if not stored}
        self._claims.postponed, self._claims.unaffected = bool(unwritten), _users_of_others(snapshot, unwritten)
        if not unwritten:
            self._release()
        own = {key: given for key, (given, _) in zip(shared, found, strict=True)}
        return replace(
            snapshot,
            pools={name: replace(pool, allowance=own.get((POOLS, name))) for name, pool in snapshot.pools.items()},
            budgets=tuple(replace(state, allowance=own.get((BUDGETS, state.spec.name))) for state in snapshot.budgets),
        )

    def present(self, kind: Resource, resource: KeptResource) -> KeptResource:
        """Return a pool or a budget as it is after its entry was written."""
        return self._stores[kind].get(("", resource.name)) or resource

    def _shared(self, snapshot: Snapshot) -> Mapping[tuple[Resource, str], _Shared]:
        """Return all resources that shards share, with what this shard uses of them."""
        pipelines = self._stores[PIPELINES].snapshot().values()
        inside = [each for each in pipelines if self._members.has(each.namespace)]
        awaiting = sum(self._claims.sibling(each) is not None for each in inside)
        leaving = len(pipelines) - len(inside)
        used = used_now(snapshot, self._policy)

        def use(kind: Resource, name: str, amount: int, users: int) -> Use:
            want = self._wants.get((kind, name))
            return Use(used=amount, want=want, awaiting=awaiting, leaving=leaving, users=users)

        found: dict[tuple[Resource, str], _Shared] = {}
        specs = [state.spec for state in snapshot.pipelines]
        users: dict[str, int] = {}
        for spec in specs:
            for pool in {placement.pool for placement in spec.placements().values()}:
                users[pool] = users.get(pool, 0) + 1
        for standing in snapshot.standing:
            for pool in {own.prior.pool for own in standing.placements}:
                users[pool] = users.get(pool, 0) + 1
        for name, state in snapshot.pools.items():
            kept = self._stores[POOLS].get(("", name))
            if kept is not None:
                own = use(POOLS, name, used.pools[name], users.get(name, 0))
                found[POOLS, name] = _Shared(
                    kind=POOLS,
                    resource=kept,
                    limit=state.capacity,
                    firm=state.ceiling_is_firm,
                    use=own,
                    orphans=state.orphans,
                )
        for budget in group_budgets(snapshot):
            kept = self._stores[BUDGETS].get(("", budget.name))
            if kept is not None:
                state_of = next(state for state in snapshot.budgets if state.spec.name == budget.name)
                quiet = sum(each.namespace in state_of.namespaces for each in snapshot.standing)
                own = use(BUDGETS, budget.name, used.budgets[budget.name], len(budget.pipelines) + quiet)
                limit = int((budget.per_hour + budget.falling_per_hour) * MILLS)
                found[BUDGETS, budget.name] = _Shared(
                    kind=BUDGETS, resource=kept, limit=limit, firm=True, use=own, unit=MILLS
                )
        return found

    def _settled(self, shared: _Shared, now_s: float) -> tuple[Allowance, bool]:
        """Return the allowance of this shard for `shared`, and whether its entry is stored as it should be."""
        resource, problem, with_orphans = shared.resource, "", shared.kind is POOLS
        for _ in range(_ATTEMPTS):
            before = entries_from(resource.status(), shared.unit)
            after, memory = self._next(shared, resource, before, now_s)
            own = self._own(after)
            assert own is not None
            status = self._status(shared, resource, after, with_orphans=with_orphans)
            if not _differ(before, after, self._shard) and "orphans" not in status:
                self._memories[resource.uid] = memory
                return allowance(own, written=self._own(before)), True
            try:
                written = self._write(shared, resource, status)
            except Conflict:
                try:
                    written = self._gateway.get(shared.kind, None, resource.name)
                except KubeError as error:
                    problem = str(error)
                    break
                resource = self._store(shared.kind, written) or resource
                continue
            except Invalid as error:
                if "orphans" not in status:
                    problem = str(error)
                    break
                _LOG.warning("pool %s: orphans that the API server refuses are not written: %s", resource.name, error)
                with_orphans = False
                continue
            except KubeError as error:
                problem = str(error)
                break
            self._store(shared.kind, written)
            self._memories[resource.uid] = memory
            return allowance(own, written=own), True
        else:
            problem = "others have changed it at each attempt"
        _LOG.warning("%s %s: the entry of this shard was not written: %s", shared.kind.plural, resource.name, problem)
        before = entries_from(resource.status(), shared.unit)
        wanted = agreed(self._own(before), self._shard, shared.use, now_s)
        return allowance(wanted, written=self._own(before)), False

    def _next(
        self, shared: _Shared, resource: KeptResource, before: tuple[Entry, ...], now_s: float
    ) -> tuple[tuple[Entry, ...], Memory]:
        """Return the entries to write, and what the divider remembers then."""
        entry = agreed(self._own(before), self._shard, shared.use, now_s)
        after = tuple(
            sorted((*(each for each in before if each.shard != entry.shard), entry), key=lambda each: each.shard)
        )
        memory = self._memories.get(resource.uid, Memory())
        if not self._shard.divides or self._claims.elsewhere(resource) is not None:
            return after, memory
        beyond = [each.shard for each in after if each.shard >= self._shard.count]
        if beyond:
            after = without_gone(after, self._shard.count, self._gone(beyond, now_s))
        found = divided(after, self._shard.count, shared.limit, now_s, memory, firm=shared.firm)
        return found.entries, found.memory

    def _own(self, entries: tuple[Entry, ...]) -> Entry | None:
        return next((each for each in entries if each.shard == self._shard.index), None)

    def _gone(self, shards: list[int], now_s: float) -> Mapping[int, float]:
        """Return since when the operators of `shards`, of an earlier number, are known to be gone."""
        for index in shards:
            if self._claims.runs(self._family.lease(index)):
                self._gone_since_s.pop(index, None)
            else:
                self._gone_since_s.setdefault(index, now_s)
        return {index: self._gone_since_s[index] for index in shards if index in self._gone_since_s}

    def _status(
        self, shared: _Shared, resource: KeptResource, entries: tuple[Entry, ...], *, with_orphans: bool
    ) -> Json:
        """Return what this shard writes into the status: its entry, and `with_orphans` the changed ones of a pool."""
        status: Json = {"shards": entry_documents(entries, shared.unit)}
        if not with_orphans:
            return status
        stored = resource.status().get("orphans") or []
        others = [each for each in stored if not self._members.has(str(each.get("namespace")))]
        orphans = _as_many_as_fit([*others, *orphan_documents(shared.orphans)])
        return status if orphans == stored else {**status, "orphans": orphans}

    def _write(self, shared: _Shared, resource: KeptResource, status: Json) -> Json:
        version = resource.whole()["metadata"]["resourceVersion"]
        return self._gateway.patch_status(shared.kind, None, resource.name, resource.uid, status, version=version)

    def _store(self, kind: Resource, written: Json) -> KeptResource | None:
        store = self._stores[kind]
        store.put(written)
        return store.get(("", written["metadata"]["name"]))

    def _release(self) -> None:
        """Release the pipelines outside this shard that this operator has claimed."""
        own = [
            each
            for each in self._stores[PIPELINES].snapshot().values()
            if each.operator == self._claims.own and not self._members.has(each.namespace)
        ]
        if own:
            some = own[:_RELEASED_AT_ONCE]
            done = sum(self._threads.map(self._released, some))
            _LOG.info("handed over %d of %d pipelines that belong to other shards", done, len(own))

    def _released(self, resource: KeptResource) -> bool:
        """Remove the claim on `resource`, unless the object has changed meanwhile."""
        version = resource.whole()["metadata"]["resourceVersion"]
        place = PIPELINES, resource.namespace, resource.name, resource.uid
        try:
            self._stores[PIPELINES].put(self._gateway.patch_status(*place, {"operator": None}, version=version))
        except KubeError as error:
            _LOG.info("%s/%s: not handed over in this cycle: %s", resource.namespace, resource.name, error)
            return False
        return True


def _differ(before: tuple[Entry, ...], after: tuple[Entry, ...], shard: Shard) -> bool:
    """Return whether entries differ enough to be written."""
    old, new = {each.shard: each for each in before}, {each.shard: each for each in after}
    if old.keys() != new.keys():
        return True
    others = (index for index in new if index != shard.index)
    return worth_writing(old[shard.index], new[shard.index]) or any(old[index] != new[index] for index in others)


def _users_of_others(snapshot: Snapshot, resources: Collection[tuple[Resource, str]]) -> frozenset[PipelineKey]:
    """Return the pipelines of `snapshot` that use none of the pools and budgets `resources`."""
    within = {
        namespace
        for state in snapshot.budgets
        if (BUDGETS, state.spec.name) in resources
        for namespace in state.namespaces
    }
    return frozenset(
        state.spec.key
        for state in snapshot.pipelines
        if state.spec.namespace not in within
        and not any((POOLS, own.pool) in resources for own in state.spec.placements().values())
    )


def _as_many_as_fit(orphans: Sequence[Json]) -> list[Json]:
    """Return as many of the orphans of all shards as the status of a pool may have, in the order of their names.

    All shards come to the same list, in any order of their writes, so that it is not written in every cycle. The hash
    of a name decides whether it is in the list, so that each shard has about the share of its orphans.
    """
    kept = sorted(orphans, key=lambda each: blake2b("/".join(_name(each)).encode(), digest_size=8).digest())
    return sorted(kept[:MAX_ORPHANS], key=_name)


def _name(orphan: Json) -> tuple[str, ...]:
    return tuple(str(orphan.get(field)) for field in ("namespace", "apiVersion", "kind", "name", "address"))
