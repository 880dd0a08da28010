"""The reference service by itself: its laws, its start, its word errors, and 400 streams of the large model.

    python tests/bench/bench_speech.py [--streams 400] [--seconds 20] [--json FILE]

The law of a variant is the CPU time of a batch of chunks, fitted to sizes from 1 to 16 twice: back to back, and with a
gap before each batch in which the caches cool down, as behind a gentle load. The streams go over WebSockets through the
ingress to replicas with a whole core each; beside them the same streams go to an echo of the package websockets alone,
which is what the transport and the client cost. Word error rates are of a closed domain of about a hundred words: they
show changes of this service, and say nothing of other speech.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import psutil
from websockets.asyncio.server import ServerConnection, serve

from controller.commands.terminal import Page
from controller.core.state.spec import DemandUnit
from optimizer.model import Routing
from simulations.lab.host.processes import LOOPBACK, free_ports
from simulations.lab.net.timers import Timers
from simulations.lab.net.wire import ITEM_PORT
from simulations.lab.traffic.backend import PodState
from simulations.lab.traffic.dataplane import PipelineTraffic
from simulations.lab.traffic.generator import GeneratorConfig, PipelineLoad
from simulations.lab.traffic.topology import PipelineTopology, PlacementTopology, StageTopology
from simulations.scenario.schedule import Schedule
from simulations.speech.audio.corpus import write_corpus
from simulations.speech.audio.spoken import SAMPLE_RATE, Conversation
from simulations.speech.audio.synthesis import Request, conversations
from simulations.speech.audio.texts import ENTITIES
from simulations.speech.live.load import SpeechConfig, read_heard
from simulations.speech.recognition.encoder import VARIANTS, Model
from simulations.speech.recognition.errors import WordErrors, word_errors
from simulations.speech.recognition.recogniser import Recogniser
from simulations.speech.recognition.state_cache import StateCache
from simulations.speech.serving.ingress import listen
from simulations.speech.serving.replica import ENVIRONMENT

CHUNK_S = 0.16
SIZES = (1, 2, 4, 8, 16)
ROUNDS = 40
GAP_S = 0.02
SNRS_DB = (30.0, 8.0)
_DRAIN_S = 3.0
_READY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The CPU time of a batch of b chunks, fixed + per_item × b, in ms; `worst` is the largest error of a size."""

    variant: str
    how: str
    fixed_ms: float
    per_item_ms: float
    worst: float


def main_law(variant: str, gap_s: float) -> Law:
    """Return the law of a variant, measured with `gap_s` between batches."""
    recogniser, audio = _recogniser(variant, 16), np.random.default_rng(1)
    chunk = (audio.standard_normal((16, round(CHUNK_S * SAMPLE_RATE))) * 1000).astype(np.int16)
    sessions = [str(number) for number in range(16)]
    for session in sessions:
        recogniser.cache.open(session)
    recogniser.recognise(sessions, chunk)  # the first call loads libraries
    means = []
    for size in SIZES:
        taken = []
        for _ in range(ROUNDS):
            if gap_s:
                _cool_down(gap_s)
            began = time.thread_time()
            recogniser.recognise(sessions[:size], chunk[:size])
            taken.append(time.thread_time() - began)
        means.append(1000 * float(np.median(taken)))
    slope, fixed = np.polyfit(SIZES, means, 1, w=1 / np.array(means))
    fitted = fixed + slope * np.array(SIZES)
    how = "back to back" if not gap_s else f"{1000 * gap_s:g} ms between batches"
    worst = float(np.max(np.abs(fitted / means - 1)))
    return Law(variant=variant, how=how, fixed_ms=float(fixed), per_item_ms=float(slope), worst=worst)


def _cool_down(gap_s: float) -> None:
    """Do something else for a while, as other processes on a core do."""
    until_s = time.monotonic() + gap_s
    while time.monotonic() < until_s:
        _OTHER.sum()


_OTHER = np.ones(4_000_000, dtype=np.float32)


def _recogniser(variant: str, slots: int) -> Recogniser:
    model = Model.load(variant)
    return Recogniser(model, StateCache(model.shape, slots, idle_s=60.0, clock=time.monotonic))


def word_error_rates(seconds: float) -> Iterator[tuple[str, float, WordErrors, WordErrors]]:
    """Yield variant, SNR in dB, errors, and those of names and digits alone, without voice activity detection."""
    for snr_db in SNRS_DB:
        spoken = tuple(conversations(Request(seed=9000 + k, duration_s=seconds, snr_db=snr_db) for k in range(12)))
        for variant in VARIANTS:
            yield variant, snr_db, *errors_of(variant, spoken)


