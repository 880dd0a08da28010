"""Turns pods, nodes and scales into values of the Snapshot. Pure functions of API objects."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType

from controller.adoption.amounts import Amounts, amounts
from controller.core.state.snapshot import PendingReplica, ServingReplica, TargetState
from controller.core.state.spec import Target
from controller.kube.constraints import constraint, kept_constraints
from controller.kube.gateway import Json, Scale
from controller.kube.matching import REVISION_LABELS, SESSIONS_LABEL, Workload
from optimizer.model import PoolName
from profiler.samples import PodEndpoint

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

OPEN, CLOSED = "open", "closed"
_OPEN = {OPEN: True, CLOSED: False}
_SHARING = "nvidia.com/gpu.sharing-strategy"
FIRST_READY, START_SEEN = "sluice/firstReady", "sluice/startSeen"
"""What the reader adds to the status of a pod: when it was ready first (epoch seconds), and whether this was seen."""
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
_PREEMPTION_WORDS = re.compile(r" (?:no new claims to deallocate, )?preemption: .*", re.DOTALL)
"""What a scheduler adds to its reasons: that evicting other pods would not help either."""
_UNSEEN = "no scheduler has reported on the pod: check its spec.schedulerName, and that this scheduler runs"
_ZONE_LABEL = "topology.kubernetes.io/zone"
_OUT_OF_MEMORY = "OOMKilled"
_BACK_OFF_WORDS = re.compile(r"back-off (?:(\d+)m)?(\d+)s restarting")
_LOOP_BACKOFF_S = 40.0
"""The wait before the third restart in a row: from then on, short runs are a crash loop."""
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

    A ready pod in `unready_since` is in a crash loop and counts as not ready. An unready pod with a node counts as
    starting if the node is up, else as stranded. While the nodes are unread, the pod counts as starting, because its
    node may be up. One without a node is pending, whatever a scheduler says of it: the scheduler may be down or absent.
    """
    alive = [pod for pod in pods if not has_finished(pod)]
    staying = sorted(
        (pod for pod in alive if "deletionTimestamp" not in pod["metadata"]), key=lambda pod: pod["metadata"]["name"]
    )
    waiting = [pod for pod in staying if not _holds(pod, "Ready") or pod["metadata"]["name"] in unready_since]
    newest, rolling = _newest_revision(staying)
    updated = {pod["metadata"]["name"] for pod in staying if rolling and _revision(pod) == newest}
    placed = [pod for pod in waiting if node_of(pod) is not None]
    return TargetState(
        desired=scale.replicas,
        existing=len(staying),
        ready=len(staying) - len(waiting),
        terminating=len(alive) - len(staying),
        pending=_marked((_unscheduled(pod) for pod in waiting if node_of(pod) is None), updated),
        stranded=_marked(
            (_stranded(pod, unready_since) for pod in placed if not nodes.unread and node_of(pod) not in nodes.up),
            updated,
        ),
        starting=_marked(
            (_starting(pod, unready_since) for pod in placed if nodes.unread or node_of(pod) in nodes.up), updated
        ),
        serving=tuple(_serving(pod, nodes) for pod in staying if pod not in waiting),
        resource_version=scale.resource_version,
        rolling=rolling or (isinstance(scale, Workload) and scale.rolling),
        updated=len(updated),
        refusal=scale.failure if isinstance(scale, Workload) else "",
        nodes=Counter(node for pod in alive if (node := node_of(pod)) is not None) if nodes.billed else {},
    )


def _newest_revision(pods: Sequence[Json]) -> tuple[str, bool]:
    """Return the revision whose first pod was created last, "" where none is known, and whether there are others."""
    first: dict[str, str] = {}
    for pod in pods:
        if (revision := _revision(pod)) is not None:
            created = pod["metadata"].get("creationTimestamp") or ""
            first[revision] = min(created, first.get(revision, created))
    newest = max(first, key=lambda revision: (first[revision], revision), default="")
    return newest, len(first) > 1


def _revision(pod: Json) -> str | None:
    labels = pod["metadata"].get("labels") or {}
    return next((labels[label] for label in REVISION_LABELS if label in labels), None)


def _marked(replicas: Iterable[PendingReplica], updated: Collection[str]) -> tuple[PendingReplica, ...]:
    return tuple(replace(replica, updated=replica.name in updated) for replica in replicas)


def owned_pods(target: Target, pods: Sequence[Json]) -> Sequence[Json]:
    """Return those of `pods`, which match the selector of `target`, that its controller made or adopted.

    The ReplicaSet of a Deployment is named `<deployment>-<pod-template-hash>`. The pods of other kinds may have another
    workload in between, which is not read: they are left out only if they have no controller or another object of
    the kind of `target`.
    """
    return [pod for pod in pods if _owns(target, pod)]


