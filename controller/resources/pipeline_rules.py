"""The rules between the stages of a pipeline."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from controller.core.state.spec import SERVE_KIND, Target
from controller.resources.base import Breach, Constraint, UnusableError
from controller.resources.manifests import FieldPath, format_path
from controller.resources.placement import MAX_WORKLOADS, Workload
from controller.resources.stage import Stage

if TYPE_CHECKING:
    from controller.resources.pipeline import PipelineSpec

MAX_STAGES = 20


def takes_from(stages: list[Stage], index: int) -> list[str]:
    """Return the names of the stages that stage `index` takes items from: its `after`, else the previous stage."""
    after = stages[index].after
    if after is not None:
        return after
    return [stages[index - 1].name] if index else []


def _late_names(spec: "PipelineSpec") -> Iterator[Breach]:
    for index, stage in enumerate(spec.stages):
        earlier = [other.name for other in spec.stages[:index]]
        for position, name in enumerate(stage.after or []):
            if name not in earlier:
                yield Breach(
                    path=("stages", index, "after", position),
                    rule=f"must name an earlier stage ({', '.join(earlier) or 'this is the first one'})",
                )


def _ratios_in_branches(spec: "PipelineSpec") -> Iterator[Breach]:
    stages = spec.stages
    if any(_late_names(spec)):
        return  # reported by its own rule
    # For each stage: the stages on some path from an entry to it, and the stages on every such path.
    on_some: dict[str, set[str]] = {}
    on_every: dict[str, set[str]] = {}
    joined: set[str] = set()
    for index, stage in enumerate(stages):
        sources = takes_from(stages, index)
        some = [on_some[name] | {name} for name in sources]
        every = [on_every[name] | {name} for name in sources]
        on_some[stage.name] = set().union(*some)
        on_every[stage.name] = set.intersection(*every) if every else set()
        if len(sources) > 1:
            joined |= on_some[stage.name] - on_every[stage.name]
    for index, stage in enumerate(stages):
        if stage.name in joined and float(stage.pass_ratio) != 1:
            yield Breach(
                path=("stages", index, "passRatio"),
                rule="must be 1 inside a branch that joins another: the join waits for each item once per branch",
            )


def _shared_targets(spec: "PipelineSpec") -> Iterator[Breach]:
    owners: dict[Target, str] = {}
    for path, workload in _workloads(spec):
        here = format_path(("spec", *path))
        try:
            owner = owners.setdefault(workload.target.reference().identity, here)
        except UnusableError:
            continue
        if owner != here:
            yield Breach(
                path=(*path, "target"),
                rule=f"must be the target of one placement only; {owner} has the same target",
            )


def _workloads(spec: "PipelineSpec") -> Iterator[tuple[FieldPath, Workload]]:
    """Yield the workload of each placement, or of each of its variants, after its path; those that can be read."""
    for i, stage in enumerate(spec.stages):
        for j, placement in enumerate(stage.placements or ()):
            try:
                workloads = placement.workloads() if placement.target or placement.variants else []
            except UnusableError:
                continue
            for workload in workloads:
                yield ("stages", i, "placements", j, *workload.path), workload


def _wer_above_limit(spec: "PipelineSpec") -> Iterator[Breach]:
    if spec.sla is None:
        return
    limits: list[tuple[str | None, str]] = [*(spec.sla.max_wer_by_slice or {}).items()]
    if spec.sla.max_wer is not None:
        limits.insert(0, (None, spec.sla.max_wer))
    for slice_, limit in limits:
        name = "sla.maxWer" if slice_ is None else f"sla.maxWerBySlice.{slice_}"
        for index, stage in enumerate(spec.stages):
            wers = [_wer(own, slice_) for placement in stage.placements or () for own in placement.workloads()]
            if wers and all(wer is not None and float(wer) > float(limit) for wer in wers):
                yield Breach(
                    path=("stages", index, "placements"),
                    rule=f"at least one placement must have a wer within {name} ({limit}), or no wer",
                )


def _wer(workload: Workload, slice_: str | None) -> str | None:
    stated = workload.placement
    return stated.wer if slice_ is None else (stated.wer_by_slice or {}).get(slice_)


def _too_many_workloads(spec: "PipelineSpec") -> Iterator[Breach]:
    for index, stage in enumerate(spec.stages):
        count = sum(len(placement.variants or (None,)) for placement in stage.placements or ())
        if count > MAX_WORKLOADS:
            yield Breach(
                path=("stages", index, "placements"),
                rule=f"must have at most {MAX_WORKLOADS} workloads, each variant counted; it has {count}",
            )


def _shared_twice(spec: "PipelineSpec") -> Iterator[Breach]:
    first: dict[tuple[str, str], int] = {}
    for index, stage in enumerate(spec.stages):
        if stage.shared_from is None:
            continue
        named = (stage.shared_from.pipeline, stage.shared_from.stage)
        if first.setdefault(named, index) != index:
            yield Breach(
                path=("stages", index, "sharedFrom"),
                rule=f"must be named once in a pipeline; spec.stages[{first[named]}] names the same stage",
            )


def _within(name: str) -> str:
    """Return the CEL expression that the stated word error rate of `name` is within the limit."""
    return f"double({name}.wer) <= double(self.sla.maxWer)"


def _sla_or_backlog(spec: "PipelineSpec") -> Iterator[Breach]:
    if (spec.sla is None) != (spec.demand.backlog is not None):
        yield Breach(path=("sla",), rule="required without demand.backlog, and not allowed with it")


def _shared_backlogs(spec: "PipelineSpec") -> Iterator[Breach]:
    for index, stage in enumerate(spec.stages) if spec.demand.backlog is not None else ():
        if stage.shared_from is not None:
            yield Breach(path=("stages", index, "sharedFrom"), rule="not allowed with demand.backlog")


def _unknown_pools(spec: "PipelineSpec") -> Iterator[Breach]:
    backlog = spec.demand.backlog
    pools = sorted({placement.pool for stage in spec.stages for placement in stage.placements or ()})
    for pool in () if backlog is None else backlog.items_per_replica:
        if pool not in pools:
            yield Breach(
                path=("demand", "backlog", "itemsPerReplica", pool),
                rule=f"must name the pool of a placement ({', '.join(pools)})",
            )


# The API server evaluates all rules with every write of an object, also of its status, and an access to a field of an
# object costs it more than to compare texts: rules that compare stages or placements take out first what they compare.
_NAMES = "self.stages.map(s, s.name)"


def _each_once(field: str, same: str) -> str:
    """Return the CEL expression that no two placements have the `same` target; `field` is what is compared of it."""
    targets = (
        "self.stages.map(s, !has(s.placements) ? [] : s.placements"
        f".filter(p, has(p.target) && p.target.kind != '{SERVE_KIND}').map(p, p.target{field}))"
    )
    pairs = f"own.all(a, stages.map(other, other.filter(b, {same}).size()).sum() == 1)"
    return f"[{targets}].all(stages, stages.all(own, {pairs}))"


PIPELINE_CONSTRAINTS = (
    Constraint(
        find=_sla_or_backlog,
        cel="has(self.sla) != has(self.demand.backlog)",
        rule="required without demand.backlog, and not allowed with it",
        field="sla",
    ),
    Constraint(
        find=_shared_backlogs,
        cel="!has(self.demand.backlog) || self.stages.all(s, !has(s.sharedFrom))",
        rule="sharedFrom is not allowed with demand.backlog",
        field="stages",
    ),
    # The placements of all stages times the entries would exceed CEL's cost budget.
    Constraint(find=_unknown_pools, cel=None, rule="itemsPerReplica must name pools of placements"),
    Constraint(
        find=_shared_twice,
        cel="self.stages.all(s, !has(s.sharedFrom) || self.stages.filter(t, has(t.sharedFrom)"
        " && t.sharedFrom.pipeline == s.sharedFrom.pipeline && t.sharedFrom.stage == s.sharedFrom.stage).size() == 1)",
        rule="a stage may be shared once with a pipeline",
        field="stages",
    ),
    Constraint(
        find=_late_names,
        cel=f"[{_NAMES}].all(names, self.stages.all(s, !has(s.after) || s.after.all(a,"
        " names.indexOf(a) >= 0 && names.indexOf(a) < names.indexOf(s.name))))",
        rule="after must name earlier stages only",
        field="stages",
    ),
    # Needs the paths through the whole graph, and CEL has no recursion.
    Constraint(find=_ratios_in_branches, cel=None, rule="passRatio must be 1 inside a branch that joins another"),
    Constraint(
        find=_shared_targets,
        # Of Ray Serve there is more to compare than the estimated cost of a rule allows.
        # Most have names of their own, which are quick to compare.
        cel=_each_once(".name", "b == a")
        + " || "
        + _each_once("", "b.name == a.name && b.kind == a.kind && b.apiVersion == a.apiVersion"),
        rule="a target must belong to one placement only",
        field="stages",
    ),
    Constraint(
        find=_too_many_workloads,
        cel="self.stages.all(s, !has(s.placements) || !s.placements.exists(p, has(p.variants))"
        f" || s.placements.map(p, has(p.variants) ? size(p.variants) : 1).sum() <= {MAX_WORKLOADS})",
        rule=f"a stage has at most {MAX_WORKLOADS} workloads, each variant counted",
        field="stages",
    ),
    Constraint(
        find=_wer_above_limit,
        cel="!has(self.sla) || !has(self.sla.maxWer) || self.stages.all(s,"
        f" !has(s.placements) || s.placements.exists(p, has(p.variants) ? p.variants.exists(v, has(v.wer)"
        f" ? {_within('v')} : !has(p.wer) || {_within('p')}) : !has(p.wer) || {_within('p')}))",
        rule="each stage needs a placement with a wer within sla.maxWer, or without wer",
        field="stages",
    ),
)
