"""Runs on a Ray cluster of this machine: the results are those of one process, byte for byte.

`make test-ray` installs Ray and runs this in a network namespace that has only the loopback device.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpus import ROOT
from small_scenarios import a_scenario

ADDRESS = "127.77.7.7"
"""Ray replaces 127.0.0.1 by the address of another device."""
PORT = 26379
WHAT_IF = "[{name: double, load: {copies: 2}}, {name: dear, set: {ComputePool/gpu: {spec: {price: {perHour: '4'}}}}}]"


def ray(*arguments: str, folder: Path) -> None:
    """Run a command of Ray, whose workers then import Sluice from this folder."""
    program = Path(sys.executable).with_name("ray")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    subprocess.run([program, *arguments], check=True, cwd=folder, env=environment, timeout=180, capture_output=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("ray")
    ray(
        "start",
        "--head",
        f"--node-ip-address={ADDRESS}",
        f"--port={PORT}",
        "--include-dashboard=false",
        "--num-cpus=2",
        "--object-store-memory=104857600",
        "--disable-usage-stats",
        folder=folder,
    )
    try:
        yield f"{ADDRESS}:{PORT}"
    finally:
        ray("stop", "--force", folder=folder)


def simulate(folder: Path, *arguments: str, address: str) -> subprocess.CompletedProcess[str]:
    """Run `sluice simulate` on the scenario in `folder`, with files that only this process can read."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": address}
    command = [sys.executable, "-m", "controller", "simulate", "scenario.yaml", "--out", "out", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, timeout=500, capture_output=True, text=True, check=False
    )


def test_results_and_report_are_those_of_one_process_byte_for_byte(tmp_path: Path, cluster: str) -> None:
    written = {}
    for name, options in (("local", ["--jobs", "1"]), ("ray", ["--executor", "ray"])):
        folder = tmp_path / name
        a_scenario(
            folder,
            load=((0.0, 10.0), (30.0, 40.0)),
            duration_s=60,
            seeds="[1, 2]",
            policies="[sluice, hpa]",
            what_if=WHAT_IF,
        )
        done = simulate(folder, *options, address=cluster)
        assert done.returncode == 0, done.stderr
        results = (folder / "out" / "results.json").read_text()
        assert len(json.loads(results)["runs"]) == 8
        report = (folder / "out" / "report.html").read_text()
        table = done.stdout.replace(str(folder), "")
        written[name] = tuple(
            re.sub(r" --jobs 1|,\n *\"--jobs\",\n *\"1\"", "", one)
            for one in (re.sub(r'"wall_s": [0-9.e-]+', "", results), re.sub(r"wall_s[^,}]*", "", report), table)
        )
    for local, spread in zip(written["local"], written["ray"], strict=True):
        assert spread == local


def test_a_cluster_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    a_scenario(tmp_path)
    done = simulate(tmp_path, "--executor", "ray", address="127.77.7.7:1")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert line.startswith("Error: no Ray cluster at 127.77.7.7:1 (")
    assert line.endswith("start one with `ray start --head`, or set RAY_ADDRESS")
