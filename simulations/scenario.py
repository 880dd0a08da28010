"""Scenario files: the load, the faults and the questions of one run, for the simulator and the lab alike.

A file is checked together with the manifests it names; paths in it are relative to it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from controller.resources.base import Breach, Constraint, ListMap, Part, constraint
from controller.resources.fields import Duration, PositiveDuration, duration_s
from controller.resources.manifests import ManifestError, load_documents
from controller.resources.parsing import inspect_strictly, nearest_name
from controller.resources.pipeline import SpeechPipeline
from controller.resources.pool import ComputePool
from controller.resources.validation import Finding, finding_of, validate_files
from simulations.scoring import Clock, Interval
from simulations.traces import Column, InvalidTrace, read_trace

EVERYTHING = "*"
MAX_NUMBER = 1_000_000
MAX_WINDOWS = 100_000


def _number(value: Any) -> float:
    """Whole numbers and decimal strings, as everywhere in the resources: never floats."""
    try:
        number = Decimal(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
    except InvalidOperation:
        number = None
    if number is None or not number.is_finite() or number < 0:
        raise ValueError('must be a whole number or a decimal in quotes, such as "1.5", of at least 0')
    if number > MAX_NUMBER:
        raise ValueError(f"must be at most {MAX_NUMBER}")
    return float(number)


def _positive(value: Any) -> float:
    number = _number(value)
    if number == 0:
        raise ValueError("must be above 0")
    return number


def _share(value: Any) -> float:
    number = _number(value)
    if number > 1:
        raise ValueError("must be at most 1")
    return number


def _multiple(value: Any) -> float:
    number = _number(value)
    if number < 1:
        raise ValueError("must be at least 1")
    return number


def _pipeline(value: Any) -> str:
    if not isinstance(value, str) or len([part for part in value.split("/") if part]) != 2 or value.count("/") != 1:
        raise ValueError("must name a pipeline as namespace/name")
    return value


def _pipelines(value: Any) -> str:
    if value == EVERYTHING:
        return EVERYTHING
    try:
        return _pipeline(value)
    except ValueError:
        raise ValueError('must be "*" or name a pipeline as namespace/name') from None


def _patches(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not value:
        raise ValueError("must map KIND/[NAMESPACE/]NAME to a merge patch")
    for name, patch in value.items():
        parts = str(name).split("/")
        if len(parts) not in {2, 3} or not all(parts):
            raise ValueError(f"{name}: must be KIND/NAME or KIND/NAMESPACE/NAME")
        if not isinstance(patch, dict):
            raise ValueError(f"{name}: must be a merge patch, a mapping of fields")  # noqa: TRY004 - pydantic's way
    return value


Number = Annotated[float, PlainValidator(_number)]
PositiveNumber = Annotated[float, PlainValidator(_positive)]
Share = Annotated[float, PlainValidator(_share)]
Multiple = Annotated[float, PlainValidator(_multiple)]
PipelineName = Annotated[str, PlainValidator(_pipeline)]
PipelineNames = Annotated[str, PlainValidator(_pipelines)]
Patches = Annotated[dict[str, dict[str, Any]], PlainValidator(_patches)]


class Session(Part):
    """How long a stream lasts: log-normal."""

    mean: PositiveDuration
    cv: Number


class LoadFields(Part):
    """How a trace becomes load; in a what-if, the fields that are given replace those of every load entry."""

    trace: str | None = None
    """A file, or the name of a bundled trace."""
    column: Literal["arrivals", "streams", "rate_per_s"] | None = None
    copies: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Superposed copies of the trace, each but the first shifted cyclically at random."""
    session: Session | None = None
    speed: PositiveNumber | None = None
    offset: Duration | None = None
    """Where in the recording the first copy begins; default its beginning."""


class Load(LoadFields):
    """The load of one pipeline; several entries for one pipeline add up."""

    pipeline: PipelineName
    trace: str
    column: Literal["arrivals", "streams", "rate_per_s"]


class MetricsShare(Part):
    """`metricsPartial`: this share of the series stays away."""

    share: Share
    pipeline: PipelineNames = EVERYTHING


class MetricsNoise(Part):
    """`metricsNoisy`: readings are multiplied by noise of mean 1 and this coefficient of variation."""

    cv: Number
    pipeline: PipelineNames = EVERYTHING


class Spike(Part):
    """`spike`: the load of a pipeline is multiplied."""

    pipeline: PipelineName
    factor: Multiple


class SlowStart(Part):
    """`slowStart`: new replicas on a pool take longer to become ready."""

    pool: str
    factor: PositiveNumber


class SlowStage(Part):
    """`slowStage`: batches of a stage take longer."""

    stage: str
    factor: PositiveNumber


class SpotReclaim(Part):
    """`spotReclaim`: a share of a pool's nodes is taken back at once."""

    pool: str
    share: Share


FaultKind = Literal[
    "poolUnavailable",
    "poolLost",
    "metricsLost",
    "metricsStale",
    "metricsPartial",
    "metricsNoisy",
    "spike",
    "slowStart",
    "slowStage",
    "spotReclaim",
    "set",
]
_AT_ONCE = ("set", "spotReclaim")


