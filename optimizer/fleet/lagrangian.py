"""Pools that many pipelines share, by prices: each pipeline answers for itself, the prices make the answers fit.

The Lagrangian relaxation of the pools (and of the fleet's money): at prices on them the pipelines no longer depend on
each other, and each is solved exactly, to the microsecond. The best prices give the bound; the plans met on the way,
and those nearly as good at the best prices, are combined into one that fits. The combination is a dynamic programme
over the deviations from a first solution, so that many pipelines may change at once. Where it has seen every plan
that could take part in a better solution, the bound is the cost itself: the fleet's plan is proven optimal.

Latencies add up in `Composition.SUM` in series. Otherwise an additive form that no plan is slower than (Cauchy–Schwarz
for `RSS`, a mean of the paths for joins, both equal to the true latency at the plan they are formed at) guides the
search, and what it lets through is judged by the latency itself. Where branches join, every path must keep the limit,
which bounds the cost; plans are those that keep the true latency besides.

Geoffrion 1974; Fisher 1981 (Lagrangian relaxation); Grötschel, Lovász, Schrijver 1988 (ellipsoid method).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.model import Composition, StageName
from optimizer.runtime.compiled import compiled, inlined
from optimizer.search.exact import Solution, solve
from optimizer.search.subproblem import TOLERANCE, Choice, Flat, Subproblem

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Columns = NDArray[np.int16]
Mask = NDArray[np.bool_]

WORK_LIMIT = 400_000_000
"""Units that a fleet is given where nobody says how many."""

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
_SOLVED_WORK = 20_000  # what the proof of one pipeline counts as
_MOST_SOLVED = 2_048
_NEVER = 1e15
_RANK = 1e-11  # USD per hour: of options that cost the same the one listed first is taken


_SOLVED: OrderedDict[tuple[int, bytes, bytes], tuple[Flat, Solution]] = OrderedDict()
"""Pipelines whose branches join, solved by themselves, by tables (kept with them), prices and room."""


@inlined
def _hull(
    first: int, last: int, start: Counts, priced: Array, latency: Array, limit: float, best: Counts, other: Counts
) -> tuple[float, float, float, int]:
    """Return bounds of what the stages `first` to `last` cost at least within `limit`, the price of latency, the work.

    The lower bound is that of the Lagrangian relaxation of the latency, infinite where nothing keeps the limit; the
    upper one is what `best` costs, which keeps it. The next price is where the lines of the last two solutions meet.
    """
    cost_a, lat_a, cost_b, lat_b, work = 0.0, 0.0, 0.0, 0.0, 0
    for stage in range(first, last):
        cheap, quick = start[stage], start[stage]
        for option in range(start[stage], start[stage + 1]):
            if priced[option] < priced[cheap]:
                cheap = option
            if latency[option] <= latency[quick] and (
                latency[option] < latency[quick] or priced[option] < priced[quick]
            ):
                quick = option
        best[stage] = quick
        other[stage] = cheap
        cost_a += priced[cheap]
        lat_a += latency[cheap]
        cost_b += priced[quick]
        lat_b += latency[quick]
    if lat_b > limit:
        return np.inf, np.inf, 0.0, 1
    theta = 0.0
    if lat_a <= limit:
        cost_b, lat_b = cost_a, lat_a
        for stage in range(first, last):
            best[stage] = other[stage]
    else:
        for _ in range(60):
            theta = max(0.0, (cost_b - cost_a) / (lat_a - lat_b))
            cost, lat = 0.0, 0.0
            for stage in range(first, last):
                least, weighed = start[stage], np.inf
                for option in range(start[stage], start[stage + 1]):
                    value = priced[option] + theta * latency[option]
                    if value < weighed:
                        least, weighed = option, value
                other[stage] = least
                cost += priced[least]
                lat += latency[least]
            work += start[last] - start[first]
            if cost + theta * lat >= cost_b + theta * lat_b - 1e-12 * (1 + abs(cost_b)):
                break
            if lat <= limit:
                cost_b, lat_b = cost, lat
                for stage in range(first, last):
                    best[stage] = other[stage]
            else:
                cost_a, lat_a = cost, lat
    lower = cost_b + theta * (lat_b - limit)
    for stage in range(first, last):  # what is left of the latency saves something at one stage after the other
        now = best[stage]
        choice, most = now, latency[now] + (limit - lat_b)
        for option in range(start[stage], start[stage + 1]):
            if latency[option] <= most and priced[option] < priced[choice]:
                choice = option
        lat_b += latency[choice] - latency[now]
        cost_b += priced[choice] - priced[now]
        best[stage] = choice
    return min(lower, cost_b), cost_b, theta, work


@inlined
def _fronts(
    first: int,
    last: int,
    start: Counts,
    priced: Array,
    latency: Array,
    limit: float,
    theta: float,
    spread: float,
    kept: Counts,
    kept_size: Counts,
    front: Array,
    front_size: Counts,
    lists: Array,
) -> int:
    """Fill `front` with what the stages from each one on cost at least, over the latency they may take.

    `front[2·i]` are latencies, rising, `front[2·i + 1]` prices, falling. Complete for all that comes within `spread` of
    the bound at the latency price `theta`; `kept` are the options that may, by rising latency. `lists` (5, ·) is room
    to work in. Returns the work done; `front_size[0]` is 0 where the fronts were too large.
    """
    stages, most_rows, work, quickest = last - first, front.shape[1], 0, 0.0
    front_size[0] = 0
    for stage in range(first, last):
        begin, least = start[stage], np.inf
        for option in range(begin, start[stage + 1]):
            least = min(least, priced[option] + theta * latency[option])
        count = 0
        for option in range(begin, start[stage + 1]):
            if priced[option] + theta * latency[option] - least <= spread:
                at = begin + count
                while at > begin and latency[kept[at - 1]] > latency[option]:
                    kept[at] = kept[at - 1]
                    at -= 1
                kept[at] = option
                count += 1
        kept_size[stage] = count
        quickest += latency[kept[begin]]
        lists[4, stage - first] = least
    front[2 * stages, 0], front[2 * stages + 1, 0], front_size[stages], tail = 0.0, 0.0, 1, 0.0
    for position in range(stages - 1, -1, -1):
        stage, length, size, least, source = first + position, front_size[position + 1], 0, np.inf, 0
        tail += lists[4, position]
        quickest -= latency[kept[start[stage]]]
        capacity = limit - quickest + 1e-12 * limit
        for number in range(kept_size[stage]):
            option = kept[start[stage] + number]
            more_latency, more_price = latency[option], priced[option]
            if more_price >= least:
                continue
            least = more_price
            # Two lists, both by rising latency and falling price, become one.
            one, two, merged, lowest, into = 0, 0, 0, np.inf, 1 - source
            while one < size or two < length:
                lat, price, occupied = np.inf, np.inf, True
                if two < length:
                    lat = more_latency + front[2 * position + 2, two]
                    price = more_price + front[2 * position + 3, two]
                if one < size and (
                    lists[source, one] < lat or (lists[source, one] == lat and lists[2 + source, one] <= price)
                ):
                    lat, price = lists[source, one], lists[2 + source, one]
                    one += 1
                elif lat > capacity:
                    two, occupied = length, False
                else:
                    two += 1
                    occupied = price + theta * lat - tail <= spread
                if occupied and price < lowest:
                    if merged == most_rows:
                        return work
                    lowest = price
                    lists[into, merged], lists[2 + into, merged] = lat, price
                    merged += 1
            work += merged
            size, source = merged, into
        for point in range(size):
            front[2 * position, point], front[2 * position + 1, point] = lists[source, point], lists[2 + source, point]
        front_size[position] = size
    return work


@inlined
def _extended(
    options: Counts,
    size: int,
    old: Array,
    new: Array,
    parent: Counts,
    occupied: Counts,
    priced: Array,
    latency: Array,
    cost: Array,
    mean: Array,
    excess: Array,
    use: Array,
    charged: Counts,
    paths: Counts,
    on: int,
    rest: Array,
    rest_size: int,
    limit: float,
    most: float,
    judged: int,
    ends: bool,
) -> tuple[int, float, int]:
    """Extend `size` partial plans by each of `options`; return how many there are, the least left out, and the work.

    Of each plan, `old` and `new` hold: the least priced cost it can end with, its latency in the additive form, its
    priced cost, mean and squared excess for each path, cost, use of each charged resource. One that cannot end within
    `most` is dropped (`rest` is the front of what is to come), and one that is no better in any of the `judged` columns
    from the third on. `paths` are the numbers of the paths that the stage is `on`, which are all but those not there;
    where the plan `ends`, each must keep the limit. The least left out is the price of the best that found no room.
    """
    held, left_out, work, most_rows, end = 0, np.inf, 0, new.shape[0] - 1, 2 + judged
    for number in range(size):
        for option in options:
            lat, value = old[number, 1] + latency[option], old[number, 2] + priced[option]
            # The last of the front that is quick enough is the cheapest.
            low, high, capacity = 0, rest_size, limit + 2e-12 * limit - lat
            while low < high:
                middle = (low + high) // 2
                if rest[0, middle] <= capacity:
                    low = middle + 1
                else:
                    high = middle
            if low == 0 or value + rest[1, low - 1] > most:
                continue
            work += 1
            new[held, 0], new[held, 1], new[held, 2] = value + rest[1, low - 1], lat, value
            late = False
            for path in range(on):
                a, b = old[number, 3 + 2 * path], old[number, 4 + 2 * path]
                if paths[path]:
                    a += mean[option]
                    b += excess[option] * excess[option]
                if ends:
                    late = late or a + np.sqrt(b) > limit + 2e-12 * limit
                    a, b = 0.0, 0.0
                new[held, 3 + 2 * path], new[held, 4 + 2 * path] = a, b
            if late:
                continue
            at = 3 + 2 * on
            new[held, at] = old[number, at] + cost[option]
            for resource in charged:
                at += 1
                new[held, at] = old[number, at] + use[option, resource]
            beaten, other = False, 0
            while other < held:
                worse, better = False, False  # the new one, in some column
                for column in range(2, end):
                    difference = new[held, column] - new[other, column]
                    worse = worse or difference > 1e-12
                    better = better or difference < -1e-12
                if not better:
                    beaten = True
                    break
                if worse:
                    other += 1
                    continue
                held -= 1  # the other one goes; the last takes its place, the new one that of the last
                for column in range(new.shape[1]):
                    new[other, column] = new[held, column]
                    new[held, column] = new[held + 1, column]
                parent[other], occupied[other] = parent[held], occupied[held]
            if beaten:
                continue
            at = held
            if held == most_rows:
                for other in range(held):
                    if new[other, 0] > new[at, 0]:
                        at = other
                left_out = min(left_out, new[at, 0])
                if at == held:
                    continue
                for column in range(new.shape[1]):
                    new[at, column] = new[held, column]
            else:
                held += 1
            parent[at], occupied[at] = number, option
    return held, left_out, work


@compiled
def _columns(
    prices: Array,
    charged: Counts,
    window: float,
    listing: bool,
    cost: Array,
    mean: Array,
    excess: Array,
    weights: Array,
    use: Array,
    start: Counts,
    bounds: Counts,
    limits: Array,
    paths: Counts,
    path_count: Counts,
    spread: Array,
    labels: int,
    allowed: int,
    column_option: Counts,
    count: Counts,
    complete: Counts,
    values: Array,
) -> int:
    """List for each pipeline the plans whose priced cost is within `window` of its best at `prices`.

    Shapes: options N, resources R, those with a price A, stages T, pipelines P, plans listed C, paths L. `cost`, `mean`
    and `excess` are (N,), `use` (N, R), `start` (T + 1,) the options of each stage, `bounds` (P + 1,) the stages of
    each pipeline, `limits` (P,). A plan keeps its limit where Σ mean + √Σ excess² does on every path; `paths` (T, L)
    says which stage is on which, and `weights` (T, 2) of mean and excess make an additive form that no plan is slower
    than. `spread` (P,) is how far the best was above the best of that form (below 0: not known), in and out.

    The plans are `column_option` (P, C, longest pipeline), the best first, their number `count` (P,). `values` (P,) are
    the least priced costs, or floors of them, infinite where the limit cannot be kept. With `listing` a plan is left
    out where another costs no more and uses no more of any resource, without where another is no dearer at the
    prices. With more than `labels` partial plans those nearest to the best are looked at and `complete` is 0; so it is
    for all pipelines after the one where the work came to what is `allowed`, which get what their hull says. Where
    nothing was found that keeps the limit, the plan listed keeps that of the additive form. Returns the work done.
    """
    options, longest, work = len(cost), column_option.shape[2], 0
    priced, latency = np.empty(options), np.empty(options)
    for stage in range(len(start) - 1):
        for option in range(start[stage], start[stage + 1]):
            value = cost[option] + _RANK * (option - start[stage])
            for resource in charged:
                value += prices[resource] * use[option, resource]
            priced[option] = value
            latency[option] = weights[stage, 0] * mean[option] + weights[stage, 1] * excess[option]
    width = 4 + 2 * paths.shape[1] + len(charged)
    front, front_size = np.empty((2 * longest + 2, 4096)), np.empty(longest + 1, dtype=np.int64)
    lists = np.empty((5, max(4096, longest)))
    kept, kept_size = np.empty(options + 1, dtype=np.int64), np.empty(len(start), dtype=np.int64)
    best, other = np.empty(len(start), dtype=np.int64), np.empty(len(start), dtype=np.int64)
    old, new = np.empty((labels + 1, width)), np.empty((labels + 1, width))
    parent = np.empty((longest, labels + 1), dtype=np.int64)
    occupied = np.empty((longest, labels + 1), dtype=np.int64)
    for pipeline in range(len(limits)):
        first, last, limit, on = bounds[pipeline], bounds[pipeline + 1], limits[pipeline], path_count[pipeline]
        stages = last - first
        lower, upper, theta, spent = _hull(first, last, start, priced, latency, limit, best, other)
        work += spent
        values[pipeline], count[pipeline], complete[pipeline] = lower, 0, 1
        if lower == np.inf:
            continue
        count[pipeline] = 1
        for position in range(stages):
            column_option[pipeline, 0, position] = best[first + position]
        if work > allowed:
            complete[pipeline] = 0
            continue
        slack = 1e-9 * (1 + abs(upper))
        above = spread[pipeline] if spread[pipeline] >= 0 else 0.003 * abs(upper)
        judged = 2 + 2 * on + len(charged) if listing else 1 + 2 * on
        for _ in range(8):
            work += _fronts(
                first,
                last,
                start,
                priced,
                latency,
                limit,
                theta,
                upper - lower + window + above + slack,
                kept,
                kept_size,
                front,
                front_size,
                lists,
            )
            if front_size[0] == 0:
                complete[pipeline] = 0
                break
            optimum = front[1, front_size[0] - 1]
            most, left_out, size = optimum + window + above + slack, np.inf, 1
            for column in range(width):
                old[0, column] = 0.0
            for position in range(stages):
                stage = first + position
                size, lost, spent = _extended(
                    kept[start[stage] : start[stage] + kept_size[stage]],
                    size,
                    old,
                    new,
                    parent[position],
                    occupied[position],
                    priced,
                    latency,
                    cost,
                    mean,
                    excess,
                    use,
                    charged,
                    paths[stage],
                    on,
                    front[2 * position + 2 : 2 * position + 4],
                    front_size[position + 1],
                    limit,
                    most,
                    judged,
                    position == stages - 1,
                )
                left_out = min(left_out, lost)
                work += spent
                old, new = new, old
            least, at = np.inf, 0
            for number in range(size):
                if old[number, 2] < least:
                    least, at = old[number, 2], number
            values[pipeline] = min(least, left_out, most)
            if size > 0 and (least + window <= most or left_out < np.inf):
                complete[pipeline] = left_out == np.inf
                spread[pipeline] = least - optimum
                count[pipeline] = 0
                for number in range(size):
                    this = at if number == 0 else (0 if number == at else number)
                    if old[this, 2] > least + window + slack:
                        continue
                    column = count[pipeline]
                    count[pipeline] += 1
                    for position in range(stages - 1, -1, -1):
                        column_option[pipeline, column, position] = occupied[position, this]
                        this = parent[position, this]
                    if count[pipeline] == column_option.shape[1]:
                        complete[pipeline] = complete[pipeline] and not listing
                        break
                break
            complete[pipeline] = 0
            if left_out < np.inf:
                break
            above = least - optimum + slack if size > 0 else max(4 * above, 0.01 * abs(upper)) + slack
    return work


@compiled
def _worth(column_cost: Array, column_use: Array, count: Counts, capacity: Array, prices: Array, slope: Array) -> float:
    """Return the bound at `prices` over the columns alone; `slope` (R,) becomes its derivative."""
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
    back: Columns,
) -> int:
    """Sum up one column of each pipeline at least cost, for every deviation in a box.

    `rated` (P, C) is what a column costs, `moved` (P, C, A) how far it deviates on each axis, `offset` (P, C) the same
    in states. A state of the box is a deviation so far, counted from the middle; `half` (A,) are the half-widths. The
    last axis runs along `value` (rows, W), the others are those of a row in `place` (rows, A - 1). `value` becomes the
    least sums; `back` (P, states) are the columns they took last. Sums above `most` are dropped. Returns the work done,
    below zero if a sum left the box.
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
    subproblems: Sequence[Subproblem],
    capacity: Counts,
    *,
    own_budgets: Sequence[float] = (),
    budget_per_hour: float = np.inf,
    start: Array | None = None,
    search_effort: int | None = None,
    prove: bool = True,
) -> Shared:
    """Return how `subproblems` share the `capacity` at least price.

    `start` are unit prices to begin with (K,): those of a similar question save most of the work. The work is counted
    in partial choices; once `search_effort` is spent the best found so far is returned. Without `prove` the first way
    that fits is returned, after one round of exchanges.
    """
    nothing = Shared(choices=None, bound=np.inf, unit_prices=np.zeros(len(capacity)), money_price=0.0, work=0)
    if any(len(table) == 0 for subproblem in subproblems for table in subproblem.tables):
        return nothing
    search_ = _Search(
        subproblems, capacity, own_budgets, budget_per_hour, WORK_LIMIT if search_effort is None else search_effort
    )
    return search_.run(start, prove)


