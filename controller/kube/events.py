"""Events on objects: for people who look at one, told once per transition and never in floods."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from controller.kube.gateway import FIELD_MANAGER, Gateway, Json, KubeError
from controller.kube.status import timestamp

EventType = Literal["Normal", "Warning"]

_LOG = logging.getLogger(__name__)
_REPEAT_S = 120.0  # the same words about the same object are not said again for this long
_BURST = 25
_REFILL_S = 300.0  # as client-go limits its recorders: 25 at once, then one in five minutes, per object
_FLEET_BURST = 500
_FLEET_REFILL_S = 0.6  # 100 in a minute, of all objects together: something that befalls thousands is one piece of news
_MESSAGE = 1024  # characters that the API takes
_NAMESPACE_OF_CLUSTER_SCOPED = "default"


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float
    said: dict[tuple[str, str], float] = field(default_factory=dict)


class EventRecorder:
    """Records Events, unless they repeat or come too fast. One that cannot be written is dropped with a log line."""

    def __init__(
        self,
        gateway: Gateway,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._gateway = gateway
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._fleet: tuple[float, float] | None = None  # tokens, and when that was
        self._leaves_out = False

    def record(self, resource: Json, kind: EventType, reason: str, message: str) -> None:
        """Record an Event about `resource`."""
        now_s = self._clock()
        metadata = resource["metadata"]
        if not self._admit(metadata["uid"], (reason, message), now_s):
            return
        namespace = metadata.get("namespace", _NAMESPACE_OF_CLUSTER_SCOPED)
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": namespace},
            "involvedObject": {
                "apiVersion": resource["apiVersion"],
                "kind": resource["kind"],
                "name": metadata["name"],
                "uid": metadata["uid"],
                **({"namespace": metadata["namespace"]} if "namespace" in metadata else {}),
            },
            "type": kind,
            "reason": reason,
            "message": message[:_MESSAGE],
            "source": {"component": FIELD_MANAGER},
            "firstTimestamp": timestamp(now_s),
            "lastTimestamp": timestamp(now_s),
            "count": 1,
        }
        try:
            self._gateway.create_event(namespace, event)
        except KubeError as error:
            _LOG.warning("Event %s for %s was not recorded: %s", reason, metadata["name"], error)

    def forget_all_but(self, uids: set[str]) -> None:
        """Forget the objects that are gone."""
        self._buckets = {uid: bucket for uid, bucket in self._buckets.items() if uid in uids}

    def _admit(self, uid: str, words: tuple[str, str], now_s: float) -> bool:
        bucket = self._buckets.setdefault(uid, _Bucket(tokens=_BURST, at_s=now_s))
        bucket.said = {said: at_s for said, at_s in bucket.said.items() if now_s - at_s < _REPEAT_S}
        bucket.tokens = min(_BURST, bucket.tokens + (now_s - bucket.at_s) / _REFILL_S)
        bucket.at_s = now_s
        if words in bucket.said or bucket.tokens < 1:
            return False
        if not self._admit_to_fleet(now_s):
            return False
        bucket.tokens -= 1
        bucket.said[words] = now_s
        return True

    def _admit_to_fleet(self, now_s: float) -> bool:
        tokens, at_s = self._fleet or (_FLEET_BURST, now_s)
        tokens = min(_FLEET_BURST, tokens + max(0.0, now_s - at_s) / _FLEET_REFILL_S)
        self._fleet = (tokens - 1 if tokens >= 1 else tokens, now_s)
        if tokens < 1 and not self._leaves_out:
            _LOG.warning("there are too many Events: some are left out from now on")
        self._leaves_out = tokens < 1
        return not self._leaves_out
