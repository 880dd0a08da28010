"""What cannot be had: pools that do not deliver, placements that fail on pools that do.

Found by replicas that wait past their deadline, planned without for a while, then tried with one replica.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.core.state.carry_over import FailureCause, PlacementFailure, PoolMemory
from controller.core.state.snapshot import PendingReplica, PipelineState, PoolState, Snapshot, TargetState
from controller.core.state.spec import PlacementKey, PlacementSpec, PoolSpec
from optimizer.model import PipelineKey, PoolName

EPSILON = 1e-9
_NO_ROOM = "Insufficient "
"""How the scheduler begins what it says of a node that would take the pod but has no room for it."""
_OF_THE_POD = re.compile(
    r"(\d+ )?(Insufficient |node\(s\) didn't (match|satisfy|have free ports)|node\(s\) had volume|pod has unbound|"
    r"persistentvolumeclaim |node\(s\) had untolerated taint \{(?!node\.kubernetes\.io/))"
)
"""What the scheduler has against a pod, and would not have against every other one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """What can be had at `now_s`. `failures` are those of pools that deliver to others.

    `waiting` names the pools on which replicas do not serve yet.
    """

    now_s: float
    pools: Mapping[PoolName, PoolMemory]
    failures: Mapping[PipelineKey, Mapping[PlacementKey, PlacementFailure]]
    waiting: frozenset[PoolName]

    def at_most(self, state: PipelineState) -> Mapping[PlacementKey, int]:
        """Return how many replicas may be planned at most where nothing more can be had: those that have a place.

        Replicas that do not start are left alone where their stage has nowhere else to go.
        """
        most: dict[PlacementKey, int] = {}
        failures = self.failures.get(state.spec.key, {})
        for key, target in _targets(state):
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
        """Return how many replicas may be added, one or none, where a failure is over and nothing has proven it yet."""
        allowed: dict[PlacementKey, int] = {}
        failures = self.failures.get(state.spec.key, {})
        for key, target in _targets(state):
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
        """Return how many replicas may be added to each pool on trial: one, or none while another waits there."""
        return {
            name: 0 if name in self.waiting else 1
            for name, memory in self.pools.items()
            if memory.unavailable_until_s is not None and not unavailable(memory, self.now_s)
        }

    def _out(self, pool: PoolName) -> bool:
        return unavailable(self.pools.get(pool, PoolMemory()), self.now_s)

    def _elsewhere(self, state: PipelineState, key: PlacementKey) -> bool:
        """Whether the stage of a placement has another one that could be used."""
        failures = self.failures.get(state.spec.key, {})
        return any(
            other != key and other[1] in self.pools and other not in failures and not self._out(other[1])
            for other, _ in _targets(state)
            if other[0] == key[0]
        )


def unavailable(memory: PoolMemory, now_s: float) -> bool:
    """Whether the pool, or the placement, is planned without."""
    return memory.unavailable_until_s is not None and now_s < memory.unavailable_until_s


