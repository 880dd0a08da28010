"""Dynamo: the worked cases of its own tests/planner, and the profile against the queueing model."""

import numpy as np
import pytest
from baselines import a_detailed, a_reading, a_workload, at, desired
from builders import ENCODER, ENCODER_GPU, NOW_S, VAD, a_placement, a_pool, a_stage, a_state, a_target, pools

from controller.core.state.snapshot import TargetState
from simulations.policies.autoscaler import DetailedSnapshot
from simulations.policies.dynamo import (
    Dynamo,
    DynamoSettings,
    Kalman,
    LatencyRegression,
    Predictor,
    load_replicas,
    profiled,
    throughput_replicas,
    within_budget,
)


@pytest.mark.parametrize(
    ("requests", "per_request", "throughput", "replicas"),
    [
        (10, 3000, 40_000, 1),  # test_prefill_replica_calculation_basic
        (10, 150, 10_000, 1),  # test_decode_replica_calculation_basic
        (500, 150, 1_000, 2),  # high_load_500_req_per_second
        (500, 3000, 40_000, 1),
    ],
)
def test_replicas_for_a_predicted_load(requests: int, per_request: int, throughput: float, replicas: int) -> None:
    interval_s = 60.0
    demand_rps, engine_rps = requests / interval_s, throughput / per_request
    assert throughput_replicas(demand_rps, engine_rps=engine_rps, least_s=0.0, target_s=1.0, least=1) == replicas


def test_min_endpoint_and_the_floor_beyond_the_sla() -> None:
    assert throughput_replicas(0.1, engine_rps=100.0, least_s=0.0, target_s=1.0, least=2) == 2
    assert throughput_replicas(0.1, engine_rps=100.0, least_s=2.1, target_s=1.0, least=1) == 3


@pytest.mark.parametrize(
    ("wanted", "units", "least", "budget", "given"),
    [
        ((3, 5), (1, 1), (1, 1), 100, [3, 5]),
        ((10, 10), (1, 1), (2, 1), 5, [2, 3]),  # test_clamp_pair_preserves_asymmetric_component_minimums
        ((5, 5), (1, 1), (1, 1), 4, [2, 2]),  # test_clamp_pair_shrinks_to_ceiling_when_only_max_set
        ((3, 3), (2, 2), (1, 1), 5, [1, 1]),
        ((3, 3), (2, 2), (1, 1), 3, [0, 0]),  # the minimum footprint is over the ceiling
        ((6, 4, 2), (0.5, 1, 1), (1, 1, 1), 4.5, [3, 2, 1]),
    ],
)
def test_a_budget_shrinks_all_alike(
    wanted: tuple[int, ...], units: tuple[float, ...], least: tuple[int, ...], budget: float, given: list[int]
) -> None:
    answer = within_budget(wanted, units, least, budget)
    assert answer == given
    assert sum(count * unit for count, unit in zip(answer, units, strict=True)) <= budget


def regression(
    slope: float, own: float, *, settings: DynamoSettings | None = None, points: int = 10
) -> LatencyRegression:
    model = LatencyRegression(settings or DynamoSettings())
    for i in range(points):
        x = 20.0 + 10.0 * i
        model.observe(x, slope * x + own)
    return model


@pytest.mark.parametrize(
    ("loads", "sensitivity", "replicas"),
    [
        ([100.0, 95.0], 0.8, 3),  # test_scale_up_all_workers_above_target (x_sla = 80)
        ([10.0, 15.0, 20.0], 1.0, 2),  # test_scale_down_all_workers_below_boundary
        ([150.0, 10.0], 0.8, 2),  # test_no_change_mixed_workers
        ([10.0], 0.8, 1),
        ([10.0, 15.0, 60.0], 0.8, 3),  # 60 · 3/2 is more than the queue may have
    ],
)
def test_the_reactive_loop(loads: list[float], sensitivity: float, replicas: int) -> None:
    assert load_replicas(loads, regression(0.5, 10.0), target_s=50.0, sensitivity=sensitivity) == replicas


def test_a_cold_start_decides_nothing() -> None:
    assert load_replicas([500.0], regression(0.5, 10.0, points=2), target_s=50.0, sensitivity=0.8) is None


