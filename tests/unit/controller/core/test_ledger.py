"""The books: what is spent while replicas come and go, and what no change may overdraw."""

import pytest
from builders import ENCODER, VAD, a_pool, a_spec, a_state, a_target, default_pools, pools

from controller.core.ledger import FLEET, Ledger
from controller.core.snapshot import PipelineState, TargetMissing, TargetState
from optimizer.plan import Limit, LimitKind

KEY = a_spec().key


def ledger(*states: PipelineState, fleet_budget: float | None = None, **limits: int) -> Ledger:
    worlds = pools(*(a_pool(name, price=1.0, instances=limit) for name, limit in limits.items())) or default_pools()
    return Ledger(states, {**default_pools(), **worlds}, fleet_budget)


def test_a_replica_more_beside_terminating_ones_is_paid_on_top_of_them() -> None:
    books = ledger(a_state(replicas={ENCODER: a_target(2, terminating=2)}))
    assert books.spend_per_hour() == 4
    books.after[(KEY, ENCODER)] = 3
    assert books.spend_per_hour() == 5


def test_a_replica_less_is_paid_until_it_has_left() -> None:
    books = ledger(a_state(replicas={ENCODER: 4}))
    books.after[(KEY, ENCODER)] = 1
    assert (books.spend_per_hour(), books.cost_per_hour()) == (4, 1)


def test_the_limit_that_refuses_is_named() -> None:
    state = a_state(a_spec(budget=2.0), replicas={ENCODER: 2})
    assert ledger(state).refusal(KEY, ENCODER) == Limit(kind=LimitKind.BUDGET)
    state = a_state(replicas={ENCODER: 2})
    assert ledger(state, fleet_budget=2.5).refusal(KEY, ENCODER) == Limit(kind=LimitKind.BUDGET, name=FLEET)
    assert ledger(state, inferentia=2).refusal(KEY, ENCODER) == Limit(kind=LimitKind.POOL, name="inferentia")
    assert ledger(state, inferentia=3).refusal(KEY, ENCODER) is None


@pytest.mark.parametrize("other", [a_target(1, terminating=1), a_target(0, existing=2), a_target(2)])
def test_what_leaves_takes_its_part_of_a_ceiling_until_it_has_left(other: TargetState) -> None:
    states = a_state(replicas={ENCODER: 2}), a_state(a_spec(name="other"), replicas={ENCODER: other})
    assert ledger(*states, inferentia=4).refusal(KEY, ENCODER) == Limit(kind=LimitKind.POOL, name="inferentia")
    assert ledger(*states, inferentia=5).refusal(KEY, ENCODER) is None


def test_what_leaves_takes_nothing_of_a_pool_that_is_as_large_as_what_is_ready() -> None:
    state = a_state(replicas={ENCODER: a_target(2, terminating=9)})
    books = Ledger([state], {**default_pools(), **pools(a_pool("inferentia", instances=None, ready=3))}, None)
    assert books.refusal(KEY, ENCODER) is None


def test_what_cannot_be_read_or_priced_is_not_in_the_books() -> None:
    state = a_state(replicas={VAD: 4, ENCODER: TargetMissing(reason="gone")})
    assert set(Ledger([state], pools(a_pool("inferentia")), None).after) == set()
    assert ENCODER not in {key for _, key in ledger(state).after}
