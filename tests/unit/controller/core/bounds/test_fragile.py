"""Interruptible pools that live pipelines name are not for work that can wait, unless it is allowed."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from backlogs import ASR, a_backlog
from builders import NOW_S, a_placement, a_pool, a_snapshot, a_spec, a_stage, a_state, pools

from controller.core import containment
from controller.core.assess.standing import standing
from controller.core.containment import decide_contained
from controller.core.cycle import decide
from controller.core.state.decision import Decision
from controller.core.state.policy import Policy
from controller.core.state.shards import Allowance
from controller.core.state.snapshot import PoolState, Snapshot
from optimizer.model import PoolName


def spot_pool() -> PoolState:
    pool = a_pool("gpu")
    return replace(pool, spec=replace(pool.spec, node_selector={"karpenter.sh/capacity-type": "spot"}))


@pytest.mark.parametrize(
    ("pool", "live_on", "shares", "runs"),
    [
        (spot_pool(), "gpu", False, False),
        (spot_pool(), "gpu", True, True),
        (spot_pool(), "cpu", False, True),
        (a_pool("gpu"), "gpu", False, True),
    ],
    ids=["never", "allowed", "only backlogs name it", "not interruptible"],
)
def test_fragile_capacity_is_left_to_live_pipelines(pool: PoolState, live_on: str, shares: bool, runs: bool) -> None:
    live = a_state(a_spec(a_stage("encoder", a_placement(live_on))), demand=10.0)
    waits = a_state(a_backlog(due_s=NOW_S + 3600, shares_fragile=shares), demand=1000.0)
    decision = decide(a_snapshot(live, waits, fleet=pools(pool, a_pool("cpu"))), Policy())
    assert (decision.pipelines[1].desired[ASR] > 0) == runs


def test_replicas_leave_a_pool_that_a_live_pipeline_comes_to_need() -> None:
    live = a_state(a_spec(a_stage("encoder", a_placement("gpu"))), demand=10.0)
    waits = a_state(a_backlog(due_s=NOW_S + 3600), demand=1000.0, replicas={ASR: 3})
    decision = decide(a_snapshot(live, waits, fleet=pools(spot_pool())), Policy())
    assert decision.pipelines[1].desired[ASR] == 0


def test_the_pools_of_a_live_pipeline_that_is_not_assessed_are_left_to_it() -> None:
    live = a_state(a_spec(a_stage("encoder", a_placement("gpu"))), demand=10.0)
    waits = a_state(a_backlog(due_s=NOW_S + 3600), demand=1000.0)
    snapshot = replace(a_snapshot(waits, fleet=pools(spot_pool())), standing=(standing(live, NOW_S, NOW_S),))
    assert decide(snapshot, Policy()).pipelines[0].desired[ASR] == 0


def test_the_pools_of_pipelines_about_which_nothing_is_decided_are_left_to_them() -> None:
    waits = a_state(a_backlog(due_s=NOW_S + 3600), demand=1000.0)
    snapshot = replace(a_snapshot(waits, fleet=pools(spot_pool())), named_by_others=frozenset({PoolName("gpu")}))
    assert decide(snapshot, Policy()).pipelines[0].desired[ASR] == 0


@pytest.mark.parametrize("shares", [True, False])
def test_a_pool_that_shards_divide_may_be_named_by_live_pipelines_of_others(shares: bool) -> None:
    waits = a_state(a_backlog(due_s=NOW_S + 3600, shares_fragile=shares), demand=1000.0)
    pool = replace(spot_pool(), allowance=Allowance(amount=5))
    assert (decide(a_snapshot(waits, fleet=pools(pool)), Policy()).pipelines[0].desired[ASR] > 0) is shares


def test_the_pools_of_a_live_pipeline_whose_decision_fails_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(snapshot: Snapshot, policy: Policy, beat: Callable[[], None] | None = None) -> Decision:
        if any(state.spec.backlog is None for state in snapshot.pipelines):
            raise ZeroDivisionError
        return decide(snapshot, policy, beat=beat)

    monkeypatch.setattr(containment, "decide", fails)
    live = a_state(a_spec(a_stage("encoder", a_placement("gpu"))), demand=10.0)
    waits = a_state(a_backlog(due_s=NOW_S + 3600), demand=1000.0)
    found = decide_contained(a_snapshot(live, waits, fleet=pools(spot_pool())), Policy())
    (own,) = found.decision.pipelines
    assert own.desired[ASR] == 0
