"""Metrics that the operator reads off the endpoints itself: from the pods, and, for the users' own queries, from the
endpoints it is told of, such as that of the ingress.

For small set-ups without Prometheus, and to fall back on when Prometheus is gone. The same presets and the same PromQL
are evaluated over what was scraped, so that both answer alike; of PromQL only the part that
`profiler.sources.promql_syntax` reads. The offered load is never the sum of the pods that happen to report: users'
queries see the further endpoints only, and nothing at all while one of these does not answer.

A rate needs two scrapes, so the endpoints are visited all the time, as often as Prometheus would, and a read answers
from what is known: a fallback that begins when it is needed would be blind for a while.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from profiler.samples import Absence, AbsenceReason, MetricsTier, Origin, PlacementTarget, PodEndpoint
from profiler.sources.base import ReadAnswer, ReadRequest
from profiler.sources.history import TargetHistory
from profiler.sources.presets import load_presets
from profiler.sources.promql_evaluation import Evaluation
from profiler.sources.promql_syntax import longest_window_s, metric_names, parse
from profiler.sources.promql_tokens import UnsupportedQuery
from profiler.sources.queries import Questions, questions
from profiler.sources.scraper import Identity, Scraper, ScrapeTarget

_MISSED_VISITS = 3
"""What was seen this many visits ago, and not since, is stale."""
_LEAST_AGE_S = 2.0
_LOOKBACK_S = 300.0
"""For how long a sample stands for its series, as in Prometheus; whether it is too old is judged by target."""
_FIRST_SHARE = 0.8
"""Of the deadline of the first read, to see every target twice: so that a restart is not blind."""
_POD, _FURTHER = "pod", "further"
_Histories = Mapping[Identity, TargetHistory]


class DirectSource:
    """A `MetricSource` that visits every pod, and `endpoints`, every `cadence_s` from its first read on.

    Each of `endpoints` (URLs) must be one process: a name that leads now to one replica and now to another gives
    numbers that mean nothing.
    """

    def __init__(self, *, cadence_s: float, endpoints: Sequence[str] = ()) -> None:
        self._endpoints = tuple(dict.fromkeys(endpoints))
        self._presets = load_presets()
        self._max_age_s = max(_LEAST_AGE_S, _MISSED_VISITS * cadence_s)
        self._seeing = False
        self._scraper = Scraper(cadence_s)
        self._scraper.start()

    def close(self) -> None:
        """Stop visiting."""
        self._scraper.close()

    def read(self, request: ReadRequest) -> ReadAnswer:
        """See `MetricSource.read`. It answers at once, from what was seen before; the first one looks around."""
        asked = questions(request, self._presets, max_age_s=self._max_age_s)
        pods, nowhere = self._pods(request, asked)
        self._scraper.follow({**pods, **self._further(asked)})
        if not self._seeing:
            self._scraper.wait_for_visits(2, _FIRST_SHARE * request.deadline_s)
            self._seeing = True
        of_pods, of_users = self._scraper.look(lambda seen, now_s: self._evaluate(asked, seen, now_s))
        origins = {target.pipeline: Origin(tier=MetricsTier.DIRECT_SCRAPE) for target in request.placements}
        answer = asked.answer(of_pods, of_users, origins)
        return replace(answer, problems=(*answer.problems, *self._scraper.problems(), *nowhere))

    def _pods(self, request: ReadRequest, asked: Questions) -> tuple[dict[Identity, ScrapeTarget], tuple[str, ...]]:
        """Return the pods to visit, and what is to be said of those that nobody can visit."""
        found: dict[Identity, ScrapeTarget] = {}
        without: set[tuple[str, str]] = set()
        for target in request.placements:
            own = asked.placements[target.pipeline, target.stage, target.pool]
            names, window_s = _needs(query for question in own.values() for query in question.queries)
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
        words = "direct scrape: pods do not say where their metrics are: annotate them with prometheus.io/port"
        return found, (f"{words} ({len(without)} pods)",) if without else ()

    def _url(self, target: PlacementTarget, endpoint: PodEndpoint) -> str | None:
        preset = self._presets.get(target.preset)
        port = endpoint.port or (None if preset is None else preset.port)
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        return None if port is None else f"http://{host}:{port}{endpoint.path}"

    def _further(self, asked: Questions) -> dict[Identity, ScrapeTarget]:
        names, window_s = _needs(asked.of_users())
        return {
            (_FURTHER, url): ScrapeTarget(
                url=url,
                labels=(("instance", url),),
                names=names,
                keep_s=window_s + self._max_age_s,
            )
            for url in self._endpoints
        }

    def _evaluate(
        self, asked: Questions, seen: _Histories, now_s: float
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        # A pod that shows more than is kept of it is missed, and blinds nobody who asks about others in one query.
        pods = [history for (kind, *_), history in seen.items() if kind == _POD and not history.crowded]
        further = [seen[_FURTHER, url] for url in self._endpoints]
        return (
            self._answers(asked.of_pods(), pods, now_s),
            self._further_absence(asked.of_users(), further, now_s) or self._answers(asked.of_users(), further, now_s),
        )

    def _further_absence(
        self, queries: Collection[str], further: Sequence[TargetHistory], now_s: float
    ) -> Mapping[str, Absence] | None:
        """Return why none of the users' queries can be answered, None where they can."""
        if not further:
            why = Absence(
                reason=AbsenceReason.UNSUPPORTED,
                detail="direct scrape: no endpoint is known for the users' own queries: name them (--scrape-endpoints)",
            )
            return dict.fromkeys(queries, why)
        silent = sum(seen.scraped_s is None or seen.scraped_s < now_s - self._max_age_s for seen in further)
        if not silent:
            return None
        # A part of what is offered is not what is offered.
        why = Absence(
            reason=AbsenceReason.UNAVAILABLE if silent == len(further) else AbsenceReason.PARTIAL,
            detail=f"direct scrape: {silent} of {len(further)} endpoints for the users' own queries do not answer",
        )
        return dict.fromkeys(queries, why)

    def _answers(self, queries: Iterable[str], targets: Sequence[TargetHistory], now_s: float) -> Mapping[str, Any]:
        evaluation = Evaluation(targets, at_s=now_s, lookback_s=_LOOKBACK_S)
        answers: dict[str, Any] = {}
        for query in queries:
            try:
                answers[query] = evaluation.result(parse(query))
            except UnsupportedQuery as error:
                answers[query] = Absence(
                    reason=AbsenceReason.UNSUPPORTED, detail=f"direct scrape: {error}, in: {query}"
                )
        return answers


def _needs(queries: Iterable[str]) -> tuple[frozenset[str], float]:
    """Return the metrics that queries are made of, and how far back they look."""
    needs = [_need(query) for query in queries]
    return frozenset().union(*(names for names, _ in needs)), max((window_s for _, window_s in needs), default=0.0)


@lru_cache(maxsize=2048)
def _need(query: str) -> tuple[frozenset[str], float]:
    try:
        expression = parse(query)
    except UnsupportedQuery:
        return frozenset(), 0.0
    return frozenset(metric_names(expression)), longest_window_s(expression)
