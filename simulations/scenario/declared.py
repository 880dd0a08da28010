"""What a scenario declares to the policies about pipelines whose true service times the simulated servers have."""

from dataclasses import replace

from controller.core.state.spec import (
    UNDECLARED_SERVICE,
    UNDECLARED_STARTUP_S,
    PipelineSpec,
    PlacementSpec,
    StageSpec,
)
from simulations.scenario.scenario import ScenarioFile


def declared(pipeline: PipelineSpec, file: ScenarioFile) -> PipelineSpec:
    """Return `pipeline` as the policies see it: with wrong service times (`profileError`), or without any numbers.

    `hideProfiles` hides service times and start-up times.
    """
    stages = tuple(_stage(pipeline, stage, file) for stage in pipeline.stages)
    return pipeline if stages == pipeline.stages else replace(pipeline, stages=stages)


def _stage(pipeline: PipelineSpec, stage: StageSpec, file: ScenarioFile) -> StageSpec:
    errors = file.profile_error or {}
    factor = errors.get(f"{pipeline.key}/{stage.name}", errors.get(stage.name, 1.0))
    if file.hide_profiles:
        return replace(stage, placements=tuple(_hidden(placement) for placement in stage.placements))
    if factor == 1:
        return stage
    placements = tuple(
        replace(placement, prior=replace(placement.prior, service=placement.prior.service.scaled(factor)))
        for placement in stage.placements
    )
    return replace(stage, placements=placements)


def _hidden(placement: PlacementSpec) -> PlacementSpec:
    return replace(
        placement,
        prior=replace(placement.prior, service=UNDECLARED_SERVICE),
        startup_s=UNDECLARED_STARTUP_S,
        declared=replace(placement.declared, service=False, cv=False, startup=False),
        source=None,
        confidence=None,
    )
