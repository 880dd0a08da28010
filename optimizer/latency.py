"""How long an item stays in a stage, given what serves it.

From the simulated table (`optimizer.batching`), with or without batching; the routing says which servers share a queue.
Periodic streams on fixed replicas without batching by a Brownian bridge. Batchers that wait for a batch to fill by
what happens when nothing else is waited for, or by the table, whichever is more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from optimizer.batching import LEAST_LOADED, PULL, UTILIZATION_CEILING, erlang_c, time_in_stage
from optimizer.model import Placement, Routing
from optimizer.tails import gamma_quantile, mixture_percentile

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_ERROR_SERVERS: Counts = np.array([2, 7, 20])
_ERROR_UTILIZATION: Array = np.array([0.5, 0.7, 0.8])
_ERRORS: dict[str, Array] = {
    "batching": np.array(
        [[0.06, 0.06, 0.05, 0.06], [0.08, 0.08, 0.05, 0.05], [0.08, 0.08, 0.06, 0.05], [0.08, 0.10, 0.07, 0.06]]
    ),
    "single items": np.array(
        [[0.05, 0.05, 0.06, 0.08], [0.08, 0.05, 0.05, 0.05], [0.02, 0.02, 0.04, 0.06], [0.02, 0.02, 0.02, 0.03]]
    ),
    "round robin": np.full((4, 4), 0.2),
    "several slots": np.full((4, 4), 0.16),
    "patient": np.full((4, 4), 0.25),
    "periodic": np.full((4, 4), 0.15),
}
"""Measured against event simulations (tests/bench/bench_latency.py prints this map): the error of the p95 that nine of
ten points stay below, by number of servers (rows, up to and including) and utilisation (columns)."""

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
    """Time in the stage: mean, the percentile asked for, and the share of the capacity at full batches in use.

    `error` is how far the percentile is from simulations in nine of ten cases of this kind, as a share of it.
    """

    mean_s: float
    percentile_s: float
    utilization: float
    error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Predictions of many allocations at once, one entry each; infinite where one cannot carry the load."""

    mean_s: Array
    percentile_s: Array
    utilization: Array
    error: Array = field(default_factory=lambda: np.zeros(0))


def capacity_rps(placement: Placement, batch: int) -> float:
    """Return the items per second that one replica completes with full batches of `batch`."""
    rate = placement.concurrency * batch / placement.service.mean_s(batch)
    return rate if placement.saturation_rps is None else min(rate, placement.saturation_rps)


def predict(
    load: StageLoad,
    placement: Placement,
    replicas: int,
    *,
    batch: int,
    routing: Routing,
    percentile: float,
) -> Prediction | None:
    """Return the prediction for one placement; None where it is overloaded or its slots do not suffice."""
    answer = predict_all(
        load,
        (placement,),
        np.array([[replicas]]),
        (batch,),
        routing=routing,
        percentile=percentile,
    )
    if not np.isfinite(answer.percentile_s[0]):
        return None
    return Prediction(
        mean_s=float(answer.mean_s[0]),
        percentile_s=float(answer.percentile_s[0]),
        utilization=float(answer.utilization[0]),
        error=float(answer.error[0]),
    )


def predict_all(
    load: StageLoad,
    placements: Sequence[Placement],
    replicas: Counts,
    batches: Sequence[int] | Counts,
    *,
    routing: Routing,
    percentile: float,
) -> Predictions:
    """Return the predictions for allocations of several placements, which share the work by their capacity.

    `replicas` has one row per allocation and one column per placement; `batches`, the batch limits, too, or it is one
    row for all of them. An allocation is refused (infinite latency) above `UTILIZATION_CEILING` or when the slots of
    its replicas do not hold the load's sessions.
    """
    limits = np.broadcast_to(np.asarray(batches, dtype=np.int64), replicas.shape)
    running = replicas > 0
    each = np.zeros(replicas.shape)
    alike: list[tuple[int, int, NDArray[np.bool_]]] = []
    for k, placement in enumerate(placements):
        for batch in sorted(set(limits[:, k].tolist())):
            rows = running[:, k] & (limits[:, k] == batch)
            each[rows, k] = capacity_rps(placement, batch)
            alike.append((k, batch, rows))
    offered = replicas * each
    capacity = offered.sum(axis=1)
    utilization = np.full(len(replicas), np.inf)
    np.divide(load.rate_rps, capacity, out=utilization, where=capacity > 0)
    carried = utilization <= UTILIZATION_CEILING
    shares = np.zeros((len(placements), len(replicas)))
    means, quantiles, errors = np.zeros_like(shares), np.zeros_like(shares), np.zeros_like(shares)
    for k, batch, has in alike:
        at = np.nonzero(has & carried)[0]
        if len(at):
            part = _Part(load=load, placement=placements[k], batch=batch, routing=routing, percentile=percentile)
            count, busy = replicas[at, k], utilization[at]
            shares[k, at] = offered[at, k] / capacity[at]
            means[k, at], quantiles[k, at] = part.latency(count, busy)
            errors[k, at] = part.error(count, busy)
    mean, quantile = (shares * means).sum(axis=0), quantiles.max(axis=0, initial=0.0)
    mixed = np.nonzero((np.count_nonzero(running, axis=1) > 1) & carried)[0]
    if len(mixed):
        quantile[mixed] = mixture_percentile(shares[:, mixed], quantiles[:, mixed], means[:, mixed], percentile)
    ok = carried & _slots_suffice(load, placements, replicas, mean * load.latency_factor)
    return Predictions(
        mean_s=np.where(ok, mean * load.latency_factor, np.inf),
        percentile_s=np.where(ok, quantile * load.latency_factor, np.inf),
        utilization=utilization,
        error=errors.max(axis=0, initial=0.0),
    )


