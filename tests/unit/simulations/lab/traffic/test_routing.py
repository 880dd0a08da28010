"""The choice of the replica for the next item."""

from collections import Counter

import pytest

from optimizer.model import Routing
from simulations.lab.traffic.routing import Replica, Router


def fleet(*weights: float, limit: int = 1) -> list[Replica]:
    return [Replica(weight=weight, limit=limit) for weight in weights]


def shares(router: Router, replicas: list[Replica], items: int, *, keep: bool = False) -> list[int]:
    """Return the number of items of each replica; they stay outstanding with `keep`."""
    got: Counter[int] = Counter()
    for _ in range(items):
        chosen = router.for_item(replicas)
        assert chosen is not None
        chosen.outstanding += keep
        got[replicas.index(chosen)] += 1
    return [got[index] for index in range(len(replicas))]


@pytest.mark.parametrize("routing", [Routing.ROUND_ROBIN, Routing.LEAST_LOADED])
def test_equal_replicas_take_turns_under_a_light_load(routing: Routing) -> None:
    assert shares(Router(routing, 1), fleet(1, 1, 1), 30) == [10, 10, 10]


@pytest.mark.parametrize("routing", [Routing.ROUND_ROBIN, Routing.LEAST_LOADED])
@pytest.mark.parametrize("keep", [False, True])
def test_pools_of_different_speed_get_work_in_proportion_to_their_capacity(routing: Routing, keep: bool) -> None:
    assert shares(Router(routing, 1), fleet(100, 300), 400, keep=keep) == [100, 300]


def test_at_random_the_shares_follow_the_weights_and_a_seed_repeats_them() -> None:
    first, again = (shares(Router(Routing.RANDOM, 7), fleet(1, 3), 4000) for _ in range(2))

    assert first == again
    assert first[0] == pytest.approx(1000, rel=0.1)


def test_round_robin_does_not_send_runs_of_items_to_the_heavier_replica() -> None:
    router, replicas = Router(Routing.ROUND_ROBIN, 1), fleet(1, 2)
    order = [replicas.index(chosen) for _ in range(6) if (chosen := router.for_item(replicas)) is not None]

    assert order == [1, 0, 1, 1, 0, 1]


def test_the_least_loaded_for_its_weight_is_chosen() -> None:
    slow, fast = fleet(1, 4)
    slow.outstanding, fast.outstanding = 1, 3

    assert Router(Routing.LEAST_LOADED, 1).for_item([slow, fast]) is fast


def test_pull_gives_only_to_replicas_that_are_free() -> None:
    replicas = fleet(1, 1, limit=2)
    router = Router(Routing.PULL, 1)

    assert shares(router, replicas, 4, keep=True) == [2, 2]
    assert router.for_item(replicas) is None


def test_sessions_are_spread_in_proportion_to_capacity() -> None:
    router, replicas = Router(Routing.STICKY, 1), fleet(1, 3)
    for _ in range(40):
        chosen = router.for_session(replicas)
        assert chosen is not None
        chosen.sessions += 1

    assert [replica.sessions for replica in replicas] == [10, 30]


@pytest.mark.parametrize("routing", list(Routing))
def test_without_replicas_there_is_no_choice(routing: Routing) -> None:
    assert Router(routing, 1).for_item([]) is None
    assert Router(routing, 1).for_session([]) is None
