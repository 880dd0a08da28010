"""Waiting for a server."""

import time
from collections.abc import Callable

DEADLINE_S = 30.0
_POLL_S = 0.02


def until(holds: Callable[[], object]) -> None:
    """Wait until `holds` returns a true value; fail after `DEADLINE_S`."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(_POLL_S)
