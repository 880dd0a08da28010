"""Builds the decision of a cycle: changes, holds, and the state that is carried over to the next cycle."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.core.act.admission import admitted_by_plan, admitted_meanwhile, served_by_ready
from controller.core.act.closing import Closings
from controller.core.act.goals import Goal
from controller.core.act.rollout import PipelineRollout, Rollout
from controller.core.act.scale_in import deletion_costs
from controller.core.act.starting import starting_replicas
from controller.core.assess.assessment import Assessment
from controller.core.assess.backlog import items_remembered
from controller.core.assess.prices import next_price
from controller.core.assess.skews import sessions_unread
from controller.core.bounds import alternation, not_ours
from controller.core.messages import details
from controller.core.plan import batching, variants
from controller.core.plan.backlogs import outlook
from controller.core.plan.fleet import FleetPlan
from controller.core.state.carry_over import PipelineMemory, PoolMemory, Surprise
from controller.core.state.decision import (
    BudgetDecision,
    DemandUse,
    Drain,
    DrainStep,
    FaultyReplica,
    Hold,
    HoldReason,
    MetricsUse,
    Mismatch,
    Miss,
    OutOfMemory,
    PipelineDecision,
    PoolDecision,
    ReplicaChange,
    SharedStage,
    ShortPipeline,
)
from controller.core.state.policy import Policy
from controller.core.state.shards import Want
from controller.core.state.snapshot import Snapshot, TargetMissing
from controller.core.state.spec import Mode, Target
from optimizer.model import GroupBudget, PipelineKey, PlacementKey, PoolName, StageName
from optimizer.plan import Limit, LimitKind, PipelinePlan, Plan
from profiler.samples import Absence, MetricsTier, Scrapes

_REMEMBERED_S = 3600.0
"""How long a replica that ran out of memory is named: as long as the next one may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """What is known of the pools of a cycle.

    `launches_s` has how long a new node of each elastic pool takes, and `limits` what bounds a pool, for those where
    that is a quota or the allowance of this shard. `unbounded` are the pools whose limit is not known.
    `prices_per_hour` has the price of an instance in USD per hour, of all pools that exist.
    """

    launches_s: Mapping[PoolName, float]
    limits: Mapping[PoolName, Limit]
    unbounded: Collection[PoolName]
    prices_per_hour: Mapping[PoolName, float]

    @staticmethod
    def of(snapshot: Snapshot, launches_s: Mapping[PoolName, float]) -> "PoolFacts":
        """Return what `snapshot` says of its pools."""
        return PoolFacts(
            launches_s=launches_s,
            limits=_named_limits(snapshot),
            unbounded={
                name
                for name, pool in snapshot.pools.items()
                if (pool.node_pool is not None and pool.node_pool.unseen)
                or (pool.allowance is not None and not pool.allowance.granted)
            },
            prices_per_hour={name: pool.spec.price_per_hour for name, pool in snapshot.pools.items()},
        )


