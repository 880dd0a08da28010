"""Metrics from Prometheus, or whatever speaks its query API. Queries are evaluated at the back end's own present."""

from pathlib import Path

from profiler.samples import Origin
from profiler.sources.base import ReadAnswer, ReadRequest
from profiler.sources.presets import load_presets
from profiler.sources.prometheus_api import PrometheusApi
from profiler.sources.queries import questions


class PrometheusSource:
    """A `MetricSource` over the back end at `url`; `token_file` and `ca_file` are as in `PrometheusApi`."""

    def __init__(self, url: str, *, token_file: Path | None = None, ca_file: Path | None = None) -> None:
        self._api = PrometheusApi(url, token_file=token_file, ca_file=ca_file)
        self._presets = load_presets()

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def read(self, request: ReadRequest) -> ReadAnswer:
        """See `MetricSource.read`."""
        asked = questions(request, self._presets)
        answers = self._api.ask(sorted(asked.of_pods() | asked.of_users()), request.deadline_s)
        return asked.answer(answers, answers, {target.pipeline: Origin() for target in request.placements})
