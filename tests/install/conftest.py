"""The images and the lab for releases, each made once.

SLUICE_PODS=kubelet runs the pods of releases by a kubelet (`make test-kubelet`), otherwise podman runs them.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator

import pytest
from helm_chart import Chart
from images import TOOLS, build, missing_tools
from installed import HostMaker, InstallLab
from kubelet_host import KubeletHost
from podman_host import PodmanHost

from simulations.lab.host.binaries import ensure, ensure_helm, ensure_node

_MEASURED = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session", autouse=True)
def _images() -> None:
    if os.geteuid() != 0 or missing_tools():
        what = "the checks of the container images, and of releases whose pods run from them"
        pytest.skip(f"not run: {what}; they need root and {', '.join(TOOLS)}")
    if os.environ.get("SLUICE_IMAGES") != "built":  # the Makefile has just built them
        build()


@pytest.fixture(scope="session")
def lab(_images: None, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstallLab]:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def show(line: str) -> None:
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            print(line, file=sys.stderr, flush=True)

    chart = Chart(helm=ensure_helm(show))
    host: HostMaker = PodmanHost
    if os.environ.get("SLUICE_PODS") == "kubelet":
        host = functools.partial(KubeletHost, ensure_node(show))
    with InstallLab(tmp_path_factory.mktemp("install"), ensure(show), chart, host) as lab:
        yield lab
        lab.check()


@pytest.fixture(scope="session")
def measured(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Note a line for the end of the output."""
    return pytestconfig.stash.setdefault(_MEASURED, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what was measured."""
    if lines := config.stash.get(_MEASURED, []):
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)
