"""The conditions of a SpeechPipeline and of a ComputePool."""

from collections.abc import Sequence
from dataclasses import dataclass

from controller.core.messages.explain import reason_sentence
from controller.core.messages.phrases import money, reading_words, timestamp
from controller.core.messages.reasons import ConditionReason, ConditionType
from controller.core.messages.sentences import (
    OUTAGES,
    hold_details,
    implausible_corrections,
    latency_of_sla,
    metrics_words,
    shedding_words,
    short_words,
    silent_rule,
    spend_of_budget,
)
from controller.core.messages.summary import READY, health
from controller.core.state.carry_over import PoolMemory
from controller.core.state.decision import BudgetDecision, HoldReason, PipelineDecision
from profiler.samples import Absence

_LONG_S = 300.0  # demand that has been missing for so long is an outage that needs a person


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionValue:
    """A condition of the Kubernetes API conventions, without its times; `status` is True, False or Unknown."""

    type: str
    status: str
    reason: str
    message: str


def conditions(decision: PipelineDecision) -> tuple[ConditionValue, ...]:
    """Return all conditions of a pipeline, always in the same order."""
    return (
        _ready(decision),
        _sla_met(decision),
        _metrics_available(decision),
        _without(decision, ConditionType.TARGETS_FOUND, [HoldReason.TARGET_MISSING], ConditionReason.ALL_FOUND),
        _without(decision, ConditionType.SCALES_ACCEPTED, [HoldReason.SCALE_REFUSED], ConditionReason.ALL_ACCEPTED),
        _without(decision, ConditionType.POOLS_AVAILABLE, OUTAGES, ConditionReason.ALL_AVAILABLE),
        _within_budget(decision),
        _rule_metric_missing(decision),
        _conflict(decision),
        _measurements_plausible(decision),
        _shedding(decision),
    )


def pool_condition(memory: PoolMemory, unread: str, now_s: float) -> ConditionValue:
    """Return the condition of a pool; `unread` says why its nodes cannot be listed, and is empty where they can."""
    if unread:
        message = f"cannot list nodes; using the last known state: {unread}"
        return _condition(ConditionType.AVAILABLE, "Unknown", ConditionReason.NODES_UNREADABLE.value, message)
    if memory.unavailable_until_s is None:
        return _condition(ConditionType.AVAILABLE, "True", ConditionReason.DELIVERS.value)
    until = timestamp(memory.unavailable_until_s)
    if now_s < memory.unavailable_until_s:
        message = f"a replica got no ready node; planned without this pool until {until}: {memory.reason}"
        return _condition(ConditionType.AVAILABLE, "False", ConditionReason.CANNOT_DELIVER.value, message)
    message = f"retried with one replica since {until}, after a failure: {memory.reason}"
    return _condition(ConditionType.AVAILABLE, "Unknown", ConditionReason.ON_TRIAL.value, message)


def budget_condition(decision: BudgetDecision, unread: str) -> ConditionValue:
    """Return the condition of a ComputeBudget; `unread` says why its namespaces cannot be listed."""
    spent = f"{money(decision.spend_per_hour)} of {money(decision.limit_per_hour)} is spent"
    message = "; ".join(filter(None, [spent, short_words(decision)]))
    if unread:
        message = f"cannot list namespaces; using the last known ones: {unread}"
        return _condition(ConditionType.WITHIN_BUDGET, "Unknown", ConditionReason.NAMESPACES_UNREADABLE.value, message)
    if decision.exceeded:
        return _condition(ConditionType.WITHIN_BUDGET, "False", ConditionReason.ABOVE_BUDGET.value, message)
    return _condition(ConditionType.WITHIN_BUDGET, "True", ConditionReason.WITHIN_BUDGET.value, message)


def unusable_condition(kind: ConditionType, reason: ConditionReason, problem: str) -> ConditionValue:
    """Return the condition `kind` of a resource that cannot be used: False, with `problem` as its message."""
    return _condition(kind, "False", reason.value, problem)


def _condition(kind: ConditionType, status: str, reason: str, message: str = "") -> ConditionValue:
    return ConditionValue(type=kind.value, status=status, reason=reason, message=message)


def _ready(decision: PipelineDecision) -> ConditionValue:
    verdict = health(decision)
    return _condition(ConditionType.READY, str(verdict in READY), verdict.value, reason_sentence(decision))


