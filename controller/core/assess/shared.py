"""Stages that several pipelines use: the load of all, and how their cost is split.

Such a stage is declared by one pipeline, its owner, which scales it for the load of all users. Of the cost of its
replicas every user pays the share that its planned items have in those of all users.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.core.assess.assessment import Assessment
from controller.core.state.shared import users_of
from controller.core.state.spec import PipelineSpec, StageKey
from optimizer.model import Pipeline, PipelineKey, Placement, Sharing, Stage, StageName
from optimizer.plan import PipelinePlan

CostShares = Mapping[StageKey, Mapping[PipelineKey, float]]
"""For each shared stage, by its owner and its name there, the share of its cost that each pipeline pays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a pipeline asks of a shared stage: items per second, sessions, and whether they come at even intervals."""

    pipeline: PipelineKey
    stage: StageName
    rate_rps: float
    sessions: float
    periodic: bool


def linked(pipelines: Mapping[PipelineKey, Pipeline], specs: Iterable[PipelineSpec]) -> Mapping[PipelineKey, Pipeline]:
    """Return `pipelines` with the load of the other users at every shared stage, and with the shares of its cost.

    A stage that replicas of another of `pipelines` serve has the placements of the stage that these belong to.
    """
    found = dict(pipelines)
    for owner, users in users_of(specs).items():
        uses = [_use(pipelines[key], name) for key, name in users]
        shares = cost_shares({use.pipeline: use.rate_rps for use in uses})
        for use in uses:
            others = [other for other in uses if other.pipeline != use.pipeline]
            sharing = Sharing(
                owner=owner[0],
                stage=owner[1],
                borrowed=use.pipeline != owner[0],
                cost_share=shares[use.pipeline],
                other_rps=sum(other.rate_rps for other in others),
                other_sessions=sum(other.sessions for other in others),
                others_periodic=all(other.periodic for other in others if other.rate_rps > 0),
            )
            declared = _stage(pipelines[owner[0]], owner[1]) if owner[0] in pipelines else None
            found[use.pipeline] = _with(found[use.pipeline], use.stage, declared, sharing)
    return found


def cost_shares(rates_rps: Mapping[PipelineKey, float]) -> Mapping[PipelineKey, float]:
    """Return the share of a shared stage's cost for each of its users: that of their items, equal without any."""
    total = sum(rates_rps.values())
    return {key: rate / total if total > 0 else 1 / len(rates_rps) for key, rate in rates_rps.items()}


def served_cost_shares(assessments: Sequence[Assessment], plans: Mapping[PipelineKey, PipelinePlan]) -> CostShares:
    """Return how the cost of every shared stage is split, by the items of each pipeline that `plans` serve there."""
    by_key = {assessment.key: assessment for assessment in assessments}

    def served_rps(key: PipelineKey, name: StageName) -> float:
        return _use(by_key[key].pipeline, name).rate_rps * (plans[key].served_fraction if key in plans else 1.0)

    return {
        stage: cost_shares({key: served_rps(key, name) for key, name in users})
        for stage, users in users_of(assessment.spec for assessment in assessments).items()
    }


def _use(pipeline: Pipeline, name: StageName) -> Use:
    demand = pipeline.demand
    return Use(
        pipeline=pipeline.key,
        stage=name,
        rate_rps=demand.entry_rate_rps * pipeline.visit_ratios[name],
        sessions=demand.sessions or 0.0,
        periodic=demand.sessions is not None and name in pipeline.once,
    )


def _stage(pipeline: Pipeline, name: StageName) -> Stage:
    return next(stage for stage in pipeline.stages if stage.name == name)


def _with(pipeline: Pipeline, name: StageName, declared: Stage | None, sharing: Sharing) -> Pipeline:
    stages = []
    for stage in pipeline.stages:
        if stage.name == name:
            own = stage if declared is None else declared
            stage = replace(own, name=name, after=stage.after, pass_ratio=stage.pass_ratio, sharing=sharing)  # noqa: PLW2901
        stages.append(stage)
    return replace(pipeline, stages=tuple(stages))


def with_shared_stages(assessments: Sequence[Assessment]) -> Sequence[Assessment]:
    """Return `assessments` with the load of all users at the shared stages.

    What was learned of a shared stage is learned once, by its owner.
    """
    specs = [assessment.spec for assessment in assessments]
    users = users_of(specs)
    if not users:
        return assessments
    by_key = {assessment.key: assessment for assessment in assessments}
    pipelines = linked({key: assessment.pipeline for key, assessment in by_key.items()}, specs)
    # Without data nothing scales down: the load of a user whose demand is missing may be anything.
    unseen = {
        user
        for named in users.values()
        for user in named
        if any(by_key[key].demand_missing for key, _ in named if key != user[0])
    }
    return tuple(
        _shared(
            assessment,
            pipelines[assessment.key],
            by_key,
            frozenset(name for key, name in unseen if key == assessment.key),
        )
        if any(assessment.key == key for named in users.values() for key, _ in named)
        else assessment
        for assessment in assessments
    )


def _shared(
    assessment: Assessment,
    pipeline: Pipeline,
    by_key: Mapping[PipelineKey, Assessment],
    unseen: frozenset[StageName],
) -> Assessment:
    borrowed = assessment.spec.borrowed
    owners = {name: by_key.get(to[0]) for name, to in borrowed.items()}
    fixed = {name for name, owner in owners.items() if owner is None or not owner.acting}
    profiles = []
    for profile in assessment.profile.stages:
        owner = owners.get(profile.name)
        if owner is not None:
            own = next(each for each in owner.profile.stages if each.name == borrowed[profile.name][1])
            profile = replace(  # noqa: PLW2901
                own, name=profile.name, pass_ratio=profile.pass_ratio, pass_ratio_measured=profile.pass_ratio_measured
            )
        profiles.append(profile)
    return replace(
        assessment,
        pipeline=pipeline,
        profile=replace(assessment.profile, stages=tuple(profiles)),
        learned=assessment.learned.without(borrowed),
        missing=replace(assessment.missing, demands=unseen, owners=frozenset(fixed)),
    )


def planned_with(pipeline: Pipeline, assessment: Assessment, together: Collection[PipelineKey]) -> Pipeline:
    """Return `pipeline`, which is of `assessment`, to be planned with the pipelines `together`.

    A shared stage whose replicas belong to none of these is planned as it runs now.
    """
    names = {name for name, (owner, _) in assessment.spec.borrowed.items() if owner not in together}
    if not names:
        return pipeline

    def as_now(stage: Stage, placement: Placement) -> Placement:
        count = assessment.current[stage.name, placement.name]
        return replace(placement, min_replicas=count, max_replicas=count, current=count)

    stages = (
        replace(stage, placements=tuple(as_now(stage, own) for own in stage.placements))
        if stage.name in names
        else stage
        for stage in pipeline.stages
    )
    return replace(pipeline, stages=tuple(stages))
