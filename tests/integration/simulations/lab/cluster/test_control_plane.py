import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from kubernetes import client, config

from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.host.binaries import Binaries

pytestmark = pytest.mark.lab

DEVICE = "nvidia.com/gpu"
PARTS = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}


def wait_for(holds: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)


@pytest.fixture
def make_node(admin: client.ApiClient) -> Iterator[Callable[[int], str]]:
    """Create nodes with some devices that only this test's pods select."""
    core = client.CoreV1Api(admin)
    pool = f"pool-{uuid.uuid4().hex[:8]}"
    names: list[str] = []

    def make(devices: int) -> str:
        name = f"{pool}-{len(names)}"
        capacity = {"cpu": "16", "memory": "64Gi", "pods": "110", DEVICE: str(devices)}
        core.create_node(client.V1Node(metadata=client.V1ObjectMeta(name=name, labels={"pool": pool})))
        ready = client.V1NodeCondition(type="Ready", status="True", reason="Lab", message="")
        status = client.V1NodeStatus(capacity=capacity, allocatable=capacity, conditions=[ready])
        core.patch_node_status(name, {"status": admin.sanitize_for_serialization(status)})
        names.append(name)
        return pool

    yield make
    for name in names:
        core.delete_node(name)


def deployment(name: str, *, pool: str, replicas: int, devices: int = 1) -> client.V1Deployment:
    resources = client.V1ResourceRequirements(requests={DEVICE: str(devices)}, limits={DEVICE: str(devices)})
    container = client.V1Container(name="stage", image="none", resources=resources)
    pod = client.V1PodTemplateSpec(
        metadata=client.V1ObjectMeta(labels={"app": name}),
        spec=client.V1PodSpec(containers=[container], node_selector={"pool": pool}),
    )
    selector = client.V1LabelSelector(match_labels={"app": name})
    spec = client.V1DeploymentSpec(replicas=replicas, selector=selector, template=pod)
    return client.V1Deployment(metadata=client.V1ObjectMeta(name=name), spec=spec)


def test_it_reports_the_kubernetes_release_it_was_built_from(admin: client.ApiClient) -> None:
    assert client.VersionApi(admin).get_code().git_version == "v1.36.3"


