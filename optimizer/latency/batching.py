"""Time in a stage whose servers batch, interpolated in a simulated table.

A free server takes the waiting items up to its batch limit, and never waits for more; a limit of 1 is a plain queue.
The probability of waiting and the distribution of the time of items that wait are interpolated, because they are
smooth. Items that do not wait take one service time. The percentile over all items follows from both groups.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimizer.latency import batching_table
from optimizer.runtime.compiled import compiled

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

UTILIZATION_CEILING = batching_table.UTILIZATION_CEILING

PULL, LEAST_LOADED, ROUND_ROBIN = 0, 1, 2
"""How servers share queues: one queue for all servers (PULL); or one queue for each, where an item goes to the shortest
(LEAST_LOADED) or to each in turn (ROUND_ROBIN)."""

_LIMITS: Array = np.log2(np.array(batching_table.LIMITS, dtype=np.float64))
_SHARES: Array = np.sqrt(np.array(batching_table.SHARES))
_SERVICE_CV: Array = np.array(batching_table.SERVICE_CV) ** 1.25
_ARRIVAL_CV: Array = np.array(batching_table.ARRIVAL_CV)
_SERVERS: Array = np.log2(np.array(batching_table.SERVERS, dtype=np.float64))
_LOADS: Array = np.array(batching_table.LOADS)
_LEVELS: Array = np.array((0.0, *batching_table.LEVELS))
_LEVEL_SHARES: Array = 1 - np.exp(-_LEVELS)
_STRIDES: Counts = np.array([int(np.prod(batching_table.SHAPE[k + 1 :])) for k in range(7)], dtype=np.int64)
_POINTS = 129
_CVS, _MOST_CV = 41, 2.0
_LOWEST = -4.0
_LARGE_SHAPE = 100.0
_TERMS = 400
_TURNS = 40
_CORNERS = 16  # of a cell between the nodes of four axes
_CLOSE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """A kind of server: a batch of b ≤ `limit` items takes 1 − f + f·b on average, with f = `per_item_share`.

    The unit of time is the mean service time of a batch of one item. `cv` is the coefficient of variation of the
    service time of a batch. `sharing` is `PULL`, `LEAST_LOADED` or `ROUND_ROBIN`.
    """

    sharing: int
    limit: int
    per_item_share: float
    cv: float


def time_in_stage(
    kinds: Sequence[Servers],
    kind: Counts,
    servers: Array,
    utilization: Array,
    arrival_cv: Array,
    *,
    percentile: float,
) -> tuple[Array, Array]:
    """Return mean and percentile of the time in the stage, shape (n,) each.

    The unit is the mean service time of a batch of one item at the point's kind of server. The arrays describe n
    points, shape (n,) each: `kind` is a position in `kinds`, `servers` the number of servers (at least 1),
    `utilization` load / capacity at full batches (0 to `UTILIZATION_CEILING`), `arrival_cv` the coefficient of
    variation of the time between arrivals. A value outside an axis of the table counts as the nearest value on it.
    """
    mean, quantile = np.empty(len(servers)), np.empty(len(servers))
    if len(servers) == 0:
        return mean, quantile
    own = [own_distribution(one.cv) for one in kinds]
    alike = bool(np.all(arrival_cv == arrival_cv[0]))
    _look_up(
        batching_table.values().ravel(),
        _Kinds(
            sharing=np.array([one.sharing for one in kinds], dtype=np.int64),
            law=np.array(
                [
                    [one.limit, one.per_item_share, one.cv, low, step]
                    for one, (low, step, _) in zip(kinds, own, strict=True)
                ]
            ),
            own=np.array([below for _, _, below in own]),
        ),
        _Points(
            kind=np.ascontiguousarray(kind, dtype=np.int64),
            servers=np.ascontiguousarray(servers, dtype=np.float64),
            utilization=np.ascontiguousarray(utilization, dtype=np.float64),
            arrival_cv=np.ascontiguousarray(arrival_cv, dtype=np.float64),
        ),
        _Sizes(below=percentile / 100, layers=1 if alike else len(_ARRIVAL_CV), corners=_CORNERS, turns=_TURNS),
        _LEVELS,
        _LEVEL_SHARES,
        mean,
        quantile,
    )
    return mean, quantile


@lru_cache(maxsize=1024)
def own_distribution(cv: float) -> tuple[float, float, Array]:
    """Return the distribution function of gamma distributed service times of mean 1, tabulated over log time.

    The result is the logarithm of the first time, the step of the logarithm, and for each of the times the share of
    service times below it. With a `cv` of 0 the shares are zeros.
    """
    if cv <= 0:
        return 0.0, 1.0, np.zeros(_POINTS)
    table = _gamma_table()
    cv = min(cv, _MOST_CV)
    at = min(cv / _MOST_CV * (len(table) - 1), len(table) - 1.000001)
    k, part = int(at), at - int(at)
    return (
        _LOWEST * cv - 3 * cv * cv,
        (8 * cv + 3 * cv * cv) / (_POINTS - 1),
        (1 - part) * table[k] + part * table[k + 1],
    )


_MOST_STEPS = 10_000
"""The limit for many servers is then within 3 % of Erlang's formula where more than one item in 40 waits."""


