"""Writes Kubernetes Events, with limits on repetition and rate."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from controller.core.messages.phrases import brief, timestamp
from controller.kube.gateway import EVENTS, FIELD_MANAGER, Gateway, Hung, Json, KubeError, Silent

EventType = Literal["Normal", "Warning"]

_LOG = logging.getLogger(__name__)
_REPEAT_S = 120.0  # the same reason and message about the same object are written once in this time
_BURST = 25
_REFILL_S = 300.0  # per object 25 at once, then one every five minutes: the limits of client-go's recorders
_FLEET_BURST = 500
_FLEET_REFILL_S = 0.6  # 100 per minute for all objects together: a fault of thousands of objects needs no more
_SILENT_S = 60.0
"""No Event is written in a namespace for so long after one had no answer: a webhook that hangs delays the cycle."""
_NAMESPACE_OF_CLUSTER_SCOPED = "default"


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float
    written: dict[tuple[str, str], float] = field(default_factory=dict)


class EventRecorder:
    """Writes Events, except repeated ones and those above the rate limits. A failed write is logged and dropped."""

    def __init__(self, gateway: Gateway, clock: Callable[[], float] = time.time) -> None:
        self._gateway = gateway
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._fleet: tuple[float, float] | None = None  # tokens, and the time of that count
        self._drops = False
        self._silent_until_s: dict[str, float] = {}

    def record(self, resource: Json, kind: EventType, reason: str, message: str) -> None:
        """Write an Event of type `kind` about `resource`, unless it repeats a recent one or exceeds a rate limit."""
        now_s = self._clock()
        metadata = resource["metadata"]
        namespace = metadata.get("namespace", _NAMESPACE_OF_CLUSTER_SCOPED)
        if now_s < self._silent_until_s.get(namespace, now_s) or not self._admit(
            metadata["uid"], (reason, message), now_s
        ):
            return
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
            "message": brief([message]),
            "source": {"component": FIELD_MANAGER},
            "firstTimestamp": timestamp(now_s),
            "lastTimestamp": timestamp(now_s),
            "count": 1,
        }
        try:
            self._gateway.create(EVENTS, namespace, event)
        except KubeError as error:
            if isinstance(error, Silent | Hung):
                self._silent_until_s[namespace] = now_s + _SILENT_S
            _LOG.warning("Event %s for %s was not written: %s", reason, metadata["name"], error)

    def forget_all_but(self, uids: set[str]) -> None:
        """Forget the Events and rate limits of the objects whose UID is not in `uids`."""
        self._buckets = {uid: bucket for uid, bucket in self._buckets.items() if uid in uids}

    def _admit(self, uid: str, content: tuple[str, str], now_s: float) -> bool:
        bucket = self._buckets.setdefault(uid, _Bucket(tokens=_BURST, at_s=now_s))
        bucket.written = {old: at_s for old, at_s in bucket.written.items() if now_s - at_s < _REPEAT_S}
        bucket.tokens = min(_BURST, bucket.tokens + (now_s - bucket.at_s) / _REFILL_S)
        bucket.at_s = now_s
        if content in bucket.written or bucket.tokens < 1:
            return False
        if not self._admit_to_fleet(now_s):
            return False
        bucket.tokens -= 1
        bucket.written[content] = now_s
        return True

    def _admit_to_fleet(self, now_s: float) -> bool:
        tokens, at_s = self._fleet or (_FLEET_BURST, now_s)
        tokens = min(_FLEET_BURST, tokens + max(0.0, now_s - at_s) / _FLEET_REFILL_S)
        self._fleet = (tokens - 1 if tokens >= 1 else tokens, now_s)
        if tokens < 1 and not self._drops:
            _LOG.warning("too many Events: dropping those above %d per minute", 60 / _FLEET_REFILL_S)
        self._drops = tokens < 1
        return not self._drops
