"""Streams that find no replica at the start of a run come back until there is one."""

from pathlib import Path

import pytest
from lab_runs import LabRun, lab_run

pytestmark = [pytest.mark.lab, pytest.mark.extended]

STREAMS = 100


@pytest.fixture(scope="module")
def run(scenarios: Path, tmp_path_factory: pytest.TempPathFactory) -> LabRun:
    folder = tmp_path_factory.mktemp("late-replica")
    return lab_run(scenarios / "late-replica.yaml", "--no-operator", folder=folder, must_be_punctual=True)


def test_a_hundred_streams_that_find_no_replica_are_all_served_once_there_is_one(run: LabRun) -> None:
    first, *_, last = run.report["windows"]

    assert first["served_rps"] < 0.5 * STREAMS, "the replica was ready too early to be missed"
    assert last["offered_rps"] == last["served_rps"] == pytest.approx(STREAMS, rel=0.01)


def test_what_the_streams_missed_is_refused_and_not_lost(run: LabRun) -> None:
    summary = run.summary

    assert summary["refused"] >= 3 * STREAMS
    assert (summary["shed"], summary["lost"], summary["sessions_cut"]) == (0, 0, 0)
    assert summary["offered"] == summary["served"] + summary["refused"] + summary["in_flight"]
    assert summary["sla_windows_met"] < 1
