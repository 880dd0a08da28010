"""The gateway's paths, errors and pauses, against a small HTTP server."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
import yaml
from api_server import api_server

from controller.core.state.spec import Target
from controller.kube.gateway import (
    DEPLOYMENTS,
    LEASES,
    NODES,
    PIPELINES,
    PODS,
    ConfigurationError,
    Conflict,
    EventStream,
    Expired,
    Failed,
    Forbidden,
    Gateway,
    HeldBack,
    Hung,
    Invalid,
    KubeError,
    NotFound,
    NotLeading,
    Silent,
    Unavailable,
    WatchEvent,
    kind_of,
)

TARGET = Target(api_version="apps/v1", kind="Deployment", name="captions")
SCALE = {"metadata": {"resourceVersion": "7"}, "spec": {}, "status": {"selector": "app=captions"}}
DISCOVERY = {
    "resources": [
        {"name": "deployments", "kind": "Deployment", "namespaced": True},
        {"name": "deployments/scale", "kind": "Scale", "namespaced": True},
    ]
}


@dataclass
class Server:
    """Answers every request with the same status, headers and body, except discovery, and notes the requests.

    With `only`, requests whose line does not have this text are answered with status 200.
    """

    status: int = 200
    only: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: object = field(default_factory=lambda: SCALE)
    requests: list[str] = field(default_factory=list)
    kubeconfig: Path = Path()
    hangs: str = "nothing"
    """Requests whose line has this text are answered when `released` is set."""
    released: Event = field(default_factory=Event)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append(f"{handler.command} {handler.path}")
        handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        if self.hangs in self.requests[-1]:
            self.released.wait(30.0)
        discovery = handler.path == "/apis/apps/v1"
        met = not discovery and self.only in self.requests[-1]
        content = json.dumps(DISCOVERY if discovery else self.body if met else SCALE).encode()
        handler.send_response_only(self.status if met else 200)
        headers = {"Date": handler.date_time_string(), **(self.headers if met else {})}
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(kubeconfig=tmp_path / "kubeconfig")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.answer(self)

        def do_PATCH(self) -> None:
            server.answer(self)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=listening.serve_forever, daemon=True).start()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{listening.server_address[1]}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    server.kubeconfig.write_text(yaml.safe_dump(document))
    yield server
    server.released.set()
    listening.shutdown()
    listening.server_close()


def test_paths_follow_the_api_and_names_cannot_leave_them() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("speech", "vad-0") == "/api/v1/namespaces/speech/pods/vad-0"
    assert NODES.path("speech", "a") == "/api/v1/nodes/a", "nodes are not namespaced"
    assert (
        DEPLOYMENTS.path("speech", "a/../b", "scale") == "/apis/apps/v1/namespaces/speech/deployments/a%2F..%2Fb/scale"
    )


def test_a_scale_that_omits_its_replicas_has_none(server: Server) -> None:
    with Gateway(server.kubeconfig) as gateway:
        scale = gateway.read_scale("speech", TARGET)
        gateway.read_scale("speech", TARGET)
    assert (scale.replicas, scale.selector, scale.resource_version) == (0, "app=captions", "7")
    path = "GET /apis/apps/v1/namespaces/speech/deployments/captions/scale"
    assert server.requests == ["GET /apis/apps/v1", path, path], "discovery is needed once"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        *((403, Forbidden), (404, NotFound), (409, Conflict), (422, Invalid)),
        *((500, Failed), (502, Failed), (504, Failed), (418, Failed)),
        *((429, Unavailable), (503, Unavailable)),
    ],
)
def test_an_error_says_by_its_type_whether_to_try_again(server: Server, status: int, error: type[KubeError]) -> None:
    server.status, server.body = status, {"message": "because"}
    with (
        Gateway(server.kubeconfig) as gateway,
        pytest.raises(error, match=f"GET /api/v1/nodes/a: {status} because") as e,
    ):
        gateway.get(NODES, None, "a")
    assert type(e.value) is error


def test_a_renewal_of_the_lease_without_an_answer_asks_nothing_else(server: Server) -> None:
    server.hangs = "PATCH"
    with Gateway(server.kubeconfig, timeout_s=(1.0, 0.2), always_send=True) as gateway, pytest.raises(Silent):
        gateway.patch(LEASES, "sluice-system", "sluice", {})
    assert len(server.requests) == 1


@pytest.mark.parametrize(("hangs", "error"), [("PATCH", Hung), ("", Silent)])
def test_a_write_without_an_answer_is_its_own_fault_where_the_server_answers_others(
    server: Server, hangs: str, error: type[KubeError]
) -> None:
    server.hangs = hangs
    with Gateway(server.kubeconfig, timeout_s=(1.0, 0.2)) as gateway:
        with pytest.raises(KubeError) as caught:
            gateway.patch(PODS, "speech", "vad-0", {})
        assert type(caught.value) is error
        if error is Hung:
            assert gateway.get(NODES, None, "a") == SCALE, "nothing else is held back"


def test_a_shorter_pause_does_not_end_a_longer_one(server: Server) -> None:
    server.status, server.headers, server.only = 429, {"Retry-After": "30"}, "/nodes/a"
    with Gateway(server.kubeconfig) as gateway:
        gateway._pause("GET /api/v1/nodes/*", 30.0, "long")
        gateway._pause("GET /api/v1/nodes/*", 0.0, "short")
        with pytest.raises(HeldBack, match="long"):
            gateway.get(NODES, None, "b")


def test_a_date_that_is_none_is_no_date_to_wait_for(server: Server) -> None:
    server.status, server.headers = 503, {"Retry-After": "Wed, 25 Nov 99999999999 10:00:00 GMT"}
    with Gateway(server.kubeconfig) as gateway, pytest.raises(Unavailable):
        gateway.get(NODES, None, "a")


def test_a_response_that_is_no_object_is_a_failure_of_this_request(server: Server) -> None:
    server.body = [1]
    with Gateway(server.kubeconfig) as gateway, pytest.raises(Failed, match="is not a JSON object"):
        gateway.get(NODES, None, "a")


def test_a_server_that_nothing_reaches_is_silent(server: Server) -> None:
    document = yaml.safe_load(server.kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    server.kubeconfig.write_text(yaml.safe_dump(document))
    with Gateway(server.kubeconfig) as gateway, pytest.raises(Silent, match="refused"):
        gateway.get(NODES, None, "a")


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("wait", ["20", "Wed, 25 Nov 2026 02:00:20 GMT"])
def test_a_retry_after_holds_back_requests_of_its_kind_but_not_those_for_the_lease(
    server: Server, status: int, wait: str
) -> None:
    # Both dates are of the server's clock: it does not matter what this machine's is.
    server.headers = {"Retry-After": wait, "Date": "Wed, 25 Nov 2026 02:00:00 GMT"}
    server.status, server.body, server.only = status, {"message": "busy"}, "GET /api/v1/nodes"
    held = rf"not sent: the API server asked to retry after 20 s \(status {status}\)"
    with Gateway(server.kubeconfig) as gateway, Gateway(server.kubeconfig, always_send=True) as lease:
        for each in (gateway, lease):
            with pytest.raises(Unavailable, match=f"{status} busy"):
                each.get(NODES, None, "a")
        before = len(server.requests)
        with pytest.raises(HeldBack, match=held):
            gateway.get(NODES, None, "another")
        assert len(server.requests) == before
        with pytest.raises(Unavailable, match=f"{status} busy"):
            lease.get(NODES, None, "a")
        gateway.get(PODS, "speech", "a")
        gateway.patch(PODS, "speech", "a", {})
        gateway.patch_scale("speech", TARGET, 3, "7")
        assert len(server.requests) == before + 5, "discovery, too"


@pytest.mark.parametrize("wait", ["", "soon", "-1", "nan", "Wed, 25 Nov 2026 01:00:00 GMT"])
def test_an_overload_without_a_usable_retry_after_holds_back_its_kind_for_a_moment(server: Server, wait: str) -> None:
    server.headers = {"Retry-After": wait, "Date": "Wed, 25 Nov 2026 02:00:00 GMT"}
    server.status, server.body = 503, {"message": "busy"}
    with Gateway(server.kubeconfig) as gateway:
        with pytest.raises(Unavailable, match="503 busy"):
            gateway.get(NODES, None, "a")
        with pytest.raises(HeldBack, match=r"not sent: the API server is overloaded \(status 503\)"):
            gateway.get(NODES, None, "a")


def test_the_kind_of_a_request_is_its_verb_and_its_resource_without_names() -> None:
    scale = kind_of("PATCH", "/apis/apps/v1/namespaces/speech/deployments/asr/scale")
    assert scale == kind_of("PATCH", "/apis/apps/v1/namespaces/other/deployments/vad/scale")
    assert scale == "PATCH /apis/apps/v1/deployments/*/scale"
    assert kind_of("GET", "/api/v1/pods") == kind_of("GET", "/api/v1/namespaces/speech/pods") == "GET /api/v1/pods"
    kinds = {
        kind_of("GET", "/api/v1/pods"),
        kind_of("GET", "/api/v1/pods", [("watch", "true")]),
        kind_of("GET", "/api/v1/namespaces/speech/pods/a"),
        kind_of("PATCH", "/api/v1/namespaces/speech/pods/a"),
        kind_of("PATCH", "/apis/sluice.dev/v1alpha1/computepools/cpu/status"),
    }
    assert len(kinds) == 5


@pytest.mark.parametrize("status", [200, 500])
def test_every_answer_tells_the_time_of_the_server(server: Server, status: int) -> None:
    server.status, server.headers = status, {"Date": "Thu, 26 Nov 2026 00:00:00 GMT"}
    with Gateway(server.kubeconfig) as gateway:
        for _ in range(3):
            with suppress(Failed):
                gateway.get(NODES, None, "a")
        assert gateway.server_clock.now_s() == pytest.approx(1_795_651_200, abs=10)


def test_only_writes_need_a_permit_and_without_one_nothing_is_sent(server: Server) -> None:
    def refuse() -> None:
        raise NotLeading("this replica does not hold the lease")

    verbs: list[str] = []
    with Gateway(server.kubeconfig, permit=refuse, on_request=verbs.append) as gateway:
        gateway.get(NODES, None, "a")
        with pytest.raises(NotLeading):
            gateway.patch(PODS, "speech", "vad-0", {})
    assert server.requests == ["GET /api/v1/nodes/a"]
    assert verbs == ["GET"]


class Response:
    """The body of an answer, line by line."""

    def __init__(self, *lines: bytes) -> None:
        self._lines = lines
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._lines)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}', Expired),
        (b'{"type": "ERROR", "object": {"code": 500, "message": "etcd leader changed"}}', Failed),
        (b'{"type": "ADDED", "obj', Failed),
        (b"[1]", Failed),
        (b'{"object": {}}', Failed),
    ],
)
def test_an_event_that_is_none_ends_the_stream(line: bytes, error: type[KubeError]) -> None:
    response = Response(b'{"type": "ADDED", "object": {"a": 1}}', line)
    events = iter(EventStream(response, "GET /pods"))
    assert next(events) == WatchEvent(kind="ADDED", object={"a": 1})
    with pytest.raises(error, match="GET /pods") as raised:
        next(events)
    assert type(raised.value) is error
    assert response.closed


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a: [", "must be a kubeconfig: while parsing"),
        ("just words", "must be a kubeconfig, as `kubectl config view --raw` prints it"),
        ("[1, 2]", "must be a kubeconfig"),
        ("clusters: 1", "must be a kubeconfig"),
        ("", "is empty"),
        (None, "does not exist"),
        (
            "apiVersion: v1\nkind: Config\nclusters: []\nusers: []\ncontexts: []\ncurrent-context: gone\n",
            "has no context named 'gone'",
        ),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_named_with_its_problem(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError) as refused:
        Gateway(path)
    assert str(refused.value).startswith(f"no credentials for a Kubernetes API server: {path}: ")
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_connection_that_is_refused_is_told_without_classes_of_the_client(tmp_path: Path) -> None:
    with api_server(tmp_path, {}) as kubeconfig:
        pass  # from here on nothing listens at its address
    with Gateway(kubeconfig) as gateway, pytest.raises(Silent) as raised:
        gateway.get(PIPELINES, "speech", "captions")
    assert re.search(r"captions: no connection to 127\.0\.0\.1:\d+: Connection refused$", str(raised.value))
