"""Raises plans to the floors: bounds weaker than the SLA are met with what the plans leave of budgets and pools.

The plan inside the stronger bounds comes first, and no floor takes anything from it. Then every floor is filled as far
as budgets and pools have room, and the plan is made again with these replicas as its least, so that it speaks of what
will be done.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from controller.core.assess.assessment import Assessment
from controller.core.bounds import feedback, learning, measured_miss
from controller.core.bounds.feedback import Feedback
from controller.core.bounds.outages import PATIENT_TRIAL
from controller.core.bounds.resolution import resolve
from controller.core.plan.fleet import FleetPlan
from controller.core.plan.following import Following, planned_replicas
from controller.core.plan.ledger import EPSILON, Ledger
from controller.core.state.bound import Bound, Evidence, Level
from controller.core.state.policy import Policy
from controller.core.state.spec import StageSpec
from optimizer.model import PipelineKey, PlacementKey, PlacementName, StageName
from optimizer.plan import Limit, LimitKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """The replicas of a pipeline raised to its floors, and the limits that left no room for more, by placement."""

    replicas: Mapping[PlacementKey, int]
    refused: Mapping[PlacementKey, Limit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorPlan:
    """The plans of a fleet raised to its floors.

    `unraised` has the replicas of the plans before. `bounds` are those that look at the plans, by the pipeline whose
    replicas they concern, and `raised` what came of all floors. `feedback` is the feedback of the measured latency, and
    `room` what is left beside the raised plans. `staying` has, for the pipelines whose plan was raised, the current
    replicas raised to the same floors.
    """

    fleet: FleetPlan
    unraised: Mapping[PipelineKey, Mapping[PlacementKey, int]]
    bounds: Mapping[PipelineKey, tuple[Bound, ...]]
    raised: Mapping[PipelineKey, Raised]
    feedback: Mapping[PipelineKey, Feedback]
    room: "Room"
    staying: Mapping[PipelineKey, Mapping[PlacementKey, int]]

    def floors(self, key: PipelineKey) -> Mapping[StageName, int]:
        """Return the least replicas of stages by measured latency alone."""
        return _highest(bound for bound in self.bounds[key] if bound.mechanism is feedback.FEEDBACK)

    def asked(self, assessment: Assessment) -> Sequence[Bound]:
        """Return the bounds of a pipeline that its plan is raised to."""
        return [*_floors_before(assessment, self.fleet), *_floors(self.bounds[assessment.key])]


Replan = Callable[[Mapping[PipelineKey, Mapping[PlacementKey, int]]], FleetPlan]
"""Returns the plans of the fleet with at least the given replicas for some pipelines."""


def raise_plans(
    assessments: Sequence[Assessment],
    fleet: FleetPlan,
    room: "Room",
    follows: Following,
    replan: Replan,
    policy: Policy,
    now_s: float,
) -> FloorPlan:
    """Return the plans of `fleet` raised to the floors of all mechanisms, by priority."""
    unraised = {each.key: planned_replicas(each, fleet.plans[each.key]) for each in assessments}
    loops: dict[PipelineKey, Feedback] = {}
    stated: dict[PipelineKey, list[Bound]] = {each.key: [] for each in assessments}
    for each in assessments:
        plan, planned = fleet.plans[each.key], unraised[each.key]
        probes = list(learning.probes(each, plan, planned, room.prices(each)))
        loop = feedback.close_loop(
            each,
            plan,
            _aimed(each, planned, follows, probes),
            partial(_attainable, room, fleet, each, planned),
            now_s=now_s,
            interval_s=policy.interval_s,
        )
        loops[each.key] = loop
        own = [*measured_miss.bounds(each, loop.memory), *feedback.bounds(each, plan, loop.memory), *probes]
        for bound in each.bounds.allowed(own):
            owner, moved = _addressed(each, bound)
            if owner in stated and (owner == each.key or each.acting):
                stated[owner].append(moved)
    raised: dict[PipelineKey, Raised] = {}
    for each in sorted(assessments, key=lambda own: (-own.spec.priority, own.key)):
        asked = [*_floors_before(each, fleet), *_floors(stated[each.key])]
        raised[each.key] = room.raised(each, unraised[each.key], asked)
        room.take(each, raised[each.key].replicas)
    more = {key: found.replicas for key, found in raised.items() if found.replicas != unraised[key]}
    return FloorPlan(
        fleet=replan(more) if more else fleet,
        unraised=unraised,
        bounds={key: tuple(own) for key, own in stated.items()},
        raised=raised,
        feedback=loops,
        room=room,
        staying={
            each.key: room.raised(
                each, each.current, [*_floors_before(each, fleet), *_floors(stated[each.key])]
            ).replicas
            for each in assessments
            if each.key in more
        },
    )


def _floors_before(assessment: Assessment, fleet: FleetPlan) -> Sequence[Bound]:
    """Return the floors that were stated before the plan, and minimums that it has left out for others."""
    spares = assessment.bounds.spares() if assessment.key in fleet.without_spares else ()
    return [*spares, *_floors(assessment.bounds.stated)]


def _floors(bounds: Iterable[Bound]) -> Sequence[Bound]:
    return [bound for bound in bounds if bound.level is Level.FLOOR]


def _aimed(
    assessment: Assessment, planned: Mapping[PlacementKey, int], follows: Following, probes: Sequence[Bound]
) -> Mapping[PlacementKey, int]:
    """Return what a pipeline goes to without floors."""
    current, shared = assessment.current, follows.shared(assessment.key)
    probed = {bound.key for bound in probes}
    return {
        key: current[key]
        if key[0] in assessment.spec.borrowed
        else max(count if assessment.key in follows.pipelines or key[0] in shared else current[key], int(key in probed))
        for key, count in planned.items()
    }


def _attainable(
    room: "Room",
    fleet: FleetPlan,
    assessment: Assessment,
    planned: Mapping[PlacementKey, int],
    least: Mapping[StageName, int],
) -> Mapping[PlacementKey, int]:
    """Return `planned`, raised to the floors `least` and to those of other mechanisms."""
    wanted = [feedback.FEEDBACK.on(stage, least=count) for stage, count in least.items()]
    return room.raised(assessment, planned, [*_floors_before(assessment, fleet), *wanted]).replicas


def _addressed(assessment: Assessment, bound: Bound) -> tuple[PipelineKey, Bound]:
    """Return the pipeline whose replicas `bound` of another concerns, and the bound there."""
    owner = assessment.spec.borrowed.get(bound.stage)
    if owner is None:
        return assessment.key, bound
    return owner[0], replace(bound, stage=owner[1], stated_evidence=Evidence.OTHER_PIPELINE)


class Room:
    """What budgets and pools leave beside the plans of a fleet.

    In `ledger`, the pipelines that act get their planned replicas. Pipelines that are raised take from what is left.
    """

    def __init__(self, ledger: Ledger, assessments: Sequence[Assessment], fleet: FleetPlan) -> None:
        self._ledger = ledger
        self._acting = [assessment for assessment in assessments if assessment.acting]
        self._fleet: FleetPlan | None = fleet

    def _count_plans(self) -> None:
        """Count the plans, when something is raised beside them for the first time: in most fleets nothing is."""
        if self._fleet is not None:
            for assessment in self._acting:
                self._ledger.ask(assessment.key, planned_replicas(assessment, self._fleet.plans[assessment.key]))
            self._fleet = None

    def no_capacity(self, placement: PlacementName, limit: Limit) -> str:
        """Return the text about `limit`, which leaves no capacity for a replica of `placement`."""
        return self._ledger.no_capacity(placement, limit)

    def prices(self, assessment: Assessment) -> Mapping[PlacementKey, float]:
        """Return what a pipeline pays for one replica of each placement, in USD per hour, by its share of instances."""
        return self._ledger.replica_prices_per_hour(assessment)

    def take(self, assessment: Assessment, replicas: Mapping[PlacementKey, int]) -> None:
        """Count `replicas` as those of a pipeline that acts."""
        if assessment.acting and self._fleet is None:
            self._ledger.ask(assessment.key, replicas)

    def raised(self, assessment: Assessment, replicas: Mapping[PlacementKey, int], bounds: Sequence[Bound]) -> Raised:
        """Return `replicas` of a pipeline raised to the least counts of `bounds`, as far as there is room.

        Bounds of placements come first. For a stage, replicas that run already are kept first. Then replicas are added
        on pools in use, then on the other pools, each time in the order of the placements.
        """
        if not bounds:
            return Raised(replicas=replicas)
        self._count_plans()
        ledger, counts, refused = self._ledger, dict(replicas), dict[PlacementKey, Limit]()
        before = {name: ledger.after[name] for name in ledger.placements(assessment.key)}
        ledger.ask(assessment.key, counts)
        limits = resolve((bound for bound in bounds if bound.least is not None), tuple(counts))
        for key, count in replicas.items():
            self._add(assessment, counts, key, limits.least(key) - count, refused)
        for stage in assessment.spec.stages:
            floor = limits.floors.get(stage.name)
            missing = 0 if floor is None else int(floor.count) - _total(counts, stage.name)
            for key, most in _additions(assessment, stage, counts) if missing > 0 else ():
                missing -= self._add(assessment, counts, key, min(missing, most), refused)
        ledger.after.update(before)
        return Raised(replicas=counts, refused=refused)

    def _add(
        self,
        assessment: Assessment,
        counts: dict[PlacementKey, int],
        key: PlacementKey,
        wanted: int,
        refused: dict[PlacementKey, Limit],
    ) -> int:
        """Add up to `wanted` replicas of `key` to `counts`; return how many, and set what refused the next one."""
        wanted = int(min(wanted, _most(assessment, key) - counts[key]))
        for added in range(wanted):
            limit = self._refusal(assessment, counts, key)
            if limit is not None:
                refused[key] = limit
                return added
            counts[key] += 1
            self._ledger.ask(assessment.key, {key: counts[key]})
        return max(0, wanted)

    def _refusal(self, assessment: Assessment, counts: Mapping[PlacementKey, int], key: PlacementKey) -> Limit | None:
        """Return the limit that has no room for one more replica of `key` beside `counts`, None where it fits."""
        if (assessment.key, key) in self._ledger.after:
            return self._ledger.limit_beyond(assessment.key, key, runs=counts[key] < assessment.current[key])
        # A pipeline that only reads workloads of others has no replicas in the ledger, but a budget.
        cost_per_hour = self._ledger.cost_of(assessment, {**counts, key: counts[key] + 1})
        return Limit(kind=LimitKind.BUDGET) if cost_per_hour > assessment.spec.budget_per_hour + EPSILON else None


def _most(assessment: Assessment, key: PlacementKey) -> float:
    """Return the most replicas that a floor may ask of a placement; while it is on trial, no more than that allows."""
    trials = (bound.most for bound in assessment.bounds.of(PATIENT_TRIAL) if bound.key == key)
    return min(assessment.bounds.reach.most(key), *(most for most in trials if most is not None), float("inf"))


def _additions(
    assessment: Assessment, stage: StageSpec, replicas: Mapping[PlacementKey, int]
) -> Sequence[tuple[PlacementKey, int]]:
    """Return (placement, most replicas to add) for `stage`, in the order in which to add them."""
    kept: list[tuple[PlacementKey, int]] = []
    grown: list[tuple[PlacementKey, int]] = []
    started: list[tuple[PlacementKey, int]] = []
    for placement in stage.placements:
        key = (stage.name, placement.name)
        most = _most(assessment, key)
        stays = int(max(0, min(assessment.current[key], most) - replicas[key]))
        kept.append((key, stays))
        more = int(max(0, min(most, placement.prior.max_replicas) - replicas[key] - stays))
        (grown if replicas[key] + stays > 0 else started).append((key, more))
    return [*kept, *grown, *started]


def _total(replicas: Mapping[PlacementKey, int], stage: StageName) -> int:
    return sum(count for key, count in replicas.items() if key[0] == stage)


def _highest(bounds: Iterable[Bound]) -> Mapping[StageName, int]:
    """Return the highest least count of every stage that has one."""
    highest: dict[StageName, int] = {}
    for bound in bounds:
        highest[bound.stage] = max(bound.least or 0, highest.get(bound.stage, 0))
    return highest
