"""The chart under test, rendered by the real Helm (built once, cached: `sluice lab build --helm`)."""

import contextlib
import sys

import pytest
from helm_chart import Chart

from simulations.lab.host.binaries import ensure_helm


@pytest.fixture(scope="session")
def chart(pytestconfig: pytest.Config) -> Chart:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def show(line: str) -> None:
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            print(line, file=sys.stderr, flush=True)

    return Chart(helm=ensure_helm(show))
