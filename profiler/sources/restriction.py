"""Restricts users' queries to the series of their pipeline's namespace (`--restrict-queries`).

Every selector of a query gets the condition `namespace="…"` in addition to its own, so the query cannot select series
of another namespace. A query that is not understood to its last token is not sent.
"""

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache

from optimizer.model import PipelineKey, PlacementId
from profiler.samples import DEFAULT_LABELS, Absence, AbsenceReason, PlacementTarget, Quantity, Reading, SeriesLabels
from profiler.sources.base import MetricSource, ReadAnswer, ReadRequest
from profiler.sources.promql import fill, pod_matcher
from profiler.sources.promql_syntax import UnsupportedQuery, restricted_to


def restricted(query: str, namespace: str, labels: SeriesLabels = DEFAULT_LABELS) -> str:
    """Return `query` with the condition `namespace="<namespace>"` in every selector, and those of `labels.match`.

    Raises:
        UnsupportedQuery: see `restricted_to`.
    """
    restriction = _restriction(query, namespace, labels)
    if isinstance(restriction, UnsupportedQuery):
        raise UnsupportedQuery(*restriction.args)
    return restriction


@lru_cache(maxsize=16_384)  # two queries of each of 5,000 pipelines, and stages' own; what is refused costs as much
def _restriction(query: str, namespace: str, labels: SeriesLabels) -> str | UnsupportedQuery:
    try:
        return restricted_to(query, ((labels.namespace, namespace), *labels.match))
    except UnsupportedQuery as error:
        return UnsupportedQuery(*error.args)


class RestrictedSource:
    """A `MetricSource` that reads from another one, with users' queries restricted to their pipeline's namespace."""

    def __init__(self, source: MetricSource, labels: SeriesLabels = DEFAULT_LABELS) -> None:
        self._source = source
        self._labels = labels

    def read(self, request: ReadRequest) -> ReadAnswer:
        """See `MetricSource.read`. A query that cannot be restricted is not sent and reads as `Unsupported`."""
        scalars: dict[Hashable, str] = {}
        refused: dict[Hashable, Absence] = {}
        for key, query in request.scalars.items():
            try:
                scalars[key] = restricted(query, _namespace(request.scalar_owners.get(key)), self._labels)
            except UnsupportedQuery as error:
                refused[key] = _refusal(error, query)
        refused_overrides: dict[PlacementId, dict[Quantity, Absence]] = {}
        targets = []
        for target in request.placements:
            overrides, unusable = _overrides(target, self._labels)
            targets.append(replace(target, overrides=overrides))
            refused_overrides[target.pipeline, target.stage, target.placement] = unusable
        answer = self._source.read(replace(request, placements=tuple(targets), scalars=scalars))
        absences = [*refused.values(), *(absence for own in refused_overrides.values() for absence in own.values())]
        refusals = dict.fromkeys(absence.detail for absence in absences)
        return replace(
            answer,
            placements={
                key: replace(samples, readings={**samples.readings, **refused_overrides.get(key, {})})
                for key, samples in answer.placements.items()
            },
            scalars={
                **{
                    key: _explained(reading, request.scalar_owners.get(key), self._labels)
                    for key, reading in answer.scalars.items()
                },
                **refused,
            },
            problems=(*answer.problems, *refusals),
        )


def _explained(reading: Reading, key: PipelineKey | None, labels: SeriesLabels) -> Reading:
    """Return `reading`; where the query returns no series, with the condition that it got."""
    if not isinstance(reading, Absence) or reading.reason is not AbsenceReason.MISSING or key is None:
        return reading
    condition = f'--restrict-queries added {labels.namespace}="{_namespace(key)}" to every selector'
    return replace(reading, detail=f"{reading.detail}; {condition}" if reading.detail else condition)


def _overrides(target: PlacementTarget, labels: SeriesLabels) -> tuple[dict[Quantity, str], dict[Quantity, Absence]]:
    usable: dict[Quantity, str] = {}
    refused: dict[Quantity, Absence] = {}
    for quantity, template in target.overrides.items():
        own = pod_matcher(target.namespace, target.pods, target.labels or labels)
        query = fill(template, pods=own, window_s=target.window_s)
        try:
            usable[quantity] = restricted(query, target.namespace, labels)
        except UnsupportedQuery as error:
            refused[quantity] = _refusal(error, template)
    return usable, refused


def _namespace(key: PipelineKey | None) -> str:
    if key is None:
        raise UnsupportedQuery("the pipeline of the query is not known")
    return key.partition("/")[0]


def _refusal(error: UnsupportedQuery, query: str) -> Absence:
    return Absence(
        reason=AbsenceReason.UNSUPPORTED,
        detail=f"--restrict-queries: cannot add the namespace to every selector: {error}, in: {query}",
    )
