"""Pools that cannot deliver: found by replicas that stay pending, planned without for a while, then tried again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.core.memory import PoolMemory
from controller.core.snapshot import PendingReplica, PipelineState, PoolState, Snapshot, TargetMissing
from controller.core.spec import PlacementKey
from optimizer.model import PoolName


def pool_memories(snapshot: Snapshot) -> Mapping[PoolName, PoolMemory]:
    """Return what is known of every pool's failures after this snapshot."""
    pending: dict[PoolName, list[PendingReplica]] = {name: [] for name in snapshot.pools}
    for pipeline in snapshot.pipelines:
        for (_, pool), target in pipeline.targets.items():
            if pool in pending and not isinstance(target, TargetMissing):
                pending[pool].extend(target.pending)
    return {name: _next(pool, pending[name], snapshot.now_s) for name, pool in snapshot.pools.items()}


def unavailable(memory: PoolMemory, now_s: float) -> bool:
    """Whether the pool is planned without."""
    return memory.unavailable_until_s is not None and now_s < memory.unavailable_until_s


def placeable(
    state: PipelineState, memories: Mapping[PoolName, PoolMemory], now_s: float
) -> Mapping[PlacementKey, int]:
    """Return how many replicas may be planned at most where the pool cannot deliver, or has to prove that it can.

    An unavailable pool keeps what runs there; one on probation gets one replica more, and the next when that one
    has been placed.
    """
    most: dict[PlacementKey, int] = {}
    for key, target in state.targets.items():
        memory = memories.get(key[1], PoolMemory())
        if memory.unavailable_until_s is None or isinstance(target, TargetMissing):
            continue
        if unavailable(memory, now_s):
            most[key] = max(0, target.desired - len(target.pending))
        else:
            most[key] = target.desired + (0 if target.pending else 1)
    return most


def _next(pool: PoolState, pending: Sequence[PendingReplica], now_s: float) -> PoolMemory:
    spec, memory = pool.spec, pool.memory
    if unavailable(memory, now_s):
        assert memory.unavailable_until_s is not None
        # A clock that was set back must not make it longer.
        return replace(memory, unavailable_until_s=min(memory.unavailable_until_s, now_s + spec.backoff_max_s))
    late = [replica for replica in pending if now_s - replica.since_s >= spec.pending_deadline_s]
    if late:
        first = min(late, key=lambda replica: (replica.since_s, replica.name))
        backoff_s = spec.backoff_initial_s if memory.backoff_s is None else memory.backoff_s
        return PoolMemory(
            unavailable_until_s=now_s + backoff_s,
            backoff_s=min(spec.backoff_max_s, 2 * backoff_s),
            reason=f"{first.name}: {first.reason}",
        )
    until_s = memory.unavailable_until_s
    if until_s is not None and (pending or now_s < until_s + spec.pending_deadline_s):
        return memory
    return PoolMemory()
