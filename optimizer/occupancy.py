"""How many whole instances replicas take, given how they pack."""

from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from math import ceil


def whole_instances(placements: Iterable[tuple[int, int]]) -> int:
    """Return the instances of one pool that `placements`, pairs of (replicas per instance, replicas), take.

    Where the sizes divide each other, replicas of different placements fill each other's gaps; otherwise each
    placement is rounded up to whole instances, because its gaps may be of no use to the others.
    """
    shares = [(size, Fraction(count, size)) for size, count in placements if count]
    sizes = sorted({size for size, _ in shares})
    if all(large % small == 0 for small, large in pairwise(sizes)):
        return ceil(sum(share for _, share in shares))
    return sum(ceil(share) for _, share in shares)
