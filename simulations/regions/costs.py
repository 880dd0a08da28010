"""What a region costs by the load that it serves: plans of the optimizer, from no load to the most it can carry. Pure.

Plans know queues and whole replicas, so the cost rises in steps. A load between two planned ones needs at most the
replicas of the upper one, and costs at least as much as the lower one; so both curves together show how far an
assignment may be from the best.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from controller.core.assess.optimizer_input import optimizer_demand
from controller.core.state.spec import PipelineSpec
from optimizer.allocate import allocate
from optimizer.model import PipelineKey, Problem
from simulations.regions.assignment import Step, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of a region: `tiers` as plans have them, and `least`, which no plan undercuts at any load."""

    tiers: tuple[Tier, ...]
    least: tuple[Tier, ...]


def costs_of(problem: Problem, spec: PipelineSpec, loads: Iterable[float], ways_s: Sequence[float]) -> Costs:
    """Return the costs of the pipeline `spec`, the only one of `problem`.

    `loads` are those to plan for, in the pipeline's unit. `ways_s` are the times (s) that the ways to users take,
    ascending from 0; one that leaves nothing of the SLA has no load but 0.
    """
    chosen = sorted({0.0, *loads})
    found = [_planned(problem, spec, chosen, way_s) for way_s in ways_s]
    return Costs(
        tiers=tuple(Tier(way_s=way_s, steps=_rising(plans)) for way_s, plans in zip(ways_s, found, strict=True)),
        least=tuple(
            Tier(way_s=way_s, steps=_rising(_undercut(plans, chosen)))
            for way_s, plans in zip(ways_s, found, strict=True)
        ),
    )


def _planned(problem: Problem, spec: PipelineSpec, loads: Sequence[float], way_s: float) -> list[Step]:
    """Return the plans of `loads` up to the first that cannot be carried; always that of no load."""
    steps: list[Step] = []
    (pipeline,) = problem.pipelines
    left_s = pipeline.sla.latency_s - way_s
    for load in loads:
        if load and left_s <= 0:
            break
        sla = pipeline.sla if left_s <= 0 else replace(pipeline.sla, latency_s=left_s)
        asked = replace(pipeline, demand=optimizer_demand(spec, load), sla=sla)
        plan = allocate(replace(problem, pipelines=(asked,)))
        mine = plan.of(PipelineKey(spec.key))
        if load and not mine.feasible:
            break
        steps.append(Step(load=load, cost_per_hour=mine.cost_per_hour))
    return steps


def _rising(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the steps without those that cost as much as a later one: it carries their load too."""
    kept: list[Step] = []
    for step in steps:
        first = kept[:1]
        while len(kept) > 1 and kept[-1].cost_per_hour >= step.cost_per_hour:
            kept.pop()
        if first and kept == first and first[0].cost_per_hour >= step.cost_per_hour:
            kept = []
        kept.append(step)
    return tuple(kept)


def _undercut(steps: Sequence[Step], loads: Sequence[float]) -> Iterator[Step]:
    """Yield for every load the cost of the load before, also for the first that could not be carried."""
    yield steps[0]
    for step, load in zip(steps, loads[1:], strict=False):
        yield Step(load=load, cost_per_hour=step.cost_per_hour)
