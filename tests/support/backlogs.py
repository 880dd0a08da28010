"""Pipelines with a backlog: one stage `asr`, on pool gpu, where a replica does an item in two seconds."""

from dataclasses import replace

from builders import a_placement, a_scaling, a_spec, a_stage

from controller.core.state.spec import BELOW_LIVE, NO_SLA_S, BacklogSpec, DemandUnit, PipelineSpec, PlacementSpec
from optimizer.model import PlacementKey, PoolName, StageName

ASR: PlacementKey = (StageName("asr"), PoolName("gpu"))
ITEM_S = 2.0


def a_backlog(
    *placements: PlacementSpec,
    due_s: float | None = None,
    within_s: float | None = None,
    shares_fragile: bool = False,
    name: str = "archive",
    budget: float = 100.0,
    priority: int = 0,
) -> PipelineSpec:
    spec = a_spec(
        a_stage("asr", *(placements or (a_placement("gpu", service_s=ITEM_S),))),
        name=name,
        sla_s=NO_SLA_S,
        budget=budget,
        scaling=replace(a_scaling(), idle_after_s=0.0),
    )
    backlog = BacklogSpec(deadline_s=due_s, within_s=within_s, shares_fragile=shares_fragile)
    return replace(spec, unit=DemandUnit.ITEMS, priority=priority - BELOW_LIVE, backlog=backlog)
