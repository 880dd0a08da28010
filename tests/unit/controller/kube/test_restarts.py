"""A pod that crashes again and again has not been ready since its first crash, however often it is for a moment."""

from datetime import UTC, datetime
from typing import Any

import pytest

from controller.kube.restarts import KEPT_S, CrashLoops

CREATED_S = 1767225600.0


def at(seconds: float) -> str:
    return datetime.fromtimestamp(CREATED_S + seconds, UTC).isoformat().replace("+00:00", "Z")


def a_pod(
    ready: bool,
    since_s: float,
    *,
    restarts: int = 0,
    state: str | None = None,
    name: str = "asr-0",
    created_s: float = 0.0,
) -> dict[str, Any]:
    """Return a pod whose condition Ready has changed at `since_s`; `state` is the state of its container."""
    states = {"back-off": {"waiting": {"reason": "CrashLoopBackOff"}}, "ended": {"terminated": {"reason": "OOMKilled"}}}
    container = {"restartCount": restarts, "state": {} if state is None else states[state]}
    return {
        "metadata": {"name": name, "creationTimestamp": at(created_s)},
        "spec": {"nodeName": "node-0"},
        "status": {
            "conditions": [{"type": "Ready", "status": str(ready), "lastTransitionTime": at(since_s)}],
            "containerStatuses": [container],
        },
    }


class Followed:
    """One pod, followed from cycle to cycle."""

    def __init__(self) -> None:
        self._loops = CrashLoops()

    def see(self, now_s: float, pod: dict[str, Any]) -> float | None:
        """Return since when the pod is not ready, in seconds after its creation; None for a ready pod."""
        self._loops.forget_before(CREATED_S + now_s - KEPT_S)
        since_s = self._loops.unready_since_s("speech", [pod], CREATED_S + now_s).get(pod["metadata"]["name"])
        return None if since_s is None else since_s - CREATED_S


@pytest.mark.parametrize("state", ["back-off", "ended"])
def test_a_pod_in_a_crash_loop_is_unready_since_its_first_crash(state: str) -> None:
    pod = Followed()
    assert pod.see(10, a_pod(False, 5)) == 5
    for crash in range(1, 6):
        start_s = 300.0 * crash
        assert pod.see(start_s, a_pod(True, start_s, restarts=crash)) is None
        # The restart is counted only when the container runs again.
        assert pod.see(start_s + 60, a_pod(False, start_s + 60, restarts=crash, state=state)) == 5
        assert pod.see(start_s + 290, a_pod(False, start_s + 60, restarts=crash + 1)) == 5


def test_a_pod_that_starts_again_without_a_pause_is_in_a_loop_too() -> None:
    pod = Followed()
    assert pod.see(10, a_pod(False, 5)) == 5
    assert pod.see(60, a_pod(True, 55)) is None
    assert pod.see(75, a_pod(False, 70, restarts=1)) == 5
    assert pod.see(90, a_pod(False, 70, restarts=1)) == 5


def test_a_pod_that_was_ready_for_longer_than_the_longest_back_off_starts_anew() -> None:
    for ready_s, since_s in ((KEPT_S, 5), (KEPT_S + 1, 410)):
        pod = Followed()
        assert pod.see(10, a_pod(False, 5)) == 5
        for now_s in range(105, int(100 + ready_s) + 1, 15):
            assert pod.see(now_s, a_pod(True, 100)) is None
        assert pod.see(100 + ready_s, a_pod(True, 100)) is None
        assert pod.see(415, a_pod(False, 410, restarts=1)) == since_s


def test_a_pod_that_does_not_restart_is_unready_since_its_condition_says() -> None:
    pod = Followed()
    assert pod.see(10, a_pod(False, 5, restarts=3)) == 5
    assert pod.see(40, a_pod(True, 30, restarts=3)) is None
    assert pod.see(60, a_pod(False, 50, restarts=3)) == 50
    # One restart while it started is not a loop either.
    assert pod.see(70, a_pod(True, 65, restarts=4)) is None
    assert pod.see(90, a_pod(False, 85, restarts=4)) == 85


def test_another_pod_of_the_name_and_a_pod_of_long_ago_are_others() -> None:
    pod = Followed()
    assert pod.see(10, a_pod(False, 5)) == 5
    assert pod.see(20, a_pod(False, 15, state="back-off", created_s=12.0)) == 15
    assert pod.see(30, a_pod(False, 25, state="back-off")) == 5
    assert pod.see(31 + KEPT_S, a_pod(False, 320, state="back-off")) == 320


def test_a_pod_without_a_node_is_no_crash_loop() -> None:
    pod = a_pod(False, 5)
    del pod["spec"]
    assert Followed().see(10, pod) is None


def test_a_kubelet_whose_clock_is_ahead_does_not_put_off_the_deadline() -> None:
    loops, seen = CrashLoops(), []
    for now_s in (100.0, 115.0, 130.0):
        pod = a_pod(False, 3600.0)
        seen.append(loops.unready_since_s("speech", [pod], CREATED_S + now_s)["asr-0"] - CREATED_S)
    assert seen == [100.0, 100.0, 100.0]


def test_a_kubelet_whose_clock_is_behind_does_not_bring_the_deadline_forward() -> None:
    since_s = CrashLoops().unready_since_s("speech", [a_pod(False, -3600.0, created_s=10.0)], CREATED_S + 20.0)
    assert since_s["asr-0"] - CREATED_S == 10.0


def in_loop(*, ready_s: float | None, backoff_s: int = 160, run_s: float = 60.0) -> dict[str, Any]:
    """Return a pod whose container ended at 1000 s after a run of `run_s`, and was ready again at `ready_s`."""
    pod = a_pod(ready_s is not None, 1000.0 if ready_s is None else ready_s, restarts=5)
    ended = {"reason": "OOMKilled", "exitCode": 137, "startedAt": at(1000 - run_s), "finishedAt": at(1000)}
    words = f"back-off {backoff_s // 60}m{backoff_s % 60}s restarting failed container=asr pod=asr-0"
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": words}}
    state = waits if ready_s is None else {"running": {"startedAt": at(1000 + backoff_s)}}
    pod["status"]["containerStatuses"][0] |= {"lastState": {"terminated": ended}, "state": state}
    return pod


def test_the_back_off_tells_a_loop_to_an_operator_that_has_just_started() -> None:
    """Before it waits for 160 s, the kubelet has waited for 10 + 20 + 40 + 80 s."""
    assert Followed().see(1010, in_loop(ready_s=None)) == 1000 - 150
    assert Followed().see(1010, in_loop(ready_s=None, backoff_s=20)) == 1000
    assert Followed().see(1010, in_loop(ready_s=None, run_s=400.0)) == 1000


def test_a_pod_that_is_ready_for_a_moment_in_its_loop_is_not_ready() -> None:
    assert Followed().see(1200, in_loop(ready_s=1165)) == 1000 - 150
    # It has been ready for twice as long as it ran before: it is out of its loop.
    assert Followed().see(1286, in_loop(ready_s=1165)) is None
    assert Followed().see(1030, in_loop(ready_s=1025, backoff_s=20)) is None
