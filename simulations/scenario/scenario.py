"""Scenario files: load, faults, policies and what-ifs of a run, for the simulator and the lab.

A file is checked together with the manifests that it names. Its paths are relative to it.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field
from pydantic.alias_generators import to_camel

from controller.resources.base import Breach, Constraint, ListMap, ListSet, Part, Unusable, constraint
from controller.resources.budget import ComputeBudget
from controller.resources.fields import Duration, Moment, PositiveDuration, duration_s
from controller.resources.manifests import Document, ManifestError, format_path, load_documents
from controller.resources.parsing import inspect_strictly, nearest_name
from controller.resources.pipeline import SpeechPipeline
from controller.resources.pool import ComputePool
from controller.resources.translate import pipeline_spec, pool_spec
from controller.resources.validation import MODELS, Finding, finding_of, validate_files
from optimizer.model import InvalidProblem, Sla
from simulations.results.scoring import Clock, Interval
from simulations.scenario.interference import stages_named
from simulations.scenario.own_servers import with_own_servers
from simulations.scenario.patches import merged, undo
from simulations.scenario.reference_service import ReferenceService
from simulations.scenario.traces import Column, InvalidTrace, read_trace
from simulations.scenario.values import (
    EVERYTHING,
    FirstTokens,
    Instances,
    Interferences,
    Models,
    Multiple,
    Number,
    Patches,
    PipelineName,
    PipelineNames,
    PositiveNumber,
    Profiles,
    Sends,
    Share,
)

Value = TypeVar("Value")
AnyResource = SpeechPipeline | ComputePool | ComputeBudget
MAX_WINDOWS = 100_000


class Session(Part):
    """The distribution of session lengths: log-normal with this mean and coefficient of variation (`cv`)."""

    mean: PositiveDuration
    """Mean length."""
    cv: Number
    """Coefficient of variation."""
    reconnect: Literal["backoff", "never"] = "backoff"
    """Whether the client of a refused or shed stream tries again until its session ends, after 1 s doubling to 30 s."""


class PastLoad(Part):
    """A recording of the load before the run, which ends when the run begins."""

    trace: str
    """A file, or the name of a bundled trace."""
    column: Literal["arrivals", "streams", "rate_per_s"]
    """What the numbers of the trace are."""
    series: Annotated[str, Field(min_length=1)] | None = None
    """The series of the file, where it has several."""
    copies: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Superposed copies of the trace, each but the first shifted cyclically, the same in every run."""
    session: Session | None = None
    """Lengths of the sessions. Default: those of the load."""
    speed: PositiveNumber | None = None
    """How many times faster than recorded the trace is played. Default: 1."""
    offset: Duration | None = None
    """Where in the recording the history begins. Default: its beginning."""

    @property
    def recording(self) -> tuple[str, str]:
        """Return trace and column."""
        return self.trace, self.column


