"""The greedy search: spend the next dollar on the stage where it saves most latency, then remove what is not needed.

It starts from the cheapest allocation that carries the load. Before each step it notes the cheapest single change that
would meet the latency limit; the cheapest of these is the plan. Then changes of one stage, and of two stages together,
lower the cost until none does. The steps explain the plan; `optimizer.search.exact` improves and proves the result.
"""

from dataclasses import dataclass
from itertools import combinations
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from optimizer.runtime.compiled import compiled
from optimizer.runtime.effort import ROWS
from optimizer.search.subproblem import MOST, TOLERANCE, Choice, Flat, Subproblem, Walk, latency_limit_s, with_row

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

_EXCHANGE_LIMIT = 5_000_000  # pairs of rows: more would take gigabytes and minutes
_EXCHANGE_BLOCK = 512
_LIMITS_TRIED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """All changes of one stage of a choice: for each row of each stage the added price, the latency, and if it fits."""

    stages: tuple[int, ...]
    added: tuple[Array, ...]
    latencies: tuple[Array, ...]
    fits: tuple[Mask, ...]


def search(subproblem: Subproblem, at_most: float = np.inf, *, exchanges: bool = True) -> Walk | None:
    """Return the walk to a cheap choice within the latency limit and the capacity, or None if none was found.

    The price of the choice is at most `at_most`. Where branches join, `exchanges=False` leaves out changes of two
    stages together.
    """
    start = cheapest(subproblem)
    if start is None:
        return None
    if subproblem.shape.serial:
        return walked(subproblem, start, at_most)
    walk = _descend(subproblem, Walk(visited=(start,)), at_most)
    if walk is not None:
        return _trim(subproblem, walk, exchanges)
    return _serially(subproblem, start, at_most) if subproblem.exhausted else None


def _serially(subproblem: Subproblem, start: Choice, at_most: float) -> Walk | None:
    """Return a walk for a pipeline with joins as if its stages ran one after the other, which is fast to search.

    The limit for their sum is the one, of a few between a fifth of the SLA and the SLA times the stages, with which the
    choice found is cheapest and its real latency keeps the SLA.
    """
    best: Walk | None = None
    low, high = 0.2, float(len(subproblem.tables))
    for _ in range(_LIMITS_TRIED):
        factor = sqrt(low * high)
        walk = walked(subproblem.for_latency(factor * subproblem.latency_s), start, at_most)
        if walk is None:
            low = factor
        elif subproblem.latency(walk.answer) <= subproblem.latency_s:
            best, low = walk, factor
        else:
            high = factor
    return best


def walked(subproblem: Subproblem, start: Choice, at_most: float) -> Walk | None:
    """Return the same as `search`, but start from the choice `start`. Only for pipelines without joins."""
    flat = subproblem.flat
    at = flat.position(start)
    found, steps = descended(subproblem, at, flat.price, at_most)
    if not found:
        return None
    visited = [start]
    for row in steps.tolist():
        stage = int(np.searchsorted(flat.offsets, row, side="right")) - 1
        visited.append(with_row(visited[-1], int(flat.stages[stage]), int(flat.rows[row])))
    return Walk(visited=tuple(visited)).to(flat.choice(at))


def descended(subproblem: Subproblem, at: Counts, guide: Array, at_most: float) -> tuple[bool, Counts]:
    """Set `at`, positions in `Subproblem.flat`, to the result of a greedy search that starts there.

    `guide` (N,) are the prices by which steps are chosen. Return whether a choice within the limits and `at_most` was
    found (else `at` stays), and the rows of the steps. Only for pipelines without joins.
    """
    flat, moves = subproblem.flat, np.empty(len(subproblem.flat.price) + 1, dtype=np.int64)
    latency_s = latency_limit_s(subproblem)
    subproblem.charge(len(flat.price) * len(flat.offsets) / ROWS)
    count = _descended(
        flat,
        guide,
        subproblem.capacity,
        latency_s,
        min(at_most, MOST),
        np.empty_like(subproblem.capacity),
        np.empty_like(at),
        at,
        moves,
    )
    if count < 0:
        return False, moves[:0]
    sizes = np.diff(flat.offsets)
    pairs = int(sizes.sum() ** 2 - (sizes**2).sum()) // 2
    exchanges = pairs <= _EXCHANGE_LIMIT and not subproblem.exhausted
    subproblem.charge(pairs / ROWS if exchanges else 0.0)
    _trimmed(
        flat,
        subproblem.capacity,
        latency_s,
        exchanges,
        np.empty_like(subproblem.capacity),
        at,
    )
    return True, moves[:count]


