"""Plans work that can wait, with what the plans of the live pipelines leave of pools and budgets.

The live pipelines are planned as if there were no backlogs, their floors included. What they have or are planned to
have, whichever is more, is then taken. The pace of a backlog is that of its schedule: later hours may be cheaper.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, inf, log

from controller.core.assess.assessment import Assessment
from controller.core.assess.backlog import capacity_rps
from controller.core.assess.optimizer_input import without_law
from controller.core.assess.shared import CostShares, served_cost_shares
from controller.core.plan.fleet import FleetPlan, planned_together, replanned
from controller.core.plan.floors import FloorPlan, Room, raise_plans
from controller.core.plan.following import Following
from controller.core.plan.hours import Taken, periods_of, taken_later, with_courses
from controller.core.plan.ledger import Ledger
from controller.core.plan.schedule import Caution, Course, Work
from controller.core.state.decision import BacklogOutlook, LaterDeadline, LateReason
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PoolState
from optimizer.model import GroupBudget, PipelineKey, PlacementKey, PoolName, Problem
from optimizer.plan import LimitKind, PipelinePlan, Plan
from optimizer.runtime.effort import Effort
from profiler.samples import Absence

EXTENSIONS = (0.25, 1.0)
"""By these shares of the time left the deadline would be later for which the saving is reported."""
_EPSILON = 1e-9
STEPS = 48
"""Into so many periods the time to use is divided at most: half-hours of a day."""
_LENGTHS = 2**0.5
"""Periods are as long as a power of this in seconds, so that backlogs share what is computed of live pipelines."""
APART = 32
"""So many backlogs are planned one after the other, each with a schedule. The rest are planned together, at their even
paces: the work of a cycle is bounded."""
FURTHEST_S = 100 * 365 * 86_400.0
"""A finish that is later than in a hundred years is none. A query in another unit, such as bytes, gives such times, and
texts have no year after 9999."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the plans of a cycle are made within: the pools, and the budgets of the fleet (`policy`) and of groups."""

    pools: Mapping[PoolName, PoolState]
    policy: Policy
    budgets: Sequence[GroupBudget]


def apart(assessments: Sequence[Assessment]) -> tuple[Sequence[Assessment], Sequence[Assessment]]:
    """Return the assessments that are planned first, and those of the backlogs that get what these leave.

    The backlogs are in the order in which they are planned: by priority, then by deadline. A backlog that does not act
    keeps its replicas, and counts with the first. So does one whose stages serve others.
    """
    lenders = {key for each in assessments for key in each.lenders}
    waiting = [each for each in assessments if each.pace is not None and each.acting and each.key not in lenders]
    keys = {each.key for each in waiting}
    return (
        [each for each in assessments if each.key not in keys] if keys else assessments,
        sorted(waiting, key=lambda each: (-each.spec.priority, _due_s(each), each.key)),
    )


def _due_s(assessment: Assessment) -> float:
    due_s = None if assessment.pace is None else assessment.pace.due_s
    return inf if due_s is None else due_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlogs:
    """The backlogs of a cycle that is at `now_s`, and what they are planned within.

    `first` are the assessments of all others, `waiting` those of the backlogs in the order of `apart`. `ledger_with`
    returns the ledger of assessments and cost shares. `at_pace` returns the assessment of a backlog, bounds included,
    that goes at a number of items per second. `following` are the pipelines that follow their plans. `beat` is called
    while plans are made.
    """

    first: Sequence[Assessment]
    waiting: Sequence[Assessment]
    limits: Limits
    ledger_with: Callable[[Sequence[Assessment], CostShares], Ledger]
    at_pace: Callable[[PipelineKey, float], Assessment]
    following: Collection[PipelineKey]
    now_s: float
    beat: Callable[[], None] | None = None


