"""Resolves the stages that pipelines share: such a stage is declared once, and the others refer to it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from controller.core.state.spec import PipelineSpec, StageKey, StageSpec
from optimizer.model import PipelineKey, StageName


class SharingProblem(Enum):
    """Why a stage cannot be shared."""

    NO_PIPELINE = "NoPipeline"
    NO_STAGE = "NoStage"
    CHAIN = "Chain"
    """The stage that is referred to refers to a third one."""
    ITSELF = "Itself"
    """The stage refers to its own pipeline."""
    BACKLOG = "Backlog"
    """The stage that is referred to belongs to a backlog, whose replicas go first when capacity is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolved:
    """A stage whose reference `to` another pipeline's stage cannot be used."""

    stage: StageName
    to: StageKey
    problem: SharingProblem


def resolved(
    specs: Iterable[PipelineSpec], earlier: Iterable[PipelineSpec] = ()
) -> tuple[Mapping[PipelineKey, PipelineSpec], Mapping[PipelineKey, Unresolved]]:
    """Return the `specs` with the shared stages filled in, by key, and the first problem of each that has one.

    `earlier` are the last valid specs of pipelines that cannot be used now: their replicas still run.
    """
    specs = tuple(specs)
    known = {spec.key: spec for spec in (*earlier, *specs)}
    found: dict[PipelineKey, PipelineSpec] = {}
    unresolved: dict[PipelineKey, Unresolved] = {}
    for spec in specs:
        problems = [
            Unresolved(stage=stage, to=to, problem=problem)
            for stage, to in spec.borrowed.items()
            if (problem := _problem(spec, to, known)) is not None
        ]
        if problems:
            unresolved[spec.key] = problems[0]
        else:
            found[spec.key] = filled(spec, known)
    return found, unresolved


def filled(spec: PipelineSpec, known: Mapping[PipelineKey, PipelineSpec]) -> PipelineSpec:
    """Return `spec` with the servers of its shared stages as `known` has them now; as before where it has them not."""
    if not spec.borrowed:
        return spec
    return replace(spec, stages=tuple(_filled(stage, known) for stage in spec.stages))


def users_of(specs: Iterable[PipelineSpec]) -> Mapping[StageKey, Sequence[tuple[PipelineKey, StageName]]]:
    """Return the users of each stage that is shared, each with the name that the stage has there; the owner first.

    An owner that is not among `specs` is left out.
    """
    specs = tuple(specs)
    keys = {spec.key for spec in specs}
    users: dict[StageKey, list[tuple[PipelineKey, StageName]]] = {}
    for spec in specs:
        for name, to in spec.borrowed.items():
            users.setdefault(to, [to] if to[0] in keys else []).append((spec.key, name))
    return users


def _problem(spec: PipelineSpec, to: StageKey, known: Mapping[PipelineKey, PipelineSpec]) -> SharingProblem | None:
    key, name = to
    if key == spec.key:
        return SharingProblem.ITSELF
    if key not in known:
        return SharingProblem.NO_PIPELINE
    stage = next((stage for stage in known[key].stages if stage.name == name), None)
    if stage is None:
        return SharingProblem.NO_STAGE
    if known[key].backlog is not None:
        return SharingProblem.BACKLOG
    return None if stage.shared_from is None else SharingProblem.CHAIN


def _filled(stage: StageSpec, known: Mapping[PipelineKey, PipelineSpec]) -> StageSpec:
    """Return the stage with everything that belongs to the servers from the stage that it refers to."""
    if stage.shared_from is None or stage.shared_from[0] not in known:
        return stage
    key, name = stage.shared_from
    declared = next(own for own in known[key].stages if own.name == name)
    return replace(
        declared,
        name=stage.name,
        after=stage.after,
        pass_ratio=stage.pass_ratio,
        rules=(),
        shared_from=stage.shared_from,
    )
