"""Replicas are removed under load, repeatedly: no chunk is lost, and no stream that fits into the drain is cut."""

from pathlib import Path

import pytest
from lab_runs import LabRun, lab_run

from controller.core.act.scale_in import FIRST_TO_GO
from controller.kube.workloads import DELETION_COST

pytestmark = [pytest.mark.lab, pytest.mark.extended]

SCALE_INS = 10
LENGTH_S = 98
THREE_WAVES_S = 62


def waves(scenarios: Path, folder: Path, *, drain: str, duration_s: int = LENGTH_S) -> LabRun:
    """Run the waves with this drain, or the first of them."""
    (folder / "streams.yaml").write_text(
        (scenarios / "streams.yaml").read_text().replace("drain: 6s", f"drain: {drain}")
    )
    whole, part = f"duration: {LENGTH_S}s", f"duration: {duration_s}s"
    (folder / "waves.yaml").write_text((scenarios / "waves.yaml").read_text().replace(whole, part))
    (folder / "waves.csv").write_text((scenarios / "waves.csv").read_text())
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
    """Three waves with a drain of a quarter of every stream."""
    return waves(scenarios, tmp_path_factory.mktemp("short-drain"), drain="1s", duration_s=THREE_WAVES_S)


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
