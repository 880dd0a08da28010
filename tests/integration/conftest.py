"""The lab for tests: one control plane per session, one namespace per test."""

import contextlib
import sys
import uuid
from collections.abc import Iterator

import pytest
from kubernetes import client, config

from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.host.binaries import Binaries, ensure


@pytest.fixture(scope="session")
def binaries(pytestconfig: pytest.Config) -> Binaries:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def show(line: str) -> None:
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            print(line, file=sys.stderr, flush=True)

    return ensure(show)


@pytest.fixture(scope="session")
def control_plane(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The cluster of the session; a test that breaks a cluster starts its own."""
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), binaries) as control_plane:
        yield control_plane


@pytest.fixture(scope="session")
def admin(control_plane: ControlPlane) -> Iterator[client.ApiClient]:
    with config.new_client_from_config(str(control_plane.kubeconfig)) as admin:
        yield admin


@pytest.fixture
def namespace(admin: client.ApiClient) -> Iterator[str]:
    """The name of a new namespace; its objects are deleted after the test, cluster-wide objects are not."""
    core = client.CoreV1Api(admin)
    name = f"test-{uuid.uuid4().hex[:8]}"
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=name)))
    yield name
    core.delete_namespace(name)
    # Pods on a node wait for the confirmation of a kubelet; here there may be none.
    core.delete_collection_namespaced_pod(name, grace_period_seconds=0)
