"""Metrics that the operator scrapes itself: from pods, and from `--scrape-endpoints` for the users' queries.

For set-ups without Prometheus, and as a fallback when Prometheus is not available. The same presets and the same PromQL
are evaluated over the scraped samples, so both sources give the same numbers (for one exception see
`profiler.sources.promql_evaluation`). Only the part of PromQL that `profiler.sources.promql_syntax` parses is
supported. Users' queries are evaluated over the scrape endpoints only, never over the pods. Their results are absent
while one endpoint does not answer: a sum over some of the endpoints is not the offered load.

A rate needs two scrapes, so a fallback that began to scrape when it is needed would have no rates at first. Therefore
pods and endpoints are scraped all the time, as often as Prometheus would, and a read uses the samples that are there.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from profiler.samples import Absence, AbsenceReason, MetricsTier, Origin, PlacementTarget, PodEndpoint
from profiler.sources.base import ReadAnswer, ReadRequest
from profiler.sources.history import TargetHistory
from profiler.sources.presets import PresetFiles
from profiler.sources.promql_evaluation import Evaluation
from profiler.sources.promql_syntax import UnsupportedQuery, longest_window_s, metric_names, parse
from profiler.sources.queries import QueryPlan, query_plan
from profiler.sources.scraper import Identity, Scraper, ScrapeTarget

_MISSED_VISITS = 3
"""A sample older than this many scrape intervals is stale."""
_LEAST_AGE_S = 2.0
_LOOKBACK_S = 300.0
"""How long a sample is the value of its series, as in Prometheus. Staleness depends on the target's last scrape."""
_FIRST_SHARE = 0.8
"""Share of the deadline in which the first read waits until every target was scraped twice. So there are rates right
after a restart."""
_POD, _ENDPOINT = "pod", "endpoint"
_Histories = Mapping[Identity, TargetHistory]


