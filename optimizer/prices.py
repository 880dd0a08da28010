"""Pools that many pipelines share, by prices: each pipeline answers for itself, the prices make the answers fit.

The Lagrangian relaxation of the pools (and of the fleet's money): at prices on them the pipelines no longer depend on
each other, and each is solved exactly, to the microsecond. The best prices give the bound; the plans met on the way,
and those nearly as good at the best prices, are combined into one that fits. The combination is a dynamic programme
over the deviations from a first solution, so that many pipelines may change at once. Where it has seen every plan
that could take part in a better solution, the bound is the cost itself: the fleet's plan is proven optimal.

Latencies are additive here. `Composition.SUM` in series is that already. Otherwise two additive forms enclose the true
one: a relaxation (Cauchy–Schwarz for `RSS`, a mean of the paths for joins) bounds the cost, and a restriction
(√E ≤ E/2τ + τ/2) finds plans; both touch the true latency at the plan they are formed at.

Geoffrion 1974; Fisher 1981 (Lagrangian relaxation); Grötschel, Lovász, Schrijver 1988 (ellipsoid method).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.case import TOLERANCE, Case, Choice, Flat
from optimizer.compiled import compiled
from optimizer.greedy import search
from optimizer.model import Composition, StageName

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Columns = NDArray[np.int16]
Mask = NDArray[np.bool_]

WORK_LIMIT = 400_000_000
"""Units that a fleet is given where nobody says how many."""

_COLUMNS = 64
_TIES = 4
_CAPACITY = 160
_ROUNDS = 24
_PRECISE = 1e-7
_PATHS = 64
_STATES = (9_000, 300_000)
_SUMS = 10_000_000
_POLISHES = 4
_MONEY_STEPS = 4_000
_NEVER = 1e15
_RANK = 1e-11  # USD per hour: of options that cost the same the one listed first is taken


@compiled
def _fronts(
    first: int,
    last: int,
    start: Counts,
    priced: Array,
    latency: Array,
    limit: float,
    window: float,
    best: Counts,
    kept: Counts,
    kept_size: Counts,
    front: Array,
    front_size: Counts,
    scratch: Array,
) -> tuple[float, float, float, int]:
    """Fill `front` with what the stages from each one on cost at least, over the latency they may take.

    For the stages `first` to `last` of one pipeline, whose options (`start`, sorted by latency) cost `priced`:
    `front[i, 0]` are latencies, rising, `front[i, 1]` prices, falling. Complete for all that comes within `window` of
    the optimum; `kept` are the options that may. Returns a lower and an upper bound of the optimum (equal to it unless
    the fronts were too large, then `front_size[0]` is 0), the price of latency, and the work done. `best` is a choice
    that keeps the limit at the upper bound. The lower bound is infinite where nothing keeps the limit.
    """
    stages = last - first
    cost_a, lat_a, cost_b, lat_b, work = 0.0, 0.0, 0.0, 0.0, 0
    for stage in range(first, last):
        cheap, quick = start[stage], start[stage]
        for option in range(start[stage], start[stage + 1]):
            if priced[option] < priced[cheap]:
                cheap = option
            if latency[option] == latency[quick] and priced[option] < priced[quick]:
                quick = option
        best[stage] = quick
        kept[stage] = cheap  # for now: the cheapest choice
        cost_a += priced[cheap]
        lat_a += latency[cheap]
        cost_b += priced[quick]
        lat_b += latency[quick]
    front_size[0] = 0
    if lat_b > limit:
        return np.inf, np.inf, 0.0, 1
    theta = 0.0
    if lat_a <= limit:
        cost_b, lat_b = cost_a, lat_a
        for stage in range(first, last):
            best[stage] = kept[stage]
    else:
        for _ in range(60):
            theta = max(0.0, (cost_b - cost_a) / (lat_a - lat_b))
            cost, lat = 0.0, 0.0
            for stage in range(first, last):
                least = start[stage]
                for option in range(start[stage], start[stage + 1]):
                    if priced[option] + theta * latency[option] < priced[least] + theta * latency[least]:
                        least = option
                kept[stage] = least
                cost += priced[least]
                lat += latency[least]
            work += start[last] - start[first]
            if cost + theta * lat >= cost_b + theta * lat_b - 1e-12 * (1 + abs(cost_b)):
                break
            if lat <= limit:
                cost_b, lat_b = cost, lat
                for stage in range(first, last):
                    best[stage] = kept[stage]
            else:
                cost_a, lat_a = cost, lat
    lower = cost_b + theta * (lat_b - limit) if theta > 0 else cost_b
    for stage in range(first, last):  # what is left of the latency saves something at one stage after the other
        now = best[stage]
        choice = now
        for option in range(start[stage], start[stage + 1]):
            if latency[option] > latency[now] + (limit - lat_b):
                break
            if priced[option] < priced[choice]:
                choice = option
        lat_b += latency[choice] - latency[now]
        cost_b += priced[choice] - priced[now]
        best[stage] = choice
    upper = cost_b
    lower = min(lower, upper)
    spread = upper - lower + window + 1e-9 * (1 + abs(upper))

    # Options that no solution within the spread takes are left out.
    quickest = 0.0
    for stage in range(first, last):
        least = np.inf
        for option in range(start[stage], start[stage + 1]):
            least = min(least, priced[option] + theta * latency[option])
        count = 0
        for option in range(start[stage], start[stage + 1]):
            if priced[option] + theta * latency[option] - least <= spread:
                kept[start[stage] + count] = option
                count += 1
        kept_size[stage] = count
        quickest += latency[start[stage]]
        scratch[2, stage - first] = least

    capacity = front.shape[2]
    front[stages, 0, 0] = 0.0
    front[stages, 1, 0] = 0.0
    front_size[stages] = 1
    tail = 0.0
    for position in range(stages - 1, -1, -1):
        stage = first + position
        tail += scratch[2, position]
        quickest -= latency[start[stage]]
        size, least = 0, np.inf
        source = 0
        for number in range(kept_size[stage]):
            option = kept[start[stage] + number]
            if priced[option] >= least:
                continue
            least = priced[option]
            # Two lists, both by rising latency and falling price, become one.
            one, two, merged, lowest = 0, 0, 0, np.inf
            into = 1 - source
            while one < size or two < front_size[position + 1]:
                if two < front_size[position + 1]:
                    lat2 = latency[option] + front[position + 1, 0, two]
                    price2 = priced[option] + front[position + 1, 1, two]
                else:
                    lat2, price2 = np.inf, np.inf
                if one < size and (
                    scratch[3 + 2 * source, one] < lat2
                    or (scratch[3 + 2 * source, one] == lat2 and scratch[4 + 2 * source, one] <= price2)
                ):
                    lat, price = scratch[3 + 2 * source, one], scratch[4 + 2 * source, one]
                    one += 1
                else:
                    lat, price = lat2, price2
                    two += 1
                    if lat > limit - quickest + 1e-12 * limit:
                        two = front_size[position + 1]
                        continue
                    if price + theta * lat - tail > spread:
                        continue
                if price < lowest:
                    if merged == capacity:
                        front_size[0] = 0
                        return lower, upper, theta, work
                    lowest = price
                    scratch[3 + 2 * into, merged] = lat
                    scratch[4 + 2 * into, merged] = price
                    merged += 1
            work += merged
            size, source = merged, into
        for point in range(size):
            front[position, 0, point] = scratch[3 + 2 * source, point]
            front[position, 1, point] = scratch[4 + 2 * source, point]
        front_size[position] = size
    optimum = front[0, 1, front_size[0] - 1]
    return optimum, optimum, theta, work


@compiled
def _least(front: Array, size: int, latency: float) -> float:
    """Return the least price on a front within `latency`, infinite when there is none."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if front[0, middle] <= latency:
            low = middle + 1
        else:
            high = middle
    return np.inf if low == 0 else front[1, low - 1]


