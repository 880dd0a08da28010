"""KPA: the worked cases of knative's own autoscaler_test.go."""

from dataclasses import replace

import pytest
from baselines import a_detailed, a_reading, at, desired
from builders import ENCODER, VAD, a_placement, a_spec, a_stage, a_state

from simulations.policies.autoscaler import DetailedSnapshot
from simulations.policies.kpa import Kpa, KpaScaler, KpaSettings

TESTS = KpaSettings(max_scale_up_rate=10.0, max_scale_down_rate=10.0)


@pytest.mark.parametrize(
    ("name", "target", "stable", "panic", "ready", "settings", "replicas"),
    [
        ("StableModeNoChange", 10, 50.0, 50.0, 1, TESTS, 5),
        ("StableModeUnlimitedTBC", 181, 21.0, 26.0, 1, TESTS, 1),
        ("StableModeNoChangeAlreadyScaled", 10, 50.0, 50.0, 5, TESTS, 5),
        ("StableModeIncreaseWithSmallScaleUpRate", 1, 3.0, 3.1, 2, replace(TESTS, max_scale_up_rate=1.1), 3),
        ("StableModeDecreaseWithSmallScaleDownRate", 10, 1.0, 1.0, 100, replace(TESTS, max_scale_down_rate=1.1), 90),
        ("PanicModeDoublePodCount", 10, 50.0, 100.0, 1, TESTS, 10),
        ("RateLimitScaleUp", 10, 1000.0, 1001.0, 1, TESTS, 10),
        ("RateLimitScaleDown", 10, 1.0, 1.0, 100, TESTS, 10),
    ],
)
def test_scale(
    name: str, target: float, stable: float, panic: float, ready: int, settings: KpaSettings, replicas: int
) -> None:
    assert KpaScaler(settings, target).scale(0.0, stable=stable, panic=panic, ready=ready) == replicas, name


@pytest.mark.parametrize(("stable", "panic", "replicas"), [(50.0, 30.0, 50), (20.0, 30.0, 30)])
def test_in_panic_the_larger_of_both_windows_counts(stable: float, panic: float, replicas: int) -> None:
    scaler = KpaScaler(TESTS, 1.0, panic_since_s=-5.0, panic_most=5)
    assert scaler.scale(0.0, stable=stable, panic=panic, ready=5) == replicas


def test_panic_then_unpanic_scale_down() -> None:
    scaler = KpaScaler(TESTS, 10.0)
    assert scaler.scale(0.0, stable=100, panic=100, ready=1) == 10
    assert scaler.scale(1.0, stable=100, panic=1000, ready=10) == 100
    assert scaler.scale(31.0, stable=1, panic=1, ready=10) == 100  # traffic dropped off, still in panic
    assert scaler.scale(62.0, stable=1, panic=1, ready=10) == 1


def test_unpanic_after_slow_increase() -> None:
    scaler = KpaScaler(TESTS, 1.0)
    assert scaler.scale(0.0, stable=11, panic=25, ready=10) == 25
    assert scaler.scale(30.0, stable=30, panic=41, ready=40) == 41
    assert scaler.panic_since_s == 0.0
    assert scaler.scale(62.0, stable=50, panic=56, ready=55) == 50
    assert scaler.panic_since_s is None


def test_panic_is_extended_while_the_load_surges() -> None:
    scaler = KpaScaler(TESTS, 1.0)
    scaler.scale(0.0, stable=11, panic=25, ready=10)
    assert scaler.scale(30.0, stable=30, panic=80, ready=40) == 80
    assert scaler.panic_since_s == 30.0


def test_scale_down_delay() -> None:
    settings = KpaSettings(
        max_scale_up_rate=10.0, max_scale_down_rate=10.0, panic_threshold=100.0, scale_down_delay_s=300.0
    )
    scaler = KpaScaler(settings, 10.0)
    assert scaler.scale(2.0, stable=40, panic=40, ready=0) == 4
    assert scaler.scale(300.0, stable=0, panic=0, ready=0) == 4
    assert scaler.scale(302.0, stable=0, panic=0, ready=0) == 0


def world(concurrency: float, ready: int) -> DetailedSnapshot:
    placement = a_placement("inferentia")
    placement = replace(placement, prior=replace(placement.prior, batch_sizes=(10,)))
    state = a_state(
        a_spec(a_stage("vad", a_placement("cpu")), a_stage("encoder", placement, after=["vad"])),
        replicas={VAD: 1, ENCODER: ready},
    )
    return a_detailed(state, replicas={ENCODER: [a_reading(queued=concurrency)] * ready})


def test_the_target_is_seventy_percent_of_what_a_replica_serves_at_once() -> None:
    kpa = Kpa(KpaSettings())
    assert desired(kpa, at(world(10.0, 1), 0.0))[ENCODER] == 2  # 10 on one replica that holds 10: 7 each


def test_a_restart_with_many_replicas_does_not_scale_down_before_there_is_data() -> None:
    kpa = Kpa(KpaSettings())
    assert desired(kpa, at(world(0.0, 6), 0.0))[ENCODER] == 6
    assert desired(kpa, at(world(0.0, 6), 60.0))[ENCODER] == 6
    assert desired(kpa, at(world(0.0, 6), 62.0))[ENCODER] == 3  # half at a time


def test_a_burst_of_six_seconds_is_enough_to_panic() -> None:
    kpa = Kpa(KpaSettings())
    for tick in range(27):
        assert desired(kpa, at(world(5.0, 1), 2.0 * tick))[ENCODER] == 1
    counts = [desired(kpa, at(world(40.0, 1), 54.0 + 2.0 * tick))[ENCODER] for tick in range(3)]
    assert counts[-1] == 6  # 40 over the panic window; the stable mean is still below 9