def _slots_suffice(
    load: StageLoad, placements: Sequence[Placement], replicas: Counts, mean_s: Array
) -> NDArray[np.bool_]:
    if all(p.session_slots is None for p in placements):
        return np.ones(len(replicas), dtype=np.bool_)
    slots = np.array([np.inf if p.session_slots is None else p.session_slots for p in placements])
    available = np.sum(np.where(replicas > 0, replicas * np.where(replicas > 0, slots, 0.0), 0.0), axis=1)
    if load.sessions is not None:
        needed = np.full(len(replicas), np.ceil(load.sessions - 1e-9))
    else:
        inside = load.rate_rps * mean_s  # Little's law
        needed = inside + _SLOT_CONFIDENCE * np.sqrt(inside)
    return np.asarray(needed <= available)


def _found_busy(streams: Array, utilization: Array, servers: int) -> Array:
    """Return P(Bin(streams − 1, share of time that one stream takes) ≥ servers)."""
    share = np.minimum(utilization * servers / streams, 1 - 1e-9)
    term = np.exp((streams - 1) * np.log1p(-share))
    below = term.copy()
    for k in range(1, servers):
        term = term * np.maximum(streams - k, 0.0) / k * share / (1 - share)
        below += term
    return np.asarray(np.clip(1 - below, 0.0, 1.0))


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
        mean, quantile = self._queued(replicas, utilization)
        if self.batch == 1 and self._pinned:
            return self._periodic(replicas, utilization, mean, quantile)
        if self.batch > 1 and self.placement.batch_wait_s > 0:
            return self._patient(replicas, utilization, mean, quantile)
        return mean, quantile

    def error(self, replicas: Counts, utilization: Array) -> Array:
        """Return the relative error that nine of ten predictions of the same kind stay below."""
        if self.batch > 1 and self.placement.batch_wait_s > 0:
            kind = "patient"
        elif self.batch == 1 and self._pinned:
            kind = "periodic"
        elif self.routing is Routing.ROUND_ROBIN:
            kind = "round robin"
        elif self.routing is Routing.LEAST_LOADED and self.placement.concurrency > 1:
            kind = "several slots"
        else:
            kind = "batching" if self.batch > 1 else "single items"
        servers = replicas * self.placement.concurrency
        rows = np.searchsorted(_ERROR_SERVERS, servers, side="left")
        return np.asarray(_ERRORS[kind][rows, np.searchsorted(_ERROR_UTILIZATION, utilization, side="right")])

    @property
    def _pinned(self) -> bool:
        load = self.load
        return self.routing is Routing.STICKY and load.periodic and bool(load.sessions) and load.rate_rps > 0

    def _queued(self, replicas: Counts, utilization: Array) -> tuple[Array, Array]:
        """Servers that take what waits."""
        slots, law = self.placement.concurrency, self.placement.service
        alone_s, cv2 = law.mean_s(1), self.load.arrival_cv2

        def at(servers: Array, arrival_cv2: Array, sharing: int) -> tuple[Array, Array]:
            mean, quantile = time_in_stage(
                servers,
                utilization,
                np.sqrt(arrival_cv2),
                sharing=sharing,
                limit=self.batch,
                per_item_share=law.per_item_s / alone_s,
                service_cv=law.cv,
                percentile=self.percentile,
            )
            return mean * alone_s, quantile * alone_s

        count = replicas.astype(np.float64)
        match self.routing:
            case Routing.PULL:
                return at(count * slots, np.full_like(count, cv2), PULL)
            case Routing.LEAST_LOADED:
                mean, quantile = at(count * slots, np.full_like(count, cv2), LEAST_LOADED)
                if slots > 1:  # the servers of a replica share its queue
                    shared = at(count * slots, np.full_like(count, cv2), PULL)
                    own = 1 / slots
                    mean, quantile = own * mean + (1 - own) * shared[0], own * quantile + (1 - own) * shared[1]
                return mean, quantile
            case Routing.ROUND_ROBIN:  # a replica gets every n-th item
                return at(np.full_like(count, slots), cv2 / count, PULL)
            case Routing.RANDOM | Routing.STICKY:  # splitting at random makes any arrivals more like Poisson's
                return at(np.full_like(count, slots), 1 + (cv2 - 1) / count, PULL)

    def _periodic(
        self, replicas: Counts, utilization: Array, poisson_mean: Array, poisson: Array
    ) -> tuple[Array, Array]:
        """N·D/D/c: streams pinned to a replica meet the same neighbours in every period."""
        assert self.load.sessions is not None
        placement, service_s = self.placement, self.placement.service.mean_s(1)
        # Service times that vary queue even when arrivals do not; what the phases add is on top.
        varied_mean, varied = self._regular(utilization)
        streams = np.maximum(self.load.sessions / replicas, 1.0)
        room, chance = 1 - utilization, _found_busy(streams, utilization, placement.concurrency)
        # P(x jobs are ahead) = chance · exp(−2x(x / streams + room)): a bridge, since what comes repeats.
        level = 0.5 * np.log(np.maximum(chance / (1 - self.percentile / 100), 1.0))
        jobs = streams / 2 * (np.sqrt(room**2 + 4 * level / streams) - room)
        steep = room * np.sqrt(streams / 2)
        on_average = chance * np.sqrt(streams / 2) / (steep + np.sqrt(steep**2 + 4 / np.pi))
        each_s = service_s / placement.concurrency
        return (
            np.minimum(poisson_mean, varied_mean + on_average * each_s),
            np.minimum(poisson, varied + jobs * each_s),
        )

    def _regular(self, utilization: Array) -> tuple[Array, Array]:
        """Return mean and percentile of D/G/c at one replica (Kraemer and Langenbach-Belz 1976)."""
        servers, service_s = self.placement.concurrency, self.placement.service.mean_s(1)
        cv2 = self.placement.service.cv**2
        if cv2 == 0:
            return np.full_like(utilization, service_s), np.full_like(utilization, service_s)
        busy = erlang_c(np.full(len(utilization), float(servers)), utilization * servers)
        loaded = np.maximum(utilization, 1e-9)
        regular = np.exp(-2 * (1 - loaded) / (3 * loaded * cv2))
        wait = 0.5 * cv2 * regular * busy * service_s / (servers * (1 - utilization))
        # Given that it waits, an item waits an exponential time.
        variance = np.where(busy > 0, 2 * wait**2 / np.where(busy > 0, busy, 1.0), 0.0) - wait**2
        mean = wait + service_s
        return mean, gamma_quantile(mean, np.maximum(variance, 0.0) + cv2 * service_s**2, self.percentile)

    def _patient(self, replicas: Counts, utilization: Array, mean: Array, quantile: Array) -> tuple[Array, Array]:
        """Servers that wait for a batch to fill: the more of what the table says and of that wait alone."""
        placement, law = self.placement, self.placement.service
        queues = np.ones(len(replicas)) if self.routing is Routing.PULL else replicas
        rate = utilization * replicas * capacity_rps(placement, self.batch) / queues
        fill = np.minimum(placement.batch_wait_s, (self.batch - 1) / np.maximum(rate, 1e-12))
        service = law.fixed_s + law.per_item_s * np.minimum(self.batch, 1 + rate * fill)
        alone = fill * (1 + rate * fill / 2) / (1 + rate * fill) + service
        # Who else came in that time is a matter of chance too: Poisson.
        variance = (law.cv * service) ** 2 + law.per_item_s**2 * np.minimum(rate * fill, self.batch - 1)
        slow = fill + gamma_quantile(service, variance, self.percentile)
        return np.maximum(mean, alone), np.maximum(quantile, slow)
