"""Timers that fire within about 0.1 ms after a given time; asyncio's own timers are up to 1 ms late.

asyncio rounds sleeps up to the resolution of epoll's time-out, 1 ms. A timerfd wakes the same epoll with a resolution
of 1 ns.
"""

import asyncio
import ctypes
import heapq
import itertools
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1  # the clock that time.monotonic() reads on Linux
_TFD_TIMER_ABSTIME = 1


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class Timer:
    """One scheduled call of a function."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Cancel the call; without effect after the call."""
        self._callback = None

    def fire(self) -> None:
        """Call the function, unless it has been called or cancelled before."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Timers:
    """Schedules calls in one event loop, all with one timerfd; times are those of `time.monotonic()`, in seconds.

    A call is never early: `time.monotonic()` has reached its time. A call for a time in the past happens in the next
    turn of the loop. Calls happen in the order of their times, and at the same time in the order of scheduling.
    """

    def __init__(self) -> None:
        """Create the timerfd; needs a running event loop.

        Raises:
            RuntimeError: the system is not Linux, and has no timerfd.
            OSError: the timerfd cannot be created.
        """
        if sys.platform != "linux":
            raise RuntimeError(f"platform: {sys.platform!r}; the lab's timers need Linux (timerfd)")
        self._loop = asyncio.get_running_loop()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._setting = _TimerSpec()
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = itertools.count()
        self._loop.add_reader(self._fd, self._expired)

    def call_at(self, when_s: float, callback: Callable[[], object]) -> Timer:
        """Schedule a call of `callback` at `when_s`, and return the timer that can cancel it."""
        timer = Timer(callback)
        when_ns = max(1, -int(-when_s * 1e9 // 1))  # rounded up: a call is never early; 0 would disarm the timer
        earliest = not self._heap or when_ns < self._heap[0][0]
        heapq.heappush(self._heap, (when_ns, next(self._sequence), timer))
        if earliest:
            self._arm()
        return timer

    async def sleep_until(self, when_s: float) -> None:
        """Sleep until `when_s`; return immediately if that time has passed."""
        if when_s <= time.monotonic():
            return
        woken: asyncio.Future[None] = self._loop.create_future()
        timer = self.call_at(when_s, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    async def sleep(self, delay_s: float) -> None:
        """Sleep for `delay_s` seconds."""
        await self.sleep_until(time.monotonic() + delay_s)

    def close(self) -> None:
        """Cancel all timers and close the file descriptor."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._heap.clear()

    def _arm(self) -> None:
        value = self._setting.value
        value.seconds, value.nanoseconds = divmod(self._heap[0][0], 1_000_000_000)
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._setting), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # armed again for later, between the wake-up and this call
        try:
            while self._heap and self._heap[0][0] <= time.monotonic_ns():
                heapq.heappop(self._heap)[2].fire()
        finally:
            if self._heap:
                self._arm()
