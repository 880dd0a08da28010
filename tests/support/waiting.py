"""Waiting for what a server does in its own time."""

import time
from collections.abc import Callable

DEADLINE_S = 30.0
_POLL_S = 0.02


def until(holds: Callable[[], object]) -> None:
    """Wait until `holds` returns something true; fail when it has not within `DEADLINE_S`."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(_POLL_S)
