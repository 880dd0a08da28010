"""The mixes of two placements that can carry a load: the cheapest ones, without those that single placements beat."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

_HALVINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a mix must have, with one element per placement.

    Every placement has from `lowest` to `most` replicas, two of them more than the lowest, all together at least
    `floor`. `needs` are pairs of what the load needs and what one replica of each placement provides of it.
    `prices_per_hour` are those of a replica, in USD.
    """

    lowest: tuple[int, ...]
    most: tuple[int, ...]
    floor: int
    needs: tuple[tuple[float, tuple[float, ...]], ...]
    prices_per_hour: tuple[float, ...]


def cheapest_mixes(wanted: Wanted, rows: int) -> tuple[Counts, float]:
    """Return the cheapest mixes, at most `rows` of them, by rising cost, and the least cost of a mix left out.

    Mixes may have one replica of the second placement less than the load needs. The cost is infinite where none was
    left out.
    """
    pairs = [_pair(wanted, one, two) for one, two in combinations(range(len(wanted.lowest)), 2)]
    limit = _cost_of(pairs, rows)
    taken = [pair.within(limit) for pair in pairs]
    left_out = min((pair.left_out_per_hour(each) for pair, each in zip(pairs, taken, strict=True)), default=inf)
    nothing = np.zeros((0, len(wanted.lowest)), dtype=np.int64)
    mixes = np.concatenate([nothing, *(pair.rows(each, wanted) for pair, each in zip(pairs, taken, strict=True))])
    return mixes[np.argsort(mixes @ np.array(wanted.prices_per_hour), kind="stable")], left_out


def beaten(floors: Array, others: Array, resolution: float) -> Mask:
    """Return which rows of `floors` are no better than a row of `others`; columns are cost, mean and percentile.

    `resolution` is the difference of latencies, as a share of the percentile, that does not count.
    """
    order = others[np.lexsort((others[:, 2], others[:, 1], others[:, 0]))]
    least = np.minimum.accumulate(order[:, 1:], axis=0)
    better = np.concatenate(([True], np.any(order[1:, 1:] < least[:-1], axis=1)))[: len(order)]
    near = floors[:, 2] * resolution
    found = np.zeros(len(floors), dtype=np.bool_)
    for cost, mean, percentile in order[better].tolist():
        found |= (cost <= floors[:, 0] + 1e-9) & (mean <= floors[:, 1] + near) & (percentile <= floors[:, 2] + near)
    return found


@dataclass(frozen=True, slots=True)
class _Pair:
    """The mixes of the placements `one` and `two`: for each of `counts` of one, the counts of two from `first` on.

    There are `width` counts of two. `cost` is that of the mix with the first, `price` that of one more replica of two,
    in USD per hour.
    """

    one: int
    two: int
    counts: Counts
    first: Counts
    width: Counts
    cost: Array
    price: float

    def within(self, limit_per_hour: float) -> Counts:
        """Return how many counts of two, from the first on, cost at most `limit_per_hour`, for each count of one."""
        if limit_per_hour == inf:
            return self.width
        spare = limit_per_hour - self.cost
        steps = np.floor(spare / self.price) + 1 if self.price > 0 else np.full(len(spare), inf)
        return np.where(spare >= 0, np.minimum(steps, self.width), 0).astype(np.int64)

    def rows(self, taken: Counts, wanted: Wanted) -> Counts:
        """Return the mixes, one row each, of which there are `taken` for each count of one."""
        rows = np.tile(np.array(wanted.lowest, dtype=np.int64), (int(taken.sum()), 1))
        rows[:, self.one] = np.repeat(self.counts, taken)
        ends = np.cumsum(taken)
        rows[:, self.two] = np.repeat(self.first - (ends - taken), taken) + np.arange(len(rows))
        return rows

    def left_out_per_hour(self, taken: Counts) -> float:
        """Return the least cost of a mix beyond those `taken`; infinite where there is none."""
        cost = self.cost + taken * self.price
        return float(cost[taken < self.width].min(initial=inf))


def _pair(wanted: Wanted, one: int, two: int) -> _Pair:
    """Return the mixes of two placements; `one` and `two` are exchanged where the second has fewer counts."""
    lowest, most = wanted.lowest, wanted.most
    if most[one] - lowest[one] > most[two] - lowest[two]:
        one, two = two, one
    counts = np.arange(lowest[one] + 1, most[one] + 1, dtype=np.int64)
    rest = [0 if k in {one, two} else low for k, low in enumerate(lowest)]
    first = np.maximum(lowest[two] + 1, wanted.floor - sum(rest) - counts)
    for needed, each in wanted.needs:
        if needed > 0:
            others = sum(count * own for count, own in zip(rest, each, strict=True) if count)
            left = (needed - others - counts * each[one]) / each[two]
            first = np.maximum(first, np.ceil(np.clip(left, 0, most[two] + 2.0)).astype(np.int64) - 1)
    prices = np.array(wanted.prices_per_hour)
    return _Pair(
        one=one,
        two=two,
        counts=counts,
        first=first,
        width=np.maximum(most[two] - first + 1, 0),
        cost=float(np.array(rest) @ prices) + counts * prices[one] + first * prices[two],
        price=float(prices[two]),
    )


def _cost_of(pairs: Sequence[_Pair], rows: int) -> float:
    """Return a cost, in USD per hour, which at most `rows` mixes do not exceed; infinite if there are no more."""

    def count(limit_per_hour: float) -> int:
        return sum(int(pair.within(limit_per_hour).sum()) for pair in pairs)

    if count(inf) <= rows:
        return inf
    low, high = 0.0, max(float((pair.cost + pair.width * pair.price).max(initial=0.0)) for pair in pairs)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if count(middle) <= rows else (low, middle)
    return low
