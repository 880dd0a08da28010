"""Writes the statuses and Events of a cycle, but only those that changed.

Each new status is compared with the stored one, so nothing is written again after a restart.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

from controller.core.messages.conditions import unusable_condition
from controller.core.messages.events import events
from controller.core.messages.problems import failed_scaling
from controller.core.messages.reasons import ConditionType, EventReason
from controller.core.state.decision import Decision, HoldReason, PipelineDecision
from controller.core.state.snapshot import PipelineState
from controller.kube.actuator import Write, WriteOutcome
from controller.kube.events import EventRecorder, EventType
from controller.kube.gateway import (
    BUDGETS,
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
from controller.kube.status import budget_status, invalid_status, pipeline_status, pool_status, written_at_s
from controller.kube.store import KeptResource, ResourceStore
from optimizer.model import PipelineKey

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
INVALID_SHARE = 0.5
"""Share of the interval for writing the statuses of resources that cannot be used; the rest wait for later cycles."""
STATUS_SHARE = 0.2
"""Share of the interval for the statuses of pipelines without replica changes; the rest wait for later cycles."""
_PARALLEL = 8
_VERDICT = {
    PIPELINES: ConditionType.READY,
    POOLS: ConditionType.AVAILABLE,
    BUDGETS: ConditionType.WITHIN_BUDGET,
}


class Reporter:
    """Writes the statuses and Events of SpeechPipelines, ComputePools and ComputeBudgets."""

    def __init__(
        self,
        gateway: Gateway,
        events: EventRecorder,
        *,
        pipelines: ResourceStore,
        pools: ResourceStore,
        budgets: ResourceStore,
        interval_s: float,
        pool_status: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pipelines`, `pools` and `budgets` get every written object at once, before the watches deliver it.

        `interval_s` is the time between cycles; without `pool_status`, ComputePools and ComputeBudgets are only read;
        `clock` returns monotonic seconds.
        """
        self._gateway = gateway
        self._events = events
        self._stores = {PIPELINES: pipelines, POOLS: pools, BUDGETS: budgets}
        self._interval_s = interval_s
        self._pool_status = pool_status
        self._clock = clock
        self._unreachable = threading.Event()
        self._visited_at_s: dict[str, float] = {}
        self._threads = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="reporter")

    def close(self) -> None:
        """End the reporter's threads."""
        self._threads.shutdown(cancel_futures=True)

    def report(
        self, observation: Observation, decision: Decision, news: Collection[PipelineKey] = ()
    ) -> frozenset[PipelineKey]:
        """Write the statuses of pools, budgets and usable pipelines, and return the pipelines that may be acted on.

        A pipeline is left out if its status could not be written because the pipeline no longer exists, the write
        conflicted with another, or the server does not answer; after another refusal, it may be acted on. Statuses of
        pipelines without replica changes are written for `STATUS_SHARE` of the interval. First come those in `news`,
        whose decision differs from the last one. Pipelines that must wait for a later cycle are left out too.
        """
        snapshot, now_s = observation.snapshot, decision.now_s
        self._unreachable.clear()
        for pool in decision.pools if self._pool_status else ():
            resource = observation.pools[pool.name]
            old = resource.status()
            status = pool_status(snapshot.pools[pool.name], pool, old, now_s)
            if self._write(POOLS, resource, old, status, now_s):
                self._record_verdict(resource, old, status)
        states = {state.spec.name: state for state in snapshot.budgets}
        for budget in decision.budgets if self._pool_status else ():
            resource = observation.budgets[budget.name]
            old = resource.status()
            status = budget_status(states[budget.name], budget, old, now_s)
            if self._write(BUDGETS, resource, old, status, now_s):
                self._record_verdict(resource, old, status)
        self._forget_all_but(observation)
        return self._report_pipelines(observation, decision, news)

    def record_events(
        self, observation: Observation, decisions: Iterable[PipelineDecision], writes: Iterable[Write]
    ) -> None:
        """Write Events for `decisions` and for every failed write in `writes`.

        Then write the statuses of resources that cannot be used, as many as `INVALID_SHARE` allows.
        """
        failed: set[PipelineKey] = set()
        for write in writes:
            if write.outcome is not WriteOutcome.APPLIED:
                failed.add(write.pipeline)
                change = write.change
                message = failed_scaling(change.target, change.before, change.after, write.detail)
                resource = observation.pipelines[write.pipeline].whole()
                self._events.record(resource, "Warning", write.outcome.value, message)
        for decision in decisions:
            resource = observation.pipelines[decision.key].whole()
            status = resource.get("status") or {}
            for event in events(decision, _by_type(status, "status"), _by_type(status, "reason")):
                if event.reason != EventReason.SCALED.value or decision.key not in failed:
                    kind: EventType = "Warning" if event.warning else "Normal"
                    self._events.record(resource, kind, event.reason, event.message)
        self._report_invalid(observation)

    def _report_invalid(self, observation: Observation) -> None:
        now_s = observation.snapshot.now_s
        invalid_pools = observation.invalid_pools if self._pool_status else ()
        invalid_budgets = observation.invalid_budgets if self._pool_status else ()
        kinds = (
            (PIPELINES, observation.invalid_pipelines),
            (POOLS, invalid_pools),
            (BUDGETS, invalid_budgets),
        )
        news = (
            (kind, found.resource, old, status)
            for kind, invalid in kinds
            for found in invalid
            if (status := _invalid_status(kind, found, old := found.resource.status(), now_s)) != old
        )
        written = self._while_time(INVALID_SHARE, news, lambda one: self._write(*one, now_s))
        for (_, resource, old, status), done in written:
            if done:
                self._record_verdict(resource, old, status)

    def _while_time(self, share: float, items: Iterable[T], write: Callable[[T], bool]) -> Iterator[tuple[T, bool]]:
        """Call `write` on `items` in parallel; yield each item with its result.

        Stops when `share` of the interval is over, but not before the first batch is written.
        """
        left, until_s = iter(items), self._clock() + share * self._interval_s
        while some := list(islice(left, _PARALLEL)):
            yield from zip(some, self._threads.map(write, some), strict=True)
            if self._clock() > until_s:
                return

    def _report_pipelines(
        self, observation: Observation, decision: Decision, news: Collection[PipelineKey]
    ) -> frozenset[PipelineKey]:
        def write(pair: tuple[PipelineState, PipelineDecision]) -> bool:
            resource = observation.pipelines[pair[1].key]
            old = resource.status()
            status = pipeline_status(observation.snapshot, *pair, decision, old)
            return self._write(PIPELINES, resource, old, status, decision.now_s)

        writable: set[PipelineKey] = set()
        acting: list[tuple[PipelineState, PipelineDecision]] = []
        others: list[tuple[PipelineState, PipelineDecision]] = []
        for state, own in zip(observation.snapshot.pipelines, decision.pipelines, strict=True):
            # Without a plan there is nothing new: the status of the last plan stays.
            if any(hold.reason is HoldReason.AWAITING_TURN for hold in own.holds):
                writable.add(own.key)
            else:
                (acting if own.changes else others).append((state, own))
        written = zip(acting, self._threads.map(write, acting), strict=True)
        others.sort(key=lambda pair: (pair[1].key not in news, self._visited_at_s.get(pair[1].spec.uid, float("-inf"))))
        rest = self._while_time(STATUS_SHARE, others, write)
        for (_, own), done in chain(written, rest):
            self._visited_at_s[own.spec.uid] = decision.now_s  # also for a failed write
            if done:
                writable.add(own.key)
        return frozenset(writable)

    def _write(self, kind: Resource, resource: KeptResource, old: Json, status: Json, now_s: float) -> bool:
        """Write `status` if it differs enough from `old`; return whether the resource may be acted on.

        `status` is written as a merge patch. After a request without an answer, no further one is sent in this cycle.
        """
        name = resource.name
        if not worth_writing(old, status, now_s - written_at_s(old)) or not (patch := merge_patch(old, status)):
            return True
        if self._unreachable.is_set():  # each of thousands of requests would wait for its timeout
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
                _LOG.warning("writing the status of %s failed: %s", name, error)
            return False
        except Unavailable as error:
            self._unreachable.set()
            _LOG.warning("writing the status of %s failed; no other is written in this cycle: %s", name, error)
            return False
        except KubeError as error:
            # Refused: a defect of Sluice or a missing right. The pipeline is served without a new status.
            _LOG.error("the API server refused the status of %s: %s", name, error)
            return True
        self._stores[kind].put(written)
        return True

    def _is_another(self, kind: Resource, resource: KeptResource) -> bool:
        """Return whether the object is gone or another has its name; a conflict can have other reasons too."""
        try:
            now = self._gateway.get(kind, resource.namespace or None, resource.name)
        except NotFound:
            return True
        except KubeError:
            return False
        return bool(now["metadata"]["uid"] != resource.uid)

    def _record_verdict(self, resource: KeptResource, old: Json, new: Json) -> None:
        """Write an Event if the status of the first condition changed; none if it is True from the start."""
        condition = new["conditions"][0]
        if condition["status"] != _by_type(old, "status").get(condition["type"], "True"):
            kind: EventType = "Normal" if condition["status"] == "True" else "Warning"
            self._events.record(resource.whole(), kind, condition["reason"], condition["message"])

    def _forget_all_but(self, observation: Observation) -> None:
        unusable = (*observation.invalid_pipelines, *observation.invalid_pools, *observation.invalid_budgets)
        usable = (observation.pipelines, observation.pools, observation.budgets)
        everything = (*(one for kind in usable for one in kind.values()), *(found.resource for found in unusable))
        present = {resource.uid for resource in everything}
        self._events.forget_all_but(present)
        self._visited_at_s = {uid: at_s for uid, at_s in self._visited_at_s.items() if uid in present}


def _invalid_status(kind: Resource, found: InvalidObject, old: Json, now_s: float) -> Json:
    condition = unusable_condition(_VERDICT[kind], found.reason, found.problem)
    return invalid_status(old, found.resource.generation, condition, now_s)


def _by_type(status: Json, field: str) -> dict[str, str]:
    return {condition["type"]: condition[field] for condition in status.get("conditions", [])}
