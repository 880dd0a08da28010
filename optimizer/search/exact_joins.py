"""The exact search where branches join: partial choices, combined along the tree of series and joins.

A partial choice has a price, a mean, excess and spread (see `optimizer.latency.composition`) and its use of the pools.
The latency of the pipeline never falls when mean, mean + excess or spread of a part grows. Therefore two rules lose no
solution. A partial choice is dropped as dominated if another one is no worse in any of these values. And it is dropped
if the pipeline exceeds the latency limit even with the best rows of all other parts. After the last join the spread no
longer counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimizer.latency.composition import ADD, JOIN, Parallel, Series, Tree, join
from optimizer.runtime.compiled import compiled
from optimizer.search.subproblem import TOLERANCE

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_MOST_KEPT = 200_000
_COMPARED = 2048  # partial choices to compare with for domination
_SLACK = 1e-9  # relative, of bounds: rounding of sums, and the tolerance of a join's quantile
_JOIN_WORK = 16  # the work of composing a join, in partial choices


class OutOfWork(Exception):
    """The search would need more partial choices than it may make or keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The N rows of a stage that may be chosen, cheapest first; arrays of shape (N,).

    `reduced` is the amount by which a row raises the bound of the dual prices. `use` (N, K) is the use of the K pools
    that the search considers.
    """

    price: Array
    reduced: Array
    mean_s: Array
    excess_s: Array
    use: Counts


class Limits(NamedTuple):
    """The limits of a choice: its price, the sum of `Part.reduced`, its latency (s), and its use of the pools (K,)."""

    price: float
    reduced: float
    latency_s: float
    capacity: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partial:
    """N undominated choices for a part of the tree, cheapest first.

    The columns of `values` (N, 5) are price, reduced, mean, excess and spread; the last two are squared where squares
    add up. Each choice was combined from one choice of each of two `halves`, at the positions `pair` (N, 2). A single
    `stage` has no halves; there the first column of `pair` has the rows of its `Part`.
    """

    values: Array
    use: Counts
    pair: Counts
    halves: "tuple[_Partial, _Partial] | None" = None
    stage: int = -1

    @property
    def states(self) -> "_States":
        """Return the arrays for compiled code."""
        return _States(values=self.values, use=self.use, pair=self.pair)


class _States(NamedTuple):
    """The arrays of a `_Partial`, for compiled code."""

    values: Array
    use: Counts
    pair: Counts


class _Rule(NamedTuple):
    """How two partial choices are composed: at a join or in series, with squared excesses or not, and the join law."""

    joined: bool
    squares: bool
    law: Array


def cheapest_in(
    tree: Tree, parts: Sequence[Part], limits: Limits, *, squares: bool, law: Array, work: int
) -> tuple[tuple[int, ...] | None, int]:
    """Return the cheapest choice within `limits`, one row of each of `parts`; None if none exists. Also the work left.

    `parts` are indexed by the stages of `tree`. `squares` says whether squared excesses add up in series, `law` is
    `composition.join_law`. `work` limits the number of partial choices; the second result is the rest of it. Of choices
    with equal prices the first in the order of the tree and of the rows is returned.

    Raises:
        OutOfWork: the proof needs more partial choices than `work`, or more at a time than `_MOST_KEPT`.
    """
    search = _Search(parts, limits, squares, law, work)
    found = search.best(tree)
    if found is None:
        return None, search.work
    rows = [0] * len(parts)
    _rows(found, 0, rows)
    return tuple(rows), search.work


class _Search:
    def __init__(self, parts: Sequence[Part], limits: Limits, squares: bool, law: Array, work: int) -> None:
        self.parts, self.limits, self.squares, self.law, self.work = parts, limits, squares, law, work
        self.least_price = np.array([part.price.min() for part in parts])
        self.least_use = np.array([part.use.min(axis=0) for part in parts])
        self.most_use = np.array([part.use.max(axis=0) for part in parts])

    def best(self, tree: Tree) -> _Partial | None:
        """Return the cheapest choice for the whole `tree` as the only one, or None if none is within the limits."""
        nothing = np.empty((0, 4))
        if isinstance(tree, int):
            alone = self._stage(tree, nothing, inside=False)
            return alone if len(alone.values) else None
        return self._whole(tree, nothing, inside=False, last=True)

    def _whole(self, tree: Tree, around: Array, *, inside: bool, last: bool = False) -> _Partial | None:
        """Return the undominated choices for `tree`, None if there are none; only the cheapest if `last`.

        `around` (A, 4) are the compositions from this part of the tree to the root. A row is `ADD` or `JOIN`, and the
        best mean, excess and spread of the part that is added or joined. `inside`: the part is inside a branch, where
        the spread counts.
        """
        if isinstance(tree, int):
            alone = self._stage(tree, around, inside=inside)
            return alone if len(alone.values) else None
        joined = isinstance(tree, Parallel)
        children = tree.branches if isinstance(tree, Parallel) else _small_first(tree, self.parts)
        ideals = [self._ideal(child) for child in children]
        inside_child = inside or joined
        done: _Partial | None = None
        stages: list[int] = []
        for number, child in enumerate(children):
            rest = ideals[number + 1 :]
            before = [self._composed(ideals[:number], joined=joined)] if number else []
            steps = _steps([*before, *(rest if joined else self._sum(rest))], joined=joined)
            part = self._whole(child, np.vstack((steps, around)), inside=inside_child)
            if part is None:
                return None
            stages += _stages(child)
            if done is None:
                done = part
                continue
            steps = _steps(rest if joined else self._sum(rest), joined=joined)
            final = last and number == len(children) - 1
            done = self._pairs(done, part, np.vstack((steps, around)), stages, joined=joined, inside=inside, last=final)
            if not len(done.values):
                return None
        return done

    def _stage(self, stage: int, around: Array, *, inside: bool) -> _Partial:
        part = self.parts[stage]
        spread = part.excess_s**2 if self.squares else part.excess_s
        rows = np.arange(len(part.price), dtype=np.int64)
        alone = _Partial(
            values=np.column_stack((part.price, part.reduced, part.mean_s, spread, spread)),
            use=np.ascontiguousarray(part.use),
            pair=np.column_stack((rows, rows)),
            stage=stage,
        )
        nothing = _Partial(values=np.zeros((1, 5)), use=np.zeros_like(alone.use[:1]), pair=alone.pair[:1])
        fitting = self._pairs(nothing, alone, around, [stage], joined=False, inside=inside, last=not len(around))
        return _Partial(values=fitting.values, use=fitting.use, pair=fitting.pair[:, ::-1].copy(), stage=stage)

    def _pairs(
        self,
        first: _Partial,
        second: _Partial,
        around: Array,
        stages: Sequence[int],
        *,
        joined: bool,
        inside: bool,
        last: bool,
    ) -> _Partial:
        """Return the undominated combinations of one choice of `first` and one of `second`; if `last` the cheapest.

        `stages` are the stages of both; all other stages count at their best.

        Raises:
            OutOfWork: there are too many combinations.
        """
        others = np.ones(len(self.parts), dtype=bool)
        others[list(stages)] = False
        capacity = self.limits.capacity - self.least_use[others].sum(axis=0)
        most = min(len(first.values) * len(second.values), _MOST_KEPT) if not last else 1
        values = np.empty((most, 5))
        use = np.empty((most, len(capacity)), dtype=np.int64)
        pair = np.empty((most, 2), dtype=np.int64)
        count, self.work = _paired(
            first.states,
            second.states,
            _Rule(joined=joined, squares=self.squares, law=self.law),
            np.ascontiguousarray(around),
            self.limits._replace(price=self.limits.price - self.least_price[others].sum(), capacity=capacity),
            last,
            self.work,
            _States(values=values, use=use, pair=pair),
        )
        if count < 0:
            raise OutOfWork
        order = np.argsort(values[:count, 0], kind="stable")
        if not last:
            enough = self.limits.capacity - self.most_use[others].sum(axis=0)
            size, self.work = _undominated(values, use, order, enough, inside, self.squares, self.work)
            if size < 0:
                raise OutOfWork
            order = order[:size]
        return _Partial(values=values[order], use=use[order], pair=pair[order], halves=(first, second))

    def _ideal(self, tree: Tree) -> Array:
        """Return mean, excess and spread of an ideal choice for `tree`, which no choice surpasses.

        Its mean, mean + excess and spread are not above those of any choice. Excess and spread are squared where
        squares add up.
        """
        if isinstance(tree, int):
            part = self.parts[tree]
            mean = part.mean_s.min()
            excess, spread = (part.mean_s + part.excess_s).min() - mean, part.excess_s.min()
            return np.array([mean, excess**2, spread**2] if self.squares else [mean, excess, spread])
        if isinstance(tree, Series):
            return self._composed([self._ideal(part) for part in tree.parts], joined=False)
        return self._composed([self._ideal(branch) for branch in tree.branches], joined=True)

    def _composed(self, ideals: Sequence[Array], *, joined: bool) -> Array:
        if not joined:
            return np.asarray(sum(ideals[1:], ideals[0]))
        whole = ideals[0]
        for other in ideals[1:]:
            m, e, s = whole.tolist()
            whole = np.array(_joined(m, e, s, other[0], other[1], other[2], self.squares, self.law))
        return whole

    def _sum(self, ideals: Sequence[Array]) -> list[Array]:
        return [self._composed(ideals, joined=False)] if ideals else []


def _small_first(tree: Series, parts: Sequence[Part]) -> list[Tree]:
    """Return the parts of `tree`: single stages first, by rising number of rows, then the other parts."""
    alone = [part for part in tree.parts if isinstance(part, int)]
    return [
        *sorted(alone, key=lambda stage: len(parts[stage].price)),
        *(p for p in tree.parts if not isinstance(p, int)),
    ]


def _steps(ideals: Sequence[Array], *, joined: bool) -> Array:
    return np.array([[JOIN if joined else ADD, *ideal] for ideal in ideals], dtype=np.float64).reshape(-1, 4)


def _stages(tree: Tree) -> list[int]:
    if isinstance(tree, int):
        return [tree]
    inner = tree.parts if isinstance(tree, Series) else tree.branches
    return [stage for part in inner for stage in _stages(part)]


def _rows(found: _Partial, at: int, rows: list[int]) -> None:
    """Write to `rows` the row of each stage in the choice at position `at` of `found`."""
    if found.halves is None:
        rows[found.stage] = int(found.pair[at, 0])
        return
    for half, inner in zip(found.halves, found.pair[at].tolist(), strict=True):
        _rows(half, inner, rows)


@compiled
def _joined(
    mean: float,
    excess: float,
    spread: float,
    other_mean: float,
    other_excess: float,
    other_spread: float,
    squares: bool,
    law: Array,
) -> tuple[float, float, float]:
    """Return `join` of two branches; with `squares`, excess and spread are squared in the arguments and the result."""
    if squares:
        excess, spread = np.sqrt(excess), np.sqrt(spread)
        other_excess, other_spread = np.sqrt(other_excess), np.sqrt(other_spread)
    m, e, s = join(mean, excess, spread, other_mean, other_excess, other_spread, law)
    return (m, e * e, s * s) if squares else (m, e, s)


@compiled
def _paired(
    first: _States,
    second: _States,
    rule: _Rule,
    around: Array,
    limits: Limits,
    last: bool,
    work: int,
    into: _States,
) -> tuple[int, int]:
    """Write the pairs within the limits to `into`; return their number and the work left.

    The number is -1 if there are too many for `into` or for `work`. With `last` only the cheapest pair is written. The
    parts of the pipeline in `around` count at their best.
    """
    firsts, first_use, _ = first
    seconds, second_use, _ = second
    joined, squares, law = rule
    price, reduced, latency_s, capacity = limits
    values, use, pair = into
    count, found, pools = 0, 0, len(capacity)
    longest_s = latency_s if last else latency_s * (1.0 + _SLACK)
    for one in range(len(firsts)):
        for two in range(len(seconds)):
            work -= 1
            if firsts[one, 0] + seconds[two, 0] > price:
                break
            if firsts[one, 1] + seconds[two, 1] > reduced:
                continue
            fits = True
            for pool in range(pools):
                if first_use[one, pool] + second_use[two, pool] > capacity[pool]:
                    fits = False
                    break
            if not fits:
                continue
            # Row -1 combines the two, the other rows add what is around.
            m, e, s = firsts[one, 2], firsts[one, 3], firsts[one, 4]
            for row in range(-1, len(around)):
                joins = joined
                mean, excess, spread = seconds[two, 2], seconds[two, 3], seconds[two, 4]
                if row >= 0:
                    joins = around[row, 0] == JOIN
                    mean, excess, spread = around[row, 1], around[row, 2], around[row, 3]
                if joins:
                    work -= _JOIN_WORK
                    m, e, s = _joined(m, e, s, mean, excess, spread, squares, law)
                else:
                    m, e, s = m + mean, e + excess, s + spread
                if row < 0:
                    if count == len(values):
                        return -1, work
                    values[count, 2], values[count, 3], values[count, 4] = m, e, s
                if m + (np.sqrt(e) if squares else e) > longest_s:
                    fits = False
                    break
            if work < 0:
                return -1, work
            if not fits:
                continue
            values[count, 0] = firsts[one, 0] + seconds[two, 0]
            values[count, 1] = firsts[one, 1] + seconds[two, 1]
            for pool in range(pools):
                use[count, pool] = first_use[one, pool] + second_use[two, pool]
            pair[count, 0], pair[count, 1] = one, two
            if last:
                price, found = values[0, 0] - TOLERANCE, 1
            else:
                count += 1
    return max(count, found), work


@compiled
def _undominated(
    values: Array, use: Counts, order: Counts, enough: Counts, inside: bool, squares: bool, work: int
) -> tuple[int, int]:
    """Move the undominated choices to the front of `order`, cheapest first; return their number and the work left.

    Free capacity counts only as far as the other stages could use it: uses up to `enough` are equally good. The number
    is -1 if `work` was too little.
    """
    size = 0
    for position in range(len(order)):
        new = order[position]
        quantile = values[new, 2] + (np.sqrt(values[new, 3]) if squares else values[new, 3])
        beaten = False
        for place in range(size - 1, max(-1, size - 1 - _COMPARED), -1):
            old = order[place]
            if values[old, 2] > values[new, 2] or (inside and values[old, 4] > values[new, 4]):
                continue
            if values[old, 2] + (np.sqrt(values[old, 3]) if squares else values[old, 3]) > quantile:
                continue
            beaten = True
            for pool in range(len(enough)):
                if use[old, pool] > max(use[new, pool], enough[pool]):
                    beaten = False
                    break
            if beaten:
                break
        work -= 1
        if work < 0:
            return -1, work
        if not beaten:
            order[size] = new
            size += 1
    return size, work
