"""One replica for the slowest stage, and one fewer for the idlest after a while."""

from baselines import a_detailed, a_reading, at, desired
from builders import ENCODER, VAD, a_state

from simulations.policies.autoscaler import DetailedSnapshot
from simulations.policies.plus_one import PlusOne, PlusOneSettings

SLA_S = 0.5


def world(p95_s: float | None, *, vad_s: float = 0.1, encoder_s: float = 0.2, busy: float = 0.2) -> DetailedSnapshot:
    return a_detailed(
        a_state(replicas={VAD: 2, ENCODER: 3}),
        replicas={
            VAD: [a_reading(p95_s=vad_s, utilization=0.5)] * 2,
            ENCODER: [a_reading(p95_s=encoder_s, utilization=busy)] * 3,
        },
        p95_s=p95_s,
    )


def test_above_the_sla_the_slowest_stage_gets_one_more_per_tick() -> None:
    autoscaler = PlusOne(PlusOneSettings())
    assert desired(autoscaler, world(0.6)) | {} == {VAD: 2, ENCODER: 4, ("encoder", "gpu"): 0}
    assert desired(autoscaler, world(0.6, vad_s=0.4))[VAD] == 3


def test_between_the_thresholds_nothing_changes() -> None:
    autoscaler = PlusOne(PlusOneSettings())
    assert desired(autoscaler, world(0.4))[ENCODER] == 3
    assert desired(autoscaler, world(None))[ENCODER] == 3


def test_the_idlest_stage_gives_one_back_per_cooldown() -> None:
    autoscaler = PlusOne(PlusOneSettings())
    counts = [desired(autoscaler, at(world(0.2), 15.0 * tick))[ENCODER] for tick in range(9)]
    assert counts == [3, 3, 3, 3, 2, 3, 3, 3, 2]
    autoscaler = PlusOne(PlusOneSettings())
    desired(autoscaler, at(world(0.2), 0.0))
    desired(autoscaler, at(world(0.4), 30.0))  # no longer calm
    assert desired(autoscaler, at(world(0.2), 60.0))[ENCODER] == 3


def test_a_stage_at_its_least_gives_nothing() -> None:
    autoscaler = PlusOne(PlusOneSettings(cooldown_s=0.0))
    alone = a_detailed(
        a_state(replicas={VAD: 2, ENCODER: 1}),
        replicas={VAD: [a_reading(utilization=0.9)] * 2, ENCODER: [a_reading(utilization=0.0)]},
        p95_s=0.1,
    )
    answer = desired(autoscaler, alone)
    assert (answer[VAD], answer[ENCODER]) == (1, 1)
