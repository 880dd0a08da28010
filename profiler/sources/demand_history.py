"""The recorded demand of past days, by a range query to Prometheus. Other tiers have no past."""

from collections.abc import Sequence
from typing import Any, Protocol

from profiler.samples import DEFAULT_LABELS, Absence, AbsenceReason, SeriesLabels, sane
from profiler.sources.access import Access
from profiler.sources.prometheus_api import Period, PrometheusApi
from profiler.sources.promql_syntax import UnsupportedQuery
from profiler.sources.restriction import restricted

DEADLINE_S = 30.0
"""The time for one query: it reads some 2,000 points of one series, and no cycle waits for it."""
Levels = Sequence[float | None]
"""The demand at the times of a period, None where there is no number."""
NOT_FROM_PROMETHEUS = Absence(
    reason=AbsenceReason.UNSUPPORTED, detail="demand.history is read from Prometheus, which is no source (--metrics)"
)


class HistorySource(Protocol):
    """A back end that has recorded the demand."""

    def levels(self, query: str, namespace: str, period: Period) -> Levels | Absence:
        """Return what `query` of a pipeline in `namespace` was at the times of `period`; blocks, and raises nothing."""
        ...


class NoHistorySource:
    """The source where metrics are not read from Prometheus."""

    def levels(self, query: str, namespace: str, period: Period) -> Levels | Absence:  # noqa: ARG002
        """See `HistorySource.levels`."""
        return NOT_FROM_PROMETHEUS


class PrometheusHistory:
    """The back end at `url`, over connections of its own: its queries are slow, and must delay no others."""

    def __init__(
        self, url: str, access: Access, *, restricts: bool = False, labels: SeriesLabels = DEFAULT_LABELS
    ) -> None:
        """`restricts` says whether a query may see only the series of its namespace, by `labels`."""
        self._api = PrometheusApi(url, access)
        self._restricts = restricts
        self._labels = labels

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def levels(self, query: str, namespace: str, period: Period) -> Levels | Absence:
        """See `HistorySource.levels`."""
        try:
            sent = restricted(query, namespace, self._labels) if self._restricts else query
        except UnsupportedQuery as error:
            return Absence(reason=AbsenceReason.UNSUPPORTED, detail=f"demand.history: {error}")
        return levels_of(self._api.ask_ranges([sent], period, DEADLINE_S)[sent], period)


def levels_of(series: Any, period: Period) -> Levels | Absence:
    """Return the levels of the only one of `series`, as `PrometheusApi.ask_ranges` returns them for one query."""
    if isinstance(series, Absence):
        return series
    if len(names := {tuple(sorted(each["metric"].items())) for each in series}) > 1:
        detail = f"demand.history: the query returns {len(names)} series; aggregate them to one, as with sum(…)"
        return Absence(reason=AbsenceReason.NOT_A_NUMBER, detail=detail)
    if not series:
        return Absence(reason=AbsenceReason.MISSING, detail="demand.history: the query returns no series")
    levels: list[float | None] = [None] * period.count
    for at_s, text in (point for each in series for point in each["values"]):
        index, level = round((float(at_s) - period.start_s) / period.step_s), float(text)
        if 0 <= index < period.count and sane(level) and level >= 0:
            levels[index] = level
    return levels
