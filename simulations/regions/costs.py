"""What a region costs by the load that it serves: plans of the optimizer, from no load to the most it can carry. Pure.

Plans know queues and whole replicas, so the cost rises in steps. A load between two planned ones needs at most the
replicas of the upper one, and costs at least as much as the lower one; so both curves together show how far an
assignment may be from the best. A few loads are planned first, where the two curves are furthest apart; then the loads
at which the costs of an assignment end (`Costs.refine`).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from controller.core.assess.optimizer_input import optimizer_demand
from controller.core.state.spec import DemandUnit, PipelineSpec
from optimizer.allocate import allocate
from optimizer.latency.predict import predicted_latency_s
from optimizer.model import PipelineKey, PlacementKey, Problem
from optimizer.plan import PipelinePlan
from simulations.regions.model import Step, Tier

POINTS = 12
"""So many loads are planned first for each tier."""
MOST_TIERS = 3
"""A region has at most so many tiers; ways of similar length share the plans of the longest of them."""
_NARROWEST = 1 / 400
"""Loads closer to each other than this share of the highest one are not told apart."""
_FINE = 1 / 100
"""Where a cost ends is known to within this share of the load there."""
_LIMIT = 1 - 1e-3
"""Where a plan serves only a part of a load, this share of the part is planned next."""
_REFUSED = 1 + 1e-3
"""So many times the part that was served cannot be carried: a plan serves the largest part that can be."""
_DIGITS = 4
"""Planned loads have so many significant digits, and streams are whole."""
_HALVINGS = 20
_SAME = 1e-9
"""Costs closer than this (USD per hour) are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """The plan for a load (in the pipeline's unit); None where not all of the load can be served."""

    load: float
    plan: PipelinePlan | None

    @property
    def step(self) -> Step:
        assert self.plan is not None
        return Step(load=self.load, cost_per_hour=self.plan.cost_per_hour)


