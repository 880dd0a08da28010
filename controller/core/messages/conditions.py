"""The conditions of a SpeechPipeline and of a ComputePool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.core.messages import details
from controller.core.messages.backlog import deadline_words
from controller.core.messages.diagnosis import briefly
from controller.core.messages.explain import reason_sentence
from controller.core.messages.missed import missed_briefly
from controller.core.messages.phrases import brief, count_of, money, number, price, reading_words, timestamp
from controller.core.messages.reasons import ConditionReason, ConditionType
from controller.core.messages.sentences import (
    OUTAGES,
    causes,
    crowded_words,
    device_faults,
    hold_details,
    implausible_corrections,
    latency_of_sla,
    memory_words,
    metrics_words,
    scrape_faults,
    shedding_words,
    short_words,
    silent_rule,
    spend_of_budget,
)
from controller.core.messages.summary import health, ready
from controller.core.state.carry_over import PoolMemory
from controller.core.state.cloud import IMPLAUSIBLE, PriceOrigin, PriceQuote, QuotaSource
from controller.core.state.decision import BacklogOutlook, BudgetDecision, HoldReason, PipelineDecision
from controller.core.state.provider_errors import ERRORS_COUNT_S, ErrorClass, last_of
from controller.core.state.snapshot import NodePoolProblem, NodePoolState, PoolState
from profiler.samples import Absence, DeviceQuantity

_SHOWN = 3  # names in a message
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
        _sla_met(decision) if decision.backlog is None else _deadline_met(decision, decision.backlog),
        _metrics_available(decision),
        _without(decision, ConditionType.TARGETS_FOUND, [HoldReason.TARGET_MISSING], ConditionReason.ALL_FOUND),
        _without(decision, ConditionType.SCALES_ACCEPTED, [HoldReason.SCALE_REFUSED], ConditionReason.ALL_ACCEPTED),
        _without(decision, ConditionType.POOLS_AVAILABLE, OUTAGES, ConditionReason.ALL_AVAILABLE),
        _within_budget(decision),
        _rule_metric_missing(decision),
        _conflict(decision),
        _measurements_plausible(decision),
        _placements_match(decision),
        _scrapes_healthy(decision),
        _devices_healthy(decision),
        _sessions_spread(decision),
        _memory_suffices(decision),
        _shedding(decision),
        _planned_in_full(decision),
        _diagnosis(decision),
    )


def pool_conditions(state: PoolState, memory: PoolMemory, now_s: float, claimed: int = 0) -> tuple[ConditionValue, ...]:
    """Return all conditions of a pool with the failures `memory`.

    `claimed` replicas are desired there that have no node and that Sluice does not scale. The conditions of a NodePool,
    of a look-up of the price and of a quota are left out where the pool has none.
    """
    return (
        _available(memory, state.unread, now_s),
        *(() if state.node_pool is None else (_capacity_known(state, state.node_pool),)),
        _nodes_exclusive(state),
        _replicas_owned(state),
        _growth_open(claimed),
        *(() if state.spec.price is None else (_price_current(state.spec.price),)),
        *(() if state.spec.quota is None else (_quota_suffices(state, state.spec.quota),)),
        *(() if state.node_pool is None else (_provider_permits(state.node_pool, now_s),)),
    )


def _replicas_owned(state: PoolState) -> ConditionValue:
    if not state.orphans:
        return _condition(ConditionType.REPLICAS_OWNED, "True", ConditionReason.ALL_OWNED.value)
    words = [details.orphan(own.namespace, own.target, own.replicas, own.pipeline) for own in state.orphans]
    message = f"{'; '.join(words)}; they count until someone sets their replicas"
    return _condition(ConditionType.REPLICAS_OWNED, "False", ConditionReason.UNOWNED.value, message)


def _growth_open(claimed: int) -> ConditionValue:
    if not claimed:
        return _condition(ConditionType.GROWTH_OPEN, "True", ConditionReason.NOTHING_CLAIMED.value)
    message = (
        f"{count_of(claimed, 'replica')} without a node in workloads that Sluice does not scale; "
        "no replica is added in the room that they need, and none is removed for them"
    )
    return _condition(ConditionType.GROWTH_OPEN, "False", ConditionReason.CLAIMED.value, message)


def _price_current(quote: PriceQuote) -> ConditionValue:
    """Return the condition that the price is the one that AWS has now."""
    date = "" if quote.as_of_s is None else f" as of {timestamp(quote.as_of_s)}"
    said = f"{price(quote.per_hour)}{date} ({_ORIGINS[quote.origin]}{f', {quote.at}' if quote.at else ''})"
    if quote.problem:
        refused = quote.origin in {PriceOrigin.LISTED, PriceOrigin.SPOT} and quote.problem.startswith(IMPLAUSIBLE)
        reason = ConditionReason.PRICE_REFUSED if refused else ConditionReason.PRICE_OUTDATED
        return _condition(ConditionType.PRICE_CURRENT, "False", reason.value, f"{quote.problem}; {said} counts")
    current = quote.origin in {PriceOrigin.LISTED, PriceOrigin.SPOT}
    spread = ""
    if quote.day is not None:
        spread = f"; {price(quote.day.low_per_hour)} to {price(quote.day.high_per_hour)} in the last day"
    reason = ConditionReason.LOOKED_UP if current else ConditionReason.NOT_LOOKED_UP
    status = "True" if current else "Unknown"
    return _condition(ConditionType.PRICE_CURRENT, status, reason.value, said + spread)


_ORIGINS: Mapping[PriceOrigin, str] = {
    PriceOrigin.DECLARED: "price.perHour",
    PriceOrigin.BUNDLED: "bundled table of on-demand prices",
    PriceOrigin.LISTED: "price list of AWS",
    PriceOrigin.SPOT: "spot price of AWS",
}


def _quota_suffices(state: PoolState, source: QuotaSource) -> ConditionValue:
    """Return the condition that the quota of the account allows at least one instance of the pool."""
    reading, allowed = state.quota, state.quota_instances
    name = f"quota {source.code} ({source.name}, {source.region})"
    if reading is None or reading.limit_vcpus is None or allowed is None:
        effect = "the other bounds count alone" if state.spec.instances is not None else "no replica is added"
        problem = "not read yet" if reading is None or not reading.problem else reading.problem
        return _condition(
            ConditionType.QUOTA_SUFFICES, "Unknown", ConditionReason.QUOTA_UNREAD.value, f"{name}: {problem}; {effect}"
        )
    used = "" if reading.others_vcpus is None else f", of which others use {number(reading.others_vcpus)}"
    said = f"{name} is {number(reading.limit_vcpus)} vCPUs{used}: {count_of(allowed, 'instance')} of {source.vcpus}"
    stale = f"; {reading.problem}" if reading.problem else ""
    if allowed == 0:
        need = reading.needed_for(1, source.vcpus)
        reason = ConditionReason.QUOTA_ZERO if reading.limit_vcpus <= 0 else ConditionReason.QUOTA_USED_UP
        return _condition(
            ConditionType.QUOTA_SUFFICES,
            "False",
            reason.value,
            f"{said}; a quota of {need} allows the first: `sluice quotas` prints the request{stale}",
        )
    return _condition(ConditionType.QUOTA_SUFFICES, "True", ConditionReason.QUOTA_ALLOWS.value, said + stale)


def _provider_permits(node_pool: NodePoolState, now_s: float) -> ConditionValue:
    """Return the condition that the provider lets the autoscaler of the pool launch nodes."""
    recent = [error for error in node_pool.errors if now_s - error.at_s <= ERRORS_COUNT_S]
    for kind, effect in _ERROR_EFFECTS:
        error = last_of(recent, kind)
        if error is not None:
            status = "Unknown" if kind is ErrorClass.THROTTLED else "False"
            return _condition(ConditionType.PROVIDER_PERMITS, status, kind.value, f"{effect}: {error.text}")
    return _condition(ConditionType.PROVIDER_PERMITS, "True", ConditionReason.NO_ERROR.value)


_ERROR_EFFECTS = (
    (ErrorClass.PERMISSION, "the autoscaler may not launch nodes until its rights are changed"),
    (ErrorClass.QUOTA, "a quota of the account is used up; planned with other pools"),
    (ErrorClass.THROTTLED, "the provider limits the requests of the autoscaler, which tries again"),
)
"""The errors that the condition is about, the most severe first; missing capacity is in the condition Available."""


def _capacity_known(state: PoolState, node_pool: NodePoolState) -> ConditionValue:
    """Return the condition that the limits of the NodePool are known, or that instances bound the pool without them."""
    name = state.spec.launcher
    if node_pool.problem is not None:
        declared = state.spec.instances
        if node_pool.problem is NodePoolProblem.UNLIMITED and declared is not None:
            message = f"{name} has no limits that convert to instances; capacity.instances is {declared}"
            return _condition(ConditionType.CAPACITY_KNOWN, "True", ConditionReason.STATED.value, message)
        if node_pool.instances is not None:
            effect = "its last known limits count"
        elif declared is not None:
            effect = f"capacity.instances, {declared}, counts alone"
        else:
            effect = "no replica is added to the pool until it has them, or capacity.instances"
        message = f"{node_pool.detail}; {effect}"
        return _condition(ConditionType.CAPACITY_KNOWN, "False", node_pool.problem.value, message)
    if node_pool.unseen:
        until = f"{state.capacity} of its instances until then"
        message = f"no node of {name} was seen yet, so its limits do not convert; {until}"
        return _condition(ConditionType.CAPACITY_KNOWN, "Unknown", ConditionReason.NO_NODE_SEEN.value, message)
    message = f"{name} allows {count_of(node_pool.instances or 0, 'instance')}"
    return _condition(ConditionType.CAPACITY_KNOWN, "True", ConditionReason.STATED.value, message)


def _nodes_exclusive(state: PoolState) -> ConditionValue:
    if not state.shared_nodes:
        return _condition(ConditionType.NODES_EXCLUSIVE, "True", ConditionReason.ALL_OWN.value)
    message = "; ".join(
        f"{count_of(len(nodes), 'node')} of pool {other} too: {_some(nodes)}"
        for other, nodes in sorted(state.shared_nodes.items())
    )
    effect = "their capacity is counted in each pool; make the nodeSelectors disjoint"
    return _condition(
        ConditionType.NODES_EXCLUSIVE, "False", ConditionReason.NODES_SHARED.value, f"{message}; {effect}"
    )


def _some(names: Sequence[str]) -> str:
    """Return the first names as text, with how many others there are."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} others" if len(names) > _SHOWN else "")


