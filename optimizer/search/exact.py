"""The exact search: find the cheapest choice and prove that none is cheaper, starting from the greedy search's result.

It adds stage by stage to partial choices, and drops those that are dominated or cannot lead to a cheaper choice. It is
exact over the rows of the tables for pipelines whose branches nest (with joins: `optimizer.search.exact_joins`). Where
branches share stages it gives only a lower bound of the cost, because each path alone must keep the latency.

This module is long because it has the whole proof behind an optimality gap: dual prices, the elimination of rows, and a
compiled merge that is fast enough for every cycle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimizer.latency.composition import Chain, Shape, Tree, join_law, mean_and_excess, shape_of
from optimizer.model import Composition, StageName
from optimizer.runtime.compiled import compiled
from optimizer.runtime.effort import ROWS
from optimizer.search.exact_joins import Limits, OutOfWork, Part, cheapest_in
from optimizer.search.greedy import cheapest, cheapest_fitting, descended, search, walked
from optimizer.search.multipliers import latency_weights, maximised, single_multiplier
from optimizer.search.subproblem import MOST, NEVER_S, TOLERANCE, Choice, Subproblem, Walk, latency_limit_s

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

_STATE_LIMIT = 40_000
_LARGE_STATE_LIMIT = 200_000  # where that was not enough: allocating it takes longer than most proofs
_PROOF_LIMIT = 2_000_000
_PATH_LIMIT = 64
_FRONT = 1024
_COMPARED = 256  # partial choices to compare with for domination
_ROUNDS = 100
_RELATIVE = 1e-9
_SLACK = 1e-12
"""Relative slack: a sum in another order must not exclude the greedy search's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The walk to the best choice found (None if none was), and a lower bound on the price of every feasible choice.

    `bound` is infinite if it is proven that no choice meets the limits, including the limit on the price. If it equals
    the price of the choice found, that choice is proven to be the cheapest.
    """

    walk: Walk | None
    bound: float


def solve(subproblem: Subproblem, at_most: float = np.inf, *, search_effort: int = _PROOF_LIMIT) -> Solution:
    """Return the cheapest choice within the latency limit and the capacity for at most `at_most`, and a lower bound.

    Of choices with equal prices the greedy search's result is returned, or else the first by stage name and row. The
    choice may not be the cheapest, and its price be above the bound, where the proof needs more than `search_effort`
    partial choices or branches share stages. Once the account of `subproblem` is exhausted, nothing is proven: None
    then only says that no choice was found.
    """
    if any(len(table) == 0 for table in subproblem.tables):
        return Solution(walk=None, bound=np.inf)
    if subproblem.exhausted:
        least = float(sum(prices.min() for prices in subproblem.prices))
        walk = search(subproblem, at_most + TOLERANCE, exchanges=False)
        return Solution(walk=walk, bound=least if walk is None else min(least, subproblem.price(walk.answer)))
    return _solved(subproblem, at_most, search_effort, any_feasible=False)


def _solved(subproblem: Subproblem, at_most: float, search_effort: int, *, any_feasible: bool) -> Solution:
    serial, start = subproblem.shape.serial, cheapest(subproblem)
    if serial:
        walk = None if start is None else walked(subproblem, start, at_most + 2 * TOLERANCE)
    else:
        # Exchanges would compose joins by the thousand; the merge does not need so good a start.
        walk = search(subproblem, at_most + TOLERANCE, exchanges=subproblem.shape.tree is None)
    proof = _Proof(subproblem, None if walk is None else subproblem.flat.position(walk.answer), at_most + TOLERANCE)
    bound, better = proof.bound_by_prices(), None
    if walk is None and proof.found is None and bound <= proof.known and proof.prices.any() and not any_feasible:
        # Without a known price the merge eliminates few rows. Search first for any feasible choice: the one that uses
        # least of the scarce pools. It is found, or proven not to exist, much sooner.
        thrifty = subproblem.priced([table.use @ proof.prices for table in subproblem.tables])
        feasible = _solved(
            thrifty, float(proof.prices @ subproblem.capacity) * (1 + _RELATIVE), search_effort, any_feasible=True
        )
        if feasible.walk is not None:
            walk = _improved(subproblem, start, feasible.walk.answer, at_most)
        elif feasible.bound == np.inf:
            return Solution(walk=None, bound=np.inf)
        if walk is not None:
            proof = _Proof(subproblem, subproblem.flat.position(walk.answer), at_most + TOLERANCE)
            bound = proof.bound_by_prices()
    if bound > proof.known:
        bound = np.inf
    elif serial:
        better, bound = proof.merged(search_effort)
    elif subproblem.shape.tree is not None:
        better, bound = proof.joined(subproblem.shape.tree, search_effort)
    if better is None:
        better = proof.found
        if not serial and bound < proof.known:
            bound = max(bound, _bound_by_paths(subproblem, proof.known))
    if better is not None:
        choice = subproblem.flat.choice(better)
        walk = (walk or Walk(visited=(start or choice,))).to(choice)
    if walk is None:
        return Solution(walk=None, bound=bound)
    return Solution(walk=walk, bound=min(bound, subproblem.price(walk.answer)))


def _improved(subproblem: Subproblem, start: Choice | None, feasible: Choice, at_most: float) -> Walk | None:
    """Return a walk to the choice `feasible`, made cheaper; None if its price is still above `at_most`."""
    if subproblem.shape.serial:
        at = subproblem.flat.position(feasible)
        descended(subproblem, at, subproblem.flat.price, MOST)
        feasible = subproblem.flat.choice(at)
    return (
        Walk(visited=(start or feasible,)).to(feasible) if subproblem.price(feasible) <= at_most + TOLERANCE else None
    )


class _Proof:
    """The state of a proof: the best choice found, the dual prices, and the lower bound that these give."""

    def __init__(self, subproblem: Subproblem, incumbent: Counts | None, at_most: float) -> None:
        flat = subproblem.flat
        self.subproblem, self.flat = subproblem, flat
        self.latency_s = latency_limit_s(subproblem)
        self.starts = flat.offsets[:-1]
        self.sizes = np.diff(flat.offsets)
        # Sums in the order of the names, so that the order given makes no difference, not even by rounding.
        known = at_most if incumbent is None else float(flat.price[incumbent].sum()) - TOLERANCE
        self.known = min(known, float(np.maximum.reduceat(flat.price, self.starts).sum()))
        self.known_choice = incumbent is not None
        self.found: Counts | None = None
        excess = flat.excess_s[self._fastest() if incumbent is None else incumbent]
        if subproblem.shape.serial:
            self.weights = latency_weights(excess)
            self.latencies = [flat.mean_s + np.repeat(self.weights, self.sizes) * flat.excess_s]
        else:
            number = {stage: number for number, stage in enumerate(flat.stages.tolist())}
            paths = [[number[stage] for stage in path] for path in _paths(subproblem.shape)]
            self.latencies = [self._along(path, excess) for path in paths]
        self.latency = self.latencies[0]
        most = np.maximum.reduceat(flat.use, self.starts, axis=0).sum(axis=0)
        self.pools = np.nonzero(most > subproblem.capacity)[0]
        self.reduced = np.zeros(len(flat.price))
        self.prices = np.zeros(len(subproblem.capacity))
        self.bound = float(np.minimum.reduceat(flat.price, self.starts).sum())

    def bound_by_prices(self) -> float:
        """Find the dual prices and return the lower bound that they give; infinite if no choice is feasible.

        A better choice that the prices lead to becomes `found`.
        """
        flat, subproblem = self.flat, self.subproblem
        least = np.minimum.reduceat(flat.use, self.starts, axis=0).sum(axis=0)
        if np.any(least > subproblem.capacity):
            return np.inf
        if any(np.minimum.reduceat(latency, self.starts).sum() > self.latency_s for latency in self.latencies):
            return np.inf
        columns = [latency / self.latency_s for latency in self.latencies] if self.latency_s < MOST else []
        columns += [flat.use[:, pool] / max(subproblem.capacity[pool], 0.5) for pool in self.pools.tolist()]
        if not columns:
            return self.bound
        weights = np.ascontiguousarray(np.column_stack(columns))
        multipliers = np.zeros(weights.shape[1])
        if self.latency_s < MOST:
            longest = self._longest() if len(self.latencies) > 1 else 0
            multipliers[longest] = single_multiplier(flat.offsets, flat.price, columns[longest], self.known, 50)
        rounds = 1 if len(columns) == 1 else _ROUNDS if self.known_choice else 3 * _ROUNDS
        subproblem.charge(weights.size * rounds / ROWS)
        self.bound = maximised(flat.offsets, flat.price, weights, self.known, rounds, multipliers, self.reduced)
        self.prices[self.pools] = multipliers[len(multipliers) - len(self.pools) :] / np.maximum(
            subproblem.capacity[self.pools], 0.5
        )
        if self.bound <= self.known and self.prices.any() and subproblem.shape.serial:
            guide = self._priced()
            at = cheapest_fitting(subproblem, guide)
            if at is not None and descended(subproblem, at, guide, self.known)[0]:
                self.found, self.known = at, float(flat.price[at].sum()) - TOLERANCE
        return self.bound

    def joined(self, tree: Tree, search_effort: int) -> tuple[Counts | None, float]:
        """Return the same as `merged`, for a pipeline with joins whose branches nest."""
        work = self._allowance(search_effort)
        flat, subproblem = self.flat, self.subproblem
        slack = 1e-11 * (1 + abs(self.known) + float((self.prices * subproblem.capacity).sum()))
        pools = np.nonzero(self.prices)[0] if self.known_choice else self.pools
        number = {stage: number for number, stage in enumerate(flat.stages.tolist())}
        mean, excess = np.minimum(self._mean_and_excess(), NEVER_S)
        while True:
            use, capacity = flat.use[:, pools], subproblem.capacity[pools]
            keep = self._allowed(use, capacity, self.known + slack)
            if not np.logical_or.reduceat(keep, self.starts).all():
                return None, np.inf
            rows = [np.nonzero(part)[0] + start for part, start in self._by_stage(keep)]
            parts = [
                Part(
                    price=flat.price[some],
                    reduced=self.reduced[some],
                    mean_s=mean[some],
                    excess_s=excess[some],
                    use=use[some],
                )
                for some in (rows[number[stage]] for stage in range(len(subproblem.tables)))
            ]
            limits = Limits(
                price=self.known, reduced=self.known + slack - self.bound, latency_s=self.latency_s, capacity=capacity
            )
            squares, law = subproblem.composition is Composition.RSS, join_law(subproblem.percentile)
            try:
                found, left = cheapest_in(tree, parts, limits, squares=squares, law=law, work=work)
            except OutOfWork:
                subproblem.charge(work)
                return None, self.bound
            subproblem.charge(work - left)
            work = left
            if found is None:
                return None, np.inf
            position = np.array([rows[at][found[stage]] for at, stage in enumerate(flat.stages.tolist())])
            over = np.nonzero(flat.use[position].sum(axis=0) > subproblem.capacity)[0]
            if not len(over):
                return position, float(flat.price[position].sum())
            pools = np.union1d(pools, over)

    def merged(self, search_effort: int) -> tuple[Counts | None, float]:
        """Return a choice cheaper than the best so far, or None; and a lower bound on the price of all cheaper choices.

        At most `search_effort` partial choices are made. The bound is infinite if it is proven that no choice is
        cheaper.
        """
        work = self._allowance(search_effort)
        flat, subproblem = self.flat, self.subproblem
        # A pool is part of the merge once it is seen to bind; without a known choice all scarce pools are.
        sure = self.known_choice or self.found is not None
        pools, bound = np.nonzero(self.prices)[0] if sure else self.pools, self.bound
        while True:
            cost = self._priced()
            free = float((self.prices * subproblem.capacity).sum())
            slack = 1e-11 * (1 + abs(self.known) + free)
            use = np.ascontiguousarray(flat.use[:, pools])
            capacity = np.ascontiguousarray(subproblem.capacity[pools])
            offsets, rows = self._kept(use, capacity, self.known + slack)
            if not len(rows):
                return None, np.inf
            stages = np.searchsorted(flat.offsets, rows[offsets[:-1]], side="right") - 1
            part = _Rows(
                offsets=offsets,
                price=flat.price[rows],
                cost=cost[rows],
                mean=flat.mean_s[rows],
                excess=flat.excess_s[rows],
                latency=self.latency[rows],
                use=use[rows],
                weights=self.weights[stages],
            )
            fronts = _Fronts(sizes=np.empty(len(offsets), dtype=np.int64), front=np.empty((len(offsets), _FRONT, 2)))
            least = _filled(fronts, part, self.known + free + slack, self.latency_s)
            # Rows were eliminated by the bound of the dual prices, so `self.bound` must not change here.
            bound = max(bound, least - free)
            at = np.empty(len(stages), dtype=np.int64)
            limits = _Limits(
                price=self.known, cost=self.known + free + slack, latency_s=self.latency_s, capacity=capacity
            )
            if least - free > self.known + slack:
                return None, np.inf
            for states in (_STATE_LIMIT, _LARGE_STATE_LIMIT):
                left = _merged(part, fronts, limits, states, work, at)
                subproblem.charge(work - max(left, 0))
                if left >= 0:
                    break
            else:
                return None, bound
            work = left
            if at[0] < 0:
                return None, np.inf
            position = np.empty(len(stages), dtype=np.int64)
            position[stages] = rows[at]
            over = np.nonzero(flat.use[position].sum(axis=0) > subproblem.capacity)[0]
            if not len(over):
                return position, float(flat.price[position].sum())
            pools = np.union1d(pools, over)

    def _allowance(self, search_effort: int) -> int:
        account = self.subproblem.account
        return search_effort if account is None else min(search_effort, account.left)

    def _priced(self) -> Array:
        return np.asarray(self.flat.price + (self.flat.use * self.prices).sum(axis=1))

    def _kept(self, use: Counts, capacity: Counts, at_most: float) -> tuple[Counts, Counts]:
        """Return offsets and positions of the rows that may be in a choice for `at_most`.

        The stage with the fewest rows comes first. If a stage has none, no rows at all are returned.
        """
        keep = self._allowed(use, capacity, at_most)
        counts = np.add.reduceat(keep.astype(np.int64), self.starts)
        if not counts.all():
            return np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64)
        order = np.argsort(np.repeat(np.argsort(np.argsort(counts, kind="stable")), counts), kind="stable")
        return np.concatenate(([0], np.cumsum(np.sort(counts)))), np.nonzero(keep)[0][order]

    def _allowed(self, use: Counts, capacity: Counts, at_most: float) -> Mask:
        """Return a mask of the rows that may be in a choice for `at_most`.

        A row is eliminated if `reduced`, the amount by which it exceeds the cheapest row of its stage at the dual
        prices, raises the bound above `at_most`. It is also eliminated if the least price, latency or use of the other
        stages leaves too little for it.
        """
        keep = self.reduced <= at_most - self.bound
        columns = [self.flat.price, *self.latencies, *use.T]
        for column, most in zip(
            columns, [at_most, *[self.latency_s] * len(self.latencies), *capacity.tolist()], strict=True
        ):
            least = np.minimum.reduceat(np.where(keep, column, np.inf), self.starts)
            total = least.sum()
            if total > most:
                return np.zeros_like(keep)
            keep &= column <= np.repeat(most - (total - least), self.sizes)
        return keep

    def _along(self, path: Sequence[int], excess: Array) -> Array:
        """Return for each row a latency (N,) whose sum along `path` never exceeds the latency of the path.

        `path` has positions of stages in the order of names. Rows of other stages have 0.
        """
        weights, others = np.zeros(len(self.sizes)), np.ones(len(self.sizes), dtype=bool)
        weights[path], others[path] = latency_weights(excess[path]), False
        latency = self.flat.mean_s + np.repeat(weights, self.sizes) * self.flat.excess_s
        return np.where(np.repeat(others, self.sizes), 0.0, latency)

    def _mean_and_excess(self) -> tuple[Array, Array]:
        """Return mean and excess of each row, (N,) each. With `Composition.SUM`, `flat` has only their sum."""
        flat, tables = self.flat, self.subproblem.tables
        rows_by_stage = np.split(flat.rows, flat.offsets[1:-1])
        order = [(tables[stage], rows) for stage, rows in zip(flat.stages.tolist(), rows_by_stage, strict=True)]
        mean = np.concatenate([table.mean_s[rows] for table, rows in order])
        return mean_and_excess(mean, np.concatenate([table.percentile_s[rows] for table, rows in order]), len(tables))

    def _longest(self) -> int:
        """Return the position of the path with the largest latency at the cheapest rows."""
        cheapest = self.flat.offsets[:-1]
        return int(np.argmax([latency[cheapest].sum() for latency in self.latencies]))

    def _by_stage(self, keep: Mask) -> list[tuple[Mask, int]]:
        return list(zip(np.split(keep, self.flat.offsets[1:-1]), self.starts.tolist(), strict=True))

    def _fastest(self) -> Counts:
        whole = self.flat.mean_s + self.flat.excess_s
        ends = zip(self.flat.offsets.tolist(), self.flat.offsets[1:].tolist(), strict=False)
        return np.array([start + int(np.argmin(whole[start:end])) for start, end in ends], dtype=np.int64)


class _Rows(NamedTuple):
    """The N rows of S stages that are merged; `offsets` (S + 1,), `price`, `mean` and `excess` are as in `Flat`.

    `cost` (N,) is the price of a row plus the pools' dual prices of its use. `latency` (N,) is the additive latency
    (`optimizer.search.multipliers`) with the `weights` (S,). `use` is (N, pools).
    """

    offsets: Counts
    price: Array
    cost: Array
    mean: Array
    excess: Array
    latency: Array
    use: Counts
    weights: Array


class _Fronts(NamedTuple):
    """For each stage s, the undominated sums of cost and latency over the stages from s to the last, cheapest first.

    `front` (S + 1, F, 2) has pairs of cost and latency; the first `sizes[s]` of stage s are set.
    """

    sizes: Counts
    front: Array


class _Limits(NamedTuple):
    """The limits of a choice: its price, its cost at the pools' dual prices, its latency (s), and its use of pools."""

    price: float
    cost: float
    latency_s: float
    capacity: Counts


