"""Texts for the parts of a pipeline's decision: changes, holds, demand, latency, spend and replicas."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from controller.core.messages.details import batch_settings
from controller.core.messages.phrases import (
    count_of,
    demand_words,
    duration,
    first_names,
    latency_words,
    limit_words,
    money,
    number,
    reading_words,
    share_words,
    timestamp,
)
from controller.core.state.decision import (
    BudgetDecision,
    ChangeReason,
    DrainStep,
    FaultyReplica,
    Hold,
    HoldReason,
    OutOfMemory,
    PipelineDecision,
    ReplicaChange,
    RuleState,
    SeasonUse,
    VariantSwitch,
)
from controller.core.state.schedule import declared_as
from optimizer.model import LATENCY_FACTORS, Basis, PlacementKey, StageName
from optimizer.plan import PipelinePlan
from profiler.correction import THROUGHPUT_FACTORS
from profiler.estimate import FACTOR_BOUNDS
from profiler.samples import SILENT_S, Absence, AtLeast, MetricsTier, Scrapes
from profiler.stages import LatencySource

_NAMED = 5
"""The most pipelines that are named in one text."""
DAY_S = 86_400.0
_AT_LIMIT = 0.01
"""A correction this share from a bound, or nearer, counts as at the bound: smoothing reaches it only in the limit."""
HOLDS: Mapping[HoldReason, str] = {
    HoldReason.PAUSED: "paused; replicas left unchanged",
    HoldReason.PINNED: "pinned; the plan does not change these replicas",
    HoldReason.INVALID_ANNOTATION: "part of an annotation is ignored, because it is not valid",
    HoldReason.RECOMMEND_ONLY: "mode is Recommend; the plan is reported but not applied",
    HoldReason.FOLLOWED: "mode is Recommend; another autoscaler applies the decision",
    HoldReason.METRICS_MISSING: "metrics are missing; no replica is removed",
    HoldReason.TOO_NEW: "ready replicas are too new to have samples; no replica is removed until they have",
    HoldReason.TARGET_MISSING: "cannot read or scale a workload; its stage is left unchanged and no replica is removed",
    HoldReason.STABILIZING: "scale-down waits: demand was higher within scaling.scaleDown.stabilization",
    HoldReason.RISE_EXPECTED: "scale-down waits: by demand.history the demand is back within the scale-down window",
    HoldReason.ALTERNATING: "scale-down waits: what it would remove was removed and added again at the same load",
    HoldReason.WITHIN_TOLERANCE: "current replicas meet the SLA and the saving is below scaling.tolerance",
    HoldReason.STEP_LIMITED: "limited by maxStep",
    HoldReason.AWAITING_TURN: "not planned yet: a large fleet is planned over several cycles",
    HoldReason.AWAITING_CAPACITY: "change postponed",
    HoldReason.CONFLICT: "another controller scales this workload; Sluice will not change this pipeline",
    HoldReason.SCALE_REFUSED: "the API server refused the last change; it is retried in every cycle",
    HoldReason.POOL_NOT_FOUND: "the ComputePool does not exist; replicas on it stay, and their cost is unknown",
    HoldReason.POOL_UNAVAILABLE: "the pool cannot deliver nodes; planned without it",
    HoldReason.FRAGMENTED: "no node can schedule this pod; planned without it",
    HoldReason.CANNOT_START: "replicas have nodes but do not become ready; planned without them where possible",
    HoldReason.NOT_CREATED: "replicas are not created; planned without them",
    HoldReason.NODES_LEAVING: "nodes are being removed; the workload's controller replaces the replicas when they end",
    HoldReason.ROLLING_OUT: "a roll-out is in progress; its surge does not count against the pool",
    HoldReason.ON_TRIAL: "one replica is tried first after a failure; others wait for it",
    HoldReason.SLA_UNREACHABLE: "no allocation meets the SLA; planned for the lowest latency that can be met",
    HoldReason.IDLE: "idle; scaled to zero until there is demand",
    HoldReason.WAITING: "waits for cheaper capacity; the deadline is met without starting now",
    HoldReason.SLA_MISSED: "measured latency exceeds the SLA; no replica is removed until it is within the SLA",
    HoldReason.LEARNING: "learning: service times or slots are measured; no replica is removed until they are known",
    HoldReason.OVERHEAD: "the SLA is missed by time outside the stages, which replicas cannot lower",
    HoldReason.OWNER_NOT_ACTING: "the owner of this shared stage does not act; planned with its current replicas",
    HoldReason.UNEXPLAINED: "the SLA is missed, and no stage is known where more replicas would help",
    HoldReason.BATCHING_NOT_WRITTEN: "batch settings are not written; planned with those that the servers have",
    HoldReason.CROWDED: "sessions stay on crowded replicas, so that more replicas do not help",
    HoldReason.CLOSING: "scale-down waits for sessions to end, as long as that costs less than their cuts",
}
OUTAGES = (
    HoldReason.POOL_UNAVAILABLE,
    HoldReason.NOT_CREATED,
    HoldReason.FRAGMENTED,
    HoldReason.CANNOT_START,
)
"""The reasons for which plans leave out a placement, the most severe first."""
CHANGES: Mapping[ChangeReason, str] = {
    ChangeReason.DEMAND: "demand",
    ChangeReason.SLA: "SLA at risk",
    ChangeReason.MEASURED_MISS: "the measured latency has exceeded the SLA",
    ChangeReason.PROBE: "first replica there, to measure it",
    ChangeReason.COST: "lower cost",
    ChangeReason.PRICE: "the price of a pool has changed",
    ChangeReason.RULE: "threshold rule",
    ChangeReason.BUDGET: "above the budget",
    ChangeReason.POOL: "a pool cannot deliver nodes",
    ChangeReason.PLACEMENT: "replicas cannot be placed, or do not start, on a pool",
    ChangeReason.TRIAL: "retry after a failure",
    ChangeReason.NODES_LEAVING: "nodes are being removed",
    ChangeReason.BOUNDS: "outside replicas.min and replicas.max",
    ChangeReason.QUALITY: "the word error rate there is above maxWer",
    ChangeReason.LEARNING: "the stage queues, and its service times or slots are not known yet",
    ChangeReason.PINNED: "pinned by annotation",
    ChangeReason.IDLE: "no demand for scaling.idleAfter",
    ChangeReason.WAITING: "cheaper capacity is expected before the deadline",
    ChangeReason.METRICS_LOST: "safety margin while metrics are missing",
    ChangeReason.REBALANCE: "sessions leave a crowded replica (scaling.rebalance)",
}

_CENT = 0.01


def change_words(decision: PipelineDecision) -> Iterator[str]:
    """Yield the replica changes as texts, one for all changes with the same reason."""
    by_reason: dict[ChangeReason, list[ReplicaChange]] = {}
    for change in decision.changes:
        by_reason.setdefault(change.reason, []).append(change)
    for reason, changes in by_reason.items():
        moves = ", ".join(f"{change.stage} {change.before}→{change.after} on {change.placement}" for change in changes)
        yield f"{moves} ({CHANGES[reason]})"


def switch_words(decision: PipelineDecision) -> Iterator[str]:
    """Yield the switches between variants as texts: from and to which, what it saves, and what quality it costs."""
    for switch in decision.switches:
        before, after = (" and ".join(names) for names in (switch.before, switch.after))
        quality = _quality(switch)
        if switch.saving_per_hour is not None and abs(switch.saving_per_hour) < _CENT / 2:
            saves = "saves nothing at this load"
        elif switch.saving_per_hour is not None:
            words = "saves {}" if switch.saving_per_hour > 0 else "costs {} more"
            saves = f"{words.format(money(abs(switch.saving_per_hour)))} at this load"
        elif switch.known:
            saves = f"this load cannot be served on {before} within the limits"
        else:
            saves = "what it saves is not known"
        yield f"{switch.stage} goes from {before} to {after} ({saves}, {quality})"


def batching_words(decision: PipelineDecision) -> Iterator[str]:
    """Yield the batch settings of placements for which they are written, as texts: which, and what servers may have."""
    placements = decision.spec.placements()
    for (stage, name), memory in decision.memory.batching.items():
        applied = placements[stage, name].applied
        if applied is None or memory.decided is None:
            continue
        others = [batch_settings(own) for own, _ in memory.seen if own != memory.decided]
        words = f"{stage} on {name}: {batch_settings(memory.decided)}, in {applied.at}"
        if others:
            words += f"; servers may still have {' or '.join(others)}, so the plan meets the SLA with these too"
        yield words


def _quality(switch: VariantSwitch) -> str:
    """Return the word error rates before and after a switch, as text."""
    before, after = ("not stated" if wer is None else share_words(wer) for wer in (switch.wer_before, switch.wer_after))
    limit = "no maxWer" if switch.limit is None else f"maxWer {share_words(switch.limit)}"
    return f"word error rate {before}→{after}, {limit}"


def missed(decision: PipelineDecision) -> bool:
    """Return whether the latency at the SLA's percentile exceeds the SLA."""
    latency_s = decision.profile.latency_s
    if isinstance(latency_s, Absence) or decision.spec.backlog is not None:
        return False  # a backlog has no SLA
    return latency_s > decision.spec.sla.latency_s