def _available(memory: PoolMemory, unread: str, now_s: float) -> ConditionValue:
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


def budget_condition(decision: BudgetDecision, unread: str, problem: str = "") -> ConditionValue:
    """Return the condition of a ComputeBudget.

    `unread` says why its namespaces cannot be listed, `problem` why its spec cannot be used.
    """
    spent = f"{money(decision.spend_per_hour)} of {money(decision.limit_per_hour)} is spent"
    message = "; ".join(filter(None, [spent, short_words(decision)]))
    if problem:
        return _condition(
            ConditionType.WITHIN_BUDGET, "False", ConditionReason.INVALID_SPEC.value, f"{problem}; {message}"
        )
    if unread:
        message = f"cannot list namespaces; using the last known ones: {unread}"
        return _condition(ConditionType.WITHIN_BUDGET, "Unknown", ConditionReason.NAMESPACES_UNREADABLE.value, message)
    if decision.exceeded:
        return _condition(ConditionType.WITHIN_BUDGET, "False", ConditionReason.ABOVE_BUDGET.value, message)
    return _condition(ConditionType.WITHIN_BUDGET, "True", ConditionReason.WITHIN_BUDGET.value, message)


def unusable_condition(kind: ConditionType, reason: ConditionReason, problem: str) -> ConditionValue:
    """Return the condition `kind` of a resource that cannot be used: False, with `problem` as its message."""
    return _condition(kind, "False", reason.value, problem)