def with_backlogs(live: FloorPlan, backlogs: Backlogs) -> tuple[FloorPlan, Sequence[Assessment]]:
    """Return the plans `live` of the others together with those of the backlogs, and the assessments of the backlogs.

    One after the other is planned, so that the first is served wholly before the next one gets anything. Of many, the
    last ones are planned together.
    """
    plans, done, waiting = live, list(backlogs.first), list(backlogs.waiting)
    turns = [[each] for each in waiting[:APART]] + ([waiting[APART:]] if waiting[APART:] else [])
    keys = [each.key for each in waiting]
    search_effort = backlogs.limits.policy.search_effort
    effort = None if search_effort is None else Effort.shared(search_effort, sorted(keys), backlogs.beat)
    later, found = _Later(backlogs=backlogs, live=live), list[Assessment]()
    for number, group in enumerate(turns):
        if backlogs.beat is not None:
            backlogs.beat()
        turn = _Turn(backlogs=backlogs, plans=plans, done=done, effort=effort)
        problem, plan = turn.allocated(group)
        paced: Sequence[Assessment] = group
        if number < APART:
            (each,) = group
            course = turn.course(each, problem, later)
            if course is not None:
                paced = [turn.at_pace(each, course)]
                plans = replace(plans, fleet=replace(plans.fleet, courses={**plans.fleet.courses, each.key: course}))
                turn = replace(turn, plans=plans)
                if paced[0] is not each:
                    problem, plan = turn.allocated(paced)
        plans = turn.planned(paced, problem, plan)
        done += paced
        found += paced
    return plans, found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Later:
    """What the pipelines with the plans `live` take in later hours; `known` by the length of the periods (s)."""

    backlogs: Backlogs
    live: FloorPlan
    known: dict[float, Sequence[Taken]] = field(default_factory=dict)

    def taken(self, step_s: float) -> Sequence[Taken]:
        """Return what they take in each period of `step_s` seconds from now on, for as many as a schedule may have."""
        if step_s not in self.known:
            first, raised = self.backlogs.first, self.live.raised
            # Those that follow their plans have got there by then.
            keys = [each.key for each in first if each.acting and each.key in self.backlogs.following]
            self.known[step_s] = taken_later(
                [_taking(each, self.live) if each.acting else each for each in first],
                {key: raised[key].replicas for key in keys},
                self.live.fleet.pipelines,
                self.backlogs.limits.pools,
                now_s=self.backlogs.now_s,
                step_s=step_s,
                steps=ceil(STEPS * (1 + max(EXTENSIONS))) + 1,
            )
        return self.known[step_s]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """The turn of one backlog, or of several that are planned together, after `plans` of what is `done`."""

    backlogs: Backlogs
    plans: FloorPlan
    done: Sequence[Assessment]
    effort: Effort | None

    def at_pace(self, each: Assessment, course: Course) -> Assessment:
        """Return a backlog at the pace of its schedule."""
        pace = each.pace
        assert pace is not None
        if pace.rate is None or not course.changes:
            return each
        found = course.found
        even_rps = max(pace.rate, min(pace.most, found.even_rps if found.complete else course.periods[0].most_rps))
        rate = even_rps if found.even else found.rates[0]
        own = each if rate == pace.rate else self.backlogs.at_pace(each.key, rate)
        assert own.pace is not None
        return replace(own, pace=replace(own.pace, required=even_rps))

    def course(self, each: Assessment, problem: Problem, later: _Later) -> Course | None:
        """Return the course of a backlog, None where there is nothing to schedule or its stages cannot be."""
        pace, spec, ahead = each.pace, each.spec, each.demand.horizon
        assert pace is not None
        own = next(one for one in problem.pipelines if one.key == each.key)
        if pace.work is None or ahead is None or any(stage.cascade is not None for stage in own.stages):
            return None
        if without_law(spec, each.profile) is not None:
            return None  # nothing is known of the capacity that later hours have
        time_s, policy = pace.work.time_s, self.backlogs.limits.policy
        # A replica that starts does something in the period in which it does.
        step_s = _LENGTHS ** ceil(log(max(time_s / STEPS, 2 * ahead.ahead_s), _LENGTHS))
        steps = ceil(time_s * (1 + max(EXTENSIONS)) / step_s)
        taken = with_courses(later.taken(step_s)[:steps], self.plans.fleet.courses, step_s)
        return Course.of(
            Work(
                left=pace.work.items,
                ready_rps=pace.work.ready_rps,
                startup_s=ahead.ahead_s,
                waiting=pace.work.waiting,
            ),
            periods_of(problem, each.key, taken, step_s, without=each.missing.pools),
            time_s,
            Caution(tolerance=spec.scaling.tolerance, interval_s=policy.interval_s),
        )

    def allocated(self, group: Sequence[Assessment]) -> tuple[Problem, Plan]:
        """Return the problem of `group`, which has what is left beside those that are done, and its plan."""
        taking = [_taking(each, self.plans) if each.acting else each for each in self.done]
        taken, present = [*taking, *group], [*self.done, *group]
        ledger = self.backlogs.ledger_with(present, self.plans.fleet.cost_shares)
        within = _beside(taken, present, ledger, self.backlogs.limits)
        return planned_together(group, taken, within.pools, within.policy, within.budgets, self.effort)

    def planned(self, group: Sequence[Assessment], problem: Problem, plan: Plan) -> FloorPlan:
        """Return the plans with those of `group`: `plan`, which solves `problem`, raised to their floors."""
        live, present, policy = self.plans, [*self.done, *group], self.backlogs.limits.policy
        fleet = _joined(live.fleet, problem, {own.key: own for own in plan.pipelines})
        cost_shares = served_cost_shares(present, fleet.plans)
        if live.fleet.planned is None:  # a large fleet has no common plan
            fleet = replace(fleet, plan=live.fleet.plan or plan)
        fleet = replace(fleet, cost_shares=cost_shares)
        ledger = self.backlogs.ledger_with(present, cost_shares)
        keys = {each.key for each in group}
        raised = raise_plans(
            group,
            fleet,
            Room(ledger, present, fleet),
            Following(pipelines=keys, stages=frozenset()),
            partial(replanned, fleet, present, policy),
            policy,
            self.backlogs.now_s,
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
    assessment: Assessment,
    fleet: FleetPlan,
    replicas: Mapping[PlacementKey, int],
    prices_per_hour: Mapping[PoolName, float],
    now_s: float,
) -> BacklogOutlook | None:
    """Return what is expected of a backlog with `replicas`; None for a pipeline without one.

    The cost is that of these replicas until the items left are done, and is not known where there are none, or where
    one is on a pool that does not exist. `prices_per_hour` has the prices of instances of the others.
    """
    pace = assessment.pace
    if pace is None:
        return None
    left, due_s, plan = pace.left, pace.due_s, fleet.plans[assessment.key]
    if isinstance(left, Absence) or left == 0:
        return BacklogOutlook(left=left, due_s=due_s, required_rps=pace.required, met=True if left == 0 else None)
    batches = {(stage.name, own.name): own.batch for stage in plan.stages for own in stage.placements}
    pipeline, course = fleet.pipelines[assessment.key], fleet.courses.get(assessment.key)
    rate = capacity_rps(pipeline, replicas, batches)
    found = BacklogOutlook(left=left, due_s=due_s, required_rps=pace.required, rate_rps=rate, met=False)
    unmeasured = without_law(assessment.spec, assessment.profile)
    if unmeasured is not None and rate > 0:
        passed = due_s is not None and due_s <= now_s
        late = LateReason.DEADLINE_PASSED if passed else None
        return replace(found, rate_rps=None, unmeasured=unmeasured.name, met=False if passed else None, late=late)
    startup_s = 0.0 if assessment.demand.horizon is None else assessment.demand.horizon.ahead_s
    per_hour = _cost_per_hour(assessment, plan, replicas, prices_per_hour)
    remaining: tuple[float, float] | None
    if course is not None and course.changes:
        remaining = course.remaining(rate)
    elif rate <= 0:
        remaining = None
    else:
        ready = capacity_rps(pipeline, {key: assessment.state.ready(*key) for key in replicas}, batches)
        late_s = startup_s * max(0.0, 1 - ready / rate)  # what starting ones miss
        remaining = late_s + left / rate, (per_hour or 0.0) / 3600 / rate * left
    waits_s = None if course is None or not course.changes else course.waits_s
    if waits_s is not None and waits_s <= FURTHEST_S:
        found = replace(found, waits_until_s=now_s + waits_s)
    held = rate < capacity_rps(pipeline, plan.replicas(), batches) * (1 - _EPSILON)
    early = rate > 0 and due_s is not None and now_s + left / rate <= due_s
    late = _late(due_s, plan, held=held, ready=early, now_s=now_s)
    if remaining is None or remaining[0] > FURTHEST_S:
        return replace(found, late=late)
    finish_s, cost = now_s + remaining[0], None if per_hour is None else remaining[1]
    ahead_of_deadline = course is not None and due_s is not None and due_s > now_s
    met = due_s is not None and finish_s <= due_s
    return replace(
        found,
        finish_s=finish_s,
        met=met,
        late=None if met else late,
        cost=cost,
        later=tuple(
            LaterDeadline(extension=own, saving=saving)
            for own, saving in zip(EXTENSIONS, course.savings(EXTENSIONS), strict=True)
        )
        if course is not None and ahead_of_deadline and per_hour is not None
        else (),
    )


