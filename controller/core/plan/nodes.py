"""What running replicas pay for the nodes that they are on, where budgets count whole instances.

The price of a node is split by the shares (1 / replicas per instance) of the replicas on it, so that its empty rest is
split in proportion. Replicas of a pipeline whose budget counts shares take part in the split. Pods of no pipeline do
not: they have no share. Replicas without a node pay as in a plan (`optimizer.billing`), except those that fit into the
nodes that are paid for already.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from typing import Generic, Protocol, TypeVar

from optimizer.billing import Occupancy, occupancy
from optimizer.model import Pool, PoolName, Size

K = TypeVar("K")


class PricedNodes(Protocol):
    """The nodes of a pool, whose prices are known."""

    def node_price_per_hour(self, node: str) -> float:
        """Return the price of the node named `node` in USD per hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed(Generic[K]):
    """The replicas of the placement `name` that are paid for; `nodes` has how many of them are on which node."""

    name: K
    pool: PoolName
    per_instance: Size
    replicas: int
    nodes: Mapping[str, Size] = field(default_factory=dict)


def instance_costs_per_hour(
    placements: Iterable[Placed[K]], pools: Mapping[PoolName, Pool], nodes: Mapping[PoolName, PricedNodes]
) -> Mapping[K, float]:
    """Return what the replicas of each of `placements` pay for whole instances, in USD per hour.

    `pools` have the prices for replicas that have no node yet.
    """
    placements = tuple(placements)
    taken: dict[PoolName, list[tuple[Size, int]]] = {name: list(pool.held) for name, pool in pools.items()}
    shares: dict[tuple[PoolName, str], Fraction] = {}
    for placed in placements:
        taken[placed.pool].append((placed.per_instance, placed.replicas))
        for node, count in placed.nodes.items():
            there = (placed.pool, node)
            shares[there] = shares.get(there, Fraction(0)) + Fraction(count, placed.per_instance)
    occupancies = {name: occupancy(pairs) for name, pairs in taken.items()}
    free = {there: 1 - share for there, share in shares.items()}
    fitting: dict[K, Size] = {}
    for placed in sorted(placements, key=lambda placed: placed.per_instance):
        fitting[placed.name] = _fit(placed, free)
    return {
        placed.name: _cost_per_hour(placed, fitting[placed.name], occupancies[placed.pool], pools, nodes, shares)
        for placed in placements
    }


def _fit(placed: Placed[K], free: dict[tuple[PoolName, str], Fraction]) -> Size:
    """Return how many replicas without a node fit into the `free` shares of nodes in use, and take those shares."""
    left = placed.replicas - sum(placed.nodes.values())
    for there, share in free.items():
        if left > 0 and there[0] == placed.pool and share > 0:
            count = min(left, floor(share * placed.per_instance))
            free[there] -= Fraction(count, placed.per_instance)
            left -= count
    return placed.replicas - sum(placed.nodes.values()) - max(left, 0)


def _cost_per_hour(
    placed: Placed[K],
    fitting: Size,
    there: Occupancy,
    pools: Mapping[PoolName, Pool],
    nodes: Mapping[PoolName, PricedNodes],
    shares: Mapping[tuple[PoolName, str], Fraction],
) -> float:
    cost = 0.0
    placeless: Size = placed.replicas - max(fitting, 0)
    for node, count in placed.nodes.items():
        part = Fraction(count, placed.per_instance) / shares[placed.pool, node]
        cost += float(part) * nodes[placed.pool].node_price_per_hour(node)
        placeless -= count
    if placeless > 0:
        part = Fraction(placeless, placed.replicas)
        weight = part * there.weight(placed.per_instance, placed.replicas)
        cost += float(weight) * there.unit_price_per_hour(pools[placed.pool])
    return cost