@lru_cache(maxsize=1)
def _gamma_table() -> Array:
    """Return gamma distribution functions of mean 1, shape (cv, points), at times that depend smoothly on the cv."""
    cv = np.linspace(0, _MOST_CV, _CVS)
    table = np.empty((_CVS, _POINTS))
    steps = np.arange(_POINTS) / (_POINTS - 1)
    wide = cv[1:, None]
    shape = np.minimum(1 / wide**2, _LARGE_SHAPE)
    times = np.exp(_LOWEST * wide - 3 * wide**2 + steps * (8 * wide + 3 * wide**2))
    # The series of the incomplete gamma function; for small cv the normal approximation of Wilson and Hilferty.
    x = shape * times
    log_gamma = np.array([[math.lgamma(value + 1)] for value in shape[:, 0]])
    term = np.exp(shape * np.log(x) - x - log_gamma)
    total = term.copy()
    for n in range(1, _TERMS):
        term = term * x / (shape + n)
        total += term
    table[1:] = np.minimum(total, 1.0)
    for k in range(_CVS):
        if cv[k] ** 2 * _LARGE_SHAPE < 1:
            z = (np.cbrt(times[k - 1]) - 1 + cv[k] ** 2 / 9) * 3 / cv[k] if k else _LOWEST + 8 * steps
            table[k] = [0.5 * math.erfc(-value / math.sqrt(2)) for value in z]
    return table


def erlang_c(servers: Array, load: Array) -> Array:
    """Return the probability that an arrival finds all `servers` busy (Erlang's second formula), elementwise.

    `load` is the offered load: arrival rate × mean service time. The result is 1 where `load` ≥ `servers`. Above
    10,000 servers it is the limit of Halfin and Whitt (Heavy-traffic limits for queues with many exponential servers,
    Operations Research 29, 1981), since the recursion takes as many steps as there are servers.
    """
    blocking = np.ones_like(load)
    for k in range(1, int(min(servers.max(initial=0), _MOST_STEPS)) + 1):
        blocking = np.where(k <= servers, load * blocking / (k + load * blocking), blocking)
    rho = load / np.maximum(servers, 1)
    waits = np.where(rho < 1, blocking / (1 - rho + rho * blocking), 1.0)
    for many in zip(*np.nonzero((servers > _MOST_STEPS) & (rho < 1)), strict=True):
        waits[many] = _waits_of_many(float((1 - rho[many]) * np.sqrt(servers[many])))
    return waits


def _waits_of_many(slack: float) -> float:
    """Return the probability of waiting at `slack`, the share of idle servers × the square root of their number."""
    density = math.exp(-slack * slack / 2) / math.sqrt(2 * math.pi)
    return density / (density + slack * 0.5 * math.erfc(-slack / math.sqrt(2)))


@compiled
def _extrapolated(axis: Array, value: float) -> tuple[int, float]:
    """Return the node below `value` and the fraction of the way to the next node, above 1 beyond the last node."""
    k = 0
    while k < len(axis) - 2 and value >= axis[k + 1]:
        k += 1
    return k, max((value - axis[k]) / (axis[k + 1] - axis[k]), 0.0)


@compiled
def _place(axis: Array, value: float) -> tuple[int, float]:
    """Return what `_extrapolated` does, but within the axis."""
    k, part = _extrapolated(axis, value)
    return k, min(part, 1.0)


@compiled
def _share(own: Array, g: int, position: float) -> float:
    """Return the distribution function in row `g` of `own` (0–1) at `position`, interpolated between its points."""
    if position <= 0.0:
        return 0.0
    if position >= own.shape[1] - 1:
        return 1.0
    k = int(position)
    return float(own[g, k] + (position - k) * (own[g, k + 1] - own[g, k]))


@compiled
def _reached(own: Array, g: int, below: float) -> float:
    """Return the position at which the distribution function in row `g` of `own` reaches `below`."""
    low, high = 0, own.shape[1] - 1
    while high - low > 1:
        middle = (low + high) // 2
        if own[g, middle] < below:
            low = middle
        else:
            high = middle
    return float(low + min(max((below - own[g, low]) / max(own[g, high] - own[g, low], 1e-12), 0.0), 1.0))


