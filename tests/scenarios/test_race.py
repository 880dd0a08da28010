"""The loads of the race: made from recordings by their program, and playable by every entrant."""

import importlib.util
from pathlib import Path

import pytest

from controller.resources.translate import pipeline_spec
from simulations.experiment.experiment import settings_of
from simulations.lab.race.entrants import ENTRANTS, Entrant, lap
from simulations.lab.rivals.objects import scaled
from simulations.lab.session.run import check
from simulations.policies.autoscaler import OneWorkloadSettings
from simulations.policies.catalogue import POLICIES
from simulations.results.results import Tuning
from simulations.scenario.scenario import load_scenario

FOLDER = Path(__file__).parents[2] / "simulations" / "scenarios" / "race"
LOADS = ("day", "bursts", "shortage")


def test_the_traces_are_what_their_program_makes(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_trace", FOLDER / "make_trace.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    program.main(tmp_path)
    for name in ("bursts.csv.gz", "day.csv.gz"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("entrant", ENTRANTS.values(), ids=list(ENTRANTS))
def test_every_entrant_can_run_every_load(name: str, entrant: Entrant) -> None:
    scenario = load_scenario(FOLDER / f"{name}.yaml", policies=POLICIES, live=True)
    run = lap(entrant, scenario, seed=1, interval_s=1.0)
    check(run.scenario, seed=1)


def test_the_times_of_rivals_are_those_of_a_load_that_is_played_faster() -> None:
    scenario = load_scenario(FOLDER / "day.yaml", policies=POLICIES)
    documented = settings_of(scenario, "hpa", Tuning.DEFAULT)
    assert (documented.interval_s, documented.down_window_s) == (1.0, 20.0), "15 s and 300 s, 15 times as fast"
    assert documented.metrics_window_s == 5.0, "a rate needs several scrapes"
    assert documented.target_utilization == POLICIES["hpa"].default.target_utilization


def test_one_with_a_choice_of_hardware_scales_what_it_chose() -> None:
    scenario = load_scenario(FOLDER / "day.yaml", policies=POLICIES, live=True)
    trained = ENTRANTS["hpa:trained"]
    settings = settings_of(scenario, "hpa", Tuning.TRAINED)
    assert isinstance(settings, OneWorkloadSettings)
    names = {}
    for entrant in (ENTRANTS["hpa"], trained):
        (pipeline,) = lap(entrant, scenario, seed=1, interval_s=1.0).scenario.pipelines
        names[entrant.name] = [work.name for work in scaled(pipeline_spec(pipeline))]
    assert names["hpa"] == ["vad", "encoder-inferentia", "decoder-inferentia", "lm"]
    assert len(names["hpa:trained"]) == len(names["hpa"])
