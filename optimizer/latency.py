"""How long an item stays in a stage, given what serves it.

Without batching: G/G/c with the mean wait of Kraemer and Langenbach-Belz (1976) and a gamma distributed time in the
stage; periodic streams on fixed replicas by a Brownian bridge. With batching: `optimizer.batching`. The routing
says which replicas share a queue.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.batching import UTILIZATION_CEILING, Batching, erlang_c, latency_curve
from optimizer.model import Placement, Routing
from optimizer.tails import gamma_quantile, mixture_percentile

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_POOLED = (Routing.PULL, Routing.ROUND_ROBIN, Routing.LEAST_LOADED)
_SLOT_CONFIDENCE = 1.645
"""Requests in a stage are nearly Poisson: this many deviations above the mean find a slot 95 % of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    """What arrives at a stage.

    `sessions` hold a slot each (None: requests hold one while they are in the stage). `periodic` says that the
    sessions send items at a fixed interval, none of which was dropped before. `latency_factor` is by what the model's
    latencies are multiplied, because they were measured to be so (`Stage.latency_factor`).
    """

    rate_rps: float
    sessions: float | None = None
    arrival_cv2: float = 1.0
    periodic: bool = False
    latency_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Time in the stage: mean, the percentile asked for, and the share of the capacity at full batches in use."""

    mean_s: float
    percentile_s: float
    utilization: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Predictions of many allocations at once, one entry each; infinite where one cannot carry the load."""

    mean_s: Array
    percentile_s: Array
    utilization: Array


def capacity_rps(placement: Placement, batch: int) -> float:
    """Return the items per second that one replica completes with full batches of `batch`."""
    rate = placement.concurrency * batch / placement.service.mean_s(batch)
    return rate if placement.saturation_rps is None else min(rate, placement.saturation_rps)


def predict(
    load: StageLoad, placement: Placement, replicas: int, *, batch: int, routing: Routing, percentile: float
) -> Prediction | None:
    """Return the prediction for one placement; None where it is overloaded or its slots do not suffice."""
    answer = predict_all(load, (placement,), np.array([[replicas]]), (batch,), routing=routing, percentile=percentile)
    if not np.isfinite(answer.percentile_s[0]):
        return None
    return Prediction(
        mean_s=float(answer.mean_s[0]),
        percentile_s=float(answer.percentile_s[0]),
        utilization=float(answer.utilization[0]),
    )


def predict_all(
    load: StageLoad,
    placements: Sequence[Placement],
    replicas: Counts,
    batches: Sequence[int],
    *,
    routing: Routing,
    percentile: float,
) -> Predictions:
    """Return the predictions for allocations of several placements, which share the work by their capacity.

    `replicas` has one row per allocation and one column per placement. An allocation is refused (infinite latency)
    above `UTILIZATION_CEILING` or when the slots of its replicas do not hold the load's sessions.
    """
    each = np.array([capacity_rps(p, b) for p, b in zip(placements, batches, strict=True)])
    capacity = replicas @ each
    running = capacity > 0
    utilization = np.where(running, load.rate_rps / np.where(running, capacity, 1.0), np.inf)
    shares = replicas * each / np.where(running, capacity, 1.0)[:, None]
    means, quantiles = np.zeros(shares.T.shape), np.zeros(shares.T.shape)
    for k, (placement, batch) in enumerate(zip(placements, batches, strict=True)):
        rows = np.nonzero((replicas[:, k] > 0) & (utilization <= UTILIZATION_CEILING))[0]
        if len(rows):
            part = _Part(load=load, placement=placement, batch=batch, routing=routing, percentile=percentile)
            means[k, rows], quantiles[k, rows] = part.latency(replicas[rows, k], utilization[rows])
    mean, quantile = np.sum(shares.T * means, axis=0), np.max(quantiles, axis=0)
    mixed = np.nonzero((np.count_nonzero(replicas, axis=1) > 1) & (utilization <= UTILIZATION_CEILING))[0]
    if len(mixed):
        quantile[mixed] = mixture_percentile(shares[mixed].T, quantiles[:, mixed], means[:, mixed], percentile)
    mean, quantile = mean * load.latency_factor, quantile * load.latency_factor
    ok = (utilization <= UTILIZATION_CEILING) & _slots_suffice(load, placements, replicas, mean)
    return Predictions(
        mean_s=np.where(ok, mean, np.inf), percentile_s=np.where(ok, quantile, np.inf), utilization=utilization
    )


