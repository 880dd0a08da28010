"""Plans work that can wait, with what the plans of the live pipelines leave of pools and budgets.

The live pipelines are planned as if there were no backlogs, their floors included. What they have or are planned to
have, whichever is more, is then taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from controller.core.assess.assessment import Assessment
from controller.core.assess.backlog import capacity_rps
from controller.core.assess.shared import served_cost_shares
from controller.core.plan.fleet import FleetPlan, planned_together, replanned
from controller.core.plan.floors import FloorPlan, Room, raise_plans
from controller.core.plan.following import Following
from controller.core.plan.ledger import Ledger
from controller.core.state.decision import BacklogOutlook, LaterDeadline
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PoolState
from optimizer.allocate import allocate
from optimizer.model import Demand, GroupBudget, PipelineKey, PlacementKey, PoolName, Problem
from optimizer.plan import PipelinePlan
from optimizer.runtime.effort import Effort
from profiler.samples import Absence
from profiler.stages import rounded_up

EXTENSIONS = (0.25, 1.0)
"""By these shares of the time left the deadline would be later for which the saving is reported."""
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the plans of a cycle are made within: the pools, and the budgets of the fleet (`policy`) and of groups."""

    pools: Mapping[PoolName, PoolState]
    policy: Policy
    budgets: Sequence[GroupBudget]


def apart(assessments: Sequence[Assessment]) -> tuple[Sequence[Assessment], Sequence[Assessment]]:
    """Return the assessments that are planned first, and those of the backlogs that get what these leave.

    A backlog that does not act keeps its replicas, and counts with the first. So does one whose stages serve others.
    """
    lenders = {key for each in assessments for key in each.lenders}
    waiting = [each for each in assessments if each.pace is not None and each.acting and each.key not in lenders]
    keys = {each.key for each in waiting}
    return ([each for each in assessments if each.key not in keys] if keys else assessments), waiting


def with_backlogs(
    live: FloorPlan,
    assessments: Sequence[Assessment],
    backlogs: Sequence[Assessment],
    ledger: Ledger,
    limits: Limits,
    now_s: float,
) -> FloorPlan:
    """Return the plans `live` of the other `assessments` together with those of `backlogs`.

    `ledger` has the present replicas of all.
    """
    keys = {each.key for each in backlogs}
    taken = [each if each.key in keys or not each.acting else _taking(each, live) for each in assessments]
    within = _beside(taken, assessments, ledger, limits)
    policy = limits.policy
    effort = None if policy.search_effort is None else Effort.shared(policy.search_effort, sorted(keys))
    problem, plan = planned_together(backlogs, taken, limits.pools, within.policy, within.budgets, effort)
    fleet = _joined(live.fleet, problem, {own.key: own for own in plan.pipelines})
    fleet = replace(
        fleet,
        plan=live.fleet.plan or plan,
        cost_shares=served_cost_shares(assessments, fleet.plans),
    )
    raised = raise_plans(
        backlogs,
        fleet,
        Room(ledger, assessments, fleet),
        Following(pipelines=keys, stages=frozenset()),
        partial(replanned, fleet, assessments, within.policy),
        policy,
        now_s,
    )
    return FloorPlan(
        fleet=raised.fleet,
        unraised={**live.unraised, **raised.unraised},
        bounds={**live.bounds, **raised.bounds},
        raised={**live.raised, **raised.raised},
        feedback={**live.feedback, **raised.feedback},
        room=raised.room,
        staying={**live.staying, **raised.staying},
    )


def _taking(each: Assessment, live: FloorPlan) -> Assessment:
    """Return a live pipeline with all replicas that it has, gets, or keeps instead of its plan."""
    staying, planned = live.staying.get(each.key, {}), live.raised[each.key].replicas
    most = {key: max(count, planned[key], staying.get(key, 0)) for key, count in each.current.items()}
    return replace(each, current=most)


