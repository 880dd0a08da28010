"""Share pools among many pipelines by prices on the pools: the Lagrangian relaxation, and plans combined from it.

With prices on the pools, and on the fleet's money, the pipelines no longer depend on each other, and each is solved
exactly in microseconds. The best prices give the lower bound. The search has found plans on the way, and lists plans
that are nearly as good at the best prices. It combines them into plans for all pipelines that fit together: a dynamic
programme over the deviations from a first solution, so that many pipelines may change in one step. If it has seen every
plan that could be part of a better solution, the bound is the cost itself, and the fleet's plan is proven optimal.

In series, latencies add up with `Composition.SUM`. Otherwise an additive form of the latency guides the search: a
weighted sum over stages that never exceeds the latency (Cauchy–Schwarz for `RSS`, a mean over the paths for joins). For
joins it refers to the latency of the slowest path. It equals that latency at the plan for which its weights were
chosen. The plans that the form admits are checked against the latency itself. Where branches join, the bound holds for
all plans that keep the limit on every path; the plans returned also keep the composed latency.

Geoffrion 1974; Fisher 1981 (Lagrangian relaxation); Grötschel, Lovász, Schrijver 1988 (ellipsoid method).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from optimizer.fleet.columns import RANK, Form, Found, Options, Query, list_columns
from optimizer.model import Composition, StageName
from optimizer.runtime.cache import BoundedCache
from optimizer.runtime.compiled import compiled
from optimizer.runtime.effort import Account
from optimizer.search.exact import Solution, solve
from optimizer.search.subproblem import TOLERANCE, Choice, Flat, Subproblem

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Numbers = NDArray[np.int16]
Mask = NDArray[np.bool_]

WORK_LIMIT = 400_000_000
"""The search effort where the problem sets none."""

_COLUMNS = 64
_LABELS = (4, 8, 256)  # partial plans: of latencies that add up, while the additive form is sought, and of others
_CAPACITY = 96
_ROUNDS = 24
_PRECISE = 1e-7
_PATHS = 64
_JUDGED_PATHS = 6
_STATES = (9_000, 300_000)
_SUMS = 10_000_000
_POLISHES = 4
_MONEY_STEPS = 4_000
_SOLVED_WORK = 20_000  # work counted for the exact solution of one pipeline
_NEVER = 1e15


_SOLVED: BoundedCache[Solution] = BoundedCache(2_048)
"""Exact solutions of single pipelines, by the values of the subproblem and the prices."""


@compiled
def _worth(column_cost: Array, column_use: Array, count: Counts, capacity: Array, prices: Array, slope: Array) -> float:
    """Return the Lagrangian bound at `prices` if the pipelines had only the plans in the columns.

    `slope` (R,) becomes its derivative by the prices.
    """
    value = 0.0
    for resource in range(len(prices)):
        slope[resource] = -capacity[resource]
        value -= prices[resource] * capacity[resource]
    for pipeline in range(len(count)):
        least, column = np.inf, 0
        for number in range(count[pipeline]):
            cost = column_cost[pipeline, number]
            for resource in range(len(prices)):
                cost += prices[resource] * column_use[pipeline, number, resource]
            if cost < least:
                least, column = cost, number
        value += least
        for resource in range(len(prices)):
            slope[resource] += column_use[pipeline, column, resource]
    return value


@compiled
def _combine(
    rated: Array,
    moved: Counts,
    offset: Counts,
    count: Counts,
    place: Counts,
    half: Counts,
    most: float,
    value: Array,
    back: Numbers,
) -> int:
    """Combine one column of each pipeline at least cost, for every total deviation in a box of A axes.

    An axis is a charged resource. `rated` (P, C) is the cost of a column, `moved` (P, C, A) its deviation on each axis,
    `offset` (P, C) the same as a distance between states. A state is a point of the box: the sum of the deviations so
    far, counted from the middle. `half` (A,) are the half-widths of the box. `value` (rows, W) has one element per
    state: the last axis runs along W, and `place` (rows, A - 1) has the deviations of a row on the other axes.

    `value` becomes the least cost of each state, `back` (P, states) the column of each pipeline that led there. Sums
    above `most` are dropped. Return the work done, below zero if a sum left the box.
    """
    rows, width, work, left_box = len(place), value.shape[1], 0, False
    now, following, last = np.empty((rows, width)), np.empty((rows, width)), len(half) - 1
    least, least_then = np.empty(rows), np.empty(rows)
    for row in range(rows):
        least[row] = np.inf
    for state in range(width):
        now[rows // 2, state] = np.inf
    now[rows // 2, width // 2], least[rows // 2] = 0.0, 0.0
    for pipeline in range(len(count)):
        for row in range(rows):
            least_then[row] = np.inf
        for number in range(count[pipeline]):
            rate, step = rated[pipeline, number], moved[pipeline, number, last]
            low, high = max(0, -step), min(width, width - step)
            for row in range(rows):
                if least[row] + rate > most:
                    continue
                inside = low < high
                for axis in range(last):
                    inside = inside and abs(place[row, axis] + moved[pipeline, number, axis]) <= half[axis]
                if not inside:
                    left_box = True
                    continue
                work += width
                into = row + (offset[pipeline, number] - step) // width
                if least_then[into] == np.inf:
                    for state in range(width):
                        following[into, state] = np.inf
                lowest, base = least_then[into], into * width
                for state in range(low, high):
                    total = now[row, state] + rate
                    if total <= most and total < following[into, state + step] - 1e-12:
                        following[into, state + step] = total
                        back[pipeline, base + state + step] = number
                        lowest = min(lowest, total)
                least_then[into] = lowest
                for state in range(low):
                    left_box = left_box or now[row, state] + rate <= most
                for state in range(high, width):
                    left_box = left_box or now[row, state] + rate <= most
        now, following = following, now
        least, least_then = least_then, least
    for row in range(rows):
        for state in range(width):
            value[row, state] = now[row, state] if least[row] < np.inf else np.inf
    return -work // 8 - 1 if left_box else work // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """How pipelines share the pools: a choice for each pipeline; None if no choices were found that fit together.

    `bound` is proven: no choices have a lower price (objective of the subproblems, USD per hour); it is infinite if no
    choices fit. `unit_prices` (K,) are the value of one more unit of each pool in USD per hour. `work` is the work
    done, in partial plans.
    """

    choices: tuple[Choice, ...] | None
    bound: float
    unit_prices: Array
    work: int


def share_pools(
    subproblems: Sequence[Subproblem],
    capacity: Counts,
    *,
    own_budgets: Sequence[float] = (),
    group_budgets: Array | None = None,
    members: Mask | None = None,
    budget_per_hour: float = np.inf,
    start: Array | None = None,
    search_effort: int | None = None,
    account: Account | None = None,
    prove: bool = True,
) -> Shared:
    """Return how `subproblems` share the `capacity` at least price.

    `own_budgets` are the budgets of each pipeline, `budget_per_hour` that of all together, in USD. `group_budgets` (G,)
    are those of groups, and `members` (P, G) says which pipeline is in which group. `start` (K,) are
    unit prices from which the search starts; the prices of a similar fleet save most of the work. When the work,
    counted in partial plans, exceeds `search_effort` (None: `WORK_LIMIT`) or what is left in `account`, the best so far
    is returned. Without `prove` the first choices that fit are returned, after changes of one pipeline at a time that
    lower the price.
    """
    nothing = Shared(choices=None, bound=np.inf, unit_prices=np.zeros(len(capacity)), work=0)
    if any(len(table) == 0 for subproblem in subproblems for table in subproblem.tables):
        return nothing
    limit = WORK_LIMIT if search_effort is None else search_effort
    if account is not None:
        limit = min(limit, account.left)
    groups = np.zeros(0) if group_budgets is None else group_budgets
    members = np.zeros((len(subproblems), 0), dtype=np.bool_) if members is None else members
    own = np.array(own_budgets or [np.inf] * len(subproblems))
    pipelines = _Pipelines.of(subproblems, own, members, budget_per_hour)
    search = _Search(pipelines, len(capacity), np.concatenate((capacity, groups, [budget_per_hour])), limit)
    shared = search.run(start, prove)
    if account is not None:
        account.charge(shared.work)
    return shared


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pipelines:
    """The subproblems of P pipelines with T stages together, and their options in sequence (`optimizer.fleet.columns`).

    Options use K pools, the money of G groups, which is 0 outside of the group, and money. `members` (P, G) has the
    groups. `limited` says whether money is limited. `offset` (P + 1,) is where the options of each pipeline begin.
    `pipeline_of` and `position_of` (T,) are the pipeline of a stage and its position in the pipeline. `longest` is the
    most stages of a pipeline. `composed` (P,) marks pipelines with `Composition.RSS`, whose latencies do not add up,
    `joined` (P,) those whose branches join, and `additive` (P,) the others.
    """

    subproblems: Sequence[Subproblem]
    flats: Sequence[Flat]
    options: Options
    own_budgets: Array
    members: Mask
    limited: bool
    offset: Counts
    pipeline_of: Counts
    position_of: Counts
    longest: int
    composed: Mask
    joined: Mask
    additive: Mask

    @staticmethod
    def of(
        subproblems: Sequence[Subproblem], own_budgets: Array, members: Mask, budget_per_hour: float
    ) -> "_Pipelines":
        """Return `subproblems` with their options in sequence. With a budget, the money used is the replicas' cost."""
        flats = [subproblem.flat for subproblem in subproblems]
        sizes = np.array([flat.offsets[-1] for flat in flats], dtype=np.int64)
        offset = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
        starts = [flat.offsets[:-1] + base for flat, base in zip(flats, offset[:-1], strict=True)]
        bounds = np.cumsum([0, *(len(flat.stages) for flat in flats)])
        pipeline_of = np.repeat(np.arange(len(subproblems)), np.diff(bounds))
        cost = np.concatenate([flat.price for flat in flats])
        money = cost
        limited = bool(np.isfinite(budget_per_hour) or np.isfinite(own_budgets).any() or members.any())
        if limited:
            money = np.concatenate(
                [
                    subproblem.tables[stage].cost_per_hour[rows]
                    for subproblem, flat in zip(subproblems, flats, strict=True)
                    for stage, rows in _rows(flat)
                ]
            )
        joined = np.array([not subproblem.shape.serial for subproblem in subproblems])
        composed = np.array([subproblem.composition is Composition.RSS for subproblem in subproblems])
        paths, path_count = _paths_of(subproblems, flats, joined, bounds)
        return _Pipelines(
            subproblems=subproblems,
            flats=flats,
            options=Options(
                cost=cost,
                mean=np.concatenate([flat.mean_s for flat in flats]),
                excess=np.concatenate([flat.excess_s for flat in flats]),
                use=np.column_stack(
                    (
                        np.concatenate([flat.use for flat in flats]),
                        money[:, None] * members[np.repeat(np.arange(len(flats)), sizes)],
                        money,
                    )
                ),
                start=np.concatenate((*starts, offset[-1:])),
                bounds=bounds,
                limits=np.minimum(np.array([subproblem.latency_s for subproblem in subproblems]), _NEVER),
                paths=paths,
                path_count=path_count,
            ),
            own_budgets=own_budgets,
            members=members,
            limited=limited,
            offset=offset,
            pipeline_of=pipeline_of,
            position_of=np.arange(bounds[-1]) - bounds[pipeline_of],
            longest=int(np.diff(bounds).max()),
            composed=composed,
            joined=joined,
            additive=~(composed | joined),
        )

    def __len__(self) -> int:
        return len(self.subproblems)

    def choice(self, number: int, plan: Counts) -> Choice:
        """Return the choice of pipeline `number` that has the options `plan`."""
        flat = self.flats[number]
        return flat.choice(plan[: len(flat.stages)] - self.offset[number])

    def keeps_latency(self, number: int, plan: Counts) -> bool:
        """Return whether the options `plan` keep the latency limit of pipeline `number`, by its composition itself."""
        if self.joined[number]:
            subproblem = self.subproblems[number]
            return subproblem.latency(self.choice(number, plan)) <= subproblem.latency_s
        chosen = plan[: len(self.flats[number].stages)]
        latency = self.options.mean[chosen].sum() + np.sqrt((self.options.excess[chosen] ** 2).sum())
        return bool(latency <= self.options.limits[number] * (1 + 1e-11))


