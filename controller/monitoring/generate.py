"""Writes the dashboards and the rule file: `python -m controller.monitoring.generate charts/sluice`."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from controller.monitoring.alerts import rule_file
from controller.monitoring.fleet_dashboard import FLEET
from controller.monitoring.grafana import document
from controller.monitoring.operator_dashboard import OPERATOR
from controller.monitoring.pipeline_dashboard import PIPELINE_DASHBOARD
from controller.monitoring.pool_dashboard import POOL

DASHBOARDS = {"fleet": FLEET, "pipeline": PIPELINE_DASHBOARD, "pool": POOL, "operator": OPERATOR}
"""The dashboards by the name of their file."""


def generated() -> Mapping[str, str]:
    """Return the content of every generated file by its path in the chart."""
    dashboards = {
        f"dashboards/{name}.json": json.dumps(document(dashboard), indent=2, ensure_ascii=False) + "\n"
        for name, dashboard in DASHBOARDS.items()
    }
    return {**dashboards, "rules.yaml": rule_file()}


def main() -> None:
    """Write all files into the folder given on the command line."""
    for name, text in generated().items():
        path = Path(sys.argv[1]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