def hold_words(hold: Hold) -> str:
    """Return a hold as text: its reason, and its stage, pool and detail where it has them."""
    return _located(hold) + (f" ({hold.detail})" if hold.detail else "")


def brief_holds(decision: PipelineDecision) -> list[str]:
    """Return the holds as short texts, one for each reason, without names of missing metrics and failed pods."""
    return [
        HOLDS[reason]
        if reason is HoldReason.METRICS_MISSING
        else together([replace(hold, detail="") for hold in holds] if reason in OUTAGES else holds)
        for reason, holds in _by_reason(held(decision)).items()
    ]


def hold_details(decision: PipelineDecision, reasons: Iterable[HoldReason]) -> list[str]:
    """Return the texts of the holds with one of `reasons`, one for each reason, in the order of `reasons`."""
    by_reason = _by_reason(decision.holds)
    return [together(by_reason[reason]) for reason in reasons if reason in by_reason]


def held(decision: PipelineDecision) -> tuple[Hold, ...]:
    """Return the holds that are true as they are worded.

    While the latency exceeds the SLA, that replicas meet it is what the model says, and no reason.
    """
    holds = decision.holds
    return tuple(hold for hold in holds if not missed(decision) or hold.reason is not HoldReason.WITHIN_TOLERANCE)


def _by_reason(holds: Iterable[Hold]) -> Mapping[HoldReason, list[Hold]]:
    found: dict[HoldReason, list[Hold]] = {}
    for hold in holds:
        found.setdefault(hold.reason, []).append(hold)
    return found