def _cost_per_hour(
    assessment: Assessment,
    plan: PipelinePlan,
    replicas: Mapping[PlacementKey, int],
    prices_per_hour: Mapping[PoolName, float],
) -> float | None:
    """Return what `replicas` cost in USD per hour; None where one is on a pool that does not exist.

    Of those of the plan it is what the plan counts on the basis of the budget, else that of their shares of instances.
    """
    counted = {key: own for key, own in assessment.spec.placements().items() if replicas.get(key, 0)}
    if any(own.pool in assessment.missing.pools for own in counted.values()):
        return None
    if all(replicas.get(key, 0) == count for key, count in plan.replicas().items()):
        return plan.cost_per_hour
    return sum(prices_per_hour[own.pool] / own.prior.per_instance * replicas[key] for key, own in counted.items())


def _late(due_s: float | None, plan: PipelinePlan, *, held: bool, ready: bool, now_s: float) -> LateReason:
    """Return why a backlog is late.

    `held` says that it has less than its plan, `ready` that it would be in time if all its replicas were ready.
    """
    if due_s is not None and due_s <= now_s:
        return LateReason.DEADLINE_PASSED
    if held:
        return LateReason.HELD_BACK
    if plan.feasible or ready:
        return LateReason.STARTUP_TOO_LONG
    money = plan.limited_by is not None and plan.limited_by.kind is LimitKind.BUDGET
    return LateReason.BUDGET_TOO_LOW if money else LateReason.CAPACITY_TOO_SMALL
