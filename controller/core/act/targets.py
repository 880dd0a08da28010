"""Turns the plan into the aim of this cycle: tolerance, floors, step limits, no scale-down while data is missing."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.core.act.feedback import close_loop, floors
from controller.core.assess.assessment import Assessment, most_allowed, out_of_bounds
from controller.core.assess.budgets import group_budgets
from controller.core.assess.optimizer_input import stages_sla_s
from controller.core.assess.prices import recent_changes
from controller.core.messages import details
from controller.core.plan.fleet import FleetPlan
from controller.core.plan.ledger import EPSILON, Ledger
from controller.core.state.carry_over import FeedbackMemory
from controller.core.state.decision import ChangeReason, Hold, HoldReason
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PoolState, Snapshot, TargetState
from controller.core.state.spec import PlacementKey, StageKey, StageSpec
from optimizer.latency.predict import predicted_latency_s
from optimizer.model import Basis, Composition, Pipeline, PipelineKey, PoolName, StageName
from optimizer.plan import PipelinePlan
from profiler.stages import LatencySource


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedAims:
    """What the pipelines that share stages ask of one of them, for the shared stages that belong to it.

    `planned` are those that follow the plan although the rest of the pipeline may not. `kept` lose no replica, because
    another pipeline is late. `floors` are replicas that another pipeline needs because its measured latency exceeds its
    SLA.
    """

    planned: frozenset[StageName] = frozenset()
    kept: frozenset[StageName] = frozenset()
    floors: Mapping[StageName, int] = field(default_factory=dict)


NOT_SHARED = SharedAims()


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """The replicas that a pipeline aims for, before caps and capacity limit how far it gets in this cycle.

    `planned` is the plan alone, and `wanted` the plan with the floors of rules. `final` is what the pipeline aims for
    without step limits, and `target` what it aims for in this cycle. Each lists every placement. `reasons` has the
    reason for each placement whose target differs from the current replicas. `follows_plan` is false where the current
    replicas are good enough. `feedback` is the capacity beyond the plan while the measured latency misses the SLA,
    and `floors` the replicas that it asks for.
    """

    target: Mapping[PlacementKey, int]
    final: Mapping[PlacementKey, int]
    wanted: Mapping[PlacementKey, int]
    planned: Mapping[PlacementKey, int]
    holds: tuple[Hold, ...]
    reasons: Mapping[PlacementKey, ChangeReason]
    follows_plan: bool
    feedback: FeedbackMemory
    floors: Mapping[StageName, int]


def _aim(
    assessment: Assessment,
    fleet: FleetPlan,
    ledger: Ledger,
    now_s: float,
    *,
    interval_s: float,
    pressed: bool,
    follows_plan: bool,
    shared: SharedAims = NOT_SHARED,
    repriced: Mapping[PoolName, float],
) -> Aim:
    """Return the aim of a pipeline; `pressed` says that it holds a share of what the fleet is short of.

    `follows_plan` is false where the current replicas are good enough.
    """
    plan, borrowed = fleet.plans[assessment.key], assessment.spec.borrowed
    holds: list[Hold] = []
    rules = _highest(assessment.rules.floors(), assessment.learning.floors)
    idle = assessment.idle
    planned = _planned(assessment, plan)
    hopeless = plan.sla_unreachable
    unreachable = hopeless or fleet.unreachable.get(assessment.key, plan).sla_unreachable
    # A plan without a stage whose only pool does not exist is no plan for the other stages.
    unknown = bool(assessment.missing.pools) and plan.served_fraction <= 0
    if assessment.demand.demand is None or unknown or (hopeless and not pressed):
        final = _at_least_bounds(assessment, planned)
    else:
        final = dict(planned if follows_plan else assessment.current)
        final |= {key: planned[key] for key in final if key[0] in shared.planned}
    final |= {key: assessment.current[key] for key in final if key[0] in borrowed}
    final |= {key: 0 for key in final if key[0] in idle}
    if unreachable and not unknown:
        holds.append(Hold(reason=HoldReason.SLA_UNREACHABLE))
    elif not follows_plan:
        holds.append(Hold(reason=HoldReason.WITHIN_TOLERANCE))
    probed = _probed(assessment, plan, planned, ledger)
    if probed is not None and not pressed:
        final[probed] = max(final[probed], 1)
    feedback = close_loop(
        assessment,
        plan,
        final,
        lambda least: _lifted(assessment, planned, ledger, _highest(rules, least)),
        now_s=now_s,
        interval_s=interval_s,
    )
    measured = _highest(floors(feedback.memory, assessment, plan), shared.floors)
    final = _lifted(assessment, final, ledger, _highest(rules, measured))
    holds.extend(Hold(reason=HoldReason.LEARNING, stage=stage) for stage in assessment.learning.floors)
    if feedback.hold is not None:
        holds.append(feedback.hold)
    kept = {key: max(count, _keep(assessment, key)) for key, count in final.items()}
    # A step that did not lower the latency is taken back although the latency exceeds the SLA.
    useless = feedback.memory.useless_until_s
    spared = {key: final[key] if key[0] in useless else count for key, count in kept.items()}
    if late(assessment) and not pressed and not idle and spared != final:
        final = spared
        holds.append(Hold(reason=HoldReason.SLA_MISSED))
    if assessment.never_down:
        final = kept
    stays = assessment.missing.demands | shared.kept
    final |= {key: max(count, kept[key]) for key, count in final.items() if key[0] in stays}
    final |= _pinned(assessment)
    holds.extend(_shared_holds(assessment))
    holds.extend(_absences(assessment))
    if assessment.spend_unknown:
        # Spend may be at the cap already.
        final = {key: min(count, assessment.current[key]) for key, count in final.items()}
    frozen = {stage for stage, _ in assessment.missing.targets} | borrowed.keys()
    for key in final:
        if key[0] in frozen or key[1] in assessment.missing.pools:
            final[key] = assessment.current[key]
    holds.extend(_override_holds(assessment, final))
    target, limited = _stepped(assessment, final)
    wanted = _lifted(assessment, planned, ledger, _highest(rules, measured))
    replaced = (
        {} if assessment.never_down else _replaced(assessment, {key: min(final[key], wanted[key]) for key in final})
    )
    target = {key: max(count, replaced.get(key, 0)) for key, count in target.items()}
    holds.extend(Hold(reason=HoldReason.STEP_LIMITED, stage=stage) for stage in limited)
    holds.extend(_idle_holds(assessment, target))
    if _held_high(assessment) and target == assessment.current:
        holds.append(Hold(reason=HoldReason.STABILIZING, until_s=assessment.demand.falls_at_s))
    return Aim(
        target=target,
        final=final,
        wanted=wanted,
        planned=planned,
        holds=tuple(holds),
        reasons={
            **_reasons(assessment, target, planned, measured, repriced),
            **({} if probed is None or target[probed] <= assessment.current[probed] else {probed: ChangeReason.PROBE}),
            **{key: ChangeReason.NODES_LEAVING for key, count in replaced.items() if assessment.current[key] < count},
        },
        follows_plan=follows_plan,
        feedback=feedback.memory,
        floors=measured,
    )


def _planned(assessment: Assessment, plan: PipelinePlan) -> Mapping[PlacementKey, int]:
    """Return the planned replicas of every placement, 0 where the stage is idle."""
    idle = assessment.idle
    return {key: 0 if key[0] in idle else plan.replicas().get(key, 0) for key in assessment.current}


def _pinned(assessment: Assessment) -> Mapping[PlacementKey, int]:
    """Return the replicas of the placements that are pinned, as far as the budget and the pool can have them."""
    placements = assessment.spec.placements()
    return {key: most_allowed(assessment, key, placements[key].prior) for key in assessment.spec.overrides.pins}


def _override_holds(assessment: Assessment, final: Mapping[PlacementKey, int]) -> Iterable[Hold]:
    """Yield a hold for every pin, and for every part of an annotation that is not valid."""
    for key, pin in assessment.spec.overrides.pins.items():
        detail = details.pinned(pin, final[key])
        yield Hold(reason=HoldReason.PINNED, stage=key[0], pool=key[1], until_s=pin.until_s, detail=detail)
    for problem in assessment.spec.overrides.problems:
        yield Hold(reason=HoldReason.INVALID_ANNOTATION, detail=problem)


def _shared_holds(assessment: Assessment) -> Iterable[Hold]:
    """Yield the holds about shared stages: replicas that do not change, or that may not be removed."""
    for stage, (owner, name) in assessment.spec.borrowed.items():
        if stage in assessment.missing.owners:
            detail = details.owner_not_acting(owner, name)
            yield Hold(reason=HoldReason.OWNER_NOT_ACTING, stage=stage, detail=detail)
    for stage in sorted(assessment.missing.demands - assessment.spec.borrowed.keys()):
        yield Hold(reason=HoldReason.METRICS_MISSING, stage=stage, detail=details.DEMAND_OF_ANOTHER)


def _probed(
    assessment: Assessment,
    plan: PipelinePlan,
    planned: Mapping[PlacementKey, int],
    ledger: Ledger,
) -> PlacementKey | None:
    """Return the placement on which one replica is started to measure it, None where that cannot pay.

    It can where the stage's other placements cost more than twice as much as the replica.
    """
    key, prices = assessment.learning.probe, _replica_prices(assessment, ledger.pools)
    if key is None or not plan.feasible or assessment.never_down:
        return None
    others = sum(prices[own] * count for own, count in planned.items() if own[0] == key[0])
    total = sum(prices[own] * count for own, count in planned.items()) + prices[key]
    if assessment.spec.basis is Basis.INSTANCES:
        total = ledger.cost_with(assessment.key, {**planned, key: planned[key] + 1})
    affordable = total <= assessment.spec.budget_per_hour + EPSILON
    return key if others > 2 * prices[key] and affordable else None


def _replica_prices(assessment: Assessment, pools: Mapping[PoolName, PoolState]) -> Mapping[PlacementKey, float]:
    """Return what the pipeline pays for one replica of each placement, in USD per hour."""
    return {
        key: assessment.cost_share(key[0])
        * pools[placement.pool].spec.replica_price_per_hour(placement.prior.per_instance)
        for key, placement in assessment.spec.placements().items()
    }


def _highest(*floors_of: Mapping[StageName, int]) -> Mapping[StageName, int]:
    """Return the highest floor of every stage that has one."""
    highest: dict[StageName, int] = {}
    for floors_ in floors_of:
        for stage, floor in floors_.items():
            highest[stage] = max(floor, highest.get(stage, 0))
    return highest


def _idle_holds(assessment: Assessment, target: Mapping[PlacementKey, int]) -> Iterable[Hold]:
    """Yield the holds of stages that are and stay at zero: one for the pipeline where these are all its stages."""
    after_s, idle = assessment.spec.scaling.idle_after_s, assessment.idle
    if after_s is None or not idle or any(assessment.current[key] or target[key] for key in target if key[0] in idle):
        return
    everything = len(idle) == len(assessment.spec.stages)
    for stage in [None] if everything else [stage.name for stage in assessment.spec.stages if stage.name in idle]:
        yield Hold(reason=HoldReason.IDLE, stage=stage, detail=details.no_demand(after_s))


def late(assessment: Assessment) -> bool:
    """Return whether the measured end-to-end latency exceeds the SLA.

    A latency that is composed of the latencies of the stages does not count: in most cases it is too high.
    """
    profile = assessment.profile
    return (
        profile.latency_source is LatencySource.MEASURED
        and isinstance(profile.latency_s, float)
        and profile.latency_s > assessment.spec.sla.latency_s
    )


def _held_high(assessment: Assessment) -> bool:
    """Whether the scale-down window holds a demand that is above the forecast by more than the tolerance."""
    demand, forecast = assessment.demand.demand, assessment.demand.forecast
    if assessment.demand.falls_at_s is None or demand is None or forecast is None:
        return False
    return forecast < demand * (1 - assessment.spec.scaling.tolerance)


def _worth_it(
    assessment: Assessment,
    plan: PipelinePlan,
    pipeline: Pipeline,
    current: Mapping[PlacementKey, int],
    ledger: Ledger,
    policy: Policy,
) -> bool:
    """Whether current replicas are out of bounds or would miss the SLA, or the plan saves at least the tolerance.

    `current` are the present replicas, but those of shared stages as they are going to be.
    """
    if out_of_bounds(assessment):
        return True
    # Compared with the SLA itself: the headroom of plans absorbs small changes.
    if not in_time(assessment, plan, pipeline, current, policy.composition):
        return True
    own = {key: count for key, count in current.items() if key[0] not in assessment.spec.borrowed}
    planned = _planned(assessment, plan)
    if assessment.spec.basis is Basis.INSTANCES:
        cost = ledger.cost_with(assessment.key, own)
        saving = cost - ledger.cost_with(assessment.key, {key: planned[key] for key in own})
    else:
        prices = _replica_prices(assessment, ledger.pools)
        cost = sum(prices[key] * count for key, count in own.items())
        saving = cost - sum(prices[key] * planned[key] for key in own)
    return saving > EPSILON and saving >= assessment.spec.scaling.tolerance * cost - EPSILON


def in_time(
    assessment: Assessment,
    plan: PipelinePlan,
    pipeline: Pipeline,
    serving: Mapping[PlacementKey, int],
    composition: Composition,
) -> bool:
    """Return whether `serving` replicas meet the SLA for the load that `plan` serves, with the present batch limits."""
    current = assessment.state.memory.batches
    batches = {
        (stage.name, placement.pool): current.get((stage.name, placement.pool), placement.batch)
        for stage in plan.stages
        for placement in stage.placements
    }
    served = pipeline.scaled(plan.served_fraction)
    latency_s = predicted_latency_s(served, serving, batches, composition=composition)
    left_s = stages_sla_s(assessment.spec, assessment.profile)
    return latency_s is not None and latency_s <= max(left_s, pipeline.sla.latency_s) + EPSILON


def _at_least_bounds(assessment: Assessment, planned: Mapping[PlacementKey, int]) -> dict[PlacementKey, int]:
    """Return the current replicas, at least the declared minimums that the plan has.

    Stages without a replica get the planned replicas.
    """
    raised: dict[PlacementKey, int] = {}
    for stage in assessment.spec.stages:
        keys = [(stage.name, placement.pool) for placement in stage.placements]
        idle = all(assessment.current[key] == 0 for key in keys)
        for key, placement in zip(keys, stage.placements, strict=True):
            least = min(placement.prior.min_replicas, planned[key])
            raised[key] = planned[key] if idle else max(assessment.current[key], least)
    return raised


def _keep(assessment: Assessment, key: PlacementKey) -> int:
    count = assessment.current[key]
    return min(count, assessment.at_most.get(key, count))


def _lifted(
    assessment: Assessment,
    replicas: Mapping[PlacementKey, int],
    ledger: Ledger,
    least: Mapping[StageName, int],
) -> dict[PlacementKey, int]:
    """Return `replicas` raised to the floors `least` of stages, as far as bounds and the pipeline's budget allow.

    Replicas that run already are kept first. Then replicas are added on pools in use, then on the other pools. Each
    time the order of the placements applies.
    """
    lifted = dict(replicas)
    prices = {name: pool.spec.price_per_hour for name, pool in ledger.pools.items()}
    budget, whole = assessment.spec.budget_per_hour, assessment.spec.basis is Basis.INSTANCES
    left = budget - sum(
        assessment.cost_share(key[0]) * prices[placement.pool] / placement.prior.per_instance * lifted[key]
        for key, placement in assessment.spec.placements().items()
    )
    for stage in assessment.spec.stages:
        missing = least.get(stage.name, 0) - sum(lifted[(stage.name, placement.pool)] for placement in stage.placements)
        for key, price, capacity in _additions(assessment, stage, lifted, prices):
            affordable = capacity if price <= 0 else min(capacity, math.floor((left + EPSILON) / price))
            added = max(0, min(missing, capacity if whole else affordable))
            while (
                added
                and whole
                and ledger.cost_with(assessment.key, {**lifted, key: lifted[key] + added}) > budget + EPSILON
            ):
                added -= 1
            lifted[key] += added
            left -= added * price
            missing -= added
    return lifted


def _additions(
    assessment: Assessment, stage: StageSpec, replicas: Mapping[PlacementKey, int], prices: Mapping[PoolName, float]
) -> Sequence[tuple[PlacementKey, float, int]]:
    """Return (placement, price of a replica, most replicas to add) for `stage`, in the order in which to add them."""
    kept: list[tuple[PlacementKey, float, int]] = []
    grown: list[tuple[PlacementKey, float, int]] = []
    started: list[tuple[PlacementKey, float, int]] = []
    for placement in stage.placements:
        key = (stage.name, placement.pool)
        price = assessment.cost_share(stage.name) * prices[placement.pool] / placement.prior.per_instance
        most = most_allowed(assessment, key, placement.prior)
        stays = max(0, min(assessment.current[key], most) - replicas[key])
        kept.append((key, price, stays))
        (grown if replicas[key] + stays > 0 else started).append((key, price, max(0, most - replicas[key] - stays)))
    return [*kept, *grown, *started]


def _absences(assessment: Assessment) -> Iterable[Hold]:
    for stage, pool in assessment.current:
        if pool in assessment.missing.pools:
            yield Hold(reason=HoldReason.POOL_NOT_FOUND, stage=stage, pool=pool)
    if assessment.demand_missing:
        yield Hold(reason=HoldReason.METRICS_MISSING, detail="demand")
    for stage, reading in assessment.missing.samples.items():
        detail = details.missing_reading(reading.pool, reading.quantity, reading.absence)
        yield Hold(reason=HoldReason.METRICS_MISSING, stage=stage, detail=detail)
    for stage in sorted(assessment.missing.too_new):
        yield Hold(reason=HoldReason.TOO_NEW, stage=stage)
    for (stage, pool), reason in assessment.missing.targets.items():
        yield Hold(reason=HoldReason.TARGET_MISSING, stage=stage, pool=pool, detail=reason)
    yield from assessment.outages
    for (stage, pool), target in assessment.state.found():
        if target.rolling and stage not in assessment.spec.borrowed:
            new = sum(replica.updated for replica in (*target.pending, *target.stranded, *target.starting))
            detail = details.rolling_out(target.updated, target.existing, new)
            yield Hold(reason=HoldReason.ROLLING_OUT, stage=stage, pool=pool, detail=detail)


def _stepped(
    assessment: Assessment, final: Mapping[PlacementKey, int]
) -> tuple[Mapping[PlacementKey, int], tuple[StageName, ...]]:
    """Return the replicas after one step towards `final`, and the stages for which the step limit was too small.

    The limits are per stage and direction. A fallback from a pool that does not deliver is not limited, because the
    replicas that it replaces are gone. Nor is the part of a fallback that a cap postponed to a later cycle, and nor are
    pinned placements.
    """
    target = dict(final)
    if assessment.idle:
        # There is no load. Once the entry stages have no replicas, nothing may show that the other stages need none.
        return target, ()
    limited: list[StageName] = []
    for stage in assessment.spec.stages:
        keys = [(stage.name, placement.pool) for placement in stage.placements]
        if any(key in assessment.at_most and assessment.current[key] > assessment.at_most[key] for key in keys):
            continue
        total = sum(assessment.current[key] for key in keys)
        ups = assessment.spec.scaling.up.most(total)
        downs = assessment.spec.scaling.down.most(total)
        if any(key in _out(assessment) for key in keys):
            ups = sum(final.values())
        for key in keys:
            if key in assessment.spec.overrides.pins:
                continue
            wanted = final[key] - assessment.current[key]
            change = max(-downs, min(ups, wanted))
            target[key] = assessment.current[key] + change
            ups -= max(0, change)
            downs -= max(0, -change)
        if any(target[key] != final[key] for key in keys):
            limited.append(stage.name)
    return target, tuple(limited)


def _replaced(assessment: Assessment, wanted: Mapping[PlacementKey, int]) -> Mapping[PlacementKey, int]:
    """Return the replicas of placements that need replacements for replicas on nodes that are being removed.

    The replacements are added before the nodes are gone, until enough replicas on other nodes are ready. At
    `replicas.max`, the workload's controller replaces the replicas when they end.
    """
    replaced: dict[PlacementKey, int] = {}
    placements = assessment.spec.placements()
    for key, leaving in assessment.leaving.items():
        target = assessment.state.target(*key)
        assert isinstance(target, TargetState)
        if target.ready - leaving < wanted[key]:
            replaced[key] = min(wanted[key] + leaving, most_allowed(assessment, key, placements[key].prior))
    return replaced


def _out(assessment: Assessment) -> frozenset[PlacementKey]:
    """Return the placements that plans leave out because of a failure."""
    return frozenset(
        (hold.stage, hold.pool) for hold in assessment.outages if hold.stage is not None and hold.pool is not None
    )


def _reasons(
    assessment: Assessment,
    target: Mapping[PlacementKey, int],
    planned: Mapping[PlacementKey, int],
    measured: Mapping[StageName, int],
    repriced: Mapping[PoolName, float],
) -> Mapping[PlacementKey, ChangeReason]:
    reasons: dict[PlacementKey, ChangeReason] = {}
    before = assessment.state.memory.planned_demand
    rises = before is None or (assessment.demand.demand or 0.0) > before
    falls = before is not None and (assessment.demand.demand or 0.0) < before
    for stage in assessment.spec.stages:
        keys = {(stage.name, placement.pool) for placement in stage.placements}
        outages = [hold for hold in assessment.outages if (hold.stage, hold.pool) in keys]
        for placement in stage.placements:
            key = (stage.name, placement.pool)
            now, then = assessment.current[key], target[key]
            if now == then:
                continue
            cheaper = ChangeReason.PRICE if _follows_price(repriced, key, keys, more=then > now) else ChangeReason.COST
            if key in assessment.spec.overrides.pins:
                reasons[key] = ChangeReason.PINNED
            elif then < now and stage.name in assessment.idle:
                reasons[key] = ChangeReason.IDLE
            elif (outage := _outage_behind(assessment, key, target, planned, outages, rises=rises)) is not None:
                pool = outage.reason is HoldReason.POOL_UNAVAILABLE
                reasons[key] = ChangeReason.POOL if pool else ChangeReason.PLACEMENT
            elif then > now and key in assessment.on_trial:
                reasons[key] = ChangeReason.TRIAL
            elif assessment.demand_missing and not assessment.demand.from_floor and now < then <= planned[key]:
                reasons[key] = ChangeReason.METRICS_LOST
            elif then > now and then > planned[key]:
                ruled = assessment.rules.floors().get(stage.name, 0) >= measured.get(stage.name, 0)
                reasons[key] = ChangeReason.RULE if ruled else ChangeReason.MEASURED_MISS
            elif now < placement.prior.min_replicas or now > placement.prior.max_replicas:
                reasons[key] = ChangeReason.BOUNDS
            elif then > now and not rises and any(planned[other] < assessment.current[other] for other in keys):
                reasons[key] = cheaper
            elif then > now:
                reasons[key] = ChangeReason.DEMAND if rises else ChangeReason.SLA
            else:
                reasons[key] = ChangeReason.DEMAND if falls else cheaper
    return reasons


def _follows_price(
    repriced: Mapping[PoolName, float], key: PlacementKey, keys: Collection[PlacementKey], *, more: bool
) -> bool:
    """Whether a change of the placement `key` follows a price of its stage, whose placements are `keys`.

    `repriced` has the pools whose price changed lately, and by how much in USD per hour.

    It has more replicas when its own price fell or that of another rose, and fewer when it is the other way round. The
    steps of a move follow each other, so not every one of them changes both pools.
    """
    rose = {other: repriced.get(other[1], 0.0) * (1 if other == key else -1) for other in keys}
    return any(change < 0 if more else change > 0 for change in rose.values())


def _outage_behind(
    assessment: Assessment,
    key: PlacementKey,
    target: Mapping[PlacementKey, int],
    planned: Mapping[PlacementKey, int],
    outages: Sequence[Hold],
    *,
    rises: bool,
) -> Hold | None:
    """Return which of the `outages` of a stage leads to the change of the placement `key`, None: none does.

    One does if replicas are removed where it is, or are added elsewhere in their place. Removals elsewhere have another
    reason. If no replica is removed where the outage is, so have additions while the demand rises, or beyond the plan.
    """
    lost = [out for out in outages if target[(key[0], out.pool)] < assessment.current[(key[0], out.pool)]]  # type: ignore[index]
    if target[key] < assessment.current[key]:
        return next((out for out in lost if out.pool == key[1]), None)
    if any(out.pool == key[1] for out in outages):
        return None
    return next(iter(lost if rises or target[key] > planned[key] else [*lost, *outages]), None)


def find_aims(
    assessments: Sequence[Assessment], fleet: FleetPlan, snapshot: Snapshot, policy: Policy
) -> Mapping[PipelineKey, Aim]:
    """Return the aim of every pipeline.

    The tolerance is for cost alone: a pipeline that is above a cap, or uses a pool with too few instances, follows its
    plan even for a smaller saving.
    """
    ledger = Ledger(
        snapshot.pipelines,
        snapshot.pools,
        policy.budget_per_hour,
        cost_shares=fleet.cost_shares,
        budgets=group_budgets(snapshot),
    )
    shortage = ledger.shortage()
    pressed = {assessment.key for assessment in assessments if shortage.affects(assessment)}
    follows, shared_planned = _following(assessments, fleet, ledger, policy, pressed)
    repriced = recent_changes(snapshot.pools, snapshot.now_s)

    def aim_of(assessment: Assessment, shared: SharedAims) -> Aim:
        return _aim(
            assessment,
            fleet,
            ledger,
            snapshot.now_s,
            interval_s=policy.interval_s,
            pressed=assessment.key in pressed,
            follows_plan=assessment.key in pressed or assessment.key in follows,
            shared=shared,
            repriced=repriced,
        )

    asked = {
        key: SharedAims(planned=frozenset(name for owner, name in shared_planned if owner == key))
        for key in {owner for owner, _ in shared_planned}
    }
    aims = {assessment.key: aim_of(assessment, asked.get(assessment.key, NOT_SHARED)) for assessment in assessments}
    for key, more in _asked(assessments, aims).items():
        asked[key] = replace(more, planned=asked.get(key, NOT_SHARED).planned)
    for assessment in assessments:
        if asked.get(assessment.key, NOT_SHARED) != NOT_SHARED:
            aims[assessment.key] = aim_of(assessment, asked[assessment.key])
    for assessment in assessments:
        if assessment.acting:
            ledger.ask(assessment.key, aims[assessment.key].final)
    shortage = ledger.shortage()
    for assessment in assessments:
        if assessment.acting and shortage.affects(assessment):
            pressed.add(assessment.key)
            aims[assessment.key] = aim_of(assessment, asked.get(assessment.key, NOT_SHARED))
    return aims


def _following(
    assessments: Sequence[Assessment],
    fleet: FleetPlan,
    ledger: Ledger,
    policy: Policy,
    pressed: Collection[PipelineKey],
) -> tuple[Collection[PipelineKey], Collection[StageKey]]:
    """Return the pipelines that follow their plan, and the shared stages that do.

    A shared stage follows the plan if one of its users does, because that plan needs its replicas. A pipeline that
    would not follow its plan does so if the new replicas of a shared stage no longer suffice for its own.
    """
    sharing = [assessment for assessment in assessments if assessment.acting and assessment.spec.borrowed]
    lenders = {key for assessment in sharing for key in assessment.lenders}
    follows = {own.key for own in assessments if own.key in pressed or _follows(own, fleet, ledger, policy, {})}
    linked = [own for own in assessments if own.acting and (own.spec.borrowed or own.key in lenders)]
    servers: set[StageKey] = set()
    while linked:
        for assessment in linked:
            if assessment.key in follows:
                servers.update(_servers(assessment).values())
        late_now = {
            own.key
            for own in linked
            if own.key not in follows and _follows(own, fleet, ledger, policy, _moved(own, fleet, servers))
        }
        if not late_now:
            break
        follows |= late_now
    return follows, servers


def _servers(assessment: Assessment) -> Mapping[StageName, StageKey]:
    """Return the shared stages of a pipeline, by their names there, each with the stage that declares it."""
    return {
        stage.name: (stage.sharing.owner, stage.sharing.stage)
        for stage in assessment.pipeline.stages
        if stage.sharing is not None and stage.name not in assessment.missing.owners
    }


def _moved(assessment: Assessment, fleet: FleetPlan, servers: Collection[StageKey]) -> Mapping[PlacementKey, int]:
    """Return the planned replicas of the pipeline's stages that are among the shared stages `servers`."""
    names = {name for name, server in _servers(assessment).items() if server in servers}
    return {key: count for key, count in _planned(assessment, fleet.plans[assessment.key]).items() if key[0] in names}


