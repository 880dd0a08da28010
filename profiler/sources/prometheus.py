"""Metrics from Prometheus, or from a back end with the same query API, evaluated at the back end's present time."""

from dataclasses import replace

from profiler.samples import DEFAULT_LABELS, Origin, SeriesLabels
from profiler.sources.access import Access
from profiler.sources.base import ReadAnswer, ReadRequest
from profiler.sources.presets import PresetFiles
from profiler.sources.prometheus_api import PrometheusApi
from profiler.sources.promql_syntax import can_join
from profiler.sources.queries import query_plan
from profiler.sources.query_order import QueryOrder, unanswered

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
        requests = self._order.requests(kinds, frozenset(filter(can_join, plan.single_queries())), plan.together())
        answers = self._api.ask_joined(requests, request.deadline_s)
        self._order.conclude(answers.results, answers.slow, answers.accepted)
        answer = plan.answer(
            answers.results, answers.results, {target.pipeline: Origin() for target in request.placements}
        )
        problems = (*answer.problems, *presets.problems.values())
        return replace(answer, problems=problems, unanswered=unanswered(kinds, answers.results))
