"""What exceeds a cap without a change of the pipeline is excused for a time: nothing is ended at once, none added."""

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders import (
    NOW_S,
    a_placement,
    a_pool,
    a_scaling,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    a_target,
    applied,
    pools,
)

from controller.core.assess.prices import EXCUSED_S
from controller.core.cycle import decide
from controller.core.messages.conditions import conditions
from controller.core.state.carry_over import PipelineMemory, PriceMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import BudgetState, PoolState, Snapshot
from controller.core.state.spec import BudgetSpec, LabelSelector
from optimizer.model import Basis, PlacementKey, PoolName, StageName

KEY: PlacementKey = (StageName("asr"), PoolName("gpu"))
EVERYWHERE = LabelSelector(labels={}, requirements=())
SPEC = a_spec(a_stage("asr", a_placement("gpu", bounds=(0, 40))), budget=8.0, scaling=a_scaling(down=2))


def gpus(price: float, before: float = 1.0) -> Mapping[PoolName, PoolState]:
    pool = a_pool("gpu", price=price, instances=40, ready=40)
    return pools(replace(pool, priced=PriceMemory(per_hour=before)))


def course(snapshot: Snapshot, policy: Policy, cycles: int) -> list[int]:
    """Return the replicas after each cycle; prices are remembered, and all replicas are ready at once."""
    counts = []
    for _ in range(cycles):
        decision = decide(snapshot, policy)
        counts.append(decision.pipelines[0].desired[KEY])
        prices = {pool.name: pool.price for pool in decision.pools}
        snapshot = applied(snapshot, decision)
        snapshot = replace(
            snapshot, pools={name: replace(pool, priced=prices[name]) for name, pool in snapshot.pools.items()}
        )
    return counts


@pytest.mark.parametrize("price", [1.2, 2.1, 10.0, 1000.0])
@pytest.mark.parametrize("cap", ["pipeline", "fleet", "group"])
def test_a_price_that_jumps_ends_no_replica_within_the_hour_and_then_few_at_a_time(price: float, cap: str) -> None:
    spec = SPEC if cap == "pipeline" else replace(SPEC, budget_per_hour=1e6)
    snapshot = a_snapshot(a_state(spec, demand=130.0, replicas={KEY: 8}), fleet=gpus(price))
    if cap == "group":
        budget = BudgetSpec(name="team", uid="uid", generation=1, per_hour=8.0, selector=EVERYWHERE)
        snapshot = replace(snapshot, budgets=(BudgetState(spec=budget, namespaces=frozenset({"speech"})),))
    counts = course(snapshot, Policy(budget_per_hour=8.0 if cap == "fleet" else None), 420)
    hour = int(EXCUSED_S / 15)
    assert set(counts[:hour]) == {8}
    steps = [early - late for early, late in itertools.pairwise(counts)]
    assert max(steps) <= 2
    assert counts[-1] * price <= 8.0 + 1e-9 or counts[-1] == counts[-2], "in the end the cap holds"


def test_nothing_is_added_and_the_condition_says_why() -> None:
    snapshot = a_snapshot(a_state(SPEC, demand=400.0, replicas={KEY: 8}), fleet=gpus(2.1))
    (decision,) = decide(snapshot, Policy()).pipelines
    assert decision.desired[KEY] == 8
    (within,) = (each for each in conditions(decision) if each.type == "WithinBudget")
    assert within.status == "False"


def test_a_budget_that_a_person_lowers_counts_at_once() -> None:
    tight = replace(SPEC, budget_per_hour=4.0)
    (decision,) = decide(
        a_snapshot(a_state(tight, demand=130.0, replicas={KEY: 8}), fleet=gpus(1.0)), Policy()
    ).pipelines
    assert decision.desired[KEY] == 4


class TestNeighbours:
    SPEC = a_spec(a_stage("asr", a_placement("gpu", per_instance=4)), budget=2.2, basis=Basis.INSTANCES)

    def after(self, replicas: int, nodes: Mapping[str, int], since_s: float | None) -> int:
        memory = PipelineMemory(demand=1.0, left_alone_since_s=since_s)
        state = a_state(self.SPEC, demand=50.0, replicas={KEY: a_target(replicas, nodes=nodes)}, memory=memory)
        fleet = pools(a_pool("gpu", instances=40, ready=40, nodes=dict.fromkeys(nodes, "")))
        return decide(a_snapshot(state, fleet=fleet), Policy()).pipelines[0].desired[KEY]

    @pytest.mark.parametrize("since_s", [None, NOW_S - EXCUSED_S + 1])
    def test_a_node_that_a_neighbour_left_ends_no_replica_at_once(self, since_s: float | None) -> None:
        assert self.after(4, {"a": 1, "b": 1, "c": 1, "d": 1}, since_s) == 4

    def test_nor_ever_the_last_one(self) -> None:
        spec = replace(self.SPEC, budget_per_hour=0.6)
        memory = PipelineMemory(demand=1.0, left_alone_since_s=NOW_S - 10 * EXCUSED_S)
        state = a_state(spec, demand=1.0, replicas={KEY: a_target(1, nodes={"a": 1})}, memory=memory)
        fleet = pools(a_pool("gpu", instances=40, ready=40, nodes={"a": ""}))
        (decision,) = decide(a_snapshot(state, fleet=fleet), Policy()).pipelines
        assert decision.desired[KEY] == 1
        assert decision.admissible is None

    def test_a_replica_that_ends_is_no_reason_to_plan_another_one(self) -> None:
        spec = replace(self.SPEC, budget_per_hour=0.6)
        state = a_state(spec, demand=0.0, replicas={KEY: a_target(0, existing=1, ready=0, nodes={"a": 1})})
        fleet = pools(a_pool("gpu", instances=40, ready=40, nodes={"a": ""}))
        (decision,) = decide(a_snapshot(state, fleet=fleet), Policy()).pipelines
        assert decision.plan is not None
        assert decision.plan.cost_per_hour <= 0.6
