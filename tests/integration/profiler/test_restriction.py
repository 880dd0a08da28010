"""A real Prometheus accepts every restricted query, and none returns series of another namespace."""

import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import pytest
import yaml
from http_upstream import serving
from tenant_queries import RESTRICTED

from profiler.sources.restriction import restricted
from simulations.lab.cluster.prometheus import PrometheusServer
from simulations.lab.host.binaries import Binaries

pytestmark = pytest.mark.lab

SECRET = 123_456.0
LIMIT_S = 60.0
NAMES = ("up", "down", "x", "a", "b", "c", "sum", "rate", "by", "offset", "x_total", "on", "bool", "and")
TEXT = "".join(
    f'{name}{{namespace="{namespace}", job="x", le="1"}} {value}\n'
    for name in NAMES
    for namespace, value in (("speech", 1.0), ("other", SECRET))
)


def ask(prometheus: PrometheusServer, query: str) -> dict[str, Any]:
    with urlopen(f"{prometheus.url}/api/v1/query?{urlencode({'query': query})}", timeout=10) as answer:
        found: dict[str, Any] = yaml.safe_load(answer.read())
        return found


@pytest.fixture(scope="module")
def prometheus(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """Return a Prometheus that has scraped series of two namespaces twice."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(TEXT.encode())

        def log_message(self, *_: object) -> None:
            pass

    folder = tmp_path_factory.mktemp("prometheus")
    nowhere: Path = folder / "kubeconfig"
    nowhere.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}],
                "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
                "users": [{"name": "none", "user": {}}],
                "current-context": "none",
            }
        )
    )
    with (
        serving(Handler) as url,
        PrometheusServer(
            folder, binaries, kubeconfig=nowhere, scrape_interval_s=0.5, targets=[urlsplit(url).netloc]
        ) as started,
    ):
        deadline = time.monotonic() + LIMIT_S
        while not ask(started, 'count_over_time(up{namespace="other"}[1m]) > 1')["data"]["result"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield started


@pytest.mark.parametrize("query", [query for query, _ in RESTRICTED])
def test_a_restricted_query_is_accepted_and_returns_nothing_of_another_namespace(
    prometheus: PrometheusServer, query: str
) -> None:
    answer = ask(prometheus, restricted(query, "speech"))
    assert answer["status"] == "success"
    assert "other" not in str(answer)
    assert f"{SECRET:.0f}" not in str(answer)


def test_unrestricted_queries_return_series_of_another_namespace(prometheus: PrometheusServer) -> None:
    for query in ("up", '{__name__=~".+"}', 'sum{job="x"}', "sum by (namespace) (x)"):
        assert f"{SECRET:.0f}" in str(ask(prometheus, query))
