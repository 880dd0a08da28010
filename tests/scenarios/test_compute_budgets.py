"""Two teams with a ComputeBudget: what their pipelines spend together, in cycles of `decide` with real plans."""

from dataclasses import replace
from datetime import datetime

import pytest
from builders import a_placement, a_pool, a_scaling, a_snapshot, a_spec, a_stage, a_state, applied, pools
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core.cycle import decide
from controller.core.messages.conditions import budget_condition
from controller.core.messages.explain import explain_pipeline
from controller.core.record import decision_record, differences, recorded_inputs
from controller.core.state.decision import BudgetDecision, ChangeReason, Decision, HoldReason
from controller.core.state.policy import Policy
from controller.core.state.snapshot import BudgetState, PipelineState, Snapshot
from controller.core.state.spec import BudgetPeriod, BudgetSpec, LabelSelector, Mode
from controller.resources.fields import duration_s
from controller.resources.schedule import CronEntry
from controller.resources.translate import windows_of
from optimizer.model import PipelineKey, PlacementKey, PoolName, StageName

ASR: PlacementKey = (StageName("asr"), PoolName("gpu"))
SMALL = Policy(advice=False)
EVERYBODY = frozenset({"red", "blue", "green"})


def a_pipeline(
    namespace: str, name: str = "asr", *, demand: float = 90.0, priority: int = 0, replicas: int = 1
) -> PipelineState:
    spec = a_spec(
        a_stage("asr", a_placement("gpu", service_s=0.05, bounds=(0, 60))),
        name=name,
        priority=priority,
        scaling=a_scaling(down_s=0.0, up=100, down=100),
    )
    key = PipelineKey(f"{namespace}/{name}")
    spec = replace(spec, namespace=namespace, key=key, uid=f"uid-{key}")
    return a_state(spec, demand=demand, replicas={ASR: replicas})


def a_budget(
    per_hour: float, *namespaces: str, name: str = "team", periods: tuple[BudgetPeriod, ...] = ()
) -> BudgetState:
    spec = BudgetSpec(
        name=name, uid=name, generation=1, selector=LabelSelector(labels={}), per_hour=per_hour, periods=periods
    )
    return BudgetState(spec=spec, namespaces=frozenset(namespaces or EVERYBODY))


def a_fleet(*states: PipelineState, budgets: tuple[BudgetState, ...], now_s: float = 1_000_000.0) -> Snapshot:
    fleet = pools(a_pool("gpu", price=1.0, instances=200, ready=200))
    return replace(a_snapshot(*states, fleet=fleet, now_s=now_s), budgets=budgets)


def settled(snapshot: Snapshot, cycles: int = 6) -> tuple[Snapshot, Decision]:
    decision = decide(snapshot, SMALL)
    for _ in range(cycles):
        snapshot = applied(snapshot, decision)
        decision = decide(snapshot, SMALL)
    return snapshot, decision


def replicas(snapshot: Snapshot) -> dict[str, int]:
    return {state.spec.key: state.desired(*ASR) for state in snapshot.pipelines}


def of(decision: Decision, name: str = "team") -> BudgetDecision:
    (found,) = (budget for budget in decision.budgets if budget.name == name)
    return found


def test_pipelines_of_a_team_share_its_money_by_priority_and_others_are_not_touched() -> None:
    states = (a_pipeline("red"), a_pipeline("blue", priority=1), a_pipeline("green"))
    free, _ = settled(a_fleet(*states, budgets=()))
    needed = replicas(free)["blue/asr"]
    found, decision = settled(a_fleet(*states, budgets=(a_budget(needed + 2.0, "red", "blue"),)))
    assert replicas(found) == {"red/asr": 2, "blue/asr": needed, "green/asr": needed}
    budget = of(decision)
    assert (budget.spend_per_hour, budget.limit_per_hour) == (needed + 2.0, needed + 2.0)
    assert [short.key for short in budget.short] == ["red/asr"]
    assert 0 < budget.short[0].served_fraction < 1


def test_reasons_name_the_budget_and_its_numbers() -> None:
    snapshot, decision = settled(a_fleet(a_pipeline("red"), budgets=(a_budget(2.0, "red"),)))
    (pipeline,) = decision.pipelines
    assert str(pipeline.plan and pipeline.plan.limited_by) == "Budget/team"
    lines = explain_pipeline(pipeline, snapshot.now_s)
    assert any("limited by ComputeBudget team of $2.00/h" in line for line in lines)
    condition = budget_condition(of(decision), "")
    assert (condition.status, condition.reason) == ("True", "WithinBudget")
    assert condition.message.startswith("$2.00/h of $2.00/h is spent; $2.00/h is not enough to serve all load")
    assert "red/asr" in condition.message


def test_the_amounts_of_several_budgets_hold_for_a_pipeline_that_is_in_them() -> None:
    states = (a_pipeline("red"), a_pipeline("blue"))
    budgets = (a_budget(4.0, "red", name="narrow"), a_budget(7.0, "red", "blue", name="wide"))
    found, decision = settled(a_fleet(*states, budgets=budgets))
    spent = replicas(found)
    assert spent["red/asr"] <= 4
    assert sum(spent.values()) == 7
    assert of(decision, "wide").spend_per_hour == 7.0


def test_a_cut_is_followed_at_once_and_excused_meanwhile() -> None:
    rich, _ = settled(a_fleet(a_pipeline("red", priority=1), a_pipeline("blue"), budgets=(a_budget(50.0),)))
    before = replicas(rich)
    poor = replace(rich, budgets=(a_budget(before["red/asr"] + 1.0),))
    decision = decide(poor, SMALL)
    assert {change.reason for own in decision.pipelines for change in own.changes} == {ChangeReason.BUDGET}
    assert of(decision).exceeded
    assert budget_condition(of(decision), "").reason == "AboveBudget"
    assert all(own.memory.excess_excused_until_s is not None for own in decision.pipelines)
    assert replicas(applied(poor, decision)) == {"red/asr": before["red/asr"], "blue/asr": 1}


