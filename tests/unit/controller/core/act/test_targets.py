"""The aim of a cycle: tolerance, floors, steps and bounds, with the reason for each change."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
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

from controller.core.act.targets import Aim, find_aims, late
from controller.core.assess.assessment import assess
from controller.core.assess.availability import find_availability
from controller.core.cycle import decide
from controller.core.plan.fleet import plan_fleet
from controller.core.state.carry_over import DemandSample, PipelineMemory, PoolMemory, RuleMemory
from controller.core.state.decision import ChangeReason, HoldReason
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, TargetState
from controller.core.state.spec import PlacementKey
from optimizer.model import StageName
from optimizer.plan import Limit, LimitKind
from profiler.samples import Absence, AbsenceReason
from profiler.stages import Learned

RUNNING = {VAD: 4, ENCODER: 4}
MISSING = Absence(reason=AbsenceReason.MISSING)
SLA_S = 0.3


def aimed(state: PipelineState, policy: Policy | None = None) -> Aim:
    snapshot, policy = a_snapshot(state), policy or Policy()
    availability = find_availability(snapshot)
    assessment = assess(state, snapshot, availability, policy)
    fleet = plan_fleet([assessment], snapshot.pools, policy)
    return find_aims([assessment], fleet, snapshot, policy)[assessment.key]


def changed(aim: Aim, before: Mapping[PlacementKey, int] = RUNNING) -> Mapping[PlacementKey, int]:
    return {key: count for key, count in aim.target.items() if count != before.get(key, 0)}


def holds(aim: Aim) -> set[HoldReason]:
    return {hold.reason for hold in aim.holds}


def test_a_saving_below_the_tolerance_changes_nothing(planner: Planner) -> None:
    planner.wants({VAD: 3, ENCODER: 4}, runs_well=True)
    aim = aimed(a_state(a_spec(scaling=a_scaling(tolerance=0.1)), replicas=RUNNING))
    assert not changed(aim)
    assert not aim.follows_plan
    assert aim.wanted[VAD] == 3
    assert holds(aim) == {HoldReason.WITHIN_TOLERANCE}


def test_a_larger_saving_is_taken_for_its_cost(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 2}, runs_well=True)
    aim = aimed(a_state(replicas=RUNNING))
    assert changed(aim) == {ENCODER: 2}
    assert aim.reasons == {ENCODER: ChangeReason.COST}


def test_the_step_limit_bounds_the_target_and_not_the_final_aim(planner: Planner) -> None:
    planner.wants({VAD: 20, ENCODER: 4})
    aim = aimed(a_state(a_spec(scaling=a_scaling(up=4)), replicas=RUNNING))
    assert (aim.target[VAD], aim.final[VAD]) == (8, 20)
    assert holds(aim) == {HoldReason.STEP_LIMITED}


def test_while_the_demand_is_missing_replicas_are_only_added(planner: Planner) -> None:
    planner.wants({VAD: 2, ENCODER: 6})
    memory = PipelineMemory(demand=50.0, samples=(DemandSample(t_s=NOW_S - 15, observed=50.0, forecast=50.0),))
    aim = aimed(a_state(demand=MISSING, replicas=RUNNING, memory=memory))
    assert changed(aim) == {ENCODER: 6}
    assert aim.reasons == {ENCODER: ChangeReason.METRICS_LOST}
    assert HoldReason.METRICS_MISSING in holds(aim)


@pytest.mark.parametrize(("before", "reason"), [(5.0, ChangeReason.DEMAND), (10.0, ChangeReason.SLA)])
def test_more_replicas_are_for_more_demand_or_for_the_sla(
    planner: Planner, before: float, reason: ChangeReason
) -> None:
    planner.wants({VAD: 4, ENCODER: 6})
    memory = PipelineMemory(demand=before, samples=(DemandSample(t_s=NOW_S - 15, observed=before, forecast=before),))
    assert aimed(a_state(demand=10.0, replicas=RUNNING, memory=memory)).reasons == {ENCODER: reason}


def test_a_floor_is_filled_with_current_replicas_before_new_ones(planner: Planner) -> None:
    planner.wants({VAD: 1, ENCODER: 4})
    rules = PipelineMemory(rules={(StageName("vad"), "busy"): RuleMemory(floor=6, fired=True)})
    aim = aimed(a_state(a_spec(*default_stages(vad_rules=[a_rule()])), replicas=RUNNING, memory=rules))
    assert aim.planned[VAD] == 1
    assert changed(aim) == {VAD: 6}
    assert aim.reasons[VAD] is ChangeReason.RULE


def test_an_sla_that_no_plan_meets_keeps_the_current_replicas(planner: Planner) -> None:
    planner.wants({VAD: 1, ENCODER: 1})
    planner.served, planner.limited_by = 0.0, Limit(kind=LimitKind.SLA)
    aim = aimed(a_state(replicas=RUNNING))
    assert not changed(aim)
    assert HoldReason.SLA_UNREACHABLE in holds(aim)


def test_above_the_fleets_cap_the_tolerance_does_not_count(planner: Planner) -> None:
    planner.wants({VAD: 3, ENCODER: 4}, runs_well=True)
    state = a_state(a_spec(scaling=a_scaling(tolerance=0.9)), replicas=RUNNING)
    assert changed(aimed(state, Policy(budget_per_hour=4.0))) == {VAD: 3}


def test_only_a_measured_latency_is_late() -> None:
    for latency_s, expected in ((None, False), (0.4, False), (0.6, True), (MISSING, False)):
        state = replace(a_state(replicas=RUNNING), latency_s=latency_s)
        snapshot = a_snapshot(state)
        assert late(assess(state, snapshot, find_availability(snapshot), Policy())) is expected


def test_the_plan_lists_every_placement(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    aim = aimed(a_state(replicas=RUNNING))
    assert aim.planned == {VAD: 4, ENCODER: 4, ENCODER_GPU: 0}


def test_replicas_that_are_in_time_only_without_the_overhead_are_not_good_enough() -> None:
    spec = a_spec(sla_s=SLA_S)
    state = replace(a_state(spec, demand=60.0), memory=PipelineMemory(demand=60.0))
    plan = aimed(state).planned
    enough = a_state(spec, demand=60.0, replicas=plan, memory=PipelineMemory(demand=60.0))
    assert not changed(aimed(enough), plan)

    gateway = PipelineMemory(demand=60.0, learned=Learned(overhead_s=0.6 * SLA_S))
    aim = aimed(replace(enough, memory=gateway))
    grown = changed(aim, plan)
    assert grown
    assert all(count > plan[key] for key, count in grown.items())
    assert set(aim.reasons.values()) == {ChangeReason.SLA}


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
    fleet = {**default_pools(), ENCODER[1]: a_pool("inferentia", memory=outage)}
    snapshot = a_snapshot(beside_an_outage({VAD: 4, ENCODER_GPU: 4}, demand=demand), fleet=fleet)
    (decision,) = decide(snapshot, Policy()).pipelines
    assert [(change.pool, change.reason) for change in decision.changes] == [("gpu", reason)]


def test_replicas_that_leave_the_failed_pool_and_their_replacements_have_its_reason(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER_GPU: 4})
    outage = PoolMemory(unavailable_until_s=NOW_S + 200, backoff_s=300.0, reason="pod-0: no nodes")
    fleet = {**default_pools(), ENCODER[1]: a_pool("inferentia", memory=outage)}
    lost = a_target(4, ready=0, pending_since_s=[NOW_S - 400] * 4)
    (decision,) = decide(
        a_snapshot(beside_an_outage({VAD: 4, ENCODER: lost}, demand=20.0), fleet=fleet), Policy()
    ).pipelines
    assert {change.pool: change.reason for change in decision.changes} == {
        "inferentia": ChangeReason.POOL,
        "gpu": ChangeReason.POOL,
    }
