"""Matches pods to workloads by label selectors, and reduces pods, nodes and workloads to the fields that are read.

There can be tens of thousands of pods. Of each, only the fields that `controller.kube.workloads` reads are stored,
packed: as Python objects they would take many times the memory.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from controller.adoption.amounts import requests_of
from controller.core.state.spec import LabelSelector, Requirement
from controller.kube.constraints import kept_constraints
from controller.kube.gateway import Json
from controller.kube.packed import Packed, Packer

_METADATA = ("name", "creationTimestamp", "deletionTimestamp")
_OWNER = ("kind", "name", "controller")
_ANNOTATIONS = ("prometheus.io/", "controller.kubernetes.io/")
_STATUS = ("phase", "podIP")
_CONDITIONS = ("Ready", "PodScheduled")
_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")
_CONTAINERS = ("initContainerStatuses", "containerStatuses")
_TERMINATED = ("reason", "exitCode", "startedAt", "finishedAt")
SESSIONS_LABEL = "sluice.dev/sessions"
"""The label of pods by which Services select those that get new sessions: `open`; Sluice sets it to `closed`."""
_PACKER = Packer()
REVISION_LABELS = ("controller-revision-hash", "pod-template-hash")
"""Labels of a pod with the revision of its workload: of a StatefulSet, of a Deployment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A Deployment or StatefulSet: its desired replicas, the selector of its pods, and its resource version.

    `rolling` says that not all of its replicas are of the present revision. `failure` has its controller's words for
    why pods cannot be created. `requests` is what each pod requests, by resource.
    """

    replicas: int
    selector: LabelSelector
    resource_version: str
    rolling: bool = False
    failure: str = ""
    requests: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPod:
    """A pod in its stored form; `packed` has the fields that `controller.kube.workloads` reads."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    packed: Packed


class Pods:
    """An index of pods by namespace, and by those of their labels that are asked for."""

    def __init__(self, pods: Iterable[KeptPod]) -> None:
        self._by_label: dict[tuple[str, str], dict[str, list[KeptPod]]] = {}
        self._by_namespace: dict[str, list[KeptPod]] = {}
        for pod in pods:
            self._by_namespace.setdefault(pod.namespace, []).append(pod)

    def of(self, namespace: str, selector: LabelSelector) -> Sequence[Json]:
        """Return the pods of `namespace` that `selector` selects, ordered by name."""
        return [pod.packed.document() for pod in self.kept(namespace, selector)]

    def kept(self, namespace: str, selector: LabelSelector) -> Sequence[KeptPod]:
        """Return the pods of `namespace` that `selector` selects in their stored form, ordered by name."""
        by_label = [self._labelled(namespace, key).get(value, []) for key, value in selector.labels.items()]
        candidates = min(by_label, key=len) if by_label else self._by_namespace.get(namespace, [])
        return sorted((pod for pod in candidates if selector.matches(pod.labels)), key=lambda pod: pod.name)

    def _labelled(self, namespace: str, label: str) -> Mapping[str, Sequence[KeptPod]]:
        """Return the pods of `namespace` with `label`, by its value."""
        found = self._by_label.get((namespace, label))
        if found is None:
            found = {}
            for pod in self._by_namespace.get(namespace, ()):
                if (value := pod.labels.get(label)) is not None:
                    found.setdefault(value, []).append(pod)
            self._by_label[namespace, label] = found
        return found


def kept_pod(pod: Json) -> KeptPod:
    """Return the stored form of a pod from the API."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    annotations = metadata.get("annotations") or {}
    kept = {
        "metadata": {
            **_parts(metadata, _METADATA),
            "ownerReferences": [
                _parts(one, _OWNER) for one in metadata.get("ownerReferences") or () if one.get("controller")
            ],
            "labels": _parts(metadata.get("labels") or {}, (*REVISION_LABELS, SESSIONS_LABEL)),
            "annotations": {key: value for key, value in annotations.items() if key.startswith(_ANNOTATIONS)},
        },
        "spec": _kept_spec(pod.get("spec") or {}),
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
        packed=_PACKER.pack(kept),
    )


def _kept_spec(spec: Json) -> Json:
    """Return the node of a pod, and of one that has none what limits its nodes."""
    if spec.get("nodeName"):
        return _parts(spec, ("nodeName",))
    constraints = kept_constraints(spec)
    return {"constraints": constraints} if constraints else {}


def kept_node(node: Json) -> Json:
    """Return the stored form of a node: only the fields that are read. Nodes of one type share the same status."""
    status = node.get("status") or {}
    ready = [_parts(one, ("type", "status")) for one in status.get("conditions") or [] if one["type"] == "Ready"]
    return {
        "metadata": {
            **_parts(node["metadata"], ("name", "deletionTimestamp")),
            "labels": _shared(node["metadata"].get("labels") or {}),
        },
        "spec": _parts(node.get("spec") or {}, ("unschedulable", "taints", "providerID")),
        "status": _same_document(
            json.dumps({**_parts(status, ("capacity", "allocatable")), "conditions": ready}, sort_keys=True)
        ),
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
        rolling=_rolling(workload),
        failure=_failure(workload),
        requests=_same_requests(tuple(requests_of((spec.get("template") or {}).get("spec") or {}).items())),
    )


@lru_cache(1024)
def _same_document(text: str) -> Json:
    """Return the JSON document `text`; those who ask for the same one share it."""
    document: Json = json.loads(text)
    return document


@lru_cache(1024)
def _same_requests(requests: tuple[tuple[str, float], ...]) -> Mapping[str, float]:
    """Return `requests` by resource; workloads with the same ones share them."""
    return dict(requests)


def _rolling(workload: Json) -> bool:
    """Whether replicas of an earlier revision are left, as far as the workload's controller has seen its spec.

    A StatefulSet keeps those below its `partition`, and with `OnDelete` all until they are deleted.
    """
    status, strategy = workload.get("status") or {}, (workload.get("spec") or {}).get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete":
        return False
    kept = (strategy.get("rollingUpdate") or {}).get("partition") or 0
    seen = status.get("observedGeneration", 0) >= workload["metadata"].get("generation", 0)
    return bool(seen and status.get("updatedReplicas", 0) < status.get("replicas", 0) - kept)


def _failure(workload: Json) -> str:
    conditions = (workload.get("status") or {}).get("conditions") or []
    failed = (one for one in conditions if one["type"] == "ReplicaFailure" and one["status"] == "True")
    return next((one.get("message") or one.get("reason") or "" for one in failed), "")


def _kept_container(container: Json) -> Json:
    """Return why a container waits, whether it has ended, its restarts and how it ended before the last one.

    Empty for one that runs since its start.
    """
    kept: Json = {}
    state = container.get("state") or {}
    if "waiting" in state:
        kept["state"] = {"waiting": state["waiting"]}
    elif "terminated" in state:
        kept["state"] = {"terminated": {}}
    if container.get("restartCount"):
        kept["restartCount"] = container["restartCount"]
        if "running" in state:
            kept["state"] = {"running": _parts(state["running"], ("startedAt",))}
        if (ended := (container.get("lastState") or {}).get("terminated")) is not None:
            kept["lastState"] = {"terminated": _parts(ended, _TERMINATED)}
    return kept


def _parts(document: Json, names: tuple[str, ...]) -> Json:
    return {name: document[name] for name in names if name in document}


def _shared(labels: Mapping[str, str]) -> dict[str, str]:
    """Return `labels` with interned strings, which many objects share."""
    return {sys.intern(key): sys.intern(value) for key, value in labels.items()}