@compiled
def _filled(fronts: _Fronts, rows: _Rows, cost_at_most: float, latency_s: float) -> float:
    """Fill `fronts`; return the least cost of a whole choice within `latency_s`, infinite if there is none.

    If a stage has more than F pairs, each two neighbours become one that is better than either. Costs and latencies may
    then be too low, never too high.
    """
    sizes, front = fronts
    offsets, cost, latency = rows.offsets, rows.cost, rows.latency
    stages, most = len(offsets) - 1, front.shape[1]
    least = np.empty((stages + 1, 2))
    least[0, 0], least[0, 1] = 0.0, 0.0
    for stage in range(stages):
        cheapest, fastest = np.inf, np.inf
        for row in range(offsets[stage], offsets[stage + 1]):
            cheapest, fastest = min(cheapest, cost[row]), min(fastest, latency[row])
        least[stage + 1, 0], least[stage + 1, 1] = least[stage, 0] + cheapest, least[stage, 1] + fastest
    sizes[stages], front[stages, 0, 0], front[stages, 0, 1] = 1, 0.0, 0.0
    one, two = np.empty((2 * most, 2)), np.empty((2 * most, 2))
    for stage in range(stages - 1, -1, -1):
        cost_left, latency_left = cost_at_most - least[stage, 0], latency_s - least[stage, 1]
        size = 0
        for row in range(offsets[stage], offsets[stage + 1]):
            # Merge the two lists, cheapest first; keep only entries faster than all before.
            first, second, count, fastest = 0, 0, 0, latency_left
            while first < size or second < sizes[stage + 1]:
                added, occupied = np.inf, np.inf
                if second < sizes[stage + 1]:
                    added, occupied = (
                        cost[row] + front[stage + 1, second, 0],
                        latency[row] + front[stage + 1, second, 1],
                    )
                if first < size and (one[first, 0] < added or (one[first, 0] == added and one[first, 1] <= occupied)):
                    added, occupied = one[first, 0], one[first, 1]
                    first += 1
                else:
                    second += 1
                if added > cost_left:
                    break
                if occupied < fastest or (count == 0 and occupied <= fastest):
                    two[count, 0], two[count, 1], fastest = added, occupied, occupied
                    count += 1
            size = count
            if size > most:
                size = (count + 1) // 2
                for index in range(size):
                    two[index, 0], two[index, 1] = two[2 * index, 0], two[min(2 * index + 1, count - 1), 1]
            one, two = two, one
        sizes[stage] = size
        for index in range(size):
            front[stage, index, 0], front[stage, index, 1] = one[index, 0], one[index, 1]
    return front[0, 0, 0] if sizes[0] > 0 else np.inf


