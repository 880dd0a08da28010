"""Elastic pools: what holds the deadline of their pending replicas, and when their nodes cannot be launched.

All of it follows from the NodeClaims and Events in the Snapshot.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from controller.core.state.provider_errors import ErrorClass, classify, last_of
from controller.core.state.snapshot import (
    ExpectedNode,
    LaunchFailure,
    NodePoolState,
    PendingReplica,
    PoolState,
    Snapshot,
)
from optimizer.model import PipelineKey, PoolName, pool_of

_REGISTRATION_S = 900.0
"""How long a node that is on its way holds the deadline: then Karpenter and the cluster autoscaler give it up too."""
_UNSEEN_LAUNCH_S = 120.0
"""How long a launch is taken to last before one was seen: Karpenter's nodes take one to three minutes."""
_TRIES = 2
"""How many nodes on their way hold the deadline of a replica, and how many failed launches in a row fail its pool."""
_SKEW_S = 5.0
"""How far the clocks of the scheduler and of an autoscaler may differ."""
_BATCH_S = 10.0
"""The longest time for which Karpenter collects pending pods before it launches nodes for all of them, by default."""
_THROTTLED_S = 300.0
"""How long a request that the provider refused as one too many holds the deadline: autoscalers back off for minutes."""
_NEXT_TRY_S = 60.0
"""How long after a failed launch Karpenter may take to try the next offering, by a new NodeClaim."""
_NO_LACK = (ErrorClass.THROTTLED, ErrorClass.PERMISSION)
"""Errors that do not say that the provider has no nodes: the one passes by itself, the other needs a person."""
_USED_UP = "a quota of the account is used up"


def held_until_s(replica: PendingReplica, node_pool: NodePoolState | None) -> float:
    """Return until when nodes on their way hold the deadline of a pending replica of an elastic pool, -inf: none does.

    A provider that limits the requests of the autoscaler holds it too.

    These are the nodes that are announced for the replica, else those that the NodePool has launched. The first two
    count, so that a pool whose nodes never register fails in the end. Nodes that are not announced may be for others,
    and hold it no longer than two nodes may take.
    """
    if node_pool is None:
        return -math.inf
    return max(
        _by_nodes_until_s(replica, node_pool),
        min(_throttled_until_s(replica, node_pool), replica.since_s + _TRIES * _REGISTRATION_S),
    )


def _throttled_until_s(replica: PendingReplica, node_pool: NodePoolState) -> float:
    """Return until when the autoscaler may need to ask again, because the provider limits its requests."""
    throttled = last_of(node_pool.errors, ErrorClass.THROTTLED)
    if throttled is None or throttled.at_s < replica.since_s:
        return -math.inf
    return throttled.at_s + _THROTTLED_S


def _by_nodes_until_s(replica: PendingReplica, node_pool: NodePoolState) -> float:
    announced = _announced(replica)
    failed = {
        each.claim: each.at_s
        for each in node_pool.failures
        if each.at_s >= replica.since_s and (not announced or each.claim in announced)
    }
    # Karpenter announces at most one node in two minutes for a pod, so the next one may be known by its NodeClaim only.
    own = [node for node in announced.values() if node.name not in failed]
    tries = failed | {node.name: node.since_s for node in own or node_pool.claims}
    first = sorted(tries, key=lambda name: (tries[name], name))[:_TRIES]
    until_s = max((tries[name] + _REGISTRATION_S for name in first if name not in failed), default=-math.inf)
    return until_s if own else min(until_s, replica.since_s + _TRIES * _REGISTRATION_S)


def awaits_its_node(replica: PendingReplica, node_pool: NodePoolState | None, now_s: float) -> bool:
    """Return whether a node that was announced for this replica is still on its way, whatever fails for others."""
    if node_pool is None:
        return False
    failed = {failure.claim for failure in node_pool.failures}
    return not _announced(replica).keys() <= failed and now_s < held_until_s(replica, node_pool)


def _announced(replica: PendingReplica) -> Mapping[str, ExpectedNode]:
    # An earlier pod of the same name may have had Events too.
    return {node.name: node for node in replica.expected if node.since_s >= replica.since_s - _SKEW_S}


def measured_launch_s(pool: PoolState) -> float | None:
    """Return how long the nodes of an elastic pool take until they register, or the last ones took; None before any."""
    if pool.node_pool is None:
        return None
    return pool.memory.launch_s if pool.node_pool.launch_s is None else pool.node_pool.launch_s


def known_instances(pool: PoolState) -> int | None:
    """Return how many nodes the limits of a NodePool allow, or last allowed while a node was there; None: not known."""
    if pool.node_pool is None:
        return None
    unknown = pool.node_pool.unseen or pool.node_pool.instances is None
    return pool.memory.instances if unknown else pool.node_pool.instances


