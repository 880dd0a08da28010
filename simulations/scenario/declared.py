"""What a scenario declares to the policies about pipelines whose true service times the servers have.

The simulator hands specs to the policies, the lab applies manifests; both declare the same.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from controller.core.state.spec import (
    UNDECLARED_SERVICE,
    UNDECLARED_STARTUP_S,
    PipelineSpec,
    PlacementSpec,
    StageSpec,
)
from controller.resources.fields import duration_s
from controller.resources.pipeline import SpeechPipeline
from simulations.scenario.scenario import ScenarioFile, of_stage
from simulations.scenario.variants import with_each

_KIND = SpeechPipeline.__name__


def declared(pipeline: PipelineSpec, file: ScenarioFile) -> PipelineSpec:
    """Return `pipeline` as the policies see it: with wrong service times (`profileError`), or without any numbers.

    `hideProfiles` hides service times, start-up times and memory. The routing stays as it follows from the memory.
    """
    stages = tuple(_stage(pipeline, stage, file) for stage in pipeline.stages)
    return pipeline if stages == pipeline.stages else replace(pipeline, stages=stages)


def _stage(pipeline: PipelineSpec, stage: StageSpec, file: ScenarioFile) -> StageSpec:
    if file.hide_profiles:
        return replace(stage, placements=tuple(_hidden(placement) for placement in stage.placements))
    factor = _error(pipeline.key, stage.name, file)
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
        prior=replace(placement.prior, service=UNDECLARED_SERVICE, session_slots=None),
        startup_s=UNDECLARED_STARTUP_S,
        declared=replace(placement.declared, service=False, cv=False, startup=False, memory=False),
        source=None,
        confidence=None,
        cache=None,
    )


def declared_document(document: Mapping[str, Any], file: ScenarioFile) -> Mapping[str, Any]:
    """Return the API object `document` as the policies see it; service times are rounded to microseconds."""
    if document.get("kind") != _KIND:
        return document
    metadata = document["metadata"]
    return _fields(document, f"{metadata.get('namespace') or 'default'}/{metadata['name']}", file)


def declared_patch(name: str, patch: Mapping[str, Any], file: ScenarioFile) -> Mapping[str, Any]:
    """Return the merge patch `patch` of the resource `name` (KIND/[NAMESPACE/]NAME) as `declared_document` does."""
    kind, *namespace, resource = name.split("/")
    return _fields(patch, f"{namespace[0] if namespace else 'default'}/{resource}", file) if kind == _KIND else patch


def _fields(document: Mapping[str, Any], pipeline: str, file: ScenarioFile) -> Mapping[str, Any]:
    stages = (document.get("spec") or {}).get("stages")
    if not stages or not (file.profile_error or file.hide_profiles):
        return document
    return {**document, "spec": {**document["spec"], "stages": [_document(stage, pipeline, file) for stage in stages]}}


def _document(stage: Mapping[str, Any], pipeline: str, file: ScenarioFile) -> Mapping[str, Any]:
    if file.hide_profiles:
        hidden = {"serviceTime", "startup", "memory"}
        placements = [
            with_each(placement, lambda own: {name: value for name, value in own.items() if name not in hidden})
            for placement in stage["placements"]
        ]
        memory = [own.get("memory") for each in stage["placements"] for own in (each, *(each.get("variants") or ()))]
        routing = {"routing": "Sticky"} if any(memory) else {}
        return {**routing, **stage, "placements": placements}
    factor = _error(pipeline, stage["name"], file)
    if factor == 1:
        return stage
    placements = [with_each(each, lambda own: _placement(own, factor)) for each in stage["placements"]]
    return {**stage, "placements": placements}


def _placement(placement: Mapping[str, Any], factor: float) -> Mapping[str, Any]:
    time = placement.get("serviceTime") or {}
    times = ("fixed", "perItem", "floor", "prefill")
    scaled: dict[str, Any] = {name: _scaled(time[name], factor) for name in times if time.get(name)}
    if time.get("points"):
        scaled["points"] = {batch: _scaled(each, factor) for batch, each in time["points"].items()}
    if not scaled:
        return placement
    return {**placement, "serviceTime": {**time, **scaled}}


def _scaled(duration: str, factor: float) -> str:
    """Return a duration times `factor`, in whole microseconds; a time above 0 stays above 0."""
    true_s = duration_s(duration)
    return f"{max(round(1e6 * true_s * factor), 1 if true_s else 0)}us"


def _error(pipeline: str, stage: str, file: ScenarioFile) -> float:
    return of_stage(file.profile_error, pipeline, stage, 1.0)
