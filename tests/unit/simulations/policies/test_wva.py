"""WVA saturation V1: the worked cases of its own analyzer_test.go."""

import pytest
from baselines import a_detailed, a_reading, at, desired
from builders import ENCODER, ENCODER_GPU, NOW_S, VAD, a_state, a_target

from simulations.policies.autoscaler import DetailedSnapshot
from simulations.policies.wva import ReplicaLoad, Variant, Wva, WvaSettings, saturation, targets

SETTINGS = WvaSettings()
HEALTHY = ((0.5, 1.0), (0.5, 1.0))
LOW = ((0.75, 2.0), (0.76, 2.0))
IDLE = ((0.2, 1.0), (0.3, 1.0), (0.25, 1.0))


def loads(*pairs: tuple[float, float]) -> tuple[ReplicaLoad, ...]:
    return tuple(ReplicaLoad(kv=kv, queue=queue) for kv, queue in pairs)


@pytest.mark.parametrize(
    ("name", "replicas", "grow"),
    [
        ("low KV spare", LOW, True),
        ("low queue spare", ((0.5, 3.0), (0.5, 3.0)), True),
        ("healthy", HEALTHY, False),
        ("all saturated", ((0.85, 2.0), (0.5, 6.0), (0.9, 7.0)), True),
        ("no metrics", (), False),
    ],
)
def test_scale_up(name: str, replicas: tuple[tuple[float, float], ...], grow: bool) -> None:
    assert saturation(loads(*replicas), SETTINGS)[0] is grow, name


@pytest.mark.parametrize(
    ("name", "replicas", "safe"),
    [
        ("adequate headroom", IDLE, True),
        ("what one leaves is too much for the other", HEALTHY, False),
        ("insufficient headroom", ((0.7, 2.0), (0.75, 2.0)), False),
        ("only one that is not saturated", ((0.5, 2.0),), False),
        ("all saturated", ((0.85, 2.0), (0.5, 6.0), (0.9, 7.0)), False),
    ],
)
def test_scale_down_safety(name: str, replicas: tuple[tuple[float, float], ...], safe: bool) -> None:
    assert saturation(loads(*replicas), SETTINGS)[1] is safe, name


def variants(
    pairs: tuple[tuple[float, float], ...],
    *,
    published: tuple[int | None, int | None, int | None] = (None, None, None),
    current: tuple[int, int, int] = (2, 2, 2),
    pending: tuple[int, int, int] = (0, 0, 0),
) -> list[Variant]:
    return [
        Variant(
            name=name, cost=cost, loads=loads(*pairs), current=current[i], pending=pending[i], published=published[i]
        )
        for i, (name, cost) in enumerate([("v1-expensive", 20.0), ("v2-cheap", 5.0), ("v3-medium", 15.0)])
    ]


def test_scale_up_cheapest() -> None:
    assert targets(variants(LOW), SETTINGS) == {"v1-expensive": 2, "v2-cheap": 3, "v3-medium": 2}


def test_scale_down_most_expensive() -> None:
    assert targets(variants(((0.2, 1.0), (0.2, 1.0))), SETTINGS) == {"v1-expensive": 1, "v2-cheap": 2, "v3-medium": 2}


def test_model_level_transition_blocking() -> None:
    moving = variants(LOW, published=(4, None, None))
    assert targets(moving, SETTINGS) == {"v1-expensive": 4, "v2-cheap": 2, "v3-medium": 2}


def test_metrics_mismatch_blocks_scaling() -> None:
    assert targets(variants(LOW, current=(3, 2, 2)), SETTINGS) == {"v1-expensive": 3, "v2-cheap": 2, "v3-medium": 2}


def test_a_variant_with_pending_replicas_is_passed_over() -> None:
    assert targets(variants(LOW, pending=(0, 1, 0)), SETTINGS)["v3-medium"] == 3


def test_a_variant_that_reports_nothing_is_not_chosen() -> None:
    dark = Variant(name="v0-free", cost=0.0, loads=(), current=0, pending=0, published=None)
    assert targets([dark, *variants(LOW)], SETTINGS) == {"v1-expensive": 2, "v2-cheap": 3, "v3-medium": 2}


def encoder(queued: float, replicas: int) -> DetailedSnapshot:
    state = a_state(replicas={VAD: 1, ENCODER: replicas, ENCODER_GPU: 0})
    return a_detailed(state, replicas={ENCODER: [a_reading(queued=queued)] * replicas, VAD: [a_reading()]})


def test_it_decides_every_half_minute_on_the_peak_of_a_minute() -> None:
    wva = Wva(SETTINGS)
    assert desired(wva, at(encoder(0.0, 2), 0.0))[ENCODER] == 1  # idle: one fewer
    wva = Wva(SETTINGS)
    assert desired(wva, at(encoder(4.0, 2), 0.0))[ENCODER] == 3
    assert desired(wva, at(encoder(0.0, 3), 15.0))[ENCODER] == 3  # nothing is decided
    assert desired(wva, at(encoder(0.0, 3), 45.0))[ENCODER] == 4  # of the third no peak is known, of two the queue of 4
    assert desired(wva, at(encoder(0.0, 4), 120.0))[ENCODER] == 3


def test_one_pending_replica_stops_all_decisions_about_its_stage() -> None:
    wva = Wva(SETTINGS)
    stuck = a_state(replicas={VAD: 1, ENCODER: a_target(3, ready=2, pending_since_s=[NOW_S]), ENCODER_GPU: 1})
    world = a_detailed(
        stuck, replicas={ENCODER: [a_reading(queued=9)] * 2, ENCODER_GPU: [a_reading(queued=9)], VAD: [a_reading()]}
    )
    for t in range(0, 300, 15):
        answer = desired(wva, at(world, float(t)))
        assert (answer[ENCODER], answer[ENCODER_GPU]) == (3, 1)