@compiled
def _rough(limit: float, share: float, service_cv: float, arrival_cv: float, servers: float, load: float) -> float:
    """Return a rough estimate of the logarithm of the time of items that wait.

    It is the service time of a batch just large enough to keep up with the load, plus the queue in heavy traffic.
    `load` is a value on the axis `LOADS`.
    """
    gain = limit / (1 - share + share * limit)
    rho = UTILIZATION_CEILING * load / (gain - (gain - 1) * load)
    batch = 1.0 if limit == 1.0 else max(1.0, (1 - share) / (1 - rho * gain * share))
    queue = (arrival_cv * arrival_cv + limit * service_cv * service_cv) / (2 * gain * servers * (1 - rho))
    return float(np.log(1.5 * batch + queue))


class _Kinds(NamedTuple):
    """G kinds of servers: `sharing` (G,), `law` (G, 5), and the distribution functions of service times `own`.

    The columns of `law` are batch limit, per-item share, cv, and the first log time and the step of the row of `own`
    (G, points).
    """

    sharing: Counts
    law: Array
    own: Array


class _Points(NamedTuple):
    """The arrays (n,) that `time_in_stage` takes."""

    kind: Counts
    servers: Array
    utilization: Array
    arrival_cv: Array


class _Sizes(NamedTuple):
    """The percentile as a share, and lengths of loops: nodes used of the axis of arrival cv, corners, iterations."""

    below: float
    layers: int
    corners: int
    turns: int


