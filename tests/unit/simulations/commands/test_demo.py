"""`sluice demo` without a lab: its verdict and its exit status."""

import contextlib
import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from experiments import a_result

from controller.core.state.spec import DemandUnit
from simulations.commands import demo as command
from simulations.commands.demo import closing_lines
from simulations.commands.lab import Finished
from simulations.lab.session.report import LabResult, LabSummary
from simulations.lab.session.run import Options
from simulations.results.results import DecisionEntry, PlacementChange
from simulations.results.users import Users
from simulations.scenario.scenario import Scenario, load_scenario

DEMO = Path(__file__).parents[4] / "simulations" / "scenarios" / "demo" / "scenario.yaml"

SUMMARY: dict[str, Any] = {
    "sla_windows_met": 0.954,
    "sla_windows_met_calm": 0.954,
    "sla_windows_met_admitted": 0.96,
    "windows": 22,
    "offered": 1000,
    "served": 430,
    "late": 20,
    "filtered": 550,
    "shed": 9,
    "refused": 3,
    "lost": 0,
    "in_flight": 8,
    "sessions_cut": 2,
    "retries": 1,
    "cost": 0.25,
    "static_peak_cost": 0.5,
    "replica_changes": 14,
    "cap_violations": 0,
    "generator_lag_p99_s": 0.001,
}


def a_decision(t_s: float, reason: str, **changes: list[int]) -> DecisionEntry:
    return DecisionEntry(
        t_s=t_s,
        pipeline="speech/captions",
        changes=tuple(
            PlacementChange(stage="encoder", placement=pool, before=before, after=after)
            for pool, (before, after) in changes.items()
        ),
        reason=f"encoder ({reason}): demand 300 streams",
    )


DECISIONS = [
    a_decision(74.0, "demand", inferentia=[1, 3]),
    a_decision(92.4, "a pool cannot deliver nodes", gpu=[0, 1], inferentia=[3, 1]),
    a_decision(102.0, "retry after a failure", inferentia=[1, 2]),
    a_decision(108.0, "a pool cannot deliver nodes", inferentia=[2, 1]),
    a_decision(118.0, "retry after a failure", inferentia=[1, 2]),
    a_decision(126.0, "lower cost", inferentia=[2, 3]),
    a_decision(132.0, "lower cost", gpu=[1, 0]),
]


FALLBACK = (
    "no capacity for new replicas on inferentia from 80 s to 120 s: gpu took over at 92 s; "
    "one replica tried again at 102 s, 118 s; replicas moved back from 132 s on"
)

USERS = Users(
    pipeline="speech/captions",
    unit=DemandUnit.STREAMS,
    promised_share=0.95,
    offered=45.0,
    as_promised=43.2,
    refused=0.6,
    late=1.2,
    lost=0.0,
)
STATIC = replace(
    a_result("static-peak", cost=0.5),
    users=(replace(USERS, as_promised=44.1, refused=0.0, late=0.9),),
    sessions_cut=0,
)
"""A recorded run of the static plan, under the same failure."""


class Runs:
    """Replaces runs on the lab."""

    def __init__(self) -> None:
        self.summary = dict(SUMMARY)
        self.decisions = list(DECISIONS)
        self.asked: list[tuple[str, Options]] = []
        self.up = False

    @contextlib.contextmanager
    def executed(self, scenario: Scenario, options: Options) -> Iterator[tuple[Any, Any]]:
        self.asked.append((scenario.file.name, options))
        self.up = True
        finished = Finished(
            result=LabResult(
                scenario="demo",
                kubernetes="v1.36.3",
                windows=(),
                decisions=tuple(self.decisions),
                users=(USERS,),
                summary=LabSummary(**self.summary),
            ),
            page="<!doctype html>",
            operator_log=Path("no-operator.log"),
        )
        yield finished, SimpleNamespace(kubeconfig="/lab/admin.kubeconfig")
        self.up = False


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    monkeypatch.chdir(tmp_path)
    runs = Runs()
    monkeypatch.setattr(command, "executed", runs.executed)
    monkeypatch.setattr(command, "static_plan", lambda _scenario, seed: replace(STATIC, seed=seed))
    monkeypatch.setattr(command, "sessions_of", lambda _scenario, _seed: 200)
    return runs


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(command.demo, arguments)


