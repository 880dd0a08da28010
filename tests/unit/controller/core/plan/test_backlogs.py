"""Work that can wait gets what the live pipelines leave, and says what it will cost."""

from dataclasses import replace

import pytest
from backlogs import ASR, ITEM_S, a_backlog
from builders import (
    NOW_S,
    a_placement,
    a_pool,
    a_rule,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    a_target,
    applied,
    pools,
)

from controller.core import cycle
from controller.core.cycle import decide
from controller.core.messages.conditions import conditions
from controller.core.messages.explain import reason_sentence
from controller.core.plan import backlogs
from controller.core.state.decision import BacklogOutlook, HoldReason, LateReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, PoolState
from controller.core.state.spec import Declared, Mode
from optimizer.model import Basis, PipelineKey, PlacementKey, PoolName, StageName
from profiler.samples import Absence, AbsenceReason

HOUR_S = 3600.0
ENCODER: PlacementKey = (StageName("encoder"), PoolName("gpu"))
MISSING = Absence(reason=AbsenceReason.MISSING, detail="the query returns no series")


def captions(demand: float, replicas: int, **spec: object) -> PipelineState:
    """Return a live pipeline of which a replica serves some 16 requests per second in time."""
    own = a_spec(a_stage("encoder", a_placement("gpu")))
    return a_state(replace(own, **spec), demand=demand, replicas={ENCODER: replicas})  # type: ignore[arg-type]


def archive(left: float | Absence, replicas: int = 0, *, due_in_s: float = HOUR_S, **spec: object) -> PipelineState:
    state = a_state(a_backlog(due_s=NOW_S + due_in_s, **spec), demand=left, replicas={ASR: replicas})  # type: ignore[arg-type]
    return replace(state, memory=replace(state.memory, begun_s=NOW_S - 1, demand=1.0))


def decided(*states: PipelineState, gpus: int = 10, budget: float | None = None) -> dict[str, PipelineDecision]:
    fleet = pools(a_pool("gpu", instances=gpus, ready=gpus))
    decision = decide(a_snapshot(*states, fleet=fleet), Policy(budget_per_hour=budget))
    return {own.spec.name: own for own in decision.pipelines}


def outlook_of(decision: PipelineDecision) -> BacklogOutlook:
    assert decision.backlog is not None
    return decision.backlog


def test_the_pace_that_meets_the_deadline_is_planned() -> None:
    found = decided(archive(3240.0))["archive"]  # one item per second for nine tenths of an hour
    assert found.desired[ASR] * (1 / ITEM_S) >= 1.0
    assert found.desired[ASR] <= 3
    assert outlook_of(found).met
    assert found.admissible is None


def test_a_live_pipeline_has_the_capacity_first_whatever_the_priority() -> None:
    found = decided(captions(150.0, 0), archive(1e6, priority=1_000_000_000))
    alone = decided(captions(150.0, 0))
    assert found["captions"].desired == alone["captions"].desired
    assert found["captions"].desired[ENCODER] + found["archive"].desired[ASR] <= 10
    assert found["archive"].desired[ASR] > 0


def test_replicas_go_in_the_same_cycle_when_a_live_pipeline_needs_the_capacity() -> None:
    found = decided(captions(1000.0, 1), archive(1e6, 9))
    assert found["archive"].desired[ASR] == 0


def test_replicas_go_for_a_live_pipeline_without_data_too() -> None:
    found = decided(captions(1000.0, 1), archive(MISSING, 9))
    assert found["archive"].desired[ASR] == 0


def test_no_replica_is_removed_without_data_while_nothing_else_needs_the_capacity() -> None:
    assert decided(captions(10.0, 1), archive(MISSING, 8))["archive"].desired[ASR] == 8


def test_an_empty_backlog_has_no_replica() -> None:
    found = decided(archive(0.0, 8))["archive"]
    assert found.desired[ASR] == 0
    assert outlook_of(found).met


def test_floors_of_a_live_pipeline_come_before_the_backlog() -> None:
    rule = a_rule(metric=None, above=0.5, add=6)
    own = a_spec(a_stage("encoder", a_placement("gpu"), rules=[rule]))
    live = a_state(own, demand=10.0, replicas={ENCODER: 1}, rule_readings={(StageName("encoder"), "busy"): 1.0})
    found, alone = decided(live, archive(1e6)), decided(live)
    assert found["captions"].unconstrained == alone["captions"].unconstrained
    assert found["captions"].unconstrained[ENCODER] >= 7
    assert found["archive"].desired[ASR] <= 10 - found["captions"].unconstrained[ENCODER]


