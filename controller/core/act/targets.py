"""From what the plan wants to what this cycle aims at: tolerance, floors, steps, and never down on missing data."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.core.assess.assessment import Assessment, most_allowed, out_of_bounds
from controller.core.assess.rules import floors
from controller.core.plan.fleet import FleetPlan
from controller.core.plan.ledger import EPSILON, Ledger
from controller.core.state.decision import ChangeReason, Hold, HoldReason
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PoolState, Snapshot, TargetState
from controller.core.state.spec import PlacementKey, StageSpec, StepPolicy
from optimizer.latency.predict import predicted_latency_s
from optimizer.model import Composition, Pipeline, PipelineKey, PoolName, StageName
from optimizer.plan import LimitKind, PipelinePlan
from profiler.profile import LatencySource


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """Where a pipeline is to go, before money and capacity say how far it gets this cycle.

    `target` is the aim of this cycle, `final` that of later ones, `wanted` what plan and rules want however bold,
    `planned` the plan alone; each lists every placement. `reasons` says why each placement of `target` that differs
    from now does. `follows_plan` is false where what runs is good enough.
    """

    target: Mapping[PlacementKey, int]
    final: Mapping[PlacementKey, int]
    wanted: Mapping[PlacementKey, int]
    planned: Mapping[PlacementKey, int]
    holds: tuple[Hold, ...]
    reasons: Mapping[PlacementKey, ChangeReason]
    follows_plan: bool


def find_aim(
    case: Assessment,
    plan: PipelinePlan,
    problem: Pipeline,
    pools: Mapping[PoolName, PoolState],
    policy: Policy,
    *,
    pressed: bool,
) -> Aim:
    """Return where to take a pipeline; `pressed` says that others need what it could do without."""
    holds: list[Hold] = []
    planned = {key: plan.replicas().get(key, 0) for key in case.current}
    unreachable = plan.served_fraction <= 0 and plan.limited_by is not None and plan.limited_by.kind is LimitKind.SLA
    follows_plan = (
        planned == case.current
        or pressed
        or bool(case.leaving)
        or _worth_it(case, plan, problem, planned, pools, policy)
    )
    # A stage whose only pool does not exist says nothing about what the others are worth.
    unknown = bool(case.pools_missing) and plan.served_fraction <= 0
    if case.demand.demand is None or unknown or (unreachable and not pressed):
        final = _at_least_bounds(case, planned)
    else:
        final = dict(planned if follows_plan else case.current)
    if unreachable and not unknown and final != planned:
        holds.append(Hold(reason=HoldReason.SLA_UNREACHABLE))
    elif not follows_plan:
        holds.append(Hold(reason=HoldReason.WITHIN_TOLERANCE))
    final = _lifted(case, final, pools)
    if late(case) and not pressed and any(count < _keep(case, key) for key, count in final.items()):
        final = {key: max(count, _keep(case, key)) for key, count in final.items()}
        holds.append(Hold(reason=HoldReason.SLA_MISSED))
    if case.never_down:
        final = {key: max(count, _keep(case, key)) for key, count in final.items()}
    holds.extend(_absences(case))
    if case.spend_unknown:
        # It may be at the cap already.
        final = {key: min(count, case.current[key]) for key, count in final.items()}
    frozen = {stage for stage, _ in case.targets_missing}
    for key in final:
        if key[0] in frozen or key[1] in case.pools_missing:
            final[key] = case.current[key]
    target, limited = _stepped(case, final)
    wanted = _lifted(case, planned, pools)
    replaced = {} if case.never_down else _replaced(case, {key: min(final[key], wanted[key]) for key in final})
    target = {key: max(count, replaced.get(key, 0)) for key, count in target.items()}
    holds.extend(Hold(reason=HoldReason.STEP_LIMITED, stage=stage) for stage in limited)
    if _held_high(case) and target == case.current:
        holds.append(Hold(reason=HoldReason.STABILIZING, until_s=case.demand.falls_at_s))
    return Aim(
        target=target,
        final=final,
        wanted=wanted,
        planned=planned,
        holds=tuple(holds),
        reasons={
            **_reasons(case, target, planned),
            **{key: ChangeReason.NODES_LEAVING for key, count in replaced.items() if case.current[key] < count},
        },
        follows_plan=follows_plan,
    )


def late(case: Assessment) -> bool:
    """Return whether the SLA is missed as measured end to end.

    A latency composed of the stages' own is too careful to say.
    """
    profile = case.profile
    return (
        profile.latency_source is LatencySource.MEASURED
        and isinstance(profile.latency_s, float)
        and profile.latency_s > case.spec.sla.latency_s
    )


def _held_high(case: Assessment) -> bool:
    """Whether the scale-down window holds a demand so far above the forecast that it matters."""
    demand, forecast = case.demand.demand, case.demand.forecast
    if case.demand.falls_at_s is None or demand is None or forecast is None:
        return False
    return forecast < demand * (1 - case.spec.scaling.tolerance)


def _worth_it(
    case: Assessment,
    plan: PipelinePlan,
    problem: Pipeline,
    planned: Mapping[PlacementKey, int],
    pools: Mapping[PoolName, PoolState],
    policy: Policy,
) -> bool:
    """Whether what runs breaks a bound, would miss the SLA for what the plan serves, or costs enough too much."""
    if out_of_bounds(case):
        return True
    # Against the SLA itself: the headroom that plans leave keeps small changes from being acted on.
    if not in_time(case, plan, problem, case.current, policy.composition):
        return True
    prices = {
        (stage.name, placement.pool): pools[placement.pool].spec.price_per_hour / placement.prior.per_instance
        for stage in case.spec.stages
        for placement in stage.placements
    }
    cost = sum(prices[key] * count for key, count in case.current.items())
    saving = cost - sum(prices[key] * count for key, count in planned.items())
    return saving > EPSILON and saving >= case.spec.scaling.tolerance * cost - EPSILON


def in_time(
    case: Assessment,
    plan: PipelinePlan,
    problem: Pipeline,
    serving: Mapping[PlacementKey, int],
    composition: Composition,
) -> bool:
    """Return whether `serving` would carry what the plan serves within the SLA, with the batches that are taken now."""
    told = case.state.memory.batches
    batches = {
        (stage.name, placement.pool): told.get((stage.name, placement.pool), placement.batch)
        for stage in plan.stages
        for placement in stage.placements
    }
    served = replace(problem, demand=problem.demand.scaled(plan.served_fraction))
    latency_s = predicted_latency_s(served, serving, batches, composition=composition)
    return latency_s is not None and latency_s <= case.spec.sla.latency_s + EPSILON


def _at_least_bounds(case: Assessment, planned: Mapping[PlacementKey, int]) -> dict[PlacementKey, int]:
    """Return what runs, raised to the declared minimums; the plan starts the stages that do not run at all."""
    raised: dict[PlacementKey, int] = {}
    for stage in case.spec.stages:
        keys = [(stage.name, placement.pool) for placement in stage.placements]
        idle = all(case.current[key] == 0 for key in keys)
        for key, placement in zip(keys, stage.placements, strict=True):
            least = min(placement.prior.min_replicas, planned[key])
            raised[key] = planned[key] if idle else max(case.current[key], least)
    return raised


def _keep(case: Assessment, key: PlacementKey) -> int:
    count = case.current[key]
    return min(count, case.at_most.get(key, count))


def _lifted(
    case: Assessment, replicas: Mapping[PlacementKey, int], pools: Mapping[PoolName, PoolState]
) -> dict[PlacementKey, int]:
    """Return `replicas` raised to the floors of the rules, as far as bounds and the pipeline's budget allow.

    First what runs already stays, then pools in use grow, then the others, each in the order of preference.
    """
    lifted = dict(replicas)
    prices = {name: pool.spec.price_per_hour for name, pool in pools.items()}
    left = case.spec.budget_per_hour - sum(
        prices[placement.pool] / placement.prior.per_instance * lifted[(stage.name, placement.pool)]
        for stage in case.spec.stages
        for placement in stage.placements
    )
    for stage in case.spec.stages:
        missing = floors(case.rules).get(stage.name, 0) - sum(
            lifted[(stage.name, placement.pool)] for placement in stage.placements
        )
        for key, price, room in _rooms(case, stage, lifted, prices):
            affordable = room if price <= 0 else min(room, math.floor((left + EPSILON) / price))
            added = max(0, min(missing, affordable))
            lifted[key] += added
            left -= added * price
            missing -= added
    return lifted


def _rooms(
    case: Assessment, stage: StageSpec, replicas: Mapping[PlacementKey, int], prices: Mapping[PoolName, float]
) -> Sequence[tuple[PlacementKey, float, int]]:
    """Return (placement, price of a replica, replicas that may be added), in the order in which to add them."""
    kept: list[tuple[PlacementKey, float, int]] = []
    grown: list[tuple[PlacementKey, float, int]] = []
    started: list[tuple[PlacementKey, float, int]] = []
    for placement in stage.placements:
        key = (stage.name, placement.pool)
        price = prices[placement.pool] / placement.prior.per_instance
        most = most_allowed(case, key, placement.prior)
        stays = max(0, min(case.current[key], most) - replicas[key])
        kept.append((key, price, stays))
        (grown if replicas[key] + stays > 0 else started).append((key, price, max(0, most - replicas[key] - stays)))
    return [*kept, *grown, *started]


def _absences(case: Assessment) -> Iterable[Hold]:
    for stage, pool in case.current:
        if pool in case.pools_missing:
            yield Hold(reason=HoldReason.POOL_NOT_FOUND, stage=stage, pool=pool)
    if case.demand_missing:
        yield Hold(reason=HoldReason.METRICS_MISSING, detail="demand")
    for stage, detail in case.blind.items():
        yield Hold(reason=HoldReason.METRICS_MISSING, stage=stage, detail=detail)
    for (stage, pool), detail in case.targets_missing.items():
        yield Hold(reason=HoldReason.TARGET_MISSING, stage=stage, detail=f"{pool}: {detail}")
    yield from case.outages


def _stepped(
    case: Assessment, final: Mapping[PlacementKey, int]
) -> tuple[Mapping[PlacementKey, int], tuple[StageName, ...]]:
    """Return `final` as far as one step per stage and direction leads, and the stages that were limited.

    A fallback from a pool that cannot deliver is not limited: what it replaces is gone already. Nor is what a cap has
    left of it for a later cycle.
    """
    target = dict(final)
    limited: list[StageName] = []
    for stage in case.spec.stages:
        keys = [(stage.name, placement.pool) for placement in stage.placements]
        if any(key in case.at_most and case.current[key] > case.at_most[key] for key in keys):
            continue
        total = sum(case.current[key] for key in keys)
        ups = _step(case.spec.scaling.up, total)
        downs = _step(case.spec.scaling.down, total)
        if any(key in _out(case) for key in keys):
            ups = sum(final.values())
        for key in keys:
            wanted = final[key] - case.current[key]
            change = max(-downs, min(ups, wanted))
            target[key] = case.current[key] + change
            ups -= max(0, change)
            downs -= max(0, -change)
        if any(target[key] != final[key] for key in keys):
            limited.append(stage.name)
    return target, tuple(limited)


def _replaced(case: Assessment, wanted: Mapping[PlacementKey, int]) -> Mapping[PlacementKey, int]:
    """Return the replicas that it takes to have those that are to go replaced before they do.

    Until enough of the others are ready, they are asked for on top.
    """
    replaced: dict[PlacementKey, int] = {}
    for key, leaving in case.leaving.items():
        target = case.state.target(*key)
        assert isinstance(target, TargetState)
        if target.ready - leaving < wanted[key]:
            replaced[key] = min(wanted[key] + leaving, case.at_most.get(key, wanted[key] + leaving))
    return replaced


def _out(case: Assessment) -> frozenset[PlacementKey]:
    """Return the placements that are planned without."""
    return frozenset(
        (hold.stage, hold.pool) for hold in case.outages if hold.stage is not None and hold.pool is not None
    )


def _step(policy: StepPolicy, replicas: int) -> int:
    # At least one: a share of nothing would leave a stage that does not run at that for ever.
    return max(1, math.ceil(policy.max_share * replicas - EPSILON), policy.max_replicas)


def _reasons(
    case: Assessment, target: Mapping[PlacementKey, int], planned: Mapping[PlacementKey, int]
) -> Mapping[PlacementKey, ChangeReason]:
    reasons: dict[PlacementKey, ChangeReason] = {}
    before = case.state.memory.demand
    rises = before is None or (case.demand.demand or 0.0) > before
    falls = before is not None and (case.demand.demand or 0.0) < before
    for stage in case.spec.stages:
        keys = {(stage.name, placement.pool) for placement in stage.placements}
        outage = next((hold for hold in case.outages if (hold.stage, hold.pool) in keys), None)
        for placement in stage.placements:
            key = (stage.name, placement.pool)
            now, then = case.current[key], target[key]
            if now == then:
                continue
            if outage is not None:
                pool = outage.reason is HoldReason.POOL_UNAVAILABLE
                reasons[key] = ChangeReason.POOL if pool else ChangeReason.PLACEMENT
            elif then > now and key in case.on_trial:
                reasons[key] = ChangeReason.TRIAL
            elif case.demand_missing and now < then <= planned[key]:
                reasons[key] = ChangeReason.METRICS_LOST
            elif then > now and then > planned[key]:
                reasons[key] = ChangeReason.RULE
            elif now < placement.prior.min_replicas or now > placement.prior.max_replicas:
                reasons[key] = ChangeReason.BOUNDS
            elif then > now and not rises and any(planned[other] < case.current[other] for other in keys):
                reasons[key] = ChangeReason.COST
            elif then > now:
                reasons[key] = ChangeReason.DEMAND if rises else ChangeReason.SLA
            else:
                reasons[key] = ChangeReason.DEMAND if falls else ChangeReason.COST
    return reasons


def find_aims(
    cases: Sequence[Assessment], fleet: FleetPlan, snapshot: Snapshot, policy: Policy
) -> Mapping[PipelineKey, Aim]:
    """Return the aim of every pipeline that could be planned.

    Tolerance is for money: a pipeline that holds more than its plan of what is scarce follows its plan.
    """
    ledger = Ledger(snapshot.pipelines, snapshot.pools, policy.budget_per_hour)
    short = _Short(snapshot, ledger)
    aims = {case.key: _aim(case, fleet, snapshot, policy, pressed=short.presses(case)) for case in cases}
    for case in cases:
        if case.acting:
            ledger.ask(case.key, aims[case.key].final)
    short = _Short(snapshot, ledger)
    for case in cases:
        if case.acting and short.presses(case):
            aims[case.key] = _aim(case, fleet, snapshot, policy, pressed=True)
    return aims


def _aim(case: Assessment, fleet: FleetPlan, snapshot: Snapshot, policy: Policy, *, pressed: bool) -> Aim:
    plan, problem = fleet.pipelines[case.key], fleet.problems[case.key]
    return find_aim(case, plan, problem, snapshot.pools, policy, pressed=pressed)


class _Short:
    """What is asked for more than there is of, as the ledger says now."""

    def __init__(self, snapshot: Snapshot, ledger: Ledger) -> None:
        self._ledger = ledger
        self._fleet = ledger.above_cap(ledger.cost_per_hour())
        # Nodes of a pool without a ceiling that are not ready for a moment press nobody.
        self._pools = {
            name for name, pool in snapshot.pools.items() if pool.spec.instances is not None and ledger.overfull(name)
        }

    def presses(self, case: Assessment) -> bool:
        """Whether the pipeline takes part in asking for more than there is of a pool or a budget."""
        if self._fleet or self._ledger.above_cap(self._ledger.cost_per_hour(case.key), case.key):
            return True
        return any(count and pool in self._pools for (_, pool), count in case.current.items())
