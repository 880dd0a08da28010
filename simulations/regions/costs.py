"""What a region costs by the load that it serves: plans of the optimizer, from no load to the most it can carry. Pure.

Plans know queues and whole replicas, so the cost rises in steps. A load between two planned ones needs at most the
replicas of the upper one, and costs at least as much as the lower one; so both curves together show how far an
assignment may be from the best. Loads are planned where the two curves are furthest apart.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from controller.core.assess.optimizer_input import optimizer_demand
from controller.core.state.spec import DemandUnit, PipelineSpec
from optimizer.allocate import allocate
from optimizer.latency.predict import predicted_latency_s
from optimizer.model import PipelineKey, PlacementKey, Problem
from optimizer.plan import PipelinePlan
from simulations.regions.model import Step, Tier

POINTS = 48
"""So many loads are planned for each way to users."""
_NARROWEST = 1 / 400
"""Loads closer to each other than this share of the highest one are not told apart."""
_LIMIT = 1 - 1e-3
"""Where a plan serves only a part of a load, this share of the part is planned next."""
_REFUSED = 1 + 1e-3
"""So many times the part that was served cannot be carried: a plan serves the largest part that can be."""
_DIGITS = 4
"""Planned loads have so many significant digits, and streams are whole."""
_HALVINGS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of a region: `tiers` as plans have them, and `least`, which no plan undercuts at any load.

    `plans` has the plan of each step of `tiers`, by the way (s) of its tier and its load.
    """

    tiers: tuple[Tier, ...]
    least: tuple[Tier, ...]
    plans: Mapping[tuple[float, float], PipelinePlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """The plan for a load (in the pipeline's unit); None where not all of the load can be served."""

    load: float
    plan: PipelinePlan | None

    @property
    def step(self) -> Step:
        assert self.plan is not None
        return Step(load=self.load, cost_per_hour=self.plan.cost_per_hour)


def costs_of(
    problem: Problem, spec: PipelineSpec, most: float, ways_s: Sequence[float], *, points: int = POINTS
) -> Costs:
    """Return the costs of the pipeline `spec`, the only one of `problem`, for loads from 0 to `most`.

    `most` is in the pipeline's unit. `ways_s` are the times (s) that the ways to users take, ascending from 0; one that
    leaves nothing of the SLA has no tier. `points` loads are planned for each way.
    """
    tiers: list[Tier] = []
    least: list[Tier] = []
    plans: dict[tuple[float, float], PipelinePlan] = {}
    for way_s in ways_s:
        if way_s >= _sla_s(problem):
            break
        found = _planned(problem, spec, most, way_s, points)
        served = [each for each in found if each.plan is not None]
        steps = [each.step for each in served]
        tiers.append(Tier(way_s=way_s, steps=_rising(steps)))
        least.append(Tier(way_s=way_s, steps=_rising(_undercut(steps, [each.load for each in found]))))
        plans |= {(way_s, each.load): each.plan for each in served if each.plan is not None}
    return Costs(tiers=tuple(tiers), least=tuple(least), plans=plans)


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


def _planned(problem: Problem, spec: PipelineSpec, most: float, way_s: float, points: int) -> list[_Planned]:
    """Return plans of loads, ascending from 0, up to the first that cannot be carried."""
    (pipeline,) = problem.pipelines
    sla = replace(pipeline.sla, latency_s=pipeline.sla.latency_s - way_s)
    found: dict[float, _Planned] = {}
    grain = 1.0 if spec.unit is DemandUnit.STREAMS else 10.0 ** (math.floor(math.log10(most or 1.0)) + 1 - _DIGITS)

    def add(load: float) -> float | None:
        """Plan a load; return the largest part of it that can be served where that is less."""
        asked = replace(pipeline, demand=optimizer_demand(spec, load), sla=sla)
        plan = allocate(replace(problem, pipelines=(asked,))).of(PipelineKey(spec.key))
        # No load at all needs the least replicas that the manifest states, whatever their latency.
        served = plan.feasible or load <= 0
        found[load] = _Planned(load=load, plan=plan if served else None)
        return None if served else load * plan.served_fraction

    add(0.0)
    if most <= 0:
        return _until_refused(found)
    if part := add(math.ceil(most / grain) * grain):
        add(math.floor(part * _LIMIT / grain) * grain)
        found.setdefault(part * _REFUSED, _Planned(load=part * _REFUSED, plan=None))
    narrowest = max(most * _NARROWEST, grain)
    while len(found) < points and (widest := _widest(_until_refused(found), narrowest)) is not None:
        add(math.floor(widest / grain) * grain)
    return _until_refused(found)


def _until_refused(found: Mapping[float, _Planned]) -> list[_Planned]:
    """Return the plans in ascending order of their loads, up to the first load that cannot be carried."""
    ascending = [found[load] for load in sorted(found)]
    refused = next((index for index, each in enumerate(ascending) if each.plan is None), len(ascending))
    return ascending[: refused + 1]


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


def _undercut(steps: Sequence[Step], loads: Sequence[float]) -> Iterator[Step]:
    """Yield for every load the cost of the load before, also for the first that could not be carried."""
    for step, load in zip(steps, loads[1:], strict=False):
        yield Step(load=load, cost_per_hour=step.cost_per_hour)