def test_the_budget_of_the_fleet_is_for_live_pipelines_first() -> None:
    found = decided(captions(100.0, 0), archive(1e6), budget=8.0)
    alone = decided(captions(100.0, 0), budget=8.0)
    assert found["captions"].desired == alone["captions"].desired
    assert found["captions"].desired[ENCODER] + found["archive"].desired[ASR] <= 8


def test_the_own_budget_cuts_the_pace_and_the_deadline_is_reported_as_missed() -> None:
    found = decided(archive(7200.0, budget=2.5))["archive"]
    assert found.desired[ASR] == 2
    own = outlook_of(found)
    assert own.met is False
    assert own.finish_s is not None
    assert own.finish_s >= NOW_S + 7200 * ITEM_S / 2


@pytest.mark.parametrize("due_in_s", [HOUR_S, 2e11])
def test_more_items_than_are_done_in_a_hundred_years_have_no_finish(due_in_s: float) -> None:
    """A query in bytes: texts have no year after 9999."""
    found = decided(archive(2.6e12, due_in_s=due_in_s))["archive"]
    own = outlook_of(found)
    assert (own.finish_s, own.cost, own.met, own.later) == (None, None, False, ())
    assert own.late is LateReason.CAPACITY_TOO_SMALL
    assert found.desired[ASR] == 10
    assert "items left, deadline" in reason_sentence(found)


def without_service_time(state: PipelineState) -> PipelineState:
    """Return `state` with placements of which no service time is declared, and none was measured."""
    stages = (
        replace(stage, placements=tuple(replace(own, declared=Declared(service=False)) for own in stage.placements))
        for stage in state.spec.stages
    )
    return replace(state, spec=replace(state.spec, stages=tuple(stages)))


@pytest.mark.parametrize("replicas", [0, 2])
def test_without_a_known_service_time_finish_and_cost_are_unknown_and_a_replica_measures_it(replicas: int) -> None:
    found = decided(without_service_time(archive(1e6, replicas)))["archive"]
    own = outlook_of(found)
    assert (own.rate_rps, own.finish_s, own.cost, own.met, own.late) == (None, None, None, None, None)
    assert found.desired[ASR] == max(1, replicas)
    (condition,) = [each for each in conditions(found) if each.type == "DeadlineMet"]
    assert (condition.status, condition.reason) == ("Unknown", "ServiceTimeUnknown")
    assert "the service time of stage asr is not known yet" in condition.message


def test_a_deadline_that_has_passed_is_missed_also_without_a_known_service_time() -> None:
    own = outlook_of(decided(without_service_time(archive(10.0, 1, due_in_s=-60)))["archive"])
    assert (own.met, own.late, own.finish_s) == (False, LateReason.DEADLINE_PASSED, None)


def test_the_expected_cost_is_that_of_the_items_left() -> None:
    own = outlook_of(decided(archive(1800.0))["archive"])
    assert own.cost == pytest.approx(1800 * ITEM_S / 3600)  # of replicas at one dollar per hour


def test_of_a_paused_backlog_the_cost_is_that_of_the_replicas_that_run() -> None:
    """Its plan, to which it does not go, has more replicas, and some on a pool that costs three times as much."""
    _, own = two_pools(captions(0.0, 0), 4, 0)
    paused = replace(own, spec=replace(own.spec, mode=Mode.PAUSED), demand=40_000.0)
    found = decided_on_two_pools(paused)[0]
    assert found.unconstrained[ASR_DEAR] > 0
    assert outlook_of(found).rate_rps == pytest.approx(4 / ITEM_S)
    assert outlook_of(found).cost == pytest.approx(40_000 * ITEM_S / 3600)


def test_a_backlog_that_only_recommends_says_what_its_plan_would_do() -> None:
    acting = archive(3240.0)
    found = decided(replace(acting, spec=replace(acting.spec, mode=Mode.RECOMMEND)))["archive"]
    own, other = outlook_of(found), outlook_of(decided(acting)["archive"])
    assert found.desired[ASR] == 0
    assert (own.rate_rps, own.finish_s, own.cost, own.met) == (other.rate_rps, other.finish_s, other.cost, True)
    assert own.later == ()


