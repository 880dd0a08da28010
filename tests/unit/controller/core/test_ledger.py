"""The books: what is spent while replicas come and go, and what no change may overdraw."""

from builders import ENCODER, VAD, a_pool, a_spec, a_state, a_target, default_pools, pools

from controller.core.ledger import FLEET, Ledger
from controller.core.snapshot import PipelineState, TargetMissing
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


def test_what_cannot_be_read_or_priced_is_not_in_the_books() -> None:
    state = a_state(replicas={VAD: 4, ENCODER: TargetMissing(reason="gone")})
    assert set(Ledger([state], pools(a_pool("inferentia")), None).after) == set()
    assert ENCODER not in {key for _, key in ledger(state).after}
