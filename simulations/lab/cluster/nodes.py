"""Node objects without machines, and how much of a node one replica takes.

Replicas share a node by CPU: a node has 48 cores, and a replica of which `perInstance` fit on one instance asks for its
share of them, rounded down, so that exactly `perInstance` fit and shares of different sizes add up. CPU is what the
scheduler packs by, and what a full pool is short of.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kubernetes import client

Device = Literal["CPU", "Inferentia", "Trainium", "GPU"]

NODE_MILLICORES = 48_000
MAX_PER_INSTANCE = 200  # above, rounding could let one replica more onto a node

NO_CAPACITY_TAINT = "lab.sluice.dev/no-capacity"
"""No new replica is placed: it has to wait, as for a provider that has no more machines."""
NOTICE_TAINT = "aws-node-termination-handler/spot-itn"
"""The provider takes the node back soon; the node is cordoned, too."""

_TIMEOUT_S = (3, 10)
_CONFLICT = 409
_NOT_FOUND = 404
_DEVICE_RESOURCES: Mapping[Device, str] = {
    "GPU": "nvidia.com/gpu",
    "Inferentia": "aws.amazon.com/neuron",
    "Trainium": "aws.amazon.com/neuron",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNodes:
    """The nodes of one pool: `instances` of them, spread over `zones` in turn, each with `devices` accelerators.

    `node_selector` are the labels by which the pool finds its nodes; `taint` is the key of a NoSchedule taint;
    `allocatable` adds resources to those that every node has, or replaces them.
    """

    name: str
    device: Device
    node_selector: Mapping[str, str]
    instances: int
    zones: tuple[str, ...] = ("lab-a",)
    devices: int = 1
    taint: str | None = None
    allocatable: Mapping[str, str] = field(default_factory=dict)


def pod_resources(pool: PoolNodes, per_instance: int) -> dict[str, str]:
    """Return the resource requests (and limits) of a pod of which `per_instance` fit on one node of the pool.

    The device's own resource is asked for where a replica has whole devices to itself. ValueError when `per_instance`
    is not between 1 and `MAX_PER_INSTANCE`.
    """
    if not 1 <= per_instance <= MAX_PER_INSTANCE:
        raise ValueError(f"perInstance: {per_instance}, must be between 1 and {MAX_PER_INSTANCE} in the lab")
    requests = {"cpu": f"{NODE_MILLICORES // per_instance}m"}
    resource = _DEVICE_RESOURCES.get(pool.device)
    if resource is not None and pool.devices % per_instance == 0:
        requests[resource] = str(pool.devices // per_instance)
    return requests


def node_names(pool: PoolNodes) -> list[str]:
    """Return the names of the pool's nodes, in the order in which they are made."""
    return [f"{pool.name}-{index}" for index in range(pool.instances)]


def node_manifests(pool: PoolNodes) -> list[dict[str, Any]]:
    """Return the Node objects of the pool, ready to take pods."""
    resources = {"cpu": f"{NODE_MILLICORES}m", "memory": "192Gi", "pods": "250"}
    if pool.device in _DEVICE_RESOURCES:
        resources[_DEVICE_RESOURCES[pool.device]] = str(pool.devices)
    resources |= pool.allocatable
    return [
        _node(pool, name, pool.zones[index % len(pool.zones)], resources) for index, name in enumerate(node_names(pool))
    ]


def create(api: client.CoreV1Api, pools: Iterable[PoolNodes]) -> None:
    """Create the nodes that are not there yet."""
    for pool in pools:
        for node in node_manifests(pool):
            _create(api, node)


def remove(api: client.CoreV1Api, names: Iterable[str]) -> None:
    """Take nodes away at once, with all that runs on them; those that have gone already are fine."""
    for name in names:
        try:
            api.delete_node(name, grace_period_seconds=0)
        except client.ApiException as error:
            if error.status != _NOT_FOUND:
                raise


class FaultyPool:
    """The nodes of a pool as faults leave them. Faults may overlap, and each ends by itself.

    `outages` let no new replica onto a node, `absences` keep all nodes away; `leaving` and `gone` count by a node's
    number how often it was told to go, and how often it was taken.
    """

    def __init__(self, nodes: PoolNodes) -> None:
        self.nodes = nodes
        self.outages = 0
        self.absences = 0
        self.leaving: Counter[int] = Counter()
        self.gone: Counter[int] = Counter()

    def settle(self, api: client.CoreV1Api) -> None:
        """Make the nodes on the API server what the faults say they are."""
        there = {node.metadata.name for node in api.list_node(_request_timeout=_TIMEOUT_S).items}
        for index, manifest in enumerate(node_manifests(self.nodes)):
            name = manifest["metadata"]["name"]
            present = not self.absences and not self.gone[index]
            if not present:
                if name in there:
                    remove(api, [name])
                continue
            manifest["spec"] = self._spec(manifest["spec"], leaving=self.leaving[index] > 0)
            if name not in there:
                _create(api, manifest)
            else:
                api.patch_node(name, {"spec": manifest["spec"]}, _request_timeout=_TIMEOUT_S)

    def _spec(self, spec: Mapping[str, Any], *, leaving: bool) -> dict[str, Any]:
        taints = list(spec["taints"])
        if self.outages:
            taints.append({"key": NO_CAPACITY_TAINT, "value": "true", "effect": "NoSchedule"})
        if leaving:
            taints.append({"key": NOTICE_TAINT, "value": "true", "effect": "NoSchedule"})
        return {**spec, "taints": taints, "unschedulable": leaving}


def _create(api: client.CoreV1Api, node: Mapping[str, Any]) -> None:
    try:
        api.create_node(node, _request_timeout=_TIMEOUT_S)
    except client.ApiException as error:
        if error.status != _CONFLICT:
            raise


def _node(pool: PoolNodes, name: str, zone: str, resources: Mapping[str, str]) -> dict[str, Any]:
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": zone,
        "node.kubernetes.io/instance-type": f"lab.{pool.name}",
        **pool.node_selector,
    }
    taints = [] if pool.taint is None else [{"key": pool.taint, "value": "true", "effect": "NoSchedule"}]
    ready = {"type": "Ready", "status": "True", "reason": "LabNode", "message": "the lab's agent runs its pods"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {
            "capacity": dict(resources),
            "allocatable": dict(resources),
            "conditions": [ready],
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": "127.0.0.1"}],
        },
    }
