"""The gateway's paths, errors and pauses, against a small HTTP server."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from controller.core.state.spec import Target
from controller.kube.gateway import (
    DEPLOYMENTS,
    NODES,
    PODS,
    ConfigurationError,
    Conflict,
    EventStream,
    Expired,
    Forbidden,
    Gateway,
    Invalid,
    KubeError,
    NotFound,
    NotLeading,
    Unavailable,
    WatchEvent,
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
    """Answers every request with the same status, headers and body, except discovery, and notes the requests."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: object = field(default_factory=lambda: SCALE)
    requests: list[str] = field(default_factory=list)
    kubeconfig: Path = Path()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append(f"{handler.command} {handler.path}")
        handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        discovery = handler.path == "/apis/apps/v1"
        content = json.dumps(DISCOVERY if discovery else self.body).encode()
        handler.send_response(200 if discovery else self.status)
        for name, value in {"Content-Length": str(len(content)), **self.headers}.items():
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
    [(403, Forbidden), (404, NotFound), (409, Conflict), (422, Invalid), (500, Unavailable), (418, Unavailable)],
)
def test_an_error_says_by_its_type_whether_to_try_again(server: Server, status: int, error: type[KubeError]) -> None:
    server.status, server.body = status, {"message": "because"}
    with (
        Gateway(server.kubeconfig) as gateway,
        pytest.raises(error, match=f"GET /api/v1/nodes/a: {status} because") as e,
    ):
        gateway.get(NODES, None, "a")
    assert type(e.value) is error


def test_a_response_that_is_no_object_is_unavailable(server: Server) -> None:
    server.body = [1]
    with Gateway(server.kubeconfig) as gateway, pytest.raises(Unavailable, match="is not a JSON object"):
        gateway.get(NODES, None, "a")


def test_during_a_retry_after_only_the_lease_is_requested(server: Server) -> None:
    server.status, server.headers, server.body = 429, {"Retry-After": "20"}, {"message": "busy"}
    with Gateway(server.kubeconfig) as gateway, Gateway(server.kubeconfig, always_send=True) as lease:
        for each in (gateway, lease):
            with pytest.raises(Unavailable, match="429 busy"):
                each.get(NODES, None, "a")
        before = len(server.requests)
        with pytest.raises(Unavailable, match=r"not sent: the API server asked to retry after 20 s \(status 429\)"):
            gateway.get(NODES, None, "a")
        assert len(server.requests) == before
        with pytest.raises(Unavailable, match="429 busy"):
            lease.get(NODES, None, "a")
        assert len(server.requests) == before + 1


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
        (b'{"type": "ERROR", "object": {"code": 500, "message": "etcd leader changed"}}', Unavailable),
        (b'{"type": "ADDED", "obj', Unavailable),
        (b"[1]", Unavailable),
        (b'{"object": {}}', Unavailable),
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
        ("just words", "must be a kubeconfig"),
        ("[1, 2]", "must be a kubeconfig"),
        ("clusters: 1", "must be a kubeconfig"),
        ("", "is empty"),
        (None, "Invalid kube-config file"),
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
