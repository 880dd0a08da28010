"""What a result was made from."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from experiments import CONTRACT, a_result, a_scenario

from simulations.experiment.provenance import provenance
from simulations.policies import catalogue
from simulations.results.results import RunResult, Tuning
from simulations.scenario.scenario import load_scenario


def test_every_file_that_decides_the_result_is_hashed(tmp_path: Path) -> None:
    for name in ("pools.yaml", "live-captions.yaml"):
        (tmp_path / name).write_text((CONTRACT / name).read_text())
    text = (CONTRACT / "scenario.yaml").read_text()
    (tmp_path / "own.csv").write_text("t_s,arrivals\n0,1\n1,2\n")
    path = tmp_path / "scenario.yaml"
    path.write_text(text.replace("load: {copies: 8}", "load: {trace: own.csv}"))
    found = provenance(load_scenario(path), ("sluice", "simulate", "x.yaml"))
    assert found.command == ("sluice", "simulate", "x.yaml")
    assert list(found.sha256) == [
        "scenario.yaml",
        "pools.yaml",
        "live-captions.yaml",
        "azure_llm_2023_conv_1s.csv.gz",
        "own.csv",
    ]
    assert found.sha256["own.csv"] == hashlib.sha256(b"t_s,arrivals\n0,1\n1,2\n").hexdigest()
    assert {"sluice", "python", "numpy", "numba"} <= found.versions.keys()


def test_trained_settings_are_hashed_where_a_policy_ran_in_them() -> None:
    def files(*results: RunResult) -> Mapping[str, str]:
        return provenance(a_scenario(), (), results).sha256

    name = "simulations/policies/trained.json"
    trained = Path(catalogue.__file__).parent / "trained.json"
    assert name not in files(a_result("sluice"), a_result("hpa"))
    both = files(a_result("hpa"), a_result("hpa", tuning=Tuning.TRAINED))
    assert both[name] == hashlib.sha256(trained.read_bytes()).hexdigest()


def test_a_file_of_the_bundled_name_wins_over_the_bundled_trace(tmp_path: Path) -> None:
    for name in ("pools.yaml", "live-captions.yaml", "scenario.yaml"):
        (tmp_path / name).write_text((CONTRACT / name).read_text())
    bundled = provenance(load_scenario(tmp_path / "scenario.yaml"), ()).sha256["azure_llm_2023_conv_1s.csv.gz"]
    scenario = (tmp_path / "scenario.yaml").read_text().replace("azure_llm_2023_conv_1s.csv.gz", "conv.csv")
    (tmp_path / "scenario.yaml").write_text(scenario)
    (tmp_path / "conv.csv").write_text("t_s,arrivals\n0,1\n1,2\n")
    assert provenance(load_scenario(tmp_path / "scenario.yaml"), ()).sha256["conv.csv"] != bundled
