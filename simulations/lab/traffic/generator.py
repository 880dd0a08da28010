"""The load generator: replays schedules against the ingress in an open loop; a slow system gets the same load.

`python -m simulations.lab.traffic.generator --config FILE [--start-at SECONDS]`, with a file of `GeneratorConfig`.

Every stream offers a chunk every `chunk_s` seconds, the first at a random time within its first `chunk_s`. All times
are fixed before the first item is sent, and the generator records how late it sends each item.

A stream that is shed or refused tries again to be admitted, after the delays of `draws.reconnect_delay_s`, until it is
admitted or has ended. It offers its chunks in the meantime too.

Standard output has one JSON object per line: `started` (with the start of the run on the monotonic clock), `progress`
once a second, and `finished`, which is also written to the file `report`.
"""

import argparse
import asyncio
import gc
import json
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulations.engine.draws import reconnect_delay_s
from simulations.lab.host.processes import LOOPBACK
from simulations.lab.net.timers import Timers
from simulations.lab.net.wire import NO_SESSION, Client, Response, Status
from simulations.lab.traffic.configuration import Configuration
from simulations.lab.traffic.ingress import arrival_payload, say
from simulations.scenario.schedule import Schedule, chunk_times

_LEAD_S = 0.2
_PROGRESS_S = 1.0
_BURST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLoad:
    """The load of one pipeline, sent to `port` of the ingress; `schedule` is a file that `Schedule.save` wrote.

    A stream sends an item every `chunk_s` seconds, the first at a random time within its first chunk. `chunk_s` is None
    for requests. `reconnects` says whether a stream that is shed or refused tries again. `seed` is for the times of
    first chunks and for the delays between attempts.
    """

    port: int
    schedule: Path
    chunk_s: float | None
    seed: int
    reconnects: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorConfig(Configuration):
    """The configuration of one run of `duration_s` seconds with the `loads` of all pipelines.

    After its end the generator waits for answers, for at most `drain_s` seconds; then it writes its results to
    `report`.
    """

    NAME: ClassVar[str] = "generator configuration"

    duration_s: float
    drain_s: float
    report: Path
    loads: tuple[PipelineLoad, ...]


class LoadAction(IntEnum):
    """The kinds of events; events at the same time happen in this order."""

    OPEN = 0
    ITEM = 1
    END = 2


class Event(NamedTuple):
    """An event `at_s` seconds after the run began, for the pipeline with the index `load`.

    For OPEN and END, `number` and `session` are both the number of the session, from 1. For ITEM, `number` is the
    number of the item, and `session` that of its session, or `NO_SESSION` for a request.
    """

    at_s: float
    action: LoadAction
    load: int
    number: int
    session: int


def timeline(schedules: list[Schedule], loads: tuple[PipelineLoad, ...], duration_s: float) -> list[Event]:
    """Return all events of a run, in order of time; every stream ends at `duration_s` at the latest."""
    columns: list[tuple[NDArray[Any], ...]] = []
    for index, (schedule, load) in enumerate(zip(schedules, loads, strict=True)):
        numbers = np.arange(1, len(schedule) + 1)
        if load.chunk_s is None:
            columns.append(_rows(schedule.start_s, LoadAction.ITEM, index, numbers, np.full(len(schedule), NO_SESSION)))
            continue
        times_s, sessions = chunk_times(schedule, load.chunk_s, duration_s, load.seed)
        columns.append(_rows(schedule.start_s, LoadAction.OPEN, index, numbers, numbers))
        columns.append(_rows(times_s, LoadAction.ITEM, index, np.arange(1, len(times_s) + 1), sessions + 1))
        columns.append(_rows(np.minimum(schedule.end_s, duration_s), LoadAction.END, index, numbers, numbers))
    merged = [np.concatenate(column) for column in zip(*columns, strict=True)]
    order = np.lexsort((merged[1], merged[0]))
    rows = zip(*(column[order].tolist() for column in merged), strict=True)
    return [Event(at_s, LoadAction(action), load, number, session) for at_s, action, load, number, session in rows]


def _rows(
    at_s: NDArray[np.float64], action: LoadAction, load: int, numbers: NDArray[np.int64], sessions: NDArray[np.int64]
) -> tuple[NDArray[Any], ...]:
    return at_s, np.full(len(at_s), int(action)), np.full(len(at_s), load), numbers, sessions


