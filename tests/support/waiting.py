"""Waiting for a server."""

import time
from collections.abc import Callable

DEADLINE_S = 30.0
_POLL_S = 0.02


def until(holds: Callable[[], object], *, within_s: float = DEADLINE_S) -> None:
    """Wait until `holds` returns a true value; fail after `within_s`."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(_POLL_S)
