"""The status of a pod with one container, as a kubelet writes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


def now() -> str:
    """Return the time as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True, kw_only=True)
class PodStatus:
    """What is known of a running pod; `state` and `last_state` are those of its container."""

    address: str
    phase: str = "Pending"
    state: Mapping[str, Any] = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last_state: Mapping[str, Any] = field(default_factory=dict)
    restarts: int = 0
    ready: bool = False
    started_at: str = field(default_factory=now)

    def running(self) -> None:
        """The container has started."""
        self.phase, self.state, self.ready = "Running", {"running": {"startedAt": now()}}, False

    def ended(self, code: int, *, again: bool) -> None:
        """The container has ended with `code`; `again` says whether it is started again."""
        end = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now()}}
        self.ready = False
        if again:
            self.restarts += 1
            self.last_state, self.state = end, {"waiting": {"reason": "CrashLoopBackOff"}}
        else:
            self.state, self.phase = end, "Failed" if code else "Succeeded"

    def patch(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Return the patch of the status of `pod`."""
        ready = {"status": str(self.ready), "lastTransitionTime": now()}
        container = pod["spec"]["containers"][0]
        done = self.phase in {"Failed", "Succeeded"}
        return {
            # With the uid, the server refuses the patch for a later pod of the same name.
            "metadata": {"uid": pod["metadata"]["uid"]},
            "status": {
                "phase": self.phase,
                "startTime": self.started_at,
                "hostIP": "127.0.0.1",
                "podIP": self.address,
                "podIPs": [{"$patch": "replace"}, {"ip": self.address}],
                "conditions": [
                    {"type": "Initialized", "status": "True"},
                    *({"type": each, **ready} for each in ("ContainersReady", "Ready")),
                ],
                "containerStatuses": [
                    {
                        "name": container["name"],
                        "image": container["image"],
                        "imageID": "",
                        "ready": self.ready,
                        "started": "running" in self.state and not done,
                        "restartCount": self.restarts,
                        "state": {"$patch": "replace", **self.state},
                        "lastState": {"$patch": "replace", **self.last_state},
                    }
                ],
            },
        }
