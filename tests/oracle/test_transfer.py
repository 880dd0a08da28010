"""Items that carry bytes to a stage: prediction, replay and engine against an event simulation, and plans that bind."""

import itertools
import math
from dataclasses import replace

import engine_specs as specs
import numpy as np
import pytest
from event_simulation import arrivals, simulate, simulate_continuous
from problems import a_pipeline, a_stage, on

from optimizer.allocate import allocate
from optimizer.latency.batching import UTILIZATION_CEILING
from optimizer.latency.predict import predicted_latency_s
from optimizer.model import (
    Batching,
    Composition,
    Link,
    Pipeline,
    Placement,
    PlacementKey,
    Pool,
    PoolName,
    Problem,
    Routing,
    ServiceLaw,
    StageName,
)
from optimizer.replay.replay import replay

ASR: PlacementKey = (StageName("asr"), PoolName("gpu"))
ITEMS = 80_000
LAW = (0.02, 0.004)


def linked(link: Link, *, replicas: int, rate_rps: float, routing: Routing, batch: int) -> Pipeline:
    own = replace(on("gpu", service=LAW, cv=0.0, bounds=(0, replicas), batches=(batch,)), link=link)
    return a_pipeline(a_stage("asr", own, routing=routing), rate_rps=rate_rps, sla_s=5.0)