def cheapest_fitting(subproblem: Subproblem, guide: Array) -> Counts | None:
    """Return the same choice as `cheapest`, but at the prices `guide` and as positions in `Subproblem.flat`."""
    flat, capacity = subproblem.flat, subproblem.capacity
    at = np.empty(len(subproblem.tables), dtype=np.int64)
    return at if _cheapest_fitting(flat, guide, capacity, np.empty_like(capacity), at) else None


def cheapest(subproblem: Subproblem) -> Choice | None:
    """Return the cheapest choice that carries the load within the capacity at any latency; None if none was found.

    Where the cheapest rows together exceed the capacity, rows are changed until they fit, each time the one with the
    least price per unit freed. The result may then not be the cheapest.
    """
    if any(len(table) == 0 for table in subproblem.tables):
        return None
    at = cheapest_fitting(subproblem, subproblem.flat.price)
    return None if at is None else subproblem.flat.choice(at)


def steepest(subproblem: Subproblem, choice: Choice) -> Choice | None:
    """Return `choice` after the change of one stage that saves most latency per price; None if none saves latency."""
    return _steepest(_view(subproblem, choice), choice, subproblem.latency(choice))


@compiled
def _cheapest_fitting(flat: Flat, guide: Array, capacity: Counts, occupied: Counts, at: Counts) -> bool:
    """Set `at` to the cheapest rows of each stage, changed until they fit `capacity`; return whether they fit.

    Each change is the one with the least price per unit freed. `occupied` is scratch space.
    """
    offsets, use = flat.offsets, flat.use
    stages, pools = len(offsets) - 1, use.shape[1]
    for pool in range(pools):
        occupied[pool] = 0
    for stage in range(stages):
        at[stage] = offsets[stage]
        for row in range(offsets[stage], offsets[stage + 1]):
            if guide[row] < guide[at[stage]]:
                at[stage] = row
        for pool in range(pools):
            occupied[pool] += use[at[stage], pool]
    while True:
        excess = 0
        for pool in range(pools):
            excess += max(occupied[pool] - capacity[pool], 0)
        if excess == 0:
            return True
        best, best_stage, best_row = np.inf, -1, -1
        for stage in range(stages):
            for row in range(offsets[stage], offsets[stage + 1]):
                left = 0
                for pool in range(pools):
                    left += max(occupied[pool] - use[at[stage], pool] + use[row, pool] - capacity[pool], 0)
                if left < excess:
                    value = max(guide[row] - guide[at[stage]], 0.0) / (excess - left)
                    if value < best:
                        best, best_stage, best_row = value, stage, row
        if best_stage < 0:
            return False
        for pool in range(pools):
            occupied[pool] += use[best_row, pool] - use[at[best_stage], pool]
        at[best_stage] = best_row


@compiled
def _descended(
    flat: Flat,
    guide: Array,
    capacity: Counts,
    latency_s: float,
    at_most: float,
    occupied: Counts,
    answer: Counts,
    at: Counts,
    moves: Counts,
) -> int:
    """Descend along the steepest changes from `at`, which becomes the answer; return the number of steps, or -1.

    -1 means that no choice within the limits was found. Steepness is latency saved per price in `guide`. `moves`
    becomes the rows of the steps. Before each step, the cheapest single change that meets the latency is a candidate
    for the answer, so that the answer may differ from the last step in one stage. Candidates are compared with each
    other and with `at_most` by `flat.price`. `occupied` and `answer` are scratch space.
    """
    offsets, price, mean, excess, use = flat.offsets, flat.price, flat.mean_s, flat.excess_s, flat.use
    stages, pools = len(offsets) - 1, use.shape[1]
    means, squares, paid = 0.0, 0.0, 0.0
    for pool in range(pools):
        occupied[pool] = 0
    for stage in range(stages):
        answer[stage] = at[stage]
        for pool in range(pools):
            occupied[pool] += use[at[stage], pool]
    count, answer_count = 0, -1
    while True:
        means, squares, paid = 0.0, 0.0, 0.0
        for stage in range(stages):
            means += mean[at[stage]]
            squares += excess[at[stage]] * excess[at[stage]]
            paid += price[at[stage]]
        now = means + np.sqrt(squares)
        if paid > at_most + TOLERANCE:
            break
        if now <= latency_s:
            if paid < at_most - TOLERANCE or answer_count < 0:
                answer_count = count
                for stage in range(stages):
                    answer[stage] = at[stage]
            break
        steep, gained, step_stage, step_row = 0.0, 0.0, -1, -1
        last_price, last_stage, last_row = at_most - TOLERANCE, -1, -1
        for stage in range(stages):
            old = at[stage]
            others = max(squares - excess[old] * excess[old], 0.0)
            for row in range(offsets[stage], offsets[stage + 1]):
                latency = means - mean[old] + mean[row] + np.sqrt(others + excess[row] * excess[row])
                if latency >= now - TOLERANCE:
                    continue
                fits = True
                for pool in range(pools):
                    if occupied[pool] - use[old, pool] + use[row, pool] > capacity[pool]:
                        fits = False
                        break
                if not fits:
                    continue
                saved = now - latency
                slope = saved / max(guide[row] - guide[old], TOLERANCE)
                if slope > steep or (slope == steep and saved > gained):
                    steep, gained, step_stage, step_row = slope, saved, stage, row
                if latency <= latency_s and paid - price[old] + price[row] < last_price - TOLERANCE:
                    last_price, last_stage, last_row = paid - price[old] + price[row], stage, row
        if last_stage >= 0:
            answer_count, at_most = count, last_price
            for stage in range(stages):
                answer[stage] = at[stage]
            answer[last_stage] = last_row
        if step_stage < 0 or count == len(moves):
            break
        for pool in range(pools):
            occupied[pool] += use[step_row, pool] - use[at[step_stage], pool]
        at[step_stage] = step_row
        moves[count] = step_row
        count += 1
    for stage in range(stages):
        at[stage] = answer[stage]
    return answer_count


