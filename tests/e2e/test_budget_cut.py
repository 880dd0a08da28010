"""During a run, the budget is cut below the cost of the load."""

from pathlib import Path

import pytest
from lab_runs import LabRun, Seen, lab_run

pytestmark = [pytest.mark.lab, pytest.mark.extended]

CUT_S = 18.0
EXCUSED_S = 3.0 + 2 * 2.0  # the drain and two cycles
BUDGET_PER_HOUR = 2.3


@pytest.fixture(scope="module")
def run(scenarios: Path, tmp_path_factory: pytest.TempPathFactory) -> LabRun:
    folder = tmp_path_factory.mktemp("budget-cut")
    return lab_run(scenarios / "budget-cut.yaml", folder=folder, must_be_punctual=False)


@pytest.fixture(scope="module")
def last(run: LabRun) -> Seen:
    return run.seen[-1]


def test_spend_goes_below_the_new_budget_at_once_and_stays_there(run: LabRun) -> None:
    windows = run.report["windows"]

    assert max(w["spend_per_hour"] for w in windows if w["t_s"] < CUT_S) > BUDGET_PER_HOUR
    assert all(w["spend_per_hour"] <= BUDGET_PER_HOUR for w in windows if w["t_s"] >= CUT_S + EXCUSED_S)
    assert run.summary["cap_violations"] == 0


def test_the_reduction_is_said_to_be_for_the_budget(run: LabRun) -> None:
    after = [d["reason"] for d in run.report["decisions"] if d["t_s"] >= CUT_S and d["changes"]]

    assert "above the budget" in after[0]


def test_the_status_says_what_limits_the_pipeline_and_how_much_it_can_serve(last: Seen) -> None:
    assert last.status["limitedBy"] == "Budget"
    assert 10 < float(last.status["admissible"]) < 70
    assert 0 < float(last.status["servedFraction"]) < 1
    assert last.status["summary"]["health"] in {"Overloaded", "SLAMissed"}  # late items come first
    assert last.condition("Ready")["status"] == "False"
    assert last.condition("WithinBudget")["status"] == "True"


def test_whole_new_streams_are_shed_and_counted(run: LabRun) -> None:
    summary = run.summary

    assert summary["shed"] > 0
    outcomes = ("served", "filtered", "shed", "refused", "lost", "in_flight")
    assert summary["offered"] == sum(summary[name] for name in outcomes)
