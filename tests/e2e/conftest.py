"""Whole runs on the lab: `make test` builds its programs before these start."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from simulations.lab.host.binaries import Binaries, ensure

Kubectl = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    return ensure(print)


@pytest.fixture(scope="session")
def kubectl(binaries: Binaries) -> Kubectl:
    """`kubectl(kubeconfig, arguments…)`, its exit status and what it printed."""

    def run(kubeconfig: Path | str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [binaries.kubectl, "--kubeconfig", kubeconfig, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    return run


@pytest.fixture(scope="session")
def scenarios() -> Path:
    return Path(__file__).parent / "scenarios"
