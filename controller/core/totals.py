"""Replicas by pool, counted so that a change of one costs the same however many there are."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
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
    """Replicas by placement, with the totals of the pools that follow from them.

    `totals` are of the replicas themselves, `taken` of those that are there while they change.
    """

    def __init__(
        self,
        replicas: Mapping[K, int],
        where: Mapping[K, tuple[PoolName, int]],
        *,
        taken: Mapping[K, Callable[[int], int]],
    ) -> None:
        """`where` has the pool and the size (replicas per instance) of every placement.

        `taken` has how many replicas are there once so many are asked for.
        """
        self._where = where
        self._taken = taken
        self._replicas: dict[K, int] = {}
        self.totals = PoolTotals()
        self.taken = PoolTotals()
        self.update(replicas)

    def __getitem__(self, name: K) -> int:
        return self._replicas[name]

    def __setitem__(self, name: K, count: int) -> None:
        before = self._replicas.get(name)
        self.totals.move(*self._where[name], before or 0, count)
        self.taken.move(
            *self._where[name], 0 if before is None else self._taken[name](before), self._taken[name](count)
        )
        self._replicas[name] = count

    def __delitem__(self, name: K) -> None:
        before = self._replicas.pop(name)
        self.totals.move(*self._where[name], before, 0)
        self.taken.move(*self._where[name], self._taken[name](before), 0)

    def __iter__(self) -> Iterator[K]:
        return iter(self._replicas)

    def __len__(self) -> int:
        return len(self._replicas)
