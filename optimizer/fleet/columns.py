"""List the plans of each pipeline that are nearly the best at given prices of the pools: compiled code.

An option is a row of a stage's table. A plan is one option of each stage of a pipeline. A column is what matters of a
plan when the plans of many pipelines are combined: its cost, and its use of each resource. Resources are the pools and,
last, money. A priced cost is a cost plus the price of the resources used.

Sizes: N options of all pipelines, R resources, T stages of all pipelines, P pipelines, L paths, C columns listed.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimizer.runtime.compiled import compiled, inlined

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

RANK = 1e-11
"""USD per hour added for each position in a table, so that the first of several options with equal costs is chosen."""


class Options(NamedTuple):
    """The options of all pipelines in sequence: the options of a stage are neighbours, and so are a pipeline's stages.

    A plan keeps its latency limit if Σ `mean` + √Σ `excess`² is within the limit on every path.
    """

    cost: Array
    """(N,) Price in the search, in USD per hour."""
    mean: Array
    """(N,) Mean of the time in the stage, in seconds."""
    excess: Array
    """(N,) Percentile of the time in the stage minus its mean, in seconds."""
    use: Array
    """(N, R) Units used of each pool, and money in USD per hour."""
    start: Counts
    """(T + 1,) Where the options of each stage begin."""
    bounds: Counts
    """(P + 1,) Where the stages of each pipeline begin."""
    limits: Array
    """(P,) Latency limits, in seconds."""
    paths: Counts
    """(T, L) 1 where a stage is on a path of its pipeline, else 0."""
    path_count: Counts
    """(P,) How many paths a pipeline has."""


class Form(NamedTuple):
    """An additive form of the latency: a weighted sum over stages that never exceeds the latency of a plan."""

    weights: Array
    """(T, 2) Weights of mean and excess."""
    spread: Array
    """(P,) Priced cost of the best plan minus that of the best plan by this form; below 0 if not known. Searches read
    and update it."""


class Query(NamedTuple):
    """What `list_columns` is to list."""

    prices: Array
    """(R,) Price of a unit of each resource."""
    charged: Counts
    """The resources whose price is not 0."""
    window: float
    """List plans whose priced cost exceeds the best by up to this amount, in USD per hour."""
    listing: bool
    """Also keep a plan that costs more at the prices than another, if it uses less of some resource."""
    labels: int
    """The most partial plans at a time."""
    allowed: int
    """The most work, in partial plans."""


class Found(NamedTuple):
    """The plans found for each pipeline; `list_columns` fills the arrays."""

    option: Counts
    """(P, C, longest pipeline) The options of each plan, the best plan first."""
    counts: Counts
    """(P,) Number of plans."""
    complete: Counts
    """(P,) 1 where no plan within the window is missing, else 0."""
    values: Array
    """(P,) Lower bounds of the least priced cost, infinite where no plan keeps the latency limit."""


class _Rows(NamedTuple):
    """The options with their priced cost (N,) and their latency in the additive form (N,); `start` as in `Options`."""

    start: Counts
    priced: Array
    latency: Array


class _Fronts(NamedTuple):
    """For each stage, the least priced cost of the stages from it to the last, as a function of their latency.

    For stage i, `front[2·i]` has rising latencies, `front[2·i + 1]` falling costs, and `front_size[i]` is their number.
    `kept` has the options that a plan of interest may have, by rising latency; `lists` (5, ·) is scratch space.
    """

    kept: Counts
    kept_size: Counts
    front: Array
    front_size: Counts
    lists: Array


class _Partial(NamedTuple):
    """Partial plans before (`old`) and after a stage (`new`), one row each.

    `parent` is the row in `old` from which a row of `new` came, `occupied` its option of the stage. The columns of
    `old` and `new`: the least priced cost of a complete plan, latency in the additive form, priced cost, mean and
    squared excess of each path, cost, use of each charged resource.
    """

    old: Array
    new: Array
    parent: Counts
    occupied: Counts


class _Stage(NamedTuple):
    """How partial plans are judged after a stage.

    The pipeline has `on` paths; `paths` is 1 for those that the stage is on. `rest` is the front of the later stages,
    of which the first `rest_size` points are set. `limit` is the latency limit, `most` the limit of the priced cost of
    a complete plan. `judged` says how many columns are compared. `ends` is True after the last stage.
    """

    paths: Counts
    on: int
    rest: Array
    rest_size: int
    limit: float
    most: float
    judged: int
    ends: bool


@inlined
def _hull(
    first: int, last: int, rows: _Rows, limit: float, best: Counts, other: Counts
) -> tuple[float, float, float, int]:
    """Return a lower and an upper bound of the priced cost of the stages `first` to `last` - 1, within `limit`.

    The third result is the price of latency, the fourth the work. The lower bound comes from the Lagrangian relaxation
    of the latency limit; it is infinite where no options keep the limit. The upper bound is the priced cost of the
    options written to `best`, which keep the limit. Each step takes the price of latency at which the lines of the last
    two solutions meet. `other` is scratch space.
    """
    start, priced, latency = rows.start, rows.priced, rows.latency
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
    for stage in range(first, last):  # the latency left over allows cheaper options, one stage after the other
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
def _fronts(first: int, last: int, rows: _Rows, limit: float, theta: float, spread: float, fronts: _Fronts) -> int:
    """Fill `fronts` with the least priced cost of the stages from each one to the last, as a function of their latency.

    The fronts are complete for all plans within `spread` of the bound at the latency price `theta`. Return the work.
    `front_size[0]` is 0 if the fronts were too large.
    """
    start, priced, latency = rows.start, rows.priced, rows.latency
    kept, kept_size = fronts.kept, fronts.kept_size
    front, front_size, lists = fronts.front, fronts.front_size, fronts.lists
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
    kept: Counts, size: int, partial: _Partial, options: Options, rows: _Rows, charged: Counts, stage: _Stage
) -> tuple[int, float, int]:
    """Extend each of `size` partial plans by each of the options `kept` of a stage.

    A plan is dropped if it cannot end within `stage.most`, or if another is no worse in all of the `stage.judged`
    columns from the third on. In the last stage every path must keep the latency limit.

    Return the number of plans, the least priced cost of the plans left out for lack of space (infinite if there are
    none), and the work.
    """
    old, new, parent, occupied = partial.old, partial.new, partial.parent, partial.occupied
    priced, latency = rows.priced, rows.latency
    cost, mean, excess, use = options.cost, options.mean, options.excess, options.use
    paths, on, rest, rest_size = stage.paths, stage.on, stage.rest, stage.rest_size
    limit, most, judged, ends = stage.limit, stage.most, stage.judged, stage.ends
    held, left_out, work, most_rows, end = 0, np.inf, 0, new.shape[0] - 1, 2 + judged
    for number in range(size):
        for option in kept:
            lat, value = old[number, 1] + latency[option], old[number, 2] + priced[option]
            # The last entry of the front that is quick enough is the cheapest.
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
                held -= 1  # the last plan replaces the other, and the new one the last
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
def list_columns(options: Options, form: Form, query: Query, found: Found) -> int:
    """Write to `found`, for each pipeline, the plans whose priced cost is within `query.window` of the pipeline's best.

    The plan with the least priced cost comes first. With `query.listing` a plan is left out if another costs no more
    and uses no more of any charged resource; without it, if the priced cost of another is no higher.

    If there are more than `query.labels` partial plans, those nearest to the best are kept and `complete` is 0. When
    the work has exceeded `query.allowed`, each further pipeline gets only the plan of `_hull`, and its `complete` is 0.
    If no plan was found that keeps the latency limit, the plan listed keeps it in the additive form only.

    Return the work done, in partial plans.
    """
    cost, mean, excess, use = options.cost, options.mean, options.excess, options.use
    start, bounds, limits = options.start, options.bounds, options.limits
    paths, path_count = options.paths, options.path_count
    weights, spread, labels, charged, window = form.weights, form.spread, query.labels, query.charged, query.window
    column_option, count, complete, values = found.option, found.counts, found.complete, found.values
    total, longest, work = len(cost), column_option.shape[2], 0
    priced, latency = np.empty(total), np.empty(total)
    for stage in range(len(start) - 1):
        for option in range(start[stage], start[stage + 1]):
            value = cost[option] + RANK * (option - start[stage])
            for resource in charged:
                value += query.prices[resource] * use[option, resource]
            priced[option] = value
            latency[option] = weights[stage, 0] * mean[option] + weights[stage, 1] * excess[option]
    width = 4 + 2 * paths.shape[1] + len(charged)
    rows = _Rows(start, priced, latency)
    front, front_size = np.empty((2 * longest + 2, 4096)), np.empty(longest + 1, dtype=np.int64)
    kept, kept_size = np.empty(total + 1, dtype=np.int64), np.empty(len(start), dtype=np.int64)
    fronts = _Fronts(kept, kept_size, front, front_size, np.empty((5, max(4096, longest))))
    best, other = np.empty(len(start), dtype=np.int64), np.empty(len(start), dtype=np.int64)
    old, new = np.empty((labels + 1, width)), np.empty((labels + 1, width))
    parent = np.empty((longest, labels + 1), dtype=np.int64)
    occupied = np.empty((longest, labels + 1), dtype=np.int64)
    for pipeline in range(len(limits)):
        first, last, limit, on = bounds[pipeline], bounds[pipeline + 1], limits[pipeline], path_count[pipeline]
        stages = last - first
        lower, upper, theta, spent = _hull(first, last, rows, limit, best, other)
        work += spent
        values[pipeline], count[pipeline], complete[pipeline] = lower, 0, 1
        if lower == np.inf:
            continue
        count[pipeline] = 1
        for position in range(stages):
            column_option[pipeline, 0, position] = best[first + position]
        if work > query.allowed:
            complete[pipeline] = 0
            continue
        slack = 1e-9 * (1 + abs(upper))
        above = spread[pipeline] if spread[pipeline] >= 0 else 0.003 * abs(upper)
        judged = 2 + 2 * on + len(charged) if query.listing else 1 + 2 * on
        for _ in range(8):
            work += _fronts(first, last, rows, limit, theta, upper - lower + window + above + slack, fronts)
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
                    _Partial(old, new, parent[position], occupied[position]),
                    options,
                    rows,
                    charged,
                    _Stage(
                        paths[stage],
                        on,
                        front[2 * position + 2 : 2 * position + 4],
                        front_size[position + 1],
                        limit,
                        most,
                        judged,
                        position == stages - 1,
                    ),
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
                        complete[pipeline] = complete[pipeline] and not query.listing
                        break
                break
            complete[pipeline] = 0
            if left_out < np.inf:
                break
            above = least - optimum + slack if size > 0 else max(4 * above, 0.01 * abs(upper)) + slack
    return work
