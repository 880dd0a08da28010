"""Validates manifest files: one finding per mistake, with its file, line, field, value and rule.

Each resource is validated by the same models as on the API server. In addition, resources are checked against each
other: duplicates, shared targets, overlapping and missing pools.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from controller.core.state.spec import Target
from controller.resources.annotations import overrides
from controller.resources.base import Breach, Part, Unusable, UnusableError
from controller.resources.budget import ComputeBudget
from controller.resources.manifests import Document, FieldPath, ManifestError, format_path, load_documents
from controller.resources.parsing import inspect_strictly, nearest_name
from controller.resources.pipeline import SpeechPipeline
from controller.resources.pool import ComputePool
from profiler.sources.presets import LoadedPresets

GROUP = "sluice.dev"
MODELS: dict[str, type[Part]] = {model.__name__: model for model in (SpeechPipeline, ComputePool, ComputeBudget)}

_MAX_VALUE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A mistake in a file: the `rule` that it breaks, and where.

    `line` counts from 1. `field` is the path of the field in Kubernetes' notation, and `value` the field's value as
    JSON, shortened; both are empty if the file cannot be read.
    """

    file: Path
    line: int
    field: str
    value: str
    rule: str

    def __str__(self) -> str:
        return ": ".join(filter(None, [f"{self.file}:{self.line}", self.field, self.value, self.rule]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The valid resources in some manifests, and the mistakes in the others.

    `pipeline_documents` has the document of each of `pipelines`. `namespace_labels` has the labels of the Namespaces in
    the manifests, by name. `others` counts the documents of other kinds, which are not checked. `pools_known` is False
    if the manifests have no pool or a file cannot be read. Without any pool, the pools that pipelines name are not
    checked.
    """

    findings: tuple[Finding, ...]
    pipelines: tuple[SpeechPipeline, ...]
    pipeline_documents: tuple[Document, ...]
    pools: tuple[ComputePool, ...]
    others: int
    pools_known: bool
    budgets: tuple[ComputeBudget, ...] = ()
    namespace_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A SpeechPipeline, ComputePool or ComputeBudget in a document; in `resource`, invalid values are `Unusable`."""

    document: Document
    kind: str
    namespace: str
    name: str
    resource: Any
    breaches: list[Breach]

    @property
    def place(self) -> str:
        line = self.document.line_of(("metadata", "name"))
        return f"{self.kind} {self.name} ({self.document.path}:{line})"


def validate_files(paths: Sequence[Path], *, presets: LoadedPresets | None = None) -> Validation:
    """Return the valid resources in the files `paths`, and all mistakes, in the order of files and lines.

    With `presets`, a stage must name one of them; without, presets are not checked: they may be the users' own.
    """
    documents: list[Document] = []
    unreadable: list[Finding] = []
    for path in paths:
        try:
            documents += load_documents(path)
        except ManifestError as error:
            unreadable.append(Finding(file=error.path, line=error.line, field="", value="", rule=error.rule))
    checked = validate_documents(documents, presets=presets)
    order = {path: index for index, path in enumerate(paths)}
    findings = sorted([*unreadable, *checked.findings], key=lambda finding: (order[finding.file], finding.line))
    # A missing pool may be in a file that cannot be read.
    return replace(checked, findings=tuple(findings), pools_known=checked.pools_known and not unreadable)


def validate_documents(documents: Sequence[Document], *, presets: LoadedPresets | None = None) -> Validation:
    """Return the valid resources in `documents`, and all mistakes, those of unknown kinds first.

    With `presets`, a stage must name one of them.
    """
    entries: list[_Entry] = []
    misnamed: list[Finding] = []
    others = 0
    for document in documents:
        kind = document.data.get("kind")
        group = str(document.data.get("apiVersion")).partition("/")[0]
        if kind in MODELS:
            entries.append(_entry(document, kind))
        elif found := _wrong_kind(document, kind, group):
            misnamed += [finding_of(document, breach) for breach in found]
        else:
            others += 1
    pools = [entry for entry in entries if entry.kind == "ComputePool"]
    pipelines = [entry for entry in entries if entry.kind == "SpeechPipeline"]
    _find_repeated(entries)
    _find_overlapping(pools)
    _find_shared_targets(pipelines)
    _find_shared_batching(pipelines)
    _find_unshared(pipelines)
    _find_ignored_annotations(pipelines)
    if pools:
        _find_missing_pools(pipelines, {entry.name for entry in pools})
    if presets is not None:
        _find_missing_presets(pipelines, presets)
    findings = [finding_of(entry.document, breach) for entry in entries for breach in entry.breaches]
    valid = [entry for entry in entries if not entry.breaches]
    valid_pipelines = [entry for entry in valid if isinstance(entry.resource, SpeechPipeline)]
    return Validation(
        findings=tuple(misnamed + findings),
        pipelines=tuple(entry.resource for entry in valid_pipelines),
        pipeline_documents=tuple(entry.document for entry in valid_pipelines),
        pools=tuple(entry.resource for entry in valid if isinstance(entry.resource, ComputePool)),
        others=others,
        pools_known=bool(pools),
        budgets=tuple(entry.resource for entry in valid if isinstance(entry.resource, ComputeBudget)),
        namespace_labels=_namespace_labels(documents),
    )


def _namespace_labels(documents: Sequence[Document]) -> Mapping[str, Mapping[str, str]]:
    found: dict[str, Mapping[str, str]] = {}
    for document in documents:
        metadata = document.data.get("metadata")
        if document.data.get("kind") == "Namespace" and isinstance(metadata, dict):
            labels = metadata.get("labels")
            found[str(metadata.get("name"))] = labels if isinstance(labels, dict) else {}
    return found


def _entry(document: Document, kind: str) -> _Entry:
    resource, found = inspect_strictly(MODELS[kind], document.data)
    metadata = document.data.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    namespace = str(metadata.get("namespace") or "default") if kind == "SpeechPipeline" else ""
    name = str(metadata.get("name", ""))
    if kind != "SpeechPipeline" and metadata.get("namespace") is not None:
        found.append(Breach(path=("metadata", "namespace"), rule=f"not allowed: a {kind} belongs to the cluster"))
    return _Entry(document=document, kind=kind, namespace=namespace, name=name, resource=resource, breaches=found)


def _wrong_kind(document: Document, kind: object, group: str) -> list[Breach]:
    found = [
        Breach(path=(field,), rule="required") for field in ("apiVersion", "kind") if document.data.get(field) is None
    ]
    if not found and group == GROUP:
        nearest = nearest_name(str(kind), MODELS)
        hint = f"; did you mean {nearest}?" if nearest else ""
        found = [Breach(path=("kind",), rule=f"must be one of {', '.join(MODELS)}{hint}")]
    return found


def _find_repeated(entries: list[_Entry]) -> None:
    seen: dict[tuple[str, str, str], _Entry] = {}
    for entry in entries:
        first = seen.setdefault((entry.kind, entry.namespace, entry.name), entry)
        if first is not entry and entry.name:
            rule = f"must be declared only once; {first.place} has the same name"
            entry.breaches.append(Breach(path=("metadata", "name"), rule=rule))


def _find_overlapping(pools: list[_Entry]) -> None:
    earlier: list[tuple[_Entry, set[tuple[str, str]]]] = []
    for entry in pools:
        try:
            selector = set(entry.resource.spec.node_selector.items())
        except UnusableError:
            continue
        for other, selected in earlier:
            if other.name != entry.name and (selector <= selected or selected <= selector):
                rule = f"must not match the nodes of another pool; {other.place} matches them too"
                entry.breaches.append(Breach(path=("spec", "nodeSelector"), rule=rule))
                break
        earlier.append((entry, selector))


def _find_shared_targets(pipelines: list[_Entry]) -> None:
    owners: dict[tuple[str, Target], _Entry] = {}
    for entry in filter(_acts, pipelines):
        for path, workload in _workloads(entry):
            try:
                target = workload.target.reference().identity
                owner = owners.setdefault((entry.namespace, target), entry)
            except UnusableError:
                continue
            if (owner.namespace, owner.name) != (entry.namespace, entry.name):
                rule = f"must be the target of one pipeline in mode Auto only; {owner.place} has the same target"
                entry.breaches.append(Breach(path=(*path, "target"), rule=rule))


def _find_shared_batching(pipelines: list[_Entry]) -> None:
    """Report keys of ConfigMaps that the batch settings of several placements are written to, each place once."""
    owners: dict[tuple[str, str, str], str] = {}
    for entry in filter(_acts, pipelines):
        reported: set[FieldPath] = set()
        for path, workload in _workloads(entry):
            try:
                batching = workload.placement.batching
                if batching is None or (at := batching.apply) is None:
                    continue
                name = (entry.namespace, at.config_map, at.key)
                own = path
                if workload.path and entry.resource.spec.stages[path[2]].placements[path[4]].batching is batching:
                    own = path[: -len(workload.path)]  # the variant inherits it
            except UnusableError:
                continue
            owner = owners.setdefault(name, f"{format_path(path)} of {entry.place}")
            field = (*own, "batching", "apply")
            if owner != f"{format_path(path)} of {entry.place}" and field not in reported:
                reported.add(field)
                rule = f"must be a key of its own for each placement; {owner} has the same"
                entry.breaches.append(Breach(path=field, rule=rule))


def _find_unshared(pipelines: list[_Entry]) -> None:
    """Report stages that are shared from a stage which these files do not have, or which is itself shared."""
    by_name = {(entry.namespace, entry.name): entry for entry in pipelines}
    for entry in pipelines:
        for i, stage in enumerate(_stages(entry) or ()):
            try:
                named = stage.shared_from
                if named is None:
                    continue
                owner, names = by_name.get((entry.namespace, named.pipeline)), named.stage
            except UnusableError:
                continue
            field, rule = "stage", ""
            if named.pipeline == entry.name:
                field, rule = "pipeline", "must name another pipeline"
            elif owner is None:
                near = nearest_name(named.pipeline, {name for space, name in by_name if space == entry.namespace})
                field, rule = "pipeline", "must name a SpeechPipeline of this namespace in these files"
                rule += f"; did you mean {near}?" if near and near != entry.name else ""
            elif _waits(owner):
                field, rule = "pipeline", "must not name a pipeline with demand.backlog: its replicas go first"
            elif (stages := _stages(owner)) is not None:
                rule = _not_to_share(stages, names)
            if rule:
                entry.breaches.append(Breach(path=("spec", "stages", i, "sharedFrom", field), rule=rule))


def _not_to_share(stages: list[Any], name: str) -> str:
    """Return why the stage `name` of `stages` cannot be shared; empty if it can, or if it is invalid itself."""
    known: list[str] = []
    for stage in stages:
        try:
            known.append(stage.name)
            if stage.name == name:
                return "" if stage.shared_from is None else "must not be shared from a third pipeline; name that one"
        except UnusableError:
            return ""
    near = nearest_name(name, set(known))
    hint = f"did you mean {near}?" if near else f"it has {', '.join(sorted(known))}"
    return f"must name a stage of that pipeline; {hint}"


def _stages(entry: _Entry) -> list[Any] | None:
    """Return the stages of a pipeline, None if they are invalid."""
    try:
        return list(entry.resource.spec.stages)
    except UnusableError:
        return None


def _waits(entry: _Entry) -> bool:
    """Return whether a pipeline has a backlog; one whose demand is invalid may have none."""
    try:
        return entry.resource.spec.demand.backlog is not None
    except UnusableError:
        return False


def _acts(entry: _Entry) -> bool:
    """Return whether a pipeline scales its targets; one whose mode is invalid may."""
    try:
        return bool(entry.resource.spec.mode == "Auto")
    except UnusableError:
        return True


def _find_ignored_annotations(pipelines: list[_Entry]) -> None:
    """Add a breach for each part of an annotation that the operator would ignore; only in otherwise valid pipelines."""
    for entry in pipelines:
        if not entry.breaches:
            for problem in overrides(entry.resource).problems:
                name, _, rule = problem.partition(": ")
                entry.breaches.append(Breach(path=("metadata", "annotations", name), rule=rule))


def _find_missing_pools(pipelines: list[_Entry], names: set[str]) -> None:
    for entry in pipelines:
        missing: set[str] = set()
        for i, j, placement in _placements(entry):
            try:
                pool = placement.pool
                if pool in names | missing:
                    continue
            except UnusableError:
                continue
            missing.add(pool)
            nearest = nearest_name(pool, names)
            hint = f"did you mean {nearest}?" if nearest else f"known pools: {', '.join(sorted(names))}"
            path = ("spec", "stages", i, "placements", j, "pool")
            entry.breaches.append(Breach(path=path, rule=f"must name a ComputePool in these files; {hint}"))


def _find_missing_presets(pipelines: list[_Entry], presets: LoadedPresets) -> None:
    known = {*presets.usable, *presets.problems}
    for entry in pipelines:
        for i, stage in enumerate(_stages(entry) or ()):
            try:
                preset = stage.metrics.preset
            except UnusableError:
                continue
            if preset in presets.usable:
                continue
            nearest = None if preset in known else nearest_name(preset, known)
            hint = f"; did you mean {nearest}?" if nearest else ""
            elsewhere = "" if preset in known else ", or the name of a file NAME.toml in --presets-directory"
            rule = f"{presets.rule(preset)}{elsewhere}{hint}"
            entry.breaches.append(Breach(path=("spec", "stages", i, "metrics", "preset"), rule=rule))


def _placements(entry: _Entry) -> Iterator[tuple[int, int, Any]]:
    """Yield each usable placement after the index of its stage and its own index in the stage."""
    try:
        stages = list(enumerate(entry.resource.spec.stages))
    except UnusableError:
        return
    for i, stage in stages:
        try:
            placements = list(enumerate(stage.placements or ()))
        except UnusableError:
            continue
        for j, placement in placements:
            if not isinstance(placement, Unusable):
                yield i, j, placement


def _workloads(entry: _Entry) -> Iterator[tuple[FieldPath, Any]]:
    """Yield the workload of each usable placement, or of each of its variants, after its path."""
    for i, j, placement in _placements(entry):
        try:
            workloads = placement.workloads() if placement.target or placement.variants else []
        except UnusableError:
            continue
        for workload in workloads:
            yield ("spec", "stages", i, "placements", j, *workload.path), workload


def finding_of(document: Document, breach: Breach) -> Finding:
    """Return `breach` as a finding, with its line and value in `document`."""
    return Finding(
        file=document.path,
        line=document.line_of(breach.path),
        field=format_path(breach.path),
        value=_written(document.data, breach.path),
        rule=breach.rule,
    )


def _written(data: Any, path: FieldPath) -> str:
    """Return the value at `path` in `data` as JSON, shortened to 60 characters; `(absent)` if there is none."""
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return "(absent)"
    text = json.dumps(data, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"
