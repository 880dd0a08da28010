"""Puts load on a target: closed loops of clients, and open loops at a rate. The only clock of a load test."""

import asyncio
import contextlib
import random
from collections import deque
from dataclasses import dataclass, field

from profiler.load_test.clients.port import Client, RequestFailed, Target
from profiler.load_test.counters import Reading, counted, reading
from profiler.load_test.observed import Answer, Window
from profiler.sources.exposition import InvalidExposition

_AFTER_FAILURE_S = 0.05
"""A client waits for so long after a failure: a server that refuses is not sent more than one that serves."""


@dataclass(slots=True)
class Driver:
    """Sends requests to `target` with at most `most_clients` clients, which it keeps open until `close`."""

    target: Target
    most_clients: int
    random: random.Random
    lag_s: float = 0.0
    _clients: list[Client] = field(default_factory=list)

    def now_s(self) -> float:
        """Return the time of the event loop, in seconds."""
        return asyncio.get_running_loop().time()

    async def read(self) -> Reading | None:
        """Return a reading of the server's metrics, None where it has none that can be read."""
        text = await self.target.metrics()
        if text is None:
            return None
        try:
            return reading(text)
        except InvalidExposition:
            return None

    async def connect(self, count: int) -> None:
        """Open clients until there are `count`.

        Raises:
            RequestFailed: the server accepts no connection.
            TargetInvalid: the target cannot be used.
        """
        while len(self._clients) < count:
            self._clients.append(await self.target.client())

    async def one(self) -> Answer:
        """Send one request and return its answer."""
        await self.connect(1)
        return await self._ask(0, self.now_s())

    async def closed(self, concurrency: int, length_s: float, settle_s: float) -> Window:
        """Return a window of `length_s` seconds in which so many clients send again when they have an answer.

        They begin at random times within `settle_s`, before the window, so that they come together only where the
        server makes them.
        """
        await self.connect(concurrency)
        answers: list[Answer] = []
        begin_s = self.now_s()
        start_s = begin_s + settle_s
        end_s = start_s + length_s

        async def play(number: int, offset_s: float) -> None:
            await asyncio.sleep(offset_s)
            while self.now_s() < end_s:
                answer = await self._ask(number, self.now_s())
                answers.append(answer)
                if answer.failure is not None:
                    await asyncio.sleep(_AFTER_FAILURE_S)

        tasks = [asyncio.create_task(play(k, self.random.uniform(0, settle_s))) for k in range(concurrency)]
        try:
            await asyncio.sleep(start_s - self.now_s())
            before = await self.read()
            read_s = self.now_s()
            await asyncio.sleep(max(0.0, end_s - self.now_s()))
            after = await self.read()
            done_s = self.now_s()
            await asyncio.gather(*tasks)
        finally:
            await _cancelled(tasks)
        return Window(
            concurrency=concurrency,
            rate_rps=0.0,
            start_s=read_s,
            end_s=done_s,
            answers=tuple(answer for answer in answers if read_s <= answer.done_s <= done_s),
            counted=counted(before, after),
        )

    async def open(self, rate_rps: float, length_s: float) -> Window:
        """Return the answers to Poisson arrivals at `rate_rps` for `length_s` seconds, timed from when each was due.

        What is due while all clients wait for an answer fails, so that the load is bounded.
        """
        begin_s = self.now_s()
        due_s, arrivals = begin_s, list[float]()
        while (due_s := due_s + self.random.expovariate(rate_rps)) < begin_s + length_s:
            arrivals.append(due_s)
        free, answers, lags = deque(range(self.most_clients)), list[Answer](), list[float]()
        await self.connect(1)

        async def ask(number: int, due_s: float) -> None:
            answers.append(await self._ask(number, due_s))
            free.appendleft(number)

        tasks: list[asyncio.Task[None]] = []
        try:
            for due in arrivals:
                await asyncio.sleep(max(0.0, due - self.now_s()))
                lags.append(max(0.0, self.now_s() - due))
                if not free:
                    failure = f"all {self.most_clients} clients wait for an answer"
                    answers.append(Answer(due_s=due, done_s=self.now_s(), failure=failure))
                    continue
                number = free.popleft()
                try:
                    await self.connect(number + 1)
                except RequestFailed as error:
                    answers.append(Answer(due_s=due, done_s=self.now_s(), failure=str(error)))
                    free.append(number)
                    continue
                tasks.append(asyncio.create_task(ask(number, due)))
            await asyncio.gather(*tasks)
        finally:
            await _cancelled(tasks)
        if lags:
            self.lag_s = max(self.lag_s, sorted(lags)[int(0.99 * (len(lags) - 1))])
        return Window(
            concurrency=0, rate_rps=rate_rps, start_s=begin_s, end_s=begin_s + length_s, answers=tuple(answers)
        )

    async def close(self) -> None:
        """Close all clients and what they share."""
        for client in self._clients:
            with contextlib.suppress(Exception):
                await client.close()
        self._clients.clear()
        await self.target.close()

    async def _ask(self, number: int, due_s: float) -> Answer:
        first_s, failure = None, None
        try:
            first_s = await self._clients[number].request()
        except RequestFailed as error:
            failure = str(error)
            if self.target.sessions:  # a session that has failed is not used again
                with contextlib.suppress(Exception):
                    await self._clients[number].close()
                with contextlib.suppress(RequestFailed):
                    self._clients[number] = await self.target.client()
        return Answer(due_s=due_s, done_s=self.now_s(), first_s=first_s, failure=failure)


async def _cancelled(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
