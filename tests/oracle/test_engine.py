"""The simulator's engine against an independent event simulation, against SimPy and against theory."""

import math
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import simpy
from engine_specs import a_pipeline, a_placement, a_stage, an_engine, poisson, requests
from event_simulation import arrivals, simulate, simulate_continuous

from optimizer.model import Batching, Routing, ServiceLaw
from simulations.engine.pipeline_engine import Conditions
from simulations.engine.self_checks import self_checks
from simulations.results.scoring import ranked
from simulations.scenario.schedule import Schedule, chunk_times

ITEMS = 120_000


@pytest.mark.parametrize("routing", [Routing.PULL, Routing.LEAST_LOADED, Routing.ROUND_ROBIN, Routing.RANDOM])
@pytest.mark.parametrize(
    ("replicas", "concurrency", "batch", "wait_s", "cv", "load"),
    [(4, 1, 1, 0.0, 0.5, 0.8), (6, 1, 8, 0.0, 0.3, 0.7), (3, 2, 4, 0.01, 0.3, 0.6)],
)
def test_a_tandem_of_two_stages_takes_as_long_as_in_an_independent_simulation(
    routing: Routing, replicas: int, concurrency: int, batch: int, wait_s: float, cv: float, load: float
) -> None:
    """Mean and p95 within 3 %: three to four standard errors of this many items."""
    fixed_s, per_item_s = 0.010, 0.002
    rate = load * replicas * concurrency * batch / (fixed_s + batch * per_item_s)
    times_s = arrivals(rate, 1.0, ITEMS, 1)
    law: dict[str, Any] = {
        "replicas": replicas,
        "concurrency": concurrency,
        "batch": batch,
        "batch_wait_s": wait_s,
        "fixed_s": fixed_s,
        "per_item_s": per_item_s,
        "cv": cv,
        "routing": routing,
    }
    first = simulate(times_s, **law, seed=1)
    order = np.argsort(times_s + first, kind="stable")
    second = simulate((times_s + first)[order], **law, seed=2)
    spent = first[order] + second

    placement = a_placement(
        fixed_s=fixed_s,
        per_item_s=per_item_s,
        cv=cv,
        batch_sizes=(batch,),
        batch_wait_s=wait_s,
        concurrency=concurrency,
    )
    stages = [a_stage(name, placement, routing=routing, queue_limit=10_000) for name in ("a", "b")]
    pipeline = a_pipeline(
        stages[0], a_stage("b", placement, after=("a",), routing=routing, queue_limit=10_000), sla_s=1e3
    )
    duration_s = float(times_s[-1]) + 10.0
    engine = an_engine(
        pipeline, requests(times_s), {("a", "cpu"): replicas, ("b", "cpu"): replicas}, duration_s=duration_s
    )
    for step in range(1, 200):
        engine.advance(step / 199 * duration_s)

    score = engine.tally().score()
    assert score.served == ITEMS
    assert engine.ingress().latency_sum_s / ITEMS == pytest.approx(spent.mean(), rel=0.03)
    assert score.p95_s == pytest.approx(np.percentile(spent, 95), rel=0.03)