@pytest.mark.parametrize(("gone", "known"), [(2, False), (0, True)])
def test_the_cost_of_replicas_on_a_pool_that_does_not_exist_is_not_known(gone: int, known: bool) -> None:
    spec = a_backlog(a_placement("gpu", service_s=ITEM_S), a_placement("gone", service_s=ITEM_S), due_s=NOW_S + HOUR_S)
    lost: PlacementKey = (StageName("asr"), PoolName("gone"))
    state = a_state(spec, demand=3240.0, replicas={ASR: 1, lost: gone})
    own = outlook_of(decided(replace(state, memory=replace(state.memory, begun_s=NOW_S - 1)))["archive"])
    assert own.finish_s is not None
    assert (own.cost is not None, bool(own.later)) == (known, known)


def test_a_later_deadline_saves_what_a_cheaper_pool_has_no_room_for_now() -> None:
    spec = a_backlog(a_placement("gpu", service_s=ITEM_S), a_placement("dear", service_s=ITEM_S), due_s=NOW_S + HOUR_S)
    state = a_state(spec, demand=3240.0 * 2)
    state = replace(state, memory=replace(state.memory, begun_s=NOW_S))
    fleet: dict[PoolName, PoolState] = dict(pools(a_pool("gpu", instances=3, ready=3), a_pool("dear", price=5.0)))
    own = outlook_of(decide(a_snapshot(state, fleet=fleet), Policy()).pipelines[0])
    savings = [later.saving for later in own.later]
    assert savings == sorted(savings)
    assert savings[0] >= 0
    assert savings[1] > 0


ASR_DEAR: PlacementKey = (StageName("asr"), PoolName("dear"))


def two_pools(live: PipelineState, cheap: int, dear: int) -> tuple[PipelineState, ...]:
    """Return `live` and a backlog with `cheap` and `dear` replicas on two pools, of which the latter are not ready."""
    placements = a_placement("gpu", service_s=ITEM_S), a_placement("dear", service_s=ITEM_S)
    spec = a_backlog(*placements, due_s=NOW_S + HOUR_S)
    state = a_state(spec, demand=14_000.0, replicas={ASR: cheap, ASR_DEAR: a_target(dear, ready=0)})
    return live, replace(state, memory=replace(state.memory, begun_s=NOW_S - 1, demand=1.0))


def decided_on_two_pools(*states: PipelineState, budget: float | None = None) -> tuple[PipelineDecision, ...]:
    fleet = pools(a_pool("gpu", instances=10, ready=10), a_pool("dear", price=3.0, instances=10, ready=10))
    return decide(a_snapshot(*states, fleet=fleet), Policy(budget_per_hour=budget)).pipelines


@pytest.mark.parametrize("settled", [True, False])
def test_replicas_go_for_a_live_pipeline_before_their_replacements_on_another_pool_are_ready(settled: bool) -> None:
    live = captions(1000.0, 1)
    if not settled:
        live = replace(live, targets={ENCODER: a_target(1, ready=0)})
    first, second = decided_on_two_pools(*two_pools(live, 9, 3))
    assert first.unconstrained[ENCODER] == 10
    assert second.desired[ASR] == second.unconstrained[ASR] == 0
    assert second.desired[ASR_DEAR] == second.unconstrained[ASR_DEAR] > 0


def test_replicas_go_for_a_live_pipeline_that_lacks_money_before_their_replacements_are_ready() -> None:
    """What replaces the dear replicas is not ready, and the live pipeline needs the money that they cost."""
    live, own = two_pools(captions(140.0, 1), 0, 0)
    own = replace(own, targets={ASR: a_target(2, ready=0), ASR_DEAR: a_target(3)})
    first, second = decided_on_two_pools(live, own, budget=12.0)
    assert first.unconstrained[ENCODER] > first.desired[ENCODER]
    assert second.unconstrained[ASR] > 0
    assert second.desired[ASR_DEAR] == second.unconstrained[ASR_DEAR] == 0


def test_a_move_that_only_saves_money_waits_for_the_replacements() -> None:
    live, own = two_pools(captions(10.0, 1), 0, 0)
    own = replace(own, targets={ASR: a_target(8, ready=0), ASR_DEAR: a_target(8)})
    _, second = decided_on_two_pools(live, own)
    assert second.unconstrained[ASR_DEAR] == 0
    assert second.desired[ASR_DEAR] == 8


