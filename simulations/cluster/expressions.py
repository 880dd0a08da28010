"""The results that the presets' PromQL has for simulated pods: all expressions of `profiler/presets`, as arrays.

The presets define how the values of pods are combined for a placement, and `profiler.sources` combines them. Metrics
that a server does not export read as missing, as from Prometheus.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from scipy.special import gammainc

from profiler.samples import Answer, Quantity
from simulations.cluster.scrapes import Floats, ScrapeWindow, quantiles
from simulations.results.histogram import (
    MEAN_TOKENS,
    VLLM_FIRST_TOKEN_S,
    VLLM_REQUEST_S,
    VLLM_TOKENS,
    WORKER_LATENCY_S,
)


class Counter(IntEnum):
    """The columns of a pod's counters. The columns of its latency buckets follow after these."""

    ARRIVED = 0
    REFUSED = 1
    COMPLETED = 2
    BATCHES = 3
    BUSY_S = 4
    """Service times of batches."""
    SERVICE_S = 5
    """Service times of items: each item counts the time of its batch."""
    LATENCY_S = 6
    REFUSED_SESSIONS = 7


class Level(IntEnum):
    """The columns of a pod's levels."""

    QUEUED = 0
    IN_SERVICE = 1
    SESSIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PodSamples:
    """The samples of the pods of one placement, and the settings of their server.

    `window` has the samples over the stage's metrics window, `summary` those over TRITON_SUMMARY_S. `bounds_s` are the
    upper bounds of the latency buckets. The first token of an answer leaves after `first_token_share` of the service
    time (1: with the last). The server has `other_models` beside the one that the stage selects: every item passes each
    of them, as the steps of an ensemble, and all report alike. `work_cv` is the coefficient of variation of the
    work of items.
    """

    window: ScrapeWindow
    summary: ScrapeWindow
    bounds_s: Floats
    concurrency: int
    queue_limit: int
    first_token_share: float = 1.0
    other_models: tuple[str, ...] = ()
    work_cv: float = 0.0

    def rate(self, counter: Counter) -> Floats:
        """Return the rate of a counter per second, for each pod."""
        return self.window.rates[:, counter]

    def buckets(self) -> Floats:
        """Return the items per second in each latency bucket (not cumulative), shape (pods, buckets)."""
        return self.window.rates[:, len(Counter) :]

    def constant(self, value: float) -> Floats:
        """Return `value` for each pod, NaN for pods without a sample."""
        return np.where(np.isnan(self.window.last[:, Level.QUEUED]), np.nan, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """The expression of one quantity: `value` returns its value for each pod, or for each pod and upper bound.

    `over` returns the divisor if the quantity is a ratio. `upper_bounds` are those of a histogram, without +Inf. NaN
    means a missing series, unless the server itself exports NaN (`exports_nan`).
    """

    value: Callable[[PodSamples], Floats]
    over: Callable[[PodSamples], Floats] | None = None
    upper_bounds: tuple[float, ...] = ()
    exports_nan: bool = False


def _rate(counter: Counter) -> Callable[[PodSamples], Floats]:
    return lambda pods: pods.rate(counter)


def _mean(level: Level) -> Callable[[PodSamples], Floats]:
    return lambda pods: pods.window.means[:, level]


def _last(level: Level) -> Callable[[PodSamples], Floats]:
    return lambda pods: pods.window.last[:, level]


def _histogram(bounds_s: tuple[float, ...], answer: Answer = Answer.WHOLE) -> Expression:
    """Return the expression of the cumulative rates of a server's histogram, from the engine's finer buckets.

    It interpolates linearly between the engine's bounds. Items above all of the engine's bounds count as below the next
    bound of the histogram. The engine counts latencies of whole answers; a first token is earlier by the mean time that
    the rest of an answer takes.
    """
    ends_s = np.append(bounds_s, np.inf)

    def buckets(pods: PodSamples) -> Floats:
        counted = pods.buckets()
        below = np.concatenate([np.zeros((len(counted), 1)), np.cumsum(counted, axis=1)], axis=1)
        edges = np.concatenate([[0.0], pods.bounds_s])
        if answer is Answer.WHOLE or pods.first_token_share == 1:
            return _up_to(below, edges, ends_s)
        rows = zip(below, np.nan_to_num(_rest_s(pods)), strict=True)
        shifted = [_up_to(row[np.newaxis], edges, ends_s + rest_s) for row, rest_s in rows]
        return np.array(shifted).reshape(len(below), len(ends_s))

    return Expression(value=buckets, upper_bounds=bounds_s)


def _up_to(below: Floats, edges: Floats, ends_s: Floats) -> Floats:
    """Return the rates up to each of `ends_s`, where `below` has the rates up to each of `edges`, a row per pod."""
    above = np.minimum(np.searchsorted(edges, ends_s), len(edges))
    known = above < len(edges)
    low = edges[above[known] - 1]
    share = np.ones(len(ends_s))
    share[known] = (ends_s[known] - low) / (edges[above[known]] - low)
    cumulative: Floats = below[:, above - 1] + share * (below[:, above] - below[:, above - 1])
    return cumulative


def _rest_s(pods: PodSamples) -> Floats:
    """Return the mean time (s) of an item from its first token to its end, for each pod; NaN without items."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rest_s: Floats = (1 - pods.first_token_share) * pods.rate(Counter.SERVICE_S) / pods.rate(Counter.COMPLETED)
    return rest_s


def _first_token_s(pods: PodSamples) -> Floats:
    return pods.rate(Counter.LATENCY_S) - (1 - pods.first_token_share) * pods.rate(Counter.SERVICE_S)


def _prefill_s(pods: PodSamples) -> Floats:
    return pods.first_token_share * pods.rate(Counter.SERVICE_S)


def _summary(quantile: float) -> Callable[[PodSamples], Floats]:
    return lambda pods: quantiles(quantile, pods.bounds_s, pods.summary.increases[:, len(Counter) :])


def _triton_served_batch(pods: PodSamples) -> Floats:
    items, batches = pods.rate(Counter.COMPLETED), pods.rate(Counter.BATCHES)
    return items * items / np.maximum(batches, 1e-9) + items - batches


def _triton_busy(pods: PodSamples) -> Floats:
    return pods.rate(Counter.SERVICE_S) * pods.rate(Counter.BATCHES) / np.maximum(pods.rate(Counter.COMPLETED), 1e-9)


def _vllm_arrivals(pods: PodSamples) -> Floats:
    growth = pods.window.slopes[:, Level.QUEUED] + pods.window.slopes[:, Level.IN_SERVICE]
    return pods.rate(Counter.COMPLETED) + growth


def _tokens(pods: PodSamples) -> Floats:
    """Return the cumulative rates of the histogram of generated tokens, shape (pods, buckets): work is gamma."""
    below = np.ones(len(VLLM_TOKENS) + 1)
    bounds = np.array(VLLM_TOKENS) / MEAN_TOKENS
    below[:-1] = bounds >= 1 if pods.work_cv == 0 else gammainc(pods.work_cv**-2, bounds * pods.work_cv**-2)
    return np.outer(pods.rate(Counter.COMPLETED), below)


_WORKER, _VLLM_REQUEST = _histogram(WORKER_LATENCY_S), _histogram(VLLM_REQUEST_S)
_VLLM_FIRST_TOKEN = _histogram(VLLM_FIRST_TOKEN_S, Answer.FIRST)
_NOT_EXPORTED = Expression(value=lambda pods: np.full(len(pods.window.ages_s), np.nan))

EXPRESSIONS: Mapping[str, Mapping[Quantity, Expression]] = {
    "generic": {
        Quantity.ARRIVAL_RATE: Expression(value=_rate(Counter.ARRIVED)),
        Quantity.COMPLETION_RATE: Expression(value=_rate(Counter.COMPLETED)),
        Quantity.LATENCY_MEAN: Expression(value=_rate(Counter.LATENCY_S), over=_rate(Counter.COMPLETED)),
        Quantity.LATENCY_P95: _WORKER,
        Quantity.LATENCY_P95_FLOOR: _WORKER,
        Quantity.LATENCY_P95_CEILING: _WORKER,
        Quantity.LATENCY_P99: _WORKER,
        Quantity.SERVICE_TIME: Expression(value=_rate(Counter.BUSY_S), over=_rate(Counter.BATCHES)),
        Quantity.BATCH_SIZE: Expression(value=_rate(Counter.COMPLETED), over=_rate(Counter.BATCHES)),
        Quantity.UTILIZATION: Expression(
            value=_rate(Counter.BUSY_S), over=lambda pods: pods.constant(pods.concurrency)
        ),
        Quantity.QUEUE_DEPTH: Expression(value=_mean(Level.QUEUED)),
        Quantity.RX_QUEUE_PRESSURE: Expression(
            value=lambda pods: np.minimum(1.0, pods.window.last[:, Level.QUEUED] / pods.queue_limit)
        ),
        Quantity.SESSIONS: Expression(value=_last(Level.SESSIONS)),
        Quantity.SESSION_REFUSALS: Expression(value=_rate(Counter.REFUSED_SESSIONS)),
    },
    "triton": {
        Quantity.ARRIVAL_RATE: Expression(value=lambda pods: pods.rate(Counter.COMPLETED) + pods.rate(Counter.REFUSED)),
        Quantity.COMPLETION_RATE: Expression(value=_rate(Counter.COMPLETED)),
        Quantity.LATENCY_MEAN: Expression(value=_rate(Counter.LATENCY_S), over=_rate(Counter.COMPLETED)),
        Quantity.LATENCY_P95: Expression(value=_summary(0.95), exports_nan=True),
        Quantity.LATENCY_P99: Expression(value=_summary(0.99), exports_nan=True),
        Quantity.SERVICE_TIME: Expression(value=_rate(Counter.SERVICE_S), over=_rate(Counter.COMPLETED)),
        Quantity.BATCH_SIZE: Expression(value=_rate(Counter.COMPLETED), over=_rate(Counter.BATCHES)),
        Quantity.SERVED_BATCH: Expression(value=_triton_served_batch, over=_rate(Counter.COMPLETED)),
        Quantity.UTILIZATION: Expression(value=_triton_busy),
        Quantity.QUEUE_DEPTH: Expression(value=_mean(Level.QUEUED)),
        Quantity.RX_QUEUE_PRESSURE: _NOT_EXPORTED,
        Quantity.SESSIONS: Expression(value=_last(Level.SESSIONS)),
        Quantity.SESSION_REFUSALS: Expression(value=_rate(Counter.REFUSED_SESSIONS)),
    },
    "vllm": {
        Quantity.ARRIVAL_RATE: Expression(value=_vllm_arrivals),
        Quantity.COMPLETION_RATE: Expression(value=_rate(Counter.COMPLETED)),
        Quantity.LATENCY_MEAN: Expression(value=_rate(Counter.LATENCY_S), over=_rate(Counter.COMPLETED)),
        Quantity.LATENCY_P95: _VLLM_REQUEST,
        Quantity.LATENCY_P95_FLOOR: _VLLM_REQUEST,
        Quantity.LATENCY_P95_CEILING: _VLLM_REQUEST,
        Quantity.LATENCY_P99: _VLLM_REQUEST,
        Quantity.SERVICE_TIME: Expression(value=_rate(Counter.SERVICE_S), over=_rate(Counter.COMPLETED)),
        Quantity.BATCH_SIZE: Expression(
            value=_mean(Level.IN_SERVICE), over=lambda pods: pods.window.busy_shares[:, Level.IN_SERVICE]
        ),
        Quantity.PRESENT_BATCH: Expression(
            value=lambda pods: pods.window.mean_squares[:, Level.IN_SERVICE], over=_mean(Level.IN_SERVICE)
        ),
        # From the start of the service to the first token, as the lab's workers export it.
        Quantity.PREFILL_TIME: Expression(value=_prefill_s, over=_rate(Counter.COMPLETED)),
        Quantity.PREFIX_HIT_RATE: Expression(value=_NOT_EXPORTED.value, over=_NOT_EXPORTED.value),
        Quantity.WORK_VARIATION: Expression(value=_tokens, upper_bounds=VLLM_TOKENS),
        Quantity.UTILIZATION: Expression(value=_mean(Level.IN_SERVICE)),
        Quantity.QUEUE_DEPTH: Expression(value=_mean(Level.QUEUED)),
        Quantity.SESSIONS: Expression(value=_last(Level.SESSIONS)),
        Quantity.SESSION_REFUSALS: Expression(value=_rate(Counter.REFUSED_SESSIONS)),
        Quantity.RX_QUEUE_PRESSURE: _NOT_EXPORTED,
        Quantity.ENGINES: _NOT_EXPORTED,
    },
}

FIRST_TOKEN: Mapping[str, Mapping[Quantity, Expression]] = {
    "vllm": {
        Quantity.LATENCY_MEAN: Expression(value=_first_token_s, over=_rate(Counter.COMPLETED)),
        Quantity.LATENCY_P95: _VLLM_FIRST_TOKEN,
        Quantity.LATENCY_P95_FLOOR: _VLLM_FIRST_TOKEN,
        Quantity.LATENCY_P95_CEILING: _VLLM_FIRST_TOKEN,
        Quantity.LATENCY_P99: _VLLM_FIRST_TOKEN,
    },
}
"""The expressions that differ from `EXPRESSIONS` for the first token of an answer, by preset."""
