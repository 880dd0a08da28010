"""Pools that do not deliver, and placements that fail on pools that do.

A pool or placement fails when replicas are pending past their deadline. Plans then leave it out for a backoff time.
After that it is tried again with one replica.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.core.bounds.elastic_pools import (
    awaits_its_node,
    held_until_s,
    known_instances,
    launch_failures,
    measured_launch_s,
    own_launch_failure,
)
from controller.core.messages import details
from controller.core.state.carry_over import FailureCause, PlacementFailure, PoolMemory
from controller.core.state.snapshot import PendingReplica, PipelineState, PoolState, Snapshot, TargetState
from controller.core.state.spec import PoolSpec
from optimizer.model import PipelineKey, PlacementKey, PoolName, Size, pool_of

EPSILON = 1e-9
_NO_ROOM = "Insufficient "
"""Prefix of the scheduler's reason for a node that fits the pod but has no capacity left."""
_OF_THE_POD = re.compile(
    r"(\d+ )?(Insufficient |node\(s\) didn't (match|satisfy|have free ports)|node\(s\) had volume|pod has unbound|"
    r"persistentvolumeclaim |node\(s\) had untolerated taint \{(?!node\.kubernetes\.io/))"
)
"""Reasons of the scheduler that depend on the pod, so that other pods may still be scheduled."""
_OF_THE_NODES = re.compile(
    r"(\d+ )?(Insufficient |node\(s\) were unschedulable|node\(s\) had untolerated taint \{node\.kubernetes\.io/)"
)
"""Reasons that any pod meets: nodes are full, cordoned or not ready."""
_NOT_OF_THIS_POD = re.compile(
    rf"{_OF_THE_NODES.pattern}|(\d+ )?node\(s\) (didn't match Pod's node affinity|had untolerated taint )"
)
"""These, and why a pod does not go to the nodes of other pools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """The failures of pools and placements at `now_s`.

    `failures` has the placements that fail although their pool delivers. `waiting` has the pools with replicas that are
    not ready, also of pipelines that stand. `uncreated_since_s` has since when desired replicas have not been created.
    `arriving` has how many pending replicas have a node on its way.
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


def find_availability(snapshot: Snapshot, not_acting: Collection[PipelineKey] = ()) -> Availability:
    """Return the failures of pools and placements as of this snapshot.

    A pool is shared, so it fails only by evidence that does not rest on one pod: replicas of two pipelines past their
    deadline without a node; or one that an empty node of the pool would hold, by its requests and without a
    constraint, while the scheduler reports only a lack of capacity; or a provider that launches no node for such a
    replica. A pool of declared instances without a ready node fails too. Replicas of the pipelines `not_acting` are no
    evidence: no cycle would withdraw them.

    Everything else is the failure of a placement: replicas past their deadline that have no node, or, on a ready node,
    are not ready after their start-up time plus the deadline; and desired replicas that are not created within it.
    While the nodes cannot be read, a pod without a node is a failure of its placement only. Replicas beyond the desired
    ones, and those of the new revision of a roll-out, show no failure of the pool. A node that is not ready is no
    failure of its pool: its replicas are replaced (`controller.core.bounds.leaving_nodes`), and their placement fails
    only where the workload's controller would remove the replacements first.

    In an elastic pool, a node that is on its way for a replica holds its deadline. If the provider has no capacity, the
    pool fails at once, and replicas whose nodes are on their way stay (`controller.core.bounds.elastic_pools`).
    """
    launches = launch_failures(snapshot, not_acting)
    room = _Room.of(snapshot)
    verdicts = {
        (state.spec.key, key): _judged(
            state, key, target, snapshot.pools[pool_of(key[1])], room, launches, snapshot.now_s
        )
        for state in snapshot.pipelines
        for key, target in state.found()
        if pool_of(key[1]) in snapshot.pools
    }
    acting: dict[PoolName, list[tuple[PipelineKey, _Verdict]]] = {name: [] for name in snapshot.pools}
    for (pipeline, key), verdict in verdicts.items():
        if pipeline not in not_acting:
            acting[pool_of(key[1])].append((pipeline, verdict))
    late = {
        name: _evidence(own, pool, launches.get(name))
        for name, pool in snapshot.pools.items()
        for own in (acting[name],)
    }
    waits, starts = _standing_on(snapshot, room)
    failures: dict[PipelineKey, dict[PlacementKey, PlacementFailure]] = {}
    uncreated: dict[PipelineKey, dict[PlacementKey, float]] = {}
    arriving: dict[PipelineKey, dict[PlacementKey, int]] = {}
    for state in snapshot.pipelines:
        own: dict[PlacementKey, PlacementFailure] = {}
        for key, target in state.found():
            pool = snapshot.pools.get(pool_of(key[1]))
            if pool is None:
                continue
            verdict = verdicts[state.spec.key, key]
            coming = sum(awaits_its_node(each, pool.node_pool, snapshot.now_s) for each in target.unscheduled)
            if coming:
                arriving.setdefault(state.spec.key, {})[key] = coming
            if target.uncreated:
                uncreated.setdefault(state.spec.key, {})[key] = _uncreated_since_s(state, key, snapshot.now_s)
            shared = bool(late[pool_of(key[1])]) or unavailable(pool.memory, snapshot.now_s)
            failure = _next_failure(
                state.memory.failures.get(key), verdict, target, pool.spec, snapshot.now_s, pool_fails=shared
            )
            if failure is not None:
                own[key] = failure
        failures[state.spec.key] = own
    return Availability(
        now_s=snapshot.now_s,
        pools={
            name: replace(
                _next(
                    pool.spec,
                    pool.memory,
                    late[name],
                    waits=name in waits or any(verdict.waits for _, verdict in acting[name]),
                    now_s=snapshot.now_s,
                ),
                launch_s=measured_launch_s(pool),
                instances=known_instances(pool),
            )
            for name, pool in snapshot.pools.items()
        },
        failures=failures,
        waiting=waits.union(
            starts, (name for name, own in acting.items() if any(each.waits or each.starts for _, each in own))
        ),
        uncreated_since_s=uncreated,
        arriving=arriving,
    )


