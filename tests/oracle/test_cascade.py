"""Cascades, a cheap model first: predictions and replays against an event simulation, plans against brute force."""

import itertools
import math
import random
from dataclasses import replace

import engine_specs as specs
import numpy as np
import pytest
from event_simulation import arrivals, simulate
from problems import a_pipeline, a_stage, on

from controller.core.state.spec import CascadeSpec
from optimizer.allocate import allocate
from optimizer.latency.predict import predicted_latency_s
from optimizer.model import Cascade, Composition, Pipeline, PlacementKey, Pool, PoolName, Problem, Routing, StageName
from optimizer.replay.replay import replay

SMALL: PlacementKey = (StageName("asr"), PoolName("cpu"))
LARGE: PlacementKey = (StageName("asr"), PoolName("gpu"))
ITEMS = 80_000
SMALL_S, LARGE_S = 0.02, 0.08
PRICES = {PoolName("cpu"): 0.3, PoolName("gpu"): 1.0}
MOST = 7


def a_cascade(*, share: float, rate_rps: float, sla_s: float, routing: Routing = Routing.LEAST_LOADED) -> Pipeline:
    small = on("cpu", service=(SMALL_S, 0.0), cv=0.4, bounds=(0, 40))
    large = on("gpu", service=(LARGE_S, 0.0), cv=0.4, bounds=(0, 40))
    stage = a_stage("asr", small, large, routing=routing)
    return a_pipeline(replace(stage, cascade=Cascade(to=PoolName("gpu"), share=share)), rate_rps=rate_rps, sla_s=sla_s)


@pytest.mark.parametrize("routing", [Routing.PULL, Routing.LEAST_LOADED, Routing.RANDOM])
@pytest.mark.parametrize(("share", "busy", "busy_after"), [(0.1, 0.6, 0.7), (0.3, 0.8, 0.5), (0.6, 0.5, 0.8)])
def test_items_that_take_the_slower_path_are_late_as_an_event_simulation_says(
    routing: Routing, share: float, busy: float, busy_after: float
) -> None:
    replicas = {SMALL: 4, LARGE: 0}
    rate_rps = busy * 4 / SMALL_S
    replicas[LARGE] = math.ceil(share * rate_rps * LARGE_S / busy_after)
    times_s = arrivals(rate_rps, 1.0, ITEMS, 7)
    there = times_s + simulate(times_s, replicas=4, fixed_s=SMALL_S, cv=0.4, routing=routing, seed=7)
    uncertain = np.nonzero(np.random.default_rng(3).random(ITEMS) < share)[0]
    order = uncertain[np.argsort(there[uncertain], kind="stable")]
    went = there.copy()
    went[order] += simulate(there[order], replicas=replicas[LARGE], fixed_s=LARGE_S, cv=0.4, routing=routing, seed=8)
    spent = went - times_s
    pipeline = a_cascade(share=share, rate_rps=rate_rps, sla_s=5.0, routing=routing)
    replayed, predicted_s = replay(pipeline, replicas, {}, items=ITEMS), predicted_latency_s(pipeline, replicas, {})
    assert replayed is not None
    assert predicted_s is not None
    of_all, slower_s = float(np.percentile(spent, 95)), float(np.percentile(spent[order], 95))
    print(f"slower path {slower_s:.4f} s, predicted {predicted_s / slower_s - 1:+.1%}; all {of_all:.4f} s")
    assert replayed.latency_s == pytest.approx(of_all, rel=0.04), "a replay is of all items"
    assert predicted_s == pytest.approx(slower_s, rel=0.08), "a plan keeps the SLA for the slower path too"


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_the_engine_of_simulations_plays_cascades_as_the_event_simulation(share: float) -> None:
    rate_rps, duration_s, replicas = 100.0, 600.0, 4
    after = math.ceil(share * rate_rps * LARGE_S / 0.7)
    small = specs.a_placement("cpu", fixed_s=SMALL_S)
    large = specs.a_placement("gpu", fixed_s=LARGE_S)
    stage = replace(
        specs.a_stage("asr", small, large, routing=Routing.LEAST_LOADED),
        cascade=CascadeSpec(to=PoolName("gpu"), share=share, declared_share=share),
    )
    last = specs.a_stage("lm", specs.a_placement("lm", fixed_s=0.001), after=["asr"])
    running = {("asr", "cpu"): replicas, ("asr", "gpu"): after, ("lm", "lm"): 4}
    schedule = specs.poisson(rate_rps, duration_s)
    engine = specs.an_engine(specs.a_pipeline(stage, last, sla_s=1.0), schedule, running, duration_s=duration_s + 20)
    engine.advance(duration_s + 20)
    counters, ingress = engine.counters(), engine.ingress()
    assert ingress.served == ingress.offered
    done = [int(counters.completed[counters.placement == k].sum()) for k in range(3)]
    assert done[0] == done[2] == ingress.offered, "every item comes to the small model, and leaves once"
    assert done[1] == pytest.approx(share * ingress.offered, rel=0.05)
    times_s = arrivals(rate_rps, 1.0, ITEMS, 7)
    there = times_s + simulate(times_s, replicas=replicas, fixed_s=SMALL_S, routing=Routing.LEAST_LOADED, seed=7)
    uncertain = np.nonzero(np.random.default_rng(3).random(ITEMS) < share)[0]
    order = uncertain[np.argsort(there[uncertain], kind="stable")]
    there[order] += simulate(there[order], replicas=after, fixed_s=LARGE_S, routing=Routing.LEAST_LOADED, seed=8)
    true_s = float(np.percentile(there - times_s, 95)) + 0.001
    counts, bounds_s = ingress.latency_counts, np.array(engine.ingress_bounds_s)
    bucket = int(np.searchsorted(np.cumsum(counts) / counts.sum(), 0.95))
    assert 0.95 * bounds_s[bucket - 1] <= true_s <= 1.05 * bounds_s[bucket]


