"""A load that triples and falls again, with the operator and without."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from lab_runs import SLUICE, LabRun, Seen, lab_run

pytestmark = pytest.mark.lab

STEP_S = 10.0  # when the load begins to rise
FALL_S = 28.0
DURATION_S = 50.0
SLA_S = 0.4
BUDGET_PER_HOUR = 8.0
POOLS = {"vad": {"cpu"}, "encoder": {"inferentia", "gpu"}, "decoder": {"inferentia"}, "lm": {"gpu"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A run, and the output of `kubectl` and `sluice explain` after the first change."""

    run: LabRun
    table: str
    explanation: str


@pytest.fixture(scope="module")
def followed(
    scenarios: Path,
    kubectl: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path_factory: pytest.TempPathFactory,
) -> Followed:
    table = explanation = ""

    def ask(kubeconfig: Path) -> None:
        nonlocal table, explanation
        table = kubectl(kubeconfig, "get", "sp", "-A", "-o", "wide").stdout
        command: list[str | Path] = [SLUICE, "explain", "speech/captions", "--kubeconfig", kubeconfig]
        explanation = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout

    folder = tmp_path_factory.mktemp("step")
    run = lab_run(scenarios / "step.yaml", folder=folder, must_be_punctual=True, once_scaled=ask)
    return Followed(run=run, table=table, explanation=explanation)


@pytest.fixture(scope="module")
def with_operator(followed: Followed) -> LabRun:
    return followed.run


@pytest.fixture(scope="module")
def without_operator(scenarios: Path, tmp_path_factory: pytest.TempPathFactory) -> LabRun:
    folder = tmp_path_factory.mktemp("no-operator")
    return lab_run(scenarios / "step.yaml", "--no-operator", folder=folder, must_be_punctual=True)


@pytest.fixture(scope="module")
def last(with_operator: LabRun) -> Seen:
    return with_operator.seen[-1]


def desired(window: dict[str, Any]) -> int:
    return sum(count["desired"] for pools in window["replicas"].values() for count in pools.values())


def test_every_recorded_decision_is_made_again_from_its_record(with_operator: LabRun) -> None:
    command: list[str | Path] = [SLUICE, "explain", "--from-record", with_operator.operator_log, "speech/captions"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    records, differing = done.stdout.splitlines()[-1].split(" records, ")
    assert (int(records) >= 5, differing) == (True, "0 differ")


def test_replicas_follow_the_load_up_and_down_again(with_operator: LabRun) -> None:
    windows = with_operator.report["windows"]
    before = [window for window in windows if window["t_s"] < STEP_S]
    peak = max(windows, key=lambda window: window["offered_rps"])

    assert peak["offered_rps"] > 2 * before[0]["offered_rps"]
    assert max(map(desired, windows)) >= desired(before[0]) + 3
    assert desired(windows[-1]) < max(map(desired, windows))
    assert peak["spend_per_hour"] > windows[-1]["spend_per_hour"]


def test_more_than_one_stage_is_rescaled(with_operator: LabRun) -> None:
    assert len({change["stage"] for change in with_operator.changes(0, DURATION_S)}) >= 2


def test_no_item_is_lost_and_every_item_is_accounted_for(with_operator: LabRun) -> None:
    summary = with_operator.summary

    assert summary["lost"] == summary["shed"] == 0
    assert summary["served"] > 1000
    outcomes = ("served", "filtered", "shed", "refused", "lost", "in_flight")
    assert summary["offered"] == sum(summary[name] for name in outcomes)


def test_the_sla_holds_for_most_of_the_run(with_operator: LabRun) -> None:
    assert with_operator.summary["sla_windows_met"] >= 0.7


def test_spend_never_exceeds_the_budget(with_operator: LabRun) -> None:
    assert with_operator.summary["cap_violations"] == 0
    assert all(0 < window["spend_per_hour"] <= BUDGET_PER_HOUR for window in with_operator.report["windows"])


def test_every_decision_says_what_changes_and_why(with_operator: LabRun) -> None:
    decisions = with_operator.report["decisions"]
    changes = [(decision["reason"], change) for decision in decisions for change in decision["changes"]]

    assert changes
    for reason, change in changes:
        before, after = change["replicas"]
        assert before != after
        assert f"{change['stage']} {before}→{after} on {change['pool']}" in reason
        assert "streams" in reason
    assert all(decision["pipeline"] == "speech/captions" and decision["reason"] for decision in decisions)
    times = [decision["t_s"] for decision in decisions]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] < DURATION_S + 5