@compiled
def _sorted(keys: Array, order: Counts, spare: Counts) -> None:
    """Set the beginning of `order` to the positions of `keys` in ascending order; stable (merge sort).

    `spare` is scratch space.
    """
    count = len(keys)
    for position in range(count):
        order[position] = position
    width = 1
    while width < count:
        for start in range(0, count, 2 * width):
            one, two = start, min(start + width, count)
            middle, end = two, min(start + 2 * width, count)
            for position in range(start, end):
                if one < middle and (two >= end or keys[order[one]] <= keys[order[two]]):
                    spare[position] = order[one]
                    one += 1
                else:
                    spare[position] = order[two]
                    two += 1
        for position in range(count):
            order[position] = spare[position]
        width *= 2


@compiled
def _merged(rows: _Rows, fronts: _Fronts, limits: _Limits, most: int, work: int, at: Counts) -> int:
    """Set `at` to the rows of the cheapest choice within `limits`; return the work left.

    `at[0]` is -1 if there is no such choice. The result is negative if `work` or `most`, the most partial choices at a
    time, was too little. Choices are built stage by stage. A partial choice is dropped if it cannot be completed within
    the limits (`fronts` bounds the cost of the rest from below), or if another one is no worse in price, latency and
    use of the pools.
    """
    offsets, price, cost, mean, excess, _, use, weights = rows
    sizes, front = fronts
    at_most, cost_at_most, latency_s, capacity = limits
    stages, pools = len(offsets) - 1, use.shape[1]
    least_mean, least_square = np.empty(stages + 1), np.empty(stages + 1)
    least_use, most_use = np.empty((stages + 1, pools), dtype=np.int64), np.empty((stages + 1, pools), dtype=np.int64)
    least_mean[stages], least_square[stages] = 0.0, 0.0
    for pool in range(pools):
        least_use[stages, pool], most_use[stages, pool] = 0, 0
    for stage in range(stages - 1, -1, -1):
        fast, even = np.inf, np.inf
        for row in range(offsets[stage], offsets[stage + 1]):
            fast, even = min(fast, mean[row]), min(even, excess[row])
        least_mean[stage], least_square[stage] = least_mean[stage + 1] + fast, least_square[stage + 1] + even * even
        for pool in range(pools):
            low, high = use[offsets[stage], pool], use[offsets[stage], pool]
            for row in range(offsets[stage], offsets[stage + 1]):
                low, high = min(low, use[row, pool]), max(high, use[row, pool])
            least_use[stage, pool] = least_use[stage + 1, pool] + low
            most_use[stage, pool] = most_use[stage + 1, pool] + high
    # Columns: price, cost, mean, square, then mean + √square, which only compares.
    kept, new = np.empty((most, 5)), np.empty((most, 5))
    kept_use, new_use = np.empty((most, pools), dtype=np.int64), np.empty((most, pools), dtype=np.int64)
    parent, chosen = np.empty((stages, most), dtype=np.int64), np.empty((stages, most), dtype=np.int64)
    for column in range(5):
        kept[0, column] = 0.0
    for pool in range(pools):
        kept_use[0, pool] = 0
    keys, order, spare = np.empty(most), np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    where = np.zeros(most, dtype=np.int64)  # positions of those kept, cheapest first
    size, weight, at[0] = 1, 0.0, -1
    for stage in range(stages):
        count = 0
        weight += weights[stage] * weights[stage]
        length = np.sqrt(weight)
        work -= size * (offsets[stage + 1] - offsets[stage])
        if work < 0:
            return work
        for place in range(size):
            state = where[place]
            for row in range(offsets[stage], offsets[stage + 1]):
                paid = kept[state, 0] + price[row]
                if paid > at_most:
                    break
                means, squares = kept[state, 2] + mean[row], kept[state, 3] + excess[row] * excess[row]
                if means + least_mean[stage + 1] + np.sqrt(squares + least_square[stage + 1]) > latency_s:
                    continue
                fits = True
                for pool in range(pools):
                    if kept_use[state, pool] + use[row, pool] + least_use[stage + 1, pool] > capacity[pool]:
                        fits = False
                        break
                if not fits:
                    continue
                left = latency_s - means - length * np.sqrt(squares)
                low, high = 0, sizes[stage + 1]
                while low < high:
                    middle = (low + high) // 2
                    if front[stage + 1, middle, 1] <= left:
                        high = middle
                    else:
                        low = middle + 1
                charged = kept[state, 1] + cost[row]
                if low == sizes[stage + 1] or charged + front[stage + 1, low, 0] > cost_at_most:
                    continue
                if stage == stages - 1:
                    at_most, at[0] = paid - TOLERANCE, state
                    at[stage] = row
                    continue
                if count == most:
                    return -1
                new[count, 0], new[count, 1], new[count, 2], new[count, 3] = paid, charged, means, squares
                new[count, 4] = means + np.sqrt(squares)
                for pool in range(pools):
                    new_use[count, pool] = kept_use[state, pool] + use[row, pool]
                keys[count], parent[stage, count], chosen[stage, count] = paid, state, row
                count += 1
        if stage == stages - 1:
            break
        _sorted(keys[:count], order, spare)
        kept, new, kept_use, new_use = new, kept, new_use, kept_use
        size = 0
        for position in range(count):
            state = order[position]
            beaten = False
            for place in range(size - 1, max(-1, size - 1 - _COMPARED), -1):
                other = where[place]
                if kept[other, 2] <= kept[state, 2] and kept[other, 4] <= kept[state, 4]:
                    beaten = True
                    for pool in range(pools):
                        # Free capacity counts only as far as the other stages could use it.
                        enough = capacity[pool] - most_use[stage + 1, pool]
                        if kept_use[other, pool] > max(kept_use[state, pool], enough):
                            beaten = False
                            break
                    if beaten:
                        break
            if not beaten:
                where[size] = state
                size += 1
        work -= size
        if size == 0:
            return work
    if at[0] >= 0:
        state = at[0]
        for stage in range(stages - 2, -1, -1):
            at[stage] = chosen[stage, state]
            state = parent[stage, state]
    return work


