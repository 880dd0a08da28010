"""Recordings that wait are transcribed in time with what live captions leave, and give way to a peak of these."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from lab_runs import LabRun, lab_run

pytestmark = pytest.mark.lab

PEAK_S, PEAK_ENDS_S = 25.0, 52.0  # the load begins to rise, and to fall
FULL_S = 40.0  # the replicas follow the load until then
CHEAP = 4  # instances of the pool that both use
ITEMS = 150
WITHIN_S = 80.0


@pytest.fixture(scope="module")
def run(scenarios: Path, tmp_path_factory: pytest.TempPathFactory) -> LabRun:
    return lab_run(scenarios / "backlog.yaml", folder=tmp_path_factory.mktemp("backlog"), must_be_punctual=True)


@pytest.fixture(scope="module")
def done(run: LabRun) -> dict[str, Any]:
    """What the report says of the backlog."""
    (found,) = run.report["backlogs"]
    entry: dict[str, Any] = found
    return entry


@pytest.fixture(scope="module")
def outlooks(run: LabRun) -> list[dict[str, Any]]:
    """What the status said of the backlog while replicas worked on it."""
    seen = [each.backlog("archive") for each in run.seen]
    return [outlook for outlook in seen if float(outlook.get("left", 0)) > 0 and "expectedFinish" in outlook]


def replicas(window: dict[str, Any], stage: str, pool: str) -> int:
    count: int = window["replicas"][f"speech/{stage}"][pool]["desired"]
    return count


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_the_backlog_has_the_replicas_that_live_streams_leave_and_gives_them_back_at_the_peak(run: LabRun) -> None:
    windows = run.report["windows"]
    before = [window for window in windows if window["t_s"] < PEAK_S - 5]
    peak = [window for window in windows if FULL_S <= window["t_s"] < PEAK_ENDS_S]

    # The pace needs three at first; what they do more than it needs makes two enough a few seconds later.
    assert max(replicas(window, "archive/asr", "inferentia") for window in before) >= 2
    assert max(replicas(window, "captions/encoder", "inferentia") for window in peak) >= 3
    assert max(replicas(window, "archive/asr", "inferentia") for window in peak) <= 1
    used = [replicas(w, "archive/asr", "inferentia") + replicas(w, "captions/encoder", "inferentia") for w in windows]
    assert max(used) <= CHEAP


def test_live_streams_keep_their_sla_in_every_window(run: LabRun) -> None:
    assert run.summary["sla_windows_met"] == 1
    assert (run.summary["shed"], run.summary["refused"], run.summary["lost"], run.summary["sessions_cut"]) == (0,) * 4


def test_every_item_is_done_once_by_the_deadline_and_the_budget_holds(run: LabRun, done: dict[str, Any]) -> None:
    assert (done["items"], done["done"], done["met"]) == (ITEMS, ITEMS, True)
    assert done["last_done_s"] <= done["due_s"] == WITHIN_S
    assert run.summary["retries"] > 0, "what replicas gave back at the peak was done by others"
    assert 0 < done["cost"] < run.summary["cost"]
    assert run.summary["cap_violations"] == 0


def test_the_status_says_when_the_backlog_will_be_done_and_what_that_costs(
    outlooks: list[dict[str, Any]], done: dict[str, Any]
) -> None:
    begun_s = at(outlooks[-1]["deadline"]) - WITHIN_S
    last = [outlook for outlook in outlooks if float(outlook["left"]) > ITEMS / 10][-1]

    assert at(last["expectedFinish"]) == pytest.approx(begun_s + done["last_done_s"], abs=15.0)
    assert last["met"]
    assert at(last["expectedFinish"]) <= at(last["deadline"])
    assert 0 < float(last["expectedCost"]) < done["cost"]


def test_the_status_says_what_a_later_deadline_saves(outlooks: list[dict[str, Any]]) -> None:
    assert all([each["extension"] for each in outlook["later"]] == ["25%", "100%"] for outlook in outlooks)
    savings = [float(outlook["later"][1]["saving"]) for outlook in outlooks]
    assert min(savings) >= 0
    assert max(savings) > 0, "some of it is on the dear accelerator during the peak"


def test_nothing_runs_for_an_empty_backlog(run: LabRun) -> None:
    assert run.seen[-1].backlog("archive")["left"] == "0"
    last = run.report["windows"][-1]
    assert replicas(last, "archive/asr", "inferentia") + replicas(last, "archive/asr", "gpu") == 0
