"""Words for a decision: the only place where there are any. Status, Events, log and command line all take them here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from controller.core.messages.phrases import (
    OUTAGES,
    brief_hold_words,
    change_words,
    demand_change,
    demand_words,
    duration,
    hold_words,
    latency_of_sla,
    metrics_words,
    money,
    money_needed,
    number,
    observed_latency,
    planned_words,
    reading_words,
    replicas_words,
    spend_of_budget,
    step_words,
)
from controller.core.state.decision import Decision, HoldReason, PipelineDecision
from controller.core.state.spec import Mode
from optimizer.model import PipelineKey
from optimizer.plan import LimitKind, PipelinePlan
from profiler.samples import Absence, MetricsTier

_BAD_WHEN_TRUE = frozenset({"RuleMetricMissing", "Conflict"})
_NOTABLE = 0.05  # a correction below this makes no difference to a plan
_LONG_S = 300.0  # without metrics: from then on it is an outage that somebody must look into
_LOST = "MetricsLost"
_METRICS = "MetricsAvailable"


class Health(Enum):
    """Is it fine: the first thing that is not, most severe first."""

    POOL_NOT_FOUND = "PoolNotFound"
    TARGET_MISSING = "TargetMissing"
    CONFLICT = "Conflict"
    SCALE_REFUSED = "ScaleRefused"
    METRICS_MISSING = "MetricsMissing"
    PAUSED = "Paused"
    OVERLOADED = "Overloaded"
    SLA_MISSED = "SLAMissed"
    SCALING = "Scaling"
    OK = "OK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The printer columns of a pipeline, ready-made."""

    health: str
    demand: str
    latency: str
    bottleneck: str
    limited_by: str
    cost: str
    replicas: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionValue:
    """A condition by the Kubernetes API conventions, without its times; `status` is True, False or Unknown."""

    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventValue:
    """An Event to write; `warning` selects its type."""

    warning: bool
    reason: str
    message: str


def summary(decision: PipelineDecision) -> Summary:
    """Return the printer columns."""
    plan = decision.plan
    return Summary(
        health=health(decision).value,
        demand="-" if decision.demand is None else demand_words(decision.spec, decision.demand),
        latency=f"{observed_latency(decision)} / {duration(decision.spec.sla.latency_s)}",
        bottleneck=decision.profile.bottleneck or "-",
        limited_by="-" if plan is None or plan.limited_by is None else str(plan.limited_by),
        cost=f"{money(decision.spend_per_hour)} / {money(decision.spec.budget_per_hour)}",
        replicas=replicas_words(decision),
    )


def health(decision: PipelineDecision) -> Health:
    """Return whether the pipeline is fine, or the most severe thing that is not."""
    reasons = {hold.reason for hold in decision.holds}
    for hold, verdict in (
        (HoldReason.POOL_NOT_FOUND, Health.POOL_NOT_FOUND),
        (HoldReason.TARGET_MISSING, Health.TARGET_MISSING),
        (HoldReason.CONFLICT, Health.CONFLICT),
        (HoldReason.SCALE_REFUSED, Health.SCALE_REFUSED),
        (HoldReason.METRICS_MISSING, Health.METRICS_MISSING),
        (HoldReason.PAUSED, Health.PAUSED),
    ):
        if hold in reasons:
            return verdict
    if decision.plan is not None and not decision.plan.feasible:
        return Health.OVERLOADED
    measured_s = decision.profile.latency_s
    if isinstance(measured_s, float) and measured_s > decision.spec.sla.latency_s:
        return Health.SLA_MISSED
    return Health.SCALING if decision.changes else Health.OK


def reason_sentence(decision: PipelineDecision) -> str:
    """Return the decision in one line: what changes and why, else what holds, then the numbers it was made with."""
    head = "; ".join(change_words(decision)) or "; ".join(_unique(brief_hold_words(hold) for hold in decision.holds))
    return f"{head or 'no change'}: {demand_change(decision)}; {latency_of_sla(decision)}; {spend_of_budget(decision)}"


def explain(decision: Decision, key: PipelineKey) -> list[str]:
    """Return the decision about pipeline `key` for a person.

    What, why, why not more, why not now, what would change it: a title each, with indented lines below it.

    Raises:
        KeyError: the decision does not speak of `key`.
    """
    for pipeline in decision.pipelines:
        if pipeline.key == key:
            return explain_pipeline(pipeline, decision.now_s)
    raise KeyError(key)