def test_a_paused_backlog_keeps_its_replicas() -> None:
    paused = archive(1e6, 4)
    paused = replace(paused, spec=replace(paused.spec, mode=Mode.PAUSED))
    found = decided(captions(1000.0, 1), paused)
    assert found["archive"].desired[ASR] == 4
    assert found["captions"].desired[ENCODER] <= 6


def test_the_backlog_with_the_higher_priority_is_served_first_wholly() -> None:
    urgent, other = archive(1e6, name="urgent", priority=5), archive(1e6, name="archive", priority=0)
    found = decided(other, urgent, gpus=4)
    assert (found["urgent"].desired[ASR], found["archive"].desired[ASR]) == (4, 0)


def test_a_declared_minimum_of_a_backlog_yields_to_a_higher_priority() -> None:
    spec = a_backlog(a_placement("gpu", service_s=ITEM_S, bounds=(1, 20)), due_s=NOW_S + HOUR_S)
    least = replace(archive(1e6), spec=spec)
    found = decided(least, archive(1e6, name="urgent", priority=5), gpus=4)
    assert (found["urgent"].desired[ASR], found["archive"].desired[ASR]) == (4, 0)


def test_of_equal_priorities_the_earlier_deadline_comes_first() -> None:
    later, sooner = archive(1e6, name="a", due_in_s=2 * HOUR_S), archive(1e6, name="b", due_in_s=HOUR_S)
    found = decided(later, sooner, gpus=4)
    assert (found["b"].desired[ASR], found["a"].desired[ASR]) == (4, 0)


def test_what_the_first_backlog_does_not_need_is_for_the_next() -> None:
    found = decided(archive(3240.0, name="urgent", priority=5), archive(1e6), gpus=5)
    assert found["urgent"].desired[ASR] + found["archive"].desired[ASR] == 5
    assert found["urgent"].desired[ASR] <= 3


def test_beside_a_fleet_that_is_planned_in_turns_it_gets_what_all_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle, "AT_ONCE", 1)
    live = [named(captions(30.0, 2), f"live-{n}") for n in range(4)]
    states = (*live, archive(1e6))
    snapshot = a_snapshot(*states, fleet=pools(a_pool("gpu", instances=14, ready=14)))
    for _ in range(8):
        alone = decide(replace(snapshot, pipelines=snapshot.pipelines[:-1]), Policy())
        decision = decide(snapshot, Policy())
        assert [own.desired for own in decision.pipelines[:-1]] == [own.desired for own in alone.pipelines]
        assert sum(sum(own.desired.values()) for own in decision.pipelines) <= 14
        snapshot = applied(snapshot, decision)
    assert decision.pipelines[-1].desired[ASR] == 14 - sum(own.desired[ENCODER] for own in decision.pipelines[:-1])
    assert decision.pipelines[-1].backlog is not None
    assert not any(hold.reason is HoldReason.AWAITING_TURN for hold in decision.pipelines[-1].holds)


def named(state: PipelineState, name: str) -> PipelineState:
    return replace(state, spec=replace(state.spec, name=name, key=PipelineKey(f"speech/{name}"), uid=f"uid-{name}"))


@pytest.mark.parametrize("basis", list(Basis))
def test_whole_instances_are_budgeted_where_the_budget_counts_them(basis: Basis) -> None:
    placement = a_placement("gpu", service_s=ITEM_S, per_instance=4)
    spec = replace(a_backlog(placement, due_s=NOW_S + HOUR_S, budget=2.5), declared_basis=basis)
    state = replace(archive(1e6), spec=spec)
    own = decide(a_snapshot(state, fleet=pools(a_pool("gpu", instances=10, ready=10))), Policy()).pipelines[0]
    assert own.desired[ASR] == (8 if basis is Basis.INSTANCES else 10)
    assert outlook_of(own).late is LateReason.BUDGET_TOO_LOW


def test_more_backlogs_than_are_planned_apart_keep_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlogs, "APART", 2)
    states = [archive(1e6, name=f"b{n}", priority=9 - n) for n in range(5)]
    found = decided(*states, gpus=6)
    assert sum(own.desired[ASR] for own in found.values()) == 6
    assert found["b0"].desired[ASR] == 6
