"""Tells the cluster what was decided: status and Events, and nothing where nothing changed.

Transitions are those against the stored status, so a restart tells nothing twice.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

from controller.core.messages.explain import events
from controller.core.state.decision import Decision, HoldReason, PipelineDecision
from controller.core.state.snapshot import PipelineState
from controller.kube.actuator import Write, WriteOutcome
from controller.kube.events import EventRecorder, EventType
from controller.kube.gateway import (
    PIPELINES,
    POOLS,
    Conflict,
    Gateway,
    Json,
    KubeError,
    NotFound,
    Resource,
    Unavailable,
)
from controller.kube.reader import InvalidObject, Observation
from controller.kube.significance import merge_patch, worth_writing
from controller.kube.status import invalid_status, pipeline_status, pool_status, written_at_s
from controller.kube.store import KeptResource, ResourceStore
from optimizer.model import PipelineKey

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
TELLING_SHARE = 0.5
"""Of the interval, for telling resources that cannot be used so: however many there are, the others do not wait."""
STATUS_SHARE = 0.2
"""Likewise for statuses of pipelines that change nothing: to look at all of thousands can take longer than a cycle."""
_PARALLEL = 8
_VERDICT = {PIPELINES: "Ready", POOLS: "Available"}


class Reporter:
    """Writes status and Events."""

    def __init__(
        self,
        gateway: Gateway,
        events: EventRecorder,
        *,
        pipelines: ResourceStore,
        pools: ResourceStore,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """What is written is put into the stores at once: the watches tell it later."""
        self._gateway = gateway
        self._events = events
        self._stores = {PIPELINES: pipelines, POOLS: pools}
        self._interval_s = interval_s
        self._clock = clock
        self._away = threading.Event()
        self._looked_at_s: dict[str, float] = {}
        self._threads = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="reporter")

    def close(self) -> None:
        """End the reporter's threads."""
        self._threads.shutdown(cancel_futures=True)

    def report(
        self, observation: Observation, decision: Decision, news: Collection[PipelineKey] = ()
    ) -> frozenset[PipelineKey]:
        """Write the status of everything that can be used, and return the pipelines that may be acted on.

        Left out are those whose status could not be written because they are gone or the server does not answer, and
        those that change nothing and have to wait: of thousands, some are looked at in each cycle. `news` are the
        pipelines about which something else was decided than before: they are first.
        """
        snapshot, now_s = observation.snapshot, decision.now_s
        self._away.clear()
        for pool in decision.pools:
            resource = observation.pools[pool.name]
            old = resource.status()
            status = pool_status(snapshot.pools[pool.name], pool, old, now_s)
            if self._write(POOLS, resource, old, status, now_s):
                self._tell_verdict(resource, old, status)
        self._forget_all_but(observation)
        return self._report_pipelines(observation, decision, news)

    def tell(self, observation: Observation, decisions: Iterable[PipelineDecision], writes: Iterable[Write]) -> None:
        """Record Events: for what was decided about those pipelines, and for every change that could not be made.

        Then tell the resources that cannot be used what is wrong with them, as many as there is time for.
        """
        failed: set[PipelineKey] = set()
        for write in writes:
            if write.outcome is not WriteOutcome.APPLIED:
                failed.add(write.pipeline)
                change = write.change
                message = f"{change.target} stays at {change.before}, {change.after} was decided: {write.detail}"
                resource = observation.pipelines[write.pipeline].whole()
                self._events.record(resource, "Warning", write.outcome.value, message)
        for decision in decisions:
            resource = observation.pipelines[decision.key].whole()
            status = resource.get("status") or {}
            for event in events(decision, _verdicts(status), _reasons(status)):
                if event.reason != WriteOutcome.APPLIED.value or decision.key not in failed:
                    kind: EventType = "Warning" if event.warning else "Normal"
                    self._events.record(resource, kind, event.reason, event.message)
        self._tell_invalid(observation)

    def _tell_invalid(self, observation: Observation) -> None:
        now_s = observation.snapshot.now_s
        kinds = ((PIPELINES, observation.invalid_pipelines), (POOLS, observation.invalid_pools))
        news = (
            (kind, found.resource, old, status)
            for kind, invalid in kinds
            for found in invalid
            if (status := _invalid_status(kind, found, old := found.resource.status(), now_s)) != old
        )
        told = self._while_time(TELLING_SHARE, news, lambda one: self._write(*one, now_s))
        for (_, resource, old, status), done in told:
            if done:
                self._tell_verdict(resource, old, status)

    def _while_time(
        self, share: float, assessments: Iterable[T], write: Callable[[T], bool]
    ) -> Iterator[tuple[T, bool]]:
        """Write some of `assessments`, and more as long as that share of the interval is not over; yield what was
        written."""
        left, until_s = iter(assessments), self._clock() + share * self._interval_s
        while some := list(islice(left, _PARALLEL)):
            yield from zip(some, self._threads.map(write, some), strict=True)
            if self._clock() > until_s:
                return

    def _report_pipelines(
        self, observation: Observation, decision: Decision, news: Collection[PipelineKey]
    ) -> frozenset[PipelineKey]:
        def write(assessment: tuple[PipelineState, PipelineDecision]) -> bool:
            resource = observation.pipelines[assessment[1].key]
            old = resource.status()
            status = pipeline_status(observation.snapshot, *assessment, decision, old)
            return self._write(PIPELINES, resource, old, status, decision.now_s)

        writable: set[PipelineKey] = set()
        acting: list[tuple[PipelineState, PipelineDecision]] = []
        others: list[tuple[PipelineState, PipelineDecision]] = []
        for state, own in zip(observation.snapshot.pipelines, decision.pipelines, strict=True):
            # Without a plan there is nothing to tell; what the status tells of an earlier one stands.
            if any(hold.reason is HoldReason.AWAITING_TURN for hold in own.holds):
                writable.add(own.key)
            else:
                (acting if own.changes else others).append((state, own))
        written = zip(acting, self._threads.map(write, acting), strict=True)
        others.sort(
            key=lambda assessment: (
                assessment[1].key not in news,
                self._looked_at_s.get(assessment[1].spec.uid, float("-inf")),
            )
        )
        rest = self._while_time(STATUS_SHARE, others, write)
        for (_, own), done in chain(written, rest):
            self._looked_at_s[own.spec.uid] = decision.now_s  # or those that fail would be first every time
            if done:
                writable.add(own.key)
        return frozenset(writable)

    def _write(self, kind: Resource, resource: KeptResource, old: Json, status: Json, now_s: float) -> bool:
        """Write `status` if it says more than the `old` one; return whether the resource is there to be acted on."""
        name = resource.name
        if not worth_writing(old, status, now_s - written_at_s(old)) or not (patch := merge_patch(old, status)):
            return True
        if self._away.is_set():  # thousands of requests would each wait for the time limit
            return False
        try:
            written = self._gateway.patch_status(kind, resource.namespace or None, name, resource.uid, patch)
        except NotFound:
            self._stores[kind].remove(resource.whole())
            return False
        except Conflict as error:
            if self._is_another(kind, resource):
                self._stores[kind].remove(resource.whole())
            else:
                _LOG.warning("status of %s was not written: %s", name, error)
            return False
        except Unavailable as error:
            self._away.set()
            _LOG.warning("status of %s was not written, nor any other in this cycle: %s", name, error)
            return False
        except KubeError as error:
            # A status that is refused is our mistake or a missing right; the pipeline is served all the same.
            _LOG.error("status of %s was refused: %s", name, error)
            return True
        self._stores[kind].put(written)
        return True

    def _is_another(self, kind: Resource, resource: KeptResource) -> bool:
        """Whether the object has gone, and another one may have its name. A conflict can be for other reasons too."""
        try:
            now = self._gateway.get(kind, resource.namespace or None, resource.name)
        except NotFound:
            return True
        except KubeError:
            return False
        return bool(now["metadata"]["uid"] != resource.uid)

    def _tell_verdict(self, resource: KeptResource, old: Json, new: Json) -> None:
        """Record an Event when the first condition changed; being fine from the start is no news."""
        condition = new["conditions"][0]
        if condition["status"] != _verdicts(old).get(condition["type"], "True"):
            kind: EventType = "Normal" if condition["status"] == "True" else "Warning"
            self._events.record(resource.whole(), kind, condition["reason"], condition["message"])

    def _forget_all_but(self, observation: Observation) -> None:
        invalid = [found.resource for found in (*observation.invalid_pipelines, *observation.invalid_pools)]
        everything = (*observation.pipelines.values(), *observation.pools.values(), *invalid)
        present = {resource.uid for resource in everything}
        self._events.forget_all_but(present)
        self._looked_at_s = {uid: at_s for uid, at_s in self._looked_at_s.items() if uid in present}


def _invalid_status(kind: Resource, found: InvalidObject, old: Json, now_s: float) -> Json:
    return invalid_status(old, found.resource.generation, _VERDICT[kind], found.reason, found.problem, now_s)


def _verdicts(status: Json) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in status.get("conditions", [])}


def _reasons(status: Json) -> dict[str, str]:
    return {condition["type"]: condition["reason"] for condition in status.get("conditions", [])}
