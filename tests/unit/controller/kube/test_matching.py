import json
from typing import Any

import pytest

from controller.core.state.spec import LabelSelector, Requirement, Target
from controller.kube.gateway import Scale
from controller.kube.matching import Pods, kept_node, kept_pod, kept_workload
from controller.kube.workloads import (
    NodeNames,
    crashed,
    owned_pods,
    ready_nodes,
    reporting_pods,
    restarts,
    target_state,
)

NODES = NodeNames(up=frozenset({"node-1"}), leaving=frozenset())
SCALE = Scale(replicas=1, selector="app=asr", resource_version="17")


def a_pod(name: str, namespace: str = "speech", **labels: str) -> dict[str, Any]:
    """A pod with all that an API server and a kubelet write to it."""
    times = {"lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": {"prometheus.io/port": "8002", "kubectl.kubernetes.io/restartedAt": "noon"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{"manager": "kubelet"}],
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "server", "env": [{"name": "KEY", "value": "secret"}]}]},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "message": "0/3 nodes", **times},
                {"type": "Ready", "status": "True", **times},
            ],
            "containerStatuses": [{"name": "server", "ready": True, "state": {"running": {}}, "image": "big"}],
        },
    }


def names(pods: Pods, selector: LabelSelector, namespace: str = "speech") -> list[str]:
    return [pod["metadata"]["name"] for pod in pods.of(namespace, selector)]


@pytest.mark.parametrize(
    ("operator", "values", "meant"),
    [
        ("In", ["asr", "vad"], ["a", "v"]),
        ("NotIn", ["asr"], ["none", "v"]),
        ("Exists", [], ["a", "v"]),
        ("DoesNotExist", [], ["none"]),
        ("Resembles", ["asr"], []),
    ],
)
def test_expressions_select_as_the_api_says(operator: str, values: list[str], meant: list[str]) -> None:
    pods = Pods(map(kept_pod, [a_pod("v", app="vad"), a_pod("a", app="asr"), a_pod("none")]))
    requirement = Requirement(key="app", operator=operator, values=frozenset(values))
    assert names(pods, LabelSelector(labels={}, requirements=(requirement,))) == meant


def test_a_selector_means_pods_with_all_its_labels_in_its_own_namespace() -> None:
    pods = Pods(
        map(
            kept_pod,
            [
                a_pod("b", app="asr", tier="gpu"),
                a_pod("a", app="asr", tier="gpu", extra="yes"),
                a_pod("other", app="asr", tier="cpu"),
                a_pod("foreign", "archive", app="asr", tier="gpu"),
            ],
        )
    )
    assert names(pods, LabelSelector(labels={"app": "asr", "tier": "gpu"})) == ["a", "b"]
    assert names(pods, LabelSelector(labels={"app": "gone"})) == []
    assert names(pods, LabelSelector(labels={"app": "asr"}), "archive") == ["foreign"]


def test_what_is_kept_of_a_pod_says_the_same_and_nothing_of_its_containers_settings() -> None:
    pod = a_pod("a", app="asr")
    (kept,) = Pods([kept_pod(pod)]).of("speech", LabelSelector(labels={"app": "asr"}))
    assert target_state(SCALE, [kept], NODES) == target_state(SCALE, [pod], NODES)
    assert reporting_pods([kept], 2e9) == reporting_pods([pod], 2e9) == {"a"}
    assert kept["metadata"]["annotations"] == {"prometheus.io/port": "8002"}
    assert "secret" not in json.dumps(kept)


@pytest.mark.parametrize("state", [{"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": {"exitCode": 137}}, {}])
def test_what_is_kept_of_a_pod_says_whether_it_crashes(state: dict[str, Any]) -> None:
    pod = a_pod("a", app="asr")
    pod["status"]["containerStatuses"] = [
        {"name": "asr", "state": state, "restartCount": 3},
        {"name": "sidecar", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "restartCount": 0},
    ]
    (kept,) = Pods([kept_pod(pod)]).of("speech", LabelSelector(labels={"app": "asr"}))
    assert (restarts(kept), crashed(kept)) == (restarts(pod), crashed(pod)) == (3, bool(state))
    assert len(kept["status"]["containerStatuses"]) == 1


def test_the_owner_of_a_pod_is_kept_and_its_other_references_are_not() -> None:
    pod = a_pod("a", app="asr")
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "asr", "uid": "1", "controller": True}
    pod["metadata"]["ownerReferences"] = [{**owner, "name": "other", "controller": False}, owner]
    (kept,) = Pods([kept_pod(pod)]).of("speech", LabelSelector(labels={"app": "asr"}))
    assert owned_pods(Target(api_version="apps/v1", kind="StatefulSet", name="asr"), [kept]) == [kept]
    assert owned_pods(Target(api_version="apps/v1", kind="StatefulSet", name="other"), [kept]) == []


def test_a_pod_that_has_no_labels_and_no_status_yet_is_kept() -> None:
    kept = kept_pod({"metadata": {"name": "new", "namespace": "speech", "creationTimestamp": "2026-01-01T00:00:00Z"}})
    assert target_state(SCALE, Pods([kept]).of("speech", LabelSelector(labels={})), NODES).existing == 1


def test_what_is_kept_of_a_node_says_whose_it_is_and_whether_it_is_ready() -> None:
    node = {
        "metadata": {"name": "node-1", "labels": {"pool": "gpu"}, "annotations": {"big": "one"}},
        "spec": {"podCIDR": "10.0.0.0/24", "unschedulable": True},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "images": ["many"]},
    }
    kept = kept_node(node)
    assert ready_nodes([kept], {"pool": "gpu"}) == (kept,)
    assert kept["spec"] == {"unschedulable": True}
    assert "images" not in kept["status"]


def test_a_deployment_says_what_its_scale_would_say() -> None:
    workload = kept_workload(
        {
            "metadata": {"name": "asr", "resourceVersion": "42"},
            "spec": {
                "replicas": 0,
                "selector": {
                    "matchLabels": {"app": "asr"},
                    "matchExpressions": [{"key": "tier", "operator": "In", "values": ["gpu"]}],
                },
            },
        }
    )
    state = target_state(workload, [], NODES)
    assert (state.desired, state.resource_version) == (0, "42")
    assert workload.selector.matches({"app": "asr", "tier": "gpu"})
    assert not workload.selector.matches({"app": "asr"})


@pytest.mark.parametrize(
    ("strategy", "updated", "rolling"),
    [
        ({}, 2, True),
        ({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}, 2, True),
        ({"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}, 2, False),
        ({"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}, 1, True),
        ({"type": "OnDelete"}, 0, False),
    ],
)
def test_a_stateful_set_that_is_to_keep_earlier_replicas_is_not_rolling(
    strategy: dict[str, Any], updated: int, rolling: bool
) -> None:
    workload = {
        "metadata": {"name": "decoder", "namespace": "speech", "generation": 2, "resourceVersion": "7"},
        "spec": {"replicas": 3, "updateStrategy": strategy},
        "status": {"observedGeneration": 2, "replicas": 3, "updatedReplicas": updated},
    }
    assert kept_workload(workload).rolling is rolling
