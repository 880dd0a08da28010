"""Parses the user's PromQL queries that the simulated ingress supports; others are refused when a run is set up."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from controller.core.state.spec import DemandUnit, PipelineSpec
from controller.resources.fields import duration_s
from optimizer.model import PipelineKey

KNOWN = (
    "sum(sluice_ingress_active_streams{namespace=…, pipeline=…})",
    "sum(sluice_ingress_backlog_items{namespace=…, pipeline=…})",
    "sum(rate(sluice_ingress_requests_total{…}[window]))",
    "histogram_quantile(share, sum by (le) (rate(sluice_ingress_latency_seconds_bucket{…}[window])))",
)

_LABELS = r"\{(?P<labels>[^{}]*)\}"
_WINDOW = r"\[(?P<window>(?:[0-9]+(?:\.[0-9]+)?(?:us|ms|s|m|h))+)\]"
_STREAMS = re.compile(rf"(?:sum\()?sluice_ingress_active_streams{_LABELS}\)?")
_ITEMS = re.compile(rf"(?:sum\()?sluice_ingress_backlog_items{_LABELS}\)?")
_REQUESTS = re.compile(rf"(?:sum\()?rate\(sluice_ingress_requests_total{_LABELS}{_WINDOW}\)\)?")
_LATENCY = re.compile(
    r"histogram_quantile\((?P<share>[0-9.]+),"
    rf"(?:sumby\(le\)\()?(?:sum\()?rate\(sluice_ingress_latency_seconds_bucket{_LABELS}{_WINDOW}\)\)?(?:by\(le\))?\)"
)
_LABEL = re.compile(r'(?P<name>[a-z_]+)="(?P<value>[^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveStreams:
    """A query for the number of active streams of a pipeline."""

    pipeline: PipelineKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsLeft:
    """A query for the items of a backlog that are not done."""

    pipeline: PipelineKey


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRate:
    """A query for the requests per second offered to a pipeline, over the last `window_s`."""

    pipeline: PipelineKey
    window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyQuantile:
    """A query for a quantile, `share` (0–1), of a pipeline's end-to-end latency over the last `window_s`."""

    pipeline: PipelineKey
    window_s: float
    share: float


IngressQuery = ActiveStreams | ItemsLeft | RequestRate | LatencyQuantile


class UnansweredQuery(ValueError):
    """The simulated ingress does not support this query; the message says which it supports."""


def parse_query(text: str, pipelines: Collection[PipelineKey]) -> IngressQuery:
    """Return the parsed query in `text`; its labels must match exactly one of `pipelines`.

    Raises:
        UnansweredQuery: the ingress does not support the query.
    """
    query = "".join(text.split())
    if query.count("(") != query.count(")"):
        raise UnansweredQuery("must have matching parentheses")
    if found := _STREAMS.fullmatch(query):
        return ActiveStreams(pipeline=_pipeline(found["labels"], pipelines))
    if found := _ITEMS.fullmatch(query):
        return ItemsLeft(pipeline=_pipeline(found["labels"], pipelines))
    if found := _REQUESTS.fullmatch(query):
        return RequestRate(pipeline=_pipeline(found["labels"], pipelines), window_s=duration_s(found["window"]))
    if found := _LATENCY.fullmatch(query):
        return LatencyQuantile(
            pipeline=_pipeline(found["labels"], pipelines),
            window_s=duration_s(found["window"]),
            share=float(found["share"]),
        )
    raise UnansweredQuery(f"must be one that the simulated ingress supports: {'; '.join(KNOWN)}")


def demand_query(pipeline: PipelineSpec) -> str:
    """Return the query with which the ingress answers for the load of a pipeline, in the pipeline's unit."""
    if pipeline.unit is DemandUnit.STREAMS:
        return f"sum(sluice_ingress_active_streams{_own(pipeline)})"
    if pipeline.unit is DemandUnit.ITEMS:
        return f"sum(sluice_ingress_backlog_items{_own(pipeline)})"
    return f"sum(rate(sluice_ingress_requests_total{_own(pipeline)}[1m]))"


def latency_query(pipeline: PipelineSpec) -> str:
    """Return the query with which the ingress answers for the latency of a pipeline, at the percentile of its SLA."""
    buckets = f"sum by (le) (rate(sluice_ingress_latency_seconds_bucket{_own(pipeline)}[1m]))"
    return f"histogram_quantile({pipeline.sla.percentile / 100:g}, {buckets})"


def _own(pipeline: PipelineSpec) -> str:
    return f'{{namespace="{pipeline.namespace}", pipeline="{pipeline.name}"}}'


def _pipeline(labels: str, pipelines: Collection[PipelineKey]) -> PipelineKey:
    """Return the only pipeline that matches `labels`, the text between the braces of a selector."""
    named = {found["name"]: found["value"] for found in _LABEL.finditer(labels)}
    candidates = []
    for key in pipelines:
        namespace, _, name = key.partition("/")
        if {"namespace": namespace, "pipeline": name}.items() >= named.items():
            candidates.append(key)
    if len(candidates) != 1:
        matches = ", ".join(sorted(candidates)) or "none"
        raise UnansweredQuery(f"must match exactly one pipeline of the scenario; it matches {matches}")
    return candidates[0]
