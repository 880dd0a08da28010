"""The TARGET of `sluice profile` in a cluster: one ready pod of a Deployment or a Service, on a real API server."""

from pathlib import Path
from typing import Any

import click
import pytest
from kubernetes import client

from controller.commands.profile_target import found_target
from simulations.lab.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.lab


@pytest.fixture
def pods(admin: client.ApiClient, namespace: str) -> list[str]:
    """A Deployment and a Service `asr`; one pod is ready, 42 s after it was scheduled, and one is not."""
    core = client.CoreV1Api(admin)
    labels = {"app": "asr"}
    container: dict[str, Any] = {"name": "asr", "image": "asr", "ports": [{"containerPort": 8000}]}
    # Another scheduler's pods: the lab's own would set PodScheduled anew.
    spec = {"containers": [container], "schedulerName": "of-this-test"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    client.AppsV1Api(admin).create_namespaced_deployment(
        namespace,
        {
            "metadata": {"name": "asr"},
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
        },
    )
    core.create_namespaced_service(
        namespace, {"metadata": {"name": "asr"}, "spec": {"selector": labels, "ports": [{"port": 80}]}}
    )
    for name, ready in (("asr-0", "False"), ("asr-1", "True")):
        core.create_namespaced_pod(namespace, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        conditions = [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T10:00:00Z"},
            {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T10:00:42Z"},
        ]
        status = {"status": {"podIP": "10.0.0.7", "phase": "Running", "conditions": conditions}}
        core.patch_namespaced_pod_status(name, namespace, status)
    return ["asr-0", "asr-1"]


@pytest.mark.usefixtures("pods")
@pytest.mark.parametrize("target", ["deployment/asr", "service/asr"])
def test_a_ready_pod_is_found_with_its_port_and_its_start_up(
    target: str, control_plane: ControlPlane, namespace: str
) -> None:
    found = found_target(target, namespace, None, control_plane.kubeconfig)
    assert (found.host, found.port) == ("10.0.0.7", 8000)
    assert found.name == f"pod {namespace}/asr-1"
    assert found.startup_s == 42.0
    assert found.busy is None
    assert found_target(target, namespace, 9000, control_plane.kubeconfig).port == 9000


def test_what_does_not_exist_or_is_not_ready_is_named(
    admin: client.ApiClient, control_plane: ControlPlane, namespace: str, pods: list[str]
) -> None:
    def said(target: str) -> str:
        with pytest.raises(click.ClickException) as raised:
            found_target(target, namespace, None, Path(control_plane.kubeconfig))
        return raised.value.message

    assert said("deployment/tts") == f"deployment 'tts' does not exist in namespace '{namespace}'"
    client.CoreV1Api(admin).delete_namespaced_pod(pods[1], namespace, grace_period_seconds=0)
    assert said("deployment/asr") == f"deployment/asr: has no ready pod in namespace '{namespace}'"