def _evidence(
    verdicts: Sequence[tuple[PipelineKey, "_Verdict"]], pool: PoolState, launch_failure: str | None
) -> Sequence[PendingReplica]:
    """Return the replicas past their deadline that show a failure of `pool`, none where they may be to blame."""
    lacking = [(pipeline, replica, verdict) for pipeline, verdict in verdicts for replica in verdict.lacking]
    no_node = pool.spec.fixed and not pool.unread and pool.ready_instances <= pool.leaving_instances
    shown = (
        launch_failure is not None
        or no_node
        or len({pipeline for pipeline, _, _ in lacking}) > 1
        or any(verdict.fits and _lacks_capacity(replica) for _, replica, verdict in lacking)
    )
    stranded = [replica for _, verdict in verdicts for replica in verdict.stranded] if no_node else []
    return [*(replica for _, replica, _ in lacking), *stranded] if shown else []


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
                if pool_of(key[1]) in free and target.owner is None:
                    placed = target.existing - len(target.pending) - len(target.stranded)
                    free[pool_of(key[1])] -= placed / placements[key].prior.per_instance
                    if target.terminating:
                        draining.add(pool_of(key[1]))
        return cls(free=free, draining=frozenset(draining))

    def has(self, pool: PoolName, per_instance: Size) -> bool:
        """Return whether `pool` has room for a replica of which `per_instance` fill an instance."""
        return self.free[pool] >= 1 / per_instance - EPSILON


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """The replicas of one placement that are not ready.

    `apart` are the replicas that have no node although the pool has free capacity for them, while its nodes cannot be
    read, or during a roll-out: they show no failure of the pool. The other lists have what is past its deadline:
    `unplaced` are those of `apart`, `lacking` the others without a node, `stranded` are on nodes that are not ready,
    `unstarted` on ready nodes, or cannot be replaced, and `uncreated` stands for all that do not exist. `fits` says
    that an empty node of the pool holds a replica by its requests. `waits` says that a replica has no node which any
    node of the pool could take, and `starts` that one is starting within its deadline.
    """

    lacking: Sequence[PendingReplica]
    unplaced: Sequence[PendingReplica]
    stranded: Sequence[PendingReplica]
    unstarted: Sequence[PendingReplica]
    uncreated: Sequence[PendingReplica]
    apart: Sequence[PendingReplica]
    fits: bool
    waits: bool
    starts: bool


