"""How many replicas of a workload fit on one node of a pool, and what limits them. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from controller.adoption.amounts import amounts, requests_of, words
from controller.adoption.inventory import Json, Listed, Unread, belongs_to_daemon_set

_MOST = 1024
_HOST = "kubernetes.io/hostname"
_TINY = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The replicas that fit on one node, None where this cannot be told, and the reason as a sentence."""

    count: int | None
    because: str


def replicas_per_node(pod_spec: Json, node: Json, pods_of_node: Listed) -> Fit:
    """Return how many pods with `pod_spec` fit on `node`, beside the DaemonSets' pods among `pods_of_node`."""
    if _one_per_node(pod_spec):
        return Fit(count=1, because="its pod anti-affinity allows one per node")
    requests = {resource: value for resource, value in requests_of(pod_spec).items() if value > 0}
    if not requests:
        return Fit(count=None, because="its containers request nothing, so any number fits")
    allocatable = amounts((node.get("status") or {}).get("allocatable"))
    daemons, unread = _daemons(pods_of_node)
    rooms = []
    for resource, value in sorted(requests.items()):
        whole = allocatable.get(resource, 0.0)
        left = max(0.0, whole - sum(requests_of(pod["spec"]).get(resource, 0.0) for pod in daemons))
        rooms.append((math.floor(left / value + _TINY), resource, value, left, whole))
    count, resource, value, left, whole = min(rooms)
    taken = f" after DaemonSets, of {words(resource, whole)}" if left < whole else ""
    because = (
        f"a replica requests {resource} {words(resource, value)}; a node has {words(resource, left)}{taken}"
        f"{f' (DaemonSets not read: {unread})' if unread else ''}"
    )
    return Fit(count=min(count, _MOST), because=because)


def _daemons(pods: Listed) -> tuple[Iterable[Json], str]:
    if isinstance(pods, Unread):
        return (), pods.reason
    alive = (pod for pod in pods if (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"})
    return [pod for pod in alive if belongs_to_daemon_set(pod)], ""


def _one_per_node(pod_spec: Json) -> bool:
    rules = ((pod_spec.get("affinity") or {}).get("podAntiAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or []
    return any(rule.get("topologyKey") == _HOST for rule in rules)
