"""The nodes of a pool, and the placement of replicas on them.

A pool has as many nodes as its capacity allows, as in the lab; replicas are packed by `MostAllocated`. While a pool is
unavailable, a new replica waits as for a node provisioner: after a refusal, no node is requested for three minutes,
even if capacity is back (Karpenter caches insufficient capacity for that time).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from controller.core.state.spec import PoolSpec
from optimizer.model import PoolName

REFUSAL_S = 180.0
"""The time for which a provider's refusal is cached."""
_PROVISIONING_S = (60.0, 180.0)
"""The least and the longest time until a reclaimed node is replaced; it is uniformly distributed between them."""
_RECLAIM = 21  # its own random stream


def reclaimed_nodes(share: float, instances: int, *, seed: int, fault: int) -> dict[int, float]:
    """Return the indexes of the nodes that a `spotReclaim` takes, each with the time (s) until it is replaced.

    The times are for a fault without an end. `share` (0–1) is of the pool's `instances`, `fault` the index of the fault
    in its scenario.
    """
    rng = np.random.default_rng([seed, _RECLAIM, fault])
    chosen = sorted(rng.choice(instances, round(share * instances), replace=False).tolist())
    return {node: float(rng.uniform(*_PROVISIONING_S)) for node in chosen}


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """A node; `free` is the share (0–1) of the node that no replica uses."""

    index: int
    free: Fraction = Fraction(1)


@dataclass(slots=True, eq=False, kw_only=True)
class NodePool:
    """The nodes of one pool, and the faults that affect them.

    `absences` is the number of active faults that remove all nodes, `outages` of those that give new replicas no node.
    By node, `reclaimed` is the number of reclaims that have taken it, and `leaving` also counts announced ones.
    `start_factor` multiplies the start-up time of new replicas.
    """

    name: PoolName
    nodes: list[Node]
    start_factor: float = 1.0
    absences: int = 0
    outages: int = 0
    refused_until_s: float = -math.inf
    reclaimed: Counter[int] = field(default_factory=Counter)
    leaving: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, spec: PoolSpec) -> "NodePool":
        """Return the pool with as many nodes as its capacity allows."""
        return cls(name=spec.name, nodes=[Node(index=index) for index in range(spec.instances or 0)])

    def present(self) -> Sequence[Node]:
        """Return the nodes that are ready."""
        if self.absences:
            return []
        return [node for node in self.nodes if not self.reclaimed[node.index]] if self.reclaimed else self.nodes

    def announced(self) -> Set[int]:
        """Return the indexes of the nodes whose reclaim is announced."""
        return {index for index, count in self.leaving.items() if count > 0}

    def going(self) -> int:
        """Return the number of ready nodes whose reclaim is announced."""
        announced = self.announced()
        return sum(node.index in announced for node in self.present()) if announced else 0

    def refuses(self, now_s: float) -> bool:
        """Return whether the provider refuses a node for a new replica now; a new refusal is cached for `REFUSAL_S`."""
        if now_s < self.refused_until_s:
            return True
        if self.outages:
            self.refused_until_s = now_s + REFUSAL_S
            return True
        return False

    def place(self, share: Fraction) -> Node | None:
        """Take `share` of the fullest node that has so much free, and return the node; None if no node has."""
        announced = self.announced()
        fits = [node for node in self.present() if node.index not in announced and node.free >= share]
        if not fits:
            return None
        node = min(fits, key=lambda node: node.free)
        node.free -= share
        return node

    def words(self, others: int, *, refused: bool) -> str:
        """Return the scheduler's message for a pending replica; `others` is the number of nodes of other pools."""
        here = len(self.present())
        reasons: Iterable[tuple[int, str]] = (
            (here, "node(s) were unschedulable" if refused else "Insufficient cpu"),
            (others, "node(s) didn't match Pod's node affinity/selector"),
        )
        details = ", ".join(f"{count} {words}" for count, words in reasons if count)
        return f"0/{here + others} nodes are available: {details or 'no nodes'}."
