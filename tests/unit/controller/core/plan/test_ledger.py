"""The books: what is spent while replicas come and go, and what no change may overdraw."""

from dataclasses import replace
from functools import partial

import pytest
import sharing
from builders import ENCODER, VAD, a_placement, a_pool, a_spec, a_stage, a_state, a_target, default_pools, pools
from hypothesis import given
from hypothesis import strategies as st

from controller.core.plan.ledger import FLEET, Ledger, Replicas
from controller.core.state.snapshot import PipelineState, TargetMissing, TargetState
from controller.core.state.spec import Mode, PipelineSpec
from optimizer.model import Basis, GroupBudget, PipelineKey, PoolName, whole_instances
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


def test_replicas_that_another_pipeline_owns_count_there_alone() -> None:
    copy = a_state(a_spec(name="copy", mode=Mode.RECOMMEND), replicas={ENCODER: replace(a_target(2), owner=KEY)})
    books = ledger(a_state(replicas={ENCODER: 2}), copy, fleet_budget=3.0, inferentia=3)
    assert (books.observed_per_hour(), books.in_use(PoolName("inferentia"))) == (2, 2)
    assert books.refusal(KEY, ENCODER) is None


GPU, CPU = PoolName("gpu"), PoolName("cpu")


def _draining(leaving: int, asked: int) -> int:
    return max(asked, 3) + leaving


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 9)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=12),
)
def test_counted_change_by_change_is_counted_whole(
    placements: list[tuple[int, int]], changes: list[tuple[int, int]]
) -> None:
    where = {index: (GPU, size) for index, (size, _) in enumerate(placements)}
    replicas = Replicas(
        {index: count for index, (_, count) in enumerate(placements)},
        where,
        occupied={index: partial(_draining, index) for index in where},
    )
    for index, count in changes:
        if index in replicas:
            replicas[index] = count
    asked = [(size, replicas[index]) for index, (size, _) in enumerate(placements)]
    occupied = [(size, _draining(index, replicas[index])) for index, (size, _) in enumerate(placements)]
    assert replicas.totals.instances(GPU) == whole_instances(asked)
    assert replicas.occupied.instances(GPU) == whole_instances(occupied)
    assert replicas.totals.instances(CPU) == 0


def test_what_is_taken_out_is_not_counted() -> None:
    replicas = Replicas({"a": 4, "b": 2}, {"a": (GPU, 4), "b": (GPU, 1)}, occupied=dict.fromkeys("ab", int))
    del replicas["b"]
    assert replicas.totals.instances(GPU) == replicas.occupied.instances(GPU) == 1
    assert dict(replicas) == {"a": 4}


class TestSharedStages:
    def books(self, *, budget: float = 100.0, fleet_budget: float | None = None) -> Ledger:
        snapshot = sharing.the_world((sharing.owning(), sharing.borrowing(budget=budget)))
        shares = {sharing.SHARED: {sharing.OWNER: 0.25, sharing.BORROWER: 0.75}}
        return Ledger(snapshot.pipelines, snapshot.pools, fleet_budget, cost_shares=shares)

    def test_every_user_pays_its_share_and_the_fleet_pays_once(self) -> None:
        books = self.books()  # two encoders × $2, and two others × $0.5
        assert books.observed_per_hour(sharing.OWNER) == pytest.approx(0.25 * 4 + 0.5)
        assert books.observed_per_hour(sharing.BORROWER) == pytest.approx(0.75 * 4 + 0.5)
        assert books.observed_per_hour() == books.cost_per_hour() == pytest.approx(5.0)
        assert books.instances(sharing.GPU) == 2

    def test_a_replica_that_takes_any_user_above_its_cap_is_refused(self) -> None:
        assert self.books(budget=5.0).refusal(sharing.OWNER, sharing.ENCODER) is None
        refused = self.books(budget=4.9).refusal(sharing.OWNER, sharing.ENCODER)
        assert refused == Limit(kind=LimitKind.BUDGET, name=sharing.BORROWER)
        assert self.books(fleet_budget=6.9).refusal(sharing.OWNER, sharing.ENCODER) == Limit(
            kind=LimitKind.BUDGET, name=FLEET
        )


CHIP = "inferentia"
ON_CHIP = a_spec(a_stage("encoder", a_placement(CHIP, per_instance=4)), budget=10.0, basis=Basis.INSTANCES)


def on_chip(spec: PipelineSpec, target: TargetState) -> PipelineState:
    return a_state(spec, replicas={ENCODER: target})