def _owns(target: Target, pod: Json) -> bool:
    metadata = pod["metadata"]
    owner = next((one for one in metadata.get("ownerReferences") or () if one.get("controller")), None)
    if owner is None:
        return False
    if (target.api_version, target.kind) == ("apps/v1", "Deployment"):
        revision = (metadata.get("labels") or {}).get("pod-template-hash")
        return bool(owner["kind"] == "ReplicaSet" and owner["name"] == f"{target.name}-{revision}")
    if owner["kind"] != target.kind:
        return (target.api_version, target.kind) != ("apps/v1", "StatefulSet")
    return bool(owner["name"] == target.name)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNodes:
    """The nodes of one pool: the names of all, and the distinct allocatable resources of the ready ones.

    `others` are the names of the nodes that are not of the pool. `selector` is that of the pool, and `common` are the
    labels that all of its nodes have alike.
    """

    names: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    allocatable: tuple[Amounts, ...] = ()
    selector: Mapping[str, str] = field(default_factory=dict)
    common: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Collection[Json], selector: Mapping[str, str]) -> "PoolNodes":
        """Return those of `nodes` that match a pool's `selector`."""
        own = [node for node in nodes if selector.items() <= node["metadata"].get("labels", {}).items()]
        names = frozenset(node["metadata"]["name"] for node in own)
        sizes = {
            tuple(sorted((node["status"].get("allocatable") or {}).items())) for node in own if _holds(node, "Ready")
        }
        return cls(
            names=names,
            others=frozenset(node["metadata"]["name"] for node in nodes) - names,
            allocatable=tuple(amounts(dict(size)) for size in sorted(sizes) if size),
            selector=selector,
            common=_common([node["metadata"].get("labels") or {} for node in own]),
        )

    def constraints(self, limited: Mapping[str, Json]) -> Mapping[str, str]:
        """Return what keeps pods from nodes of the pool, by the pod; `limited` has what limits the nodes of each."""
        return {pod: words for pod, kept in limited.items() if (words := constraint(kept, self.selector, self.common))}

    def outside(self, placed: Mapping[str, str]) -> Mapping[str, str]:
        """Return the pods of `placed` (pod to node) that are on known nodes which are not of the pool."""
        return {pod: node for pod, node in placed.items() if node in self.others}

    def holds(self, requests: Amounts) -> int | None:
        """Return how many pods with `requests` the smallest ready node holds by its allocatable resources.

        None where the pods request nothing or no node is ready. What DaemonSets need is not subtracted. A new node is
        ready before its device plugin has registered its devices, so nodes without a device that is requested do not
        count.
        """
        wanted = {resource: value for resource, value in requests.items() if value > 0}
        devices = [resource for resource in wanted if "/" in resource]
        sizes = [size for size in self.allocatable if all(size.get(device, 0.0) > 0 for device in devices)]
        if not wanted or not sizes:
            return None
        return min(
            math.floor(size.get(resource, 0.0) / value + 1e-9) for size in sizes for resource, value in wanted.items()
        )