def explain_pipeline(decision: PipelineDecision, now_s: float) -> list[str]:
    """Return what `explain` says of the pipeline that `decision`, made at `now_s`, is about."""
    return [
        *_section("What", _what(decision)),
        *_section("Why", _why(decision)),
        *_section("Why not more", _why_not_more(decision)),
        *_section("Why not now", _why_not_now(decision, now_s)),
        *_section("What would change it", _what_would_change(decision)),
    ]


def conditions(decision: PipelineDecision) -> tuple[ConditionValue, ...]:
    """Return the pipeline's conditions, always the same types in the same order."""
    return (
        _ready(decision),
        _sla_met(decision),
        _metrics_available(decision),
        _holds_condition(decision, "TargetsFound", HoldReason.TARGET_MISSING, "AllFound"),
        _holds_condition(decision, "ScalesAccepted", HoldReason.SCALE_REFUSED, "Accepted"),
        _pools_available(decision),
        _within_budget(decision),
        _rule_metric_missing(decision),
        _conflict(decision),
    )


def events(
    decision: PipelineDecision, before: Mapping[str, str], reasons: Mapping[str, str] = MappingProxyType({})
) -> tuple[EventValue, ...]:
    """Return the Events of this cycle: its changes, every condition that flipped, and every change of the source of
    the metrics.

    `before` and `reasons` map the types of the last cycle's conditions to their status and reason. What is bad from
    the start, or bad again after it could not be known, is told; what is well from the start is not.
    """
    found: list[EventValue] = []
    if decision.changes:
        found.append(EventValue(warning=False, reason="Scaled", message=reason_sentence(decision)))
    for condition in conditions(decision):
        bad = "True" if condition.type in _BAD_WHEN_TRUE else "False"
        was_bad = before.get(condition.type) == bad
        if condition.type == _METRICS and condition.status == before.get(_METRICS):
            found.extend(_metrics_event(condition, reasons.get(_METRICS, condition.reason)))
            continue
        if (condition.status == bad) == was_bad or (was_bad and condition.status == "Unknown"):
            continue
        reason = condition.type if condition.status == "True" else f"Not{condition.type}"
        found.append(EventValue(warning=condition.status == bad, reason=reason, message=condition.message))
    return tuple(found)


def _metrics_event(condition: ConditionValue, reason_before: str) -> Iterator[EventValue]:
    """Tell another source of metrics, and a loss that has become long."""
    if condition.reason == reason_before:
        return
    if condition.status == "True":
        fallen = condition.reason != MetricsTier.PROMETHEUS.value
        message = condition.message or f"metrics come from {condition.reason} again"
        yield EventValue(warning=fallen, reason=f"MetricsFrom{condition.reason}", message=message)
    elif condition.reason == _LOST:
        yield EventValue(warning=True, reason=_LOST, message=condition.message)


def _what(decision: PipelineDecision) -> Iterator[str]:
    yield from change_words(decision)
    if not decision.changes:
        yield f"no change: {replicas_words(decision)}"
    for (stage, pool), wanted in decision.unconstrained.items():
        desired = decision.desired[(stage, pool)]
        if wanted != desired:
            yield f"{stage} on {pool} would go {desired}→{wanted}"


def _why(decision: PipelineDecision) -> Iterator[str]:
    observed = reading_words(decision.observed)
    forecast = "-" if decision.forecast is None else number(decision.forecast)
    yield f"{demand_change(decision)} (observed {observed}, forecast {forecast})"
    if words := metrics_words(decision):
        yield words
    yield latency_of_sla(decision)
    yield spend_of_budget(decision)
    if decision.profile.bottleneck is not None:
        pressure = next(
            stage.pressure for stage in decision.profile.stages if stage.name == decision.profile.bottleneck
        )
        yield f"under most pressure now: {decision.profile.bottleneck} ({reading_words(pressure)})"
    for rule in decision.rules:
        if rule.floor is not None:
            reads = reading_words(rule.reading)
            yield f"rule {rule.name} keeps {rule.stage} at {rule.floor} or more (it reads {reads})"
    yield from _corrections(decision)
    if decision.plan is not None:
        yield planned_words(decision.plan)
        yield from (step_words(step) for step in decision.plan.steps)