def pipeline_decision(
    assessment: Assessment,
    fleet: FleetPlan,
    goal: Goal,
    rollout: PipelineRollout,
    pools: PoolFacts,
    now_s: float,
    policy: Policy,
    left_alone_since_s: float | None,
) -> PipelineDecision:
    """Return the decision for one pipeline. While the pipeline awaits its turn, its plan is its current replicas.

    `left_alone_since_s` is for the memory.
    """
    missed_since_s = _missed_since_s(assessment, now_s)
    plan, horizon = fleet.plans[assessment.key], assessment.demand.horizon
    awaits_turn = assessment.key in fleet.waiting
    reported = fleet.unreachable.get(assessment.key, plan)
    kept_away_since_s = _kept_away_since_s(assessment, rollout, now_s)
    if rollout.kept_away is not None and kept_away_since_s is not None and not awaits_turn:
        longest_s = max(
            own.startup_s + pools.launches_s.get(own.pool, 0.0) for own in assessment.spec.placements().values()
        )
        if now_s - kept_away_since_s > longest_s:
            reported = _as_served(reported, rollout.kept_away, served_by_ready(assessment, plan, policy))
    limit = reported.limited_by
    # What is not known to be a limit is no reason to refuse load.
    unknown = limit is not None and limit.kind is LimitKind.POOL and limit.name in pools.unbounded
    # Nothing refuses items of a backlog: they wait.
    by_plan = None if unknown or assessment.pace is not None else admitted_by_plan(assessment, reported)
    meanwhile = (
        None
        if awaits_turn or assessment.pace is not None
        else admitted_meanwhile(assessment, plan, rollout.desired, by_plan, policy=policy, now_s=now_s)
    )
    return PipelineDecision(
        spec=assessment.spec,
        demand=DemandUse(
            observed=assessment.demand.observed,
            forecast=assessment.demand.forecast,
            planned=assessment.demand.demand,
            before=assessment.state.memory.planned_demand,
            no_arrivals_at=assessment.demand.no_arrivals_at,
            known=assessment.demand.floor if assessment.demand.from_floor else None,
            ahead_s=None if horizon is None else horizon.ahead_s,
            launch_s=0.0 if horizon is None else horizon.launch_s,
            falls_at_s=assessment.demand.falls_at_s,
            season=None if horizon is None else horizon.season,
            missed=0.0 if horizon is None else horizon.missed,
        ),
        profile=assessment.profile,
        plan=_naming_limit(reported, pools.limits),
        holds=(
            *((Hold(reason=HoldReason.AWAITING_TURN),) if awaits_turn else ()),
            *_holds(assessment, goal, rollout.holds),
        ),
        changes=_changes(assessment, rollout),
        rules=assessment.bounds.rules,
        desired=rollout.desired,
        unconstrained=goal.planned,
        spend_per_hour=rollout.spend_per_hour,
        admissible=min((limit for limit in (by_plan, meanwhile) if limit is not None), default=None),
        admitted_meanwhile=meanwhile,
        floors=goal.floors,
        memory=_memory(
            assessment,
            plan,
            goal,
            rollout,
            excused_until_s=_excused_until_s(assessment, now_s, policy) if rollout.above_cap else None,
            admissible=by_plan,
            missed_since_s=missed_since_s,
            left_alone_since_s=left_alone_since_s,
            kept_away_since_s=kept_away_since_s,
            now_s=now_s,
        ),
        metrics=_metrics_use(assessment, now_s),
        scrapes=dict(_faulty_scrapes(assessment)),
        faulty=tuple(_faulty_replicas(assessment)),
        bounds=goal.bounds,
        lost=goal.lost,
        goal=goal.replicas,
        unmet=goal.unmet,
        planned=None if fleet.planned is None else fleet.planned.get(assessment.key),
        shared=_shared(assessment, fleet),
        recommended=rollout.recommended,
        mismatches=tuple(_mismatches(assessment)),
        budgets=rollout.budgets,
        miss=_miss(assessment, missed_since_s, now_s),
        starting=tuple(starting_replicas(assessment, rollout.desired, pools.launches_s, now_s)),
        skews=assessment.bounds.skews,
        sessions_unread=tuple(sessions_unread(assessment)),
        drains=tuple(_drains(assessment, rollout)),
        closings=rollout.closings.waiting,
        takes_sessions=dict(_takes_sessions(assessment, rollout.closings)),
        out_of_memory=tuple(_out_of_memory(assessment, now_s)),
        switches=tuple(
            variants.switches(assessment, goal.planned, rollout.desired, fleet.problems.get(assessment.key))
        ),
        batch_writes=tuple(batching.batch_writes(assessment)),
        backlog=outlook(assessment, fleet, _counted(assessment, goal, rollout), pools.prices_per_hour, now_s),
    )


