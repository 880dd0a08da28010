"""Turns goals into replica changes: up before down, replacements first, and no change pushes spend above a cap."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from controller.core.act.closing import NO_CLOSINGS, Closings, closings
from controller.core.act.goals import Goal
from controller.core.assess.assessment import Assessment
from controller.core.assess.budgets import group_budgets
from controller.core.bounds.measured_miss import late
from controller.core.bounds.stated import outside_limits
from controller.core.bounds.tolerance import in_time
from controller.core.messages import details
from controller.core.plan.fleet import FleetPlan
from controller.core.plan.large_fleet import AT_ONCE
from controller.core.plan.ledger import FLEET, Ledger, Scope, ledger_of
from controller.core.state.decision import ChangeReason, Closing, Hold, HoldReason
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Snapshot, TargetMissing
from controller.core.state.spec import Mode
from optimizer.latency.stage import carried_rps
from optimizer.model import (
    Composition,
    GroupBudget,
    Pipeline,
    PipelineKey,
    PlacementKey,
    PlacementName,
    PoolName,
    StageName,
    pool_of,
)
from optimizer.plan import Limit, LimitKind, PipelinePlan

_SAME_SHARE = 1e-9
_MANY = 64
_ENOUGH = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An acting pipeline with its goal and its plan; `pipeline` is the pipeline that was planned."""

    assessment: Assessment
    goal: Goal
    plan: PipelinePlan
    pipeline: Pipeline

    @property
    def key(self) -> PipelineKey:
        """Return the pipeline's key."""
        return self.assessment.key

    def capacities(self, stage: StageName) -> Mapping[PlacementName, tuple[float, float]]:
        """Return the capacity of one replica of each placement of `stage`: (items per second, sessions)."""
        plan = next(own for own in self.plan.stages if own.name == stage)
        batches = {placement.name: placement.batch for placement in plan.placements}
        declared = next(own for own in self.pipeline.stages if own.name == stage)
        return {
            placement.name: (
                carried_rps(declared, placement, batches.get(placement.name, placement.batch_sizes[-1])),
                float(placement.session_slots or 0),
            )
            for placement in declared.placements
        }

    def ready(self, key: PlacementKey) -> int:
        """Return the ready replicas of a placement."""
        return self.assessment.state.ready(*key)

    def begun(self, key: PlacementKey) -> int:
        """Return how many replicas of the placement `key` are ready or have a node to start on."""
        target = self.assessment.state.target(*key)
        return 0 if isinstance(target, TargetMissing) else target.existing - len(target.pending)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRollout:
    """The changes of one pipeline in this cycle: replicas after it, reasons, and why not more changes (`holds`).

    `spend_per_hour` is the spend before the changes. `above_cap` says that this spend, or the spend of the fleet or of
    one of its ComputeBudgets, is above its cap. `recommended` has the replicas that a pipeline in mode Recommend would
    have after this cycle if it alone were in mode Auto, for the workloads that it would scale. Of a fleet planned in
    turns, only pipelines that another autoscaler follows have it. `budgets` has the amount of each ComputeBudget of the
    pipeline, by name. `kept_away` is the limit that replicas of the plan do not fit in, where nothing else changes.
    `closings` are the replicas that are to go and have sessions.
    """

    desired: Mapping[PlacementKey, int]
    reasons: Mapping[PlacementKey, ChangeReason]
    holds: tuple[Hold, ...]
    spend_per_hour: float
    above_cap: bool
    recommended: Mapping[PlacementKey, int]
    budgets: Mapping[str, float]
    kept_away: Limit | None = None
    closings: Closings = NO_CLOSINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The changes of every pipeline in this cycle, and the instances of each pool: in use now, and needed after it.

    `instances` are those that the pipelines of the decision need, `planned` also those of unaccounted replicas.
    `budget_spend_per_hour` is the spend of each ComputeBudget before the changes, by name. `claimed` has the replicas
    that are desired on each pool, that have no node, and that Sluice does not scale.
    """

    pipelines: Mapping[PipelineKey, PipelineRollout]
    claimed: Mapping[PoolName, int]
    in_use: Mapping[PoolName, float]
    instances: Mapping[PoolName, int]
    planned: Mapping[PoolName, int]
    budget_spend_per_hour: Mapping[str, float]


def roll_out(
    assessments: Sequence[Assessment],
    fleet: FleetPlan,
    goals: Mapping[PipelineKey, Goal],
    snapshot: Snapshot,
    policy: Policy,
    trials: Mapping[PoolName, int],
    excused: Mapping[Scope, float],
) -> Rollout:
    """Return the changes that take every acting pipeline towards its goal, as far as caps and capacity allow now.

    `trials` has, for each pool that failed and has not delivered since, how many replicas may be added to it. `excused`
    is by how much replicas that there are may exceed the caps.
    """
    ledger = ledger_of(
        assessments,
        snapshot.pools,
        policy.budget_per_hour,
        trials=trials,
        cost_shares=fleet.cost_shares,
        budgets=group_budgets(snapshot),
        excused=excused,
    )
    # What is asked for by workloads that Sluice does not scale is told like spend, and takes nothing from the others.
    above = ledger.above_cap(ledger.observed_per_hour() + ledger.claimed_per_hour(None))
    spent = {
        budget.name: ledger.observed_per_hour(budget) + ledger.claimed_per_hour(budget) for budget in ledger.budgets
    }
    exceeded = {budget.name for budget in ledger.budgets if ledger.above_cap(spent[budget.name], budget)}
    small = len(assessments) <= AT_ONCE  # each recommendation takes time in proportion to the fleet
    candidates = [
        Move(
            assessment=assessment,
            goal=goals[assessment.key],
            plan=fleet.plans[assessment.key],
            pipeline=fleet.pipelines[assessment.key],
        )
        for assessment in assessments
        if assessment.acting or (assessment.spec.mode is Mode.RECOMMEND and (small or assessment.state.followers))
    ]
    moves = [move for move in candidates if move.assessment.acting]
    moves.sort(key=lambda move: (-move.assessment.spec.priority, move.key))
    found = _schedule(moves, ledger, policy.composition, snapshot.now_s)
    recommended = {
        move.key: _recommended(move, ledger, policy.composition, snapshot.now_s)
        for move in candidates
        if not move.assessment.acting
    }
    pipelines: dict[PipelineKey, PipelineRollout] = {}
    for assessment in assessments:
        key = assessment.key
        spend = ledger.observed_per_hour(key) + ledger.claimed_per_hour(key)
        budgets = {budget.name: budget.per_hour for budget in ledger.groups_of(key)}
        pipelines[key] = PipelineRollout(
            desired={own: _desired(assessment, own, ledger) for own in assessment.current},
            # What makes room for another stage or pipeline is beyond the plan, whatever holds it back otherwise.
            reasons={
                **dict.fromkeys(assessment.current, ChangeReason.COST),
                **goals[key].reasons,
                **found.forced.get(key, {}),
            },
            holds=found.holds.get(key, ()),
            spend_per_hour=spend,
            above_cap=above or ledger.above_cap(spend, key) or not exceeded.isdisjoint(budgets),
            recommended=recommended.get(key, {}),
            budgets=budgets,
            kept_away=found.kept_away.get(key),
            closings=found.closings.get(key, NO_CLOSINGS),
        )
    return Rollout(
        pipelines=pipelines,
        claimed={name: ledger.claimed(name) for name in snapshot.pools},
        in_use={name: ledger.in_use(name) + pool.unaccounted_in_use for name, pool in snapshot.pools.items()},
        instances={name: ledger.instances(name) for name in snapshot.pools},
        planned={
            name: ledger.after.totals.occupancy(name, pool.unaccounted.items()).instances
            for name, pool in snapshot.pools.items()
        },
        budget_spend_per_hour=spent,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schedule:
    """Why not more changes, by pipeline; the changes that a cap `forced`, and the replicas that wait for sessions.

    `kept_away` is what refused replicas to pipelines of which nothing has changed.
    """

    holds: Mapping[PipelineKey, tuple[Hold, ...]]
    forced: Mapping[PipelineKey, Mapping[PlacementKey, ChangeReason]]
    kept_away: Mapping[PipelineKey, Limit]
    closings: Mapping[PipelineKey, Closings]


def _schedule(moves: Sequence[Move], ledger: Ledger, composition: Composition, now_s: float) -> _Schedule:
    """Change `ledger.after` for `moves`, most important first.

    Four steps: First, the excess above a cap is removed at once, regardless of any hold. Second, replicas are added, by
    priority, where they fit. Third, replicas are removed where their replacements are ready and their sessions are not
    worth a wait; those of backlogs at once where a live pipeline was refused replicas. Fourth, for pipelines that were
    refused replicas: if items are late, replicas of other stages are removed for the short stage, and if nothing has
    changed at all, just enough replicas beyond the plan are removed to begin the move.
    """
    before = dict(ledger.after)
    by_key = {move.key: move for move in moves}
    for move in moves:
        lenders = [by_key[key] for key in sorted(move.assessment.lenders & by_key.keys())]
        _reduce([move, *lenders], ledger, move.key)
    for budget in ledger.budgets:
        _reduce(moves, ledger, budget)
    _reduce(moves, ledger, None)
    forced: dict[PipelineKey, dict[PlacementKey, ChangeReason]] = {}
    for (pipeline, key), count in before.items():
        if ledger.after[(pipeline, key)] != count:
            forced.setdefault(pipeline, {})[key] = ChangeReason.BUDGET
    refused = {move.key: _raise(move, ledger) for move in moves}
    _give_way(moves, refused, ledger)
    borrowers: dict[PipelineKey, list[Move]] = {}
    for move in moves:
        for lender in move.assessment.lenders:
            borrowers.setdefault(lender, []).append(move)
    held, closed = dict[PipelineKey, list[StageName]](), dict[PipelineKey, Closings]()
    for move in moves:
        raised = {name: ledger.after[name] for name in ledger.placements(move.key)}
        held[move.key] = _lower(move, borrowers.get(move.key, ()), ledger, composition)
        closed[move.key] = _close(move, ledger, raised, now_s)
    kept_away: dict[PipelineKey, Limit] = {}
    for move in moves:
        blocked = [(key, limit) for key, limit in refused[move.key] if limit is not None]
        for key, limit in blocked if late(move.assessment) else ():
            _even_out(move, ledger, key, limit)
        changed = any(before[name] != ledger.after[name] for name in ledger.placements(move.key))
        if blocked and move.assessment.state.settled() and not changed:
            _make_room(move, moves, ledger, *blocked[0])
        if blocked and not any(before[name] != ledger.after[name] for name in ledger.placements(move.key)):
            kept_away[move.key] = blocked[0][1]
    return _Schedule(
        holds={
            move.key: tuple(_waits(refused[move.key], held[move.key], closed[move.key].waiting, ledger))
            for move in moves
        },
        forced=forced,
        kept_away=kept_away,
        closings=closed,
    )


def _close(
    move: Move, ledger: Ledger, raised: Mapping[tuple[PipelineKey, PlacementKey], int], now_s: float
) -> Closings:
    """Keep the replicas that `_lower` has removed of those in `raised`, and whose sessions are worth a wait."""
    found = NO_CLOSINGS
    if move.assessment.spec.scaling.session_cut_cost <= 0:
        return found
    settled = all(move.ready(key) >= count for key, count in move.goal.replicas.items())
    for name, before in raised.items():
        own = closings(
            move.assessment,
            name[1],
            ledger.after[name],
            price_per_hour=ledger.price_per_hour(*name),
            now_s=now_s,
            settled=settled,
        )
        ledger.after[name] = min(before, ledger.after[name] + len(own.waiting))
        found += own
    return found


def _recommended(move: Move, ledger: Ledger, composition: Composition, now_s: float) -> Mapping[PlacementKey, int]:
    """Return the replicas of `move` after the cycle if it could act beside what is decided for the others."""
    before = {name: ledger.after[name] for name in ledger.placements(move.key)}
    _schedule([move], ledger, composition, now_s)  # changes no other pipeline
    replicas = {name[1]: ledger.after[name] for name in before}
    ledger.after.update(before)
    return replicas


def _reduce(moves: Sequence[Move], ledger: Ledger, scope: Scope) -> None:
    """Remove the least valuable replicas beyond the plan until `scope` is within its cap.

    The last ready replica of a stage is spared if other stages can spare planned replicas, which are removed instead.
    The replacement of a last replica starts only when there is capacity again; until then the stage would have none.
    """
    instead: list[tuple[PipelineKey, PlacementKey]] = []
    while ledger.exceeds(scope):
        excess = [
            (move, key)
            for move in moves
            for key, planned in move.goal.planned.items()
            if ledger.after.get((move.key, key), 0) > planned and ledger.concerns(scope, move.key, key)
        ]
        if not excess:
            break
        move, key = min(excess, key=lambda candidate: _loss(candidate[0], candidate[1], ledger))
        own = scope is None or move.key == scope or (isinstance(scope, GroupBudget) and move.key in scope.pipelines)
        others = _dispensable(move, ledger) if own and _last(move, key, ledger) else []
        if others:
            key = max(others, key=lambda other: (_left_share(move, other, ledger), other))
            instead.append((move.key, key))
            ledger.after[(move.key, key)] -= 1
        else:
            _remove_one(move, key, ledger, move.goal.planned[key], lambda: ledger.exceeds(scope))
    for name in reversed(instead):  # restore those that are not needed to get within the cap
        ledger.after[name] += 1
        if ledger.exceeds(scope):
            ledger.after[name] -= 1


def _remove_one(move: Move, key: PlacementKey, ledger: Ledger, floor: int, above: Callable[[], bool]) -> None:
    """Remove a replica; of many that are desired and do not exist, as many at once as are `above` a limit.

    Someone may have asked for a million of them. At least `floor` stay.
    """
    name, target = (move.key, key), move.assessment.state.target(*key)
    there = 0 if isinstance(target, TargetMissing) else target.existing
    low, high = max(floor, there), ledger.after[name]
    if high - low < _MANY:
        ledger.after[name] -= 1
        return
    while high - low > 1:  # within the limit at `low`, if at all; above it at `high`
        middle = (low + high) // 2
        ledger.after[name] = middle
        low, high = (low, middle) if above() else (middle, high)
    ledger.after[name] = low


def _loss(move: Move, key: PlacementKey, ledger: Ledger) -> tuple[float, bool, float, float]:
    """Return the value of a replica as `_value` does, but higher for the last replica of a stage."""
    priority, share, price = _value(move, key, ledger)
    return (priority, _last(move, key, ledger), share, price)


def _dispensable(move: Move, ledger: Ledger) -> list[PlacementKey]:
    """Return the placements that can lose a replica while their stage keeps at least half of its needed capacity."""
    if move.assessment.never_down:
        return []
    reach = move.assessment.bounds.reach
    return [
        key
        for key in move.goal.replicas
        if min(ledger.after.get((move.key, key), 0), move.ready(key)) > reach.least(key)
        and _left_share(move, key, ledger) >= _ENOUGH
    ]


def _value(move: Move, key: PlacementKey, ledger: Ledger) -> tuple[float, float, float]:
    """Return the value of a replica, as a tuple to compare: priority, need of its stage, capacity per USD."""
    stage, placement = key
    capacities = move.capacities(stage)
    needed = sum(count * capacities[other][0] for (own, other), count in move.goal.planned.items() if own == stage)
    left = sum(ledger.after.get((move.key, (stage, other)), 0) * each for other, (each, _) in capacities.items())
    share = (left - capacities[placement][0]) / needed if needed > 0 else float("inf")
    return (move.assessment.spec.priority, -share, -ledger.price_per_hour(move.key, key) / capacities[placement][0])


def _raise(move: Move, ledger: Ledger) -> list[tuple[PlacementKey, Limit | None]]:
    """Add the replicas that fit, always to the stage with the least share of its need; return the refusals.

    A refusal is a placement with the limit that was reached. A limit of None means that the replica waits for another
    one that is on trial. If a short stage is refused replicas that fit as soon as removed replicas are gone, this
    capacity is reserved for it.
    """
    refused: list[tuple[PlacementKey, Limit | None]] = []
    granted: dict[tuple[PipelineKey, PlacementKey], int] = {}
    shares: dict[StageName, float] = {}
    wanting = [key for key in move.goal.next if (move.key, key) in ledger.after]
    while wanting := [key for key in wanting if ledger.after[(move.key, key)] < move.goal.next[key]]:
        for stage, _ in wanting:
            if stage not in shares:
                shares[stage] = _desired_share(move, stage, ledger)
        key = min(wanting, key=lambda key: (shares[key[0]], key[0] != move.plan.bottleneck))
        name = (move.key, key)
        if ledger.on_trial(pool_of(key[1])) or ledger.after[name] >= move.goal.trials.get(key, math.inf):
            refused.append((key, None))
            wanting.remove(key)
            continue
        limit = ledger.refusal(*name)
        if limit is None:
            ledger.after[name] += 1
            del shares[key[0]]
            continue
        refused.append((key, limit))
        wanting.remove(key)
        if shares[key[0]] < 1 - _SAME_SHARE:
            granted[name] = ledger.after[name]
            while ledger.after[name] < move.goal.next[key] and ledger.limit_beyond(move.key, key) is None:
                ledger.after[name] += 1
    ledger.after.update(granted)
    return refused


def _give_way(
    moves: Sequence[Move],
    refused: Mapping[PipelineKey, Sequence[tuple[PlacementKey, Limit | None]]],
    ledger: Ledger,
) -> None:
    """Take backlogs to the next replicas of their goals at once where a limit keeps replicas of live pipelines away.

    Only the placements that use what the limit is about; what replaces them need not be ready.
    """
    limits = {limit for move in moves if move.assessment.pace is None for _, limit in refused[move.key] if limit}
    for move in moves if limits else ():
        for name in ledger.placements(move.key) if move.assessment.pace is not None else ():
            if any(_limits(limit, name, ledger) for limit in limits):
                ledger.after[name] = min(ledger.after[name], move.goal.next[name[1]])


def _limits(limit: Limit, name: tuple[PipelineKey, PlacementKey], ledger: Ledger) -> bool:
    """Whether a placement uses what `limit` is about: the pool, or the budget of the fleet or of a group."""
    if limit.kind is LimitKind.POOL:
        return limit.name == pool_of(name[1][1])
    group = ledger.group(limit)
    return limit.name == FLEET or (group is not None and ledger.concerns(group, *name))


def _lower(move: Move, borrowers: Sequence[Move], ledger: Ledger, composition: Composition) -> list[StageName]:
    """Remove the replicas whose replacements are ready; return the stages that wait for replacements.

    The plan may make one stage slower because it makes another one faster. Until the other stage is faster, replicas
    that meet the SLA stay. The same holds for `borrowers`, which use shared stages of this pipeline.
    """
    waiting: list[StageName] = []
    kept = [
        each
        for each in (move, *borrowers)
        if any(each.ready(key) < count for key, count in each.goal.replicas.items())
        and _in_time(each, ledger, composition)
    ]
    for stage in move.assessment.spec.stages:
        capacities = move.capacities(stage.name)
        keys = _placements(move, stage.name, ledger)
        needed = _carried({key: move.goal.replicas[key] for key in keys}, capacities)
        serving = _carried(_serving(move, keys, ledger), capacities)
        least = tuple(min(pair) for pair in zip(needed, serving, strict=True))
        # A short stage keeps replicas that are starting: replacements would be ready later than these.
        short = any(have < need - 1e-9 * need for have, need in zip(serving, needed, strict=True))
        together = [] if stage.first(move.goal.replicas) else stage.first(_desired_of(move, keys, ledger))
        if together:  # all items come to the first models of a cascade while one of them serves
            before = {key: ledger.after[(move.key, key)] for key in together}
            ledger.after.update({(move.key, key): move.goal.next[key] for key in together})
            left = _carried(_serving(move, keys, ledger), capacities)
            if left[0] < needed[0] - 1e-9 * needed[0] or not all(_in_time(each, ledger, composition) for each in kept):
                ledger.after.update({(move.key, key): count for key, count in before.items()})
                waiting.append(stage.name)
                continue
        for key in sorted(keys, key=lambda key: _value(move, key, ledger)):
            lowest = max(move.goal.next[key], move.begun(key)) if short else move.goal.next[key]
            if ledger.after[(move.key, key)] > move.goal.next[key] < lowest:
                waiting.append(stage.name)
            # Those beyond the ready ones serve nothing: without them nothing is later.
            ledger.after[(move.key, key)] = min(ledger.after[(move.key, key)], max(lowest, move.ready(key)))
            while ledger.after[(move.key, key)] > lowest:
                ledger.after[(move.key, key)] -= 1
                left = _carried(_serving(move, keys, ledger), capacities)
                if any(have < need - 1e-9 * need for have, need in zip(left, least, strict=True)) or (
                    not all(_in_time(each, ledger, composition) for each in kept)
                ):
                    ledger.after[(move.key, key)] += 1
                    waiting.append(stage.name)
                    break
    return waiting


def _in_time(move: Move, ledger: Ledger, composition: Composition) -> bool:
    """Whether the replicas that are ready now and stay desired meet the SLA for the load that the plan serves."""
    borrowed = move.assessment.spec.borrowed
    keys = [key for _, key in ledger.placements(move.key)]
    keys += [key for key in move.assessment.current if key[0] in borrowed]
    return in_time(move.assessment, move.plan, move.pipeline, _serving(move, keys, ledger), composition)


def _serving(move: Move, keys: Iterable[PlacementKey], ledger: Ledger) -> Mapping[PlacementKey, int]:
    """Return the replicas of each of `keys` that are ready now and stay desired."""
    return {key: min(move.ready(key), _desired(move.assessment, key, ledger)) for key in keys}


def _desired(assessment: Assessment, key: PlacementKey, ledger: Ledger) -> int:
    """Return the replicas of a placement after this cycle; those of a shared stage are in the books of its owner."""
    owner, stage = assessment.spec.borrowed.get(key[0], (assessment.key, key[0]))
    return ledger.desired(owner, (stage, key[1]), assessment.current[key])


def _desired_of(move: Move, keys: Iterable[PlacementKey], ledger: Ledger) -> Mapping[PlacementKey, int]:
    return {key: _desired(move.assessment, key, ledger) for key in keys}


def _carried(
    replicas: Mapping[PlacementKey, int], capacities: Mapping[PlacementName, tuple[float, float]]
) -> tuple[float, float]:
    """Return the capacity of `replicas` of one stage: (items per second, sessions)."""
    rates = sum(count * capacities[name][0] for (_, name), count in replicas.items())
    sessions = sum(count * capacities[name][1] for (_, name), count in replicas.items())
    return rates, sessions


def _make_room(move: Move, moves: Sequence[Move], ledger: Ledger, wanted: PlacementKey, limit: Limit) -> None:
    """Remove just enough replicas to make room for one of `wanted`; none if that is not possible.

    The replacement of a stage's last replica starts only when that replica is gone. For this gap see `_spared`.
    """
    before, name = dict(ledger.after), (move.key, wanted)
    givers, scope = moves if limit.name is not None else [move], ledger.group(limit)
    if limit.kind is LimitKind.BUDGET and any(map(ledger.excuses, ledger.caps_of(move.key, wanted))):
        return  # the cap would take what is excused
    while ledger.limit_beyond(*name) is not None:
        excess = [
            (giver, key)
            for giver in givers
            for key, final in giver.goal.replicas.items()
            if _gives_room(limit, key)
            and ledger.concerns(scope, giver.key, key)
            and ledger.after.get((giver.key, key), 0) > final
            and not (giver.assessment.spec.priority >= move.assessment.spec.priority and _spared(giver, key, ledger))
        ]
        if not excess:
            ledger.after.update(before)
            return
        giver, key = min(excess, key=lambda candidate: _value(candidate[0], candidate[1], ledger))
        _remove_one(giver, key, ledger, giver.goal.replicas[key], lambda: ledger.limit_beyond(*name) is not None)


def _gives_room(limit: Limit, key: PlacementKey) -> bool:
    """Whether fewer replicas of a placement can make room within `limit`: where it is a pool's, only those on it."""
    return limit.kind is not LimitKind.POOL or pool_of(key[1]) == limit.name