def _corrections(decision: PipelineDecision) -> Iterator[str]:
    """What was measured against what the model says, where that makes a difference to the plan."""
    for stage in decision.profile.stages:
        if abs(stage.latency_factor - 1) >= _NOTABLE:
            modelled = f" (now {duration(stage.modelled_p95_s)} modelled)" if stage.modelled_p95_s is not None else ""
            yield f"{stage.name} measured {number(stage.latency_factor)} × as late as modelled: planned so{modelled}"
        for placement in stage.placements:
            if placement.saturation_rps is not None:
                most = f"{number(placement.saturation_rps)} items/s"
                yield f"{stage.name} on {placement.pool} carried {most} per replica at most: planned so"


def _why_not_more(decision: PipelineDecision) -> Iterator[str]:
    plan = decision.plan
    if decision.admissible is not None and decision.admissible == decision.admitted_meanwhile:
        admitted = demand_words(decision.spec, decision.admissible)
        yield f"the ingress admits {admitted} until the replicas that are to come serve"
    if plan is None:
        yield "there is no plan"
        return
    if plan.feasible:
        yield "the plan meets the SLA: more would only cost"
    else:
        served = f"{plan.served_fraction:.0%} of the demand"
        yield f"limited by {plan.limited_by}: {served} can be served within the SLA"
        if decision.admissible is not None and decision.admissible != decision.admitted_meanwhile:
            yield f"the ingress admits {demand_words(decision.spec, decision.admissible)}"
        if plan.required_budget_per_hour is not None:
            yield f"the whole demand within the SLA takes {money_needed(plan.required_budget_per_hour)}"
        if plan.best_latency_s is not None:
            within = money(decision.spec.budget_per_hour)
            yield f"the best latency for the whole demand within {within}: {duration(plan.best_latency_s)}"
    if plan.next_step is not None:
        yield f"the next dollar would go to {plan.next_step.stage}: {step_words(plan.next_step)}"


def _why_not_now(decision: PipelineDecision, now_s: float) -> Iterator[str]:
    for hold in decision.holds:
        left = "" if hold.until_s is None else f", for {max(0.0, hold.until_s - now_s):.0f} s more"
        yield f"{hold_words(hold)}{left}"
        if hold.reason is HoldReason.WITHIN_TOLERANCE:
            yield from _what_moving_would_save(decision)
    for rule in decision.rules:
        if isinstance(rule.reading, Absence):
            yield f"rule {rule.name} of {rule.stage} has no data ({reading_words(rule.reading)}): it does not fire"


def _what_moving_would_save(decision: PipelineDecision) -> Iterator[str]:
    moved = sum(abs(wanted - decision.desired[key]) for key, wanted in decision.unconstrained.items())
    saved = 0.0 if decision.plan is None else decision.spend_per_hour - decision.plan.cost_per_hour
    if moved and saved > 0:
        yield f"a plan {money(saved)} cheaper would move {moved} replica{'s' if moved > 1 else ''}"


def _what_would_change(decision: PipelineDecision) -> Iterator[str]:
    reasons = {hold.reason for hold in decision.holds}
    if decision.spec.mode is not Mode.AUTO:
        yield "mode: Auto"
    if HoldReason.POOL_NOT_FOUND in reasons:
        yield "a ComputePool of that name"
    if HoldReason.TARGET_MISSING in reasons:
        yield "a workload that can be read and scaled"
    if HoldReason.CONFLICT in reasons:
        yield "nobody else who sets the replicas"
    if HoldReason.METRICS_MISSING in reasons:
        yield "the missing metrics"
    if decision.plan is not None:
        yield _relief(decision, decision.plan)