class _Search:
    """One question: the options of all pipelines side by side, the columns met so far, the best prices and choice."""

    def __init__(
        self,
        subproblems: Sequence[Subproblem],
        capacity: Counts,
        own_budgets: Sequence[float],
        budget_per_hour: float,
        limit: int,
    ) -> None:
        self.subproblems = subproblems
        flats = [subproblem.flat for subproblem in subproblems]
        self.pools = len(capacity)
        self.capacity = np.append(capacity.astype(np.float64), budget_per_hour)
        self.own = np.array(own_budgets or [np.inf] * len(subproblems))
        self.flats = flats
        sizes = np.array([flat.offsets[-1] for flat in flats], dtype=np.int64)
        self.offset = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
        starts = [flat.offsets[:-1] + base for flat, base in zip(flats, self.offset[:-1], strict=True)]
        self.start = np.concatenate((*starts, self.offset[-1:]))
        self.bounds = np.cumsum([0, *(len(flat.stages) for flat in flats)])
        self.pipeline_of = np.repeat(np.arange(len(subproblems)), np.diff(self.bounds))
        self.position_of = np.arange(self.bounds[-1]) - self.bounds[self.pipeline_of]
        self.longest = int(np.diff(self.bounds).max())
        self.cost = np.concatenate([flat.price for flat in flats])
        self.mean = np.concatenate([flat.mean_s for flat in flats])
        self.excess = np.concatenate([flat.excess_s for flat in flats])
        self.use = np.empty((len(self.cost), self.pools + 1))
        self.use[:, : self.pools] = np.concatenate([flat.use for flat in flats])
        self.use[:, self.pools] = self.cost
        if np.isfinite(budget_per_hour) or np.isfinite(self.own).any():  # nobody asks otherwise
            self.use[:, self.pools] = np.concatenate(
                [
                    subproblem.tables[stage].cost_per_hour[rows]
                    for subproblem, flat in zip(subproblems, flats, strict=True)
                    for stage, rows in _rows(flat)
                ]
            )
        self.limits = np.minimum(np.array([subproblem.latency_s for subproblem in subproblems]), _NEVER)
        self.composed = np.array([subproblem.composition is Composition.RSS for subproblem in subproblems])
        self.joined = np.array([not subproblem.shape.serial for subproblem in subproblems])
        self.additive = ~(self.composed | self.joined)
        self.work, self.limit = 0, limit
        self._find_paths()
        self.spread = np.where(self.additive, 0.0, -1.0)
        count = len(subproblems)
        self.column_cost = np.full((count, _CAPACITY), np.inf)
        self.column_use = np.zeros((count, _CAPACITY, self.pools + 1))
        self.column_option = np.full((count, _CAPACITY, self.longest), -1, dtype=np.int32)
        self.count = np.zeros(count, dtype=np.int64)
        self.current: Counts | None = None
        self.values = np.full(count, -np.inf)  # of the last answers: floors of their priced costs
        self.bound = -np.inf
        self.prices = np.zeros(self.pools + 1)

    # Latency in an additive form.

    def _find_paths(self) -> None:
        """Set which stage is on which path (T, L), how many there are (P,), and the first form (T, 2)."""
        found = [
            _paths(subproblem, flat.stages) if joined else [np.arange(len(flat.stages))]
            for subproblem, flat, joined in zip(self.subproblems, self.flats, self.joined.tolist(), strict=True)
        ]
        self.path_count = np.array([min(len(paths), _JUDGED_PATHS) for paths in found], dtype=np.int64)
        self.paths = np.zeros((int(self.bounds[-1]), int(self.path_count.max())), dtype=np.int64)
        for first, paths in zip(self.bounds[:-1].tolist(), found, strict=True):
            for number, path in enumerate(paths[:_JUDGED_PATHS]):
                self.paths[first + path, number] = 1
        self.weights = np.ones((int(self.bounds[-1]), 2))
        self._weigh(np.zeros(len(self.pipeline_of)), np.ones(len(self.pipeline_of)), ~self.additive)

    def _fit_form(self, options: Counts) -> None:
        """Form the latency anew so that it is the true one at `options` (P, longest), where any are."""
        wanted = ~self.additive & (options[:, 0] >= 0)
        if wanted.any():
            chosen = options[self.pipeline_of, self.position_of]
            self._weigh(self.mean[chosen], np.abs(self.excess[chosen]), wanted)

    def _weigh(self, mean: Array, excess: Array, wanted: Mask) -> None:
        """Set the weights of the pipelines `wanted` so that the form touches where stages have `mean` and `excess`."""
        if not wanted.any():
            return
        starts, squares = self.bounds[:-1], excess * excess
        length = np.stack(
            [
                np.add.reduceat(mean * on, starts) + np.sqrt(np.add.reduceat(squares * on, starts))
                for on in self.paths.T
            ],
            axis=1,
        )
        length[np.arange(length.shape[1]) >= self.path_count[:, None]] = -np.inf
        longest = length >= length.max(axis=1)[:, None] - 1e-12
        share = longest / longest.sum(axis=1)[:, None]
        norm = np.stack([np.sqrt(np.add.reduceat(squares * on, starts)) for on in self.paths.T], axis=1)
        root = share / np.where(norm > 0, norm, np.inf)
        on_mean = (self.paths * share[self.pipeline_of]).sum(axis=1)
        on_excess = excess * (self.paths * root[self.pipeline_of]).sum(axis=1)
        take = wanted[self.pipeline_of]
        self.weights[take, 0] = on_mean[take]
        self.weights[take, 1] = np.where(self.composed[self.pipeline_of], on_excess, 0.0)[take]

    # Answers at prices, and columns.

    def _list(
        self, prices: Array, window: float, *, listed: int = 1, labels: int = _LABELS[0], cost: Array | None = None
    ) -> tuple[Counts, Counts, Counts, Array]:
        """Return the plans near the best at `prices`: options (P, C, longest), count, complete, values (P,)."""
        pipelines = len(self.subproblems)
        found = np.full((pipelines, listed, self.longest), -1, dtype=np.int64)
        count, complete = np.zeros(pipelines, dtype=np.int64), np.zeros(pipelines, dtype=np.int64)
        values = np.empty(pipelines)
        self.work += _columns(
            prices,
            np.nonzero(prices)[0],
            window,
            listed > 1,
            self.cost if cost is None else cost,
            self.mean,
            self.excess,
            self.weights,
            self.use,
            self.start,
            self.bounds,
            self.limits,
            self.paths,
            self.path_count,
            self.spread,
            labels,
            max(0, self.limit - self.work),
            found,
            count,
            complete,
            values,
        )
        return found, count, complete, values

    def _true(self, number: int, options: Counts) -> bool:
        """Return whether a choice keeps the latency, by the composition itself."""
        if self.joined[number]:
            return self.subproblems[number].latency(self._choice(number, options)) <= self.subproblems[number].latency_s
        occupied = options[: len(self.flats[number].stages)]
        latency = self.mean[occupied].sum() + np.sqrt((self.excess[occupied] ** 2).sum())
        return bool(latency <= self.limits[number] * (1 + 1e-11))

    def _choice(self, number: int, options: Counts) -> Choice:
        flat = self.flats[number]
        return flat.choice(options[: len(flat.stages)] - self.offset[number])

    def _add(self, options: Counts, wanted: Mask) -> None:
        """Add a column for each pipeline where it is `wanted`, is new, keeps the latency and the own budget."""
        filled, most = options >= 0, int(self.count.max()) + 1
        cost = np.where(filled, self.cost[options], 0.0).sum(axis=1)
        use = np.where(filled[:, :, None], self.use[options], 0.0).sum(axis=1)
        known = np.arange(most) < self.count[:, None]
        for position in range(self.longest):
            known &= self.column_option[:, :most, position] == options[:, None, position]
        new = wanted & ~known.any(axis=1) & (use[:, -1] <= self.own + TOLERANCE) & (self.count < _CAPACITY)
        for number in np.nonzero(new & ~self.additive)[0].tolist():
            new[number] = self._true(number, options[number])
        rows = np.nonzero(new)[0]
        at = self.count[rows]
        self.column_cost[rows, at] = cost[rows]
        self.column_use[rows, at] = use[rows]
        self.column_option[rows, at] = options[rows]
        self.count[rows] += 1

    def _ask_and_add(self, prices: Array, *, labels: int | None = None) -> float:
        """Return the bound at `prices`; the answers become columns."""
        if labels is None:
            labels = _LABELS[0] if self.additive.all() else _LABELS[2]
        options, count, _, self.values = self._list(prices, 0.0, labels=labels)
        options = np.where(count[:, None] > 0, options[:, 0], -1)
        self._add(options, count > 0)
        self._fit_form(options)
        return self._bound_at(prices)

    def _ask_joined(self, prices: Array) -> float:
        """Return the bound at `prices`, of which the last answers are, once joins are solved by themselves.

        Their answers become columns, and those of pipelines that have none yet, which no additive form has found.
        """
        for number in np.nonzero(self.joined | (self.count == 0))[0].tolist():
            subproblem, flat = self.subproblems[number], self.flats[number]
            key = id(flat), prices.tobytes(), subproblem.capacity.tobytes()
            if key not in _SOLVED:
                priced = [
                    np.asarray(own + table.use @ prices[:-1] + prices[-1] * table.cost_per_hour)
                    for own, table in zip(subproblem.prices, subproblem.tables, strict=True)
                ]
                _SOLVED[key] = flat, solve(subproblem.priced(priced))
                if len(_SOLVED) > _MOST_SOLVED:
                    _SOLVED.popitem(last=False)
            self.work += _SOLVED_WORK
            solution = _SOLVED[key][1]
            self.values[number] = max(self.values[number], solution.bound)
            if solution.walk is None:
                continue
            options = np.full((len(self.subproblems), self.longest), -1, dtype=np.int64)
            options[number, : len(flat.stages)] = flat.position(solution.walk.answer) + self.offset[number]
            self._add(options, np.arange(len(self.subproblems)) == number)
        return self._bound_at(prices)

    def _bound_at(self, prices: Array) -> float:
        charged = prices > 0
        ranks = _RANK * float(np.diff(self.start).sum())  # at most what the ranks have added
        return float(self.values.sum() - prices[charged] @ self.capacity[charged]) - ranks

    def _priced(self) -> Array:
        return self.column_cost + self.column_use @ self.prices

    def _used(self) -> Array:
        assert self.current is not None
        return np.asarray(self.column_use[np.arange(len(self.subproblems)), self.current].sum(axis=0))

    def _price(self) -> float:
        assert self.current is not None
        return float(self.column_cost[np.arange(len(self.subproblems)), self.current].sum())

    def _over(self) -> Mask:
        return np.asarray(self._used() > self.capacity + 1e-9 * np.maximum(1.0, np.abs(self.capacity)))

    # The search.

    def run(self, start: Array | None, prove: bool) -> Shared:
        if not self.additive.all():
            for _ in range(3):
                self._ask_and_add(self.prices, labels=_LABELS[1])
        at_least = self._ask_and_add(self.prices)
        if not np.isfinite(at_least):
            return self._result(np.inf)
        at_least = max(at_least, self._ask_joined(self.prices))
        if not np.isfinite(at_least):
            return self._result(np.inf)
        if np.isfinite(self.capacity[-1]) or np.isfinite(self.own).any():
            options, count, _, _ = self._list(self.prices, 0.0, labels=_LABELS[2], cost=self.use[:, -1].copy())
            self._add(options[:, 0], count > 0)
        if (self.count == 0).any():
            return self._result(np.inf if self.additive[self.count == 0].any() else at_least)
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
        if not self.additive.all():
            self.bound = max(self.bound, self._ask_and_add(self.prices))
            self.bound = max(self.bound, self._ask_joined(self.prices))
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
        most_rows = int(np.clip(20_000 // len(self.subproblems), _COLUMNS, 400))
        for _ in range(_POLISHES):
            gap, before = self._price() - self.bound, self._price()
            if gap <= _PRECISE * max(1.0, abs(self.bound)) or self.work > self.limit:
                return
            cost, use, options, count, complete = self._near(charged, gap, most_rows)
            chosen, all_seen = self._combined(cost, use, count, charged, gap)
            rows = np.arange(len(count))
            last = np.full(len(count), _CAPACITY - 1, dtype=np.int64)
            self.column_cost[:, -1] = cost[rows, chosen]
            self.column_use[:, -1] = use[rows, chosen]
            self.column_option[:, -1] = options[rows, chosen]
            self.current = last
            if all_seen and complete.all() and not self.joined.any() and not self._outside(active).any():
                self.bound = max(self.bound, self._price())
                return
            if self._price() > before - _PRECISE * max(1.0, abs(before)):
                return

    def _near(self, charged: Counts, window: float, most_rows: int) -> tuple[Array, Array, Counts, Counts, Counts]:
        """Return the columns within `window` of each pipeline's best, the present choice first."""
        prices = np.zeros(self.pools + 1)
        prices[charged] = self.prices[charged]
        listed, count, complete, _ = self._list(prices, window, listed=most_rows, labels=most_rows)
        most = int(count.max())
        within = np.arange(most) < count[:, None]
        rows = np.arange(len(self.subproblems))
        own = self.column_option[rows, self.current].astype(np.int64)
        options = np.concatenate((own[:, None], np.where(within[..., None], listed[:, :most], -1)), axis=1)
        cost, use = np.zeros(options.shape[:2]), np.zeros((*options.shape[:2], self.pools + 1))
        for position in range(self.longest):
            filled = options[:, :, position] >= 0
            cost += np.where(filled, self.cost[options[:, :, position]], 0.0)
            use += np.where(filled[..., None], self.use[options[:, :, position]], 0.0)
        cost[:, 1:][~within] = np.inf
        count += 1
        poor = (use[:, :, -1] > self.own[:, None] + TOLERANCE) & np.isfinite(cost)
        for number in np.nonzero(~self.additive & ((complete == 0) | self.joined))[0].tolist():
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
        left, prices = (self.capacity - self._used())[charged], self.prices[charged]
        unit = np.ones(len(charged))
        for axis, resource in enumerate(charged.tolist()):
            whole = resource < self.pools
            unit[axis] = _divisor(steps[..., axis]) if whole else max(self.capacity[resource] / _MONEY_STEPS, TOLERANCE)
        moved = np.ceil(steps / unit - 1e-9).astype(np.int64)
        slack = np.floor(left / unit + 1e-9).astype(np.int64)
        priced = cost + use[:, :, charged] @ prices
        rated = np.minimum(priced - priced.min(axis=1)[:, None], _NEVER)
        affordable = min(_SUMS, max(0, 8 * (self.limit - self.work)))
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
        self.work += work if work >= 0 else -work
        total = np.where((place <= slack).all(axis=1), value.ravel() - place @ (prices * unit), np.inf)
        chosen, at = np.zeros(len(count), dtype=np.int64), int(np.argmin(total))
        if not np.isfinite(total[at]):
            return chosen, False
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
        capacity = np.ascontiguousarray(self.capacity[charged])
        shape, at = np.diag(radius**2 * count), centre.copy()
        best, best_at, slope = -np.inf, centre, np.empty(count)
        for _ in range(60 * count * count + 60):
            least = int(np.argmin(at))
            if at[least] < -1e-12:
                slope = np.where(np.arange(count) == least, 1.0, 0.0)
                depth = -at[least]
            else:
                value = _worth(self.column_cost, use, self.count, capacity, at, slope)
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
        rows, priced = np.arange(len(self.subproblems)), self._priced()
        listed = np.arange(_CAPACITY) < self.count[:, None]
        use, capacity = self.column_use[:, :, charged], self.capacity[charged]
        scale = 1 / np.maximum(capacity, 1.0)
        for _ in range(4 * len(self.subproblems) + 100):
            used = self._used()[charged]
            more = use - use[rows, self.current][:, None]
            over = (np.maximum(used + more - capacity, 0.0) * scale).sum(axis=2)
            violation = float((np.maximum(used - capacity, 0.0) * scale).sum())
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
        return not (self._used()[charged] > capacity + TOLERANCE).any()

    def _outside(self, active: Mask) -> Mask:
        """Return the resources without a price that the present choice exceeds."""
        return np.asarray(self._over() & ~active)

    def _result(self, bound: float) -> Shared:
        choices = None
        if np.isfinite(bound) and self.current is not None and not self._over().any():
            options = self.column_option[np.arange(len(self.subproblems)), self.current]
            choices = tuple(self._choice(number, options[number]) for number in range(len(self.subproblems)))
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


def _paths(subproblem: Subproblem, order: Counts) -> list[Counts]:
    """Return ways from the entry to a last stage, as positions in `order`; at most `_PATHS`."""
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
    """Return the largest number that divides all `steps`, at least 1."""
    return max(1, int(np.gcd.reduce(np.rint(np.abs(steps)).astype(np.int64).ravel())))
