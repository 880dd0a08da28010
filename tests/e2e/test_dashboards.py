"""Every query of the dashboards on the lab's Prometheus, which scrapes a running operator.

Queries that are empty in a healthy run are in `tests/integration/controller/monitoring/test_dashboards.py`.
"""

import io
import json
import math
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboard_queries import queries
from rich.console import Console

from controller.monitoring.generate import DASHBOARDS
from simulations.lab.host.binaries import Binaries
from simulations.lab.session.run import Options, run
from simulations.lab.session.view import LineView
from simulations.scenario.scenario import load_scenario

pytestmark = pytest.mark.lab

BEFORE_THE_END_S = 6.0


class Prometheus:
    """Prometheus' API, as of one moment of the run."""

    def __init__(self, url: str, at_s: float) -> None:
        self._url = url
        self._at_s = at_s

    def values(self, expr: str) -> list[float]:
        """Return the value of every series of an instant query."""
        found = self._get("query", query=expr, time=f"{self._at_s:.3f}")
        return [float(series["value"][1]) for series in found["result"]]

    def label_values(self, label: str, selector: str) -> list[str]:
        found: list[str] = self._get(f"label/{label}/values", **{"match[]": selector})
        return found

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]


@pytest.fixture(scope="module")
def prometheus(scenarios: Path, binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    scenario = load_scenario(scenarios / "dashboards.yaml")
    view = LineView(Console(file=io.StringIO()))
    folder = tmp_path_factory.mktemp("dashboards")
    with run(scenario, Options(seed=1, interval_s=1.0), folder, binaries, view) as (_, cluster):
        yield Prometheus(cluster.prometheus_url, time.time() - BEFORE_THE_END_S)


def test_every_query_returns_numbers(prometheus: Prometheus) -> None:
    problems = []
    for asked in queries(namespace="speech", pipeline="captions"):
        values = prometheus.values(asked.expr)
        if any(map(math.isnan, values)) or not (values or asked.empty_because):
            problems.append((asked.place, asked.expr, values))
    assert not problems


def test_every_variable_has_values(prometheus: Prometheus) -> None:
    for dashboard in DASHBOARDS.values():
        for variable in dashboard.variables:
            metric, _, matchers = variable.query.removeprefix("label_values(").partition(f", {variable.name})")
            assert not matchers
            found = prometheus.label_values(variable.name, metric.replace("$namespace", "speech"))
            assert found, variable.query


def test_the_operator_is_the_one_that_scaled(prometheus: Prometheus) -> None:
    assert prometheus.values("sluice_leader") == [1.0]
    assert sum(prometheus.values("sluice_scale_writes_total")) > 0