def together(holds: Sequence[Hold]) -> str:
    """Return holds with the same reason as one text, which has each cause once, with the names of all that have it."""
    if len(holds) == 1:
        return hold_words(holds[0])
    return f"{HOLDS[holds[0].reason]}: {causes(holds)}"


def causes(holds: Iterable[Hold]) -> str:
    """Return the causes of holds with the same reason, each once, with the names of all that have it."""
    names: dict[str, list[str]] = {}
    for hold in holds:
        name, cause = _subject(hold)
        names.setdefault(cause, []).append(name)
    located = ((cause, ", ".join(filter(None, own))) for cause, own in names.items())
    return "; ".join(f"{where} ({cause})" if where and cause else where or cause for cause, where in located)


def _subject(hold: Hold) -> tuple[str, str]:
    """Return what a hold is about, and the cause: a workload by its name, else a placement or a stage."""
    target, colon, problem = hold.detail.partition(": ")
    if hold.reason is HoldReason.TARGET_MISSING and colon and " " not in target:
        return target.rpartition("/")[2], problem
    return _where(hold), hold.detail


def _where(hold: Hold) -> str:
    return "" if hold.stage is None else hold.stage if hold.placement is None else f"{hold.stage} on {hold.placement}"


def _located(hold: Hold) -> str:
    where = _where(hold)
    return f"{where}: {HOLDS[hold.reason]}" if where else HOLDS[hold.reason]