class Generator:
    """Replays events, with one client per pipeline; counts items, and keeps the lag of each item in `lags_s`."""

    def __init__(self, clients: Sequence[Client], loads: Sequence[PipelineLoad], timers: Timers) -> None:
        """`clients` and `loads` are those of the pipelines, in the order of the events' index `load`."""
        self._clients = clients
        self._loads = loads
        self._timers = timers
        self._streams: set[tuple[int, int]] = set()  # load and number of the sessions that have begun and not ended
        self.sent = 0
        self.answered = 0
        self.refused = 0
        self.lags_s: list[float] = []
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    async def play(self, events: list[Event], start_s: float) -> None:
        """Send the items and sessions of `events`, whose times count from `start_s` (seconds, monotonic clock).

        Raises:
            ConnectionError: the ingress has closed the connection.
        """
        now_s = time.monotonic()
        for position, event in enumerate(events):
            due_s = start_s + event.at_s
            if due_s > now_s:
                await self._timers.sleep_until(due_s)
                now_s = time.monotonic()
            elif position % _BURST == 0:
                await asyncio.sleep(0)  # answers must be read even when the generator is late
                now_s = time.monotonic()
            client = self._clients[event.load]
            if client.closed:
                raise ConnectionError("the ingress has closed the connection")
            if event.action is LoadAction.ITEM:
                self.sent += 1
                self._all_answered.clear()
                self.lags_s.append(max(0.0, time.monotonic() - due_s))
                answer = client.send(event.number, event.session, arrival_payload(event.at_s, due_s))
                answer.add_done_callback(self._count)
            elif event.action is LoadAction.OPEN:
                self._streams.add((event.load, event.number))
                self._ask(event.load, event.number, 1)
            else:
                self._streams.discard((event.load, event.number))
                client.end_session(event.number)

    async def drain(self, until_s: float) -> None:
        """Wait until all items are answered, but not after `until_s` (seconds, monotonic clock)."""
        try:
            await asyncio.wait_for(self._all_answered.wait(), max(0.0, until_s - time.monotonic()))
        except TimeoutError:
            return

    def report(self) -> dict[str, Any]:
        """Return the counts of items sent, answered and refused, and p50, p99 and maximum of the lag in seconds."""
        counts = {"sent": self.sent, "answered": self.answered, "refused": self.refused}
        return {**counts, **lag_report(self.lags_s)}

    def _ask(self, load: int, session: int, attempt: int) -> None:
        """Ask the ingress to admit a stream; if it does not, ask again after a delay, until the stream ends."""

        def answered(answer: asyncio.Future[Response]) -> None:
            if answer.cancelled() or answer.exception() is not None or answer.result().status is Status.OK:
                return
            if self._loads[load].reconnects:
                delay_s = reconnect_delay_s(self._loads[load].seed, session, attempt)
                self._timers.call_at(time.monotonic() + delay_s, again)

        def again() -> None:
            if (load, session) in self._streams:
                self._ask(load, session, attempt + 1)

        self._clients[load].open_session(session).add_done_callback(answered)

    def _count(self, answer: asyncio.Future[Response]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self.answered += 1
            self.refused += answer.result().status is not Status.OK
            if self.answered == self.sent:
                self._all_answered.set()


def lag_report(lags_s: Sequence[float]) -> dict[str, float]:
    """Return p50, p99 and maximum of how late items were sent, in seconds; 0 without items."""
    lags_s = lags_s or [0.0]
    p50_s, p99_s = np.percentile(lags_s, (50, 99)).tolist()
    return {"lag_p50_s": p50_s, "lag_p99_s": p99_s, "lag_max_s": max(lags_s)}


def arguments(module: str, description: str) -> argparse.Namespace:
    """Return the arguments of a program that loads the ingress: `config`, a file, and `start_at`, seconds or None."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--start-at", type=float, help="start of the run on the monotonic clock, in s; default: now")
    return parser.parse_args()


async def run(config: GeneratorConfig, start_at_s: float | None) -> None:
    """Replay the loads of `config`, write the report and end; SIGTERM or SIGINT ends the run early.

    `start_at_s` is the start of the run on the monotonic clock, None for almost immediately.

    Raises:
        ConnectionError: the ingress has closed the connection.
    """
    loop = asyncio.get_running_loop()
    events = timeline([Schedule.load(load.schedule) for load in config.loads], config.loads, config.duration_s)
    clients = [await Client.connect(LOOPBACK, load.port) for load in config.loads]
    timers = Timers()
    generator = Generator(clients, config.loads, timers)
    reconnect_delay_s(0, 1, 1)  # loads the compiled function: the first refused stream must not delay items
    gc.collect()
    gc.freeze()
    start_s = time.monotonic() + _LEAD_S if start_at_s is None else start_at_s
    say("started", monotonic_s=start_s, items=sum(event.action is LoadAction.ITEM for event in events))
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, this.cancel)
    progress = loop.create_task(_report_progress(generator, start_s))
    interrupted = False
    try:
        await generator.play(events, start_s)
        await timers.sleep_until(start_s + config.duration_s)
        await generator.drain(start_s + config.duration_s + config.drain_s)
    except asyncio.CancelledError:
        interrupted = True
    finally:
        progress.cancel()
        report = {"started_monotonic_s": start_s, "interrupted": interrupted, **generator.report()}
        config.report.write_text(json.dumps(report, indent=1))
        say("finished", **report)
        for client in clients:
            client.close()
        timers.close()


async def _report_progress(generator: Generator, start_s: float) -> None:
    while True:
        await asyncio.sleep(_PROGRESS_S)
        say("progress", t_s=round(time.monotonic() - start_s, 3), sent=generator.sent, answered=generator.answered)


def main() -> None:
    """Run the generator as a program."""
    given = arguments("simulations.lab.traffic.generator", "Replay load against the ingress.")
    asyncio.run(run(GeneratorConfig.from_json(given.config.read_text()), given.start_at))


if __name__ == "__main__":
    main()
