"""InferLine: the planner against trying everything, and the tuner's envelopes by hand."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from baselines import CAPTIONS, a_detailed, at, desired
from builders import ENCODER, ENCODER_GPU, VAD, a_placement, a_spec, a_stage, a_state

from controller.core.assess.optimizer_input import optimizer_pipeline
from optimizer.latency.predict import predicted_latency_s
from optimizer.model import Composition, PipelineKey, PoolName, StageName, pool_of
from simulations.policies.autoscaler import Briefing
from simulations.policies.inferline import (
    Inferline,
    InferlineSettings,
    Model,
    Tuner,
    entry_rates,
    envelope,
    plan,
    replicas_for,
    windows_s,
)
from simulations.scenario.schedule import Schedule

PRICES = {PoolName("cpu"): 0.5, PoolName("inferentia"): 1.0, PoolName("gpu"): 2.0}


def test_windows_double_up_to_a_minute() -> None:
    assert windows_s() == [1, 2, 4, 8, 16, 32, 60]


def test_an_envelope_is_the_most_that_any_window_saw() -> None:
    rates = np.array([0.0, 10.0, 30.0, 10.0, 0.0, 0.0, 0.0, 0.0])
    assert envelope(rates) == {1: 30.0, 2: 20.0, 4: 12.5, 8: 6.25}


@pytest.mark.parametrize("demand", [5.0, 40.0, 90.0])
def test_the_plan_meets_the_sla_and_is_as_cheap_as_trying_everything(demand: float) -> None:
    spec = a_spec(
        a_stage("vad", a_placement("cpu", service_s=0.01, per_instance=4, bounds=(0, 6))),
        a_stage(
            "encoder",
            a_placement("inferentia", bounds=(0, 9)),
            a_placement("gpu", service_s=0.02, bounds=(0, 9)),
            after=["vad"],
        ),
    )
    problem = optimizer_pipeline(spec, demand)
    best = min(
        vad * 0.125 + count * PRICES[pool]
        for vad, count, pool in itertools.product(range(1, 7), range(1, 10), (PoolName("inferentia"), PoolName("gpu")))
        if (
            latency := predicted_latency_s(
                problem, {VAD: vad, (StageName("encoder"), pool): count}, {}, composition=Composition.RSS
            )
        )
        is not None
        and latency <= problem.sla.latency_s
    )
    found = plan(problem, PRICES)
    latency_s = predicted_latency_s(problem, found, {}, composition=Composition.RSS)
    assert latency_s is not None
    assert latency_s <= problem.sla.latency_s
    assert (
        sum(count * PRICES[pool_of(name)] / (4 if name == "cpu" else 1) for (_, name), count in found.items()) == best
    )


def test_what_nothing_can_serve_gets_the_most_there_is() -> None:
    spec = a_spec(a_stage("encoder", a_placement("inferentia", bounds=(0, 3))))
    assert plan(optimizer_pipeline(spec, 1000.0), PRICES) == {ENCODER: 3}


def a_model(*, replicas: int = 4, visits: float = 0.5, name: str = "encoder") -> Model:
    return Model(
        stage=StageName(name), placement=PoolName("inferentia"), replicas=replicas, visits=visits, replica_rps=20.0
    )


def a_tuner(*models: Model) -> Tuner:
    chosen = models or (a_model(),)
    return Tuner(
        InferlineSettings(),
        chosen,
        planned_rps=80.0,
        planned={1: 120.0, 2: 110.0, 4: 100.0, 8: 90.0, 16: 85.0, 32: 80.0, 60: 80.0},
        current={(own.stage, own.placement): own.replicas for own in chosen},
        changed_s=0.0,
    )


def test_the_provisioning_ratio_is_what_the_plan_uses_of_its_capacity() -> None:
    assert a_model().provisioning(80.0) == 0.5  # 80 · 0.5 of 4 · 20
    assert replicas_for(160.0, a_model(), 0.5) == 8
    assert a_model(replicas=1).provisioning(80.0) == 1.0


def test_a_load_within_the_envelope_changes_nothing() -> None:
    tuner = a_tuner()
    for second in range(10):
        assert tuner.tune(float(second), 80.0)[ENCODER] == 4


def test_any_window_above_the_envelope_scales_up_at_once() -> None:
    tuner = a_tuner()
    assert tuner.tune(0.0, 130.0)[ENCODER] == 7  # 130 · 0.5 / (20 · 0.5)
    tuner = a_tuner()
    assert tuner.tune(0.0, 115.0)[ENCODER] == 4  # a second of 115 is within 120
    assert tuner.tune(1.0, 115.0)[ENCODER] == 6  # two are not within 110


def test_down_comes_after_fifteen_quiet_seconds_and_half_a_minute_of_load() -> None:
    tuner = a_tuner()
    tuner.tune(0.0, 130.0)
    counts = [tuner.tune(float(second), 40.0)[ENCODER] for second in range(1, 61)]
    assert set(counts[:28]) == {7}
    assert counts[28] == 3  # the last 30 s still have 130 in one bin of 5: 58 · 0.5 / 10
    assert counts[-1] == 2


def test_down_uses_the_least_ratio_of_the_pipeline() -> None:
    tuner = a_tuner(a_model(), a_model(name="other", replicas=8))
    counts = [dict(tuner.tune(float(second), 40.0)) for second in range(40)]
    assert counts[-1][ENCODER] == 4  # 40 · 0.5 / (20 · 0.25), the ratio of the other


def briefing(rate_rps: float) -> Briefing:
    start_s = np.arange(0.0, 400.0, 1 / rate_rps)
    return Briefing(
        pipelines=(a_spec(),),
        pools=tuple(pool.spec for pool in a_detailed().pools.values()),
        changes=(),
        loads={PipelineKey(CAPTIONS): Schedule(start_s=start_s, end_s=start_s)},
        duration_s=400.0,
    )


def test_requests_per_second_are_counted_as_they_start() -> None:
    own = briefing(20.0)
    assert entry_rates(own.loads[CAPTIONS], own.pipelines[0], 100.0) == pytest.approx(np.full(100, 20.0))


def test_it_is_planned_with_a_quarter_of_the_load_and_holds_without_an_ingress() -> None:
    world = a_detailed(a_state(replicas={VAD: 1, ENCODER: 1, ENCODER_GPU: 1}))
    inferline = Inferline(InferlineSettings(), briefing(40.0))
    first = desired(inferline, world)
    assert (first[ENCODER], first[ENCODER_GPU]) == (0, 1)  # one GPU at 40/s of 50 is cheaper than three of the others
    assert desired(inferline, at(world, world.now_s + 1)) == first
    busy = replace(a_detailed(a_state(), offered_rps=200.0), now_s=world.now_s + 2)
    assert sum(desired(inferline, busy).values()) > sum(first.values())
