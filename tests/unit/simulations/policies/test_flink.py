"""Flink: the worked cases of JobVertexScalerTest, ScalingMetricEvaluatorTest and DelayedScaleDownTest."""

import math
from dataclasses import replace

import pytest
from baselines import a_detailed, a_reading, at, desired
from builders import VAD, a_placement, a_spec, a_stage, a_state

from simulations.policies.autoscaler import DetailedSnapshot
from simulations.policies.deployments import Deployment, first_placements
from simulations.policies.flink import (
    Flink,
    FlinkSettings,
    Sample,
    VertexRates,
    evaluate,
    outside_bounds,
    target_parallelism,
)

FREE = FlinkSettings(max_scale_down_factor=1.0, max_scale_up_factor=1e9, catch_up_s=0.0)


def vertex(parallelism: int, target_rps: float, true_rps: float, *, catch_up_rps: float = 0.0) -> VertexRates:
    """A vertex as the original's tests have it: parallelism, target rate, true processing rate."""
    return VertexRates(
        parallelism=parallelism, input_rps=true_rps, busy=1.0, target_rps=target_rps, catch_up_rps=catch_up_rps
    )


@pytest.mark.parametrize(
    ("utilization", "down", "up", "case", "replicas"),
    [
        (1.0, 1.0, 1e9, (10, 50, 100), 5),
        (0.8, 1.0, 1e9, (10, 50, 100), 7),  # the original's 8 is 7 aligned to a divisor of 720 key groups
        (0.8, 1.0, 1e9, (10, 80, 100), 10),
        (0.8, 1.0, 1e9, (10, 60, 100), 8),
        (0.8, 1.0, 1e9, (10, 59, 100), 8),
        (0.5, 1.0, 1e9, (2, 100, 40), 10),
        (0.6, 1.0, 1e9, (2, 100, 100), 4),
        (1.0, 0.5, 1e9, (10, 10, 100), 5),
        (1.0, 0.6, 1e9, (10, 10, 100), 4),
        (1.0, 1.0, 0.5, (10, 200, 10), 15),
        (1.0, 1.0, 0.6, (10, 200, 10), 16),
    ],
)
def test_parallelism_scaling(
    utilization: float, down: float, up: float, case: tuple[int, float, float], replicas: int
) -> None:
    settings = replace(FREE, target_utilization=utilization, max_scale_down_factor=down, max_scale_up_factor=up)
    assert target_parallelism(vertex(*case), settings) == replicas


def job() -> list[Deployment]:
    spec = a_spec(a_stage("source", a_placement("cpu")), a_stage("sink", a_placement("cpu"), after=["source"]))
    return list(first_placements(a_detailed(a_state(spec, replicas=dict.fromkeys(spec.placement_keys(), 1)))))


@pytest.mark.parametrize(
    ("catch_up_s", "lags", "inputs", "targets", "catch_ups"),
    [
        (2.0, (950.0, 1000.0), (100.0, 200.0), (150.0, 300.0), (500.0, 1000.0)),
        (1.0, (950.0, 1000.0), (100.0, 200.0), (150.0, 300.0), (1000.0, 2000.0)),
        (0.0, (950.0, 1000.0), (100.0, 200.0), (150.0, 300.0), (0.0, 0.0)),
        (60.0, (0.0, 0.0), (100.0, 200.0), (100.0, 200.0), (0.0, 0.0)),
    ],
)
def test_lag_based_source_scaling(
    catch_up_s: float,
    lags: tuple[float, float],
    inputs: tuple[float, float],
    targets: tuple[float, float],
    catch_ups: tuple[float, float],
) -> None:
    source, sink = job()
    history = [
        (
            float(second),
            {
                source.name: Sample(
                    input_rps=inputs[0], offered_rps=targets[0], lag=lags[second], busy=(0.8, 0.6)[second]
                ),
                sink.name: Sample(input_rps=inputs[1], offered_rps=inputs[1], lag=0.0, busy=(0.4, 0.3)[second]),
            },
        )
        for second in (0, 1)
    ]
    rates = evaluate(history, [source, sink], replace(FREE, catch_up_s=catch_up_s))
    assert (rates[source.name].busy, rates[sink.name].busy) == pytest.approx((0.7, 0.35))
    assert (rates[source.name].target_rps, rates[sink.name].target_rps) == targets
    assert (rates[source.name].catch_up_rps, rates[sink.name].catch_up_rps) == catch_ups


def test_the_true_rate_is_the_input_over_the_busy_share() -> None:
    busy = VertexRates(parallelism=1, input_rps=100.0, busy=0.4, target_rps=100.0, catch_up_rps=0.0)
    assert busy.true_rps == 250.0
    assert replace(busy, busy=0.0).true_rps == math.inf


@pytest.mark.parametrize(("true_rps", "outside"), [(99.0, True), (101.0, False), (249.0, False), (251.0, True)])
def test_it_acts_outside_the_band_of_four_to_ten_tenths(true_rps: float, outside: bool) -> None:
    assert outside_bounds(vertex(1, 100.0, true_rps), FlinkSettings()) is outside


def world(rate_rps: float, busy: float, replicas: int, *, served_rps: float | None = None) -> DetailedSnapshot:
    spec = a_spec(a_stage("source", a_placement("cpu")), a_stage("sink", a_placement("cpu"), after=["source"]))
    source, sink = spec.placement_keys()
    state = a_state(spec, replicas={source: replicas, sink: 1})
    served = None if served_rps is None else served_rps / replicas
    reading = a_reading(arrival_rps=rate_rps / replicas, completion_rps=served, utilization=busy)
    return a_detailed(
        state,
        replicas={source: [reading] * replicas, sink: [a_reading(arrival_rps=1.0, utilization=0.7)]},
        offered_rps=rate_rps,
    )


def test_nothing_happens_before_the_stabilisation_and_a_full_window() -> None:
    flink = Flink(FlinkSettings())
    answers = {t: desired(flink, at(world(120.0, 1.0, 2, served_rps=100.0), float(t))) for t in range(0, 1216, 15)}
    counts = {t: count for t, own in answers.items() for (stage, _), count in own.items() if stage == "source"}
    assert {count for t, count in counts.items() if t < 1200} == {2}
    assert counts[1200] == 4  # 120 / 0.7 of the 100 that two process


def test_a_reduction_waits_and_is_then_the_least_that_was_asked_for_meanwhile() -> None:
    settings = FlinkSettings(metrics_window_s=30.0, stabilization_s=0.0, scale_down_delay_s=60.0)
    flink = Flink(settings)
    counts = []
    for t in range(0, 105, 15):
        own = desired(flink, at(world(100.0, 0.3 if t >= 45 else 0.5, 6), float(t)))
        counts.append(next(count for (stage, _), count in own.items() if stage == "source"))
    # At 30 s, a full window, 0.5 / 0.7 of 6 makes 5. At 90 s it is 0.3 / 0.7 and 3, but 5 were asked for meanwhile.
    assert counts == [6, 6, 6, 6, 6, 6, 5]


def test_a_stage_without_readings_stops_the_whole_job() -> None:
    flink = Flink(FlinkSettings(metrics_window_s=0.0, stabilization_s=0.0))
    half = a_detailed(a_state(replicas={VAD: 2}), replicas={VAD: [a_reading(utilization=1.0)] * 2})
    assert desired(flink, half)[VAD] == 2
