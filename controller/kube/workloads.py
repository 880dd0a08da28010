"""What pods, nodes and scales say, as the values of a Snapshot. Pure functions of what the API server answered."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from controller.core.snapshot import PendingReplica, TargetState
from controller.kube.gateway import Json, Scale
from controller.kube.matching import Workload
from profiler.samples import PodEndpoint

_ZONE_LABEL = "topology.kubernetes.io/zone"
_FINISHED = {"Succeeded", "Failed"}
_SCRAPE = "prometheus.io/scrape"
_PORT, _PATH = "prometheus.io/port", "prometheus.io/path"


def target_state(scale: Scale | Workload, pods: Sequence[Json]) -> TargetState:
    """Return the state of a workload from its scale and the pods that match the scale's selector."""
    alive = [pod for pod in pods if pod.get("status", {}).get("phase") not in _FINISHED]
    staying = [pod for pod in alive if "deletionTimestamp" not in pod["metadata"]]
    return TargetState(
        desired=scale.replicas,
        existing=len(staying),
        ready=sum(_holds(pod, "Ready") for pod in staying),
        terminating=len(alive) - len(staying),
        pending=tuple(_pending(staying)),
        resource_version=scale.resource_version,
    )


def reporting_pods(pods: Sequence[Json], ready_before_s: float) -> frozenset[str]:
    """Return the names of the pods whose metrics ought to be there: serving since `ready_before_s` or earlier."""
    return frozenset(
        pod["metadata"]["name"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and _holds(pod, "Ready")
        and _since_s(pod, "Ready") <= ready_before_s
    )


def metrics_endpoints(pods: Sequence[Json]) -> dict[str, PodEndpoint]:
    """Return by name where the pods that run show their metrics, by the usual annotations (prometheus.io/port, /path).

    A pod that says `prometheus.io/scrape: "false"`, or a port or path that is none, shows none.
    """
    endpoints: dict[str, PodEndpoint] = {}
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status") or {}
        said = metadata.get("annotations") or {}
        path = said.get(_PATH, "/metrics")
        port = _port(said.get(_PORT))
        usable = said.get(_SCRAPE) != "false" and path.startswith("/") and (port is not None or _PORT not in said)
        if status.get("phase") == "Running" and status.get("podIP") and usable and "deletionTimestamp" not in metadata:
            endpoints[metadata["name"]] = PodEndpoint(host=status["podIP"], port=port, path=path)
    return endpoints


def ready_nodes(nodes: Collection[Json], selector: Mapping[str, str]) -> tuple[Json, ...]:
    """Return the nodes of a pool that are ready."""
    return tuple(
        node
        for node in nodes
        if selector.items() <= node["metadata"].get("labels", {}).items() and _holds(node, "Ready")
    )


def zones(nodes: Collection[Json]) -> int:
    """Return the number of distinct zones of `nodes`, at least 1."""
    return max(1, len({node["metadata"]["labels"].get(_ZONE_LABEL) for node in nodes} - {None}))


def seconds(timestamp: str) -> float:
    """Return the seconds since the epoch of an RFC 3339 time."""
    return datetime.fromisoformat(timestamp).timestamp()


def _pending(pods: Sequence[Json]) -> list[PendingReplica]:
    unscheduled = [
        (pod["metadata"]["name"], _since_s(pod, "PodScheduled"), _condition(pod, "PodScheduled").get("message", ""))
        for pod in pods
        if _holds(pod, "PodScheduled", "False")
    ]
    return [
        PendingReplica(name=name, since_s=since_s, reason=reason)
        for name, since_s, reason in sorted(unscheduled, key=lambda item: item[0])
    ]


def _port(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()):
        return None
    return number if 0 < (number := int(text[:6])) <= 65_535 else None


def _since_s(pod: Json, kind: str) -> float:
    # The API allows null, and not every kubelet sets it: the pod is no younger than its condition.
    return seconds(_condition(pod, kind).get("lastTransitionTime") or pod["metadata"]["creationTimestamp"])


def _holds(resource: Json, kind: str, status: str = "True") -> bool:
    return bool(_condition(resource, kind).get("status") == status)


def _condition(resource: Json, kind: str) -> Json:
    conditions: list[Json] = resource.get("status", {}).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == kind), {})
