"""A real Prometheus whose pods are scraped twice, under other labels or not at all; and proxies in front of it that
answer as Thanos and Mimir do.
"""

import json
import time
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from aiohttp import web
from http_upstream import serving
from typing_extensions import override

from optimizer.model import PipelineKey, PoolName, StageName
from profiler.samples import Absence, AbsenceReason, PlacementSamples, PlacementTarget, Quantity, SeriesLabels
from profiler.sources import prometheus_api
from profiler.sources.access import Access
from profiler.sources.base import ReadAnswer, ReadRequest
from profiler.sources.prometheus import PrometheusSource
from simulations.lab.cluster.prometheus import PrometheusServer
from simulations.lab.faults.reverse_proxy import ReverseProxy, end_to_end, parameters
from simulations.lab.host.binaries import Binaries
from simulations.lab.host.processes import free_ports

pytestmark = pytest.mark.lab

SCRAPE_S = 0.5
WINDOW_S = 8.0
LIMIT_S = 60.0
RATE_RPS = 10.0
PODS = frozenset({"asr-0", "asr-1", "asr-2"})
TARGET = PlacementTarget(
    pipeline=PipelineKey("speech/captions"),
    stage=StageName("asr"),
    placement=PoolName("cpu"),
    namespace="speech",
    pods=PODS,
    preset="generic",
    window_s=WINDOW_S,
    concurrency=1,
    batch_limit=1,
    overrides={},
)
TWICE = replace(TARGET, namespace="twice")
EXPORTED = replace(TARGET, namespace="elsewhere")
LABELS = SeriesLabels(namespace="exported_namespace", pod="exported_pod", match=(("cluster", "eu-1"),))


def text() -> str:
    """Return what the pods export: each gets RATE_RPS items per second, and three sessions hold a slot of each."""
    items = RATE_RPS * time.monotonic()
    lines = []
    for namespace in ("speech", "twice"):
        for pod in sorted(PODS):
            labels = f'{{namespace="{namespace}",pod="{pod}"}}'
            lines += [f"speech_stage_{name}_total{labels} {items}" for name in ("arrivals", "items")]
            lines += [f"speech_stage_queue_depth{labels} 0", f"speech_stage_sessions{labels} 3"]
            lines += [f"speech_nic_rx_queue_pressure{labels} 0.5"]
    for pod in sorted(PODS):
        for cluster in ("eu-1", "us-1"):
            labels = f'{{exported_namespace="elsewhere",exported_pod="{pod}",cluster="{cluster}"}}'
            lines += [f"speech_stage_{name}_total{labels} {items}" for name in ("arrivals", "items")]
            lines += [f"speech_stage_queue_depth{labels} 0"]
    lines += [f'streams{{namespace="speech",pipeline="p{number}"}} {number}' for number in range(300)]
    return "\n".join(lines) + "\n"


class TwoJobs(PrometheusServer):
    """A Prometheus in which two jobs scrape the same targets; the second one keeps only namespace `twice`."""

    @override
    def _settings(self) -> dict[str, object]:
        settings = super()._settings()
        jobs = settings["scrape_configs"]
        assert isinstance(jobs, list)
        (static,) = (job for job in jobs if job["job_name"] == "static")
        kept = {"source_labels": ["namespace"], "regex": "twice", "action": "keep"}
        again = {**static, "job_name": "again", "metric_relabel_configs": [kept]}
        return {**settings, "scrape_configs": [static, again]}


@pytest.fixture(scope="module")
def prometheus(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text().encode())

        def log_message(self, *_: object) -> None:
            pass

    folder = tmp_path_factory.mktemp("prometheus")
    nowhere: Path = folder / "kubeconfig"
    nowhere.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config"}))
    with (
        serving(Handler) as url,
        TwoJobs(
            folder, binaries, kubeconfig=nowhere, scrape_interval_s=SCRAPE_S, targets=[urlsplit(url).netloc]
        ) as started,
    ):
        eventually(started.url, TWICE)
        time.sleep(WINDOW_S)  # a full window: rates over the first scrapes are extrapolated
        yield started


def eventually(url: str, target: PlacementTarget) -> None:
    deadline = time.monotonic() + LIMIT_S
    while isinstance(samples(url, target).of(Quantity.ARRIVAL_RATE), Absence):
        assert time.monotonic() < deadline
        time.sleep(0.25)


def read(
    url: str, *targets: PlacementTarget, queries: Mapping[Hashable, str] | None = None, access: Access | None = None
) -> ReadAnswer:
    source = PrometheusSource(url, access or Access())
    try:
        return source.read(ReadRequest(placements=targets, scalars=queries or {}, deadline_s=20.0))
    finally:
        source.close()


