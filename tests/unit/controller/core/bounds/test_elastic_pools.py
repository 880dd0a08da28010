"""A pool whose nodes Karpenter makes: replicas wait for a node on its way, but not for ever."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from bounded import bounded, most_of
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
from planning import Planner

from controller.core.bounds.elastic_pools import launches_s
from controller.core.bounds.outages import OUTAGE
from controller.core.cycle import decide
from controller.core.messages.conditions import pool_conditions
from controller.core.state.carry_over import PoolMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import (
    UNSEEN_INSTANCES,
    ExpectedNode,
    LaunchFailure,
    NodePoolProblem,
    NodePoolState,
    PoolState,
    Snapshot,
    TargetState,
)
from optimizer.model import PoolName

DEADLINE_S = 300.0
PENDING_S = NOW_S - 1200.0
"""The replicas are pending for longer than the deadline, and shorter than two nodes may take."""
WORDS = "NodeClaim inferentia-a event: creating instance, insufficient capacity"
PLENTY = NodePoolState(instances=20)


def nodes(*since_s: float, names: str = "abcdef") -> tuple[ExpectedNode, ...]:
    return tuple(ExpectedNode(name=f"inferentia-{name}", since_s=at) for name, at in zip(names, since_s, strict=False))


def failures(*at_s: float) -> tuple[LaunchFailure, ...]:
    return tuple(
        LaunchFailure(claim=f"inferentia-{name}", at_s=at, reason=f"{WORDS} {name}")
        for name, at in zip("abcdef", at_s, strict=False)
    )


def snapshot(
    node_pool: NodePoolState | None, expected: Sequence[ExpectedNode] = (), *, pending_s: float = PENDING_S
) -> Snapshot:
    """Return a snapshot in which two of four replicas have had no node since `pending_s`."""
    target = a_target(4, ready=2, pending_since_s=[pending_s] * 2)
    pending = tuple(replace(replica, expected=tuple(expected)) for replica in target.pending)
    fleet = pools(
        a_pool("cpu"), a_pool("inferentia", instances=20, ready=2, node_pool=node_pool), a_pool("gpu", price=2.0)
    )
    return a_snapshot(a_state(replicas={VAD: 4, ENCODER: replace(target, pending=pending)}), fleet=fleet)


def with_encoder(found: Snapshot, target: TargetState) -> Snapshot:
    (state,) = found.pipelines
    return replace(found, pipelines=(replace(state, targets={**state.targets, ENCODER: target}),))


def memory_after(found: Snapshot) -> PoolMemory:
    memory = next(pool.memory for pool in decide(found, Policy()).pools if pool.name == "inferentia")
    return replace(memory, instances=None)


class TestNodesOnTheirWay:
    def test_without_a_node_on_its_way_the_deadline_counts(self, planner: Planner) -> None:
        assert "0/3 nodes are available" in memory_after(snapshot(PLENTY)).reason

    @pytest.mark.parametrize("age_s", [0.0, 899.0])
    def test_a_launched_claim_holds_the_deadline_for_as_long_as_it_may_take(
        self, age_s: float, planner: Planner
    ) -> None:
        assert memory_after(snapshot(replace(PLENTY, claims=nodes(NOW_S - age_s)))) == PoolMemory()

    def test_a_claim_that_does_not_register_holds_it_no_longer(self, planner: Planner) -> None:
        assert memory_after(snapshot(replace(PLENTY, claims=nodes(NOW_S - 901)))).reason

    def test_nodes_that_may_be_for_others_do_not_hold_it_for_ever(self, planner: Planner) -> None:
        """A busy NodePool always has a node on its way."""
        young = replace(PLENTY, claims=nodes(NOW_S - 10))
        assert memory_after(snapshot(young, pending_s=NOW_S - 1799)) == PoolMemory()
        assert memory_after(snapshot(young, pending_s=NOW_S - 1800)).reason

    def test_a_node_that_is_announced_for_the_pod_holds_the_deadline(self, planner: Planner) -> None:
        assert memory_after(snapshot(PLENTY, nodes(NOW_S - 600))) == PoolMemory()
        assert memory_after(snapshot(PLENTY, nodes(NOW_S - 901))).reason

    def test_two_nodes_hold_it_and_a_third_does_not(self, planner: Planner) -> None:
        begun_s = PENDING_S
        assert memory_after(snapshot(PLENTY, nodes(begun_s, NOW_S - 300))) == PoolMemory()
        assert memory_after(snapshot(PLENTY, nodes(begun_s, begun_s + 100, NOW_S - 10))).reason

    def test_a_node_that_failed_counts_as_one_of_the_two(self, planner: Planner) -> None:
        """The first claim is gone, and only its Event is left."""
        failed = replace(PLENTY, failures=failures(PENDING_S + 1), created_at_s=NOW_S - 300)
        assert memory_after(snapshot(replace(failed, claims=nodes(NOW_S - 300, names="b")))) == PoolMemory()
        twice = replace(failed, failures=failures(PENDING_S + 1, PENDING_S + 2))
        assert memory_after(snapshot(replace(twice, claims=nodes(NOW_S - 300, names="c")))).reason

    def test_nodes_that_were_announced_for_an_earlier_pod_of_this_name_do_not_count(self, planner: Planner) -> None:
        earlier = nodes(PENDING_S - 60, names="x")
        assert memory_after(snapshot(PLENTY, (*earlier, *nodes(PENDING_S, NOW_S - 300)))) == PoolMemory()
        assert memory_after(snapshot(PLENTY, earlier)).reason

    def test_a_pool_that_names_no_node_pool_waits_for_no_node(self, planner: Planner) -> None:
        assert memory_after(snapshot(None, nodes(NOW_S - 10))).reason


class TestNoCapacity:
    """The provider has no capacity: seconds after the replicas became pending, and long before the deadline."""

    YOUNG_S = NOW_S - 100.0

    def reason(self, node_pool: NodePoolState, expected: Sequence[ExpectedNode] = ()) -> str:
        return memory_after(snapshot(node_pool, expected, pending_s=self.YOUNG_S)).reason

    def test_no_new_claim_within_a_minute_fails_the_pool_with_the_words_of_the_event(self, planner: Planner) -> None:
        assert self.reason(replace(PLENTY, failures=failures(NOW_S - 59))) == ""
        assert self.reason(replace(PLENTY, failures=failures(NOW_S - 60))) == f"pod-0: {WORDS} a"

    def test_a_new_claim_is_another_try(self, planner: Planner) -> None:
        failed = replace(PLENTY, failures=failures(NOW_S - 70))
        assert self.reason(replace(failed, created_at_s=NOW_S - 40)) == ""
        assert self.reason(replace(failed, created_at_s=NOW_S - 80))
        assert self.reason(failed, nodes(NOW_S - 40, names="b")) == ""
        assert self.reason(failed, nodes(NOW_S - 72))

    def test_a_second_failure_is_final(self, planner: Planner) -> None:
        failed = replace(PLENTY, failures=failures(NOW_S - 20, NOW_S - 1), created_at_s=NOW_S - 5)
        assert self.reason(failed) == f"pod-0: {WORDS} b"

    def test_launches_of_one_batch_that_fail_together_are_one_failure(self, planner: Planner) -> None:
        batch = replace(PLENTY, failures=failures(NOW_S - 6, NOW_S - 5), created_at_s=NOW_S - 8)
        assert self.reason(batch) == ""
        assert self.reason(batch, nodes(NOW_S - 8, NOW_S - 8)) == ""
        assert self.reason(batch, nodes(NOW_S - 8, NOW_S - 5.5)) == f"pod-0: {WORDS} b", "the second was another try"

    def test_a_sibling_that_was_created_before_the_failure_is_no_new_try(self, planner: Planner) -> None:
        sibling = nodes(NOW_S - 58, names="x")
        failed = replace(PLENTY, failures=failures(NOW_S - 60), claims=sibling, created_at_s=NOW_S - 61)
        assert self.reason(failed) == f"pod-0: {WORDS} a"

    def test_a_node_on_its_way_to_others_does_not_delay_the_failure(self, planner: Planner) -> None:
        older = nodes(NOW_S - 90, names="x")
        assert self.reason(replace(PLENTY, failures=failures(NOW_S - 60), claims=older)) == f"pod-0: {WORDS} a"
        twice = replace(PLENTY, failures=failures(NOW_S - 70, NOW_S - 1), claims=nodes(NOW_S - 2, names="x"))
        assert self.reason(twice) == f"pod-0: {WORDS} b"

    def test_replicas_whose_own_nodes_are_on_their_way_wait_for_them(self, planner: Planner) -> None:
        theirs = nodes(NOW_S - 90, names="x")
        failed = replace(PLENTY, failures=failures(NOW_S - 60), claims=theirs)
        found = snapshot(failed, pending_s=self.YOUNG_S)
        (state,) = found.pipelines
        (encoder,) = [target for key, target in state.found() if key == ENCODER]
        first, second = encoder.pending
        both = replace(encoder, pending=(replace(first, expected=theirs), replace(second, expected=theirs)))
        one = replace(encoder, pending=(replace(first, expected=theirs), second))
        assert memory_after(with_encoder(found, both)) == PoolMemory()
        assert memory_after(with_encoder(found, one)).reason == f"pod-1: {WORDS} a"
        world = with_encoder(found, one)
        assert most_of(bounded(world.pipelines[0], world), OUTAGE) == {ENCODER: 3}

    @pytest.mark.parametrize("announced", [True, False])
    def test_a_launch_that_failed_for_another_pool_of_the_node_pool_is_no_failure_of_this_one(
        self, announced: bool, planner: Planner
    ) -> None:
        """The spot nodes of a NodePool run out; replicas of its on-demand nodes wait at the same time."""
        failed = replace(PLENTY, failures=failures(NOW_S - 60))
        found = snapshot(failed, pending_s=self.YOUNG_S)
        (state,), gpu = found.pipelines, PoolName("gpu")
        target = a_target(2, ready=1, pending_since_s=[self.YOUNG_S])
        pending = replace(target.pending[0], expected=nodes(NOW_S - 65) if announced else ())
        both = replace(
            found,
            pipelines=(replace(state, targets={**state.targets, ENCODER_GPU: replace(target, pending=(pending,))}),),
            pools={**found.pools, gpu: replace(found.pools[gpu], node_pool=failed)},
        )
        reasons = {pool.name: pool.memory.reason for pool in decide(both, Policy()).pools}
        assert reasons[gpu] == f"pod-0: {WORDS} a"
        assert reasons[PoolName("inferentia")] == ("" if announced else f"pod-0: {WORDS} a")

    def test_failures_before_the_last_node_or_the_replicas_do_not_count(self, planner: Planner) -> None:
        old = failures(NOW_S - 99, NOW_S - 90)
        assert self.reason(replace(PLENTY, failures=old))
        assert self.reason(replace(PLENTY, failures=old, registered_at_s=NOW_S - 80)) == ""
        assert self.reason(replace(PLENTY, failures=failures(self.YOUNG_S - 2, self.YOUNG_S - 1))) == ""

    def test_the_replicas_are_withdrawn_and_served_elsewhere_in_that_cycle(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 2, ENCODER_GPU: 2})
        failed = replace(PLENTY, failures=failures(NOW_S - 60))
        (decision,) = decide(snapshot(failed, pending_s=self.YOUNG_S), Policy()).pipelines
        assert {(change.placement, change.after) for change in decision.changes} == {("inferentia", 2), ("gpu", 2)}


class TestLaunches:
    def test_what_was_measured_counts_then_what_was_remembered_then_two_minutes(self) -> None:
        def known(launch_s: float | None, remembered_s: float | None) -> float:
            elastic = a_pool("inferentia", node_pool=replace(PLENTY, launch_s=launch_s))
            elastic = replace(elastic, memory=PoolMemory(launch_s=remembered_s))
            (only,) = launches_s(a_snapshot(a_state(), fleet=pools(a_pool("cpu"), elastic, a_pool("gpu")))).items()
            assert only[0] == "inferentia"
            return only[1]

        assert (known(200.0, 300.0), known(None, 300.0), known(None, None)) == (200.0, 300.0, 120.0)

    def test_the_last_time_is_remembered_when_the_nodes_are_gone(self, planner: Planner) -> None:
        assert memory_after(snapshot(replace(PLENTY, launch_s=200.0, claims=nodes(NOW_S)))).launch_s == 200.0
        found = snapshot(replace(PLENTY, claims=nodes(NOW_S)))
        pool = PoolName("inferentia")
        kept = {**found.pools, pool: replace(found.pools[pool], memory=PoolMemory(launch_s=300.0))}
        assert memory_after(replace(found, pools=kept)).launch_s == 300.0


class TestBounds:
    def elastic(self, **node_pool: object) -> PoolState:
        made = NodePoolState(**node_pool)  # type: ignore[arg-type]
        return a_pool("inferentia", instances=None, ready=2, node_pool=made)

    def test_an_elastic_pool_may_have_pending_replicas_up_to_its_ceiling(self) -> None:
        pool = self.elastic(instances=6)
        assert (pool.limit, pool.firm, pool.limit_holding(2)) == (6, True, 6)

    def test_the_smallest_bound_counts(self) -> None:
        stated = replace(self.elastic(instances=6).spec, instances=4)
        assert replace(self.elastic(instances=6), spec=stated).limit == 4
        assert replace(self.elastic(instances=3), spec=stated).limit == 3
        fixed = a_pool("cpu", instances=5, ready=3, ready_nodes=True)
        assert (fixed.limit, fixed.firm, fixed.limit_holding(4), fixed.limit_holding(7)) == (3, False, 4, 5)
        assert replace(fixed, ready_instances=9).limit == 5

    def test_some_instances_are_offered_until_a_node_was_seen_and_what_runs_stays(self) -> None:
        pool = self.elastic(instances=1, unseen=True)
        assert (pool.limit, pool.firm, pool.limit_holding(30)) == (UNSEEN_INSTANCES, False, 30)
        known = replace(pool, memory=PoolMemory(instances=5))
        assert (known.limit, known.firm) == (5, False), "as many as the limits allowed while a node was there"
        assert self.elastic(instances=0, unseen=True).limit == 0, "the limits are used up"

    def test_in_the_morning_each_stage_gets_what_it_needs_and_no_load_is_refused(self) -> None:
        """After a night without nodes, nothing says how many the limits allow."""
        gpu = a_placement("gpu", bounds=(0, 40))
        stages = [a_stage("enc", gpu), a_stage("lm", gpu, after=["enc"])]
        spec = a_spec(*stages, sla_s=1.0)
        fleet = pools(a_pool("gpu", instances=20, ready=0, node_pool=NodePoolState(instances=1, unseen=True)))
        (decision,) = decide(a_snapshot(a_state(spec, demand=60.0), fleet=fleet), Policy()).pipelines
        assert {key[0] for key, count in decision.desired.items() if count} == {"enc", "lm"}
        assert decision.admissible is None
        busy = decide(a_snapshot(a_state(spec, demand=600.0), fleet=fleet), Policy()).pipelines[0]
        assert busy.admissible is None, "what is not known to be a limit is no reason to refuse load"

    @pytest.mark.parametrize("problem", list(NodePoolProblem))
    def test_without_any_bound_nothing_is_offered_and_what_runs_stays(self, problem: NodePoolProblem) -> None:
        pool = self.elastic(problem=problem, detail="why")
        assert (pool.limit, pool.firm, pool.limit_holding(2)) == (0, False, 2)
        stated = replace(pool, spec=replace(pool.spec, instances=4))
        assert (stated.limit, stated.firm) == (4, True)

    def test_records_of_earlier_versions_that_name_no_bound_mean_the_ready_nodes(self) -> None:
        old = a_pool("cpu", instances=None, ready=7)
        assert (old.spec.fixed, old.limit, old.firm, old.limit_holding(9)) == (True, 7, False, 9)

    def test_the_operator_asks_for_the_pod_that_makes_karpenter_launch_a_node(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 5})
        grow = pools(a_pool("cpu"), self.elastic(instances=6), a_pool("gpu"))
        (decision,) = decide(a_snapshot(a_state(replicas={VAD: 4, ENCODER: 2}), fleet=grow), Policy()).pipelines
        assert [(change.before, change.after) for change in decision.changes] == [(2, 5)]

    @pytest.mark.parametrize(
        ("node_pool", "instances", "status", "words"),
        [
            (NodePoolState(instances=6), None, "True", "NodePool inferentia allows 6 instances"),
            (NodePoolState(instances=1, unseen=True), None, "Unknown", "no node of NodePool inferentia was seen yet"),
            (NodePoolState(problem=NodePoolProblem.UNLIMITED, detail="none"), 4, "True", "capacity.instances is 4"),
            (
                NodePoolState(problem=NodePoolProblem.UNLIMITED, detail="no limits"),
                None,
                "False",
                "no replica is added",
            ),
            (
                NodePoolState(problem=NodePoolProblem.NOT_FOUND, detail="gone"),
                4,
                "False",
                "capacity.instances, 4, counts",
            ),
            (
                NodePoolState(instances=3, problem=NodePoolProblem.UNREADABLE, detail="403"),
                None,
                "False",
                "403; its last known limits count",
            ),
        ],
    )
    def test_the_condition_says_what_bounds_the_pool(
        self, node_pool: NodePoolState, instances: int | None, status: str, words: str
    ) -> None:
        pool = a_pool("inferentia", instances=instances, node_pool=node_pool)
        (known,) = [found for found in pool_conditions(pool, PoolMemory(), NOW_S) if found.type == "CapacityKnown"]
        assert (known.status, words in known.message) == (status, True), known.message