def _judged(
    state: PipelineState,
    key: PlacementKey,
    target: TargetState,
    pool: PoolState,
    room: _Room,
    launches: Mapping[PoolName, str],
    now_s: float,
) -> _Verdict:
    """Return the verdict on the replicas of a placement; `launches` has why pools cannot launch nodes."""
    placement, deadline_s = state.spec.placements()[key], pool.spec.pending_deadline_s
    # Draining replicas free capacity when they are gone.
    drain_s = state.spec.scaling.drain_s if placement.pool in room.draining else 0.0
    has_room = room.has(placement.pool, placement.prior.per_instance)
    launch_failure = launches.get(pool_of(key[1])) or own_launch_failure(target.unscheduled, pool.node_pool, now_s)
    apart = _apart(target.unscheduled, pool, has_room=has_room)
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
    unstarted = late(target.starting, placement.startup_s + deadline_s)
    stranded = late([replica for replica in target.stranded if replica in target.waiting], deadline_s)
    fits = target.match.fits
    return _Verdict(
        lacking=[replica for replica in waited if replica.name not in names],
        unplaced=[replica for replica in waited if replica.name in names],
        stranded=stranded,
        unstarted=unstarted if placement.target.heeds_costs else [*unstarted, *stranded],
        uncreated=late(
            _uncreated(state, key, target, now_s), deadline_s + _pause_s(state, key, target, deadline_s, now_s)
        ),
        apart=apart,
        fits=pool.ready_instances > 0 if fits is None else fits > 0,
        waits=_waits(target.unscheduled, apart),
        starts=len(unstarted) < len(target.starting),
    )


def _apart(pending: Sequence[PendingReplica], pool: PoolState, *, has_room: bool) -> Sequence[PendingReplica]:
    """Return which of the `pending` replicas show no failure of the pool, as in `_Verdict`."""
    return [each for each in pending if pool.unread or each.updated or (has_room and _is_its_own(each.reason))]


def _waits(pending: Sequence[PendingReplica], apart: Sequence[PendingReplica]) -> bool:
    """Return whether one of the `pending` replicas waits for any node of the pool; `apart` are those of `_apart`."""
    names = {replica.name for replica in apart}
    return any(not (replica.constraint or replica.name in names) for replica in pending)


def _standing_on(snapshot: Snapshot, room: _Room) -> tuple[frozenset[PoolName], frozenset[PoolName]]:
    """Return the pools on which pipelines that stand have replicas that wait, and that start, as in `_Verdict`.

    In a large outage, most of the pipelines that it concerns are not assessed in a cycle.
    """
    waits, starts = set[PoolName](), set[PoolName]()
    for own in (own for each in snapshot.standing for own in each.placements if own.pending or own.starting):
        name = pool_of(own.key[1])
        if (pool := snapshot.pools.get(name)) is None:
            continue
        if _waits(own.pending, _apart(own.pending, pool, has_room=room.has(name, own.prior.per_instance))):
            waits.add(name)
        due_s = own.startup_s + pool.spec.pending_deadline_s
        if any(snapshot.now_s - each.since_s < due_s for each in own.starting):
            starts.add(name)
    return frozenset(waits), frozenset(starts)


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


def _reasons(message: str) -> Sequence[str]:
    """Return the reasons in a message of the scheduler, `…available: 2 Insufficient cpu, …`; empty without any."""
    reasons = message.partition("available: ")[2].partition(". ")[0].removesuffix(".")
    return reasons.split(", ") if reasons else ()


def _is_its_own(message: str) -> bool:
    """Whether all reasons in a message of the scheduler depend on the pod."""
    reasons = _reasons(message)
    return bool(reasons) and all(map(_OF_THE_POD.match, reasons))


def _lacks_capacity(replica: PendingReplica) -> bool:
    """Whether a replica has no node because the nodes that could take it are full, or are going, and for nothing else.

    Words that are not known say nothing of the pool.
    """
    reasons = _reasons(replica.reason)
    lacks = any(map(_OF_THE_NODES.match, reasons))
    return not replica.constraint and lacks and all(map(_NOT_OF_THIS_POD.match, reasons))


def _next_failure(
    before: PlacementFailure | None,
    verdict: _Verdict,
    target: TargetState,
    pool: PoolSpec,
    now_s: float,
    *,
    pool_fails: bool,
) -> PlacementFailure | None:
    # What the pool fails for is no failure of the placement beside it.
    unplaced = [*verdict.unplaced, *(() if pool_fails else verdict.lacking)]
    late = [*verdict.uncreated, *unplaced, *verdict.unstarted]
    waits = bool(verdict.apart or target.uncreated or (target.unscheduled and not pool_fails)) or (
        bool(target.starting) and before is not None and before.cause is FailureCause.CANNOT_START
    )
    outage = _next(pool, PoolMemory() if before is None else before.outage, late, waits=waits, now_s=now_s)
    if outage == PoolMemory():
        return None
    if before is not None and (not late or unavailable(before.outage, now_s)):
        return PlacementFailure(cause=before.cause, outage=outage)
    if verdict.uncreated:
        return PlacementFailure(cause=FailureCause.NOT_CREATED, outage=outage)
    cause = FailureCause.FRAGMENTED if unplaced else FailureCause.CANNOT_START
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