@compiled
def _trimmed(flat: Flat, capacity: Counts, latency_s: float, exchanges: bool, occupied: Counts, at: Counts) -> None:
    """Make the choice `at` cheaper within the limits by changes of one stage, then of two, until none lowers the price.

    `exchanges` allows changes of two stages together; `occupied` is scratch space.
    """
    offsets, price, mean, excess, use = flat.offsets, flat.price, flat.mean_s, flat.excess_s, flat.use
    stages, pools = len(offsets) - 1, use.shape[1]
    while True:
        means, squares = 0.0, 0.0
        for pool in range(pools):
            occupied[pool] = 0
        for stage in range(stages):
            means += mean[at[stage]]
            squares += excess[at[stage]] * excess[at[stage]]
            for pool in range(pools):
                occupied[pool] += use[at[stage], pool]
        saved, one_best, two_best, first, second = -TOLERANCE, -1, -1, -1, -1
        for one in range(stages):
            old = at[one]
            m_one, s_one = means - mean[old], squares - excess[old] * excess[old]
            for row in range(offsets[one], offsets[one + 1]):
                added = price[row] - price[old]
                if added >= saved:
                    break
                slack = latency_s - m_one - mean[row]
                if slack < 0 or slack * slack < max(s_one, 0.0) + excess[row] * excess[row]:
                    continue
                fits = True
                for pool in range(pools):
                    if occupied[pool] - use[old, pool] + use[row, pool] > capacity[pool]:
                        fits = False
                        break
                if fits:
                    saved, one_best, first = added, one, row
                    break
        if one_best < 0 and exchanges:
            for one in range(stages - 1):
                for two in range(one + 1, stages):
                    old, other = at[one], at[two]
                    m_rest = means - mean[old] - mean[other]
                    s_rest = max(squares - excess[old] * excess[old] - excess[other] * excess[other], 0.0)
                    worth = price[old] + price[other]
                    for row in range(offsets[one], offsets[one + 1]):
                        if price[row] + price[offsets[two]] - worth >= saved:
                            break
                        m_row = m_rest + mean[row]
                        s_row = s_rest + excess[row] * excess[row]
                        for partner in range(offsets[two], offsets[two + 1]):
                            added = price[row] + price[partner] - worth
                            if added >= saved:
                                break
                            slack = latency_s - m_row - mean[partner]
                            if slack < 0 or slack * slack < s_row + excess[partner] * excess[partner]:
                                continue
                            fits = True
                            for pool in range(pools):
                                if (
                                    occupied[pool]
                                    - use[old, pool]
                                    - use[other, pool]
                                    + use[row, pool]
                                    + use[partner, pool]
                                    > capacity[pool]
                                ):
                                    fits = False
                                    break
                            if fits:
                                saved, one_best, two_best = added, one, two
                                first, second = row, partner
                                break
        if one_best < 0:
            return
        at[one_best] = first
        if two_best >= 0:
            at[two_best] = second


def _view(subproblem: Subproblem, choice: Choice) -> _View:
    stages = subproblem.by_name()
    return _View(
        stages=stages,
        added=tuple(subproblem.prices[stage] - subproblem.prices[stage][choice[stage]] for stage in stages),
        latencies=tuple(subproblem.latencies(choice, stage) for stage in stages),
        fits=tuple(subproblem.fitting(choice, stage) for stage in stages),
    )


