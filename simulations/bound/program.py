"""The linear program of the bound. Its variables are the replicas paid for and serving in every segment of time.

Variables are averages over a segment, so every schedule is a point of the program, however often it changes. Whole
replicas enter as cuts: straight lines below the cost of the cheapest whole mix.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array

from simulations.bound.mixes import Mixes, cheapest_mixes

Array = NDArray[np.float64]
Terms = list[tuple[NDArray[np.int64], Array]]

_LINES = 2
_INFEASIBLE = 2
_SAME_TIME_S = 1e-9


class BoundNotFound(RuntimeError):
    """The solver found neither a solution nor a proof that there is none; the message has the solver's text."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaSupply:
    """The replicas of one placement. Arrays have shape (segments,).

    Attributes:
        startup_s: the time for which a replica is paid for before it serves.
        price_per_hour: the price of one replica, in USD per hour.
        at_least, at_most: the bounds of the number of replicas paid for.
        may_grow: whether the number may be higher than in the segment before.
    """

    startup_s: float
    price_per_hour: Array
    at_least: Array
    at_most: Array
    may_grow: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Need:
    """The work (items) or the slots (stream-seconds) that a stage needs from its supplies.

    Attributes:
        supplies: indexes of the supplies that can provide it.
        rate_per_s: the rate of one replica of each supply, shape (supplies, segments).
        amount: the need that arises in each segment, shape (segments,).
        carry: how much may be left for later when the segment ends, shape (segments,).
        spare: how much may be left undone, shape (windows,).
        windows: the index of the first window of the stage's pipeline.
    """

    supplies: tuple[int, ...]
    rate_per_s: Array
    amount: Array
    carry: Array
    spare: Array
    windows: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CapacityLimit:
    """A limit for every segment: Σ `weights` · paid replicas of `supplies` ≤ `most`.

    `weights` has shape (supplies, segments), `most` (segments,).
    """

    supplies: tuple[int, ...]
    weights: Array
    most: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """The whole program. `edges_s` are the borders of the segments, which have equal lengths except the last one.

    `window_of` is the index of the window in which each segment lies. `windows` is the number of windows of all
    pipelines together, and `given_up` the number of them that may be missed.
    """

    edges_s: Array
    window_of: NDArray[np.int64]
    windows: int
    given_up: float
    supplies: tuple[ReplicaSupply, ...]
    needs: tuple[Need, ...]
    limits: tuple[CapacityLimit, ...]

    @property
    def lengths_s(self) -> Array:
        """Return the length of each segment in seconds."""
        return np.diff(self.edges_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProgramSolution:
    """The cheapest solution: `cost` in USD, shape (segments,); `given_up`, the share given up of each window (0–1)."""

    cost: Array
    given_up: Array


def solve(program: Program) -> ProgramSolution | None:
    """Return the cheapest solution of the program; None if it has no solution.

    Raises:
        BoundNotFound: the solver failed.
    """
    return _Assembly(program).solve()


class _Assembly:
    """Builds the matrix of the program and solves it. All rows mean ≤.

    The variables are in blocks: serving replicas and paid replicas (supply by supply), work undone and work carried
    over (need by need), then the share of each window that is given up.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._segments = len(program.lengths_s)
        self._paid = len(program.supplies) * self._segments
        self._undone = 2 * self._paid
        self._carried = self._undone + len(program.needs) * self._segments
        self._given_up = self._carried + len(program.needs) * self._segments
        self._size = self._given_up + program.windows
        self._rows: list[NDArray[np.int64]] = []
        self._columns: list[NDArray[np.int64]] = []
        self._values: list[Array] = []
        self._most: list[Array] = []
        self._count = 0
        self._mixes: dict[tuple[bytes, ...], Mixes] = {}

    def solve(self) -> ProgramSolution | None:
        program, segments = self._program, self._segments
        self._starts()
        for limit in program.limits:
            paid = [self._paid_of(supply) for supply in limit.supplies]
            self._add(list(zip(paid, limit.weights, strict=True)), limit.most)
        for index, need in enumerate(program.needs):
            self._serve(index, need)
            self._cut(index, need)
        if program.windows:
            every = self._given_up + np.arange(program.windows)
            self._add([(every[k : k + 1], np.ones(1)) for k in range(program.windows)], np.array([program.given_up]))
        hourly = np.concatenate([supply.price_per_hour * program.lengths_s / 3600 for supply in program.supplies])
        objective = np.zeros(self._size)
        objective[self._paid : self._undone] = hourly
        bounds = np.zeros((self._size, 2))
        bounds[:, 1] = np.inf
        bounds[self._paid : self._undone, 0] = np.concatenate([supply.at_least for supply in program.supplies])
        bounds[self._paid : self._undone, 1] = np.concatenate([supply.at_most for supply in program.supplies])
        for index, need in enumerate(program.needs):
            bounds[self._carried_of(index), 1] = need.carry
        bounds[self._given_up :, 1] = 1.0
        if np.any(bounds[:, 0] > bounds[:, 1]):
            return None
        matrix = coo_array(
            (np.concatenate(self._values), (np.concatenate(self._rows), np.concatenate(self._columns))),
            shape=(self._count, self._size),
        ).tocsr()
        found: Any = linprog(objective, A_ub=matrix, b_ub=np.concatenate(self._most), bounds=bounds, method="highs")
        if found.status == _INFEASIBLE:
            return None
        if found.status:
            raise BoundNotFound(f"bound: {found.message}")
        paid = found.x[self._paid : self._undone]
        return ProgramSolution(
            cost=(hourly * paid).reshape(-1, segments).sum(axis=0), given_up=np.asarray(found.x[self._given_up :])
        )

    # -- rows

    def _starts(self) -> None:
        """Add the rows by which serving replicas are paid for since their start; unavailable pools get no new ones."""
        edges, lengths = self._program.edges_s, self._program.lengths_s
        for index, supply in enumerate(self._program.supplies):
            serving, paid = self._serving_of(index), self._paid_of(index)
            ahead = 0
            while ahead < self._segments and edges[ahead] - edges[0] <= supply.startup_s + _SAME_TIME_S:
                # All times of a segment, moved back by as much as start-up allows, lie in an earlier segment.
                later = serving[ahead:]
                shares = lengths[ahead:] / lengths[: self._segments - ahead]
                self._add([(later, shares), (paid[: len(later)], -np.ones(len(later)))], np.zeros(len(later)))
                ahead += 1
            held = np.flatnonzero(~supply.may_grow[1:]) + 1
            self._add([(paid[held], np.ones(len(held))), (paid[held - 1], -np.ones(len(held)))], np.zeros(len(held)))

    def _serve(self, index: int, need: Need) -> None:
        """Add the rows by which new and carried-over work is done by serving replicas, carried over, or left undone."""
        program = self._program
        undone, carried = self._undone_of(index), self._carried_of(index)
        window = need.windows + program.window_of
        terms: Terms = [
            (self._serving_of(supply), -rate * program.lengths_s)
            for supply, rate in zip(need.supplies, need.rate_per_s, strict=True)
        ]
        ones = np.ones(self._segments)
        terms += [(undone, -ones), (carried, -ones), (self._given_up + window, -need.amount)]
        terms.append((np.concatenate([carried[:1], carried[:-1]]), np.concatenate([np.zeros(1), ones[1:]])))
        self._add(terms, -need.amount)
        for number, spare in enumerate(need.spare):
            inside = undone[program.window_of == number]
            self._add([(inside[k : k + 1], np.ones(1)) for k in range(len(inside))], np.array([spare]))

    def _cut(self, index: int, need: Need) -> None:
        """Add the cuts for whole replicas.

        At some time in a group of segments a whole mix carries the group's mean rate. All of that mix is paid for in
        the segments between its start and that time.
        """
        program = self._program
        prices = np.array([program.supplies[supply].price_per_hour for supply in need.supplies])
        most = np.array([program.supplies[supply].at_most for supply in need.supplies])
        undone, carried = self._undone_of(index), self._carried_of(index)
        paid = np.array([self._paid_of(supply) for supply in need.supplies])
        window = self._given_up + need.windows + program.window_of
        for first, end, at in self._groups(need):
            length_s = program.edges_s[end] - program.edges_s[first]
            group = np.arange(first, end)
            mixes = self._mixes_of(
                need.rate_per_s[:, group].max(axis=1), prices[:, at], most[:, group].max(axis=1), need
            )
            amount = float(need.amount[group].sum())
            spare = float(need.spare[np.unique(program.window_of[group])].sum() + need.carry[end - 1])
            mix: Terms = [(paid[k, at : at + 1], -prices[k, at : at + 1]) for k in range(len(paid))]
            let_off: Terms = [(undone[k : k + 1], np.ones(1)) for k in group]
            let_off.append((carried[end - 1 : end], np.ones(1)))
            given_up: Terms = [(window[k : k + 1], need.amount[k : k + 1]) for k in group]
            # Work that may be left undone lowers the rate of the mix, but must not count twice.
            for asked, terms in ((amount, let_off + given_up), (amount - spare, given_up)):
                for line in mixes.lines(asked / length_s, _LINES):
                    slack = [(columns, values * (-line.slope / length_s)) for columns, values in terms]
                    self._add(mix + slack, np.array([-line.cost]))

    def _groups(self, need: Need) -> Iterator[tuple[int, int, int]]:
        """Yield groups of segments (first, end, at), for cuts.

        A mix that serves at any time in the segments first … end − 1 is paid for in all of segment `at`. Of the groups
        with this property, those yielded are the next segment, the busiest segment and the longest group.
        """
        edges = self._program.edges_s
        busyness = need.amount / self._program.lengths_s
        startup_s = min(self._program.supplies[supply].startup_s for supply in need.supplies)
        for at in range(self._segments - 1):
            end = int(np.searchsorted(edges, edges[at] + startup_s + _SAME_TIME_S, side="right")) - 1
            if end < at + 2:
                continue
            busiest = at + 1 + int(np.argmax(busyness[at + 1 : end]))
            yield from sorted({(at + 1, at + 2, at), (busiest, busiest + 1, at), (at + 1, end, at)})

    def _mixes_of(self, rates: Array, prices: Array, most: Array, need: Need) -> Mixes:
        key = (rates.tobytes(), prices.tobytes(), most.tobytes(), need.amount.tobytes())
        if key not in self._mixes:
            highest = float((need.amount / self._program.lengths_s).max())
            limits = np.minimum(np.floor(most + 1e-9), 1e9).astype(np.int64).tolist()
            self._mixes[key] = cheapest_mixes(rates.tolist(), prices.tolist(), limits, highest)
        return self._mixes[key]

    # -- building

    def _add(self, terms: Terms, most: Array) -> None:
        """Add rows of the form Σ terms ≤ `most`; each row has one entry of every term."""
        rows = self._count + np.arange(len(most))
        for columns, values in terms:
            self._rows.append(rows)
            self._columns.append(columns)
            self._values.append(values)
        self._most.append(most)
        self._count += len(most)

    def _serving_of(self, supply: int) -> NDArray[np.int64]:
        return supply * self._segments + np.arange(self._segments)

    def _paid_of(self, supply: int) -> NDArray[np.int64]:
        return self._paid + self._serving_of(supply)

    def _undone_of(self, need: int) -> NDArray[np.int64]:
        return self._undone + need * self._segments + np.arange(self._segments)

    def _carried_of(self, need: int) -> NDArray[np.int64]:
        return self._carried + need * self._segments + np.arange(self._segments)
