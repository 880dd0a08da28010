"""Latency under dynamic batching: a free server takes what waits, up to a limit, and never waits for more.

The queue left behind by each batch is an embedded Markov chain, solved numerically (bulk service, Bailey 1954;
Neuts 1967). For one server and Poisson arrivals it is exact but for the discretisation of service times. Several
servers behind one balancer are reduced to one server with smoother input: see `Servers`.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from optimizer.tails import gamma_quantile

Array = NDArray[np.float64]

UTILIZATION_CEILING = 0.9
"""Plans load no stage beyond this share of its capacity at full batches: above it latency is all variance."""

_GRID: Array = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, UTILIZATION_CEILING])
_RESIDUALS = 4  # points per service time at which an item may arrive
_WAIT_BINS = 48
_SMOOTHING = 0.7  # measured against event simulation; 1 would be a balancer that leaves no imbalance at all
_NEGLIGIBLE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Equal servers that share a load and batch it.

    A batch of b ≤ `limit` items takes 1 − f + f·b on average, with f = `per_item_share`; times are gamma distributed
    with `cv`. `arrival_cv2` is the dispersion of the arrivals before they are shared out.

    Each of `servers` behind a balancer sees smoother arrivals: their variance shrinks with `servers`^0.7. A balancer
    that is `aware` of the queues also evens out the backlog that slow batches leave (its variance shrinks alike), and
    sends an item to an idle server if there is one (Erlang's C gives how often).
    """

    per_item_share: float
    cv: float
    limit: int
    servers: int = 1
    aware: bool = False
    arrival_cv2: float = 1.0

    @property
    def dispersion(self) -> float:
        """Return the variance of the arrivals at one server, over their mean."""
        return float(self.arrival_cv2 / self.servers**_SMOOTHING)

    @property
    def backlog_cv(self) -> float:
        """Return the variation of batch times as far as it makes queues differ."""
        return self.cv / self.servers ** (_SMOOTHING / 2) if self.aware else self.cv

    @property
    def service(self) -> Array:
        """Return the mean times of batches of 1…`limit` items."""
        return np.asarray(1 + self.per_item_share * np.arange(self.limit), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Latency over utilisation, in units of the mean time of a batch of one.

    `mean` and `percentile` belong to the entries of `utilization`, which rises from 0 to the ceiling.
    """

    utilization: Array
    mean: Array
    percentile: Array


@lru_cache(maxsize=4096)
def latency_curve(batching: Batching, percentile: float) -> Curve:
    """Return the latency of `batching` at `percentile`. The cache makes a cycle cheap: callers round their numbers."""
    points = [_latency(batching, percentile, float(rho)) for rho in _GRID]
    at_rest = (1.0, float(gamma_quantile(np.ones(1), np.array([batching.cv**2]), percentile)[0]))
    mean, quantile = np.array([at_rest, *points]).T
    return Curve(
        utilization=np.concatenate(([0.0], _GRID)),
        mean=np.maximum.accumulate(mean),
        percentile=np.maximum.accumulate(quantile),
    )


def gamma_points(cv: float, count: int) -> tuple[Array, Array]:
    """Return `count` points and weights that stand for a gamma variable of mean 1 (Gauss-Laguerre quadrature)."""
    if cv <= 0:
        return np.ones(1), np.ones(1)
    shape = 1 / cv**2
    index = np.arange(count)
    off = np.sqrt(index[1:] * (index[1:] + shape - 1))
    nodes, vectors = np.linalg.eigh(np.diag(2 * index + shape) + np.diag(off, 1) + np.diag(off, -1))
    return nodes / shape, vectors[0] ** 2


def erlang_c(servers: Array, load: Array) -> Array:
    """Return the probability that an arrival finds all `servers` busy at offered `load` (Erlang's second formula)."""
    blocking = np.ones_like(load)
    for k in range(1, int(servers.max(initial=0)) + 1):
        blocking = np.where(k <= servers, load * blocking / (k + load * blocking), blocking)
    rho = load / np.maximum(servers, 1)
    return np.where(rho < 1, blocking / (1 - rho + rho * blocking), 1.0)


def _latency(batching: Batching, percentile: float, rho: float) -> tuple[float, float]:
    """Return mean and percentile at one utilisation."""
    limit, service = batching.limit, batching.service
    rate = rho * limit / service[-1]
    # Beyond this many waiting items there is less probability than the percentile can notice.
    spread = rho / (2 * (1 - rho)) * (batching.dispersion + limit * rho * batching.backlog_cv**2) + 1
    tail = 4 - np.log(1 - percentile / 100)
    states = int(limit + tail * max(spread, (batching.dispersion * rate * service[-1]) ** 0.5))
    nodes, node_weights = gamma_points(batching.backlog_cv, 3)
    counts = _count_pmf(rate * service[:, None] * nodes, batching.dispersion, states)  # (limit, nodes, states + 1)
    per_batch = np.einsum("bnk,n->bk", counts, node_weights)
    start = _stationary(per_batch)

    waits, sizes, weights = _busy_arrivals(start, counts, (nodes, node_weights), service, rate)
    alone = float(start[:limit] @ per_batch[:, 0])
    busy = float(weights.sum() / (weights.sum() + alone))
    if batching.aware and batching.servers > 1:
        count = np.array([float(batching.servers)])
        busy = float(erlang_c(count, count * busy)[0])
    own, own_weights = gamma_points(batching.cv, 7)
    times = waits[:, None] + (1 + batching.per_item_share * (sizes - 1))[:, None] * own
    mass = (weights * (busy / weights.sum()))[:, None] * own_weights
    times, mass = np.concatenate((times.ravel(), own)), np.concatenate((mass.ravel(), (1 - busy) * own_weights))
    return float(times @ mass), _quantile(times, mass, percentile / 100)


def _count_pmf(mean: Array, dispersion: float, limit: int) -> Array:
    """Return P(k arrivals), k = 0…limit on a new last axis: binomial, Poisson or negative binomial by `dispersion`.

    The mean is exact; the variance, `dispersion` · mean, is so except for what a whole number of trials allows.
    """
    if dispersion < 1:
        trials = np.maximum(np.ceil(mean), np.rint(mean / (1 - dispersion)))
        chance = np.minimum(mean / trials, 1 - 1e-12)
        slope = -chance / (1 - chance)
        base, term = -slope * (trials + 1), np.exp(trials * np.log1p(-chance))
    elif dispersion > 1:
        slope = np.full_like(mean, 1 - 1 / dispersion)
        base, term = mean / dispersion - slope, np.exp(-mean * np.log(dispersion) / (dispersion - 1))
    else:
        slope, base, term = np.zeros_like(mean), mean, np.exp(-mean)
    pmf = np.empty((*mean.shape, limit + 1))
    pmf[..., 0] = term
    for k in range(1, limit + 1):
        term = np.maximum(term * (slope + base / k), 0.0)  # Panjer's recursion
        pmf[..., k] = term
    return pmf


def _stationary(counts: Array) -> Array:
    """Return the probabilities of 1, 2… items waiting when a batch starts; `counts[b − 1]` arrive during b items."""
    batch, limit = counts.shape[0], counts.shape[1] - 1
    chain = np.zeros((limit, limit))
    chain[:batch] = counts[:, 1:]
    chain[:batch, 0] += counts[:, 0]  # nobody came: the next batch is the next item, alone
    for waiting in range(batch + 1, limit + 1):
        left = waiting - batch
        chain[waiting - 1, left - 1 :] = counts[-1, : limit - left + 1]
    chain[:, -1] += 1 - chain.sum(axis=1)
    equations = chain.T - np.eye(limit)
    equations[-1] = 1
    right = np.zeros(limit)
    right[-1] = 1
    start = np.maximum(np.linalg.solve(equations, right), 0)
    return np.asarray(start / start.sum())


def _busy_arrivals(
    start: Array, counts: Array, points: tuple[Array, Array], service: Array, rate: float
) -> tuple[Array, Array, Array]:
    """Return wait, size of the own batch and weight of the items that arrive while a batch is served.

    The items that come during one batch are spread evenly over it; an item waits for the rest of that batch and
    for the full batches ahead of it, and goes with all who came before its own batch starts.
    """
    batch, (nodes, node_weights) = len(service), points
    waiting = np.nonzero(start > _NEGLIGIBLE)[0] + 1
    taken = np.minimum(waiting, batch)
    arrived = np.arange(1, counts.shape[-1])
    weight = start[waiting - 1, None, None] * counts[taken - 1, :, 1:] * arrived * node_weights[:, None]
    row, node, column = np.nonzero(weight > _NEGLIGIBLE * 0.1)
    elapsed = (np.arange(_RESIDUALS) + 0.5) / _RESIDUALS
    left, number = (waiting - taken)[row, None], arrived[column, None]
    full_ahead = (left + np.floor((number - 1) * elapsed + 0.5)) // batch
    ahead_s = full_ahead * service[-1]
    wait = (1 - elapsed) * (service[taken - 1][row] * nodes[node])[:, None] + ahead_s
    later = np.where(full_ahead > 0, rate * ahead_s, 0.0)
    size = np.clip(left + number - full_ahead * batch + later, 1, batch)
    return _binned(wait.ravel(), size.ravel(), np.repeat(weight[row, node, column] / _RESIDUALS, _RESIDUALS))


def _binned(wait: Array, size: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Merge items of nearly equal wait and size, keeping both means."""
    step = max(float(wait.max(initial=0.0)), 1e-12) / (_WAIT_BINS - 1e-6)
    key = (wait / step).astype(np.int64) + _WAIT_BINS * size.astype(np.int64)
    mass = np.bincount(key, weight)
    used = mass > 0
    total = mass[used]
    return (
        np.asarray(np.bincount(key, weight * wait)[used] / total),
        np.asarray(np.bincount(key, weight * size)[used] / total),
        np.asarray(total, dtype=np.float64),
    )


def _quantile(values: Array, weights: Array, share: float) -> float:
    """Return the value with `share` of the weight below it."""
    order = np.argsort(values)
    mass = weights[order]
    reached = np.cumsum(mass) - mass / 2
    return float(np.interp(share * mass.sum(), reached, values[order]))
