from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.speech.serving.queues import ReadyQueue, Waiting


class ArrivalQueue:
    """Chunks in the order of their arrival; a batch ends before the second chunk of a session."""

    def __init__(self) -> None:
        self._chunks: deque[Waiting[int]] = deque()

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def ready(self) -> int:
        sessions: set[str] = set()
        for waiting in self._chunks:
            if waiting.session in sessions:
                break
            sessions.add(waiting.session)
        return len(sessions)

    @property
    def oldest_s(self) -> float | None:
        return self._chunks[0].arrived_s if self._chunks else None

    def add(self, waiting: Waiting[int]) -> None:
        self._chunks.append(waiting)

    def take(self, most: int) -> Sequence[Waiting[int]]:
        batch: dict[str, Waiting[int]] = {}
        while self._chunks and len(batch) < most and self._chunks[0].session not in batch:
            waiting = self._chunks.popleft()
            batch[waiting.session] = waiting
        return list(batch.values())

    def drop(self, session: str) -> Sequence[Waiting[int]]:
        dropped = [waiting for waiting in self._chunks if waiting.session == session]
        self._chunks = deque(waiting for waiting in self._chunks if waiting.session != session)
        return dropped


Queue = ReadyQueue[int] | ArrivalQueue
KINDS: tuple[Callable[[], Queue], ...] = (ReadyQueue, ArrivalQueue)
MOST = 16
CHUNK_S = 0.16


def waiting(session: str, number: int, arrived_s: float = 0.0) -> Waiting[int]:
    return Waiting(session=session, arrived_s=arrived_s, content=number)


@given(
    st.sampled_from(KINDS),
    st.lists(st.one_of(st.sampled_from("abcd"), st.integers(1, 5)), max_size=40),
)
def test_every_chunk_is_served_once_in_the_order_of_its_session(
    kind: Callable[[], Queue], steps: list[str | int]
) -> None:
    queue, added, served = kind(), list[tuple[str, int]](), list[tuple[str, int]]()
    for number, step in enumerate([*steps, *[5] * len(steps)]):
        if isinstance(step, str):
            queue.add(waiting(step, number))
            added.append((step, number))
        else:
            ready = queue.ready
            batch = queue.take(step)
            assert len(batch) == min(step, ready)
            assert len({each.session for each in batch}) == len(batch)
            assert bool(batch) == bool(len(added) - len(served))
            served += [(each.session, each.content) for each in batch]
        assert len(queue) == len(added) - len(served)
        assert (queue.oldest_s is None) == (len(queue) == 0)
    for session in "abcd":
        assert [n for s, n in served if s == session] == [n for s, n in added if s == session]


@pytest.mark.parametrize("kind", KINDS)
def test_the_chunks_of_a_session_that_ends_are_dropped(kind: Callable[[], Queue]) -> None:
    queue = kind()
    for number, session in enumerate("abab"):
        queue.add(waiting(session, number))
    assert [each.content for each in queue.drop("a")] == [0, 2]
    assert not queue.drop("a")
    assert [each.content for each in queue.take(1)] == [1]
    assert len(queue) == 1


def test_a_session_with_many_chunks_does_not_keep_others_waiting() -> None:
    queue = ReadyQueue[int]()
    for number in range(100):
        queue.add(waiting("a", number, arrived_s=float(number)))
    queue.add(waiting("b", 100, arrived_s=100.0))
    assert queue.oldest_s == 0.0
    assert [each.session for each in queue.take(1)] == ["a"]
    assert [each.session for each in queue.take(1)] == ["b"]


@dataclass
class Run:
    """How a replica served: the mean batch, the longest wait in s, and the chunks that were left at the end."""

    batch: float
    longest_s: float
    left: int


def served(queue: Queue, *, streams: int, together: int, run_s: float = 40.0) -> Run:
    """Serve streams whose chunks are delivered `together` at a time, each stream at its own phase.

    A batch of b takes 0.468 + 0.2374 b ms over a share of 0.25: the large recogniser at a quarter of a core.
    """
    period_s = CHUNK_S * together
    arrivals = sorted(
        (period_s * (turn + stream / streams), stream, together * turn + number)
        for turn in range(int(run_s / period_s))
        for stream in range(streams)
        for number in range(together)
    )
    now_s, read, batches, longest_s = 0.0, 0, 0, 0.0
    while now_s < run_s and (read < len(arrivals) or len(queue)):
        if not len(queue):
            now_s = max(now_s, arrivals[read][0])
        while read < len(arrivals) and arrivals[read][0] <= now_s:
            at_s, stream, number = arrivals[read]
            queue.add(waiting(str(stream), number, at_s))
            read += 1
        batch = queue.take(MOST)
        now_s += (0.468e-3 + 0.2374e-3 * len(batch)) / 0.25
        batches += 1
        longest_s = max(longest_s, *(now_s - each.arrived_s for each in batch))
    return Run(batch=(read - len(queue)) / batches, longest_s=longest_s, left=len(queue))


def test_batches_collapse_where_the_order_is_kept_and_do_not_where_sessions_take_turns() -> None:
    """90 streams are 60 % of the capacity in batches of 16, and 160 % of it in batches of one."""
    kept, turns = (served(queue, streams=90, together=4) for queue in (ArrivalQueue(), ReadyQueue[int]()))
    print(kept, turns)
    assert kept.batch < 1.5
    assert kept.left > 1000, "it never catches up"
    assert turns.left == 0
    assert turns.longest_s < CHUNK_S


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_that_come_one_by_one_are_batched_alike(kind: Callable[[], Queue]) -> None:
    assert served(kind(), streams=90, together=1).longest_s < CHUNK_S
