import pytest
from planning import Planner

from optimizer.remembered import Remembered


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Planner:
    planner = Planner()
    monkeypatch.setattr("controller.core.fleet.allocate", planner.allocate)
    monkeypatch.setattr("controller.core.fleet._PLANS", Remembered(0))  # what a planner wants may change
    monkeypatch.setattr("controller.core.assessment.predicted_latency_s", planner.predicted_latency_s)
    monkeypatch.setattr("controller.core.guards.in_time", planner.in_time)
    return planner
