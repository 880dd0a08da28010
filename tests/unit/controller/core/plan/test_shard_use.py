from dataclasses import replace

import pytest
from builders import a_placement, a_pool, a_snapshot, a_spec, a_stage, a_state, a_target, pools

from controller.core.cycle import decide
from controller.core.plan.shard_use import budget_wants, used_now
from controller.core.state.decision import PoolDecision
from controller.core.state.policy import Policy
from controller.core.state.shards import MILLS, Allowance
from controller.core.state.snapshot import BudgetState, PipelineState, Snapshot
from controller.core.state.spec import BudgetSpec, LabelSelector, Mode
from optimizer.model import PoolName

ASR, INF = "asr", PoolName("inf")
POLICY = Policy(advice=False)


def a_pipeline(demand: float, *, mode: Mode = Mode.AUTO, priority: int = 0, **replicas: object) -> PipelineState:
    spec = a_spec(a_stage(ASR, *(a_placement(name) for name in replicas)), mode=mode, priority=priority)
    return a_state(spec, demand=demand, replicas={(ASR, name): count for name, count in replicas.items()})  # type: ignore[misc]


def a_world(*states: PipelineState, allowed: int | None = None, unaccounted: int = 0) -> Snapshot:
    inf = a_pool("inf", instances=40, ready=40, unaccounted={1: unaccounted} if unaccounted else {})
    if allowed is not None:
        inf = replace(inf, allowance=Allowance(amount=allowed))
    return a_snapshot(*states, fleet=pools(inf, a_pool("gpu", price=4.0)))


def of_pool(snapshot: Snapshot) -> PoolDecision:
    return next(each for each in decide(snapshot, POLICY).pools if each.name == INF)


def test_what_terminates_and_what_no_cycle_sees_is_used_too() -> None:
    state = a_pipeline(10.0, inf=a_target(3, existing=4, terminating=2))
    assert used_now(a_world(state, unaccounted=5), POLICY).pools[INF] == 11


def test_of_a_workload_that_sluice_does_not_scale_only_replicas_with_a_node_are_used() -> None:
    state = a_pipeline(10.0, mode=Mode.RECOMMEND, inf=a_target(100, existing=3, pending_since_s=(0.0, 0.0)))
    assert used_now(a_world(state), POLICY).pools[INF] == 1


def test_without_shards_nothing_is_wanted() -> None:
    assert of_pool(a_world(a_pipeline(100.0, inf=1))).want is None


def test_demand_that_is_not_served_for_lack_of_the_pool_is_wanted_with_its_priority() -> None:
    short = of_pool(a_world(a_pipeline(200.0, priority=7, inf=3), allowed=3)).want
    assert short is not None
    assert (short.priority, short.least_priority) == (7, 7)
    assert 0.5 < short.unserved < 1.0
    assert 5 <= short.lacking <= 15  # it needs about ten in all
    enough = of_pool(a_world(a_pipeline(40.0, inf=4), allowed=20)).want
    assert enough is not None
    assert (enough.lacking, enough.unserved, enough.price_per_hour) == (0, 0.0, None)


def test_what_the_plan_will_use_within_the_allowance_is_wanted_without_a_price() -> None:
    want = of_pool(a_world(a_pipeline(100.0, inf=1), allowed=20)).want
    assert want is not None
    assert (want.unserved, want.price_per_hour) == (0.0, None)


def test_replicas_on_a_dearer_pool_are_worth_what_they_cost_more() -> None:
    want = of_pool(a_world(a_pipeline(150.0, inf=2, gpu=8), allowed=2)).want
    assert want is not None
    assert want.unserved == 0.0
    assert want.lacking >= 4
    assert want.price_per_hour == pytest.approx(3.0, rel=0.1)  # one instance replaces one that costs 3 USD/h more


def test_an_allowance_is_named_as_the_limit_and_in_the_text() -> None:
    decision = decide(a_world(a_pipeline(200.0, inf=3), allowed=3), POLICY)
    (own,) = decision.pipelines
    assert own.plan is not None
    assert str(own.plan.limited_by) == "Allowance/inf"


def test_money_that_is_lacking_is_wanted_in_thousandths() -> None:
    spec = BudgetSpec(
        name="team", uid="uid", generation=1, selector=LabelSelector(labels={}), per_hour=100.0, periods=()
    )
    state = BudgetState(spec=spec, namespaces=frozenset({"speech"}), allowance=Allowance(amount=3 * MILLS))
    snapshot = replace(a_world(a_pipeline(200.0, inf=3)), budgets=(state,))
    assert used_now(snapshot, POLICY).budgets == {"team": 3 * MILLS}
    want = budget_wants(decide(snapshot, POLICY))["team"]
    assert want.unserved > 0.5
    assert 4 * MILLS <= want.lacking <= 20 * MILLS
