"""Replicas are removed under load, repeatedly: no chunk is lost, and no stream that fits into the drain is cut."""

from pathlib import Path

import pytest
from lab_runs import LabRun, lab_run

from controller.core.act.rollout import FIRST_TO_GO
from controller.kube.workloads import DELETION_COST

pytestmark = pytest.mark.lab

SCALE_INS = 10


def waves(scenarios: Path, folder: Path, *, drain: str) -> LabRun:
    """Run the waves with this drain."""
    (folder / "streams.yaml").write_text(
        (scenarios / "streams.yaml").read_text().replace("drain: 6s", f"drain: {drain}")
    )
    for name in ("waves.yaml", "waves.csv"):
        (folder / name).write_text((scenarios / name).read_text())
    return lab_run(folder / "waves.yaml", "--interval", "1", folder=folder, must_be_punctual=True)


def scale_ins(run: LabRun) -> int:
    """Return the number of removed replicas; two in one cycle count twice."""
    return sum(max(0, change["replicas"][0] - change["replicas"][1]) for change in run.changes(0, 1e9))


@pytest.fixture(scope="module")
def drained(scenarios: Path, tmp_path_factory: pytest.TempPathFactory) -> LabRun:
    """The waves with a drain as long as the longest stream, and half as long again."""
    return waves(scenarios, tmp_path_factory.mktemp("long-drain"), drain="6s")


@pytest.fixture(scope="module")
def cut(scenarios: Path, tmp_path_factory: pytest.TempPathFactory) -> LabRun:
    """The waves with a drain of a quarter of every stream."""
    return waves(scenarios, tmp_path_factory.mktemp("short-drain"), drain="1s")


def test_ten_replicas_and_more_are_taken_away(drained: LabRun) -> None:
    assert scale_ins(drained) >= SCALE_INS


def test_no_chunk_is_lost_and_no_session_cut(drained: LabRun) -> None:
    summary = drained.summary
    assert (summary["lost"], summary["shed"], summary["sessions_cut"]) == (0, 0, 0)
    assert summary["offered"] > 2000


def test_those_that_go_were_told_so_before(drained: LabRun) -> None:
    served: set[str] = set()  # a replica that never served is removed first
    gone: dict[str, str | None] = {}
    for seen in drained.seen:
        for pod in seen.pods:
            metadata = pod["metadata"]
            if "deletionTimestamp" not in metadata:
                conditions = pod["status"].get("conditions", [])
                if any(each["type"] == "Ready" and each["status"] == "True" for each in conditions):
                    served.add(metadata["name"])
            elif metadata["name"] in served:
                gone[metadata["name"]] = metadata.get("annotations", {}).get(DELETION_COST)
    assert len(gone) >= SCALE_INS // 2, "those that were seen on their way out"
    assert set(gone.values()) == {str(FIRST_TO_GO)}


def test_with_a_drain_too_short_the_sessions_that_are_cut_are_reported_and_lose_no_chunk(cut: LabRun) -> None:
    assert scale_ins(cut) >= SCALE_INS // 2
    assert cut.summary["sessions_cut"] > 0
    assert cut.summary["lost"] == 0
