"""HPA: the worked cases of Kubernetes' own replica_calculator_test.go and of its issues."""

import pytest
from baselines import a_detailed, a_reading, at, desired
from builders import ENCODER, ENCODER_GPU, NOW_S, VAD, a_state, a_target

from simulations.policies.hpa import (
    Hpa,
    HpaBehavior,
    HpaControl,
    HpaSettings,
    average_value_replicas,
    resource_replicas,
)


@pytest.mark.parametrize(
    ("name", "values", "target", "current", "missing", "unready", "replicas"),
    [
        ("ScaleUp", [0.3, 0.5, 0.7], 0.3, 3, 0, 0, 5),
        ("ScaleUpUnreadyLessScale", [0.5, 0.7], 0.3, 3, 0, 1, 4),
        ("ScaleUpUnreadyNoScale", [0.4], 0.3, 3, 0, 2, 3),
        ("ScaleUpIgnoresFailedPods", [0.5, 0.7], 0.3, 2, 0, 0, 4),
        ("ScaleDown", [0.1, 0.3, 0.5, 0.25, 0.25], 0.5, 5, 0, 0, 3),
        ("ScaleDownIncludeUnreadyPods", [0.1, 0.3, 0.5], 0.5, 5, 0, 2, 2),
        ("ScaleDownExcludeUnscheduledPods", [0.1], 0.5, 5, 0, 4, 1),
        ("MissingMetricsNoChangeEq", [1.0], 1.0, 2, 1, 0, 2),
        ("MissingMetricsNoChangeGt", [1.9], 1.0, 2, 1, 0, 2),
        ("MissingMetricsNoChangeLt", [0.6], 1.0, 2, 1, 0, 2),
        ("MissingMetricsUnreadyChange", [0.45], 0.5, 3, 1, 1, 3),
        ("MissingMetricsUnreadyScaleUp", [2.0], 0.5, 3, 1, 1, 4),
        ("MissingMetricsUnreadyScaleDown", [0.1, 0.1], 0.5, 4, 1, 1, 3),
        ("DuringRollingUpdateWithMaxSurge", [0.1, 0.1], 0.5, 2, 1, 0, 2),
        ("within the tolerance", [0.54, 0.54], 0.5, 2, 0, 0, 2),
    ],
)
def test_replicas_for_a_resource_metric(
    name: str, values: list[float], target: float, current: int, missing: int, unready: int, replicas: int
) -> None:
    answer = resource_replicas(values, target=target, current=current, missing=missing, unready=unready)
    assert answer == replicas, name


def test_without_any_sample_there_is_no_recommendation() -> None:
    assert resource_replicas([], target=0.5, current=3, missing=3, unready=0) is None


@pytest.mark.parametrize(
    ("total", "target", "current", "replicas"),
    [
        (8600, 2150, 3, 4),  # ScaleUpPerPodCMExternal
        (8600, 2867, 5, 3),  # ScaleDownPerPodCMExternal
        (41, 4, 10, 10),  # kubernetes #116984: 41 streams on 10 pods of 4 never scale, 2.5 % is within 10 %
        (45, 4, 10, 12),
        (0, 4, 10, 0),
    ],
)
def test_replicas_for_an_average_value(total: float, target: float, current: int, replicas: int) -> None:
    assert average_value_replicas(total, target=target, current=current) == replicas


def test_up_is_limited_to_the_larger_of_four_pods_and_double_per_period() -> None:
    control = HpaControl(HpaBehavior())
    assert control.replicas(0, 100, current=1, least=1, most=100) == 5
    assert control.replicas(5, 100, current=5, least=1, most=100) == 5  # within the period: still from 1
    assert control.replicas(15, 100, current=5, least=1, most=100) == 10
    assert control.replicas(30, 100, current=10, least=1, most=18) == 18


def test_down_waits_for_the_highest_recommendation_of_five_minutes() -> None:
    control = HpaControl(HpaBehavior())
    assert control.replicas(0, 8, current=8, least=1, most=20) == 8
    assert control.replicas(150, 3, current=8, least=1, most=20) == 8
    assert control.replicas(299, 2, current=8, least=1, most=20) == 8
    assert control.replicas(300, 2, current=8, least=1, most=20) == 3
    assert control.replicas(450, 2, current=3, least=1, most=20) == 2


def test_the_autoscaler_acts_on_the_first_placement() -> None:
    world = a_detailed(
        a_state(replicas={VAD: 1, ENCODER: 3, ENCODER_GPU: 2}),
        replicas={ENCODER: [a_reading(utilization=use) for use in (0.6, 0.9, 0.9)], VAD: [a_reading(utilization=0.5)]},
    )
    assert desired(Hpa(HpaSettings()), world) == {VAD: 1, ENCODER: 5, ENCODER_GPU: 2}  # 0.8 of 0.5 on 3


def test_pods_that_have_just_become_ready_count_as_idle_on_the_way_up() -> None:
    readings = [a_reading(utilization=0.9), a_reading(utilization=0.9, ready_since_s=NOW_S - 5)]
    world = a_detailed(a_state(replicas={VAD: 1, ENCODER: 2}), replicas={ENCODER: readings})
    assert desired(Hpa(HpaSettings()), world)[ENCODER] == 2  # 0.9 over two pods is 0.45
    assert desired(Hpa(HpaSettings()), at(world, NOW_S + 15))[ENCODER] == 4


def test_pending_pods_do_not_stop_it_from_asking_on() -> None:
    target = a_target(8, ready=2, existing=8, pending_since_s=[NOW_S] * 6)
    world = a_detailed(
        a_state(replicas={VAD: 1, ENCODER: target}), replicas={ENCODER: [a_reading(utilization=1.0)] * 2}
    )
    assert desired(Hpa(HpaSettings()), world)[ENCODER] == 8  # 2 busy of 8 is less than half: it keeps what it asked for


def test_a_queue_target_counts_where_it_asks_for_more() -> None:
    world = a_detailed(
        a_state(replicas={VAD: 1, ENCODER: 2}), replicas={ENCODER: [a_reading(utilization=0.5, queued=6.0)] * 2}
    )
    assert desired(Hpa(HpaSettings()), world)[ENCODER] == 2
    assert desired(Hpa(HpaSettings(target_queued=2.0)), world)[ENCODER] == 6
