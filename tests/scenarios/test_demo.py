"""The bundled demo shows what it promises, before anybody waits four minutes for it."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from controller.core.assess.optimizer_input import optimizer_pipeline, optimizer_pool
from controller.core.state.policy import Policy
from controller.resources.fields import duration_s
from controller.resources.translate import pipeline_spec, pool_spec
from optimizer.allocate import allocate
from optimizer.model import Problem
from optimizer.plan import Plan
from simulations.commands.demo import fallback_lines, sessions_of, static_plan
from simulations.experiment.experiment import run_one
from simulations.results.results import RunResult
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


def planned(scenario: Scenario, demand: float) -> Plan:
    (pipeline,), pools = map(pipeline_spec, scenario.pipelines), map(pool_spec, scenario.pools)
    headroom = Policy().latency_headroom
    asked = optimizer_pipeline(pipeline, demand, latency_headroom=headroom)
    return allocate(
        Problem(pipelines=(asked,), pools={pool.name: optimizer_pool(pool, pool.instances or 0) for pool in pools})
    )


def test_the_trace_is_what_its_program_makes(tmp_path: Path) -> None:
    program = DEMO.parent / "make_trace.py"
    subprocess.run([sys.executable, program, tmp_path], check=True)

    assert (tmp_path / "day.csv.gz").read_bytes() == (DEMO.parent / "day.csv.gz").read_bytes()


@pytest.fixture(scope="module")
def runs(scenario: Scenario) -> dict[tuple[str, int], RunResult]:
    return {
        (policy, seed): run_one(scenario, policy=policy, seed=seed)
        for policy in ("sluice", "static-peak")
        for seed in SEEDS
    }


@pytest.mark.extended
@pytest.mark.parametrize("seed", SEEDS)
def test_simulated_it_misses_one_window_at_most_and_costs_seven_tenths_of_the_static_peak(
    scenario: Scenario, runs: Mapping[tuple[str, int], RunResult], seed: int
) -> None:
    sluice, static = runs["sluice", seed], runs["static-peak", seed]

    assert sluice.sla_windows_met is not None
    assert (1 - sluice.sla_windows_met) * sluice.windows <= 1 + 1e-9
    assert sluice.windows == 23
    assert sluice.cost <= 0.7 * static.cost
    assert sluice.sessions_cut < 0.02 * sessions_of(scenario, seed)
    assert (sluice.lost, sluice.refused, sluice.cap_violations) == (0, 0, 0)


@pytest.mark.extended
@pytest.mark.parametrize("seed", SEEDS)
def test_the_static_plan_has_the_same_failure_and_is_not_touched_by_it(
    scenario: Scenario, runs: Mapping[tuple[str, int], RunResult], seed: int
) -> None:
    found = static_plan(scenario, seed)

    assert replace(found, wall_s=0.0) == replace(runs["static-peak", seed], wall_s=0.0)
    assert (found.policy, found.replica_changes) == ("static-peak", 0)  # the failure stops only new replicas
    assert [fault.pool_unavailable for fault in scenario.file.faults] == ["inferentia"]


@pytest.mark.extended
def test_the_failure_stops_new_replicas_and_sluice_uses_another_pool(scenario: Scenario) -> None:
    (fault,) = scenario.file.faults
    lines = fallback_lines([fault], run_one(scenario, policy="sluice", seed=1).decisions)

    assert "gpu took over at" in lines["inferentia"]


def test_sessions_are_counted_in_the_scored_time(scenario: Scenario) -> None:
    (load,) = pipeline_schedules(scenario, seed=1).values()
    whole = replace(scenario, file=scenario.file.model_copy(update={"warmup": "0s"}))

    assert sessions_of(whole, 1) == len(load)
    assert sessions_of(scenario, 1) == len(load) - int((load.end_s <= 10).sum())


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
    assert during.max() >= 1.7 * during.min()
    assert fault.interval.until_s + 60 <= duration_s(scenario.file.duration)


def test_the_cheap_accelerator_pool_is_full_at_the_peak(scenario: Scenario) -> None:
    plan = planned(scenario, float(levels(scenario, 1).max()) * 1.2)
    placements = {(s.name, p.name): p.replicas for s in plan.pipelines[0].stages for p in s.placements}
    gpu = sum(count for (stage, pool), count in placements.items() if pool == "gpu" and stage in {"encoder", "decoder"})
    assert gpu > 0
