"""The clock of the API server, measured by the header `Date` of its answers.

Deadlines compare times that others wrote (creation of a pod, its conditions, the status of a pipeline) with the time
now. If the operator's clock differs, deadlines end too early or never, and two replicas of the operator disagree. So
all of a cycle is dated by the API server's clock, and the difference is reported (`sluice_clock_skew_seconds`).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from statistics import median

TOLERATED_S = 2.0
"""Up to this difference, the operator's own clock is used: it has no steps, and the header `Date` has whole seconds.

Once the server's is used, it is used until they differ by half of this, so that time does not step back and forth.
"""
REPORTED_S = 10.0
"""A larger difference is logged, and alerted on: certificates, tokens and dashboards suffer from it too."""

_LOG = logging.getLogger(__name__)
_KEPT = 31
"""Answers whose median counts. Each is known to half a second; several API servers may have different clocks."""
_LEAST = 3
_LONGEST_S = 2.0
"""A slower answer is not used: it is not known when in that time it was dated."""


def boot_clock() -> float:
    """Return the seconds since boot, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ServerClock:
    """The time on the API server. Thread-safe."""

    def __init__(self, *, wall: Callable[[], float] = time.time, steady: Callable[[], float] = boot_clock) -> None:
        """`wall` returns the operator's own time in epoch seconds, `steady` seconds of a clock that is never set."""
        self._wall = wall
        self._steady = steady
        self._epochs_s: deque[float] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()
        self._differs = False
        self._reported = False

    def answered(self, date: str | None, sent_s: float) -> None:
        """Use an answer with the header `date` to a request that was sent at `sent_s` by `steady`."""
        received_s = self._steady()
        if date is None or received_s - sent_s > _LONGEST_S:
            return
        try:
            # Whole seconds, cut off.
            dated_s = parsedate_to_datetime(date).timestamp() + 0.5
        except (ValueError, OverflowError):
            return
        with self._lock:
            self._epochs_s.append(dated_s - (sent_s + received_s) / 2)

    def skew_s(self) -> float | None:
        """Return how many seconds the API server's clock is ahead of the operator's; None before the first answers."""
        epoch_s = self._epoch_s()
        return None if epoch_s is None else self._steady() + epoch_s - self._wall()

    def now_s(self) -> float:
        """Return the time on the API server in epoch seconds: the operator's own while they hardly differ."""
        own_s, skew_s = self._wall(), self.skew_s()
        if skew_s is None:
            return own_s
        self._report(skew_s)
        self._differs = abs(skew_s) > (TOLERATED_S / 2 if self._differs else TOLERATED_S)
        return own_s + skew_s if self._differs else own_s

    def _epoch_s(self) -> float | None:
        """Return the time on the API server at which `steady` was 0."""
        with self._lock:
            return median(self._epochs_s) if len(self._epochs_s) >= _LEAST else None

    def _report(self, skew_s: float) -> None:
        large = abs(skew_s) > REPORTED_S
        if large and not self._reported:
            _LOG.warning(
                "the clock of the API server is %+.0f s from that of this machine: decisions use the API server's",
                skew_s,
            )
        self._reported = large
