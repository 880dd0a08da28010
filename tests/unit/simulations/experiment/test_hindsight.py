"""The clairvoyant bound of a scenario: on the resources, faults, load and windows that its runs have."""

from pathlib import Path

import pytest
from experiments import CONTRACT

from simulations.experiment.hindsight import BoundRequest, bound_one
from simulations.scenario.scenario import Scenario, load_scenario

SCENARIO = """\
name: short
manifests: [pools.yaml, live-captions.yaml]
duration: 95s
warmup: 20s
window: 10s
load:
  - pipeline: speech/live-captions
    trace: azure_llm_2023_conv_1s.csv.gz
    column: arrivals
    session: {mean: 40s, cv: "1.3"}
faults: FAULTS
whatIf:
  - {name: double-load, load: {copies: 2}}
"""
DEARER = '[{at: 50s, set: {"ComputePool/gpu": {spec: {price: {perHour: "100"}}}}}]'
AS_IT_IS = BoundRequest(what_if=None, seed=1)


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    return a_scenario(tmp_path, "[]")


def a_scenario(folder: Path, faults: str) -> Scenario:
    for name in ("pools.yaml", "live-captions.yaml"):
        (folder / name).write_text((CONTRACT / name).read_text())
    (folder / "scenario.yaml").write_text(SCENARIO.replace("FAULTS", faults))
    return load_scenario(folder / "scenario.yaml")


def test_the_windows_of_the_bound_add_up_to_its_cost(scenario: Scenario) -> None:
    bound = bound_one(scenario, AS_IT_IS)
    assert bound.cost is not None
    assert bound.cost > 0
    assert bound.cost_per_hour is not None
    assert len(bound.cost_per_hour) == 8
    lengths_s = [10.0] * 7 + [5.0]
    paid = sum(rate * length for rate, length in zip(bound.cost_per_hour, lengths_s, strict=True)) / 3600
    assert paid == pytest.approx(bound.cost)
    assert bound.windows_share >= 0.995


def test_a_what_if_has_its_own_load(scenario: Scenario) -> None:
    alone, double = (bound_one(scenario, BoundRequest(what_if=name, seed=1)) for name in (None, "double-load"))
    assert alone.cost is not None
    assert double.cost is not None
    assert double.cost > alone.cost


def test_a_price_that_rises_is_paid_from_then_on(scenario: Scenario, tmp_path: Path) -> None:
    before = bound_one(scenario, AS_IT_IS).cost_per_hour
    after = bound_one(a_scenario(tmp_path, DEARER), AS_IT_IS).cost_per_hour
    assert before is not None
    assert after is not None
    assert after[:2] == pytest.approx(before[:2], rel=0.1)
    assert after[-1] > 2 * before[-1]