class LoadFields(Part):
    """How a trace becomes load. In a what-if, the given fields replace those of every load entry."""

    trace: str | None = None
    """A file, or the name of a bundled trace."""
    column: Literal["arrivals", "streams", "rate_per_s"] | None = None
    """What the numbers of the trace are."""
    series: Annotated[str, Field(min_length=1)] | None = None
    """The series of the file, where it has several: the name of a column, a series of Prometheus such as
    `open{job="asr"}`, or the value of one of its labels. Default: the series named as `column`, or the only one."""
    at_end: Literal["repeat", "end"] | None = None
    """What follows where the run is longer than the trace: the trace again, or no load. Default: repeat."""
    copies: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Superposed copies of the trace, each but the first shifted cyclically at random."""
    session: Session | None = None
    """Lengths of the sessions; only for pipelines with unit Streams."""
    speed: PositiveNumber | None = None
    """How many times faster than recorded the trace is played, session lengths included. Default: 1."""
    offset: Duration | None = None
    """Where in the recording the first copy begins. Default: its beginning."""
    history: PastLoad | None = None
    """The load before the run, for pipelines with `spec.demand.history`. Only in the simulator."""


class BacklogLoad(Part):
    """Items that are all there at once, and wait."""

    items: Annotated[int, Field(ge=1, le=5_000_000)]
    """Number of items."""
    at: Duration = "0s"
    """When they are added, from the beginning of the run."""


class Load(LoadFields):
    """The load of one pipeline; several entries for one pipeline add up."""

    pipeline: PipelineName
    """The pipeline that gets the load."""
    backlog: BacklogLoad | None = None
    """Items for a pipeline with `spec.demand.backlog`, instead of a trace."""

    @property
    def recording(self) -> tuple[str, str]:
        """Return trace and column of an entry without a backlog."""
        assert self.trace is not None, "validation requires a trace without backlog"
        assert self.column is not None, "validation requires a column without backlog"
        return self.trace, self.column


class MetricsShare(Part):
    """`metricsPartial`: the series of this share (0–1) of the pods are missing."""

    share: Share
    """Share of the pods."""
    pipeline: PipelineNames = EVERYTHING
    """The pipeline whose metrics they are."""


class MetricsNoise(Part):
    """`metricsNoisy`: readings are multiplied by noise of mean 1 and this coefficient of variation."""

    cv: Number
    """Coefficient of variation of the noise."""
    pipeline: PipelineNames = EVERYTHING
    """The pipeline whose metrics they are."""


class Spike(Part):
    """`spike`: the load of a pipeline is multiplied by `factor`."""

    pipeline: PipelineName
    """The pipeline."""
    factor: Multiple
    """Load during the fault over load without it."""


class SlowStart(Part):
    """`slowStart`: the start-up time of new replicas on a pool is multiplied by `factor`."""

    pool: str
    """The ComputePool."""
    factor: PositiveNumber
    """Start-up time during the fault over that without it."""


class SlowStage(Part):
    """`slowStage`: the service time of batches of a stage (NAME or PIPELINE/NAME) is multiplied by `factor`."""

    stage: str
    """The stage, NAME or PIPELINE/NAME."""
    factor: PositiveNumber
    """Service time during the fault over that without it."""


class ColdCaches(Part):
    """`coldCaches`: replicas of a stage (NAME or PIPELINE/NAME) that start serving are slower at first."""

    stage: str
    """The stage, NAME or PIPELINE/NAME."""
    factor: PositiveNumber
    """Service time of such a replica at first over that of later."""
    lasts: PositiveDuration
    """How long each of them is slower, from when it is ready."""


class PassedOn(Part):
    """`passRatio`: another share (0–1) of the items of a stage (NAME or PIPELINE/NAME) goes on, as in noise."""

    stage: str
    """The stage, NAME or PIPELINE/NAME."""
    ratio: Share
    """Share of the items that goes on during the fault."""


class SlowTransit(Part):
    """`slowTransit`: every item of a pipeline takes longer outside the stages."""

    pipeline: str
    """The pipeline."""
    by: PositiveDuration
    """Time outside the stages, in addition."""


class Retries(Part):
    """`retries`: clients send each item of a pipeline `factor` times on average; the ingress counts it once."""

    pipeline: PipelineName
    """The pipeline."""
    factor: Sends
    """How often an item is sent on average. Copies pass the stages like other items; the first one is the answer."""


class SpotReclaim(Part):
    """`spotReclaim`: a share (0–1) of a pool's nodes is reclaimed, with the replicas on them."""

    pool: str
    """The ComputePool."""
    share: Share
    """Share of the pool's nodes."""
    notice: Duration = "0s"
    """The time between the announcement, from which the nodes take no new replica, and the reclaim."""


class NodeStartup(Part):
    """How long a node takes from its launch until it is ready, uniformly distributed."""

    min: Duration = "60s"
    """The least time."""
    max: Duration = "180s"
    """The longest time."""

    constraints = (
        constraint(
            holds=lambda self: duration_s(self.min) <= duration_s(self.max),
            cel=None,
            rule="must be at least min ({min})",
            field="max",
        ),
    )

    @property
    def range_s(self) -> tuple[float, float]:
        """Return the least and the longest time in seconds."""
        return duration_s(self.min), duration_s(self.max)


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
    "coldCaches",
    "stuckReplica",
    "passRatio",
    "slowTransit",
    "retries",
    "cpuQuota",
    "spotReclaim",
    "rollOut",
    "set",
]
_AT_ONCE = ("set", "spotReclaim", "rollOut")


def _kinds(fault: Any) -> list[str]:
    return [alias for alias, name in fault.field_names().items() if name not in {"at", "for_"} and _given(fault, name)]


def _given(part: Part, name: str) -> bool:
    values = vars(part)
    return name not in values or values[name] is not None  # fields that have failed validation are not among them


def _one_kind(fault: Any) -> Iterator[Breach]:
    kinds = _kinds(fault)
    if len(kinds) != 1:
        known = ", ".join(alias for alias in fault.field_names() if alias not in {"at", "for"})
        yield Breach(path=(), rule=f"must have exactly one of {known}, not {' and '.join(kinds) or 'none'}")


def _roll_out_with_end(fault: Any) -> Iterator[Breach]:
    if _given(fault, "roll_out") and _given(fault, "for_"):
        yield Breach(path=("for",), rule="must be absent: a roll-out ends when every pod has been replaced")