class DirectSource:
    """A `MetricSource` that scrapes every pod and every URL of `endpoints` each `cadence_s`, from its first read on.

    Each of `endpoints` must be one process. The counters of several processes behind one URL give wrong rates.
    """

    def __init__(self, *, cadence_s: float, endpoints: Sequence[str] = (), presets: PresetFiles | None = None) -> None:
        """`presets` are by default those of the package."""
        self._endpoints = tuple(dict.fromkeys(endpoints))
        self._presets = presets or PresetFiles()
        self._loaded = self._presets.load()
        self._max_age_s = max(_LEAST_AGE_S, _MISSED_VISITS * cadence_s)
        self._has_read = False
        self._scraper = Scraper(cadence_s)
        self._scraper.start()

    def close(self) -> None:
        """Stop scraping."""
        self._scraper.close()

    def read(self, request: ReadRequest) -> ReadAnswer:
        """See `MetricSource.read`. It returns at once, from earlier scrapes; only the first read waits for scrapes."""
        # Scraped series get the default labels. Exporters of devices are no pods of a stage, so they are not scraped.
        targets = tuple(replace(target, labels=None) for target in request.placements)
        request = replace(request, placements=targets, devices={})
        self._loaded = self._presets.load()
        plan = query_plan(request, self._loaded, max_age_s=self._max_age_s)
        pods, without_port = self._pods(request, plan)
        self._scraper.follow({**pods, **self._further_endpoints(plan)})
        if not self._has_read:
            self._scraper.wait_for_visits(2, _FIRST_SHARE * request.deadline_s)
            self._has_read = True
        pod_results, user_results = self._scraper.look(lambda seen, now_s: self._evaluate(plan, seen, now_s))
        origins = {target.pipeline: Origin(tier=MetricsTier.DIRECT_SCRAPE) for target in request.placements}
        answer = plan.answer(pod_results, user_results, origins)
        problems = (*answer.problems, *self._scraper.problems(), *without_port, *self._loaded.problems.values())
        return replace(answer, problems=problems)

    def _pods(self, request: ReadRequest, plan: QueryPlan) -> tuple[dict[Identity, ScrapeTarget], tuple[str, ...]]:
        """Return the pods to scrape, and a message if the port of some pods is not known."""
        found: dict[Identity, ScrapeTarget] = {}
        without: set[tuple[str, str]] = set()
        for target in request.placements:
            own = plan.placements[target.pipeline, target.stage, target.placement].readings
            names, window_s = _needs(query for planned in own.values() for query in planned.queries)
            without |= {(target.namespace, pod) for pod in target.pods - target.endpoints.keys()}
            for pod, endpoint in target.endpoints.items():
                url = self._url(target, endpoint)
                if url is None:
                    without.add((target.namespace, pod))
                elif names:
                    found[_POD, target.namespace, pod] = ScrapeTarget(
                        url=url,
                        labels=(("namespace", target.namespace), ("pod", pod)),
                        names=names,
                        keep_s=window_s + self._max_age_s,
                    )
        message = "direct scrape: the port of the metrics is not known: annotate the pods with prometheus.io/port"
        return found, (f"{message} ({len(without)} pods)",) if without else ()

    def _url(self, target: PlacementTarget, endpoint: PodEndpoint) -> str | None:
        preset = self._loaded.usable.get(target.preset)
        port = endpoint.port or (None if preset is None else preset.port)
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        return None if port is None else f"http://{host}:{port}{endpoint.path}"

    def _further_endpoints(self, plan: QueryPlan) -> dict[Identity, ScrapeTarget]:
        names, window_s = _needs(plan.user_queries())
        return {
            (_ENDPOINT, url): ScrapeTarget(
                url=url,
                labels=(("instance", url),),
                names=names,
                keep_s=window_s + self._max_age_s,
            )
            for url in self._endpoints
        }

    def _evaluate(self, plan: QueryPlan, seen: _Histories, now_s: float) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        # Pods with more samples than are kept are left out: one query is over many pods, and would fail for all.
        pods = [history for (kind, *_), history in seen.items() if kind == _POD and not history.crowded]
        endpoints = [seen[_ENDPOINT, url] for url in self._endpoints]
        users = plan.user_queries()
        return (
            self._results(plan.pod_queries(), pods, now_s),
            self._endpoint_absences(users, endpoints, now_s) or self._results(users, endpoints, now_s),
        )

    def _endpoint_absences(
        self, queries: Collection[str], endpoints: Sequence[TargetHistory], now_s: float
    ) -> Mapping[str, Absence] | None:
        """Return an `Absence` for every user's query while an endpoint does not answer, None if all answer."""
        if not endpoints:
            absence = Absence(
                reason=AbsenceReason.UNSUPPORTED,
                detail="direct scrape: users' queries need --scrape-endpoints, which is not set",
            )
            return dict.fromkeys(queries, absence)
        silent = sum(seen.scraped_s is None or seen.scraped_s < now_s - self._max_age_s for seen in endpoints)
        if not silent:
            return None
        # A sum over some of the endpoints is not the offered load.
        absence = Absence(
            reason=AbsenceReason.UNAVAILABLE if silent == len(endpoints) else AbsenceReason.PARTIAL,
            detail=f"direct scrape: {silent} of {len(endpoints)} scrape endpoints do not answer",
        )
        return dict.fromkeys(queries, absence)

    def _results(self, queries: Iterable[str], targets: Sequence[TargetHistory], now_s: float) -> Mapping[str, Any]:
        evaluation = Evaluation(targets, at_s=now_s, lookback_s=_LOOKBACK_S)
        results: dict[str, Any] = {}
        for query in queries:
            try:
                results[query] = evaluation.result(parse(query))
            except UnsupportedQuery as error:
                results[query] = Absence(
                    reason=AbsenceReason.UNSUPPORTED, detail=f"direct scrape: {error}, in: {query}"
                )
        return results


def _needs(queries: Iterable[str]) -> tuple[frozenset[str], float]:
    """Return the names of the metrics that `queries` select, and how far back the queries look, in seconds."""
    needs = [_need(query) for query in queries]
    return frozenset().union(*(names for names, _ in needs)), max((window_s for _, window_s in needs), default=0.0)


@lru_cache(maxsize=2048)
def _need(query: str) -> tuple[frozenset[str], float]:
    try:
        parse(query)
    except UnsupportedQuery:
        return frozenset(), 0.0
    return frozenset(metric_names(query)), longest_window_s(query)
