"""The nodes of a pool, and the placement of replicas on them.

A pool has as many nodes as its capacity allows, as in the lab; replicas are packed by `MostAllocated`. While a pool is
unavailable, a new replica waits as for a node provisioner: after a refusal, no node is requested for some time, by
default three minutes, even if capacity is back (Karpenter caches insufficient capacity for that time).

The nodes of a pool with `capacity.nodePool` are launched for replicas that find no other, up to its capacity. A node is
removed as soon as it is empty, as by Karpenter's consolidation with `consolidateAfter: 0s`.
"""

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from controller.core.state.snapshot import ExpectedNode, NodePoolState
from controller.core.state.spec import PoolSpec
from optimizer.model import PoolName

_PROVISIONING_S = (60.0, 180.0)
"""The least and the longest time until a reclaimed node is replaced; it is uniformly distributed between them."""
_RECLAIM, _LAUNCH = 21, 22  # a random stream for each purpose


def reclaimed_nodes(share: float, instances: int, *, seed: int, fault: int, pace: float = 1.0) -> dict[int, float]:
    """Return the indexes of the nodes that a `spotReclaim` takes, each with the time (s) until it is replaced.

    The times are for a fault without an end, and divided by the `pace` of the load. `share` (0–1) is of the pool's
    `instances`, `fault` the index of the fault in its scenario.
    """
    rng = np.random.default_rng([seed, _RECLAIM, fault])
    chosen = sorted(rng.choice(instances, round(share * instances), replace=False).tolist())
    return {node: float(rng.uniform(*_PROVISIONING_S)) / pace for node in chosen}


def launch_times(pool: PoolName, least_s: float, longest_s: float, *, seed: int) -> Callable[[], float]:
    """Return a function whose calls return how long the next node of a pool takes, uniform between the two times."""
    rng = np.random.default_rng([seed, _LAUNCH, zlib.crc32(pool.encode())])
    return lambda: float(rng.uniform(least_s, longest_s))


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """A node; `free` is the share (0–1) of the node that no replica uses.

    A node that is launched was asked for at `asked_s` and is up from `up_s` on.
    """

    index: int
    free: Fraction = Fraction(1)
    asked_s: float = -math.inf
    up_s: float = -math.inf


@dataclass(slots=True, eq=False, kw_only=True)
class NodePool:
    """The nodes of one pool, and the faults that affect them.

    `absences` is the number of active faults that remove all nodes, `outages` of those that give new replicas no node.
    By node, `reclaimed` is the number of reclaims that have taken it, and `leaving` also counts announced ones.
    `start_factor` multiplies the start-up time of new replicas. A refusal of the provider is cached for `refusal_s`.
    `launch` returns how long the next node takes until it is up, in seconds; None: all nodes are there from the start.
    """

    name: PoolName
    nodes: list[Node]
    refusal_s: float
    start_factor: float = 1.0
    absences: int = 0
    outages: int = 0
    refused_until_s: float = -math.inf
    reclaimed: Counter[int] = field(default_factory=Counter)
    leaving: Counter[int] = field(default_factory=Counter)
    launch: Callable[[], float] | None = None

    @classmethod
    def of(cls, spec: PoolSpec, launch: Callable[[], float], *, refusal_s: float) -> "NodePool":
        """Return the pool with as many nodes as its capacity allows; `launch` is for pools with `capacity.nodePool`."""
        nodes = [Node(index=index) for index in range(spec.instances or 0)]
        launches = None if spec.node_pool is None else launch
        return cls(name=spec.name, nodes=nodes, refusal_s=refusal_s, launch=launches)

    def present(self) -> Sequence[Node]:
        """Return the nodes that no fault has taken; those of a launched pool may be launched or not."""
        if self.absences:
            return []
        return [node for node in self.nodes if not self.reclaimed[node.index]] if self.reclaimed else self.nodes

    def announced(self) -> Set[int]:
        """Return the indexes of the nodes whose reclaim is announced."""
        return {index for index, count in self.leaving.items() if count > 0}

    def ready(self, now_s: float) -> Sequence[Node]:
        """Return the nodes that are up."""
        if self.launch is None:
            return self.present()
        return [node for node in self.present() if node.free < 1 and node.up_s <= now_s]

    def going(self, now_s: float) -> int:
        """Return the number of ready nodes whose reclaim is announced."""
        announced = self.announced()
        return sum(node.index in announced for node in self.ready(now_s)) if announced else 0

    def expected(self, node: Node) -> ExpectedNode:
        """Return a node that is launched as the pods that wait for it and the NodeClaim show it."""
        return ExpectedNode(name=f"{self.name}-{node.index}-{node.asked_s:.3f}", since_s=math.floor(node.asked_s))

    def state(self, now_s: float) -> NodePoolState | None:
        """Return the Karpenter NodePool that makes the nodes, None if all are there from the start."""
        if self.launch is None:
            return None
        launched = [node for node in self.present() if node.free < 1 and node.asked_s > -math.inf]
        up = [node for node in launched if node.up_s <= now_s]
        return NodePoolState(
            instances=len(self.nodes),
            claims=tuple(self.expected(node) for node in launched if node.up_s > now_s),
            created_at_s=max((math.floor(node.asked_s) for node in launched), default=None),
            registered_at_s=max((math.floor(node.up_s) for node in up), default=None),
            launch_s=max((node.up_s - node.asked_s for node in up), default=None),
        )

    def refuses(self, now_s: float) -> bool:
        """Return whether the provider refuses a node for a new replica now; a new refusal is cached for `refusal_s`."""
        if now_s < self.refused_until_s:
            return True
        if self.outages and self.refusal_s > 0:
            self.refused_until_s = now_s + self.refusal_s
        return self.outages > 0

    def place(self, share: Fraction, now_s: float = 0.0) -> tuple[Node, ...]:
        """Take `share` of the fullest node that has so much free, or as many whole nodes; none if they are not there.

        Empty nodes of a launched pool are launched now.
        """
        announced = self.announced()
        each, count = (share, 1) if share <= 1 else (Fraction(1), int(share))
        fits = [node for node in self.present() if node.index not in announced and node.free >= each]
        if len(fits) < count:
            return ()
        chosen = tuple(sorted(fits, key=lambda node: node.free)[:count])
        for node in chosen:
            if self.launch is not None and node.free == 1:
                node.asked_s, node.up_s = now_s, now_s + self.launch()
            node.free -= each
        return chosen

    def words(self, others: int, *, refused: bool, now_s: float = math.inf) -> str:
        """Return the scheduler's message for a pending replica; `others` is the number of nodes of other pools."""
        here = len(self.ready(now_s))
        reasons: Iterable[tuple[int, str]] = (
            (here, "node(s) were unschedulable" if refused else "Insufficient cpu"),
            (others, "node(s) didn't match Pod's node affinity/selector"),
        )
        details = ", ".join(f"{count} {words}" for count, words in reasons if count)
        return f"0/{here + others} nodes are available: {details or 'no nodes'}."
