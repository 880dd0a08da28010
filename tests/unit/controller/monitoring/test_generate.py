"""The dashboards and the rule file: committed as generated, and true to what Grafana and the operator have."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controller.monitoring.generate import DASHBOARDS, generated
from controller.monitoring.grafana import COLUMNS, Dashboard, document

ROOT = Path(__file__).parents[4]
CHART = ROOT / "charts" / "sluice"
BUILT_IN = {"__rate_interval", "__range"}

of_every_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=list(DASHBOARDS))


def panels(dashboard: Dashboard) -> list[dict[str, Any]]:
    return [panel for panel in document(dashboard)["panels"] if panel["type"] != "row"]


def test_the_committed_files_are_the_generated_ones() -> None:
    committed = [*CHART.glob("dashboards/*"), CHART / "rules.yaml"]
    assert {str(path.relative_to(CHART)): path.read_text() for path in committed} == dict(generated())


def test_the_command_writes_all_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "controller.monitoring.generate", tmp_path], cwd=ROOT, check=True)
    assert {name: (tmp_path / name).read_text() for name in generated()} == dict(generated())


@of_every_dashboard
def test_every_panel_has_a_title_and_answers_a_question(dashboard: Dashboard) -> None:
    titles = [panel["title"] for panel in panels(dashboard)]
    assert len(set(titles)) == len(titles)
    for panel in panels(dashboard):
        assert panel["title"]
        assert "?" in panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0


@of_every_dashboard
def test_panels_fit_the_grid_and_do_not_overlap(dashboard: Dashboard) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in document(dashboard)["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < COLUMNS
        assert not cells & taken
        taken |= cells


@of_every_dashboard
def test_queries_use_only_variables_that_the_dashboard_has(dashboard: Dashboard) -> None:
    whole = document(dashboard)
    declared = {variable["name"] for variable in whole["templating"]["list"]}
    used = {name for query in dashboard.queries for name in re.findall(r"\$\{?(\w+)", query.expr)}
    assert used <= declared | BUILT_IN
    assert declared - {"datasource"} <= used, "a variable without a use"
    sources = set(re.findall(r'"uid": "([^"]+)"', json.dumps(whole["panels"])))
    assert sources == {"${datasource}"}


@of_every_dashboard
def test_rates_are_over_the_interval_that_fits_the_scrapes(dashboard: Dashboard) -> None:
    for query in dashboard.queries:
        for window in re.findall(r"\b(?:rate|irate|increase)\([^\[]*\[([^\]]+)\]", query.expr):
            assert window == "$__rate_interval"


def test_dashboards_have_different_addresses_and_link_to_each_other() -> None:
    whole = [document(dashboard) for dashboard in DASHBOARDS.values()]
    assert len({each["uid"] for each in whole}) == len(whole)
    for each in whole:
        assert each["schemaVersion"] >= 36
        assert each["links"][0]["tags"] == each["tags"]
    paths = {path for name in DASHBOARDS for path in re.findall(r"/d/([\w-]+)", generated()[f"dashboards/{name}.json"])}
    assert paths == {"sluice-pipeline"}
