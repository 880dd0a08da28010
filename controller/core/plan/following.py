"""Which pipelines follow their plan, and which keep the replicas that they have because these are good enough."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from controller.core.assess.assessment import Assessment
from controller.core.bounds.tolerance import good_enough
from controller.core.plan.fleet import FleetPlan
from controller.core.plan.ledger import Ledger
from controller.core.state.policy import Policy
from controller.core.state.spec import PlacementKey, StageKey
from optimizer.model import Basis, PipelineKey, StageName
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
) -> Following:
    """Return which pipelines and shared stages follow the plans.

    The tolerance is for cost alone: the pipelines `pressed`, which hold a share of what the fleet is short of, follow
    even for a smaller saving. A shared stage follows the plan if one of its users does, because that plan needs its
    replicas. A pipeline that would not follow its plan does so if the new replicas of a shared stage no longer suffice
    for its own.
    """
    sharing = [assessment for assessment in assessments if assessment.acting and assessment.spec.borrowed]
    lenders = {key for assessment in sharing for key in assessment.lenders}
    follows = {own.key for own in assessments if own.key in pressed or follows_plan(own, fleet, ledger, policy)}
    linked = [own for own in assessments if own.acting and (own.spec.borrowed or own.key in lenders)]
    servers: set[StageKey] = set()
    while linked:
        for assessment in linked:
            if assessment.key in follows:
                servers.update(_servers(assessment).values())
        late_now = {
            own.key
            for own in linked
            if own.key not in follows and follows_plan(own, fleet, ledger, policy, _moved(own, fleet, servers))
        }
        if not late_now:
            break
        follows |= late_now
    return Following(pipelines=follows, stages=servers)


def refollowed(
    before: Following,
    assessments: Sequence[Assessment],
    fleet: FleetPlan,
    changed: Mapping[PipelineKey, Mapping[PlacementKey, int]],
    ledger: Ledger,
    policy: Policy,
    pressed: Collection[PipelineKey],
) -> Following:
    """Return which pipelines follow the plans of `fleet`, which has other plans than `before` for those of `changed`.

    `changed` has the replicas that each of these would have if it kept its own, and met its floors with more.
    """
    again = {
        own.key
        for own in assessments
        if own.key in changed
        and (own.key in pressed or follows_plan(own, fleet, ledger, policy, stays=changed[own.key]))
    }
    return Following(pipelines=(set(before.pipelines) - changed.keys()) | again, stages=before.stages)


def follows_plan(
    assessment: Assessment,
    fleet: FleetPlan,
    ledger: Ledger,
    policy: Policy,
    moved: Mapping[PlacementKey, int] | None = None,
    stays: Mapping[PlacementKey, int] | None = None,
) -> bool:
    """Return whether a pipeline follows its plan, where the replicas of shared stages are going to be those `moved`.

    `stays` has the replicas that it has if it does not, None: the current ones.
    """

    def cost_per_hour(replicas: Mapping[PlacementKey, int]) -> float:
        if assessment.spec.basis is Basis.INSTANCES:
            return ledger.cost_with(assessment.key, replicas)
        prices = ledger.replica_prices_per_hour(assessment)
        return sum(prices[key] * count for key, count in replicas.items())

    plan = fleet.plans[assessment.key]
    planned, current = planned_replicas(assessment, plan), {**assessment.current, **(moved or {})}
    return planned == current or not good_enough(
        assessment,
        plan,
        fleet.pipelines[assessment.key],
        policy.composition,
        planned=planned,
        current=current,
        stays=current if stays is None else stays,
        cost_per_hour=cost_per_hour,
    )


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
