"""Metrics from Prometheus, or from a back end with the same query API, evaluated at the back end's present time."""

from profiler.samples import Origin
from profiler.sources.access import Access
from profiler.sources.base import ReadAnswer, ReadRequest
from profiler.sources.presets import load_presets
from profiler.sources.prometheus_api import PrometheusApi
from profiler.sources.queries import query_plan

_OPEN = Access()


class PrometheusSource:
    """A `MetricSource` that reads from the back end at `url`, to which it authenticates as `access` says."""

    def __init__(self, url: str, access: Access = _OPEN) -> None:
        self._api = PrometheusApi(url, access)
        self._presets = load_presets()

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def read(self, request: ReadRequest) -> ReadAnswer:
        """See `MetricSource.read`."""
        plan = query_plan(request, self._presets)
        results = self._api.ask(sorted(plan.pod_queries() | plan.user_queries()), request.deadline_s)
        return plan.answer(results, results, {target.pipeline: Origin() for target in request.placements})
