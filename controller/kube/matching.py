"""Matches pods to workloads by label selectors, and reduces pods, nodes and workloads to the fields that are read.

There can be tens of thousands of pods. Of each, only the fields that `controller.kube.workloads` reads are stored, as
JSON text: as Python objects they would take five times the memory. Pure functions of API objects.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.core.state.spec import LabelSelector, Requirement
from controller.kube.gateway import Json

_METADATA = ("name", "creationTimestamp", "deletionTimestamp")
_ANNOTATIONS = ("prometheus.io/", "controller.kubernetes.io/")
_STATUS = ("phase", "podIP")
_CONDITIONS = ("Ready", "PodScheduled")
_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")
_CONTAINERS = ("initContainerStatuses", "containerStatuses")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A Deployment or StatefulSet: its desired replicas, the selector of its pods, and its resource version."""

    replicas: int
    selector: LabelSelector
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPod:
    """A pod in its stored form; `text` is JSON with the fields that `controller.kube.workloads` reads."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    text: bytes


class Pods:
    """An index of pods by namespace and label."""

    def __init__(self, pods: Iterable[KeptPod]) -> None:
        self._by_label: dict[tuple[str, str, str], list[KeptPod]] = {}
        self._by_namespace: dict[str, list[KeptPod]] = {}
        for pod in pods:
            self._by_namespace.setdefault(pod.namespace, []).append(pod)
            for key, value in pod.labels.items():
                self._by_label.setdefault((pod.namespace, key, value), []).append(pod)

    def of(self, namespace: str, selector: LabelSelector) -> Sequence[Json]:
        """Return the pods of `namespace` that `selector` selects, ordered by name."""
        by_label = [self._by_label.get((namespace, key, value), []) for key, value in selector.labels.items()]
        candidates = min(by_label, key=len) if by_label else self._by_namespace.get(namespace, [])
        selected = sorted((pod for pod in candidates if selector.matches(pod.labels)), key=lambda pod: pod.name)
        return [json.loads(pod.text) for pod in selected]


def kept_pod(pod: Json) -> KeptPod:
    """Return the stored form of a pod from the API."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    annotations = metadata.get("annotations") or {}
    kept = {
        "metadata": {
            **_parts(metadata, _METADATA),
            "annotations": {key: value for key, value in annotations.items() if key.startswith(_ANNOTATIONS)},
        },
        "spec": _parts(pod.get("spec") or {}, ("nodeName",)),
        "status": {
            **_parts(status, _STATUS),
            "conditions": [
                _parts(one, _CONDITION) for one in status.get("conditions") or [] if one["type"] in _CONDITIONS
            ],
            **{
                kind: [kept for one in status.get(kind) or [] if (kept := _kept_container(one))] for kind in _CONTAINERS
            },
        },
    }
    return KeptPod(
        name=metadata["name"],
        namespace=sys.intern(metadata.get("namespace", "")),
        labels=_shared(metadata.get("labels") or {}),
        text=json.dumps(kept, separators=(",", ":")).encode(),
    )


def kept_node(node: Json) -> Json:
    """Return the stored form of a node: only the fields that are read."""
    return {
        "metadata": {
            **_parts(node["metadata"], ("name", "deletionTimestamp")),
            "labels": _shared(node["metadata"].get("labels") or {}),
        },
        "spec": _parts(node.get("spec") or {}, ("unschedulable", "taints")),
        "status": _parts(node.get("status") or {}, ("conditions",)),
    }


def kept_workload(workload: Json) -> Workload:
    """Return the stored form of a Deployment or StatefulSet from the API."""
    spec = workload["spec"]
    selector = spec.get("selector") or {}
    return Workload(
        replicas=spec.get("replicas", 1),
        selector=LabelSelector(
            labels=_shared(selector.get("matchLabels") or {}),
            requirements=tuple(
                Requirement(key=one["key"], operator=one["operator"], values=frozenset(one.get("values") or ()))
                for one in selector.get("matchExpressions") or ()
            ),
        ),
        resource_version=workload["metadata"]["resourceVersion"],
    )


def _kept_container(container: Json) -> Json:
    """Return why a container waits, whether it has ended, and its restarts; empty for one that runs since its start."""
    kept: Json = {}
    state = container.get("state") or {}
    if "waiting" in state:
        kept["state"] = {"waiting": state["waiting"]}
    elif "terminated" in state:
        kept["state"] = {"terminated": {}}
    if container.get("restartCount"):
        kept["restartCount"] = container["restartCount"]
    return kept


def _parts(document: Json, names: tuple[str, ...]) -> Json:
    return {name: document[name] for name in names if name in document}


def _shared(labels: Mapping[str, str]) -> dict[str, str]:
    """Return `labels` with interned strings, which many objects share."""
    return {sys.intern(key): sys.intern(value) for key, value in labels.items()}
