"""The traffic of a pipeline with a backlog: its items wait in a queue until a replica is free to take them."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from typing_extensions import override

from simulations.lab.net.timers import Timers
from simulations.lab.traffic.configuration import Configuration
from simulations.lab.traffic.dataplane import Journey, PipelineTraffic, Record
from simulations.lab.traffic.topology import PipelineTopology
from simulations.results.scoring import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions(Configuration):
    """The items that are added to a backlog during a run that begins at `start_s` (seconds, monotonic clock).

    `items` has times in seconds since the run began, each with a number of items.
    """

    NAME: ClassVar[str] = "additions to a backlog"

    start_s: float
    items: tuple[tuple[float, int], ...]


@dataclass(slots=True, eq=False, kw_only=True)
class _Waiting:
    """`items` that were added together, at `arrival_s` in the run and `arrived_s` on the monotonic clock."""

    items: int
    arrival_s: float
    arrived_s: float


class BacklogTraffic(PipelineTraffic):
    """The traffic of a pipeline whose items wait for a free replica of the first stage.

    A replica has as many items as it serves at once. An item that it gives back, or loses with its connection, goes to
    another replica. An item is counted once, when the last stage has answered it; none is refused, shed or lost. In the
    queue, items take no memory each.
    """

    def __init__(self, topology: PipelineTopology, record: Record, timers: Timers) -> None:
        """Start the traffic as `PipelineTraffic` does, with an empty backlog."""
        super().__init__(topology, record, timers)
        self._waiting: deque[_Waiting] = deque()
        self._filled = asyncio.Event()
        self._spawn(self._hand_out())

    @property
    def left(self) -> int:
        """Return the number of items that are not done: those that wait and those in work."""
        return self.tally.offered - sum(self.tally.outcomes.values())

    def expect(self, additions: Additions) -> None:
        """Add the items of a run, each at its time."""
        for at_s, items in additions.items:
            arrived_s = additions.start_s + at_s
            self._timers.call_at(arrived_s, partial(self.add, items, arrival_s=at_s, arrived_s=arrived_s))

    def add(self, items: int, *, arrival_s: float, arrived_s: float) -> None:
        """Add `items` to the end of the queue; the times are those of their arrival, as in `offer`."""
        self.tally.offered += items
        self._waiting.append(_Waiting(items=items, arrival_s=arrival_s, arrived_s=arrived_s))
        self._filled.set()

    @override
    def finish(self) -> None:
        """End the run: items that are not done count as in flight."""
        super().finish()
        now_s = time.monotonic()
        for waiting in self._waiting:
            self.tally.outcomes[Outcome.IN_FLIGHT] += waiting.items
            for _ in range(waiting.items):
                self._record(Outcome.IN_FLIGHT, waiting.arrival_s, now_s - waiting.arrived_s)
        self._waiting.clear()

    async def _hand_out(self) -> None:
        """Give the items to the replicas that are free, one by one, without end."""
        entry, *others = self._graph.entries
        number = 0
        while True:
            while not self._waiting:
                self._filled.clear()
                await self._filled.wait()
            first = self._waiting[0]
            number += 1
            journey = self._journey(None, number, first.arrival_s, first.arrived_s, lambda *_: None, b"")
            backend = await self._stages[entry].free(journey)
            # Items may have come back to the head of the queue since: they have the next turn.
            first.items -= 1
            if not first.items:
                self._waiting.remove(first)
            self._under_way.append(journey)
            for other in others:
                self._walk(journey, other)
            self._spawn(self._pass_through(journey, entry, backend))

    @override
    def _settle(self, journey: Journey, outcome: Outcome) -> None:
        """Settle an item; one that no replica accepted goes back to the head of the queue."""
        if outcome is not Outcome.LOST:
            super()._settle(journey, outcome)
        elif not journey.settled:
            journey.settled = True
            self._waiting.appendleft(_Waiting(items=1, arrival_s=journey.arrival_s, arrived_s=journey.arrived_s))
            self._filled.set()
