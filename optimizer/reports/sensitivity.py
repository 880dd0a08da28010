"""How much a plan hangs on each service time: what it would cost if a stage's service time were shorter or longer."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from optimizer.allocate import allocate
from optimizer.model import Pipeline, PipelineKey, Problem, Stage, StageName
from optimizer.plan import Plan

SERVICE_TIME_SHARE = 0.5
"""The share by which the service times are varied, down and up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSensitivity:
    """The plans for the same load with the service time of one stage `share` (0–1) shorter, and as much longer."""

    pipeline: PipelineKey
    stage: StageName
    share: float
    shorter: Plan
    longer: Plan


def service_time_sensitivity(problem: Problem, share: float = SERVICE_TIME_SHARE) -> Iterator[StageSensitivity]:
    """Yield what the plan would be with another service time of each stage, on all its pools, one stage at a time.

    It takes two searches for each stage. Stages that pipelines share are left out.
    """
    plan = allocate(problem)
    for pipeline in problem.pipelines:
        for stage in pipeline.stages:
            if stage.sharing is None:
                yield StageSensitivity(
                    pipeline=pipeline.key,
                    stage=stage.name,
                    share=share,
                    shorter=_cheaper(plan, allocate(_with_stage(problem, pipeline, _slowed(stage, 1 - share)))),
                    longer=allocate(_with_stage(problem, pipeline, _slowed(stage, 1 + share))),
                )


def _cheaper(plan: Plan, found: Plan) -> Plan:
    """Return `found`, or `plan` where it is cheaper: it keeps the SLA with shorter service times, too.

    A replay is exact to a few percent, so that a plan near the SLA may pass with one service time only.
    """
    return plan if plan.feasible and (not found.feasible or plan.cost_per_hour < found.cost_per_hour) else found


def _slowed(stage: Stage, factor: float) -> Stage:
    """Return the stage with all service times multiplied; an observed saturation rate was of the other service time."""
    return replace(
        stage,
        placements=tuple(
            replace(placement, service=placement.service.scaled(factor), saturation_rps=None)
            for placement in stage.placements
        ),
    )


def _with_stage(problem: Problem, pipeline: Pipeline, stage: Stage) -> Problem:
    stages = tuple(stage if own.name == stage.name else own for own in pipeline.stages)
    changed = replace(pipeline, stages=stages)
    return replace(problem, pipelines=tuple(changed if own.key == pipeline.key else own for own in problem.pipelines))
