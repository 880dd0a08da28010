"""Replicas by pool, counted so that a change of one costs the same however many there are."""

from collections.abc import Iterator, Mapping, MutableMapping
from itertools import pairwise
from typing import TypeVar

from optimizer.model import PoolName
from optimizer.occupancy import whole_instances

K = TypeVar("K")


class PoolTotals:
    """How many replicas of each size (replicas per instance) a pool holds."""

    def __init__(self) -> None:
        self._replicas: dict[PoolName, dict[int, int]] = {}
        self._rounded: dict[PoolName, int] = {}

    def move(self, pool: PoolName, per_instance: int, before: int, after: int) -> None:
        """Count that a placement has `after` replicas of a size instead of `before`."""
        sizes = self._replicas.setdefault(pool, {})
        sizes[per_instance] = sizes.get(per_instance, 0) + after - before
        rounded = -(-after // per_instance) - -(-before // per_instance)
        self._rounded[pool] = self._rounded.get(pool, 0) + rounded

    def instances(self, pool: PoolName) -> int:
        """Return the whole instances that they take, as `optimizer.occupancy.whole_instances` counts them."""
        sizes = {size: count for size, count in self._replicas.get(pool, {}).items() if count}
        if all(large % small == 0 for small, large in pairwise(sorted(sizes))):
            return whole_instances(sizes.items())
        return self._rounded[pool]


class Replicas(MutableMapping[K, int]):
    """Replicas by placement, with the totals of the pools that follow from them."""

    def __init__(self, replicas: Mapping[K, int], where: Mapping[K, tuple[PoolName, int]]) -> None:
        """`where` has the pool and the size (replicas per instance) of every placement."""
        self._where = where
        self._replicas: dict[K, int] = {}
        self.totals = PoolTotals()
        self.update(replicas)

    def __getitem__(self, name: K) -> int:
        return self._replicas[name]

    def __setitem__(self, name: K, count: int) -> None:
        self.totals.move(*self._where[name], self._replicas.get(name, 0), count)
        self._replicas[name] = count

    def __delitem__(self, name: K) -> None:
        self.totals.move(*self._where[name], self._replicas.pop(name), 0)

    def __iter__(self) -> Iterator[K]:
        return iter(self._replicas)

    def __len__(self) -> int:
        return len(self._replicas)
