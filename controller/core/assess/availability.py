"""Pools that do not deliver, and placements that fail on pools that do.

A pool or placement fails when replicas are pending past their deadline. Plans then leave it out for a backoff time.
After that it is tried again with one replica.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controller.core.messages import details
from controller.core.state.carry_over import FailureCause, PlacementFailure, PoolMemory
from controller.core.state.snapshot import (
    NodePoolState,
    PendingReplica,
    PipelineState,
    PoolState,
    Snapshot,
    TargetState,
)
from controller.core.state.spec import PlacementKey, PlacementSpec, PoolSpec
from optimizer.model import PipelineKey, PoolName

EPSILON = 1e-9
REGISTRATION_S = 900.0
"""How long a node that is on its way holds the deadline: then Karpenter and the cluster autoscaler give it up too."""
_TRIES = 2
"""How many nodes on their way hold the deadline of a replica, and how many failed launches in a row fail its pool."""
_SKEW_S = 5.0
"""How far the clocks of the scheduler and of an autoscaler may differ."""
_NEXT_TRY_S = 60.0
"""How long after a failed launch Karpenter may take to try the next offering, by a new NodeClaim."""
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
    not ready.
    """

    now_s: float
    pools: Mapping[PoolName, PoolMemory]
    failures: Mapping[PipelineKey, Mapping[PlacementKey, PlacementFailure]]
    waiting: frozenset[PoolName]

    def at_most(self, state: PipelineState) -> Mapping[PlacementKey, int]:
        """Return the upper bound for each placement that must get no more replicas: its replicas that have a node.

        Where replicas fail to start, those that are starting are subtracted too. Such a placement has no bound while
        its stage has no other usable placement.
        """
        most: dict[PlacementKey, int] = {}
        failures = self.failures.get(state.spec.key, {})
        for key, target in state.found():
            waiting = len(target.pending) + len(target.stranded)
            failure = failures.get(key)
            if self._out(key[1]):
                most[key] = max(0, target.desired - waiting)
            elif failure is not None and unavailable(failure.outage, self.now_s):
                if failure.cause is FailureCause.FRAGMENTED:
                    most[key] = max(0, target.desired - waiting)
                elif self._elsewhere(state, key):
                    most[key] = max(0, target.desired - waiting - len(target.starting))
        return most

    def on_trial(self, state: PipelineState) -> Mapping[PlacementKey, int]:
        """Return how many replicas (0 or 1) each placement may get whose backoff is over, while none is ready since."""
        allowed: dict[PlacementKey, int] = {}
        failures = self.failures.get(state.spec.key, {})
        for key, target in state.found():
            failure = failures.get(key)
            waits = bool(target.pending or target.stranded or target.starting)
            if self._out(key[1]) or (failure is not None and unavailable(failure.outage, self.now_s)):
                continue
            if self.pools.get(key[1], PoolMemory()).unavailable_until_s is not None:
                allowed[key] = 0 if waits or key[1] in self.waiting else 1
            elif failure is not None:
                allowed[key] = 0 if waits else 1
        return allowed

    def trials(self) -> Mapping[PoolName, int]:
        """Return how many replicas each pool on trial may get: 1, or 0 while another replica is pending there."""
        return {
            name: 0 if name in self.waiting else 1
            for name, memory in self.pools.items()
            if memory.unavailable_until_s is not None and not unavailable(memory, self.now_s)
        }

    def _out(self, pool: PoolName) -> bool:
        return unavailable(self.pools.get(pool, PoolMemory()), self.now_s)

    def _elsewhere(self, state: PipelineState, key: PlacementKey) -> bool:
        """Whether the stage of the placement `key` has another placement that can be used."""
        failures = self.failures.get(state.spec.key, {})
        return any(
            other != key and other[1] in self.pools and other not in failures and not self._out(other[1])
            for other, _ in state.found()
            if other[0] == key[0]
        )


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

    In an elastic pool, a node that is on its way for a replica holds its deadline. If the provider has no capacity, the
    pool fails at once (`_launch_failure`).
    """
    late: dict[PoolName, list[PendingReplica]] = {name: [] for name in snapshot.pools}
    undelivered: dict[PoolName, int] = dict.fromkeys(snapshot.pools, 0)
    waiting: set[PoolName] = set()
    launches = _launch_failures(snapshot)
    failures: dict[PipelineKey, dict[PlacementKey, PlacementFailure]] = {}
    room = _Room.of(snapshot)
    for state in snapshot.pipelines:
        own: dict[PlacementKey, PlacementFailure] = {}
        placements = state.spec.placements()
        for key, target in state.found():
            pool = snapshot.pools.get(key[1])
            if pool is None:
                continue
            verdict = _judged(state, placements[key], target, pool, room, launches.get(key[1]), snapshot.now_s)
            late[key[1]] += verdict.undelivered
            undelivered[key[1]] += len(target.pending) - len(verdict.apart)
            if target.pending or target.stranded or target.starting:
                waiting.add(key[1])
            failure = _next_failure(state.memory.failures.get(key), verdict, target, pool.spec, snapshot.now_s)
            if failure is not None:
                own[key] = failure
        failures[state.spec.key] = own
    return Availability(
        now_s=snapshot.now_s,
        pools={
            name: _next(pool.spec, pool.memory, late[name], waits=undelivered[name] > 0, now_s=snapshot.now_s)
            for name, pool in snapshot.pools.items()
        },
        failures=failures,
        waiting=frozenset(waiting),
    )


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

    `apart` are the replicas that have no node although the pool has free capacity for them, or while its nodes cannot
    be read: they show no failure of the pool. Three lists have the replicas that are past their deadline: `unplaced`
    are those of `apart`, `undelivered` show a failure of the pool, and `unstarted` are on ready nodes.
    """

    undelivered: Sequence[PendingReplica]
    unplaced: Sequence[PendingReplica]
    unstarted: Sequence[PendingReplica]
    apart: Sequence[PendingReplica]


