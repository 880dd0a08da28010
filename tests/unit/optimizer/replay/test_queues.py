from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from laws import with_law

from optimizer.model import Routing, ServiceLaw
from optimizer.replay import queues
from optimizer.replay.queues import ServerGroup, serve

N = 200_000


def alike(
    arrivals: np.ndarray, sessions: np.ndarray, *, servers: int, routing: Routing, seed: int, **group: Any
) -> np.ndarray:
    """Serve on `servers` equal replicas."""
    return serve(
        arrivals, sessions, groups=(ServerGroup(replicas=servers, **with_law(**group)),), routing=routing, seed=seed
    )


def poisson(rate_rps: float, n: int = N, seed: int = 1) -> np.ndarray:
    return np.cumsum(np.random.Generator(np.random.PCG64(seed)).exponential(1 / rate_rps, n))


def streams(n: int = N, count: int = 100, seed: int = 2) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).integers(0, count, n)


def test_m_m_c_and_m_d_1_are_the_textbook() -> None:
    # Erlang's second formula: P(wait) is 1/3 for two servers at ρ = 0.5 and the mean wait 1/3.
    arrivals = poisson(1.0)
    inside = alike(arrivals, streams(), servers=2, fixed_s=1.0, cv=1.0, routing=Routing.PULL, seed=3) - arrivals
    assert inside.mean() == pytest.approx(4 / 3, rel=0.03)
    arrivals = poisson(0.7)
    inside = alike(arrivals, streams(), servers=1, fixed_s=1.0, routing=Routing.PULL, seed=3) - arrivals
    assert inside.mean() == pytest.approx(1 + 0.7 / (2 * 0.3), rel=0.03)


@pytest.mark.parametrize("cv", [0.3, 1.0, 1.8])
def test_service_times_have_the_mean_and_the_variation_asked_for(cv: float) -> None:
    arrivals = np.arange(N, dtype=np.float64) * 100
    inside = alike(arrivals, streams(), servers=1, fixed_s=1.0, cv=cv, routing=Routing.PULL, seed=3) - arrivals
    assert inside.mean() == pytest.approx(1, rel=0.02)
    assert inside.std() == pytest.approx(cv, rel=0.04)


def test_a_free_server_takes_what_waits_up_to_its_limit() -> None:
    arrivals = np.array([0.0, 0.1, 0.2, 0.3, 5.0])
    done = alike(
        arrivals, np.zeros(5, int), servers=1, batch=2, fixed_s=0.8, per_item_s=0.2, routing=Routing.PULL, seed=0
    )
    assert done == pytest.approx([1.0, 2.2, 2.2, 3.2, 6.0])


@pytest.mark.parametrize("routing", Routing)
def test_a_batch_waits_until_it_is_full_or_its_oldest_waited_long_enough(routing: Routing) -> None:
    arrivals = np.array([0.0, 0.3, 10.0, 10.1, 10.2, 20.0])
    done = alike(arrivals, np.zeros(6, int), servers=1, batch=3, batch_wait_s=0.5, fixed_s=1.0, routing=routing, seed=0)
    assert done == pytest.approx([1.5, 1.5, 11.2, 11.2, 11.2, 21.5])


@pytest.mark.parametrize("batch_wait_s", [0.0, 0.7])
def test_one_replica_is_the_same_whatever_the_routing(batch_wait_s: float) -> None:
    arrivals = poisson(6.0)
    stage = ServerGroup(
        replicas=1, concurrency=3, batch=4, batch_wait_s=batch_wait_s, service=ServiceLaw(fixed_s=1.0, per_item_s=0.1)
    )
    kept = [serve(arrivals, streams(), groups=(stage,), routing=routing, seed=1) for routing in Routing]
    assert all(np.array_equal(kept[0], other) for other in kept[1:])


def test_many_sticky_streams_are_one_server_each_with_its_share() -> None:
    arrivals = poisson(6.0)
    inside = alike(arrivals, streams(count=4000), servers=8, fixed_s=1.0, cv=1.0, routing=Routing.STICKY, seed=3)
    assert (inside - arrivals).mean() == pytest.approx(4.0, rel=0.1)


