"""Watches what a cycle reads of the cluster, so that it is read from memory: workloads, pods, nodes and autoscalers.

At 5,000 pipelines, reading each workload and its pods would take 40,000 requests per cycle.
"""

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self, TypeVar

from controller.core.state.spec import LabelSelector, Target
from controller.kube.gateway import (
    DEPLOYMENTS,
    NAMESPACES,
    NODE_CLAIMS,
    NODE_POOLS,
    NODES,
    PODS,
    STATEFUL_SETS,
    Gateway,
    Json,
    KubeError,
    NotFound,
    Resource,
    Scale,
)
from controller.kube.karpenter import kept_node_claim, kept_node_pool
from controller.kube.matching import Pods, Workload, kept_node, kept_pod, kept_workload
from controller.kube.other_writers import OTHER_WRITERS
from controller.kube.shards import Members
from controller.kube.store import Key
from controller.kube.watch import EVERYTHING, Watch

_WATCHED: Mapping[tuple[str, str], Resource] = {
    ("apps/v1", "Deployment"): DEPLOYMENTS,
    ("apps/v1", "StatefulSet"): STATEFUL_SETS,
}
_UNFINISHED = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
_TURN_S = 1.0
T = TypeVar("T")


def kept_namespace(namespace: Json) -> Json:
    """Return what is read of a Namespace: its name and its labels."""
    metadata = namespace["metadata"]
    return {"name": metadata["name"], "labels": metadata.get("labels") or {}}


_OF_CLUSTER: Mapping[Resource, Callable[[Json], Any]] = {
    NAMESPACES: kept_namespace,
    NODE_POOLS: kept_node_pool,
    NODE_CLAIMS: kept_node_claim,
}


class View:
    """The objects that are watched, at one moment; a kind that may be outdated raises its error when it is read."""

    def __init__(
        self,
        workloads: Mapping[Resource, Mapping[Key, Workload] | KubeError],
        pods: Pods | KubeError,
        nodes: Mapping[Key, Json] | KubeError,
        others: Mapping[Resource, Mapping[Key, Any] | KubeError] | None = None,
    ) -> None:
        self._workloads = workloads
        self._pods = pods
        self._nodes = nodes
        self._others = others or {}

    def others(self, kind: Resource) -> Sequence[Any]:
        """Return what is kept of all objects of `kind`: Namespaces, those of Karpenter, and `OTHER_WRITERS`.

        Raises:
            NotFound: the kind is not installed.
            KubeError: the objects may be outdated.
        """
        found = _read(self._others.get(kind, NotFound(f"{kind.plural} are not watched")))
        return [kept for kept in found.values() if kept is not None]

    def nodes(self) -> Sequence[Json]:
        """Return all nodes.

        Raises:
            KubeError: the nodes may be outdated.
        """
        return list(_read(self._nodes).values())

    def pods(self, namespace: str, selector: LabelSelector) -> Sequence[Json]:
        """Return the pods of a namespace that `selector` selects.

        Raises:
            KubeError: the pods may be outdated.
        """
        return _read(self._pods).of(namespace, selector)

    def workload(self, namespace: str, target: Target) -> tuple[Workload, Sequence[Json]] | None:
        """Return a workload and its pods; None if its kind is not watched (only Deployments and StatefulSets are).

        Raises:
            NotFound: there is no such workload.
            KubeError: the workloads of this kind or the pods may be outdated.
        """
        kind = _WATCHED.get((target.api_version, target.kind))
        if kind is None:
            return None
        found = _read(self._workloads[kind]).get((namespace, target.name))
        if found is None:
            raise NotFound(f"not found in namespace {namespace}")
        return found, self.pods(namespace, found.selector)

    def seen(self, namespace: str, target: Target) -> Hashable:
        """Return a value that is equal as long as a workload and its pods are as they are now.

        It equals no other where the kind is not watched, or cannot be read.
        """
        kind = _WATCHED.get((target.api_version, target.kind))
        workloads = None if kind is None else self._workloads[kind]
        if workloads is None or isinstance(workloads, KubeError) or isinstance(self._pods, KubeError):
            return object()
        found = workloads.get((namespace, target.name))
        return object() if found is None else (found, *self._pods.kept(namespace, found.selector))