def _relief(decision: PipelineDecision, plan: PipelinePlan) -> str:
    limit = plan.limited_by
    if plan.feasible or limit is None:
        saving = f"a saving of {decision.spec.scaling.tolerance:.0%} of the cost"
        return f"a demand at which what runs misses {duration(decision.spec.sla.latency_s)}, or {saving}"
    match limit.kind:
        case LimitKind.BUDGET:
            if plan.required_budget_per_hour is not None:
                return f"a budget of {money_needed(plan.required_budget_per_hour)}"
            return f"a budget above {money(decision.spec.budget_per_hour)}"
        case LimitKind.POOL:
            return f"more instances of pool {limit.name}, or another placement beside it"
        case LimitKind.BOUNDS:
            return f"a higher replicas.max of stage {limit.name}"
        case LimitKind.SLA:
            return f"an SLA above {duration(decision.spec.sla.latency_s)}, or faster placements"


def _ready(decision: PipelineDecision) -> ConditionValue:
    verdict = health(decision)
    ready = verdict in {Health.OK, Health.SCALING, Health.SLA_MISSED, Health.PAUSED}
    return ConditionValue(type="Ready", status=str(ready), reason=verdict.value, message=reason_sentence(decision))


def _sla_met(decision: PipelineDecision) -> ConditionValue:
    measured_s = decision.profile.latency_s
    words = latency_of_sla(decision)
    if isinstance(measured_s, Absence):
        absent = reading_words(measured_s)
        return ConditionValue(
            type="SLAMet",
            status="Unknown",
            reason=measured_s.reason.value,
            message=f"{words}: {absent}",
        )
    met = measured_s <= decision.spec.sla.latency_s
    return ConditionValue(type="SLAMet", status=str(met), reason=decision.profile.latency_source.value, message=words)


def _holds_condition(decision: PipelineDecision, name: str, reason: HoldReason, good: str) -> ConditionValue:
    details = [hold_words(hold) for hold in decision.holds if hold.reason is reason]
    if details:
        return ConditionValue(type=name, status="False", reason=reason.value, message="; ".join(details))
    return ConditionValue(type=name, status="True", reason=good, message="")


def _metrics_available(decision: PipelineDecision) -> ConditionValue:
    """Whether there is what decisions are made from; the reason names the source, or what is lost."""
    words = metrics_words(decision)
    details = [hold_words(hold) for hold in decision.holds if hold.reason is HoldReason.METRICS_MISSING]
    if not details:
        return ConditionValue(type=_METRICS, status="True", reason=decision.metrics.tier.value, message=words)
    lost_for_s = decision.metrics.lost_for_s
    reason = _LOST if lost_for_s is not None and lost_for_s >= _LONG_S else HoldReason.METRICS_MISSING.value
    message = "; ".join([*([words] if words else []), *details])
    return ConditionValue(type=_METRICS, status="False", reason=reason, message=message)


def _pools_available(decision: PipelineDecision) -> ConditionValue:
    found = [hold for reason in OUTAGES for hold in decision.holds if hold.reason is reason]
    if found:
        message = "; ".join(map(hold_words, found))
        return ConditionValue(type="PoolsAvailable", status="False", reason=found[0].reason.value, message=message)
    return ConditionValue(type="PoolsAvailable", status="True", reason="AllDeliver", message="")


def _within_budget(decision: PipelineDecision) -> ConditionValue:
    within = decision.spend_per_hour <= decision.spec.budget_per_hour + 1e-9
    excused = decision.memory.excess_excused_until_s is not None
    reason = "WithinBudget" if within else "Draining" if excused else "AboveBudget"
    return ConditionValue(type="WithinBudget", status=str(within), reason=reason, message=spend_of_budget(decision))


def _rule_metric_missing(decision: PipelineDecision) -> ConditionValue:
    missing = [
        f"{rule.stage}/{rule.name}: {reading_words(rule.reading)}"
        for rule in decision.rules
        if isinstance(rule.reading, Absence)
    ]
    return ConditionValue(
        type="RuleMetricMissing",
        status=str(bool(missing)),
        reason="MetricsMissing" if missing else "Complete",
        message="; ".join(missing),
    )


def _conflict(decision: PipelineDecision) -> ConditionValue:
    details = [hold_words(hold) for hold in decision.holds if hold.reason is HoldReason.CONFLICT]
    return ConditionValue(
        type="Conflict",
        status=str(bool(details)),
        reason="OthersScale" if details else "OnlyOurs",
        message="; ".join(details),
    )


def _section(title: str, lines: Iterator[str]) -> list[str]:
    return [title, *(f"  {line}" for line in _unique(lines) or ["-"])]


def _unique(lines: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(lines))
