"""The latency model against an event simulation of what it stands for: queues, batches, routing. Prints the errors."""

import heapq
import random
from collections import deque
from collections.abc import Iterable

import numpy as np
import pytest
from problems import on

from optimizer.composition import Latency, end_to_end, shape_of
from optimizer.latency import StageLoad, capacity_rps, predict
from optimizer.model import Composition, Placement, Routing, StageName

ITEMS = 25_000


def simulate(
    placement: Placement, replicas: int, rate_rps: float, routing: Routing, seed: int, items: int
) -> tuple[float, float]:
    """Return mean and p95 of the time in the stage: Poisson arrivals, gamma service."""
    rng, batch, law = random.Random(seed), placement.batch_sizes[-1], placement.service
    queues: list[deque[float]] = [deque() for _ in range(1 if routing is Routing.PULL else replicas)]
    serving: list[list[float]] = [[] for _ in range(replicas)]
    events: list[tuple[float, int, int]] = [(rng.expovariate(rate_rps), -1, 0)]  # time, replica (−1: arrival), kind
    times: list[float] = []

    def start(replica: int, now: float) -> None:
        queue = queues[0 if routing is Routing.PULL else replica]
        due = queue and (len(queue) >= batch or now >= queue[0] + placement.batch_wait_s - 1e-12)
        if serving[replica] or not due:
            return
        serving[replica] = [queue.popleft() for _ in range(min(batch, len(queue)))]
        mean = law.mean_s(len(serving[replica]))
        service = mean if law.cv == 0 else rng.gammavariate(1 / law.cv**2, mean * law.cv**2)
        heapq.heappush(events, (now + service, replica, 1))

    while len(times) < items:
        now, replica, done = heapq.heappop(events)
        if replica < 0:
            heapq.heappush(events, (now + rng.expovariate(rate_rps), -1, 0))
            if routing is Routing.LEAST_LOADED:
                load = [len(queue) + len(items) for queue, items in zip(queues, serving, strict=True)]
                replica = rng.choice([k for k, count in enumerate(load) if count == min(load)])
            else:
                replica = rng.randrange(replicas)
            queues[0 if routing is Routing.PULL else replica].append(now)
            if placement.batch_wait_s > 0:
                heapq.heappush(events, (now + placement.batch_wait_s, replica, 0))
        elif done:
            times.extend(now - arrived for arrived in serving[replica])
            serving[replica] = []
        for other in range(replicas) if routing is Routing.PULL else (replica,):
            start(other, now)
    kept = np.array(times[items // 10 :])
    return float(kept.mean()), float(np.percentile(kept, 95))


def errors(
    cases: Iterable[tuple[Placement, int, float]], routing: Routing, label: str, items: int = ITEMS
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    found = []
    for seed, (placement, replicas, utilization) in enumerate(cases):
        rate = utilization * replicas * capacity_rps(placement, placement.batch_sizes[-1])
        _, simulated = simulate(placement, replicas, rate, routing, seed, items)
        answer = predict(
            StageLoad(rate_rps=rate),
            placement,
            replicas,
            batch=placement.batch_sizes[-1],
            routing=routing,
            percentile=95,
        )
        assert answer is not None
        found.append(answer.percentile_s / simulated - 1)
    error = np.array(found)
    print(
        f"{label}: {len(error)} points, p95 error median {np.median(np.abs(error)):.1%}, "
        f"p90 {np.percentile(np.abs(error), 90):.1%}, bias {np.median(error):+.1%}"
    )
    return error


def test_batches_on_one_replica_are_predicted_within_the_target() -> None:
    cases = [
        (on("x", service=(1 - f, f), cv=cv, batches=(batch,)), 1, rho)
        for batch, f, cv in ((2, 0.3, 0.5), (8, 0.18, 0.15), (8, 0.5, 0.4), (16, 0.12, 0.5))
        for rho in (0.3, 0.6, 0.8)
    ]
    error = errors(cases, Routing.STICKY, "batches, one replica", items=80_000)
    assert np.median(np.abs(error)) <= 0.04
    assert np.percentile(np.abs(error), 90) <= 0.12


def test_batches_behind_a_balancer_are_predicted_roughly() -> None:
    cases = [
        (on("x", service=(1 - f, f), cv=cv, batches=(batch,)), replicas, rho)
        for batch, f, cv in ((8, 0.18, 0.15), (8, 0.5, 0.4))
        for replicas in (2, 3, 8)
        for rho in (0.4, 0.7, 0.85)
    ]
    error = errors(cases, Routing.LEAST_LOADED, "batches, least loaded of 2, 3, 8")
    assert np.median(np.abs(error)) <= 0.08
    assert np.percentile(np.abs(error), 90) <= 0.20


def test_single_items_behind_a_balancer_are_predicted() -> None:
    cases = [
        (on("x", service=(1.0, 0.0), cv=cv), replicas, rho)
        for cv in (0.3, 0.8)
        for replicas in (1, 2, 6)
        for rho in (0.4, 0.7, 0.85)
    ]
    error = errors(cases, Routing.LEAST_LOADED, "single items, least loaded of 1, 2, 6")
    assert np.median(np.abs(error)) <= 0.06
    assert np.percentile(np.abs(error), 90) <= 0.15


def test_waiting_for_a_batch_to_fill_is_predicted() -> None:
    cases = [
        (on("x", service=(0.014, 0.003), cv=0.15, batches=(8,), wait_s=0.010), 1, rho) for rho in (0.1, 0.3, 0.5, 0.7)
    ]
    error = errors(cases, Routing.STICKY, "batches that wait 10 ms")
    assert np.max(np.abs(error)) <= 0.20


def test_m_m_1_is_the_textbook() -> None:
    placement = on("x", service=(1.0, 0.0), cv=1.0)
    answer = predict(StageLoad(rate_rps=0.8), placement, 1, batch=1, routing=Routing.STICKY, percentile=95)
    assert answer is not None
    assert answer.mean_s == pytest.approx(5.0)
    assert answer.percentile_s == pytest.approx(5.0 * np.log(20), rel=0.02)


def test_the_slower_of_two_branches_is_predicted() -> None:
    rng = np.random.Generator(np.random.PCG64(1))
    before, left, right = rng.gamma(3, 0.01, 200_000), rng.gamma(2, 0.02, 200_000), rng.gamma(4, 0.01, 200_000)
    names = [StageName(name) for name in "abc"]
    shape = shape_of([(names[0], []), (names[1], [names[0]]), (names[2], [names[0]])])
    stages = [
        Latency(mean_s=np.array(x.mean()), percentile_s=np.array(np.percentile(x, 95))) for x in (before, left, right)
    ]
    answer = end_to_end(shape, stages, composition=Composition.RSS, percentile=95)
    whole = before + np.maximum(left, right)
    print(f"join: p95 {float(answer.percentile_s) / np.percentile(whole, 95) - 1:+.1%}")
    assert float(answer.percentile_s) == pytest.approx(np.percentile(whole, 95), rel=0.05)
    assert float(answer.mean_s) == pytest.approx(whole.mean(), rel=0.02)
