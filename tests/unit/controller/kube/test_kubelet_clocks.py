"""A kubelet whose clock is ahead neither makes its pods look slow to start nor hides that they report nothing."""

from datetime import UTC, datetime
from typing import Any

from controller.kube.kubelet_clocks import KubeletClocks
from controller.kube.workloads import ready_since_s

NOW_S = 1_767_225_600.0


def a_pod(ready_s: float) -> dict[str, Any]:
    changed = datetime.fromtimestamp(NOW_S + ready_s, UTC).isoformat().replace("+00:00", "Z")
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": changed}
    return {"metadata": {"name": "asr-0"}, "status": {"conditions": [{"type": "PodScheduled"}, ready]}}


def since_s(clocks: KubeletClocks, pod: dict[str, Any], after_s: float) -> float:
    (seen,) = clocks.corrected("speech", [pod], NOW_S + after_s)
    return ready_since_s(seen) - NOW_S


def test_a_pod_of_a_kubelet_whose_clock_is_ahead_is_ready_since_it_was_seen() -> None:
    clocks, pod = KubeletClocks(), a_pod(300.0)
    assert [since_s(clocks, pod, after_s) for after_s in (10.0, 25.0, 400.0)] == [10.0, 10.0, 10.0]
    assert ready_since_s(pod) == NOW_S + 300.0, "the stored pod is left as it is"
    assert since_s(clocks, a_pod(500.0), 415.0) == 415.0, "it was unready in between"


def test_other_pods_are_left_as_they_are() -> None:
    pod = a_pod(-30.0)
    unknown: dict[str, Any] = {"metadata": {"name": "asr-1"}, "status": {}}
    assert KubeletClocks().corrected("speech", [pod, unknown], NOW_S) == [pod, unknown]


def test_pods_that_are_gone_are_forgotten() -> None:
    clocks, pod = KubeletClocks(), a_pod(300.0)
    since_s(clocks, pod, 10.0)
    clocks.forget_before(NOW_S + 11.0)
    assert since_s(clocks, pod, 20.0) == 20.0
