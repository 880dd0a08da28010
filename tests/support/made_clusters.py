"""Clusters for the tests of `sluice init` and `sluice doctor`: objects of the API, and answers of Prometheus."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controller.adoption.inventory import Inventory, Json, Listed, Workspace

READY_AT, SCHEDULED_AT = "2026-11-23T10:00:42Z", "2026-11-23T10:00:00Z"
NAMESPACE = "speech"


def a_node(
    name: str,
    *,
    kind: str | None = "c7i.2xlarge",
    labels: Mapping[str, str] | None = None,
    ready: bool = True,
    allocatable: Mapping[str, str] | None = None,
) -> Json:
    own = {"cpu": "8", "memory": "16Gi", "pods": "58"} if allocatable is None else dict(allocatable)
    typed = (
        {} if kind is None else {"node.kubernetes.io/instance-type": kind, "topology.kubernetes.io/region": "us-east-1"}
    )
    return {
        "metadata": {"name": name, "labels": {**typed, **(labels or {})}},
        "spec": {},
        "status": {
            "capacity": own,
            "allocatable": own,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def a_gpu_node(name: str, **labels: str) -> Json:
    return a_node(
        name,
        kind="g6.xlarge",
        labels=labels,
        allocatable={"cpu": "4", "memory": "15Gi", "nvidia.com/gpu": "1", "pods": "58"},
    )


def a_workload(
    name: str,
    *,
    replicas: int = 2,
    requests: Mapping[str, str] | None = None,
    image: str | None = None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **pod_spec: Any,
) -> Json:
    container = {
        "name": "server",
        "image": image or f"registry.example/{name}:1",
        "args": list(args),
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        "resources": {"requests": {"cpu": "1"} if requests is None else dict(requests)},
    }
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": dict(labels or {}), "resourceVersion": "1"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container], **pod_spec}},
        },
    }


def ready_pods(workload: Json, *nodes: str) -> list[Json]:
    """Return a ready pod of `workload` on each of `nodes`."""
    name = workload["metadata"]["name"]
    return [a_pod(f"{name}-{index}", node, workload) for index, node in enumerate(nodes)]


def a_pod(name: str, node: str, workload: Json) -> Json:
    times = {"PodScheduled": SCHEDULED_AT, "Ready": READY_AT}
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": workload["spec"]["template"]["metadata"]["labels"],
            "creationTimestamp": SCHEDULED_AT,
        },
        "spec": {**workload["spec"]["template"]["spec"], "nodeName": node},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.7",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": time} for kind, time in times.items()
            ],
        },
    }


def a_daemon(node: str, cpu: str = "500m") -> Json:
    return {
        "metadata": {"name": f"agent-{node}", "namespace": "kube-system", "ownerReferences": [{"kind": "DaemonSet"}]},
        "spec": {"nodeName": node, "containers": [{"name": "agent", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": "Running"},
    }


def a_service(name: str, app: str | None = None) -> Json:
    return {"metadata": {"name": name}, "spec": {"selector": {"app": app or name}}}


def an_hpa(target: str, least: int, most: int) -> Json:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}
    return {
        "metadata": {"name": target, "namespace": NAMESPACE},
        "spec": {"scaleTargetRef": reference, "minReplicas": least, "maxReplicas": most},
    }


def a_scaled_object(target: str, **bounds: int) -> Json:
    return {
        "metadata": {"name": target, "namespace": NAMESPACE},
        "spec": {"scaleTargetRef": {"name": target}, **bounds},
    }


def a_node_pool(name: str, limits: Mapping[str, str] | None = None, types: Sequence[str] = ()) -> Json:
    kinds = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(types)}] if types else []
    return {
        "metadata": {"name": name},
        "spec": {"limits": dict(limits or {}), "template": {"spec": {"requirements": kinds}}},
    }


def an_inventory(
    deployments: Iterable[Json] = (),
    pods: Iterable[Json] = (),
    nodes: Iterable[Json] = (),
    *,
    node_pools: Iterable[Json] = (),
    pods_of_node: Mapping[str, Listed] | None = None,
    **more: Any,
) -> Inventory:
    workspace = Workspace(
        namespace=NAMESPACE,
        deployments=tuple(deployments),
        pods=tuple(pods),
        **{name: tuple(objects) for name, objects in more.items()},
    )
    return Inventory(
        nodes=tuple(nodes),
        node_pools=tuple(node_pools),
        workspaces={NAMESPACE: workspace},
        pods_of_node=pods_of_node or {},
    )


def vector(*series: tuple[Mapping[str, str], float]) -> list[Json]:
    """Return series as the query API does."""
    return [{"metric": dict(labels), "value": [0, str(value)]} for labels, value in series]