def simulated(link: Link, *, replicas: int, rate_rps: float, routing: Routing, batch: int) -> float:
    """Return the 95th percentile over the link and at the replica, by one event after the other."""
    times_s = arrivals(rate_rps, 1.0, ITEMS, 7)
    ways = Routing.LEAST_LOADED if routing is Routing.PULL else routing
    there = times_s + link.fixed_s + simulate(times_s, replicas=replicas, fixed_s=link.item_s, routing=ways, seed=7)
    order = np.argsort(there, kind="stable")
    spent = np.empty(ITEMS)
    spent[order] = (
        there[order]
        - times_s[order]
        + simulate(
            there[order], replicas=replicas, batch=batch, fixed_s=LAW[0], per_item_s=LAW[1], routing=routing, seed=8
        )
    )
    return float(np.percentile(spent[ITEMS // 10 :], 95))


@pytest.mark.parametrize("routing", [Routing.PULL, Routing.LEAST_LOADED, Routing.ROUND_ROBIN, Routing.RANDOM])
@pytest.mark.parametrize(("batch", "busy", "on_link"), [(1, 0.5, 0.3), (1, 0.4, 0.7), (8, 0.7, 0.5), (8, 0.5, 0.85)])
def test_an_item_on_a_link_is_late_as_the_event_simulation_says(
    routing: Routing, batch: int, busy: float, on_link: float
) -> None:
    replicas = 4
    rate_rps = busy * replicas * ServiceLaw(fixed_s=LAW[0], per_item_s=LAW[1]).rate_rps(batch)
    link = Link(item_s=on_link * replicas / rate_rps, fixed_s=0.003)
    asked = {"replicas": replicas, "rate_rps": rate_rps, "routing": routing, "batch": batch}
    true_s, pipeline = simulated(link, **asked), linked(link, **asked)  # type: ignore[arg-type]
    replayed = replay(pipeline, {ASR: replicas}, {}, items=ITEMS)
    assert replayed is not None
    predicted_s = predicted_latency_s(pipeline, {ASR: replicas}, {})
    assert predicted_s is not None
    print(f"{true_s:.4f} s, predicted {predicted_s / true_s - 1:+.1%}, replayed {replayed.latency_s / true_s - 1:+.1%}")
    assert replayed.latency_s == pytest.approx(true_s, rel=0.06)
    assert predicted_s == pytest.approx(true_s, rel=0.13)


@pytest.mark.parametrize("routing", [Routing.LEAST_LOADED, Routing.RANDOM])
def test_the_engine_of_simulations_plays_links_too(routing: Routing) -> None:
    rate_rps, replicas = 60.0, 3
    link = Link(item_s=0.03, fixed_s=0.005)
    own = specs.a_placement("gpu", fixed_s=0.02, per_item_s=0.004, batch_sizes=(8,), link=link)
    pipeline = specs.a_pipeline(specs.a_stage("asr", own, routing=routing), sla_s=1.0)
    duration_s = 400.0
    engine = specs.an_engine(
        pipeline, specs.poisson(rate_rps, duration_s), {("asr", "gpu"): replicas}, duration_s=duration_s + 20
    )
    engine.advance(duration_s + 20)
    counts, bounds_s = engine.ingress().latency_counts, np.array(engine.ingress_bounds_s)
    assert counts.sum() == engine.ingress().served
    reached = np.cumsum(counts) / counts.sum()
    bucket = int(np.searchsorted(reached, 0.95))
    true_s = simulated(link, replicas=replicas, rate_rps=rate_rps, routing=routing, batch=8)
    assert 0.95 * bounds_s[bucket - 1] <= true_s <= 1.05 * bounds_s[bucket]
    assert len(engine.counters().arrived) == replicas, "links are no replicas"
    assert engine.counters().completed.sum() == counts.sum()


def test_a_replica_is_drained_and_killed_with_its_link() -> None:
    own = specs.a_placement("gpu", fixed_s=0.01, link=Link(item_s=0.05))
    engine = specs.an_engine(
        specs.a_pipeline(specs.a_stage("asr", own)), specs.poisson(12.0, 60.0), {("asr", "gpu"): 3}, duration_s=80.0
    )
    engine.advance(20.0)
    engine.drain_replica(0, 30.0)
    engine.kill_replica(1)
    engine.advance(79.0)
    assert [number for number, _ in engine.ended()] == [0]
    ingress = engine.ingress()
    assert ingress.served == ingress.offered


def test_where_the_link_binds_the_plan_has_as_many_replicas_as_it_takes_by_brute_force() -> None:
    """A replica computes 90 items/s and its link carries 20: compute alone would need a quarter of the replicas."""
    pools = {PoolName("gpu"): Pool(name=PoolName("gpu"), price_per_hour=1.0, instances=40)}
    for rate_rps, item_s in itertools.product((15.0, 60.0, 150.0), (0.05, 0.01)):
        own = replace(on("gpu", service=(0.011, 0.0), bounds=(0, 40)), link=Link(item_s=item_s))
        pipeline = a_pipeline(a_stage("asr", own), rate_rps=rate_rps, sla_s=0.25)
        (answer,) = allocate(Problem(pipelines=(pipeline,), pools=pools, composition=Composition.SUM)).pipelines
        fewest = next(
            n
            for n in itertools.count(1)
            if (latency_s := predicted_latency_s(pipeline, {ASR: n}, {}, composition=Composition.SUM)) is not None
            and latency_s <= 0.25
        )
        assert answer.replicas() == {ASR: fewest}
        assert fewest >= math.ceil(rate_rps * item_s)
        if item_s == 0.05:
            without = a_pipeline(a_stage("asr", replace(own, link=None)), rate_rps=rate_rps, sla_s=0.25)
            (free,) = allocate(Problem(pipelines=(without,), pools=pools, composition=Composition.SUM)).pipelines
            assert fewest >= 2 * free.replicas()[ASR] - 1


PREFILL: PlacementKey = (StageName("prefill"), PoolName("prefill"))
DECODE: PlacementKey = (StageName("decode"), PoolName("decode"))
RUNNING = 32


def disaggregated(rate_rps: float) -> Pipeline:
    """Prefill (0.23 s a prompt) and decode (100 tokens, a step of 18 + 0.25 n ms) on pools of their own.

    The KV cache of a prompt, 0.26 GB, is carried from one to the other at 10 GB/s.
    """
    prefill = a_stage("prefill", on("prefill", service=(0.23, 0.0), cv=0.3, bounds=(0, 60)))
    steps = tuple((n, 100 * (0.018 + 0.00025 * n)) for n in (1, RUNNING))
    decode = Placement(
        pool=PoolName("decode"),
        service=ServiceLaw(points=steps, cv=0.5),
        max_replicas=60,
        batching=Batching.CONTINUOUS,
        batch_sizes=(RUNNING,),
        link=Link(item_s=0.026, fixed_s=0.001),
    )
    return a_pipeline(prefill, a_stage("decode", decode, after=["prefill"]), rate_rps=rate_rps, sla_s=7.5)


@pytest.mark.parametrize("rate_rps", [30.0, 90.0])
def test_a_plan_finds_how_many_prefill_servers_there_are_for_each_decode_server(rate_rps: float) -> None:
    pipeline = disaggregated(rate_rps)
    pools = {
        PoolName(name): Pool(name=PoolName(name), price_per_hour=1.0, instances=60) for name in ("prefill", "decode")
    }
    (answer,) = allocate(Problem(pipelines=(pipeline,), pools=pools, composition=Composition.RSS)).pipelines
    assert answer.feasible
    counts = answer.replicas()
    # By work: t_prefill / ρ to t_decode / (B ρ), with the same utilization of both.
    decode_s = 100 * (0.018 + 0.00025 * RUNNING)
    by_work = 0.23 / (decode_s / RUNNING)
    assert 0.6 * by_work <= counts[PREFILL] / counts[DECODE] <= 1.6 * by_work

    def late_s(prefill: int, decode: int) -> float:
        """Return the 95th percentile of an event simulation with so many servers."""
        times_s = arrivals(rate_rps, 1.0, ITEMS, 3)
        sent = times_s + simulate(times_s, replicas=prefill, fixed_s=0.23, cv=0.3, routing=Routing.LEAST_LOADED, seed=3)
        order = np.argsort(sent, kind="stable")
        sent = sent[order]
        there = sent + 0.001 + simulate(sent, replicas=decode, fixed_s=0.026, routing=Routing.LEAST_LOADED, seed=4)
        again = np.argsort(there, kind="stable")
        spent = simulate_continuous(
            there[again],
            replicas=decode,
            limit=RUNNING,
            time_s=np.array([100 * (0.018 + 0.00025 * n) for n in range(RUNNING + 1)]),
            cv=0.5,
            routing=Routing.LEAST_LOADED,
            seed=5,
        )
        whole = there[again] + spent - times_s[order][again]
        return float(np.percentile(whole[ITEMS // 10 :], 95))

    assert late_s(counts[PREFILL], counts[DECODE]) <= 7.5 * 1.03
    # With one server fewer of either, that stage is busier than plans allow: none is left over.
    assert rate_rps * 0.23 / (counts[PREFILL] - 1) > UTILIZATION_CEILING
    assert rate_rps * decode_s / RUNNING / (counts[DECODE] - 1) > UTILIZATION_CEILING