@pytest.mark.parametrize("routing", [Routing.LEAST_LOADED, Routing.ROUND_ROBIN, Routing.RANDOM])
@pytest.mark.parametrize("prefill_s", [0.0, 0.05])
def test_servers_that_batch_continuously_take_as_long_as_in_an_independent_simulation(
    routing: Routing, prefill_s: float
) -> None:
    law = ServiceLaw(fixed_s=1.0, per_item_s=0.1, floor_s=1.3, prefill_s=prefill_s, cv=0.5)
    times_s = arrivals(0.8 * 3 * law.rate_rps(6), 1.0, 20_000, 3)
    placement = a_placement(service=law, batching=Batching.CONTINUOUS, batch_sizes=(6,))
    duration_s = float(times_s[-1]) + 200.0
    engine = an_engine(
        a_pipeline(a_stage("lm", placement, routing=routing, queue_limit=10_000), sla_s=1e4),
        requests(times_s),
        {("lm", "cpu"): 3},
        duration_s=duration_s,
    )
    for step in range(1, 50):
        engine.advance(step / 49 * duration_s)

    score = engine.tally().score()
    assert score.served == len(times_s)
    steps_s = np.array([law.mean_s(running) for running in range(7)])
    spent = simulate_continuous(
        times_s, replicas=3, limit=6, time_s=steps_s, prefill_s=prefill_s, cv=0.5, routing=routing, seed=1
    )
    assert engine.ingress().latency_sum_s / len(spent) == pytest.approx(spent.mean(), rel=0.04)
    assert score.p95_s == pytest.approx(np.percentile(spent, 95), rel=0.05)
    # What the servers export: the law can be read from it (work conserved, batches and items counted alike).
    replicas = engine._state.replica[:3]
    each = replicas["completed"].sum() / replicas["batches"].sum()
    assert replicas["busy_s"].sum() / replicas["batches"].sum() == pytest.approx(
        law.mean_s(each) + each * prefill_s, rel=0.05
    )


def test_sticky_streams_are_periodic_single_servers() -> None:
    """Each replica serves its streams in turn: a D/D/1 queue for every phase, whose waits a simulation of it gives."""
    chunk_s, service_s, per_replica, duration_s = 0.1, 0.011, 8, 200.0
    schedule = Schedule(start_s=np.zeros(per_replica * 5), end_s=np.full(per_replica * 5, duration_s))
    pipeline = a_pipeline(
        a_stage("asr", a_placement(fixed_s=service_s), routing=Routing.STICKY), chunk_s=chunk_s, sla_s=1.0
    )
    engine = an_engine(pipeline, schedule, {("asr", "cpu"): 5}, duration_s=duration_s + 1)
    engine.advance(duration_s + 1)

    times_s, sessions = chunk_times(schedule, chunk_s, duration_s + 1, 1)
    replica = engine._state.pin["replica"][:, 0]
    assert np.bincount(replica).tolist() == [per_replica] * 5
    free_s, spent = np.zeros(5), []
    for time_s, session in zip(times_s, replica[sessions], strict=True):
        free_s[session] = max(free_s[session], time_s) + service_s
        spent.append(free_s[session] - time_s)
    assert engine.ingress().served == len(spent)
    assert engine.ingress().latency_sum_s == pytest.approx(sum(spent))


class _SimPyStage:
    """Replicas with bounded queues and constant service; an item goes to the least loaded, up to three are asked."""

    def __init__(self, environment: simpy.Environment, replicas: int, limit: int, service_s: float, seed: int) -> None:
        self._environment = environment
        self._servers = [simpy.Resource(environment, capacity=1) for _ in range(replicas)]
        self._limit = limit
        self._mean_s = service_s
        self._rng = np.random.default_rng(seed)

    def serve(self) -> Generator[Any, Any, bool]:
        loads = [len(server.queue) + server.count for server in self._servers]
        order = np.lexsort((self._rng.random(len(loads)), np.array(loads)))
        for index in order[:3]:
            server = self._servers[index]
            if len(server.queue) < self._limit:
                with server.request() as turn:
                    yield turn
                    yield self._environment.timeout(self._rng.exponential(self._mean_s))
                return True
        return False


def _simpy_run(times_s: np.ndarray, seed: int) -> tuple[float, float, float, float]:
    """A filter, a fork and a join whose branches refuse what they cannot hold."""
    environment = simpy.Environment()
    rng = np.random.default_rng([seed, 9])
    gate, left, right, join = (
        _SimPyStage(environment, replicas, limit, mean_s, seed * 10 + index)
        for index, (replicas, limit, mean_s) in enumerate([(3, 5, 0.010), (2, 3, 0.012), (3, 3, 0.018), (2, 5, 0.008)])
    )
    spent: list[float] = []
    outcomes = {"filtered": 0, "lost": 0}

    def item(at_s: float) -> Generator[Any, Any, None]:
        yield environment.timeout(at_s)
        if not (yield environment.process(gate.serve())):
            outcomes["lost"] += 1
            return
        if rng.random() >= 0.6:
            outcomes["filtered"] += 1
            return
        branches = [environment.process(stage.serve()) for stage in (left, right)]
        yield environment.all_of(branches)
        if not all(branch.value for branch in branches) or not (yield environment.process(join.serve())):
            outcomes["lost"] += 1
            return
        spent.append(environment.now - at_s)

    for at_s in times_s:
        environment.process(item(float(at_s)))
    environment.run()
    n = len(times_s)
    return float(np.mean(spent)), float(np.percentile(spent, 95)), outcomes["filtered"] / n, outcomes["lost"] / n


