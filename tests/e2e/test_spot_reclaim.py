"""The provider reclaims nodes after a notice: their replicas are replaced before the nodes vanish."""

from pathlib import Path

import pytest
from lab_runs import LabRun, lab_run

pytestmark = [pytest.mark.lab, pytest.mark.extended]


@pytest.fixture(scope="module")
def run(scenarios: Path, tmp_path_factory: pytest.TempPathFactory) -> LabRun:
    folder = tmp_path_factory.mktemp("spot-reclaim")
    return lab_run(scenarios / "spot-reclaim.yaml", "--interval", "1", folder=folder, must_be_punctual=True)


def test_no_ready_replica_is_left_on_the_nodes_when_they_vanish(run: LabRun) -> None:
    noticed_s = run.heard_s("nodes of inferentia will be reclaimed")
    gone_s = run.heard_s("nodes of inferentia are reclaimed")
    before = [seen for seen in run.seen if seen.at_s < gone_s]
    assert any(seen.pods_of("encoder-inferentia", "Ready", "True") for seen in before if seen.at_s < noticed_s)
    assert before[-1].pods_of("encoder-gpu", "Ready", "True")
    assert not before[-1].pods_of("encoder-inferentia", "Ready", "True")


def test_no_item_is_sent_again_or_lost(run: LabRun) -> None:
    assert (run.summary["retries"], run.summary["lost"], run.summary["cap_violations"]) == (0, 0, 0)


def test_every_fault_of_the_lab_begins_and_ends(run: LabRun) -> None:
    said = [line for _, line in run.lines if "fault: " in line]
    for words in (
        "4 of the nodes of inferentia are back",
        "take 2 times as long to start",
        "batches of vad take 2 times as long",
        "50% of the pods report no metrics",
        "metrics are noisy",
        "metrics are stale",
        "metrics back",
    ):
        assert any(words in line for line in said), words
