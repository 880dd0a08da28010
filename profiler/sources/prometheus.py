"""Metrics from Prometheus, or from a back end with the same query API, evaluated at the back end's present time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from profiler.samples import DEFAULT_LABELS, Absence, AbsenceReason, Origin, SeriesLabels
from profiler.sources.access import Access
from profiler.sources.base import ReadAnswer, ReadRequest
from profiler.sources.presets import PresetFiles
from profiler.sources.prometheus_api import Lane, PrometheusApi
from profiler.sources.promql_syntax import can_join
from profiler.sources.queries import query_plan
from profiler.sources.query_order import QueryOrder, unanswered

MOST_OF_TENANT = 2
"""The most requests of one namespace that are under way at a time, of eight in all."""
SLOW = Lane(name="", most=1)
"""What was too slow before is asked one at a time, whoever it belongs to."""
_RESTING = Absence(
    reason=AbsenceReason.UNAVAILABLE,
    detail="Prometheus: no answer in time to this query; it is asked again after a pause, make it cheaper",
)
_OPEN = Access()


class PrometheusSource:
    """A `MetricSource` that reads from the back end at `url`, to which it authenticates as `access` says."""

    def __init__(
        self,
        url: str,
        access: Access = _OPEN,
        *,
        presets: PresetFiles | None = None,
        labels: SeriesLabels = DEFAULT_LABELS,
    ) -> None:
        """`presets` are by default those of the package; `labels` are for placements that name none."""
        self._api = PrometheusApi(url, access)
        self._presets = presets or PresetFiles()
        self._labels = labels
        self._order = QueryOrder()

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def read(self, request: ReadRequest) -> ReadAnswer:
        """See `MetricSource.read`. What is not answered within the deadline is asked earlier in the next read."""
        presets = self._presets.load()
        plan = query_plan(request, presets, checks=True, labels=self._labels)
        kinds = plan.kinds()
        tenants = plan.tenants(request)
        resting = self._order.resting(kinds)
        asked = {query: kind for query, kind in kinds.items() if query not in resting}
        joinable = frozenset(filter(can_join, plan.single_queries()))
        requests = self._order.requests(asked, joinable, plan.together(asked))
        several = len({target.namespace for target in request.placements} | set(tenants.values())) > 1
        lanes = [self._lane(queries, tenants if several else {}) for queries in requests]
        single = plan.single_queries()
        answers = self._api.ask_joined(requests, request.deadline_s, lanes, single)
        results = {**answers.results, **dict.fromkeys(resting, _RESTING)}
        self._order.conclude(
            results,
            answers.slow,
            answers.accepted,
            rested=resting,
            of_tenants=single,
            alone=frozenset(queries[0] for queries in requests if len(queries) == 1),
        )
        answer = plan.answer(results, results, {target.pipeline: Origin() for target in request.placements})
        problems = (*answer.problems, *presets.problems.values())
        return replace(answer, problems=problems, unanswered=unanswered(kinds, results))

    def _lane(self, queries: Sequence[str], tenants: Mapping[str, str]) -> Lane | None:
        """Return what a request may take of the back end; None for one of presets, or of several tenants."""
        owners = {tenants.get(query, "") for query in queries}
        if any(map(self._order.tried_again, queries)):
            return SLOW
        return Lane(name=owner, most=MOST_OF_TENANT) if len(owners) == 1 and (owner := owners.pop()) else None
