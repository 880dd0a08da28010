"""Answers of Ray Serve's REST API, as Ray 2.60 gives them, from a server of this machine. Real Ray: tests/ray_serve."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

from simulations.lab.host.processes import LOOPBACK


def a_replica(name: str, state: str = "RUNNING", address: str | None = LOOPBACK) -> dict[str, Any]:
    """Return a replica; without an address it has no Ray node."""
    node = {} if address is None else {"node_id": f"node-of-{name}", "node_ip": address}
    return {"replica_id": name, "state": state, "start_time_s": 1.0, **node}


class ServeAnswers:
    """The applications that the server has: by application and deployment, the replicas wanted and those there."""

    def __init__(self, application: str, deployments: Mapping[str, int]) -> None:
        """Let the deployments have as many replicas as they want."""
        self.application = application
        self.wanted = dict(deployments)
        self.replicas = {
            name: [a_replica(f"{name.lower()}-{number}") for number in range(count)]
            for name, count in deployments.items()
        }
        self.config: dict[str, Any] = {"graceful_shutdown_timeout_s": 20.0}

    def document(self) -> dict[str, Any]:
        """Return the answer to GET /api/serve/applications/."""
        return {
            "applications": {
                self.application: {
                    "status": "RUNNING",
                    "message": "",
                    "deployments": {
                        name: {
                            "status": "HEALTHY",
                            "message": "",
                            "target_num_replicas": wanted,
                            "deployment_config": self.config,
                            "replicas": self.replicas[name],
                        }
                        for name, wanted in self.wanted.items()
                    },
                }
            }
        }


@contextmanager
def answering(answers: ServeAnswers) -> Iterator[str]:
    """Answer while the context is entered, and yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers.document()).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            *_, name, _scale = self.path.split("/")
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answers.wanted[name] = body["target_num_replicas"]
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        @override
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