class Fault(Part):
    """One fault, from `at` for the time `for`, or to the end of the run."""

    at: Duration
    """When the fault begins, from the start of the run."""
    for_: PositiveDuration | None = Field(default=None, alias="for")
    """How long it lasts. Default: to the end of the run."""
    pool_unavailable: str | None = None
    """New replicas get no node of the pool; running ones stay."""
    pool_lost: str | None = None
    """The pool's nodes are lost, with the replicas on them."""
    metrics_lost: PipelineNames | None = None
    """No query about the pipeline returns a series."""
    metrics_stale: PipelineNames | None = None
    """Queries return the values from the begin of the fault, which become older."""
    metrics_partial: MetricsShare | None = None
    """The series of a share of the pods are missing."""
    metrics_noisy: MetricsNoise | None = None
    """Readings are multiplied by noise."""
    spike: Spike | None = None
    """The load of a pipeline is multiplied."""
    slow_start: SlowStart | None = None
    """New replicas on a pool start more slowly."""
    slow_stage: SlowStage | None = None
    """The batches of a stage take longer."""
    cold_caches: ColdCaches | None = None
    """Replicas that start serving are slower at first, such as with empty caches. Only in the simulator."""
    stuck_replica: str | None = None
    """The oldest replica of a stage (NAME or PIPELINE/NAME) completes nothing any more, and takes items as before."""
    pass_ratio: PassedOn | None = None
    """Another share of the items of a stage goes on."""
    slow_transit: SlowTransit | None = None
    """Items take longer outside the stages."""
    retries: Retries | None = None
    """Clients send items several times."""
    cpu_quota: str | None = None
    """The replicas of a stage (NAME or PIPELINE/NAME) of the reference service have their share of a core as a CPU
    limit of Kubernetes gives it: in each 100 ms they run at full speed until it is used up, and then stop."""
    spot_reclaim: SpotReclaim | None = None
    """A share of a pool's nodes is reclaimed, with the replicas on them."""
    roll_out: str | None = None
    """The Deployments of a stage (NAME or PIPELINE/NAME) replace their pods, one at a time: an old pod stays until the
    new one is ready (`maxSurge` 1, `maxUnavailable` 0)."""
    set_: Patches | None = Field(default=None, alias="set")
    """Merge patches by KIND/[NAMESPACE/]NAME; with `for`, undone at its end."""

    constraints = (
        Constraint(find=_one_kind, cel=None, rule=""),
        Constraint(find=_roll_out_with_end, cel=None, rule=""),
    )

    @property
    def kind(self) -> FaultKind:
        """Return the kind of the fault, as it is named in the file."""
        kind: FaultKind = _kinds(self)[0]  # type: ignore[assignment]
        return kind

    @property
    def interval(self) -> Interval:
        """Return when the fault is active; those at once (`_AT_ONCE`) end when they begin if they have no `for`."""
        at_s = duration_s(self.at)
        if self.for_ is not None:
            return Interval(from_s=at_s, until_s=at_s + duration_s(self.for_))
        return Interval(from_s=at_s, until_s=at_s if self.kind in _AT_ONCE else math.inf)

    @property
    def pool(self) -> str | None:
        """Return the pool that the fault affects; None if it does not name one."""
        holder = self.slow_start or self.spot_reclaim
        return self.pool_unavailable or self.pool_lost or (holder.pool if holder else None)

    @property
    def pipeline(self) -> str | None:
        """Return the pipeline that the fault affects, or "*" for all; None if it does not name one."""
        holder = self.metrics_partial or self.metrics_noisy or self.spike or self.slow_transit or self.retries
        return self.metrics_lost or self.metrics_stale or (holder.pipeline if holder else None)


class WhatIf(Part):
    """The same run with other resources or another load."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the what-if, for `--what-if`."""
    set_: Patches | None = Field(default=None, alias="set")
    """Merge patches by KIND/[NAMESPACE/]NAME."""
    load: LoadFields | None = None
    """Fields that replace those of every load entry."""

    constraints = (
        constraint(
            holds=lambda self: _given(self, "set_") or _given(self, "load"),
            cel=None,
            rule="must have set or load; without them it changes nothing",
            field="name",
        ),
    )


def _faults_outside(scenario: Any) -> Iterator[Breach]:
    end_s = duration_s(scenario.duration)
    for index, fault in enumerate(scenario.faults):
        if duration_s(fault.at) >= end_s:
            rule = f"must begin before the run ends ({scenario.duration})"
            yield Breach(path=("faults", index, "at"), rule=rule)


def _not_of_the_service(scenario: Any) -> Iterator[Breach]:
    if scenario.speech is None:
        for index, fault in enumerate(scenario.faults):
            if "cpuQuota" in _kinds(fault):
                yield Breach(path=("faults", index, "cpuQuota"), rule="needs speech: only its replicas compute")
        return
    given = {
        "profileError": scenario.profile_error,
        "hideProfiles": scenario.hide_profiles,
        "interference": scenario.interference,
        "speedSpread": scenario.speed_spread,
        "firstToken": scenario.first_token,
        "otherModels": scenario.other_models,
    }
    rule = "must be absent beside speech: the service times are those of a computation"
    yield from (Breach(path=(field,), rule=rule) for field, value in given.items() if value)
    for index, fault in enumerate(scenario.faults):
        if {"slowStart", "slowStage", "coldCaches", "stuckReplica", "passRatio"} & {*_kinds(fault)}:
            yield Breach(path=("faults", index, *_kinds(fault)[:1]), rule=rule)