def _common(labels: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    if not labels:
        return {}
    return dict(set(labels[0].items()).intersection(*(each.items() for each in labels[1:])))


def limited_pods(pods: Sequence[Json]) -> dict[str, Json]:
    """Return what limits the nodes of each pod that has none, by the pod's name; see `kept_constraints`."""
    found: dict[str, Json] = {}
    for pod in pods:
        spec = pod.get("spec") or {}
        if node_of(pod) is None and (kept := spec.get("constraints") or kept_constraints(spec)):
            found[pod["metadata"]["name"]] = kept
    return found


def placed_pods(pods: Sequence[Json]) -> dict[str, str]:
    """Return the node of each pod that has one and is not finished, by the pod's name."""
    return {
        pod["metadata"]["name"]: node for pod in pods if (node := node_of(pod)) is not None and not has_finished(pod)
    }


def sharing_nodes(nodes: Sequence[Json]) -> frozenset[str]:
    """Return the names of the nodes that give a device to several pods, by NVIDIA's GPU feature discovery."""
    labelled = ((node["metadata"]["name"], (node["metadata"].get("labels") or {}).get(_SHARING)) for node in nodes)
    return frozenset(name for name, sharing in labelled if sharing not in {None, "", "none"})


def shared_nodes(
    selectors: Mapping[PoolName, Mapping[str, str]], nodes: Collection[Json]
) -> Mapping[PoolName, Mapping[PoolName, tuple[str, ...]]]:
    """Return the ready nodes that two pools match: their names, by the pool and the other pool."""
    names = {
        pool: {node["metadata"]["name"] for node in ready_nodes(nodes, selector)}
        for pool, selector in selectors.items()
    }
    return {
        pool: {other: tuple(sorted(both)) for other in names if other != pool and (both := names[pool] & names[other])}
        for pool in names
    }


def instance_types(nodes: Collection[Json], selector: Mapping[str, str], names: Collection[str]) -> Mapping[str, str]:
    """Return the instance types of the nodes in `names` that match a pool's `selector`; "" for a node without one."""
    types: dict[str, str] = {}
    for node in nodes:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels", {})
        if name in names and selector.items() <= labels.items():
            types[name] = labels.get(_TYPE_LABEL, "")
    return types


def node_zones(nodes: Collection[Json], selector: Mapping[str, str], names: Collection[str]) -> Mapping[str, str]:
    """Return the zones of the nodes in `names` that match a pool's `selector`, where they have one."""
    found: dict[str, str] = {}
    for node in nodes:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels", {})
        if name in names and selector.items() <= labels.items() and _ZONE_LABEL in labels:
            found[name] = labels[_ZONE_LABEL]
    return found


def zones(nodes: Collection[Json]) -> int:
    """Return the number of distinct zones of `nodes`, at least 1."""
    return max(1, len({node["metadata"]["labels"].get(_ZONE_LABEL) for node in nodes} - {None}))


def seconds(timestamp: str) -> float:
    """Return an RFC 3339 time in seconds since the epoch.

    A year that Python does not have but the API server accepts, 0 or above 9999, is the first or the last one.

    Raises:
        ValueError: it is no such time.
    """
    year = timestamp.partition("-")[0]
    if len(year) > 4 and year.isdecimal():
        return datetime.max.replace(tzinfo=UTC).timestamp()
    if year == "0000":
        return datetime.min.replace(tzinfo=UTC).timestamp()
    return datetime.fromisoformat(timestamp).timestamp()


def has_finished(pod: Json) -> bool:
    """Return whether a pod has ended for good."""
    return (pod.get("status") or {}).get("phase") in _FINISHED


def is_ready(pod: Json) -> bool:
    """Return whether a pod is ready."""
    return _holds(pod, "Ready")


def ready_since_s(pod: Json) -> float:
    """Return since when (epoch seconds) a ready pod is ready."""
    return _since_s(pod, "Ready")


def unready_since_s(pod: Json) -> float:
    """Return since when (epoch seconds) a pod with a node is unready: its loss of readiness, else its scheduling."""
    known = next((kind for kind in ("Ready", "PodScheduled") if condition(pod, kind)), "Ready")
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
        leaving=node_of(pod) in nodes.leaving,
        deletion_cost=int(cost) if re.fullmatch(r"[+-]?\d{1,10}", cost, re.ASCII) else 0,
        startup_s=_startup_s(pod),
        start_seen=bool(pod["status"].get(START_SEEN)),
        ready_s=_first_ready_s(pod),
        node=node_of(pod) or "",
        out_of_memory_s=_out_of_memory_s(pod),
        revision=_revision(pod) or "",
        takes_sessions=_OPEN.get((pod["metadata"].get("labels") or {}).get(SESSIONS_LABEL, "")),
    )


def _out_of_memory_s(pod: Json) -> float | None:
    """Return when a container of the pod was last ended because it ran out of memory, None where it was not."""
    ended = [(each.get("lastState") or {}).get("terminated") or {} for each in _statuses(pod, "containerStatuses")]
    times = [each["finishedAt"] for each in ended if each.get("reason") == _OUT_OF_MEMORY and each.get("finishedAt")]
    return max(map(seconds, times), default=None)


def _first_ready_s(pod: Json) -> float:
    """Return when the pod became ready: for the first time, where that was seen."""
    first_s: float | None = pod["status"].get(FIRST_READY)
    return _since_s(pod, "Ready") if first_s is None else first_s


def _startup_s(pod: Json) -> float | None:
    """Return how long the pod took to become ready for the first time once it had a node.

    None where a container was restarted before, or the time of its node is not known. Where the first time ready was
    not seen, `Ready` counts, which may be of a later time.
    """
    if (FIRST_READY not in pod["status"] and restarts(pod)) or not _holds(pod, "PodScheduled"):
        return None
    return max(0.0, _first_ready_s(pod) - _since_s(pod, "PodScheduled"))


def _unscheduled(pod: Json) -> PendingReplica:
    """Return a pod without a node, since its scheduler reported on it, else since its creation."""
    if not (known := condition(pod, "PodScheduled")):
        return _replica(pod, _since_s(pod, "PodScheduled"), _UNSEEN)
    return _replica(pod, _since_s(pod, "PodScheduled"), _PREEMPTION_WORDS.sub("", known.get("message") or ""))


