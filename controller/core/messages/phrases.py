"""Phrases about the parts of a decision, which `controller.core.messages.explain` puts together."""

import math
from collections.abc import Iterator, Mapping

from controller.core.state.decision import ChangeReason, Hold, HoldReason, PipelineDecision, ReplicaChange
from controller.core.state.spec import DemandUnit, PipelineSpec
from optimizer.plan import PipelinePlan, PlacementStep, Step
from profiler.samples import Absence, MetricsTier, Reading
from profiler.stages import LatencySource

_HOLDS: Mapping[HoldReason, str] = {
    HoldReason.PAUSED: "the pipeline is paused",
    HoldReason.RECOMMEND_ONLY: "mode Recommend: decided, not applied",
    HoldReason.METRICS_MISSING: "metrics are missing: nothing scales down",
    HoldReason.TARGET_MISSING: "a workload cannot be read: its stage stays, nothing scales down",
    HoldReason.STABILIZING: "the scale-down window still holds a higher demand",
    HoldReason.WITHIN_TOLERANCE: "what runs serves as much within the SLA, and the saving is below the tolerance",
    HoldReason.STEP_LIMITED: "the step of one cycle is used up",
    HoldReason.AWAITING_TURN: "waiting for its turn to be planned: the fleet is too large for one cycle",
    HoldReason.AWAITING_CAPACITY: "waiting",
    HoldReason.CONFLICT: "somebody else scales it: the pipeline is left to them",
    HoldReason.SCALE_REFUSED: "the last change was not taken: it is tried again",
    HoldReason.POOL_NOT_FOUND: "the pool does not exist: what runs there stays, and nobody knows what it costs",
    HoldReason.POOL_UNAVAILABLE: "the pool cannot deliver: planned without it",
    HoldReason.FRAGMENTED: "the pool has room, but none that takes this replica: planned without it",
    HoldReason.CANNOT_START: "replicas have nodes and do not become ready: planned without them if that can be",
    HoldReason.ON_TRIAL: "one replica is tried there before others",
    HoldReason.SLA_UNREACHABLE: "no allocation reaches the SLA: what runs stays",
    HoldReason.SLA_MISSED: "items are late now: nothing is taken away until the measured latency is within the SLA",
}
OUTAGES = (HoldReason.POOL_UNAVAILABLE, HoldReason.FRAGMENTED, HoldReason.CANNOT_START)
"""Why a placement is planned without, the most severe first."""
CHANGES: Mapping[ChangeReason, str] = {
    ChangeReason.DEMAND: "demand",
    ChangeReason.SLA: "SLA at risk",
    ChangeReason.COST: "cheaper",
    ChangeReason.RULE: "threshold rule",
    ChangeReason.BUDGET: "above the budget",
    ChangeReason.POOL: "a pool cannot deliver",
    ChangeReason.PLACEMENT: "replicas cannot be had there",
    ChangeReason.TRIAL: "tried again after a failure",
    ChangeReason.NODES_LEAVING: "nodes are to go",
    ChangeReason.BOUNDS: "outside the declared bounds",
    ChangeReason.METRICS_LOST: "metrics are lost: room for what may have grown unseen",
}


def demand_words(spec: PipelineSpec, demand: float) -> str:
    """Return `demand` with its unit."""
    return f"{number(demand)} {'streams' if spec.unit is DemandUnit.STREAMS else 'requests/s'}"


def duration(seconds: float | None) -> str:
    """Return a time for people, - where there is none."""
    if seconds is None:
        return "-"
    return f"{number(seconds * 1000)} ms" if seconds < 1 else f"{number(seconds)} s"


def money(per_hour: float) -> str:
    """Return USD per hour."""
    return f"${per_hour:.2f}/h"


def money_needed(per_hour: float) -> str:
    """Return USD per hour that must be there: rounded up to the cent."""
    return money(math.ceil(per_hour * 100 - 1e-6) / 100)


def planned_words(plan: PipelinePlan) -> str:
    """Return what a plan promises, how sure that is, and what it moves."""
    error = "" if plan.latency_error is None else f" ± {plan.latency_error:.0%}"
    replayed = "" if plan.replayed_latency_s is None else f", {duration(plan.replayed_latency_s)} in a replay"
    words = f"planned: {duration(plan.latency_s)}{error}{replayed} at {money(plan.cost_per_hour)}"
    if plan.moved_replicas:
        moved = f"{plan.moved_replicas} replica{'s' if plan.moved_replicas > 1 else ''}"
        words += f", moving {moved} (counted as {money(plan.switching_cost_per_hour)})"
    return words


def change_words(decision: PipelineDecision) -> Iterator[str]:
    """Return the changes, those of one reason together."""
    by_reason: dict[ChangeReason, list[ReplicaChange]] = {}
    for change in decision.changes:
        by_reason.setdefault(change.reason, []).append(change)
    for reason, changes in by_reason.items():
        moves = ", ".join(f"{change.stage} {change.before}→{change.after} on {change.pool}" for change in changes)
        yield f"{moves} ({CHANGES[reason]})"


