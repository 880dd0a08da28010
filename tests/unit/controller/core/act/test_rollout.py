"""Who goes when there are to be fewer, and replicas on nodes that are to go: replaced before they do."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from builders import (
    ENCODER,
    ENCODER_GPU,
    VAD,
    a_placement,
    a_pool,
    a_scaling,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    a_target,
    pools,
    seen,
)
from planning import Planner

from controller.core.act.scale_in import FIRST_TO_GO, deletion_costs
from controller.core.assess.assessment import Assessment
from controller.core.cycle import decide
from controller.core.state.decision import ChangeReason, HoldReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import ServingReplica, TargetState
from controller.core.state.spec import Target
from optimizer.model import PipelineKey, PlacementKey, PoolName, StageName
from profiler.samples import Absence, AbsenceReason

DEPLOYMENT = Target(api_version="apps/v1", kind="Deployment", name="asr")


def serving(*replicas: ServingReplica, desired: int | None = None) -> TargetState:
    state = a_target(len(replicas) if desired is None else desired, ready=len(replicas))
    return replace(state, serving=replicas)


def named(*names: str, leaving: tuple[str, ...] = ()) -> TargetState:
    return serving(*(ServingReplica(name=name, leaving=name in leaving) for name in names))


def moves(decision: PipelineDecision) -> Mapping[PlacementKey, tuple[int, int]]:
    return {(change.stage, change.placement): (change.before, change.after) for change in decision.changes}


class TestDeletionCosts:
    def test_those_with_the_fewest_sessions_go(self) -> None:
        costs = deletion_costs(named("a", "b", "c"), DEPLOYMENT, {"a": 3, "b": 1, "c": 2}, 1)
        assert costs == {"b": FIRST_TO_GO, "c": FIRST_TO_GO}

    def test_a_pod_that_does_not_tell_counts_as_the_busiest(self) -> None:
        assert deletion_costs(named("a", "b"), DEPLOYMENT, {"b": 200}, 1) == {"b": FIRST_TO_GO}

    def test_where_nobody_tells_and_none_is_to_go_nothing_is_written(self) -> None:
        assert deletion_costs(named("a", "b"), DEPLOYMENT, {}, 1) == {}

    def test_those_on_nodes_that_are_to_go_leave_before_all_others(self) -> None:
        state = named("a", "b", "c", leaving=("c",))
        assert deletion_costs(state, DEPLOYMENT, {"a": 0, "b": 1, "c": 9}, 2) == {"c": FIRST_TO_GO}

    def test_pods_that_do_not_serve_yet_go_first_anyway(self) -> None:
        state = serving(ServingReplica(name="a"), ServingReplica(name="b"), desired=3)
        assert deletion_costs(state, DEPLOYMENT, {"a": 1, "b": 2}, 2) == {}

    def test_a_choice_of_before_is_taken_back_and_what_others_wrote_is_kept(self) -> None:
        state = serving(
            ServingReplica(name="a", deletion_cost=FIRST_TO_GO),
            ServingReplica(name="b"),
            ServingReplica(name="c", deletion_cost=7),
        )
        assert deletion_costs(state, DEPLOYMENT, {"a": 5, "b": 1, "c": 5}, 2) == {"a": 0, "b": FIRST_TO_GO}

    def test_what_is_chosen_already_is_not_written_again(self) -> None:
        state = serving(ServingReplica(name="a", deletion_cost=FIRST_TO_GO), ServingReplica(name="b"))
        assert deletion_costs(state, DEPLOYMENT, {"a": 0, "b": 1}, 1) == {}

    def test_a_stateful_set_has_an_order_of_its_own(self) -> None:
        target = Target(api_version="apps/v1", kind="StatefulSet", name="asr")
        assert deletion_costs(named("a", "b"), target, {"a": 1, "b": 2}, 1) == {}

    def test_an_instance_that_is_protected_from_scale_in_stays_as_long_as_others_can_go(self) -> None:
        target = Target(api_version="sluice.dev/v1alpha1", kind="AutoScalingGroup", name="vad")
        state = serving(*(ServingReplica(name=name, protected=name == "a") for name in "abc"))
        assert deletion_costs(state, target, {"a": 0, "b": 5, "c": 2}, 2) == {"c": FIRST_TO_GO}
        assert deletion_costs(state, target, {"a": 0, "b": 5, "c": 2}, 1) == {"b": FIRST_TO_GO, "c": FIRST_TO_GO}

    def test_the_decision_carries_them(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 1})
        samples = {ENCODER: replace(seen(), sessions={"a": 4, "b": 3})}
        state = a_state(replicas={VAD: 4, ENCODER: named("a", "b")}, samples=samples)
        (change,) = decide(a_snapshot(state), Policy()).pipelines[0].changes
        assert change.deletion_costs == {"b": FIRST_TO_GO}


class TestNodesThatAreToGo:
    def fleet(self, *, leaving: int = 1, ready: int = 4) -> Mapping[PoolName, object]:
        return pools(a_pool("cpu"), a_pool("inferentia", instances=ready, ready=ready, leaving=leaving), a_pool("gpu"))

    def decided(self, target: TargetState, **world: int) -> PipelineDecision:
        state = a_state(replicas={VAD: 4, ENCODER: target})
        return decide(a_snapshot(state, fleet=self.fleet(**world)), Policy()).pipelines[0]  # type: ignore[arg-type]

    def test_their_replicas_are_replaced_before_they_go(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 3})
        decision = self.decided(named("a", "b", "c", leaving=("c",)))
        assert moves(decision) == {ENCODER: (3, 4)}
        assert {change.reason for change in decision.changes} == {ChangeReason.NODES_LEAVING}
        assert planner.problems[0].pools[PoolName("inferentia")].instances == 3
        assert planner.problems[0].pipelines[0].stages[1].placements[0].current == 2

    def test_they_leave_when_the_others_are_ready_and_not_before(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 3})
        starting = replace(named("a", "b", "c", leaving=("c",)), desired=4, existing=4)
        assert not self.decided(starting).changes
        decision = self.decided(named("a", "b", "c", "d", leaving=("c",)))
        assert moves(decision) == {ENCODER: (4, 3)}
        assert decision.changes[0].deletion_costs == {"c": FIRST_TO_GO}

    def test_where_the_pool_has_no_room_for_them_they_go_elsewhere(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 3, ENCODER_GPU: 1})
        decision = self.decided(named("a", "b", "c", "d", leaving=("c",)))
        assert moves(decision) == {ENCODER_GPU: (0, 1)}

    def test_replacements_do_not_exceed_replicas_max(self, planner: Planner) -> None:
        """The workload's controller replaces the replica when its node is gone."""
        planner.wants({VAD: 4, ENCODER: 3})
        vad, encoder = a_spec().stages
        first, *others = encoder.placements
        for most, expected in ((3, {}), (4, {ENCODER: (3, 4)})):
            bounded = replace(first, prior=replace(first.prior, max_replicas=most))
            spec = replace(a_spec(), stages=(vad, replace(encoder, placements=(bounded, *others))))
            state = a_state(spec, replicas={VAD: 4, ENCODER: named("a", "b", "c", leaving=("c",))})
            decided = decide(a_snapshot(state, fleet=self.fleet()), Policy()).pipelines[0]  # type: ignore[arg-type]
            assert moves(decided) == expected

    def test_a_controller_that_chooses_itself_who_goes_gets_no_replacements(self, planner: Planner) -> None:
        """A StatefulSet would remove the replacements first: two started and two ended in every minute."""
        planner.wants({VAD: 4, ENCODER: 3})
        vad, encoder = a_spec().stages
        first, *others = encoder.placements
        own = replace(first, target=replace(first.target, kind="StatefulSet"))
        spec = replace(a_spec(), stages=(vad, replace(encoder, placements=(own, *others))))
        state = a_state(spec, replicas={VAD: 4, ENCODER: named("a", "b", "c", leaving=("c",))})
        decision = decide(a_snapshot(state, fleet=self.fleet()), Policy()).pipelines[0]  # type: ignore[arg-type]
        assert not decision.changes
        assert HoldReason.NODES_LEAVING in {hold.reason for hold in decision.holds}

    def test_where_there_is_no_plan_without_the_nodes_what_runs_on_them_serves_to_the_end(
        self, planner: Planner
    ) -> None:
        planner.wants({VAD: 4, ENCODER: 4})
        planner.served = 0.5
        self.decided(named("a", "b", "c", "d", leaving=("a", "b", "c", "d")), leaving=4)
        assert [problem.pools[PoolName("inferentia")].instances for problem in planner.problems] == [0, 4]

    def test_without_data_nothing_is_added_for_them_again_and_again(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 3})
        state = a_state(
            demand=Absence(reason=AbsenceReason.MISSING),
            replicas={VAD: 4, ENCODER: named("a", "b", "c", leaving=("c",))},
        )
        assert not decide(a_snapshot(state, fleet=self.fleet()), Policy()).pipelines[0].changes  # type: ignore[arg-type]


