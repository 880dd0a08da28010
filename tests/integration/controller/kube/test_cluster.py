"""What is known of workloads, pods and nodes by watching the real API server, as the operator's ServiceAccount."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from waiting import until

from controller.core.state.spec import Target
from controller.kube.cluster import Cluster
from controller.kube.gateway import Forbidden, Gateway, KubeError, NotFound, Scale
from controller.kube.workloads import NodeNames, target_state
from simulations.lab.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.lab

SCALE = Scale(replicas=2, selector="", resource_version="1")
TARGET = Target(api_version="apps/v1", kind="Deployment", name="captions")


@pytest.fixture
def apps(admin: client.ApiClient) -> client.AppsV1Api:
    return client.AppsV1Api(admin)


def create(apps: client.AppsV1Api, namespace: str, replicas: int = 0) -> None:
    labels = {"app": "captions"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "asr", "image": "none"}]}}
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["captions"]}]}
    spec = {"replicas": replicas, "selector": selector, "template": pod}
    apps.create_namespaced_deployment(namespace, {"metadata": {"name": "captions"}, "spec": spec})


def replicas(cluster: Cluster, namespace: str) -> int | None:
    """Return the replicas that are known, None where no such workload is."""
    try:
        found = cluster.view().workload(namespace, TARGET)
    except NotFound:
        return None
    assert found is not None
    return found[0].replicas


def pods(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    found = cluster.view().workload(namespace, TARGET)
    assert found is not None
    return list(found[1])


@pytest.fixture
def watching(gateway: Gateway, namespace: str) -> Iterator[Cluster]:
    died: list[str] = []
    with Cluster(gateway, namespaces=(namespace,), died=died.append) as cluster:
        yield cluster
    assert not died


def test_workloads_and_their_pods_are_known_as_they_come_change_and_go(
    watching: Cluster, apps: client.AppsV1Api, namespace: str
) -> None:
    assert replicas(watching, namespace) is None
    create(apps, namespace, replicas=2)
    until(lambda: replicas(watching, namespace) == 2)
    until(lambda: len(pods(watching, namespace)) == 2)
    until(lambda: all(target_state(SCALE, [pod], NodeNames()).pending for pod in pods(watching, namespace)))
    apps.patch_namespaced_deployment_scale("captions", namespace, {"spec": {"replicas": 1}})
    until(lambda: replicas(watching, namespace) == 1)
    until(lambda: len(pods(watching, namespace)) == 1)
    apps.delete_namespaced_deployment("captions", namespace)
    until(lambda: replicas(watching, namespace) is None)


def test_another_namespace_is_not_read_when_the_operator_is_told_its_own(
    gateway: Gateway, apps: client.AppsV1Api, namespace: str
) -> None:
    create(apps, namespace)
    cluster = Cluster(gateway, namespaces=("default",))
    cluster.resync()
    assert replicas(cluster, namespace) is None


def test_a_write_is_known_at_once_and_older_news_do_not_take_it_back(
    gateway: Gateway, apps: client.AppsV1Api, namespace: str
) -> None:
    create(apps, namespace)
    cluster = Cluster(gateway, namespaces=(namespace,))  # nothing is watched: only what is written tells
    cluster.resync()
    scale = gateway.patch_scale(namespace, TARGET, 3, gateway.read_scale(namespace, TARGET).resource_version)
    assert replicas(cluster, namespace) == 0
    cluster.written(namespace, TARGET, scale)
    assert replicas(cluster, namespace) == 3
    cluster.resync()
    assert replicas(cluster, namespace) == 3


def test_a_kind_that_may_not_be_read_is_told_when_it_is_needed(
    control_plane: ControlPlane, admin: client.ApiClient, namespace: str, tmp_path: Path
) -> None:
    client.CoreV1Api(admin).create_namespaced_service_account(namespace, {"metadata": {"name": "nobody"}})
    path = tmp_path / "kubeconfig"
    control_plane.service_account_kubeconfig(namespace, "nobody", path)
    with Gateway(path) as gateway, Cluster(gateway) as cluster:
        with pytest.raises(Forbidden, match="nodes"):
            cluster.view().nodes()
        with pytest.raises(Forbidden, match="deployments"):
            cluster.view().workload(namespace, TARGET)


def test_without_a_server_nothing_is_made_up_and_every_watch_goes_on_trying(
    gateway: Gateway, tmp_path: Path, operator_kubeconfig: Path
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(operator_kubeconfig.read_text().replace(gateway.connection().server, "https://127.0.0.1:1"))
    beats: list[str] = []
    with Gateway(path) as away, Cluster(away, beat=beats.append) as cluster:
        with pytest.raises(KubeError, match="refused"):
            cluster.view().nodes()
        until(lambda: min(map(beats.count, ("nodes", "pods", "deployments", "statefulsets"))) >= 3)