class ScenarioFile(Part):
    """The content of a scenario file, field by field."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the scenario, also in the names of reports."""
    manifests: Annotated[list[str], Field(min_length=1)]
    """Files with the SpeechPipelines and ComputePools, relative to this file."""
    duration: PositiveDuration
    """Length of the run, warm-up included."""
    begins: Moment | None = None
    """When the load begins, as an RFC 3339 time such as 2026-12-24T18:00:00Z. Needed where a pipeline has
    `demand.atLeast` or `demand.expected`. On the lab they follow the machine's clock instead."""
    cold_start: bool = False
    """Whether the run begins with no replica of any stage and with the policies' first cycle, under the load of that
    moment. Otherwise the least replicas are ready by then, and the policies have settled. The lab does not have it."""
    warmup: Duration = "0s"
    """Time at the begin of the run that is not scored."""
    window: PositiveDuration = "10s"
    """Length of a window, for which the SLA is scored."""
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], ListSet()] = Field(default=[1], min_length=1)
    """Seeds of the random loads: one run each."""
    instances: Instances | None = None
    """By ComputePool: its number of instances, instead of its `spec.capacity.instances`. Needed for a pool that is
    bounded otherwise."""
    load: Annotated[list[Load], Field(min_length=1)]
    """The load of the pipelines."""
    faults: list[Fault] = Field(default=[])
    """What breaks, and when."""
    profile_error: Profiles | None = None
    """By stage (NAME or PIPELINE/NAME): the declared service times are the true ones times this factor."""
    hide_profiles: bool = False
    """Whether service times and start-up times are hidden from the policies."""
    ignore_growth: bool = False
    """Whether sessions that grow (`memory.kvCache.growth`) are planned and admitted by their mean tokens. Replicas run
    out of memory all the same. Only in the simulator."""
    overhead: Duration = "0s"
    """Time of every item outside the stages, such as in a gateway."""
    speed_spread: Number = 0.0
    """The service times of replicas differ by a factor of mean 1 and this coefficient of variation."""
    interference: Interferences | None = None
    """By pair of stages (NAME or PIPELINE/NAME, with a comma between them): a replica of the first takes so many times
    as long while one of the second on the same instance is busy, and the other way round unless that pair is stated
    too. With several busy neighbours the additions count together."""
    node_startup: NodeStartup = NodeStartup()
    """Launch of a node, on pools with `capacity.nodePool`, in the simulator."""
    refusal_cache: Duration = "3m"
    """How long a provider of nodes is not asked again after it had none, in the simulator. Divided by `pace`. On the
    lab, nodes are there again as soon as a fault ends, as with 0s."""
    interval: PositiveDuration | None = None
    """The time between two cycles of Sluice. Default: 15s, as of the operator, and 2s on the lab. A load that is played
    faster than it was recorded needs shorter cycles in proportion."""
    pace: Multiple = 1.0
    """How many times as fast as it was recorded the load is played. The times in the settings of the other policies,
    such as the sync period of an HPA, are divided by it, and so is the time until a reclaimed node is replaced."""
    scrape_interval: PositiveDuration = "1s"
    """The time between two scrapes of the metrics."""
    sheds: bool = True
    """Whether the ingress obeys `status.admissible`."""
    hands_over: bool = False
    """Whether the ingress moves streams between replicas without a cut: off draining ones, and as
    `status.stages[].rebalance` says."""
    first_token: FirstTokens | None = None
    """By stage (NAME or PIPELINE/NAME): the first token of an answer leaves after this share of the service time."""
    other_models: Models | None = None
    """By stage (NAME or PIPELINE/NAME): further models on its servers, which every item passes too."""
    speech: ReferenceService | None = None
    """The pods are the reference service instead of workers that obey declared laws: service times, start-up and word
    errors are its own, and manifests need not declare any. Only on the lab."""
    policies: Annotated[list[str], ListSet()] = Field(default=["sluice"], min_length=1)
    """What decides: a run each."""
    what_if: Annotated[list[WhatIf], ListMap(key="name")] = Field(default=[])
    """The same run with other resources or another load."""

    constraints = (
        constraint(
            holds=lambda self: len(self.name) <= 100 and self.name.isprintable() and "/" not in self.name,
            cel=None,
            rule="must be usable as a file name: at most 100 printable characters, none of them /",
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
        Constraint(find=_not_of_the_service, cel=None, rule=""),
    )

    @property
    def clock(self) -> Clock:
        """Return duration, warm-up and window length of a run, in seconds."""
        return Clock(
            duration_s=duration_s(self.duration), warmup_s=duration_s(self.warmup), window_s=duration_s(self.window)
        )

    def reconnects(self, pipeline: str) -> bool:
        """Return whether a refused or shed stream of the pipeline (namespace/name) tries again."""
        sessions = [load.session for load in self.load if load.pipeline == pipeline]
        return all(session is None or session.reconnect != "never" for session in sessions)


def of_stage(values: Mapping[str, Value] | None, pipeline: str, stage: str, default: Value) -> Value:
    """Return the value of a stage in `values` by PIPELINE/NAME or NAME; `pipeline` is namespace/name."""
    values = values or {}
    return values.get(f"{pipeline}/{stage}", values.get(stage, default))


class InvalidScenario(ValueError):
    """A scenario or one of its manifests is invalid: `findings` has each error, the message a line for each."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A valid scenario with the resources its manifests declare.

    `documents` are these resources as written in the manifests, by KIND/[NAMESPACE/]NAME. `namespace_labels` has the
    labels of the Namespaces in the manifests. `notes` say what differs from the manifests, one sentence each.
    """

    path: Path
    file: ScenarioFile
    pipelines: tuple[SpeechPipeline, ...]
    pools: tuple[ComputePool, ...]
    budgets: tuple[ComputeBudget, ...]
    namespace_labels: Mapping[str, Mapping[str, str]]
    documents: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...] = ()

    @property
    def manifests(self) -> tuple[Path, ...]:
        """Return the paths of the manifest files."""
        return tuple(self.path.parent / name for name in self.file.manifests)

    def what_if(self, name: str) -> WhatIf:
        """Return the what-if of that name.

        Raises:
            ValueError: there is no such what-if.
        """
        found = next((what_if for what_if in self.file.what_if if what_if.name == name), None)
        if found is None:
            known = ", ".join(what_if.name for what_if in self.file.what_if) or "none"
            raise ValueError(f"what-if: {name!r}: no such what-if in {self.path}; there are {known}")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChange:
    """The new value of a resource from `at_s` on; `name` is its KIND/[NAMESPACE/]NAME.

    `fault` is the index of the `set` fault that begins or ends then.
    """

    at_s: float
    fault: int
    name: str
    resource: AnyResource


