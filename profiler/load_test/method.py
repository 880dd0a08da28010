"""The method of a load test: reach, warm up, closed loops in random order until the law is known, open loops.

Closed loops show the law, because they hold the number of items inside; open ones show what users would feel, because
their requests come whatever the answers do. Source of the stopping rule: the capacity, not the coefficients of the law,
which trade off against each other. Bounded in time by `Limits`.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from optimizer.model import ServiceLaw
from profiler.load_test.analysis import SATURATED, Analysis, analysed, mean_batch
from profiler.load_test.clients.port import RequestFailed
from profiler.load_test.drive import Driver
from profiler.load_test.observed import Window, by_concurrency, latencies_s, rate_rps

OPEN_SHARES = (0.3, 0.6, 0.8)
"""Shares of the capacity at which the open loop measures."""
MOST_FAILURES = 0.1
"""A window in which a larger share of the answers fails is no measurement."""
STABLE = 0.05
"""The server is warm when the median latency of a window is shorter than that of the one before by less than this."""
_CLOSED_SHARE, _WARM_SHARE = 0.5, 0.15  # of the time
_LEAST_ROUNDS, _WINDOW_ANSWERS = 3, 16
_LEAST_S, _MOST_S = 0.25, 3.0  # length of a window
_OPEN_S, _SLO_STEPS = 4.0, 4
_DRIFT = 0.1
_SESSIONS = 16  # whose memory is measured


class LoadTestFailed(Exception):
    """The server cannot be measured; the message says what it answered and what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of a load test: `time_s` seconds, `concurrency` clients; it stops at a relative error of `precision`.

    `batch` is the largest batch of the server, where it is known. `slo_s` is a latency within which the highest load is
    sought, at `percentile`.
    """

    time_s: float = 60.0
    concurrency: int = 64
    precision: float = 0.05
    batch: int | None = None
    slo_s: float | None = None
    percentile: float = 95.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One load: clients (in an open loop the mean number of requests inside), mean batch, rate and latencies."""

    loop: str
    concurrency: float
    batch: float
    rate_rps: float
    service_mean_s: float
    p50_s: float
    p95_s: float
    failed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a load test found.

    `stopped` says why it ended. `slo_rps` is the highest rate at which the percentile kept the SLO: 0 where not even a
    small one did, None where none was asked for.
    """

    analysis: Analysis
    points: tuple[Point, ...]
    first_answer_s: float
    warm_up_s: float
    memory_per_session_bytes: float | None
    slo_rps: float | None
    stopped: str
    took_s: float
    notes: tuple[str, ...]


@dataclass(slots=True)
class LoadTest:
    """One load test of `driver`'s target within `limits`; `say` gets a line about each step."""

    driver: Driver
    limits: Limits
    say: Callable[[str], None]
    _lone_s: float = 0.0
    _notes: list[str] = field(default_factory=list)
    _began_s: float = 0.0

    async def run(self) -> Profile:
        """Return what the load shows.

        Raises:
            LoadTestFailed: the server does not answer, or not validly, or not often enough.
            TargetInvalid: the target cannot be used.
        """
        self._began_s = self.driver.now_s()
        first_s, self._lone_s = await self._reached()
        memory = await self._memory_per_session()
        warm_s = await self._warmed()
        windows, analysis, stopped = await self._closed()
        if max(by_concurrency(windows)) == 1:
            self._note("only one client was tried: nothing is known of batches; raise --max-time")
        opened = [await self._open(share * analysis.saturation_rps) for share in OPEN_SHARES if self._left_s() > 0]
        slo_rps = await self._within_slo(opened, analysis.saturation_rps)
        if self.driver.lag_s > 0.1 * self._lone_s:
            self._note(
                f"this machine sent requests up to {self.driver.lag_s * 1e3:.0f} ms late: its latencies are too long"
            )
        points = [_closed_point(level, own, analysis) for level, own in by_concurrency(windows).items()]
        return Profile(
            analysis=analysis,
            points=(*points, *(_open_point(window, analysis) for window in opened)),
            first_answer_s=first_s,
            warm_up_s=warm_s,
            memory_per_session_bytes=memory,
            slo_rps=slo_rps,
            stopped=stopped,
            took_s=self._spent_s(),
            notes=(*analysis.notes, *self._notes),
        )

    def _spent_s(self) -> float:
        return self.driver.now_s() - self._began_s

    def _left_s(self) -> float:
        return self.limits.time_s - self._spent_s()

    async def _reached(self) -> tuple[float, float]:
        """Return the time of the first answer, and that of the fastest of the next, in seconds."""
        try:
            first = await self.driver.one()
        except RequestFailed as error:
            raise LoadTestFailed(str(error)) from None
        answers = [first]
        while first.failure is None and len(answers) < 4 and self._left_s() > 0.9 * self.limits.time_s:
            answers.append(await self.driver.one())
        failed = [answer.failure for answer in answers if answer.failure is not None]
        if len(failed) > len(answers) // 2:
            raise LoadTestFailed(f"the server answers no single request: {failed[0]}")
        good = [answer.latency_s for answer in answers if answer.failure is None]
        self.say(f"first answer after {good[0]:.3g} s, then {min(good):.3g} s")
        return good[0], min(good)

    async def _memory_per_session(self) -> float | None:
        """Return the server's memory for each open session, None where it has no sessions or does not tell."""
        if not self.driver.target.sessions:
            return None
        before = await self.driver.read()
        count = min(_SESSIONS, self.limits.concurrency)
        try:
            await self.driver.connect(count)
        except RequestFailed as error:
            self._note(f"{count} sessions at once could not be opened: {error}")
            return None
        after = await self.driver.read()
        if before is None or after is None or before.memory_bytes is None or after.memory_bytes is None:
            return None
        return max(0.0, after.memory_bytes - before.memory_bytes) / count

    async def _warmed(self) -> float:
        """Load the server until two windows in a row differ by little; return how long that took, in seconds."""
        begin_s, last_s = self.driver.now_s(), 0.0
        length_s = self._length_s(self._lone_s, 2)
        while self.driver.now_s() - begin_s < _WARM_SHARE * self.limits.time_s:
            window = await self.driver.closed(min(2, self.limits.concurrency), length_s, min(self._lone_s, _MOST_S))
            times_s = latencies_s([window])
            if len(times_s) and last_s and last_s / float(np.median(times_s)) - 1 < STABLE:
                break
            last_s = float(np.median(times_s)) if len(times_s) else 0.0
        else:
            self._note("the server did not become steady while it was warmed up")
        return self.driver.now_s() - begin_s

    async def _closed(self) -> tuple[list[Window], Analysis, str]:
        """Return the windows of the closed loops, what they show, and why they ended."""
        windows: list[Window] = []
        levels = await self._levels(windows)
        until_s = _CLOSED_SHARE * self.limits.time_s
        rounds, analysis = 1, self._analysed(windows)
        while self._spent_s() < until_s:
            for level in self.driver.random.sample(levels, len(levels)):
                if (window := await self._window(level, windows)) is not None:
                    windows.append(window)
                if self._spent_s() >= until_s:
                    break
            rounds += 1
            analysis = self._analysed(windows)
            self.say(f"round {rounds}: {len(windows)} windows, {_precision_words(analysis)}")
            if rounds >= _LEAST_ROUNDS and analysis.relative_error <= self.limits.precision:
                break
        return windows, analysis, self._why_ended(windows, analysis)

    async def _levels(self, windows: list[Window]) -> list[int]:
        """Return the numbers of clients to measure with: up to twice as many as fill the server; adds their windows."""
        levels, level = list[int](), 1
        enough_s = (1 - _CLOSED_SHARE) * self.limits.time_s
        while level <= self.limits.concurrency and (not levels or self._left_s() > enough_s):
            window = await self._window(level, windows)
            if window is None:
                break
            levels.append(level)
            best = max((own.served_rps for own in windows), default=0.0)
            windows.append(window)
            self.say(f"{level} clients: {window.served_rps:.4g} answers/s")
            if level >= 4 and window.served_rps < SATURATED * best:
                break
            level *= 2
        if not levels:
            raise LoadTestFailed("no valid answer under load")
        return levels

    async def _window(self, level: int, windows: list[Window]) -> Window | None:
        """Return a window with `level` clients; None where too many answers fail."""
        known = by_concurrency(windows)
        near = max((own for own in known if own <= level), default=None)
        latency_s = float(np.mean(latencies_s(known[near]))) if near else self._lone_s
        length_s = min(self._length_s(latency_s, level), max(2 * latency_s, self._left_s()))
        try:
            window = await self.driver.closed(level, length_s, min(latency_s, _MOST_S))
        except RequestFailed as error:  # it accepts no more sessions
            if not windows:
                raise LoadTestFailed(str(error)) from None
            self._note(f"{level} clients at once could not connect: {error}")
            return None
        failures = Counter(answer.failure for answer in window.answers if answer.failure is not None)
        share = sum(failures.values()) / max(1, len(window.answers))
        if share <= MOST_FAILURES and window.served:
            return window
        reason = failures.most_common(1)[0][0] if failures else "no answer within the window"
        if not windows:
            raise LoadTestFailed(f"the server fails under the load of one client: {reason}")
        self._note(f"with {level} clients {share:.0%} of the answers failed ({reason})")
        return None

    def _note(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)

    def _analysed(self, windows: list[Window]) -> Analysis:
        try:
            return analysed(windows, continuous=self.driver.target.continuous, limit=self.limits.batch)
        except ValueError as error:
            raise LoadTestFailed(f"too few answers within {self.limits.time_s:g} s: {error}") from None

    def _why_ended(self, windows: list[Window], analysis: Analysis) -> str:
        """Return why the closed loops ended: they know enough, or their time was over."""
        if analysis.relative_error <= self.limits.precision:
            return _precision_words(analysis)
        said = f"the time is over: {_precision_words(analysis)}, not to ± {self.limits.precision:.0%}"
        drift = [
            rate_rps(own[len(own) // 2 :]) / rate_rps(own[: len(own) // 2]) - 1
            for own in by_concurrency(windows).values()
            if len(own) >= 4 and rate_rps(own[: len(own) // 2])
        ]
        change = float(np.median(drift)) if drift else 0.0
        if abs(change) > _DRIFT:
            return f"{said}; the server became {abs(change):.0%} {'faster' if change > 0 else 'slower'} meanwhile"
        if len(windows) < _LEAST_ROUNDS * 4:
            return f"{said}; only {len(windows)} windows fit in it: raise --max-time"
        return f"{said}; the times of batches scatter"

    async def _open(self, rate: float) -> Window:
        length_s = min(_OPEN_S, max(1.0, self._left_s() / len(OPEN_SHARES)))
        self.say(f"open loop at {rate:.4g} requests/s")
        return await self.driver.open(rate, length_s)

    async def _within_slo(self, opened: list[Window], capacity_rps: float) -> float | None:
        """Return the highest rate whose percentile is within the SLO, by bisection; None where none was asked for."""
        if (slo_s := self.limits.slo_s) is None:
            return None
        kept = [self._keeps(window, slo_s) for window in opened]
        low = max((own.rate_rps for own, good in zip(opened, kept, strict=True) if good), default=0.0)
        high = min((own.rate_rps for own, good in zip(opened, kept, strict=True) if not good), default=capacity_rps)
        for step in range(_SLO_STEPS):
            middle = (low + high) / 2
            length_s = max(1.0, self._left_s() / (_SLO_STEPS - step))
            good = self._keeps(await self.driver.open(middle, length_s), slo_s)
            self.say(f"{middle:.4g} requests/s: {'within' if good else 'not within'} the SLO")
            low, high = (middle, high) if good else (low, middle)
        return low

    def _keeps(self, window: Window, slo_s: float) -> bool:
        times_s = latencies_s([window])
        failed = 1 - len(times_s) / max(1, len(window.answers))
        return len(times_s) > 0 and failed <= 0.01 and float(np.percentile(times_s, self.limits.percentile)) <= slo_s

    def _length_s(self, latency_s: float, clients: int) -> float:
        """Return the length of a window, in seconds: for enough answers, and for two of each client."""
        return max(min(_MOST_S, max(_LEAST_S, _WINDOW_ANSWERS * latency_s / clients)), 2 * latency_s)


def _precision_words(analysis: Analysis) -> str:
    return f"the capacity is known to ± {analysis.relative_error:.1%}"


def _closed_point(level: int, windows: list[Window], analysis: Analysis) -> Point:
    return _point("closed", float(level), mean_batch(windows, analysis), windows, rate_rps(windows), analysis.law)


def _open_point(window: Window, analysis: Analysis) -> Point:
    times_s = latencies_s([window])
    inside = window.rate_rps * float(np.mean(times_s)) if len(times_s) else math.inf
    return _point("open", inside, mean_batch([window], analysis, inside), [window], window.rate_rps, analysis.law)


def _point(loop: str, inside: float, batch: float, windows: list[Window], rate: float, law: ServiceLaw) -> Point:
    times_s = latencies_s(windows)
    answers = sum(len(window.answers) for window in windows)
    p50, p95 = (float(own) for own in np.percentile(times_s, [50, 95])) if len(times_s) else (math.nan, math.nan)
    return Point(
        loop=loop,
        concurrency=inside,
        batch=batch,
        rate_rps=rate,
        service_mean_s=law.mean_s(batch),
        p50_s=p50,
        p95_s=p95,
        failed=1 - len(times_s) / max(1, answers),
    )
