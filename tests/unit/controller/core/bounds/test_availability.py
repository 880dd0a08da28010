"""Nothing waits for ever: what fails is planned without for a while, tried with one replica, and used again."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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
    applied,
    default_pools,
    pools,
)
from explained import explain
from planning import Planner

from controller.core.assess.standing import standing
from controller.core.cycle import decide
from controller.core.messages.conditions import conditions
from controller.core.messages.events import events
from controller.core.state.carry_over import FailureCause, PipelineMemory, PlacementFailure, PoolMemory
from controller.core.state.decision import ChangeReason, Decision, HoldReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import (
    ExpectedNode,
    LaunchFailure,
    NodePoolState,
    PipelineState,
    PoolMatch,
    PoolState,
    Snapshot,
    TargetMissing,
    TargetState,
)
from controller.core.state.spec import Mode
from optimizer.model import PlacementKey, PoolName

DEADLINE_S = 300.0
BACKOFF_S = 300.0
LATE_S = NOW_S - DEADLINE_S - 1
YOUNG_S = NOW_S - 10
NO_ROOM = "0/6 nodes are available: 3 Insufficient cpu, 3 node(s) didn't match Pod's node affinity/selector."
FULL = PoolMemory(unavailable_until_s=NOW_S - 1, backoff_s=2 * BACKOFF_S, reason="pod-0: full")


def moves(decision: PipelineDecision) -> Mapping[PlacementKey, tuple[int, int]]:
    return {(change.stage, change.placement): (change.before, change.after) for change in decision.changes}


def pool_memory(decision: Decision, name: str = "inferentia") -> PoolMemory:
    return next(pool.memory for pool in decision.pools if pool.name == name)


def most(planner: Planner) -> list[int]:
    return [placement.max_replicas for placement in planner.asked().stages[1].placements]


def held(decision: PipelineDecision) -> set[HoldReason]:
    return {hold.reason for hold in decision.holds}


class TestPools:
    def test_a_node_that_does_not_become_ready_is_a_node_and_its_replicas_are_replaced(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 3})
        state = a_state(replicas={VAD: 4, ENCODER: a_target(3, ready=2, stranded_since_s=[LATE_S])})
        decision = decide(a_snapshot(state), Policy())
        assert pool_memory(decision) == PoolMemory()
        assert decision.pipelines[0].memory.failures == {}
        assert moves(decision.pipelines[0]) == {ENCODER: (3, 4)}

    def test_where_the_replacements_would_go_first_the_placement_fails(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 3})
        spec = a_spec()
        encoder = spec.stages[1].placements[0]
        encoder = replace(encoder, target=replace(encoder.target, kind="StatefulSet"))
        stage = replace(spec.stages[1], placements=(encoder, *spec.stages[1].placements[1:]))
        spec = replace(spec, stages=(spec.stages[0], stage))
        state = a_state(spec, replicas={VAD: 4, ENCODER: a_target(3, ready=2, stranded_since_s=[LATE_S])})
        decision = decide(a_snapshot(state), Policy())
        assert pool_memory(decision) == PoolMemory()
        assert "its node is not ready" in decision.pipelines[0].memory.failures[ENCODER].outage.reason

    def test_within_the_deadline_nothing_is_concluded(self, planner: Planner) -> None:
        target = a_target(3, ready=0, pending_since_s=[YOUNG_S], stranded_since_s=[YOUNG_S], starting_since_s=[YOUNG_S])
        decision = decide(a_snapshot(a_state(replicas={ENCODER: target})), Policy())
        assert pool_memory(decision) == PoolMemory()
        assert decision.pipelines[0].memory.failures == {}
        assert most(planner) == [20, 20]

    def test_what_waits_there_is_withdrawn_and_served_elsewhere_in_one_cycle(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 2, ENCODER_GPU: 6})
        target = a_target(8, ready=2, pending_since_s=[LATE_S] * 6)
        fleet = default_pools(inferentia_ready=2)
        (decision,) = decide(a_snapshot(a_state(replicas={VAD: 4, ENCODER: target}), fleet=fleet), Policy()).pipelines
        assert moves(decision) == {ENCODER: (8, 2), ENCODER_GPU: (0, 6)}
        assert {change.reason for change in decision.changes} == {ChangeReason.POOL}

    def test_what_a_cap_leaves_of_a_fallback_is_not_bound_by_steps_either(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 2, ENCODER_GPU: 6})
        spec = a_spec()
        spec = replace(spec, scaling=replace(spec.scaling, up=replace(spec.scaling.up, max_share=0.0, max_replicas=1)))
        down = PoolMemory(unavailable_until_s=NOW_S + 60, backoff_s=600, reason="full")
        fleet = pools(a_pool("cpu"), a_pool("inferentia", memory=down), a_pool("gpu"))
        state = a_state(spec, replicas={VAD: 4, ENCODER: 2})
        assert moves(decide(a_snapshot(state, fleet=fleet), Policy()).pipelines[0]) == {ENCODER_GPU: (0, 6)}

    def test_status_events_and_explanation_tell_the_cause_and_how_long(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER_GPU: 6})
        target = a_target(3, ready=0, pending_since_s=[LATE_S] * 3)
        fleet = default_pools(inferentia_ready=1)
        decision = decide(a_snapshot(a_state(replicas={VAD: 4, ENCODER: target}), fleet=fleet), Policy())
        (pipeline,) = decision.pipelines
        condition = next(found for found in conditions(pipeline) if found.type == "PoolsAvailable")
        assert (condition.status, condition.reason) == ("False", "PoolUnavailable")
        assert "encoder on inferentia" in condition.message
        assert "pod-0: 0/3 nodes are available" in condition.message
        warned = [event for event in events(pipeline, {"PoolsAvailable": "True"}) if event.warning]
        assert [event.reason for event in warned] == ["PoolsUnavailable"]
        text = "\n".join(explain(decision, pipeline.key))
        assert "encoder on inferentia: the pool cannot deliver" in text
        assert "; 300 s left" in text


class TestTrial:
    def world(
        self, state: PipelineState, memory: PoolMemory = FULL, *, ready: int = 20, **more: PipelineState
    ) -> Snapshot:
        inferentia = a_pool("inferentia", price=0.1, memory=memory, ready=ready)
        fleet = pools(a_pool("cpu"), inferentia, a_pool("gpu", price=2.0))
        return a_snapshot(state, *more.values(), fleet=fleet)

    def test_where_what_runs_serves_well_the_plan_may_use_the_pool_and_one_replica_tries_it(
        self, planner: Planner
    ) -> None:
        planner.wants({VAD: 4, ENCODER: 5}, runs_well=True)
        snapshot = self.world(a_state(replicas={VAD: 4, ENCODER_GPU: 2}))
        (decision,) = decide(snapshot, Policy()).pipelines
        assert most(planner) == [20, 20]
        assert moves(decision) == {ENCODER: (0, 1)}
        assert HoldReason.ON_TRIAL in held(decision)

    def test_while_one_waits_nobody_else_tries(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 5}, runs_well=True)
        waiting = a_target(1, ready=0, pending_since_s=[YOUNG_S])
        for tried in (waiting, a_target(1, ready=0, starting_since_s=[YOUNG_S])):
            snapshot = self.world(a_state(replicas={VAD: 4, ENCODER: tried, ENCODER_GPU: 2}))
            assert not decide(snapshot, Policy()).pipelines[0].changes

    def test_one_replica_in_all_tries_whoever_wants_it(self, planner: Planner) -> None:
        for name in ("captions", "notes"):
            planner.wants({VAD: 4, ENCODER: 5}, name=name, runs_well=True)
        replicas = {VAD: 4, ENCODER_GPU: 2}
        snapshot = self.world(a_state(replicas=replicas), other=a_state(a_spec(name="notes"), replicas=replicas))
        decision = decide(snapshot, Policy())
        assert [moves(pipeline) for pipeline in decision.pipelines] == [{ENCODER: (0, 1)}, {}]

    @pytest.mark.parametrize(
        ("target", "mode", "tries"),
        [
            pytest.param(a_target(1), Mode.AUTO, True, id="a ready replica"),
            pytest.param(a_target(1, ready=0, pending_since_s=[YOUNG_S]), Mode.AUTO, False, id="a pending one"),
            pytest.param(a_target(1, ready=0, starting_since_s=[YOUNG_S]), Mode.AUTO, False, id="one that starts"),
            pytest.param(a_target(1, ready=0, starting_since_s=[LATE_S]), Mode.AUTO, True, id="one that cannot start"),
            pytest.param(a_target(1, ready=0, pending_since_s=[YOUNG_S]), Mode.RECOMMEND, True, id="of another scaler"),
        ],
    )
    def test_it_waits_for_the_replicas_of_pipelines_that_are_not_assessed(
        self, target: TargetState, mode: Mode, tries: bool
    ) -> None:
        """In a large fleet, the pipeline whose replica tries the pool is not assessed while that replica is pending."""
        other = a_state(a_spec(name="notes", mode=mode), replicas={VAD: 4, ENCODER: target})
        snapshot = self.world(a_state(demand=20.0, replicas={VAD: 4, ENCODER_GPU: 8}))
        snapshot = replace(snapshot, standing=(standing(other, NOW_S, None),))
        (decision,) = decide(snapshot, Policy()).pipelines
        assert (moves(decision).get(ENCODER) == (0, 1)) is tries

    @pytest.mark.parametrize("constraint", ["", "volume claim data"])
    def test_the_failure_of_a_pool_stays_known_while_a_replica_waits_whose_pipeline_is_not_assessed(
        self, constraint: str
    ) -> None:
        target = a_target(1, ready=0, pending_since_s=[YOUNG_S])
        pending = tuple(replace(each, constraint=constraint) for each in target.pending)
        other = a_state(a_spec(name="notes"), replicas={VAD: 4, ENCODER: replace(target, pending=pending)})
        snapshot = self.world(a_state(replicas={VAD: 4, ENCODER_GPU: 8}))
        snapshot = replace(snapshot, now_s=NOW_S + DEADLINE_S, standing=(standing(other, NOW_S, None),))
        assert pool_memory(decide(snapshot, Policy())) == (PoolMemory() if constraint else FULL)

    def test_what_is_short_now_does_not_wait_for_the_trial(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER_GPU: 4})
        decide(self.world(a_state(replicas={VAD: 4, ENCODER_GPU: 2})), Policy())
        assert most(planner) == [1, 20]

    def test_a_trial_that_fails_doubles_the_backoff(self, planner: Planner) -> None:
        failed = a_target(1, ready=0, pending_since_s=[LATE_S])
        decision = decide(self.world(a_state(replicas={ENCODER: failed, ENCODER_GPU: 2}), ready=1), Policy())
        assert pool_memory(decision).unavailable_until_s == NOW_S + 2 * BACKOFF_S
        assert pool_memory(decision).backoff_s == 4 * BACKOFF_S
        assert most(planner) == [0, 20]

    def test_when_the_replica_serves_the_rest_follows_and_the_old_go_last(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 5}, runs_well=True)
        snapshot = self.world(a_state(replicas={VAD: 4, ENCODER: 1, ENCODER_GPU: 2}))
        snapshot = replace(snapshot, now_s=NOW_S + DEADLINE_S)
        first = decide(snapshot, Policy())
        assert pool_memory(first) == PoolMemory()
        assert moves(first.pipelines[0]) == {ENCODER: (1, 5)}
        assert moves(decide(applied(snapshot, first), Policy()).pipelines[0]) == {ENCODER_GPU: (2, 0)}


class TestFragmented:
    def test_no_room_in_one_piece_is_no_sign_that_the_pool_cannot_deliver(self, planner: Planner) -> None:
        fleet = pools(a_pool("cpu"), a_pool("inferentia", instances=3, ready=3), a_pool("gpu"))
        target = a_target(3, ready=2, pending_since_s=[LATE_S], words=NO_ROOM)
        decision = decide(a_snapshot(a_state(replicas={ENCODER: target}), fleet=fleet), Policy())
        assert pool_memory(decision) == PoolMemory()
        assert decision.pipelines[0].memory.failures[ENCODER].cause is FailureCause.FRAGMENTED
        assert HoldReason.FRAGMENTED in held(decision.pipelines[0])
        assert most(planner) == [2, 20]

    @pytest.mark.parametrize(
        ("ready", "leaving", "unaccounted"),
        [
            (2, 0, 0),  # full, and no more nodes come
            (3, 1, 0),  # the room is on a node that takes no more
            (3, 0, 1),  # the room is taken by what cannot be read
        ],
    )
    def test_without_room_by_the_books_or_without_a_node_that_takes_replicas_it_is(
        self, planner: Planner, ready: int, leaving: int, unaccounted: int
    ) -> None:
        inferentia = a_pool("inferentia", instances=4, ready=ready, leaving=leaving, unaccounted={1: unaccounted})
        fleet = pools(a_pool("cpu"), inferentia, a_pool("gpu"))
        target = a_target(3, ready=2, pending_since_s=[LATE_S], words=NO_ROOM)
        decision = decide(a_snapshot(a_state(replicas={ENCODER: target}), fleet=fleet), Policy())
        assert pool_memory(decision).reason == f"pod-0: {NO_ROOM}"
        assert decision.pipelines[0].memory.failures == {}

    def test_a_pod_that_the_pool_s_nodes_are_not_for_takes_the_pool_from_nobody_else(self, planner: Planner) -> None:
        for name in ("captions", "notes"):
            planner.wants({VAD: 4, ENCODER: 4}, name=name)
        words = "0/20 nodes are available: 20 node(s) had untolerated taint {team: other}."
        wrong = a_state(replicas={VAD: 4, ENCODER: a_target(3, ready=2, pending_since_s=[LATE_S], words=words)})
        decision = decide(a_snapshot(wrong, a_state(a_spec(name="notes"), replicas={VAD: 4, ENCODER: 2})), Policy())
        assert pool_memory(decision) == PoolMemory()
        assert words in decision.pipelines[0].memory.failures[ENCODER].outage.reason
        assert moves(decision.pipelines[1]) == {ENCODER: (2, 4)}

    @pytest.mark.parametrize(
        ("words", "own"),
        [
            ("0/6 nodes are available: 6 node(s) didn't match Pod's node affinity/selector.", True),
            (
                "0/6 nodes are available: 2 Insufficient memory, 4 node(s) had untolerated taint {a: b}. preemption: 0",
                True,
            ),
            ("0/6 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found", True),
            ("0/6 nodes are available: 3 node(s) were unschedulable, 3 Insufficient cpu.", False),
            ("0/6 nodes are available: 6 node(s) had untolerated taint {node.kubernetes.io/not-ready: }.", False),
            ("no nodes available to schedule pods", True),  # words that are not known say nothing of the pool
            ("", True),
            ("0/6 nodes are available: 6 node(s) exceed max volume count.", True),
            ("0/6 nodes are available: 6 cannot allocate all claims.", True),
            ("Scheduling is blocked due to non-empty scheduling gates", True),
        ],
    )
    def test_what_the_scheduler_has_against_the_pod_is_not_held_against_the_pool(
        self, planner: Planner, words: str, own: bool
    ) -> None:
        target = a_target(3, ready=2, pending_since_s=[LATE_S], words=words)
        decision = decide(a_snapshot(a_state(replicas={ENCODER: target})), Policy())
        assert (pool_memory(decision) == PoolMemory()) is own
        assert (ENCODER in decision.pipelines[0].memory.failures) is own

    def test_while_the_nodes_cannot_be_read_a_pod_takes_the_pool_from_nobody_else(self, planner: Planner) -> None:
        fleet = pools(a_pool("cpu"), a_pool("inferentia", ready=0, unread="403 Forbidden"), a_pool("gpu"))
        target = a_target(3, ready=2, pending_since_s=[LATE_S], words=NO_ROOM)
        decision = decide(a_snapshot(a_state(replicas={ENCODER: target}), fleet=fleet), Policy())
        assert pool_memory(decision) == PoolMemory()
        assert set(decision.pipelines[0].memory.failures) == {ENCODER}

    def test_what_drains_on_the_pool_is_waited_for(self, planner: Planner) -> None:
        fleet = pools(a_pool("cpu"), a_pool("inferentia", instances=3, ready=3), a_pool("gpu"))
        for since_s, found in ((LATE_S, {}), (LATE_S - 60, {ENCODER})):
            target = a_target(3, existing=3, ready=2, terminating=1, pending_since_s=[since_s], words=NO_ROOM)
            decision = decide(a_snapshot(a_state(replicas={ENCODER: target}), fleet=fleet), Policy())
            assert set(decision.pipelines[0].memory.failures) == set(found)


class TestStarting:
    def test_replicas_that_do_not_start_do_not_hold_up_a_move_for_ever(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER_GPU: 2})
        target = a_target(4, ready=0, starting_since_s=[LATE_S] * 4)
        state = a_state(replicas={VAD: 4, ENCODER: target, ENCODER_GPU: 2})
        decision = decide(a_snapshot(state), Policy())
        (pipeline,) = decision.pipelines
        assert pool_memory(decision) == PoolMemory(), "others may well start there"
        assert pipeline.memory.failures[ENCODER] == PlacementFailure(
            cause=FailureCause.CANNOT_START,
            outage=PoolMemory(
                unavailable_until_s=NOW_S + BACKOFF_S, backoff_s=2 * BACKOFF_S, reason="pod-0: CrashLoopBackOff"
            ),
        )
        assert moves(pipeline) == {ENCODER: (4, 0)}
        assert {change.reason for change in pipeline.changes} == {ChangeReason.PLACEMENT}

    def test_the_start_up_time_comes_before_the_deadline(self, planner: Planner) -> None:
        stages = (a_stage("encoder", a_placement("inferentia", startup_s=100.0), a_placement("gpu")),)
        for since_s, late in ((LATE_S - 90, False), (LATE_S - 100, True)):
            state = a_state(a_spec(*stages), replicas={ENCODER: a_target(1, ready=0, starting_since_s=[since_s])})
            assert bool(decide(a_snapshot(state), Policy()).pipelines[0].memory.failures) is late

    def test_where_the_stage_has_nowhere_else_to_go_they_are_left_alone(self, planner: Planner) -> None:
        stages = (a_stage("encoder", a_placement("inferentia")),)
        target = a_target(4, ready=1, starting_since_s=[LATE_S] * 3)
        (decision,) = decide(a_snapshot(a_state(a_spec(*stages), replicas={ENCODER: target})), Policy()).pipelines
        assert planner.asked().stages[0].placements[0].max_replicas == 20
        assert HoldReason.CANNOT_START in held(decision)

    def test_after_the_backoff_one_is_tried(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 5}, runs_well=True)
        memory = PipelineMemory(failures={ENCODER: PlacementFailure(cause=FailureCause.CANNOT_START, outage=FULL)})
        fleet = pools(a_pool("cpu"), a_pool("inferentia", price=0.1), a_pool("gpu"))
        state = a_state(replicas={VAD: 4, ENCODER_GPU: 2}, memory=memory)
        (decision,) = decide(a_snapshot(state, fleet=fleet), Policy()).pipelines
        assert moves(decision) == {ENCODER: (0, 1)}
        assert decision.memory.failures == memory.failures


class TestMissingPools:
    FLEET = pools(a_pool("cpu"), a_pool("inferentia"))

    def test_a_pool_that_does_not_exist_freezes_no_stage_that_does_without(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 4})
        state = a_state(replicas={VAD: 1, ENCODER: 1})
        (decision,) = decide(a_snapshot(state, fleet=self.FLEET), Policy()).pipelines
        assert moves(decision) == {VAD: (1, 4), ENCODER: (1, 4)}
        assert most(planner) == [20, 0]
        assert HoldReason.POOL_NOT_FOUND in held(decision)

    def test_what_runs_on_it_stays_and_nothing_is_added_for_nobody_knows_what_it_costs(self, planner: Planner) -> None:
        planner.wants({VAD: 2, ENCODER: 4})
        state = a_state(replicas={VAD: 4, ENCODER: 1, ENCODER_GPU: 3})
        (decision,) = decide(a_snapshot(state, fleet=self.FLEET), Policy()).pipelines
        assert moves(decision) == {VAD: (4, 2)}
        assert planner.problems[-1].pools[PoolName("gpu")].instances == 3

    def test_a_stage_that_has_no_other_pool_takes_nothing_from_the_others(self, planner: Planner) -> None:
        planner.wants({VAD: 0})
        planner.served = 0.0
        state = a_state(
            a_spec(a_stage("vad", a_placement("cpu")), a_stage("encoder", a_placement("gpu"))), replicas={VAD: 4}
        )
        (decision,) = decide(a_snapshot(state, fleet=self.FLEET), Policy()).pipelines
        assert not decision.changes
        assert decision.admissible is None


def test_replicas_that_another_pipeline_owns_take_capacity_once(planner: Planner) -> None:
    """Two of six instances are free for a pod that fits on neither; counted twice, the pool would look full."""
    planner.wants({VAD: 1, ENCODER: 5})
    waits = a_target(5, ready=4, pending_since_s=[LATE_S], words=NO_ROOM)
    live = a_state(replicas={VAD: 1, ENCODER: waits})
    targets = {key: replace(target, owner=live.spec.key) for key, target in live.targets.items()}
    copy = replace(live, spec=a_spec(name="copy", mode=Mode.RECOMMEND), targets=targets)
    fleet = pools(a_pool("cpu"), a_pool("inferentia", instances=6, ready=6), a_pool("gpu"))
    decision = decide(a_snapshot(live, copy, fleet=fleet), Policy())
    assert pool_memory(decision) == PoolMemory()
    assert decision.pipelines[0].memory.failures[ENCODER].cause is FailureCause.FRAGMENTED


QUOTA = 'pods "encoder-7d9f" is forbidden: exceeded quota: speech, requested: cpu=4, used: cpu=12, limited: cpu=12'


class TestPodsThatAreNotCreated:
    """A quota, a webhook or a missing ServiceAccount: there is no pod, so nothing is pending."""

    def state(self, since_s: float | None, *, refusal: str = QUOTA, existing: int = 3) -> PipelineState:
        target = replace(a_target(8, ready=existing, existing=existing), refusal=refusal)
        memory = PipelineMemory(uncreated_since_s={} if since_s is None else {ENCODER: since_s})
        return replace(a_state(replicas={VAD: 4, ENCODER: target}), memory=memory)

    def test_they_are_seen_from_the_first_cycle_and_fail_their_placement_after_the_deadline(
        self, planner: Planner
    ) -> None:
        for before_s, since_s in ((None, NOW_S), (YOUNG_S, YOUNG_S), (LATE_S, LATE_S)):
            (decision,) = decide(a_snapshot(self.state(before_s)), Policy()).pipelines
            assert decision.memory.uncreated_since_s == {ENCODER: since_s}
            assert bool(decision.memory.failures) is (before_s == LATE_S)

    def test_the_words_of_their_controller_are_in_the_condition_and_the_pool_delivers(self, planner: Planner) -> None:
        found = decide(a_snapshot(self.state(LATE_S)), Policy())
        condition = next(each for each in conditions(found.pipelines[0]) if each.type == "PoolsAvailable")
        assert (condition.status, condition.reason) == ("False", "NotCreated")
        assert f"5 of 8 replicas: not created: {QUOTA}" in condition.message
        assert pool_memory(found) == PoolMemory()

    def test_they_are_served_elsewhere_and_those_that_exist_stay(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 3, ENCODER_GPU: 5})
        (decision,) = decide(a_snapshot(self.state(LATE_S)), Policy()).pipelines
        assert most(planner) == [3, 20]
        assert moves(decision) == {ENCODER: (8, 3), ENCODER_GPU: (0, 5)}

    def test_without_words_they_fail_too(self, planner: Planner) -> None:
        (decision,) = decide(a_snapshot(self.state(LATE_S, refusal="")), Policy()).pipelines
        assert "its controller does not say why" not in str(decision.holds)
        assert "their controller does not say why" in decision.memory.failures[ENCODER].outage.reason

    def test_one_replica_is_tried_after_the_backoff(self, planner: Planner) -> None:
        failure = PlacementFailure(cause=FailureCause.NOT_CREATED, outage=FULL)
        waiting = replace(self.state(YOUNG_S), memory=PipelineMemory(failures={ENCODER: failure}))
        served = replace(
            a_state(replicas={VAD: 4, ENCODER: 3, ENCODER_GPU: 5}), memory=PipelineMemory(failures={ENCODER: failure})
        )
        planner.wants({VAD: 4, ENCODER: 8}, runs_well=True)
        for state, expected in ((served, (3, 4)), (waiting, None)):
            (decision,) = decide(a_snapshot(state), Policy()).pipelines
            assert moves(decision).get(ENCODER) == expected

    @pytest.mark.parametrize("busy", ["starting_since_s", "pending_since_s", "stranded_since_s"])
    def test_a_controller_that_creates_one_after_the_other_is_not_late(self, busy: str, planner: Planner) -> None:
        """A StatefulSet creates a replica when the one before is ready."""
        target = a_target(8, ready=2, existing=3, **{busy: [YOUNG_S]})  # type: ignore[arg-type]
        memory = PipelineMemory(uncreated_since_s={ENCODER: LATE_S})
        state = replace(a_state(replicas={VAD: 4, ENCODER: target}), memory=memory)
        (decision,) = decide(a_snapshot(state), Policy()).pipelines
        assert decision.memory.uncreated_since_s == {ENCODER: LATE_S}
        assert not decision.memory.failures
        refused = replace(state, targets={**state.targets, ENCODER: replace(target, refusal=QUOTA)})
        assert decide(a_snapshot(refused), Policy()).pipelines[0].memory.failures

    @pytest.mark.parametrize(
        ("target", "since_s", "fails"),
        [
            (a_target(8, ready=7, existing=7, terminating=1), LATE_S, False),
            (a_target(8, ready=7, existing=7, terminating=1), NOW_S - 3600, True),
            (replace(a_target(8, ready=7, existing=7), rolling=True), NOW_S - 3600, True),
            (a_target(8, ready=2, existing=3, starting_since_s=[YOUNG_S]), NOW_S - 1200, False),
            (a_target(8, ready=2, existing=3, starting_since_s=[YOUNG_S]), NOW_S - 7200, True),
            (a_target(8, ready=2, existing=3, pending_since_s=[NOW_S - 1200]), NOW_S - 1200, True),
        ],
        ids=["ends", "never ends", "roll-out stands", "one after the other", "never stays ready", "has no node"],
    )
    def test_what_their_creation_waits_for_pauses_the_deadline_for_a_bounded_time(
        self, target: TargetState, since_s: float, fails: bool, planner: Planner
    ) -> None:
        memory = PipelineMemory(uncreated_since_s={ENCODER: since_s})
        (decision,) = decide(
            a_snapshot(replace(a_state(replicas={VAD: 4, ENCODER: target}), memory=memory)), Policy()
        ).pipelines
        found = decision.memory.failures.get(ENCODER)
        assert (found is not None and found.cause is FailureCause.NOT_CREATED) is fails


class TestRollOuts:
    """Eight of eight replicas of the old revision serve on a full pool, and one replica of the new one is pending."""

    def rolling(self, **replicas: object) -> PipelineState:
        target = a_target(8, ready=8, existing=9, **replicas)  # type: ignore[arg-type]
        pending, starting = (
            tuple(replace(replica, updated=True) for replica in own) for own in (target.pending, target.starting)
        )
        target = replace(target, rolling=True, updated=1, pending=pending, starting=starting)
        return a_state(replicas={VAD: 4, ENCODER: target})

    def test_surge_without_a_node_shows_no_failure_of_the_pool(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 8})
        found = decide(
            a_snapshot(self.rolling(pending_since_s=[LATE_S]), fleet=default_pools(inferentia_ready=8)), Policy()
        )
        assert pool_memory(found) == PoolMemory()
        assert found.pipelines[0].memory.failures == {}
        assert most(planner) == [20, 20]

    def test_it_is_shown_with_its_numbers(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 8})
        (decision,) = decide(a_snapshot(self.rolling(pending_since_s=[LATE_S])), Policy()).pipelines
        (hold,) = [hold for hold in decision.holds if hold.reason is HoldReason.ROLLING_OUT]
        assert (hold.stage, hold.placement) == ENCODER
        assert hold.detail == "1 of 9 replicas are of the new revision; 1 of these are not ready"

    def test_a_pool_that_is_out_keeps_all_that_is_ready(self, planner: Planner) -> None:
        out = PoolMemory(unavailable_until_s=NOW_S + 60, backoff_s=600, reason="full")
        fleet = pools(a_pool("cpu"), a_pool("inferentia", memory=out), a_pool("gpu"))
        decide(a_snapshot(self.rolling(pending_since_s=[YOUNG_S]), fleet=fleet), Policy())
        assert most(planner) == [8, 20]

    def test_a_bad_image_is_told_of_the_new_revision_and_ends_no_ready_replica(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 8})
        state = self.rolling(starting_since_s=[LATE_S])
        (decision,) = decide(a_snapshot(state), Policy()).pipelines
        assert decision.memory.failures[ENCODER].cause is FailureCause.CANNOT_START
        assert "pod-0 of the new revision: CrashLoopBackOff" in decision.memory.failures[ENCODER].outage.reason
        assert {HoldReason.CANNOT_START, HoldReason.ROLLING_OUT} <= held(decision)
        assert most(planner) == [8, 20]
        assert moves(decision) == {}

    def test_a_new_revision_that_fits_no_node_fails_its_placement_and_not_the_pool(self, planner: Planner) -> None:
        """With maxUnavailable there is no surge: the replica that is pending is one of the desired ones."""
        target = a_target(8, ready=7, existing=8, pending_since_s=[LATE_S], words="0/8 nodes are available: 8 full.")
        pending = tuple(replace(replica, updated=True) for replica in target.pending)
        state = a_state(replicas={VAD: 4, ENCODER: replace(target, rolling=True, updated=1, pending=pending)})
        found = decide(a_snapshot(state), Policy())
        assert pool_memory(found) == PoolMemory()
        assert found.pipelines[0].memory.failures[ENCODER].cause is FailureCause.FRAGMENTED
        assert most(planner) == [8, 20]

    def test_a_replica_of_the_old_revision_without_a_node_is_a_failure_as_ever(self, planner: Planner) -> None:
        target = replace(a_target(8, ready=7, existing=8, pending_since_s=[LATE_S]), rolling=True, updated=1)
        found = decide(
            a_snapshot(a_state(replicas={ENCODER: target}), fleet=default_pools(inferentia_ready=7)), Policy()
        )
        assert pool_memory(found).reason


def test_pods_outside_their_pool_and_those_that_do_not_fit_are_told(planner: Planner) -> None:
    target = replace(a_target(4), match=PoolMatch(outside={"encoder-1": "cpu-7", "encoder-0": "cpu-7"}))
    small = replace(a_target(4), match=PoolMatch(fits=0))
    (decision,) = decide(a_snapshot(a_state(replicas={VAD: small, ENCODER: target})), Policy()).pipelines
    found = next(condition for condition in conditions(decision) if condition.type == "PlacementsMatch")
    assert (found.status, found.reason) == ("False", "OutsidePool")
    assert found.message == (
        "encoder on inferentia: 2 replicas on other nodes: encoder-0 on cpu-7, encoder-1 on cpu-7; "
        "vad on cpu: perInstance is 4, but the allocatable resources of a node hold 0"
    )


BUSY = "0/6 nodes are available: 6 Insufficient nvidia.com/gpu."
ELSEWHERE = "0/6 nodes are available: 6 node(s) didn't match Pod's node affinity/selector."


class TestWhoseEvidence:
    """A shared pool fails only by evidence that does not rest on one pod."""

    def waiting(self, name: str, *, words: str = BUSY, constraint: str = "", **spec: Any) -> PipelineState:
        target = a_target(3, ready=2, pending_since_s=[LATE_S], words=words)
        target = replace(target, pending=tuple(replace(each, constraint=constraint) for each in target.pending))
        return a_state(a_spec(name=name, **spec), replicas={VAD: 4, ENCODER: target})

    def fleet(self, node_pool: NodePoolState | None = None, ready: int = 6) -> Mapping[PoolName, PoolState]:
        return pools(a_pool("cpu"), a_pool("inferentia", ready=ready, node_pool=node_pool), a_pool("gpu"))

    def outcome(self, *states: PipelineState, fleet: Mapping[PoolName, PoolState]) -> tuple[bool, set[str]]:
        """Return whether the pool fails, and the pipelines whose placement does."""
        decision = decide(a_snapshot(*states, fleet=fleet), Policy())
        failing = {own.spec.name for own in decision.pipelines if ENCODER in own.memory.failures}
        return pool_memory(decision).unavailable_until_s is not None, failing

    def test_a_pod_that_an_empty_node_would_hold_is_evidence_alone(self, planner: Planner) -> None:
        assert self.outcome(self.waiting("a"), fleet=self.fleet(ready=2)) == (True, set())

    @pytest.mark.parametrize("constraint", ["volume claim data", "scheduling gate kueue.x-k8s.io/admission"])
    def test_one_with_a_constraint_is_not(self, planner: Planner, constraint: str) -> None:
        assert self.outcome(self.waiting("a", constraint=constraint), fleet=self.fleet(ready=2)) == (False, {"a"})

    def test_one_that_no_empty_node_holds_is_not(self, planner: Planner) -> None:
        state = self.waiting("a")
        target = state.targets[ENCODER]
        assert not isinstance(target, TargetMissing)
        large = replace(target, match=PoolMatch(fits=0))
        state = replace(state, targets={**state.targets, ENCODER: large})
        assert self.outcome(state, fleet=self.fleet(ready=2)) == (False, {"a"})

    def test_a_mistyped_selector_fails_no_elastic_pool_whose_nodes_are_full(self, planner: Planner) -> None:
        elastic = self.fleet(NodePoolState(instances=20), ready=2)
        assert self.outcome(self.waiting("a", words=ELSEWHERE), fleet=elastic) == (False, {"a"})

    def test_the_same_words_of_two_pipelines_are_evidence(self, planner: Planner) -> None:
        elastic = self.fleet(NodePoolState(instances=20), ready=2)
        states = [self.waiting(name, words=ELSEWHERE) for name in "ab"]
        assert self.outcome(*states, fleet=elastic) == (True, set())

    @pytest.mark.parametrize("mode", [Mode.RECOMMEND, Mode.PAUSED])
    def test_pods_of_pipelines_that_do_not_act_are_none(self, planner: Planner, mode: Mode) -> None:
        states = [self.waiting("a", mode=mode), a_state(a_spec(name="b"), replicas={VAD: 4, ENCODER: 2})]
        assert self.outcome(*states, fleet=self.fleet(ready=2)) == (False, {"a"})

    @pytest.mark.parametrize(("constraint", "fails"), [("volume claim data", False), ("", True)])
    def test_a_launch_that_fails_for_a_pod_of_one_zone_says_nothing_of_the_others(
        self, planner: Planner, constraint: str, fails: bool
    ) -> None:
        failures = tuple(
            LaunchFailure(claim=f"claim-{i}", at_s=NOW_S - 90 + 40 * i, reason="no capacity") for i in (0, 1)
        )
        state = self.waiting("a", constraint=constraint)
        target = state.targets[ENCODER]
        assert not isinstance(target, TargetMissing)
        nodes = tuple(ExpectedNode(name=each.claim, since_s=each.at_s - 20) for each in failures)
        pending = tuple(replace(each, since_s=NOW_S - 120, expected=nodes) for each in target.pending)
        state = replace(state, targets={**state.targets, ENCODER: replace(target, pending=pending)})
        elastic = self.fleet(NodePoolState(instances=20, failures=failures), ready=2)
        assert self.outcome(state, fleet=elastic) == (fails, set() if fails else {"a"})

    def test_a_trial_waits_for_no_pod_that_only_its_own_mistake_keeps_from_a_node(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 5}, name="b", runs_well=True)
        wrong = self.waiting("a", constraint="volume claim data")
        other = a_state(a_spec(name="b"), replicas={VAD: 4, ENCODER_GPU: 2})
        fleet = pools(a_pool("cpu"), a_pool("inferentia", price=0.1, memory=FULL), a_pool("gpu", price=2.0))
        assert moves(decide(a_snapshot(wrong, other, fleet=fleet), Policy()).pipelines[1]) == {ENCODER: (0, 1)}
