"""Which waiting chunks make the next batch.

A batch has at most one chunk of a session, because the second needs the state after the first. Networks, and stalls of
any part of the way, deliver several chunks of a session together. A queue that keeps their order then ends each batch
at the first chunk of a session that is in it already: batches of hardly more than one chunk, at several times the work
per chunk, from which a replica does not recover. `ReadyQueue` takes the oldest chunk of each session instead.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Generic[Content]):
    """A chunk of `session` that waits since `arrived_s`, in seconds of a monotonic clock."""

    session: str
    arrived_s: float
    content: Content


class Queue(Protocol[Content]):
    """The chunks of all sessions that wait; those of one session stay in order."""

    def __len__(self) -> int: ...

    @property
    def ready(self) -> int:
        """How many chunks the next batch may have."""
        ...

    @property
    def oldest_s(self) -> float | None:
        """When the chunk arrived that waits for longest of those that may be in the next batch; None if none waits."""

    def add(self, waiting: Waiting[Content]) -> None:
        """Add a chunk."""

    def take(self, most: int) -> Sequence[Waiting[Content]]:
        """Remove and return the next batch: at most `most` chunks, each of another session."""
        ...

    def drop(self, session: str) -> Sequence[Waiting[Content]]:
        """Remove and return all chunks of a session."""
        ...


class ReadyQueue(Generic[Content]):
    """One chunk of each session is ready at a time; sessions take turns in the order in which theirs became ready."""

    def __init__(self) -> None:
        """Create an empty queue."""
        self._sessions: OrderedDict[str, deque[Waiting[Content]]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

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


class ArrivalQueue(Generic[Content]):
    """Chunks in the order of their arrival; a batch ends before the second chunk of a session: the queue to compare."""

    def __init__(self) -> None:
        """Create an empty queue."""
        self._chunks: deque[Waiting[Content]] = deque()

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def ready(self) -> int:
        """The number of chunks before the second one of a session."""
        sessions: set[str] = set()
        for waiting in self._chunks:
            if waiting.session in sessions:
                break
            sessions.add(waiting.session)
        return len(sessions)

    @property
    def oldest_s(self) -> float | None:
        """When the first chunk arrived."""
        return self._chunks[0].arrived_s if self._chunks else None

    def add(self, waiting: Waiting[Content]) -> None:
        """Add a chunk at the end."""
        self._chunks.append(waiting)

    def take(self, most: int) -> Sequence[Waiting[Content]]:
        """Remove and return the first chunks, up to the second one of a session."""
        batch: dict[str, Waiting[Content]] = {}
        while self._chunks and len(batch) < most and self._chunks[0].session not in batch:
            waiting = self._chunks.popleft()
            batch[waiting.session] = waiting
        return list(batch.values())

    def drop(self, session: str) -> Sequence[Waiting[Content]]:
        """Remove and return all chunks of a session."""
        dropped = [waiting for waiting in self._chunks if waiting.session == session]
        self._chunks = deque(waiting for waiting in self._chunks if waiting.session != session)
        return dropped
