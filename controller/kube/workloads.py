"""Turns pods, nodes and scales into values of the Snapshot. Pure functions of API objects."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from controller.core.state.snapshot import PendingReplica, ServingReplica, TargetState
from controller.kube.gateway import Json, Scale
from controller.kube.matching import Workload
from profiler.samples import PodEndpoint

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

_NOTICES = frozenset(
    {
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/rebalance-recommendation",
        "cloud.google.com/impending-node-termination",
        "ToBeDeletedByClusterAutoscaler",
        "node.kubernetes.io/out-of-service",
    }
)
"""Keys of the taints that announce the removal of a node."""
_ZONE_LABEL = "topology.kubernetes.io/zone"
_TYPE_LABEL = "node.kubernetes.io/instance-type"
_FINISHED = {"Succeeded", "Failed"}
_BACK_OFF = "CrashLoopBackOff"
_SCRAPE = "prometheus.io/scrape"
_PORT, _PATH = "prometheus.io/port", "prometheus.io/path"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNames:
    """The names of the nodes that are ready (`up`), and of those among them that are being removed (`leaving`).

    `unread` says that the nodes cannot be listed: the names are the last known ones, and other nodes may be up too.
    `billed` says that it matters which pod is on which node, because budgets count whole instances.
    """

    up: frozenset[str] = frozenset()
    leaving: frozenset[str] = frozenset()
    unread: bool = False
    billed: bool = False


def node_names(nodes: Collection[Json], *, unread: bool, billed: bool = False) -> NodeNames:
    """Return the names of the ready `nodes` and of those being removed; `unread` says that `nodes` are old.

    `billed` says whether to count the pods on each node.
    """
    up = ready_nodes(nodes, {})
    return NodeNames(
        up=frozenset(node["metadata"]["name"] for node in up),
        leaving=frozenset(node["metadata"]["name"] for node in up if is_leaving(node)),
        unread=unread,
        billed=billed,
    )


def is_leaving(node: Json) -> bool:
    """Return whether a node is being removed: it is cordoned or being deleted, or its provider reclaims it."""
    spec = node.get("spec") or {}
    taints = {taint["key"] for taint in spec.get("taints") or []}
    return bool(spec.get("unschedulable")) or "deletionTimestamp" in node["metadata"] or bool(taints & _NOTICES)


def target_state(
    scale: Scale | Workload,
    pods: Sequence[Json],
    nodes: NodeNames,
    unready_since: Mapping[str, float] = MappingProxyType({}),
) -> TargetState:
    """Return the state of a workload from its `scale` and from `pods`, which match its selector.

    `unready_since` has since when (epoch seconds) pods with a node are not ready, by their name, where this is earlier
    than their conditions say.

    An unready pod with a node counts as starting if the node is up, else as stranded. While the nodes are unread, the
    pod counts as starting, because its node may be up.
    """
    alive = [pod for pod in pods if pod.get("status", {}).get("phase") not in _FINISHED]
    staying = sorted(
        (pod for pod in alive if "deletionTimestamp" not in pod["metadata"]), key=lambda pod: pod["metadata"]["name"]
    )
    waiting = [pod for pod in staying if not _holds(pod, "Ready")]
    placed = [pod for pod in waiting if _node(pod) is not None]
    return TargetState(
        desired=scale.replicas,
        existing=len(staying),
        ready=len(staying) - len(waiting),
        terminating=len(alive) - len(staying),
        pending=tuple(_unscheduled(pod) for pod in waiting if _holds(pod, "PodScheduled", "False")),
        stranded=tuple(
            _stranded(pod, unready_since) for pod in placed if not nodes.unread and _node(pod) not in nodes.up
        ),
        starting=tuple(_starting(pod, unready_since) for pod in placed if nodes.unread or _node(pod) in nodes.up),
        serving=tuple(_serving(pod, nodes) for pod in staying if _holds(pod, "Ready")),
        resource_version=scale.resource_version,
        nodes=Counter(node for pod in alive if (node := _node(pod)) is not None) if nodes.billed else {},
    )


def reporting_pods(pods: Sequence[Json], ready_before_s: float) -> frozenset[str]:
    """Return the names of the pods that must report metrics: those ready since `ready_before_s` or earlier."""
    return frozenset(
        pod["metadata"]["name"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and _holds(pod, "Ready")
        and _since_s(pod, "Ready") <= ready_before_s
    )


def metrics_endpoints(pods: Sequence[Json]) -> dict[str, PodEndpoint]:
    """Return the metrics endpoint of each running pod by its name, from the annotations prometheus.io/port and /path.

    A pod with `prometheus.io/scrape: "false"`, or with an invalid port or path, has none.
    """
    endpoints: dict[str, PodEndpoint] = {}
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status") or {}
        notes = metadata.get("annotations") or {}
        path = notes.get(_PATH, "/metrics")
        port = _port(notes.get(_PORT))
        usable = notes.get(_SCRAPE) != "false" and path.startswith("/") and (port is not None or _PORT not in notes)
        if status.get("phase") == "Running" and status.get("podIP") and usable and "deletionTimestamp" not in metadata:
            endpoints[metadata["name"]] = PodEndpoint(host=status["podIP"], port=port, path=path)
    return endpoints


def ready_nodes(nodes: Collection[Json], selector: Mapping[str, str]) -> tuple[Json, ...]:
    """Return the nodes that match a pool's `selector` and are ready."""
    return tuple(
        node
        for node in nodes
        if selector.items() <= node["metadata"].get("labels", {}).items() and _holds(node, "Ready")
    )


