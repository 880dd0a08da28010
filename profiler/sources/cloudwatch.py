"""Metrics from Amazon CloudWatch, by GetMetricData.

The servers' `speech_stage_*` metrics must be there under these names, each with two dimensions: the namespace of the
pod and the pod. The CloudWatch agent publishes counters as differences, so a sum over a period is what was counted in
it.
Latencies must be published as single values: CloudWatch then computes their percentiles.

A request has at most 500 queries, and CloudWatch charges for each metric that is asked for. Its values are of whole
minutes, so an answer is used again until the next minute is over.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from optimizer.model import PipelineKey, PlacementId
from profiler.samples import (
    TOO_NEW,
    Absence,
    AbsenceReason,
    MetricsTier,
    Origin,
    PlacementSamples,
    PlacementTarget,
    Quantity,
    Reading,
    Scrapes,
    sane,
)
from profiler.sources.aws_errors import MOST_CHARACTERS, error_text
from profiler.sources.base import QueryKind, ReadAnswer, ReadRequest
from profiler.sources.combine import Pod, combine_ratio, combine_values, reporting
from profiler.sources.presets import Combine

_LOG = logging.getLogger(__name__)
MOST_QUERIES = 500
"""The most queries that a request may have."""
USD_PER_METRIC = 0.01 / 1000
"""The price of a metric that is asked for, in USD (us-east-1, 2026)."""
PERIOD_S = 60.0
"""The time of one value. Values of less cost more, and the agent publishes one per minute by default."""
LOOK_BACK_S = 900.0
"""How far back values are read, to tell a pod that has stopped reporting from one that never did."""
STALE_S = 300.0
"""Age from which the newest value of a pod is too old: CloudWatch shows values up to two minutes late."""
SETTLED_S = 120.0
"""Age of a minute from which it is taken to be complete: publishers flush once a minute, and CloudWatch shows what they
sent up to a minute later. A younger minute counts once it has not changed between two reads."""
_PAGES = 50
"""The most pages of an answer, so that a service that repeats a page does not hold a thread for ever."""
_PARALLEL = 4
_TIMEOUT_S = 2.0
_GRACE_S = 0.3
_CREDENTIALS = "no AWS credentials: give the operator's ServiceAccount an IAM role (IRSA or EKS Pod Identity)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metric:
    """A metric of a pod with the statistic that is read; `rate` divides sums of a period by its length."""

    name: str
    statistic: str
    rate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Formula:
    """How a quantity is made of metrics of the pods: combined by `how`, or as the ratio of `value` and `over`."""

    value: _Metric
    how: Combine
    over: _Metric | None = None


_ARRIVALS = _Metric(name="speech_stage_arrivals_total", statistic="Sum", rate=True)
_ITEMS = _Metric(name="speech_stage_items_total", statistic="Sum", rate=True)
_BATCHES = _Metric(name="speech_stage_batches_total", statistic="Sum", rate=True)
_BUSY = _Metric(name="speech_stage_busy_seconds_total", statistic="Sum", rate=True)
_LATENCY = "speech_stage_latency_seconds"
_FORMULAS: Mapping[Quantity, _Formula] = {
    Quantity.ARRIVAL_RATE: _Formula(value=_ARRIVALS, how=Combine.SUM),
    Quantity.COMPLETION_RATE: _Formula(value=_ITEMS, how=Combine.SUM),
    Quantity.LATENCY_MEAN: _Formula(
        value=_Metric(name=_LATENCY, statistic="Sum", rate=True),
        how=Combine.RATIO,
        over=_Metric(name=_LATENCY, statistic="SampleCount", rate=True),
    ),
    # The highest of the pods': percentiles of several pods cannot be combined without their distributions.
    Quantity.LATENCY_P95: _Formula(value=_Metric(name=_LATENCY, statistic="p95"), how=Combine.MAX),
    Quantity.LATENCY_P99: _Formula(value=_Metric(name=_LATENCY, statistic="p99"), how=Combine.MAX),
    Quantity.SERVICE_TIME: _Formula(value=_BUSY, how=Combine.RATIO, over=_BATCHES),
    Quantity.BATCH_SIZE: _Formula(value=_ITEMS, how=Combine.RATIO, over=_BATCHES),
    Quantity.UTILIZATION: _Formula(
        value=_BUSY, how=Combine.RATIO, over=_Metric(name="speech_stage_capacity", statistic="Average")
    ),
    Quantity.QUEUE_DEPTH: _Formula(
        value=_Metric(name="speech_stage_queue_depth", statistic="Average"), how=Combine.SUM
    ),
    Quantity.SESSIONS: _Formula(value=_Metric(name="speech_stage_sessions", statistic="Average"), how=Combine.SUM),
    Quantity.SESSION_REFUSALS: _Formula(
        value=_Metric(name="speech_stage_sessions_refused_total", statistic="Sum", rate=True), how=Combine.SUM
    ),
    Quantity.RX_QUEUE_PRESSURE: _Formula(
        value=_Metric(name="speech_nic_rx_queue_pressure", statistic="Maximum"), how=Combine.MAX
    ),
}
_FRESHNESS = Quantity.QUEUE_DEPTH
"""Every pod reports it from its start, so its newest value says whether the pod reports."""
_PRESET = "generic"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    """One query of a request: a metric of a pod, or an expression of a user."""

    pod: Pod | None = None
    metric: _Metric | None = None
    expression: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """The values of a query by their time in epoch seconds, or why there are none; `several` says there are others."""

    points: Mapping[float, float] = field(default_factory=dict)
    problem: str = ""
    several: bool = False


_NO_ANSWER = _Series(problem="CloudWatch did not answer in time")


class CloudWatchSource:
    """Reads metrics from CloudWatch in one region. Users' queries are metric math, or Metrics Insights."""

    def __init__(
        self,
        region: str | None = None,
        *,
        namespace: str = "Sluice",
        dimensions: tuple[str, str] = ("Namespace", "PodName"),
        client: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`namespace` is that of the metrics in CloudWatch, and `dimensions` those with a pod's namespace and name.

        `region` None: that of the environment. `client` makes the client, by default one with credentials of the
        environment. `clock` returns epoch seconds.
        """
        self._namespace, self._dimensions = namespace, dimensions
        self._make = client or (lambda: _client(region))
        self._clock = clock
        self._lock = threading.Lock()
        self._made: Any = None
        self._threads = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="cloudwatch")
        self._known: dict[_Query, _Series] = {}
        self._before: Mapping[_Query, _Series] = {}
        self._minute = -1.0
        self._told: float | None = None
        self.metrics_asked = 0
        """How many metrics were asked for since the start. Each costs `USD_PER_METRIC`."""

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def read(self, request: ReadRequest) -> ReadAnswer:
        """See `MetricSource.read`. The answer of a minute is used again until the minute is over."""
        end_s = math.floor(self._clock() / PERIOD_S) * PERIOD_S
        if end_s != self._minute:
            self._before = {query: series for query, series in self._known.items() if query.pod is None}
            self._minute, self._known = end_s, {}
        queries = dict.fromkeys([*_queries(request), *(_Query(expression=text) for text in _texts(request))])
        missing = [query for query in queries if query not in self._known]
        found, problems = self._asked(missing, end_s, request.deadline_s)
        self._known |= {query: series for query, series in found.items() if series is not _NO_ANSWER}
        answers = {query: found.get(query) or self._known[query] for query in queries}
        self._tell(len(queries))
        placements: dict[PlacementId, PlacementSamples] = {
            (target.pipeline, target.stage, target.placement): _samples(target, answers, self._before, end_s)
            for target in request.placements
        }
        scalars: dict[Hashable, Reading] = {
            key: _scalar(_Query(expression=text), answers, self._before, end_s) for key, text in request.scalars.items()
        }
        pipelines: Iterable[PipelineKey] = (target.pipeline for target in request.placements)
        return ReadAnswer(
            placements=placements,
            scalars=scalars,
            problems=tuple(dict.fromkeys(problems)),
            origins={key: Origin(tier=MetricsTier.CLOUDWATCH) for key in pipelines},
            unanswered=_unanswered(request, answers),
        )

    def _asked(
        self, queries: Sequence[_Query], end_s: float, deadline_s: float
    ) -> tuple[Mapping[_Query, _Series], Sequence[str]]:
        """Return the series of `queries`, and what went wrong, within the deadline.

        An expression that CloudWatch refuses makes the whole request fail, so each has a request of its own.
        """
        own = [query for query in queries if query.pod is not None]
        batches = [own[i : i + MOST_QUERIES] for i in range(0, len(own), MOST_QUERIES)]
        batches += [[query] for query in queries if query.pod is None]
        jobs: dict[Future[Mapping[_Query, _Series]], Sequence[_Query]] = {
            self._threads.submit(self._request, batch, end_s): batch for batch in batches
        }
        wait(jobs, timeout=max(0.0, deadline_s - _GRACE_S))
        found: dict[_Query, _Series] = {}
        problems = []
        for job, batch in jobs.items():
            if not job.done():
                job.cancel()
                found |= dict.fromkeys(batch, _NO_ANSWER)
                problems.append(_NO_ANSWER.problem)
                continue
            found |= job.result()
            problems += [series.problem for series in job.result().values() if series.problem]
        return found, problems

    def _request(self, batch: Sequence[_Query], end_s: float) -> Mapping[_Query, _Series]:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
        from botocore.parsers import ResponseParserError

        points: list[dict[float, float]] = [{} for _ in batch]
        labels: list[set[str]] = [set() for _ in batch]
        failed: dict[int, str] = {}
        arguments = {
            "MetricDataQueries": [self._document(f"q{i}", query) for i, query in enumerate(batch)],
            "StartTime": datetime.fromtimestamp(end_s - LOOK_BACK_S, UTC),
            "EndTime": datetime.fromtimestamp(end_s, UTC),
        }
        token: dict[str, str] = {}
        try:
            client = self._client()
            with self._lock:
                self.metrics_asked += len(batch)
            for _ in range(_PAGES):
                answer = client.get_metric_data(**arguments, **token)
                for result in answer["MetricDataResults"]:
                    index = int(result["Id"].removeprefix("q"))
                    times = [moment.timestamp() for moment in result["Timestamps"]]
                    points[index] |= dict(zip(times, result["Values"], strict=True))
                    labels[index].add(result.get("Label", ""))
                    if result.get("StatusCode") in {"InternalError", "Forbidden"}:
                        failed[index] = f"CloudWatch: {result['StatusCode']}"
                if not answer.get("NextToken"):
                    break
                token = {"NextToken": answer["NextToken"]}
        except NoCredentialsError:
            self._made = None  # a client without credentials never gets any, and they may come
            return dict.fromkeys(batch, _Series(problem=f"CloudWatch: {_CREDENTIALS}"))
        except ClientError as error:
            return dict.fromkeys(batch, _Series(problem=error_text("CloudWatch", error.response)))
        except (BotoCoreError, ResponseParserError, LookupError, ValueError, TypeError, AttributeError) as error:
            text = f"CloudWatch: {type(error).__name__}: {error}"[:MOST_CHARACTERS]
            return dict.fromkeys(batch, _Series(problem=text))
        return {
            query: _Series(points=points[i], problem=failed.get(i, ""), several=len(labels[i]) > 1)
            for i, query in enumerate(batch)
        }

    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _document(self, name: str, query: _Query) -> Mapping[str, Any]:
        if query.pod is None or query.metric is None:
            return {"Id": name, "Expression": query.expression, "Period": int(PERIOD_S), "ReturnData": True}
        dimensions = [
            {"Name": dimension, "Value": value} for dimension, value in zip(self._dimensions, query.pod, strict=True)
        ]
        metric = {"Namespace": self._namespace, "MetricName": query.metric.name, "Dimensions": dimensions}
        return {
            "Id": name,
            "MetricStat": {"Metric": metric, "Period": int(PERIOD_S), "Stat": query.metric.statistic},
            "ReturnData": True,
        }

    def _tell(self, metrics: int) -> None:
        """Log what the reads cost, again when it has doubled or halved."""
        per_hour = metrics * USD_PER_METRIC * 3600 / PERIOD_S
        if per_hour and (self._told is None or not self._told / 2 < per_hour < self._told * 2):
            _LOG.info("CloudWatch: %d metrics a minute, about %.2f USD per hour", metrics, per_hour)
            self._told = per_hour


def _client(region: str | None) -> Any:
    # Imported here because it takes a quarter of a second, which only users of AWS should wait for.
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S, retries={"mode": "standard", "total_max_attempts": 2}
    )
    return boto3.client("cloudwatch", region_name=region, config=config)


def _texts(request: ReadRequest) -> Iterable[str]:
    yield from request.scalars.values()
    for target in request.placements:
        yield from (_override(target, text) for text in target.overrides.values())


def _override(target: PlacementTarget, text: str) -> str:
    return text.replace("$window", f"{target.window_s:.0f}")


def _queries(request: ReadRequest) -> Iterable[_Query]:
    for target in request.placements:
        if target.preset != _PRESET:
            continue
        for pod in sorted(target.pods):
            for metric in _metrics(target):
                yield _Query(pod=(target.namespace, pod), metric=metric)


def _metrics(target: PlacementTarget) -> Iterable[_Metric]:
    used = [formula for quantity, formula in _FORMULAS.items() if quantity not in target.overrides]
    found = [_FORMULAS[_FRESHNESS].value, *(formula.value for formula in used)]
    return dict.fromkeys([*found, *(formula.over for formula in used if formula.over is not None)])


def _samples(
    target: PlacementTarget, answers: Mapping[_Query, _Series], before: Mapping[_Query, _Series], end_s: float
) -> PlacementSamples:
    overrides = {
        quantity: _scalar(_Query(expression=_override(target, text)), answers, before, end_s)
        for quantity, text in target.overrides.items()
    }
    if target.preset != _PRESET:
        detail = f"CloudWatch has no metrics of preset {target.preset}, only of {_PRESET}"
        absent = Absence(reason=AbsenceReason.UNSUPPORTED, detail=detail)
        return PlacementSamples(readings={**dict.fromkeys(Quantity, absent), **overrides})
    if not target.pods:
        return PlacementSamples(readings={**dict.fromkeys(Quantity, TOO_NEW), **overrides})

    def series(metric: _Metric) -> Mapping[Pod, _Series]:
        pods = ((target.namespace, pod) for pod in target.pods)
        return {pod: answers[_Query(pod=pod, metric=metric)] for pod in pods}

    freshness = series(_FORMULAS[_FRESHNESS].value)
    # A value is of the minute that begins at its time.
    ages_s = {pod: end_s - max(own.points) - PERIOD_S for pod, own in freshness.items() if own.points}
    expected = frozenset(freshness)
    long_silent = frozenset((target.namespace, pod) for pod in target.long_ready)
    pods = reporting(expected, ages_s, STALE_S, long_silent)
    failed = next((own.problem for own in freshness.values() if own.problem), "")
    readings: dict[Quantity, Reading] = {}
    sessions: Mapping[Pod, float] = {}
    for quantity in (each for each in Quantity if each not in target.overrides):
        formula = _FORMULAS.get(quantity)
        if formula is None:
            readings[quantity] = Absence(reason=AbsenceReason.UNSUPPORTED, detail="not read from CloudWatch")
            continue
        above = series(formula.value)
        below = {} if formula.over is None else series(formula.over)
        problem = failed or next((own.problem for own in (*above.values(), *below.values()) if own.problem), "")
        if problem:
            readings[quantity] = Absence(reason=AbsenceReason.UNAVAILABLE, detail=problem)
            continue
        values = _values(above, formula.value, target.window_s, end_s)
        if formula.over is None:
            readings[quantity] = combine_values(formula.how, pods, values)
        else:
            readings[quantity] = combine_ratio(pods, values, _values(below, formula.over, target.window_s, end_s))
        if quantity is Quantity.SESSIONS:
            sessions = values
    silent = tuple(sorted(pod for _, pod in expected - pods.fresh))
    return PlacementSamples(
        readings={**readings, **overrides},
        sessions={pod: count for (_, pod), count in sessions.items() if sane(count)},
        scrapes=Scrapes(interval_s=PERIOD_S, silent=silent, excused=tuple(sorted(pod for _, pod in pods.excused))),
    )


def _values(series: Mapping[Pod, _Series], metric: _Metric, window_s: float, end_s: float) -> Mapping[Pod, float]:
    """Return the mean of each pod's values over the window, at least over the newest one.

    A difference below 0 is of a counter that began again, which the agent should not publish: the pod has no value.
    """
    found: dict[Pod, float] = {}
    for pod, own in series.items():
        newest = max(own.points, default=None)
        if newest is None:
            continue
        begin_s = min(newest, end_s - max(window_s, PERIOD_S) - STALE_S / 2)
        recent = [value for at_s, value in own.points.items() if at_s >= begin_s]
        mean = math.fsum(recent) / len(recent) if all(map(math.isfinite, recent)) else math.nan
        if metric.rate:
            mean = mean / PERIOD_S if all(value >= 0 for value in recent) else math.nan
        found[pod] = mean
    return found


def _scalar(
    query: _Query, answers: Mapping[_Query, _Series], before: Mapping[_Query, _Series], end_s: float
) -> Reading:
    """Return the value of a user's expression in the newest complete minute.

    A sum over publishers has, soon after the minute, only those who were quick. `before` are the answers of the read in
    the minute before: what has not changed since is complete too.
    """
    series = answers[query]
    if series.problem:
        refused = "ValidationError" in series.problem
        return Absence(
            reason=AbsenceReason.UNSUPPORTED if refused else AbsenceReason.UNAVAILABLE, detail=series.problem
        )
    if series.several:
        return Absence(reason=AbsenceReason.NOT_A_NUMBER, detail="the expression returns several time series")
    if not series.points:
        return Absence(reason=AbsenceReason.MISSING)
    seen = before[query].points if query in before else {}
    complete = [
        at_s for at_s, value in series.points.items() if end_s - at_s - PERIOD_S >= SETTLED_S or seen.get(at_s) == value
    ]
    if not complete:
        return Absence(reason=AbsenceReason.STALE, detail="no minute of it is complete yet")
    newest = max(complete)
    if end_s - newest - PERIOD_S > STALE_S:
        return Absence(reason=AbsenceReason.STALE)
    value = series.points[newest]
    return value if sane(value) else Absence(reason=AbsenceReason.NOT_A_NUMBER)


def _unanswered(request: ReadRequest, answers: Mapping[_Query, _Series]) -> Mapping[QueryKind, float]:
    """Return the share of unanswered queries. Those for quantities count as one kind: a request has them together."""
    asked: dict[QueryKind, list[bool]] = {}
    for key, text in request.scalars.items():
        kind = request.scalar_kinds.get(key, QueryKind.DEMAND)
        asked.setdefault(kind, []).append(bool(answers[_Query(expression=text)].problem))
    for query, series in answers.items():
        if query.pod is not None:
            asked.setdefault(QueryKind.THROUGHPUT, []).append(bool(series.problem))
    return {kind: sum(failed) / len(failed) for kind, failed in asked.items()}
