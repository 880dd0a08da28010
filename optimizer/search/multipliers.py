"""Dual prices of latency and pools (Lagrangian relaxation): they bound the price of every feasible choice from below.

A choice takes one row (an allocation) of each stage's table. With dual prices θ per second and μ per unit of a pool,
the bound is
Σ_stages min_rows (price + θ·latency + μ·use) − θ·latency limit − μ·capacity. It never exceeds the price of a choice
within all limits. Its maximum is as good a bound as linear programming gives. A row can be left out of the search where
its amount above the minimum of its stage, added to the bound, exceeds a known price.

The bound needs latencies that add up. Σ mean + √Σ excess² ≥ Σ (mean + w·excess) for every vector w of length one
(Cauchy and Schwarz), with equality where w is parallel to the excesses.
"""

import numpy as np
from numpy.typing import NDArray

from optimizer.runtime.compiled import compiled

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


def latency_weights(excess: Array) -> Array:
    """Return the weights w of an additive latency: the vector of length one parallel to the excesses (S,) of a choice.

    Where all excesses are 0 the weights are equal.
    """
    length = float(np.sqrt((excess * excess).sum()))
    return excess / length if length > 0 else np.full(len(excess), len(excess) ** -0.5)


@compiled
def maximised(
    offsets: Counts, price: Array, weights: Array, enough: float, rounds: int, multipliers: Array, reduced: Array
) -> float:
    """Return the best lower bound found on the price of choices whose `weights` (N, D) sum to at most 1 per column.

    A column of `weights` is one constraint: latency or the use of a pool, over its limit. `multipliers` (D,) are dual
    prices, in units of price: the start of the search, then those of the bound found. `reduced` (N,) becomes the amount
    by which each row exceeds the cheapest row of its stage at these prices.

    The search makes at most `rounds` Polyak steps along the subgradient deflected by the last step (Camerini, Fratta
    and Maffioli) and ends when the bound exceeds `enough`. The target value of a step is the best bound plus the gain
    of recent steps, because `enough` may be far away.
    """
    stages, count = len(offsets) - 1, weights.shape[1]
    here, gradient, direction = np.empty(count), np.empty(count), np.empty(count)
    for column in range(count):
        here[column], direction[column] = multipliers[column], 0.0
    best, ahead, stale = -np.inf, 0.0, 0
    for _ in range(rounds):
        value = 0.0
        for column in range(count):
            gradient[column] = -1.0
            value -= here[column]
        for stage in range(stages):
            least, chosen = np.inf, offsets[stage]
            for row in range(offsets[stage], offsets[stage + 1]):
                cost = price[row]
                for column in range(count):
                    cost += here[column] * weights[row, column]
                if cost < least:
                    least, chosen = cost, row
            value += least
            for column in range(count):
                gradient[column] += weights[chosen, column]
        if best == -np.inf:
            ahead = min(enough - value, 0.25 * abs(value) + 1e-9)
        stale += 1
        if value > best:
            if value > best + 0.5 * ahead:
                ahead *= 2.0
            if value > best + 0.02 * ahead:
                stale = 0
            best = value
            for column in range(count):
                multipliers[column] = here[column]
        if best > enough:
            break
        if stale > 4:
            ahead, stale = ahead * 0.5, 0
            if ahead < 1e-4 * abs(best):
                break
        turned, length = 0.0, 0.0
        for column in range(count):
            turned += gradient[column] * direction[column]
            length += direction[column] * direction[column]
        keep = -1.5 * turned / length if turned < 0 else 0.0
        norm = 0.0
        for column in range(count):
            direction[column] = gradient[column] + keep * direction[column]
            if here[column] <= 0 and direction[column] < 0:
                direction[column] = 0.0
            norm += direction[column] * direction[column]
        if norm <= 1e-18:
            break
        step = (min(enough, best + ahead) - value) / norm
        for column in range(count):
            here[column] = max(0.0, here[column] + step * direction[column])
    for stage in range(stages):
        least = np.inf
        for row in range(offsets[stage], offsets[stage + 1]):
            cost = price[row]
            for column in range(count):
                cost += multipliers[column] * weights[row, column]
            reduced[row] = cost
            least = min(least, cost)
        for row in range(offsets[stage], offsets[stage + 1]):
            reduced[row] -= least
    return best


@compiled
def single_multiplier(offsets: Counts, price: Array, weight: Array, enough: float, rounds: int) -> float:
    """Return the multiplier that maximises the bound for one constraint, a column `weight` of `maximised`.

    The bound is concave and piecewise linear: the next candidate is where the lines on either side cross. A bound above
    `enough`, or `rounds` evaluations, end the search.
    """
    stages = len(offsets) - 1
    low, high = 0.0, -1.0  # high < 0: no point with a falling bound is known
    low_value, low_slope, high_value, high_slope = 0.0, 0.0, 0.0, 0.0
    here, best, best_value, expected = 0.0, 0.0, -np.inf, np.inf
    for number in range(rounds):
        value, slope = -here, -1.0
        for stage in range(stages):
            least, chosen = np.inf, offsets[stage]
            for row in range(offsets[stage], offsets[stage + 1]):
                cost = price[row] + here * weight[row]
                if cost < least:
                    least, chosen = cost, row
            value += least
            slope += weight[chosen]
        if value > best_value:
            best, best_value = here, value
        if value > enough or (number == 0 and slope <= 0) or value >= expected:
            break
        if slope > 0:
            low, low_value, low_slope = here, value, slope
        else:
            high, high_value, high_slope = here, value, slope
        if high < 0:
            here = max(2 * here, (enough - value) / slope)  # beyond it, the line is above `enough`
            if here > 1e18:
                break
            continue
        if low_slope - high_slope <= 0:
            break
        crossing = (high_value - low_value + low_slope * low - high_slope * high) / (low_slope - high_slope)
        if crossing <= low or crossing >= high:
            break
        here = crossing
        expected = low_value + low_slope * (crossing - low) - 1e-12 * (1 + abs(low_value))
    return best