def find_availability(snapshot: Snapshot) -> Availability:
    """Return what is known of failures after this snapshot.

    A pool cannot deliver when a replica past its deadline has no node, or one that is not ready. Where the pool has
    room for the replica by the books, and the scheduler finds fault with the pod alone, the placement alone fails: the
    room is in no one piece, or not for this pod. So it does when a replica on a ready node has not become ready within
    its start-up time and the deadline. While the nodes cannot be read nobody knows whether the pool has room, and what
    one pod waits for must not take it from the others.
    """
    late: dict[PoolName, list[PendingReplica]] = {name: [] for name in snapshot.pools}
    undelivered: dict[PoolName, int] = dict.fromkeys(snapshot.pools, 0)
    waiting: set[PoolName] = set()
    failures: dict[PipelineKey, dict[PlacementKey, PlacementFailure]] = {}
    books = _Books.of(snapshot)
    for state in snapshot.pipelines:
        own: dict[PlacementKey, PlacementFailure] = {}
        placements = state.spec.placements()
        for key, target in _targets(state):
            pool = snapshot.pools.get(key[1])
            if pool is None:
                continue
            verdict = _judged(state, placements[key], target, pool, books, snapshot.now_s)
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
class _Books:
    """Instances of each pool that take new replicas, less those that replicas with a node fill; who drains there."""

    free: Mapping[PoolName, float]
    draining: frozenset[PoolName]

    @classmethod
    def of(cls, snapshot: Snapshot) -> "_Books":
        free: dict[PoolName, float] = {
            name: pool.ready_instances - pool.leaving_instances - pool.strays_in_use
            for name, pool in snapshot.pools.items()
        }
        draining: set[PoolName] = set()
        for state in snapshot.pipelines:
            placements = state.spec.placements()
            for key, target in _targets(state):
                if key[1] in free:
                    placed = target.existing - len(target.pending) - len(target.stranded)
                    free[key[1]] -= placed / placements[key].prior.per_instance
                    if target.terminating:
                        draining.add(key[1])
        return cls(free=free, draining=frozenset(draining))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """The waiting replicas of one placement.

    Past their deadline: `undelivered` by the pool, `unplaced` though there is room, `unstarted` on ready nodes; `apart`
    are all that wait though there is room.
    """

    undelivered: Sequence[PendingReplica]
    unplaced: Sequence[PendingReplica]
    unstarted: Sequence[PendingReplica]
    apart: Sequence[PendingReplica]


def _judged(
    state: PipelineState, placement: PlacementSpec, target: TargetState, pool: PoolState, books: _Books, now_s: float
) -> _Verdict:
    deadline_s = pool.spec.pending_deadline_s
    # What drains leaves room behind, for which it is worth waiting that long.
    drain_s = state.spec.scaling.drain_s if placement.pool in books.draining else 0.0
    has_room = books.free[placement.pool] >= 1 / placement.prior.per_instance - EPSILON
    apart = [replica for replica in target.pending if pool.unread or (has_room and _is_its_own(replica.reason))]
    names = {replica.name for replica in apart}

    def late(replicas: Sequence[PendingReplica], after_s: float) -> list[PendingReplica]:
        return [replica for replica in replicas if now_s - replica.since_s >= after_s]

    waited = [
        replica
        for replica in target.pending
        if now_s - replica.since_s >= deadline_s + (drain_s if _NO_ROOM in replica.reason else 0.0)
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


def _is_its_own(reason: str) -> bool:
    """Whether all that the scheduler says is about the pod: `0/6 nodes are available: 2 Insufficient cpu, 4 …. …`."""
    found = reason.partition("available: ")[2].partition(". ")[0].removesuffix(".")
    return bool(found) and all(_OF_THE_POD.match(part) for part in found.split(", "))


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
    """Return the memory after this cycle; `late` are past their deadline, `waits` says whether any are on their way."""
    if unavailable(memory, now_s):
        assert memory.unavailable_until_s is not None
        # A clock that was set back must not make it longer.
        return replace(memory, unavailable_until_s=min(memory.unavailable_until_s, now_s + spec.backoff_max_s))
    if late:
        first = min(late, key=lambda replica: (replica.since_s, replica.name))
        backoff_s = spec.backoff_initial_s if memory.backoff_s is None else memory.backoff_s
        return PoolMemory(
            unavailable_until_s=now_s + backoff_s,
            backoff_s=min(spec.backoff_max_s, 2 * backoff_s),
            reason=f"{first.name}: {first.reason}",
        )
    until_s = memory.unavailable_until_s
    if until_s is not None and (waits or now_s < until_s + spec.pending_deadline_s):
        return memory
    return PoolMemory()


def _targets(state: PipelineState) -> Iterator[tuple[PlacementKey, TargetState]]:
    return ((key, target) for key, target in state.targets.items() if isinstance(target, TargetState))