def not_assessed() -> ConditionValue:
    """Return the condition of a pipeline that no operator has assessed yet, which the API server gives it."""
    message = "no operator has assessed this pipeline yet"
    return _condition(ConditionType.READY, "Unknown", ConditionReason.NOT_ASSESSED.value, message)


def _condition(kind: ConditionType, status: str, reason: str, message: str = "") -> ConditionValue:
    return ConditionValue(type=kind.value, status=status, reason=reason, message=brief([message]))


def _ready(decision: PipelineDecision) -> ConditionValue:
    # The sentence has no holds beside changes; what a person has set in vain is said in any case.
    ignored = hold_details(decision, [HoldReason.INVALID_ANNOTATION] if decision.changes else [])
    message = "; ".join([*ignored, reason_sentence(decision)])
    return _condition(ConditionType.READY, str(ready(decision)), health(decision).value, message)


def _sla_met(decision: PipelineDecision) -> ConditionValue:
    measured_s, sla = decision.profile.latency_s, decision.spec.sla
    if isinstance(measured_s, Absence):
        message = f"{latency_of_sla(decision)}: {reading_words(measured_s)}"
        return _condition(ConditionType.SLA_MET, "Unknown", measured_s.reason.value, message)
    met, source = measured_s <= sla.latency_s, decision.profile.latency_source.value
    message = latency_of_sla(decision) if met else "; ".join(missed_briefly(decision))
    return _condition(ConditionType.SLA_MET, str(met), source, message)


