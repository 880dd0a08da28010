"""Range queries: the parts in which a long period is read, and what the server is asked."""

import json
import re
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import pytest
from http_upstream import serving

from profiler.samples import Absence
from profiler.sources import prometheus_api
from profiler.sources.prometheus_api import MOST_POINTS, Period, PrometheusApi


class Handler(BaseHTTPRequestHandler):
    """Answers each range with one sample per step; `broken` fails in the second part of a period."""

    asked: list[dict[str, str]]

    def do_GET(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        self.asked.append(query)
        start_s, end_s, step_s = (int(query[name]) for name in ("start", "end", "step"))
        fails = query["query"] == "broken" and start_s > 1_000_000
        values = [[at_s, "1"] for at_s in range(start_s, end_s + 1, step_s)]
        document: dict[str, object] = {
            "status": "success",
            "data": {"resultType": "matrix", "result": [{"metric": {}, "values": values}]},
        }
        body = json.dumps({"status": "error", "error": "too many"} if fails else document).encode()
        self.send_response(422 if fails else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[PrometheusApi]:
    Handler.asked = []
    with serving(Handler) as url:
        api = PrometheusApi(url)
        yield api
        api.close()


PERIOD = Period(start_s=1_000_000, step_s=30, count=MOST_POINTS + 2)


def test_a_period_is_read_in_parts_that_prometheus_answers(api: PrometheusApi) -> None:
    (answer,) = api.ask_ranges(["up"], PERIOD, 30.0).values()
    assert [len(series["values"]) for series in answer] == [MOST_POINTS, 2]
    times = [at_s for series in answer for at_s, _ in series["values"]]
    assert times == list(range(PERIOD.start_s, PERIOD.end_s, PERIOD.step_s))
    assert {asked["step"] for asked in Handler.asked} == {"30"}


def test_a_part_that_fails_is_the_absence_of_the_whole_series(api: PrometheusApi) -> None:
    answers = api.ask_ranges(["broken", "up"], PERIOD, 30.0)
    assert isinstance(answers["broken"], Absence)
    assert "too many" in answers["broken"].detail
    assert len(answers["up"]) == 2


def test_a_dead_server_is_an_absence() -> None:
    api = PrometheusApi("http://127.0.0.1:9")
    assert isinstance(api.ask_ranges(["up"], PERIOD, 5.0)["up"], Absence)
    api.close()


class Fragile(BaseHTTPRequestHandler):
    """Fails at all of a joined query with `poison` in it, and refuses more than `most` queries at once."""

    status, most, asked = 503, 1000, 0

    def do_POST(self) -> None:
        self.answer(parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["query"][0])

    def do_GET(self) -> None:
        self.answer(parse_qs(urlsplit(self.path).query)["query"][0])

    def answer(self, query: str) -> None:
        Fragile.asked += 1
        numbers = re.findall(r'"sluice_query", "(\d+)"', query)
        status = self.status if "poison" in query else 422 if len(numbers) > self.most else 200
        result = [{"metric": {"sluice_query": number}, "value": [time.time(), "1"]} for number in numbers]
        result = result or [{"metric": {}, "value": [time.time(), "1"]}]
        document: dict[str, object] = {"status": "success", "data": {"resultType": "vector", "result": result}}
        body = json.dumps(document if status == 200 else {"status": "error", "error": "no"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> Iterator[PrometheusApi]:
    monkeypatch.setattr(prometheus_api, "_PAUSE_S", 0.0)
    monkeypatch.setattr(Fragile, "asked", 0)
    with serving(Fragile) as url:
        api = PrometheusApi(url)
        yield api
        api.close()


@pytest.mark.parametrize("status", [500, 503])
def test_a_query_at_which_the_back_end_fails_does_not_take_others_with_it(
    fragile: PrometheusApi, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(Fragile, "status", status)
    good = [f"q{number}" for number in range(199)]
    answers = fragile.ask_joined([[*good[:77], "sum(poison)", *good[77:]]], 30.0)
    assert {query for query, found in answers.results.items() if isinstance(found, Absence)} == {"sum(poison)"}
    assert answers.slow == {"sum(poison)"}


def test_a_back_end_that_fails_at_everything_is_asked_a_few_times_only(fragile: PrometheusApi) -> None:
    answers = fragile.ask_joined([[f"poison{number}" for number in range(200)]], 30.0)
    assert all(isinstance(found, Absence) for found in answers.results.values())
    assert Fragile.asked <= 100


def test_the_largest_joined_query_that_is_accepted_is_told(
    fragile: PrometheusApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fragile, "most", 50)
    answers = fragile.ask_joined([[f"q{number}" for number in range(200)]], 30.0)
    assert not any(isinstance(found, Absence) for found in answers.results.values())
    assert answers.accepted == 50
    assert fragile.ask_joined([["a", "b"]], 30.0).accepted is None