def test_the_report_has_the_promised_fields(with_operator: LabRun) -> None:
    report = with_operator.report

    assert report["scenario"] == "step"
    assert report["kubernetes"].startswith("v1.")
    assert report["windows"][0].keys() >= {"t_s", "offered_rps", "served_rps", "p95_s", "spend_per_hour", "replicas"}
    assert {stage: set(pools) for stage, pools in report["windows"][0]["replicas"].items()} == POOLS
    assert report["windows"][0]["replicas"]["vad"]["cpu"].keys() == {"desired", "ready"}
    assert all(later["t_s"] - window["t_s"] == 5 for window, later in pairwise(report["windows"]))
    assert report["summary"].keys() >= {
        *("sla_windows_met", "sla_windows_met_calm", "windows", "sessions_cut", "cost", "static_peak_cost"),
        *("offered", "served", "filtered", "shed", "refused", "lost", "in_flight"),
        *("replica_changes", "cap_violations", "generator_lag_p99_s"),
    }
    assert report["summary"]["windows"] == len(report["windows"]) == 9
    assert 0 < report["summary"]["cost"] < BUDGET_PER_HOUR * (DURATION_S - 5) / 3600
    assert report["summary"]["static_peak_cost"] > 0


def test_the_report_is_the_last_line(with_operator: LabRun) -> None:
    line = with_operator.stdout.splitlines()[-1]
    words, _, path = line.partition(" ")

    assert words == "report:"
    assert Path(path).is_absolute()
    assert Path(path).is_file()
    assert with_operator.heard_s("items/s") > with_operator.heard_s("replaying")


def test_the_status_tells_how_the_pipeline_is(with_operator: LabRun) -> None:
    # For a moment after a scale-up, the metrics of a new pod are missing, and Ready says so.
    last = next(seen for seen in reversed(with_operator.seen) if seen.condition("MetricsAvailable")["status"] == "True")
    conditions = {condition["type"]: condition for condition in last.status["conditions"]}

    assert conditions.keys() >= {"Ready", "SLAMet", "MetricsAvailable", "TargetsFound", "WithinBudget"}
    assert conditions["Ready"]["status"] == conditions["WithinBudget"]["status"] == "True"
    assert all(condition["reason"] and condition["lastTransitionTime"] for condition in conditions.values())
    assert last.status["observedGeneration"] == last.resource["metadata"]["generation"]
    assert {stage["name"] for stage in last.status["stages"]} == set(POOLS)
    assert last.status["latency"]["source"] == "Measured"


def test_changes_are_told_as_events(last: Seen) -> None:
    scaled = [event for event in last.events if event["reason"] == "Scaled"]

    assert scaled
    assert {(event["type"], event["involvedObject"]["name"]) for event in scaled} == {("Normal", "captions")}
    assert all("→" in event["message"] for event in scaled)


def test_the_columns_tell_whether_it_is_fine_and_what_it_costs(followed: Followed) -> None:
    header, row = followed.table.splitlines()

    assert header.split()[:3] == ["NAMESPACE", "NAME", "HEALTH"]
    assert {"P95/SLA", "BOTTLENECK", "LIMITED-BY", "COST/BUDGET"} <= set(header.split())
    assert row.split()[:2] == ["speech", "captions"]
    assert "/ 400 ms" in row
    assert "/ $8.00/h" in row


def test_explain_tells_what_changed_and_why(followed: Followed) -> None:
    lines = followed.explanation.splitlines()

    assert lines[0].startswith("speech/captions: ")
    for title in ("What", "Why", "Why not more", "Why not now", "What would change it"):
        assert title in lines


@pytest.mark.extended
def test_without_the_operator_the_same_load_breaks_the_sla(with_operator: LabRun, without_operator: LabRun) -> None:
    summary = without_operator.summary
    calm, *_, high = (window for window in without_operator.report["windows"] if window["t_s"] < FALL_S)

    assert without_operator.report["decisions"] == []
    assert summary["replica_changes"] == 0
    assert calm["p95_s"] <= SLA_S
    assert high["p95_s"] is None or high["p95_s"] > SLA_S
    assert summary["sla_windows_met"] < with_operator.summary["sla_windows_met"]
    assert summary["sla_windows_met"] < 0.5 or summary["lost"] > 0
    assert summary["offered"] == with_operator.summary["offered"]