def samples(url: str, target: PlacementTarget) -> PlacementSamples:
    return read(url, target).placements[target.pipeline, target.stage, target.placement]


def demands(count: int) -> dict[Hashable, str]:
    return {number: f'sum(streams{{namespace="speech", pipeline="p{number}"}})' for number in range(count)}


EXPECTED = {number: float(number) for number in range(300)}


class TestScrapes:
    def test_pods_that_two_jobs_scrape_count_once(self, prometheus: PrometheusServer) -> None:
        for target, duplicated in ((TARGET, ()), (TWICE, tuple(sorted(PODS)))):
            found = samples(prometheus.url, target)
            assert found.of(Quantity.ARRIVAL_RATE) == pytest.approx(len(PODS) * RATE_RPS, rel=0.2)
            assert found.of(Quantity.SESSIONS) == 9.0
            assert found.sessions == dict.fromkeys(PODS, 3.0)
            assert found.of(Quantity.RX_QUEUE_PRESSURE) == 0.5
            assert found.scrapes.duplicated == duplicated

    def test_series_under_other_labels_are_read_where_these_are_named(self, prometheus: PrometheusServer) -> None:
        found = samples(prometheus.url, EXPORTED)
        assert isinstance(found.of(Quantity.ARRIVAL_RATE), Absence)
        assert "exported_pod" in found.scrapes.unlabelled
        found = samples(prometheus.url, replace(EXPORTED, labels=LABELS))
        assert found.of(Quantity.ARRIVAL_RATE) == pytest.approx(len(PODS) * RATE_RPS, rel=0.2)
        assert found.scrapes.unlabelled == ""

    def test_a_pod_that_never_had_a_sample_is_excused_once_it_is_long_ready(self, prometheus: PrometheusServer) -> None:
        silent = replace(TARGET, pods=PODS | {"asr-3"})
        reading = samples(prometheus.url, silent).of(Quantity.ARRIVAL_RATE)
        assert reading == Absence(reason=AbsenceReason.PARTIAL, detail="3 of 4 pods, 1 silent (asr-3)")
        found = samples(prometheus.url, replace(silent, long_ready=silent.pods))
        assert found.of(Quantity.ARRIVAL_RATE) == pytest.approx(4 * RATE_RPS, rel=0.2)
        assert found.scrapes.excused == ("asr-3",)

    def test_hundreds_of_users_queries_are_one_query_to_prometheus(self, prometheus: PrometheusServer) -> None:
        wrong = {
            "wrong": "sum(rate(streams))",
            "several": "streams",
            "none": "sum(nothing)",
            "number": "17",
            "scalar": "scalar(sum(streams{pipeline='p7'}))",
        }
        answer = read(prometheus.url, queries=demands(300) | wrong)
        assert {number: answer.scalars[number] for number in range(300)} == EXPECTED
        assert (answer.scalars["number"], answer.scalars["scalar"]) == (17.0, 7.0)
        reasons = [
            each.reason for name in ("wrong", "several", "none") if isinstance(each := answer.scalars[name], Absence)
        ]
        assert reasons == [AbsenceReason.UNAVAILABLE, AbsenceReason.NOT_A_NUMBER, AbsenceReason.MISSING]