def _counted(assessment: Assessment, goal: Goal, rollout: PipelineRollout) -> Mapping[PlacementKey, int]:
    """Return the replicas that finish and cost of a backlog are expected of: those that it goes to, or would go to."""
    if assessment.acting:
        return goal.replicas
    return goal.planned if assessment.spec.mode is Mode.RECOMMEND else rollout.desired


def _chosen(assessment: Assessment, stage: StageName) -> Collection[str]:
    """Return the replica of a stage that is to be drained in this cycle, if any."""
    memory = assessment.bounds.drain_memories.get(stage)
    return () if memory is None or memory.pod is None else (memory.pod,)


def _drains(assessment: Assessment, rollout: PipelineRollout) -> Iterator[Drain]:
    """Yield the drains of a pipeline; a replica that was to go and does not is held."""
    for drain in assessment.bounds.drains:
        key = (drain.stage, drain.placement)
        stays = drain.pod in _chosen(assessment, drain.stage) and rollout.desired[key] >= assessment.current[key]
        yield replace(drain, step=DrainStep.HELD) if stays else drain


def _kept_away_since_s(assessment: Assessment, rollout: PipelineRollout, now_s: float) -> float | None:
    """Return since when a limit has kept replicas of the plan away without a change, None where none does."""
    if rollout.kept_away is None:
        return None
    before_s = assessment.state.memory.kept_away_since_s
    return now_s if before_s is None else min(now_s, before_s)  # a clock may have been set back


def _as_served(plan: PipelinePlan, limit: Limit, served: float) -> PipelinePlan:
    """Return `plan` with the share of the demand that is served while `limit` keeps its replicas away."""
    if served >= plan.served_fraction:
        return plan
    return replace(plan, served_fraction=served, feasible=False, limited_by=limit)


def _naming_limit(plan: PipelinePlan, limits: Mapping[PoolName, Limit]) -> PipelinePlan:
    """Return `plan` with the quota or allowance as what limits it, where it is limited by a pool that one bounds."""
    limit = plan.limited_by
    if limit is None or limit.kind is not LimitKind.POOL or limit.name is None or limit.name not in limits:
        return plan
    return replace(plan, limited_by=limits[PoolName(limit.name)])


def _named_limits(snapshot: Snapshot) -> Mapping[PoolName, Limit]:
    """Return what bounds the pools that are bound by an allowance or by a quota, whose code is its name."""
    found: dict[PoolName, Limit] = {}
    for name, pool in snapshot.pools.items():
        if pool.bound_by_allowance:
            found[name] = Limit(kind=LimitKind.ALLOWANCE, name=name)
        elif pool.spec.quota is not None and pool.bound_by_quota:
            found[name] = Limit(kind=LimitKind.QUOTA, name=pool.spec.quota.code)
    return found


def _missed_since_s(assessment: Assessment, now_s: float) -> float | None:
    """Return since when every known latency has exceeded the SLA; a latency that is not known changes nothing."""
    latency_s, before_s = assessment.profile.latency_s, assessment.state.memory.missed_since_s
    if isinstance(latency_s, Absence):
        return before_s
    if latency_s <= assessment.spec.sla.latency_s:
        return None
    return now_s if before_s is None else min(now_s, before_s)  # a clock may have been set back


def _miss(assessment: Assessment, since_s: float | None, now_s: float) -> Miss | None:
    known = not isinstance(assessment.profile.latency_s, Absence)
    return Miss(since_s=since_s, for_s=now_s - since_s) if known and since_s is not None else None


def _mismatches(assessment: Assessment) -> Iterator[Mismatch]:
    """Yield the placements whose replicas are not on their pool, or do not fit there as declared."""
    for key, placement in assessment.spec.placements().items():
        target = assessment.state.target(*key)
        if isinstance(target, TargetMissing) or key[0] in assessment.spec.borrowed:
            continue
        stated, match = placement.stated_per_instance, target.match
        counted = placement.prior.per_instance if stated is not None else None
        resized_by = assessment.state.resizers.get(key)
        if match.outside or counted is not None or match.fits == 0 or resized_by:
            yield Mismatch(
                stage=key[0],
                placement=key[1],
                outside=match.outside,
                per_instance=placement.prior.per_instance if stated is None else stated,
                fits=0 if match.fits == 0 else counted,
                resized_by=resized_by,
            )


