"""Node objects without machines, and the share of a node that one replica requests.

The scheduler packs replicas by CPU: a node has 48 cores, and a replica requests its share of them, 1/`perInstance`,
rounded down to millicores. Exactly `perInstance` replicas fit, and replicas with different shares can use one node.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kubernetes import client

from simulations.lab.pods.agent import NODE_READY

Device = Literal["CPU", "Inferentia", "Trainium", "GPU"]

NODE_MILLICORES = 48_000
MAX_PER_INSTANCE = 200  # with more, requests are so small that rounding down could let one replica more fit

NO_CAPACITY_TAINT = "lab.sluice.dev/no-capacity"
"""The key of a taint that keeps new replicas pending, as when the provider has no more machines."""
NOTICE_TAINT = "aws-node-termination-handler/spot-itn"
"""The key of a taint: the provider will reclaim the node soon. The node is also cordoned."""

_TIMEOUT_S = (3, 10)
CONFLICT, NOT_FOUND = 409, 404
_DEVICE_RESOURCES: Mapping[Device, str] = {
    "GPU": "nvidia.com/gpu",
    "Inferentia": "aws.amazon.com/neuron",
    "Trainium": "aws.amazon.com/neuron",
}


@contextlib.contextmanager
def tolerated(status: int) -> Iterator[None]:
    """Ignore a refusal of the API server with this HTTP status."""
    try:
        yield
    except client.ApiException as error:
        if error.status != status:
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNodes:
    """The nodes of one pool: `instances` of them, spread over `zones` in turn, each with `devices` accelerators.

    `node_selector` are the labels of the pool's nodes.
    """

    name: str
    device: Device
    node_selector: Mapping[str, str]
    instances: int
    zones: tuple[str, ...] = ("lab-a",)
    devices: int = 1


def pod_resources(pool: PoolNodes, per_instance: int) -> dict[str, str]:
    """Return the resource requests, which are also the limits, of a pod of which `per_instance` fit on one node.

    A pod that has one or more whole devices of the node to itself also requests these devices.

    Raises:
        ValueError: `per_instance` is not between 1 and `MAX_PER_INSTANCE`.
    """
    if not 1 <= per_instance <= MAX_PER_INSTANCE:
        raise ValueError(f"perInstance: {per_instance}, must be between 1 and {MAX_PER_INSTANCE} in the lab")
    requests = {"cpu": f"{NODE_MILLICORES // per_instance}m"}
    resource = _DEVICE_RESOURCES.get(pool.device)
    if resource is not None and pool.devices % per_instance == 0:
        requests[resource] = str(pool.devices // per_instance)
    return requests


def node_names(pool: PoolNodes) -> list[str]:
    """Return the names of the pool's nodes, in the order of creation."""
    return [f"{pool.name}-{index}" for index in range(pool.instances)]


def node_manifests(pool: PoolNodes) -> list[dict[str, Any]]:
    """Return the manifests of the pool's nodes, with status Ready."""
    resources = {"cpu": f"{NODE_MILLICORES}m", "memory": "192Gi", "pods": "250"}
    if pool.device in _DEVICE_RESOURCES:
        resources[_DEVICE_RESOURCES[pool.device]] = str(pool.devices)
    return [
        _node(pool, name, pool.zones[index % len(pool.zones)], resources) for index, name in enumerate(node_names(pool))
    ]


def create(api: client.CoreV1Api, pools: Iterable[PoolNodes]) -> None:
    """Create the nodes of the pools; nodes that exist already stay as they are."""
    for pool in pools:
        for node in node_manifests(pool):
            _create(api, node)


def remove(api: client.CoreV1Api, names: Iterable[str]) -> None:
    """Delete nodes without a grace period, which also ends their pods; missing nodes are ignored."""
    for name in names:
        with tolerated(NOT_FOUND):
            api.delete_node(name, grace_period_seconds=0)


class FaultyPool:
    """The nodes of a pool under faults, which may overlap; each counter is the number of present faults.

    While `outages` is above 0, new replicas stay pending; while `absences` is above 0, all nodes are removed. For each
    node, by its index, `leaving` counts the notices of a reclaim, and `gone` the reclaims.
    """

    def __init__(self, nodes: PoolNodes) -> None:
        self.nodes = nodes
        self.outages = 0
        self.absences = 0
        self.leaving: Counter[int] = Counter()
        self.gone: Counter[int] = Counter()

    def settle(self, api: client.CoreV1Api) -> None:
        """Create, delete and taint the nodes on the API server to match the counters."""
        there = {node.metadata.name for node in api.list_node(_request_timeout=_TIMEOUT_S).items}
        for index, manifest in enumerate(node_manifests(self.nodes)):
            name = manifest["metadata"]["name"]
            present = not self.absences and not self.gone[index]
            if not present:
                if name in there:
                    remove(api, [name])
                continue
            manifest["spec"] = self._spec(leaving=self.leaving[index] > 0)
            if name not in there:
                _create(api, manifest)
            else:
                api.patch_node(name, {"spec": manifest["spec"]}, _request_timeout=_TIMEOUT_S)

    def _spec(self, *, leaving: bool) -> dict[str, Any]:
        keys = [key for key, on in ((NO_CAPACITY_TAINT, self.outages > 0), (NOTICE_TAINT, leaving)) if on]
        taints = [{"key": key, "value": "true", "effect": "NoSchedule"} for key in keys]
        return {"taints": taints, "unschedulable": leaving}


def _create(api: client.CoreV1Api, node: Mapping[str, Any]) -> None:
    with tolerated(CONFLICT):
        api.create_node(node, _request_timeout=_TIMEOUT_S)


def _node(pool: PoolNodes, name: str, zone: str, resources: Mapping[str, str]) -> dict[str, Any]:
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": zone,
        "node.kubernetes.io/instance-type": f"lab.{pool.name}",
        **pool.node_selector,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": []},
        "status": {
            "capacity": dict(resources),
            "allocatable": dict(resources),
            "conditions": [dict(NODE_READY)],
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": "127.0.0.1"}],
        },
    }
