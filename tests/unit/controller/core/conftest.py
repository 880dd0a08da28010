import pytest
from planning import Planner

from optimizer.runtime.cache import BoundedCache


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Planner:
    planner = Planner()
    monkeypatch.setattr("controller.core.plan.fleet.certified_plan", planner.allocate)
    monkeypatch.setattr("controller.core.plan.fleet._PLANS", BoundedCache(0))  # what a planner wants may change
    monkeypatch.setattr("controller.core.bounds.outages.predicted_latency_s", planner.predicted_latency_s)
    monkeypatch.setattr("controller.core.bounds.tolerance.in_time", planner.in_time)
    return planner
