"""What Sluice cannot or may not write: pipelines that do not act, missing workloads and pools, replicas of others."""

from collections.abc import Iterator, Mapping

from controller.core.assess.assessment import Assessment
from controller.core.messages import details
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.decision import Hold, HoldReason
from controller.core.state.snapshot import TargetMissing
from controller.core.state.spec import Mode
from optimizer.model import PlacementKey, pool_of

NOT_ACTING = Mechanism(
    name="mode, pause and conflict",
    level=Level.NOT_OURS,
    evidence=Evidence.PERSON,
    does="a pipeline that is paused, only recommends, or is scaled by another controller is not changed",
    planned=False,
)
TARGETS = Mechanism(
    name="missing workload",
    level=Level.NOT_OURS,
    evidence=Evidence.PLACEMENT,
    does="a stage with a workload that cannot be read or scaled stays as it is",
    planned=False,
)
BORROWED = Mechanism(
    name="shared stage of another pipeline",
    level=Level.NOT_OURS,
    evidence=Evidence.OTHER_PIPELINE,
    does="the replicas of a shared stage are changed by the pipeline that declares it",
    planned=False,
)
POOLS = Mechanism(
    name="missing pool",
    level=Level.NOT_OURS,
    evidence=Evidence.POOL,
    does="replicas on a pool that does not exist stay as they are, because their cost is not known",
)
SPEND = Mechanism(
    name="spend not known",
    level=Level.CAP,
    evidence=Evidence.PIPELINE,
    does="while the cost of a part of the pipeline is not known, no replica is added: spend may be at the cap already",
    planned=False,
)


def bounds(assessment: Assessment) -> Iterator[Bound]:
    """Yield the bounds of the placements that stay as they are, or get no more replicas."""
    unread = {stage for stage, _ in assessment.missing.targets}
    spend_unknown = _spend_unknown(assessment)
    why = next(acting_holds(assessment, {}), None)

    def exactly(mechanism: Mechanism, key: PlacementKey, hold: Hold | None = None) -> Bound:
        count = assessment.current[key]
        return mechanism.on(key, least=count, most=count, hold=hold)

    for key, count in assessment.current.items():
        if not assessment.acting:
            yield exactly(NOT_ACTING, key, why)
        if key[0] in assessment.spec.borrowed:
            yield exactly(BORROWED, key)
        if key[0] in unread:
            yield exactly(TARGETS, key, Hold(reason=HoldReason.TARGET_MISSING, stage=key[0], placement=key[1]))
        if pool_of(key[1]) in assessment.missing.pools:
            yield exactly(POOLS, key, Hold(reason=HoldReason.POOL_NOT_FOUND, stage=key[0], placement=key[1]))
        if spend_unknown:
            yield SPEND.on(key, most=count)


def _spend_unknown(assessment: Assessment) -> bool:
    """Whether the spend is unknown: a workload cannot be read, or it has replicas on a pool that does not exist."""
    if not (assessment.missing.targets or assessment.missing.pools):
        return False
    own = (key for key in assessment.spec.placement_keys() if key[0] not in assessment.spec.borrowed)
    targets = {key: assessment.state.target(*key) for key in own}
    return any(
        target.unreadable
        if isinstance(target, TargetMissing)
        else pool_of(key[1]) in assessment.missing.pools
        and max(target.desired, target.existing + target.terminating) > 0
        for key, target in targets.items()
    )


def acting_holds(assessment: Assessment, replicas: Mapping[PlacementKey, int]) -> Iterator[Hold]:
    """Yield why nothing of the pipeline is written. It would go to `replicas` in this cycle if it acted."""
    conflicts = [
        Hold(reason=HoldReason.CONFLICT, stage=stage, detail=details.conflict(name, cause))
        for (stage, name), cause in assessment.conflicting.items()
    ]
    if assessment.spec.mode is Mode.PAUSED:
        pause = assessment.spec.overrides.pause
        until_s = None if pause is None else pause.until_s
        yield Hold(reason=HoldReason.PAUSED, until_s=until_s, detail=details.paused(pause))
    elif assessment.spec.mode is Mode.RECOMMEND:
        followers = assessment.state.followers
        if any(count != assessment.current[key] for key, count in replicas.items() if key not in followers):
            yield Hold(reason=HoldReason.RECOMMEND_ONLY)
        for key, by in followers.items():
            if key not in assessment.conflicting:
                yield Hold(reason=HoldReason.FOLLOWED, stage=key[0], detail=details.followed(key[1], by))
    yield from conflicts


def holds(assessment: Assessment) -> Iterator[Hold]:
    """Yield a hold for every shared stage whose owner does not act."""
    for stage, (owner, name) in assessment.spec.borrowed.items():
        if stage in assessment.missing.owners:
            detail = details.owner_not_acting(owner, name)
            yield Hold(reason=HoldReason.OWNER_NOT_ACTING, stage=stage, detail=detail)


def missing_pool_holds(assessment: Assessment) -> Iterator[Hold]:
    """Yield a hold for every placement whose pool does not exist."""
    for stage, name in assessment.current:
        if pool_of(name) in assessment.missing.pools:
            yield Hold(reason=HoldReason.POOL_NOT_FOUND, stage=stage, placement=name)


def missing_target_holds(assessment: Assessment) -> Iterator[Hold]:
    """Yield a hold for every placement whose workload cannot be read or scaled."""
    for (stage, pool), reason in assessment.missing.targets.items():
        yield Hold(reason=HoldReason.TARGET_MISSING, stage=stage, placement=pool, detail=reason)
