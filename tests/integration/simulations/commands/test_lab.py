"""`sluice lab run` when it is told to stop: nothing stays behind, whatever it was doing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from simulations.lab.host.binaries import Binaries

pytestmark = pytest.mark.lab

SLUICE = Path(sys.executable).with_name("sluice")
DEADLINE_S = 30.0

POOLS = """\
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {name: cpu}
spec:
  device: CPU
  nodeSelector: {sluice.dev/pool: cpu}
  price: {perHour: "1"}
  capacity: {instances: 2}
---
apiVersion: sluice.dev/v1alpha1
kind: SpeechPipeline
metadata: {name: captions, namespace: speech}
spec:
  demand: {unit: Requests, query: 'sum(rate(sluice_ingress_requests_total[10s]))'}
  sla: {latency: 500ms}
  budget: {perHour: "5"}
  stages:
    - name: asr
      placements:
        - pool: cpu
          target: {apiVersion: apps/v1, kind: Deployment, name: asr}
          replicas: {min: 1, max: 4}
          serviceTime: {fixed: 10ms}
          startup: 1s
          perInstance: 2
"""
SCENARIO = """\
name: stopped
manifests: [resources.yaml]
duration: 10m
load: [{pipeline: speech/captions, trace: load.csv, column: rate_per_s}]
"""


@pytest.fixture
def scenario(tmp_path: Path, binaries: Binaries) -> Path:
    assert binaries.etcd.exists(), "built before, so that the run begins at once"
    (tmp_path / "resources.yaml").write_text(POOLS)
    (tmp_path / "load.csv").write_text("t_s,rate_per_s\n" + "".join(f"{t},5\n" for t in range(60)))
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return path


def generators(run: psutil.Process) -> list[psutil.Process]:
    return [child for child in run.children(recursive=True) if "simulations.lab.traffic.generator" in child.cmdline()]


@pytest.mark.parametrize(
    ("signal_number", "during"),
    [
        (signal.SIGINT, "load"),
        pytest.param(signal.SIGINT, "starting Kubernetes", marks=pytest.mark.extended),
        pytest.param(signal.SIGTERM, "load", marks=pytest.mark.extended),
    ],
)
def test_it_ends_with_all_its_processes_and_files(
    scenario: Path, tmp_path: Path, signal_number: signal.Signals, during: str
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with subprocess.Popen(
        ["env", "--default-signal=INT", SLUICE, "lab", "run", scenario],  # a shell's background job ignores it
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as process:
        assert process.stdout is not None
        run = psutil.Process(process.pid)
        children: list[psutil.Process] = []
        try:
            words = "replaying" if during == "load" else during
            assert any(words in line for line in process.stdout), "the run ended before it"
            deadline = time.monotonic() + DEADLINE_S
            while not (generators(run) if during == "load" else run.children()):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert list(temporary.iterdir())
            children = run.children(recursive=True)
            process.send_signal(signal_number)
            stdout, stderr = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()

    assert process.returncode == 128 + signal_number
    assert "report: " not in stdout
    assert stderr.splitlines()[-1] == "interrupted"
    gone, alive = psutil.wait_procs(children, timeout=0)
    assert (alive, len(gone)) == ([], len(children))
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "reports").exists()
