"""The stated scenario `backlog`: recordings are transcribed by the end of the day with what the captions leave."""

from importlib import resources
from pathlib import Path

from simulations.experiment.experiment import run_one
from simulations.scenario.scenario import load_scenario

SCENARIO = Path(str(resources.files("simulations.scenarios"))) / "backlog" / "scenario.yaml"


def test_all_recordings_are_done_in_time_and_the_captions_keep_their_sla() -> None:
    result = run_one(load_scenario(SCENARIO), policy="sluice", seed=1)
    assert result.in_flight == 0
    assert result.sla_windows_met is not None
    assert result.sla_windows_met >= 0.95
    assert result.shed + result.refused + result.lost == 0
    assert result.cap_violations == 0
