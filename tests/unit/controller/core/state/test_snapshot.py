"""What a target's pods say of its start-up time."""

from dataclasses import replace

import pytest
from builders import a_pool

from controller.core.state.shards import Allowance
from controller.core.state.snapshot import ServingReplica, TargetState


def a_target(*replicas: tuple[float | None, bool]) -> TargetState:
    """A target whose ready replicas have these start-up times, and were seen from their start or not."""
    serving = tuple(
        ServingReplica(name=str(i), startup_s=time_s, start_seen=seen) for i, (time_s, seen) in enumerate(replicas)
    )
    count = len(serving)
    return TargetState(
        desired=count, existing=count, ready=count, terminating=0, pending=(), serving=serving, resource_version="1"
    )


THREE_DAYS_S = 259_080.0


@pytest.mark.parametrize(
    ("replicas", "last_s", "learned_s"),
    [
        ([(THREE_DAYS_S, False)] * 4, 40.0, None),
        ([(THREE_DAYS_S, False)] * 4, None, None),
        ([(THREE_DAYS_S, False)] * 4 + [(41.0, True)], THREE_DAYS_S, 41.0),
        ([(45.0, False)], THREE_DAYS_S, 45.0),
        ([(900.0, True)], 40.0, None),
        ([(900.0, True), (41.0, True)], 40.0, 41.0),
        ([(900.0, True), (910.0, True)], 40.0, 900.0),
        ([(900.0, True)], None, 900.0),
        ([(400.0, False)], 40.0, 400.0),
        ([(None, False)], 40.0, None),
    ],
)
def test_a_start_up_time_far_beyond_the_last_one_is_not_learned_from_one_replica(
    replicas: list[tuple[float | None, bool]], last_s: float | None, learned_s: float | None
) -> None:
    assert a_target(*replicas).startup_s(last_s) == learned_s


def test_replicas_that_do_not_exist_are_uncreated_whatever_else_the_target_does() -> None:
    target = TargetState(desired=5, existing=2, ready=2, terminating=1, pending=(), resource_version="1", rolling=True)
    assert (target.uncreated, target.creates_later) == (3, True)


@pytest.mark.parametrize(
    ("allowance", "limit", "firm", "bound"),
    [
        (None, 20, True, False),
        (Allowance(amount=30), 20, True, False),
        (Allowance(amount=12), 12, False, True),
        (Allowance(amount=12, firm=True), 12, True, True),
    ],
)
def test_an_allowance_is_a_limit_and_what_is_above_it_stays_unless_it_is_firm(
    allowance: Allowance | None, limit: int, firm: bool, bound: bool
) -> None:
    pool = replace(a_pool("inf", instances=20), allowance=allowance)
    assert (pool.limit, pool.firm, pool.bound_by_allowance, pool.capacity) == (limit, firm, bound, 20)
    assert pool.limit_holding(15) == (limit if firm else 15)
