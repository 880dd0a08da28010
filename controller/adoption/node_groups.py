"""Groups the nodes of a cluster into what can be ComputePools: the same labels, one instance type. Pure."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.adoption.amounts import amounts, words
from controller.adoption.inventory import Json, labels_of, name_of, node_of
from controller.core.messages.phrases import count_of

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
REGION_LABEL = "topology.kubernetes.io/region"
_NODE_POOL = "karpenter.sh/nodepool"
_OWN = "sluice.dev/pool"
_GROUP_LABELS = (
    _OWN,
    _NODE_POOL,
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "alpha.eksctl.io/nodegroup-name",
)
_NEURON = "aws.amazon.com/neuron"
_GPU = re.compile(r"(nvidia|amd|gpu\.intel)\.com/")
_GPU_TYPES = re.compile(r"(g[0-9]|p[0-9]|a2-|a3-|Standard_N)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes that can be one ComputePool: `selector` are the labels that they, and no others, have.

    `because` says where the selector is from. `nodes` may be empty: the group of a Karpenter NodePool without nodes.
    `node_pool` is the NodePool that makes the nodes, and `types` the number of instance types among its nodes.
    """

    name: str
    selector: Mapping[str, str]
    because: str
    device: str
    nodes: tuple[Json, ...]
    instance_type: str | None = None
    node_pool: Json | None = None
    types: int = 1

    def has(self, node_name: str | None) -> bool:
        """Return whether the node of this name is in the group."""
        return any(name_of(node) == node_name for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityBound:
    """The field `capacity` of a group's pool, and the reason as a sentence."""

    capacity: Mapping[str, str | int]
    because: str


def dns_label(text: str) -> str:
    """Return `text` as a DNS label: lower case, with `-` for other characters; `unnamed` if nothing is left."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:63].strip("-") or "unnamed"


def node_groups(nodes: Sequence[Json], node_pools: Iterable[Json]) -> tuple[NodeGroup, ...]:
    """Return the groups of `nodes`, by name, and those of Karpenter NodePools that have no nodes now."""
    pools = {name_of(pool): pool for pool in node_pools}
    by_label: dict[tuple[str, str], list[Json]] = {}
    for node in nodes:
        labels = labels_of(node)
        label = next((label for label in _GROUP_LABELS if labels.get(label)), INSTANCE_TYPE)
        by_label.setdefault((label, labels.get(label, "")), []).append(node)
    groups = []
    for (label, value), members in by_label.items():
        types: dict[str, list[Json]] = {}
        for node in members:
            types.setdefault(labels_of(node).get(INSTANCE_TYPE, ""), []).append(node)
        pool = pools.get(value) if label == _NODE_POOL else None
        groups += [_group(label, value, kind, own, len(types), pool) for kind, own in sorted(types.items())]
    used = {value for label, value in by_label if label == _NODE_POOL}
    groups += [_empty(pool) for name, pool in pools.items() if name not in used]
    return tuple(sorted(_distinct(groups), key=lambda group: group.name))


def group_of(pod_spec: Json, pods: Iterable[Json], groups: Sequence[NodeGroup]) -> tuple[NodeGroup | None, str]:
    """Return the group on which the pods of a workload run, or can run, and the reason as a sentence.

    Without pods on nodes, it is the first group that has the labels of the pod's nodeSelector and what it requests.
    """
    pods = list(pods)
    counts = Counter(group.name for pod in pods for group in groups if group.has(node_of(pod)))
    if counts:
        (name, count), *others = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        elsewhere = ", ".join(f"{number} on {other}" for other, number in others)
        because = f"pods on {name}: {count} of {sum(counts.values())}"
        if others:
            because += f", and {elsewhere}: add a nodeSelector to the workload, because a placement is on one pool"
        return next(group for group in groups if group.name == name), because
    wanted = pod_spec.get("nodeSelector") or {}
    fitting = [group for group in groups if wanted and wanted.items() <= _known_labels(group).items()]
    if not fitting:
        return None, "no pod of it has a node, and no node has the labels of its nodeSelector"
    return fitting[0], "no pod of it has a node now; its nodeSelector matches"


def capacity_bound(group: NodeGroup) -> CapacityBound:
    """Return what bounds a group: the limits of its NodePool, a stated number beside it, or else its ready nodes."""
    ready = f"{count_of(len(group.nodes), 'node')} now"
    if group.node_pool is None:
        todo = (
            "TODO: set {instances: N} if nodes are added on demand; with readyNodes Sluice plans only for ready nodes"
        )
        return CapacityBound(capacity={"readyNodes": True}, because=f"{ready}. {todo}")
    name, limits = name_of(group.node_pool), amounts(group.node_pool["spec"].get("limits"))
    if not group.nodes and limits:
        because = f"NodePool {name} has no node from which to convert its limits; the first one is planned alone"
        return CapacityBound(capacity={"nodePool": name}, because=because)
    sizes = [amounts((node.get("status") or {}).get("capacity")) for node in group.nodes]
    capacity = {**(sizes[0] if sizes else {}), "nodes": 1.0}
    counts = [
        (math.floor(limit / capacity[resource] + 1e-9), resource, limit)
        for resource, limit in sorted(limits.items())
        if capacity.get(resource, 0) > 0
    ]
    if not counts:
        because = f"{ready}. TODO: NodePool {name} has no limits, so state how many instances there may be"
        return CapacityBound(capacity={"nodePool": name, "instances": max(1, len(group.nodes))}, because=because)
    count, resource, limit = min(counts)
    because = (
        f"NodePool {name} has the limit {resource} {words(resource, limit)}; a node has "
        f"{words(resource, capacity[resource])}{f'; shared by {group.types} instance types' if group.types > 1 else ''}"
    )
    return CapacityBound(capacity={"nodePool": name, "instances": count}, because=because)


def _group(label: str, value: str, kind: str, nodes: list[Json], types: int, pool: Json | None) -> NodeGroup:
    device = _device(nodes, kind)
    count = count_of(len(nodes), "node")
    if label == INSTANCE_TYPE and not kind:
        selector, name = {_OWN: "todo"}, "todo"
        because = (
            f"TODO: {count} without a label of their group. Label them: kubectl label node "
            f"{' '.join(name_of(node) for node in nodes[:3])}{' …' if len(nodes) > 3 else ''} {_OWN}=todo"
        )
    elif label == INSTANCE_TYPE:
        selector, name, because = {INSTANCE_TYPE: kind}, kind, f"{count} of this type"
    elif types > 1:
        selector, name = {label: value, INSTANCE_TYPE: kind}, f"{value}-{kind}"
        because = f"{count}; the group has {types} instance types, and a pool has one price"
    else:
        selector, name, because = {label: value}, value, f"{count}{f' of type {kind}' if kind else ''}"
    return NodeGroup(
        name=dns_label(name),
        selector=selector,
        because=because,
        device=device,
        nodes=tuple(sorted(nodes, key=name_of)),
        instance_type=kind or None,
        node_pool=pool,
        types=types,
    )


def _empty(pool: Json) -> NodeGroup:
    name, kinds = name_of(pool), _required(pool, INSTANCE_TYPE)
    families = _required(pool, "karpenter.k8s.aws/instance-family")
    kind = kinds[0] if len(kinds) == 1 else None
    return NodeGroup(
        name=dns_label(name),
        selector={_NODE_POOL: name},
        because=f"NodePool {name}, which has no nodes now",
        device=_device([], (kind or (kinds + families + [""])[0])),
        nodes=(),
        instance_type=kind,
        node_pool=pool,
    )


def _required(pool: Json, key: str) -> list[str]:
    requirements = pool["spec"].get("template", {}).get("spec", {}).get("requirements") or []
    return [
        value
        for requirement in requirements
        if requirement.get("key") == key and requirement.get("operator") == "In"
        for value in requirement.get("values") or []
    ]


def _known_labels(group: NodeGroup) -> dict[str, str]:
    if group.nodes:
        return dict(labels_of(group.nodes[0]))
    template = (group.node_pool or {"spec": {}})["spec"].get("template") or {}
    return {**((template.get("metadata") or {}).get("labels") or {}), **group.selector}


def _device(nodes: Sequence[Json], kind: str) -> str:
    """Return the device of a ComputePool, from what the nodes offer, else from the instance type `kind`."""
    offered = {
        resource
        for node in nodes
        for resource, value in amounts((node.get("status") or {}).get("capacity")).items()
        if value > 0
    }
    if kind.startswith("trn"):
        return "Trainium"
    if kind.startswith("inf") or any(resource.startswith(_NEURON) for resource in offered):
        return "Inferentia"
    if any(_GPU.match(resource) for resource in offered) or _GPU_TYPES.match(kind):
        return "GPU"
    return "CPU"


def _distinct(groups: Iterable[NodeGroup]) -> list[NodeGroup]:
    """Return the groups with distinct names: two values may give the same DNS label."""
    found: dict[str, NodeGroup] = {}
    for group in groups:
        name, number = group.name, 2
        while name in found:
            name, number = f"{group.name[:60]}-{number}", number + 1
        found[name] = replace(group, name=name)
    return list(found.values())