@compiled
def _columns(
    prices: Array,
    window: float,
    cost: Array,
    latency: Array,
    use: Array,
    start: Counts,
    bounds: Counts,
    limits: Array,
    column_option: Counts,
    count: Counts,
    complete: Counts,
    values: Array,
) -> int:
    """List for each pipeline the plans whose priced cost is within `window` of its best at `prices`.

    Shapes: options N, resources R, stages T, pipelines P, plans listed C. `cost` and `latency` are (N,), `use` (N, R),
    `start` (T + 1,) the options of each stage by rising latency, `bounds` (P + 1,) the stages of each pipeline,
    `limits` (P,). The plans are `column_option` (P, C, longest pipeline), their number `count` (P,). `values` (P,) are
    the least priced costs, or floors of them, infinite where the limit cannot be kept. A plan is left out when another
    costs no more and uses no more of any resource. Where there are more than C partial plans, those nearest to the
    best are listed and `complete` is 0. Returns the work done.
    """
    options, pipelines, resources, work = len(cost), len(limits), len(prices), 0
    priced = np.empty(options)
    for option in range(options):
        value = cost[option]
        for resource in range(resources):
            value += prices[resource] * use[option, resource]
        priced[option] = value
    capacity, longest = column_option.shape[1], column_option.shape[2]
    front = np.empty((longest + 1, 2, 4096))
    front_size = np.zeros(longest + 1, dtype=np.int64)
    scratch = np.empty((7, max(4096, longest)))
    kept = np.empty(options + 1, dtype=np.int64)
    kept_size = np.empty(len(start), dtype=np.int64)
    best = np.empty(len(start), dtype=np.int64)
    # Of each label: cost, latency, use, priced cost of the best plan through it, priced cost so far.
    label = np.empty((longest + 1, capacity, 4 + resources))
    parent = np.empty((longest + 1, capacity), dtype=np.int64)
    taken = np.empty((longest + 1, capacity), dtype=np.int64)
    size = np.zeros(longest + 1, dtype=np.int64)
    new = np.empty(4 + resources)
    for pipeline in range(pipelines):
        first, last, limit = bounds[pipeline], bounds[pipeline + 1], limits[pipeline]
        lower, _, _, spent = _fronts(
            first, last, start, priced, latency, limit, window, best, kept, kept_size, front, front_size, scratch
        )
        work += spent
        values[pipeline] = lower
        count[pipeline] = 0
        complete[pipeline] = 1
        if front_size[0] == 0:
            complete[pipeline] = 0
            if lower < np.inf:
                count[pipeline] = 1
                for stage in range(first, last):
                    column_option[pipeline, 0, stage - first] = best[stage]
            continue
        for column in range(4 + resources):
            label[0, 0, column] = 0.0
        size[0] = 1
        most = lower + window + 1e-9 * (1 + abs(lower))
        for position in range(last - first):
            stage, size[position + 1] = first + position, 0
            for number in range(size[position]):
                for index in range(kept_size[stage]):
                    option = kept[start[stage] + index]
                    lat = label[position, number, 1] + latency[option]
                    so_far = label[position, number, 3 + resources] + priced[option]
                    through = so_far + _least(
                        front[position + 1], front_size[position + 1], limit + 2e-12 * limit - lat
                    )
                    if through > most:
                        continue
                    new[0] = label[position, number, 0] + cost[option]
                    new[1] = lat if position + 1 < last - first else 0.0
                    new[2 + resources] = through
                    new[3 + resources] = so_far
                    for resource in range(resources):
                        new[2 + resource] = label[position, number, 2 + resource] + use[option, resource]
                    work += 1
                    held, beaten, worst = size[position + 1], False, -1
                    other = 0
                    while other < held:
                        no_worse, no_better = True, True
                        for column in range(2 + resources):
                            if label[position + 1, other, column] > new[column] + 1e-12:
                                no_worse = False
                            if label[position + 1, other, column] < new[column] - 1e-12:
                                no_better = False
                        if no_worse:
                            beaten = True
                            break
                        if no_better:
                            held -= 1
                            for column in range(4 + resources):
                                label[position + 1, other, column] = label[position + 1, held, column]
                            parent[position + 1, other] = parent[position + 1, held]
                            taken[position + 1, other] = taken[position + 1, held]
                        else:
                            other += 1
                    if not beaten:
                        if held == capacity:
                            complete[pipeline] = 0
                            worst = 0
                            for other in range(held):
                                if (
                                    label[position + 1, other, 2 + resources]
                                    > label[position + 1, worst, 2 + resources]
                                ):
                                    worst = other
                            if label[position + 1, worst, 2 + resources] <= through:
                                worst = -1
                        else:
                            worst = held
                            held += 1
                        if worst >= 0:
                            for column in range(4 + resources):
                                label[position + 1, worst, column] = new[column]
                            parent[position + 1, worst] = number
                            taken[position + 1, worst] = option
                    size[position + 1] = held
        stages = last - first
        count[pipeline] = size[stages]
        for number in range(size[stages]):
            at = number
            for position in range(stages - 1, -1, -1):
                column_option[pipeline, number, position] = taken[position + 1, at]
                at = parent[position + 1, at]
    return work