def metrics_words(decision: PipelineDecision) -> str:
    """Return the text about the source of the metrics, and about the demand used if its query has no value.

    The text is empty while all metrics come from Prometheus.
    """
    return "; ".join(filter(None, [_source_words(decision), _no_arrivals_words(decision)]))


def _no_arrivals_words(decision: PipelineDecision) -> str:
    if not (stages := decision.demand.no_arrivals_at):
        return ""
    noun = "stage" if len(stages) == 1 else "stages"
    return f"demand.query returns no series; demand is 0, because no items arrive at {noun} {', '.join(stages)}"


def _source_words(decision: PipelineDecision) -> str:
    use = decision.metrics
    why = f" ({use.because})" if use.because else ""
    match use.tier:
        case MetricsTier.PROMETHEUS | MetricsTier.CLOUDWATCH:
            return ""
        case MetricsTier.DIRECT_SCRAPE:
            return f"metrics are read from the pods directly{why}"
        case MetricsTier.HOLDING:
            missing = "; ".join(filter(None, [reading_words(decision.demand.observed), use.because]))
            since = f"demand has been missing for {duration(use.lost_for_s)} ({missing})"
            if decision.demand.planned is None:
                return f"{since}; replicas left unchanged"
            margin = f" plus a safety margin of {use.margin - 1:.0%}" if use.margin >= 1.005 else ""
            if (scheduled := scheduled_words(decision)) is not None:
                return f"{since}; {scheduled}; no replica is removed"
            last = demand_words(decision.spec, decision.demand.planned / use.margin)
            return f"{since}; planned for the last known {last}{margin}; no replica is removed"


def scheduled_words(decision: PipelineDecision) -> str | None:
    """Return the text about the demand known in advance that determines the planned demand, None where none does."""
    planned, known = decision.demand.planned, decision.demand.known
    if known is None or planned is None:
        return None
    return f"planned for {demand_words(decision.spec, planned)}: {declared_as(known)}"


def shedding_words(decision: PipelineDecision) -> str:
    """Return the text about the load that the ingress sheds, or about the load that it should and does not."""
    spec, plan, planned = decision.spec, decision.plan, decision.demand.planned
    short = plan is not None and not plan.feasible
    limit = None if plan is None else plan.limited_by
    why = f"limited by {limit_words(limit, spec.budget_per_hour, decision.budgets)}"
    if decision.admissible is None:
        if spec.sheds or not short or planned is None:
            return ""
        return f"demand.admission is None: planned for all of {demand_words(spec, planned)}; {why}"
    if decision.admissible == decision.admitted_meanwhile:
        why = "until pending replicas are ready"
    of = "" if planned is None else f" of the planned {demand_words(spec, planned)}"
    return f"the ingress admits {demand_words(spec, decision.admissible)}{of}: {why}"


def short_words(decision: BudgetDecision) -> str:
    """Return the text about the pipelines that a ComputeBudget keeps from being served in full; empty without any."""
    if not decision.short:
        return ""
    named = ", ".join(f"{short.key} {share_words(short.served_fraction)}" for short in decision.short[:_NAMED])
    more = len(decision.short) - _NAMED
    rest = f" and {count_of(more, 'other')}" if more > 0 else ""
    return f"{money(decision.limit_per_hour)} is not enough to serve all load within the SLA: served are {named}{rest}"


def silent_rule(rule: RuleState) -> str:
    """Return the text about a threshold rule whose metric is missing."""
    return f"rule {rule.name} of stage {rule.stage} has no data ({reading_words(rule.reading)}); it does not fire"


