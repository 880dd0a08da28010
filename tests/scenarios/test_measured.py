"""Measured beats modelled, in a closed loop: what the stage really does decides what is asked for it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from builders import (
    ENCODER,
    NOW_S,
    a_placement,
    a_pool,
    a_scaling,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    applied,
    pools,
)
from explained import explain

from controller.core.cycle import decide
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Snapshot
from optimizer.latency.stage import StageLoad, predict
from optimizer.model import Routing
from profiler.samples import PlacementSamples, Quantity
from profiler.stages import Correction, Learned

DEMAND_RPS = 40.0
SERVICE_S = 0.05
SPEC = a_spec(a_stage("encoder", a_placement("inferentia", service_s=SERVICE_S)), sla_s=0.28, scaling=a_scaling())
CYCLE_S = 15.0


def measured(replicas: int, slower: float) -> PlacementSamples:
    """What `replicas` tell whose 95th percentile is `slower` times the model's."""
    placement = SPEC.stages[0].placements[0].prior
    load = StageLoad(rate_rps=DEMAND_RPS)
    predicted = predict(load, placement, replicas, batch=1, routing=Routing.LEAST_LOADED, percentile=95)
    assert predicted is not None
    return PlacementSamples(
        readings={
            Quantity.ARRIVAL_RATE: DEMAND_RPS,
            Quantity.COMPLETION_RATE: DEMAND_RPS,
            Quantity.SERVICE_TIME: SERVICE_S,
            Quantity.BATCH_SIZE: 1.0,
            Quantity.UTILIZATION: predicted.utilization,
            Quantity.QUEUE_DEPTH: 0.1,
            Quantity.LATENCY_P95: slower * predicted.percentile_s,
        }
    )


def run(cycles: int, slower: Callable[[int], float], *, memory: PipelineMemory | None = None) -> Sequence[Snapshot]:
    """Run the loop from the plan for the model; `slower` is what the stage is in each cycle."""
    start = a_state(SPEC, demand=DEMAND_RPS, replicas={ENCODER: 1})
    fleet = pools(a_pool("inferentia"))
    replicas = decide(a_snapshot(start, fleet=fleet), Policy()).pipelines[0].plan.replicas()  # type: ignore[union-attr]
    snapshot = a_snapshot(a_state(SPEC, demand=DEMAND_RPS, replicas=replicas, memory=memory), fleet=fleet, now_s=NOW_S)
    worlds = []
    for cycle in range(cycles):
        (state,) = snapshot.pipelines
        samples = {ENCODER: measured(state.desired(*ENCODER), slower(cycle))}
        snapshot = replace(snapshot, pipelines=(replace(state, samples=samples),))
        worlds.append(snapshot)
        snapshot = applied(snapshot, decide(snapshot, Policy()), after_s=CYCLE_S)
    return worlds


def replicas_of(worlds: Sequence[Snapshot]) -> list[int]:
    return [world.pipelines[0].desired(*ENCODER) for world in worlds]


def test_a_stage_as_fast_as_modelled_keeps_what_the_model_gives_it() -> None:
    assert len(set(replicas_of(run(120, lambda _: 1.0)))) == 1


def test_a_stage_whose_tail_is_slower_gets_what_the_sla_takes_within_three_cycles_and_no_more_later() -> None:
    worlds = run(120, lambda _: 1.5)
    found = replicas_of(worlds)
    first = next(cycle for cycle, count in enumerate(found) if count > found[0])
    assert 1 <= first <= 3
    assert set(found[first:]) == {found[first]}, "the plan learns of it meanwhile: both together are not needed"
    (state,) = worlds[-1].pipelines
    p95_s = measured(state.desired(*ENCODER), 1.5).of(Quantity.LATENCY_P95)
    assert isinstance(p95_s, float)
    assert p95_s <= SPEC.sla.latency_s


def test_a_single_absurd_sample_moves_nothing() -> None:
    assert len(set(replicas_of(run(60, lambda cycle: 1000.0 if cycle == 20 else 1.0)))) == 1


@pytest.mark.parametrize("period", [2, 8, 20])
def test_a_tail_that_comes_and_goes_does_not_make_replicas_do_so(period: int) -> None:
    found = replicas_of(run(240, lambda cycle: 1.3 if cycle // period % 2 else 0.7))
    changes = sum(before != after for before, after in pairwise(found))
    assert changes <= 1


def test_it_is_told_and_survives_a_restart() -> None:
    world = run(120, lambda _: 1.5)[-1]
    decision = decide(world, Policy())
    (pipeline,) = decision.pipelines
    (stage,) = pipeline.profile.stages
    assert stage.latency_factor == pytest.approx(1.5, abs=0.05)
    assert any(
        "encoder: measured p95 is 1.4" in line or "encoder: measured p95 is 1.5" in line
        for line in explain(decision, SPEC.key)
    )
    again = decide(world, Policy())
    assert again.pipelines[0].memory.learned == pipeline.memory.learned


def test_replicas_seen_to_carry_less_are_counted_on_for_less() -> None:
    learned = PipelineMemory(
        learned=Learned(throughput_corrections={ENCODER: Correction(factor=0.6, smoothed=0.6, learned_at_s=NOW_S)})
    )
    state = a_state(SPEC, demand=DEMAND_RPS, replicas={ENCODER: 4})
    fleet = pools(a_pool("inferentia"))
    (modelled,) = decide(a_snapshot(state, fleet=fleet), Policy()).pipelines
    decision = decide(a_snapshot(replace(state, memory=learned), fleet=fleet), Policy())
    (seen,) = decision.pipelines
    assert modelled.plan is not None
    assert seen.plan is not None
    assert seen.plan.replicas()[ENCODER] > modelled.plan.replicas()[ENCODER]
    assert any("a replica served at most 12 items/s" in line for line in explain(decision, SPEC.key))
