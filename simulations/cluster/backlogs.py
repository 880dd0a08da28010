"""Backlogs in a simulated run: an item is in time where it is done by the deadline."""

from dataclasses import replace

from controller.core.state.spec import PipelineSpec
from controller.resources.fields import duration_s
from optimizer.model import Sla
from simulations.scenario.scenario import ScenarioFile

PERCENTILE = 99.0
"""Of the items of a backlog, so many percent must be done by the deadline for the score of the run."""
_LEAST_S = 1.0


def with_deadline(pipeline: PipelineSpec, file: ScenarioFile) -> PipelineSpec:
    """Return `pipeline` for the engine: with the time from the first items of its backlog to its deadline as SLA."""
    backlog = pipeline.backlog
    if backlog is None:
        return pipeline
    starts = [duration_s(load.backlog.at) for load in file.load if load.pipeline == pipeline.key and load.backlog]
    first_s = min(starts, default=0.0)
    latency_s = max(_LEAST_S, backlog.due_s(first_s) - first_s)
    return replace(pipeline, sla=Sla(latency_s=latency_s, percentile=PERCENTILE))
