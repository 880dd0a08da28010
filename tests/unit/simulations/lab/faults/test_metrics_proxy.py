"""The metrics proxy in front of a small HTTP server that answers as Prometheus does."""

import gzip
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import Request, urlopen

import pytest
from http_upstream import serving

from profiler.sources.joined_queries import joined
from profiler.sources.promql import pod_matcher
from simulations.lab.faults.metrics_proxy import Loss, MetricsProxy, TotalLoss
from simulations.lab.host.processes import free_ports

OFFERED = 'sum(sluice_ingress_active_streams{pipeline="captions"})'
BY_POD = 'sum by (namespace, pod) (rate(requests_total{namespace=~"speech|notes"}[10s]))'
LOSS = Loss(namespace="speech", deployments=("asr", "vad"), queries=frozenset({OFFERED}))


def series(value: str = "1", **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [1.0, value]}


def pod(name: str, namespace: str = "speech") -> dict[str, Any]:
    return series(namespace=namespace, pod=name)


ANSWERS: dict[str, Any] = {
    OFFERED: {"resultType": "vector", "result": [series("3")]},
    "sum(others)": {"resultType": "vector", "result": [series("4")]},
    "scalar(x)": {"resultType": "scalar", "result": [1.0, "7"]},
    BY_POD: {
        "resultType": "vector",
        "result": [
            pod("asr-5d9f7c6b8-abcde"),
            pod("vad-5d9f7c6b8-zzzzz"),
            pod("asr-gpu-5d9f7c6b8-abcde"),
            pod("asr-5d9f7c6b8-abcde", namespace="notes"),
        ],
    },
}

BOTH = joined([OFFERED, "sum(others)"])
ANSWERS[BOTH] = {
    "resultType": "vector",
    "result": [series("3", sluice_query="0"), series("4", sluice_query="1")],
}


class Upstream(BaseHTTPRequestHandler):
    """Answers from ANSWERS, compressed, to GET and POST; refuses an unknown query as Prometheus does."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/-/ready":
            self._answer(200, b"ready\n", "text/plain")
            return
        self._query(parse_qs(urlsplit(self.path).query)["query"][0])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self._query(parse_qs(body)["query"][0])

    def _query(self, query: str) -> None:
        if query in ANSWERS:
            self._answer(200, json.dumps({"status": "success", "data": ANSWERS[query]}).encode())
        else:
            self._answer(400, json.dumps({"status": "error", "errorType": "bad_data", "error": "parse error"}).encode())

    def _answer(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        body = gzip.compress(body)
        self.send_response(status)
        for name, value in (
            ("Content-Type", content_type),
            ("Content-Encoding", "gzip"),
            ("Content-Length", str(len(body))),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        pass


@pytest.fixture(scope="module")
def running() -> Iterator[MetricsProxy]:
    with serving(Upstream) as url, MetricsProxy(url, free_ports(1)[0]) as proxy:
        yield proxy


@pytest.fixture
def proxy(running: MetricsProxy) -> Iterator[MetricsProxy]:
    yield running
    running.losses = ()


def ask(proxy: MetricsProxy, query: str, *, post: bool = False) -> Any:
    form = urlencode({"query": query})
    url = f"{proxy.url}/api/v1/query"
    request = Request(url, data=form.encode()) if post else Request(f"{url}?{form}")
    with urlopen(request, timeout=5) as answer:
        document = json.load(answer)
    assert document["status"] == "success"
    return document["data"]["result"]


@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("query", ANSWERS)
def test_without_a_loss_every_answer_passes_as_it_is(proxy: MetricsProxy, query: str, post: bool) -> None:
    assert ask(proxy, query, post=post) == ANSWERS[query]["result"]


def test_other_paths_pass_too_whatever_is_lost(proxy: MetricsProxy) -> None:
    proxy.losses = (TotalLoss(),)
    with urlopen(f"{proxy.url}/-/ready", timeout=5) as answer:
        assert answer.read() == b"ready\n"


@pytest.mark.parametrize("losses", [(), (TotalLoss(),)])
def test_a_refusal_passes_with_its_status_and_reason(proxy: MetricsProxy, losses: tuple[TotalLoss, ...]) -> None:
    proxy.losses = losses
    with pytest.raises(HTTPError) as refusal:
        ask(proxy, "sum(")
    with refusal.value:
        assert refusal.value.code == 400
        assert json.load(refusal.value)["error"] == "parse error"


@pytest.mark.parametrize("post", [False, True])
def test_a_total_loss_leaves_nothing(proxy: MetricsProxy, post: bool) -> None:
    proxy.losses = (TotalLoss(),)
    assert [ask(proxy, query, post=post) for query in (OFFERED, "sum(others)", BY_POD)] == [[], [], []]
    assert ask(proxy, "scalar(x)", post=post) == [1.0, "NaN"], "what Prometheus makes of a scalar over nothing"


@pytest.mark.parametrize("post", [False, True])
def test_the_loss_of_one_pipeline_leaves_all_that_is_of_others(proxy: MetricsProxy, post: bool) -> None:
    proxy.losses = (LOSS,)

    assert ask(proxy, OFFERED, post=post) == []
    assert ask(proxy, "sum(others)", post=post) == ANSWERS["sum(others)"]["result"]
    assert ask(proxy, "scalar(x)", post=post) == [1.0, "7"]
    left = [series["metric"] for series in ask(proxy, BY_POD, post=post)]
    assert left == [
        {"namespace": "speech", "pod": "asr-gpu-5d9f7c6b8-abcde"},
        {"namespace": "notes", "pod": "asr-5d9f7c6b8-abcde"},
    ]


def test_of_a_joined_query_only_the_pipelines_own_series_are_lost(proxy: MetricsProxy) -> None:
    proxy.losses = (LOSS,)
    assert ask(proxy, BOTH) == [series("4", sluice_query="1")]
    proxy.losses = ()
    assert ask(proxy, BOTH) == ANSWERS[BOTH]["result"]


def test_what_was_lost_comes_back(proxy: MetricsProxy) -> None:
    proxy.losses = (LOSS,)
    assert ask(proxy, OFFERED) == []
    proxy.losses = ()
    assert ask(proxy, OFFERED) == ANSWERS[OFFERED]["result"]


@pytest.mark.parametrize(
    ("namespace", "pods", "lost"),
    [
        ("speech", ["asr-5d9f7c6b8-abcde"], True),
        ("speech", ["aaa-5d9f7c6b8-abcde", "vad-5d9f7c6b8-abcde"], True),
        ("speech", ["asr-gpu-5d9f7c6b8-abcde"], False),
        ("notes", ["asr-5d9f7c6b8-abcde"], False),
    ],
)
def test_an_aggregate_is_lost_with_the_pods_that_its_query_names(namespace: str, pods: list[str], lost: bool) -> None:
    query = f"max(cache_usage{{{pod_matcher(namespace, pods)}}})"
    assert LOSS.takes(query, {}) is lost


def test_a_prometheus_that_has_gone_is_a_bad_gateway() -> None:
    nowhere, port = free_ports(2)
    with MetricsProxy(f"http://127.0.0.1:{nowhere}", port) as proxy:
        with pytest.raises(HTTPError) as refusal:
            ask(proxy, "up")
        with refusal.value:
            assert refusal.value.code == 502
