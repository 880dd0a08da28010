"""The operator's HTTP endpoint: `/metrics`, `/livez` (do its loops turn?) and `/readyz` (do its cycles succeed?)

A replica that stands by for another is ready too, and says so.
"""

import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from prometheus_client import CONTENT_TYPE_LATEST


class Health:
    """What the probes tell. Every method may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._beats: dict[str, tuple[float, float]] = {}
        self._problem: str | None = "no cycle has completed yet"
        self._state = "ok"

    def beat(self, loop: str, within_s: float) -> None:
        """Record that `loop` turns; it is dead when it has not said so again `within_s` from now."""
        with self._lock:
            self._beats[loop] = (self._clock(), within_s)

    def ready(self, state: str = "ok") -> None:
        """Record that a cycle succeeded, or that this replica does well without one, and what it is in words."""
        with self._lock:
            self._problem, self._state = None, state

    def not_ready(self, problem: str) -> None:
        """Record that a cycle failed, and why."""
        with self._lock:
            self._problem = problem

    def dead(self) -> tuple[str, ...]:
        """Return the loops that have stopped turning."""
        now = self._clock()
        with self._lock:
            return tuple(
                f"{loop} has not turned for {now - at:.0f} s"
                for loop, (at, within_s) in self._beats.items()
                if now - at > within_s
            )

    def problem(self) -> str | None:
        """Return why the operator is not ready, None when it is."""
        with self._lock:
            return self._problem

    def state(self) -> str:
        """Return what the operator was when it was last ready."""
        with self._lock:
            return self._state


class HealthServer:
    """Serves the endpoint from threads of its own, from `with` to its end."""

    def __init__(self, host: str, port: int, health: Health, metrics: Callable[[], bytes]) -> None:
        """Bind at once.

        Raises:
            OSError: the address is taken or not ours.
        """

        def livez() -> tuple[HTTPStatus, str]:
            dead = health.dead()
            return (HTTPStatus.SERVICE_UNAVAILABLE, "; ".join(dead)) if dead else (HTTPStatus.OK, "ok")

        def readyz() -> tuple[HTTPStatus, str]:
            problem = health.problem()
            return (HTTPStatus.OK, health.state()) if problem is None else (HTTPStatus.SERVICE_UNAVAILABLE, problem)

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
                    self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"/metrics, /livez and /readyz are here\n")

            def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Say nothing: probes come every few seconds."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Return where it listens."""
        host, port = self._server.server_address[:2]
        return str(host), port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
