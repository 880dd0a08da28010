"""Remembers since when the pods of a crash loop are not ready.

Such a pod may become ready for a moment after every restart, and each time its condition `Ready` counts from then.
Nothing of this is stored: after a restart of the operator, the time counts from what the restarts of containers say.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controller.kube.gateway import Json
from controller.kube.workloads import (
    crash_loop,
    crashed,
    is_ready,
    ready_since_s,
    restarts,
    unready_since_s,
)

KEPT_S = 300.0
"""A pod that has been ready for longer is out of its loop: this is the longest back-off of the kubelet."""

_Pod = tuple[str, str, str]
"""Namespace, name and creation time: the pods of a StatefulSet reuse their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unready:
    """A pod that became unready at `since_s`, had `restarts` when it was last ready, and was last seen at `seen_s`."""

    since_s: float
    restarts: int
    seen_s: float


class CrashLoops:
    """The pods that are not ready, or were not within `KEPT_S`. The methods may be called in any thread."""

    def __init__(self) -> None:
        self._pods: dict[_Pod, _Unready] = {}
        self._lock = threading.Lock()

    def unready_since_s(self, namespace: str, pods: Sequence[Json], now_s: float) -> Mapping[str, float]:
        """Return since when (epoch seconds) each pod with a node is not ready, by its name.

        While the containers of a pod restart, the time counts from its first loss of readiness, until the pod has been
        ready for `KEPT_S`. A ready pod is left out, unless it was restarted several times and is ready for no longer
        than twice its last run.
        """
        since_s: dict[str, float] = {}
        with self._lock:
            for pod in pods:
                metadata = pod["metadata"]
                key = namespace, metadata["name"], metadata.get("creationTimestamp") or ""
                if is_ready(pod):
                    if (flaps_s := self._see_ready(key, pod, now_s)) is not None:
                        since_s[metadata["name"]] = flaps_s
                elif (pod.get("spec") or {}).get("nodeName"):
                    since_s[metadata["name"]] = self._see_unready(key, pod, now_s)
        return since_s

    def forget_before(self, seen_s: float) -> None:
        """Forget the pods that were not seen at `seen_s` or later."""
        with self._lock:
            self._pods = {key: known for key, known in self._pods.items() if known.seen_s >= seen_s}

    def _see_ready(self, key: _Pod, pod: Json, now_s: float) -> float | None:
        """Remember a ready pod; return since when it is in a crash loop, None for one that is in none."""
        if now_s - ready_since_s(pod) > KEPT_S:
            self._pods.pop(key, None)
            return None
        known, loop = self._pods.get(key), crash_loop(pod, KEPT_S)
        if known is None and loop is not None:
            known = _Unready(since_s=loop.since_s, restarts=restarts(pod), seen_s=now_s)
        if known is None:
            return None
        self._pods[key] = replace(known, restarts=restarts(pod), seen_s=now_s)
        return known.since_s if loop is not None and now_s - ready_since_s(pod) <= 2 * loop.run_s else None

    def _see_unready(self, key: _Pod, pod: Json, now_s: float) -> float:
        own_s, known, loop = unready_since_s(pod), self._pods.get(key), crash_loop(pod, KEPT_S)
        if own_s > now_s:  # the clock of its kubelet is ahead
            own_s = now_s if known is None else min(known.since_s, now_s)
        if known is not None and (crashed(pod) or restarts(pod) > known.restarts):
            self._pods[key] = replace(known, since_s=min(known.since_s, own_s), seen_s=now_s)
        else:
            since_s = own_s if loop is None else min(own_s, loop.since_s)
            self._pods[key] = _Unready(since_s=since_s, restarts=restarts(pod), seen_s=now_s)
        return self._pods[key].since_s
