"""The goal of a cycle: tolerance, floors, steps and bounds, with the reason for each change."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from bounded import bounded
from builders import (
    ENCODER,
    ENCODER_GPU,
    NOW_S,
    VAD,
    a_pool,
    a_rule,
    a_scaling,
    a_snapshot,
    a_spec,
    a_state,
    a_target,
    default_pools,
    default_stages,
)
from planning import Planner

from controller.core.bounds.measured_miss import late
from controller.core.cycle import decide
from controller.core.state.carry_over import DemandSample, PipelineMemory, PoolMemory, RuleMemory
from controller.core.state.decision import ChangeReason, HoldReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, TargetState
from optimizer.model import PlacementKey, StageName, pool_of
from optimizer.plan import Limit, LimitKind
from profiler.samples import Absence, AbsenceReason
from profiler.stages import Learned

RUNNING = {VAD: 4, ENCODER: 4}
MISSING = Absence(reason=AbsenceReason.MISSING)
SLA_S = 0.3


def went(state: PipelineState, policy: Policy | None = None) -> PipelineDecision:
    return decide(a_snapshot(state), policy or Policy()).pipelines[0]


def changed(decision: PipelineDecision) -> Mapping[PlacementKey, int]:
    return {(change.stage, change.placement): change.after for change in decision.changes}


def reasons(decision: PipelineDecision) -> Mapping[PlacementKey, ChangeReason]:
    return {(change.stage, change.placement): change.reason for change in decision.changes}


def holds(decision: PipelineDecision) -> set[HoldReason]:
    return {hold.reason for hold in decision.holds}


def test_a_saving_below_the_tolerance_changes_nothing(planner: Planner) -> None:
    planner.wants({VAD: 3, ENCODER: 4}, runs_well=True)
    decision = went(a_state(a_spec(scaling=a_scaling(tolerance=0.1)), replicas=RUNNING))
    assert not changed(decision)
    assert decision.unconstrained[VAD] == 3
    assert holds(decision) == {HoldReason.WITHIN_TOLERANCE}


def test_a_larger_saving_is_taken_for_its_cost(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 2}, runs_well=True)
    decision = went(a_state(replicas=RUNNING))
    assert changed(decision) == {ENCODER: 2}
    assert reasons(decision) == {ENCODER: ChangeReason.COST}


def test_the_step_limit_bounds_the_change_and_not_the_plan(planner: Planner) -> None:
    planner.wants({VAD: 20, ENCODER: 4})
    decision = went(a_state(a_spec(scaling=a_scaling(up=4)), replicas=RUNNING))
    assert (decision.desired[VAD], decision.unconstrained[VAD]) == (8, 20)
    assert holds(decision) == {HoldReason.STEP_LIMITED}


def test_while_the_demand_is_missing_replicas_are_only_added(planner: Planner) -> None:
    planner.wants({VAD: 2, ENCODER: 6})
    memory = PipelineMemory(demand=50.0, samples=(DemandSample(t_s=NOW_S - 15, observed=50.0, forecast=50.0),))
    decision = went(a_state(demand=MISSING, replicas=RUNNING, memory=memory))
    assert changed(decision) == {ENCODER: 6}
    assert reasons(decision) == {ENCODER: ChangeReason.METRICS_LOST}
    assert HoldReason.METRICS_MISSING in holds(decision)


@pytest.mark.parametrize(("before", "reason"), [(5.0, ChangeReason.DEMAND), (10.0, ChangeReason.SLA)])
def test_more_replicas_are_for_more_demand_or_for_the_sla(
    planner: Planner, before: float, reason: ChangeReason
) -> None:
    planner.wants({VAD: 4, ENCODER: 6})
    memory = PipelineMemory(demand=before, samples=(DemandSample(t_s=NOW_S - 15, observed=before, forecast=before),))
    assert reasons(went(a_state(demand=10.0, replicas=RUNNING, memory=memory))) == {ENCODER: reason}


def test_a_floor_is_filled_with_current_replicas_before_new_ones(planner: Planner) -> None:
    planner.wants({VAD: 1, ENCODER: 4})
    rules = PipelineMemory(rules={(StageName("vad"), "busy"): RuleMemory(floor=6, fired=True)})
    decision = went(a_state(a_spec(*default_stages(vad_rules=[a_rule()])), replicas=RUNNING, memory=rules))
    assert changed(decision) == {VAD: 6}
    assert reasons(decision)[VAD] is ChangeReason.RULE
    assert decision.unconstrained[VAD] == 6, "the plan has what will be done"


def test_an_sla_that_no_plan_meets_keeps_the_current_replicas(planner: Planner) -> None:
    planner.wants({VAD: 1, ENCODER: 1})
    planner.served, planner.limited_by = 0.0, Limit(kind=LimitKind.SLA)
    decision = went(a_state(replicas=RUNNING))
    assert not changed(decision)
    assert HoldReason.SLA_UNREACHABLE in holds(decision)


def test_above_the_fleets_cap_the_tolerance_does_not_count(planner: Planner) -> None:
    planner.wants({VAD: 3, ENCODER: 4}, runs_well=True)
    state = a_state(a_spec(scaling=a_scaling(tolerance=0.9)), replicas=RUNNING)
    assert changed(went(state, Policy(budget_per_hour=4.0))) == {VAD: 3}


def test_only_a_measured_latency_is_late() -> None:
    for latency_s, expected in ((None, False), (0.4, False), (0.6, True), (MISSING, False)):
        state = replace(a_state(replicas=RUNNING), latency_s=latency_s)
        assert late(bounded(state)) is expected


def test_the_plan_lists_every_placement(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    assert went(a_state(replicas=RUNNING)).unconstrained == {VAD: 4, ENCODER: 4, ENCODER_GPU: 0}


def test_replicas_that_are_in_time_only_without_the_overhead_are_not_good_enough() -> None:
    spec = a_spec(sla_s=SLA_S)
    state = replace(a_state(spec, demand=60.0), memory=PipelineMemory(demand=60.0))
    plan = went(state).unconstrained
    enough = a_state(spec, demand=60.0, replicas=plan, memory=PipelineMemory(demand=60.0))
    assert not went(enough).changes

    gateway = PipelineMemory(demand=60.0, learned=Learned(overhead_s=0.6 * SLA_S))
    decision = went(replace(enough, memory=gateway))
    grown = changed(decision)
    assert grown
    assert all(count > plan[key] for key, count in grown.items())
    assert set(reasons(decision).values()) == {ChangeReason.SLA}


def beside_an_outage(replicas: Mapping[PlacementKey, int | TargetState], **state: Any) -> PipelineState:
    """A pipeline whose encoder has its replicas on the GPU, while the pool inferentia cannot deliver."""
    memory = PipelineMemory(demand=10.0, samples=(DemandSample(t_s=NOW_S - 900, observed=10.0, forecast=10.0),))
    return a_state(a_spec(scaling=a_scaling(down_s=0.0)), replicas=replicas, **{"memory": memory, **state})


@pytest.mark.parametrize(
    ("demand", "wanted", "reason"),
    [
        (5.0, {VAD: 4, ENCODER_GPU: 2}, ChangeReason.DEMAND),
        (10.0, {VAD: 4, ENCODER_GPU: 2}, ChangeReason.COST),
        (20.0, {VAD: 4, ENCODER_GPU: 6}, ChangeReason.DEMAND),
        (10.0, {VAD: 4, ENCODER_GPU: 6}, ChangeReason.POOL),
    ],
)
def test_a_change_on_the_healthy_pool_has_its_own_reason(
    planner: Planner, demand: float, wanted: Mapping[PlacementKey, int], reason: ChangeReason
) -> None:
    planner.wants(wanted)
    outage = PoolMemory(unavailable_until_s=NOW_S + 200, backoff_s=300.0, reason="pod-0: no nodes")
    fleet = {**default_pools(), pool_of(ENCODER[1]): a_pool("inferentia", memory=outage)}
    snapshot = a_snapshot(beside_an_outage({VAD: 4, ENCODER_GPU: 4}, demand=demand), fleet=fleet)
    (decision,) = decide(snapshot, Policy()).pipelines
    assert [(change.placement, change.reason) for change in decision.changes] == [("gpu", reason)]


def test_replicas_that_leave_the_failed_pool_and_their_replacements_have_its_reason(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER_GPU: 4})
    outage = PoolMemory(unavailable_until_s=NOW_S + 200, backoff_s=300.0, reason="pod-0: no nodes")
    fleet = {**default_pools(), pool_of(ENCODER[1]): a_pool("inferentia", memory=outage)}
    lost = a_target(4, ready=0, pending_since_s=[NOW_S - 400] * 4)
    (decision,) = decide(
        a_snapshot(beside_an_outage({VAD: 4, ENCODER: lost}, demand=20.0), fleet=fleet), Policy()
    ).pipelines
    assert {change.placement: change.reason for change in decision.changes} == {
        "inferentia": ChangeReason.POOL,
        "gpu": ChangeReason.POOL,
    }
