"""Against others counts what occupies nodes; what is only asked for stops growth, and removes nothing."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders import NOW_S, a_placement, a_pool, a_snapshot, a_spec, a_stage, a_state, a_target, pools

from controller.core.cycle import decide
from controller.core.messages.conditions import pool_conditions
from controller.core.state.decision import Decision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import (
    BudgetState,
    Orphan,
    PoolState,
    ServingReplica,
    TargetState,
)
from controller.core.state.spec import BudgetSpec, LabelSelector, Mode, PipelineSpec, Target
from optimizer.model import PipelineKey, PlacementKey, PoolName, Sla, StageName, pool_of

KEY: PlacementKey = (StageName("asr"), PoolName("gpu"))
PHANTOMS = {
    "desired, and none exists": a_target(1000, existing=0, ready=0),
    "pending": a_target(45, ready=0, pending_since_s=[NOW_S - 5] * 45),
    "pending for long": a_target(45, ready=0, pending_since_s=[NOW_S - 5000] * 45),
}


def a_pipeline(
    name: str, mode: Mode = Mode.AUTO, *, per_instance: int = 1, least: int = 0, priority: int = 0
) -> PipelineSpec:
    stage = a_stage("asr", a_placement("gpu", bounds=(least, 100), per_instance=per_instance))
    return a_spec(stage, name=name, mode=mode, priority=priority)


def serving(count: int, nodes: int) -> TargetState:
    """Return `count` ready replicas on so many nodes."""
    on = tuple(ServingReplica(name=f"pod-{index}", node=f"node-{index % nodes}") for index in range(count))
    return replace(a_target(count), serving=on)


def gpus(instances: int) -> Mapping[PoolName, PoolState]:
    return pools(a_pool("gpu", instances=instances, ready=instances))


GOOD = a_state(a_pipeline("good"), demand=120.0, replicas={KEY: 10})
ALONE = 7  # what its plan needs


def replicas(decision: Decision, name: str = "good") -> int:
    return next(own.desired[KEY] for own in decision.pipelines if own.spec.name == name)


def budgeted(per_hour: float) -> BudgetState:
    everywhere = LabelSelector(labels={}, requirements=())
    spec = BudgetSpec(name="team", uid="uid", generation=1, per_hour=per_hour, selector=everywhere)
    return BudgetState(spec=spec, namespaces=frozenset({"speech"}))


@pytest.mark.parametrize("mode", [Mode.RECOMMEND, Mode.PAUSED])
@pytest.mark.parametrize("phantom", PHANTOMS.values(), ids=PHANTOMS)
@pytest.mark.parametrize("large", [False, True])
def test_what_a_pipeline_that_does_not_act_only_asks_for_ends_no_replica_of_others(
    phantom: TargetState, mode: Mode, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr("controller.core.cycle.AT_ONCE", 0)
    asks = a_state(a_pipeline("asks", mode), demand=1.0, replicas={KEY: phantom})
    for fleet, policy in ((gpus(40), Policy()), (gpus(2000), Policy(budget_per_hour=30.0))):
        snapshot = a_snapshot(GOOD, asks, fleet=fleet)
        assert replicas(decide(snapshot, policy)) == ALONE
        team = replace(snapshot, budgets=(budgeted(30.0),))
        assert replicas(decide(team, Policy())) == ALONE


@pytest.mark.parametrize("large", [False, True])
def test_it_stops_growth_and_the_pool_says_so(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr("controller.core.cycle.AT_ONCE", 0)
    grows = replace(GOOD, demand=400.0)
    asks = a_state(a_pipeline("asks", Mode.RECOMMEND), replicas={KEY: a_target(25, existing=0, ready=0)})
    fleet = gpus(40)
    assert replicas(decide(a_snapshot(grows, fleet=fleet), Policy())) > 15
    decision = decide(a_snapshot(grows, asks, fleet=fleet), Policy())
    assert replicas(decision) == 15
    (pool,) = decision.pools
    (growth,) = (
        each
        for each in pool_conditions(fleet[pool_of(KEY[1])], pool.memory, NOW_S, pool.claimed)
        if each.type == "GrowthOpen"
    )
    assert (growth.status, growth.reason) == ("False", "Claimed")
    assert "25 replicas" in growth.message


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("per_instance", [1, 8])
def test_replicas_count_by_the_nodes_that_they_are_on(mode: Mode, per_instance: int) -> None:
    """A newcomer's 40 small replicas are on 5 nodes, whatever its manifest says of the replicas per node."""
    new = a_state(a_pipeline("new", mode, per_instance=per_instance), demand=700.0, replicas={KEY: serving(40, 5)})
    for fleet, policy in ((gpus(20), Policy()), (gpus(99), Policy(budget_per_hour=20.0))):
        assert replicas(decide(a_snapshot(GOOD, new, fleet=fleet), policy)) == ALONE


