"""The quick start, run as it stands: by somebody with a workload, a Prometheus and the rights of an administrator."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpus import ROOT
from document_blocks import Block, blocks
from helm_releases import SYSTEM
from images import tag
from installed import PATIENCE_S, InstallLab
from pod_host import HOST
from waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

PAGE = ROOT / "docs" / "quick-start.md"
TAINT = "dedicated=speech:NoSchedule"
WINDOW_S = 60  # as speech.yaml names none
WORKLOAD = ("deployment", "encoder", "--namespace", "speech")


@pytest.fixture
def cluster(lab: InstallLab) -> Iterator[InstallLab]:
    """A cluster without Sluice, whose workload runs on nodes of its own: only the host can run an operator."""
    lab.clear()
    others = [node["metadata"]["name"] for node in lab.releases.get("nodes")["items"]]
    others.remove(HOST)
    lab.releases.kubectl("taint", "nodes", *others, TAINT)
    tolerant = {"spec": {"template": {"spec": {"tolerations": [{"key": "dedicated", "operator": "Exists"}]}}}}
    lab.releases.kubectl("patch", *WORKLOAD, "--patch", json.dumps(tolerant))
    lab.releases.kubectl("scale", *WORKLOAD, "--replicas=2")
    until(lambda: both_have_samples(lab), within_s=WINDOW_S + 2 * PATIENCE_S)
    yield lab
    lab.releases.kubectl("taint", "nodes", *others, f"{TAINT}-")
    if "sluice" in lab.releases.helm("list", "--short", chart=None):
        lab.uninstall(SYSTEM)


def both_have_samples(lab: InstallLab) -> bool:
    """Whether Prometheus has had the two pods of the workload for a window, and no longer those of a former test.

    Pods that are younger have no samples yet: the reader's workload has been there for longer.
    """
    pods = {pod["metadata"]["name"] for pod in lab.releases.get("pods", "--namespace", "speech")["items"]}
    moments = ('up{namespace="speech"} == 1', f'up{{namespace="speech"}} offset {WINDOW_S + 15}s == 1')
    return len(pods) == 2 and all(pods == {up["metric"]["pod"] for up in lab.query(moment)} for moment in moments)


def environment(lab: InstallLab, folder: Path) -> dict[str, str]:
    """Return what the reader has set: programs, access, and where image and Prometheus are."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(lab.releases.kubectl_program)
    (programs / "helm").symlink_to(lab.releases.chart.helm)
    registry, _, name = tag("operator").partition("/")
    return {
        **os.environ,
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(lab.control_plane.kubeconfig),
        "SLUICE_PROMETHEUS_URL": lab.prometheus_url,
        "REGISTRY": registry,
        "TAG": name.partition(":")[2],
    }


def alike(line: str) -> str:
    """Return a line of output without what differs from run to run: numbers, and the space that they take."""
    return re.sub(r"\s+", " ", re.sub(r"[0-9][0-9.,:TZ-]*", "N", line)).strip()


def told(output: str, expected: Block) -> bool:
    lines = {alike(line) for line in output.splitlines()}
    return all(alike(line) in lines for line in expected.text.splitlines() if alike(line) != "…")


def test_a_reader_who_follows_it_literally_arrives(cluster: InstallLab, tmp_path: Path) -> None:
    given = environment(cluster, tmp_path)
    shutil.copytree(ROOT / "charts", tmp_path / "charts")
    output = ""
    for block in blocks(PAGE, PAGE.read_text()):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text)
        elif block.on_a_cluster:
            command = ["bash", "-euo", "pipefail", "-c", block.text]
            done = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{block}: {done.stdout}{done.stderr}"
            output = done.stdout
            print(f"{block}\n{block.text}{output}")
        elif block.language == "text":
            assert told(output, block), f"{block}: the output is\n{output}"
    assert cluster.replicas("speech") == 5
    until(lambda: not cluster.pods(SYSTEM), within_s=PATIENCE_S)
