"""Which pipelines follow their plan, and which keep the replicas that they have because these are good enough."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from controller.core.assess.assessment import Assessment
from controller.core.bounds.tolerance import good_enough
from controller.core.plan.fleet import FleetPlan
from controller.core.plan.ledger import Ledger
from controller.core.state.policy import Policy
from controller.core.state.spec import StageKey
from optimizer.model import PipelineKey, PlacementKey, StageName
from optimizer.plan import PipelinePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """The pipelines that follow their plan, and the shared stages that do although their pipeline may not."""

    pipelines: Collection[PipelineKey]
    stages: Collection[StageKey]

    def shared(self, owner: PipelineKey) -> frozenset[StageName]:
        """Return the shared stages of `owner` that follow the plan."""
        return frozenset(name for key, name in self.stages if key == owner)


def planned_replicas(assessment: Assessment, plan: PipelinePlan) -> Mapping[PlacementKey, int]:
    """Return the planned replicas of every placement."""
    planned = plan.replicas()
    return {key: planned.get(key, 0) for key in assessment.current}


def following(
    assessments: Sequence[Assessment],
    fleet: FleetPlan,
    ledger: Ledger,
    policy: Policy,
    pressed: Collection[PipelineKey],
    *,
    before: Following | None = None,
    staying: Mapping[PipelineKey, Mapping[PlacementKey, int]] = MappingProxyType({}),
) -> Following:
    """Return which pipelines and shared stages follow the plans.

    The tolerance is for cost alone: the pipelines `pressed`, which hold a share of what the fleet is short of, follow
    even for a smaller saving. A shared stage follows the plan if one of its users does, because that plan needs its
    replicas. A pipeline that would not follow its plan does so if the new replicas of a shared stage no longer suffice
    for its own.

    `staying` has the replicas of pipelines that do not follow, where these are not the current ones. With `before`,
    what followed earlier plans, only these pipelines are looked at again.
    """

    def follows(own: Assessment, moved: Mapping[PlacementKey, int] = MappingProxyType({})) -> bool:
        if own.key in pressed:
            return True
        if before is not None and own.key not in staying and not moved:
            return own.key in before.pipelines
        plan = fleet.plans[own.key]
        planned, current = planned_replicas(own, plan), {**own.current, **moved}
        return planned == current or not good_enough(
            own,
            plan,
            fleet.pipelines[own.key],
            policy.composition,
            planned=planned,
            current=current,
            stays=staying.get(own.key, current),
            cost_per_hour=partial(ledger.cost_of, own),
        )

    sharing = [own for own in assessments if own.acting and own.spec.borrowed]
    lenders = {key for own in sharing for key in own.lenders}
    found = {own.key for own in assessments if follows(own)}
    linked = [own for own in assessments if own.acting and (own.spec.borrowed or own.key in lenders)]
    servers: set[StageKey] = set()
    while linked:
        for own in linked:
            if own.key in found:
                servers.update(_servers(own).values())
        late_now = {own.key for own in linked if own.key not in found and follows(own, _moved(own, fleet, servers))}
        if not late_now:
            break
        found |= late_now
    return Following(pipelines=found, stages=servers)


def _servers(assessment: Assessment) -> Mapping[StageName, StageKey]:
    """Return the shared stages of a pipeline, by their names there, each with the stage that declares it."""
    return {
        stage.name: (stage.sharing.owner, stage.sharing.stage)
        for stage in assessment.pipeline.stages
        if stage.sharing is not None and stage.name not in assessment.missing.owners
    }


def _moved(assessment: Assessment, fleet: FleetPlan, servers: Collection[StageKey]) -> Mapping[PlacementKey, int]:
    """Return the planned replicas of the pipeline's stages that are among the shared stages `servers`."""
    names = {name for name, server in _servers(assessment).items() if server in servers}
    planned = planned_replicas(assessment, fleet.plans[assessment.key])
    return {key: count for key, count in planned.items() if key[0] in names}