@compiled
def _look_up(
    table: NDArray[np.float32],
    servers_of: _Kinds,
    points: _Points,
    sizes: _Sizes,
    nodes: Array,
    node_shares: Array,
    mean: Array,
    quantile: Array,
) -> None:
    """Write the mean and the percentile of the time in the stage at each of `points` to `mean` and `quantile`.

    For each kind of server the table is first reduced to the axes on which its points differ: servers and load, and the
    arrival cv where `sizes.layers` is more than 1.
    """
    sharing, kinds, own = servers_of
    kind, servers, utilization, arrival_cv = points
    below, layers, corners, turns = sizes
    # Lengths of loops are arguments: the compiler would unroll loops of constant length, which takes seconds.
    widest = 2.0 ** _LIMITS[-1]
    most = 2.0 ** _SERVERS[-1]
    levels = len(nodes)
    width = levels + 1
    size = layers * _STRIDES[4]
    slabs = np.zeros((len(kinds), size))
    own_quantiles = np.zeros(len(kinds))  # logarithm of the percentile of a batch's own time
    for g in range(len(kinds)):
        if kinds[g, 2] > 0.0:
            own_quantiles[g] = kinds[g, 3] + kinds[g, 4] * _reached(own, g, below)
        limit, share = min(kinds[g, 0], widest), kinds[g, 1]
        b, b_part = _place(_LIMITS, np.log2(limit))
        f, f_part = _place(_SHARES, np.sqrt(share))
        # Between nodes times grow with a power of the cv between its own and its square.
        s, s_part = _place(_SERVICE_CV, kinds[g, 2] ** 1.25)
        a, a_part = 0, 0.0
        if layers == 1:
            a, a_part = _place(_ARRIVAL_CV, arrival_cv[0])
        if limit == 1.0:
            f_part = 0.0
        for corner in range(corners):
            weight = b_part if corner & 1 else 1 - b_part
            weight *= f_part if corner & 2 else 1 - f_part
            weight *= s_part if corner & 4 else 1 - s_part
            weight *= a_part if corner & 8 else 1 - a_part
            if weight == 0.0:
                continue
            start = sharing[g] * _STRIDES[0] + (b + (corner & 1)) * _STRIDES[1]
            start += (f + ((corner >> 1) & 1)) * _STRIDES[2] + (s + ((corner >> 2) & 1)) * _STRIDES[3]
            start += (a + ((corner >> 3) & 1)) * _STRIDES[4]
            for k in range(size):
                slabs[g, k] += weight * table[start + k]
    value = np.empty(width)
    time = np.empty(levels)  # logarithm of the time of items that wait, at each level
    for i in range(len(servers)):
        g = kind[i]
        limit, share, service_cv, own_low, own_step = kinds[g, 0], kinds[g, 1], kinds[g, 2], kinds[g, 3], kinds[g, 4]
        limit = min(limit, widest)
        gain = limit / (1 - share + share * limit)
        rho = min(max(utilization[i], 0.0), UTILIZATION_CEILING)
        count = servers[i]
        if count > most:
            # A queue of many servers is that of fewer servers with equal (1 − ρ)·√servers (Halfin and Whitt).
            if limit == 1.0 and sharing[g] != ROUND_ROBIN:
                rho = max(0.0, 1 - (1 - rho) * np.sqrt(count / most))
            count = most
        x = rho / UTILIZATION_CEILING
        load = x * gain / (1 + (gain - 1) * x)
        a, a_part = 0, 0.0
        if layers > 1:
            a, a_part = _place(_ARRIVAL_CV, arrival_cv[i])
        c, c_part = _place(_SERVERS, np.log2(count))
        u, u_part = _place(_LOADS, load)
        for k in range(width):
            value[k] = 0.0
        # The probability of waiting falls exponentially in the number of servers, times with its logarithm.
        few, many = 2.0 ** _SERVERS[c], 2.0 ** _SERVERS[c + 1]
        c_chance = (count - few) / (many - few)
        for corner in range(corners // 2):
            others = u_part if corner & 2 else 1 - u_part
            others *= a_part if corner & 4 else 1 - a_part
            if others == 0.0:
                continue
            start = (a + ((corner >> 2) & 1)) * _STRIDES[4]
            start += (c + (corner & 1)) * _STRIDES[5] + (u + ((corner >> 1) & 1)) * _STRIDES[6]
            value[0] += others * (c_chance if corner & 1 else 1 - c_chance) * slabs[g, start]
            weight = others * (c_part if corner & 1 else 1 - c_part)
            for k in range(1, width):
                value[k] += weight * slabs[g, start + k]
        # Between the nodes of the load, times follow the curvature of the formula `_rough`.
        ca, together = arrival_cv[i], count
        if sharing[g] == ROUND_ROBIN:
            ca, together = ca / np.sqrt(count), 1.0
        bend = _rough(limit, share, service_cv, ca, together, load)
        bend -= (1 - u_part) * _rough(limit, share, service_cv, ca, together, _LOADS[u])
        bend -= u_part * _rough(limit, share, service_cv, ca, together, _LOADS[u + 1])
        for k in range(1, width):
            value[k] += bend
        waits = 1 / (1 + np.exp(-value[0]))
        if load < _LOADS[0]:  # below the first node: all servers are busy by chance
            waits *= np.exp(count * np.log(max(load, 1e-300) / _LOADS[0]))
        mean[i] = 1 - waits + waits * np.exp(value[1])
        own_quantile = own_quantiles[g]
        time[0] = 0.0 if service_cv == 0.0 else min(value[2], own_quantile) - 1.0
        for k in range(1, levels):
            time[k] = max(value[k + 1], time[k - 1])
        if service_cv == 0.0:
            if below <= 1 - waits:
                quantile[i] = 1.0
                continue
            at, part = _extrapolated(nodes, -np.log((1 - below) / waits))
            quantile[i] = np.exp(time[at] + part * (time[at + 1] - time[at]))
            continue
        at, part = _extrapolated(nodes, -np.log(1 - below))
        other = time[at] + part * (time[at + 1] - time[at])
        low, high = min(own_quantile, other), max(own_quantile, other)
        # Find the node of the waiting time above the percentile; below the first node items do not wait.
        gap_low, gap_high, k = -below, 1.0 - below, 0
        while k < levels:
            gap = (1 - waits) * _share(own, g, (time[k] - own_low) / own_step) + waits * node_shares[k] - below
            if gap >= 0.0:
                high, gap_high = time[k], gap
                break
            low, gap_low = time[k], gap
            k += 1
        if k == 0:
            quantile[i] = np.exp(own_low + own_step * _reached(own, g, below / (1 - waits)))
            continue
        k = min(k, levels - 1) - 1
        high = max(high, low)
        span = max(time[k + 1] - time[k], 1e-12)
        # Regula falsi with the weight of an end that stays halved (Illinois).
        side = 0
        for turn in range(turns):
            if high - low < _CLOSE:
                break
            middle = 0.5 * (low + high)
            if turn % 4 < 3:
                middle = (low * gap_high - high * gap_low) / (gap_high - gap_low)
            level = nodes[k] + (middle - time[k]) / span * (nodes[k + 1] - nodes[k])
            gap = (1 - waits) * _share(own, g, (middle - own_low) / own_step) + waits * (1 - np.exp(-level)) - below
            if abs(gap) < _CLOSE * (1 - below):
                low, high = middle, middle
            elif gap < 0.0:
                low, gap_low = middle, gap
                gap_high = 0.5 * gap_high if side < 0 else gap_high
                side = -1
            else:
                high, gap_high = middle, gap
                gap_low = 0.5 * gap_low if side > 0 else gap_low
                side = 1
        quantile[i] = np.exp(0.5 * (low + high))
