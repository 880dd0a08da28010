"""Replicas that are groups of pods (LeaderWorkerSet): the pods of each, found by their labels, as one pod. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from controller.core.state.spec import Target
from controller.kube.gateway import Json
from controller.kube.workloads import condition, has_finished, is_ready, node_of
from optimizer.model import Size

_LABELS = "leaderworkerset.sigs.k8s.io"
_NAME, _INDEX, _WORKER, SIZE = (f"{_LABELS}/{name}" for name in ("name", "group-index", "worker-index", "size"))


def selector(target: Target) -> str:
    """Return the label selector of all pods of `target`: that of its scale has only those that lead a group."""
    return f"{_NAME}={target.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of a workload: `pods` has one pod for each, named like the pod that leads it.

    `spans` is how many nodes a complete group is on, the most of all; None while none is complete. `nodes` has the part
    of the replicas that is on each node.
    """

    pods: Sequence[Json]
    spans: int | None
    nodes: Mapping[str, Size] = field(default_factory=dict)


def groups_of(pods: Iterable[Json]) -> Groups:
    """Return the groups that `pods` are of.

    A group is ready when it has all of its pods, as many as the annotation of its size says, and all are ready; it is
    pending while one of them has no node; and it is terminating when the pod that leads it is.
    """
    found: dict[str, list[Json]] = {}
    for pod in pods:
        if not has_finished(pod):
            found.setdefault((pod["metadata"].get("labels") or {}).get(_INDEX, ""), []).append(pod)
    nodes: dict[str, Size] = {}
    spans = []
    for own in found.values():
        size = max(_size(own), len(own))
        named = [name for pod in own if (name := node_of(pod)) is not None]
        if len(named) == size:
            spans.append(len(set(named)))
        for name in named:
            nodes[name] = nodes.get(name, 0) + Fraction(1, size)
    return Groups(pods=[_as_one(own) for own in found.values()], spans=max(spans, default=None), nodes=nodes)


def _size(pods: Sequence[Json]) -> int:
    """Return how many pods a group has to have, by the annotation that its controller gives to each; 1 without."""
    stated = {(pod["metadata"].get("annotations") or {}).get(SIZE, "") for pod in pods}
    return max((int(text) for text in stated if text.isascii() and text.isdecimal()), default=1)


def _as_one(pods: Sequence[Json]) -> Json:
    """Return a pod that is as the whole group is: the one that leads it, with what keeps the group from serving."""
    leader = min(pods, key=lambda pod: (_position(pod), pod["metadata"]["name"]))
    staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    size = _size(pods)
    status = {
        **(leader.get("status") or {}),
        "containerStatuses": _all(pods, "containerStatuses"),
        "initContainerStatuses": _all(pods, "initContainerStatuses"),
    }
    waiting = next((pod for pod in staying if node_of(pod) is None), None)
    unready = next((pod for pod in staying if not is_ready(pod)), None)
    spec = leader.get("spec") or {}
    latest = max((condition(pod, "Ready").get("lastTransitionTime") or "" for pod in pods), default="")
    if waiting is not None:
        spec = {**(waiting.get("spec") or {}), "nodeName": None}
        status["conditions"] = (waiting.get("status") or {}).get("conditions") or []
    elif len(staying) < size:
        words = f"{len(staying)} of the {size} pods of its group are there"
        status["conditions"] = _with_ready(leader, "False", latest, "GroupIncomplete", words)
    elif unready is not None:
        because = condition(unready, "Ready").get("message") or "no reason is given"
        words = f"pod {unready['metadata']['name']} of its group is not ready: {because}"
        status["conditions"] = _with_ready(leader, "False", latest, "GroupNotReady", words)
    else:
        status["conditions"] = _with_ready(leader, "True", latest, "", "")
    return {**leader, "spec": spec, "status": status}


def _position(pod: Json) -> int:
    index = (pod["metadata"].get("labels") or {}).get(_WORKER, "")
    return int(index) if index.isascii() and index.isdecimal() else 0


def _all(pods: Iterable[Json], kind: str) -> list[Json]:
    return [each for pod in pods for each in (pod.get("status") or {}).get(kind) or ()]


def _with_ready(pod: Json, status: str, since: str, reason: str, message: str) -> list[Json]:
    others = [each for each in (pod.get("status") or {}).get("conditions") or () if each["type"] != "Ready"]
    ready = {"type": "Ready", "status": status, "reason": reason, "message": message}
    return [*others, {**ready, "lastTransitionTime": since or None}]
