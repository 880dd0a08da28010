"""Corrects the condition `Ready` of pods whose kubelet has a clock that is ahead of the API server's.

By such a condition, a pod would start as much more slowly as the clocks differ, and its missing metrics would be
noticed as much later. It counts from when this operator first saw it.
"""

import threading
from collections.abc import Sequence

from controller.core.messages.phrases import timestamp
from controller.kube.gateway import Json
from controller.kube.workloads import condition, seconds


class KubeletClocks:
    """Conditions `Ready` that were of the future when first seen. The methods may be called in any thread."""

    def __init__(self) -> None:
        self._seen_s: dict[tuple[str, str, str], tuple[float, float]] = {}
        """When each was seen first and last, by namespace, pod and the time that the kubelet wrote."""
        self._lock = threading.Lock()

    def corrected(self, namespace: str, pods: Sequence[Json], now_s: float) -> Sequence[Json]:
        """Return `pods`, with another time of `Ready` where that was after `now_s` (epoch s) when first seen."""
        with self._lock:
            return [self._corrected(namespace, pod, now_s) for pod in pods]

    def forget_before(self, seen_s: float) -> None:
        """Forget the conditions that were not seen at `seen_s` or later."""
        with self._lock:
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
