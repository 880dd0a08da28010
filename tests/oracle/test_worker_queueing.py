"""The lab's queue against theory: real sockets and timers, Poisson arrivals, nothing else in the way."""

import asyncio
import heapq
import itertools
import random
import time
from collections.abc import Callable, Sequence

import pytest
from laws import with_law
from loopback import an_address

from simulations.lab.net.timers import Timers
from simulations.lab.net.wire import ITEM_PORT, NO_SESSION, Client, Response, Status
from simulations.lab.pods.worker import StageWorker, WorkerSpec

pytestmark = pytest.mark.quiet


def spec(**values: float) -> WorkerSpec:
    return WorkerSpec(pipeline="oracle", stage="s", queue_limit=10_000, **with_law(**values))


def poisson_s(rate_rps: float, count: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    return list(itertools.accumulate(draw.expovariate(rate_rps) for _ in range(count)))


def simulated_s(worker: WorkerSpec, arrivals_s: Sequence[float]) -> list[float]:
    """Sojourn times of an ideal worker with the same draws: an event simulation in exact time."""
    draw = random.Random(f"{worker.seed}/0")
    free_s = [0.0] * worker.concurrency
    sojourn_s: list[float] = []
    first = 0
    while first < len(arrivals_s):
        due_s = arrivals_s[first] + worker.batch_wait_s
        if first + worker.batch_max <= len(arrivals_s):
            due_s = min(due_s, arrivals_s[first + worker.batch_max - 1])
        start_s = max(due_s, heapq.heappop(free_s))
        last = first + 1
        while last < len(arrivals_s) and last - first < worker.batch_max and arrivals_s[last] <= start_s:
            last += 1
        mean_s = worker.service.mean_s(last - first)
        end_s = start_s + (
            draw.gammavariate(worker.service.cv**-2, mean_s * worker.service.cv**2) if worker.service.cv else mean_s
        )
        heapq.heappush(free_s, end_s)
        sojourn_s += [end_s - arrival_s for arrival_s in arrivals_s[first:last]]
        first = last
    return sojourn_s


def measured_s(worker: WorkerSpec, arrivals_s: Sequence[float]) -> list[float]:
    """Sojourn times from the intended instant of sending to the client's receipt of the answer."""

    async def run() -> list[float]:
        timers = Timers()
        host = an_address()
        stage = StageWorker(worker, host, timers)
        await stage.start()
        client = await Client.connect(host, ITEM_PORT)
        sojourn_s = [0.0] * len(arrivals_s)
        answers: list[asyncio.Future[Response]] = []
        begin_s = time.monotonic() + 0.1

        def received(item: int) -> Callable[[asyncio.Future[Response]], None]:
            def note(answer: asyncio.Future[Response]) -> None:
                assert answer.result().status is Status.OK
                sojourn_s[item] = time.monotonic() - begin_s - arrivals_s[item]

            return note

        for item, arrival_s in enumerate(arrivals_s):
            await timers.sleep_until(begin_s + arrival_s)
            answer = client.send(item, NO_SESSION)
            answer.add_done_callback(received(item))
            answers.append(answer)
        await asyncio.gather(*answers)
        client.close()
        await stage.abort()
        timers.close()
        return sojourn_s

    return asyncio.run(run())


def percentile_s(values_s: Sequence[float], percent: int) -> float:
    return sorted(values_s)[-(-percent * len(values_s) // 100) - 1]


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0])
def test_the_event_simulation_agrees_with_pollaczek_and_khinchine(cv: float) -> None:
    worker, rate_rps = spec(fixed_s=0.010, cv=cv), 70.0
    sojourn_s = simulated_s(worker, poisson_s(rate_rps, 300_000, seed=5))
    expected_s = 0.010 + rate_rps * 0.010**2 * (1 + cv**2) / (2 * (1 - 0.7))
    assert sum(sojourn_s) / len(sojourn_s) == pytest.approx(expected_s, rel=0.03)


@pytest.mark.parametrize(
    ("worker", "rate_rps"),
    [
        pytest.param(spec(fixed_s=0.010, cv=0.5), 70.0, id="M/G/1"),
        pytest.param(spec(fixed_s=0.020, concurrency=2), 70.0, id="M/D/2"),
        pytest.param(
            spec(fixed_s=0.014, per_item_s=0.003, cv=0.15, batch_max=8, batch_wait_s=0.010), 147.0, id="batches"
        ),
    ],
)
def test_median_and_p95_of_a_live_worker_are_within_3_percent_and_2_ms(worker: WorkerSpec, rate_rps: float) -> None:
    """At a utilisation of 0.7, with the draws of the simulation it is compared with.

    Other load on the machine only adds to the latency, while an error of the worker occurs in every attempt: one good
    attempt of three is enough.
    """
    arrivals_s = poisson_s(rate_rps, round(3 * rate_rps), seed=11)
    ideal_s = [percentile_s(simulated_s(worker, arrivals_s), percent) for percent in (50, 95)]
    attempts = []
    for _ in range(3):
        sojourn_s = measured_s(worker, arrivals_s)
        attempts.append([percentile_s(sojourn_s, percent) for percent in (50, 95)])
        if all(abs(live - ideal) <= 0.03 * ideal + 0.002 for live, ideal in zip(attempts[-1], ideal_s, strict=True)):
            return
    pytest.fail(f"p50 and p95 in s: {ideal_s} simulated, {attempts} live")