class Cluster:
    """Watches what a cycle reads while its context is entered; without a context, `resync` lists it once."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        namespaces: tuple[str, ...] = (),
        beat: Callable[[str], None] = lambda _: None,
        died: Callable[[str], None] = lambda _: None,
        members: Members | None = None,
    ) -> None:
        """Prepare to watch what is in no namespace, and the workloads, pods and other writers in `namespaces`.

        Without `namespaces` it is those of all, of which those of `members` are stored. A kind that is not installed is
        looked for again now and then. `beat` is called repeatedly with the name of each running watch, `died` with the
        kind of one that has ended unexpectedly.
        """
        self._gateway = gateway
        self._beat = beat
        self._died = died
        self._members = Members() if members is None else members
        scopes = namespaces or (None,)
        self._nodes = [self._watch(NODES, kept_node, None)]
        self._pods = [self._watch(PODS, kept_pod, scope, _UNFINISHED) for scope in scopes]
        self._workloads = {
            kind: {scope: self._watch(kind, kept_workload, scope) for scope in scopes} for kind in _WATCHED.values()
        }
        self._others = {kind: [self._watch(kind, keep, None)] for kind, keep in _OF_CLUSTER.items()}
        self._others |= {kind: [self._watch(kind, keep, s) for s in scopes] for kind, keep in OTHER_WRITERS.items()}
        self._stop = threading.Event()

    def view(self) -> View:
        """Return the present state of the cluster."""
        pods = _merged(self._pods)
        return View(
            workloads={kind: _merged(list(watches.values())) for kind, watches in self._workloads.items()},
            pods=pods if isinstance(pods, KubeError) else Pods(pods.values()),
            nodes=_merged(self._nodes),
            others={kind: _merged(watches) for kind, watches in self._others.items()},
        )

    def written(self, namespace: str, target: Target, scale: Scale) -> None:
        """Apply `scale`, the result of a write to `target`, at once: the next cycle must not read the old replicas."""
        kind = _WATCHED.get((target.api_version, target.kind))
        if kind is None:
            return
        watches = self._workloads[kind]
        watch = watches.get(namespace) or watches[None]
        watch.amend(
            (namespace, target.name),
            scale.resource_version,
            lambda known: replace(known, replicas=scale.replicas, resource_version=scale.resource_version),
        )

    def resync(self) -> None:
        """List everything now; a kind that cannot be listed raises its error when it is read from a `view`."""
        for watch in self._watches():
            with suppress(KubeError):
                watch.resync()

    def add(self, namespace: str) -> None:
        """List the objects of one more namespace, which has joined the shard.

        Raises:
            KubeError: they cannot be listed.
        """
        for watch in self._watches():
            if watch.resource.namespaced:
                with suppress(NotFound):  # the kind is not installed
                    watch.add(namespace)

    def drop(self, namespace: str) -> None:
        """Drop the objects of a namespace that has left the shard."""
        for watch in self._watches():
            if watch.resource.namespaced:
                watch.drop(namespace)

    def __enter__(self) -> Self:
        for watch in self._watches():
            # A daemon, because a socket that is being read cannot always be interrupted.
            name = f"watch {watch.resource.plural}"
            threading.Thread(target=self._follow, args=(watch,), name=name, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for watch in self._watches():
            watch.interrupt()

    def _watch(
        self, kind: Resource, keep: Callable[[Json], T], scope: str | None, selectors: Mapping[str, str] = EVERYTHING
    ) -> Watch[T]:
        name = kind.plural if scope is None else f"{kind.plural} of {scope}"
        return Watch(
            self._gateway,
            kind,
            keep,
            namespace=scope,
            selectors=selectors,
            beat=lambda: self._beat(name),
            wanted=self._members.keeps if kind.namespaced else _note(self._members, kind),
        )

    def _follow(self, watch: Watch[Any]) -> None:
        try:
            if watch.resource == NAMESPACES:
                self._know_namespaces(watch)
            while watch.resource.namespaced and not self._members.known.wait(_TURN_S) and not self._stop.is_set():
                watch.beat()
            watch.follow(self._stop)
        finally:
            if not self._stop.is_set():
                self._died(watch.resource.plural)

    def _know_namespaces(self, watch: Watch[Any]) -> None:
        """List the namespaces until that succeeds, where their labels say which of them are of this shard."""
        while not self._members.known.is_set() and not self._stop.is_set():
            watch.beat()
            try:
                watch.resync()
                self._members.begin()
            except KubeError:
                self._stop.wait(_TURN_S)

    def _watches(self) -> Sequence[Watch[Any]]:
        workloads = [watch for watches in self._workloads.values() for watch in watches.values()]
        others = [watch for watches in self._others.values() for watch in watches]
        return [*self._nodes, *workloads, *self._pods, *others]


def _note(members: Members, kind: Resource) -> Callable[[Json], bool]:
    """Return what says that an object of `kind` is stored; of a Namespace it notes the labels."""
    return members.seen if kind == NAMESPACES else lambda _: True


def _merged(watches: Sequence[Watch[T]]) -> Mapping[Key, T] | KubeError:
    """Return the objects of all `watches`, or the error of one whose objects may be outdated."""
    try:
        parts = [watch.objects() for watch in watches]
    except KubeError as error:
        return error
    return parts[0] if len(parts) == 1 else {key: value for objects in parts for key, value in objects.items()}


def _read(state: T | KubeError) -> T:
    if isinstance(state, KubeError):
        raise state
    return state
