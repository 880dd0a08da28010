"""Requests of one tenant leave room for those of others, whatever the back end does with them."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from profiler.samples import Absence
from profiler.sources.prometheus_api import Lane, PrometheusApi

ANSWER = b'{"status":"success","data":{"resultType":"vector","result":[]}}'


@pytest.fixture
def released() -> threading.Event:
    return threading.Event()


@pytest.fixture
def api(released: threading.Event) -> Iterator[PrometheusApi]:
    """A back end that answers no query with `heavy` until the test is over, and a large answer to `large`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)["query"][0]
            if "heavy" in query:
                released.wait(20)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ANSWER + b" " * (200_000 if "large" in query else 0))

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = PrometheusApi(f"http://127.0.0.1:{server.server_port}")
    yield found
    released.set()
    found.close()
    server.shutdown()
    server.server_close()


def test_a_full_lane_lets_others_pass(api: PrometheusApi) -> None:
    heavy = [f"heavy{number}" for number in range(40)]
    others = [f"demand{number}" for number in range(40)]
    lanes = [*[Lane(name="evil", most=2)] * 40, *[None] * 40]
    answers = api.ask_joined([[query] for query in (*heavy, *others)], 2.0, lanes)
    assert [query for query in others if isinstance(answers.results[query], Absence)] == []
    assert answers.slow <= set(heavy)
    assert len(answers.slow) == 2, "the others were never sent"


def test_a_user_s_query_may_return_one_series_only(api: PrometheusApi) -> None:
    single = frozenset({"large", "small"})
    answers = api.ask_joined([["large"], ["small"], ["large preset"]], 5.0, None, single)
    absence = answers.results["large"]
    assert isinstance(absence, Absence)
    assert "more than 64 KiB in answer to one query" in absence.detail
    assert answers.results["small"] == []
    assert answers.results["large preset"] == []