@compiled
def _worth(column_cost: Array, column_use: Array, count: Counts, room: Array, prices: Array, slope: Array) -> float:
    """Return the bound at `prices` over the columns alone; `slope` (R,) becomes its derivative."""
    value = 0.0
    for resource in range(len(prices)):
        slope[resource] = -room[resource]
        value -= prices[resource] * room[resource]
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
    rated: Array, moved: Counts, count: Counts, place: Counts, half: Counts, most: float, value: Array, back: Columns
) -> int:
    """Sum up one column of each pipeline at least cost, for every deviation in a box.

    `rated` (P, C) is what a column costs, `moved` (P, C, A) how far it deviates on each axis. A state of the box is a
    deviation so far: `place` (states, A) counted from the middle, `half` (A,) the half-widths, the last axis running
    fastest. `value` (states,) starts infinite but for the middle and ends as the least sums; `back` (P, states) are the
    columns they took last. Sums above `most` are dropped. Returns the work done, below zero if a sum left the box.
    """
    states, axes, work, left_box = len(value), len(half), 0, False
    following = np.empty(states)
    low, high = 0, states
    for pipeline in range(len(count)):
        while low < states and value[low] == np.inf:
            low += 1
        while high > low and value[high - 1] == np.inf:
            high -= 1
        for state in range(states):
            following[state] = np.inf
        for number in range(count[pipeline]):
            rate, offset = rated[pipeline, number], 0
            if rate > most:
                continue
            for axis in range(axes):
                offset = offset * (2 * half[axis] + 1) + moved[pipeline, number, axis]
            for state in range(low, high):
                total = value[state] + rate
                if total > most:
                    continue
                inside = True
                for axis in range(axes):
                    if abs(place[state, axis] + moved[pipeline, number, axis]) > half[axis]:
                        inside = False
                if not inside:
                    left_box = True
                elif total < following[state + offset] - 1e-12:
                    following[state + offset] = total
                    back[pipeline, state + offset] = number
            work += high - low
        for state in range(states):
            value[state] = following[state]
        low, high = 0, states
    return -work // 8 - 1 if left_box else work // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """How pipelines share the pools: a row of each stage's table for each, None where no way was found.

    `bound` is proven: no way to share costs less (in the search's prices); infinite when there is none. `unit_prices`
    (K,) are what one more unit of each pool is worth, `money_price` what a dollar more in the budget.
    """

    choices: tuple[Choice, ...] | None
    bound: float
    unit_prices: Array
    money_price: float
    work: int


def share_pools(
    cases: Sequence[Case],
    room: Counts,
    *,
    own_budgets: Sequence[float] = (),
    budget_per_hour: float = np.inf,
    start: Array | None = None,
    work_limit: int | None = None,
    prove: bool = True,
) -> Shared:
    """Return how `cases` share the `room` at least price.

    `start` are unit prices to begin with (K,): those of a similar question save most of the work. The work is counted
    in partial choices; once `work_limit` is spent the best found so far is returned. Without `prove` the first way
    that fits is returned, after one round of exchanges.
    """
    nothing = Shared(choices=None, bound=np.inf, unit_prices=np.zeros(len(room)), money_price=0.0, work=0)
    if any(len(table) == 0 for case in cases for table in case.tables):
        return nothing
    search_ = _Search(cases, room, own_budgets, budget_per_hour, WORK_LIMIT if work_limit is None else work_limit)
    return search_.run(start, prove)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """The options with one additive latency, as the compiled code takes them: those of a stage by rising latency."""

    option: Counts
    cost: Array
    latency: Array
    use: Array
    limits: Array


class _Search:
    """One question: the options of all pipelines side by side, the columns met so far, the best prices and choice."""

    def __init__(
        self, cases: Sequence[Case], room: Counts, own_budgets: Sequence[float], budget_per_hour: float, limit: int
    ) -> None:
        self.cases = cases
        flats = [case.flat for case in cases]
        self.pools = len(room)
        self.room = np.append(room.astype(np.float64), budget_per_hour)
        self.own = np.array(own_budgets or [np.inf] * len(cases))
        self.flats = flats
        sizes = np.array([flat.offsets[-1] for flat in flats], dtype=np.int64)
        self.offset = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
        starts = [flat.offsets[:-1] + base for flat, base in zip(flats, self.offset[:-1], strict=True)]
        self.start = np.concatenate((*starts, self.offset[-1:]))
        self.bounds = np.cumsum([0, *(len(flat.stages) for flat in flats)])
        self.longest = int(np.diff(self.bounds).max())
        self.cost = np.concatenate([flat.price for flat in flats])
        self.mean = np.concatenate([flat.mean_s for flat in flats])
        self.excess = np.concatenate([flat.excess_s for flat in flats])
        money = self.cost
        if np.isfinite(budget_per_hour) or np.isfinite(self.own).any():  # nobody asks otherwise
            money = np.concatenate(
                [
                    case.tables[stage].cost_per_hour[rows]
                    for case, flat in zip(cases, flats, strict=True)
                    for stage, rows in _rows(flat)
                ]
            )
        self.use = np.column_stack((np.concatenate([flat.use for flat in flats]).astype(np.float64), money))
        self.stage_of = np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))
        self.rank = np.arange(len(self.stage_of)) - self.start[self.stage_of]
        self.pipeline_of = np.repeat(np.arange(len(cases)), sizes)
        self.limits = np.minimum(np.array([case.latency_s for case in cases]), _NEVER)
        self.composed = np.array([case.composition is Composition.RSS for case in cases])
        self.joined = np.array([not case.shape.serial for case in cases])
        self.exact = ~(self.composed | self.joined)
        self.work, self.limit = 0, limit
        self.weights = self._first_weights()
        self.spread_s = np.maximum(self.limits / 4, 1e-9)
        self.loose = self._loose()
        self.tight = self.loose if self.exact.all() else self._tight()
        count = len(cases)
        self.column_cost = np.full((count, _CAPACITY), np.inf)
        self.column_use = np.zeros((count, _CAPACITY, self.pools + 1))
        self.column_option = np.full((count, _CAPACITY, self.longest), -1, dtype=np.int64)
        self.count = np.zeros(count, dtype=np.int64)
        self.current: Counts | None = None
        self.bound = -np.inf
        self.prices = np.zeros(self.pools + 1)

    # Latency in additive forms.

    def _form(self, latency: Array, limits: Array) -> _Form:
        order = np.lexsort((np.arange(len(latency)), self.cost, latency, self.stage_of))
        return _Form(
            option=order,
            cost=(self.cost + _RANK * self.rank)[order],
            latency=latency[order],
            use=np.ascontiguousarray(self.use[order]),
            limits=limits,
        )

    def _first_weights(self) -> Array:
        """Return for each stage how its mean and its excess count in the relaxation (T, 2)."""
        weights = np.ones((len(self.start) - 1, 2))
        for number, case in enumerate(self.cases):
            if not self.exact[number]:
                self._weigh(weights, number, case, None)
        return weights

    def _weigh(self, weights: Array, number: int, case: Case, options: Counts | None) -> None:
        """Set the weights of one pipeline so that the relaxation touches the true latency at `options`."""
        first, last = self.bounds[number], self.bounds[number + 1]
        excess = np.ones(last - first) if options is None else np.abs(self.excess[options])
        mean = np.zeros(last - first) if options is None else self.mean[options]
        paths = _paths(case, self.flats[number].stages) if self.joined[number] else [np.arange(last - first)]
        if not paths:
            paths = [np.arange(0)]
        length = [float(mean[path].sum() + np.sqrt((excess[path] ** 2).sum())) for path in paths]
        longest = max(length)
        taken = [path for path, one in zip(paths, length, strict=True) if one >= longest - 1e-12]
        weights[first:last] = 0.0
        for path in taken:
            norm = float(np.sqrt((excess[path] ** 2).sum()))
            weights[first + path, 0] += 1 / len(taken)
            if self.composed[number] and norm > 0:
                weights[first + path, 1] += excess[path] / norm / len(taken)

    def _loose(self) -> _Form:
        """Return the form that no plan is slower than in truth: it bounds."""
        latency = self.mean * self.weights[self.stage_of, 0] + self.excess * self.weights[self.stage_of, 1]
        return self._form(latency, self.limits)

    def _tight(self) -> _Form:
        """Return the form that no plan is faster than in truth, joins aside: what it allows is a plan."""
        spread = self.spread_s[self.pipeline_of]
        squares = np.where(self.composed[self.pipeline_of], self.excess**2 / (2 * spread), 0.0)
        return self._form(self.mean + squares, self.limits - np.where(self.composed, self.spread_s / 2, 0.0))

    def _fit_forms(self) -> None:
        """Form both anew where the cheapest columns at the present prices are."""
        if self.exact.all():
            return
        for number in np.nonzero(~self.exact & (self.count > 0))[0].tolist():
            column = int(np.argmin(self._priced()[number]))
            first, last = self.bounds[number], self.bounds[number + 1]
            options = self.column_option[number, column, : last - first]
            self._weigh(self.weights, number, self.cases[number], options)
            self.spread_s[number] = max(1e-9, float(np.sqrt((self.excess[options] ** 2).sum())))
        self.loose, self.tight = self._loose(), self._tight()

    # Answers at prices, and columns.

    def _ask(self, form: _Form, prices: Array, cost: Array | None = None) -> tuple[Counts, Array]:
        """Return the options that the pipelines choose at `prices` (P, longest) and their priced costs (P,)."""
        options, count, _, values = self._list(form, prices, 0.0, _TIES, cost)
        return np.where(count[:, None] > 0, options[:, 0], -1), values

    def _list(
        self, form: _Form, prices: Array, window: float, capacity: int, cost: Array | None = None
    ) -> tuple[Counts, Counts, Counts, Array]:
        """Return the plans near the best at `prices`: options (P, C, longest), count, complete, values (P,)."""
        used = np.nonzero(prices)[0]
        pipelines = len(self.cases)
        found = np.full((pipelines, capacity, self.longest), -1, dtype=np.int64)
        count, complete = np.zeros(pipelines, dtype=np.int64), np.zeros(pipelines, dtype=np.int64)
        values = np.empty(pipelines)
        self.work += _columns(
            np.ascontiguousarray(prices[used]),
            window,
            form.cost if cost is None else np.ascontiguousarray(cost[form.option]),
            form.latency,
            np.ascontiguousarray(form.use[:, used]),
            self.start,
            self.bounds,
            form.limits,
            found,
            count,
            complete,
            values,
        )
        return np.where(found >= 0, form.option[found], -1), count, complete, values

    def _true(self, number: int, options: Counts) -> bool:
        """Return whether a choice keeps the latency, by the composition itself."""
        case, flat = self.cases[number], self.flats[number]
        stages = len(flat.stages)
        if self.exact[number]:
            return bool(self.mean[options[:stages]].sum() <= self.limits[number] * (1 + 1e-11))
        if not self.joined[number]:
            taken = options[:stages]
            latency = self.mean[taken].sum() + np.sqrt((self.excess[taken] ** 2).sum())
            return bool(latency <= self.limits[number] * (1 + 1e-11))
        return case.latency(self._choice(number, options)) <= case.latency_s

    def _choice(self, number: int, options: Counts) -> Choice:
        flat = self.flats[number]
        return flat.choice(options[: len(flat.stages)] - self.offset[number])

    def _add(self, options: Counts, wanted: Mask) -> None:
        """Add a column for each pipeline where it is `wanted`, is new, keeps the latency and the own budget."""
        filled = options >= 0
        cost = np.where(filled, self.cost[options], 0.0).sum(axis=1)
        use = np.where(filled[:, :, None], self.use[options], 0.0).sum(axis=1)
        known = (self.column_option == options[:, None]).all(axis=2) & (np.arange(_CAPACITY) < self.count[:, None])
        new = wanted & ~known.any(axis=1) & (use[:, -1] <= self.own + TOLERANCE) & (self.count < _CAPACITY)
        for number in np.nonzero(new & ~self.exact)[0].tolist():
            new[number] = self._true(number, options[number])
        rows = np.nonzero(new)[0]
        at = self.count[rows]
        self.column_cost[rows, at] = cost[rows]
        self.column_use[rows, at] = use[rows]
        self.column_option[rows, at] = options[rows]
        self.count[rows] += 1

    def _ask_and_add(self, prices: Array) -> float:
        """Return the bound at `prices`; the answers become columns."""
        options, values = self._ask(self.loose, prices)
        self._add(options, np.isfinite(values))
        if not self.exact.all():
            options, fits = self._ask(self.tight, prices)
            self._add(options, np.isfinite(fits) & ~self.joined)
        charged = prices > 0
        ranks = _RANK * float(np.diff(self.start).sum())  # at most what the ranks have added
        return float(values.sum() - prices[charged] @ self.room[charged]) - ranks

    def _ask_joined(self, prices: Array) -> None:
        """Add what the search finds for pipelines whose branches join, which no additive form decides."""
        for number in np.nonzero(~self.exact)[0].tolist():
            if self.count[number] and not self.joined[number]:
                continue
            case, flat = self.cases[number], self.flats[number]
            money = np.array([0.0])
            priced = [
                np.asarray(own + table.use @ prices[:-1] + prices[-1] * table.cost_per_hour + money)
                for own, table in zip(case.prices, case.tables, strict=True)
            ]
            walk = search(case.priced(priced))
            self.work += 1000
            if walk is None:
                continue
            options = np.full((len(self.cases), self.longest), -1, dtype=np.int64)
            options[number, : len(flat.stages)] = flat.position(walk.answer) + self.offset[number]
            self._add(options, np.arange(len(self.cases)) == number)

    def _priced(self) -> Array:
        return self.column_cost + self.column_use @ self.prices

    def _used(self) -> Array:
        assert self.current is not None
        return np.asarray(self.column_use[np.arange(len(self.cases)), self.current].sum(axis=0))

    def _price(self) -> float:
        assert self.current is not None
        return float(self.column_cost[np.arange(len(self.cases)), self.current].sum())

    def _over(self) -> Mask:
        return np.asarray(self._used() > self.room + 1e-9 * np.maximum(1.0, np.abs(self.room)))

    # The search.

    def run(self, start: Array | None, prove: bool) -> Shared:
        at_least = self._ask_and_add(self.prices)
        if not np.isfinite(at_least):
            return self._result(np.inf)
        for _ in range(0 if self.exact.all() else 3):
            self._fit_forms()
            at_least = max(at_least, self._ask_and_add(self.prices))
        self._ask_joined(self.prices)
        if np.isfinite(self.room[-1]) or np.isfinite(self.own).any():
            options, values = self._ask(self.tight, self.prices, self.use[:, -1])
            self._add(options, np.isfinite(values))
        if (self.count == 0).any():
            return self._result(np.inf if self.exact[self.count == 0].any() else at_least)
        self.bound = at_least
        self.current = np.argmin(self._priced(), axis=1)
        active = self._over()
        if not active.any():
            return self._result(self.bound)
        fits = False
        for _ in range(self.pools + 1):
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
        """Raise the bound by prices on the `active` resources; False where it proves that nothing fits."""
        charged = np.nonzero(active)[0]
        used = np.maximum(self._used()[charged], 1.0)
        scale = 4 * max(self._price(), 1e-6) / used
        most = float(np.maximum.reduceat(self.cost, self.start[:-1]).sum())
        centre = self.prices[charged].copy()
        if start is not None:
            self._try(charged, start[charged[charged < self.pools]])
            centre, scale = self.prices[charged].copy(), scale / 16
        radius = scale.copy()
        for _ in range(_ROUNDS):
            tolerance = _PRECISE * max(1.0, abs(self.bound))
            mid, value = self._best_prices(charged, centre, radius, tolerance / 4)
            self.work += int(self.count.sum())
            moved = np.abs(mid - centre)
            if value - self.bound <= tolerance and np.all(moved < radius):
                break
            radius = np.where(moved > radius / 2, radius * 4, np.maximum(radius / 4, 2 * moved))
            radius = np.maximum(radius, scale * 1e-5)
            self._try(charged, mid)
            centre = mid
            if self.bound > most + 1e-6 * (1 + abs(most)):
                return False
            if self.work > self.limit:
                break
        return True

    def _try(self, charged: Counts, prices: Array) -> None:
        at = np.zeros(self.pools + 1)
        at[charged[: len(prices)]] = np.maximum(prices, 0.0)
        bound = self._ask_and_add(at)
        if bound > self.bound:
            self.bound, self.prices = bound, at

    def _fit(self, active: Mask) -> bool:
        """Choose columns that fit the `active` resources together; ask at higher prices while none do."""
        charged = np.nonzero(active)[0]
        self._fit_forms()
        if not self.exact.all():
            self.bound = max(self.bound, self._ask_and_add(self.prices))
            self._ask_joined(self.prices)
        floor = 0.1 * self._price() / np.maximum(self._used(), 1.0)
        for factor in (1.0, 2.0, 5.0, 25.0, 625.0):
            if factor > 1:
                dearer = np.where(active, np.maximum(self.prices, floor) * factor, 0.0)
                self._ask_and_add(dearer)
                self._ask_joined(dearer)
            self.current = np.argmin(self._priced(), axis=1)
            if self._repair(charged):
                return True
        return False

    def _polish(self, active: Mask) -> None:
        """Combine the plans that are nearly the best at the prices into one that fits at least price."""
        charged = np.nonzero(active)[0]
        capacity = int(np.clip(20_000 // len(self.cases), _COLUMNS, 400))
        for _ in range(_POLISHES):
            gap, before = self._price() - self.bound, self._price()
            if gap <= _PRECISE * max(1.0, abs(self.bound)) or self.work > self.limit:
                return
            cost, use, options, count, complete = self._near(charged, gap, capacity)
            chosen, all_seen = self._combined(cost, use, count, charged, gap)
            rows = np.arange(len(count))
            last = np.full(len(count), _CAPACITY - 1, dtype=np.int64)
            self.column_cost[:, -1] = cost[rows, chosen]
            self.column_use[:, -1] = use[rows, chosen]
            self.column_option[:, -1] = options[rows, chosen]
            self.current = last
            if all_seen and complete.all() and self.exact.all() and not self._outside(active).any():
                self.bound = max(self.bound, self._price())
                return
            if self._price() > before - _PRECISE * max(1.0, abs(before)):
                return

    def _near(self, charged: Counts, window: float, capacity: int) -> tuple[Array, Array, Counts, Counts, Counts]:
        """Return the columns within `window` of each pipeline's best, the present choice first."""
        pipelines = len(self.cases)
        cost = np.full((pipelines, capacity + 1), np.inf)
        use = np.zeros((pipelines, capacity + 1, self.pools + 1))
        options = np.full((pipelines, capacity + 1, self.longest), -1, dtype=np.int64)
        prices = np.zeros(self.pools + 1)
        prices[charged] = self.prices[charged]
        listed, count, complete, _ = self._list(self.tight, prices, window, capacity)
        rows = np.arange(pipelines)
        cost[:, 0] = self.column_cost[rows, self.current]
        use[:, 0] = self.column_use[rows, self.current]
        options[:, 0] = self.column_option[rows, self.current]
        within = np.arange(capacity) < count[:, None]
        listed[~within] = -1
        options[:, 1:] = listed
        use[:, 1:] = np.where((listed >= 0)[..., None], self.use[listed], 0.0).sum(axis=2)
        cost[:, 1:] = np.where(within, np.where(listed >= 0, self.cost[listed], 0.0).sum(axis=2), np.inf)
        count += 1
        poor = (use[:, :, -1] > self.own[:, None] + TOLERANCE) & np.isfinite(cost)
        for number in np.nonzero(self.joined)[0].tolist():
            for column in range(1, int(count[number])):
                poor[number, column] |= not self._true(number, options[number, column])
        if poor.any():  # put them where they are never taken; what they beat is lost with them
            cost[poor] = _NEVER
            complete[poor.any(axis=1)] = 0
        return cost, use, options, count, complete

    def _combined(self, cost: Array, use: Array, count: Counts, charged: Counts, gap: float) -> tuple[Counts, bool]:
        """Return the best combination of columns, the first of each the present one, and whether all were looked at."""
        steps = use[:, :, charged] - use[:, :1, charged]
        steps[np.arange(cost.shape[1]) >= count[:, None]] = 0
        left, prices = (self.room - self._used())[charged], self.prices[charged]
        unit = np.ones(len(charged))
        for axis, resource in enumerate(charged.tolist()):
            whole = resource < self.pools
            unit[axis] = _divisor(steps[..., axis]) if whole else max(self.room[resource] / _MONEY_STEPS, TOLERANCE)
        moved = np.ceil(steps / unit - 1e-9).astype(np.int64)
        slack = np.floor(left / unit + 1e-9).astype(np.int64)
        priced = cost + use[:, :, charged] @ prices
        rated = np.minimum(priced - priced.min(axis=1)[:, None], _NEVER)
        states = float(np.clip(_SUMS / np.count_nonzero(rated <= gap), *_STATES))
        half = np.full(len(charged), int((states ** (1 / len(charged)) - 1) / 2), dtype=np.int64)
        axes = [np.arange(-one, one + 1) for one in half.tolist()]
        place = np.ascontiguousarray(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(charged)))
        value = np.full(len(place), np.inf)
        value[len(place) // 2] = 0.0
        back = np.zeros((len(count), len(place)), dtype=np.int16)
        work = _combine(rated, moved, count, place, half, gap * (1 + 1e-9) + TOLERANCE, value, back)
        self.work += work if work >= 0 else -work
        total = np.where((place <= slack).all(axis=1), value - place @ (prices * unit), np.inf)
        chosen, at = np.zeros(len(count), dtype=np.int64), int(np.argmin(total))
        if not np.isfinite(total[at]):
            return chosen, False
        widths = 2 * half + 1
        offsets = moved @ np.array([int(np.prod(widths[axis + 1 :])) for axis in range(len(half))])
        for pipeline in range(len(count) - 1, -1, -1):
            chosen[pipeline] = back[pipeline, at]
            at -= int(offsets[pipeline, chosen[pipeline]])
        return chosen, work >= 0 and not (charged == self.pools).any()

    def _best_prices(self, charged: Counts, centre: Array, radius: Array, tolerance: float) -> tuple[Array, float]:
        """Return the prices ≥ 0 that maximise the bound over the columns alone, and that bound.

        The ellipsoid method with deep cuts, from half-axes `radius` around `centre`.
        """
        count = len(charged)
        use = np.ascontiguousarray(self.column_use[:, :, charged])
        room = np.ascontiguousarray(self.room[charged])
        shape, at = np.diag(radius**2 * count), centre.copy()
        best, best_at, slope = -np.inf, centre, np.empty(count)
        for _ in range(60 * count * count + 60):
            least = int(np.argmin(at))
            if at[least] < -1e-12:
                slope = np.where(np.arange(count) == least, 1.0, 0.0)
                depth = -at[least]
            else:
                value = _worth(self.column_cost, use, self.count, room, at, slope)
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
        """Make the present choice fit by the least priced cost for each unit of violation, then cheaper, one by one."""
        assert self.current is not None
        rows, priced = np.arange(len(self.cases)), self._priced()
        listed = np.arange(_CAPACITY) < self.count[:, None]
        use, room = self.column_use[:, :, charged], self.room[charged]
        scale = 1 / np.maximum(room, 1.0)
        for _ in range(4 * len(self.cases) + 100):
            used = self._used()[charged]
            more = use - use[rows, self.current][:, None]
            over = (np.maximum(used + more - room, 0.0) * scale).sum(axis=2)
            violation = float((np.maximum(used - room, 0.0) * scale).sum())
            if violation > TOLERANCE:
                useful = listed & (over < violation - TOLERANCE)
                added = np.maximum(priced - priced[rows, self.current][:, None], TOLERANCE)
                rate = np.where(useful, added / np.where(useful, violation - over, 1.0), np.inf)
            else:
                added = self.column_cost - self.column_cost[rows, self.current][:, None]
                rate = np.where(listed & (over <= TOLERANCE) & (added < -TOLERANCE), added, np.inf)
            self.work += int(self.count.sum())
            best = int(np.argmin(rate))
            if not np.isfinite(rate.ravel()[best]):
                return violation <= TOLERANCE
            self.current[best // _CAPACITY] = best % _CAPACITY
        return not (self._used()[charged] > room + TOLERANCE).any()

    def _outside(self, active: Mask) -> Mask:
        """Return the resources without a price that the present choice exceeds."""
        return np.asarray(self._over() & ~active)

    def _result(self, bound: float) -> Shared:
        choices = None
        if np.isfinite(bound) and self.current is not None and not self._over().any():
            options = self.column_option[np.arange(len(self.cases)), self.current]
            choices = tuple(self._choice(number, options[number]) for number in range(len(self.cases)))
            bound = min(bound, self._price())
        return Shared(
            choices=choices,
            bound=bound,
            unit_prices=self.prices[:-1].copy(),
            money_price=float(self.prices[-1]),
            work=self.work,
        )


def _rows(flat: Flat) -> list[tuple[int, Counts]]:
    """Return the stages in the order of the arrays, each with the rows of its table in that order."""
    return [
        (stage, flat.rows[flat.offsets[number] : flat.offsets[number + 1]])
        for number, stage in enumerate(flat.stages.tolist())
    ]


def _paths(case: Case, order: Counts) -> list[Counts]:
    """Return ways from the entry to a last stage, as positions in `order`; at most `_PATHS`."""
    names = [case.tables[stage].stage.name for stage in order.tolist()]
    after = {case.tables[stage].stage.name: case.tables[stage].stage.after for stage in order.tolist()}
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
    """Return the largest number that divides all `steps`, at least 1."""
    return max(1, int(np.gcd.reduce(np.rint(np.abs(steps)).astype(np.int64).ravel())))