def _spared(move: Move, key: PlacementKey, ledger: Ledger) -> bool:
    """Whether a replica is the last of its stage and must stay: items are in time, and replicas are within bounds."""
    return _last(move, key, ledger) and not late(move.assessment) and not outside_limits(move.assessment)


def _last(move: Move, key: PlacementKey, ledger: Ledger) -> bool:
    """Whether a replica is the last ready one of its stage, and has at least half of the needed capacity."""
    keys = _placements(move, key[0], ledger)
    serving = _serving(move, keys, ledger)
    if serving[key] == 0 or sum(serving.values()) > 1:
        return False
    capacities = move.capacities(key[0])
    needed, _ = _carried({other: move.goal.replicas[other] for other in keys}, capacities)
    carried, _ = _carried(serving, capacities)
    return carried >= _ENOUGH * needed


def _even_out(move: Move, ledger: Ledger, wanted: PlacementKey, limit: Limit) -> None:
    """Remove replicas of other stages, beyond their goal, to add replicas of `wanted`, whose stage is short.

    While the pipeline is late, the other stages cannot use capacity beyond the share of need that the short stage has.
    None of them falls below the share that the short stage will have, so the least share only grows.
    """
    name = (move.key, wanted)
    desired = ledger.after[name]
    givers = [key for key in move.goal.next if key[0] != wanted[0] and _gives_room(limit, key)]
    while ledger.after[name] < move.goal.next[wanted]:
        ledger.after[name] += 1
        share = _desired_share(move, wanted[0], ledger)
        ledger.after[name] -= 1
        before = {key: ledger.after.get((move.key, key), 0) for key in givers}
        while ledger.limit_beyond(move.key, wanted) is not None:
            excess = [
                key
                for key in givers
                if ledger.after.get((move.key, key), 0) > move.goal.next[key]
                and _left_share(move, key, ledger) >= share
            ]
            if not excess:
                ledger.ask(move.key, {**before, wanted: desired})
                return
            giver = min(excess, key=lambda key: _value(move, key, ledger))
            _remove_one(move, giver, ledger, move.goal.next[giver], lambda: ledger.limit_beyond(*name) is not None)
        ledger.after[name] += 1
    ledger.after[name] = desired