def _deadline_met(decision: PipelineDecision, own: BacklogOutlook) -> ConditionValue:
    message = deadline_words(decision)
    if own.late is not None:
        return _condition(ConditionType.DEADLINE_MET, "False", own.late.value, message)
    if isinstance(own.left, Absence):
        return _condition(ConditionType.DEADLINE_MET, "Unknown", ConditionReason.ITEMS_UNKNOWN.value, message)
    if own.unmeasured is not None:
        return _condition(ConditionType.DEADLINE_MET, "Unknown", ConditionReason.SERVICE_TIME_UNKNOWN.value, message)
    waits = own.waits_until_s is not None
    good = ConditionReason.EMPTY if own.left == 0 else ConditionReason.WAITING if waits else ConditionReason.IN_TIME
    return _condition(ConditionType.DEADLINE_MET, "True", good.value, message)


def _metrics_available(decision: PipelineDecision) -> ConditionValue:
    """Return the condition that all needed metrics are available; its reason is their source, or what is wrong."""
    words = metrics_words(decision)
    holds = [hold for hold in decision.holds if hold.reason is HoldReason.METRICS_MISSING]
    if not holds:
        return _condition(ConditionType.METRICS_AVAILABLE, "True", decision.metrics.tier.value, words)
    lost_for_s = decision.metrics.lost_for_s
    long = lost_for_s is not None and lost_for_s >= _LONG_S
    reason = ConditionReason.METRICS_LOST if long else HoldReason.METRICS_MISSING
    # That the demand is missing is said with since when, where that is known.
    others = causes(hold for hold in holds if hold.stage is not None or lost_for_s is None or not words)
    effect = "" if words and lost_for_s is not None else "no replica is removed"  # else it is among these words
    message = "; ".join(filter(None, [words, f"missing: {others}" if others else "", effect]))
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


def _diagnosis(decision: PipelineDecision) -> ConditionValue:
    if not decision.diagnosis:
        return _condition(ConditionType.DIAGNOSIS, "False", ConditionReason.NOTHING_FOUND.value)
    first = decision.diagnosis[0].cause.value
    return _condition(ConditionType.DIAGNOSIS, "True", first, briefly(decision))


def _measurements_plausible(decision: PipelineDecision) -> ConditionValue:
    found = list(implausible_corrections(decision))
    reason = ConditionReason.CORRECTION_AT_LIMIT if found else ConditionReason.ALL_PLAUSIBLE
    return _condition(ConditionType.MEASUREMENTS_PLAUSIBLE, str(not found), reason.value, "; ".join(found))


def _placements_match(decision: PipelineDecision) -> ConditionValue:
    """Return the condition that the pods of each placement run on its pool, and fit there as declared."""
    outside = [found for found in decision.mismatches if found.outside]
    words = [f"{found.stage} on {found.placement}: {details.outside(found.outside)}" for found in outside]
    words += [
        f"{found.stage} on {found.placement}: {details.wrong_per_instance(found.per_instance, found.fits)}"
        for found in decision.mismatches
        if found.fits is not None
    ]
    fits = len(words) > len(outside)
    words += [
        f"{found.stage} on {found.placement}: {details.resized(found.resized_by)}"
        for found in decision.mismatches
        if found.resized_by is not None
    ]
    if not words:
        return _condition(ConditionType.PLACEMENTS_MATCH, "True", ConditionReason.ALL_MATCH.value)
    reason = ConditionReason.DOES_NOT_FIT if fits else ConditionReason.RESIZED_BY_ANOTHER
    reason = ConditionReason.OUTSIDE_POOL if outside else reason
    return _condition(ConditionType.PLACEMENTS_MATCH, "False", reason.value, "; ".join(words))


