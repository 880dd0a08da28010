"""The plan of the fleet: made once for a question, however often it is asked."""

import pytest
from builders import VAD, a_snapshot, a_state
from planning import Planner

from controller.core.cycle import decide
from controller.core.state.policy import Policy
from optimizer.runtime.cache import BoundedCache


@pytest.fixture
def remembering(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> Planner:
    monkeypatch.setattr("controller.core.plan.fleet._PLANS", BoundedCache(64))
    return planner


def test_a_fleet_that_asks_what_it_asked_before_is_not_planned_again(remembering: Planner) -> None:
    remembering.wants({VAD: 4})
    first, second = (decide(a_snapshot(a_state(demand=300.0)), Policy()) for _ in range(2))
    assert len(remembering.problems) == 1
    assert first == second


def test_another_demand_and_another_policy_are_other_questions(remembering: Planner) -> None:
    for demand, policy in ((300.0, Policy()), (400.0, Policy()), (400.0, Policy(switching_cost_per_hour=0.1))):
        decide(a_snapshot(a_state(demand=demand)), policy)
    assert len(remembering.problems) == 3
