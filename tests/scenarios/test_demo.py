"""The bundled demo shows what it promises, before anybody waits four minutes for it."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from controller.core.assess.optimizer_input import optimizer_pipeline, optimizer_pool
from controller.core.state.policy import Policy
from controller.core.state.spec import PlacementKey
from controller.resources.fields import duration_s
from controller.resources.translate import pipeline_spec, pool_spec
from optimizer.allocate import allocate
from optimizer.model import Problem
from optimizer.plan import Plan
from simulations.scenario.load import pipeline_schedules
from simulations.scenario.scenario import Scenario, load_scenario

DEMO = Path(__file__).parents[2] / "simulations" / "scenarios" / "demo" / "scenario.yaml"
SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario(DEMO)


def levels(scenario: Scenario, seed: int) -> np.ndarray:
    """The 20-second means of the streams under way, from the end of the warm-up on."""
    (schedule,) = pipeline_schedules(scenario, seed=seed).values()
    clock = scenario.file.clock
    every_second = schedule.active(np.arange(clock.warmup_s, clock.duration_s))
    return np.convolve(every_second, np.ones(20) / 20, mode="valid")


def planned(scenario: Scenario, demand: float, *, at_most: Mapping[PlacementKey, int] | None = None) -> Plan:
    (pipeline,), pools = map(pipeline_spec, scenario.pipelines), map(pool_spec, scenario.pools)
    headroom = Policy().latency_headroom
    asked = optimizer_pipeline(pipeline, demand, latency_headroom=headroom, at_most=at_most or {})
    return allocate(
        Problem(pipelines=(asked,), pools={pool.name: optimizer_pool(pool, pool.instances or 0) for pool in pools})
    )


def test_it_is_four_stages_on_three_pools_for_three_to_five_minutes(scenario: Scenario) -> None:
    (pipeline,) = scenario.pipelines
    assert len(pipeline.spec.stages) == 4
    assert {p.pool for stage in pipeline.spec.stages for p in stage.placements or []} == {"cpu", "inferentia", "gpu"}
    assert 180 <= duration_s(scenario.file.duration) <= 300


@pytest.mark.parametrize("seed", SEEDS)
def test_the_load_at_least_doubles_and_falls_again(scenario: Scenario, seed: int) -> None:
    level = levels(scenario, seed)
    peak = int(np.argmax(level))
    assert level[peak] >= 2 * level[:peak].min()
    assert level[peak] >= 2 * level[peak:].min()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_bottleneck_moves_and_every_level_can_be_served_within_the_budget(scenario: Scenario, seed: int) -> None:
    level = levels(scenario, seed)
    plans = [planned(scenario, demand) for demand in np.linspace(level.min(), level.max(), 12)]
    assert all(plan.feasible for plan in plans)
    assert len({plan.pipelines[0].bottleneck for plan in plans}) > 1


@pytest.mark.parametrize("seed", SEEDS)
def test_while_the_load_rises_the_cheap_pool_has_no_room_and_there_is_time_to_return(
    scenario: Scenario, seed: int
) -> None:
    (fault,) = scenario.file.faults
    assert fault.pool_unavailable == "inferentia"
    during = levels(scenario, seed)[int(fault.interval.from_s) - 20 : int(fault.interval.until_s) - 20]
    assert during.max() >= 1.8 * during.min()
    assert fault.interval.until_s + 60 <= duration_s(scenario.file.duration)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_more_of_the_cheap_pool_every_level_can_be_served_as_well(scenario: Scenario, seed: int) -> None:
    (fault,) = scenario.file.faults
    level = levels(scenario, seed)
    before = planned(scenario, float(level[int(fault.interval.from_s) - 20])).pipelines[0].replicas()
    most = {key: count for key, count in before.items() if key[1] == "inferentia"}
    assert planned(scenario, float(level.max()) * 1.1, at_most=most).feasible


def test_the_cheap_accelerator_pool_is_full_at_the_peak(scenario: Scenario) -> None:
    plan = planned(scenario, float(levels(scenario, 1).max()) * 1.2)
    placements = {(s.name, p.pool): p.replicas for s in plan.pipelines[0].stages for p in s.placements}
    gpu = sum(count for (stage, pool), count in placements.items() if pool == "gpu" and stage in {"encoder", "decoder"})
    assert gpu > 0