def instance_types(nodes: Collection[Json], selector: Mapping[str, str], names: Collection[str]) -> Mapping[str, str]:
    """Return the instance types of the nodes in `names` that match a pool's `selector`; "" for a node without one."""
    types: dict[str, str] = {}
    for node in nodes:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels", {})
        if name in names and selector.items() <= labels.items():
            types[name] = labels.get(_TYPE_LABEL, "")
    return types


def zones(nodes: Collection[Json]) -> int:
    """Return the number of distinct zones of `nodes`, at least 1."""
    return max(1, len({node["metadata"]["labels"].get(_ZONE_LABEL) for node in nodes} - {None}))


def seconds(timestamp: str) -> float:
    """Return an RFC 3339 time in seconds since the epoch."""
    return datetime.fromisoformat(timestamp).timestamp()


def is_ready(pod: Json) -> bool:
    """Return whether a pod is ready."""
    return _holds(pod, "Ready")


def ready_since_s(pod: Json) -> float:
    """Return since when (epoch seconds) a ready pod is ready."""
    return _since_s(pod, "Ready")


def unready_since_s(pod: Json) -> float:
    """Return since when (epoch seconds) a pod with a node is unready: its loss of readiness, else its scheduling."""
    known = next((kind for kind in ("Ready", "PodScheduled") if _condition(pod, kind)), "Ready")
    return _since_s(pod, known)


def restarts(pod: Json) -> int:
    """Return how often the containers of a pod were restarted."""
    return sum(container.get("restartCount") or 0 for container in _statuses(pod, "containerStatuses"))


def crashed(pod: Json) -> bool:
    """Return whether a container of a pod has ended and is to be restarted."""
    states = [container.get("state") or {} for container in _statuses(pod, "containerStatuses")]
    return any("terminated" in state or (state.get("waiting") or {}).get("reason") == _BACK_OFF for state in states)


def _serving(pod: Json, nodes: NodeNames) -> ServingReplica:
    cost = (pod["metadata"].get("annotations") or {}).get(DELETION_COST, "0")
    return ServingReplica(
        name=pod["metadata"]["name"],
        leaving=_node(pod) in nodes.leaving,
        deletion_cost=int(cost) if re.fullmatch(r"[+-]?\d{1,10}", cost, re.ASCII) else 0,
        startup_s=_startup_s(pod),
    )


def _startup_s(pod: Json) -> float | None:
    """Return how long the pod took to become ready once it had a node; None after a restart of a container.

    A pod that was unready for a while looks slower than it started, which the median over the pods leaves out.
    """
    if any(container.get("restartCount") for container in _statuses(pod, "containerStatuses")):
        return None
    if not _holds(pod, "PodScheduled"):
        return None
    return max(0.0, _since_s(pod, "Ready") - _since_s(pod, "PodScheduled"))


def _unscheduled(pod: Json) -> PendingReplica:
    condition = _condition(pod, "PodScheduled")
    return _replica(pod, _since_s(pod, "PodScheduled"), condition.get("message", ""))


def _stranded(pod: Json, unready_since: Mapping[str, float]) -> PendingReplica:
    return _replica(pod, _earliest_s(pod, unready_since), f"its node {_node(pod)} is not ready")


def _earliest_s(pod: Json, unready_since: Mapping[str, float]) -> float:
    own_s = unready_since_s(pod)
    return min(own_s, unready_since.get(pod["metadata"]["name"], own_s))


def _starting(pod: Json, unready_since: Mapping[str, float]) -> PendingReplica:
    """Return a starting pod, with the kubelet's reason for the first waiting container, else for the whole pod."""
    containers = [*_statuses(pod, "initContainerStatuses"), *_statuses(pod, "containerStatuses")]
    for state in (container.get("state") or {} for container in containers):
        if (waits := state.get("waiting")) is not None:
            return _replica(pod, _earliest_s(pod, unready_since), _reason(waits))
    words = _reason(_condition(pod, "Ready")) or "it is not ready"
    return _replica(pod, _earliest_s(pod, unready_since), words)


def _reason(source: Json) -> str:
    return ": ".join(filter(None, (source.get("reason"), source.get("message"))))


def _statuses(pod: Json, kind: str) -> list[Json]:
    statuses: list[Json] = pod.get("status", {}).get(kind) or []
    return statuses


def _replica(pod: Json, since_s: float, reason: str) -> PendingReplica:
    return PendingReplica(name=pod["metadata"]["name"], since_s=since_s, reason=reason)


def _node(pod: Json) -> str | None:
    name: str | None = (pod.get("spec") or {}).get("nodeName")
    return name


def _port(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()):
        return None
    return number if 0 < (number := int(text[:6])) <= 65_535 else None


def _since_s(pod: Json, kind: str) -> float:
    # lastTransitionTime may be null; then the pod's creation is an earlier bound.
    return seconds(_condition(pod, kind).get("lastTransitionTime") or pod["metadata"]["creationTimestamp"])


def _holds(resource: Json, kind: str, status: str = "True") -> bool:
    return bool(_condition(resource, kind).get("status") == status)


def _condition(resource: Json, kind: str) -> Json:
    conditions: list[Json] = resource.get("status", {}).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == kind), {})