class PatchRefused(ValueError):
    """A patch makes a resource invalid: `breaches` has each error with its path in the resource.

    `fault` is the index of the fault with the patch, None for the patch of a what-if.
    """

    def __init__(self, name: str, breaches: tuple[Breach, ...], fault: int | None) -> None:
        where = "; ".join(f"{format_path(breach.path)}: {breach.rule}" for breach in breaches)
        super().__init__(f"set {name}: {where}")
        self.name = name
        self.breaches = breaches
        self.fault = fault


def with_what_if(scenario: Scenario, what_if: WhatIf | None) -> Scenario:
    """Return the scenario with the resources and the load that `what_if` changes; unchanged for None.

    Raises:
        PatchRefused: a patch makes a resource invalid.
    """
    if what_if is None:
        return scenario
    patches = what_if.set_ or {}
    patched = {name: merged(scenario.documents[name], patch) for name, patch in patches.items()}
    fields = {} if what_if.load is None else {name: value for name, value in what_if.load if value is not None}
    return replace(
        with_documents(scenario, patched),
        file=scenario.file.model_copy(
            update={
                "load": [load if load.backlog else load.model_copy(update=fields) for load in scenario.file.load],
            }
        ),
    )


def with_documents(scenario: Scenario, documents: Mapping[str, Mapping[str, Any]]) -> Scenario:
    """Return the scenario with `documents` (by KIND/[NAMESPACE/]NAME) in place of its own of the same names.

    Raises:
        PatchRefused: a document is not a valid resource of its kind.
    """
    computed = scenario.file.speech is not None
    changed = {name: _resource(name, document, computed=computed) for name, document in documents.items()}
    return replace(
        scenario,
        pipelines=tuple(_of_kind(SpeechPipeline, changed.get(resource_name(p), p)) for p in scenario.pipelines),
        pools=tuple(_of_kind(ComputePool, changed.get(resource_name(p), p)) for p in scenario.pools),
        budgets=tuple(_of_kind(ComputeBudget, changed.get(resource_name(b), b)) for b in scenario.budgets),
        documents={**scenario.documents, **documents},
    )


def with_instances(scenario: Scenario, instances: Mapping[str, int]) -> Scenario:
    """Return the scenario with these numbers of instances, by ComputePool; a pool that is not named keeps its own."""
    patch = {
        name: merged(scenario.documents[name], {"spec": {"capacity": {"instances": instances[pool.metadata.name]}}})
        for pool in scenario.pools
        if instances.get(pool.metadata.name, pool.spec.capacity.instances) != pool.spec.capacity.instances
        for name in [resource_name(pool)]
    }
    return with_documents(scenario, patch)


def resource_changes(scenario: Scenario) -> tuple[ResourceChange, ...]:
    """Return the changes that `set` faults make to resources, sorted by time; the end of a fault is a change too.

    Raises:
        PatchRefused: a patch makes a resource invalid.
    """
    due: list[tuple[float, int, str, bool]] = []
    for index, fault in enumerate(scenario.file.faults):
        span = fault.interval
        for name in fault.set_ or ():
            due.append((span.from_s, index, name, False))
            if span.until_s > span.from_s:
                due.append((span.until_s, index, name, True))
    documents = dict(scenario.documents)
    undoing: dict[tuple[int, str], dict[str, Any]] = {}
    changes = []
    for at_s, index, name, is_end in sorted(due, key=lambda entry: entry[0]):
        if is_end:
            patch = undoing[index, name]
        else:
            patch = (scenario.file.faults[index].set_ or {})[name]
            undoing[index, name] = undo(patch, documents[name])
        documents[name] = merged(documents[name], patch)
        resource = _resource(name, documents[name], computed=scenario.file.speech is not None, fault=index)
        changes.append(ResourceChange(at_s=at_s, fault=index, name=name, resource=resource))
    return tuple(changes)


