"""The plan of the fleet: made once for a question, however often it is asked."""

from dataclasses import replace
from typing import Any

import pytest
from builders import ENCODER, VAD, a_placement, a_pool, a_scaling, a_snapshot, a_spec, a_stage, a_state, pools
from planning import Planner

from controller.core.cycle import decide
from controller.core.state.decision import HoldReason
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState
from controller.core.state.spec import Mode, StageSpec
from optimizer.model import Basis, PoolName, StageName
from optimizer.runtime.cache import BoundedCache


@pytest.fixture
def remembering(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> Planner:
    monkeypatch.setattr("controller.core.plan.fleet._PLANS", BoundedCache(64))
    return planner


def test_a_fleet_that_asks_what_it_asked_before_is_not_planned_again(remembering: Planner) -> None:
    remembering.wants({VAD: 4})
    first, second = (decide(a_snapshot(a_state(demand=300.0)), Policy()) for _ in range(2))
    assert len(remembering.problems) == 1
    assert first == second


def test_another_demand_and_another_policy_are_other_questions(remembering: Planner) -> None:
    for demand, policy in ((300.0, Policy()), (400.0, Policy()), (400.0, Policy(switching_cost_per_hour=0.1))):
        decide(a_snapshot(a_state(demand=demand)), policy)
    assert len(remembering.problems) == 3


def a_copy(live: PipelineState, mode: Mode = Mode.RECOMMEND) -> PipelineState:
    """Return a pipeline that reads the workloads of `live` and does not act."""
    targets = {key: replace(target, owner=live.spec.key) for key, target in live.targets.items()}
    return replace(live, spec=a_spec(*live.spec.stages, name="copy", mode=mode), targets=targets)


@pytest.mark.parametrize("basis", Basis)
@pytest.mark.parametrize("at_once", [250, 1])
@pytest.mark.parametrize("mode", [Mode.RECOMMEND, Mode.PAUSED])
def test_a_copy_that_does_not_act_takes_nothing_from_the_pipeline_that_does(
    monkeypatch: pytest.MonkeyPatch, mode: Mode, at_once: int, basis: Basis
) -> None:
    monkeypatch.setattr("controller.core.cycle.AT_ONCE", at_once)
    live = a_state(a_spec(budget=6.0, basis=basis), demand=60.0, replicas={VAD: 1, ENCODER: 3})
    fleet = pools(a_pool("cpu", instances=1), a_pool("inferentia", instances=5), a_pool("gpu", instances=0))
    policy = Policy(budget_per_hour=6.0)
    alone = decide(a_snapshot(live, fleet=fleet), policy).pipelines[0]
    beside, copy = decide(a_snapshot(live, a_copy(live, mode), fleet=fleet), policy).pipelines
    assert beside.changes == alone.changes != ()
    assert beside.spend_per_hour == alone.spend_per_hour > 0
    # The copy is planned as if it acted instead, and its replicas are not paid twice.
    assert copy.plan is not None
    assert alone.plan is not None
    assert copy.plan.replicas() == alone.plan.replicas()
    assert copy.spend_per_hour == 0
    assert copy.changes == ()


def test_a_copy_is_decided_on_the_replicas_that_run(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 6}, name="copy")
    live = a_state(replicas={VAD: 4, ENCODER: 4})
    _, copy = decide(a_snapshot(live, a_copy(live)), Policy()).pipelines
    assert (copy.desired[ENCODER], copy.unconstrained[ENCODER]) == (4, 6)
    assert HoldReason.RECOMMEND_ONLY in {hold.reason for hold in copy.holds}
    assert copy.memory.owned == frozenset()


