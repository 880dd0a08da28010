"""Writes the statuses and Events of a cycle, but only those that changed.

Each new status is compared with the stored one, so nothing is written again after a restart.

A status that the API server refuses does not stop the others, and is tried last in the next cycle. A pipeline is scaled
only after its memory is safe: in its status, or in the Lease (`KeptMemory`).
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from itertools import chain, islice
from typing import TypeVar

from controller.core.assess.budgets import budget_per_hour
from controller.core.messages.conditions import unusable_condition
from controller.core.messages.events import batching_event, events
from controller.core.messages.problems import (
    NO_LEASE,
    NO_ROOM,
    failed_scaling,
    foreign_pipeline,
    own_error,
    recovered,
    unwritten_status,
)
from controller.core.messages.reasons import ConditionReason, ConditionType, EventReason
from controller.core.state.decision import Decision, HoldReason, PipelineDecision
from controller.core.state.snapshot import PipelineState, Planned
from controller.kube.actuator import Write, WriteOutcome
from controller.kube.batching import BatchWritten
from controller.kube.claims import Claims
from controller.kube.durable import PLANNED, kept_document, memory_from, planned_text, written_at_s
from controller.kube.events import EventRecorder, EventType
from controller.kube.gateway import (
    BUDGETS,
    PIPELINES,
    POOLS,
    Conflict,
    Gateway,
    Hung,
    Json,
    KubeError,
    NotFound,
    NotLeading,
    Resource,
    Silent,
    Unavailable,
)
from controller.kube.kept_memory import KeptMemory
from controller.kube.reader import InvalidObject, Observation
from controller.kube.refusals import Refusals
from controller.kube.significance import merge_patch, worth_writing
from controller.kube.status import (
    budget_status,
    divided_budget_status,
    divided_pool_status,
    foreign_status,
    invalid_status,
    pipeline_status,
    pool_status,
)
from controller.kube.store import KeptResource, ResourceStore, kept_resource
from optimizer.model import PipelineKey

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
INVALID_SHARE = 0.5
"""Share of the interval for writing the statuses of resources that cannot be used; the rest wait for later cycles."""
STATUS_SHARE = 0.2
"""Share of the interval for the statuses of pipelines without replica changes; the rest wait for later cycles."""
IDLE_SHARE = 0.5
"""The same in a cycle in which no replicas change, so that nothing has to wait for it."""
HURRIED_SHARE = 1.0
"""The same while pipelines of a large fleet get their first plan: to write a status later takes another assessment."""
FOREIGN_SHARE = 0.1
"""Share of the interval for telling at pipelines of other operators that this one leaves them alone."""
_PARALLEL = 8
_MOST_HUNG = 3
"""Namespaces and kinds in which a status got no answer in one cycle: each takes as long as the time limit."""
_VERDICT = {
    PIPELINES: ConditionType.READY,
    POOLS: ConditionType.AVAILABLE,
    BUDGETS: ConditionType.WITHIN_BUDGET,
}


class _Outcome(Enum):
    """The outcome of writing a status."""

    WRITTEN = "written"
    """It is as it is to be, written now or before."""
    GONE = "gone"
    """The resource does not exist any more."""
    AWAY = "away"
    """The server does not answer, or this replica does not lead; the status is tried again in the next cycle."""
    BUSY = "busy"
    """The server asked to wait with statuses of this kind."""
    REFUSED = "refused"
    """The server answered with an error about this status."""


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
        kept: KeptMemory | None = None,
        pool_status: bool = True,
        claims: Claims | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pipelines`, `pools` and `budgets` get every written object at once, before the watches deliver it.

        `interval_s` is the time between cycles; `kept` has the memory of pipelines whose status cannot be written, and
        without it these are not scaled; without `pool_status`, ComputePools and ComputeBudgets are only read; without
        `claims` there is no other operator; `clock` returns monotonic seconds.
        """
        self._gateway = gateway
        self._events = events
        self._stores = {PIPELINES: pipelines, POOLS: pools, BUDGETS: budgets}
        self._interval_s = interval_s
        self._kept = kept
        self._pool_status = pool_status
        self._claims = claims
        self._clock = clock
        self._away: dict[Resource, Unavailable] = {}
        """Why no further status of a kind is written in this cycle."""
        self._hung: dict[tuple[Resource, str], Hung] = {}
        """Why no further status of a kind in a namespace is written in this cycle."""
        self._visited_at_s: dict[str, float] = {}
        self._refusals = Refusals()
        self._sound: dict[str, int] = {}
        """The hash of the stored objects whose memory was found to be readable, by UID."""
        self._threads = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="reporter")

    def close(self) -> None:
        """End the reporter's threads."""
        self._threads.shutdown(cancel_futures=True)

    def report(
        self, observation: Observation, decision: Decision, news: Collection[PipelineKey] = (), hurried: bool = False
    ) -> frozenset[PipelineKey]:
        """Write the statuses of pools, budgets and usable pipelines, and return the pipelines that may be acted on.

        A pipeline is left out if it no longer exists, or the server does not answer. If the server refuses the status
        of a pipeline whose replicas change, or asks to wait with it, the pipeline is left out unless its memory is kept
        in the Lease. Statuses of pipelines without replica changes are written for `STATUS_SHARE` of the interval, or
        for `IDLE_SHARE` where no replicas change, and for `HURRIED_SHARE` if `hurried`.
        First come those in `news`, whose decision differs from the last one. Pipelines that must wait for a later cycle
        are left out too.
        """
        self._away.clear()
        self._hung.clear()
        self._begin(observation)
        statuses = list(_shared_statuses(observation, decision)) if self._pool_status else []
        failed = [each for each in statuses if self._refusals.last_failure(each[1].uid)]
        failed.sort(key=lambda each: self._refusals.last_failure(each[1].uid))
        self._report_shared([each for each in statuses if each not in failed], decision.now_s)
        writable = self._report_pipelines(observation, decision, news, hurried)
        self._report_shared(failed, decision.now_s)
        return writable

    def is_delayed(self) -> bool:
        """Return whether the server did not answer, or asked to wait, when statuses were last reported."""
        return bool(self._away)

    def unwritten(self, observation: Observation) -> frozenset[PipelineKey]:
        """Return the pipelines whose status the server refused when it was last tried."""
        refused = self._refusals.why
        return frozenset(key for key, resource in observation.pipelines.items() if refused(resource.uid) is not None)

    def _report_shared(self, statuses: Iterable[tuple[Resource, KeptResource, Json]], now_s: float) -> None:
        for kind, resource, status in statuses:
            old = resource.status()
            if not self._is_foreign(resource) and self._write(kind, resource, old, status, now_s) is _Outcome.WRITTEN:
                self._record_verdict(resource, old, status)

    def record_events(
        self,
        observation: Observation,
        decisions: Collection[PipelineDecision],
        writes: Iterable[Write],
        settings: Iterable[BatchWritten] = (),
    ) -> None:
        """Write Events for `decisions`, every failed write in `writes`, all batch `settings`, and every refused status.

        Then write the statuses of resources that cannot be used, as many as `INVALID_SHARE` allows.
        """
        for kept in observation.pipelines.values():
            if (why := self._refusals.why(kept.uid)) is not None:
                message = unwritten_status(why, self._refusals.why_withheld(kept.uid))
                self._events.record(kept.whole(), "Warning", EventReason.STATUS_REFUSED.value, message)
        failed: set[PipelineKey] = set()
        for write in writes:
            if write.outcome is not WriteOutcome.APPLIED:
                failed.add(write.pipeline)
                change = write.change
                message = failed_scaling(change.target, change.before, change.after, write.detail)
                resource = observation.pipelines[write.pipeline].whole()
                self._events.record(resource, "Warning", write.outcome.value, message)
        for done in settings:
            event = batching_event(done.write, done.problem)
            kind: EventType = "Warning" if event.warning else "Normal"
            self._events.record(observation.pipelines[done.pipeline].whole(), kind, event.reason, event.message)
        for decision in decisions:
            resource = observation.pipelines[decision.key].whole()
            status = resource.get("status") or {}
            try:
                found = events(decision, _by_type(status, "status"), _by_type(status, "reason"))
            except Exception:  # noqa: BLE001 -- as in `_report_pipelines`
                _LOG.exception("%s: no Events about its decision: internal error", decision.key)
                continue
            for event in found:
                if event.reason != EventReason.SCALED.value or decision.key not in failed:
                    kind = "Warning" if event.warning else "Normal"
                    self._events.record(resource, kind, event.reason, event.message)
        self._forget_kept(observation)
        self._report_invalid(observation)
        self._report_foreign(observation)

    def _forget_kept(self, observation: Observation) -> None:
        """Remove the memory from the Lease of pipelines whose status was written, or that are gone."""
        if self._kept is not None:
            both = (observation.pipelines, observation.standing)
            present = {resource.uid for kind in both for resource in kind.values()}
            present |= {found.resource.uid for found in observation.invalid_pipelines}
            self._kept.forget(self._kept.uids - present.difference(self._refusals.written))

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
            if not self._is_foreign(found.resource)
            and (status := _invalid_status(kind, found, old := found.resource.status(), now_s)) != old
        )
        written = self._while_time(INVALID_SHARE, news, lambda one: self._write(*one, now_s))
        for (_, resource, old, status), outcome in written:
            if outcome is _Outcome.WRITTEN:
                self._record_verdict(resource, old, status)

    def _is_foreign(self, resource: KeptResource) -> bool:
        return self._claims is not None and self._claims.elsewhere(resource) is not None

    def _report_foreign(self, observation: Observation) -> None:
        """Say at each pipeline that another operator scales that this one leaves it alone, as far as time permits."""
        list(self._while_time(FOREIGN_SHARE, observation.foreign.values(), partial(self._tell, observation)))

    def _tell(self, observation: Observation, resource: KeptResource) -> _Outcome:
        other = None if self._claims is None else self._claims.elsewhere(resource)
        if self._claims is None or other is None or self._claims.sibling(resource) is not None:
            return _Outcome.GONE  # another shard is about to hand it over
        old, why = resource.status(), foreign_pipeline(self._claims.own, other)
        condition = unusable_condition(ConditionType.ONE_OPERATOR, ConditionReason.SCALED_BY_ANOTHER_OPERATOR, why)
        new = foreign_status(old, resource.generation, condition, observation.snapshot.now_s)
        if new is old:
            return _Outcome.WRITTEN
        try:
            # Conditions are a list: it must be the one that the other operator has just written.
            written = self._patched(PIPELINES, resource, {"conditions": new["conditions"]}, guarded=True)
        except KubeError as error:
            _LOG.info("%s/%s: %s, which could not be said there: %s", resource.namespace, resource.name, why, error)
            return _Outcome.REFUSED
        self._stores[PIPELINES].put(written)
        if not any(each["type"] == condition.type for each in old.get("conditions", [])):
            self._events.record(resource.whole(), "Warning", condition.reason, condition.message)
        return _Outcome.WRITTEN

    def _patched(self, kind: Resource, resource: KeptResource, status: Json, *, guarded: bool) -> Json:
        """Merge `status` into that of `resource`; `guarded`: only if the object is still as it is stored here."""
        version = resource.whole()["metadata"]["resourceVersion"] if guarded else None
        place = kind, resource.namespace or None, resource.name, resource.uid
        return self._gateway.patch_status(*place, status, version=version)

    def _while_time(
        self, share: float, items: Iterable[T], write: Callable[[T], _Outcome]
    ) -> Iterator[tuple[T, _Outcome]]:
        """Call `write` on `items` in parallel; yield each item with its result.

        Stops when `share` of the interval is over, but not before the first batch is written.
        """
        left, until_s = iter(items), self._clock() + share * self._interval_s
        while some := list(islice(left, _PARALLEL)):
            yield from zip(some, self._threads.map(write, some), strict=True)
            if self._clock() > until_s:
                return

    def _each(self, items: Sequence[T], write: Callable[[T], _Outcome]) -> Iterator[tuple[T, _Outcome]]:
        """Call `write` on `items` in parallel, from when the first result is asked for."""
        yield from zip(items, self._threads.map(write, items), strict=True)

    def _report_pipelines(
        self, observation: Observation, decision: Decision, news: Collection[PipelineKey], hurried: bool
    ) -> frozenset[PipelineKey]:
        def write(pair: tuple[PipelineState, PipelineDecision]) -> _Outcome:
            resource = observation.pipelines[pair[1].key]
            old, planned = resource.status(), pair[1].planned
            # It takes long to make a text of a plan, and most statuses are not written.
            instead = None if planned is None else (old.get("memory") or {}).get(PLANNED, "")
            try:
                status = pipeline_status(observation.snapshot, *pair, decision, old, instead)
                return self._write(PIPELINES, resource, old, status, decision.now_s, planned=planned)
            except Exception as error:  # noqa: BLE001 -- a defect about one pipeline must not end the cycle of all
                _LOG.exception("%s: its status is not written: internal error", pair[1].key)
                self._refusals.refused(resource.uid, own_error(error))
                return _Outcome.REFUSED

        writable: set[PipelineKey] = set()
        acting: list[tuple[PipelineState, PipelineDecision]] = []
        others: list[tuple[PipelineState, PipelineDecision]] = []
        for state, own in zip(observation.snapshot.pipelines, decision.pipelines, strict=True):
            # Without a plan there is nothing new: the status of the last plan stays.
            if any(hold.reason is HoldReason.AWAITING_TURN for hold in own.holds):
                writable.add(own.key)
            else:
                (acting if own.changes else others).append((state, own))
        # What failed last time comes last, after all others: a webhook that hangs takes the whole time limit.
        failed = [pair for pair in acting if self._refusals.last_failure(pair[1].spec.uid)]
        failed.sort(key=lambda pair: self._refusals.last_failure(pair[1].spec.uid))
        acting = [pair for pair in acting if not self._refusals.last_failure(pair[1].spec.uid)]
        written = zip(acting, self._threads.map(write, acting), strict=True)
        others.sort(
            key=lambda pair: (
                self._refusals.last_failure(pair[1].spec.uid),
                pair[1].key not in news,
                self._visited_at_s.get(pair[1].spec.uid, float("-inf")),
            )
        )
        share = HURRIED_SHARE if hurried else STATUS_SHARE if acting or failed else IDLE_SHARE
        rest = self._while_time(share, others, write)
        refused: list[PipelineDecision] = []
        for (_, own), outcome in chain(written, rest, self._each(failed, write)):
            self._visited_at_s[own.spec.uid] = decision.now_s  # also for a failed write
            if outcome is _Outcome.BUSY and own.changes:
                self._refusals.refused(own.spec.uid, str(self._away[PIPELINES]))
                refused.append(own)
            elif outcome is _Outcome.REFUSED:
                refused.append(own)
            elif outcome is _Outcome.WRITTEN:
                writable.add(own.key)
        self._keep(refused, decision.now_s)
        writable.update(own.key for own in refused if self._refusals.why_withheld(own.spec.uid) is None)
        return frozenset(writable)

    def _keep(self, refused: Iterable[PipelineDecision], now_s: float) -> None:
        """Keep the memory of pipelines whose status is refused in the Lease: of those that act, or acted before.

        Where that fails, those that act are withheld.
        """
        kept_before = frozenset() if self._kept is None else self._kept.uids
        unsafe = [own for own in refused if own.changes or own.spec.uid in kept_before]
        problem, safe, broken = NO_LEASE, frozenset[str](), dict[str, str]()
        if self._kept is not None:
            documents: dict[str, Json] = {}
            for own in unsafe:
                try:
                    documents[own.spec.uid] = kept_document(own.memory, planned_text(own.planned), now_s)
                except Exception as error:  # noqa: BLE001 -- as for its status
                    broken[own.spec.uid] = own_error(error)
            try:
                problem, safe = NO_ROOM, self._kept.keep(documents)
            except KubeError as error:
                problem = str(error)
        for own in unsafe:
            if own.changes and own.spec.uid not in safe:
                why = broken.get(own.spec.uid, problem)
                _LOG.error("%s: not scaled: neither its status nor the Lease keeps its memory: %s", own.key, why)
                self._refusals.withheld(own.spec.uid, why)

    def _write(
        self,
        kind: Resource,
        resource: KeptResource,
        old: Json,
        status: Json,
        now_s: float,
        planned: Planned | None = None,
    ) -> _Outcome:
        """Write `status`, with `planned` in the place of its plan, as a merge patch if it differs enough from `old`.

        After a request without an answer, no further status is written in this cycle; after one that the server is too
        busy for, no further one of this kind. After one that hangs while the server answers others, no further one of
        its kind in its namespace, whose webhook is likely the same.
        """
        name = resource.name
        age_s = now_s - written_at_s(old.get("memory"))
        claims = self._claims is not None and self._claims.to_make(resource)
        if claims and self._claims is not None and kind is PIPELINES and self._claims.waits(resource):
            return _Outcome.AWAY
        if self._claims is not None and self._claims.own:
            status = {**status, "operator": self._claims.own}
        worth = claims or self._is_damaged(resource, old) or worth_writing(old, status, age_s)
        if worth and planned is not None:
            status = {**status, "memory": {**status["memory"], PLANNED: planned_text(planned)}}
        if not worth or not (patch := merge_patch(old, status)):
            self._refusals.over(resource.uid, written=False)
            return _Outcome.WRITTEN
        if (hung := self._hung_like(kind, resource)) is not None:
            self._refusals.refused(resource.uid, f"not tried in this cycle: {hung}", tried=False)
            return _Outcome.REFUSED
        if kind in self._away:  # each of thousands of requests would wait for its timeout
            return _without_answer(self._away[kind])
        try:
            # Of two operators that claim it at once, the second is refused.
            written = self._patched(kind, resource, patch, guarded=claims)
        except NotFound:
            self._stores[kind].remove(resource.whole())
            return _Outcome.GONE
        except Unavailable as error:
            self._away.update(dict.fromkeys(self._stores if isinstance(error, Silent) else (kind,), error))
            self._refusals.unanswered(resource.uid)
            _LOG.warning("writing the status of %s failed; no other is written in this cycle: %s", name, error)
            return _without_answer(error)
        except KubeError as error:
            if isinstance(error, Conflict) and self._is_another(kind, resource):
                self._stores[kind].remove(resource.whole())
                return _Outcome.GONE
            if isinstance(error, Hung):
                self._hung[kind, resource.namespace] = error
            if isinstance(error, Conflict) and claims:
                _LOG.info("%s: not claimed, because it has changed; tried again in the next cycle", name)
                return _Outcome.AWAY
            self._refusals.refused(resource.uid, str(error))
            _LOG.error("the API server refused the status of %s: %s", name, error)
            return _Outcome.REFUSED
        self._stores[kind].put(written)
        if claims and self._claims is not None:
            self._claims.made(kept_resource(written))
        self._refusals.over(resource.uid, written=True)
        return _Outcome.WRITTEN

    def _is_damaged(self, resource: KeptResource, status: Json) -> bool:
        """Return whether a part of the memory in the stored `status` cannot be read, so that it is written again."""
        stored = hash(resource.packed.data)
        if self._sound.get(resource.uid) == stored:  # to read it takes milliseconds
            return False
        damaged = bool(memory_from(status.get("memory")).lost)
        if not damaged:
            self._sound[resource.uid] = stored
        return damaged

    def _hung_like(self, kind: Resource, resource: KeptResource) -> Hung | None:
        """Return the failure of a status that is likely that of `resource` too, None if there was none."""
        hung = list(self._hung.values())
        return hung[0] if len(hung) >= _MOST_HUNG else self._hung.get((kind, resource.namespace))

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
        """Write an Event for each condition whose status changed; none for one that is True from the start."""
        before = _by_type(old, "status")
        for condition in new["conditions"]:
            if condition["status"] != before.get(condition["type"], "True"):
                kind: EventType = "Normal" if condition["status"] == "True" else "Warning"
                message = condition["message"] or recovered(condition["type"], condition["status"])
                self._events.record(resource.whole(), kind, condition["reason"], message)

    def _begin(self, observation: Observation) -> None:
        """Begin a cycle: forget the resources that are gone."""
        unusable = (*observation.invalid_pipelines, *observation.invalid_pools, *observation.invalid_budgets)
        usable = (observation.pipelines, observation.standing, observation.pools, observation.budgets)
        everything = (*(one for kind in usable for one in kind.values()), *(found.resource for found in unusable))
        present = {resource.uid for resource in everything}
        self._events.forget_all_but(present)
        self._visited_at_s = {uid: at_s for uid, at_s in self._visited_at_s.items() if uid in present}
        self._refusals.begin(present)
        self._sound = {uid: stored for uid, stored in self._sound.items() if uid in present}