def test_a_session_stays_on_one_replica_and_sessions_are_spread_evenly() -> None:
    # One item of each of four streams at a time, then all of one stream: it queues behind itself.
    arrivals = np.array([0.0, 0.0, 0.0, 0.0, 10.0, 10.0, 10.0])
    sessions = np.array([2, 0, 3, 1, 0, 0, 0])
    done = alike(arrivals, sessions, servers=4, fixed_s=1.0, routing=Routing.STICKY, seed=0)
    assert done == pytest.approx([1, 1, 1, 1, 11, 12, 13])


def test_replicas_get_the_items_of_their_streams_at_random_times() -> None:
    # 240 streams of one item per second on 8 replicas. Each has 30 of them, at uneven intervals: some items queue.
    rng = np.random.Generator(np.random.PCG64(4))
    phases = np.sort(rng.random(240))
    arrivals = np.concatenate([phases + second for second in range(20)])
    inside = alike(arrivals, np.tile(np.arange(240), 20), servers=8, fixed_s=1 / 33, routing=Routing.STICKY, seed=1)
    even = alike(arrivals, np.arange(4800), servers=8, fixed_s=1 / 33, routing=Routing.ROUND_ROBIN, seed=1)
    assert np.percentile(inside - arrivals, 95) > 1.5 * np.percentile(even - arrivals, 95)


def test_looking_beats_turns_and_turns_beat_chance() -> None:
    arrivals = poisson(0.85 * 8)
    p95 = [
        np.percentile(alike(arrivals, streams(), servers=8, fixed_s=1.0, cv=1.0, routing=r, seed=5) - arrivals, 95)
        for r in (Routing.PULL, Routing.LEAST_LOADED, Routing.ROUND_ROBIN, Routing.RANDOM)
    ]
    assert p95 == sorted(p95)


@pytest.mark.parametrize("routing", [r for r in Routing if r is not Routing.PULL])
def test_unequal_groups_get_work_in_proportion_to_their_capacity(routing: Routing) -> None:
    fast, slow = (
        ServerGroup(replicas=2, service=ServiceLaw(fixed_s=1.0)),
        ServerGroup(replicas=3, service=ServiceLaw(fixed_s=4.0)),
    )
    arrivals = poisson(0.4 * (2 + 3 / 4))
    sessions = streams(count=40_000)
    inside = serve(arrivals, sessions, groups=(fast, slow), routing=routing, seed=5) - arrivals
    if routing is not Routing.LEAST_LOADED:  # its shares depend on what is queued
        assert np.isfinite(inside).all()
    # With so little load an item that takes less than 4 s was on a fast replica.
    assert (inside < 3.99).mean() == pytest.approx(2 / 2.75, abs=0.06)


def test_luck_is_the_same_for_the_same_seed_only() -> None:
    arrivals = poisson(3.0, 1000)
    first, again, other = (
        alike(arrivals, streams(1000), servers=4, fixed_s=1.0, cv=0.5, routing=Routing.RANDOM, seed=seed)
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_nothing_arrives_nothing_leaves() -> None:
    assert len(alike(np.empty(0), np.empty(0, int), servers=2, fixed_s=1.0, routing=Routing.PULL, seed=0)) == 0


@pytest.mark.parametrize("routing", [Routing.PULL, Routing.LEAST_LOADED])
def test_luck_does_not_depend_on_what_was_asked_before(routing: Routing) -> None:
    arrivals = poisson(6.0)  # more than the draws that are kept
    slow, quick = (
        ServerGroup(replicas=2, service=ServiceLaw(fixed_s=0.4, cv=0.5)),
        ServerGroup(replicas=3, service=ServiceLaw(fixed_s=0.2, cv=0.9)),
    )
    groups = (slow, replace(quick, batch=4, batch_wait_s=0.3))
    queues._draws.cache_clear()
    first = serve(arrivals, streams(), groups=groups, routing=routing, seed=1)
    serve(arrivals[: N // 3], streams(), groups=groups, routing=Routing.RANDOM, seed=1)
    serve(arrivals, streams(), groups=(quick, slow), routing=routing, seed=1)
    again = serve(arrivals, streams(), groups=groups, routing=routing, seed=1)
    assert np.array_equal(first, again)
