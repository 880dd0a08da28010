"""Closed loops of clients at a server whose law is known, in virtual time: what a load test of it would observe."""

import heapq
import random

from optimizer.model import ServiceLaw
from profiler.load_test.observed import Answer, Counted, Window

_BETWEEN_S = 0.0002  # a client needs so long for its next request; also what lies between two answers of one batch


def batches(
    law: ServiceLaw,
    limit: int,
    *,
    clients: int,
    rng: random.Random,
    length_s: float = 3.0,
    servers: int = 1,
    counters: float | None = None,
) -> Window:
    """Return a window at a server that takes what waits, at most `limit`, when its last batch ends.

    With `counters` the server counts its batches, and their times that many times as long as they are.
    """
    waiting = sorted(rng.uniform(0, law.mean_s(1)) for _ in range(clients))
    free = [0.0] * servers
    answers: list[Answer] = []
    count = items = 0
    busy_s, settled_s = 0.0, 4 * law.mean_s(limit)
    while True:
        server_s = heapq.heappop(free)
        start_s = max(server_s, waiting[0])
        if start_s > settled_s + length_s:
            break
        taken = [due for due in waiting if due <= start_s][:limit]
        waiting = waiting[len(taken) :]
        time_s = _drawn(law.mean_s(len(taken)), law.cv, rng)
        end_s = start_s + time_s
        heapq.heappush(free, end_s)
        if end_s >= settled_s:
            count, items, busy_s = count + 1, items + len(taken), busy_s + time_s
        for k, due in enumerate(taken):
            done_s = end_s + k * 0.5 * _BETWEEN_S
            answers.append(Answer(due_s=due, done_s=done_s))
            heapq.heappush(waiting, done_s + _BETWEEN_S)
        waiting.sort()
    counted = None if counters is None else Counted(batches=count, items=items, time_s=busy_s * counters)
    end_s = settled_s + length_s
    ended = tuple(answer for answer in answers if settled_s <= answer.done_s <= end_s)
    return Window(concurrency=clients, rate_rps=0.0, start_s=settled_s, end_s=end_s, answers=ended, counted=counted)


def beside_each_other(
    law: ServiceLaw, limit: int, *, clients: int, rng: random.Random, length_s: float = 10.0, streamed: bool = False
) -> Window:
    """Return a window at a server that batches continuously; `streamed` answers have a first part."""
    now_s, settled_s = 0.0, 4 * law.mean_s(min(clients, limit))
    running: list[list[float]] = []  # work left, due, first answer
    waiting = sorted(rng.uniform(0, law.mean_s(1)) for _ in range(clients))
    answers: list[Answer] = []
    while now_s < settled_s + length_s:
        while waiting and waiting[0] <= now_s and len(running) < limit:
            due_s = heapq.heappop(waiting)
            now_s += law.prefill_s
            running.append([_drawn(1.0, law.cv, rng), due_s, now_s])
        if not running:
            now_s = waiting[0]
            continue
        speed = 1 / law.mean_s(len(running))
        first = min(running, key=lambda own: own[0])
        until_s = now_s + first[0] / speed
        if waiting and waiting[0] < until_s and len(running) < limit:
            until_s = max(now_s, waiting[0])
        for own in running:
            own[0] -= (until_s - now_s) * speed
        now_s = until_s
        if first[0] <= 1e-12:
            running.remove(first)
            answers.append(Answer(due_s=first[1], done_s=now_s, first_s=first[2] if streamed else None))
            heapq.heappush(waiting, now_s + _BETWEEN_S)
    ended = tuple(answer for answer in answers if settled_s <= answer.done_s <= settled_s + length_s)
    return Window(concurrency=clients, rate_rps=0.0, start_s=settled_s, end_s=settled_s + length_s, answers=ended)


def _drawn(mean: float, cv: float, rng: random.Random) -> float:
    return mean if cv == 0 else rng.gammavariate(cv**-2, mean * cv**2)