def launches_s(snapshot: Snapshot) -> Mapping[PoolName, float]:
    """Return how long a new node of each elastic pool takes until it registers, in seconds.

    Replicas that are started now may need one.
    """
    measured = {name: measured_launch_s(pool) for name, pool in snapshot.pools.items() if pool.node_pool is not None}
    return {name: _UNSEEN_LAUNCH_S if known is None else known for name, known in measured.items()}


def own_launch_failure(pending: Sequence[PendingReplica], node_pool: NodePoolState | None, now_s: float) -> str | None:
    """Return why no node is launched for the `pending` replicas of one placement, by the nodes announced for these."""
    if node_pool is None:
        return None
    claims = {claim for replica in pending for claim in _announced(replica)}
    own = replace(node_pool, failures=tuple(each for each in node_pool.failures if each.claim in claims))
    return _launch_failure(own, pending, now_s)


def launch_failures(snapshot: Snapshot, not_acting: Collection[PipelineKey] = ()) -> Mapping[PoolName, str]:
    """Return the elastic pools that cannot launch nodes for their pending replicas, with the provider's words.

    Replicas that only some nodes of a pool could take, such as those with a volume in one zone, say nothing of the
    others: they count where those of two pipelines get no node. Replicas of the pipelines `not_acting` do not count.
    """
    pending: dict[PoolName, list[PendingReplica]] = {}
    bound: dict[PoolName, dict[PipelineKey, list[PendingReplica]]] = {}
    for state in snapshot.pipelines:
        for key, target in state.found() if state.spec.key not in not_acting else ():
            # A pod that no present node would hold, even while it is empty, is one of its own kind too.
            small = target.match.fits != 0
            free = [replica for replica in target.unscheduled if small and not replica.constraint]
            pending.setdefault(pool_of(key[1]), []).extend(free)
            if len(free) < len(target.unscheduled):
                own = bound.setdefault(pool_of(key[1]), {}).setdefault(state.spec.key, [])
                own += [replica for replica in target.unscheduled if replica not in free]
    for name, pipelines in bound.items():
        if len(pipelines) > 1:
            pending[name] += [replica for own in pipelines.values() for replica in own]
    announced: dict[str, set[PoolName]] = {}
    for name, replicas in pending.items():
        for claim in {claim for replica in replicas for claim in _announced(replica)}:
            announced.setdefault(claim, set()).add(name)
    found = (
        (name, _launch_failure(_own_failures(name, pool.node_pool, announced), pending[name], snapshot.now_s))
        for name, pool in snapshot.pools.items()
        if pool.node_pool is not None and pending.get(name)
    )
    return {name: reason for name, reason in found if reason is not None}


def _own_failures(
    name: PoolName, node_pool: NodePoolState, announced: Mapping[str, Collection[PoolName]]
) -> NodePoolState:
    """Return `node_pool` without the failures of claims that were `announced` for other pools than `name` only."""
    own = (each for each in node_pool.failures if name in announced.get(each.claim, (name,)))
    return replace(node_pool, failures=tuple(own))


def _launch_failure(node_pool: NodePoolState, pending: Sequence[PendingReplica], now_s: float) -> str | None:
    """Return why a NodePool launches no node for the `pending` replicas, None while it may.

    After a launch that failed for want of capacity, Karpenter deletes the NodeClaim and tries other offerings by a new
    one. The second round of failures, or no new NodeClaim in time, is final. Nodes on their way to other replicas
    change nothing about that, and those replicas wait for them.
    """
    announced_s = {name: node.since_s for replica in pending for name, node in _announced(replica).items()}
    pending = [replica for replica in pending if not awaits_its_node(replica, node_pool, now_s)]
    if not pending:
        return None
    begun_s = min(replica.since_s for replica in pending)
    if node_pool.registered_at_s is not None:
        begun_s = max(begun_s, node_pool.registered_at_s)
    failures = [
        failure
        for failure in node_pool.failures
        if failure.at_s >= begun_s and classify(failure.reason) not in _NO_LACK
    ]
    if not failures:
        return None
    last = failures[-1]
    tries = [node.since_s for replica in pending for node in replica.expected if node.name != last.claim]
    tries += [] if node_pool.created_at_s is None else [node_pool.created_at_s]
    tried_again = any(at_s > last.at_s for at_s in tries)
    if _rounds(failures, announced_s) < _TRIES and (tried_again or now_s - last.at_s < _NEXT_TRY_S):
        return None
    return f"{_USED_UP}: {last.reason}" if classify(last.reason) is ErrorClass.QUOTA else last.reason


def _rounds(failures: Sequence[LaunchFailure], announced_s: Mapping[str, float]) -> int:
    """Return in how many rounds the launches failed, of which Karpenter makes several at once for a batch of pods.

    A launch is of a new round if its NodeClaim was announced after the first failure of the round before. `announced_s`
    has when, by the NodeClaim; one that was not announced was created at most `_BATCH_S` before it failed.
    """
    rounds, begun_s = 0, -math.inf
    for failure in failures:
        if announced_s.get(failure.claim, failure.at_s - _BATCH_S) > begun_s:
            rounds, begun_s = rounds + 1, failure.at_s
    return rounds