class _Oracle:
    """Finds the best plans of each pipeline at given prices, by an additive form of the latency; counts the work."""

    def __init__(self, pipelines: _Pipelines, limit: int) -> None:
        self.work, self.limit = 0, limit
        self._pipelines = pipelines
        stages = len(pipelines.pipeline_of)
        self._form = Form(weights=np.ones((stages, 2)), spread=np.where(pipelines.additive, 0.0, -1.0))
        self._weigh(np.zeros(stages), np.ones(stages), ~pipelines.additive)

    def list(
        self, prices: Array, window: float, *, listed: int = 1, labels: int = _LABELS[0], cost: Array | None = None
    ) -> Found:
        """Return up to `listed` plans of each pipeline whose priced cost is within `window` of the pipeline's best.

        `labels` is the most partial plans at a time; `cost` (N,) replaces the cost of the options.
        """
        count, options = len(self._pipelines), self._pipelines.options
        found = Found(
            option=np.full((count, listed, self._pipelines.longest), -1, dtype=np.int64),
            counts=np.zeros(count, dtype=np.int64),
            complete=np.zeros(count, dtype=np.int64),
            values=np.empty(count),
        )
        query = Query(
            prices=prices,
            charged=np.nonzero(prices)[0],
            window=window,
            listing=listed > 1,
            labels=labels,
            allowed=max(0, self.limit - self.work),
        )
        self.work += list_columns(options if cost is None else options._replace(cost=cost), self._form, query, found)
        return found

    def fit_form(self, plans: Counts) -> None:
        """Change the form so that it equals the latency at `plans` (P, longest); -1 at the beginning marks no plan.

        Where branches join, it equals the latency of the slowest path.
        """
        options, wanted = self._pipelines.options, ~self._pipelines.additive & (plans[:, 0] >= 0)
        if wanted.any():
            chosen = plans[self._pipelines.pipeline_of, self._pipelines.position_of]
            self._weigh(options.mean[chosen], np.abs(options.excess[chosen]), wanted)

    def _weigh(self, mean: Array, excess: Array, wanted: Mask) -> None:
        """Set the weights of the pipelines `wanted` so that the form equals the latency at `mean` and `excess` (T,)."""
        if not wanted.any():
            return
        paths, pipeline_of = self._pipelines.options.paths, self._pipelines.pipeline_of
        starts, squares = self._pipelines.options.bounds[:-1], excess * excess
        length = np.stack(
            [np.add.reduceat(mean * on, starts) + np.sqrt(np.add.reduceat(squares * on, starts)) for on in paths.T],
            axis=1,
        )
        length[np.arange(length.shape[1]) >= self._pipelines.options.path_count[:, None]] = -np.inf
        longest = length >= length.max(axis=1)[:, None] - 1e-12
        share = longest / longest.sum(axis=1)[:, None]
        norm = np.stack([np.sqrt(np.add.reduceat(squares * on, starts)) for on in paths.T], axis=1)
        root = share / np.where(norm > 0, norm, np.inf)
        on_mean = (paths * share[pipeline_of]).sum(axis=1)
        on_excess = excess * (paths * root[pipeline_of]).sum(axis=1)
        take = wanted[pipeline_of]
        self._form.weights[take, 0] = on_mean[take]
        self._form.weights[take, 1] = np.where(self._pipelines.composed[pipeline_of], on_excess, 0.0)[take]


