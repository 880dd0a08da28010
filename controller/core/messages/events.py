"""The Events of a pipeline in one cycle."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from controller.core.messages import details
from controller.core.messages.conditions import ConditionValue, conditions
from controller.core.messages.explain import reason_sentence
from controller.core.messages.phrases import brief
from controller.core.messages.problems import recovered
from controller.core.messages.reasons import TRANSITIONS, ConditionReason, ConditionType, EventReason
from controller.core.state.decision import BatchWrite, PipelineDecision
from profiler.samples import MetricsTier

_METRICS = ConditionType.METRICS_AVAILABLE.value


@dataclass(frozen=True, slots=True, kw_only=True)
class EventValue:
    """An Event to write; its type is Warning if `warning` is set, otherwise Normal."""

    warning: bool
    reason: str
    message: str


def events(
    decision: PipelineDecision, before: Mapping[str, str], reasons: Mapping[str, str] = MappingProxyType({})
) -> tuple[EventValue, ...]:
    """Return the Events of this cycle: replica changes, conditions that became bad or recovered, a new metrics source.

    `before` has the status of the last cycle's conditions by type, and `reasons` their reasons. A condition that is bad
    from the start, or bad again after Unknown, gets an Event; one that is good from the start gets none. A missed SLA
    comes first.
    """
    found: list[EventValue] = []
    if decision.changes:
        message = brief([reason_sentence(decision)])
        found.append(EventValue(warning=False, reason=EventReason.SCALED.value, message=message))
    for condition in conditions(decision):
        transition = TRANSITIONS[ConditionType(condition.type)]
        is_bad = condition.status == transition.bad_status
        was_bad = before.get(condition.type) == transition.bad_status
        if condition.type == _METRICS and condition.status == before.get(_METRICS):
            found.extend(_metrics_event(condition, reasons.get(_METRICS, condition.reason)))
            continue
        if is_bad == was_bad or (was_bad and condition.status == "Unknown"):
            continue
        reason = transition.bad if is_bad else transition.good
        message = condition.message or recovered(condition.type, condition.status)
        found.append(EventValue(warning=is_bad, reason=reason.value, message=message))
    return tuple(sorted(found, key=lambda event: event.reason != EventReason.SLA_MISSED.value))


def _metrics_event(condition: ConditionValue, reason_before: str) -> Iterator[EventValue]:
    """Yield an Event if the metrics have a new source, or if they have now been missing for long."""
    if condition.reason == reason_before:
        return
    if condition.status == "True":
        fallback = condition.reason not in {MetricsTier.PROMETHEUS.value, MetricsTier.CLOUDWATCH.value}
        message = condition.message or f"metrics come from {condition.reason} again"
        reason = EventReason(f"MetricsFrom{condition.reason}")
        yield EventValue(warning=fallback, reason=reason.value, message=message)
    elif condition.reason == ConditionReason.METRICS_LOST.value:
        yield EventValue(warning=True, reason=EventReason.METRICS_LOST.value, message=condition.message)


def batching_event(write: BatchWrite, problem: str) -> EventValue:
    """Return the Event about batch settings that were written for servers, or (with a `problem`) were not."""
    if problem:
        reason, message = EventReason.BATCHING_REFUSED, details.batching_unwritten(write, problem)
    else:
        reason = EventReason.BATCHING_RESTORED if write.restores else EventReason.BATCHING_WRITTEN
        message = details.batching_written(write)
    return EventValue(warning=reason is not EventReason.BATCHING_WRITTEN, reason=reason.value, message=message)