def scrape_faults(scrapes: Mapping[PlacementKey, Scrapes]) -> Iterator[str]:
    """Yield a text about each fault in how the pods of a placement are scraped."""
    for (stage, pool), found in scrapes.items():
        where = f"{stage} on {pool}"
        if found.unlabelled:
            yield f"{where}: {found.unlabelled}"
        if found.excused:
            names = first_names(found.excused)
            yield f"{where}: no samples of {names} for {duration(SILENT_S)}; the other pods count for them"
        if found.duplicated:
            names = first_names(found.duplicated)
            yield f"{where}: {names} scraped more than once, by several jobs or Prometheus servers; counted once"


_DRAIN_STEPS: Mapping[DrainStep, str] = {
    DrainStep.MISSING: "is drained once they have missed the SLA for {cost}",
    DrainStep.MAKING_ROOM: "is drained once replicas are ready that can take them",
    DrainStep.DRAINING: "is drained, or another replica first; its sessions attach elsewhere",
    DrainStep.RESTING: "is not drained: as many as there are were cut within an hour",
    DrainStep.UNABLE: "cannot be drained: its controller does not remove a chosen replica",
    DrainStep.HELD: "is not drained now: the holds say why no replica goes",
}


def crowded_words(decision: PipelineDecision) -> Iterator[str]:
    """Yield how the sessions of each crowded stage are spread, and what will mend it."""
    drains = {drain.stage: drain for drain in decision.drains}
    for skew in decision.skews:
        crowded = sum(replica.sessions for replica in skew.crowded)
        gives = sum(replica.give_up for replica in skew.crowded)
        if (drain := drains.get(skew.stage)) is not None:
            step = _DRAIN_STEPS[drain.step].format(cost=duration(drain.cut_cost_s))
            remedy = f"{drain.pod} ({count_of(round(drain.sessions), 'session')}) {step} (scaling.rebalance)"
        else:
            moves = f"{count_of(gives, 'session')} move (status.stages[].rebalance)"
            remedy = f"new replicas get only new sessions, until {moves}"
        yield (
            f"{skew.stage}: {number(crowded)} of {number(skew.sessions)} sessions are on {len(skew.crowded)} of "
            f"{count_of(skew.replicas, 'replica')} (utilization of the fullest: {skew.utilization:.0%}); {remedy}"
        )


def closing_words(decision: PipelineDecision) -> Iterator[str]:
    """Yield which replicas that are to go wait for their sessions to end, each with what becomes of new ones."""
    for own in decision.closings:
        new = "gets no new ones" if own.closes else "gets new ones: its pod has no label sluice.dev/sessions"
        yield (
            f"{own.stage}: {own.pod} is to go and has {count_of(round(own.sessions), 'session')}; it {new}, and stays "
            "while that costs less than their cuts (scaling.sessionCutCost)"
        )


def device_faults(faulty: Sequence[FaultyReplica]) -> Iterator[str]:
    """Yield a text about each node on which the devices of replicas have faults, the one with most errors first."""
    of_nodes: dict[tuple[StageName, str], list[FaultyReplica]] = {}
    for replica in faulty:
        of_nodes.setdefault((replica.stage, replica.node), []).append(replica)
    worst_first = sorted(of_nodes.items(), key=lambda own: -sum(replica.fault.errors for replica in own[1]))
    for (stage, node), own in worst_first:
        errors = math.ceil(sum(replica.fault.errors for replica in own))
        throttled = max(replica.fault.throttled for replica in own)
        words = [count_of(errors, "device error")] if errors else []
        words += [f"a device throttled for {throttled:.0%} of the time"] if throttled else []
        where = f"node {node}" if node else "a node that is not known"
        yield f"{where}: {' and '.join(words)}, at {first_names([replica.pod for replica in own])} of {stage}"


