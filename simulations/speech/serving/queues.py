"""Which waiting chunks make the next batch.

A batch has at most one chunk of a session, because the second needs the state after the first. Networks, and stalls of
any part of the way, deliver several chunks of a session together. A queue that keeps their order then ends each batch
at the first chunk of a session that is in it already: batches of hardly more than one chunk, at several times the work
per chunk, from which a replica does not recover. `ReadyQueue` takes the oldest chunk of each session instead.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Generic[Content]):
    """A chunk of `session` that waits since `arrived_s`, in seconds of a monotonic clock."""

    session: str
    arrived_s: float
    content: Content


class ReadyQueue(Generic[Content]):
    """The chunks of all sessions that wait, those of one session in order.

    One chunk of each session is ready at a time; sessions take turns in the order in which theirs became ready.
    """

    def __init__(self) -> None:
        """Create an empty queue."""
        self._sessions: OrderedDict[str, deque[Waiting[Content]]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, session: object) -> bool:
        return session in self._sessions

    @property
    def ready(self) -> int:
        """The number of sessions with chunks."""
        return len(self._sessions)

    @property
    def oldest_s(self) -> float | None:
        """When the first ready chunk arrived."""
        return next((chunks[0].arrived_s for chunks in self._sessions.values()), None)

    def add(self, waiting: Waiting[Content]) -> None:
        """Add a chunk, behind those of its session."""
        self._sessions.setdefault(waiting.session, deque()).append(waiting)
        self._length += 1

    def take(self, most: int) -> Sequence[Waiting[Content]]:
        """Remove and return the first chunk of up to `most` sessions, which then are the last to have their turn."""
        batch = []
        for session in list(self._sessions)[:most]:
            chunks = self._sessions[session]
            batch.append(chunks.popleft())
            if chunks:
                self._sessions.move_to_end(session)
            else:
                del self._sessions[session]
        self._length -= len(batch)
        return batch

    def drop(self, session: str) -> Sequence[Waiting[Content]]:
        """Remove and return all chunks of a session."""
        chunks = tuple(self._sessions.pop(session, ()))
        self._length -= len(chunks)
        return chunks