def test_with_basis_instances_a_replica_pays_for_its_whole_node() -> None:
    books = ledger(on_chip(ON_CHIP, a_target(5)))
    assert (books.cost_per_hour(KEY), books.observed_per_hour(KEY), books.spend_per_hour(KEY)) == (2, 2, 2)
    shares = ledger(on_chip(replace(ON_CHIP, declared_basis=None), a_target(5)))
    assert shares.cost_per_hour(KEY) == 1.25


def test_with_basis_instances_the_price_of_each_node_is_split_among_those_on_it() -> None:
    two = replace(ON_CHIP, key=PipelineKey("speech/two"), uid="two")
    chips = a_pool(CHIP, price=1.0, nodes={"a": "large", "b": ""}, node_prices={"large": 3.0})
    books = Ledger(
        [on_chip(ON_CHIP, a_target(4, nodes={"a": 1, "b": 3})), on_chip(two, a_target(2, nodes={"a": 2}))],
        pools(chips),
        None,
    )
    assert books.observed_per_hour(KEY) == pytest.approx(3.0 / 3 + 1.0)
    assert books.observed_per_hour(two.key) == pytest.approx(2.0)
    assert books.observed_per_hour() == pytest.approx(4.0), "the price of both nodes"


def test_with_basis_instances_a_replica_that_opens_a_node_above_the_budget_is_refused() -> None:
    tight = replace(ON_CHIP, budget_per_hour=1.5)
    assert ledger(on_chip(tight, a_target(3))).refusal(KEY, ENCODER) is None
    assert ledger(on_chip(tight, a_target(4))).refusal(KEY, ENCODER) == Limit(kind=LimitKind.BUDGET)


def test_with_basis_instances_replicas_fill_the_nodes_that_are_paid_for_before_any_costs_more() -> None:
    spread = on_chip(replace(ON_CHIP, budget_per_hour=2.5), a_target(2, nodes={"a": 1, "b": 1}))
    books = Ledger([spread], pools(a_pool(CHIP, price=1.0, nodes={"a": "", "b": ""})), None)
    assert books.observed_per_hour(KEY) == 2
    for count in range(2, 8):
        books.after[(KEY, ENCODER)] = count
        assert books.spend_per_hour(KEY) == 2, "they fit on the nodes that are there"
        assert books.refusal(KEY, ENCODER) is None
    books.after[(KEY, ENCODER)] = 8
    assert books.refusal(KEY, ENCODER) == Limit(kind=LimitKind.BUDGET)


def test_with_basis_instances_the_cost_of_other_replicas_is_found_without_changing_the_books() -> None:
    books = ledger(on_chip(ON_CHIP, a_target(5)))
    assert books.cost_with(KEY, {ENCODER: 4}) == 1
    assert books.cost_per_hour(KEY) == 2


def test_a_group_pays_what_its_pipelines_pay_each_on_its_own_basis() -> None:
    shares = replace(ON_CHIP, key=PipelineKey("speech/two"), uid="two", declared_basis=None)
    other = replace(ON_CHIP, key=PipelineKey("other/three"), uid="three")
    states = [on_chip(ON_CHIP, a_target(1)), on_chip(shares, a_target(1)), on_chip(other, a_target(2))]
    both = frozenset({KEY, shares.key})
    for per_hour, refused in ((1.25, None), (1.2, Limit(kind=LimitKind.BUDGET, name="team"))):
        team = GroupBudget(name="team", per_hour=per_hour, pipelines=both)
        books = Ledger(states, pools(a_pool(CHIP, price=1.0)), None, budgets=[team])
        for spent in (books.observed_per_hour, books.spend_per_hour, books.cost_per_hour):
            assert spent(team) == spent(KEY) + spent(shares.key) == pytest.approx(0.25 + 0.25)
        books.after[(KEY, ENCODER)] = 2  # one more opens a second node: 3/6 of two nodes, and a quarter of one
        assert books.refusal(KEY, ENCODER) == refused


def test_the_limit_of_the_fleet_is_no_compute_budget_whatever_its_name() -> None:
    named = GroupBudget(name="fleet", per_hour=9.0, pipelines=frozenset({KEY}))
    books = Ledger([a_state(replicas={ENCODER: 2})], default_pools(), 2.5, budgets=[named])
    limit = books.refusal(KEY, ENCODER)
    assert limit is not None
    assert books.group(limit) is None
    assert books.no_capacity(ENCODER[1], limit) == "no capacity on inferentia within the budget of the fleet"
    assert books.group(Limit(kind=LimitKind.BUDGET, name="fleet")) is named
