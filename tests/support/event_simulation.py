"""An event simulation of one stage, independent of the product's: one clock, one event at a time, numpy's generator."""

import numba
import numpy as np
from numpy.typing import NDArray

from optimizer.model import Routing

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


def arrivals(rate_rps: float, cv2: float, n: int, seed: int) -> Array:
    """Return `n` times of a renewal process: gamma below 1, two exponential phases with balanced means above."""
    rng = np.random.Generator(np.random.PCG64([seed, 1]))
    if cv2 <= 1:
        between = rng.gamma(1 / cv2, cv2 / rate_rps, n)
    else:
        share = (1 + np.sqrt((cv2 - 1) / (cv2 + 1))) / 2
        first = rng.random(n) < share
        between = rng.exponential(1 / (2 * rate_rps), n) / np.where(first, share, 1 - share)
    return np.asarray(np.cumsum(between))


def periodic(streams: int, period_s: float, n: int, seed: int) -> tuple[Array, Counts]:
    """Return times and streams of items that each stream sends at a fixed interval, in a random phase."""
    rng = np.random.Generator(np.random.PCG64([seed, 2]))
    phase = rng.random(streams) * period_s
    times = (phase + period_s * np.arange(-(-n // streams))[:, None]).ravel()
    owner = np.tile(np.arange(streams), -(-n // streams))
    order = np.argsort(times, kind="stable")[:n]
    return times[order], owner[order]


def simulate(
    times_s: Array,
    *,
    replicas: int,
    concurrency: int = 1,
    batch: int = 1,
    batch_wait_s: float = 0.0,
    fixed_s: float = 0.0,
    per_item_s: float = 0.0,
    time_s: Array | None = None,
    cv: float = 0.0,
    routing: Routing,
    seed: int,
    sessions: Counts | None = None,
) -> Array:
    """Return the time in the stage of each item. Gamma service; sessions are pinned in turn.

    `time_s` (batch + 1,) is the mean service time by the items of a batch, in place of the line.
    """
    if time_s is None:
        time_s = fixed_s + per_item_s * np.arange(batch + 1.0)
    rng = np.random.Generator(np.random.PCG64([seed, 3]))
    n = len(times_s)
    match routing:
        case Routing.RANDOM:
            target = rng.integers(0, replicas, n)
        case Routing.STICKY:
            target = (np.arange(n) if sessions is None else sessions) % replicas
            if sessions is None:
                target = rng.integers(0, replicas, n)
        case Routing.ROUND_ROBIN:
            target = np.arange(n) % replicas
        case _:
            target = np.full(n, -1)
    return np.asarray(
        _run(
            times_s,
            target.astype(np.int64),
            routing is Routing.PULL,
            replicas,
            concurrency,
            batch,
            batch_wait_s,
            time_s,
            cv,
            rng,
        )
    )


@numba.njit(cache=True)
def _run(times, target, pull, replicas, concurrency, batch, wait, time_s, cv, rng):  # type: ignore[no-untyped-def]
    n, servers = len(times), replicas * concurrency
    queues = 1 if pull else replicas
    after = np.full(n, -1)
    head, tail, length = np.full(queues, -1), np.full(queues, -1), np.zeros(queues, np.int64)
    ends, size = np.full(servers, np.inf), np.zeros(servers, np.int64)
    load, credit = np.zeros(replicas, np.int64), np.zeros(replicas)
    spent = np.zeros(n)
    arrived, soonest = 0, -1  # the batch that ends first; -1: to be found again
    while True:
        # What is next: an arrival, the end of a batch, or the patience of the oldest item in a queue.
        now, kind, who = np.inf, -1, -1
        if arrived < n:
            now, kind = times[arrived], 0
        if soonest < 0:
            soonest = int(ends.argmin())
        if ends[soonest] < now:
            now, kind, who = ends[soonest], 1, soonest
        if wait > 0:
            for q in range(queues):
                if length[q] > 0 and times[head[q]] + wait < now:
                    first, last = (0, servers) if pull else (q * concurrency, (q + 1) * concurrency)
                    for k in range(first, last):
                        if ends[k] == np.inf:
                            now, kind, who = times[head[q]] + wait, 2, q
                            break
        if kind < 0:
            return spent
        if kind == 0:
            replica = target[arrived]
            if pull:
                q = 0
            else:
                if replica < 0:
                    least, tied = load.min(), 0
                    for r in range(replicas):  # those that tie take turns, as credits are saved up
                        if load[r] == least:
                            tied += 1
                            credit[r] += 1
                            if replica < 0 or credit[r] > credit[replica]:
                                replica = r
                    credit[replica] -= tied
                q = replica
                load[replica] += 1
            if length[q] == 0:
                head[q] = arrived
            else:
                after[tail[q]] = arrived
            tail[q] = arrived
            length[q] += 1
            arrived += 1
        elif kind == 1:
            ends[who], soonest = np.inf, -1
            load[who // concurrency] -= 0 if pull else size[who]
            q = 0 if pull else who // concurrency
        else:
            q = who
        first, last = (0, servers) if pull else (q * concurrency, (q + 1) * concurrency)
        for k in range(first, last):
            if length[q] == 0 or (length[q] < batch and now < times[head[q]] + wait):
                break
            if ends[k] < np.inf:
                continue
            soonest = -1
            size[k] = min(batch, length[q])
            mean = time_s[size[k]]
            ends[k] = now + (mean if cv == 0 else rng.gamma(1 / cv**2, mean * cv**2))
            for _ in range(size[k]):
                spent[head[q]] = ends[k] - times[head[q]]
                head[q] = after[head[q]]
            length[q] -= size[k]


def simulate_continuous(
    times_s: Array,
    *,
    replicas: int,
    limit: int,
    time_s: Array,
    prefill_s: float = 0.0,
    cv: float = 0.0,
    routing: Routing,
    seed: int,
) -> Array:
    """Return the time in the stage of each item at servers that batch continuously.

    `time_s` (limit + 1,) is the time of a mean item by how many run. Each event moves the work left of every item.
    """
    rng = np.random.Generator(np.random.PCG64([seed, 4]))
    n = len(times_s)
    match routing:
        case Routing.RANDOM | Routing.STICKY:
            target = rng.integers(0, replicas, n)
        case Routing.ROUND_ROBIN:
            target = np.arange(n) % replicas
        case _:
            target = np.full(n, -1)
    work = np.ones(n) if cv == 0 else rng.gamma(1 / cv**2, cv**2, n)
    return np.asarray(_share(times_s, target.astype(np.int64), replicas, limit, time_s, prefill_s, work))


@numba.njit(cache=True)
def _in_service(members, first, last, state):  # type: ignore[no-untyped-def]
    """Return how many items run or are prefilled, and the first of those that are prefilled, -1 without one."""
    running, prefilled = 0, -1
    for k in range(first, last):
        item = members[k]
        if state[item] == 2 and prefilled < 0:
            prefilled = item
        running += state[item] in (2, 3)
    return running, prefilled


@numba.njit(cache=True)
def _share(times, target, replicas, limit, time_s, prefill_s, work):  # type: ignore[no-untyped-def]
    n = len(times)
    left, state = work.copy(), np.zeros(n, np.int64)  # 0 not there, 1 waits, 2 is prefilled, 3 runs, 4 is done
    prefill, spent, credit = np.full(n, prefill_s), np.zeros(n), np.zeros(replicas)
    members = np.full((replicas, n), -1)
    inside, oldest, arrived, now = np.zeros(replicas, np.int64), np.zeros(replicas, np.int64), 0, 0.0
    while True:
        # When does something happen? Of each replica, the end of a prefill, or else the end of an item that runs.
        soonest, what, where = np.inf, -1, -1
        for r in range(replicas):
            running, first = _in_service(members[r], oldest[r], inside[r], state)
            if first >= 0:
                if now + prefill[first] < soonest:
                    soonest, what, where = now + prefill[first], first, r
                continue
            for k in range(oldest[r], inside[r]):
                item = members[r, k]
                if state[item] == 3 and now + left[item] * time_s[running] < soonest:
                    soonest, what, where = now + left[item] * time_s[running], item, r
        arrives = arrived < n and times[arrived] <= soonest
        if not arrives and what < 0:
            return spent
        then = times[arrived] if arrives else soonest
        for r in range(replicas):  # move everything to `then`
            running, first = _in_service(members[r], oldest[r], inside[r], state)
            if first >= 0:
                prefill[first] -= then - now
                continue
            for k in range(oldest[r], inside[r]):
                item = members[r, k]
                if state[item] == 3:
                    left[item] -= (then - now) / time_s[running]
        now = then
        if arrives:
            r = target[arrived]
            if r < 0:
                load, tied = np.zeros(replicas, np.int64), 0
                for q in range(replicas):
                    for k in range(oldest[q], inside[q]):
                        load[q] += state[members[q, k]] in (1, 2, 3)
                least = load.min()
                for q in range(replicas):
                    if load[q] == least:
                        tied += 1
                        credit[q] += 1
                        if r < 0 or credit[q] > credit[r]:
                            r = q
                credit[r] -= tied
            members[r, inside[r]] = arrived
            inside[r] += 1
            state[arrived] = 1
            arrived += 1
            where = r
        elif state[what] == 2:
            state[what] = 3
        else:
            state[what] = 4
            spent[what] = now - times[what]
            while oldest[where] < inside[where] and state[members[where, oldest[where]]] == 4:
                oldest[where] += 1
        running, _ = _in_service(members[where], oldest[where], inside[where], state)
        for k in range(oldest[where], inside[where]):
            item = members[where, k]
            if state[item] == 1 and running < limit:
                state[item] = 2 if prefill_s > 0 else 3
                running += 1
