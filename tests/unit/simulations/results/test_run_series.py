"""The series of a run: what held as each window ended, and the mean of what was paid."""

import numpy as np
import pytest
from live_runs import ASR_CPU, ASR_GPU, CAPTIONS, CLOCK, CPU, GPU, an_observation, items, observed, pipeline, replicas

from optimizer.model import Sla, StageName
from simulations.results.results import RunSeries
from simulations.results.run_series import means, run_series
from simulations.results.scoring import Steps, score_items
from simulations.results.spending import Observation


def a_series(**at: float) -> RunSeries:
    """Three windows from second 10 on; from second `grown` there are five replicas, from `dear` the GPU costs 4."""

    def seen(t_s: float) -> Observation:
        count = 5 if t_s >= at.get("grown", 99) else 2
        gpu = 4.0 if t_s >= at.get("dear", 99) else 2.0
        return an_observation(
            t_s,
            {ASR_CPU: replicas(count, ready=count - 1), ASR_GPU: replicas(1)},
            spend=count + gpu,
            budget=10.0 if t_s < at.get("cut", 99) else 4.0,
            prices={CPU: 1.0, GPU: gpu},
        )

    spec = pipeline()
    score = score_items(items(count=4000), Sla(latency_s=0.2, percentile=95), CLOCK)
    return run_series([spec], {CAPTIONS: score}, observed(seen))


def test_a_window_tells_what_held_when_it_ended() -> None:
    series = a_series(grown=20.0, cut=25.0)
    (captions,) = series.pipelines
    cpu, gpu = captions.placements
    assert series.t_s == (10.0, 20.0, 30.0)
    assert (cpu.placement, cpu.desired, cpu.ready) == ("cpu", (5, 5, 5), (4, 4, 4))  # second 20 is the end of the first
    assert gpu.desired == (1, 1, 1)
    assert captions.budget_per_hour == (10.0, 4.0, 4.0)
    assert captions.spend_per_hour == (7.0, 7.0, 7.0)


def test_cost_is_the_mean_over_the_window() -> None:
    (captions,) = a_series(grown=24.0).pipelines
    assert list(captions.cost_per_hour) == pytest.approx([4.0, 0.4 * 4 + 0.6 * 7, 7.0])


def test_rates_and_latency_are_those_of_the_score() -> None:
    series = a_series()
    (captions,) = series.pipelines
    assert captions.offered_rps == captions.served_rps == (100.0, 100.0, 100.0)
    assert captions.p95_s == (0.1, 0.1, 0.1)
    assert captions.met == (True, True, True)
    assert series.calm == (True, True, True)


def test_prices_are_those_of_the_pools() -> None:
    assert a_series(dear=31.0).price_per_hour == {"cpu": (1.0, 1.0, 1.0), "gpu": (2.0, 2.0, 4.0)}


def test_the_receive_pressure_of_a_stage_is_the_highest_of_each_window() -> None:
    score = score_items(items(count=4000), Sla(latency_s=0.2, percentile=95), CLOCK)
    vad, asr = StageName("vad"), StageName("asr")
    read = [(9.0, {vad: 1.0}), (10.0, {vad: 0.3}), (19.9, {vad: 0.9}), (20.0, {vad: 0.2, asr: 0.1}), (40.0, {vad: 1.0})]

    def seen(t_s: float) -> Observation:
        return an_observation(t_s, {ASR_CPU: replicas(1), ASR_GPU: replicas(1)}, prices={CPU: 1.0, GPU: 2.0})

    series = run_series([pipeline()], {CAPTIONS: score}, observed(seen), {CAPTIONS: read})
    assert series.receive_pressure == {CAPTIONS: {"vad": (0.9, 0.2, None), "asr": (None, 0.1, None)}}


def test_means_of_a_step_function() -> None:
    steps = Steps(times_s=[1.0, 2.5, 4.0], values=[10.0, 20.0, 0.0])
    assert list(means(steps, np.array([0.0, 2.0, 4.0]), np.array([2.0, 4.0, 6.0]))) == pytest.approx([5.0, 17.5, 0.0])
    assert means(steps, np.empty(0), np.empty(0)) == ()
