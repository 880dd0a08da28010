"""Files of `sluice regions`: regions with their manifests and loads, the ways between them, and what may be shifted."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import click
import numpy as np
from pydantic import Field

from controller.commands.plan_request import missing_numbers, specs_of
from controller.resources.base import Breach, ListMap, ListSet, Part
from controller.resources.fields import DecimalString, Duration, Label, PositiveDuration, duration_s
from controller.resources.manifests import Document, ManifestError, load_documents
from controller.resources.parsing import inspect_strictly, nearest_name
from controller.resources.pipeline import SpeechPipeline
from controller.resources.validation import Finding, Validation, finding_of, validate_files
from simulations.report import formats
from simulations.scenario.scenario import InvalidScenario
from simulations.scenario.traces import Column, InvalidTrace, Trace, read_trace
from simulations.scenario.values import PositiveNumber, Share

MOST_REGIONS = 12
SHARE_PREFIX = "share-"
"""The names of the entries of `spec.demand.atLeast` that a study writes begin so."""
MOST_HOURS = 48
"""The most steps of a day."""
_DAY_S = 86_400.0
_SAME_DAY = 1e-4
"""A trace that is shorter than the day by less than this share of it lasts the day: speeds are rounded."""


class RegionLoad(Part):
    """The load of the users of a region: a curve of one day."""

    trace: str
    """A file, or the name of a bundled trace. Past its end, it is continued with the same time of the day before; where
    it is shorter than the day, it is repeated."""
    column: Literal["arrivals", "streams", "rate_per_s"]
    """What the numbers of the trace are."""
    series: Annotated[str, Field(min_length=1)] | None = None
    """The series of the file, where it has several."""
    offset: Duration | None = None
    """Where in the trace the day begins: regions in other time zones have the same curve at other times. Default: the
    first 00:00 UTC of a trace with dates and speed 1; otherwise 0s."""
    speed: PositiveNumber = 1.0
    """How many times faster than recorded the trace is played."""
    scale: PositiveNumber = 1.0
    """The load is the trace times this."""


class Region(Part):
    """A region: a cluster with its own pools and prices, and users who are near."""

    name: Label
    """Name of the region."""
    manifests: Annotated[list[str], Field(min_length=1)]
    """Files with the SpeechPipeline and the ComputePools of its cluster, relative to this file."""
    load: RegionLoad
    """What its users offer."""
    served_by: Annotated[list[Label], ListSet()] | None = None
    """Data residency: the other regions that may serve its users. Default: all that have a link to it."""
    shiftable: Share = 1.0
    """The share (0–1) of its streams that other regions may serve while it is there itself."""
    paid: Literal["ByHour", "ForDay"] = "ByHour"
    """ByHour: replicas cost while they run. ForDay: machines are reserved; the most expensive hour is paid all day."""


class Link(Part):
    """The way between two regions, in both directions."""

    between: Annotated[list[Label], ListSet(), Field(min_length=2, max_length=2)]
    """The two regions."""
    round_trip: PositiveDuration
    """Time that an item takes more if it is served in the other region: its way there, and the answer's way back."""
    per_stream_hour: DecimalString = "0"
    """Price of the transfer, in USD for a stream (or one request per second) and hour."""


class RegionsFile(Part):
    """The content of a file of regions, field by field."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the product or the study."""
    day: PositiveDuration = "24h"
    """Length of the day, which begins at 00:00 UTC and repeats."""
    step: PositiveDuration = "1h"
    """Streams go to the same regions for this long."""
    session: PositiveDuration | None = None
    """Mean length of a stream. Only new streams are shifted, so long ones follow slowly. Without it, all streams end
    with a step."""
    latency: PositiveDuration | None = None
    """The latency that users of all regions are promised; default: that of each manifest. Required where a manifest has
    the shares of an earlier study: its `spec.sla.latency` leaves out the way."""
    regions: Annotated[list[Region], ListMap(key="name"), Field(min_length=2, max_length=MOST_REGIONS)]
    """The regions."""
    links: Annotated[list[Link], Field(min_length=1)]
    """The ways between regions. Between two regions without one, nothing is shifted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A region with its valid manifests and the loads of its users, one for each step of the day.

    `latency_s` is what the SLA of its pipeline is in the study, in seconds; None: that of the manifest.
    """

    region: Region
    resources: Validation
    pipeline: SpeechPipeline
    loads: tuple[float, ...]
    latency_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """A valid file of regions: `step_s` is the length of a step in seconds.

    `notes` say what was made of the traces, one sentence each.
    """

    path: Path
    file: RegionsFile
    clusters: tuple[Cluster, ...]
    step_s: float
    notes: tuple[str, ...] = ()

    @property
    def session_s(self) -> float | None:
        """Mean length of a stream in seconds; None for requests."""
        return None if self.file.session is None else duration_s(self.file.session)


