"""Service times that are declared wrong, or not at all: a run ends where the right ones lead, at the SLA and the cost.

What `make bench-robustness` measures on whole loads, at a load of some replicas and from minute ten on.
"""

from pathlib import Path

import pytest
from small_scenarios import a_scenario

from simulations.experiment.experiment import run_one
from simulations.results.results import RunResult

LEAST_WINDOWS, MOST_COST = 0.97, 1.15


def run(folder: Path, properties: str) -> RunResult:
    scenario = a_scenario(folder, load=((0.0, 120.0),), duration_s=750, warmup_s=600, properties=properties)
    return run_one(scenario, policy="sluice", seed=1)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """The run with the true service times declared."""
    return run(tmp_path_factory.mktemp("right"), "")


@pytest.mark.parametrize(
    "properties",
    ['profileError: {vad: "0.2", asr: "0.2"}', "profileError: {vad: 5, asr: 5}", "hideProfiles: true"],
    ids=["all 0.2 x their time", "all 5 x their time", "nothing declared"],
)
def test_from_minute_ten_the_sla_is_met_at_the_cost_of_right_numbers(
    tmp_path: Path, right: RunResult, properties: str
) -> None:
    found = run(tmp_path, properties)
    assert found.sla_windows_met is not None
    assert found.sla_windows_met >= LEAST_WINDOWS
    assert found.cost <= MOST_COST * right.cost
    assert found.cap_violations == 0
