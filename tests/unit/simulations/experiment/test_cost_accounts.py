"""The parts of a run's cost: they add up, and each grows with what it is named for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_scenarios import a_scenario

from simulations.experiment.experiment import RunRequest, run_all, run_one
from simulations.results.cost_breakdown import CostBreakdown, CostPart
from simulations.results.results import RunResult
from simulations.scenario.scenario import Scenario

UP_AND_DOWN = ((0.0, 60.0), (120.0, 10.0))


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return a_scenario(tmp_path_factory.mktemp("scenario"), load=UP_AND_DOWN, duration_s=360, warmup_s=20)


def broken_down(scenario: Scenario) -> tuple[RunResult, CostBreakdown]:
    result = run_one(scenario, policy="sluice", seed=1, breakdown=True)
    assert result.breakdown is not None
    return result, result.breakdown


def with_scaling(scenario: Scenario, **changes: Any) -> Scenario:
    def changed(pipeline: Any) -> Any:
        scaling = pipeline.spec.scaling.model_copy(update=changes)
        return pipeline.model_copy(update={"spec": pipeline.spec.model_copy(update={"scaling": scaling})})

    return replace(scenario, pipelines=tuple(map(changed, scenario.pipelines)))


def test_the_parts_add_up_to_the_cost_and_asking_for_them_changes_nothing(scenario: Scenario) -> None:
    result, found = broken_down(scenario)
    assert found.total == pytest.approx(result.cost)
    assert found.parts[CostPart.WORK] > 0
    assert found.parts[CostPart.ROUNDING] >= 0
    plain = run_one(scenario, policy="sluice", seed=1)
    assert plain.breakdown is None
    assert replace(result, breakdown=None, wall_s=0.0) == replace(plain, wall_s=0.0)


def test_a_longer_scale_down_window_costs_as_window(scenario: Scenario) -> None:
    down = scenario.pipelines[0].spec.scaling.scale_down
    short, long = (
        broken_down(with_scaling(scenario, scale_down=down.model_copy(update={"stabilization": window})))[1]
        for window in ("15s", "3m")
    )
    assert long.parts[CostPart.WINDOW] > short.parts[CostPart.WINDOW]
    more = long.total - short.total
    assert long.parts[CostPart.WINDOW] - short.parts[CostPart.WINDOW] > 0.4 * more > 0


def test_runs_in_processes_have_their_parts_too(tmp_path: Path) -> None:
    small = a_scenario(tmp_path, load=UP_AND_DOWN, duration_s=60, seeds="[1, 2]")
    requests = [RunRequest(policy="sluice", seed=seed, breakdown=True) for seed in (1, 2)]
    for result in run_all(small, requests, jobs=2):
        assert result.breakdown is not None
        assert result.breakdown.total == pytest.approx(result.cost)