def _sla_met(decision: PipelineDecision) -> ConditionValue:
    measured_s, sla = decision.profile.latency_s, decision.spec.sla
    if isinstance(measured_s, Absence):
        message = f"{latency_of_sla(decision)}: {reading_words(measured_s)}"
        return _condition(ConditionType.SLA_MET, "Unknown", measured_s.reason.value, message)
    met, source = measured_s <= sla.latency_s, decision.profile.latency_source.value
    return _condition(ConditionType.SLA_MET, str(met), source, latency_of_sla(decision))


def _metrics_available(decision: PipelineDecision) -> ConditionValue:
    """Return the condition that all needed metrics are available; its reason is their source, or what is wrong."""
    words = metrics_words(decision)
    details = hold_details(decision, [HoldReason.METRICS_MISSING])
    if not details:
        return _condition(ConditionType.METRICS_AVAILABLE, "True", decision.metrics.tier.value, words)
    lost_for_s = decision.metrics.lost_for_s
    long = lost_for_s is not None and lost_for_s >= _LONG_S
    reason = ConditionReason.METRICS_LOST if long else HoldReason.METRICS_MISSING
    message = "; ".join([*([words] if words else []), *details])
    return _condition(ConditionType.METRICS_AVAILABLE, "False", reason.value, message)


def _without(
    decision: PipelineDecision, kind: ConditionType, bad: Sequence[HoldReason], good: ConditionReason
) -> ConditionValue:
    """Return a condition that is False while there is a hold with one of the reasons `bad`, the most severe first."""
    details = hold_details(decision, bad)
    held = {hold.reason for hold in decision.holds}
    reason = next((reason for reason in bad if reason in held), good)
    return _condition(kind, str(not details), reason.value, "; ".join(details))


def _within_budget(decision: PipelineDecision) -> ConditionValue:
    within = decision.spend_per_hour <= decision.spec.budget_per_hour + 1e-9
    excused = decision.memory.excess_excused_until_s is not None
    over = ConditionReason.DRAINING if excused else ConditionReason.ABOVE_BUDGET
    reason = ConditionReason.WITHIN_BUDGET if within else over
    return _condition(ConditionType.WITHIN_BUDGET, str(within), reason.value, spend_of_budget(decision))


def _rule_metric_missing(decision: PipelineDecision) -> ConditionValue:
    missing = [silent_rule(rule) for rule in decision.rules if isinstance(rule.reading, Absence)]
    reason = HoldReason.METRICS_MISSING if missing else ConditionReason.ALL_PRESENT
    return _condition(ConditionType.RULE_METRIC_MISSING, str(bool(missing)), reason.value, "; ".join(missing))


def _conflict(decision: PipelineDecision) -> ConditionValue:
    if conflicting := hold_details(decision, [HoldReason.CONFLICT]):
        reason = ConditionReason.SCALED_BY_ANOTHER.value
        return _condition(ConditionType.CONFLICT, "True", reason, "; ".join(conflicting))
    followed = hold_details(decision, [HoldReason.FOLLOWED])
    reason = (ConditionReason.FOLLOWED if followed else ConditionReason.NO_CONFLICT).value
    return _condition(ConditionType.CONFLICT, "False", reason, "; ".join(followed))


def _measurements_plausible(decision: PipelineDecision) -> ConditionValue:
    found = list(implausible_corrections(decision))
    reason = ConditionReason.CORRECTION_AT_LIMIT if found else ConditionReason.ALL_PLAUSIBLE
    return _condition(ConditionType.MEASUREMENTS_PLAUSIBLE, str(not found), reason.value, "; ".join(found))


def _shedding(decision: PipelineDecision) -> ConditionValue:
    if any(hold.reason is HoldReason.IDLE for hold in decision.holds) and decision.admissible is not None:
        reason = ConditionReason.SCALED_TO_ZERO
    elif decision.admissible is not None:
        starting = decision.admissible == decision.admitted_meanwhile
        reason = ConditionReason.REPLICAS_STARTING if starting else ConditionReason.OVERLOADED
    else:
        reason = ConditionReason.NO_LIMIT if decision.spec.sheds else ConditionReason.NOTHING_SHEDS
    shedding = decision.admissible is not None
    return _condition(ConditionType.SHEDDING, str(shedding), reason.value, shedding_words(decision))