def _stranded(pod: Json, unready_since: Mapping[str, float]) -> PendingReplica:
    return _replica(pod, _earliest_s(pod, unready_since), f"its node {node_of(pod)} is not ready")


def _earliest_s(pod: Json, unready_since: Mapping[str, float]) -> float:
    own_s = unready_since_s(pod)
    return min(own_s, unready_since.get(pod["metadata"]["name"], own_s))


def _starting(pod: Json, unready_since: Mapping[str, float]) -> PendingReplica:
    """Return a starting pod, with the kubelet's reason for the first waiting container, else for the whole pod."""
    containers = [*_statuses(pod, "initContainerStatuses"), *_statuses(pod, "containerStatuses")]
    since_s = _earliest_s(pod, unready_since)
    for container in containers:
        if (waits := (container.get("state") or {}).get("waiting")) is not None:
            return _replica(pod, since_s, "; ".join(filter(None, (_reason(waits), _last_end(container)))))
    ended = next(filter(None, map(_last_end, containers)), "")
    words = "" if is_ready(pod) else _reason(condition(pod, "Ready")) or "it is not ready"
    return _replica(pod, since_s, "; ".join(filter(None, (words, ended))))


def _last_end(container: Json) -> str:
    """Return how often a container was restarted and how it ended before, empty where it never was."""
    if (ended := (container.get("lastState") or {}).get("terminated")) is None:
        return ""
    cause = ended.get("reason") or "an unknown cause"
    return f"{container.get('restartCount')} restarts, the last after {cause} (exit code {ended.get('exitCode')})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashLoop:
    """A pod is in a crash loop since `since_s` (epoch seconds) or earlier; its last run took `run_s` seconds."""

    since_s: float
    run_s: float


def crash_loop(pod: Json, shorter_than_s: float) -> CrashLoop | None:
    """Return the crash loop that a pod is in, as its restarts show it, None for one that is in none.

    The kubelet waits 10 s before the first restart of a container, and twice as long before each further one, until it
    has run for ten minutes. So the last wait tells how long the loop has lasted at least. A container whose last run
    was longer than `shorter_than_s` is in none.
    """
    for container in _statuses(pod, "containerStatuses"):
        ended = (container.get("lastState") or {}).get("terminated") or {}
        if not ended.get("startedAt") or not ended.get("finishedAt"):
            continue
        finished_s = seconds(ended["finishedAt"])
        run_s, backoff_s = finished_s - seconds(ended["startedAt"]), _backoff_s(container, finished_s)
        if run_s <= shorter_than_s and backoff_s >= _LOOP_BACKOFF_S:
            return CrashLoop(since_s=max(_since_s(pod, "PodScheduled"), finished_s - (backoff_s - 10.0)), run_s=run_s)
    return None


def _backoff_s(container: Json, finished_s: float) -> float:
    """Return how long the kubelet waits, or has waited, before it restarts a container that ended at `finished_s`."""
    state = container.get("state") or {}
    if (running := state.get("running") or {}).get("startedAt"):
        return seconds(running["startedAt"]) - finished_s
    waits = _BACK_OFF_WORDS.match((state.get("waiting") or {}).get("message") or "")
    return 0.0 if waits is None else 60.0 * int(waits[1] or 0) + int(waits[2])


def _reason(source: Json) -> str:
    return ": ".join(filter(None, (source.get("reason"), source.get("message"))))


def _statuses(pod: Json, kind: str) -> list[Json]:
    statuses: list[Json] = pod.get("status", {}).get(kind) or []
    return statuses


def _replica(pod: Json, since_s: float, reason: str) -> PendingReplica:
    return PendingReplica(
        name=pod["metadata"]["name"], since_s=since_s, reason=reason, out_of_memory_s=_out_of_memory_s(pod)
    )


def node_of(pod: Json) -> str | None:
    """Return the name of the node that a pod runs on, None where it has none."""
    name: str | None = (pod.get("spec") or {}).get("nodeName")
    return name


def _port(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()):
        return None
    return number if 0 < (number := int(text[:6])) <= 65_535 else None


def _since_s(pod: Json, kind: str) -> float:
    # lastTransitionTime may be null; then the pod's creation is an earlier bound. It may also be of a kubelet whose
    # clock is behind that of the API server: nothing of a pod is older than the pod.
    created = pod["metadata"].get("creationTimestamp")
    changed = condition(pod, kind).get("lastTransitionTime")
    return max(seconds(time) for time in (created, changed) if time)


def _holds(resource: Json, kind: str, status: str = "True") -> bool:
    return bool(condition(resource, kind).get("status") == status)


def condition(resource: Json, kind: str) -> Json:
    """Return the condition `kind` in the status of an object, empty without one."""
    conditions: list[Json] = (resource.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == kind), {})
