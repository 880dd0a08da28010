"""What the pictures of the report show: the release and the cost of each run, beside them in `docs/images/report.json`.

`make pictures` writes it. `tests/scenarios/test_pictures.py` says when the pictures are of another release or run.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def shown(results: dict[str, Any]) -> dict[str, Any]:
    """Return the release, and the cost of the run of each policy with its documented settings, in USD."""
    costs = {run["policy"]: round(run["cost"], 2) for run in results["runs"] if run["tuning"] == "default"}
    return {
        "release": version("sluice-operator"),
        "scenario": results["scenario"],
        "seeds": results["seeds"],
        "costs": costs,
    }


if __name__ == "__main__":
    found = shown(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(found, indent=1) + "\n")
