"""While the load falls, the operator has no metrics for sixteen seconds."""

from itertools import pairwise
from pathlib import Path

import pytest
from lab_runs import LabRun, Seen, lab_run

pytestmark = [pytest.mark.lab, pytest.mark.extended]

LOST_S, BACK_S, DURATION_S = 24.0, 40.0, 54.0
INTERVAL_S = 2.0
WINDOW_S = 10.0


@pytest.fixture(scope="module")
def run(scenarios: Path, tmp_path_factory: pytest.TempPathFactory) -> LabRun:
    folder = tmp_path_factory.mktemp("metrics-lost")
    return lab_run(scenarios / "metrics-lost.yaml", folder=folder, must_be_punctual=False)


@pytest.fixture(scope="module")
def blind(run: LabRun) -> list[Seen]:
    """The observations while the operator reported missing metrics."""
    return [seen for seen in run.seen if seen.condition("MetricsAvailable").get("status") == "False"]


def falls(run: LabRun, from_s: float, until_s: float) -> list[str]:
    return [
        f"{change['stage']} on {change['pool']}: {change['replicas']}"
        for change in run.changes(from_s, until_s)
        if change["replicas"][1] < change["replicas"][0]
    ]


def test_nothing_scales_down_while_metrics_are_missing(run: LabRun) -> None:
    in_doubt_s = 2 * INTERVAL_S  # a cycle that began before the loss, and the one that began with it

    assert run.changes(0, LOST_S)
    assert falls(run, LOST_S + in_doubt_s, BACK_S) == []
    windows = [window["replicas"] for window in run.report["windows"] if LOST_S + in_doubt_s <= window["t_s"] < BACK_S]
    assert all(
        later[stage][pool]["desired"] >= earlier[stage][pool]["desired"]
        for earlier, later in pairwise(windows)
        for stage, pools in earlier.items()
        for pool in pools
    )


def test_a_condition_and_an_event_tell_that_metrics_are_missing(run: LabRun, blind: list[Seen]) -> None:
    assert blind
    condition = blind[0].condition("MetricsAvailable")
    assert condition["reason"] == "MetricsMissing"
    assert condition["message"]
    assert blind[0].condition("Ready")["status"] == "False"
    told = [event for event in run.seen[-1].events if event["reason"] == "MetricsMissing"]
    assert {event["type"] for event in told} == {"Warning"}


def test_two_cycles_and_a_window_after_the_loss_the_operator_goes_on(run: LabRun) -> None:
    back_s = run.heard_s("metrics back")
    seeing = next(
        seen for seen in run.seen if seen.at_s > back_s and seen.condition("MetricsAvailable").get("status") == "True"
    )

    assert seeing.at_s - back_s < 2 * INTERVAL_S + WINDOW_S
    assert falls(run, BACK_S, DURATION_S)


def test_no_item_is_lost(run: LabRun) -> None:
    assert run.summary["lost"] == 0
    assert run.summary["cap_violations"] == 0