def _kinds(fault: Any) -> list[str]:
    return [alias for alias, name in fault.field_names().items() if name not in {"at", "for_"} and _given(fault, name)]


def _given(part: Part, name: str) -> bool:
    values = vars(part)
    return name not in values or values[name] is not None  # what has been found wrong already is not among them


def _one_kind(fault: Any) -> Iterator[Breach]:
    kinds = _kinds(fault)
    if len(kinds) != 1:
        known = ", ".join(alias for alias in fault.field_names() if alias not in {"at", "for"})
        yield Breach(path=(), rule=f"must have exactly one of {known}, not {' and '.join(kinds) or 'none'}")


class Fault(Part):
    """One disturbance, from `at` on for as long as `for` says, or to the end of the run."""

    at: Duration
    for_: PositiveDuration | None = Field(default=None, alias="for")
    pool_unavailable: str | None = None
    """No new replica gets a node of the pool; running ones stay."""
    pool_lost: str | None = None
    """The pool's nodes vanish with what ran on them."""
    metrics_lost: PipelineNames | None = None
    metrics_stale: PipelineNames | None = None
    metrics_partial: MetricsShare | None = None
    metrics_noisy: MetricsNoise | None = None
    spike: Spike | None = None
    slow_start: SlowStart | None = None
    slow_stage: SlowStage | None = None
    spot_reclaim: SpotReclaim | None = None
    set_: Patches | None = Field(default=None, alias="set")
    """Merge patches by KIND/[NAMESPACE/]NAME; with `for`, undone at its end."""

    constraints = (Constraint(find=_one_kind, cel=None, rule=""),)

    @property
    def kind(self) -> FaultKind:
        """Which of the disturbances it is, by its name in the file."""
        kind: FaultKind = _kinds(self)[0]  # type: ignore[assignment]
        return kind

    @property
    def interval(self) -> Interval:
        """When it is on; what happens at once (`set` without `for`, `spotReclaim`) ends when it begins."""
        at_s = duration_s(self.at)
        if self.for_ is not None:
            return Interval(from_s=at_s, until_s=at_s + duration_s(self.for_))
        return Interval(from_s=at_s, until_s=at_s if self.kind in _AT_ONCE else math.inf)

    @property
    def pool(self) -> str | None:
        """The pool it is about, if it is about one."""
        holder = self.slow_start or self.spot_reclaim
        return self.pool_unavailable or self.pool_lost or (holder.pool if holder else None)

    @property
    def pipeline(self) -> str | None:
        """The pipeline (or "*") it is about, if it is about any."""
        holder = self.metrics_partial or self.metrics_noisy or self.spike
        return self.metrics_lost or self.metrics_stale or (holder.pipeline if holder else None)


class WhatIf(Part):
    """The same run with other resources or another load."""

    name: Annotated[str, Field(min_length=1)]
    set_: Patches | None = Field(default=None, alias="set")
    load: LoadFields | None = None

    constraints = (
        constraint(
            holds=lambda self: _given(self, "set_") or _given(self, "load"),
            cel=None,
            rule="must have set or load, or it changes nothing",
            field="name",
        ),
    )


def _faults_outside(scenario: Any) -> Iterator[Breach]:
    end_s = duration_s(scenario.duration)
    for index, fault in enumerate(scenario.faults):
        if duration_s(fault.at) >= end_s:
            rule = f"must begin before the run ends ({scenario.duration})"
            yield Breach(path=("faults", index, "at"), rule=rule)


class ScenarioFile(Part):
    """A scenario as it is written."""

    name: Annotated[str, Field(min_length=1)]
    manifests: Annotated[list[str], Field(min_length=1)]
    duration: PositiveDuration
    warmup: Duration = "0s"
    window: PositiveDuration = "10s"
    seeds: list[Annotated[int, Field(ge=0)]] = Field(default=[1], min_length=1)
    load: Annotated[list[Load], Field(min_length=1)]
    faults: list[Fault] = Field(default=[])
    policies: list[str] = Field(default=["sluice"], min_length=1)
    what_if: Annotated[list[WhatIf], ListMap(key="name")] = Field(default=[])

    constraints = (
        constraint(
            holds=lambda self: len(self.name) <= 100 and self.name.isprintable() and "/" not in self.name,
            cel=None,
            rule="must be fit for the name of a file: at most 100 printable characters, none of them /",
            field="name",
        ),
        constraint(
            holds=lambda self: duration_s(self.duration) <= MAX_WINDOWS * duration_s(self.window),
            cel=None,
            rule=f"must divide duration ({{duration}}) into at most {MAX_WINDOWS} windows",
            field="window",
        ),
        constraint(
            holds=lambda self: duration_s(self.warmup) < duration_s(self.duration),
            cel=None,
            rule="must be shorter than duration ({duration})",
            field="warmup",
        ),
        Constraint(find=_faults_outside, cel=None, rule=""),
    )

    @property
    def clock(self) -> Clock:
        """What is scored of a run."""
        return Clock(
            duration_s=duration_s(self.duration), warmup_s=duration_s(self.warmup), window_s=duration_s(self.window)
        )