def sla_changes(scenario: Scenario) -> dict[str, list[tuple[float, Sla]]]:
    """Return the SLAs that `set` faults give each pipeline (namespace/name), each with the time (s) it holds from."""
    changes: dict[str, list[tuple[float, Sla]]] = {pipeline_key(pipeline): [] for pipeline in scenario.pipelines}
    for change in resource_changes(scenario):
        if isinstance(change.resource, SpeechPipeline):
            key = change.name.partition("/")[2]
            changes[key].append((change.at_s, pipeline_spec(change.resource).sla))
    return changes


def _resource(name: str, document: Mapping[str, Any], *, computed: bool, fault: int | None = None) -> AnyResource:
    resource, found = inspect_strictly(MODELS[name.partition("/")[0]], dict(document))
    if isinstance(resource, SpeechPipeline) and not found:
        found = [*_not_simulated(resource, computed=computed)]
    if found or isinstance(resource, Unusable):
        raise PatchRefused(name, tuple(found), fault)
    assert isinstance(resource, SpeechPipeline | ComputePool | ComputeBudget)
    return resource


def _not_simulated(pipeline: SpeechPipeline, *, shared: bool = False, computed: bool = False) -> Iterator[Breach]:
    """Yield the fields of a valid pipeline with which no run is possible, neither in the simulator nor on the lab.

    `shared` says whether stages may be shared. Both need the true service times, unless replicas have some of their own
    (`computed`). A `cv` or `startup` that is not declared is taken as its placeholder.
    """
    for i, stage in enumerate(pipeline.spec.stages):
        at = ("spec", "stages", i)
        if float(stage.pass_ratio) > 1:
            rule = "must be at most 1 in a scenario: fan-out is planned for, but not simulated"
            yield Breach(path=(*at, "passRatio"), rule=rule)
        if stage.shared_from is not None and not shared:
            rule = "not possible in a scenario: a stage that several pipelines share is planned for, but not simulated"
            yield Breach(path=(*at, "sharedFrom"), rule=rule)
        for j, own in stage.workloads():
            if own.placement.service_time is None and not computed:
                rule = "required in a scenario: it is the true service time of the replicas"
                yield Breach(path=(*at, "placements", j, *own.path, "serviceTime"), rule=rule)


Resource = TypeVar("Resource", SpeechPipeline, ComputePool, ComputeBudget)


def _of_kind(kind: type[Resource], resource: AnyResource) -> Resource:
    assert isinstance(resource, kind)
    return resource


def resource_name(resource: AnyResource) -> str:
    """Return the name of a resource in scenario files, KIND/[NAMESPACE/]NAME."""
    if isinstance(resource, SpeechPipeline):
        return f"SpeechPipeline/{pipeline_key(resource)}"
    return f"{resource.kind}/{resource.metadata.name}"


def load_scenario(
    path: Path, *, policies: Collection[str] | None = None, own_servers: bool = False, live: bool = False
) -> Scenario:
    """Return the scenario in a file, with the manifests that it names.

    A scenario with the reference service is refused unless it is for a `live` run.

    `policies` are the names that the file may have in its `policies`; None allows any name. With `own_servers`, a stage
    with `sharedFrom` gets servers of its own, with a note; without, it is a mistake.

    Raises:
        InvalidScenario: the scenario or one of its manifests is invalid; `findings` has every error.
    """
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
    if file.speech is not None and not live:
        breach = Breach(path=("speech",), rule="only on the lab: service times of a computation are not simulated")
        raise InvalidScenario((finding_of(document, breach),))
    manifests = [path.parent / name for name in file.manifests]
    resources = validate_files(manifests)
    if resources.findings:
        raise InvalidScenario(resources.findings)
    unknown = [
        finding_of(document, breach)
        for pipeline, document in zip(resources.pipelines, resources.pipeline_documents, strict=True)
        for breach in _not_simulated(pipeline, shared=own_servers, computed=file.speech is not None)
    ]
    if unknown:
        raise InvalidScenario(tuple(unknown))
    written = {name: manifest.data for name, manifest in _manifest_documents(manifests).items()}
    separate, notes = with_own_servers(written)
    scenario = Scenario(
        path=path,
        file=file,
        pipelines=resources.pipelines,
        pools=resources.pools,
        documents=written,
        budgets=resources.budgets,
        namespace_labels=resources.namespace_labels,
        notes=notes,
    )
    if unpriced := [*_unpriced(scenario)]:
        raise invalid(scenario, unpriced)
    scenario = with_instances(with_documents(scenario, separate), file.instances or {})
    breaches = [*_unknown_policies(file, file.policies if policies is None else policies), *_references(scenario)]
    breaches += [
        Breach(path=("load", index, "backlog"), rule="not with the reference service, which streams speak to")
        for index, load in enumerate(file.load)
        if file.speech is not None and load.backlog is not None
    ]
    breaches = breaches or [*_refused_patches(scenario)]  # a patch of an unknown resource is reported already
    if breaches:
        raise InvalidScenario(tuple(finding_of(document, breach) for breach in breaches))
    return scenario