def _slots_suffice(
    load: StageLoad, placements: Sequence[Placement], replicas: Counts, mean_s: Array
) -> NDArray[np.bool_]:
    slots = np.array([np.inf if p.session_slots is None else p.session_slots for p in placements])
    available = np.sum(np.where(replicas > 0, replicas * np.where(replicas > 0, slots, 0.0), 0.0), axis=1)
    if load.sessions is not None:
        needed = np.full(len(replicas), np.ceil(load.sessions - 1e-9))
    else:
        inside = load.rate_rps * mean_s  # Little's law
        needed = inside + _SLOT_CONFIDENCE * np.sqrt(inside)
    return np.asarray(needed <= available)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The replicas of one placement under their share of the load."""

    load: StageLoad
    placement: Placement
    batch: int
    routing: Routing
    percentile: float

    def latency(self, replicas: Counts, utilization: Array) -> tuple[Array, Array]:
        """Return mean and percentile, in seconds, for each entry of `replicas`, at least 1."""
        if self.batch > 1:
            return self._batched(replicas, utilization)
        if self.routing is Routing.STICKY and self.load.periodic and self.load.sessions and self.load.rate_rps > 0:
            return self._periodic(replicas, utilization)
        if self.routing not in _POOLED:
            return self._queue(np.full_like(replicas, self.placement.concurrency), utilization)
        mean, quantile = self._queue(replicas * self.placement.concurrency, utilization)
        if self.routing is Routing.LEAST_LOADED:
            alone = self._queue(np.full_like(replicas, self.placement.concurrency), utilization)
            # Counting is not seeing the remaining work: measured, 2–12 % of the way from one queue to many.
            away = 0.15 * (1 - utilization)
            mean, quantile = mean + away * (alone[0] - mean), quantile + away * (alone[1] - quantile)
        return mean, quantile

    def _queue(self, servers: Counts, utilization: Array, arrival_cv2: float | None = None) -> tuple[Array, Array]:
        """G/G/c: `servers` behind one queue."""
        service_s, cv2 = self.placement.service.mean_s(1), self.placement.service.cv**2
        ca2 = self.load.arrival_cv2 if arrival_cv2 is None else arrival_cv2
        busy = erlang_c(servers.astype(np.float64), utilization * servers)
        correction = np.ones_like(utilization)
        if ca2 < 1 and ca2 + cv2 > 0:
            loaded = np.maximum(utilization, 1e-9)
            correction = np.exp(-2 * (1 - loaded) * (1 - ca2) ** 2 / (3 * loaded * (ca2 + cv2)))
        wait = 0.5 * (ca2 + cv2) * correction * busy * service_s / (servers * (1 - utilization))
        # Given that it waits, an item waits an exponential time.
        variance = np.where(busy > 0, 2 * wait**2 / np.where(busy > 0, busy, 1.0), 0.0) - wait**2
        mean = wait + service_s
        return mean, gamma_quantile(mean, np.maximum(variance, 0.0) + cv2 * service_s**2, self.percentile)

    def _periodic(self, replicas: Counts, utilization: Array) -> tuple[Array, Array]:
        """N·D/D/c: streams pinned to a replica meet the same neighbours in every period."""
        assert self.load.sessions is not None
        placement, service_s = self.placement, self.placement.service.mean_s(1)
        mean, poisson = self._queue(np.full_like(replicas, placement.concurrency), utilization)
        # Service times that vary queue even when arrivals do not; what the phases add is on top.
        varied_mean, varied = self._queue(np.full_like(replicas, placement.concurrency), utilization, 0.0)
        streams = np.maximum(self.load.sessions / replicas, 1.0)
        room = 1 - utilization
        level = 0.5 * np.log(np.maximum(utilization / (1 - self.percentile / 100), 1.0))
        jobs = streams / 2 * (np.sqrt(room**2 + 4 * level / streams) - room)
        phases = jobs * service_s / placement.concurrency
        return np.minimum(mean, varied_mean + phases / 2), np.minimum(poisson, varied + phases)

    def _batched(self, replicas: Counts, utilization: Array) -> tuple[Array, Array]:
        placement, law = self.placement, self.placement.service
        alone_s = law.mean_s(1)
        pooled = self.routing in _POOLED
        servers = replicas * placement.concurrency if pooled else np.full_like(replicas, placement.concurrency)
        mean, quantile = self._curves(np.log2(servers), utilization)
        mean, quantile = mean * alone_s, quantile * alone_s
        if placement.batch_wait_s > 0:
            queues = 1 if self.routing is Routing.PULL else replicas
            rate = utilization * replicas * capacity_rps(placement, self.batch) / queues
            fill = np.minimum(placement.batch_wait_s, (self.batch - 1) / np.maximum(rate, 1e-12))
            service = law.fixed_s + law.per_item_s * np.minimum(self.batch, 1 + rate * fill)
            mean = np.maximum(mean, fill * (1 + rate * fill / 2) / (1 + rate * fill) + service)
            quantile = np.maximum(quantile, fill + gamma_quantile(service, (law.cv * service) ** 2, self.percentile))
        return mean, quantile

    def _curves(self, log_servers: Array, utilization: Array) -> tuple[Array, Array]:
        """Interpolate the curves of 1, 2, 4… servers in the logarithm of their number."""
        nodes = np.arange(np.floor(log_servers.min()), np.ceil(log_servers.max()) + 1)
        law = self.placement.service
        lines = []
        for node in nodes:
            curve = latency_curve(
                Batching(
                    per_item_share=round(law.per_item_s / law.mean_s(1), 2),
                    cv=round(law.cv, 2),
                    limit=self.batch,
                    servers=int(2**node),
                    aware=self.routing in (Routing.PULL, Routing.LEAST_LOADED),
                    arrival_cv2=round(self.load.arrival_cv2, 1),
                ),
                self.percentile,
            )
            lines.append(
                (
                    np.interp(utilization, curve.utilization, curve.mean),
                    np.interp(utilization, curve.utilization, curve.percentile),
                )
            )
        low = np.minimum(np.floor(log_servers - nodes[0]).astype(np.int64), len(nodes) - 1)
        high = np.minimum(low + 1, len(nodes) - 1)
        part, row, table = log_servers - nodes[0] - low, np.arange(len(utilization)), np.array(lines)
        value = (1 - part) * table[low, :, row].T + part * table[high, :, row].T
        return value[0], value[1]