def test_kubectl_of_the_lab_talks_to_it_with_the_admin_kubeconfig(
    control_plane: ControlPlane, binaries: Binaries
) -> None:
    command = [str(binaries.kubectl), "--kubeconfig", str(control_plane.kubeconfig), "version", "-o", "json"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert answer["clientVersion"]["gitVersion"] == answer["serverVersion"]["gitVersion"] == "v1.36.3"


def test_a_service_account_may_do_only_what_a_role_allows(
    control_plane: ControlPlane, admin: client.ApiClient, namespace: str, tmp_path: Path
) -> None:
    core, rbac = client.CoreV1Api(admin), client.RbacAuthorizationV1Api(admin)
    metadata = client.V1ObjectMeta(name="reader")
    core.create_namespaced_service_account(namespace, client.V1ServiceAccount(metadata=metadata))
    kubeconfig = tmp_path / "reader.kubeconfig"
    control_plane.service_account_kubeconfig(namespace, "reader", kubeconfig)

    with config.new_client_from_config(str(kubeconfig)) as session:
        reader = client.CoreV1Api(session)
        assert session.configuration.verify_ssl
        with pytest.raises(client.ApiException) as refusal:
            reader.list_namespaced_pod(namespace)
        assert refusal.value.status == 403
        assert f"system:serviceaccount:{namespace}:reader" in refusal.value.body

        rule = client.V1PolicyRule(api_groups=[""], resources=["pods"], verbs=["list"])
        rbac.create_namespaced_role(namespace, client.V1Role(metadata=metadata, rules=[rule]))
        subject = client.RbacV1Subject(kind="ServiceAccount", name="reader", namespace=namespace)
        role = client.V1RoleRef(kind="Role", name="reader", api_group="rbac.authorization.k8s.io")
        rbac.create_namespaced_role_binding(
            namespace, client.V1RoleBinding(metadata=metadata, role_ref=role, subjects=[subject])
        )

        def may_list() -> bool:
            try:
                reader.list_namespaced_pod(namespace)
            except client.ApiException as error:
                if error.status != 403:
                    raise
                return False
            return True

        wait_for(may_list, "the role to take effect")
        with pytest.raises(client.ApiException) as refusal:
            reader.list_namespaced_config_map(namespace)
        assert refusal.value.status == 403


def test_a_kubeconfig_can_be_read_by_its_owner_alone(control_plane: ControlPlane) -> None:
    assert control_plane.kubeconfig.stat().st_mode & 0o077 == 0


def test_pods_beyond_a_pools_devices_stay_pending_for_want_of_them(
    admin: client.ApiClient, namespace: str, make_node: Callable[[int], str]
) -> None:
    core = client.CoreV1Api(admin)
    pool = make_node(2)
    client.AppsV1Api(admin).create_namespaced_deployment(namespace, deployment("asr", pool=pool, replicas=3))

    def refusals() -> list[str]:
        pods = core.list_namespaced_pod(namespace).items
        conditions = [condition for pod in pods for condition in pod.status.conditions or []]
        return [condition.message for condition in conditions if condition.reason == "Unschedulable"]

    wait_for(lambda: len(refusals()) == 1, "one pod that cannot be scheduled")
    pods = core.list_namespaced_pod(namespace).items
    assert sorted(pod.spec.node_name is not None for pod in pods) == [False, True, True]
    assert f"Insufficient {DEVICE}" in refusals()[0]


def test_replicas_fill_a_node_before_they_start_on_the_next(
    admin: client.ApiClient, namespace: str, make_node: Callable[[int], str]
) -> None:
    core = client.CoreV1Api(admin)
    for _ in range(3):
        pool = make_node(4)
    client.AppsV1Api(admin).create_namespaced_deployment(namespace, deployment("asr", pool=pool, replicas=6))

    def pods_per_node() -> list[int]:
        nodes = [pod.spec.node_name for pod in core.list_namespaced_pod(namespace).items if pod.spec.node_name]
        return sorted(nodes.count(name) for name in set(nodes))

    wait_for(lambda: sum(pods_per_node()) == 6, "all pods scheduled")
    assert pods_per_node() == [2, 4]


def test_a_cluster_started_again_in_the_same_folder_is_empty(binaries: Binaries, tmp_path: Path) -> None:
    for _ in range(2):
        with ControlPlane(tmp_path, binaries) as cluster, config.new_client_from_config(str(cluster.kubeconfig)) as api:
            core = client.CoreV1Api(api)
            assert "left-over" not in {item.metadata.name for item in core.list_namespace().items}
            core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name="left-over")))


def test_with_tokens_pods_get_the_volume_that_a_kubelet_mounts(binaries: Binaries, tmp_path: Path) -> None:
    with (
        ControlPlane(tmp_path, binaries, tokens=True) as cluster,
        config.new_client_from_config(str(cluster.kubeconfig)) as api,
    ):
        core = client.CoreV1Api(api)
        core.create_namespaced_pod(
            "default", {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
        )
        (volume,) = core.read_namespaced_pod("p", "default").spec.volumes
        assert volume.projected.sources[0].service_account_token.path == "token"
        name = volume.projected.sources[1].config_map.name

        def published() -> bool:
            names = {item.metadata.name for item in core.list_namespaced_config_map("default").items}
            return name in names

        wait_for(published, "the certificate")
        certificate = core.read_namespaced_config_map(name, "default").data["ca.crt"]
        assert certificate == cluster.certificate_authority.read_text()


def test_nothing_of_it_survives_a_killed_parent(binaries: Binaries, tmp_path: Path) -> None:
    program = f"""
import threading
from pathlib import Path
from simulations.lab.host.binaries import ensure
from simulations.lab.cluster.control_plane import ControlPlane
control_plane = ControlPlane(Path({str(tmp_path)!r}), ensure(print))
# From a thread that ends: its children must keep running.
starter = threading.Thread(target=control_plane.start)
starter.start()
starter.join()
control_plane.check()
print("ready", flush=True)
threading.Event().wait()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "ready\n"
            parts = psutil.Process(parent.pid).children(recursive=True)
            assert {Path(part.cmdline()[0]).name for part in parts} == PARTS
        finally:
            os.kill(parent.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(parts, timeout=10)
    assert alive == []
