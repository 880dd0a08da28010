"""The cheapest mix of whole replicas for a rate, and straight lines that are lower bounds on its cost."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_LARGEST = 200_000
_SAME = 1e-9
_NEAR = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """A lower bound: a mix that carries the required rate less `slack` costs at least `cost` − `slope` · `slack`.

    Costs are in USD per hour, rates in items/s.
    """

    cost: float
    slope: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixes:
    """The mixes to consider, by rate (items/s) and cost (USD per hour): no other mix carries as much for as little.

    Both arrays ascend from 0, the empty mix.
    """

    rate: Array
    cost_per_hour: Array

    def lines(self, rate: float, count: int) -> list[CostLine]:
        """Return up to `count` lines below the cost of rates up to `rate`, the tightest at `rate` first.

        The lines are the last edges of the lower convex hull of the cost, which is a step function of the rate. The
        list is empty where no mix carries `rate`.
        """
        at = int(np.searchsorted(self.rate, rate * (1 - _SAME)))
        if at == len(self.rate):
            return []
        # A mix that misses the rate by less than _NEAR counts as carrying it: its line would be nearly vertical.
        while at > 0 and rate - self.rate[at - 1] < _NEAR * self.rate[-1]:
            at -= 1
            rate = float(self.rate[at])
        if at == 0:
            return []
        slack = np.concatenate([[0.0], (rate - self.rate[:at])[::-1]])
        cost = np.concatenate([[self.cost_per_hour[at]], self.cost_per_hour[:at][::-1]])
        found: list[CostLine] = []
        here = 0
        while here < len(slack) - 1 and len(found) < count:
            # From a corner of the hull, the next edge is the steepest one down.
            slopes = (cost[here] - cost[here + 1 :]) / (slack[here + 1 :] - slack[here])
            best = int(np.argmax(slopes))
            slope = float(slopes[best])
            found.append(CostLine(cost=float(cost[here] + slope * slack[here]), slope=slope))
            here += best + 1
        return found


def cheapest_mixes(rates: Sequence[float], costs_per_hour: Sequence[float], most: Sequence[int], rate: float) -> Mixes:
    """Return the mixes up to the first that carries `rate`, with at most `most[j]` replicas of each kind j.

    `rates[j]` and `costs_per_hour[j]` are the capacity and the cost of one replica of kind j. With more than `_LARGEST`
    mixes, the result has only the empty mix.
    """
    carried, cost = np.zeros(1), np.zeros(1)
    for each, price, limit in zip(rates, costs_per_hour, most, strict=True):
        if each <= 0:
            continue
        count = np.arange(min(limit, int(np.ceil(rate / each))) + 1)
        if len(count) * len(carried) > _LARGEST:
            return Mixes(rate=np.zeros(1), cost_per_hour=np.zeros(1))
        # Capacity beyond the required rate has no value.
        carried = np.minimum((carried[:, None] + count * each).ravel(), rate)
        cost = (cost[:, None] + count * price).ravel()
        order = np.lexsort((-carried, cost))
        carried, cost = carried[order], cost[order]
        kept = np.concatenate([[True], carried[1:] > np.maximum.accumulate(carried)[:-1]])
        carried, cost = carried[kept], cost[kept]
    return Mixes(rate=carried, cost_per_hour=cost)
