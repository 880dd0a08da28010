"""The parts of a run that need no lab; the others are tested on one."""

from dataclasses import replace
from pathlib import Path

import pytest
from live_runs import CLOCK, a_run

from simulations.lab.cluster.deployments import UnsupportedManifest
from simulations.lab.session.fault_actions import unsupported
from simulations.lab.session.report import lab_windows
from simulations.lab.session.run import _ended_windows, check
from simulations.results.scoring import Clock
from simulations.scenario.scenario import load_scenario

CONTRACT = Path(__file__).parents[4] / "contract"
DEMO = Path(__file__).parents[5] / "simulations" / "scenarios" / "demo" / "scenario.yaml"
UNEVEN = replace(CLOCK, duration_s=45.5)


@pytest.mark.parametrize("clock", [CLOCK, UNEVEN])
def test_every_window_of_the_report_ends_once_and_not_before_its_time(clock: Clock) -> None:
    ends_s = [*[window.t_s for window in lab_windows(replace(a_run(), clock=clock))][1:], clock.duration_s]

    for ended, end_s in enumerate(ends_s, start=1):
        assert _ended_windows(clock, end_s - 0.1) == ended - 1
        assert _ended_windows(clock, end_s) == ended
    assert _ended_windows(clock, clock.duration_s + 60) == len(ends_s)


def test_no_window_ends_before_the_run_begins() -> None:
    assert _ended_windows(CLOCK, -2.0) == _ended_windows(CLOCK, 0.0) == 0


@pytest.mark.parametrize("path", [DEMO, CONTRACT / "scenario.yaml"])
def test_the_lab_can_run_the_demo_and_the_scenario_of_the_interface(path: Path) -> None:
    scenario = load_scenario(path)
    check(scenario, seed=1)  # raises what the lab refuses
    assert list(unsupported(scenario.file)) == []


def test_manifests_are_checked_too(tmp_path: Path) -> None:
    for name in ("scenario.yaml", "captions.yaml"):
        (tmp_path / name).write_text((DEMO.parent / name).read_text())
    pools = (DEMO.parent / "pools.yaml").read_text().replace("capacity:", "# capacity:")
    (tmp_path / "pools.yaml").write_text(pools)

    with pytest.raises(UnsupportedManifest, match=r"ComputePool cpu: spec\.capacity\.instances"):
        check(load_scenario(tmp_path / "scenario.yaml"), seed=1)
