"""While replicas start, streams that no stage has a slot for are turned away at the door instead of let in and lost."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders import (
    ENCODER,
    ENCODER_GPU,
    NOW_S,
    VAD,
    a_placement,
    a_pool,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    a_target,
    pools,
)
from explained import explain
from planning import Planner

from controller.core.cycle import decide
from controller.core.messages.conditions import conditions
from controller.core.messages.events import events
from controller.core.state.carry_over import DemandSample, PipelineMemory
from controller.core.state.decision import HoldReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import TargetMissing, TargetState
from controller.core.state.spec import ColdStart, DemandUnit, Mode, PipelineSpec
from optimizer.model import PlacementKey, pool_of
from optimizer.plan import Limit, LimitKind

SLOTS = {VAD: None, ENCODER: 10, ENCODER_GPU: 40}
INTERVAL_S = Policy().interval_s


def of_streams(startup_s: float = 0.0) -> PipelineSpec:
    """vad holds any number of streams, a replica of the encoder 10 or 40."""
    spec = a_spec()
    stages = tuple(
        replace(
            stage,
            placements=tuple(
                replace(
                    placement,
                    startup_s=startup_s,
                    prior=replace(placement.prior, session_slots=SLOTS[stage.name, placement.name]),
                )
                for placement in stage.placements
            ),
        )
        for stage in spec.stages
    )
    return replace(spec, unit=DemandUnit.STREAMS, chunk_s=1.0, stages=stages)


def decided(
    planner: Planner,
    replicas: Mapping[PlacementKey, int | TargetState | TargetMissing],
    *,
    spec: PipelineSpec | None = None,
    demand: float = 60.0,
) -> PipelineDecision:
    planner.wants({VAD: 4, ENCODER: 6})
    state = a_state(spec or of_streams(), demand=demand, replicas={VAD: 4, **replicas})
    return decide(a_snapshot(state), Policy()).pipelines[0]


def test_as_many_are_admitted_as_find_a_slot_in_what_serves(planner: Planner) -> None:
    assert decided(planner, {ENCODER: a_target(6, ready=2)}).admissible == 20
    assert decided(planner, {ENCODER: a_target(6, ready=2), ENCODER_GPU: 1}, demand=59.0).admissible is None


def test_replicas_that_this_cycle_asks_for_are_on_their_way(planner: Planner) -> None:
    decision = decided(planner, {ENCODER: 2})
    assert decision.desired[ENCODER] == 6
    assert decision.admissible == 20


def test_nobody_is_turned_away_when_nothing_starts(planner: Planner) -> None:
    assert decided(planner, {ENCODER: 6}, demand=600.0).admissible is None


def test_replicas_on_their_way_out_hold_their_streams(planner: Planner) -> None:
    assert decided(planner, {ENCODER: a_target(6, ready=2, terminating=1)}).admissible == 30


@pytest.mark.parametrize(
    ("ready_in_s", "admissible"), [(0.4 * INTERVAL_S, 30), (0.6 * INTERVAL_S, 20), (-10.0, 30), (-60.0, 20)]
)
def test_what_will_soon_have_started_counts(planner: Planner, ready_in_s: float, admissible: float) -> None:
    starting = a_target(6, existing=3, ready=2, starting_since_s=[NOW_S + ready_in_s - 45])
    assert decided(planner, {ENCODER: starting}, spec=of_streams(startup_s=45)).admissible == admissible


def test_what_starts_before_a_stream_gives_up_counts(planner: Planner) -> None:
    starting = a_target(6, existing=3, ready=2, starting_since_s=[NOW_S - 25])
    spec = of_streams(startup_s=45)
    assert decided(planner, {ENCODER: starting}, spec=spec).admissible == 20
    patient = replace(spec, sla=replace(spec.sla, latency_s=2.5))
    assert decided(planner, {ENCODER: starting}, spec=patient).admissible == 30


def test_a_stage_without_slots_refuses_nobody(planner: Planner) -> None:
    assert decided(planner, {VAD: a_target(4, ready=0), ENCODER: 6}, demand=59.0).admissible is None


def test_a_stage_with_slots_of_which_nothing_serves_has_none(planner: Planner) -> None:
    assert decided(planner, {ENCODER: a_target(6, ready=0)}).admissible == 0


def test_a_node_that_is_not_ready_for_a_moment_turns_nobody_away(planner: Planner) -> None:
    stranded = a_target(6, ready=0, stranded_since_s=[NOW_S] * 6)
    assert decided(planner, {ENCODER: stranded}, demand=59.0).admissible is None


def test_what_cannot_be_read_turns_nobody_away(planner: Planner) -> None:
    unread = TargetMissing(reason="the API server did not answer", unreadable=True)
    assert decided(planner, {ENCODER: a_target(6, ready=2), ENCODER_GPU: unread}).admissible is None
    gone = TargetMissing(reason="there is no such Deployment")
    assert decided(planner, {ENCODER: gone, ENCODER_GPU: gone}).admissible is None
    assert decided(planner, {ENCODER: a_target(6, ready=2), ENCODER_GPU: gone}).admissible == 20


def test_requests_wait_for_no_slot(planner: Planner) -> None:
    spec = replace(of_streams(), unit=DemandUnit.REQUESTS, chunk_s=None)
    assert decided(planner, {ENCODER: a_target(6, ready=2)}, spec=spec).admissible is None


def test_the_smaller_of_plan_and_slots_is_published_and_the_plans_remembered(planner: Planner) -> None:
    planner.served, planner.limited_by = 0.9, Limit(kind=LimitKind.BUDGET)
    decision = decided(planner, {ENCODER: a_target(6, ready=2)}, demand=30.0)
    assert decision.admissible == pytest.approx(20, rel=0.06)
    assert decision.memory.admissible == pytest.approx(27, rel=0.02), "where the search for a share begins"
    assert decided(planner, {ENCODER: a_target(6, ready=5)}, demand=30.0).admissible == pytest.approx(27, rel=0.02)


def of_requests(planner: Planner, ready: int, *, served: float) -> float | None:
    """A replica of the encoder carries 20 requests a second at most."""
    planner.served, planner.limited_by = served, Limit(kind=LimitKind.BUDGET) if served < 1 else None
    spec = replace(of_streams(), unit=DemandUnit.REQUESTS, chunk_s=None)
    return decided(planner, {ENCODER: a_target(ready)}, spec=spec, demand=150.0).admissible


def test_where_some_are_shed_anyway_no_more_are_admitted_than_what_serves_carries(planner: Planner) -> None:
    admitted = of_requests(planner, 2, served=0.5)
    assert admitted is not None
    assert 10 < admitted < 40
    assert of_requests(planner, 6, served=0.5) == pytest.approx(75, rel=0.02), "what the plan wants serves"


def test_what_is_published_does_not_move_with_the_share_of_the_plan(planner: Planner) -> None:
    assert of_requests(planner, 2, served=0.5) == of_requests(planner, 2, served=0.51)


def test_where_nothing_is_to_come_the_plan_stands(planner: Planner) -> None:
    planner.served, planner.limited_by = 0.5, Limit(kind=LimitKind.BUDGET)
    spec = replace(of_streams(), unit=DemandUnit.REQUESTS, chunk_s=None, mode=Mode.RECOMMEND)
    assert decided(planner, {ENCODER: 2}, spec=spec, demand=150.0).admissible == pytest.approx(75, rel=0.02)


def test_where_the_plan_serves_all_no_model_turns_anybody_away(planner: Planner) -> None:
    assert of_requests(planner, 2, served=1.0) is None


def test_where_nothing_would_be_in_time_the_plan_stands(planner: Planner) -> None:
    assert of_requests(planner, 0, served=0.5) == pytest.approx(75, rel=0.02)


def test_explain_says_until_when(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 6})
    state = a_state(of_streams(), demand=60.0, replicas={VAD: 4, ENCODER: a_target(6, ready=2)})
    words = "\n".join(explain(decide(a_snapshot(state), Policy()), state.spec.key))
    assert "until pending replicas are ready, the ingress admits 20 streams" in words


class TestColdStart:
    """`scaling.coldStart`: what meets the load of a pipeline that was scaled to zero."""

    def spec(self, cold_start: ColdStart | None) -> PipelineSpec:
        scaling = replace(a_spec().scaling, idle_after_s=60.0, cold_start=cold_start)
        scaling = replace(scaling, down=replace(scaling.down, stabilization_s=0.0))
        return replace(of_streams(), scaling=scaling)

    def first(self, cold_start: ColdStart | None, replicas: Mapping[PlacementKey, TargetState]) -> PipelineDecision:
        """Return the decision for 3 streams, where `replicas` start."""
        state = a_state(self.spec(cold_start), demand=3.0, replicas=replicas)
        return decide(a_snapshot(state), Policy()).pipelines[0]

    def asleep(self, cold_start: ColdStart | None) -> PipelineDecision:
        sample = DemandSample(t_s=NOW_S - 15, observed=0.0, forecast=0.0)
        memory = PipelineMemory(demand=0.0, samples=(sample,), idle_since_s=NOW_S - 90)
        return decide(a_snapshot(a_state(self.spec(cold_start), demand=0.0, memory=memory)), Policy()).pipelines[0]

    @pytest.mark.parametrize(("cold_start", "limit"), [(ColdStart.WAIT, None), (ColdStart.REFUSE, 0.0), (None, None)])
    def test_at_zero_the_next_stream_waits_or_is_refused(
        self, cold_start: ColdStart | None, limit: float | None
    ) -> None:
        decision = self.asleep(cold_start)
        assert set(decision.desired.values()) == {0}
        assert decision.admissible == limit
        shedding = next(condition for condition in conditions(decision) if condition.type == "Shedding")
        assert shedding.status == str(limit is not None)
        assert shedding.reason == ("NoLimit" if limit is None else "ScaledToZero")

    @pytest.mark.parametrize(("cold_start", "limit"), [(ColdStart.WAIT, None), (ColdStart.REFUSE, 0.0), (None, 0.0)])
    def test_while_the_first_replicas_start_streams_wait_or_are_refused(
        self, cold_start: ColdStart | None, limit: float | None
    ) -> None:
        starting = {VAD: a_target(1, ready=0), ENCODER: a_target(1, ready=0)}
        assert self.first(cold_start, starting).admissible == limit
        assert self.first(cold_start, {}).admissible == limit

    def test_once_every_stage_has_a_replica_its_free_slots_count(self) -> None:
        ready = {VAD: a_target(1), ENCODER: a_target(2, ready=1)}
        for cold_start in ColdStart:
            few = decide(a_snapshot(a_state(self.spec(cold_start), demand=15.0, replicas=ready)), Policy()).pipelines[0]
            assert few.admissible == 10, "one replica of the encoder is ready"


def test_where_nothing_sheds_no_limit_is_published_and_plans_are_for_all_of_the_load() -> None:
    spec = a_spec(a_stage("asr", a_placement("gpu", service_s=0.05, bounds=(0, 60))), sla_s=0.2, budget=8.0)
    fleet = pools(a_pool("gpu", price=1.0, instances=60, ready=60))
    key = next(iter(spec.placement_keys()))

    def of(demand: float, *, sheds: bool) -> PipelineDecision:
        state = a_state(replace(spec, sheds=sheds), demand=demand, replicas={key: 1})
        return decide(a_snapshot(state, fleet=fleet), Policy()).pipelines[0]

    obeyed, ignored = of(120.0, sheds=True), of(120.0, sheds=False)
    assert obeyed.plan is not None
    assert ignored.plan is not None
    assert obeyed.admissible is not None
    assert ignored.admissible is None
    assert ignored.plan.served_fraction == obeyed.plan.served_fraction < 1, "the status says what the SLA allows"
    assert ignored.unconstrained[key] == 8, "all that the budget allows, for a latency that is a little longer"
    condition = next(each for each in conditions(ignored) if each.type == "Shedding")
    assert (condition.status, condition.reason) == ("False", "NothingSheds")
    assert condition.message.startswith("demand.admission is None: planned for all of 12")
    assert HoldReason.SLA_UNREACHABLE not in {hold.reason for hold in ignored.holds}
    # Beyond any capacity the plan serves as much as it can.
    assert of(600.0, sheds=False).unconstrained[key] == 8


def test_where_nothing_sheds_slow_hardware_carries_what_fast_hardware_cannot_within_the_budget() -> None:
    """Only the GPU meets the SLA, and the budget buys too little of it; the CPU carries all of the load, too slowly."""
    fast = a_placement("gpu", service_s=0.05, bounds=(0, 60))
    slow = a_placement("cpu", service_s=0.12, bounds=(0, 60))
    spec = a_spec(a_stage("asr", fast, slow), sla_s=0.2, budget=8.0)
    fleet = pools(a_pool("gpu", price=1.0, instances=60, ready=60), a_pool("cpu", price=0.3, instances=60, ready=60))
    rates = {placement.pool: 1 / placement.prior.service.fixed_s for placement in (fast, slow)}

    def carried(*, sheds: bool) -> float:
        state = a_state(replace(spec, sheds=sheds), demand=190.0, replicas=dict.fromkeys(spec.placement_keys(), 1))
        decision = decide(a_snapshot(state, fleet=fleet), Policy(advice=False)).pipelines[0]
        assert decision.plan is not None
        assert not decision.plan.feasible
        return sum(count * rates[pool_of(key[1])] for key, count in decision.unconstrained.items())

    assert carried(sheds=True) < 190.0 < carried(sheds=False)


def test_shedding_is_a_condition_and_an_event_at_its_begin_and_its_end(planner: Planner) -> None:
    decision = decided(planner, {ENCODER: a_target(6, ready=2)})
    condition = next(each for each in conditions(decision) if each.type == "Shedding")
    assert (condition.status, condition.reason) == ("True", "ReplicasStarting")
    assert condition.message == (
        "the ingress admits 20 requests/s of the planned 60 requests/s: until pending replicas are ready".replace(
            "requests/s", "streams"
        )
    )
    (begun,) = (event for event in events(decision, {"Shedding": "False"}) if "Shedding" in event.reason)
    assert (begun.warning, begun.reason) == (True, "Shedding")
    over = decided(planner, {ENCODER: 6})
    (ended,) = (event for event in events(over, {"Shedding": "True"}) if "Shedding" in event.reason)
    assert (ended.warning, ended.reason) == (False, "SheddingEnded")
    assert not [event for event in events(decision, {"Shedding": "True"}) if "Shedding" in event.reason]
