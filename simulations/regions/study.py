"""What shifting streams between regions saves, and what a lost region costs. Pure.

Costs are those of plans for the mean load of each step of the day, as `sluice plan` has them: without headroom for
growth, and without replicas that overlap while they are replaced.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from controller.commands.plan_request import ask, budgets_of, specs_of
from controller.core.state.spec import DemandUnit, PipelineSpec
from controller.resources.fields import duration_s
from optimizer.model import Problem
from optimizer.plan import PipelinePlan
from simulations.regions.assignment import assign, hours_apart, used_tiers
from simulations.regions.costs import POINTS, Costs, carried, costs_of, paid_anyway
from simulations.regions.model import TOLERANCE, Assignment, Pair, Region, Step, Tier, Way
from simulations.regions.program import GAP, Solved, solved
from simulations.regions.scenario import Cluster, Regions

_ALMOST_FREE = 1e-6
"""The price (USD per hour) of room on replicas that run anyway: above 0, because costs ascend."""

_ROUNDS = 10
_PASSES = 2
"""Assignments are made so many times, each time with plans for the loads that the one before led to."""
_WORTH = 2e-3
"""Loads are planned in rounds, while a round raises the bound by this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What it costs if a region is lost for a whole day.

    Attributes:
        assignment: where its users are served.
        displaced: for each step of the day, the load that the region served until then.
        at_once: for each step of the day, how much of it the running replicas of the others have room for.
        startup_s: after that time the others are ready for the rest, in seconds; 0 where they need no more replicas.
        reserved: the cost of the capacity in the lost region that is paid for the day, in USD; 0 by the hour.
    """

    assignment: Assignment
    displaced: tuple[float, ...]
    at_once: tuple[float, ...]
    startup_s: float
    reserved: float

    @property
    def cost(self) -> float:
        """The cost of the day in USD, with what is reserved in the lost region."""
        return self.assignment.cost + self.reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The day of a product in several regions.

    Attributes:
        regions: the regions as they were planned.
        specs: by region, the pipeline there.
        alone: every region serves its own users.
        shifted: the cheapest assignment.
        bound: no assignment costs less, in USD for the day, by plans of this optimizer.
        losses: by region, what its loss costs.
        ways_s: the time (s) that the way takes from users to a region that may serve them.
        too_far: the pairs of users and serving region whose way leaves nothing of the SLA.
    """

    regions: tuple[Region, ...]
    specs: Mapping[str, PipelineSpec]
    alone: Assignment
    shifted: Assignment
    bound: float
    losses: Mapping[str, Loss]
    ways_s: Mapping[Pair, float]
    too_far: tuple[Pair, ...] = ()

    @property
    def gained(self) -> float:
        """The load, summed over the steps, that has no place alone and one if it is shifted.

        In the pipeline's unit; 0 within what the solver leaves open.
        """
        gained = self.alone.left - self.shifted.left
        return gained if gained > 2 * (TOLERANCE + GAP * self.alone.left) else 0.0

    @property
    def saving(self) -> float | None:
        """What shifting saves, in USD for the day; None where it serves load that has no place alone."""
        return None if self.gained else self.alone.cost - self.shifted.cost

    def way_s(self, region: str) -> float:
        """Return the time (s) that the ways of the users of `region` take at most: its SLA is shorter by this."""
        return max((self.ways_s[pair] for pair in self.shifted.flows if pair[1] == region), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A region with the costs that were planned for it, for loads up to `most`; `carried` keeps what was computed.

    `bare` is the region without its costs. `reserved` is paid with any load, in USD per hour.
    """

    bare: Region
    spec: PipelineSpec
    problem: Problem
    costs: Costs
    most: float
    reserved: float = 0.0
    carried: dict[tuple[float, float, float], float] = field(default_factory=dict)

    @property
    def region(self) -> Region:
        """The region with the costs of plans."""
        return replace(self.bare, tiers=paid_anyway(self.costs.tiers, self.reserved))

    @property
    def least(self) -> Region:
        """The region with costs that no plan undercuts."""
        return replace(self.bare, tiers=self.costs.least)

    def paid(self, assignment: Assignment) -> float:
        """Return what of the cost in an assignment is paid with any load, in USD per hour."""
        if not self.bare.paid_for_day:
            return 0.0
        return max(step.cost_per_hour for _, step in assignment.steps[self.bare.name])

    def plan(self, tier: Tier, step: Step) -> PipelinePlan:
        """Return the replicas of a step."""
        return self.costs.plan(tier, step)

    def plan_for(self, tier: Tier, load: float) -> PipelinePlan:
        """Return the cheapest replicas for a load that a tier carries, whatever is paid anyway."""
        (steps,) = (each.steps for each in self.costs.tiers if each.way_s == tier.way_s)
        return self.plan(tier, next((step for step in steps if step.load >= load - TOLERANCE), steps[-1]))

    def carries(self, tier: Tier, step: Step, way_s: float) -> float:
        """Return the load that the replicas of a step carry where the furthest users are `way_s` (s) away."""
        at = (tier.way_s, step.load, way_s)
        if at not in self.carried:
            self.carried[at] = carried(
                self.problem, self.spec, self.plan(tier, step), planned_way_s=tier.way_s, way_s=way_s, most=self.most
            )
        # By its plan, which was replayed, a step carries its load, whatever the latency model says.
        return max(self.carried[at], step.load) if way_s <= tier.way_s else self.carried[at]


def study(regions: Regions, *, points: int = POINTS) -> Study:
    """Return what shifting saves over a day, and what each lost region costs.

    `points` loads are planned for each region and way to users.

    Raises:
        NotSolved: the solver found no assignment.
    """
    ways = _ways(regions)
    planned = {cluster.region.name: _planned(regions, cluster, ways, points) for cluster in regions.clusters}
    hour_h = regions.step_s / 3600
    near = {pair: way for pair, way in ways.items() if way.time_s < _sla_s(planned[pair[1]])}
    bound, parts = _refined(planned, near, hour_h)
    tiers = used_tiers([each.region for each in planned.values()], near, parts)
    alone = _assigned(planned, {}, hour_h)
    shifted = _assigned(planned, near, hour_h, tiers=tiers, bound=bound)
    return Study(
        regions=tuple(each.region for each in planned.values()),
        specs={name: each.spec for name, each in planned.items()},
        alone=alone,
        shifted=shifted,
        bound=bound,
        losses={name: _loss(name, planned, near, shifted, hour_h) for name in planned},
        ways_s={pair: way.time_s for pair, way in near.items()} | {(name, name): 0.0 for name in planned},
        too_far=tuple(pair for pair in ways if pair not in near),
    )


def _assigned(planned: Mapping[str, _Planned], ways: Mapping[Pair, Way], hour_h: float, **more: Any) -> Assignment:
    """Return the cheapest assignment that was found, with plans for the loads that it leads to."""
    best: Assignment | None = None
    for _ in range(_PASSES):
        found = assign([each.region for each in planned.values()], ways, may_leave=True, hour_h=hour_h, **more)
        if best is not None and best.cost <= found.cost:
            break
        best = found
        for name, steps in found.steps.items():
            for hour, (tier, _) in enumerate(steps):
                planned[name].costs.add(tier, found.served(name, hour))
    assert best is not None
    return best


def _sla_s(planned: _Planned) -> float:
    return planned.spec.sla.latency_s


def _ways(regions: Regions) -> dict[Pair, Way]:
    """Return the ways from users to the other regions that may serve them."""
    found: dict[Pair, Way] = {}
    for link in regions.file.links:
        way = Way(time_s=duration_s(link.round_trip), price_per_hour=float(link.per_stream_hour))
        first, second = link.between
        for users, to in ((first, second), (second, first)):
            (region,) = (each for each in regions.file.regions if each.name == users)
            if region.served_by is None or to in region.served_by:
                found[users, to] = way
    return found


def _planned(regions: Regions, cluster: Cluster, ways: Mapping[Pair, Way], points: int) -> _Planned:
    """Plan the loads that a region may have to serve."""
    name = cluster.region.name
    problem, spec = problem_of(cluster)
    into = {users: way for (users, to), way in ways.items() if to == name}
    served = [each.loads for each in regions.clusters if each.region.name in {name, *into}]
    most = max(map(sum, zip(*served, strict=True)))
    costs = costs_of(problem, spec, most, sorted({0.0, *(way.time_s for way in into.values())}), points=points)
    kept = 0.0
    if spec.unit is DemandUnit.STREAMS and regions.session_s is not None:
        kept = still_open(regions.session_s, regions.step_s)
    return _Planned(
        bare=Region(
            name=name,
            loads=cluster.loads,
            tiers=(),
            shiftable=cluster.region.shiftable,
            kept=kept,
            paid_for_day=cluster.region.paid == "ForDay",
        ),
        spec=spec,
        problem=problem,
        costs=costs,
        most=most,
    )


def still_open(session_s: float, step_s: float) -> float:
    """Return the share (0–1) of the streams of a step that are open in the next one.

    The number of both is a mean of the step. Lengths are exponential with mean `session_s`, so a stream that is open
    when a step of `step_s` begins is open for (T / s) (1 − exp(−s / T)) of it on average. Times are in seconds.
    """
    return -math.expm1(-step_s / session_s) * session_s / step_s


def _refined(
    planned: Mapping[str, _Planned], ways: Mapping[Pair, Way], hour_h: float
) -> tuple[float, Sequence[Solved]]:
    """Plan more loads where an assignment ends up; return a bound of its cost (USD for the day), and parts of a day.

    The bound is that of costs that no plan undercuts. Where the cheapest assignment by these costs, or by those of
    plans, ends a step, loads are planned until it is known where the step ends: first by the hull of the steps, which
    is solved in a moment, and at last by whole steps in each hour.
    """
    for each in planned.values():
        for load in each.bare.loads:
            each.costs.curves[0].add(load)
    bound = 0.0
    for _ in range(_ROUNDS):
        regions = [each.least for each in planned.values()]
        least = solved(regions, ways, whole=_for_day(regions), left=None, hour_h=hour_h)
        of_plans = [each.region for each in planned.values()]
        before, bound = bound, max(bound, least.bound)
        if bound <= before * (1 + _WORTH):
            break
        _refine(planned, [least, solved(of_plans, ways, whole=_for_day(of_plans), left=None, hour_h=hour_h)])
    if _for_day(regions) or any(map(any, least.unserved.values())):
        return bound, [least]
    parts = hours_apart([each.least for each in planned.values()], ways, hour_h)
    _refine(planned, parts)
    parts = hours_apart([each.least for each in planned.values()], ways, hour_h)
    _refine(planned, parts)
    return max(bound, sum(part.bound for part in parts)), parts


def _refine(planned: Mapping[str, _Planned], parts: Sequence[Solved]) -> None:
    """Plan loads until it is known where the steps end that parts of a day use."""
    for part in parts:
        for name, tier in part.tiers.items():
            planned[name].costs.refine(tier, part.steps[name])


def _for_day(regions: Sequence[Region]) -> set[str]:
    return {region.name for region in regions if region.paid_for_day}


def problem_of(cluster: Cluster) -> tuple[Problem, PipelineSpec]:
    """Return the optimizer's problem of a cluster with its pipeline, without load, and the spec of the pipeline.

    The SLA of both has the latency that users are promised.
    """
    specs, pools = specs_of(cluster.resources)
    if (latency_s := cluster.latency_s) is not None:
        specs = {key: replace(spec, sla=replace(spec.sla, latency_s=latency_s)) for key, spec in specs.items()}
    request = ask(
        specs,
        pools,
        demands=[f"{key}=0" for key in specs],
        budgets=budgets_of(cluster.resources, specs.values()),
    )
    (spec,) = request.specs.values()
    return request.problem, spec


def _loss(
    lost: str, planned: Mapping[str, _Planned], ways: Mapping[Pair, Way], shifted: Assignment, hour_h: float
) -> Loss:
    reserved = {name: each.paid(shifted) for name, each in planned.items()}
    others = {name: replace(each, reserved=reserved[name]) for name, each in planned.items()}
    assignment = _assigned(others, ways, hour_h, lost=lost)
    hours = range(len(planned[lost].bare.loads))
    displaced = [
        {users: loads[hour] for (users, to), loads in shifted.flows.items() if to == lost and loads[hour]}
        for hour in hours
    ]
    startups_s = (_startup_s(each, assignment, shifted) for name, each in planned.items() if name != lost)
    return Loss(
        assignment=assignment,
        displaced=tuple(sum(loads.values()) for loads in displaced),
        at_once=tuple(_at_once(lost, displaced[hour], planned, ways, shifted, hour) for hour in hours),
        startup_s=max(startups_s, default=0.0),
        reserved=reserved[lost] * hour_h * len(hours),
    )


def _at_once(
    lost: str,
    displaced: Mapping[str, float],
    planned: Mapping[str, _Planned],
    ways: Mapping[Pair, Way],
    shifted: Assignment,
    hour: int,
) -> float:
    """Return how much of the displaced load the running replicas of the other regions have room for in an hour."""
    regions = [
        Region(
            name=name,
            loads=(displaced.get(name, 0.0),),
            tiers=() if name == lost else _room(each, ways, shifted, hour),
        )
        for name, each in planned.items()
    ]
    found = assign(regions, ways, lost=lost)
    return sum(displaced.values()) - sum(left for (left,) in found.unserved.values())


def _room(planned: _Planned, ways: Mapping[Pair, Way], shifted: Assignment, hour: int) -> tuple[Tier, ...]:
    """Return how much more the running replicas of a region carry, by how far the users are that it then serves."""
    name = planned.bare.name
    tier, step = shifted.steps[name][hour]
    served = shifted.served(name, hour)
    tiers: list[Tier] = []
    for way_s in sorted({0.0, *(way.time_s for (_, to), way in ways.items() if to == name)}):
        # The furthest users set how much of the SLA is left, and those that it serves already stay.
        carries = planned.carries(tier, step, max(way_s, tier.way_s))
        steps = [Step(load=0.0, cost_per_hour=0.0)]
        if carries > served:
            steps.append(Step(load=carries - served, cost_per_hour=_ALMOST_FREE))
        tiers.append(Tier(way_s=way_s, steps=tuple(steps)))
    return tuple(tiers)


def _startup_s(planned: _Planned, assignment: Assignment, before: Assignment) -> float:
    """Return the longest start-up of the placements of a region that get more replicas than they had."""
    name = planned.bare.name
    startups_s = {
        (stage.name, placement.name): placement.startup_s
        for stage in planned.spec.stages
        for placement in stage.placements
    }
    longest_s = 0.0
    for hour, (then, (tier, _)) in enumerate(zip(before.steps[name], assignment.steps[name], strict=True)):
        had = planned.plan(*then).replicas()
        needed = planned.plan_for(tier, assignment.served(name, hour)).replicas()
        more = [startups_s[key] for key, count in needed.items() if count > had.get(key, 0)]
        longest_s = max(longest_s, *more, 0.0)
    return longest_s