def test_it_ends_with_a_verdict_and_the_path_of_the_report(runs: Runs, tmp_path: Path) -> None:
    result = invoke()

    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        (
            "Sluice served 43.2 of 45 open streams (mean) as promised (96.0 %; the SLA asks for 95.0 %): "
            "0.6 refused, 1.2 late, 0 lost; 2 sessions were cut."
        ),
        "within the SLA: 95.4% of 22 windows",
        "items: 1000 offered = 430 served + 550 filtered + 9 shed + 3 refused + 0 lost + 8 in flight",
        "cost: $0.2500",
        "14 replica changes, 2 sessions cut, 0 cap violations",
        FALLBACK,
        (
            "A static allocation for the peak (simulated, with the same load and failure) served 44.1 of 45 open "
            "streams (mean) as promised (98.0 %; the SLA asks for 95.0 %): 0 refused, 0.9 late, 0 lost; 0 sessions "
            "were cut. It costs $5,713/month."
        ),
        (
            "result: $2,857/month, $2,857 (50.0 %) less than the static allocation; 43.2 of 45 open streams (mean) "
            "served as promised (96.0 %), 0.6 refused, 1.2 late, 0 lost; 2 of 200 sessions cut (1.0 %)"
        ),
        f"page: {tmp_path}/reports/demo-1.html",
        f"report: {tmp_path}/reports/demo-1.json",
    ]
    report = json.loads((tmp_path / "reports" / "demo-1.json").read_text())
    assert report["summary"] == SUMMARY
    assert report["users"][0]["share"] == pytest.approx(0.96)
    assert report["decisions"][0] == {
        "t_s": 74.0,
        "pipeline": "speech/captions",
        "changes": [{"stage": "encoder", "pool": "inferentia", "replicas": [1, 3]}],
        "reason": "encoder (demand): demand 300 streams",
    }
    assert len(report["decisions"]) == len(DECISIONS)
    assert runs.asked == [("demo", Options(seed=1, interval_s=1.0))]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"replica_changes": 0}, "failed: the operator changed no replicas\n"),
        ({"lost": 3}, "failed: 3 items were lost\n"),
        ({"cap_violations": 2}, "failed: spend was above the budget 2 times\n"),
        ({"lost": 1, "replica_changes": 0}, "failed: the operator changed no replicas\nfailed: 1 items were lost\n"),
    ],
)
def test_a_promise_that_was_not_kept_is_status_1(runs: Runs, broken: dict[str, int], message: str) -> None:
    runs.summary |= broken
    result = invoke()
    assert (result.exit_code, result.stderr) == (1, message)
    assert result.stdout.splitlines()[-1].startswith("report: ")


def test_a_pool_without_room_that_nothing_goes_around_is_a_broken_promise(runs: Runs) -> None:
    runs.decisions = DECISIONS[:1]
    result = invoke()
    assert (result.exit_code, result.stderr) == (
        1,
        "failed: no other pool took over from inferentia, which had no capacity\n",
    )


def test_replicas_that_cannot_be_placed_one_by_one_are_taken_over_too(runs: Runs) -> None:
    alone = a_decision(84.0, "replicas cannot be placed, or do not start, on a pool", gpu=[0, 1], inferentia=[5, 4])
    runs.decisions = [DECISIONS[0], alone]
    result = invoke()
    assert result.exit_code == 0
    assert "gpu took over at 84 s" in result.stdout


def test_work_that_does_not_come_back_within_the_run_is_not_said_to(runs: Runs) -> None:
    runs.decisions = DECISIONS[:2]
    found = [line for line in invoke().stdout.splitlines() if "inferentia" in line]
    assert found == ["no capacity for new replicas on inferentia from 80 s to 120 s: gpu took over at 92 s"]


def test_a_missed_sla_and_shed_items_are_no_failure(runs: Runs) -> None:
    runs.summary |= {"sla_windows_met": 0.2, "shed": 500}
    assert invoke().exit_code == 0


def test_a_run_that_costs_more_than_the_static_plan_says_so(runs: Runs) -> None:
    runs.summary["cost"] = 0.6
    (line,) = [line for line in invoke().stdout.splitlines() if line.startswith("result: ")]
    assert line.startswith("result: $6,856/month, $1,143 (20.0 %) more than the static allocation; 43.2 of 45")


def test_a_static_plan_that_costs_nothing_and_a_run_without_sessions_are_not_divided_by(runs: Runs) -> None:
    with runs.executed(load_scenario(DEMO), Options(seed=1)) as (finished, _):
        lines = closing_lines(finished.result, replace(STATIC, cost=0.0), scored_h=0.1, sessions=0)
    assert lines[-1] == (
        "result: $1,825/month; 43.2 of 45 open streams (mean) served as promised (96.0 %), 0.6 refused, 1.2 late, "
        "0 lost; 2 of 0 sessions cut"
    )


def test_no_window_to_score_is_a_dash(runs: Runs) -> None:
    runs.summary |= {"sla_windows_met": None, "windows": 0}
    assert "within the SLA: - of 0 windows" in invoke().stdout.splitlines()


def test_a_late_load_is_a_warning(runs: Runs) -> None:
    runs.summary["generator_lag_p99_s"] = 0.0223
    assert "warning: the load generator was late by 22.3 ms (p99)" in invoke().stdout.splitlines()


def test_flags_reach_the_run(runs: Runs) -> None:
    invoke("--no-operator", "--seed", "5", "--interval", "3")
    assert runs.asked == [("demo", Options(seed=5, operator=False, interval_s=3.0))]


def test_keep_tells_the_result_and_leaves_the_lab_up_until_ctrl_c(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait() -> None:
        assert runs.up
        raise KeyboardInterrupt

    monkeypatch.setattr(signal, "pause", wait)
    result = invoke("--keep")

    assert result.exit_code == 0
    assert result.stderr == "the lab stays up until Ctrl-C: kubectl --kubeconfig /lab/admin.kubeconfig\n"
    assert result.stdout.splitlines()[-1].startswith("report: ")
    assert not runs.up


@pytest.mark.parametrize(
    "arguments", [["--wrong"], ["now"], ["--seed", "x"], ["--interval", "0"], ["--interval", "nan"]]
)
def test_wrong_usage_is_2(runs: Runs, arguments: list[str]) -> None:
    assert invoke(*arguments).exit_code == 2
    assert runs.asked == []
