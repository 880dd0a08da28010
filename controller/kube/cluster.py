"""The workloads, pods and nodes of the cluster as they are now, without asking for each of them in every cycle."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self, TypeVar

from controller.core.state.spec import Target
from controller.kube.gateway import (
    DEPLOYMENTS,
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
from controller.kube.matching import KeptPod, Pods, Workload, kept_node, kept_pod, kept_workload
from controller.kube.store import Key
from controller.kube.watch import WHOLE, Watch

_WATCHED: Mapping[tuple[str, str], Resource] = {
    ("apps/v1", "Deployment"): DEPLOYMENTS,
    ("apps/v1", "StatefulSet"): STATEFUL_SETS,
}
_UNFINISHED = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
T = TypeVar("T")


class View:
    """The cluster at one moment, as far as it could be read."""

    def __init__(
        self,
        workloads: Mapping[Resource, Mapping[Key, Workload] | KubeError],
        pods: Pods | KubeError,
        nodes: Mapping[Key, Json] | KubeError,
    ) -> None:
        self._workloads = workloads
        self._pods = pods
        self._nodes = nodes

    def nodes(self) -> Sequence[Json]:
        """Return all nodes.

        Raises:
            KubeError: they could not be read.
        """
        return list(_read(self._nodes).values())

    def workload(self, namespace: str, target: Target) -> tuple[Workload, Sequence[Json]] | None:
        """Return a workload and its pods; None where its kind is not among those that are read whole.

        Raises:
            NotFound: there is no such workload.
            KubeError: it or the pods could not be read.
        """
        kind = _WATCHED.get((target.api_version, target.kind))
        if kind is None:
            return None
        found = _read(self._workloads[kind]).get((namespace, target.name))
        if found is None:
            raise NotFound(f"namespace {namespace} has no such {target.kind}")
        return found, _read(self._pods).of(namespace, found.selector)


class Cluster:
    """Watches what pipelines run on from the beginning to the end of `with`; without it, `resync` reads it once."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        namespaces: tuple[str, ...] = (),
        beat: Callable[[str], None] = lambda _: None,
        died: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`namespaces` are those whose workloads matter; all when empty.

        `beat` is called again and again for everything watched while its watch turns, `died` when that ends by itself.
        """
        self._gateway = gateway
        self._beat = beat
        self._died = died
        places = namespaces or (None,)
        self._nodes = [self._watch(NODES, kept_node, None)]
        self._pods = [self._watch(PODS, kept_pod, place, _UNFINISHED) for place in places]
        self._workloads = {
            kind: {place: self._watch(kind, kept_workload, place) for place in places} for kind in _WATCHED.values()
        }
        self._stop = threading.Event()

    def view(self) -> View:
        """Return the cluster as it is now."""
        return View(
            workloads={kind: _merged(list(watches.values())) for kind, watches in self._workloads.items()},
            pods=_indexed(_merged(self._pods)),
            nodes=_merged(self._nodes),
        )

    def written(self, namespace: str, target: Target, scale: Scale) -> None:
        """Take in the answer to a write of ours: the next cycle must not decide on what was before."""
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
        """Read everything now; what cannot be read is told by the `view`."""
        for watch in self._watches():
            with suppress(KubeError):
                watch.resync()

    def __enter__(self) -> Self:
        for watch in self._watches():
            # Not waited for at the end: a socket that is being read cannot always be interrupted.
            name = f"watch {watch.resource.plural}"
            threading.Thread(target=self._follow, args=(watch,), name=name, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for watch in self._watches():
            watch.interrupt()

    def _watch(
        self, kind: Resource, keep: Callable[[Json], T], place: str | None, narrowed: Mapping[str, str] = WHOLE
    ) -> Watch[T]:
        name = kind.plural if place is None else f"{kind.plural} of {place}"
        return Watch(self._gateway, kind, keep, namespace=place, narrowed=narrowed, beat=lambda: self._beat(name))

    def _follow(self, watch: Watch[Any]) -> None:
        try:
            watch.follow(self._stop)
        finally:
            if not self._stop.is_set():
                self._died(watch.resource.plural)

    def _watches(self) -> Sequence[Watch[Any]]:
        workloads = [watch for watches in self._workloads.values() for watch in watches.values()]
        return [*self._nodes, *workloads, *self._pods]


def _merged(watches: Sequence[Watch[T]]) -> Mapping[Key, T] | KubeError:
    """Return what several watches of a kind have seen, or why one of them cannot tell."""
    try:
        found = [watch.objects() for watch in watches]
    except KubeError as error:
        return error
    return found[0] if len(found) == 1 else {key: value for objects in found for key, value in objects.items()}


def _indexed(pods: Mapping[Key, KeptPod] | KubeError) -> Pods | KubeError:
    return pods if isinstance(pods, KubeError) else Pods(pods.values())


def _read(answer: T | KubeError) -> T:
    if isinstance(answer, KubeError):
        raise answer
    return answer
