"""A small HTTP server in place of an API server, for what `sluice init` and `sluice doctor` ask of one."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import yaml

from controller.adoption.inventory import Json

Answer = Json | list[Json] | int
"""An object, the items of a list, or the HTTP status of a refusal."""


@contextmanager
def api_server(
    folder: Path,
    answers: Mapping[str, Answer],
    review: Callable[[str, Json], Answer] = lambda *_: 403,
    patch: Callable[[str, Json], Answer] = lambda *_: 403,
) -> Iterator[Path]:
    """Serve `answers` by path and return a kubeconfig; other paths do not exist.

    `review` answers access reviews, and `patch` what changes an object.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(answers.get(urlsplit(self.path).path, 404))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(review(urlsplit(self.path).path, body["spec"]))

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(patch(urlsplit(self.path).path, body))

        def _answer(self, answer: Answer) -> None:
            status, body = 200, answer
            if isinstance(answer, int):
                status, body = answer, {"message": f"refused with {answer}"}
            elif isinstance(answer, list):
                body = {"metadata": {"resourceVersion": "1"}, "items": answer}
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield write_kubeconfig(folder, f"http://127.0.0.1:{server.server_port}")
        finally:  # else a test that fails would wait for the thread for ever
            server.shutdown()
            thread.join()


def write_kubeconfig(folder: Path, url: str) -> Path:
    """Write a kubeconfig for the server at `url` and return its path."""
    path = folder / "kubeconfig"
    content = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(content))
    return path
