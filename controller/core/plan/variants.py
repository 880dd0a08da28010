"""Switches between variants of a model, to a cascade and from one: what they save, and what quality they cost."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from controller.core.assess.assessment import Assessment
from controller.core.state.decision import VariantSwitch
from controller.core.state.spec import StageSpec
from optimizer.allocate import allocate
from optimizer.model import PlacementKey, PlacementName, Problem, variant_of


def switches(
    assessment: Assessment,
    planned: Mapping[PlacementKey, int],
    changing: Mapping[PlacementKey, int],
    problem: Problem | None,
) -> Iterator[VariantSwitch]:
    """Yield the stages that go to other variants of their model than they run now, and of which replicas change.

    `planned` are the replicas of the plan that solves `problem` (None: a large fleet is planned in turns, and what a
    switch saves is not known), `changing` those after this cycle.
    """
    for stage in assessment.spec.stages:
        names = [placement.name for placement in stage.placements]
        if stage.shared_from is not None or all(_model(stage, name) is None for name in names):
            continue
        now = [name for name in names if assessment.current[stage.name, name] > 0]
        then = [name for name in names if planned[stage.name, name] > 0]
        moves = any(changing[stage.name, name] != assessment.current[stage.name, name] for name in names)
        before = _left(stage, now, then)
        if before and then and moves:
            yield VariantSwitch(
                stage=stage.name,
                before=tuple(before),
                after=tuple(then),
                wer_before=_wer(stage, before),
                wer_after=_wer(stage, then),
                limit=assessment.spec.max_wer,
                saving_per_hour=None if problem is None else _saving_per_hour(assessment, stage, before, problem),
                known=problem is not None,
            )


def _model(stage: StageSpec, placement: PlacementName) -> str | None:
    """Return what says which model a placement runs: its variant, or, in a cascade without variants, its name."""
    return variant_of(placement) or (placement if stage.cascade is not None else None)


def _left(stage: StageSpec, now: list[PlacementName], then: list[PlacementName]) -> list[PlacementName]:
    """Return the placements that a stage goes away from: none where its models stay as they are.

    While a switch is rolled out, both variants run; then it is those that leave, so that each step says the same. The
    placements of a cascade serve together, and so are left together.
    """
    running, planned = ({_model(stage, name) for name in names} for names in (now, then))
    if not planned <= running:
        return now
    leave = [name for name in now if _model(stage, name) not in planned]
    return now if leave and stage.cascade is not None else leave


def _wer(stage: StageSpec, names: list[PlacementName]) -> float | None:
    """Return the worst of the stated word error rates of the placements `names`; None where one states none."""
    wers = [placement.prior.wer for placement in stage.placements if placement.name in names]
    stated = [wer for wer in wers if wer is not None]
    return max(stated) if len(stated) == len(wers) else None


def _saving_per_hour(
    assessment: Assessment, stage: StageSpec, kept: list[PlacementName], problem: Problem
) -> float | None:
    """Return what the plan of `problem` saves against one with the variants of now at the same load, in USD per hour.

    The other pipelines are planned anew too. None where the present variants cannot serve it within the limits.
    """
    models = {_model(stage, name) for name in kept}

    def of_now(name: str, placement: PlacementName, bounds: tuple[int, int]) -> tuple[int, int]:
        return bounds if name != stage.name or _model(stage, placement) in models else (0, 0)

    pipelines = tuple(
        own
        if own.key != assessment.key
        else own.bounded(lambda s, p: of_now(s.name, p.name, (p.min_replicas, p.max_replicas)))
        for own in problem.pipelines
    )
    with_them = allocate(replace(problem, pipelines=pipelines, effort=None)).of(assessment.key)
    if not with_them.feasible:
        return None
    return with_them.cost_per_hour - allocate(replace(problem, effort=None)).of(assessment.key).cost_per_hour
