"""Multi-dimensional knapsack: serve as many owners as possible within several limited resources.

An owner can be served in several ways (columns), each with its need of every resource. Prices of the resources come
from the Lagrangian dual. The columns that need least at these prices are taken first; exchanges improve on that. Owners
are pipelines served in full, and resources are pools and money.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_SLACK = 1e-9
_STEPS = 200  # of the descent of the dual
_TRIES = 10  # steps of the descent between two fillings
_CANDIDATES = 64  # columns tried in pairs to replace one


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """N columns and R resources: the owner of each column, its needs, and the amounts available.

    `owner` (N,) is in ascending order. `need` (N, R) and `available` (R,) are in the units of the resources, all
    finite, `available` at least 0. A negative need frees some of a resource.
    """

    owner: Counts
    need: Array
    available: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The chosen columns, at most one of each owner, and the solution of the dual.

    `columns` are positions in `Columns`. `at_most` is an upper bound of the number of owners that any selection of
    columns serves. `prices` (R,) are the price of a unit of each resource, in owners served.
    """

    columns: tuple[int, ...]
    at_most: float
    prices: Array


def select(columns: Columns) -> Selection:
    """Return the largest selection of columns that the search finds: at most one of each owner, within `available`."""
    count = len(columns.available)
    scarce = np.nonzero(columns.available > _SLACK)[0]
    exhausted = np.setdiff1d(np.arange(count), scarce)
    usable = np.nonzero(np.all(columns.need[:, exhausted] <= _SLACK, axis=1))[0]
    owners, owner = np.unique(columns.owner[usable], return_inverse=True)
    if len(owners) == 0:
        return Selection(columns=(), at_most=0.0, prices=np.zeros(count))
    need = columns.need[np.ix_(usable, scarce)] / columns.available[scarce]
    starts = np.searchsorted(owner, np.arange(len(owners)))
    whole = _Normal(owner=owner, starts=starts, need=need)
    best, prices, bound = whole.descend()
    best = whole.improve(best, prices)
    back = np.zeros(count)
    back[scarce] = prices / columns.available[scarce]
    return Selection(columns=tuple(sorted(int(usable[c]) for c in best)), at_most=bound, prices=back)


def floor_of(bound: float) -> int:
    """Return the largest whole number of owners within `bound`, an upper bound with rounding errors."""
    return int(np.floor(bound + 1e-6))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Normal:
    """The columns, with needs as shares of the available amounts; the columns of owner p begin at `starts[p]`."""

    owner: Counts
    starts: Counts
    need: Array

    def descend(self) -> tuple[list[int], Array, float]:
        """Minimise the dual; return the largest selection found meanwhile, the best prices, and the least value.

        The least value of the dual is an upper bound of the number of owners served.
        """
        count = len(self.starts)
        prices = np.full(self.need.shape[1], 1.0 / max(1, self.need.shape[1]))
        first = self.need[self.starts].sum(axis=0)
        prices = prices * np.where(first > 1, first, 0.05)
        best = self.fill(prices)
        least, at = float(count), np.zeros_like(prices)
        pace = 1.0
        for step in range(_STEPS):
            cost = self.need @ prices
            chosen = self._cheapest(cost)
            gain = 1 - cost[chosen]
            occupied = gain > 0
            value = float(prices.sum() + gain[occupied].sum())
            if value < least - 1e-9:
                least, at = value, prices
            elif step % 20 == 19:
                pace *= 0.7
            if step % _TRIES == 0 and len(best) < floor_of(least):
                filled = self.fill(prices)
                if len(filled) > len(best):
                    best = filled
            slope = 1 - self.need[chosen[occupied]].sum(axis=0)
            slope = np.where((prices <= 0) & (slope > 0), 0.0, slope)
            norm = float(slope @ slope)
            if norm < 1e-18 or floor_of(least) <= len(best):
                break
            prices = np.maximum(0.0, prices - pace * max(value - len(best), 0.05) / norm * slope)
        filled = self.fill(at)
        return (filled if len(filled) >= len(best) else best), at, least

    def fill(self, prices: Array) -> list[int]:
        """Return a selection: columns by rising need at `prices`, each taken if it still fits."""
        cost = self.need @ prices
        left = np.ones(self.need.shape[1])
        chosen: list[int] = []
        owners: set[int] = set()
        for column in self._ordered(cost):
            owner = int(self.owner[column])
            if owner not in owners and bool(np.all(self.need[column] <= left + _SLACK)):
                chosen.append(column)
                owners.add(owner)
                left = left - self.need[column]
        return chosen

    def improve(self, chosen: list[int], prices: Array) -> list[int]:
        """Return the selection `chosen` after additions and exchanges.

        A column is added where one fits. Two replace one, or one replaces another that needs more at `prices`.
        """
        cost = self.need @ prices
        order = np.array(self._ordered(cost), dtype=np.int64)
        for _ in range(4 * len(self.starts)):
            better = self._exchange(chosen, cost, order)
            if better is None:
                return chosen
            chosen = better
        return chosen

    def _exchange(self, chosen: list[int], cost: Array, order: Counts) -> list[int] | None:
        left = 1 - self.need[chosen].sum(axis=0) if chosen else np.ones(self.need.shape[1])
        owners = {int(self.owner[column]) for column in chosen}
        outside = order[[int(self.owner[column]) not in owners for column in order]]
        fitting = outside[np.all(self.need[outside] <= left + _SLACK, axis=1)]
        if len(fitting):
            return [*chosen, int(fitting[0])]
        cheaper: tuple[float, int, int] | None = None
        for removed in chosen:
            capacity = left + self.need[removed]
            mine = order[(self.owner[order] == self.owner[removed]) & (order != removed)]
            one = np.concatenate((outside, mine))
            one = one[np.all(self.need[one] <= capacity + _SLACK, axis=1)]
            if not len(one):
                continue
            saved = cost[removed] - cost[one]
            at = int(np.argmax(saved))
            if saved[at] > 1e-7 and (cheaper is None or saved[at] > cheaper[0]):
                cheaper = float(saved[at]), removed, int(one[at])
            some = one[:_CANDIDATES]
            both = np.all(self.need[some][:, None] + self.need[some][None] <= capacity + _SLACK, axis=2)
            both &= self.owner[some][:, None] != self.owner[some][None]
            found = np.argwhere(both)
            if len(found):
                rest = [column for column in chosen if column != removed]
                return [*rest, int(some[found[0, 0]]), int(some[found[0, 1]])]
        if cheaper is None:
            return None
        return [*(column for column in chosen if column != cheaper[1]), cheaper[2]]

    def _cheapest(self, cost: Array) -> Counts:
        """Return the cheapest column of each owner, the first among equals."""
        least = np.minimum.reduceat(cost, self.starts)
        columns = np.where(cost <= least[self.owner], np.arange(len(cost)), len(cost))
        return np.asarray(np.minimum.reduceat(columns, self.starts), dtype=np.int64)

    def _ordered(self, cost: Array) -> list[int]:
        return [int(column) for column in np.lexsort((np.arange(len(cost)), cost))]
