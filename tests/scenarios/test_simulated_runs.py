"""Whole runs in the simulator: what Sluice does under each kind of trouble, and that every policy can be run."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from small_scenarios import POOLS, a_scenario

from simulations.experiment.experiment import run_one
from simulations.policies.catalogue import POLICIES
from simulations.results.results import RunResult
from simulations.scenario.scenario import Scenario, load_scenario

CONTRACT = Path(__file__).parents[1] / "contract"
DEMO = Path(__file__).parents[2] / "simulations" / "scenarios" / "demo" / "scenario.yaml"
QUICK = POOLS.replace(
    "  capacity: {instances: 4}",
    "  capacity: {instances: 4}\n  unavailable: {pendingDeadline: 30s, backoff: {initial: 2m}}",
)
OFTEN = POLICIES["sluice"].settings_of({"interval_s": 5.0})
FALLS = ((0.0, 120.0), (700.0, 10.0))
"""Falls ten minutes after a start that missed the SLA: so long there is room for such a rise."""


def sluice(scenario: Scenario, seed: int = 1) -> RunResult:
    return run_one(scenario, policy="sluice", seed=seed, settings=OFTEN)


def desired(run: RunResult, stage: str) -> dict[float, int]:
    """Replicas asked for at the end of each window, by the window's start."""
    placements = [p for p in run.series.pipelines[0].placements if p.stage == stage]
    return {t_s: sum(p.desired[index] for p in placements) for index, t_s in enumerate(run.series.t_s)}


def test_nothing_scales_down_while_metrics_are_missing_and_then_it_does(tmp_path: Path) -> None:
    fault = '[{at: 710s, for: 60s, metricsLost: "*"}]'
    blind = desired(sluice(a_scenario(tmp_path / "blind", load=FALLS, faults=fault, duration_s=900)), "asr")
    seeing = desired(sluice(a_scenario(tmp_path / "seeing", load=FALLS, duration_s=900)), "asr")

    assert blind[700.0] >= 3
    assert all(blind[t_s] >= blind[700.0] for t_s in (710.0, 720.0, 730.0, 740.0, 750.0, 760.0))
    assert seeing[750.0] < seeing[700.0]
    assert blind[810.0] < blind[700.0]


def test_metrics_of_a_part_of_the_pods_take_nothing_away(tmp_path: Path) -> None:
    fault = '[{at: 710s, for: 60s, metricsPartial: {share: "0.7"}}]'
    run = desired(sluice(a_scenario(tmp_path, load=FALLS, faults=fault, duration_s=900)), "asr")

    assert all(run[t_s] >= run[700.0] for t_s in (710.0, 730.0, 750.0))


def test_a_pool_that_cannot_deliver_is_replaced_by_another(tmp_path: Path) -> None:
    step = ((0.0, 10.0), (60.0, 90.0))
    fault = "[{at: 30s, poolUnavailable: gpu}]"
    run = sluice(a_scenario(tmp_path, load=step, faults=fault, duration_s=300, pools=QUICK))
    (gpu,) = [p for p in run.series.pipelines[0].placements if (p.stage, p.placement) == ("asr", "gpu")]
    (cpu,) = [p for p in run.series.pipelines[0].placements if (p.stage, p.placement) == ("asr", "cpu")]

    assert max(gpu.ready[3:]) <= max(gpu.ready[:3]), "no replica gets a node"
    assert cpu.ready[-1] >= 3
    assert run.series.pipelines[0].met[-1]


def test_a_rise_in_price_is_paid_and_moves_what_it_makes_dear(tmp_path: Path) -> None:
    rise = '[{at: 120s, set: {ComputePool/gpu: {spec: {price: {perHour: "12"}}}}}]'
    plain = a_scenario(tmp_path / "plain", load=((0.0, 40.0),), duration_s=300)
    dear = a_scenario(tmp_path / "dear", load=((0.0, 40.0),), duration_s=300, faults=rise)

    static = [run_one(scenario, policy="static-peak", seed=1) for scenario in (plain, dear)]
    shares = [run.series.pipelines[0].cost_per_hour for run in static]
    assert shares[0][:10] == shares[1][:10]
    gpus = next(p for p in static[1].series.pipelines[0].placements if (p.stage, p.placement) == ("asr", "gpu")).ready[
        -1
    ]
    assert shares[1][-1] - shares[0][-1] == pytest.approx(10.0 * gpus)
    ours = sluice(dear)
    after = next(p for p in ours.series.pipelines[0].placements if (p.stage, p.placement) == ("asr", "gpu")).desired[-1]
    assert after == 0
    assert ours.series.pipelines[0].met[-1]


def test_nodes_that_are_reclaimed_are_made_good(tmp_path: Path) -> None:
    fault = '[{at: 120s, spotReclaim: {pool: cpu, share: "0.3"}}, {at: 120s, spotReclaim: {pool: gpu, share: "0.5"}}]'
    run = sluice(a_scenario(tmp_path, load=((0.0, 40.0),), duration_s=420, faults=fault))

    assert run.offered == run.served + run.filtered + run.shed + run.lost + run.in_flight
    assert run.series.pipelines[0].met[-1]


def test_the_demo_runs_in_the_simulator_as_it_is() -> None:
    scenario = load_scenario(DEMO)
    run = run_one(scenario, policy="sluice", seed=1, settings=POLICIES["sluice"].settings_of({"interval_s": 2.0}))
    (series,) = run.series.pipelines

    assert run.offered == run.served + run.filtered + run.shed + run.lost + run.in_flight
    assert run.cap_violations == 0
    assert run.sla_windows_met is not None
    assert run.sla_windows_met > 0.8
    peak = max(range(len(series.offered_rps)), key=lambda index: series.offered_rps[index])
    spend = series.spend_per_hour
    assert spend[-1] < max(spend[peak : peak + 5])
    assert any("demand" in entry.reason for entry in run.decisions)


@pytest.fixture(scope="module")
def beginning(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """The first two minutes of the contract's scenario, with an eighth of its load, and its manifests as they stand."""
    folder = tmp_path_factory.mktemp("contract")
    for name in ("pools.yaml", "live-captions.yaml"):
        (folder / name).write_text((CONTRACT / name).read_text())
    text = (CONTRACT / "scenario.yaml").read_text()
    text = (
        re.sub(r"duration: \S+", "duration: 2m", text)
        .replace("warmup: 2m", "warmup: 1m")
        .replace("{mean: 40s", "{mean: 20s")
    )
    text = text.replace("copies: 4 ", "copies: 1 ")
    path = folder / "scenario.yaml"
    path.write_text(re.sub(r"(?m)^(faults:.*|  - \{at:.*)\n", "", text))
    return load_scenario(path, policies=POLICIES)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_runs_the_contract_s_scenario(beginning: Scenario, policy: str) -> None:
    run = run_one(beginning, policy=policy, seed=1)

    assert run.offered == run.served + run.filtered + run.shed + run.lost + run.in_flight
    assert run.offered > 1000
    for placement in run.series.pipelines[0].placements:
        assert all(0 <= replicas <= 60 for replicas in placement.desired)
    assert replace(run_one(beginning, policy=policy, seed=1), wall_s=0.0) == replace(run, wall_s=0.0)
