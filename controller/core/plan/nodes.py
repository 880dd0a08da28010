"""What running replicas pay for the nodes that they are on, where budgets count whole instances.

The price of a node is split by the shares (1 / replicas per instance) of the replicas on it, so that its empty rest is
split in proportion. Replicas of a pipeline whose budget counts shares take part in the split. Pods of no pipeline do
not: they have no share. Replicas without a node pay as in a plan (`optimizer.billing`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Generic, Protocol, TypeVar

from optimizer.billing import Occupancy, occupancy
from optimizer.model import Pool, PoolName

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
    per_instance: int
    replicas: int
    nodes: Mapping[str, int] = field(default_factory=dict)


def instance_costs_per_hour(
    placements: Iterable[Placed[K]], pools: Mapping[PoolName, Pool], nodes: Mapping[PoolName, PricedNodes]
) -> Mapping[K, float]:
    """Return what the replicas of each of `placements` pay for whole instances, in USD per hour.

    `pools` have the prices for replicas that have no node yet.
    """
    placements = tuple(placements)
    taken: dict[PoolName, list[tuple[int, int]]] = {name: list(pool.held) for name, pool in pools.items()}
    shares: dict[tuple[PoolName, str], Fraction] = {}
    for placed in placements:
        taken[placed.pool].append((placed.per_instance, placed.replicas))
        for node, count in placed.nodes.items():
            there = (placed.pool, node)
            shares[there] = shares.get(there, Fraction(0)) + Fraction(count, placed.per_instance)
    occupancies = {name: occupancy(pairs) for name, pairs in taken.items()}
    return {
        placed.name: _cost_per_hour(placed, occupancies[placed.pool], pools, nodes, shares) for placed in placements
    }


def _cost_per_hour(
    placed: Placed[K],
    there: Occupancy,
    pools: Mapping[PoolName, Pool],
    nodes: Mapping[PoolName, PricedNodes],
    shares: Mapping[tuple[PoolName, str], Fraction],
) -> float:
    cost, placeless = 0.0, placed.replicas
    for node, count in placed.nodes.items():
        part = Fraction(count, placed.per_instance) / shares[placed.pool, node]
        cost += float(part) * nodes[placed.pool].node_price_per_hour(node)
        placeless -= count
    if placeless > 0:
        part = Fraction(placeless, placed.replicas)
        weight = part * there.weight(placed.per_instance, placed.replicas)
        cost += float(weight) * there.unit_price_per_hour(pools[placed.pool])
    return cost