def test_what_does_not_act_counts_and_what_acts_gets_the_rest() -> None:
    paused = a_pipeline("red", replicas=5)
    paused = replace(paused, spec=replace(paused.spec, mode=Mode.PAUSED))
    found, decision = settled(a_fleet(paused, a_pipeline("blue"), budgets=(a_budget(8.0),)))
    assert replicas(found) == {"red/asr": 5, "blue/asr": 3}
    held = [hold for hold in decision.pipelines[1].holds if hold.reason is HoldReason.AWAITING_CAPACITY]
    assert not held, "the plan already knows"


def test_a_period_has_its_own_amount() -> None:
    night = BudgetPeriod(
        per_hour=2.0,
        windows=windows_of(
            CronEntry.model_validate({"schedule": "0 22 * * *", "timeZone": "Europe/Berlin", "for": "8h"})
        ),
    )
    budget = a_budget(50.0, periods=(night,))
    assert duration_s("8h") == night.windows.for_s
    evening = datetime.fromisoformat("2026-11-23T21:59:30+01:00").timestamp()
    day, decision = settled(a_fleet(a_pipeline("red"), budgets=(budget,), now_s=evening - 300.0))
    assert of(decision).limit_per_hour == 50.0
    assert replicas(day)["red/asr"] > 2
    before = replicas(day)["red/asr"]
    late, decision = settled(replace(day, now_s=evening + 30.0), 1)
    assert of(decision).limit_per_hour == 2.0
    assert 2 < replicas(late)["red/asr"] <= before, "what runs goes in steps"
    after, decision = settled(replace(late, now_s=evening + 640.0), 1)
    assert of(decision).limit_per_hour == 2.0
    assert replicas(after)["red/asr"] == 2


def test_what_a_known_morning_needs_starts_before_the_budget_of_the_night_is_over() -> None:
    night = BudgetPeriod(
        per_hour=2.0,
        windows=windows_of(
            CronEntry.model_validate({"schedule": "0 22 * * *", "timeZone": "Europe/Berlin", "for": "8h"})
        ),
    )
    morning = datetime.fromisoformat("2026-11-24T06:00:00+01:00").timestamp()
    fleet = a_fleet(a_pipeline("red"), budgets=(a_budget(50.0, periods=(night,)),), now_s=morning - 3600.0)
    (state,) = fleet.pipelines
    (stage,) = state.spec.stages
    slow = replace(stage, placements=tuple(replace(each, startup_s=600.0) for each in stage.placements))
    fleet = replace(fleet, pipelines=(replace(state, spec=replace(state.spec, stages=(slow,))),))
    asleep, _ = settled(fleet, 3)
    assert replicas(asleep)["red/asr"] == 2
    awake, _ = settled(replace(asleep, now_s=morning - 300.0), 1)
    assert replicas(awake)["red/asr"] > 2


def test_a_recorded_decision_with_budgets_can_be_made_again() -> None:
    snapshot = a_fleet(a_pipeline("red"), a_pipeline("blue"), budgets=(a_budget(3.0, "red"),))
    record = decision_record(snapshot, decide(snapshot, SMALL))
    read, policy = recorded_inputs(record)
    assert read == snapshot
    assert differences(record, decide(read, policy)) == ()


@pytest.mark.parametrize("at_once", [250, 1])
@settings(max_examples=15, deadline=None)
@given(
    demands=st.lists(st.sampled_from((0.0, 20.0, 60.0, 150.0)), min_size=2, max_size=4),
    caps=st.tuples(st.integers(0, 14), st.integers(0, 14)),
    running=st.integers(0, 3),
)
def test_no_change_takes_the_spend_of_a_budget_above_it(
    at_once: int, demands: list[float], caps: tuple[int, int], running: int
) -> None:
    teams = ("red", "blue", "green")
    states = [
        a_pipeline(teams[number % 3], f"p{number}", demand=demand, priority=number % 2, replicas=running)
        for number, demand in enumerate(demands)
    ]
    budgets = (a_budget(caps[0], "red", "blue", name="a"), a_budget(caps[1], "blue", "green", name="b"))
    snapshot = a_fleet(*states, budgets=budgets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("controller.core.cycle.AT_ONCE", at_once)
        for _ in range(6):
            decision = decide(snapshot, SMALL)
            after = applied(snapshot, decision)
            for budget in budgets:
                spent, then = (
                    sum(state.desired(*ASR) for state in at.pipelines if state.spec.namespace in budget.namespaces)
                    for at in (snapshot, after)
                )
                assert then <= max(spent, budget.spec.per_hour)
            snapshot = after
    for budget in budgets:
        spent = sum(state.desired(*ASR) for state in snapshot.pipelines if state.spec.namespace in budget.namespaces)
        assert spent <= budget.spec.per_hour


def test_a_fleet_that_is_planned_in_turns_plans_within_the_budget_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.core.cycle.AT_ONCE", 1)
    states = tuple(a_pipeline(team, f"p{number}") for number, team in enumerate(("red", "red", "blue")))
    _, decision = settled(a_fleet(*states, budgets=(a_budget(7.0, "red"),)))
    assert decision.plan is None
    budget = of(decision)
    assert 5.0 < budget.planned_per_hour <= 7.0
    assert budget.spend_per_hour <= 7.0
    assert {short.key for short in budget.short} <= {"red/p0", "red/p1"} != set()
