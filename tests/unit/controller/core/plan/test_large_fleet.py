"""A fleet too large for one cycle: three pipelines are, in these tests, of which one is planned in a turn."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import sharing
from builders import a_placement, a_pool, a_scaling, a_snapshot, a_spec, a_stage, a_state, a_target, applied, pools

from controller.core import cycle
from controller.core.codec import decode, encode
from controller.core.cycle import decide
from controller.core.plan import large_fleet
from controller.core.record import decision_record, differences, recorded_inputs
from controller.core.state.decision import Decision, HoldReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import BudgetState, PipelineState, Planned, PoolState, Snapshot
from controller.core.state.spec import BudgetSpec, LabelSelector, StageSpec
from controller.kube.durable import memory_document, memory_from, planned_from, planned_text, resumed
from optimizer.model import Basis, PipelineKey, PlacementKey, PoolName, StageName

ASR: PlacementKey = (StageName("asr"), PoolName("gpu"))
FLEET = pools(a_pool("gpu", instances=40))


@pytest.fixture(autouse=True)
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle, "AT_ONCE", 1)
    monkeypatch.setattr(large_fleet, "PER_TURN", 1)
    monkeypatch.setattr(large_fleet, "AGAIN_PER_TURN", 0)


def a_pipeline(name: str, demand: float, *, running: int = 1, priority: int = 0, most: int = 20) -> PipelineState:
    stage = a_stage("asr", a_placement("gpu", bounds=(1, most)))
    return a_state(a_spec(stage, name=name, priority=priority), demand=demand, replicas={ASR: running})


def own(decision: Decision, name: str) -> PipelineDecision:
    return next(pipeline for pipeline in decision.pipelines if pipeline.spec.name == name)


def waiting(decision: Decision) -> set[str]:
    return {
        pipeline.spec.name
        for pipeline in decision.pipelines
        if HoldReason.AWAITING_TURN in {hold.reason for hold in pipeline.holds}
    }


def after(cycles: int, snapshot: Snapshot) -> tuple[Snapshot, Decision]:
    decision = decide(snapshot, Policy())
    for _ in range(cycles - 1):
        snapshot = applied(snapshot, decision)
        decision = decide(snapshot, Policy())
    return snapshot, decision


def with_demand(snapshot: Snapshot, **demands: float) -> Snapshot:
    states = [replace(s, demand=demands.get(s.spec.name, s.demand)) for s in snapshot.pipelines]
    return replace(snapshot, pipelines=tuple(states))


def desired(states: Sequence[PipelineState], fleet: Mapping[PoolName, PoolState]) -> dict[PipelineKey, int]:
    _, decision = after(8, a_snapshot(*states, fleet=fleet))
    return {pipeline.key: pipeline.desired[ASR] for pipeline in decision.pipelines}


def test_where_pools_suffice_turns_come_to_what_planning_together_comes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [a_pipeline("a", 50.0), a_pipeline("b", 90.0), a_pipeline("c", 5.0, running=6)]
    in_turns = desired(states, FLEET)
    monkeypatch.setattr(cycle, "AT_ONCE", 100)
    assert in_turns == desired(states, FLEET)
    assert len(set(in_turns.values())) == 3


def test_until_its_turn_a_pipeline_stays_as_it_is_and_says_so() -> None:
    first = decide(a_snapshot(a_pipeline("a", 50.0), a_pipeline("b", 50.0), fleet=FLEET), Policy())
    assert waiting(first) == {"b"}
    assert own(first, "a").changes
    assert not own(first, "b").changes
    assert own(first, "b").planned is None


def test_a_plan_stands_until_what_it_was_made_for_has_changed() -> None:
    world, settled = after(6, a_snapshot(a_pipeline("a", 50.0), a_pipeline("b", 50.0), fleet=FLEET))
    assert waiting(settled) == set()
    assert [pipeline.plan and pipeline.plan.moved_replicas for pipeline in settled.pipelines] == [0, 0]
    hardly = decide(with_demand(applied(world, settled), a=50.5), Policy())
    assert own(hardly, "a").plan is own(settled, "a").plan
    more = decide(with_demand(applied(world, settled), a=80.0), Policy())
    assert own(more, "a").plan is not own(settled, "a").plan
    assert own(more, "b").plan is own(settled, "b").plan


def test_what_has_changed_most_is_planned_first() -> None:
    names = ("a", "b", "c", "d")
    world, settled = after(10, a_snapshot(*(a_pipeline(name, 50.0) for name in names), fleet=FLEET))
    world = with_demand(applied(world, settled), a=56.0, b=57.0, c=110.0, d=54.0)
    decision = decide(world, Policy())
    assert {pipeline.spec.name for pipeline in decision.pipelines if pipeline.changes} == {"c"}


def test_a_pipeline_gets_its_first_plan_however_much_others_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_fleet, "PER_TURN", 2)
    world, settled = after(6, a_snapshot(a_pipeline("a", 50.0), a_pipeline("b", 50.0), fleet=FLEET))
    world = applied(world, settled)
    world = replace(world, pipelines=(*world.pipelines, a_pipeline("c", 10.0)))
    decision = decide(with_demand(world, a=90.0, b=95.0), Policy())
    assert waiting(decision) == set()
    assert {name for name in "ab" if own(decision, name).changes} == {"b"}


def test_what_runs_outside_its_bounds_is_planned_before_all_others() -> None:
    states = [a_pipeline("a", 500.0), a_pipeline("b", 10.0, running=5, most=3)]
    decision = decide(a_snapshot(*states, fleet=FLEET), Policy())
    assert own(decision, "b").desired[ASR] <= 3
    assert waiting(decision) == {"a"}


def test_a_price_that_changes_asks_for_new_plans() -> None:
    world, settled = after(4, a_snapshot(a_pipeline("a", 50.0), a_pipeline("b", 50.0), fleet=FLEET))
    world = replace(applied(world, settled), pools=pools(a_pool("gpu", price=3.0, instances=40)))
    decision = decide(world, Policy())
    assert [own(decision, name).plan is own(settled, name).plan for name in "ab"] == [False, True]


def test_when_a_price_changes_the_pipelines_whose_demand_has_changed_too_are_planned_first() -> None:
    world, settled = after(8, a_snapshot(*(a_pipeline(name, 50.0) for name in "abc"), fleet=FLEET))
    world = replace(applied(world, settled), pools=pools(a_pool("gpu", price=3.0, instances=40)))
    decision = decide(with_demand(world, b=52.0, c=90.0), Policy())
    assert [own(decision, name).plan is own(settled, name).plan for name in "abc"] == [True, True, False]


def planned_now(decision: Decision) -> set[str]:
    return {own.spec.name for own in decision.pipelines if own.planned and own.planned.at_s == decision.now_s}


def test_of_pipelines_whose_terms_change_in_every_cycle_each_gets_its_turn() -> None:
    world, decision = after(6, a_snapshot(*(a_pipeline(name, 50.0) for name in "abc"), fleet=FLEET))
    turns = list[set[str]]()
    for price in (2.0, 3.0, 4.0):
        world = replace(applied(world, decision), pools=pools(a_pool("gpu", price=price, instances=40)))
        decision = decide(world, Policy())
        turns.append(planned_now(decision))
    assert sorted(turns, key=sorted) == [{"a"}, {"b"}, {"c"}]


def test_of_those_that_lack_capacity_the_most_important_one_is_planned_again_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tight = pools(a_pool("gpu", instances=6))
    states = [a_pipeline(name, 200.0, priority=priority) for name, priority in (("a", 0), ("b", 0), ("z", 5))]
    world, settled = after(10, a_snapshot(*states, fleet=tight))
    monkeypatch.setattr(large_fleet, "AGAIN_PER_TURN", 1)
    monkeypatch.setattr(large_fleet, "TOGETHER", 2)
    world = applied(world, settled)
    for _ in range(3):
        decision = decide(world, Policy())
        assert "z" in planned_now(decision)
        world = applied(world, decision)


@pytest.mark.parametrize(
    "edited",
    [
        a_stage("asr", a_placement("gpu", bounds=(1, 20)), a_placement("cpu", bounds=(1, 20))),
        a_stage("asr", a_placement("cpu", bounds=(1, 20))),
        a_stage("words", a_placement("gpu", bounds=(1, 20))),
    ],
    ids=["a placement more", "another placement", "a stage renamed"],
)
def test_a_plan_of_other_placements_is_not_kept_by_who_has_to_wait(edited: StageSpec) -> None:
    fleet = pools(a_pool("gpu", instances=40), a_pool("cpu", instances=40))
    world, settled = after(6, a_snapshot(*(a_pipeline(name, 50.0) for name in "ab"), fleet=fleet))
    assert own(settled, "b").planned is not None
    world = with_demand(applied(world, settled), a=500.0)
    first, second = world.pipelines
    spec = a_spec(edited, name="b")
    targets = {key: a_target(4) for key in spec.placement_keys()}
    second = replace(second, spec=spec, targets=targets, samples={})
    urgent = replace(first, spec=replace(first.spec, stages=(a_stage("asr", a_placement("gpu", bounds=(7, 20))),)))
    world = replace(world, pipelines=(urgent, second))
    decision = decide(world, Policy())
    assert waiting(decision) == {"b"}
    assert not own(decision, "b").changes
    assert own(decide(applied(world, decision), Policy()), "b").planned is not None


def test_turns_never_give_out_more_of_a_pool_than_there_is() -> None:
    tight = pools(a_pool("gpu", instances=7))
    world = a_snapshot(*(a_pipeline(name, 60.0) for name in "abc"), fleet=tight)
    for _ in range(8):
        decision = decide(world, Policy())
        assert sum(pipeline.desired[ASR] for pipeline in decision.pipelines) <= 7
        world = applied(world, decision)


def test_a_more_important_pipeline_gets_what_less_important_ones_hold() -> None:
    tight = pools(a_pool("gpu", instances=7))
    states = [a_pipeline("low", 60.0, running=5), a_pipeline("high", 60.0, running=1, priority=5)]
    _, decision = after(10, a_snapshot(*states, fleet=tight))
    high, low = own(decision, "high"), own(decision, "low")
    assert high.plan is not None
    assert high.plan.feasible
    assert high.desired[ASR] > low.desired[ASR]


def test_a_more_important_pipeline_gets_what_less_important_ones_hold_by_a_variant() -> None:
    tight = pools(a_pool("gpu", instances=7))
    named = a_placement("gpu", bounds=(1, 20))
    named = replace(named, prior=replace(named.prior, variant="int8"))
    key = (StageName("asr"), named.prior.name)
    low = a_state(a_spec(a_stage("asr", named), name="low"), demand=60.0, replicas={key: 5})
    high = a_pipeline("high", 60.0, running=1, priority=5)
    _, decision = after(10, a_snapshot(low, high, fleet=tight))
    plan = own(decision, "high").plan
    assert plan is not None
    assert plan.feasible
    assert own(decision, "high").desired[ASR] > own(decision, "low").desired[key]


def test_the_fleets_budget_is_kept() -> None:
    policy = Policy(budget_per_hour=6.0)
    world = a_snapshot(*(a_pipeline(name, 60.0) for name in "abc"), fleet=FLEET)
    for _ in range(8):
        decision = decide(world, policy)
        assert sum(pipeline.desired[ASR] for pipeline in decision.pipelines) <= 6
        world = applied(world, decision)


@pytest.mark.extended
def test_a_budget_that_is_cut_and_raised_is_followed_by_priority_and_without_swings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # the limits of production
    stage = a_stage("asr", a_placement("gpu", service_s=0.05, bounds=(1, 20)))
    scaling = a_scaling(down_s=0.0, up=100, down=100)
    states = [
        a_state(
            a_spec(stage, name=f"p{number:03}", priority=number % 3, scaling=scaling), demand=30.0, replicas={ASR: 2}
        )
        for number in range(300)
    ]
    keys = frozenset(state.spec.key for state in states)
    spec = BudgetSpec(name="team", uid="team", generation=1, selector=LabelSelector(labels={}), per_hour=1000.0)
    namespaces = frozenset({states[0].spec.namespace})
    world = replace(
        a_snapshot(*states, fleet=pools(a_pool("gpu", price=1.0, instances=2000))),
        budgets=(BudgetState(spec=spec, namespaces=namespaces),),
    )

    def with_budget(per_hour: float, cycles: int) -> list[tuple[float, list[int]]]:
        """Return the planned cost and the desired replicas of each priority, in each cycle."""
        nonlocal world
        world = replace(world, budgets=(replace(world.budgets[0], spec=replace(spec, per_hour=per_hour)),))
        found = []
        for _ in range(cycles):
            decision = decide(world, Policy(advice=False))
            assert frozenset(decision.budgets[0].pipelines) == keys
            world = applied(world, decision)
            desired = [0, 0, 0]
            for pipeline in decision.pipelines:
                desired[pipeline.spec.priority] += pipeline.desired[ASR]
            found.append((decision.budgets[0].planned_per_hour, desired))
        return found

    assert with_budget(1000.0, 2)[-1] == (600.0, [200, 200, 200])
    assert with_budget(450.0, 10) == [(450.0, [100, 150, 200])] * 10, "minimum replicas, then by priority"
    assert with_budget(550.0, 3) == [(550.0, [150, 200, 200])] * 3


def test_budgets_for_whole_nodes_are_kept() -> None:
    stage = a_stage("asr", a_placement("gpu", bounds=(1, 20), per_instance=4))
    world = a_snapshot(
        *(
            a_state(a_spec(stage, name=name, budget=2.0, basis=Basis.INSTANCES), demand=150.0, replicas={ASR: 1})
            for name in "abc"
        ),
        fleet=FLEET,
    )
    for _ in range(8):
        decision = decide(world, Policy(budget_per_hour=3.0))
        assert sum(pipeline.desired[ASR] for pipeline in decision.pipelines) <= 12, "three nodes for four"
        world = applied(world, decision)
    assert sum(pipeline.desired[ASR] for pipeline in decision.pipelines) == 12


def test_a_recorded_turn_can_be_made_again() -> None:
    world, decision = after(3, a_snapshot(a_pipeline("a", 50.0), a_pipeline("b", 70.0), fleet=FLEET))
    record = decision_record(world, decision)
    again = decide(*recorded_inputs(record))
    assert differences(record, again) == ()
    planned = own(decision, "a").planned
    assert planned is not None
    assert decode(Planned, encode(planned)) == planned


def taken_over(snapshot: Snapshot, *, with_plans: bool = True) -> Snapshot:
    """Return what a new leader finds: memory and plans as the statuses have them."""
    states = []
    for state in snapshot.pipelines:
        document = memory_document(state.memory, planned_text(state.planned))
        memory = resumed(memory_from(document).memory, snapshot.now_s, 300.0, 15.0)
        states.append(replace(state, memory=memory, planned=planned_from(document) if with_plans else None))
    return replace(snapshot, pipelines=tuple(states))


def test_a_new_leader_goes_on_with_the_plans_of_the_former_one() -> None:
    names = ("a", "b", "c", "d", "e", "f")
    world, settled = after(
        20, a_snapshot(*(a_pipeline(name, 50.0 + 9 * n) for n, name in enumerate(names)), fleet=FLEET)
    )
    world = applied(world, settled)

    decision = decide(taken_over(world), Policy())
    assert waiting(decision) == set()
    assert [pipeline.plan for pipeline in decision.pipelines] == [pipeline.plan for pipeline in settled.pipelines]
    assert not any(pipeline.changes for pipeline in decision.pipelines)
    assert [pipeline.planned for pipeline in decision.pipelines] == [state.planned for state in world.pipelines]

    blind = decide(taken_over(world, with_plans=False), Policy())
    assert len(waiting(blind)) == len(names) - 1, "without the plans, it begins anew"


@pytest.mark.extended
def test_a_failover_of_three_hundred_pipelines_changes_no_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the limits of production
    states = [a_pipeline(f"p{number:03}", 20.0 + 5 * (number % 8)) for number in range(300)]
    world, settled = after(5, a_snapshot(*states, fleet=pools(a_pool("gpu", instances=2000))))
    assert waiting(settled) == set()
    world = applied(world, settled)
    decision = decide(taken_over(world), Policy())
    assert waiting(decision) == set()
    assert not any(pipeline.changes for pipeline in decision.pipelines)


def test_a_new_leader_plans_what_has_changed_meanwhile_and_leaves_the_rest() -> None:
    names = ("a", "b", "c", "d")
    world, settled = after(12, a_snapshot(*(a_pipeline(name, 50.0) for name in names), fleet=FLEET))
    world = with_demand(taken_over(applied(world, settled)), c=150.0)
    decision = decide(world, Policy())
    assert {pipeline.spec.name for pipeline in decision.pipelines if pipeline.changes} == {"c"}


def test_pipelines_that_share_a_stage_get_their_turn_together() -> None:
    snapshot = sharing.the_world(demands=(10.0, 60.0))
    decision = decide(snapshot, Policy())  # one turn is for one pipeline
    assert waiting(decision) == set()
    owner, borrower = (sharing.of(decision, key) for key in (sharing.OWNER, sharing.BORROWER))
    assert owner.desired[sharing.ENCODER] == borrower.desired[sharing.ASR] == 5
    assert owner.shared[sharing.ENCODER[0]].cost_share == pytest.approx(1 / 7, rel=0.02)
    (changed,) = own(decision, "captions").changes
    assert (changed.stage, changed.after) == (sharing.ENCODER[0], 5)