def _faulty_scrapes(assessment: Assessment) -> Iterator[tuple[PlacementKey, Scrapes]]:
    for stage, pool in assessment.spec.placement_keys():
        found = assessment.state.samples_of(stage, pool).scrapes
        if stage not in assessment.spec.borrowed and (found.unlabelled or found.duplicated or found.excused):
            yield (stage, pool), found


def _faulty_replicas(assessment: Assessment) -> Iterator[FaultyReplica]:
    """Yield the replicas whose devices have faults, each with its node."""
    for stage, pool in assessment.spec.placement_keys():
        faults = assessment.state.samples_of(stage, pool).device_faults
        if not faults or stage in assessment.spec.borrowed:
            continue
        target = assessment.state.target(stage, pool)
        serving = () if isinstance(target, TargetMissing) else target.serving
        nodes = {replica.name: replica.node for replica in serving}
        for pod, fault in faults.items():
            yield FaultyReplica(stage=stage, placement=pool, pod=pod, node=nodes.get(pod, ""), fault=fault)


def _out_of_memory(assessment: Assessment, now_s: float) -> Iterator[OutOfMemory]:
    """Yield the replicas of placements with session slots that ran out of memory within `_REMEMBERED_S`."""
    for key, placement in assessment.spec.placements().items():
        slots, target = placement.prior.session_slots, assessment.state.target(*key)
        if slots is None or key[0] in assessment.spec.borrowed or isinstance(target, TargetMissing):
            continue
        killed = [(replica.name, replica.out_of_memory_s) for replica in target.serving]
        killed += [(replica.name, replica.out_of_memory_s) for replica in target.starting]
        for pod, at_s in killed:
            if at_s is not None and now_s - at_s <= _REMEMBERED_S:
                yield OutOfMemory(stage=key[0], placement=key[1], pod=pod, at_s=at_s, slots=slots)


def _shared(assessment: Assessment, fleet: FleetPlan) -> Mapping[StageName, SharedStage]:
    found: dict[StageName, SharedStage] = {}
    for stage in assessment.spec.stages:
        owner = stage.shared_from or (assessment.key, stage.name)
        if (shares := fleet.cost_shares.get(owner)) is not None:
            found[stage.name] = SharedStage(owner=owner, users=tuple(shares), cost_share=shares[assessment.key])
    return found


def _excused_until_s(assessment: Assessment, now_s: float, policy: Policy) -> float:
    """Return until when spend above the cap is excused: the drain time and two cycles after the excess began."""
    until_s = now_s + assessment.spec.scaling.drain_s + 2 * policy.interval_s
    earlier = assessment.state.memory.excess_excused_until_s
    return until_s if earlier is None else min(until_s, earlier)  # a clock may have been set back


def _metrics_use(assessment: Assessment, now_s: float) -> MetricsUse:
    origin, loss = assessment.state.metrics, assessment.demand.loss
    if loss is None:
        return MetricsUse(tier=origin.tier, because=origin.because)
    return MetricsUse(
        tier=MetricsTier.HOLDING,
        because=origin.because,
        lost_since_s=loss.since_s,
        lost_for_s=max(0.0, now_s - loss.since_s),
        margin=1.0 if not loss.demand else (assessment.demand.stabilized or 0.0) / loss.demand,
    )


def _written(assessment: Assessment, rollout: PipelineRollout) -> Iterator[tuple[PlacementKey, int]]:
    """Yield the placements of which this cycle changes the replicas, and by how many.

    Those whose last write was refused are left out.
    """
    for key, count in rollout.desired.items():
        if count != assessment.current.get(key) and key not in assessment.state.refused:
            yield key, count - assessment.current.get(key, 0)


