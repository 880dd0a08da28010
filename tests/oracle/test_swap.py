"""Sessions that leave the device: prediction, replay and engine against an event simulation, and plans with them."""

import itertools
import math
from dataclasses import replace

import engine_specs as specs
import numpy as np
import pytest
from event_simulation import arrivals, simulate
from problems import a_pipeline, a_stage, on

from optimizer.allocate import allocate
from optimizer.kv_cache import KvCacheShape, SwapSpace
from optimizer.latency.predict import predicted_latency_s
from optimizer.model import Composition, Demand, Link, PlacementKey, Pool, PoolName, Problem, Routing, StageName
from optimizer.replay.replay import replay

ASR: PlacementKey = (StageName("asr"), PoolName("gpu"))
ITEMS = 80_000
SERVICE_S = 0.05


def simulated(link: Link, *, replicas: int, rate_rps: float, routing: Routing) -> float:
    """Return the 95th percentile of items of which some first wait for their session, by one event after the other."""
    times_s = arrivals(rate_rps, 1.0, ITEMS, 7)
    there = times_s.copy()
    away = np.nonzero(np.random.default_rng(3).random(ITEMS) < link.share)[0]
    there[away] += simulate(times_s[away], replicas=replicas, fixed_s=link.item_s, routing=routing, seed=7)
    order = np.argsort(there, kind="stable")
    spent = np.empty(ITEMS)
    spent[order] = (
        there[order]
        - times_s[order]
        + simulate(there[order], replicas=replicas, fixed_s=SERVICE_S, cv=0.3, routing=routing, seed=8)
    )
    return float(np.percentile(spent[ITEMS // 10 :], 95))


@pytest.mark.parametrize("routing", [Routing.LEAST_LOADED, Routing.RANDOM])
@pytest.mark.parametrize(
    ("share", "back_s", "busy"), [(0.02, 0.3, 0.6), (0.08, 0.3, 0.5), (0.3, 0.1, 0.7), (0.5, 0.04, 0.3)]
)
def test_items_whose_session_is_away_are_late_as_the_event_simulation_says(
    routing: Routing, share: float, back_s: float, busy: float
) -> None:
    replicas = 4
    link, rate_rps = Link(item_s=back_s, share=share), busy * replicas / SERVICE_S
    own = replace(on("gpu", service=(SERVICE_S, 0.0), cv=0.3, bounds=(0, replicas)), link=link)
    pipeline = a_pipeline(a_stage("asr", own, routing=routing), rate_rps=rate_rps, sla_s=5.0)
    true_s = simulated(link, replicas=replicas, rate_rps=rate_rps, routing=routing)
    replayed, predicted_s = (
        replay(pipeline, {ASR: replicas}, {}, items=ITEMS),
        predicted_latency_s(pipeline, {ASR: replicas}, {}),
    )
    assert replayed is not None
    assert predicted_s is not None
    print(f"{true_s:.4f} s, predicted {predicted_s / true_s - 1:+.1%}, replayed {replayed.latency_s / true_s - 1:+.1%}")
    assert replayed.latency_s == pytest.approx(true_s, rel=0.05)
    assert predicted_s == pytest.approx(true_s, rel=0.1)


def test_the_engine_of_simulations_lets_the_others_pass() -> None:
    link, rate_rps, replicas, duration_s = Link(item_s=0.2, share=0.1), 40.0, 4, 600.0
    own = specs.a_placement("gpu", fixed_s=SERVICE_S, cv=0.3, link=link)
    pipeline = specs.a_pipeline(specs.a_stage("asr", own, routing=Routing.LEAST_LOADED), sla_s=1.0)
    engine = specs.an_engine(
        pipeline, specs.poisson(rate_rps, duration_s), {("asr", "gpu"): replicas}, duration_s=duration_s + 20
    )
    engine.advance(duration_s + 20)
    counts, bounds_s = engine.ingress().latency_counts, np.array(engine.ingress_bounds_s)
    assert counts.sum() == engine.ingress().offered
    bucket = int(np.searchsorted(np.cumsum(counts) / counts.sum(), 0.95))
    true_s = simulated(link, replicas=replicas, rate_rps=rate_rps, routing=Routing.LEAST_LOADED)
    assert 0.95 * bounds_s[bucket - 1] <= true_s <= 1.05 * bounds_s[bucket]


def a_shape(swap: SwapSpace | None) -> KvCacheShape:
    """A model with 32 layers and heads: a session of 8 000 tokens is 4.19 GB."""
    return KvCacheShape(
        layers=32,
        kv_heads=32,
        head_dim=128,
        bytes_per_element=2,
        tokens_per_session=8_000,
        device_bytes=80e9,
        weight_bytes=16e9,
        swap=swap,
    )


def test_swap_raises_the_sessions_of_a_replica_at_the_latency_of_coming_back() -> None:
    """A session of 4.19 GB comes back in 210 ms at 20 GB/s; the device holds 12, and 100 GB of disk 23 more."""
    swap = SwapSpace(capacity_bytes=100e9, bytes_per_s=20e9, hit=0.9)
    with_swap, without = a_shape(swap), a_shape(None)
    assert (without.session_slots, with_swap.session_slots) == (12, 12 + 23)
    link = with_swap.swap_link
    assert link is not None
    assert link.item_s == pytest.approx(0.2097, rel=1e-3)
    pools = {PoolName("gpu"): Pool(name=PoolName("gpu"), price_per_hour=1.0, instances=60)}
    sessions, rate_rps = 240.0, 60.0
    fewest = {}
    for sla_s, shape in itertools.product((0.25, 1.0), (without, with_swap)):
        own = on("gpu", service=(SERVICE_S, 0.0), bounds=(0, 60))
        own = replace(own, session_slots=shape.session_slots, link=shape.swap_link)
        pipeline = replace(
            a_pipeline(a_stage("asr", own, routing=Routing.STICKY), rate_rps=rate_rps, sla_s=sla_s),
            demand=Demand(entry_rate_rps=rate_rps, sessions=sessions),
        )
        (answer,) = allocate(Problem(pipelines=(pipeline,), pools=pools, composition=Composition.SUM)).pipelines
        counts = [
            n
            for n in range(1, 61)
            if (latency_s := predicted_latency_s(pipeline, {ASR: n}, {}, composition=Composition.SUM)) is not None
            and latency_s <= sla_s
        ]
        assert answer.feasible == bool(counts)
        if counts:
            assert answer.replicas() == {ASR: counts[0]}
            fewest[sla_s, shape.swap is not None] = counts[0]
    assert fewest[1.0, False] == math.ceil(sessions / 12)
    assert fewest[1.0, True] <= fewest[1.0, False] / 2
    assert (0.25, True) not in fewest, "one item in ten waits 210 ms for its session"
