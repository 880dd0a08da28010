"""The sentences of the interface about money, precedence, scaling, modes and overload, as decisions."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import sharing
from builders import (
    ENCODER,
    ENCODER_GPU,
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
    a_target,
    applied,
    default_pools,
    default_stages,
    pools,
    seen,
)
from planning import Planner

from controller.core.cycle import decide
from controller.core.messages.conditions import conditions
from controller.core.messages.explain import explain_pipeline, reason_sentence
from controller.core.messages.summary import summary
from controller.core.state.carry_over import DemandSample, MetricsLoss, PipelineMemory, PoolMemory, RuleMemory
from controller.core.state.decision import ChangeReason, HoldReason, MetricsUse, Outcome, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, Snapshot, TargetMissing
from controller.core.state.spec import Mode, PipelineSpec, StageSpec
from optimizer.model import PlacementKey, PoolName, StageName
from optimizer.plan import Limit, LimitKind
from profiler.samples import Absence, AbsenceReason, MetricsTier, PlacementSamples
from profiler.season import DemandHistory, packed, period_before

MISSING = Absence(reason=AbsenceReason.MISSING)
BLIND = PlacementSamples(readings={})


def decided(state: PipelineState, policy: Policy | None = None, **world: object) -> PipelineDecision:
    return decide(a_snapshot(state, **world), policy or Policy()).pipelines[0]  # type: ignore[arg-type]


def moves(decision: PipelineDecision) -> Mapping[PlacementKey, tuple[int, int]]:
    return {(change.stage, change.placement): (change.before, change.after) for change in decision.changes}


def holds(decision: PipelineDecision) -> set[HoldReason]:
    return {hold.reason for hold in decision.holds}


class TestMoney:
    def test_spend_is_the_greater_of_desired_and_existing_terminating_ones_included(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 2})
        state = a_state(replicas={VAD: 4, ENCODER: a_target(2, existing=2, terminating=3)})
        # vad 4 × $0.5/4, encoder (2 + 3) × $1
        assert decided(state).spend_per_hour == pytest.approx(5.5)

    def test_replicas_on_their_way_out_leave_no_room_for_new_ones(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 5})
        state = a_state(a_spec(budget=5.5), replicas={VAD: 4, ENCODER: a_target(2, terminating=2)})
        decision = decided(state)
        assert moves(decision) == {ENCODER: (2, 3)}
        assert HoldReason.AWAITING_CAPACITY in holds(decision)

    def test_what_is_kept_away_for_longer_than_a_start_up_is_not_served_and_the_status_says_so(
        self, planner: Planner
    ) -> None:
        planner.wants({VAD: 4, ENCODER: 5})
        state = a_state(a_spec(budget=5.5), demand=100.0, replicas={VAD: 4, ENCODER: a_target(2, terminating=3)})
        longest_s = max(each.startup_s for each in state.spec.placements().values())
        seen = []
        for later_s in (0.0, longest_s / 2, longest_s + 15.0):
            decision = decided(state, now_s=NOW_S + later_s)
            plan = decision.plan
            assert plan is not None
            assert not decision.changes
            seen.append((summary(decision)["health"] == "Overloaded", plan.served_fraction < 1))
            state = replace(state, memory=decision.memory)
        assert seen == [(False, False), (False, False), (True, True)]
        assert plan is not None
        assert plan.limited_by == Limit(kind=LimitKind.BUDGET)
        assert decision.admissible is not None
        assert 0 < decision.admissible < 100.0
        gone = replace(state, targets={**state.targets, ENCODER: a_target(2)})
        decision = decided(gone, now_s=NOW_S + longest_s + 30.0)
        assert decision.changes
        assert decision.plan is not None
        assert decision.plan.served_fraction == 1.0

    def test_a_move_whose_overlap_does_not_fit_under_the_cap_is_made_in_steps_that_fit(self, planner: Planner) -> None:
        spec = a_spec(budget=6.2)
        planner.wants({VAD: 1, ENCODER_GPU: 3})
        snapshot = a_snapshot(a_state(spec, replicas={VAD: 1, ENCODER: 6}))
        seen_spend, carried = [], []
        for _ in range(12):
            decision = decide(snapshot, Policy())
            seen_spend.append(decision.pipelines[0].spend_per_hour)
            carried.append(snapshot.pipelines[0].desired(*ENCODER) + 2 * snapshot.pipelines[0].desired(*ENCODER_GPU))
            snapshot = applied(snapshot, decision)
        state = snapshot.pipelines[0]
        assert (state.desired(*ENCODER), state.desired(*ENCODER_GPU)) == (0, 3)
        assert max(seen_spend) <= 6.2
        assert min(carried) >= 4

    @pytest.mark.parametrize("fleet_wide", [False, True])
    def test_above_the_cap_it_reduces_at_once_whatever_steps_and_tolerance_and_rules_say(
        self, planner: Planner, *, fleet_wide: bool
    ) -> None:
        planner.wants({VAD: 4, ENCODER: 2}, runs_well=True)
        spec = a_spec(
            *default_stages(vad_rules=[a_rule()]),
            budget=99 if fleet_wide else 4,
            scaling=a_scaling(down=1, tolerance=1),
        )
        memory = PipelineMemory(rules={(StageName("vad"), "busy"): RuleMemory(floor=40, fired=True)})
        state = a_state(spec, replicas={VAD: 8, ENCODER: 10}, memory=memory)
        decision = decided(state, Policy(budget_per_hour=4 if fleet_wide else None))
        assert decision.desired[ENCODER] * 1.0 + decision.desired[VAD] * 0.125 <= 4
        assert moves(decision) == {ENCODER: (10, 3)}, "what a rule asks for is within the cap"
        assert {change.reason for change in decision.changes} == {ChangeReason.BUDGET}

    def test_the_excess_is_excused_until_the_drain_and_two_cycles_after_it_began(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 2})
        state = a_state(a_spec(budget=4), replicas={VAD: 4, ENCODER: 10})
        first = decided(state)
        assert first.memory.excess_excused_until_s == NOW_S + 60 + 2 * 15
        draining = replace(state, targets={**state.targets, ENCODER: a_target(3, terminating=7)}, memory=first.memory)
        later = decided(draining, now_s=NOW_S + 15)
        assert later.memory.excess_excused_until_s == NOW_S + 60 + 2 * 15
        gone = replace(draining, targets={**state.targets, ENCODER: a_target(3)}, memory=later.memory)
        assert decided(gone, now_s=NOW_S + 45).memory.excess_excused_until_s is None

    def test_while_the_excess_drains_spend_does_not_rise(self, planner: Planner) -> None:
        planner.wants({VAD: 8, ENCODER: 3})
        state = a_state(a_spec(budget=4), replicas={VAD: 4, ENCODER: a_target(2, terminating=7)})
        assert not decided(state).changes

    def test_above_the_fleets_cap_the_lowest_priority_gives_first(self, planner: Planner) -> None:
        for name in ("low", "high"):
            planner.wants({VAD: 4, ENCODER: 2}, name=name)
        states = [
            a_state(a_spec(name=name, priority=priority), replicas={VAD: 4, ENCODER: 4})
            for name, priority in (("low", 1), ("high", 2))
        ]
        low, high = decide(a_snapshot(*states), Policy(budget_per_hour=7.0)).pipelines
        assert moves(low) == {ENCODER: (4, 2)}
        assert {change.reason for change in low.changes} == {ChangeReason.BUDGET}
        assert ChangeReason.BUDGET not in {change.reason for change in high.changes}


class TestPrecedence:
    def test_a_cap_goes_before_never_down_on_missing_data(self, planner: Planner) -> None:
        planner.wants({VAD: 1, ENCODER: 1})
        state = a_state(
            a_spec(budget=4), demand=MISSING, replicas={VAD: 4, ENCODER: 10}, memory=PipelineMemory(demand=10)
        )
        assert moves(decided(state)) == {ENCODER: (10, 3)}

    def test_on_missing_data_a_cap_takes_only_what_it_must(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 1})
        state = a_state(replicas={VAD: 4, ENCODER: 6}, samples={ENCODER: BLIND})
        assert moves(decided(state, Policy(budget_per_hour=5.0))) == {ENCODER: (6, 4)}

    def test_missing_data_goes_before_the_declared_maximum(self, planner: Planner) -> None:
        planner.wants({VAD: 1, ENCODER: 1})
        state = a_state(demand=MISSING, replicas={VAD: 30, ENCODER: 30}, memory=PipelineMemory(demand=10))
        assert not decided(state, fleet=pools(a_pool("cpu"), a_pool("inferentia", instances=60), a_pool("gpu"))).changes

    def test_without_demand_a_stage_still_gets_the_minimum_it_needs_to_begin(self, planner: Planner) -> None:
        planner.wants({VAD: 1, ENCODER: 1})
        decision = decided(a_state(demand=MISSING))
        assert moves(decision) == {VAD: (0, 1), ENCODER: (0, 1)}
        assert decision.demand.planned is None


class TestMissingData:
    def test_where_no_demand_was_ever_seen_nothing_changes_and_the_hold_says_so(self, planner: Planner) -> None:
        planner.wants({VAD: 9, ENCODER: 1})
        decision = decided(a_state(demand=MISSING, replicas={VAD: 4, ENCODER: 4}))
        assert decision.outcome is Outcome.HOLD
        assert decision.demand.planned is None
        assert HoldReason.METRICS_MISSING in holds(decision)

    def test_while_the_demand_is_lost_the_last_one_is_planned_for_and_nothing_goes_down(self, planner: Planner) -> None:
        planner.wants({VAD: 9, ENCODER: 1})
        state = a_state(demand=MISSING, replicas={VAD: 4, ENCODER: 4}, memory=PipelineMemory(demand=5.0))
        decision = decided(state)
        assert decision.demand.planned == 5.0
        assert moves(decision) == {VAD: (4, 9)}
        assert [change.reason for change in decision.changes] == [ChangeReason.METRICS_LOST]
        assert HoldReason.METRICS_MISSING in holds(decision)
        assert decision.metrics.tier is MetricsTier.HOLDING

    def test_what_may_have_grown_unseen_is_planned_for_more_and_more(self, planner: Planner) -> None:
        loss = MetricsLoss(since_s=NOW_S - 120, demand=10.0, growth_per_minute=0.05)
        planner.wants({VAD: 4, ENCODER: 4}, runs_well=True)
        decision = decided(a_state(demand=MISSING, memory=PipelineMemory(demand=10.5, metrics_lost=loss)))
        assert decision.demand.planned == pytest.approx(11.0)
        assert decision.metrics.margin == pytest.approx(1.1)
        assert decision.metrics.lost_for_s == 120.0
        assert decision.memory.metrics_lost == loss
        seen_again = decided(a_state(demand=10.0, memory=decision.memory))
        assert seen_again.metrics == MetricsUse()
        assert seen_again.memory.metrics_lost is None

    def test_a_blind_stage_lets_the_pipeline_go_up_but_not_down(self, planner: Planner) -> None:
        planner.wants({VAD: 2, ENCODER: 6})
        state = a_state(replicas={VAD: 4, ENCODER: 4}, samples={VAD: BLIND})
        decision = decided(state)
        assert moves(decision) == {ENCODER: (4, 6)}
        hold = next(hold for hold in decision.holds if hold.reason is HoldReason.METRICS_MISSING)
        assert hold.stage == "vad"

    def test_part_of_the_pods_is_not_enough_to_go_down(self, planner: Planner) -> None:
        planner.wants({VAD: 2, ENCODER: 2})
        partial = seen(arrival_rate=Absence(reason=AbsenceReason.PARTIAL))
        assert not decided(a_state(replicas={VAD: 4, ENCODER: 4}, samples={ENCODER: partial})).changes

    def test_a_stage_that_runs_nowhere_is_not_blind(self, planner: Planner) -> None:
        planner.wants({VAD: 2, ENCODER: 2})
        state = a_state(replicas={VAD: 4, ENCODER: 4}, samples={ENCODER_GPU: BLIND})
        assert moves(decided(state)) == {VAD: (4, 2), ENCODER: (4, 2)}

    def test_a_missing_target_stops_its_stage_and_every_decrease_while_other_stages_grow(
        self, planner: Planner
    ) -> None:
        planner.wants({VAD: 2, ENCODER: 8, ENCODER_GPU: 2})
        state = a_state(replicas={VAD: 4, ENCODER: 4, ENCODER_GPU: TargetMissing(reason="deployments not found")})
        assert not decided(state).changes
        planner.wants({VAD: 6, ENCODER: 8})
        decision = decided(state)
        assert moves(decision) == {VAD: (4, 6)}
        hold = next(hold for hold in decision.holds if hold.reason is HoldReason.TARGET_MISSING)
        assert "deployments not found" in hold.detail

    def test_a_pool_that_does_not_exist_holds_its_pipeline_alone(self, planner: Planner) -> None:
        planner.wants({VAD: 2, ENCODER: 2}, name="other")
        broken = a_state(a_spec(a_stage("vad", a_placement("trainium"))), replicas={})
        other = a_state(a_spec(name="other"), replicas={VAD: 1, ENCODER: 1})
        first, second = decide(a_snapshot(broken, other), Policy()).pipelines
        assert (first.outcome, holds(first)) == (Outcome.HOLD, {HoldReason.POOL_NOT_FOUND})
        assert moves(second) == {VAD: (1, 2), ENCODER: (1, 2)}


class TestTolerance:
    def test_a_saving_below_the_tolerance_is_left_alone(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 9}, runs_well=True)
        decision = decided(a_state(a_spec(scaling=a_scaling(tolerance=0.1)), replicas={VAD: 4, ENCODER: 10}))
        assert decision.outcome is Outcome.HOLD
        assert holds(decision) == {HoldReason.WITHIN_TOLERANCE}
        assert decision.unconstrained[ENCODER] == 9

    def test_a_saving_of_at_least_the_tolerance_is_made(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 8}, runs_well=True)
        decision = decided(a_state(a_spec(scaling=a_scaling(tolerance=0.1)), replicas={VAD: 4, ENCODER: 10}))
        assert moves(decision) == {ENCODER: (10, 8)}
        assert {change.reason for change in decision.changes} == {ChangeReason.COST}

    def test_what_would_miss_the_sla_is_changed_however_small_the_change(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 11})
        state = a_state(a_spec(scaling=a_scaling(tolerance=0.5)), replicas={VAD: 4, ENCODER: 10})
        for planner.latency_s in (None, 0.6):
            assert moves(decided(state)) == {ENCODER: (10, 11)}

    def test_a_plan_that_costs_the_same_is_no_reason_to_move(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 8}, runs_well=True)
        state = a_state(a_spec(scaling=a_scaling(tolerance=0)), replicas={VAD: 4, ENCODER: 4, ENCODER_GPU: 2})
        assert not decided(state).changes

    def test_a_minimum_above_what_runs_is_filled_without_regard_to_tolerance(self, planner: Planner) -> None:
        planner.wants({}, runs_well=True)
        stages = (
            a_stage("vad", a_placement("cpu", bounds=(3, 9))),
            a_stage("encoder", a_placement("inferentia", bounds=(1, 9)), after=["vad"]),
        )
        decision = decided(a_state(a_spec(*stages), replicas={VAD: 2, ENCODER: 1}))
        assert [(change.after, change.reason) for change in decision.changes] == [(3, ChangeReason.BOUNDS)]

    def test_a_model_that_makes_too_many_errors_is_left_whatever_the_tolerance(self, planner: Planner) -> None:
        planner.wants({VAD: 1, ENCODER_GPU: 4}, runs_well=True)
        vad, encoder = default_stages()
        poor = replace(encoder.placements[0], prior=replace(encoder.placements[0].prior, wer=0.2))
        spec = a_spec(vad, replace(encoder, placements=(poor, encoder.placements[1])))
        state = a_state(replace(spec, max_wer=0.1), replicas={VAD: 1, ENCODER: 4})
        assert moves(decided(state)) == {ENCODER_GPU: (0, 4)}

    def test_tolerance_keeps_nothing_that_another_pipeline_needs(self, planner: Planner) -> None:
        for name, replicas in (("rich", 4), ("poor", 2)):
            planner.wants({VAD: 4, ENCODER: replicas}, name=name, runs_well=True)
        spec = a_spec(name="rich", scaling=a_scaling(tolerance=0.9))
        rich, poor = a_state(spec, replicas={VAD: 4, ENCODER: 5}), a_state(a_spec(name="poor"), replicas={VAD: 4})
        fleet = pools(a_pool("cpu"), a_pool("inferentia", instances=6), a_pool("gpu"))
        first, second = decide(a_snapshot(rich, poor, fleet=fleet), Policy()).pipelines
        assert moves(first) == {ENCODER: (5, 4)}
        assert moves(second) == {ENCODER: (0, 1)}


class TestSteps:
    def test_a_stage_gains_and_loses_at_most_one_step_per_cycle(self, planner: Planner) -> None:
        planner.wants({VAD: 20, ENCODER: 1})
        spec = a_spec(scaling=a_scaling(up=4, down=2))
        decision = decided(a_state(spec, replicas={VAD: 3, ENCODER: 10}))
        # Up the larger of 100 % and 4, down the larger of 50 % and 2.
        assert moves(decision) == {VAD: (3, 7), ENCODER: (10, 5)}
        assert [hold.stage for hold in decision.holds if hold.reason is HoldReason.STEP_LIMITED] == ["vad", "encoder"]

    def test_steps_do_not_bind_a_fallback(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 2, ENCODER_GPU: 8})
        spec = a_spec(scaling=a_scaling(up=1))
        state = a_state(spec, replicas={VAD: 4, ENCODER: a_target(8, ready=2, pending_since_s=[NOW_S - 400] * 6)})
        decision = decided(state, fleet=default_pools(inferentia_ready=2))
        assert moves(decision) == {ENCODER: (8, 2), ENCODER_GPU: (0, 8)}
        assert {change.reason for change in decision.changes} == {ChangeReason.POOL}


class TestMakeBeforeBreak:
    def test_old_replicas_go_only_when_the_new_are_ready(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER_GPU: 2})
        snapshot = a_snapshot(a_state(replicas={VAD: 4, ENCODER: 4}))
        first = decide(snapshot, Policy())
        assert moves(first.pipelines[0]) == {ENCODER_GPU: (0, 2)}
        starting = applied(snapshot, first, ready=False)
        waiting = decide(starting, Policy()).pipelines[0]
        assert not waiting.changes
        assert HoldReason.AWAITING_CAPACITY in holds(waiting)
        state = starting.pipelines[0]
        half = replace(state, targets={**state.targets, ENCODER_GPU: a_target(2, ready=1)})
        # One gpu replica carries 2.5 times what one on inferentia does: three of the four may go... but not all.
        assert moves(decided(half)) == {ENCODER: (4, 3)}
        ready = replace(state, targets={**state.targets, ENCODER_GPU: a_target(2)})
        assert moves(decided(ready)) == {ENCODER: (4, 0)}

    def test_up_is_written_before_down(self, planner: Planner) -> None:
        planner.wants({VAD: 1, ENCODER: 4})
        decision = decided(a_state(replicas={VAD: 4, ENCODER: 1}))
        assert [change.stage for change in decision.changes] == ["encoder", "vad"]

    def test_a_full_pool_lets_a_stage_in_when_another_has_left(self, planner: Planner) -> None:
        stages = (a_stage("vad", a_placement("gpu")), a_stage("encoder", a_placement("gpu"), after=["vad"]))
        vad_gpu = (StageName("vad"), PoolName("gpu"))
        planner.wants({vad_gpu: 1, ENCODER_GPU: 3})
        snapshot = a_snapshot(
            a_state(a_spec(*stages), replicas={vad_gpu: 3, ENCODER_GPU: 1}), fleet=pools(a_pool("gpu", instances=4))
        )
        first = decide(snapshot, Policy())
        assert moves(first.pipelines[0]) == {vad_gpu: (3, 1)}
        assert moves(decide(applied(snapshot, first), Policy()).pipelines[0]) == {ENCODER_GPU: (1, 3)}


class TestModes:
    def test_recommend_decides_and_reports_but_changes_nothing(self, planner: Planner) -> None:
        planner.wants({VAD: 8, ENCODER: 8})
        decision = decided(a_state(a_spec(mode=Mode.RECOMMEND), replicas={VAD: 4, ENCODER: 4}))
        assert not decision.changes
        assert holds(decision) == {HoldReason.RECOMMEND_ONLY}
        assert decision.unconstrained[VAD] == 8
        assert decision.desired[VAD] == 4

    @pytest.mark.parametrize(
        ("wanted", "replicas", "demand", "budget"),
        [
            ({VAD: 8, ENCODER: 8}, {VAD: 4, ENCODER: 4}, 10.0, 100.0),
            ({VAD: 1, ENCODER: 0}, {VAD: 2, ENCODER: 8}, 10.0, 100.0),
            ({VAD: 4, ENCODER_GPU: 4}, {VAD: 4, ENCODER: 4}, 10.0, 100.0),
            ({VAD: 1, ENCODER: 1}, {VAD: 4, ENCODER: 4}, MISSING, 100.0),
            ({VAD: 1, ENCODER: 2}, {VAD: 4, ENCODER: 9}, 10.0, 3.0),
        ],
        ids=["more", "step", "move", "missing", "cap"],
    )
    def test_what_is_recommended_is_what_auto_would_set(
        self,
        planner: Planner,
        wanted: Mapping[PlacementKey, int],
        replicas: Mapping[PlacementKey, int],
        demand: float | Absence,
        budget: float,
    ) -> None:
        planner.wants(wanted)
        scaling = a_scaling(up=2, down=2)
        auto, recommending = (
            decided(a_state(a_spec(mode=mode, budget=budget, scaling=scaling), demand=demand, replicas=replicas))
            for mode in (Mode.AUTO, Mode.RECOMMEND)
        )
        assert recommending.recommended == auto.desired
        assert (auto.recommended, recommending.changes) == ({}, ())
        assert recommending.desired == {key: replicas.get(key, 0) for key in auto.desired}

    def test_a_recommendation_leaves_the_room_that_others_take(self, planner: Planner) -> None:
        planner.wants({VAD: 1, ENCODER: 3})
        planner.wants({VAD: 1, ENCODER: 3}, name="notes")
        states = (
            a_state(a_spec(), replicas={VAD: 1, ENCODER: 1}),
            a_state(a_spec(name="notes", mode=Mode.RECOMMEND), replicas={VAD: 1, ENCODER: 1}),
        )
        fleet = pools(a_pool("cpu"), a_pool("inferentia", instances=5), a_pool("gpu"))
        auto, recommending = decide(a_snapshot(*states, fleet=fleet), Policy()).pipelines
        assert auto.desired[ENCODER] == 3
        assert recommending.recommended[ENCODER] == 2

    def test_workloads_that_are_not_there_or_belong_to_others_get_no_recommendation(self, planner: Planner) -> None:
        planner.wants({VAD: 2, ENCODER: 2})
        theirs = replace(a_target(1), owner=a_spec(name="notes").key)
        spec = a_spec(mode=Mode.RECOMMEND)
        gone = TargetMissing(reason="gone")
        decision = decided(a_state(spec, replicas={VAD: gone, ENCODER: 1, ENCODER_GPU: theirs}))
        assert decision.recommended == {ENCODER: 2}

    def test_an_autoscaler_that_follows_applies_the_recommendation(self, planner: Planner) -> None:
        planner.wants({VAD: 8, ENCODER: 8})
        state = a_state(a_spec(mode=Mode.RECOMMEND), replicas={VAD: 8, ENCODER: 4})
        decision = decided(replace(state, followers={ENCODER: "ScaledObject/asr"}))
        assert holds(decision) == {HoldReason.FOLLOWED}
        (conflict,) = [condition for condition in conditions(decision) if condition.type == "Conflict"]
        assert (conflict.status, conflict.reason) == ("False", "Followed")
        assert "inferentia: ScaledObject/asr follows this decision" in conflict.message
        partly = decided(replace(state, followers={VAD: "ScaledObject/vad"}))
        assert holds(partly) == {HoldReason.FOLLOWED, HoldReason.RECOMMEND_ONLY}

    def test_in_mode_auto_a_follower_is_a_second_writer(self, planner: Planner) -> None:
        planner.wants({VAD: 8, ENCODER: 8})
        state = a_state(replicas={VAD: 8, ENCODER: 4})
        decision = decided(replace(state, followers={ENCODER: "ScaledObject/asr"}))
        assert not decision.changes
        (conflict,) = [condition for condition in conditions(decision) if condition.type == "Conflict"]
        assert (conflict.status, conflict.reason) == ("True", "ScaledByAnother")

    def test_paused_changes_nothing_not_even_above_the_cap(self, planner: Planner) -> None:
        planner.wants({VAD: 1, ENCODER: 1})
        decision = decided(a_state(a_spec(mode=Mode.PAUSED, budget=1), replicas={VAD: 4, ENCODER: 4}))
        assert not decision.changes
        assert HoldReason.PAUSED in holds(decision)

    def test_others_are_planned_around_what_a_paused_pipeline_holds(self, planner: Planner) -> None:
        paused = a_state(a_spec(mode=Mode.PAUSED, name="paused"), replicas={VAD: 4, ENCODER: 4})
        decide(a_snapshot(paused, a_state()), Policy(budget_per_hour=10.0))
        problem = planner.problems[-1]
        assert [pipeline.key for pipeline in problem.pipelines] == ["speech/captions"]
        assert problem.pools[PoolName("inferentia")].instances == 16
        assert problem.budget_per_hour == pytest.approx(5.5)


class TestRules:
    def rule_state(self, pressure: float, replicas: int = 3, budget: float = 100.0) -> PipelineState:
        spec = a_spec(*default_stages(vad_rules=[a_rule(add=2, per_zone=True)]), budget=budget)
        return a_state(spec, replicas={VAD: replicas, ENCODER: 2}, samples={VAD: seen(rx_queue_pressure=pressure)})

    def test_a_rule_adds_replicas_for_each_zone_on_top_of_the_plan(self, planner: Planner) -> None:
        planner.wants({VAD: 3, ENCODER: 2})
        fleet = pools(a_pool("cpu", zones=3), a_pool("inferentia"), a_pool("gpu"))
        decision = decided(self.rule_state(0.9), fleet=fleet)
        assert moves(decision) == {VAD: (3, 9)}
        assert decision.changes[0].reason is ChangeReason.RULE

    def test_the_floor_holds_while_the_plan_wants_less(self, planner: Planner) -> None:
        planner.wants({VAD: 1, ENCODER: 2})
        snapshot = a_snapshot(self.rule_state(0.9))
        for _ in range(4):
            snapshot = applied(snapshot, decide(snapshot, Policy()))
        assert snapshot.pipelines[0].desired(*VAD) == 5

    def test_caps_win_over_a_floor(self, planner: Planner) -> None:
        planner.wants({VAD: 3, ENCODER: 2}, runs_well=True)
        decision = decided(self.rule_state(0.9, budget=2.5))
        # $2.50 − 2 × $1 leaves four vad replicas of $0.125.
        assert moves(decision) == {VAD: (3, 4)}

    def test_a_rule_without_data_holds_nothing_else(self, planner: Planner) -> None:
        planner.wants({VAD: 2, ENCODER: 1})
        state = self.rule_state(0.5)
        state = replace(state, samples={**state.samples, VAD: seen(rx_queue_pressure=MISSING)})
        assert moves(decided(state)) == {VAD: (3, 2), ENCODER: (2, 1)}


class TestOverload:
    def test_the_admissible_demand_is_published_only_when_not_all_can_be_served(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 4})
        state = a_state(demand=80.0, replicas={VAD: 4, ENCODER: 4})
        assert decided(state).admissible is None
        planner.served, planner.limited_by = 0.75, Limit(kind=LimitKind.BUDGET)
        decision = decided(state)
        assert decision.admissible == pytest.approx(60.0, rel=0.01)  # what is planned for is rounded up
        assert decision.memory.admissible == decision.admissible  # where the search begins next time

    def test_an_sla_out_of_reach_is_no_reason_to_take_away_what_serves_late(self, planner: Planner) -> None:
        planner.wants({VAD: 1, ENCODER: 1})
        planner.served, planner.limited_by = 0.0, Limit(kind=LimitKind.SLA)
        decision = decided(a_state(demand=80.0, replicas={VAD: 4, ENCODER: 4}))
        assert not decision.changes
        assert HoldReason.SLA_UNREACHABLE in holds(decision)
        assert decision.admissible is None, "shedding everybody helps nobody"


class TestUnreadableTargets:
    def test_while_a_workload_that_may_run_cannot_be_read_nothing_is_added(self, planner: Planner) -> None:
        planner.wants({VAD: 6, ENCODER: 4})
        unread = TargetMissing(reason="the API server did not answer", unreadable=True)
        assert not decided(a_state(replicas={VAD: 4, ENCODER: unread})).changes
        gone = TargetMissing(reason="not found")
        assert moves(decided(a_state(replicas={VAD: 4, ENCODER: gone}))) == {VAD: (4, 6)}


class TestStrays:
    """Replicas of workloads that cannot be read now, or of pipelines that have become invalid."""

    def test_the_fleet_s_budget_pays_for_them(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 4})
        fleet = pools(a_pool("cpu", price=0.5), a_pool("inferentia", unaccounted={1: 3}), a_pool("gpu"))
        state = a_state(replicas={VAD: 4, ENCODER: 2})
        enough = decide(a_snapshot(state, fleet=fleet), Policy(budget_per_hour=7.5))
        assert planner.problems[-1].budget_per_hour == 4.5
        assert moves(enough.pipelines[0]) == {ENCODER: (2, 4)}
        short = decide(a_snapshot(state, fleet=fleet), Policy(budget_per_hour=7.0))
        assert moves(short.pipelines[0]) == {ENCODER: (2, 3)}

    def test_their_pool_has_no_room_where_they_are(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 4})
        fleet = pools(a_pool("cpu"), a_pool("inferentia", instances=4, unaccounted={2: 1, 4: 1}), a_pool("gpu"))
        decision = decide(a_snapshot(a_state(replicas={VAD: 4, ENCODER: 2}), fleet=fleet), Policy())
        assert planner.problems[-1].pools[PoolName("inferentia")].instances == 3
        assert moves(decision.pipelines[0]) == {ENCODER: (2, 3)}
        pool = next(pool for pool in decision.pools if pool.name == "inferentia")
        assert (pool.in_use, pool.limit) == (2.75, 4)


class TestLateness:
    def test_while_items_are_late_nothing_that_serves_is_taken_away(self, planner: Planner) -> None:
        planner.wants({VAD: 1, ENCODER: 1})
        late = replace(a_state(demand=80.0, replicas={VAD: 4, ENCODER: 4}), latency_s=0.9)
        decision = decided(late)
        assert not decision.changes
        assert HoldReason.SLA_MISSED in holds(decision)
        assert moves(decided(replace(late, latency_s=0.1)))

    def test_while_items_are_late_more_is_added(self, planner: Planner) -> None:
        planner.wants({VAD: 6, ENCODER: 1})
        late = replace(a_state(demand=80.0, replicas={VAD: 4, ENCODER: 4}), latency_s=0.9)
        assert moves(decided(late)) == {VAD: (4, 6)}


class TestPools:
    def test_a_replica_pending_past_the_deadline_has_the_plan_made_without_its_pool(self, planner: Planner) -> None:
        state = a_state(replicas={ENCODER: a_target(3, ready=2, pending_since_s=[NOW_S - 301])})
        decision = decide(a_snapshot(state, fleet=default_pools(inferentia_ready=2)), Policy())
        pool = next(pool for pool in decision.pools if pool.name == "inferentia")
        assert pool.memory == PoolMemory(
            unavailable_until_s=NOW_S + 300,
            backoff_s=600,
            reason="pod-0: 0/3 nodes are available: 3 node(s) were unschedulable.",
        )
        encoder = planner.asked().stages[1]
        assert [placement.max_replicas for placement in encoder.placements] == [2, 20]

    def test_a_pool_below_what_is_in_use_is_left_whatever_the_tolerance(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 2}, runs_well=True)
        fleet = pools(a_pool("cpu"), a_pool("inferentia", instances=2), a_pool("gpu"))
        spec = a_spec(scaling=a_scaling(tolerance=1.0))
        assert moves(decided(a_state(spec, replicas={VAD: 4, ENCODER: 4}), fleet=fleet)) == {ENCODER: (4, 2)}

    def test_nodes_that_are_not_ready_for_a_moment_cost_no_replica(self, planner: Planner) -> None:
        fleet = pools(a_pool("cpu"), a_pool("inferentia", instances=None, ready=0), a_pool("gpu"))
        decide(a_snapshot(a_state(replicas={VAD: 4, ENCODER: 4}), fleet=fleet), Policy())
        assert planner.problems[-1].pools[PoolName("inferentia")].instances == 4


class TestRestart:
    def test_a_decision_applied_is_followed_by_none(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 4})
        snapshot = a_snapshot(a_state(replicas={VAD: 1, ENCODER: 1}))
        snapshot = applied(snapshot, decide(snapshot, Policy()))
        decision = decide(snapshot, Policy()).pipelines[0]
        assert decision.outcome is Outcome.STEADY

    def test_a_demand_that_fell_is_held_with_the_time_it_is_released(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 4})
        memory = PipelineMemory(demand=50, samples=(DemandSample(t_s=NOW_S - 100, observed=50, forecast=50),))
        decision = decided(a_state(demand=10.0, replicas={VAD: 4, ENCODER: 4}, memory=memory))
        assert decision.demand.planned == 50
        assert [(hold.reason, hold.until_s) for hold in decision.holds] == [(HoldReason.STABILIZING, NOW_S + 200)]

    def test_a_demand_that_is_about_to_come_back_holds_the_replicas(self, planner: Planner) -> None:
        """Past hours had 50 streams again within the scale-down window; the load of now is 10."""
        planner.wants({VAD: 4, ENCODER: 4})
        begin_s, count = period_before(NOW_S, 3600.0, 7, 15.0)
        times_s = [begin_s + 15.0 * index for index in range(count)]
        levels = packed(10.0 if (at_s - NOW_S + 300.0) % 3600.0 < 500.0 else 50.0 for at_s in times_s)
        past = DemandHistory(begin_s=begin_s, step_s=15.0, season_s=3600.0, most=7, levels=levels)
        samples = tuple(DemandSample(t_s=NOW_S - ago_s, observed=10, forecast=10) for ago_s in range(300, 0, -15))
        state = a_state(demand=10.0, replicas={VAD: 4, ENCODER: 4}, memory=PipelineMemory(demand=50, samples=samples))
        assert decided(state).demand.planned == 10
        decision = decided(replace(state, history=past))
        assert decision.demand.planned == pytest.approx(50)
        assert HoldReason.RISE_EXPECTED in [hold.reason for hold in decision.holds]

    def test_the_same_snapshot_is_decided_the_same_way(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 4})
        snapshot: Snapshot = a_snapshot(a_state(replicas={VAD: 1, ENCODER: 1}))
        assert decide(snapshot, Policy()) == decide(snapshot, Policy())


def test_a_stage_that_does_not_run_starts_however_small_the_step() -> None:
    scaling = a_scaling()
    spec = a_spec(scaling=replace(scaling, up=replace(scaling.up, max_share=1.0, max_replicas=0)))
    changes = decide(a_snapshot(a_state(spec)), Policy()).pipelines[0].changes
    assert {change.stage: (change.before, change.after) for change in changes} == {"vad": (0, 1), "encoder": (0, 1)}


def test_a_clock_that_is_set_back_prolongs_neither_an_excuse_nor_a_backoff() -> None:
    later_s = NOW_S + 86_400
    state = a_state(
        a_spec(budget=1.0), replicas={VAD: 4, ENCODER: 4}, memory=PipelineMemory(excess_excused_until_s=later_s)
    )
    pool = a_pool("inferentia", memory=PoolMemory(unavailable_until_s=later_s, backoff_s=600.0, reason="full"))
    decision = decide(a_snapshot(state, fleet=pools(a_pool("cpu"), pool, a_pool("gpu"))), Policy())
    assert decision.pipelines[0].memory.excess_excused_until_s == NOW_S + 60.0 + 2 * 15.0
    memory = next(own.memory for own in decision.pools if own.name == "inferentia")
    assert memory.unavailable_until_s == NOW_S + 3600.0


class TestIdle:
    """`scaling.idleAfter` of a minute, in a pipeline whose minimums are 0, with real plans."""

    def spec(self, *stages: StageSpec, down: int = 1, mode: Mode = Mode.AUTO) -> PipelineSpec:
        scaling = replace(a_scaling(down_s=30.0, down=down), idle_after_s=60.0)
        return a_spec(*stages, scaling=scaling, mode=mode)

    def night(self, spec: PipelineSpec | None = None, **state: object) -> PipelineState:
        """Return a pipeline with 2 vad and 4 encoder replicas, without demand for 90 s."""
        sample = DemandSample(t_s=NOW_S - 15, observed=0.0, forecast=0.0)
        memory = PipelineMemory(demand=0.0, samples=(sample,), idle_since_s=NOW_S - 90)
        given = {"demand": 0.0, "replicas": {VAD: 2, ENCODER: 4}, "memory": memory, **state}
        return a_state(spec or self.spec(), **given)  # type: ignore[arg-type]

    def test_every_stage_goes_to_zero_in_one_cycle_whatever_the_step_limit(self) -> None:
        decision = decided(self.night())
        assert moves(decision) == {VAD: (2, 0), ENCODER: (4, 0)}
        assert {change.reason for change in decision.changes} == {ChangeReason.IDLE}
        assert "(no demand for scaling.idleAfter)" in reason_sentence(decision)
        assert decision.admissible is None

    def test_at_zero_nothing_changes_and_the_status_says_why(self) -> None:
        snapshot = a_snapshot(self.night())
        for _ in range(4):
            snapshot = applied(snapshot, decide(snapshot, Policy()))
        decision = decide(snapshot, Policy()).pipelines[0]
        assert moves(decision) == {}
        assert set(decision.desired.values()) == {0}
        assert (decision.spend_per_hour, decision.admissible) == (0, None)
        assert holds(decision) == {HoldReason.IDLE}
        assert summary(decision)["health"] == "Idle"
        words = "idle; scaled to zero until there is demand (no demand for 60 s)"
        assert words in reason_sentence(decision)
        ready = next(condition for condition in conditions(decision) if condition.type == "Ready")
        assert (ready.status, ready.reason) == ("True", "Idle")

    def test_demand_brings_every_stage_back_at_once(self) -> None:
        asleep = self.night(replicas={})
        for demand in (0.001, 60.0):
            decision = decided(replace(asleep, demand=demand))
            assert decision.desired[VAD] >= 1
            assert decision.desired[ENCODER] + decision.desired[ENCODER_GPU] >= 1
            assert {change.reason for change in decision.changes} == {ChangeReason.DEMAND}

    def test_the_scale_up_window_does_not_keep_stages_at_zero(self) -> None:
        scaling = replace(a_scaling(up_s=300.0), idle_after_s=60.0)
        decision = decided(self.night(a_spec(scaling=scaling), replicas={}, demand=60.0))
        assert all(after == 1 for _, after in moves(decision).values())
        assert {stage for stage, _ in moves(decision)} == {"vad", "encoder"}

    def test_a_stage_with_a_minimum_keeps_it(self) -> None:
        vad, encoder = default_stages()
        first, second = encoder.placements
        kept = replace(encoder, placements=(replace(first, prior=replace(first.prior, min_replicas=2)), second))
        decision = decided(self.night(self.spec(vad, kept)))
        assert decision.desired == {VAD: 0, ENCODER: 2, ENCODER_GPU: 0}
        asleep = decided(self.night(decision.spec, replicas={ENCODER: 2}))
        assert moves(asleep) == {}
        assert [(hold.reason, hold.stage) for hold in asleep.holds] == [(HoldReason.IDLE, "vad")]

    def test_a_small_saving_does_not_keep_an_idle_stage(self) -> None:
        vad, encoder = self.spec().stages
        first, second = encoder.placements
        dear = replace(encoder, placements=(replace(first, prior=replace(first.prior, min_replicas=20)), second))
        decision = decided(self.night(self.spec(vad, dear), replicas={VAD: 1, ENCODER: 20}))
        assert moves(decision) == {VAD: (1, 0)}
        assert holds(decision) == set()

    def test_without_idle_after_one_replica_per_stage_stays(self) -> None:
        decision = decided(self.night(a_spec(scaling=a_scaling(down_s=30.0))))
        assert decision.desired[VAD] == 1
        assert decision.desired[ENCODER] + decision.desired[ENCODER_GPU] >= 1

    def test_at_zero_a_missing_demand_starts_nothing_and_is_named(self) -> None:
        """Series that vanish without load are missing once no replica can show that nothing arrives."""
        decision = decided(self.night(replicas={}, demand=MISSING))
        assert moves(decision) == {}
        assert holds(decision) == {HoldReason.IDLE, HoldReason.METRICS_MISSING}
        assert summary(decision)["health"] == "MetricsMissing"

    def test_what_is_left_of_a_stage_stays_while_the_demand_is_missing(self) -> None:
        assert moves(decided(self.night(replicas={ENCODER: 2}, demand=MISSING))) == {}

    def test_a_source_that_is_lost_for_long_brings_one_replica_per_stage_back(self) -> None:
        lost = Absence(reason=AbsenceReason.UNAVAILABLE)
        memory = replace(
            self.night().memory, metrics_lost=MetricsLoss(since_s=NOW_S - 60, demand=0.0, growth_per_minute=0.01)
        )
        decision = decided(self.night(replicas={}, demand=lost, memory=memory))
        assert {after for _, after in moves(decision).values()} == {1}
        assert {stage for stage, _ in moves(decision)} == {"vad", "encoder"}

    def test_a_fired_rule_keeps_its_floor(self) -> None:
        rule = a_rule(metric=None)
        spec = replace(self.spec(), stages=default_stages(vad_rules=[rule]))
        key = StageName("vad"), rule.name
        memory = replace(self.night().memory, rules={key: RuleMemory(floor=2, fired=True)})
        assert decided(self.night(spec, memory=memory)).desired == {VAD: 2, ENCODER: 0, ENCODER_GPU: 0}

    def test_a_pipeline_that_recommends_says_so_and_stays(self) -> None:
        decision = decided(self.night(self.spec(mode=Mode.RECOMMEND)))
        assert moves(decision) == {}
        assert set(decision.unconstrained.values()) == {0}
        assert HoldReason.RECOMMEND_ONLY in holds(decision)

    def test_a_pipeline_of_a_large_fleet_stays_at_zero(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("controller.core.cycle.AT_ONCE", 0)
        snapshot = a_snapshot(self.night())
        for _ in range(4):
            decision = decide(snapshot, Policy())
            snapshot = applied(snapshot, decision)
        assert set(decision.pipelines[0].desired.values()) == {0}

    def test_an_idle_pipeline_without_room_admits_those_who_come(self) -> None:
        """A limit of 0 would refuse the load that ends the idle time."""
        full = pools(*(a_pool(name, instances=0) for name in ("cpu", "inferentia", "gpu")))
        decision = decided(self.night(replicas={}), fleet=full)
        assert decision.plan is not None
        assert decision.plan.cost_per_hour == 0
        assert decision.admissible is None


class TestSharedStages:
    """`speech/captions` declares an encoder that `speech/notes` uses as its `asr`."""

    def test_a_rising_demand_of_one_user_grows_the_shared_stage_and_nothing_else_of_the_other(self) -> None:
        decision = decide(sharing.the_world(demands=(10.0, 60.0)), Policy())
        owner, borrower = sharing.of(decision, sharing.OWNER), sharing.of(decision, sharing.BORROWER)
        assert moves(owner) == {sharing.ENCODER: (2, 5)}
        assert moves(borrower) == {sharing.SUMMARY: (1, 4)}
        assert borrower.desired[sharing.ASR] == 5

    def test_its_cost_is_split_by_use_and_counted_once(self) -> None:
        snapshot = sharing.the_world(demands=(10.0, 60.0))
        snapshot = sharing.followed(snapshot, decide(snapshot, Policy()))
        decision = decide(snapshot, Policy())
        spends = {own.key: own.spend_per_hour for own in decision.pipelines}
        # 5 encoders × $2, by 10 and 60 items/s; one decoder and four summaries × $0.5
        assert spends[sharing.OWNER] == pytest.approx(10 / 7 + 0.5, rel=0.02)
        assert sum(spends.values()) == pytest.approx(12.5)
        assert sum(own.plan.cost_per_hour for own in decision.pipelines if own.plan) == pytest.approx(12.5)
        assert next(pool for pool in decision.pools if pool.name == "gpu").in_use == 5

    def test_it_is_sized_for_the_tightest_sla(self) -> None:
        loads = (20.0, 20.0)
        loose = decide(sharing.the_world(demands=loads, encoders=1), Policy())
        specs = sharing.owning(), sharing.borrowing(sla_s=0.3)
        tight = decide(sharing.the_world(specs, demands=loads, encoders=1), Policy())
        assert (
            sharing.of(tight, sharing.OWNER).desired[sharing.ENCODER]
            > sharing.of(loose, sharing.OWNER).desired[sharing.ENCODER]
        )
        plan = sharing.of(tight, sharing.BORROWER).plan
        assert plan is not None
        assert plan.feasible

    def test_it_grows_for_a_user_that_is_late_although_its_owner_is_not(self) -> None:
        specs = sharing.owning(), sharing.borrowing(sla_s=0.3)
        decision = decide(sharing.the_world(specs, demands=(20.0, 20.0), encoders=3, others=(3, 4)), Policy())
        assert moves(sharing.of(decision, sharing.OWNER)) == {sharing.ENCODER: (3, 4)}
        assert moves(sharing.of(decision, sharing.BORROWER)) == {}

    def test_both_users_are_told_who_scales_it_and_who_pays(self) -> None:
        decision = decide(sharing.the_world(demands=(10.0, 30.0)), Policy())
        texts = {own.key: " ".join(explain_pipeline(own, decision.now_s)) for own in decision.pipelines}
        told = "stage asr: served and scaled by speech/captions, stage encoder; shared with speech/captions; 75% of its"
        assert told in texts[sharing.BORROWER]
        assert "stage encoder: scaled here; shared with speech/notes; 25% of its" in texts[sharing.OWNER]

    def test_a_user_is_told_that_the_owner_does_not_act(self) -> None:
        specs = sharing.owning(mode=Mode.PAUSED), sharing.borrowing()
        decision = decide(sharing.the_world(specs, demands=(10.0, 60.0)), Policy())
        (hold,) = (
            own for own in sharing.of(decision, sharing.BORROWER).holds if own.reason is HoldReason.OWNER_NOT_ACTING
        )
        assert (hold.stage, hold.detail) == ("asr", "shared from speech/captions, stage encoder")
        assert moves(sharing.of(decision, sharing.OWNER)) == {}
        borrower = sharing.of(decision, sharing.BORROWER)
        assert borrower.plan is not None
        assert borrower.plan.replicas()[sharing.ASR] == 2  # as it runs
        assert borrower.admissible is not None
        assert borrower.admissible < 60

    def test_a_user_that_does_not_act_counts_with_its_load(self) -> None:
        specs = sharing.owning(), sharing.borrowing(mode=Mode.RECOMMEND)
        decision = decide(sharing.the_world(specs, demands=(10.0, 60.0)), Policy())
        assert moves(sharing.of(decision, sharing.OWNER)) == {sharing.ENCODER: (2, 5)}
        assert moves(sharing.of(decision, sharing.BORROWER)) == {}

    def test_the_budget_of_every_user_holds(self) -> None:
        specs = sharing.owning(), sharing.borrowing(budget=3.0)
        snapshot = sharing.the_world(specs, demands=(10.0, 60.0))
        for _ in range(4):
            decision = decide(snapshot, Policy())
            snapshot = sharing.followed(snapshot, decision)
        borrower = sharing.of(decide(snapshot, Policy()), sharing.BORROWER)
        assert borrower.spend_per_hour <= 3.0 + 1e-9
        assert borrower.plan is not None
        assert borrower.plan.limited_by == Limit(kind=LimitKind.BUDGET)
        owner = sharing.of(decision, sharing.OWNER).plan
        assert owner is not None
        assert owner.feasible

    def test_without_the_demand_of_one_user_no_shared_replica_is_removed(self) -> None:
        missing = Absence(reason=AbsenceReason.UNAVAILABLE)
        decision = decide(sharing.the_world(demands=(10.0, missing), encoders=6), Policy())
        owner = sharing.of(decision, sharing.OWNER)
        assert owner.desired[sharing.ENCODER] == 6
        assert HoldReason.METRICS_MISSING in holds(owner)

    def test_a_measured_miss_of_one_user_adds_capacity_at_the_owner(self) -> None:
        slow = seen(latency_p95=0.9, latency_mean=0.5)
        snapshot = sharing.the_world(demands=(10.0, 10.0), samples={sharing.ENCODER: slow})
        grown = []
        for _ in range(4):
            late = replace(snapshot.pipelines[1], latency_s=0.9)
            decision = decide(replace(snapshot, pipelines=(snapshot.pipelines[0], late)), Policy())
            grown.append(sharing.of(decision, sharing.OWNER).desired[sharing.ENCODER])
            snapshot = replace(
                snapshot,
                now_s=snapshot.now_s + 15,
                pipelines=tuple(
                    replace(state, memory=own.memory)
                    for state, own in zip(snapshot.pipelines, decision.pipelines, strict=True)
                ),
            )
        assert grown[0] == 2
        assert max(grown) > 2
        (step,) = (own.memory.feedback.step for own in decision.pipelines if own.memory.feedback.step is not None)
        assert step.stage == "asr"

    def test_an_owner_without_demand_keeps_what_others_need(self) -> None:
        idle = replace(a_scaling(), idle_after_s=0.0)
        owner = sharing.owning()
        stages = tuple(
            replace(
                stage, placements=tuple(replace(p, prior=replace(p.prior, min_replicas=0)) for p in stage.placements)
            )
            for stage in owner.stages
        )
        owner = replace(owner, scaling=replace(idle, down=replace(idle.down, stabilization_s=0.0)), stages=stages)
        decision = decide(sharing.the_world((owner, sharing.borrowing(owner)), demands=(0.0, 30.0)), Policy())
        desired = sharing.of(decision, sharing.OWNER).desired
        assert desired[sharing.ENCODER] >= 2
        assert desired[sharing.DECODER] == 0


def a_heavy_pipeline(name: str) -> PipelineState:
    """Return a pipeline of many stages, each after all before it, with many placements and too small a budget."""
    names = [f"p{number}" for number in range(8)]
    stages = [
        a_stage(
            f"s{number}",
            *(a_placement(pool, service_s=0.01 + 0.003 * ((7 * number + 3 * k) % 11)) for k, pool in enumerate(names)),
            after=[f"s{before}" for before in range(number)],
        )
        for number in range(9)
    ]
    return a_state(a_spec(*stages, name=name, budget=9.0, sla_s=0.6), demand=120.0, replicas={})


def test_pipelines_that_take_long_to_plan_delay_no_other_and_say_so() -> None:
    heard: list[None] = []
    light = a_state(
        a_spec(a_stage("asr", a_placement("gpu")), name="light"),
        demand=100.0,
        replicas={(StageName("asr"), PoolName("gpu")): 2},
    )
    fleet = pools(a_pool("gpu"), *(a_pool(f"p{number}", instances=100, ready=100) for number in range(8)))
    policy = Policy(search_effort=1 << 21, advice=True)
    alone = decide(a_snapshot(light, fleet=fleet), policy).pipelines[0]
    snapshot = a_snapshot(a_heavy_pipeline("h0"), a_heavy_pipeline("h1"), light, fleet=fleet)
    decision = decide(snapshot, policy, beat=lambda: heard.append(None))
    beside = {own.spec.name: own for own in decision.pipelines}
    assert beside["light"] == alone
    assert len(heard) > 100, "a liveness probe sees progress"
    for name in ("h0", "h1"):
        told = {each.type: each for each in conditions(beside[name])}
        assert (told["PlannedInFull"].status, told["PlannedInFull"].reason) == ("False", "EffortExhausted")
        plan = beside[name].plan
        assert plan is not None
        assert plan.cost_per_hour <= 9.0
        assert 0 < plan.served_fraction < 1
    assert decide(snapshot, policy) == decision, "work that is known from before is charged too"


def test_a_few_pipelines_that_take_long_to_plan_are_planned_in_turns() -> None:
    heavy = [a_heavy_pipeline(f"h{number}") for number in range(40)]
    fleet = pools(*(a_pool(f"p{number}", instances=100, ready=100) for number in range(8)))
    decision = decide(a_snapshot(*heavy, fleet=fleet), Policy(search_effort=1 << 21))
    waiting = [own for own in decision.pipelines if any(hold.reason is HoldReason.AWAITING_TURN for hold in own.holds)]
    assert 0 < len(waiting) < 40