def test_a_plan_that_counts_whole_nodes_shares_them_with_replicas_of_others() -> None:
    def asr(name: str, running: int, **fields: Any) -> PipelineState:
        stage = a_stage("asr", a_placement("gpu", per_instance=4))
        spec = a_spec(stage, name=name, basis=Basis.INSTANCES, **fields)
        return a_state(spec, demand=40.0, replicas={(StageName("asr"), PoolName("gpu")): running})

    fleet = pools(a_pool("gpu", price=4.0))
    alone = decide(a_snapshot(asr("captions", 0), fleet=fleet), Policy()).pipelines[0].plan
    assert alone is not None
    needed = sum(alone.replicas().values())
    assert 0 < needed % 4 < 4
    others = 4 - needed % 4  # they fill the node
    beside = decide(
        a_snapshot(asr("captions", 0), asr("paused", others, mode=Mode.PAUSED), fleet=fleet), Policy()
    ).pipelines[0]
    assert alone.cost_per_hour == 4.0 * -(-needed // 4)
    assert beside.plan is not None
    assert sum(beside.plan.replicas().values()) == needed
    assert beside.plan.cost_per_hour == pytest.approx(needed)


def test_the_saving_that_decides_is_that_of_whole_nodes() -> None:
    stage = a_stage("asr", a_placement("gpu", per_instance=4, bounds=(0, 40)))
    key = (StageName("asr"), PoolName("gpu"))

    def decided(running: int, demand: float) -> tuple[int, int]:
        spec = a_spec(stage, basis=Basis.INSTANCES, scaling=a_scaling(down_s=0.0, tolerance=0.2))
        state = a_state(spec, demand=demand, replicas={key: running})
        decision = decide(a_snapshot(state, fleet=pools(a_pool("gpu", price=4.0))), Policy()).pipelines[0]
        assert decision.plan is not None
        return decision.plan.replicas()[key], decision.desired[key]

    demands = {decided(40, demand)[0]: demand for demand in range(60, 200, 5)}
    assert {planned % 4 for planned in demands} == {0}, "fewer replicas on as many nodes save nothing"
    assert decided(9, demands[8]) == (8, 8), "one replica of nine, below the tolerance, saves one node of three"


def test_a_fleet_of_copies_of_what_no_snapshot_has_is_planned(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    (copy,) = decide(a_snapshot(a_copy(a_state(replicas={VAD: 4, ENCODER: 4}))), Policy()).pipelines
    assert copy.plan is not None


def test_a_pipeline_whose_sla_no_allocation_meets_changes_no_plan_on_other_pools() -> None:
    short = a_state(a_spec(a_stage("vad", a_placement("cpu", bounds=(2, 2))), name="a", budget=0.7), demand=30.0)
    hopeless = a_state(a_spec(a_stage("asr", a_placement("gpu", service_s=0.6)), name="b"), demand=1.0)
    fleet = pools(a_pool("cpu", price=0.5), a_pool("gpu"))
    alone = decide(a_snapshot(short, fleet=fleet), Policy()).pipelines[0]
    beside, unreachable = decide(a_snapshot(short, hopeless, fleet=fleet), Policy()).pipelines
    assert HoldReason.SLA_UNREACHABLE in {hold.reason for hold in unreachable.holds}
    assert alone.plan is not None
    assert alone.plan.advice.required_budget_per_hour == pytest.approx(1.0)
    assert beside.plan == alone.plan


def test_a_pool_that_is_too_small_has_a_shadow_price_in_the_decision() -> None:
    stage = a_stage("asr", a_placement("cpu", service_s=0.02), a_placement("gpu", service_s=0.02))
    fleet = pools(a_pool("cpu", price=0.5, instances=2), a_pool("gpu", price=2.0))
    snapshot = a_snapshot(a_state(a_spec(stage, sla_s=1.0), demand=120.0), fleet=fleet)
    prices = {pool.name: pool.shadow_price_per_hour for pool in decide(snapshot, Policy()).pools}
    assert prices == {"cpu": pytest.approx(1.5), "gpu": 0.0}
    unasked = decide(snapshot, Policy(advice=False)).pools
    assert {pool.shadow_price_per_hour for pool in unasked} == {None}, "a simulation does not pay for it"


def test_minimums_that_one_pipeline_cannot_pay_change_nothing_for_another_on_other_pools() -> None:
    def stages(pool: str, *bounds: tuple[int, int]) -> list[StageSpec]:
        return [
            a_stage(f"s{n}", a_placement(pool, service_s=0.01, bounds=own, stage=f"s{n}"))
            for n, own in enumerate(bounds)
        ]

    fleet = pools(a_pool("cpu"), a_pool("gpu"))
    one = a_state(a_spec(*stages("cpu", (0, 2), (0, 2), (1, 2)), name="a", budget=1.0), demand=0.0, replicas={})
    other = a_state(a_spec(*stages("gpu", (2, 2)), name="b", budget=1.0), demand=0.0, replicas={})
    alone = decide(a_snapshot(one, fleet=fleet), Policy()).pipelines[0]
    beside = decide(a_snapshot(one, other, fleet=fleet), Policy()).pipelines[0]
    assert beside == alone