def errors_of(variant: str, spoken: Sequence[Conversation]) -> tuple[WordErrors, WordErrors]:
    """Return the errors of one variant over conversations of one length, heard chunk by chunk; and those of entities.

    Those of entities are the errors where the other words are left out of what was said and of what was heard.
    """
    recogniser, chunk = _recogniser(variant, len(spoken)), round(CHUNK_S * SAMPLE_RATE)
    sessions = [str(number) for number in range(len(spoken))]
    heard: list[list[str]] = [[] for _ in spoken]
    for session in sessions:
        recogniser.cache.open(session)
    samples = np.stack([own.samples for own in spoken])
    for place in range(0, samples.shape[1] - chunk + 1, chunk):
        for words, found in zip(heard, recogniser.recognise(sessions, samples[:, place : place + chunk]), strict=True):
            words += [word.word for word in found.words]
    said = [[word.text for word in own.words] for own in spoken]
    pairs = list(zip(said, heard, strict=True))
    of_entities = [([w for w in own if w in ENTITIES], [w for w in words if w in ENTITIES]) for own, words in pairs]
    return sum((word_errors(*pair) for pair in pairs), WordErrors()), sum(
        (word_errors(*pair) for pair in of_entities), WordErrors()
    )


@contextlib.contextmanager
def replica(variant: str) -> Iterator[tuple[str, subprocess.Popen[str], float]]:
    """Run a replica with a whole core, and yield its address, its process, and how long it took to listen."""
    host = f"127.{np.random.default_rng().integers(2, 250)}.77.7"
    command = [sys.executable, "-m", "simulations.speech.serving.replica", "asr", "--host", host, "--variant", variant]
    began_s = time.monotonic()
    with subprocess.Popen(
        [*command, "--slots", "1000", "--drain", "0"],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield host, process, time.monotonic() - began_s
        finally:
            process.terminate()
            process.communicate()


@contextlib.asynccontextmanager
async def through_the_ingress(hosts: Sequence[str], port: int) -> AsyncIterator[None]:
    """Serve streams on `port` in this process, by the replicas on `hosts`."""
    placement = PlacementTopology(pool="cpu", selector={"app": "asr"}, weight=1.0, limit=1)
    stage = StageTopology(
        name="asr", after=(), pass_ratio=1.0, routing=Routing.STICKY, memory=True, placements=(placement,)
    )
    topology = PipelineTopology(
        namespace="speech", name="bench", unit=DemandUnit.STREAMS, sla_s=1.0, port=port, seed=1, stages=(stage,)
    )
    timers = Timers()
    pipeline = PipelineTraffic(topology, lambda *_: None, timers)
    for host in hosts:
        pod = PodState(uid=host, namespace="speech", labels={"app": "asr"}, ip=host, ready=True, name=host)
        pipeline.pod_changed(pod)
    listener = await listen(pipeline)
    try:
        yield
    finally:
        listener.close()
        pipeline.finish()
        timers.close()


async def _echo(connection: ServerConnection) -> None:
    await connection.send("{}")
    nothing = '{"variant":"echo","words":[],"confidence":1.0,"final":false}'
    number = 0
    async for _ in connection:
        await connection.send(f'{{"chunk":{number},"outcome":"filtered","transcript":{nothing}}}')
        number += 1


def _serve_echo(port: int) -> None:
    async def run() -> None:
        async with serve(_echo, LOOPBACK, port, compression=None):
            await asyncio.Future()

    asyncio.run(run())


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """What streams got: percentiles of the time from when a chunk was due to its answer, and cores that were busy."""

    what: str
    p50_s: float
    p95_s: float
    p99_s: float
    lag_p99_s: float
    lost: int
    chunks_per_s: float
    cores: Mapping[str, float]


async def speak(what: str, port: int, streams: int, seconds: float, folder: Path, pids: Mapping[str, int]) -> Streams:
    """Let `streams` speak for `seconds`, by a process of their own, and return what they got."""
    schedule = folder / "schedule.npz"
    Schedule(start_s=np.zeros(streams), end_s=np.full(streams, seconds)).save(schedule)
    report = folder / f"{what}.json"
    load = PipelineLoad(port=port, schedule=schedule, chunk_s=CHUNK_S, seed=1)
    generator = GeneratorConfig(duration_s=seconds, drain_s=_DRAIN_S, report=report, loads=(load,))
    config = folder / f"{what}-config.json"
    answered_for = SpeechConfig(streams=generator, corpus=folder / "corpus", snr_db=((0.0, 30.0),))
    config.write_text(answered_for.to_json())
    command = [sys.executable, "-m", "simulations.speech.live.load", "--config", str(config)]
    client = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    busy = {name: psutil.Process(pid) for name, pid in {**pids, "client": client.pid}.items()}
    await asyncio.sleep(3.0)  # connected, and past the first chunks
    before_s = {name: _cpu_s(process) for name, process in busy.items()}
    began_s = time.monotonic()
    await asyncio.sleep(max(1.0, seconds - 5.0))
    length_s = time.monotonic() - began_s
    cores = {name: (_cpu_s(process) - before_s[name]) / length_s for name, process in busy.items()}
    await client.wait()
    found, document = read_heard(report), json.loads(report.read_text())
    return Streams(
        what=what,
        p50_s=found.p50_s or 0.0,
        p95_s=found.p95_s or 0.0,
        p99_s=found.p99_s or 0.0,
        lag_p99_s=document["lag_p99_s"],
        lost=found.streams_lost + found.outcomes.get("lost", 0) + found.outcomes.get("unanswered", 0),
        chunks_per_s=streams / CHUNK_S,
        cores=cores,
    )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def of_streams(streams: int, replicas: int, seconds: float, folder: Path) -> Sequence[Streams]:
    """Return what streams got of an echo, then of replicas of the large model."""
    write_corpus(folder / "corpus", tuple(conversations(Request(seed=k, snr_db=80.0) for k in range(8))))
    port, echo_port = free_ports(2)
    echo = multiprocessing.get_context("spawn").Process(target=_serve_echo, args=(echo_port,), daemon=True)
    echo.start()
    await asyncio.sleep(1.5)
    assert echo.pid is not None
    first = await speak("echo", echo_port, streams, seconds, folder, {"server": echo.pid})
    echo.terminate()
    async with contextlib.AsyncExitStack() as stack:
        started = [stack.enter_context(replica("large")) for _ in range(replicas)]
        await stack.enter_async_context(through_the_ingress([host for host, *_ in started], port))
        pids = {f"replica {number}": process.pid for number, (_, process, _) in enumerate(started, start=1)}
        return first, await speak("large", port, streams, seconds, folder, {"ingress": os.getpid(), **pids})


def first_chunk_s(host: str) -> float:
    """Return the time from the connection to the answer of the first chunk, of a replica that has served nothing."""
    from simulations.lab.net.wire import Client
    from simulations.speech.serving.messages import Audio

    async def ask() -> float:
        began_s = time.monotonic()
        client = await Client.connect(host, ITEM_PORT)
        await client.open_session(1)
        await client.send(1, 1, Audio(np.zeros(round(CHUNK_S * SAMPLE_RATE), dtype=np.int16)).encode())
        client.close()
        return time.monotonic() - began_s

    return asyncio.run(ask())


@click.command()
@click.option("--streams", type=click.IntRange(1), default=400, show_default=True)
@click.option("--replicas", type=click.IntRange(1), default=2, show_default=True, help="of the large model")
@click.option("--seconds", type=click.FloatRange(8), default=20.0, show_default=True)
@click.option("--json", "document", type=click.Path(path_type=Path), help="also write the results here")
def main(streams: int, replicas: int, seconds: float, document: Path | None) -> None:
    """Print the laws, starts, word errors and streams of the reference service."""
    os.environ.update(ENVIRONMENT)
    page = Page()
    laws = [main_law(variant, gap_s) for variant in VARIANTS for gap_s in (0.0, GAP_S)]
    page.say("CPU time of a batch of chunks of 160 ms", style="bold")
    page.table(
        ("variant", "batches", ">fixed ms", ">per chunk ms", ">worst size"),
        [(own.variant, own.how, f"{own.fixed_ms:.2f}", f"{own.per_item_ms:.3f}", f"{own.worst:.0%}") for own in laws],
    )
    starts = []
    for variant in VARIANTS:
        with replica(variant) as (host, _, listens_s):
            starts.append((variant, f"{listens_s:.2f} s", f"{1000 * first_chunk_s(host):.0f} ms"))
    page.say("Start of a replica", style="bold")
    page.table(("variant", ">listens after", ">first chunk"), starts)
    rates = list(word_error_rates(30.0))
    page.say("Word errors of a closed domain: a regression instrument, not a claim", style="bold")
    page.table(
        ("variant", ">signal to noise", ">word error rate", ">words", ">names and digits", ">of them"),
        [
            (variant, f"{snr:g} dB", f"{own.rate or 0:.1%}", f"{own.words}", f"{part.rate or 0:.1%}", f"{part.words}")
            for variant, snr, own, part in rates
        ],
    )
    with tempfile.TemporaryDirectory(prefix="sluice-speech-") as name:
        echo, large = asyncio.run(of_streams(streams, replicas, seconds, Path(name)))
    page.say(f"{streams} streams, {large.chunks_per_s:.0f} chunks/s, {replicas} replicas", style="bold")
    page.table(
        ("server", ">p50 ms", ">p95 ms", ">p99 ms", ">sent late p99 ms", ">lost", "busy cores"),
        [
            (
                own.what,
                *(f"{1000 * value:.1f}" for value in (own.p50_s, own.p95_s, own.p99_s, own.lag_p99_s)),
                f"{own.lost}",
                ", ".join(f"{who} {cores:.2f}" for who, cores in own.cores.items()),
            )
            for own in (echo, large)
        ],
    )
    total = [sum(own.cores.values()) for own in (echo, large)]
    page.say(f"large over echo: p95 {large.p95_s / echo.p95_s:.1f} times, busy cores {total[1] / total[0]:.1f} times")
    if document is not None:
        found = {
            "laws": [
                {name: getattr(own, name) for name in ("variant", "how", "fixed_ms", "per_item_ms")} for own in laws
            ],
            "p95_s": {own.what: own.p95_s for own in (echo, large)},
        }
        document.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