def _desired_share(move: Move, stage: StageName, ledger: Ledger) -> float:
    """Return the capacity of `stage` as a share of its need, when all its desired replicas are ready."""
    return _share(move, stage, {key: ledger.after[(move.key, key)] for key in _placements(move, stage, ledger)})


def _left_share(move: Move, key: PlacementKey, ledger: Ledger) -> float:
    """Return the ready capacity of the stage of `key` as a share of its need, without one replica of `key`."""
    return _share(
        move,
        key[0],
        {
            other: min(move.ready(other), ledger.after[(move.key, other)] - (other == key))
            for other in _placements(move, key[0], ledger)
        },
    )


def _share(move: Move, stage: StageName, replicas: Mapping[PlacementKey, int]) -> float:
    """Return the capacity of `replicas` as a share of the need of `stage`: in items or in sessions, the smaller one."""
    capacities = move.capacities(stage)
    needed = _carried({key: move.goal.replicas[key] for key in replicas}, capacities)
    carried = _carried(replicas, capacities)
    return min((have / need for have, need in zip(carried, needed, strict=True) if need > 0), default=math.inf)


def _placements(move: Move, stage: StageName, ledger: Ledger) -> list[PlacementKey]:
    return [key for key in move.goal.replicas if key[0] == stage and (move.key, key) in ledger.after]


def _waits(
    refused: Iterable[tuple[PlacementKey, Limit | None]],
    held: Iterable[StageName],
    closed: Iterable[Closing],
    ledger: Ledger,
) -> Iterator[Hold]:
    for (stage, placement), limit in refused:
        if limit is None:
            yield Hold(reason=HoldReason.ON_TRIAL, stage=stage, placement=placement)
            continue
        yield Hold(reason=HoldReason.AWAITING_CAPACITY, stage=stage, detail=ledger.no_capacity(placement, limit))
    for stage in held:
        yield Hold(reason=HoldReason.AWAITING_CAPACITY, stage=stage, detail=details.REPLACEMENTS_NOT_READY)
    until_s: dict[PlacementKey, float] = {}
    for own in closed:
        key = (own.stage, own.placement)
        until_s[key] = max(own.until_s, until_s.get(key, own.until_s))
    for (stage, placement), last_s in until_s.items():
        yield Hold(reason=HoldReason.CLOSING, stage=stage, placement=placement, until_s=last_s)
