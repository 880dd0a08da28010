"""How many whole instances replicas take, given how they pack."""

from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from math import ceil


def whole_instances(replicas: Iterable[tuple[int, int]]) -> int:
    """Return the instances that `replicas`, pairs of (replicas per instance, replicas), take of one pool.

    Where the sizes divide each other, replicas of different placements fill each other's gaps; otherwise each
    placement is rounded up to whole instances, because gaps may be of no use to anyone.
    """
    counts: dict[int, int] = {}
    for per_instance, count in replicas:
        if count:
            counts[per_instance] = counts.get(per_instance, 0) + count
    sizes = sorted(counts)
    if all(large % small == 0 for small, large in pairwise(sizes)):
        return ceil(sum(Fraction(count, size) for size, count in counts.items()))
    return sum(ceil(Fraction(count, size)) for size, count in counts.items())
