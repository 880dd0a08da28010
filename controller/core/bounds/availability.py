"""Pools that do not deliver, and placements that fail on pools that do.

A pool or placement fails when replicas are pending past their deadline. Plans then leave it out for a backoff time.
After that it is tried again with one replica.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controller.core.bounds.elastic_pools import awaits_its_node, held_until_s, launch_failures, measured_launch_s
from controller.core.messages import details
from controller.core.state.carry_over import FailureCause, PlacementFailure, PoolMemory
from controller.core.state.snapshot import PendingReplica, PipelineState, PoolState, Snapshot, TargetState
from controller.core.state.spec import PlacementKey, PoolSpec
from optimizer.model import PipelineKey, PoolName

EPSILON = 1e-9
_NO_ROOM = "Insufficient "
"""Prefix of the scheduler's reason for a node that fits the pod but has no capacity left."""
_OF_THE_POD = re.compile(
    r"(\d+ )?(Insufficient |node\(s\) didn't (match|satisfy|have free ports)|node\(s\) had volume|pod has unbound|"
    r"persistentvolumeclaim |node\(s\) had untolerated taint \{(?!node\.kubernetes\.io/))"
)
"""Reasons of the scheduler that depend on the pod, so that other pods may still be scheduled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """The failures of pools and placements at `now_s`.

    `failures` has the placements that fail although their pool delivers. `waiting` has the pools with replicas that are
    not ready. `uncreated_since_s` has since when desired replicas have not been created. `arriving` has how many
    pending replicas have a node on its way.
    """

    now_s: float
    pools: Mapping[PoolName, PoolMemory]
    failures: Mapping[PipelineKey, Mapping[PlacementKey, PlacementFailure]]
    waiting: frozenset[PoolName]
    uncreated_since_s: Mapping[PipelineKey, Mapping[PlacementKey, float]]
    arriving: Mapping[PipelineKey, Mapping[PlacementKey, int]]

    def trials(self) -> Mapping[PoolName, int]:
        """Return how many replicas each pool on trial may get: 1, or 0 while another replica is pending there."""
        return {
            name: 0 if name in self.waiting else 1
            for name, memory in self.pools.items()
            if memory.unavailable_until_s is not None and not unavailable(memory, self.now_s)
        }

    def out(self, pool: PoolName) -> bool:
        """Return whether plans leave out the pool."""
        return unavailable(self.pools.get(pool, PoolMemory()), self.now_s)


def with_node(target: TargetState) -> int:
    """Return how many of the desired replicas exist and have a node that is up, at least those that are ready."""
    without = len(target.waiting) + (0 if target.creates_later else target.uncreated)
    return max(min(target.ready, target.desired), target.desired - without)


def unavailable(memory: PoolMemory, now_s: float) -> bool:
    """Return whether plans leave out the pool or placement with `memory` at `now_s`."""
    return memory.unavailable_until_s is not None and now_s < memory.unavailable_until_s


def find_availability(snapshot: Snapshot) -> Availability:
    """Return the failures of pools and placements as of this snapshot.

    A pool fails when a replica past its deadline has no node, or is on a node that is not ready. Only the placement
    fails when the pool has free capacity for the replica and the scheduler's reasons depend on the pod: no single node
    has enough capacity, or no node fits this pod. A placement also fails when a replica on a ready node is not ready
    after its start-up time plus the deadline. While the nodes cannot be read, free capacity is unknown, and a pod
    without a node is a failure of its placement only.

    A placement fails too when desired replicas are not created within the deadline. Replicas beyond the desired ones,
    and those of the new revision of a roll-out, show no failure of the pool.

    In an elastic pool, a node that is on its way for a replica holds its deadline. If the provider has no capacity, the
    pool fails at once, and replicas whose nodes are on their way stay (`controller.core.bounds.elastic_pools`).
    """
    late: dict[PoolName, list[PendingReplica]] = {name: [] for name in snapshot.pools}
    undelivered: dict[PoolName, int] = dict.fromkeys(snapshot.pools, 0)
    waiting: set[PoolName] = set()
    launches = launch_failures(snapshot)
    failures: dict[PipelineKey, dict[PlacementKey, PlacementFailure]] = {}
    uncreated: dict[PipelineKey, dict[PlacementKey, float]] = {}
    arriving: dict[PipelineKey, dict[PlacementKey, int]] = {}
    room = _Room.of(snapshot)
    for state in snapshot.pipelines:
        own: dict[PlacementKey, PlacementFailure] = {}
        for key, target in state.found():
            pool = snapshot.pools.get(key[1])
            if pool is None:
                continue
            verdict = _judged(state, key, target, pool, room, launches.get(key[1]), snapshot.now_s)
            late[key[1]] += verdict.undelivered
            undelivered[key[1]] += len(target.unscheduled) - len(verdict.apart)
            if target.waiting or target.starting:
                waiting.add(key[1])
            coming = sum(awaits_its_node(each, pool.node_pool, snapshot.now_s) for each in target.unscheduled)
            if coming:
                arriving.setdefault(state.spec.key, {})[key] = coming
            if target.uncreated:
                uncreated.setdefault(state.spec.key, {})[key] = _uncreated_since_s(state, key, snapshot.now_s)
            failure = _next_failure(state.memory.failures.get(key), verdict, target, pool.spec, snapshot.now_s)
            if failure is not None:
                own[key] = failure
        failures[state.spec.key] = own
    return Availability(
        now_s=snapshot.now_s,
        pools={
            name: replace(
                _next(pool.spec, pool.memory, late[name], waits=undelivered[name] > 0, now_s=snapshot.now_s),
                launch_s=measured_launch_s(pool),
            )
            for name, pool in snapshot.pools.items()
        },
        failures=failures,
        waiting=frozenset(waiting),
        uncreated_since_s=uncreated,
        arriving=arriving,
    )


def _uncreated_since_s(state: PipelineState, key: PlacementKey, now_s: float) -> float:
    return min(now_s, state.memory.uncreated_since_s.get(key, now_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """The instances of each pool that are free for new replicas, and the pools on which replicas are draining."""

    free: Mapping[PoolName, float]
    draining: frozenset[PoolName]

    @classmethod
    def of(cls, snapshot: Snapshot) -> "_Room":
        free: dict[PoolName, float] = {
            name: pool.ready_instances - pool.leaving_instances - pool.unaccounted_in_use
            for name, pool in snapshot.pools.items()
        }
        draining: set[PoolName] = set()
        for state in snapshot.pipelines:
            placements = state.spec.placements()
            for key, target in state.found():
                if key[1] in free and target.owner is None:
                    placed = target.existing - len(target.pending) - len(target.stranded)
                    free[key[1]] -= placed / placements[key].prior.per_instance
                    if target.terminating:
                        draining.add(key[1])
        return cls(free=free, draining=frozenset(draining))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """The replicas of one placement that are not ready.

    `apart` are the replicas that have no node although the pool has free capacity for them, while its nodes cannot be
    read, or during a roll-out: they show no failure of the pool. The other lists have what is past its deadline:
    `unplaced` are those of `apart`, `undelivered` show a failure of the pool, `unstarted` are on ready nodes, and
    `uncreated` stands for all that do not exist.
    """

    undelivered: Sequence[PendingReplica]
    unplaced: Sequence[PendingReplica]
    unstarted: Sequence[PendingReplica]
    uncreated: Sequence[PendingReplica]
    apart: Sequence[PendingReplica]


def _judged(
    state: PipelineState,
    key: PlacementKey,
    target: TargetState,
    pool: PoolState,
    room: _Room,
    launch_failure: str | None,
    now_s: float,
) -> _Verdict:
    """Return the verdict on the replicas of a placement; `launch_failure` says why the pool cannot launch nodes."""
    placement, deadline_s = state.spec.placements()[key], pool.spec.pending_deadline_s
    # Draining replicas free capacity when they are gone.
    drain_s = state.spec.scaling.drain_s if placement.pool in room.draining else 0.0
    has_room = room.free[placement.pool] >= 1 / placement.prior.per_instance - EPSILON
    apart = [
        replica
        for replica in target.unscheduled
        if pool.unread or replica.updated or (has_room and _is_its_own(replica.reason))
    ]
    names = {replica.name for replica in apart}

    def late(replicas: Sequence[PendingReplica], after_s: float) -> list[PendingReplica]:
        return [replica for replica in replicas if now_s - replica.since_s >= after_s]

    waited = [
        replica if launch_failure is None else replace(replica, reason=launch_failure)
        for replica in target.unscheduled
        if (launch_failure is not None and not awaits_its_node(replica, pool.node_pool, now_s))
        or now_s
        >= max(
            replica.since_s + deadline_s + (drain_s if _NO_ROOM in replica.reason else 0.0),
            held_until_s(replica, pool.node_pool),
        )
    ]
    return _Verdict(
        undelivered=[
            *(replica for replica in waited if replica.name not in names),
            *late([replica for replica in target.stranded if replica in target.waiting], deadline_s),
        ],
        unplaced=[replica for replica in waited if replica.name in names],
        unstarted=late(target.starting, placement.startup_s + deadline_s),
        uncreated=late(
            _uncreated(state, key, target, now_s), deadline_s + _pause_s(state, key, target, deadline_s, now_s)
        ),
        apart=apart,
    )


def _uncreated(state: PipelineState, key: PlacementKey, target: TargetState, now_s: float) -> Sequence[PendingReplica]:
    """Return one replica that stands for all that are desired and not created, none where all are."""
    if not target.uncreated:
        return ()
    which, why = details.uncreated(target.uncreated, target.desired, target.refusal)
    return (PendingReplica(name=which, since_s=_uncreated_since_s(state, key, now_s), reason=why),)


def _pause_s(state: PipelineState, key: PlacementKey, target: TargetState, deadline_s: float, now_s: float) -> float:
    """Return for how long the deadline of replicas that are not created is paused by what their creation waits for.

    For each replica that its controller creates, or ends in a roll-out, this may be a start-up and a drain, and
    `deadline_s` for a node. The pause ends when the youngest one took longer, and after as many times as replicas
    exist: replicas that never stay ready do not extend it.
    """
    if not target.creates_later:
        return 0.0
    unready_s = [replica.since_s for replica in (*target.pending, *target.stranded, *target.starting)]
    each_s = state.spec.placements()[key].startup_s + state.spec.scaling.drain_s + (deadline_s if unready_s else 0.0)
    since_s = _uncreated_since_s(state, key, now_s)
    return min(max([since_s, *unready_s]) - since_s + each_s, (1 + target.existing) * each_s)


def _is_its_own(reason: str) -> bool:
    """Whether all reasons in a message of the scheduler depend on the pod: `…available: 2 Insufficient cpu, …`."""
    reasons = reason.partition("available: ")[2].partition(". ")[0].removesuffix(".")
    return bool(reasons) and all(_OF_THE_POD.match(part) for part in reasons.split(", "))


def _next_failure(
    before: PlacementFailure | None, verdict: _Verdict, target: TargetState, pool: PoolSpec, now_s: float
) -> PlacementFailure | None:
    late = [*verdict.uncreated, *verdict.unplaced, *verdict.unstarted]
    waits = bool(verdict.apart or target.uncreated) or (
        bool(target.starting) and before is not None and before.cause is FailureCause.CANNOT_START
    )
    outage = _next(pool, PoolMemory() if before is None else before.outage, late, waits=waits, now_s=now_s)
    if outage == PoolMemory():
        return None
    if before is not None and (not late or unavailable(before.outage, now_s)):
        return PlacementFailure(cause=before.cause, outage=outage)
    if verdict.uncreated:
        return PlacementFailure(cause=FailureCause.NOT_CREATED, outage=outage)
    cause = FailureCause.FRAGMENTED if verdict.unplaced else FailureCause.CANNOT_START
    return PlacementFailure(cause=cause, outage=outage)


def _next(
    spec: PoolSpec, memory: PoolMemory, late: Sequence[PendingReplica], *, waits: bool, now_s: float
) -> PoolMemory:
    """Return the failure state after this cycle; `late` are past their deadline, `waits`: any replica is pending."""
    if unavailable(memory, now_s):
        assert memory.unavailable_until_s is not None
        # A clock that was set back must not make the backoff longer.
        return replace(memory, unavailable_until_s=min(memory.unavailable_until_s, now_s + spec.backoff_max_s))
    if late:
        first = min(late, key=lambda replica: (replica.since_s, replica.name))
        backoff_s = spec.backoff_initial_s if memory.backoff_s is None else memory.backoff_s
        return PoolMemory(
            unavailable_until_s=now_s + backoff_s,
            backoff_s=min(spec.backoff_max_s, 2 * backoff_s),
            reason=details.pending(first),
        )
    until_s = memory.unavailable_until_s
    if until_s is not None and (waits or now_s < until_s + spec.pending_deadline_s):
        return memory
    return PoolMemory()
