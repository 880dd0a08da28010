"""The fault proxy in front of a small HTTP server: what passes, and what each fault makes of it."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

import pytest
from fault_proxy import (
    SCALES,
    Asked,
    Call,
    Delay,
    Effect,
    Expire,
    FaultProxy,
    Refuse,
    Reset,
    Rewrite,
    Stall,
    Truncate,
    Where,
)
from http_upstream import serving

from simulations.lab.host.processes import free_ports

DEADLINE_S = 10.0
SHORT_S = 0.3
POD = b'{"type": "ADDED", "object": {"kind": "Pod"}}\n'


class Upstream(BaseHTTPRequestHandler):
    """Echoes requests; a watch sends one event and stays open until the client goes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if "watch=true" in self.path:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(POD), POD))
            self.wfile.flush()
            self.connection.recv(1)  # nothing comes: it returns when the proxy has gone
            self.close_connection = True
            return
        self._echo(b"")

    def do_PATCH(self) -> None:
        self._echo(self.rfile.read(int(self.headers["Content-Length"])))

    do_POST = do_PATCH  # noqa: N815 - the base class names it

    def _echo(self, body: bytes) -> None:
        document = {
            "path": self.path,
            "body": body.decode(),
            "token": self.headers.get("Authorization"),
            "type": self.headers.get("Content-Type"),
        }
        content = json.dumps(document).encode()
        self.send_response(409 if b"conflict" in body else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        pass


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with serving(Upstream) as url, FaultProxy(url, free_ports(1)[0]) as proxy:
        yield proxy


@contextmanager
def connected(proxy: FaultProxy, timeout_s: float = DEADLINE_S) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=timeout_s)
    try:
        yield connection
    finally:
        connection.close()


def ask(
    proxy: FaultProxy, path: str = "/api/v1/pods", method: str = "GET", body: bytes = b"", **headers: str
) -> tuple[int, Any, http.client.HTTPResponse]:
    with connected(proxy) as connection:
        connection.request(method, path, body=body or None, headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), answer


@contextmanager
def watching(proxy: FaultProxy, path: str = "/api/v1/pods?watch=true") -> Iterator[http.client.HTTPResponse]:
    """A watch whose first event has come."""
    with connected(proxy) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.readline() == POD
        yield answer


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_request_passes_with_its_query_token_and_body(proxy: FaultProxy) -> None:
    status, seen, _ = ask(
        proxy,
        "/apis/x/scale?fieldManager=a%2Fb",
        "PATCH",
        b'{"spec": 1}',
        Authorization="Bearer t",
        **{"Content-Type": "application/merge-patch+json"},
    )
    assert status == 200
    assert seen == {
        "path": "/apis/x/scale?fieldManager=a%2Fb",
        "body": '{"spec": 1}',
        "token": "Bearer t",
        "type": "application/merge-patch+json",
    }


def test_a_refusal_of_the_server_passes_and_is_no_accepted_write(proxy: FaultProxy) -> None:
    assert ask(proxy, "/apis/x/scale", "PATCH", b"conflict")[0] == 409
    ask(proxy, "/apis/x/scale", "PATCH", b"fine")
    ask(proxy, "/apis/x/status", "PATCH", b"fine")
    assert [passed.status for passed in proxy.passed] == [409, 200, 200]
    assert len(proxy.writes()) == 2
    assert len(proxy.writes(SCALES)) == 1
    assert proxy.writes(since_s=time.monotonic()) == []


def test_a_refusal_of_ours_is_worded_as_the_servers_and_never_forwarded(proxy: FaultProxy) -> None:
    with proxy.fault(Refuse(status=429, headers={"Retry-After": "7"}), Where(methods=["PATCH"])):
        status, document, answer = ask(proxy, "/apis/x/scale", "PATCH", b"x")
        assert ask(proxy)[0] == 200
    assert (status, document["kind"], document["reason"]) == (429, "Status", "TooManyRequests")
    assert answer.headers["Retry-After"] == "7"
    assert proxy.writes() == []
    assert ask(proxy, "/apis/x/scale", "PATCH", b"x")[0] == 200


def test_a_fault_meets_only_the_requests_it_names(proxy: FaultProxy) -> None:
    with proxy.fault(Refuse(status=500), Where(path="/api/v1/nodes")):
        assert ask(proxy, "/api/v1/nodes?limit=5")[0] == 500
        assert ask(proxy, "/api/v1/nodes/one")[0] == 200


