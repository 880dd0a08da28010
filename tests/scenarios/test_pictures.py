"""The pictures of the report in docs/images are of this release: `make pictures` takes them again."""

import json
from pathlib import Path

from pictured import shown
from stated_scenarios import stated

from simulations.experiment.experiment import run_one
from simulations.results.results import Tuning

PICTURED = Path(__file__).parents[2] / "docs" / "images" / "report.json"


def test_the_pictures_show_what_the_run_costs_in_this_release() -> None:
    pictured = json.loads(PICTURED.read_text())
    assert (pictured["scenario"], pictured["seeds"]) == ("daily", [1])
    result = run_one(stated("daily"), policy="sluice", seed=1)
    now = shown(
        {
            "scenario": "daily",
            "seeds": [1],
            "runs": [{"policy": "sluice", "tuning": Tuning.DEFAULT.value, "cost": result.cost}],
        }
    )
    assert (pictured["release"], pictured["costs"]["sluice"]) == (now["release"], now["costs"]["sluice"]), (
        "take the pictures again: make pictures"
    )
