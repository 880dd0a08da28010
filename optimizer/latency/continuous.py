"""Time in a stage whose servers batch continuously: processor sharing at a speed that depends on how many items run.

An engine that runs n items serves each at 1/T(n) of its work in a second. With Poisson arrivals at rate λ and at most B
running, the number N inside has π(n) ∝ ∏ λ·T(min(k, B)) / min(k, B) over k = 1..n. Up to B this is a symmetric queue,
whose π depends on the work of items only by its mean (Kelly, Reversibility and stochastic networks, 1979; Bonald and
Proutière, Insensitive bandwidth sharing in data networks, 2003); beyond B items wait, first come first served, and the
excess falls geometrically. The mean time follows from Little's law. Engines among which each item goes to the one with
the fewest behave almost as one engine of c·B places at the speed 1/T(n/c).

While an item is prefilled, no other item progresses: at λ items per second an engine has only the share
1 − λ·prefill of the time for the work that is shared. A prefill waits for those before it, as in an M/D/1 queue.

Percentiles are those of a gamma variable with the same mean and variance. In processor sharing the mean time of an item
is in proportion to its work, so that the work's coefficient of variation is that of the time; the speed at which an
item runs varies with N, of which its own time averages out a part.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimizer.latency.quantiles import gamma_quantile
from optimizer.model import Placement
from optimizer.runtime.compiled import compiled

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_KEPT = 0.7
"""The share of the variance of 1/speed, as arrivals see it, that is left in the time of an item. Measured against event
simulations of random laws; the rest averages out while the item runs."""
_NEGLIGIBLE = 1e-9


class Load(NamedTuple):
    """The load of n groups of equal engines, shape (n,) each.

    `kind` is a position among the kinds of engines, `engines` how many share the items, `rate_rps` all items per
    second. `arrival_cv2` is the squared coefficient of variation of the times between arrivals. `streams` is the number
    of periodic streams that the items come from, infinite for independent ones.
    """

    kind: Counts
    engines: Counts
    rate_rps: Array
    arrival_cv2: Array
    streams: Array


class _Kinds(NamedTuple):
    """G kinds of engines: T(n) for n from 0 `mean_s` (G, widest + 1), and the rest (G,)."""

    mean_s: Array
    limit: Counts
    prefill_s: Array
    cv: Array


def time_in_engines(
    kinds: list[tuple[Placement, int]], load: Load, *, percentile: float, first: bool
) -> tuple[Array, Array]:
    """Return mean and percentile (0–100, exclusive) of the time in the stage in seconds, shape (n,) each.

    Each of `kinds` is a placement and the number of items that an engine of it runs at most. With `first` the time ends
    with the prefill, which gives the first part of the answer, at placements whose prefill is known. The load must be
    below the engines' capacity.
    """
    widest = max(limit for _, limit in kinds)
    laws = [placement.service for placement, _ in kinds]
    mean, variance = np.empty(len(load.kind)), np.empty(len(load.kind))
    _write_moments(
        _Kinds(
            mean_s=np.array([law.times_s(widest) for law in laws]),
            limit=np.array([limit for _, limit in kinds], dtype=np.int64),
            prefill_s=np.array([law.prefill_s for law in laws]),
            cv=np.array([law.cv for law in laws]),
        ),
        load,
        first,
        mean,
        variance,
    )
    return mean, gamma_quantile(mean, variance, percentile)


@compiled
def _time_s(mean_s: Array, items: int, engines: int) -> float:
    """Return T at each of `engines` engines that share `items` items evenly, at least one each."""
    each = max(1.0, items / engines)
    below = min(int(each), len(mean_s) - 2)
    return float(mean_s[below] + (each - below) * (mean_s[below + 1] - mean_s[below]))


@compiled
def _write_moments(kinds: _Kinds, load: Load, first: bool, mean: Array, variance: Array) -> None:
    """Write the mean (s) and the variance (s²) of the time in the stage at each point of `load`."""
    for i in range(len(load.kind)):
        kind, engines, rate = load.kind[i], load.engines[i], load.rate_rps[i]
        limit, cv2, prefill_s = kinds.limit[kind], kinds.cv[kind] ** 2, kinds.prefill_s[kind]
        mean_s, places = kinds.mean_s[kind], engines * limit
        each_rps = rate / engines
        free = max(1 - each_rps * prefill_s, _NEGLIGIBLE)  # of the time, for the work that is shared
        prefill_wait_s = each_rps * prefill_s * prefill_s / (2 * free)
        to_prefill = first and prefill_s > 0.0
        if rate <= 0.0:
            mean[i] = prefill_s if to_prefill else mean_s[1] + prefill_s
            variance[i] = 0.0 if to_prefill else cv2 * mean_s[1] ** 2
            continue
        # The last state below the balance of arrivals and departures: the weights π fall to both sides of it.
        low, high = 0, places
        while high - low > 1:
            middle = (low + high) // 2
            if rate * _time_s(mean_s, middle, engines) / free >= middle:
                low = middle
            else:
                high = middle
        total, inside, times, squares = 0.0, 0.0, 0.0, 0.0
        weight, n = 1.0, low
        while weight > _NEGLIGIBLE:  # downwards from the balance
            time_s = _time_s(mean_s, min(n + 1, places), engines) / free
            total += weight
            inside += weight * n
            times += weight * time_s
            squares += weight * time_s * time_s
            if n == 0:
                break
            weight *= n / (rate * _time_s(mean_s, n, engines) / free)
            n -= 1
        weight, n = 1.0, low
        while n < places and weight > _NEGLIGIBLE:  # upwards
            n += 1
            weight *= rate * _time_s(mean_s, n, engines) / free / n
            time_s = _time_s(mean_s, min(n + 1, places), engines) / free
            total += weight
            inside += weight * n
            times += weight * time_s
            squares += weight * time_s * time_s
        full = weight if n == places else 0.0
        busy = rate * (mean_s[limit] / limit + prefill_s) / engines
        beyond = full * busy / max(1 - busy, _NEGLIGIBLE)
        total += beyond
        inside += beyond * places
        times += beyond * mean_s[limit] / free
        squares += beyond * (mean_s[limit] / free) ** 2
        waits = (full + beyond) / total
        # Renewal arrivals and streams change by how much N varies around its balance (of streams it is binomial).
        spread = 1 + (load.arrival_cv2[i] - 1) / (1 + cv2)
        spread *= max(0.0, 1 - inside / total / load.streams[i])
        served_s = inside / total / rate
        balance_s = min(_time_s(mean_s, low, engines) / free, served_s)
        served_s = balance_s + spread * (served_s - balance_s)
        wait_s = beyond / total / max(1 - busy, _NEGLIGIBLE) / rate * (load.arrival_cv2[i] + cv2) / 2
        seen = times / total
        varied = spread * max(squares / total - seen * seen, 0.0) / (seen * seen)
        own = served_s * served_s * (cv2 + (1 + cv2) * _KEPT * varied)
        if to_prefill:
            served_s, own = 0.0, prefill_wait_s * prefill_wait_s
        mean[i] = served_s + wait_s + prefill_s + prefill_wait_s
        # The wait of an item that waits is exponential.
        variance[i] = own + wait_s * wait_s * max(2 / max(waits, _NEGLIGIBLE) - 1, 0.0)
