"""The operator's own identity on the lab's cluster."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes import client, utils

from controller.kube.gateway import PIPELINES, POOLS, Gateway, NotFound
from simulations.lab.cluster.control_plane import ControlPlane

ROOT = Path(__file__).parents[3]
DEADLINE_S = 30.0


@pytest.fixture(scope="session")
def operator_kubeconfig(
    control_plane: ControlPlane, admin: client.ApiClient, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Credentials of the operator's ServiceAccount, with the rights that its manifest gives, on a cluster with CRDs."""
    manifests = [ROOT / "controller" / "kube" / "rbac.yaml", *(ROOT / "crds").glob("*.yaml")]
    for manifest in manifests:
        for document in yaml.safe_load_all(manifest.read_text()):
            try:
                utils.create_from_dict(admin, document)
            except utils.FailToCreateError as error:
                if any(problem.status != 409 for problem in error.api_exceptions):  # another test has been here
                    raise
    path = tmp_path_factory.mktemp("operator") / "kubeconfig"
    control_plane.service_account_kubeconfig("sluice-system", "sluice", path)
    with Gateway(control_plane.kubeconfig) as gateway:

        def served() -> bool:
            try:
                return all(gateway.list_all(kind) for kind in (PIPELINES, POOLS))
            except NotFound:
                return False

        deadline = time.monotonic() + DEADLINE_S
        while not served():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    return path


@pytest.fixture
def gateway(operator_kubeconfig: Path) -> Iterator[Gateway]:
    with Gateway(operator_kubeconfig) as gateway:
        yield gateway
