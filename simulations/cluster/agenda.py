"""The event queue of the simulated cluster, in virtual time."""

from collections.abc import Callable
from heapq import heappop, heappush


class Agenda:
    """A queue of actions by time; actions of the same time come in the order in which they were added."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._noted = 0

    def at(self, at_s: float, do: Callable[[], None]) -> None:
        """Add the action `do` at `at_s`."""
        heappush(self._due, (at_s, self._noted, do))
        self._noted += 1

    def next_s(self) -> float | None:
        """Return the time of the next action in seconds; None if there is none."""
        return self._due[0][0] if self._due else None

    def take(self) -> Callable[[], None]:
        """Remove the next action and return it, without running it."""
        return heappop(self._due)[2]