class BackEnd(ReverseProxy):
    """A proxy in front of Prometheus that answers in the ways of other back ends."""

    tenant: str | None = None
    """The tenant that requests must name, as Mimir requires it in X-Scope-OrgID."""
    longest: int | None = None
    """Most characters of a query, above which `too_long` is the status."""
    too_long = 422
    refused: tuple[str, int] | None = None
    """A method and the status with which it is refused."""
    overloaded = 0
    """Requests that are refused with 429."""
    warnings: tuple[str, ...] | bool = ()
    """As Thanos has them in a partial response; others may have `true`."""
    headers: Mapping[str, str] = {}
    """Headers of answers that a cache in front sets."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream, free_ports(1)[0])
        self.asked: list[tuple[str, str]] = []

    @override
    async def handle(self, request: web.Request) -> web.StreamResponse:
        query = (await parameters(request)).get("query", "")
        self.asked.append((request.method, query))
        if self.tenant is not None and request.headers.get("X-Scope-OrgID") != self.tenant:
            return web.Response(status=401, text="no org id")
        if self.refused is not None and request.method == self.refused[0]:
            return web.Response(status=self.refused[1])
        if self.longest is not None and len(query) > self.longest:
            error = {"status": "error", "errorType": "execution", "error": "the query exceeds the limit of the tenant"}
            return web.json_response(error, status=self.too_long)
        if self.overloaded:
            self.overloaded -= 1
            return web.Response(
                status=429, text="the request has been rejected because the tenant exceeded the rate limit"
            )
        async with self._forwarded(request) as answer:
            document: dict[str, Any] = json.loads(await answer.read())
            if self.warnings:
                document["warnings"] = self.warnings
            body = json.dumps(document).encode()
            headers = {**end_to_end(answer.headers), **self.headers}
            return web.Response(status=answer.status, body=body, headers=headers)


@pytest.fixture
def back_end(prometheus: PrometheusServer) -> Iterator[BackEnd]:
    with BackEnd(prometheus.url) as proxy:
        yield proxy


class TestMimirAndThanos:
    def test_a_tenant_is_named_in_a_header(self, back_end: BackEnd) -> None:
        back_end.tenant = "team-a"
        absent = read(back_end.url, queries=demands(3)).scalars
        assert {each.reason for each in absent.values() if isinstance(each, Absence)} == {AbsenceReason.UNAVAILABLE}
        answer = read(back_end.url, queries=demands(300), access=Access(headers={"X-Scope-OrgID": "team-a"}))
        assert answer.scalars == EXPECTED

    @pytest.mark.parametrize("status", [422, 413, 414])
    def test_a_limit_on_the_length_of_queries_costs_no_answer(self, back_end: BackEnd, status: int) -> None:
        back_end.longest, back_end.too_long = 1500, status
        assert read(back_end.url, queries=demands(300)).scalars == EXPECTED

    @pytest.mark.parametrize("status", [403, 405])
    def test_without_the_right_to_post_all_is_read_by_get(self, back_end: BackEnd, status: int) -> None:
        back_end.refused = ("POST", status)
        assert read(back_end.url, queries=demands(300)).scalars == EXPECTED
        assert {method for method, _ in back_end.asked} == {"GET", "POST"}

    def test_a_short_limit_on_the_rate_is_asked_again(self, back_end: BackEnd) -> None:
        back_end.overloaded = 1
        assert read(back_end.url, queries=demands(300)).scalars == EXPECTED

    def test_a_lasting_limit_on_the_rate_is_no_answer(self, back_end: BackEnd) -> None:
        back_end.overloaded = 1000
        answer = read(back_end.url, queries=demands(3))
        assert {each.reason for each in answer.scalars.values() if isinstance(each, Absence)} == {
            AbsenceReason.UNAVAILABLE
        }
        assert set(answer.unanswered.values()) == {1.0}

    def test_a_refusal_of_post_is_not_for_ever(self, back_end: BackEnd, monkeypatch: pytest.MonkeyPatch) -> None:
        """One query may have been the cause."""
        source = PrometheusSource(back_end.url)
        request = ReadRequest(placements=(), scalars=demands(300), deadline_s=30.0)
        back_end.refused = ("POST", 405)
        source.read(request)
        back_end.refused, back_end.asked = None, []
        assert source.read(request).scalars == EXPECTED
        assert {method for method, _ in back_end.asked} == {"GET"}
        monkeypatch.setattr(prometheus_api, "_WITHOUT_POST_S", 0.0)
        back_end.asked = []
        assert source.read(request).scalars == EXPECTED
        assert {method for method, _ in back_end.asked} == {"POST"}
        source.close()

    def test_an_answer_that_a_cache_has_had_for_long_is_stale(self, back_end: BackEnd) -> None:
        back_end.headers = {"Age": "30"}
        assert read(back_end.url, queries=demands(3)).scalars == {
            query: reading for query, reading in EXPECTED.items() if query in demands(3)
        }
        for headers in ({"Age": "600"}, {"Age": "soon", "Date": "Wed, 01 Jan 2025 00:00:00 GMT"}):
            back_end.headers = headers
            absent = read(back_end.url, queries=demands(3)).scalars.values()
            assert {each.reason for each in absent if isinstance(each, Absence)} == {AbsenceReason.STALE}

    @pytest.mark.parametrize("warnings", [("No StoreAPIs matched for this query",), True])
    def test_a_partial_response_is_partial_for_every_query_in_it(
        self, back_end: BackEnd, warnings: tuple[str, ...] | bool
    ) -> None:
        back_end.warnings = warnings
        answer = read(back_end.url, TARGET, queries=demands(3))
        readings = [
            *answer.scalars.values(),
            answer.placements[TARGET.pipeline, TARGET.stage, TARGET.placement].of(Quantity.SESSIONS),
        ]
        assert {each.reason for each in readings if isinstance(each, Absence)} == {AbsenceReason.PARTIAL}
        assert len(readings) == 4
        assert len([query for _, query in back_end.asked if "streams" in query]) == 1
