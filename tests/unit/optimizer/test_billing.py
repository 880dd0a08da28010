"""What is paid for whole instances, and by whom."""

import pytest

from optimizer.billing import Charge, costs_per_hour, occupancy
from optimizer.model import Basis, InvalidProblem, PipelineKey, Pool, PoolName

GPU = PoolName("gpu")
ONE, TWO = PipelineKey("speech/one"), PipelineKey("speech/two")


def gpu(*nodes: float, held: tuple[tuple[int, int], ...] = ()) -> dict[PoolName, Pool]:
    return {GPU: Pool(name=GPU, price_per_hour=8.0, instances=10, node_prices_per_hour=nodes, held=held)}


def charge(
    pipeline: PipelineKey, replicas: int, *, of: int = 8, basis: Basis = Basis.INSTANCES, share: float = 1.0
) -> Charge:
    return Charge(pipeline=pipeline, basis=basis, pool=GPU, per_instance=of, replicas=replicas, cost_share=share)


def test_a_replica_alone_pays_for_its_whole_instance() -> None:
    assert costs_per_hour([charge(ONE, 1)], gpu()) == {ONE: 8.0}
    assert costs_per_hour([charge(ONE, 1, basis=Basis.REPLICAS)], gpu()) == {ONE: 1.0}


def test_the_empty_rest_is_paid_in_proportion() -> None:
    costs = costs_per_hour([charge(ONE, 1), charge(TWO, 3)], gpu())
    assert costs == {ONE: pytest.approx(2.0), TWO: pytest.approx(6.0)}


def test_replicas_of_different_sizes_pay_by_their_share_of_an_instance() -> None:
    costs = costs_per_hour([charge(ONE, 1, of=2), charge(TWO, 2, of=8)], gpu())
    assert costs == {ONE: pytest.approx(8.0 * 2 / 3), TWO: pytest.approx(8.0 / 3)}


def test_placements_that_cannot_share_instances_pay_for_their_own() -> None:
    assert costs_per_hour([charge(ONE, 1, of=2), charge(TWO, 1, of=3)], gpu()) == {ONE: 8.0, TWO: 8.0}


def test_who_counts_shares_takes_part_in_the_split_but_pays_for_no_empty_rest() -> None:
    costs = costs_per_hour([charge(ONE, 1), charge(TWO, 3, basis=Basis.REPLICAS)], gpu())
    assert costs == {ONE: pytest.approx(2.0), TWO: 3.0}


def test_nodes_that_are_there_have_their_own_prices_and_new_ones_that_of_the_pool() -> None:
    assert costs_per_hour([charge(ONE, 9)], gpu(12.0, 5.0)) == {ONE: 17.0}
    assert costs_per_hour([charge(ONE, 8)], gpu(12.0, 5.0)) == {ONE: 12.0}, "the dearest may be the one that stays"
    assert costs_per_hour([charge(ONE, 17)], gpu(12.0, 5.0)) == {ONE: 25.0}


def test_replicas_that_are_not_planned_pay_for_their_part_of_the_nodes() -> None:
    assert costs_per_hour([charge(ONE, 2)], gpu(held=((8, 6),))) == {ONE: pytest.approx(2.0)}


def test_a_share_of_the_cost_is_a_share_of_what_the_instances_cost() -> None:
    assert costs_per_hour([charge(ONE, 4, share=0.25)], gpu()) == {ONE: pytest.approx(2.0)}


def test_nobody_pays_where_there_are_no_replicas() -> None:
    assert costs_per_hour([charge(ONE, 0)], gpu(12.0)) == {ONE: 0.0}
    assert occupancy([]).instances == 0


def test_prices_of_nodes_come_with_the_highest_first() -> None:
    with pytest.raises(InvalidProblem, match=r"pool gpu.node_prices_per_hour: \(5.0, 12.0\): must have the highest"):
        gpu(5.0, 12.0)