def load_regions(path: Path) -> Regions:
    """Return the regions in a file, with the manifests and traces that it names.

    Raises:
        InvalidScenario: the file, one of the manifests or one of the traces is invalid; `findings` has every error.
    """
    document = _document(path)
    file, breaches = inspect_strictly(RegionsFile, document.data)
    if breaches or not isinstance(file, RegionsFile):
        raise InvalidScenario(tuple(finding_of(document, breach) for breach in breaches))
    if breaches := [*_mistakes(file)]:
        raise InvalidScenario(tuple(finding_of(document, breach) for breach in breaches))
    latency_s = None if file.latency is None else duration_s(file.latency)
    clusters: list[Cluster] = []
    findings: list[Finding] = []
    notes: list[str] = []
    for index, region in enumerate(file.regions):
        resources = validate_files([path.parent / name for name in region.manifests])
        findings += resources.findings
        if resources.findings:
            continue
        at = ("regions", index)
        found = [*_unfit(file, region, resources, at)]
        if not found:
            specs, _ = specs_of(resources)
            findings += missing_numbers(resources, specs, {})
        try:
            trace = read_trace(
                region.load.trace, Column(region.load.column), folder=path.parent, series=region.load.series
            )
        except InvalidTrace as error:
            found.append(Breach(path=(*at, "load", "trace"), rule=str(error)))
        findings += [finding_of(document, breach) for breach in found]
        if not found:
            (pipeline,) = resources.pipelines
            loads = _loads(file, region.load, trace)
            notes += _notes(file, region, trace)
            clusters.append(
                Cluster(region=region, resources=resources, pipeline=pipeline, loads=loads, latency_s=latency_s)
            )
    findings += [finding_of(document, breach) for breach in _unequal(file, clusters)]
    if findings:
        raise InvalidScenario(tuple(dict.fromkeys(findings)))
    return Regions(
        path=path, file=file, clusters=tuple(clusters), step_s=duration_s(file.step), notes=tuple(dict.fromkeys(notes))
    )


def _document(path: Path) -> Document:
    try:
        documents = load_documents(path)
    except ManifestError as error:
        found = Finding(file=error.path, line=error.line, field="", value="", rule=error.rule)
        raise InvalidScenario((found,)) from error
    if len(documents) != 1:
        rule = f"must be one document, not {len(documents)}"
        raise InvalidScenario((Finding(file=path, line=1, field="", value="", rule=rule),))
    return documents[0]


def _mistakes(file: RegionsFile) -> Iterator[Breach]:
    """Yield what is wrong between the fields of a file."""
    day_s, step_s = duration_s(file.day), duration_s(file.step)
    if not math.isclose(day_s / step_s, round(day_s / step_s), rel_tol=1e-9):
        yield Breach(path=("step",), rule=f"must divide the day ({file.day}) into whole steps")
    elif day_s / step_s > MOST_HOURS:
        yield Breach(path=("step",), rule=f"must divide the day ({file.day}) into at most {MOST_HOURS} steps")
    names = [region.name for region in file.regions]
    for index, region in enumerate(file.regions):
        for place, name in enumerate(region.served_by or ()):
            path = ("regions", index, "servedBy", place)
            if name not in names:
                yield Breach(path=path, rule=_unknown(name, names))
            elif name == region.name:
                yield Breach(path=path, rule="must be another region: a region always may serve its own users")
            elif not any({name, region.name} == set(link.between) for link in file.links):
                yield Breach(path=path, rule=f"there is no link between {region.name} and {name}")
    seen: set[frozenset[str]] = set()
    for index, link in enumerate(file.links):
        for place, name in enumerate(link.between):
            if name not in names:
                yield Breach(path=("links", index, "between", place), rule=_unknown(name, names))
        if frozenset(link.between) in seen:
            yield Breach(path=("links", index, "between"), rule="must be stated once for two regions")
        seen.add(frozenset(link.between))


def _unknown(name: str, names: Sequence[str]) -> str:
    nearest = nearest_name(name, names)
    return f"there is no region {name}" + (f"; did you mean {nearest}?" if nearest else "")


def _unequal(file: RegionsFile, clusters: Sequence[Cluster]) -> Iterator[Breach]:
    """Yield what keeps the clusters, those of valid regions, from having one product."""
    for cluster in clusters[1:]:
        first, unit, index = clusters[0], cluster.pipeline.spec.demand.unit, file.regions.index(cluster.region)
        if unit != first.pipeline.spec.demand.unit:
            rule = f"the pipeline has unit {unit}, and that of {first.region.name} {first.pipeline.spec.demand.unit}"
            yield Breach(path=("regions", index, "manifests"), rule=rule)