def test_without_a_replica_of_the_small_model_all_items_go_to_the_large_one() -> None:
    small, large = specs.a_placement("cpu", fixed_s=SMALL_S), specs.a_placement("gpu", fixed_s=LARGE_S)
    stage = replace(
        specs.a_stage("asr", small, large),
        cascade=CascadeSpec(to=PoolName("gpu"), share=0.2, declared_share=0.2),
    )
    engine = specs.an_engine(
        specs.a_pipeline(stage, sla_s=1.0), specs.poisson(20.0, 200.0), {("asr", "gpu"): 4}, duration_s=220.0
    )
    engine.advance(100.0)
    assert engine.counters().completed[0] > 0
    assert engine.counters().arrived.sum() == pytest.approx(engine.ingress().offered, abs=1)
    number = engine.add_replica(SMALL)
    engine.advance(150.0)
    counters, offered = engine.counters(), engine.ingress().offered
    assert counters.arrived[number] > 0
    engine.kill_replica(number)
    engine.advance(219.0)
    assert engine.ingress().served == engine.ingress().offered > offered
    assert engine.counters().arrived[number] == counters.arrived[number]


def cheapest(problem: Problem) -> float | None:
    """Return the least cost of all numbers of replicas that keep the SLA."""
    (pipeline,) = problem.pipelines
    (stage,) = pipeline.stages
    best = None
    for counts in itertools.product(*(range(own.max_replicas + 1) for own in stage.placements)):
        firsts = [count for own, count in zip(stage.placements, counts, strict=True) if own.pool != "gpu"]
        if sum(count > 0 for count in firsts) > 1:
            continue  # plans have one of the first placements
        if any(count > problem.pools[own.pool].instances for own, count in zip(stage.placements, counts, strict=True)):
            continue
        cost = sum(count * PRICES[own.pool] for own, count in zip(stage.placements, counts, strict=True))
        replicas = {(stage.name, own.name): count for own, count in zip(stage.placements, counts, strict=True)}
        latency_s = predicted_latency_s(pipeline, replicas, {}, composition=Composition.SUM)
        if latency_s is not None and latency_s <= pipeline.sla.latency_s and (best is None or cost < best):
            best = cost
    return best


@pytest.mark.parametrize("seed", range(60))
def test_a_plan_with_a_cascade_costs_as_little_as_the_best_of_all_numbers_of_replicas(seed: int) -> None:
    random_ = random.Random(seed)
    service_s = random_.uniform(0.02, 0.06)
    placements = [
        on("cpu", service=(service_s, 0.0), cv=0.3, bounds=(0, MOST)),
        on("gpu", service=(random_.uniform(0.04, 0.15), 0.0), cv=0.3, bounds=(random_.choice([0, 0, 1]), MOST)),
    ]
    if random_.random() < 0.4:
        tiny = on("cpu", service=(service_s * 0.6, 0.0), cv=0.3, bounds=(0, MOST))
        placements.insert(0, replace(tiny, variant="tiny"))
    cascade = Cascade(to=PoolName("gpu"), share=random_.uniform(0.05, 0.5))
    stage = replace(a_stage("asr", *placements), cascade=cascade)
    pipeline = a_pipeline(stage, rate_rps=random_.uniform(5, 60), sla_s=random_.uniform(0.15, 0.5))
    pools = {
        name: Pool(name=name, price_per_hour=price, instances=random_.choice([2, 4, 20]))
        for name, price in PRICES.items()
    }
    problem = Problem(pipelines=(pipeline,), pools=pools, composition=Composition.SUM)
    best = cheapest(problem)
    (answer,) = allocate(problem).pipelines
    assert answer.feasible == (best is not None)
    if best is not None:
        assert answer.cost_per_hour == pytest.approx(best)


def test_a_cascade_is_planned_where_it_pays_and_not_where_most_items_go_on() -> None:
    pools = {name: Pool(name=name, price_per_hour=price, instances=40) for name, price in PRICES.items()}
    for share, pays in ((0.15, True), (0.95, False)):
        pipeline = a_cascade(share=share, rate_rps=120.0, sla_s=0.6)
        (answer,) = allocate(Problem(pipelines=(pipeline,), pools=pools)).pipelines
        counts = answer.replicas()
        assert (counts.get(SMALL, 0) > 0) == pays
        assert counts[LARGE] > 0, "the uncertain items need it"
