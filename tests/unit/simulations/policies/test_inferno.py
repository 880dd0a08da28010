"""inferno: its published sizing, the queue against theory, and the greedy's cases."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from baselines import a_detailed, a_reading, desired
from builders import ENCODER, ENCODER_GPU, VAD, a_pool, a_state, a_target, pools

from controller.core.state.snapshot import TargetState
from simulations.policies.autoscaler import DetailedSnapshot
from simulations.policies.deployments import ceil
from simulations.policies.inferno import (
    Allocation,
    Inferno,
    InfernoSettings,
    QueueState,
    Saturation,
    Server,
    divide,
    largest_rate,
    steady_state,
    transition_value,
)

ALPHA, BETA, GAMMA = 10.65e-3, 0.0418e-3, 5.77e-8
"""The published service law of the control loop's experiments, seconds per token."""
INPUT, OUTPUT = 1024, 512


def iteration_s(batch: float) -> float:
    return ALPHA + batch * (BETA * (INPUT + OUTPUT) / (OUTPUT + 1) + GAMMA * (INPUT + OUTPUT / 2))


def prefill_s(batch: float) -> float:
    return iteration_s(batch) + (BETA + GAMMA) * INPUT


def decode_s(batch: float) -> float:
    return iteration_s(batch) + BETA + GAMMA * (INPUT + OUTPUT / 2)


def token_s(queue: QueueState) -> float:
    return (queue.service_s - prefill_s(queue.in_service)) / OUTPUT


def first_token_s(queue: QueueState) -> float:
    return queue.waiting_s + prefill_s(queue.in_service) + token_s(queue)


@pytest.mark.parametrize(("batch", "replicas"), [(32, (2, 7)), (52, (1, 5)), (128, (1, 5))])
def test_published_replicas_for_250_and_1250_requests_a_minute(batch: int, replicas: tuple[int, int]) -> None:
    rates = np.array([n / (prefill_s(n) + OUTPUT * decode_s(n)) for n in range(1, batch + 1)])
    by_token = largest_rate(rates, 0.020, token_s)
    by_first = largest_rate(rates, 1.5, first_token_s)
    assert by_token is not None
    assert by_first is not None
    assert tuple(ceil(rpm / 60 / min(by_token, by_first)) for rpm in (250, 1250)) == replicas


def test_one_server_is_the_queue_of_the_textbook() -> None:
    queue = steady_state(np.array([10.0]), 5.0)
    assert queue.service_s == pytest.approx(0.1)
    assert queue.waiting_s == pytest.approx(0.1, rel=0.01)  # M/M/1 at a load of a half, but for ten places to wait
    assert queue.in_service == pytest.approx(0.5, rel=0.001)


def test_the_largest_rate_is_where_the_target_is_reached() -> None:
    rates = np.array([10.0, 18.0, 24.0])
    rate = largest_rate(rates, 0.2, lambda queue: queue.waiting_s + queue.service_s)
    assert rate is not None
    queue = steady_state(rates, rate)
    assert queue.waiting_s + queue.service_s == pytest.approx(0.2, rel=1e-4)
    assert largest_rate(rates, 0.05, lambda queue: queue.service_s) is None  # an idle server takes 0.1 s
    assert largest_rate(rates, 9.0, lambda queue: queue.service_s) == pytest.approx(24.0 * 0.999)


def test_a_move_to_another_accelerator_costs_a_tenth_of_both() -> None:
    assert transition_value(cost=30.0, current_cost=20.0, same_accelerator=True) == 10.0
    assert transition_value(cost=30.0, current_cost=20.0, same_accelerator=False) == 15.0


def allocation(accelerator: str, replicas: int, value: float) -> Allocation:
    return Allocation(accelerator=accelerator, replicas=replicas, units=Fraction(1), cost=value, value=value)


def capacity(**units: int) -> dict[str, Fraction]:
    return {name: Fraction(count) for name, count in units.items()}


def test_who_loses_more_by_the_second_choice_goes_first() -> None:
    mild = Server("mild", 0, [allocation("a", 2, 10.0), allocation("b", 2, 11.0)])
    keen = Server("keen", 0, [allocation("a", 2, 10.0), allocation("b", 2, 30.0)])
    taken = divide([mild, keen], capacity(a=2, b=2), Saturation.NONE)
    assert {name: own.accelerator for name, own in taken.items()} == {"keen": "a", "mild": "b"}


def test_priority_goes_before_regret() -> None:
    keen = Server("keen", 1, [allocation("a", 2, 10.0), allocation("b", 2, 30.0)])
    first = Server("first", 0, [allocation("a", 2, 10.0), allocation("b", 2, 11.0)])
    taken = divide([keen, first], capacity(a=2, b=2), Saturation.NONE)
    assert {name: own.accelerator for name, own in taken.items()} == {"first": "a", "keen": "b"}


def test_what_does_not_fit_whole_gets_nothing_or_what_is_left() -> None:
    def big() -> Server:
        return Server("big", 0, [allocation("a", 5, 10.0), allocation("b", 4, 20.0)])

    assert divide([big()], capacity(a=3, b=2), Saturation.NONE) == {}
    assert divide([big()], capacity(a=3, b=2), Saturation.PRIORITY_EXHAUSTIVE)["big"].replicas == 3


def world(
    rate_rps: float,
    *,
    inferentia: int | TargetState = 2,
    gpu: int | TargetState = 0,
    instances: int = 20,
    reporting: int = 2,
) -> DetailedSnapshot:
    state = a_state(replicas={VAD: 1, ENCODER: inferentia, ENCODER_GPU: gpu})
    return a_detailed(
        state,
        replicas={ENCODER: [a_reading(arrival_rps=rate_rps / 2)] * reporting, VAD: [a_reading(arrival_rps=1.0)]},
        offered_rps=rate_rps,
        fleet=pools(a_pool("cpu", price=0.5), a_pool("inferentia", instances=instances), a_pool("gpu", price=2.0)),
    )


def test_a_stage_stays_on_its_pool_while_that_is_cheapest() -> None:
    answer = desired(Inferno(InfernoSettings(sla_share=0.5)), world(60.0))
    assert answer[ENCODER_GPU] == 0
    assert answer[ENCODER] == 4  # of 20/s each, at which the mean stays within the stage's part


def test_a_full_pool_sends_the_stage_to_the_next_and_the_old_replicas_wait_for_the_new() -> None:
    inferno = Inferno(InfernoSettings(sla_share=0.5))
    answer = desired(inferno, world(60.0, instances=3))
    assert (answer[ENCODER], answer[ENCODER_GPU]) == (2, 2)
    arrived = world(60.0, instances=3, gpu=a_target(2))
    assert desired(inferno, arrived)[ENCODER] == 0


def test_demand_is_what_is_offered_not_what_arrives() -> None:
    assert desired(Inferno(InfernoSettings(sla_share=0.5)), world(60.0, reporting=1))[ENCODER] == 4


def test_without_an_ingress_nothing_changes() -> None:
    blind = replace(world(60.0), ingress={})
    assert desired(Inferno(InfernoSettings()), blind) == {VAD: 1, ENCODER: 2, ENCODER_GPU: 0}


def test_a_stricter_target_makes_the_faster_pool_the_cheaper_one() -> None:
    answer = desired(Inferno(InfernoSettings(sla_share=0.4)), world(60.0))
    assert answer[ENCODER_GPU] == 2  # of 44/s each at $2; of 14/s each it would take five at $1