def _surprises(assessment: Assessment) -> tuple[Surprise, ...]:
    """Return the misses that the room for growth rests on; those of before while the demand is missing."""
    horizon = assessment.demand.horizon
    return assessment.state.memory.surprises if horizon is None else horizon.surprises


def _memory(
    assessment: Assessment,
    plan: PipelinePlan,
    goal: Goal,
    rollout: PipelineRollout,
    *,
    excused_until_s: float | None,
    admissible: float | None,
    missed_since_s: float | None,
    left_alone_since_s: float | None,
    kept_away_since_s: float | None,
    now_s: float,
) -> PipelineMemory:
    """Return what the next cycle remembers."""
    changed = dict(_written(assessment, rollout))
    batches = assessment.state.memory.batches
    if assessment.acting and goal.follows_plan:
        batches = {
            (stage.name, placement.name): placement.batch for stage in plan.stages for placement in stage.placements
        }
    return PipelineMemory(
        demand=assessment.demand.stabilized,
        floor=None if assessment.demand.floor is None else assessment.demand.floor.demand,
        samples=assessment.demand.samples,
        surprises=_surprises(assessment),
        learned=assessment.learned,
        rules=assessment.bounds.rule_memories,
        batches=batches,
        # Replicas that start before the next cycle would not be seen to start.
        stages_moved_at_s={**assessment.stages_moved_at_s, **dict.fromkeys((key[0] for key in changed), now_s)},
        excess_excused_until_s=excused_until_s,
        conflicts=assessment.conflicts,
        metrics_lost=assessment.demand.loss,
        failures=assessment.bounds.failures,
        admissible=admissible,
        feedback=goal.feedback,
        idle_since_s=assessment.demand.idle_since_s,
        owned=_owned(assessment),
        uncreated_since_s=assessment.bounds.uncreated_since_s,
        missed_since_s=missed_since_s,
        quiet_since_s=assessment.demand.quiet_since_s,
        contradicted_since_s=assessment.demand.contradicted_since_s,
        begun_s=assessment.demand.begun_s,
        items_left=items_remembered(assessment.pace, assessment.state.memory),
        left_alone_since_s=left_alone_since_s,
        kept_away_since_s=kept_away_since_s,
        drains=assessment.bounds.drain_memories,
        closings=rollout.closings.since_s,
        batching=assessment.state.memory.batching,
        turns=alternation.next_turns(assessment, changed if assessment.acting else {}, now_s),
    )


def _owned(assessment: Assessment) -> frozenset[Target]:
    if assessment.spec.overrides.pause is not None:
        return assessment.state.memory.owned  # a pause hands no workload to another pipeline
    if assessment.spec.mode is not Mode.AUTO:
        return frozenset()
    placements = assessment.spec.placements()
    return frozenset(placements[key].target for key in placements if assessment.state.target(*key).owner is None)


def _holds(assessment: Assessment, goal: Goal, waits: tuple[Hold, ...]) -> tuple[Hold, ...]:
    refused = (
        Hold(reason=HoldReason.SCALE_REFUSED, stage=stage, detail=details.on_placement(placement, reason))
        for (stage, placement), reason in assessment.state.refused.items()
    )
    not_acting = not_ours.acting_holds(assessment, goal.next)
    unwritten = batching.holds(assessment)
    return (*not_acting, *refused, *goal.holds, *unwritten, *(waits if assessment.spec.mode is Mode.AUTO else ()))


def _takes_sessions(assessment: Assessment, closed: Closings) -> Iterator[tuple[str, bool]]:
    """Yield the pods whose label is to change, and whether they get new sessions from now on.

    Those that are to go get none. Without `scaling.sessionCutCost`, only those are opened that Sluice has closed.
    """
    before, all_own = assessment.state.memory.closings, assessment.spec.scaling.session_cut_cost > 0
    if not assessment.acting or not (all_own or before):
        return
    for key, target in assessment.state.found():
        for pod in target.serving if key[0] not in assessment.spec.borrowed else ():
            open_now, opens = pod.takes_sessions, pod.name not in closed.shut
            if open_now is None or open_now == opens or not (all_own or pod.name in before):
                continue
            yield pod.name, opens


