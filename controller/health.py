"""The operator's HTTP server: `/metrics`, `/livez` (all threads make progress) and `/readyz` (cycles succeed).

A standby replica is ready too, and `/readyz` names the leader.
"""

import socket
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from prometheus_client import CONTENT_TYPE_LATEST


def every_address() -> str:
    """Return the address that stands for every one of this machine; `::` has those of IPv4 too."""
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104


class Health:
    """The state that the probes `/livez` and `/readyz` report. All methods are thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._beats: dict[str, tuple[float, float]] = {}
        self.problem: str | None = "no cycle has completed yet"
        """Why the operator is not ready, None when it is."""
        self.state = "ok"
        """The text of `/readyz` from when the operator was last ready."""

    def beat(self, loop: str, within_s: float) -> None:
        """Record progress of `loop`, such as "cycle"; without another beat within `within_s` seconds it is dead."""
        with self._lock:
            self._beats[loop] = (self._clock(), within_s)

    def ready(self, state: str = "ok") -> None:
        """Record that a cycle succeeded, or that this standby is healthy; `state` is the text of `/readyz`."""
        self.problem, self.state = None, state

    def not_ready(self, problem: str) -> None:
        """Record that a cycle failed; `problem` is the reason."""
        self.problem = problem

    def dead(self) -> tuple[str, ...]:
        """Return one message for each loop that is dead, with the seconds since its last beat."""
        now = self._clock()
        with self._lock:
            return tuple(
                f"{loop}: no progress for {now - at:.0f} s"
                for loop, (at, within_s) in self._beats.items()
                if now - at > within_s
            )


class HealthServer:
    """Serves `/metrics`, `/livez` and `/readyz` in background threads while its context is entered."""

    def __init__(self, host: str, port: int, health: Health, metrics: Callable[[], bytes]) -> None:
        """Bind to `host` and `port`; port 0 picks a free one. `metrics` returns the content of `/metrics`.

        The host `::` stands for every address of IPv6 and IPv4.

        Raises:
            OSError: the address is in use, or it does not belong to this machine.
        """

        def livez() -> tuple[HTTPStatus, str]:
            dead = health.dead()
            return (HTTPStatus.SERVICE_UNAVAILABLE, "; ".join(dead)) if dead else (HTTPStatus.OK, "ok")

        def readyz() -> tuple[HTTPStatus, str]:
            problem = health.problem
            return (HTTPStatus.OK, health.state) if problem is None else (HTTPStatus.SERVICE_UNAVAILABLE, problem)

        probes = {"/livez": livez, "/readyz": readyz}

        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # a client that sends nothing must not hold a thread

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, metrics())
                elif self.path in probes:
                    status, text = probes[self.path]()
                    self._answer(status, "text/plain; charset=utf-8", f"{text}\n".encode())
                else:
                    self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"not found; try /metrics, /livez or /readyz\n")

            def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Log nothing: probes come every few seconds."""

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Log nothing of a client that went away, such as a scrape that timed out."""
                if not isinstance(sys.exception(), ConnectionError):
                    super().handle_error(request, client_address)

            def server_bind(self) -> None:
                if self.address_family == socket.AF_INET6:
                    self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                super().server_bind()

        self._server = Server((host, port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and the port that the server listens on."""
        host, port = self._server.server_address[:2]
        return str(host), port

    @property
    def url(self) -> str:
        """Return the base URL, such as http://127.0.0.1:8080."""
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
