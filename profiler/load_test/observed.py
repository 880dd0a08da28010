"""What a load test observes: answers, and windows of them with the server's own counters. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request: when it was due, when its first and its last byte came (s), and why it failed, None if it did not.

    `first_s` is None for answers that are not streamed.
    """

    due_s: float
    done_s: float
    first_s: float | None = None
    failure: str | None = None

    @property
    def latency_s(self) -> float:
        """Time from the due time to the end of the answer, in seconds."""
        return self.done_s - self.due_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What the server's own counters say of a window: batches, their items, and the seconds that the batches took."""

    batches: float
    items: float
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The answers that ended in a window, from `start_s` to `end_s`, under one load.

    In a closed loop `concurrency` clients each send their next request when they have an answer; in an open one
    requests come at `rate_rps` whatever the answers do, and `concurrency` is 0.
    """

    concurrency: int
    rate_rps: float
    start_s: float
    end_s: float
    answers: tuple[Answer, ...]
    counted: Counted | None = None

    @property
    def served(self) -> tuple[Answer, ...]:
        """The answers that did not fail."""
        return tuple(answer for answer in self.answers if answer.failure is None)

    @property
    def served_rps(self) -> float:
        """Answers per second."""
        return len(self.served) / (self.end_s - self.start_s)


def latencies_s(windows: Sequence[Window]) -> NDArray[np.float64]:
    """Return the latencies of all answers in `windows`, in seconds."""
    return np.array([answer.latency_s for window in windows for answer in window.served])


def rate_rps(windows: Sequence[Window]) -> float:
    """Return the answers per second over `windows`; 0 without any."""
    length_s = sum(window.end_s - window.start_s for window in windows)
    return sum(len(window.served) for window in windows) / length_s if length_s else 0.0


def by_concurrency(windows: Sequence[Window]) -> dict[int, list[Window]]:
    """Return the closed-loop windows by their concurrency, in ascending order."""
    levels = sorted({window.concurrency for window in windows if window.concurrency})
    return {level: [window for window in windows if window.concurrency == level] for level in levels}