class _Columns:
    """The plans known for each pipeline: `cost` (P, C), `use` (P, C, R), `option` (P, C, longest), `count` (P,).

    `count` is the number of a pipeline's plans; `rows` (P,) are the positions of the pipelines.
    """

    def __init__(self, pipelines: _Pipelines) -> None:
        count, resources = len(pipelines), pipelines.options.use.shape[1]
        self._pipelines = pipelines
        self.rows = np.arange(count)
        self.cost = np.full((count, _CAPACITY), np.inf)
        self.use = np.zeros((count, _CAPACITY, resources))
        self.option = np.full((count, _CAPACITY, pipelines.longest), -1, dtype=np.int32)
        self.count = np.zeros(count, dtype=np.int64)

    def add(self, plans: Counts, wanted: Mask) -> None:
        """Add the plan of each pipeline that is `wanted`, if it is new and keeps the latency and the own budget."""
        pipelines, filled, most = self._pipelines, plans >= 0, int(self.count.max()) + 1
        cost = np.where(filled, pipelines.options.cost[plans], 0.0).sum(axis=1)
        use = np.where(filled[:, :, None], pipelines.options.use[plans], 0.0).sum(axis=1)
        known = np.arange(most) < self.count[:, None]
        for position in range(pipelines.longest):
            known &= self.option[:, :most, position] == plans[:, None, position]
        affordable = use[:, -1] <= pipelines.own_budgets + TOLERANCE
        new = wanted & ~known.any(axis=1) & affordable & (self.count < _CAPACITY)
        for number in np.nonzero(new & ~pipelines.additive)[0].tolist():
            new[number] = pipelines.keeps_latency(number, plans[number])
        rows = np.nonzero(new)[0]
        at = self.count[rows]
        self.cost[rows, at], self.use[rows, at], self.option[rows, at] = cost[rows], use[rows], plans[rows]
        self.count[rows] += 1

    def replace_last(self, cost: Array, use: Array, plans: Counts) -> Counts:
        """Put one plan of each pipeline into its last column, over whatever is there; return that column's number."""
        self.cost[:, -1], self.use[:, -1], self.option[:, -1] = cost, use, plans
        return np.full(len(self.rows), _CAPACITY - 1, dtype=np.int64)

    def priced(self, prices: Array) -> Array:
        """Return the priced cost of each column at `prices`, shape (P, C)."""
        return np.asarray(self.cost + self.use @ prices)