class TestAcrossStages:
    """Eighty requests a second within 300 ms: one vad takes 65 ms longer than two, one encoder more makes it up."""

    def decided(self, encoders: TargetState, *, demand: float = 80.0) -> PipelineDecision:
        state = a_state(a_spec(sla_s=0.3), demand=demand, replicas={VAD: 2, ENCODER: encoders})
        return decide(a_snapshot(state), Policy()).pipelines[0]

    def test_a_stage_becomes_slower_only_when_the_other_is_faster(self, planner: Planner) -> None:
        planner.wants({VAD: 1, ENCODER: 6})
        starting = self.decided(a_target(6, ready=5))
        assert not starting.changes
        assert HoldReason.AWAITING_CAPACITY in {hold.reason for hold in starting.holds}
        assert moves(self.decided(a_target(6))) == {VAD: (2, 1)}

    def test_it_does_so_at_once_where_all_stays_in_time_or_nothing_is(self, planner: Planner) -> None:
        planner.wants({VAD: 1, ENCODER: 6})
        assert moves(self.decided(a_target(6, ready=5), demand=60.0)) == {VAD: (2, 1)}
        assert moves(self.decided(a_target(6, ready=4), demand=80.0)) == {VAD: (2, 1)}


class TestShortOfMoney:
    """A replica costs 0.125 at vad (100/s), 1 on inferentia (20/s) and 2 on the gpu (50/s)."""

    def decided(
        self, budget: float, replicas: Mapping[PlacementKey, int | TargetState], *, latency_s: float | None = None
    ) -> PipelineDecision:
        state = a_state(a_spec(budget=budget), replicas=replicas)
        return decide(a_snapshot(replace(state, latency_s=latency_s)), Policy()).pipelines[0]

    def test_what_there_is_goes_to_the_stage_that_has_least_of_what_it_needs(self, planner: Planner) -> None:
        planner.wants({VAD: 8, ENCODER: 8})
        assert moves(self.decided(5.2, {VAD: 1, ENCODER: 4})) == {VAD: (1, 8)}
        assert moves(self.decided(3.75, {VAD: 6, ENCODER: 2})) == {ENCODER: (2, 3)}

    def test_where_all_fits_all_is_granted(self, planner: Planner) -> None:
        planner.wants({VAD: 8, ENCODER: 8})
        assert moves(self.decided(9.0, {VAD: 1, ENCODER: 4})) == {VAD: (1, 8), ENCODER: (4, 8)}

    def test_room_that_a_short_stage_waits_for_is_not_given_to_one_that_has_more(self, planner: Planner) -> None:
        planner.wants({VAD: 8, ENCODER: 4})
        leaving = a_target(0, terminating=1)
        assert not self.decided(4.0, {VAD: 4, ENCODER: 1, ENCODER_GPU: leaving}).changes
        assert moves(self.decided(4.0, {VAD: 4, ENCODER: 1})) == {ENCODER: (1, 3), VAD: (4, 8)}

    def test_room_that_nobody_makes_is_not_kept(self, planner: Planner) -> None:
        planner.wants({VAD: 8, ENCODER: 4})
        assert moves(self.decided(1.9, {VAD: 4, ENCODER: 1})) == {VAD: (4, 7)}

    def exchange(self, vad: int) -> dict[PlacementKey, int | TargetState]:
        """The encoder goes from the gpu to inferentia, where half of what it needs is ready."""
        return {VAD: vad, ENCODER: a_target(8, ready=4), ENCODER_GPU: 2}

    def test_what_a_stage_leaves_makes_room_for_one_that_has_less_while_items_are_late(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 8})
        assert moves(self.decided(12.3, self.exchange(vad=2), latency_s=0.9)) == {ENCODER_GPU: (2, 1)}

    def test_it_stays_where_nobody_is_late_or_nobody_has_less(self, planner: Planner) -> None:
        planner.wants({VAD: 4, ENCODER: 8})
        assert not self.decided(12.3, self.exchange(vad=2), latency_s=0.1).changes
        assert not self.decided(12.3, self.exchange(vad=2)).changes
        assert not self.decided(12.4, self.exchange(vad=3), latency_s=0.9).changes

    def test_a_move_without_room_begins_with_what_it_leaves_but_for_the_last_that_serves_well(
        self, planner: Planner
    ) -> None:
        planner.wants({VAD: 4, ENCODER: 4})
        assert moves(self.decided(4.6, {VAD: 4, ENCODER_GPU: 2})) == {ENCODER_GPU: (2, 1)}
        alone = self.decided(2.6, {VAD: 4, ENCODER_GPU: 1})
        assert not alone.changes, "nothing would serve until the others have started"
        assert HoldReason.AWAITING_CAPACITY in {hold.reason for hold in alone.holds}

    def test_the_last_one_goes_where_items_are_late_or_it_carries_little_or_is_not_wanted(
        self, planner: Planner
    ) -> None:
        planner.wants({VAD: 4, ENCODER: 4})
        only = {VAD: 4, ENCODER_GPU: 1}
        gone = {ENCODER_GPU: (1, 0)}
        assert moves(self.decided(2.6, only, latency_s=0.9)) == gone
        spec = a_spec(budget=2.6)
        encoder = spec.stages[1]
        bounded = replace(encoder.placements[1], prior=replace(encoder.placements[1].prior, max_replicas=0))
        spec = replace(spec, stages=(spec.stages[0], replace(encoder, placements=(encoder.placements[0], bounded))))
        assert moves(decide(a_snapshot(a_state(spec, replicas=only)), Policy()).pipelines[0]) == gone
        planner.wants({VAD: 4, ENCODER: 6})
        assert moves(self.decided(2.6, only)) == gone

    def test_above_the_cap_others_go_instead_of_the_last_one_that_serves(self, planner: Planner) -> None:
        planner.wants({VAD: 16, ENCODER: 1})
        replicas = {VAD: 16, ENCODER_GPU: 1}
        assert moves(self.decided(3.0, replicas)) == {VAD: (16, 8)}
        assert moves(self.decided(2.9, replicas)) == {ENCODER_GPU: (1, 0)}, "less than half of the vad would be left"
        planner.wants({VAD: 16, ENCODER: 6})
        assert moves(self.decided(3.0, replicas)) == {ENCODER_GPU: (1, 0)}, "it carries less than half itself"

    def test_above_the_cap_what_is_too_cheap_to_matter_stays(self, planner: Planner) -> None:
        stages = (
            a_stage("vad", a_placement("cpu", per_instance=8)),
            a_stage("encoder", a_placement("inferentia"), a_placement("gpu"), after=["vad"]),
            a_stage("decoder", a_placement("gpu"), after=["encoder"]),
        )
        decoder = (StageName("decoder"), PoolName("gpu"))
        planner.wants({VAD: 8, ENCODER: 1, decoder: 3})
        state = a_state(a_spec(*stages, budget=7.0), replicas={VAD: 8, ENCODER_GPU: 1, decoder: 3})
        assert moves(decide(a_snapshot(state), Policy()).pipelines[0]) == {decoder: (3, 2)}


