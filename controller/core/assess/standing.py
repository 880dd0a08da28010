"""Pipelines of a large fleet whose last decision stands, because nothing that it was made from has changed. Pure.

The replicas of a pipeline that stands occupy its pools and count in the budgets as they do otherwise. A pipeline may
stand while it is settled: all replicas are as desired and ready, the plan serves the whole demand, and nothing waits
for a time. It stands no longer once its demand exceeds what was planned for or is much lower, or its latency exceeds
the SLA: that is acted on in the next cycle, and a small fall in its turn. `controller.kube.turns` chooses the pipelines
that each cycle assesses.

Where more is used than a pool or a budget allows, those that stand give their part once they are assessed. Until then
it is left to them: the assessed ones must not give all of it.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.core.assess.neighbours import busy_shares
from controller.core.state.decision import Decision, HoldReason, PipelineDecision
from controller.core.state.snapshot import (
    PipelineState,
    PoolState,
    Snapshot,
    StandingPipeline,
    StandingPlacement,
    TargetState,
    most_replicas,
    unaccounted_per_hour,
)
from controller.core.state.spec import Mode, PipelineSpec, PlacementSpec
from optimizer.model import PipelineKey, PlacementKey, PoolName, Size, whole_instances
from profiler.samples import Absence, AtLeast, Reading

MOVED = 1.2
"""A demand that is this many times the last assessed one is assessed again, although less than was planned for: a trend
may have begun. So is one that is so many times lower: replicas may be too many."""
HASTE = 2.0
"""So many times their even part of an excess the assessed pipelines give: with the even part alone, a third of it
would be left after a round."""
LEAST_PART = 0.05
"""They give at least this share of what they have, where the excess is as much: so that it ends."""
_HELD = frozenset({HoldReason.WITHIN_TOLERANCE, HoldReason.FOLLOWED, HoldReason.RECOMMEND_ONLY, HoldReason.IDLE})
"""The holds that no time ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Where the last decision about a pipeline stands: from `least` to `most` demand, and up to a latency (s)."""

    least: float
    most: float
    latency_s: float


def levels(state: PipelineState, decision: PipelineDecision) -> Levels:
    """Return where a `decision` that stands does so."""
    assert not isinstance(state.demand, Absence)
    planned = decision.demand.planned
    most = MOVED * state.demand
    return Levels(
        least=state.demand / MOVED,
        most=most if planned is None else min(planned, most),
        latency_s=state.spec.sla.latency_s,
    )


def has_moved(before: Levels, demand: Reading, latency_s: Reading | None) -> bool:
    """Return whether a pipeline must be assessed again; `latency_s` is None without a query for it.

    What is not known is never as it was.
    """
    if isinstance(demand, Absence) or not before.least <= demand <= before.most:
        return True
    return latency_s is not None and exceeds(latency_s, before.latency_s) is not False


def exceeds(latency_s: Reading | None, sla_s: float) -> bool | None:
    """Return whether a latency exceeds the SLA of `sla_s`, None where that is not known."""
    if latency_s is None or isinstance(latency_s, Absence):
        return None
    return True if latency_s > sla_s else None if isinstance(latency_s, AtLeast) else False


def may_stand(spec: PipelineSpec, lenders: Collection[PipelineKey], billed: Collection[PoolName]) -> bool:
    """Return whether a pipeline can ever stand: not where its decision depends on others of its cycle, or on the time.

    `lenders` are the pipelines whose stages others use. On the pools `billed`, whole instances are paid for.
    """
    return not (
        spec.borrowed
        or spec.backlog is not None
        or spec.key in lenders
        or spec.at_least
        or any(stage.rules for stage in spec.stages)
        or any(own.pool in billed for own in spec.placements().values())
    )


def is_settled(state: PipelineState, decision: PipelineDecision) -> bool:
    """Return whether the `decision` about a pipeline would be the same in the next cycle, with the same readings."""
    plan, memory = decision.plan, decision.memory
    if isinstance(state.demand, Absence) or state.demand < 0 or plan is None or decision.planned is None:
        return False
    if memory.idle_since_s is not None and not any(hold.reason is HoldReason.IDLE for hold in decision.holds):
        return False  # it waits until it may scale to zero
    found = dict(state.found())
    if found.keys() != state.targets.keys() or not state.settled() or not all(map(_is_quiet, found.values())):
        return False
    if any(found[key].desired != count for key, count in decision.desired.items()):
        return False
    under_way = (
        *(decision.changes, decision.starting, decision.diagnosis, decision.faulty, decision.skews, decision.drains),
        *(decision.switches, decision.closings, decision.takes_sessions, decision.batch_writes, decision.unmet),
        *(decision.out_of_memory, decision.mismatches, decision.floors, decision.miss, decision.admissible),
        *(memory.failures, memory.conflicts, memory.metrics_lost, memory.missed_since_s),
        *(memory.excess_excused_until_s, memory.contradicted_since_s, memory.closings, memory.feedback.floors),
        *(state.autoscalers, state.refused, plan.limited_by),
    )
    if any(part not in (None, (), {}) for part in under_way):
        return False
    return plan.feasible and all(
        hold.reason in _HELD or (hold.reason is HoldReason.PAUSED and hold.until_s is None) for hold in decision.holds
    )


def _is_quiet(target: TargetState) -> bool:
    return target.owner is None and not target.stranded and not target.leaving


def standing(state: PipelineState, assessed_at_s: float | None, planned_at_s: float | None) -> StandingPipeline:
    """Return a pipeline as it stands with the replicas of `state`; the times are as in `StandingPipeline`."""
    placements = state.spec.placements()
    return StandingPipeline(
        key=state.spec.key,
        namespace=state.spec.namespace,
        placements=tuple(
            _placement(state, key, target, placements[key])
            for key, target in state.found()
            if target.owner is None and key[0] not in state.spec.borrowed
        ),
        assessed_at_s=assessed_at_s,
        planned_at_s=planned_at_s,
        priority=state.spec.priority,
        gives=scales(state),
    )


def scales(state: PipelineState) -> bool:
    """Return whether Sluice scales the workloads of a pipeline, as far as its state says."""
    if state.spec.mode is not Mode.AUTO or state.spec.overrides.pause is not None:
        return False
    return not state.autoscalers and not state.memory.conflicts


def _placement(
    state: PipelineState, key: PlacementKey, target: TargetState, declared: PlacementSpec
) -> StandingPlacement:
    prior, scaled = declared.prior, scales(state)
    busy, planned_busy = busy_shares(state, key, least=max(1, prior.min_replicas))
    return StandingPlacement(
        key=key,
        prior=prior,
        occupied=most_replicas(target.desired, target.existing, target.terminating),
        nodes=tuple(replica.node for replica in target.serving if replica.node) if prior.per_instance > 1 else (),
        busy=busy,
        planned_busy=planned_busy,
        pending=target.unscheduled if scaled else (),
        starting=target.starting if scaled else (),
        startup_s=declared.startup_s,
        states=target.states,
    )


def with_standing(snapshot: Snapshot) -> Snapshot:
    """Return `snapshot` with the replicas of the pipelines that stand as unaccounted replicas of its pools.

    They occupy instances and cost money, and nothing changes them in this cycle. What exceeds the limit of a pool and
    is left to them is its `excess`.
    """
    if not snapshot.standing:
        return snapshot
    occupied: dict[PoolName, Counter[Size]] = {name: Counter(pool.unaccounted) for name, pool in snapshot.pools.items()}
    for each in snapshot.standing:
        for own in each.placements:
            if (there := occupied.get(own.prior.pool)) is not None:
                there[own.prior.per_instance] += own.occupied
    pools: dict[PoolName, PoolState] = {
        name: replace(pool, unaccounted=occupied[name]) for name, pool in snapshot.pools.items()
    }
    assessed = _assessed_on(snapshot)
    return replace(
        snapshot,
        pools={name: replace(pool, excess=_excess(pool, snapshot, assessed)) for name, pool in pools.items()},
    )


def _assessed_on(snapshot: Snapshot) -> Mapping[PoolName, Sequence[tuple[PipelineState, Size, int]]]:
    """Return the desired replicas of the assessed pipelines on each pool, by replicas per instance."""
    found: dict[PoolName, list[tuple[PipelineState, Size, int]]] = {}
    for state in snapshot.pipelines:
        placements = state.spec.placements()
        for key, target in state.found():
            if target.owner is None:
                prior = placements[key].prior
                found.setdefault(prior.pool, []).append((state, prior.per_instance, target.desired))
    return found


def _excess(
    pool: PoolState, snapshot: Snapshot, assessed: Mapping[PoolName, Sequence[tuple[PipelineState, Size, int]]]
) -> int:
    """Return how many instances beyond the limit of a pool are left to the pipelines that stand."""
    if not pool.firm:
        return 0
    own = assessed.get(pool.spec.name, ())
    used = whole_instances(pool.unaccounted.items()) + whole_instances((size, count) for _, size, count in own)
    if used <= pool.limit:
        return 0
    standing_there = (
        (each.priority, float(own.occupied / own.prior.per_instance))
        for each in snapshot.standing
        if each.gives
        for own in each.placements
        if own.prior.pool == pool.spec.name
    )
    left = left_to_standing(
        used - pool.limit,
        ((state.spec.priority, float(count / size)) for state, size, count in own if scales(state)),
        standing_there,
    )
    return math.floor(left)


def left_to_standing(
    excess: float, assessed: Iterable[tuple[int, float]], standing: Iterable[tuple[int, float]]
) -> float:
    """Return how much of an excess above a limit is left to the pipelines that stand, in the unit of the amounts.

    `assessed` and `standing` are pairs of a priority and what a pipeline has. The lowest priority gives first. Of one
    priority, the assessed ones give `HASTE` times their even part, and at least `LEAST_PART` of what they have.
    """
    have: dict[int, list[float]] = {}
    for index, pairs in enumerate((assessed, standing)):
        for priority, amount in pairs:
            have.setdefault(priority, [0.0, 0.0])[index] += amount
    left = 0.0
    for priority in sorted(have):
        own, others = have[priority]
        part = min(excess, own + others)
        if part <= 0:
            break
        now = min(part, own, max(HASTE * part * own / (own + others), LEAST_PART * own))
        left += part - now
        excess -= part
    return left


def standing_costs(snapshot: Snapshot, namespaces: frozenset[str]) -> Mapping[PipelineKey, float]:
    """Return what each pipeline in `namespaces` that stands costs in USD per hour."""
    return {each.key: each.cost_per_hour(snapshot.pools) for each in snapshot.standing if each.namespace in namespaces}


def fleet_spend_per_hour(snapshot: Snapshot, decision: Decision) -> float:
    """Return what all pipelines spend in USD per hour: the assessed ones, those that stand, and what is unaccounted."""
    spend = sum(pipeline.spend_per_hour for pipeline in decision.pipelines)
    spend += sum(each.cost_per_hour(snapshot.pools) for each in snapshot.standing)
    return spend + unaccounted_per_hour(snapshot.pools.values())


def standing_payers(snapshot: Snapshot) -> Mapping[str | None, Sequence[StandingPipeline]]:
    """Return the pipelines that stand and count in each ComputeBudget, by its name; None: in that of the fleet."""
    found: dict[str | None, Sequence[StandingPipeline]] = {None: snapshot.standing}
    for state in snapshot.budgets:
        found[state.spec.name] = tuple(each for each in snapshot.standing if each.namespace in state.namespaces)
    return found