def _without_answer(error: Unavailable) -> _Outcome:
    return _Outcome.AWAY if isinstance(error, Silent | NotLeading) else _Outcome.BUSY


def _shared_statuses(observation: Observation, decision: Decision) -> Iterator[tuple[Resource, KeptResource, Json]]:
    """Yield the statuses of the pools and the budgets that pipelines share."""
    snapshot, now_s = observation.snapshot, decision.now_s
    for pool in decision.pools:
        resource, own = observation.pools[pool.name], snapshot.pools[pool.name]
        old = resource.status()
        status = pool_status(own, pool, old, now_s)
        if own.allowance is not None and own.allowance.entry is not None:
            status = divided_pool_status(status, own, old, own.allowance.entry.shard)
        yield POOLS, resource, status
    states = {state.spec.name: state for state in snapshot.budgets}
    for budget in decision.budgets:
        resource = observation.budgets[budget.name]
        spec, state, old = resource.whole()["spec"], states[budget.name], resource.status()
        status = budget_status(state, budget, spec, old, now_s)
        if state.allowance is not None and state.allowance.entry is not None:
            limit = budget_per_hour(state.spec, now_s)
            status = divided_budget_status(status, state, old, limit, state.allowance.entry.shard)
        yield BUDGETS, resource, status


def _invalid_status(kind: Resource, found: InvalidObject, old: Json, now_s: float) -> Json:
    condition = unusable_condition(_VERDICT[kind], found.reason, found.problem)
    return invalid_status(old, found.resource.generation, condition, now_s)


def _by_type(status: Json, field: str) -> dict[str, str]:
    return {condition["type"]: condition[field] for condition in status.get("conditions", [])}