def _steepest(view: _View, choice: Choice, now: float) -> Choice | None:
    best: tuple[float, float, Choice] | None = None
    for stage, added, latencies, fits in zip(view.stages, view.added, view.latencies, view.fits, strict=True):
        saved = now - latencies
        useful = (saved > TOLERANCE) & fits
        per_dollar = np.where(useful, saved / np.maximum(added, TOLERANCE), 0.0)
        row = int(np.argmax(per_dollar))
        gain = float(per_dollar[row]), float(saved[row])
        if useful[row] and (best is None or gain > best[:2]):
            best = *gain, with_row(choice, stage, row)
    return None if best is None else best[2]


def _completion(view: _View, choice: Choice, latency_s: float) -> Choice | None:
    """Return `choice` after the cheapest change of one stage that meets the latency limit, or None."""
    best: tuple[float, Choice] | None = None
    for stage, added, latencies, fits in zip(view.stages, view.added, view.latencies, view.fits, strict=True):
        enough = (latencies <= latency_s) & fits
        if enough.any():
            row = int(np.argmin(np.where(enough, added, np.inf)))
            if best is None or added[row] < best[0] - TOLERANCE:
                best = float(added[row]), with_row(choice, stage, row)
    return None if best is None else best[1]


def _descend(subproblem: Subproblem, walk: Walk, at_most: float) -> Walk | None:
    """Return `walk` extended along the steepest changes, or None where it does not meet the latency for `at_most`.

    Before each step, the cheapest single change that meets the latency is a candidate for the result. The best so far
    is returned once the account is exhausted.
    """
    best: Walk | None = None
    while subproblem.price(walk.answer) <= at_most + TOLERANCE and not subproblem.exhausted:
        now = subproblem.latency(walk.answer)
        if now <= subproblem.latency_s:
            return walk
        view = _view(subproblem, walk.answer)
        last = _completion(view, walk.answer, subproblem.latency_s)
        if last is not None and subproblem.price(last) < at_most - TOLERANCE:
            best, at_most = Walk(visited=(*walk.visited, last)), subproblem.price(last)
        step = _steepest(view, walk.answer, now)
        if step is None:
            return best
        walk = Walk(visited=(*walk.visited, step))
    return best


def _trim(subproblem: Subproblem, walk: Walk, exchanges: bool) -> Walk:
    """Return `walk` extended by changes of one stage, then of two, until none lowers the price within the limits."""
    while not subproblem.exhausted:
        better = _completion(_view(subproblem, walk.answer), walk.answer, subproblem.latency_s)
        if better is None or subproblem.price(better) >= subproblem.price(walk.answer) - TOLERANCE:
            better = _exchange(subproblem, walk.answer) if exchanges else None
        # Prices of pairs are summed in another order: by rounding, each of two choices could be cheaper than the other.
        if better is None or subproblem.price(better) >= subproblem.price(walk.answer):
            return walk
        walk = walk.to(better)
    return walk


def _exchange(subproblem: Subproblem, choice: Choice) -> Choice | None:
    """Return `choice` after the change of two stages that lowers the price most within the limits.

    None if there is no such change, or if more than `_EXCHANGE_LIMIT` pairs of rows would have to be tried.
    """
    sizes = [len(table) for table in subproblem.tables]
    if sum(one * two for one, two in combinations(sizes, 2)) > _EXCHANGE_LIMIT:
        return None
    best, best_price = None, subproblem.price(choice) - TOLERANCE
    for one, two in combinations(subproblem.by_name(), 2):
        rest = subproblem.price(choice) - subproblem.prices[one][choice[one]] - subproblem.prices[two][choice[two]]
        prices = rest + subproblem.prices[one][:, None] + subproblem.prices[two][None, :]
        first, second = np.nonzero(prices < best_price)
        order = np.argsort(prices[first, second], kind="stable")
        first, second = first[order], second[order]
        tables = subproblem.tables[one].use, subproblem.tables[two].use
        others = subproblem.use(choice) - tables[0][choice[one]] - tables[1][choice[two]]
        for block in range(0, len(first), _EXCHANGE_BLOCK):
            rows = first[block : block + _EXCHANGE_BLOCK], second[block : block + _EXCHANGE_BLOCK]
            fits = np.all(others + tables[0][rows[0]] + tables[1][rows[1]] <= subproblem.capacity, axis=1)
            enough = np.nonzero(fits & (subproblem.exchanged(choice, (one, two), rows) <= subproblem.latency_s))[0]
            if len(enough):
                pair = int(rows[0][enough[0]]), int(rows[1][enough[0]])
                best = with_row(with_row(choice, one, pair[0]), two, pair[1])
                best_price = subproblem.price(best) - TOLERANCE
                break
    return best
