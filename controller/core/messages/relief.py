"""Texts for what would serve a pipeline better: a limit to raise, a cause to remove, or a change to wait for."""

from collections.abc import Iterator

from controller.core.messages.phrases import duration, money, money_needed, number
from controller.core.messages.sentences import OUTAGES, missed
from controller.core.state.decision import HoldReason, PipelineDecision
from controller.core.state.spec import Mode
from optimizer.plan import LimitKind, PipelinePlan

_SLOWER = 1.25
"""A stage is slower than declared from this multiple of the declared service time on."""


def relief(decision: PipelineDecision) -> str:
    """Return what would lower a latency that exceeds the SLA; what keeps Sluice from acting is first.

    The text is empty where nothing is known to help but what Sluice does next by itself.
    """
    causes, plan = [*obstacles(decision), *slower_stages(decision)], decision.plan
    if plan is not None and (not plan.feasible or not (causes or next_words(decision))):
        causes.append(relief_of_plan(decision, plan))
    return ", or ".join(filter(None, causes))


def next_words(decision: PipelineDecision) -> str:
    """Return what Sluice does next about a latency that exceeds the SLA although the plan meets it; empty: nothing."""
    plan, step = decision.plan, decision.memory.feedback.step
    if plan is None or not plan.feasible or any(obstacles(decision)) or _nothing_helps(decision):
        return ""
    sla = decision.spec.sla
    if step is not None:
        return f"the effect of the step at stage {step.stage} is observed: it is taken back, or another one follows"
    return f"replicas are added if p{sla.percentile:g} stays above {duration(sla.latency_s)} in the next cycles"


def slower_stages(decision: PipelineDecision) -> Iterator[str]:
    """Yield the stages in use that are slower than declared, by the measured service time."""
    placements = decision.spec.placements()
    for stage in decision.profile.stages:
        for own in stage.placements:
            key = (stage.name, own.name)
            used = decision.desired.get(key, 0) > 0 and placements[key].declared.service
            if used and own.measured and own.service_factor >= _SLOWER:
                factor = number(own.service_factor)
                yield f"a faster {stage.name} on {own.name}, whose service time is {factor} × the declared one"


def obstacles(decision: PipelineDecision) -> Iterator[str]:
    """Yield what keeps Sluice from adding replicas, as what would remove it."""
    reasons = {hold.reason for hold in decision.holds}
    overrides = decision.spec.overrides
    if overrides.pins:
        yield f"the end of the pins: sluice resume {decision.key}"
    if overrides.pause is not None:
        yield f"the end of the pause: sluice resume {decision.key}"
    elif decision.spec.mode is not Mode.AUTO and HoldReason.FOLLOWED not in reasons:
        yield f"mode: Auto (it is {decision.spec.mode.value})"
    if HoldReason.CONFLICT in reasons:
        yield "no other controller that scales the workload"
    if HoldReason.TARGET_MISSING in reasons:
        yield "a workload that Sluice can read and scale"
    if HoldReason.SCALE_REFUSED in reasons:
        yield "an API server that accepts the change of replicas"
    for hold in decision.holds:
        if hold.reason is HoldReason.POOL_NOT_FOUND:
            yield f"a ComputePool named {hold.placement}"
    pools = dict.fromkeys(
        hold.placement for hold in decision.holds if hold.reason in OUTAGES and hold.placement is not None
    )
    if pools and (decision.plan is None or not decision.plan.feasible or not decision.changes):
        yield f"replicas that start on {', '.join(pools)}"


def _nothing_helps(decision: PipelineDecision) -> str:
    """Return what would lower a measured latency that no further replica lowers; empty where one may."""
    for hold in decision.holds:
        if hold.reason is HoldReason.CROWDED:
            return f"sessions that leave the crowded replicas of {hold.detail} (condition SessionsSpread)"
        if hold.reason in {HoldReason.OVERHEAD, HoldReason.UNEXPLAINED}:
            return "less time outside the stages, or a stage where more replicas lower the latency"
        if hold.reason is HoldReason.SLA_MISSED and hold.detail:
            return f"a larger budget, more capacity of the pools, or a higher replicas.max of stage {hold.stage}"
    return ""


def relief_of_plan(decision: PipelineDecision, plan: PipelinePlan) -> str:
    """Return what would change the plan: a higher limit, or where none binds, another demand or latency.

    The text is empty where the SLA is missed only because Sluice cannot act.
    """
    limit, spec = plan.limited_by, decision.spec
    sla = duration(spec.sla.latency_s)
    if plan.feasible and missed(decision):
        return _nothing_helps(decision) or next_words(decision)
    if plan.feasible or limit is None:
        saving = f"a saving of at least {spec.scaling.tolerance:.0%} of the cost (scaling.tolerance)"
        return f"a demand at which current replicas miss the SLA of {sla}, or {saving}"
    match limit.kind:
        case LimitKind.BUDGET:
            if plan.advice.required_budget_per_hour is not None:
                return f"a budget of {money_needed(plan.advice.required_budget_per_hour)}"
            return f"a budget above {money(spec.budget_per_hour)}"
        case LimitKind.POOL:
            return f"more instances of pool {limit.name}, or a placement on another pool"
        case LimitKind.ALLOWANCE:
            shards = "status.shards of the pool says how its shards divide it"
            return f"more instances of pool {limit.name} ({shards}), or a placement on another pool"
        case LimitKind.QUOTA:
            return f"a higher quota {limit.name} (the status of the pool says how high), or a placement on another pool"
        case LimitKind.BOUNDS:
            return f"a higher replicas.max of stage {limit.name}"
        case LimitKind.SLA:
            return f"an SLA above {sla}, or faster placements"