def lower_bound(subproblem: Subproblem, at_most: float = np.inf) -> float:
    """Return a lower bound on the price of the choices within the latency limit and the capacity.

    The bound is infinite if no such choice costs at most `at_most`, for example the price of a known choice.
    """
    if any(len(table) == 0 for table in subproblem.tables):
        return np.inf
    return solve(subproblem, at_most).bound


def _bound_by_paths(subproblem: Subproblem, at_most: float) -> float:
    """Return a lower bound on the price for a pipeline with joins: each path alone must keep the latency limit."""
    floor = float(sum(prices.min() for prices in subproblem.prices))
    return max(floor, *(_path_bound(subproblem, path, at_most) for path in _paths(subproblem.shape)))


def _path_bound(subproblem: Subproblem, path: Chain, at_most: float) -> float:
    others = float(sum(subproblem.prices[stage].min() for stage in range(len(subproblem.tables)) if stage not in path))
    part = replace(
        subproblem,
        tables=tuple(subproblem.tables[stage] for stage in path),
        prices=tuple(subproblem.prices[stage] for stage in path),
        shape=_series([subproblem.tables[stage].stage.name for stage in path]),
    )
    return others + lower_bound(part, at_most - others)


def _series(names: Sequence[StageName]) -> Shape:
    return shape_of([(name, names[max(position - 1, 0) : position]) for position, name in enumerate(names)])


def _paths(shape: Shape) -> Sequence[Chain]:
    """Return the first `_PATH_LIMIT` paths from the entry to a last stage, as chains of stages."""
    to: dict[int, list[Chain]] = {}

    def reaching(stage: int) -> list[Chain]:
        if stage not in to:
            found = ((*before, stage) for branch in shape.gates[stage] for before in through(branch))
            to[stage] = list(islice(found, _PATH_LIMIT))
        return to[stage]

    def through(chain: Chain) -> Iterator[Chain]:
        ways = product(*(reaching(stage) for stage in chain))
        return (tuple(stage for part in way for stage in part) for way in islice(ways, _PATH_LIMIT))

    ends = shape.exits or ((),)
    paths = ((*spine, *end) for spine in through(shape.spine) for exit_ in ends for end in through(exit_))
    return list(islice(paths, _PATH_LIMIT))