def invalid(scenario: Scenario, mistakes: Iterable[tuple[str | None, Breach]]) -> InvalidScenario:
    """Return the error that reports `mistakes`, each with file and line.

    A mistake is a breach and the name (KIND/[NAMESPACE/]NAME) of the resource in whose manifest it is. The name is None
    for a breach in the scenario file.
    """
    manifests = _manifest_documents(scenario.manifests)
    (file,) = load_documents(scenario.path)
    findings = [finding_of(file if name is None else manifests[name], breach) for name, breach in mistakes]
    return InvalidScenario(tuple(findings))


def _unpriced(scenario: Scenario) -> Iterator[tuple[str, Breach]]:
    """Yield the pools whose price is looked up at AWS, and which have none without asking it."""
    for pool in scenario.pools:
        try:
            pool_spec(pool)
        except InvalidProblem:
            rule = "must have price.perHour beside it: the bundled table has no price of these types in this region"
            yield resource_name(pool), Breach(path=("spec", "price", "aws"), rule=rule)


def _manifest_documents(paths: Iterable[Path]) -> dict[str, Document]:
    """Return the resources as written in the manifests, by KIND/[NAMESPACE/]NAME."""
    return {
        _document_name(document.data): document
        for path in paths
        for document in load_documents(path)
        if document.data.get("kind") in MODELS
    }


def _document_name(document: Mapping[str, Any]) -> str:
    metadata = document["metadata"]
    if document["kind"] != "SpeechPipeline":
        return f"{document['kind']}/{metadata['name']}"
    return f"SpeechPipeline/{metadata.get('namespace') or 'default'}/{metadata['name']}"


def _unknown_policies(file: ScenarioFile, known: Collection[str]) -> Iterator[Breach]:
    for index, name in enumerate(file.policies):
        if name not in known:
            yield _unknown(("policies", index), name, known, "policy")


def _refused_patches(scenario: Scenario) -> Iterator[Breach]:
    """Yield the errors that patches cause in resources, and that other loads of what-ifs have."""
    yield from _refused_faults(scenario, ())
    for index, what_if in enumerate(scenario.file.what_if):
        try:
            other = with_what_if(scenario, what_if)
        except PatchRefused as error:
            for breach in error.breaches:
                yield Breach(path=("whatIf", index, "set", error.name, *breach.path), rule=breach.rule)
            continue
        load_at = ("whatIf", index, "load")
        found = [
            breach for load in other.file.load for breach in _load_breaches(load_at, load, other)
        ]  # one message for an error in every load entry
        yield from {breach.path: breach for breach in found}.values()
        yield from _refused_faults(other, ("whatIf", index))


def _refused_faults(scenario: Scenario, base: tuple[str | int, ...]) -> Iterator[Breach]:
    """Yield the errors that `set` faults cause, at the fault, or at `base`: the what-if that conflicts with it."""
    try:
        resource_changes(scenario)
    except PatchRefused as error:
        for breach in error.breaches:
            if base:
                rule = f"conflicts with faults[{error.fault}], which makes {error.name} invalid"
                yield Breach(path=base, rule=f"{rule}: {format_path(breach.path)}: {breach.rule}")
            else:
                yield Breach(path=("faults", error.fault or 0, "set", error.name, *breach.path), rule=breach.rule)


def pipeline_key(pipeline: SpeechPipeline) -> str:
    """Return the name of a pipeline in scenario files, namespace/name."""
    return f"{pipeline.metadata.namespace or 'default'}/{pipeline.metadata.name}"


def _references(scenario: Scenario) -> Iterator[Breach]:
    """Yield references to unknown resources, and loads that do not fit the pipeline's unit."""
    pipelines = {pipeline_key(pipeline): pipeline for pipeline in scenario.pipelines}
    pools = {pool.metadata.name for pool in scenario.pools}
    declared: tuple[AnyResource, ...] = (*scenario.pipelines, *scenario.pools, *scenario.budgets)
    resources = {resource_name(resource) for resource in declared}
    stages = {name for key, p in pipelines.items() for s in p.spec.stages for name in (s.name, f"{key}/{s.name}")}
    for index, load in enumerate(scenario.file.load):
        at = ("load", index)
        if load.pipeline not in pipelines:
            yield _unknown((*at, "pipeline"), load.pipeline, pipelines, "pipeline in the manifests")
            continue
        yield from _load_breaches(at, load, scenario)
    for pool in scenario.file.instances or ():
        if pool not in pools:
            yield _unknown(("instances", pool), pool, pools, "pool in the manifests")
    for index, fault in enumerate(scenario.file.faults):
        where = ("faults", index, fault.kind)
        if fault.pool is not None and fault.pool not in pools:
            yield _unknown(where, fault.pool, pools, "pool in the manifests")
        if fault.pipeline not in {None, EVERYTHING, *pipelines}:
            yield _unknown(where, fault.pipeline, pipelines, "pipeline in the manifests")
        at_stage = fault.slow_stage or fault.cold_caches or fault.pass_ratio
        stage = at_stage.stage if at_stage else fault.roll_out or fault.cpu_quota or fault.stuck_replica
        if stage is not None and stage not in stages:
            yield _unknown(where, stage, stages, "stage in the manifests")
        for name in fault.set_ or ():
            if name not in resources:
                yield _unknown((*where, name), name, resources, "resource in the manifests")
    of_stages = {
        "profileError": scenario.file.profile_error,
        "firstToken": scenario.file.first_token,
        "otherModels": scenario.file.other_models,
    }
    for field, by_stage in of_stages.items():
        for name in by_stage or ():
            if name not in stages:
                yield _unknown((field, name), name, stages, "stage in the manifests")
    yield from _without_program(scenario, stages)
    for pair, name in stages_named(scenario.file.interference):
        if name not in stages:
            yield _unknown(("interference", pair), name, stages, "stage in the manifests")
    yield from _unlike_presets(scenario)
    with_history = {load.pipeline for load in scenario.file.load if load.history is not None}
    for index, load in enumerate(scenario.file.load):
        if load.history is None and load.pipeline in with_history:
            yield Breach(path=("load", index, "history"), rule="required: another load of the pipeline has one")
    reconnects: dict[str, str] = {}
    for index, load in enumerate(scenario.file.load):
        if load.session is not None and reconnects.setdefault(load.pipeline, load.session.reconnect) != (
            load.session.reconnect
        ):
            rule = "must be the same in every load entry of the pipeline"
            yield Breach(path=("load", index, "session", "reconnect"), rule=rule)
    for index, what_if in enumerate(scenario.file.what_if):
        for name in what_if.set_ or ():
            if name not in resources:
                yield _unknown(("whatIf", index, "set", name), name, resources, "resource in the manifests")