def _scrapes_healthy(decision: PipelineDecision) -> ConditionValue:
    """Return the condition that every pod is scraped, once, with its label; its reason is the most severe fault."""
    found = decision.scrapes.values()
    faults = (
        (ConditionReason.POD_LABELS_MISSING, any(scrapes.unlabelled for scrapes in found)),
        (ConditionReason.PODS_SILENT, any(scrapes.excused for scrapes in found)),
        (ConditionReason.PODS_SCRAPED_TWICE, any(scrapes.duplicated for scrapes in found)),
    )
    reason = next((reason for reason, holds in faults if holds), ConditionReason.SCRAPED_ONCE)
    message = "; ".join(scrape_faults(decision.scrapes))
    return _condition(ConditionType.SCRAPES_HEALTHY, str(reason is ConditionReason.SCRAPED_ONCE), reason.value, message)


def _devices_healthy(decision: PipelineDecision) -> ConditionValue:
    """Return the condition that no device of a replica reports errors or is throttled; errors come first.

    A fault may take its exporter with it, so that without readings of errors the devices are not taken to be healthy.
    """
    if not decision.faulty:
        for stage in decision.profile.stages:
            errors_read = stage.devices.get(DeviceQuantity.ERRORS)
            if isinstance(errors_read, Absence) and stage.name not in decision.spec.borrowed:
                message = f"device errors of {stage.name}: {reading_words(errors_read)}"
                return _condition(
                    ConditionType.DEVICES_HEALTHY, "Unknown", ConditionReason.DEVICES_UNREAD.value, message
                )
    errors = any(replica.fault.errors > 0 for replica in decision.faulty)
    bad = ConditionReason.DEVICE_ERRORS if errors else ConditionReason.DEVICES_THROTTLED
    reason = bad if decision.faulty else ConditionReason.NO_FAULTS
    message = "; ".join(device_faults(decision.faulty))
    return _condition(ConditionType.DEVICES_HEALTHY, str(not decision.faulty), reason.value, message)


def _sessions_spread(decision: PipelineDecision) -> ConditionValue:
    """Return the condition that no stage misses the SLA because its sessions are on too few of its replicas."""
    kind = ConditionType.SESSIONS_SPREAD
    if decision.skews:
        message = "; ".join(crowded_words(decision))
        return _condition(kind, "False", ConditionReason.CROWDED.value, message)
    if decision.sessions_unread:
        message = f"replicas report no sessions: {', '.join(decision.sessions_unread)}"
        return _condition(kind, "Unknown", ConditionReason.SESSIONS_UNREAD.value, message)
    return _condition(kind, "True", ConditionReason.SPREAD.value)


def _memory_suffices(decision: PipelineDecision) -> ConditionValue:
    """Return the condition that no replica with sessions ran out of memory lately."""
    kind = ConditionType.MEMORY_SUFFICES
    if decision.out_of_memory:
        return _condition(kind, "False", ConditionReason.OUT_OF_MEMORY.value, "; ".join(memory_words(decision)))
    return _condition(kind, "True", ConditionReason.NONE_KILLED.value)


def _planned_in_full(decision: PipelineDecision) -> ConditionValue:
    if decision.plan is None or not decision.plan.coarse:
        return _condition(ConditionType.PLANNED_IN_FULL, "True", ConditionReason.WITHIN_EFFORT.value)
    message = (
        "planning took more than the pipeline's share of a decision: the plan is not proven, may cost more than "
        "needed, and has no advice; fewer placements per stage and fewer joins need less"
    )
    return _condition(ConditionType.PLANNED_IN_FULL, "False", ConditionReason.EFFORT_EXHAUSTED.value, message)


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