def test_filters_queue_limits_a_fork_and_a_join_are_those_of_simpy() -> None:
    """Each figure within four standard errors over replications of both."""

    def theirs(seed: int) -> tuple[float, float, float, float]:
        return _simpy_run(poisson(200.0, 40.0, seed).start_s, seed)

    def ours(seed: int) -> tuple[float, float, float, float]:
        names = {"gate": (3, 5, 0.010), "left": (2, 3, 0.012), "right": (3, 3, 0.018), "join": (2, 5, 0.008)}
        after = {"gate": (), "left": ("gate",), "right": ("gate",), "join": ("left", "right")}
        stages = [
            a_stage(
                name,
                a_placement(fixed_s=mean_s, cv=1.0),
                after=after[name],
                pass_ratio=0.6 if name == "gate" else 1.0,
                queue_limit=limit,
            )
            for name, (_, limit, mean_s) in names.items()
        ]
        schedule = poisson(200.0, 40.0, seed)
        replicas = {(name, "cpu"): count for name, (count, _, _) in names.items()}
        engine = an_engine(a_pipeline(*stages, sla_s=10.0), schedule, replicas, duration_s=60.0, seed=seed)
        engine.advance(60.0)
        counts, arrays = engine.ingress(), engine.tally().arrays
        lost, filtered = counts.lost / counts.offered, counts.filtered / counts.offered
        mean_s = (counts.latency_sum_s - counts.lost * 100.0) / counts.served
        # Lost items are infinite to a tally's percentiles; here the one of the served is wanted.
        fine = arrays.run_fine + arrays.fine.sum(axis=0)
        p95_s = ranked(fine, np.maximum(arrays.run_peaks, arrays.peaks.max(axis=0)), 0, 95.0)
        return mean_s, p95_s, filtered, lost

    one = np.array([theirs(seed) for seed in range(1, 9)])
    other = np.array([ours(seed) for seed in range(11, 27)])
    error = np.sqrt(one.var(axis=0, ddof=1) / len(one) + other.var(axis=0, ddof=1) / len(other))
    assert other[:, 3].mean() > 0.01, "queues are full now and then"
    assert np.all(np.abs(one.mean(axis=0) - other.mean(axis=0)) <= 4 * error)


def test_session_slots_block_as_erlang_says() -> None:
    """Streams that find no slot and do not come back: Erlang's B formula, whatever the law of their length."""
    slots, offered, mean_s, duration_s = 12, 9.0, 5.0, 20_000.0
    rng = np.random.default_rng(4)
    start_s = poisson(offered / mean_s, duration_s, 4).start_s
    schedule = Schedule(start_s=start_s, end_s=start_s + rng.gamma(0.5, mean_s / 0.5, len(start_s)))
    pipeline = a_pipeline(a_stage("asr", a_placement(fixed_s=0.001, session_slots=slots // 2)), chunk_s=1.0)
    engine = an_engine(
        pipeline, schedule, {("asr", "cpu"): 2}, duration_s=duration_s, conditions=Conditions(reconnects=False)
    )
    engine.advance(duration_s)

    blocked = 1.0
    for n in range(1, slots + 1):
        blocked = offered * blocked / (n + offered * blocked)
    refused = float(np.mean(engine._state.stream["status"] == 1))
    assert refused == pytest.approx(blocked, abs=4 * math.sqrt(blocked * 2 / len(start_s)))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_self_checks_of_the_engine_hold(seed: int) -> None:
    failed = [check for check in self_checks(seed) if not check.ok]
    assert not failed