def _unfit(file: RegionsFile, region: Region, resources: Validation, at: tuple[str | int, ...]) -> Iterator[Breach]:
    """Yield why the manifests of a region cannot be planned."""
    if len(resources.pipelines) != 1:
        rule = f"must declare one SpeechPipeline, not {len(resources.pipelines)}: the product of all regions"
        yield Breach(path=(*at, "manifests"), rule=rule)
        return
    (pipeline,) = resources.pipelines
    if pipeline.spec.demand.backlog is not None:
        rule = "the SpeechPipeline must have unit Streams or Requests, not Items: a backlog has no latency"
        yield Breach(path=(*at, "manifests"), rule=rule)
        return
    shares = [entry.name for entry in pipeline.spec.demand.at_least if entry.name.startswith(SHARE_PREFIX)]
    if shares and file.latency is None:
        rule = (
            f"required, because the SpeechPipeline of {region.name} ({', '.join(region.manifests)}) has the shares of "
            f"an earlier study (spec.demand.atLeast {shares[0]}): its spec.sla.latency leaves out the way to users"
        )
        yield Breach(path=("latency",), rule=rule)
    streams = pipeline.spec.demand.unit == "Streams"
    if streams and file.session is None and region.load.column != "streams":
        rule = f"required with unit Streams and column {region.load.column}: that many streams are open at a time"
        yield Breach(path=("session",), rule=rule)
    if not streams and file.session is not None:
        yield Breach(path=("session",), rule="not allowed with unit Requests: a request does not last")
    if not streams and region.load.column == "streams":
        yield Breach(path=(*at, "load", "column"), rule="not allowed with unit Requests; give arrivals or rate_per_s")
    yield from _unplannable(resources, (*at, "manifests"))


def _unplannable(resources: Validation, path: tuple[str | int, ...]) -> Iterator[Breach]:
    """Yield what a plan needs and the manifests of a region lack."""
    try:
        specs, pools = specs_of(resources)
    except click.ClickException as error:  # a price that is looked up at AWS, and not in the bundled table
        yield Breach(path=path, rule=f"{error.message}; give price.perHour")
        return
    (spec,) = specs.values()
    if spec.borrowed:
        stages = ", ".join(sorted(spec.borrowed))
        yield Breach(path=path, rule=f"must have all stages of the pipeline; shared with others: {stages}")
        return
    for name in sorted({placement.pool for placement in spec.placements().values()}):
        if name not in pools:
            yield Breach(path=path, rule=f"must have the ComputePool {name}, which the pipeline uses")
        elif pools[name].instances is None:
            rule = f"ComputePool {name}: needs spec.capacity.instances: how many there may be at most"
            yield Breach(path=path, rule=rule)


def _notes(file: RegionsFile, region: Region, trace: Trace) -> Iterator[str]:
    """Yield what was made of the trace of a region, and how long it is where it is shorter than the day."""
    head = f"{region.name}: {region.load.trace}"
    for note in trace.notes:
        yield f"{head}: {note}"
    lasts_s, day_s = trace.span_s / region.load.speed, duration_s(file.day)
    if lasts_s < day_s * (1 - _SAME_DAY):
        yield f"{head}: lasts {formats.span(lasts_s)} of the day's {formats.span(day_s)}: it is repeated"


def _loads(file: RegionsFile, load: RegionLoad, trace: Trace) -> tuple[float, ...]:
    """Return the mean load of a region in every step, in the unit of its pipeline."""
    day_s, step_s = (duration_s(text) * load.speed for text in (file.day, file.step))
    begins_s = _begins_s(load, trace)
    means = (_mean(trace, begins_s + k * step_s, step_s, day_s) for k in range(round(day_s / step_s)))
    factor = load.scale
    if trace.column is not Column.STREAMS:  # starts per second of the recording, which takes less time in the day
        factor *= load.speed
    if trace.column is Column.ARRIVALS:
        factor /= trace.bin_s
    if trace.column is not Column.STREAMS and file.session is not None:
        factor *= duration_s(file.session)  # Little's law: streams that are open
    return tuple(float(mean * factor) for mean in means)


def _begins_s(load: RegionLoad, trace: Trace) -> float:
    """Return where in the trace (s) the day begins."""
    if load.offset is not None:
        return duration_s(load.offset)
    if trace.begins_s is None or load.speed != 1:
        return 0.0
    return -trace.begins_s % _DAY_S


def _mean(trace: Trace, begins_s: float, length_s: float, day_s: float) -> float:
    """Return the mean value of a trace for `length_s` from `begins_s` on. Times are those of the trace.

    A trace that is shorter than the day is repeated until the end of the day. A longer one is continued with its last
    `day_s`, so that each value keeps its time of day.
    """
    sums = np.concatenate(([0.0], np.cumsum(trace.values))) * trace.bin_s
    edges_s = np.arange(len(sums)) * trace.bin_s
    ends_s = max(trace.span_s, day_s)

    def until(t_s: float) -> float:
        days = max(0, math.ceil((t_s - ends_s) / day_s))
        whole, rest_s = divmod(t_s - days * day_s, trace.span_s)
        found = float(whole * sums[-1] + np.interp(rest_s, edges_s, sums))
        return found + (days * (until(ends_s) - until(ends_s - day_s)) if days else 0.0)

    return (until(begins_s + length_s) - until(begins_s)) / length_s
