"""The items that run at an engine with continuous batching. Time is an argument: the worker has the clock."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Run(Generic[T]):
    """An item that runs: its `work`, when it joined and when its prefill ended (s), and what tells its end.

    `ends_at` is the engine's progress at its end, `before_s` the engine's integral of running items at its start.
    """

    item: T
    work: float
    joined_s: float
    prefilled_s: float
    ends_at: float
    before_s: float


class Engine(Generic[T]):
    """Runs up to `limit` items; while n run, each does 1/T(n) of its work in a second, and stops for each prefill.

    `time_s` is T, in seconds. `time_s` and `prefill_s` (s) are asked when they are needed, so that a slower replica can
    be slower from now on.
    """

    def __init__(self, limit: int, time_s: Callable[[int], float], prefill_s: Callable[[], float]) -> None:
        self._limit = limit
        self._time_s, self._prefill_s = time_s, prefill_s
        self._runs: list[Run[T]] = []
        self._progress, self._progress_at_s = 0.0, 0.0
        self._running_s, self._running_at_s = 0.0, 0.0

    def __len__(self) -> int:
        """Return how many items run."""
        return len(self._runs)

    @property
    def full(self) -> bool:
        """Return whether no item may join."""
        return len(self._runs) >= self._limit

    def join(self, item: T, work: float, now_s: float) -> None:
        """Let an item with `work` (1: that of a mean item) join at `now_s`, not before the last join or end."""
        self._pass(now_s)
        self._progress_at_s = max(self._progress_at_s, now_s) + self._prefill_s()
        self._runs.append(
            Run(
                item=item,
                work=work,
                joined_s=now_s,
                prefilled_s=self._progress_at_s,
                ends_at=self._progress + work,
                before_s=self._running_s,
            )
        )

    def next_end_s(self) -> float | None:
        """Return when the next item ends if none joins before; None if none runs."""
        if not self._runs:
            return None
        left = min(run.ends_at for run in self._runs) - self._progress
        return self._progress_at_s + max(0.0, left) * self._time_s(len(self._runs))

    def end(self, now_s: float) -> tuple[Run[T], float]:
        """Remove the item that ends at `now_s`, which `next_end_s` gave; return it and how many ran on average."""
        self._pass(now_s)
        run = min(self._runs, key=lambda one: one.ends_at)
        self._runs.remove(run)
        self._progress, self._progress_at_s = max(self._progress, run.ends_at), now_s
        spent_s = now_s - run.joined_s
        return run, (self._running_s - run.before_s) / spent_s if spent_s > 0 else 1.0

    def _pass(self, now_s: float) -> None:
        self._running_s += len(self._runs) * (now_s - self._running_at_s)
        self._running_at_s = now_s
        if now_s > self._progress_at_s:
            if self._runs:
                self._progress += (now_s - self._progress_at_s) / self._time_s(len(self._runs))
            self._progress_at_s = now_s
