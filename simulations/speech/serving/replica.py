"""One replica of a stage of the reference service, as a process.

`python -m simulations.speech.serving.replica STAGE --host ADDRESS …`, with STAGE one of vad, asr and rescore, serves
items on port 7000 in the frames of `simulations.lab.net.wire`, and metrics on port 7001. It ends on SIGTERM, once its
sessions have ended or `--drain` seconds have passed. Standard output has one JSON object per line: `listening` with how
long the start took, and `stopped` with what was served.

Its service times are those of the computation: nothing is drawn. `--share` is its share of a core, which SIGUSR1 makes
a CPU quota of Kubernetes give it, and SIGUSR2 an even stretch again.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import REGISTRY, Gauge
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from profiler.instrument import Arrival, StageMetrics
from simulations.lab.net.wire import (
    ITEM_PORT,
    METRICS_PORT,
    RequestKind,
    Respondent,
    Response,
    ServerConnection,
    Status,
)
from simulations.lab.pods.phase import Phase
from simulations.speech.serving.compute import Share, Stretched, Throttled
from simulations.speech.serving.programs import Program
from simulations.speech.serving.queues import ReadyQueue, Waiting

ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    # Temporaries of batches would be returned to the system and faulted in again, at up to half the time of a batch.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""Environment variables that a replica needs from its start."""

HANDOVER_S = 0.5
"""How long a replica that is ended goes on as before: its clients learn of its end when it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Batches of up to `batch_max` items start when their first item has waited `batch_wait_s`; others are refused
    while `queue_limit` items wait.
    """

    batch_max: int
    batch_wait_s: float
    queue_limit: int = 512


@dataclass(frozen=True, slots=True)
class _Item:
    connection: Respondent
    identifier: int
    payload: bytes
    arrival: Arrival