def hold_words(hold: Hold) -> str:
    """Return why not now."""
    return _placed(hold) + (f" ({hold.detail})" if hold.detail else "")


def brief_hold_words(hold: Hold) -> str:
    """Return why not now, without which samples or pods are to blame: for a line among others."""
    if hold.reason is HoldReason.METRICS_MISSING:
        return _HOLDS[hold.reason]
    return _placed(hold) if hold.reason in OUTAGES else hold_words(hold)


def _placed(hold: Hold) -> str:
    where = "" if hold.stage is None else hold.stage if hold.pool is None else f"{hold.stage} on {hold.pool}"
    return f"{where}: {_HOLDS[hold.reason]}" if where else _HOLDS[hold.reason]


def metrics_words(decision: PipelineDecision) -> str:
    """Return where the numbers come from, and what is made of it; nothing where all is as it should be."""
    use = decision.metrics
    why = f" ({use.because})" if use.because else ""
    match use.tier:
        case MetricsTier.PROMETHEUS:
            return ""
        case MetricsTier.DIRECT_SCRAPE:
            return f"metrics are read off the pods themselves{why}"
        case MetricsTier.HOLDING:
            missing = "; ".join(filter(None, [reading_words(decision.observed), use.because]))
            since = f"the demand has not been seen for {duration(use.lost_for_s)} ({missing})"
            if decision.demand is None:
                return f"{since}: what runs stays"
            more = f" and {use.margin - 1:.0%} more" if use.margin >= 1.005 else ""
            last = demand_words(decision.spec, decision.demand / use.margin)
            return f"{since}: planned for the last {last}{more}, nothing scales down"


def demand_change(decision: PipelineDecision) -> str:
    """Return the demand planned for, and the one before where it differs."""
    if decision.demand is None:
        return "demand not seen yet"
    now = demand_words(decision.spec, decision.demand)
    before = decision.demand_before
    if before is None or number(before) == number(decision.demand):
        return f"demand {now}"
    return f"demand {number(before)} → {now}"


def observed_latency(decision: PipelineDecision) -> str:
    """Return the end-to-end latency, labelled where it is composed from the stages."""
    latency_s = decision.profile.latency_s
    if isinstance(latency_s, Absence):
        return "-"
    label = " (composed)" if decision.profile.latency_source is LatencySource.COMPOSED else ""
    return f"{duration(latency_s)}{label}"


def latency_of_sla(decision: PipelineDecision) -> str:
    """Return the latency at the SLA's percentile, and the SLA."""
    sla = decision.spec.sla
    return f"p{sla.percentile:g} {observed_latency(decision)} of {duration(sla.latency_s)}"


def spend_of_budget(decision: PipelineDecision) -> str:
    """Return what is spent of what may be."""
    return f"{money(decision.spend_per_hour)} of {money(decision.spec.budget_per_hour)}"


def replicas_words(decision: PipelineDecision) -> str:
    """Return the replicas of every stage, and what they go to."""
    totals: dict[str, tuple[int, int]] = {}
    for (stage, pool), after in decision.desired.items():
        before = next(
            (change.before for change in decision.changes if (change.stage, change.pool) == (stage, pool)), after
        )
        total = totals.get(stage, (0, 0))
        totals[stage] = (total[0] + before, total[1] + after)
    return " ".join(
        f"{stage}:{before}" if before == after else f"{stage}:{before}→{after}"
        for stage, (before, after) in totals.items()
    )


def step_words(step: Step) -> str:
    """Return a step of the plan: what it changes, what that buys and costs."""
    moves = ", ".join(_placement_step_words(change) for change in step.changes)
    latency = f"{'−' if step.latency_saved_s > 0 else '+'}{duration(abs(step.latency_saved_s))}"
    cost = step.cost_added_per_hour
    if abs(cost) < 0.005:
        price = "at the same cost"
    elif cost < 0:
        price = f"saving {money(-cost)}"
    elif step.latency_saved_s > 0:
        price = f"for {money(cost)}"
    else:  # dearer and slower: it can only be for what others need of a pool
        freed = sorted(change.pool for change in step.changes if change.after < change.before)
        price = f"and {money(cost)} more" + (f", which frees {', '.join(freed)}" if freed else "")
    return f"{step.stage} {moves}: {latency} {price}"


def reading_words(reading: Reading) -> str:
    """Return a reading, or why there is none."""
    if isinstance(reading, Absence):
        return f"{reading.reason.value}: {reading.detail}" if reading.detail else reading.reason.value
    return number(reading)


def number(value: float) -> str:
    """Return three significant digits, never in exponents."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{float(f'{value:.3g}'):g}"


def _placement_step_words(change: PlacementStep) -> str:
    more = change.after - change.before
    if more == 0:
        return f"batches of {change.batch} on {change.pool}"
    batches = f" in batches of {change.batch}" if change.before == 0 and change.batch > 1 else ""
    return f"{'+' if more > 0 else '−'}{abs(more)} on {change.pool}{batches}"