class _Search:
    """The search for one fleet: the best prices, the bound that they prove, and each pipeline's present column."""

    def __init__(self, pipelines: _Pipelines, pools: int, capacity: Array, limit: int) -> None:
        self.pipelines = pipelines
        self.capacity = capacity
        self.pools = pools
        self.oracle = _Oracle(pipelines, limit)
        self.columns = _Columns(pipelines)
        self.current: Counts | None = None
        self.values = np.full(len(pipelines), -np.inf)  # lower bounds of the pipelines' priced costs at the last prices
        self.bound = -np.inf
        self.prices = np.zeros(len(capacity))
        self.digests: dict[int, bytes] = {}  # of the subproblems that were solved exactly

    def _evaluate(self, prices: Array, *, labels: int | None = None) -> float:
        """Return the Lagrangian bound at `prices`; the best plan of each pipeline becomes a column."""
        if labels is None:
            labels = _LABELS[0] if self.pipelines.additive.all() else _LABELS[2]
        found = self.oracle.list(prices, 0.0, labels=labels)
        self.values = found.values
        plans = np.where(found.counts[:, None] > 0, found.option[:, 0], -1)
        self.columns.add(plans, found.counts > 0)
        self.oracle.fit_form(plans)
        return self._bound_at(prices)

    def _evaluate_exactly(self, prices: Array) -> float:
        """Return the bound at `prices`, with exact solutions where branches join or a pipeline has no column.

        The solutions become columns. `prices` must be those of the last `_evaluate`.
        """
        for number in np.nonzero(self.pipelines.joined | (self.columns.count == 0))[0].tolist():
            solution = self._solved(number, prices)
            self.oracle.work += _SOLVED_WORK
            self.values[number] = max(self.values[number], solution.bound)
            if solution.walk is None:
                continue
            flat = self.pipelines.flats[number]
            plans = np.full((len(self.pipelines), self.pipelines.longest), -1, dtype=np.int64)
            plans[number, : len(flat.stages)] = flat.position(solution.walk.answer) + self.pipelines.offset[number]
            self.columns.add(plans, self.columns.rows == number)
        return self._bound_at(prices)

    def _solved(self, number: int, prices: Array) -> Solution:
        subproblem = self.pipelines.subproblems[number]
        if number not in self.digests:
            self.digests[number] = _digest(subproblem)
        key = self.digests[number], prices.tobytes()
        known = _SOLVED.get(key)
        if known is not None:
            return known
        money_price = prices[-1] + self.pipelines.members[number] @ prices[self.pools : -1]
        priced = [
            np.asarray(own + table.use @ prices[: self.pools] + money_price * table.cost_per_hour)
            for own, table in zip(subproblem.prices, subproblem.tables, strict=True)
        ]
        return _SOLVED.put(key, solve(subproblem.priced(priced)))

    def _bound_at(self, prices: Array) -> float:
        charged = prices > 0
        ranks = RANK * float(np.diff(self.pipelines.options.start).sum())  # the most that `RANK` has added
        return float(self.values.sum() - prices[charged] @ self.capacity[charged]) - ranks

    def _used(self) -> Array:
        assert self.current is not None
        return np.asarray(self.columns.use[self.columns.rows, self.current].sum(axis=0))

    def _price(self) -> float:
        assert self.current is not None
        return float(self.columns.cost[self.columns.rows, self.current].sum())

    def _over(self) -> Mask:
        return np.asarray(self._used() > self.capacity + 1e-9 * np.maximum(1.0, np.abs(self.capacity)))

    def run(self, start: Array | None, prove: bool) -> Shared:
        """Return the best sharing found, starting from the unit prices `start`; `prove` as in `share_pools`."""
        additive = self.pipelines.additive
        if not additive.all():
            for _ in range(3):
                self._evaluate(self.prices, labels=_LABELS[1])
        at_least = self._evaluate(self.prices)
        if not np.isfinite(at_least):
            return self._result(np.inf)
        at_least = max(at_least, self._evaluate_exactly(self.prices))
        if not np.isfinite(at_least):
            return self._result(np.inf)
        if self.pipelines.limited:
            found = self.oracle.list(self.prices, 0.0, labels=_LABELS[2], cost=self.pipelines.options.use[:, -1].copy())
            self.columns.add(found.option[:, 0], found.counts > 0)
        without = self.columns.count == 0
        if without.any():
            return self._result(np.inf if additive[without].any() else at_least)
        self.bound = at_least
        self.current = np.argmin(self.columns.priced(self.prices), axis=1)
        active = self._over()
        if not active.any():
            return self._result(self.bound)
        fits = False
        for _ in self.capacity:
            if not self._maximise(active, start):
                return self._result(np.inf)
            fits = self._fit(active)
            if not fits:
                return self._result(self.bound)
            if prove:
                self._polish(active)
            over = self._outside(active)
            if not over.any():
                break
            active |= over
        return self._result(self.bound)

    def _maximise(self, active: Mask, start: Array | None) -> bool:
        """Raise the bound by prices on the `active` resources; return False if that proves that nothing fits."""
        charged = np.nonzero(active)[0]
        used = np.maximum(self._used()[charged], 1.0)
        scale = 4 * max(self._price(), 1e-6) / used
        options = self.pipelines.options
        most = float(np.maximum.reduceat(options.cost, options.start[:-1]).sum())
        centre = self.prices[charged].copy()
        if start is not None:
            self._try(charged, start[charged[charged < self.pools]])
            centre, scale = self.prices[charged].copy(), scale / 16
        radius = scale.copy()
        for _ in range(_ROUNDS):
            tolerance = _PRECISE * max(1.0, abs(self.bound))
            mid, value = self._best_prices(charged, centre, radius, tolerance / 4)
            self.oracle.work += int(self.columns.count.sum())
            moved = np.abs(mid - centre)
            if value - self.bound <= tolerance and np.all(moved < radius):
                break
            radius = np.where(moved > radius / 2, radius * 4, np.maximum(radius / 4, 2 * moved))
            radius = np.maximum(radius, scale * 1e-5)
            self._try(charged, mid)
            centre = mid
            if self.bound > most + 1e-6 * (1 + abs(most)):
                return False
            if self.oracle.work > self.oracle.limit:
                break
        return True

    def _try(self, charged: Counts, prices: Array) -> None:
        at = np.zeros(len(self.capacity))
        at[charged[: len(prices)]] = np.maximum(prices, 0.0)
        bound = self._evaluate(at)
        if bound > self.bound:
            self.bound, self.prices = bound, at

    def _fit(self, active: Mask) -> bool:
        """Choose columns that fit the `active` resources together; return whether they do.

        As long as they do not, evaluations at higher prices add columns that use less of these resources.
        """
        charged = np.nonzero(active)[0]
        if not self.pipelines.additive.all():
            self.bound = max(self.bound, self._evaluate(self.prices))
            self.bound = max(self.bound, self._evaluate_exactly(self.prices))
        floor = 0.1 * self._price() / np.maximum(self._used(), 1.0)
        for factor in (1.0, 2.0, 5.0, 25.0, 625.0):
            if factor > 1:
                dearer = np.where(active, np.maximum(self.prices, floor) * factor, 0.0)
                self._evaluate(dearer)
                self._evaluate_exactly(dearer)
            self.current = np.argmin(self.columns.priced(self.prices), axis=1)
            if self._repair(charged):
                return True
        return False

    def _polish(self, active: Mask) -> None:
        """Combine plans that are nearly the best at the prices into the choice of least price that fits.

        The bound becomes the price of this choice if it is proven that no better choice exists.
        """
        charged = np.nonzero(active)[0]
        most_rows = int(np.clip(20_000 // len(self.pipelines), _COLUMNS, 400))
        for _ in range(_POLISHES):
            gap, before = self._price() - self.bound, self._price()
            if gap <= _PRECISE * max(1.0, abs(self.bound)) or self.oracle.work > self.oracle.limit:
                return
            cost, use, plans, count, complete = self._near(charged, gap, most_rows)
            chosen, all_seen = self._combined(cost, use, count, charged, gap)
            rows = self.columns.rows
            self.current = self.columns.replace_last(cost[rows, chosen], use[rows, chosen], plans[rows, chosen])
            if all_seen and complete.all() and not self.pipelines.joined.any() and not self._outside(active).any():
                self.bound = max(self.bound, self._price())
                return
            if self._price() > before - _PRECISE * max(1.0, abs(before)):
                return

    def _near(self, charged: Counts, window: float, most_rows: int) -> tuple[Array, Array, Counts, Counts, Counts]:
        """Return the columns whose priced cost is within `window` of their pipeline's best, the present choice first.

        The results are cost, use, options, number of columns, and 1 for each pipeline with no column missing.
        """
        prices = np.zeros(len(self.capacity))
        prices[charged] = self.prices[charged]
        found = self.oracle.list(prices, window, listed=most_rows, labels=most_rows)
        count, complete = found.counts, found.complete
        most = int(count.max())
        within = np.arange(most) < count[:, None]
        own = self.columns.option[self.columns.rows, self.current].astype(np.int64)
        plans = np.concatenate((own[:, None], np.where(within[..., None], found.option[:, :most], -1)), axis=1)
        cost, use = np.zeros(plans.shape[:2]), np.zeros((*plans.shape[:2], len(self.capacity)))
        for position in range(self.pipelines.longest):
            filled = plans[:, :, position] >= 0
            cost += np.where(filled, self.pipelines.options.cost[plans[:, :, position]], 0.0)
            use += np.where(filled[..., None], self.pipelines.options.use[plans[:, :, position]], 0.0)
        cost[:, 1:][~within] = np.inf
        count += 1
        unusable = (use[:, :, -1] > self.pipelines.own_budgets[:, None] + TOLERANCE) & np.isfinite(cost)
        checked = ~self.pipelines.additive & ((complete == 0) | self.pipelines.joined)
        for number in np.nonzero(checked)[0].tolist():
            for column in range(1, int(count[number])):
                unusable[number, column] |= not self.pipelines.keeps_latency(number, plans[number, column])
        if unusable.any():  # a cost that is never taken; the plans that they beat are missing
            cost[unusable] = _NEVER
            complete[unusable.any(axis=1)] = 0
        return cost, use, plans, count, complete

    def _combined(self, cost: Array, use: Array, count: Counts, charged: Counts, gap: float) -> tuple[Counts, bool]:
        """Return the best column of each pipeline in combination, and whether all combinations were covered.

        The first column of a pipeline is the present one.
        """
        steps = use[:, :, charged] - use[:, :1, charged]
        steps[np.arange(cost.shape[1]) >= count[:, None]] = 0
        left, prices = (self.capacity - self._used())[charged], self.prices[charged]
        unit = np.ones(len(charged))
        for axis, resource in enumerate(charged.tolist()):
            whole = resource < self.pools
            unit[axis] = _divisor(steps[..., axis]) if whole else max(self.capacity[resource] / _MONEY_STEPS, TOLERANCE)
        moved = np.ceil(steps / unit - 1e-9).astype(np.int64)
        slack = np.floor(left / unit + 1e-9).astype(np.int64)
        priced = cost + use[:, :, charged] @ prices
        rated = np.minimum(priced - priced.min(axis=1)[:, None], _NEVER)
        affordable = min(_SUMS, max(0, 8 * (self.oracle.limit - self.oracle.work)))
        states = float(np.clip(affordable / np.count_nonzero(rated <= gap), *_STATES))
        half = np.full(len(charged), int((states ** (1 / len(charged)) - 1) / 2), dtype=np.int64)
        widths = 2 * half + 1
        offsets = moved @ np.array([int(np.prod(widths[axis + 1 :])) for axis in range(len(half))])
        axes = [np.arange(-one, one + 1) for one in half.tolist()]
        place = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(charged))
        value = np.empty((len(place) // int(widths[-1]), int(widths[-1])))
        back = np.zeros((len(count), len(place)), dtype=np.int16)
        work = _combine(
            rated,
            moved,
            offsets,
            count,
            np.ascontiguousarray(place[:: widths[-1], :-1]),
            half,
            gap * (1 + 1e-9) + TOLERANCE,
            value,
            back,
        )
        self.oracle.work += abs(work)
        total = np.where((place <= slack).all(axis=1), value.ravel() - place @ (prices * unit), np.inf)
        chosen, at = np.zeros(len(count), dtype=np.int64), int(np.argmin(total))
        if not np.isfinite(total[at]):
            return chosen, False
        for pipeline in range(len(count) - 1, -1, -1):
            chosen[pipeline] = back[pipeline, at]
            at -= int(offsets[pipeline, chosen[pipeline]])
        return chosen, work >= 0 and not (charged >= self.pools).any()

    def _best_prices(self, charged: Counts, centre: Array, radius: Array, tolerance: float) -> tuple[Array, float]:
        """Return the prices ≥ 0 that maximise the bound over the columns (see `_worth`), and that bound.

        This is the ellipsoid method with deep cuts, started with half-axes `radius` around `centre`.
        """
        count = len(charged)
        use = np.ascontiguousarray(self.columns.use[:, :, charged])
        capacity = np.ascontiguousarray(self.capacity[charged])
        shape, at = np.diag(radius**2 * count), centre.copy()
        best, best_at, slope = -np.inf, centre, np.empty(count)
        for _ in range(60 * count * count + 60):
            least = int(np.argmin(at))
            if at[least] < -1e-12:
                slope = np.where(np.arange(count) == least, 1.0, 0.0)
                depth = -at[least]
            else:
                value = _worth(self.columns.cost, use, self.columns.count, capacity, at, slope)
                if value > best:
                    best, best_at = value, at.copy()
                depth = best - value
            step = shape @ slope
            norm = float(np.sqrt(max(float(step @ slope), 0.0)))
            if norm <= (tolerance if at[least] >= -1e-12 else 0.0) or depth >= norm:
                break
            cut = depth / norm
            if count == 1:
                half = float(np.sqrt(shape[0, 0]))
                low, high = at[0] - half, at[0] + half
                edge = at[0] + depth / slope[0]
                low, high = (edge, high) if slope[0] > 0 else (low, edge)
                at, shape = np.array([(low + high) / 2]), np.array([[((high - low) / 2) ** 2]])
                continue
            at = at + (1 + count * cut) / (count + 1) / norm * step
            shape = (count * count * (1 - cut * cut) / (count * count - 1)) * (
                shape - 2 * (1 + count * cut) / ((count + 1) * (1 + cut)) / (norm * norm) * np.outer(step, step)
            )
        return best_at, best

    def _repair(self, charged: Counts) -> bool:
        """Change columns one by one until all fit, then to save cost; return whether they fit.

        Until they fit, each change is the one with the least added price per unit of violation removed.
        """
        assert self.current is not None
        rows, cost, priced = self.columns.rows, self.columns.cost, self.columns.priced(self.prices)
        listed = np.arange(_CAPACITY) < self.columns.count[:, None]
        use, capacity = self.columns.use[:, :, charged], self.capacity[charged]
        scale = 1 / np.maximum(capacity, 1.0)
        for _ in range(4 * len(self.pipelines) + 100):
            used = self._used()[charged]
            more = use - use[rows, self.current][:, None]
            over = (np.maximum(used + more - capacity, 0.0) * scale).sum(axis=2)
            violation = float((np.maximum(used - capacity, 0.0) * scale).sum())
            if violation > TOLERANCE:
                useful = listed & (over < violation - TOLERANCE)
                added = np.maximum(priced - priced[rows, self.current][:, None], TOLERANCE)
                rate = np.where(useful, added / np.where(useful, violation - over, 1.0), np.inf)
            else:
                added = cost - cost[rows, self.current][:, None]
                rate = np.where(listed & (over <= TOLERANCE) & (added < -TOLERANCE), added, np.inf)
            self.oracle.work += int(self.columns.count.sum())
            best = int(np.argmin(rate))
            if not np.isfinite(rate.ravel()[best]):
                return violation <= TOLERANCE
            self.current[best // _CAPACITY] = best % _CAPACITY
        return not (self._used()[charged] > capacity + TOLERANCE).any()

    def _outside(self, active: Mask) -> Mask:
        """Return a mask of the resources without a price, not `active`, whose capacity the present choice exceeds."""
        return np.asarray(self._over() & ~active)

    def _result(self, bound: float) -> Shared:
        choices = None
        if np.isfinite(bound) and self.current is not None and not self._over().any():
            plans = self.columns.option[self.columns.rows, self.current]
            choices = tuple(self.pipelines.choice(number, plan) for number, plan in enumerate(plans))
            bound = min(bound, self._price())
        return Shared(
            choices=choices,
            bound=bound,
            unit_prices=self.prices[: self.pools].copy(),
            work=self.oracle.work,
        )


def _digest(subproblem: Subproblem) -> bytes:
    """Return a digest of everything that the solution of `subproblem` depends on."""
    digest = blake2b(digest_size=16)
    for table, prices in zip(subproblem.tables, subproblem.prices, strict=True):
        digest.update(repr((table.stage.name, sorted(table.stage.after))).encode())
        digest.update(table.digest)
        digest.update(prices.tobytes())
    digest.update(repr((subproblem.composition, subproblem.percentile, subproblem.latency_s)).encode())
    digest.update(subproblem.capacity.tobytes())
    return digest.digest()


def _paths_of(
    subproblems: Sequence[Subproblem], flats: Sequence[Flat], joined: Mask, bounds: Counts
) -> tuple[Counts, Counts]:
    """Return which stage is on which path, 0 or 1 (T, L), and the number of paths of each pipeline (P,)."""
    found = [
        _paths(subproblem, flat.stages) if joins else [np.arange(len(flat.stages))]
        for subproblem, flat, joins in zip(subproblems, flats, joined.tolist(), strict=True)
    ]
    count = np.array([min(len(paths), _JUDGED_PATHS) for paths in found], dtype=np.int64)
    on = np.zeros((int(bounds[-1]), int(count.max())), dtype=np.int64)
    for first, paths in zip(bounds[:-1].tolist(), found, strict=True):
        for number, path in enumerate(paths[:_JUDGED_PATHS]):
            on[first + path, number] = 1
    return on, count


def _rows(flat: Flat) -> list[tuple[int, Counts]]:
    """Return the stages in the order of the arrays of `flat`, each with the rows of its table in that order."""
    return [
        (stage, flat.rows[flat.offsets[number] : flat.offsets[number + 1]])
        for number, stage in enumerate(flat.stages.tolist())
    ]


def _paths(subproblem: Subproblem, order: Counts) -> list[Counts]:
    """Return the paths from the entry to a last stage, as positions in `order`; at most `_PATHS`."""
    names = [subproblem.tables[stage].stage.name for stage in order.tolist()]
    after = {subproblem.tables[stage].stage.name: subproblem.tables[stage].stage.after for stage in order.tolist()}
    ends = [name for name in names if not any(name in before for before in after.values())]
    paths: list[list[int]] = []

    def walk(name: StageName, path: list[int]) -> None:
        if len(paths) >= _PATHS:
            return
        here = [names.index(name), *path]
        if not after[name]:
            paths.append(here)
        for before in sorted(after[name]):
            walk(before, here)

    for end in ends:
        walk(end, [])
    return [np.array(path, dtype=np.int64) for path in paths]


def _divisor(steps: Array) -> int:
    """Return the greatest common divisor of all `steps`, at least 1."""
    return max(1, int(np.gcd.reduce(np.rint(np.abs(steps)).astype(np.int64).ravel())))