class InvalidScenario(ValueError):
    """A scenario, or a manifest that it names, has mistakes: `findings` has each, the message one line for each."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A valid scenario with the resources its manifests declare."""

    path: Path
    file: ScenarioFile
    pipelines: tuple[SpeechPipeline, ...]
    pools: tuple[ComputePool, ...]

    @property
    def manifests(self) -> tuple[Path, ...]:
        """The manifest files."""
        return tuple(self.path.parent / name for name in self.file.manifests)


def load_scenario(path: Path) -> Scenario:
    """Read a scenario and the manifests that it names; raise InvalidScenario with every mistake in them."""
    try:
        documents = load_documents(path)
    except ManifestError as error:
        found = Finding(file=error.path, line=error.line, field="", value="", rule=error.rule)
        raise InvalidScenario((found,)) from error
    if len(documents) != 1:
        rule = f"must be one document, not {len(documents)}"
        raise InvalidScenario((Finding(file=path, line=1, field="", value="", rule=rule),))
    document = documents[0]
    file, found_breaches = inspect_strictly(ScenarioFile, document.data)
    if found_breaches or not isinstance(file, ScenarioFile):
        raise InvalidScenario(tuple(finding_of(document, breach) for breach in found_breaches))
    resources = validate_files([path.parent / name for name in file.manifests])
    if resources.findings:
        raise InvalidScenario(resources.findings)
    scenario = Scenario(path=path, file=file, pipelines=resources.pipelines, pools=resources.pools)
    findings = tuple(finding_of(document, breach) for breach in _references(scenario))
    if findings:
        raise InvalidScenario(findings)
    return scenario


def pipeline_key(pipeline: SpeechPipeline) -> str:
    """namespace/name, as scenarios name pipelines."""
    return f"{pipeline.metadata.namespace}/{pipeline.metadata.name}"


def _references(scenario: Scenario) -> Iterator[Breach]:
    """What the file says of things that are not there, or that do not go with the pipeline's unit."""
    pipelines = {pipeline_key(pipeline): pipeline for pipeline in scenario.pipelines}
    pools = {pool.metadata.name for pool in scenario.pools}
    resources = {f"SpeechPipeline/{key}" for key in pipelines} | {f"ComputePool/{name}" for name in pools}
    stages = {name for key, p in pipelines.items() for s in p.spec.stages for name in (s.name, f"{key}/{s.name}")}
    for index, load in enumerate(scenario.file.load):
        at = ("load", index)
        if load.pipeline not in pipelines:
            yield _unknown((*at, "pipeline"), load.pipeline, pipelines, "pipeline in the manifests")
            continue
        yield from _unit_breaches(at, load, pipelines[load.pipeline])
        try:
            trace = read_trace(load.trace, Column(load.column), folder=scenario.path.parent)
        except InvalidTrace as error:
            yield Breach(path=(*at, "trace"), rule=str(error))
        else:
            if load.offset is not None and duration_s(load.offset) >= trace.span_s:
                rule = f"must be within the trace, which is {trace.span_s:g} s long"
                yield Breach(path=(*at, "offset"), rule=rule)
    for index, fault in enumerate(scenario.file.faults):
        where = ("faults", index, fault.kind)
        if fault.pool is not None and fault.pool not in pools:
            yield _unknown(where, fault.pool, pools, "pool in the manifests")
        if fault.pipeline not in {None, EVERYTHING, *pipelines}:
            yield _unknown(where, fault.pipeline, pipelines, "pipeline in the manifests")
        if fault.slow_stage is not None and fault.slow_stage.stage not in stages:
            yield _unknown(where, fault.slow_stage.stage, stages, "stage in the manifests")
        for name in fault.set_ or ():
            if name not in resources:
                yield _unknown((*where, name), name, resources, "resource in the manifests")
    for index, what_if in enumerate(scenario.file.what_if):
        for name in what_if.set_ or ():
            if name not in resources:
                yield _unknown(("whatIf", index, "set", name), name, resources, "resource in the manifests")


def _unit_breaches(at: tuple[str, int], load: Load, pipeline: SpeechPipeline) -> Iterator[Breach]:
    if pipeline.spec.demand.unit == "Requests":
        if load.session is not None:
            rule = "must be absent: the pipeline takes Requests, which have no sessions"
            yield Breach(path=(*at, "session"), rule=rule)
        if load.column == Column.STREAMS.value:
            rule = "must be arrivals or rate_per_s: the pipeline takes Requests, which have no level of streams"
            yield Breach(path=(*at, "column"), rule=rule)
    elif load.session is None and load.column != Column.STREAMS.value:
        rule = f"required: the pipeline takes Streams, and {load.column} does not say how long they last"
        yield Breach(path=(*at, "session"), rule=rule)


def _unknown(path: tuple[str | int, ...], name: str | None, known: Any, what: str) -> Breach:
    nearest = nearest_name(str(name), known)
    hint = f"did you mean {nearest}?" if nearest else f"there are {', '.join(sorted(known))}"
    return Breach(path=path, rule=f"no such {what}; {hint}")