def test_the_regression_is_linear_and_forgets() -> None:
    model = LatencyRegression(DynamoSettings(load_min_observations=3, load_samples=5))
    for x in range(1, 6):
        model.observe(float(x), 2.0 * x + 10.0)
    line = model.line()
    assert line is not None
    assert line(45.0) == pytest.approx(100.0)
    for x in range(1, 6):
        model.observe(float(x), 3.0 * x)
    line = model.line()
    assert line is not None
    assert line(10.0) == pytest.approx(30.0)


def test_the_filter_follows_a_trend() -> None:
    kalman = Kalman(DynamoSettings())
    for value in range(0, 1000, 10):
        kalman.observe(float(value))
    assert kalman.predict() == pytest.approx(1000.0, abs=1.0)
    constant = Kalman(DynamoSettings())
    for _ in range(50):
        constant.observe(7.0)
    assert constant.predict() == pytest.approx(7.0)


def test_the_filter_is_the_textbook_one() -> None:
    values = [100.0, 120.0, 90.0, 150.0, 155.0, 160.0, 30.0]
    move, see = np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([[1.0, 0.0]])
    state, covariance = np.array([values[0], 0.0]), np.eye(2) * 1000.0
    kalman = Kalman(DynamoSettings())
    kalman.observe(values[0])
    for value in values[1:]:
        state, covariance = move @ state, move @ covariance @ move.T + np.diag([1.0, 0.1])
        gain = covariance @ see.T / (see @ covariance @ see.T + 10.0)
        state, covariance = state + (gain * (value - state[0])).ravel(), (np.eye(2) - gain @ see) @ covariance
        kalman.observe(value)
        assert kalman.predict() == pytest.approx((move @ state)[0])


def test_the_profile_is_the_rate_at_which_one_replica_reaches_its_target() -> None:
    work = a_workload(a_stage("encoder", a_placement("inferentia")), 1)  # 50 ms, cv 1: M/M/1
    rate, least_s = profiled(work, 0.2)
    assert rate == pytest.approx(15.0, rel=0.02)  # 1 / (20 - 15) = 0.2
    assert least_s == pytest.approx(0.05, rel=0.01)
    assert profiled(work, 0.04)[0] == pytest.approx(20.0)


def world(rate_rps: float, replicas: int | TargetState, *, instances: int = 20) -> DetailedSnapshot:
    state = a_state(replicas={VAD: 1, ENCODER: replicas, ENCODER_GPU: 0})
    ready = replicas if isinstance(replicas, int) else replicas.ready
    return a_detailed(
        state,
        replicas={
            ENCODER: [a_reading(arrival_rps=rate_rps / ready, in_service=0.5)] * ready,
            VAD: [a_reading(arrival_rps=1.0)],
        },
        offered_rps=rate_rps,
        fleet=pools(a_pool("cpu"), a_pool("inferentia", instances=instances), a_pool("gpu")),
    )


def answers(dynamo: Dynamo, snapshot: DetailedSnapshot, until_s: int) -> list[int]:
    return [desired(dynamo, at(snapshot, NOW_S + t))[ENCODER] for t in range(0, until_s + 1, 5)]


def test_it_plans_every_three_minutes_for_the_whole_rate() -> None:
    found = answers(Dynamo(DynamoSettings(predictor=Predictor.CONSTANT)), world(60.0, 1), 180)
    assert set(found[:-1]) == {1}
    assert found[-1] == 4  # 60/s, of which one carries 17.6 within its 417 ms


def test_without_traffic_nothing_changes() -> None:
    assert set(answers(Dynamo(DynamoSettings()), world(0.0, 3), 180)) == {3}


def test_the_budget_is_the_pool() -> None:
    dynamo = Dynamo(DynamoSettings(predictor=Predictor.CONSTANT))
    assert answers(dynamo, world(60.0, 1, instances=3), 180)[-1] == 3


def test_scaling_in_progress_is_only_observed() -> None:
    dynamo = Dynamo(DynamoSettings(load_scaling=True))
    starting = a_target(4, ready=2, existing=4)
    assert set(answers(dynamo, world(60.0, starting), 60)) == {4}
