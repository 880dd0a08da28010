"""What `sluice init` and `sluice doctor` read from a cluster, as values. Objects are those of the API, as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A list of objects, or one object, that could not be read, with the reason."""

    reason: str


Listed = tuple[Json, ...] | Unread
"""The objects of a kind; empty if there are none or the kind is not installed."""


def known(listed: Listed) -> tuple[Json, ...]:
    """Return the objects of a list, none if it could not be read."""
    return () if isinstance(listed, Unread) else listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The objects of one namespace."""

    namespace: str
    deployments: Listed = ()
    stateful_sets: Listed = ()
    services: Listed = ()
    pods: Listed = ()
    autoscalers: Listed = ()
    scaled_objects: Listed = ()
    ray_services: Listed = ()
    quotas: Listed = ()
    limit_ranges: Listed = ()

    def unread(self) -> tuple[str, ...]:
        """Return the reasons for all lists that could not be read, each once."""
        lists = (
            *(self.deployments, self.stateful_sets, self.services, self.pods),
            *(self.autoscalers, self.scaled_objects, self.ray_services, self.quotas, self.limit_ranges),
        )
        return tuple(dict.fromkeys(listed.reason for listed in lists if isinstance(listed, Unread)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The nodes of a cluster, and the objects of some namespaces.

    `node_pools` are those of Karpenter. `pods_of_node` has all pods of some nodes, by the name of the node: one node of
    each group is enough to know what DaemonSets leave.
    """

    nodes: Listed = ()
    node_pools: Listed = ()
    workspaces: Mapping[str, Workspace] = field(default_factory=dict)
    pods_of_node: Mapping[str, Listed] = field(default_factory=dict)


def name_of(resource: Json) -> str:
    """Return the name of an object."""
    name: str = resource["metadata"]["name"]
    return name


def labels_of(resource: Json) -> Mapping[str, str]:
    """Return the labels of an object."""
    return resource["metadata"].get("labels") or {}


def node_of(pod: Json) -> str | None:
    """Return the name of the node of a pod, None for one that is not scheduled."""
    name: str | None = (pod.get("spec") or {}).get("nodeName")
    return name


def pod_template(workload: Json) -> Json:
    """Return the pod template of a workload: `metadata` and `spec`."""
    template: Json = workload["spec"].get("template") or {}
    return {"metadata": template.get("metadata") or {}, "spec": template.get("spec") or {}}


def containers_of(workload: Json) -> Sequence[Json]:
    """Return the containers of a workload's pods."""
    found: Sequence[Json] = pod_template(workload)["spec"].get("containers") or ()
    return found


def belongs_to_daemon_set(pod: Json) -> bool:
    """Return whether a DaemonSet, or the kubelet itself, runs the pod: every node of the group has such a pod."""
    owners = pod["metadata"].get("ownerReferences") or []
    return any(owner.get("kind") in {"DaemonSet", "Node"} for owner in owners)