def test_a_delay_comes_before_the_answer_and_beside_other_faults(proxy: FaultProxy) -> None:
    with proxy.fault(Delay(seconds=SHORT_S)), proxy.fault(Refuse(status=503)):
        began_s = time.monotonic()
        assert ask(proxy)[0] == 503
    assert time.monotonic() - began_s >= SHORT_S


def test_a_stall_answers_nothing_and_cuts_the_connection_at_its_end(proxy: FaultProxy) -> None:
    with connected(proxy) as waiting:
        with proxy.fault(Stall()):
            waiting.request("GET", "/api/v1/pods")
            with connected(proxy, SHORT_S) as impatient:
                impatient.request("GET", "/api/v1/pods")
                with pytest.raises(TimeoutError):
                    impatient.getresponse()
        with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
            waiting.getresponse()


@pytest.mark.parametrize(("effect", "share"), [(Truncate(), 0.5), (Truncate(share=0.0), 0.0)])
def test_a_truncated_answer_is_whole_for_http_and_half_for_json(
    proxy: FaultProxy, effect: Truncate, share: float
) -> None:
    with connected(proxy) as connection:
        connection.request("GET", "/api/v1/pods")
        whole = connection.getresponse().read()
        with proxy.fault(effect):
            connection.request("GET", "/api/v1/pods")
            assert connection.getresponse().read() == whole[: int(len(whole) * share)]


def test_a_document_is_rewritten_and_asked_for_otherwise(proxy: FaultProxy) -> None:
    def form(asked: Asked) -> dict[str, str]:
        return {**asked.query, "time": "1"}

    def told(asked: Asked, document: Any) -> Any:
        return [asked.query["query"], document["body"]]

    with proxy.fault(Rewrite(document=told, asks=form)):
        assert ask(proxy, "/api/v1/query?query=up")[1] == ["up", "query=up&time=1"]


def test_calls_come_before_and_after_what_the_server_does(proxy: FaultProxy) -> None:
    seen: list[str] = []
    call = Call(before=lambda asked: seen.append("before"), after=lambda asked: seen.append("after"))
    with proxy.fault(call, SCALES):
        ask(proxy, "/apis/x/scale", "PATCH", b"x")
        ask(proxy)
    assert seen == ["before", "after"]


def test_a_running_watch_is_cut(proxy: FaultProxy) -> None:
    with watching(proxy) as answer, proxy.fault(Reset()), pytest.raises((ConnectionError, http.client.HTTPException)):
        answer.read()


def test_a_running_watch_expires_as_the_server_would_word_it(proxy: FaultProxy) -> None:
    with watching(proxy) as answer, proxy.fault(Expire(), Where(watch=True)):
        event = json.loads(answer.readline())
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        assert answer.readline() == b""


def test_a_running_watch_falls_silent_and_is_cut_at_the_end(proxy: FaultProxy) -> None:
    with watching(proxy) as answer:
        with proxy.fault(Stall()):
            time.sleep(SHORT_S)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            answer.read()


@pytest.mark.parametrize("effect", [Refuse(status=500), Truncate(), Delay(seconds=0.01)])
def test_a_running_watch_outlasts_faults_of_single_answers(proxy: FaultProxy, effect: Effect) -> None:
    with watching(proxy), proxy.fault(effect):
        time.sleep(SHORT_S)
        assert [passed.status for passed in proxy.passed] == [200]


def test_while_it_is_down_nothing_connects_and_what_was_connected_is_cut(proxy: FaultProxy) -> None:
    with watching(proxy) as answer, proxy.down():
        with pytest.raises(ConnectionRefusedError):
            ask(proxy)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            answer.read()
    assert ask(proxy)[0] == 200


def test_a_client_that_goes_takes_its_watch_along(proxy: FaultProxy) -> None:
    before = threading.active_count()
    with watching(proxy):
        until(lambda: threading.active_count() > before)
    until(lambda: threading.active_count() <= before)


def test_an_upstream_that_has_gone_is_a_bad_gateway() -> None:
    nowhere, port = free_ports(2)
    with FaultProxy(f"http://127.0.0.1:{nowhere}", port) as proxy:
        assert ask(proxy)[0] == 502