def _changes(assessment: Assessment, rollout: PipelineRollout) -> tuple[ReplicaChange, ...]:
    changes: list[ReplicaChange] = []
    for key, placement in assessment.spec.placements().items():
        if key[0] in assessment.spec.borrowed:  # its owner writes it
            continue
        target, after = assessment.state.target(*key), rollout.desired[key]
        if not isinstance(target, TargetMissing) and after != target.desired:
            sessions = assessment.state.samples_of(*key).sessions
            drained = {*_chosen(assessment, key[0]), *rollout.closings.done}
            changes.append(
                ReplicaChange(
                    stage=key[0],
                    placement=placement.name,
                    target=placement.target,
                    before=target.desired,
                    after=after,
                    reason=rollout.reasons[key],
                    resource_version=target.resource_version,
                    deletion_costs=deletion_costs(target, placement.target, sessions, after, drained),
                )
            )
    return tuple(sorted(changes, key=lambda change: change.after < change.before))


def pool_decision(
    name: PoolName,
    snapshot: Snapshot,
    rollout: Rollout,
    plan: Plan | None,
    memory: PoolMemory,
    want: Want | None = None,
) -> PoolDecision:
    """Return the use, limits and shadow price of the pool `name`, and its failures, which are `memory`.

    `want` is what plans lack there. The search gives a more exact price than its estimate, where it gives one.
    """
    pool = snapshot.pools[name]
    prices = {} if plan is None else {planned.name: planned.shadow_price_per_hour for planned in plan.pools}
    return PoolDecision(
        name=name,
        in_use=rollout.in_use[name],
        planned=rollout.planned[name],
        limit=pool.limit,
        zones=pool.zones,
        shadow_price_per_hour=prices.get(name),
        memory=memory,
        price=next_price(pool, snapshot.now_s),
        claimed=rollout.claimed[name],
        want=_with_price(want, prices.get(name)),
    )


def _with_price(want: Want | None, price_per_hour: float | None) -> Want | None:
    """Return `want` with the price of the search; where one more instance saves nothing, it lacks none to save."""
    if want is None or price_per_hour is None or want.unserved > 0 or want.price_per_hour is None:
        return want
    if price_per_hour <= 0:
        return replace(want, lacking=0, price_per_hour=None)
    return replace(want, price_per_hour=price_per_hour)


def budget_decisions(
    assessments: Sequence[Assessment],
    fleet: FleetPlan,
    rollout: Rollout,
    budgets: Sequence[GroupBudget],
    standing: Mapping[str, Mapping[PipelineKey, float]],
) -> tuple[BudgetDecision, ...]:
    """Return the money of every ComputeBudget, and the pipelines that get less because of it.

    `standing` has what its pipelines cost that are not assessed in this cycle, by the name of the budget.
    """
    reported = {each.key: fleet.unreachable.get(each.key, fleet.plans[each.key]) for each in assessments}
    return tuple(
        BudgetDecision(
            name=budget.name,
            limit_per_hour=budget.per_hour,
            spend_per_hour=rollout.budget_spend_per_hour[budget.name],
            planned_per_hour=sum(fleet.plans[key].cost_per_hour for key in sorted(budget.pipelines))
            + sum(standing[budget.name].values()),
            pipelines=tuple(sorted((*budget.pipelines, *standing[budget.name]))),
            short=tuple(
                ShortPipeline(key=key, served_fraction=reported[key].served_fraction)
                for key in sorted(budget.pipelines)
                if reported[key].limited_by == Limit(kind=LimitKind.BUDGET, name=budget.name)
            ),
        )
        for budget in budgets
    )