class Curve:
    """The costs of the pipeline `spec`, the only one of `problem`, where the way to users takes `way_s` (s).

    Loads are in the pipeline's unit, from 0 to `most`. Loads are planned as they are asked for.
    """

    def __init__(self, problem: Problem, spec: PipelineSpec, most: float, way_s: float) -> None:
        (self._pipeline,) = problem.pipelines
        self._problem, self._spec, self._most = problem, spec, most
        self.way_s = way_s
        self._sla = replace(self._pipeline.sla, latency_s=self._pipeline.sla.latency_s - way_s)
        self._found: dict[float, _Planned] = {}
        streams = spec.unit is DemandUnit.STREAMS
        self._grain = 1.0 if streams else 10.0 ** (math.floor(math.log10(most or 1.0)) + 1 - _DIGITS)

    def spread(self, points: int) -> None:
        """Plan no load, the most, and up to `points` loads between them, where the cost is least known."""
        self.add(0.0)
        if self._most <= 0:
            return
        if part := self.add(self._most):
            self.add(part * _LIMIT, down=True)
            self._found.setdefault(part * _REFUSED, _Planned(load=part * _REFUSED, plan=None))
        narrowest = max(self._most * _NARROWEST, self._grain)
        while len(self._found) < points and (widest := _widest(self._planned(), narrowest)) is not None:
            self.add(widest, down=True)

    def add(self, load: float, *, down: bool = False) -> float | None:
        """Plan a load, rounded up; return the largest part of it that can be served where that is less."""
        load = (math.floor(load / self._grain) if down else math.ceil(load / self._grain - _SAME)) * self._grain
        if load in self._found:
            return None
        asked = replace(self._pipeline, demand=optimizer_demand(self._spec, load), sla=self._sla)
        plan = allocate(replace(self._problem, pipelines=(asked,))).of(PipelineKey(self._spec.key))
        # No load at all needs the least replicas that the manifest states, whatever their latency.
        served = plan.feasible or load <= 0
        self._found[load] = _Planned(load=load, plan=plan if served else None)
        return None if served else load * plan.served_fraction

    def refine(self, cost_per_hour: float) -> None:
        """Plan loads until it is known where the plans for a cost (USD per hour), and cheaper ones, end."""
        while True:
            ascending = self._planned()
            within = [each for each in ascending if each.plan and each.step.cost_per_hour <= cost_per_hour + _SAME]
            if len(within) in {0, len(ascending)}:
                return
            low, high = within[-1].load, ascending[len(within)].load
            middle = math.floor((low + high) / 2 / self._grain) * self._grain
            if high - low <= max(self._grain, _FINE * high) or middle in self._found:
                return
            self.add(middle)

    def steps(self) -> tuple[Step, ...]:
        """Return the costs of plans: a load between two planned ones gets the plan of the upper one."""
        return _rising(each.step for each in self._planned() if each.plan is not None)

    def least(self) -> tuple[Step, ...]:
        """Return costs that no plan undercuts at any load."""
        ascending = self._planned()
        steps = [each.step for each in ascending if each.plan is not None]
        return _rising(_undercut(steps, [each.load for each in ascending]))

    def plan(self, load: float) -> PipelinePlan:
        """Return the plan for a load that was planned and can be served."""
        plan = self._found[load].plan
        assert plan is not None
        return plan

    def _planned(self) -> list[_Planned]:
        """Return the plans in ascending order of their loads, up to the first load that cannot be carried."""
        ascending = [self._found[load] for load in sorted(self._found)]
        refused = next((index for index, each in enumerate(ascending) if each.plan is None), len(ascending))
        return ascending[: refused + 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of a region: a curve for each tier, and the longest way (s) that no curve before the next one has.

    A way between those of two curves has the costs of the later one, and costs at least those of the earlier one.
    """

    curves: tuple[Curve, ...]
    reach_s: tuple[float, ...]

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The costs of plans."""
        return tuple(Tier(way_s=curve.way_s, steps=curve.steps()) for curve in self.curves)

    @property
    def least(self) -> tuple[Tier, ...]:
        """Costs that no plan undercuts. What a load costs for near users, it costs at least for far ones."""
        tiers: list[Tier] = []
        for curve, reach_s in zip(self.curves, self.reach_s, strict=True):
            steps = _higher(curve.least(), tiers[-1].steps) if tiers else curve.least()
            tiers.append(Tier(way_s=reach_s, steps=steps))
        return tuple(tiers)

    def plan(self, tier: Tier, step: Step) -> PipelinePlan:
        """Return the replicas of a step of `tiers`."""
        return self._curve(tier).plan(step.load)

    def add(self, tier: Tier, load: float) -> None:
        """Plan a load on a tier of `tiers`."""
        self._curve(tier).add(load)

    def refine(self, tier: int, steps: Iterable[Step]) -> None:
        """Plan loads until it is known where the costs of `steps` of a tier end."""
        for cost_per_hour in sorted({step.cost_per_hour for step in steps}):
            self.curves[tier].refine(cost_per_hour)

    def _curve(self, tier: Tier) -> Curve:
        (curve,) = (curve for curve in self.curves if curve.way_s == tier.way_s)
        return curve


def costs_of(
    problem: Problem, spec: PipelineSpec, most: float, ways_s: Sequence[float], *, points: int = POINTS
) -> Costs:
    """Return the costs of the pipeline `spec`, the only one of `problem`, for loads from 0 to `most`.

    `most` is in the pipeline's unit. `ways_s` are the times (s) that the ways to users take, ascending from 0; one that
    leaves nothing of the SLA has no tier. `points` loads are planned for each tier.
    """
    near = [way_s for way_s in ways_s if way_s < _sla_s(problem)]
    chosen = tier_ways(near)
    curves = tuple(Curve(problem, spec, most, way_s) for way_s in chosen)
    for curve in curves:
        curve.spread(points)
    ends = [*chosen[1:], math.inf]
    return Costs(curves=curves, reach_s=tuple(max(way_s for way_s in near if way_s < end) for end in ends))


def paid_anyway(tiers: Iterable[Tier], cost_per_hour: float) -> tuple[Tier, ...]:
    """Return the costs where `cost_per_hour` (USD) is paid with any load: the steps below it become one."""
    return tuple(
        Tier(
            way_s=tier.way_s,
            steps=_rising(replace(step, cost_per_hour=max(step.cost_per_hour, cost_per_hour)) for step in tier.steps),
        )
        for tier in tiers
    )


def tier_ways(ways_s: Sequence[float]) -> list[float]:
    """Return the ways (s), at most `MOST_TIERS`, that stand for `ways_s`, which ascend from 0.

    Of two that are close, the longer one stays. The first stays: a region serves its own users.
    """
    chosen = list(ways_s)
    while len(chosen) > MOST_TIERS:
        closest = min(range(1, len(chosen) - 1), key=lambda index: chosen[index + 1] - chosen[index])
        del chosen[closest]
    return chosen


def carried(
    problem: Problem, spec: PipelineSpec, plan: PipelinePlan, *, planned_way_s: float, way_s: float, most: float
) -> float:
    """Return how much load, up to `most`, the replicas of a plan carry where the way to users takes `way_s` (s).

    The plan was made for a way of `planned_way_s`. Its latency is that of the latency model, against the target that
    the replay of the plan led to. Loads are in the pipeline's unit.
    """
    target_s = plan.replay.target_latency_s or _sla_s(problem) - planned_way_s
    limit_s = target_s - (way_s - planned_way_s)
    replicas, batches = plan.replicas(), _batches(plan)
    (pipeline,) = problem.pipelines

    def in_time(load: float) -> bool:
        asked = replace(pipeline, demand=optimizer_demand(spec, load))
        found_s = predicted_latency_s(asked, replicas, batches, composition=problem.composition)
        return found_s is not None and found_s <= limit_s

    if in_time(most):
        return most
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if in_time(middle) else (low, middle)
    return low


def _sla_s(problem: Problem) -> float:
    (pipeline,) = problem.pipelines
    return pipeline.sla.latency_s


def _batches(plan: PipelinePlan) -> dict[PlacementKey, int]:
    return {(stage.name, placement.name): placement.batch for stage in plan.stages for placement in stage.placements}


def _widest(ascending: Sequence[_Planned], narrowest: float) -> float | None:
    """Return the load in the middle of the two planned ones between which the cost is least known; None: none is."""
    best, chosen = 0.0, None
    for low, high in pairwise(ascending):
        width = high.load - low.load
        if high.plan is None or width <= 2 * narrowest:
            continue
        unknown = (high.step.cost_per_hour - low.step.cost_per_hour) * width
        if unknown > best:
            best, chosen = unknown, (low.load + high.load) / 2
    return chosen


def _rising(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the steps without those that cost as much as a later one: it carries their load too."""
    kept: list[Step] = []
    for step in steps:
        while kept and kept[-1].cost_per_hour >= step.cost_per_hour:
            kept.pop()
        kept.append(step)
    return tuple(kept)


def _higher(steps: Sequence[Step], others: Sequence[Step]) -> tuple[Step, ...]:
    """Return the higher of two costs at every load that both carry."""
    most = min(steps[-1].load, others[-1].load)
    loads = sorted({step.load for step in (*steps, *others) if step.load <= most})
    return _rising(Step(load=load, cost_per_hour=max(_at(steps, load), _at(others, load))) for load in loads)


def _at(steps: Sequence[Step], load: float) -> float:
    return next(step.cost_per_hour for step in steps if step.load >= load)


def _undercut(steps: Sequence[Step], loads: Sequence[float]) -> Iterator[Step]:
    """Yield for every load the cost of the load before, also for the first that could not be carried."""
    if len(loads) == 1:  # there is no load to serve
        yield from steps
    for step, load in zip(steps, loads[1:], strict=False):
        yield Step(load=load, cost_per_hour=step.cost_per_hour)
