"""What is due when, in virtual time."""

from collections.abc import Callable
from heapq import heappop, heappush


class Agenda:
    """Things to do at instants; those of one instant are done in the order in which they were noted."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._noted = 0

    def at(self, at_s: float, do: Callable[[], None]) -> None:
        """Note what to do."""
        heappush(self._due, (at_s, self._noted, do))
        self._noted += 1

    def next_s(self) -> float | None:
        """Return when something is due next; None: nothing is."""
        return self._due[0][0] if self._due else None

    def take(self) -> Callable[[], None]:
        """Return what is due next, and forget it."""
        return heappop(self._due)[2]
