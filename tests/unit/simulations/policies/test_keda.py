"""KEDA: an average of ongoing items per replica, and what happens when the trigger fails."""

from baselines import a_detailed, a_reading, at, desired
from builders import ENCODER, VAD, a_state

from simulations.policies.autoscaler import DetailedSnapshot
from simulations.policies.keda import Keda, KedaSettings


def world(ongoing: float, replicas: int, *, reporting: int | None = None) -> DetailedSnapshot:
    count = replicas if reporting is None else reporting
    readings = [a_reading(queued=ongoing / count, in_service=0)] * count if count else []
    return a_detailed(a_state(replicas={VAD: 1, ENCODER: replicas}), replicas={ENCODER: readings})


def test_one_replica_per_five_ongoing_items() -> None:
    assert desired(Keda(KedaSettings()), world(24, 2))[ENCODER] == 5
    assert desired(Keda(KedaSettings(target_ongoing=12.0)), world(24, 1))[ENCODER] == 2


def test_items_in_service_count_as_those_that_wait() -> None:
    both = a_detailed(a_state(replicas={VAD: 1, ENCODER: 1}), replicas={ENCODER: [a_reading(queued=6, in_service=6)]})
    assert desired(Keda(KedaSettings()), both)[ENCODER] == 3


def test_the_tolerance_holds_small_changes() -> None:
    assert desired(Keda(KedaSettings()), world(54, 10))[ENCODER] == 10
    assert desired(Keda(KedaSettings()), world(56, 10))[ENCODER] == 12


def test_a_failing_trigger_changes_nothing() -> None:
    assert desired(Keda(KedaSettings()), world(0, 4, reporting=0))[ENCODER] == 4


def test_down_comes_after_the_window_and_never_to_nothing() -> None:
    keda = Keda(KedaSettings())
    busy, idle = world(20, 4), world(0, 4)
    assert desired(keda, at(busy, 0.0))[ENCODER] == 4
    assert desired(keda, at(idle, 150.0))[ENCODER] == 4
    assert desired(keda, at(idle, 301.0))[ENCODER] == 1