def memory_words(decision: PipelineDecision) -> Iterator[str]:
    """Yield a text for each placement whose replicas ran out of memory: when, and how many sessions were let in."""
    of_placements: dict[PlacementKey, list[OutOfMemory]] = {}
    for killed in decision.out_of_memory:
        of_placements.setdefault((killed.stage, killed.placement), []).append(killed)
    for (stage, placement), own in of_placements.items():
        last = max(own, key=lambda killed: killed.at_s)
        yield (
            f"{stage} on {placement}: {first_names([killed.pod for killed in own])} ran out of memory, last at "
            f"{timestamp(last.at_s)}; plans count on {count_of(last.slots, 'session')} per replica, more than it holds "
            "when sessions are long"
        )


def implausible_corrections(decision: PipelineDecision) -> Iterator[str]:
    """Yield a text about every correction by measurement that is at a bound: the cause is likely to be another one.

    Only the lower bound counts for throughput, because the upper one means that nothing is corrected.
    """
    for stage in decision.profile.stages:
        yield from _at_limit(stage.name, "p95", "the modelled", stage.latency_factor, LATENCY_FACTORS)
        for placement in stage.placements:
            where = f"{stage.name} on {placement.name}"
            if placement.measured:
                yield from _at_limit(where, "service time", "the declared", placement.service_factor, FACTOR_BOUNDS)
            if (throughput := placement.throughput_correction) is not None:
                bounds = (THROUGHPUT_FACTORS[0], math.inf)
                yield from _at_limit(where, "throughput", "the implied", throughput.factor, bounds)


def _at_limit(where: str, what: str, of: str, factor: float, bounds: tuple[float, float]) -> Iterator[str]:
    low, high = bounds
    for bound, reached in ((low, factor <= low * (1 + _AT_LIMIT)), (high, factor >= high * (1 - _AT_LIMIT))):
        if reached:
            yield f"{where}: measured {what} is {factor:.3g} × {of} one, at the limit ({bound:g})"


def demand_reason(decision: PipelineDecision) -> str:
    """Return why the planned demand is not the observed one as text; empty where it is."""
    demand, scaling = decision.demand, decision.spec.scaling
    planned, forecast, observed = demand.planned, demand.forecast, demand.observed
    if planned is None:
        return ""
    if demand.known is not None:
        return f"known in advance: {declared_as(demand.known)}"
    if isinstance(observed, Absence) or forecast is None:
        margin = decision.metrics.margin
        return f"last known demand plus {margin - 1:.0%} safety margin while metrics are missing"
    if number(planned) == number(observed):
        return ""
    if number(planned) < number(forecast) and planned < forecast:
        window = duration(scaling.up.stabilization_s)
        return f"scale-up waits: lowest forecast within scaling.scaleUp.stabilization of {window}"
    if isinstance(demand.season, SeasonUse) and demand.season.kept is not None:
        return "held: by demand.history it is back within the scale-down window and a start-up"
    if number(planned) != number(forecast):
        until = "" if demand.falls_at_s is None else f"; it may fall at {timestamp(demand.falls_at_s)}"
        window = duration(scaling.down.stabilization_s)
        return f"held: the forecast was higher within scaling.scaleDown.stabilization of {window}{until}"
    launch = f", {duration(demand.launch_s)} of this for a new node" if demand.launch_s else ""
    ahead = "" if demand.ahead_s is None else f", {duration(demand.ahead_s)} ahead{launch}"
    rare = f"; rarer rises count, after such rises cost {demand.missed:.0%} of the last minutes"
    beyond = demand.missed > decision.spec.sla.late_share
    return f"what the load may reach until a new replica is ready{ahead}{rare if beyond else ''}"