def _beside(taken: Sequence[Assessment], assessments: Sequence[Assessment], ledger: Ledger, limits: Limits) -> Limits:
    """Return `limits` less what the live pipelines will cost beyond their present spend."""
    more = {
        one.key: max(0.0, ledger.cost_of(one, one.present) - ledger.observed_per_hour(one.key))
        for one, before in zip(taken, assessments, strict=True)
        if one is not before
    }
    budget = limits.policy.budget_per_hour
    return Limits(
        pools=limits.pools,
        policy=limits.policy
        if budget is None
        else replace(limits.policy, budget_per_hour=max(0.0, budget - sum(more.values()))),
        budgets=[
            replace(each, per_hour=max(0.0, each.per_hour - sum(more.get(key, 0.0) for key in each.pipelines)))
            for each in limits.budgets
        ],
    )


def _joined(fleet: FleetPlan, problem: Problem, plans: Mapping[PipelineKey, PipelinePlan]) -> FleetPlan:
    return replace(
        fleet,
        plans={**fleet.plans, **plans},
        pipelines={**fleet.pipelines, **{own.key: own for own in problem.pipelines}},
        problems={**fleet.problems, **dict.fromkeys(plans, problem)},
    )


def outlook(
    assessment: Assessment, fleet: FleetPlan, replicas: Mapping[PlacementKey, int], now_s: float
) -> BacklogOutlook | None:
    """Return what is expected of a backlog with its planned `replicas`; None for a pipeline without one.

    The cost is that of the items left at the price of the plan, and is not known where nothing is planned.
    """
    pace = assessment.pace
    if pace is None:
        return None
    left, due_s, plan = pace.left, pace.due_s, fleet.plans[assessment.key]
    if isinstance(left, Absence) or left == 0:
        return BacklogOutlook(left=left, due_s=due_s, required_rps=pace.rate, met=True if left == 0 else None)
    batches = {(stage.name, own.name): own.batch for stage in plan.stages for own in stage.placements}
    pipeline = fleet.pipelines[assessment.key]
    rate = capacity_rps(pipeline, replicas, batches)
    if rate <= 0:
        return BacklogOutlook(left=left, due_s=due_s, required_rps=pace.rate, rate_rps=0.0, met=False)
    ready = capacity_rps(pipeline, {key: assessment.state.ready(*key) for key in replicas}, batches)
    ahead = assessment.demand.horizon
    late_s = ahead.ahead_s * max(0.0, 1 - ready / rate) if ahead is not None else 0.0  # what starting replicas miss
    finish_s = now_s + late_s + left / rate
    item_cost = _item_cost(plan, rate)
    return BacklogOutlook(
        left=left,
        due_s=due_s,
        required_rps=pace.rate,
        rate_rps=rate,
        finish_s=finish_s,
        met=due_s is not None and finish_s <= due_s,
        cost=item_cost * left,
        later=tuple(_later(assessment, fleet.problems.get(assessment.key), item_cost, left, due_s, now_s)),
    )


def _item_cost(plan: PipelinePlan, rate_rps: float) -> float:
    """Return the cost of one item in USD where `plan` does `rate_rps` items per second."""
    return plan.cost_per_hour / 3600 / rate_rps


def _later(
    assessment: Assessment, problem: Problem | None, item_cost: float, left: float, due_s: float | None, now_s: float
) -> list[LaterDeadline]:
    """Return what later deadlines would save, at the present prices and with what pools and budgets have room for."""
    pace = assessment.pace
    assert pace is not None
    if problem is None or due_s is None or due_s <= now_s or not pace.rate:
        return []
    found: list[LaterDeadline] = []
    own = next(each for each in problem.pipelines if each.key == assessment.key)
    for extension in EXTENSIONS:
        slower = replace(own, demand=Demand(entry_rate_rps=rounded_up(pace.rate / (1 + extension))))
        others = tuple(slower if each.key == own.key else each for each in problem.pipelines)
        plan = allocate(replace(problem, pipelines=others, effort=None), replayed=False).of(own.key)
        rate = capacity_rps(slower, plan.replicas(), {})
        saving = 0.0 if rate <= 0 else (item_cost - _item_cost(plan, rate)) * left
        found.append(LaterDeadline(extension=extension, saving=saving if saving > _EPSILON else 0.0))
    return found