def _follows(
    assessment: Assessment,
    fleet: FleetPlan,
    ledger: Ledger,
    policy: Policy,
    moved: Mapping[PlacementKey, int],
) -> bool:
    """Whether a pipeline follows its plan, where the replicas of shared stages are going to be those in `moved`."""
    plan, pipeline = fleet.plans[assessment.key], fleet.pipelines[assessment.key]
    current = {**assessment.current, **moved}
    return (
        _planned(assessment, plan) == current
        or bool(assessment.leaving)
        or bool(assessment.idle)
        or _worth_it(assessment, plan, pipeline, current, ledger, policy)
    )


def _asked(assessments: Sequence[Assessment], aims: Mapping[PipelineKey, Aim]) -> Mapping[PipelineKey, SharedAims]:
    """Return what acting pipelines ask of the shared stages that belong to others, by the pipeline that owns them."""
    kept: dict[PipelineKey, set[StageName]] = {}
    least: dict[PipelineKey, dict[StageName, int]] = {}
    for assessment in assessments:
        for name, (owner, stage) in assessment.spec.borrowed.items() if assessment.acting else ():
            if late(assessment) and name not in aims[assessment.key].feedback.useless_until_s:
                kept.setdefault(owner, set()).add(stage)
            floor = aims[assessment.key].floors.get(name)
            if floor is not None:
                floors_of = least.setdefault(owner, {})
                floors_of[stage] = max(floor, floors_of.get(stage, 0))
    return {
        key: SharedAims(kept=frozenset(kept.get(key, ())), floors=least.get(key, {}))
        for key in kept.keys() | least.keys()
    }
