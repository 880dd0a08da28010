"""What running replicas pay for the nodes that they are on."""

import pytest

from controller.core.plan.nodes import Placed, instance_costs_per_hour
from optimizer.model import Pool, PoolName

GPU = PoolName("gpu")
POOLS = {GPU: Pool(name=GPU, price_per_hour=8.0, instances=0)}


class Prices:
    def node_price_per_hour(self, node: str) -> float:
        return {"spot": 3.0}.get(node, 8.0)


def placed(name: str, replicas: int, **nodes: int) -> Placed[str]:
    return Placed(name=name, pool=GPU, per_instance=4, replicas=replicas, nodes=nodes)


def costs(*placements: Placed[str]) -> dict[str, float]:
    return dict(instance_costs_per_hour(placements, POOLS, {GPU: Prices()}))


def test_the_shares_on_a_node_add_up_to_its_own_price() -> None:
    found = costs(placed("a", 3, spot=1, old=2), placed("b", 3, spot=2, old=1))
    assert found == {"a": pytest.approx(1.0 + 16 / 3), "b": pytest.approx(2.0 + 8 / 3)}
    assert sum(found.values()) == pytest.approx(3.0 + 8.0)


def test_the_empty_rest_of_a_node_is_paid_by_those_on_that_node() -> None:
    assert costs(placed("a", 1, old=1), placed("b", 4, spot=4)) == {"a": 8.0, "b": 3.0}


def test_replicas_without_a_node_pay_as_in_a_plan() -> None:
    # Five replicas take two nodes, as planned: 16 for 5 / 4.
    assert costs(placed("a", 5, old=4)) == {"a": pytest.approx(8.0 + 16 / 5)}
    assert costs(placed("a", 2)) == {"a": pytest.approx(8.0)}
    assert costs(placed("a", 0)) == {"a": 0.0}


def test_replicas_without_a_node_cost_nothing_where_they_fit_into_nodes_that_are_paid_for() -> None:
    assert costs(placed("a", 4, old=2)) == {"a": pytest.approx(8.0)}
    assert costs(placed("a", 2, old=2), placed("b", 2)) == {"a": pytest.approx(8.0), "b": 0.0}
    assert sum(costs(placed("a", 3, old=2), placed("b", 2)).values()) > 8.0, "one of them needs a node of its own"
