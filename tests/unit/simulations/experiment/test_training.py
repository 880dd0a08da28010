"""The search for settings: what is tried, what wins, and what is written down."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from simulations.experiment import training
from simulations.experiment.experiment import RunRequest
from simulations.experiment.provenance import provenance
from simulations.experiment.training import CANDIDATES, SPACES, Score, best, candidates, main, score, training_scenarios
from simulations.policies import catalogue
from simulations.policies.catalogue import POLICIES, TRAINED
from simulations.scenario.scenario import load_scenario


@dataclass(frozen=True)
class Ran:
    """What the search looks at of a run."""

    policy: str
    cost: float
    sla_windows_met_calm: float | None
    cap_violations: int = 0
    wall_s: float = 0.0


def a_score(cost: float, met: float, violations: int = 0) -> Score:
    return Score(relative_cost=cost, windows_met=met, cap_violations=violations)


def test_every_policy_can_be_searched_and_its_space_is_one_of_its_settings() -> None:
    assert set(SPACES) == set(POLICIES)
    for name, family in POLICIES.items():
        for settings in candidates(family, count=1000):
            assert family.settings_of(family.values_of(settings)) == settings, name


def test_the_documented_settings_come_first_and_nothing_twice() -> None:
    tried = candidates(POLICIES["hpa"], count=CANDIDATES)
    assert tried[0] == POLICIES["hpa"].default
    assert len(set(tried)) == CANDIDATES
    assert tried == candidates(POLICIES["hpa"], count=CANDIDATES)
    assert len(candidates(POLICIES["static-peak"], count=1000)) == len(SPACES["static-peak"]["latency_headroom"])


@pytest.mark.parametrize(
    ("scores", "winner"),
    [
        ([a_score(1.0, 1.0), a_score(0.8, 0.996), a_score(0.5, 0.99)], 1),  # cheapest that is good enough
        (
            [a_score(1.0, 0.9), a_score(2.0, 0.97), a_score(1.5, 0.97)],
            2,
        ),  # none is: the best, and of those the cheapest
        ([a_score(1.0, 1.0), a_score(0.8, 1.0, 1)], 0),  # spending above a cap is not good enough
        ([a_score(1.0, 0.5), a_score(1.0, 0.5)], 0),
    ],
)
def test_the_winner(scores: list[Score], winner: int) -> None:
    assert best(scores) == winner


def test_a_score_weighs_scenarios_alike_whatever_they_cost() -> None:
    documented: Any = [Ran("hpa", 1.0, 1.0), Ran("hpa", 100.0, 1.0)]
    own: Any = [Ran("hpa", 2.0, 1.0), Ran("hpa", 50.0, None, cap_violations=3)]
    assert score(own, documented) == Score(relative_cost=1.25, windows_met=0.5, cap_violations=3)


def test_no_training_scenario_is_reported_on() -> None:
    for scenario in training_scenarios():
        reported = load_scenario(scenario.path.with_name("scenario.yaml"))
        own, other = scenario.file.load[0], reported.file.load[0]
        assert (own.trace, own.offset) != (other.trace, other.offset)
        assert not set(scenario.file.seeds) & set(reported.file.seeds)
        assert scenario.file.manifests == reported.file.manifests


def test_what_is_bundled_tells_which_loads_it_was_found_on() -> None:
    bundled = json.loads((Path(catalogue.__file__).parent / TRAINED).read_text())
    scenarios = training_scenarios()
    assert bundled["seeds"] == {scenario.file.name: list(scenario.file.seeds) for scenario in scenarios}
    assert bundled["scenarios"] == {s.file.name: dict(provenance(s, ()).sha256) for s in scenarios}


def test_what_is_found_is_written_down_beside_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_all(scenario: Any, requests: list[RunRequest], **_: Any) -> list[Ran]:
        return [Ran("hpa", request.settings.target_utilization, 1.0) for request in requests]

    monkeypatch.setattr(training, "run_all", run_all)
    path = tmp_path / "trained.json"
    path.write_text(json.dumps({"policies": {"kpa": {"settings": {"stable_window_s": 30.0}}}}))
    result = CliRunner().invoke(main, ["--policy", "hpa", "--candidates", "8", "--out", str(path)])
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert list(written["policies"]) == ["hpa", "kpa"]
    assert written["policies"]["kpa"] == {"settings": {"stable_window_s": 30.0}}
    entry = written["policies"]["hpa"]
    tried = [{"target_utilization": 0.5, **own["settings"]}["target_utilization"] for own in entry["candidates"]]
    assert len(tried) == 8
    assert entry["settings"]["target_utilization"] == min(tried)
    assert entry["documented"]["relative_cost"] == 1.0
    assert set(written["scenarios"]) == {"steady-training", "bursty-training", "daily-training"}
    assert written["seeds"] == {f"{name}-training": [11, 12] for name in ("steady", "bursty", "daily")}
    assert all(len(own["captions.yaml"]) == 64 for own in written["scenarios"].values())
