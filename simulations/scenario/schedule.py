"""Schedules of sessions made from recorded load. A schedule is made before the run and does not depend on it.

Time in a schedule is that of the run: a trace at speed 4 passes four times faster than it was recorded, session lengths
included. Randomness is seeded: the same arguments give the same schedule.
"""

import math
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

from simulations.scenario.traces import Column, Trace

MAX_SESSIONS = 5_000_000
"""The most sessions or bins in a schedule: more are surely a mistake, and would not fit into memory."""

_FIRST_S = 10.0
_SPIKE_JITTER_S = 1.0
_PHASES, _SPIKE, _THINNING = 1, 2, 3  # a random stream for each purpose


class LoadTooLarge(ValueError):
    """A load of more than MAX_SESSIONS sessions or bins.

    `path` is the field of the scenario that causes it, empty without a scenario.
    """

    path: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLength:
    """The distribution of session lengths: log-normal with this mean and coefficient of variation.

    Log-normal, not gamma: call-centre recordings have a cv of 1.30 with the median at 0.60 and p95 at 3.2 of the mean,
    which a log-normal of that cv meets (0.61, 3.1) and a gamma does not (0.52, 3.6).
    """

    mean_s: float
    cv: float

    def draw(self, rng: Generator, count: int) -> NDArray[np.float64]:
        """Return `count` random lengths in seconds."""
        variance = math.log1p(self.cv**2)
        return rng.lognormal(math.log(self.mean_s) - variance / 2, math.sqrt(variance), count)

    def longer_than(self, length_s: float) -> float:
        """Return the share (0–1) of the lengths above `length_s` seconds, which is above 0."""
        variance = math.log1p(self.cv**2)
        if variance <= 0:
            return float(length_s < self.mean_s)
        distance = (math.log(length_s / self.mean_s) + variance / 2) / math.sqrt(variance)
        return math.erfc(distance / math.sqrt(2)) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """How a trace is replayed: `copies` superposed, from `offset_s` of the recording on, `speed` times faster.

    The first copy plays the recording as it is, so that `offset_s` names a segment; every further copy is shifted
    cyclically by an independent random number of bins. Counts are never multiplied: that would inflate their
    dispersion. A recording that is shorter than the run is repeated, or followed by nothing if `ends`.
    """

    trace: Trace
    copies: int = 1
    speed: float = 1.0
    offset_s: float = 0.0
    session: SessionLength | None = None
    ends: bool = False

    def __post_init__(self) -> None:
        if self.copies < 1:
            raise ValueError(f"copies: {self.copies}: must be at least 1")
        if not self.speed > 0:
            raise ValueError(f"speed: {self.speed}: must be above 0")
        if not 0 <= self.offset_s < self.trace.span_s:
            raise ValueError(f"offset: {self.offset_s:g} s: must be within the trace's {self.trace.span_s:g} s")

    @property
    def bin_s(self) -> float:
        """Return the length of a bin in seconds of the run."""
        return self.trace.bin_s / self.speed

    def bins(self, rng: Generator, duration_s: float) -> NDArray[np.float64]:
        """Return the superposed values, one per bin of the run, in the unit of the trace's column."""
        recorded = self.trace.values
        first = round(self.offset_s / self.trace.bin_s)
        _bound(duration_s * self.speed / self.trace.bin_s, "bins of the trace")
        count = math.ceil(duration_s / self.bin_s - 1e-9)
        shifts = [0, *rng.integers(0, len(recorded), self.copies - 1)]
        found = sum(
            (recorded[(np.arange(count) + first + shift) % len(recorded)] for shift in shifts), start=np.zeros(count)
        )
        if self.ends:
            found[len(recorded) - first :] = 0
        return found

    def lasts_s(self) -> float:
        """Return the time (s) of the run after which the recording is repeated, or ends."""
        return (self.trace.span_s - self.offset_s) / self.speed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """Sessions in order of their start; a request is a session that ends when it starts.

    `start_s` and `end_s` have shape (sessions,), seconds since the start of the run.
    """

    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.start_s)

    @classmethod
    def of(cls, start_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> Self:
        """Return the schedule of sessions that are given in any order."""
        order = np.argsort(start_s, kind="stable")
        return cls(start_s=start_s[order], end_s=end_s[order])

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the schedule that `save` wrote to `path`."""
        with np.load(path) as arrays:
            return cls(start_s=arrays["start_s"], end_s=arrays["end_s"])

    def save(self, path: Path) -> None:
        """Write the schedule to `path` as `.npz`."""
        np.savez(path, start_s=self.start_s, end_s=self.end_s)

    def merged(self, other: "Schedule") -> "Schedule":
        """Return the schedule of all sessions of this schedule and of `other`."""
        return Schedule.of(
            np.concatenate([self.start_s, other.start_s]),
            np.concatenate([self.end_s, other.end_s]),
        )

    def active(self, at_s: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the number of active sessions at each of `at_s`."""
        return np.searchsorted(self.start_s, at_s, side="right") - np.searchsorted(
            np.sort(self.end_s), at_s, side="right"
        )


def request_schedule(replay: Replay, duration_s: float, seed: int) -> Schedule:
    """Return the requests for a pipeline whose unit is Requests.

    Raises:
        ValueError: the trace is a level of streams, or `replay` has session lengths.
    """
    if replay.trace.column is Column.STREAMS:
        raise ValueError("column: streams: is a level of sessions; a pipeline of Requests needs arrivals or rate_per_s")
    if replay.session is not None:
        raise ValueError("session: is for a pipeline of Streams; this one takes Requests")
    start_s = _starts(replay, duration_s, default_rng(seed))
    return Schedule.of(start_s, start_s)


def stream_schedule(replay: Replay, duration_s: float, seed: int) -> Schedule:
    """Return the sessions for a pipeline whose unit is Streams; the run begins with none active.

    Raises:
        ValueError: neither the trace nor `replay` says how long sessions last.
    """
    rng = default_rng(seed)
    if replay.trace.column is Column.STREAMS:
        return _follow_level(replay, duration_s, rng)
    if replay.session is None:
        raise ValueError(
            f"session: is required with column {replay.trace.column.value}, which does not say how long a stream lasts"
        )
    start_s = _starts(replay, duration_s, rng)
    return Schedule.of(start_s, start_s + replay.session.draw(rng, len(start_s)) / replay.speed)


def with_spike(schedule: Schedule, from_s: float, until_s: float, factor: float, seed: int) -> Schedule:
    """Return the schedule with the load between `from_s` and `until_s` multiplied by `factor` (at least 1).

    Every session gets factor - 1 copies on average. A copy lasts as long as the session does within the interval, so
    the level is multiplied in all of the interval. The starts of the copies are spread over up to 1 s.
    """
    if factor < 1:
        raise ValueError(f"spike.factor: {factor:g}: must be at least 1")
    rng = default_rng([seed, _SPIKE])
    _bound(factor * len(schedule), "sessions in the spike")
    whole, share = divmod(factor - 1, 1)
    copies = int(whole) + (rng.random(len(schedule)) < share)
    start_s = np.repeat(np.maximum(schedule.start_s, from_s), copies)
    is_request = np.repeat(schedule.end_s == schedule.start_s, copies)
    inside = np.repeat((schedule.start_s < until_s) & (schedule.end_s >= from_s), copies)
    start_s += rng.random(len(start_s)) * np.minimum(_SPIKE_JITTER_S, until_s - from_s)
    end_s = np.where(is_request, start_s, np.minimum(np.repeat(schedule.end_s, copies), until_s))
    inside &= (start_s < until_s) & (is_request | (end_s > start_s))
    return schedule.merged(Schedule.of(start_s[inside], end_s[inside]))


def thinned(schedule: Schedule, share: float, seed: int) -> Schedule:
    """Return the schedule with each session kept with probability `share` (0–1); the shape of the load stays."""
    if not 0 < share <= 1:
        raise ValueError(f"scale: {share:g}: must be above 0 and at most 1")
    kept = default_rng([seed, _THINNING]).random(len(schedule)) < share
    return Schedule(start_s=schedule.start_s[kept], end_s=schedule.end_s[kept])


def chunk_times(
    schedule: Schedule, chunk_s: float, duration_s: float, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the times at which streams offer chunks, ascending, and the index of each chunk's session in the schedule.

    A stream offers a chunk every `chunk_s`, from a random time in its first `chunk_s` until it or the run ends. Both
    arrays have shape (chunks,).
    """
    first_s = schedule.start_s + chunk_phases(schedule, chunk_s, seed)
    end_s = np.minimum(schedule.end_s, duration_s)
    counts = np.maximum(np.ceil((end_s - first_s) / chunk_s), 0).astype(np.int64)
    session = np.repeat(np.arange(len(schedule)), counts)
    position = np.arange(len(session)) - np.repeat(np.cumsum(counts) - counts, counts)
    times_s = first_s[session] + position * chunk_s
    order = np.argsort(times_s, kind="stable")
    return times_s[order], session[order]


def chunk_phases(schedule: Schedule, chunk_s: float, seed: int) -> NDArray[np.float64]:
    """Return the time from each stream's start to its first chunk, random in [0, chunk_s), shape (sessions,)."""
    return default_rng([seed, _PHASES]).random(len(schedule)) * chunk_s


def derived_seed(seed: int, *path: int) -> int:
    """Return a seed for the purpose `path`, so that additional draws for one purpose do not change those for others."""
    return int(SeedSequence([seed, *path]).generate_state(1)[0])


def _starts(replay: Replay, duration_s: float, rng: Generator) -> NDArray[np.float64]:
    counts = replay.bins(rng, duration_s)
    level = replay.trace.column is Column.RATE_PER_S
    _bound(float(counts.sum()) * (replay.trace.bin_s if level else 1), "sessions")
    if level:
        counts = rng.poisson(counts * replay.trace.bin_s).astype(np.float64)
    bins = np.repeat(np.arange(len(counts)), counts.astype(np.int64))
    start_s = np.sort((bins + rng.random(len(bins))) * replay.bin_s)
    return start_s[start_s < duration_s]


def _follow_level(replay: Replay, duration_s: float, rng: Generator) -> Schedule:
    """Return sessions whose number follows the level.

    A session that ends while the level holds is replaced at once. When the level falls, the sessions that would have
    ended first end then. Without a session length, sessions last until the level falls. When it rises, sessions start
    throughout the bin; those of the first level start within `_FIRST_S`, however long the bin is.
    """

    def end_of(start_s: float) -> float:
        if replay.session is None:
            return math.inf
        return start_s + float(replay.session.draw(rng, 1)[0]) / replay.speed

    active: list[tuple[float, float]] = []  # (end, start), the first to end on top
    done: list[tuple[float, float]] = []  # (start, end)
    for index, level in enumerate(replay.bins(rng, duration_s)):
        begin_s, until_s = index * replay.bin_s, min((index + 1) * replay.bin_s, duration_s)
        wanted = round(level)
        _bound(level + len(done), "sessions")
        while len(active) > wanted:
            _, start_s = heappop(active)
            done.append((start_s, begin_s))
        rises_s = until_s - begin_s if index else min(until_s, _FIRST_S)
        starts_s = begin_s + np.sort(rng.random(wanted - len(active))) * rises_s
        active.extend((end_of(start_s), float(start_s)) for start_s in starts_s)
        heapify(active)
        while active and active[0][0] < until_s:
            end_s, start_s = active[0]
            done.append((start_s, end_s))
            _bound(len(done), "sessions")
            heapreplace(active, (end_of(end_s), end_s))
    done.extend((start_s, end_s) for end_s, start_s in active)
    if not done:
        return Schedule(start_s=np.zeros(0), end_s=np.zeros(0))
    start, end = np.array(done).T
    return Schedule.of(start, np.minimum(end, duration_s))


def _bound(count: float, what: str) -> None:
    if not count <= MAX_SESSIONS:
        raise LoadTooLarge(f"{count:.2g} {what}: must be at most {MAX_SESSIONS}")
