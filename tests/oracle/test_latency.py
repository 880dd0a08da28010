"""The latency model against an event simulation of what it stands for, and both against theory. Prints the errors."""

from collections.abc import Iterable

import numpy as np
import pytest
from event_simulation import arrivals, periodic, simulate
from laws import with_law
from problems import on

from optimizer.latency.stage import StageLoad, capacity_rps, predict
from optimizer.model import Placement, Routing
from optimizer.replay.queues import ServerGroup, serve

ITEMS = 150_000
Subproblem = tuple[Placement, int, float]


def simulated(placement: Placement, replicas: int, rate_rps: float, routing: Routing, seed: int) -> float:
    """Return the p95 of the time in the stage under Poisson arrivals."""
    spent = simulate(
        arrivals(rate_rps, 1.0, ITEMS, seed),
        replicas=replicas,
        concurrency=placement.concurrency,
        batch=placement.batch_sizes[-1],
        batch_wait_s=placement.batch_wait_s,
        fixed_s=placement.service.fixed_s,
        per_item_s=placement.service.per_item_s,
        cv=placement.service.cv,
        routing=routing,
        seed=seed,
    )
    return float(np.percentile(spent[ITEMS // 10 :], 95))


def errors(
    subproblems: Iterable[Subproblem], routing: Routing, label: str
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    found = []
    for seed, (placement, replicas, utilization) in enumerate(subproblems):
        batch = placement.batch_sizes[-1]
        rate = utilization * replicas * capacity_rps(placement, batch)
        answer = predict(StageLoad(rate_rps=rate), placement, replicas, batch=batch, routing=routing, percentile=95)
        assert answer is not None
        found.append(answer.percentile_s / simulated(placement, replicas, rate, routing, seed) - 1)
    error = np.array(found)
    print(
        f"{label}: {len(error)} points, p95 error median {np.median(np.abs(error)):.1%}, "
        f"p90 {np.percentile(np.abs(error), 90):.1%}, bias {np.median(error):+.1%}"
    )
    return error


def test_the_event_simulation_is_the_textbook() -> None:
    # M/M/2 at ρ = 0.5: the mean wait is a third of the service; M/D/1: ρ/(2(1 − ρ)).
    spent = simulate(arrivals(1.0, 1.0, ITEMS, 1), replicas=2, fixed_s=1.0, cv=1.0, routing=Routing.PULL, seed=1)
    assert spent.mean() == pytest.approx(4 / 3, rel=0.03)
    spent = simulate(arrivals(0.7, 1.0, ITEMS, 1), replicas=1, fixed_s=1.0, routing=Routing.RANDOM, seed=1)
    assert spent.mean() == pytest.approx(1 + 0.7 / 0.6, rel=0.03)


@pytest.mark.parametrize("cv", [1.2, 1.6, 2.0])
@pytest.mark.parametrize("utilization", [0.5, 0.8])
def test_service_that_varies_more_than_the_table_is_that_of_pollaczek_and_khinchine(
    cv: float, utilization: float
) -> None:
    placement = on("x", service=(1.0, 0.0), cv=cv, bounds=(0, 1))
    answer = predict(StageLoad(rate_rps=utilization), placement, 1, batch=1, routing=Routing.PULL, percentile=95)
    assert answer is not None
    assert answer.mean_s == pytest.approx(1 + utilization * (1 + cv**2) / (2 * (1 - utilization)), rel=0.02)
    assert answer.percentile_s == pytest.approx(simulated(placement, 1, utilization, Routing.PULL, 3), rel=0.13)


@pytest.mark.parametrize("routing", [Routing.PULL, Routing.LEAST_LOADED, Routing.ROUND_ROBIN])
@pytest.mark.parametrize("batch_wait_s", [0.0, 0.5])
@pytest.mark.parametrize("concurrency", [1, 2])
def test_stage_by_stage_is_event_by_event(routing: Routing, batch_wait_s: float, concurrency: int) -> None:
    # Two programs that share nothing but the meaning; with fixed service times they agree item by item.
    times = arrivals(0.7 * 6 * concurrency * 4 / 1.9, 1.0, 20_000, 3)
    stage = {
        "batch": 4,
        "concurrency": concurrency,
        "batch_wait_s": batch_wait_s,
        "fixed_s": 0.7,
        "per_item_s": 0.3,
    }
    spent = simulate(times, replicas=6, routing=routing, seed=1, **stage)  # type: ignore[arg-type]
    group = ServerGroup(replicas=6, **with_law(**stage))
    done = serve(times, np.zeros(len(times), dtype=np.int64), groups=(group,), routing=routing, seed=1)
    assert done - times == pytest.approx(spent)


def test_batches_on_one_replica_are_predicted_within_the_target() -> None:
    subproblems = [
        (on("x", service=(1 - f, f), cv=cv, batches=(batch,)), 1, rho)
        for batch, f, cv in ((2, 0.3, 0.5), (8, 0.18, 0.15), (8, 0.5, 0.4), (16, 0.12, 0.5))
        for rho in (0.3, 0.6, 0.8)
    ]
    error = errors(subproblems, Routing.STICKY, "batches, one replica")
    assert np.median(np.abs(error)) <= 0.02
    assert np.percentile(np.abs(error), 90) <= 0.04


def test_batches_behind_a_balancer_are_predicted_within_the_target() -> None:
    subproblems = [
        (on("x", service=(1 - f, f), cv=cv, batches=(batch,)), replicas, rho)
        for batch, f, cv in ((8, 0.18, 0.15), (8, 0.5, 0.4))
        for replicas in (2, 3, 7, 30)
        for rho in (0.4, 0.7, 0.85)
    ]
    for routing in (Routing.LEAST_LOADED, Routing.PULL, Routing.ROUND_ROBIN):
        error = errors(subproblems, routing, f"batches, {routing.value}, 2 to 30 replicas")
        assert np.median(np.abs(error)) <= 0.025
        assert np.percentile(np.abs(error), 90) <= 0.075


def test_single_items_behind_a_balancer_are_predicted() -> None:
    subproblems = [
        (on("x", service=(1.0, 0.0), cv=cv), replicas, rho)
        for cv in (0.0, 0.4, 0.8)
        for replicas in (1, 2, 6)
        for rho in (0.4, 0.7, 0.85)
    ]
    error = errors(subproblems, Routing.LEAST_LOADED, "single items, least loaded of 1, 2, 6")
    assert np.median(np.abs(error)) <= 0.02
    assert np.percentile(np.abs(error), 90) <= 0.06


def test_waiting_for_a_batch_to_fill_is_predicted() -> None:
    subproblems = [
        (on("x", service=(0.014, 0.003), cv=0.15, batches=(8,), wait_s=0.010), 1, rho) for rho in (0.1, 0.3, 0.5, 0.7)
    ]
    error = errors(subproblems, Routing.STICKY, "batches that wait 10 ms")
    assert np.max(np.abs(error)) <= 0.06


def test_who_waits_for_a_batch_to_fill_depends_on_the_routing() -> None:
    # One queue fills batches long before the wait is over; behind a balancer nobody joins while a replica is empty.
    subproblems = [
        (on("x", service=(1 - f, f), cv=0.2, batches=(batch,), wait_s=wait_s), replicas, rho)
        for batch, f, wait_s in ((5, 0.8, 0.8), (8, 0.3, 0.4))
        for replicas in (8, 32)
        for rho in (0.3, 0.6)
    ]
    for routing in (Routing.LEAST_LOADED, Routing.PULL):
        error = errors(subproblems, routing, f"batches that wait, {routing.value}, 8 and 32 replicas")
        assert np.median(np.abs(error)) <= 0.06
        assert np.max(np.abs(error)) <= (0.10 if routing is Routing.PULL else 0.28)


def test_slots_of_a_replica_share_its_queue() -> None:
    subproblems = [
        (on("x", service=(0.6, 0.4), cv=0.0, concurrency=slots, batches=(batch,)), replicas, rho)
        for slots, batch in ((2, 1), (4, 1), (2, 8), (3, 8))
        for replicas in (2, 8)
        for rho in (0.5, 0.8)
    ]
    error = errors(subproblems, Routing.LEAST_LOADED, "several slots")
    assert np.median(np.abs(error)) <= 0.05
    assert np.percentile(np.abs(error), 90) <= 0.13


def test_periodic_streams_are_predicted() -> None:
    error = []
    for streams, rho in ((10, 0.5), (10, 0.8), (40, 0.8), (40, 0.9)):
        placement, period = on("x", service=(1.0, 0.0), cv=0.0), streams / rho
        runs = []
        for seed in range(150):
            times, owner = periodic(streams, period, streams * 12, seed)
            spent = simulate(times, replicas=1, fixed_s=1.0, routing=Routing.STICKY, seed=seed, sessions=owner)
            runs.append(spent[streams * 6 :])
        load = StageLoad(rate_rps=streams / period, sessions=streams, periodic=True)
        answer = predict(load, placement, 1, batch=1, routing=Routing.STICKY, percentile=95)
        assert answer is not None
        error.append(answer.percentile_s / np.percentile(np.concatenate(runs), 95) - 1)
    print("periodic streams:", ", ".join(f"{value:+.1%}" for value in error))
    assert np.max(np.abs(error)) <= 0.10


def test_m_m_1_is_the_textbook() -> None:
    placement = on("x", service=(1.0, 0.0), cv=1.0)
    answer = predict(StageLoad(rate_rps=0.8), placement, 1, batch=1, routing=Routing.STICKY, percentile=95)
    assert answer is not None
    assert answer.mean_s == pytest.approx(5.0, rel=0.03)
    assert answer.percentile_s == pytest.approx(5.0 * np.log(20), rel=0.03)
