"""Ray Serve: the worked cases of its own test_autoscaling_policy.py."""

from typing import Any

import pytest
from baselines import a_detailed, a_reading, at, desired
from builders import ENCODER, VAD, a_state

from simulations.policies.ray_serve import RayDeployment, RayServe, RayServeSettings

AT_ONCE = {"upscale_delay_s": 0.0, "downscale_delay_s": 0.0}


def deployment(**values: Any) -> RayDeployment:
    return RayDeployment(RayServeSettings(**values))


@pytest.mark.parametrize("ongoing", [20, 100, 10])
def test_single_replica_receives_all_requests(ongoing: int) -> None:
    own = deployment(target_ongoing_requests=5, **AT_ONCE)
    assert own.replicas(ongoing, running=4, target=4, least=1, most=50) == ongoing / 5


def test_scaling_factor_scale_up_from_0_replicas() -> None:
    assert deployment(upscaling_factor=10).replicas(1, running=0, target=0, least=0, most=2) == 10
    assert deployment(upscaling_factor=0.5).replicas(1, running=0, target=0, least=0, most=2) == 1


def test_scaling_factor_scale_down_to_0_replicas() -> None:
    own = deployment(downscaling_factor=10, **AT_ONCE)
    assert own.replicas(0, running=5, target=5, least=0, most=5) == 1  # first stops at 1
    assert own.replicas(0, running=1, target=1, least=0, most=5) == 0
    own, count = deployment(downscaling_factor=0.2, **AT_ONCE), 5
    for _ in range(5):
        count = own.replicas(0, running=count, target=count, least=0, most=5)
    assert count == 0


def test_replicas_delayed_startup() -> None:
    own = deployment(target_ongoing_requests=1, upscale_delay_s=0, downscale_delay_s=100_000)
    assert own.replicas(100, running=1, target=1, least=1, most=200) == 100
    assert own.replicas(100, running=1, target=100, least=1, most=200) == 100
    assert own.replicas(123, running=3, target=100, least=1, most=200) == 123
    assert own.replicas(10, running=4, target=123, least=1, most=200) == 123


def test_upscale_and_downscale_delay() -> None:
    own = deployment(target_ongoing_requests=1)
    for _ in range(30):
        assert own.replicas(2, running=1, target=1, least=0, most=2) == 1
    assert own.replicas(2, running=1, target=1, least=0, most=2) == 2
    for _ in range(600):
        assert own.replicas(0, running=2, target=2, least=0, most=2) == 2
    assert own.replicas(0, running=2, target=2, least=0, most=2) == 1
    for _ in range(15):
        own.replicas(2, running=1, target=1, least=0, most=2)
    own.replicas(0, running=1, target=1, least=0, most=2)  # another decision in between starts the count anew
    for _ in range(30):
        assert own.replicas(2, running=1, target=1, least=0, most=2) == 1
    assert own.replicas(2, running=1, target=1, least=0, most=2) == 2


@pytest.mark.parametrize("delay_s", [30.0, 0.0])
def test_fluctuating_ongoing_requests(delay_s: float) -> None:
    own = deployment(target_ongoing_requests=50, upscale_delay_s=delay_s, downscale_delay_s=delay_s)
    for _ in range(100):
        assert own.replicas(100, running=1, target=1, least=1, most=10) == (1 if delay_s else 2)
        assert own.replicas(40, running=2, target=2, least=1, most=10) == (2 if delay_s else 1)


def test_the_autoscaler_waits_half_a_minute_and_counts_what_waits_and_what_is_served() -> None:
    ray = RayServe(RayServeSettings())
    world = a_detailed(
        a_state(replicas={VAD: 1, ENCODER: 2}),
        replicas={ENCODER: [a_reading(queued=2, in_service=3), a_reading(queued=4, in_service=0)]},
    )
    answers = [desired(ray, at(world, float(tick)))[ENCODER] for tick in range(31)]
    assert answers == [2] * 30 + [5]  # 9 ongoing, 2 per replica
