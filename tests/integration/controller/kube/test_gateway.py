"""The gateway against the real API server, as the operator's ServiceAccount with the rights of its manifest."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from fault_proxy import Refuse, Stall, api_server_proxy
from kubernetes import client, config
from waiting import until

from controller.core.state.spec import Target
from controller.kube.gateway import (
    NODES,
    PAGE,
    PODS,
    Conflict,
    Forbidden,
    Gateway,
    HeldBack,
    NotFound,
    Resource,
    Unavailable,
)
from simulations.lab.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.lab

TARGET = Target(api_version="apps/v1", kind="Deployment", name="captions")


@pytest.fixture
def workload(admin: client.ApiClient, namespace: str) -> client.AppsV1Api:
    """A Deployment `captions` without replicas, come to rest."""
    apps = client.AppsV1Api(admin)
    labels = {"app": "captions"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "asr", "image": "none"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod}
    apps.create_namespaced_deployment(namespace, {"metadata": {"name": "captions"}, "spec": spec})
    deadline = time.monotonic() + 30
    while len(apps.read_namespaced_deployment("captions", namespace).status.conditions or []) < 2:
        assert time.monotonic() < deadline, "its first status changes have not come, which would each be a new version"
        time.sleep(0.02)
    return apps


def test_replicas_are_read_and_written_through_the_scale(
    gateway: Gateway, workload: client.AppsV1Api, namespace: str
) -> None:
    scale = gateway.read_scale(namespace, TARGET)
    assert (scale.replicas, scale.selector) == (0, "app=captions")
    gateway.patch_scale(namespace, TARGET, 2, scale.resource_version)
    deployment = workload.read_namespaced_deployment("captions", namespace)
    assert deployment.spec.replicas == 2
    managers = [(entry.manager, entry.subresource) for entry in deployment.metadata.managed_fields]
    assert ("sluice", "scale") in managers


def test_a_decision_that_rests_on_old_replicas_is_refused_by_the_server(
    gateway: Gateway, workload: client.AppsV1Api, namespace: str
) -> None:
    scale = gateway.read_scale(namespace, TARGET)
    workload.patch_namespaced_deployment_scale("captions", namespace, {"spec": {"replicas": 3}})
    with pytest.raises(Conflict):
        gateway.patch_scale(namespace, TARGET, 2, scale.resource_version)
    assert gateway.read_scale(namespace, TARGET).replicas == 3


def test_a_list_longer_than_a_page_comes_whole(
    control_plane: ControlPlane, gateway: Gateway, admin: client.ApiClient, namespace: str
) -> None:
    core = client.CoreV1Api(admin)
    pod = {"spec": {"containers": [{"name": "asr", "image": "none"}]}}
    for index in range(PAGE + 1):
        core.create_namespaced_pod(namespace, {"metadata": {"name": f"pod-{index}"}, **pod})
    assert len(gateway.list_all(PODS, namespace).items) == PAGE + 1


def test_a_server_that_is_not_there_is_unavailable(control_plane: ControlPlane, tmp_path: Path) -> None:
    kubeconfig = yaml.safe_load(control_plane.kubeconfig.read_text())
    kubeconfig["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    with Gateway(path) as gateway, pytest.raises(Unavailable, match="refused"):
        gateway.list_all(NODES)


def test_a_token_that_was_renewed_on_disk_is_taken_up(operator_kubeconfig: Path, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    good = yaml.safe_load(operator_kubeconfig.read_text())
    bad = yaml.safe_load(operator_kubeconfig.read_text())
    bad["users"][0]["user"]["token"] = "expired"
    path.write_text(yaml.safe_dump(bad))
    with Gateway(path) as gateway:
        with pytest.raises(Forbidden, match="401"):
            gateway.list_all(NODES)
        path.write_text(yaml.safe_dump(good))
        assert gateway.list_all(NODES).resource_version
        assert gateway.connection().token == good["users"][0]["user"]["token"]


def test_a_kind_without_a_scale_and_a_kind_that_is_not_served_are_named(gateway: Gateway, namespace: str) -> None:
    with pytest.raises(NotFound, match="apps/v1 has no kind ControllerRevision with a scale"):
        gateway.read_scale(namespace, Target(api_version="apps/v1", kind="ControllerRevision", name="x"))
    with pytest.raises(NotFound, match="does not serve leaderworkerset"):
        gateway.read_scale(
            namespace, Target(api_version="leaderworkerset.x-k8s.io/v1", kind="LeaderWorkerSet", name="x")
        )


@pytest.fixture
def landlords(admin: client.ApiClient) -> Iterator[str]:
    """The name of the only object of a kind that has a scale and belongs to no namespace."""
    kinds, objects = client.ApiextensionsV1Api(admin), client.CustomObjectsApi(admin)
    replicas = {"type": "object", "properties": {"replicas": {"type": "integer"}}}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": replicas, "status": replicas}}},
        "subresources": {
            "status": {},
            "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
        },
    }
    names = {"plural": "landlords", "singular": "landlord", "kind": "Landlord"}
    kinds.create_custom_resource_definition(
        {
            "metadata": {"name": "landlords.example.dev"},
            "spec": {"group": "example.dev", "names": names, "scope": "Cluster", "versions": [version]},
        }
    )
    body = {"apiVersion": "example.dev/v1", "kind": "Landlord", "metadata": {"name": "all"}, "spec": {"replicas": 1}}

    def made() -> bool:
        try:
            objects.create_cluster_custom_object("example.dev", "v1", "landlords", body)
        except client.ApiException:  # the kind is not served yet
            return False
        return True

    until(made)
    yield "all"
    kinds.delete_custom_resource_definition("landlords.example.dev")


def test_an_object_of_no_namespace_is_no_target(
    control_plane: ControlPlane, admin: client.ApiClient, landlords: str, namespace: str
) -> None:
    target = Target(api_version="example.dev/v1", kind="Landlord", name=landlords)
    with Gateway(control_plane.kubeconfig) as gateway:  # with every right, so that it is not for want of one
        with pytest.raises(NotFound, match=r"example\.dev/v1 Landlord is not namespaced"):
            gateway.read_scale(namespace, target)
        with pytest.raises(NotFound, match="is not namespaced"):
            gateway.patch_scale(namespace, target, 7, "")
    found = client.CustomObjectsApi(admin).get_cluster_custom_object("example.dev", "v1", "landlords", landlords)
    assert found["spec"] == {"replicas": 1}


@pytest.mark.parametrize(
    ("api_version", "plural", "may"),
    [
        ("sluice.dev/v1alpha1", "speechpipelines", {"get", "list", "watch"}),
        ("sluice.dev/v1alpha1", "computepools", {"get", "list", "watch"}),
        ("sluice.dev/v1alpha1", "computebudgets", {"get", "list", "watch"}),
        ("sluice.dev/v1alpha1", "speechpipelines/status", {"patch"}),
        ("sluice.dev/v1alpha1", "computepools/status", {"patch"}),
        ("sluice.dev/v1alpha1", "computebudgets/status", {"patch"}),
        ("apps/v1", "deployments/scale", {"get", "patch"}),
        ("apps/v1", "statefulsets/scale", {"get", "patch"}),
        ("apps/v1", "deployments", {"list", "watch"}),
        ("apps/v1", "statefulsets", {"list", "watch"}),
        ("v1", "pods", {"list", "watch", "patch"}),
        ("v1", "nodes", {"list", "watch"}),
        ("coordination.k8s.io/v1", "leases", {"get"}),
        ("v1", "events", {"create", "list"}),
        ("karpenter.sh/v1", "nodepools", {"list", "watch"}),
        ("karpenter.sh/v1", "nodeclaims", {"list", "watch"}),
        ("autoscaling/v2", "horizontalpodautoscalers", {"list", "watch"}),
        ("autoscaling.k8s.io/v1", "verticalpodautoscalers", {"list", "watch"}),
        ("v1", "secrets", set()),
        ("v1", "configmaps", set()),
        ("v1", "namespaces", {"list", "watch"}),
        ("apiextensions.k8s.io/v1", "customresourcedefinitions", set()),
    ],
)
def test_the_operator_may_do_what_it_needs_and_nothing_else(
    operator_kubeconfig: Path, api_version: str, plural: str, may: set[str]
) -> None:
    group, _, _ = api_version.rpartition("/")
    resource, _, subresource = plural.partition("/")
    verbs = {"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
    with config.new_client_from_config(str(operator_kubeconfig)) as operator:
        reviews = client.AuthorizationV1Api(operator)
        allowed = {
            verb
            for verb in verbs
            if reviews.create_self_subject_access_review(
                {
                    "spec": {
                        "resourceAttributes": {
                            "group": group,
                            "resource": resource,
                            "subresource": subresource,
                            "verb": verb,
                            "namespace": "default",
                        }
                    }
                }
            ).status.allowed
        }
    assert allowed == may


@pytest.mark.parametrize(
    ("name", "may"),
    [("sluice", {"get", "patch", "create"}), ("another", {"create", "get"})],
    ids=["its own", "another"],
)
def test_of_leases_the_operator_may_change_its_own(operator_kubeconfig: Path, name: str, may: set[str]) -> None:
    attributes = {"group": "coordination.k8s.io", "resource": "leases", "namespace": "sluice-system", "name": name}
    with config.new_client_from_config(str(operator_kubeconfig)) as operator:
        reviews = client.AuthorizationV1Api(operator)
        allowed = {
            verb
            for verb in ("get", "list", "watch", "create", "update", "patch", "delete")
            if reviews.create_self_subject_access_review(
                {"spec": {"resourceAttributes": {**attributes, "verb": verb}}}
            ).status.allowed
        }
    assert allowed == may


def test_a_refused_request_says_whose_fault_it_is(gateway: Gateway) -> None:
    with pytest.raises(Forbidden, match="cannot list resource"):
        gateway.list_all(Resource(api_version="v1", plural="secrets"))
    assert gateway.list_all(NODES).resource_version
    assert gateway.list_all(PODS, "default", "app=nothing").items == ()


def test_a_server_that_wants_to_be_left_alone_is_and_then_asked_again(
    control_plane: ControlPlane, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    with api_server_proxy(control_plane) as proxy:
        control_plane.service_account_kubeconfig("sluice-system", "sluice", path, server=proxy.url)
        with Gateway(path) as gateway:
            with (
                proxy.fault(Refuse(status=429, headers={"Retry-After": "2"})),
                pytest.raises(Unavailable, match="429"),
            ):
                gateway.list_all(PODS)
            asked = len(proxy.passed)
            with pytest.raises(HeldBack, match="asked to retry after 2 s"):
                gateway.list_all(PODS)
            assert len(proxy.passed) == asked
            gateway.list_all(NODES)
            asked = len(proxy.passed)
            deadline = time.monotonic() + 30
            while len(proxy.passed) == asked:
                assert time.monotonic() < deadline
                with suppress(Unavailable):
                    gateway.list_all(PODS)
                time.sleep(0.05)
            assert proxy.passed[-1].status == 200


def test_a_server_that_hangs_costs_one_time_limit_and_not_one_for_every_request(
    control_plane: ControlPlane, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    with api_server_proxy(control_plane) as proxy, proxy.fault(Stall()):
        control_plane.service_account_kubeconfig("sluice-system", "sluice", path, server=proxy.url)
        with Gateway(path, timeout_s=(1.0, 0.5)) as gateway:
            with pytest.raises(Unavailable, match="timed out"):
                gateway.list_all(PODS)
            with pytest.raises(HeldBack, match="did not answer the previous request in time"):
                gateway.list_all(NODES)