def test_the_work_of_a_cycle_does_not_grow_with_the_square_of_the_fleet(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search for pipelines that share stages once took two minutes of a cycle of 5,000 pipelines."""
    asked = 0
    lenders: Callable[[Assessment], frozenset[PipelineKey]] = vars(Assessment)["lenders"].fget

    def counted(self: Assessment) -> frozenset[PipelineKey]:
        nonlocal asked
        asked += 1
        return lenders(self)

    monkeypatch.setattr(Assessment, "lenders", property(counted))

    def questions(pipelines: int) -> int:
        nonlocal asked
        asked = 0
        decide(a_snapshot(*(a_state(a_spec(name=f"p{number}")) for number in range(pipelines))), Policy())
        return asked

    assert questions(20) <= 2 * questions(10)


@pytest.mark.parametrize("budget", [None, 30.0])
@pytest.mark.parametrize("down", [100, 2 * 10**9])
def test_a_million_replicas_that_someone_asked_for_take_no_million_steps(budget: float | None, down: int) -> None:
    asr = StageName("asr")
    spec = a_spec(
        a_stage("asr", a_placement("gpu", bounds=(0, 2 * 10**9))), scaling=a_scaling(down_s=0.0, down=down), budget=1e12
    )
    asked = a_target(10**9, existing=8, ready=8)
    other = a_spec(a_stage("asr", a_placement("gpu")), name="other")
    snapshot = a_snapshot(
        a_state(spec, demand=100.0, replicas={(asr, PoolName("gpu")): asked}),
        a_state(other, demand=100.0, replicas={(asr, PoolName("gpu")): 2}),
        fleet=pools(a_pool("gpu", instances=40, ready=40)),
    )
    decision = decide(snapshot, Policy(budget_per_hour=budget))
    (change,) = decision.pipelines[0].changes
    assert change.after < 10**9
    assert [own.desired[(asr, PoolName("gpu"))] >= 2 for own in decision.pipelines] == [True, True]
