"""Two releases, each for the pipelines of one namespace, which it has a Role in; the second is without CRDs."""

import json
import time
from collections.abc import Callable, Iterator

import pytest
from helm_chart import ChartRefused
from helm_releases import SYSTEM
from installed import OTHER, PATIENCE_S, VALUES, InstallLab, manifests
from waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.extended, pytest.mark.timeout(600)]

NO_CRDS = {"crds": {"install": False}}
ONE_REPLICA = {"replicas": 1}


@pytest.fixture(scope="module")
def lab_with_two(lab: InstallLab, measured: Callable[[str], None]) -> Iterator[InstallLab]:
    lab.clear()
    began_s = time.monotonic()
    for namespace, watched, others in ((SYSTEM, "speech", {}), (OTHER, "batch", NO_CRDS)):
        values = {**VALUES, **ONE_REPLICA, **others, "watchNamespaces": [watched]}
        lab.releases.helm("install", "sluice", values=values, namespace=namespace)
    for namespace in (SYSTEM, OTHER):
        lab.releases.kubectl("rollout", "status", "deployment/sluice", "--namespace", namespace, "--timeout=120s")
    measured(f"two releases of one replica: ready after {time.monotonic() - began_s:.1f} s")
    yield lab
    for namespace in (SYSTEM, OTHER):
        lab.uninstall(namespace)


def test_each_release_scales_the_pipelines_of_its_namespaces_alone(lab_with_two: InstallLab) -> None:
    lab = lab_with_two
    for namespace in ("elsewhere", "speech", "batch"):
        for manifest in manifests(namespace):
            lab.releases.apply(manifest)
    until(lambda: lab.replicas("speech") >= 3 and lab.replicas("batch") >= 3, within_s=PATIENCE_S)
    # The pipeline elsewhere was there first: an operator that saw it would have decided.
    assert lab.replicas("elsewhere") == 0
    assert "status" not in lab.releases.get("speechpipeline", "captions", "--namespace", "elsewhere")


@pytest.mark.parametrize(
    ("account", "namespace", "allowed"),
    [(SYSTEM, "speech", True), (SYSTEM, "batch", False), (OTHER, "batch", True), (OTHER, "elsewhere", False)],
)
def test_each_has_rights_in_its_namespaces_alone(
    lab_with_two: InstallLab, account: str, namespace: str, allowed: bool
) -> None:
    resource = {"verb": "patch", "group": "apps", "resource": "deployments", "subresource": "scale"}
    spec = {
        "user": f"system:serviceaccount:{account}:sluice",
        "resourceAttributes": {**resource, "namespace": namespace},
    }
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    asked = lab_with_two.releases.kubectl("create", "--filename=-", "--output=json", given=review)
    assert json.loads(asked)["status"]["allowed"] is allowed


def test_a_third_release_for_the_namespace_of_another_is_refused(lab_with_two: InstallLab) -> None:
    values = {**VALUES, **NO_CRDS, "watchNamespaces": ["batch"]}
    with pytest.raises(ChartRefused, match='Role "sluice-operator" in namespace "batch" exists'):
        lab_with_two.releases.helm("install", "third", values=values)
    assert "third" not in lab_with_two.releases.helm("list", "--short", "--deployed", chart=None)