def test_replicas_on_nodes_of_another_pool_occupy_none_of_this_one() -> None:
    there = serving(40, 40)
    there = replace(there, match=replace(there.match, outside={pod.name: pod.node for pod in there.serving}))
    other = a_state(a_pipeline("other", Mode.RECOMMEND), replicas={KEY: there})
    assert replicas(decide(a_snapshot(GOOD, other, fleet=gpus(40)), Policy())) == ALONE


@pytest.mark.parametrize("priority", [0, 5])
def test_a_minimum_beyond_the_own_need_ends_no_ready_replica_of_others(priority: int) -> None:
    idle = a_state(a_pipeline("idle", least=40, priority=priority), demand=0.1, replicas={KEY: 1})
    decision = decide(a_snapshot(GOOD, idle, fleet=gpus(40)), Policy())
    assert replicas(decision) == ALONE
    assert replicas(decision, "idle") == 30, "it gets what is left: replicas of others that go are there until the end"


def test_where_there_is_room_a_minimum_is_kept() -> None:
    idle = a_state(a_pipeline("idle", least=12), demand=0.1, replicas={KEY: 1})
    assert replicas(decide(a_snapshot(GOOD, idle, fleet=gpus(40)), Policy()), "idle") == 12


def test_an_orphan_counts_for_the_fleet_its_group_and_its_pool() -> None:
    orphan = Orphan(
        namespace="speech",
        target=Target(api_version="apps/v1", kind="Deployment", name="asr-old"),
        pipeline=PipelineKey("speech/old"),
        pool=pool_of(KEY[1]),
        per_instance=1,
        replicas=8,
        placed=8,
    )
    busy = replace(GOOD, demand=400.0)

    def after(instances: int, policy: Policy, *budgets: BudgetState) -> tuple[int, Decision]:
        pool = a_pool("gpu", instances=instances, ready=instances, unaccounted={1: 8})
        fleet = pools(replace(pool, orphans=(orphan,)))
        decision = decide(replace(a_snapshot(busy, fleet=fleet), budgets=budgets), policy)
        return replicas(decision), decision

    assert after(99, Policy(budget_per_hour=20.0))[0] == 12
    assert after(99, Policy(), budgeted(20.0))[0] == 12
    assert after(20, Policy())[0] == 12


def test_who_shares_nothing_with_what_is_claimed_has_the_same_plan() -> None:
    tight = replace(a_pipeline("good"), sla=Sla(latency_s=0.28))
    own = a_state(tight, demand=120.0, replicas={KEY: 30})
    elsewhere = a_spec(a_stage("asr", a_placement("cpu")), name="asks", mode=Mode.PAUSED)
    asks = a_state(elsewhere, demand=1.0, replicas={(StageName("asr"), PoolName("cpu")): PHANTOMS["pending"]})
    fleet = pools(a_pool("gpu", instances=40, ready=40), a_pool("cpu", instances=40, ready=40))
    alone = decide(a_snapshot(own, fleet=fleet), Policy()).pipelines[0]
    beside = decide(a_snapshot(own, asks, fleet=fleet), Policy()).pipelines
    assert alone.plan is not None
    assert alone.plan.steps
    assert [each for each in beside if each.spec.name == "good"] == [alone]
