"""Scrapes endpoints periodically in a separate thread, and keeps their samples.

Every target is visited once per cadence, up to `_VISITS` targets at a time; a new target is visited `_QUICK_VISITS`
times in quick succession. A visit takes at most `_VISIT_S` or the cadence, whichever is shorter. It reads at most
`MOST_BYTES` (counted while reading, because the header may be wrong), follows no redirects, and accepts no compressed
answers. A visit that has not ended after one cadence, the wait for its turn included, has failed.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
from yarl import URL

from profiler.sources.exposition import samples
from profiler.sources.history import MOST_SAMPLES, TargetHistory

MOST_BYTES = 8 * 2**20

_VISITS = 32
_VISIT_S = 2.0
_QUICK_VISITS = 3
_QUICK_S = 0.5
_CHUNK = 2**16
_END_S = 5.0
_ACCEPT = "text/plain;version=0.0.4,*/*;q=0.1"
_STARTED = "process_start_time_seconds"

T = TypeVar("T")
Identity = tuple[str, ...]
"""The key of a target, chosen by the caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeTarget:
    """An endpoint to scrape: its labels, the names of the metrics to keep, and how long samples are kept."""

    url: str
    labels: tuple[tuple[str, str], ...]
    names: frozenset[str]
    keep_s: float


class _Visited:
    """A target and the samples of its visits."""

    def __init__(self, target: ScrapeTarget) -> None:
        self.target = target
        self.history = TargetHistory(dict(target.labels))
        self.visits = 0
        self.problem = ""
        self.started: float | None = None