def _without_program(scenario: Scenario, stages: Collection[str]) -> Iterator[Breach]:
    """Yield what is wrong between the stages in the manifests and the programs of the reference service."""
    if scenario.file.speech is None:
        return
    programs = scenario.file.speech.programs
    for index, own in enumerate(scenario.file.speech.stages):
        if own.stage not in stages:
            yield _unknown(("speech", "stages", index, "stage"), own.stage, stages, "stage in the manifests")
    for pipeline in scenario.pipelines:
        for stage in pipeline.spec.stages:
            if of_stage(programs, pipeline_key(pipeline), stage.name, None) is None:
                yield Breach(path=("speech", "stages"), rule=f"must have {stage.name}, a stage of the manifests")


def _unlike_presets(scenario: Scenario) -> Iterator[Breach]:
    """Yield stages with `firstToken` or `otherModels` whose preset does not show it."""
    shows = {"firstToken": {"vllm"}, "otherModels": {"triton", "vllm"}}
    given = {"firstToken": scenario.file.first_token, "otherModels": scenario.file.other_models}
    for pipeline in scenario.pipelines:
        for stage in pipeline.spec.stages:
            for field, presets in shows.items():
                for name in (stage.name, f"{pipeline_key(pipeline)}/{stage.name}"):
                    if name in (given[field] or ()) and stage.metrics.preset not in presets:
                        rule = f"the stage must have metrics.preset {' or '.join(sorted(presets))}"
                        yield Breach(path=(field, name), rule=f"{rule}, not {stage.metrics.preset}")


def _load_breaches(at: tuple[str | int, ...], load: Load, scenario: Scenario) -> Iterator[Breach]:
    """Yield the errors of a load entry whose pipeline exists."""
    pipeline = next(pipeline for pipeline in scenario.pipelines if pipeline_key(pipeline) == load.pipeline)
    waits = pipeline.spec.demand.backlog is not None
    if waits != (load.backlog is not None):
        rule = "required: the pipeline has spec.demand.backlog" if waits else "the pipeline has no spec.demand.backlog"
        yield Breach(path=(*at, "backlog"), rule=rule)
        return
    if load.backlog is not None:
        for name, value in load:
            if value is not None and name not in {"pipeline", "backlog"}:
                yield Breach(path=(*at, to_camel(name)), rule="not allowed beside backlog")
        if duration_s(load.backlog.at) >= scenario.file.clock.duration_s:
            yield Breach(path=(*at, "backlog", "at"), rule="must be within the run")
        return
    missing = [name for name in ("trace", "column") if getattr(load, name) is None]
    if missing:
        for name in missing:
            yield Breach(path=(*at, name), rule="required without backlog")
        return
    yield from _unit_breaches(at, load, pipeline)
    yield from _trace_breaches(at, load, scenario.path.parent)
    if load.history is not None:
        past = load.history.model_copy(update={"session": load.history.session or load.session})
        yield from _unit_breaches((*at, "history"), past, pipeline)
        yield from _trace_breaches((*at, "history"), past, scenario.path.parent)


def _trace_breaches(at: tuple[str | int, ...], load: Load | PastLoad, folder: Path) -> Iterator[Breach]:
    try:
        name, column = load.recording
        trace = read_trace(name, Column(column), folder=folder, series=load.series)
    except InvalidTrace as error:
        yield Breach(path=(*at, "trace"), rule=str(error))
        return
    if load.offset is not None and duration_s(load.offset) >= trace.span_s:
        yield Breach(path=(*at, "offset"), rule=f"must be within the trace, which is {trace.span_s:g} s long")


def _unit_breaches(at: tuple[str | int, ...], load: Load | PastLoad, pipeline: SpeechPipeline) -> Iterator[Breach]:
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
