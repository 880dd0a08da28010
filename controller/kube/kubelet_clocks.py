"""Remembers when pods were ready first, and corrects the condition `Ready` of kubelets whose clock is ahead.

By a condition of such a kubelet, a pod would start as much more slowly as the clocks differ, and its missing metrics
would be noticed as much later. It counts from when this operator first saw it.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from controller.core.messages.phrases import timestamp
from controller.kube.gateway import Json
from controller.kube.workloads import (
    FIRST_READY,
    START_SEEN,
    condition,
    is_ready,
    ready_since_s,
    restarts,
    seconds,
)

_NEW_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """When a pod was ready first, None before that or after a restart; whether this was seen; when it was seen last."""

    ready_s: float | None
    witnessed: bool
    seen_s: float


class KubeletClocks:
    """Conditions `Ready` that were of the future when first seen. The methods may be called in any thread."""

    def __init__(self) -> None:
        self._seen_s: dict[tuple[str, str, str], tuple[float, float]] = {}
        """When each was seen first and last, by namespace, pod and the time that the kubelet wrote."""
        self._starts: dict[tuple[str, str, str], _Start] = {}
        """By namespace, name and creation time: the pods of a StatefulSet reuse their names."""
        self._lock = threading.Lock()

    def corrected(self, namespace: str, pods: Sequence[Json], now_s: float) -> Sequence[Json]:
        """Return `pods`, with another time of `Ready` where that was after `now_s` (epoch s) when first seen.

        Ready ones say when they were ready first: a later loss of readiness is not a slow start. A pod is taken to be
        seen from its start if it was not older than `_NEW_S` when first seen.
        """
        with self._lock:
            return [self._with_start(namespace, self._corrected(namespace, pod, now_s), now_s) for pod in pods]

    def forget_before(self, seen_s: float) -> None:
        """Forget the conditions and pods that were not seen at `seen_s` or later."""
        with self._lock:
            self._starts = {key: start for key, start in self._starts.items() if start.seen_s >= seen_s}
            self._seen_s = {key: times for key, times in self._seen_s.items() if times[1] >= seen_s}

    def _corrected(self, namespace: str, pod: Json, now_s: float) -> Json:
        written = condition(pod, "Ready").get("lastTransitionTime")
        key = namespace, pod["metadata"]["name"], written or ""
        if not written or (key not in self._seen_s and seconds(written) <= now_s):
            return pod
        first_s, _ = self._seen_s.get(key, (now_s, now_s))
        self._seen_s[key] = first_s, now_s
        conditions = [
            {**each, "lastTransitionTime": timestamp(first_s)} if each["type"] == "Ready" else each
            for each in pod["status"]["conditions"]
        ]
        return {**pod, "status": {**pod["status"], "conditions": conditions}}

    def _with_start(self, namespace: str, pod: Json, now_s: float) -> Json:
        if not (created := pod["metadata"].get("creationTimestamp")):
            return pod
        key = namespace, pod["metadata"]["name"], created
        new = _Start(ready_s=None, witnessed=now_s - seconds(created) <= _NEW_S, seen_s=now_s)
        start = replace(self._starts.get(key, new), seen_s=now_s)
        if start.ready_s is None and is_ready(pod) and not restarts(pod):
            start = replace(start, ready_s=ready_since_s(pod))
        self._starts[key] = start
        if start.ready_s is None:
            return pod
        return {**pod, "status": {**pod["status"], FIRST_READY: start.ready_s, START_SEEN: start.witnessed}}
