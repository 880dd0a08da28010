"""Links to replicas in the engine: each is a server in front of its replica, in a stage of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from controller.core.state.spec import PipelineSpec, PlacementSpec, StageSpec
from optimizer.model import Batching, Link, PlacementKey, StageName


@dataclass(frozen=True, slots=True, kw_only=True)
class Linked:
    """A pipeline as the engine plays it: `links` has the key of the link of each placement that has one."""

    pipeline: PipelineSpec
    links: Mapping[PlacementKey, PlacementKey]


def with_links(pipeline: PipelineSpec) -> Linked:
    """Return `pipeline` with a stage for the links to each stage whose items take time on their way."""
    stages: list[StageSpec] = []
    links: dict[PlacementKey, PlacementKey] = {}
    for stage in pipeline.stages:
        link = stage.placements[0].prior.link
        if link is None:
            stages.append(stage)
            continue
        way = _way(stage, link)
        stages += [way, replace(stage, after=(way.name,))]
        links |= {(stage.name, own.name): (way.name, own.name) for own in stage.placements}
    return Linked(pipeline=replace(pipeline, stages=tuple(stages)) if links else pipeline, links=links)


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
        session_slots=None,
        saturation_rps=None,
        link=None,
    )
    return replace(placement, prior=prior)
