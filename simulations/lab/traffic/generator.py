"""The load generator: plays schedules against the ingress, open loop: a slow system never slows the load.

`python -m simulations.lab.traffic.generator --config FILE [--start-at SECONDS]`; the configuration is
`GeneratorConfig`. Every stream offers a chunk every `chunk_s` from a random phase on. All of it is decided before the
first item is sent; the generator records by how much it was late. One JSON object per line on standard output says
`started` (with the instant on the monotonic clock), `progress` once a second and `finished`; the last is also written
to `report`.
"""

import argparse
import asyncio
import gc
import json
import signal
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from simulations.lab.host.processes import LOOPBACK
from simulations.lab.net.timers import Timers
from simulations.lab.net.wire import NO_SESSION, Client, Status
from simulations.lab.traffic.ingress import arrival_payload, say
from simulations.scenario.schedule import Schedule, chunk_times

_LEAD_S = 0.2
_PROGRESS_S = 1.0
_BURST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLoad:
    """The load of one pipeline: a schedule written by `Schedule.save`, for the ingress's port.

    `chunk_s` is None for requests; `seed` decides the phases of streams.
    """

    port: int
    schedule: Path
    chunk_s: float | None
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorConfig:
    """One run of `duration_s`; answers are waited for until `drain_s` after its end."""

    duration_s: float
    drain_s: float
    report: Path
    loads: tuple[PipelineLoad, ...]

    def to_json(self) -> str:
        """Write for `from_json`."""
        return _ADAPTER.dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str) -> "GeneratorConfig":
        """Read what `to_json` has written; ValueError names each field that is wrong."""
        try:
            return _ADAPTER.validate_json(text)
        except ValidationError as error:
            raise ValueError(f"generator configuration: {error}") from None


_ADAPTER = TypeAdapter(GeneratorConfig)


class Action(IntEnum):
    """What the generator does at an instant; at the same instant in this order."""

    OPEN = 0
    ITEM = 1
    END = 2


class Event(NamedTuple):
    """`number` is the session's for OPEN and END, from 1; for ITEM the item's, and `session` is the session's or 0."""

    at_s: float
    action: Action
    load: int
    number: int
    session: int


def timeline(schedules: list[Schedule], loads: tuple[PipelineLoad, ...], duration_s: float) -> list[Event]:
    """Return everything that happens in a run, in order. No stream outlasts the run."""
    columns: list[tuple[NDArray[Any], ...]] = []
    for index, (schedule, load) in enumerate(zip(schedules, loads, strict=True)):
        numbers = np.arange(1, len(schedule) + 1)
        if load.chunk_s is None:
            columns.append(_rows(schedule.start_s, Action.ITEM, index, numbers, np.full(len(schedule), NO_SESSION)))
            continue
        times_s, sessions = chunk_times(schedule, load.chunk_s, duration_s, load.seed)
        columns.append(_rows(schedule.start_s, Action.OPEN, index, numbers, numbers))
        columns.append(_rows(times_s, Action.ITEM, index, np.arange(1, len(times_s) + 1), sessions + 1))
        columns.append(_rows(np.minimum(schedule.end_s, duration_s), Action.END, index, numbers, numbers))
    merged = [np.concatenate(column) for column in zip(*columns, strict=True)]
    order = np.lexsort((merged[1], merged[0]))
    rows = zip(*(column[order].tolist() for column in merged), strict=True)
    return [Event(at_s, Action(action), load, number, session) for at_s, action, load, number, session in rows]


def _rows(
    at_s: NDArray[np.float64], action: Action, load: int, numbers: NDArray[np.int64], sessions: NDArray[np.int64]
) -> tuple[NDArray[Any], ...]:
    return at_s, np.full(len(at_s), int(action)), np.full(len(at_s), load), numbers, sessions


class Generator:
    """Plays a timeline; `lags_s` has how late each item was sent."""

    def __init__(self, clients: list[Client], timers: Timers) -> None:
        self._clients = clients
        self._timers = timers
        self.sent = 0
        self.answered = 0
        self.refused = 0
        self.lags_s: list[float] = []
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    async def play(self, events: list[Event], start_s: float) -> None:
        """Do everything at its instant, counted from `start_s` on the monotonic clock.

        Raises:
            ConnectionError: the ingress has gone.
        """
        now_s = time.monotonic()
        for position, event in enumerate(events):
            due_s = start_s + event.at_s
            if due_s > now_s:
                await self._timers.sleep_until(due_s)
                now_s = time.monotonic()
            elif position % _BURST == 0:
                await asyncio.sleep(0)  # late, and yet answers must be read
                now_s = time.monotonic()
            client = self._clients[event.load]
            if client.closed:
                raise ConnectionError("the ingress has closed the connection")
            if event.action is Action.ITEM:
                self.sent += 1
                self._all_answered.clear()
                self.lags_s.append(max(0.0, time.monotonic() - due_s))
                answer = client.send(event.number, event.session, arrival_payload(event.at_s, due_s))
                answer.add_done_callback(self._count)
            elif event.action is Action.OPEN:
                client.open_session(event.number).add_done_callback(_forget)
            else:
                client.end_session(event.number)

    async def drain(self, until_s: float) -> None:
        """Wait until everything is answered, or it is `until_s`."""
        try:
            await asyncio.wait_for(self._all_answered.wait(), max(0.0, until_s - time.monotonic()))
        except TimeoutError:
            return

    def report(self) -> dict[str, Any]:
        """Return what was sent, and how late."""
        lags = self.lags_s or [0.0]
        p50, p99 = np.percentile(lags, (50, 99))
        return {
            "sent": self.sent,
            "answered": self.answered,
            "refused": self.refused,
            "lag_p50_s": float(p50),
            "lag_p99_s": float(p99),
            "lag_max_s": max(lags),
        }

    def _count(self, answer: asyncio.Future[Status]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self.answered += 1
            self.refused += answer.result() is not Status.OK
            if self.answered == self.sent:
                self._all_answered.set()


def _forget(answer: asyncio.Future[Status]) -> None:
    """The ingress keeps the books; whether a stream found its place is nothing to an open loop."""
    if not answer.cancelled():
        answer.exception()


async def run(config: GeneratorConfig, start_at_s: float | None) -> None:
    """Play the run; SIGTERM ends it early. Raises ConnectionError when the ingress goes."""
    loop = asyncio.get_running_loop()
    events = timeline([Schedule.load(load.schedule) for load in config.loads], config.loads, config.duration_s)
    clients = [await Client.connect(LOOPBACK, load.port) for load in config.loads]
    timers = Timers()
    generator = Generator(clients, timers)
    gc.collect()
    gc.freeze()
    start_s = time.monotonic() + _LEAD_S if start_at_s is None else start_at_s
    say("started", monotonic_s=start_s, items=sum(event.action is Action.ITEM for event in events))
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, this.cancel)
    progress = loop.create_task(_tell(generator, start_s))
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


async def _tell(generator: Generator, start_s: float) -> None:
    while True:
        await asyncio.sleep(_PROGRESS_S)
        say("progress", t_s=round(time.monotonic() - start_s, 3), sent=generator.sent, answered=generator.answered)


def main() -> None:
    """Run the generator as a program."""
    parser = argparse.ArgumentParser(prog="python -m simulations.lab.traffic.generator", description="Play load.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--start-at", type=float, help="instant of the run's start on the monotonic clock; default now")
    arguments = parser.parse_args()
    asyncio.run(run(GeneratorConfig.from_json(arguments.config.read_text()), arguments.start_at))


if __name__ == "__main__":
    main()