def season_words(decision: PipelineDecision) -> str:
    """Return what the history of the demand says of the end of the horizon; empty for a pipeline without history."""
    use = decision.demand.season
    if use is None:
        return ""
    if isinstance(use, Absence):
        return f"no history of the demand is used: {use.detail or use.reason.value}"
    day = use.season_s == DAY_S
    span = count_of(use.seasons, "day") if day else f"{count_of(use.seasons, 'season')} of {duration(use.season_s)}"
    last = "not recorded" if use.last is None else number(use.last)
    parts = [f"history: {span}; {'same time yesterday' if day else 'same time in the last season'} {last}"]
    if use.expected is not None and use.error is not None:
        parts.append(f"it expects {number(use.expected)} ± {number(use.error)}")
    parts.append(f"trusted {use.trust:.0%}")
    if use.problem:
        parts.append(f"not read again: {use.problem}")
    return "; ".join(parts)


def demand_change(decision: PipelineDecision) -> str:
    """Return the planned demand as text, with the planned demand of the last cycle where it differs."""
    if decision.demand.planned is None:
        return "demand not observed yet"
    now = demand_words(decision.spec, decision.demand.planned)
    before = decision.demand.before
    if before is None or number(before) == number(decision.demand.planned):
        return f"demand {now}"
    return f"demand {number(before)} → {now}"


def observed_latency(decision: PipelineDecision) -> str:
    """Return the end-to-end latency as text, `-` where it is absent. A composed latency is labelled so."""
    latency_s = decision.profile.latency_s
    if isinstance(latency_s, Absence):
        return "-"
    label = " (composed)" if decision.profile.latency_source is LatencySource.COMPOSED else ""
    least = "at least " if isinstance(latency_s, AtLeast) else ""
    return f"{least}{duration(latency_s)}{label}"


def latency_of_sla(decision: PipelineDecision) -> str:
    """Return the latency at the SLA's percentile and the SLA as text, such as `p95 240 ms of 300 ms`."""
    sla = decision.spec.sla
    if isinstance(decision.profile.latency_s, Absence):
        return f"p{sla.percentile:g} unknown (SLA {duration(sla.latency_s)})"
    return f"p{sla.percentile:g} {observed_latency(decision)} of {duration(sla.latency_s)}"


def spend_of_budget(decision: PipelineDecision) -> str:
    """Return the present spend and the budget of the pipeline as text."""
    counted = " for whole instances" if decision.spec.basis is Basis.INSTANCES else ""
    return f"spend {money(decision.spend_per_hour)} of {money(decision.spec.budget_per_hour)}{counted}"


def shared_words(decision: PipelineDecision) -> Iterator[str]:
    """Yield a text about each stage that serves several pipelines: who scales it, and who pays for it."""
    for name, shared in decision.shared.items():
        owner, stage = shared.owner
        whose = "scaled here" if owner == decision.key else f"served and scaled by {owner}, stage {stage}"
        users = ", ".join(user for user in shared.users if user != decision.key)
        yield f"stage {name}: {whose}; shared with {users}; {shared.cost_share:.0%} of its cost is paid here"


def replicas_words(decision: PipelineDecision) -> str:
    """Return the replicas of every stage before and after the changes as text, such as `vad:2 decoder:3→5`."""
    totals: dict[str, tuple[int, int]] = {}
    for (stage, pool), after in decision.desired.items():
        before = next(
            (change.before for change in decision.changes if (change.stage, change.placement) == (stage, pool)), after
        )
        total = totals.get(stage, (0, 0))
        totals[stage] = (total[0] + before, total[1] + after)
    return " ".join(
        f"{stage}:{before}" if before == after else f"{stage}:{before}→{after}"
        for stage, (before, after) in totals.items()
    )


def planned_words(plan: PipelinePlan) -> str:
    """Return a plan as text: predicted latency with its error bar, cost, and number of changed replicas."""
    latency = "no load" if plan.feasible else "not served"
    if plan.latency_s is not None:
        latency = latency_words(plan.latency_s, plan.latency_error)
    replayed = "" if plan.replay.latency_s is None else " (replayed)"
    words = f"planned: {latency}{replayed} at {money(plan.cost_per_hour)}"
    if plan.moved_replicas:
        weight = f"weighed as {money(plan.switching_cost_per_hour)} in the search"
        words += f", changing {count_of(plan.moved_replicas, 'replica')} ({weight})"
    return words