@dataclass(frozen=True, slots=True)
class QuotaPeriods(Collector):
    """Exports the periods of a CPU quota as cAdvisor in the kubelet does; without a quota there are no series."""

    quota: Callable[[], Throttled | None]

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the counters."""
        if (quota := self.quota()) is not None:
            name, words = "container_cpu_cfs", "periods of the CPU quota"
            yield CounterMetricFamily(f"{name}_periods", f"{words} with work", value=quota.periods)
            yield CounterMetricFamily(f"{name}_throttled_periods", f"{words} that it ended", value=quota.throttled)


class Replica:
    """Serves `program` in batches, within its share of a core; sessions are known by their ids."""

    def __init__(self, program: Program, limits: Limits, share: Share, metrics: StageMetrics) -> None:
        """Create a replica; `serve` runs it, and `share` may change meanwhile."""
        self.served = 0
        self.cut = 0
        self._program = program
        self._limits = limits
        self.share = share
        self._metrics = metrics
        self._queue: ReadyQueue[_Item] = ReadyQueue()
        self._phase = Phase.SERVING
        self._changed = asyncio.Event()
        self._connections: set[ServerConnection] = set()
        self._takers: dict[str, ServerConnection] = {}  # by the session that each waits for
        self._computed: frozenset[str] = frozenset()  # the sessions of the present batch

    @property
    def slots(self) -> int | None:
        """How many sessions there is room for; None where sessions hold no slot."""
        return self._program.slots

    # -- requests, from wire.ServerConnection

    def on_connected(self, connection: ServerConnection) -> None:
        """Keep the connection, to close it at the end."""
        self._connections.add(connection)

    def on_disconnected(self, connection: ServerConnection) -> None:
        """Forget the connection."""
        self._connections.discard(connection)

    def on_item(self, connection: Respondent, item_id: int, session_id: int, payload: bytes) -> None:
        """Queue the item, or refuse it."""
        status = self._admitted(str(session_id))
        if status is Status.OK and len(self._queue) >= self._limits.queue_limit:
            status = Status.REFUSED_QUEUE
        if status is not Status.OK:
            if status is not Status.DRAINING:  # the client sends such an item to another replica, which counts it
                self._metrics.refused()
            connection.respond(RequestKind.ITEM, item_id, status)
            return
        item = _Item(connection, item_id, payload, self._metrics.arrived())
        self._queue.add(Waiting(session=str(session_id), arrived_s=time.monotonic(), content=item))
        self._changed.set()

    def on_open_session(self, connection: ServerConnection, session_id: int, state: bytes) -> None:
        """Give the session a slot before its first item, with the state that it brings, or refuse it."""
        session = str(session_id)
        status, why = self._admitted(session), b""
        if state and status is Status.OK:
            try:
                if not self._program.restore(session, state):
                    why = b"state of another variant"
            except ValueError as error:
                self.on_end_session(session_id)
                status, why = Status.INVALID, str(error).encode()
        connection.respond(RequestKind.OPEN_SESSION, session_id, status, why)

    def on_take_session(self, connection: ServerConnection, session_id: int) -> None:
        """Give up the session, once none of its items is queued or computed."""
        self._takers[str(session_id)] = connection
        self._hand_out()

    def on_end_session(self, session_id: int) -> None:
        """Free the slot of the session."""
        for waiting in self._queue.drop(str(session_id)):
            self._metrics.gone(waiting.content.arrival)
        self._program.close(str(session_id))
        if self._program.slots is not None:
            self._metrics.set_sessions(self._program.sessions)
        self._changed.set()

    def _admitted(self, session: str) -> Status:
        known = self._program.knows(session)
        if self._phase >= Phase.CLOSING or (self._phase is Phase.DRAINING and not known):
            return Status.DRAINING
        opened = self._program.open(session)
        if self._program.slots is not None:
            self._metrics.set_sessions(self._program.sessions)
            if not opened:
                self._metrics.session_refused()
        return Status.OK if opened else Status.REFUSED_SLOT

    # -- service

    async def serve(self) -> None:
        """Serve batches until cancelled."""
        while True:
            await self._due()
            batch = self._queue.take(self._limits.batch_max)
            self._computed = frozenset(waiting.session for waiting in batch)
            with self._metrics.batch([waiting.content.arrival for waiting in batch]):
                begin_s, begin_cpu_s = time.monotonic(), time.thread_time()
                answers = self._program.compute([(waiting.session, waiting.content.payload) for waiting in batch])
                end_s = self.share.end_s(begin_s, time.thread_time() - begin_cpu_s)
                await asyncio.sleep(end_s - time.monotonic())
            for waiting, answer in zip(batch, answers, strict=True):
                self._respond(waiting.content, answer)
            self.served += len(batch)
            self._computed = frozenset()
            self._hand_out()
            self._changed.set()

    async def _due(self) -> None:
        """Wait until a batch is full, or its first item has waited long enough."""
        while True:
            oldest_s, left_s = self._queue.oldest_s, None
            if oldest_s is not None:
                left_s = oldest_s + self._limits.batch_wait_s - time.monotonic()
                if left_s <= 0 or self._queue.ready >= self._limits.batch_max:
                    return
            await self._change(left_s)

    async def _change(self, within_s: float | None) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), within_s)

    def _hand_out(self) -> None:
        """Answer those who take sessions of which no item is left."""
        for session in [own for own in self._takers if own not in self._computed and own not in self._queue]:
            connection = self._takers.pop(session)
            known = self._program.knows(session)
            state = self._program.export(session) if known else b""
            status = Status.OK if known else Status.REFUSED_SLOT
            connection.respond(RequestKind.TAKE_SESSION, int(session), status, state)
            self.on_end_session(int(session))

    @staticmethod
    def _respond(item: _Item, answer: Response) -> None:
        item.connection.respond(RequestKind.ITEM, item.identifier, answer.status, answer.payload)

    # -- the end

    async def drain(self, limit_s: float) -> None:
        """Refuse new sessions, wait for those that there are for `limit_s` seconds, then answer what is queued."""
        self._phase = Phase.DRAINING
        deadline_s = time.monotonic() + limit_s
        await asyncio.sleep(min(HANDOVER_S, limit_s))
        if self._program.slots is not None:
            await self._until(lambda: self._program.sessions == 0, deadline_s)
            self.cut = self._program.sessions
        self._phase = Phase.CLOSING
        await self._until(lambda: not len(self._queue) and not self._computed, None)
        for connection in tuple(self._connections):
            connection.close()

    async def _until(self, done: Callable[[], bool], deadline_s: float | None) -> None:
        while not done():
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            await self._change(left_s)


def program_of(options: argparse.Namespace) -> Program:
    """Return the program of the stage `options.stage`.

    Raises:
        ValueError: an option is not valid.
        ModuleNotFoundError: a package of the extra `speech` is not installed.
    """
    # Each stage imports what it needs: a start is as long, and a replica as large, as its own program.
    if options.stage == "vad":
        from simulations.speech.detection.gate import Gate
        from simulations.speech.serving.programs import DetectionProgram

        if options.detector == "webrtc":
            from simulations.speech.detection.webrtc import WebRtcDetector as Detector
        else:
            from simulations.speech.detection.silero import SileroDetector as Detector  # type: ignore[assignment]
        return DetectionProgram(Gate(Detector()), idle_s=options.idle, clock=time.monotonic)
    if options.stage == "asr":
        from simulations.speech.recognition.encoder import Model
        from simulations.speech.recognition.recogniser import Recogniser
        from simulations.speech.recognition.state_cache import StateCache
        from simulations.speech.serving.programs import RecognitionProgram

        model = Model.load(options.variant)
        cache = StateCache(model.shape, options.slots, idle_s=options.idle, clock=time.monotonic)
        recogniser = Recogniser(model, cache)
        return RecognitionProgram(recogniser, options.variant, slots=options.slots, keeps_past=options.keep_past)
    from simulations.speech.recognition.rescoring import bigrams
    from simulations.speech.serving.programs import RescoringProgram

    bigrams()  # the first utterance must not wait for it
    return RescoringProgram()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="python -m simulations.speech.serving.replica", description=__doc__)
    found.add_argument("stage", choices=("vad", "asr", "rescore"))
    found.add_argument("--host", default=os.environ.get("POD_IP", "127.0.0.1"), help="address to listen on")
    found.add_argument("--detector", choices=("webrtc", "silero"), default="webrtc", help="of vad")
    found.add_argument("--variant", default="small", help="of asr: tiny, small or large")
    found.add_argument("--slots", type=int, default=400, help="of asr: sessions with state at once")
    found.add_argument("--keep-past", action="store_true", help="of asr: sessions grow for as long as they last")
    found.add_argument("--idle", type=float, default=60.0, help="seconds without use after which a slot may be taken")
    found.add_argument("--batch-max", type=int, default=16)
    found.add_argument("--batch-wait", type=float, default=0.01, help="seconds")
    found.add_argument("--queue-limit", type=int, default=512, help="items that wait")
    found.add_argument("--share", type=float, default=1.0, help="share of a core")
    found.add_argument("--throttle", action="store_true", help="limit as a CFS quota of 100 ms does, not evenly")
    found.add_argument("--drain", type=float, default=30.0, help="seconds to wait for sessions to end")
    return found


async def run(options: argparse.Namespace, program: Program, started_s: float) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Raises:
        ValueError: an option is not valid.
        OSError: an address is in use.
    """
    loop, ending = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    metrics = StageMetrics(sessions=program.slots is not None)
    Gauge("speech_stage_session_bytes", "mean memory of a session").set_function(lambda: program.session_bytes)
    limits = Limits(
        batch_max=1 if options.stage == "rescore" else options.batch_max,
        batch_wait_s=options.batch_wait,
        queue_limit=options.queue_limit,
    )
    even, quota = Stretched(options.share), Throttled(options.share)
    replica = Replica(program, limits, quota if options.throttle else even, metrics)
    REGISTRY.register(QuotaPeriods(lambda: quota if replica.share is quota else None))

    def limit(share: Share) -> None:
        replica.share = share

    loop.add_signal_handler(signal.SIGUSR1, limit, quota)
    loop.add_signal_handler(signal.SIGUSR2, limit, even)
    stop_metrics = metrics.serve(METRICS_PORT, options.host)
    server = await loop.create_server(lambda: ServerConnection(replica), options.host, ITEM_PORT)
    serving = loop.create_task(replica.serve())
    ended = loop.create_task(ending.wait())
    say("listening", stage=options.stage, share=options.share, start_s=round(time.monotonic() - started_s, 3))
    await asyncio.wait((serving, ended), return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():  # otherwise it has failed
        await replica.drain(options.drain)
        serving.cancel()
    server.close()
    stop_metrics()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    say("stopped", served=replica.served, sessions_cut=replica.cut)


def say(event: str, **fields: object) -> None:
    """Print an event with its fields as one JSON object on a line."""
    print(json.dumps({"event": event, **fields}), flush=True)


def main() -> None:
    """Run a replica as a program."""
    options = parser().parse_args()
    if not ENVIRONMENT.items() <= os.environ.items():  # libraries read them when they are loaded
        os.environ.update(ENVIRONMENT)
        command = [sys.executable, "-m", "simulations.speech.serving.replica", *sys.argv[1:]]
        os.execv(sys.executable, command)  # noqa: S606 - this program itself
    started_s = time.monotonic()
    try:
        program = program_of(options)
        asyncio.run(run(options, program, started_s))
    except (ValueError, OSError, ModuleNotFoundError) as error:
        sys.exit(f"replica of {options.stage}: {error}")


if __name__ == "__main__":
    main()
