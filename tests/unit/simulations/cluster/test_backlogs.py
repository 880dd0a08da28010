"""A simulated backlog: its items wait, the query counts what is left, and an item in time is done by the deadline."""

from pathlib import Path

import pytest
from small_scenarios import POOLS

from optimizer.model import PipelineKey
from simulations.cluster.simulated import SimulatedCluster
from simulations.experiment.experiment import run_one
from simulations.scenario.scenario import InvalidScenario, Scenario, load_scenario

ARCHIVE = PipelineKey("speech/archive")
PIPELINE = """
apiVersion: sluice.dev/v1alpha1
kind: SpeechPipeline
metadata: {name: archive, namespace: speech}
spec:
  demand:
    unit: Items
    backlog: {query: 'sum(sluice_ingress_backlog_items{namespace="speech", pipeline="archive"})', within: 4m}
  budget: {perHour: "30"}
  scaling: {scaleDown: {drain: 8s}}
  stages:
    - name: asr
      routing: Pull
      queueLimit: 100000
      metrics: {window: 10s}
      placements:
        - pool: gpu
          target: {apiVersion: apps/v1, kind: Deployment, name: asr-gpu}
          replicas: {min: 0, max: 4}
          serviceTime: {fixed: 1s, cv: "0.3"}
          startup: 10s
"""


def a_run(folder: Path, load: str = "{pipeline: speech/archive, backlog: {items: 300, at: 20s}}") -> Scenario:
    (folder / "archive.yaml").write_text(PIPELINE)
    (folder / "pools.yaml").write_text(POOLS)
    text = f"name: archive\nmanifests: [pools.yaml, archive.yaml]\nduration: 5m\nwarmup: 0s\nload: [{load}]\n"
    (folder / "scenario.yaml").write_text(text + "interval: 5s\npolicies: [sluice]\n")
    return load_scenario(folder / "scenario.yaml")


def test_the_query_counts_the_items_that_are_left(tmp_path: Path) -> None:
    cluster = SimulatedCluster(a_run(tmp_path), seed=1, interval_s=5.0)
    cluster.advance(10.0)
    assert cluster.snapshot().pipelines[0].demand == 0
    cluster.advance(25.0)
    left = cluster.snapshot().pipelines[0].demand
    assert isinstance(left, float)
    assert 290 <= left <= 300
    cluster.advance(80.0)
    later = cluster.snapshot().pipelines[0].demand
    assert isinstance(later, float)
    assert later < left


def test_all_items_are_done_by_the_deadline_and_then_nothing_runs(tmp_path: Path) -> None:
    result = run_one(a_run(tmp_path), policy="sluice", seed=1)
    assert (result.served, result.late, result.in_flight) == (300, 0, 0)
    assert result.cost < 300 / 3600 * 2.0 * 1.5  # the price of the work, and half of it for start-ups and rounding


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ("{pipeline: speech/archive, trace: a.csv, column: arrivals}", "backlog: .*has spec.demand.backlog"),
        ("{pipeline: speech/archive, backlog: {items: 3}, trace: a.csv}", "trace: .*not allowed beside backlog"),
        ("{pipeline: speech/archive, backlog: {items: 3, at: 6m}}", "backlog.at: .*within the run"),
    ],
)
def test_a_load_that_is_no_backlog_is_refused(tmp_path: Path, load: str, message: str) -> None:
    with pytest.raises(InvalidScenario, match=message):
        a_run(tmp_path, load)
