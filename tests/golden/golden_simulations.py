"""What `sluice simulate -o json` says of the stated scenarios and that of the contract, with one seed each."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from golden_files import without
from golden_plans import command

NAME = "simulations"
SCENARIOS = ("contract", "steady", "bursty", "daily")
SEED = "1"
"""The first seed of each of them."""

Document = dict[str, Any]

_NOT_COMPARED = frozenset({"wall_s", "provenance"})


def simulated(name: str) -> Document:
    """Return the document without wall times and provenance, runs and checks by name."""
    result = CliRunner().invoke(
        command("simulate"), [str(_path(name)), f"--seeds={SEED}", "--output=json"], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    document: Document = without(json.loads(result.stdout), _NOT_COMPARED)
    document["runs"] = {f"{run['what_if']}/{run['policy']}/{run['tuning']}": run for run in document["runs"]}
    for check in document["self_checks"]:
        del check["name"]
    return document


def _path(name: str) -> Path:
    if name == "contract":
        return Path(__file__).parents[1] / "contract" / "scenario.yaml"
    return Path(str(resources.files("simulations"))) / "scenarios" / name / "scenario.yaml"
