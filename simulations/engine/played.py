"""A pipeline as the kernel plays it: with a stage for the links to replicas, and for the first models of cascades."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from controller.core.state.spec import PipelineSpec, PlacementSpec, StageSpec
from optimizer.model import Batching, Link, PlacementKey, StageName


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A pipeline as the kernel plays it.

    `own` has the key there of each declared placement, `links` that of the link of each that has one. `first` has the
    stage of the first models of each stage with a cascade. `takes` has the share of the items that take the links of a
    stage of these, where not all do.
    """

    pipeline: PipelineSpec
    own: Mapping[PlacementKey, PlacementKey]
    links: Mapping[PlacementKey, PlacementKey]
    first: Mapping[StageName, StageName]
    takes: Mapping[StageName, float]


def played(pipeline: PipelineSpec) -> Played:
    """Return `pipeline` as the kernel plays it.

    In front of a stage with a cascade comes one with its first placements; in front of a stage whose items take time on
    their way, one with the links.
    """
    stages: list[StageSpec] = []
    own: dict[PlacementKey, PlacementKey] = {}
    links: dict[PlacementKey, PlacementKey] = {}
    first: dict[StageName, StageName] = {}
    takes: dict[StageName, float] = {}
    for declared in pipeline.stages:
        tiers = [declared]
        if declared.cascade is not None:
            tiers = _tiers(declared, declared.cascade.to)
            first[declared.name] = tiers[0].name
        for stage in tiers:
            own |= {(declared.name, placement.name): (stage.name, placement.name) for placement in stage.placements}
            link = stage.placements[0].prior.link
            if link is None:
                stages.append(stage)
                continue
            way = _way(stage, link)
            takes[way.name] = link.share
            stages += [way, replace(stage, after=(way.name,))]
            links |= {(declared.name, placement.name): (way.name, placement.name) for placement in stage.placements}
    changed = links or first
    return Played(
        pipeline=replace(pipeline, stages=tuple(stages)) if changed else pipeline,
        own=own,
        links=links,
        first=first,
        takes=takes,
    )


def _tiers(stage: StageSpec, to: str) -> list[StageSpec]:
    before = replace(
        stage,
        name=StageName(f"{stage.name} first"),
        pass_ratio=1.0,
        placements=tuple(placement for placement in stage.placements if placement.name != to),
    )
    then = tuple(placement for placement in stage.placements if placement.name == to)
    return [before, replace(stage, after=(before.name,), placements=then)]


def _way(stage: StageSpec, link: Link) -> StageSpec:
    return replace(
        stage,
        name=StageName(f"{stage.name} link"),
        pass_ratio=1.0,
        routing=stage.routing.of_links,
        queue_limit=None,
        rules=(),
        placements=tuple(_on_the_way(own, link) for own in stage.placements),
    )


def _on_the_way(placement: PlacementSpec, link: Link) -> PlacementSpec:
    prior = replace(
        placement.prior,
        service=link.law,
        concurrency=1,
        batching=Batching.DYNAMIC,
        batch_sizes=(1,),
        batch_wait_s=0.0,
        batch_waits_s=(),
        session_slots=None,
        saturation_rps=None,
        link=None,
    )
    return replace(placement, prior=prior)
