"""Reports in the log that the API server has not answered since the start: at once, then with growing pauses."""

import logging
import threading
from collections.abc import Callable
from typing import Self

from controller.kube.gateway import KubeError

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 300.0


class FirstContact:
    """Says that the API server at `server` does not answer, until it does for the first time.

    Only the requests of others are watched: pass the outcome of each one to `heard`. `wait(seconds)` waits between two
    lines and returns whether to stop; without it, this lasts until the context is left.
    """

    def __init__(self, server: str, *, wait: Callable[[float], bool] | None = None) -> None:
        self._server = server
        self._stop = threading.Event()
        self._wait = wait or self._stop.wait
        self._lock = threading.Lock()
        self._answered = False
        self._trouble = ""
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def heard(self, error: KubeError | None) -> None:
        """Take the outcome of a request: None if there was an answer, whatever its status."""
        if self._answered:
            return
        with self._lock:
            if error is None:
                self._answered = True
                self._stop.set()
                if self._thread is not None:
                    _LOG.info("the API server at %s answers", self._server)
                return
            self._trouble = str(error)
            if self._thread is None and not self._stop.is_set():
                self._say()
                self._thread = threading.Thread(target=self._repeat, name="first contact", daemon=True)
                self._thread.start()

    def _repeat(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._wait(pause_s):
            with self._lock:
                if self._answered:
                    return
                self._say()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _say(self) -> None:
        _LOG.error(
            "the API server at %s does not answer, so nothing is scaled; retrying: %s", self._server, self._trouble
        )
