"""A kubelet whose clock is ahead neither makes its pods look slow to start nor hides that they report nothing."""

from datetime import UTC, datetime
from typing import Any

from controller.core.state.snapshot import ServingReplica
from controller.kube.gateway import Scale
from controller.kube.kubelet_clocks import KubeletClocks
from controller.kube.workloads import NodeNames, ready_since_s, target_state

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


def a_start(name: str, *, ready_s: float | None, restarts: int = 0) -> dict[str, Any]:
    """A pod that was created at `NOW_S`, had its node 5 s later, and is ready since `ready_s` (None: unready)."""

    def at(after_s: float) -> str:
        return datetime.fromtimestamp(NOW_S + after_s, UTC).isoformat()

    ready = {"type": "Ready", "status": str(ready_s is not None), "lastTransitionTime": at(ready_s or 5.0)}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(5.0)}
    return {
        "metadata": {"name": name, "creationTimestamp": at(0.0)},
        "spec": {"nodeName": "n"},
        "status": {
            "phase": "Running",
            "conditions": [scheduled, ready],
            "containerStatuses": [{"name": "asr", "restartCount": restarts}],
        },
    }


def serving(clocks: KubeletClocks, pod: dict[str, Any], after_s: float) -> list[ServingReplica]:
    seen = clocks.corrected("speech", [pod], NOW_S + after_s)
    scale = Scale(replicas=1, selector="app=asr", resource_version="1")
    return list(target_state(scale, seen, NodeNames(up=frozenset({"n"}))).serving)


def test_a_pod_that_loses_its_readiness_took_as_long_to_start_as_before() -> None:
    clocks = KubeletClocks()
    assert serving(clocks, a_start("a", ready_s=None), 10.0) == []
    for pod, after_s in (
        (a_start("a", ready_s=45.0), 50.0),
        (a_start("a", ready_s=259_000.0), 259_010.0),
        (a_start("a", ready_s=300_000.0, restarts=1), 300_010.0),
    ):
        (replica,) = serving(clocks, pod, after_s)
        assert (replica.startup_s, replica.start_seen) == (40.0, True)


def test_a_pod_that_is_older_than_the_operator_was_not_seen_to_start() -> None:
    (replica,) = serving(KubeletClocks(), a_start("a", ready_s=259_000.0), 259_010.0)
    assert (replica.startup_s, replica.start_seen) == (258_995.0, False)


def test_a_pod_whose_containers_were_restarted_before_it_was_ready_says_nothing() -> None:
    clocks = KubeletClocks()
    serving(clocks, a_start("a", ready_s=None, restarts=2), 10.0)
    (replica,) = serving(clocks, a_start("a", ready_s=400.0, restarts=2), 410.0)
    assert replica.startup_s is None