def _judged(
    state: PipelineState,
    placement: PlacementSpec,
    target: TargetState,
    pool: PoolState,
    room: _Room,
    launch_failure: str | None,
    now_s: float,
) -> _Verdict:
    """Return the verdict on the replicas of a placement; `launch_failure` says why the pool cannot launch nodes."""
    deadline_s = pool.spec.pending_deadline_s
    # Draining replicas free capacity when they are gone.
    drain_s = state.spec.scaling.drain_s if placement.pool in room.draining else 0.0
    has_room = room.free[placement.pool] >= 1 / placement.prior.per_instance - EPSILON
    apart = [replica for replica in target.pending if pool.unread or (has_room and _is_its_own(replica.reason))]
    names = {replica.name for replica in apart}

    def late(replicas: Sequence[PendingReplica], after_s: float) -> list[PendingReplica]:
        return [replica for replica in replicas if now_s - replica.since_s >= after_s]

    waited = [
        replica if launch_failure is None else replace(replica, reason=launch_failure)
        for replica in target.pending
        if launch_failure is not None
        or now_s
        >= max(
            replica.since_s + deadline_s + (drain_s if _NO_ROOM in replica.reason else 0.0),
            _held_until_s(replica, pool.node_pool),
        )
    ]
    return _Verdict(
        undelivered=[
            *(replica for replica in waited if replica.name not in names),
            *late(target.stranded, deadline_s),
        ],
        unplaced=[replica for replica in waited if replica.name in names],
        unstarted=late(target.starting, placement.startup_s + deadline_s),
        apart=apart,
    )


def _held_until_s(replica: PendingReplica, node_pool: NodePoolState | None) -> float:
    """Return until when nodes on their way hold the deadline of a pending replica of an elastic pool, -inf: none does.

    These are the nodes that are announced for the replica, else those that the NodePool has launched. The first two
    count, so that a pool whose nodes never register fails in the end.
    """
    if node_pool is None:
        return -math.inf
    # An earlier pod of the same name may have had Events too.
    announced = {node.name: node for node in replica.expected if node.since_s >= replica.since_s - _SKEW_S}
    failed = {
        each.claim: each.at_s
        for each in node_pool.failures
        if each.at_s >= replica.since_s and (not announced or each.claim in announced)
    }
    # Karpenter announces at most one node in two minutes for a pod, so the next one may be known by its NodeClaim only.
    coming = [node for node in announced.values() if node.name not in failed] or node_pool.claims
    tries = failed | {node.name: node.since_s for node in coming}
    first = sorted(tries, key=lambda name: (tries[name], name))[:_TRIES]
    return max((tries[name] + REGISTRATION_S for name in first if name not in failed), default=-math.inf)


def _launch_failures(snapshot: Snapshot) -> Mapping[PoolName, str]:
    """Return the elastic pools that cannot launch nodes for their pending replicas, with the provider's words."""
    pending: dict[PoolName, list[PendingReplica]] = {}
    for state in snapshot.pipelines:
        for key, target in state.found():
            pending.setdefault(key[1], []).extend(target.pending)
    found = (
        (name, _launch_failure(pool.node_pool, pending[name], snapshot.now_s))
        for name, pool in snapshot.pools.items()
        if pool.node_pool is not None and pending.get(name)
    )
    return {name: reason for name, reason in found if reason is not None}


def _launch_failure(node_pool: NodePoolState, pending: Sequence[PendingReplica], now_s: float) -> str | None:
    """Return why a NodePool launches no node for the `pending` replicas, None while it may.

    After a launch that failed for want of capacity, Karpenter deletes the NodeClaim and tries other offerings by a new
    one. The second failure in a row, or no new NodeClaim in time, is final. A node on its way is waited for.
    """
    begun_s = min(replica.since_s for replica in pending)
    if node_pool.registered_at_s is not None:
        begun_s = max(begun_s, node_pool.registered_at_s)
    failures = [failure for failure in node_pool.failures if failure.at_s >= begun_s]
    if not failures or node_pool.claims:
        return None
    last = failures[-1]
    tries = [node.since_s for replica in pending for node in replica.expected if node.name != last.claim]
    tries += [] if node_pool.created_at_s is None else [node_pool.created_at_s]
    tried_again = any(at_s > last.at_s for at_s in tries)
    if len(failures) < _TRIES and (tried_again or now_s - last.at_s < _NEXT_TRY_S):
        return None
    return last.reason


def _is_its_own(reason: str) -> bool:
    """Whether all reasons in a message of the scheduler depend on the pod: `…available: 2 Insufficient cpu, …`."""
    reasons = reason.partition("available: ")[2].partition(". ")[0].removesuffix(".")
    return bool(reasons) and all(_OF_THE_POD.match(part) for part in reasons.split(", "))


def _next_failure(
    before: PlacementFailure | None, verdict: _Verdict, target: TargetState, pool: PoolSpec, now_s: float
) -> PlacementFailure | None:
    late = [*verdict.unplaced, *verdict.unstarted]
    waits = bool(verdict.apart) or (
        bool(target.starting) and before is not None and before.cause is FailureCause.CANNOT_START
    )
    outage = _next(pool, PoolMemory() if before is None else before.outage, late, waits=waits, now_s=now_s)
    if outage == PoolMemory():
        return None
    if before is not None and (not late or unavailable(before.outage, now_s)):
        return PlacementFailure(cause=before.cause, outage=outage)
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
