"""Floors are met with what the plans leave of budgets and pools, and the plans then speak of what will be done."""

import pytest
from builders import (
    ENCODER,
    NOW_S,
    VAD,
    a_placement,
    a_pool,
    a_rule,
    a_scaling,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    default_stages,
    pools,
)

from controller.core.cycle import decide
from controller.core.state.carry_over import PipelineMemory, RuleMemory
from controller.core.state.decision import ChangeReason, HoldReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState
from optimizer.model import PlacementKey, PoolName, StageName
from optimizer.plan import Limit, LimitKind

ASR: PlacementKey = (StageName("asr"), PoolName("gpu"))


def fired(floor: int, stage: str = "vad") -> PipelineMemory:
    rule = RuleMemory(floor=floor, fired=True, holds_since_s=NOW_S - 10)
    return PipelineMemory(demand=10.0, rules={(StageName(stage), "busy"): rule})


def with_rule(floor: int, *, budget: float = 100.0) -> PipelineState:
    spec = a_spec(*default_stages(vad_rules=[a_rule()]), budget=budget, scaling=a_scaling(up=40))
    return a_state(spec, replicas={VAD: 1, ENCODER: 1}, memory=fired(floor))


def one_stage(name: str, *, demand: float, floor: int = 0, priority: int = 0, replicas: int = 1) -> PipelineState:
    """Twenty requests a second take one replica and a half."""
    stage = a_stage("asr", a_placement("gpu"), rules=[a_rule()] if floor else [])
    spec = a_spec(stage, name=name, priority=priority, scaling=a_scaling(up=40))
    return a_state(spec, demand=demand, replicas={ASR: replicas}, memory=fired(floor, "asr") if floor else None)


def decided(*states: PipelineState, instances: int = 40) -> tuple[PipelineDecision, ...]:
    fleet = pools(a_pool("cpu"), a_pool("inferentia"), a_pool("gpu", instances=instances, ready=instances))
    return decide(a_snapshot(*states, fleet=fleet), Policy()).pipelines


def test_the_plan_and_its_cost_have_the_floor_and_the_proof_is_for_it() -> None:
    snapshot = a_snapshot(with_rule(6))
    decision = decide(snapshot, Policy())
    (pipeline,) = decision.pipelines
    assert pipeline.plan is not None
    assert decision.plan is not None
    assert pipeline.plan.replicas()[VAD] == 6
    assert decision.plan.cost_per_hour == pytest.approx(6 * 0.125 + 1.0)
    assert decision.plan.lower_bound_per_hour == pytest.approx(decision.plan.cost_per_hour)
    assert pipeline.desired[VAD] == 6
    assert [change.reason for change in pipeline.changes] == [ChangeReason.RULE]


def test_a_floor_above_the_budget_is_filled_as_far_as_the_money_goes_and_sheds_nothing() -> None:
    (pipeline,) = decide(a_snapshot(with_rule(40, budget=2.0)), Policy()).pipelines
    assert pipeline.goal[VAD] == 8
    assert pipeline.unmet == {VAD: Limit(kind=LimitKind.BUDGET)}
    assert pipeline.plan is not None
    assert pipeline.plan.served_fraction == 1
    assert pipeline.admissible is None


def test_a_floor_takes_no_replica_that_another_pipeline_is_planned_to_have() -> None:
    ruled, busy = decided(one_stage("a", demand=5.0, floor=6, priority=9), one_stage("b", demand=70.0), instances=6)
    assert busy.plan is not None
    assert busy.plan.feasible
    needs = busy.plan.replicas()[ASR]
    assert needs > 1
    assert ruled.goal[ASR] == 6 - needs
    assert [hold.detail for hold in ruled.holds if hold.reason is HoldReason.AWAITING_CAPACITY] == [
        "no capacity on gpu within Pool/gpu"
    ]


def test_of_two_floors_the_one_of_the_more_important_pipeline_is_filled_first() -> None:
    low, high = decided(
        one_stage("a", demand=5.0, floor=4, priority=1), one_stage("b", demand=5.0, floor=4, priority=2), instances=6
    )
    assert (low.goal[ASR], high.goal[ASR]) == (2, 4)


def test_a_saving_below_the_tolerance_is_not_taken_beside_a_floor_either() -> None:
    """The floor is most of the cost: one replica of the vad is less than a tenth of it."""
    spec = a_spec(*default_stages(vad_rules=[a_rule()]), scaling=a_scaling(tolerance=0.1))
    memory = PipelineMemory(demand=10.0, rules={(StageName("vad"), "busy"): RuleMemory(floor=7, fired=True)})
    (pipeline,) = decided(a_state(spec, demand=10.0, replicas={VAD: 8, ENCODER: 1}, memory=memory))
    assert not pipeline.changes
    assert HoldReason.WITHIN_TOLERANCE in {hold.reason for hold in pipeline.holds}


def test_a_large_fleet_that_is_planned_in_turns_has_floors_in_its_plans_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.core.cycle.AT_ONCE", 1)
    ruled, _ = decided(one_stage("a", demand=5.0, floor=6), one_stage("b", demand=5.0))
    assert ruled.plan is not None
    assert ruled.plan.replicas()[ASR] == 6
    assert ruled.planned is not None
    assert ruled.planned.plan.replicas()[ASR] == 1, "the plan of the turn is kept without it"