class Scraper:
    """Scrapes the targets given to `follow` every `cadence_s` seconds, from `start()` to `close()`."""

    def __init__(self, cadence_s: float) -> None:
        self._cadence_s = cadence_s
        # A monotonic clock that shows about the wall time: it does not jump when the clock is set.
        self._epoch_s = time.time() - time.monotonic()
        self._lock = threading.Condition()
        self._visited: dict[Identity, _Visited] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scraper", daemon=True)
        self._woken = asyncio.Event()
        self._run: Future[None] | None = None

    def start(self) -> None:
        """Begin to scrape."""
        self._thread.start()
        self._run = asyncio.run_coroutine_threadsafe(self._rounds(), self._loop)

    def close(self) -> None:
        """Stop scraping; visits under way are cancelled."""
        if self._run is None:
            return
        self._run.cancel()
        asyncio.run_coroutine_threadsafe(_cancel_other_tasks(), self._loop).result(_END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)
        self._loop.close()

    def now_s(self) -> float:
        """Return the present time in seconds, on the clock of the samples."""
        return self._epoch_s + time.monotonic()

    def follow(self, targets: Mapping[Identity, ScrapeTarget]) -> None:
        """Scrape exactly these targets from now on. A target with a new URL starts with no samples."""
        with self._lock:
            before, self._visited = self._visited, {}
            new = False
            for identity, target in targets.items():
                known = before.get(identity)
                if known is None or known.target.url != target.url:
                    known, new = _Visited(target), True
                known.target = target
                self._visited[identity] = known
        if new:
            self._loop.call_soon_threadsafe(self._woken.set)

    def wait_for_visits(self, visits: int, within_s: float) -> None:
        """Wait, at most `within_s` seconds, until every target was visited `visits` times, successfully or not."""
        with self._lock:
            self._lock.wait_for(lambda: all(each.visits >= visits for each in self._visited.values()), within_s)

    def look(self, evaluate: Callable[[Mapping[Identity, TargetHistory], float], T]) -> T:
        """Return `evaluate(histories, now_s)`, with the history of each target. No samples are added while it runs."""
        with self._lock:
            return evaluate({key: visited.history for key, visited in self._visited.items()}, self.now_s())

    def problems(self) -> tuple[str, ...]:
        """Return a message for each cause of failed visits, with the number of targets."""
        with self._lock:
            causes = Counter(visited.problem for visited in self._visited.values() if visited.problem)
        return tuple(
            f"direct scrape: {cause}" + (f" ({count} targets)" if count > 1 else "")
            for cause, count in sorted(causes.items())
        )

    async def _rounds(self) -> None:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_VISITS),
            auto_decompress=False,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session:
            due_s = time.monotonic()
            while True:
                self._woken.clear()
                await self._round(session, only_young=False)
                due_s = max(due_s + self._cadence_s, time.monotonic())
                while (left_s := due_s - time.monotonic()) > 0:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._woken.wait(), min(left_s, _QUICK_S) if self._young() else left_s)
                    self._woken.clear()
                    if time.monotonic() < due_s:
                        await self._round(session, only_young=True)

    def _young(self) -> list[_Visited]:
        with self._lock:
            return [visited for visited in self._visited.values() if visited.visits < _QUICK_VISITS]

    async def _round(self, session: aiohttp.ClientSession, *, only_young: bool) -> None:
        with self._lock:
            due = self._young() if only_young else list(self._visited.values())
        places = asyncio.Semaphore(_VISITS)
        visits = [asyncio.create_task(self._visit(session, visited, places)) for visited in due]
        if visits:
            _, late = await asyncio.wait(visits, timeout=self._cadence_s)
            for visit in late:
                visit.cancel()
            await asyncio.gather(*visits, return_exceptions=True)

    async def _visit(self, session: aiohttp.ClientSession, visited: _Visited, places: asyncio.Semaphore) -> None:
        limit_s = min(_VISIT_S, self._cadence_s)
        problem = f"more targets than can be visited every {self._cadence_s:g} s"
        try:
            async with places:
                problem = f"no answer within {limit_s:g} s"
                async with asyncio.timeout(limit_s):
                    at_s = self.now_s()
                    text = await _text(session, visited.target.url)
            problem = self._record(visited, at_s, text)
        except TimeoutError:
            pass
        except (aiohttp.ClientError, OSError, ValueError, _Refused) as error:
            problem = _cause(error)
        finally:
            with self._lock:
                visited.problem = problem
                visited.visits += 1
                self._lock.notify_all()

    def _record(self, visited: _Visited, at_s: float, text: str) -> str:
        """Add the samples in `text` to a target's history; return the problem with them, empty if there is none."""
        target = visited.target
        found = samples(text, target.names | {_STARTED})
        started = next((value for name, _, value in found if name == _STARTED), None)
        with self._lock:
            if started != visited.started:  # another process: its counters do not continue the ones before
                visited.history, visited.started = TargetHistory(dict(target.labels)), started
            visited.history.record(at_s, found, target.keep_s)
            crowded = visited.history.crowded
        return (
            f"more than {MOST_SAMPLES} samples within {target.keep_s:g} s: the oldest are not kept" if crowded else ""
        )


async def _cancel_other_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class _Refused(Exception):
    """The answer of a target is not accepted; the message says why."""


async def _text(session: aiohttp.ClientSession, url: str) -> str:
    headers = {"Accept": _ACCEPT, "Accept-Encoding": "identity"}
    async with session.get(URL(url), headers=headers, allow_redirects=False) as response:
        if response.status != 200:
            raise _Refused(f"HTTP status {response.status}")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise _Refused("the answer is compressed, although Accept-Encoding was identity")
        body = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK):
            body += chunk
            if len(body) > MOST_BYTES:
                raise _Refused(f"more than {MOST_BYTES // 2**20} MiB")
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise _Refused("the answer is not UTF-8") from None


def _cause(error: Exception) -> str:
    """Return the cause without the address, so that the same problem of many targets has one text."""
    match error:
        case aiohttp.ClientConnectorError():
            return error.os_error.strerror or "no connection"
        case aiohttp.ClientError():
            return type(error).__name__
        case OSError():
            return error.strerror or type(error).__name__
        case _:
            return str(error)
