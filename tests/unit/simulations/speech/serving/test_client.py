"""The whole service in one process: WebSockets, the way through the stages, and replicas on their own addresses."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from loopback import an_address
from prometheus_client import CollectorRegistry
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection as ServerConnectionOfWebSockets
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

from controller.core.state.spec import DemandUnit
from optimizer.model import Routing
from profiler.instrument import StageMetrics
from simulations.lab.host.processes import LOOPBACK, free_ports
from simulations.lab.net.timers import Timers
from simulations.lab.net.wire import ITEM_PORT, ServerConnection
from simulations.lab.traffic.backend import PodState
from simulations.lab.traffic.dataplane import PipelineTraffic
from simulations.lab.traffic.topology import PipelineTopology, PlacementTopology, StageTopology
from simulations.speech.audio.corpus import write_corpus
from simulations.speech.audio.spoken import Conversation
from simulations.speech.audio.synthesis import Request, conversations, pink_noise
from simulations.speech.detection.gate import Gate
from simulations.speech.detection.webrtc import WebRtcDetector
from simulations.speech.recognition.encoder import Model
from simulations.speech.recognition.errors import WordErrors
from simulations.speech.recognition.recogniser import Recogniser
from simulations.speech.recognition.state_cache import StateCache
from simulations.speech.serving.client import Speaker, Speech, StreamResult
from simulations.speech.serving.compute import Stretched
from simulations.speech.serving.ingress import INVALID, TRY_AGAIN_LATER, listen
from simulations.speech.serving.programs import DetectionProgram, Program, RecognitionProgram, RescoringProgram
from simulations.speech.serving.replica import Limits, Replica

CHUNK_S = 0.16
LOCUSTFILE = Path(__file__).parents[5] / "docs" / "how-to" / "locustfile.py"
NOISE = pink_noise(np.random.default_rng(1), 160_000)


@cache
def spoken() -> Sequence[Conversation]:
    return tuple(conversations(Request(seed=seed, duration_s=12.0, activity=0.6, snr_db=80.0) for seed in range(4)))


def recognition(variant: str = "small", slots: int = 8) -> RecognitionProgram:
    model = Model.load(variant)
    cache = StateCache(model.shape, slots, idle_s=60.0, clock=time.monotonic)
    return RecognitionProgram(Recogniser(model, cache), variant, slots=slots)


class Service:
    """The ingress of one pipeline with its replicas, all in this process."""

    def __init__(self, *, carries_state: bool = False) -> None:
        self.timers = Timers()
        (port,) = free_ports(1)
        stages = tuple(
            StageTopology(
                name=name,
                after=after,
                pass_ratio=1.0,
                routing=Routing.STICKY if name != "rescore" else Routing.LEAST_LOADED,
                memory=name == "asr",
                placements=(PlacementTopology(pool="cpu", selector={"app": name}, weight=1, limit=1),),
            )
            for name, after in (("vad", ()), ("asr", ("vad",)), ("rescore", ("asr",)))
        )
        self.pipeline = PipelineTraffic(
            PipelineTopology(
                namespace="speech",
                name="live",
                unit=DemandUnit.STREAMS,
                sla_s=1.0,
                port=port,
                seed=1,
                stages=stages,
                hands_over=True,
                carries_state=carries_state,
            ),
            lambda *_: None,
            self.timers,
        )
        self.url = f"ws://{LOOPBACK}:{port}"
        self.replicas: dict[str, Replica] = {}
        self._stack = contextlib.AsyncExitStack()

    async def add(self, app: str, program: Program) -> str:
        host = an_address()
        metrics = StageMetrics(sessions=program.slots is not None, registry=CollectorRegistry())
        replica = Replica(program, Limits(batch_max=8, batch_wait_s=0.005), Stretched(1.0), metrics)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: ServerConnection(replica), host, ITEM_PORT)
        serving = loop.create_task(replica.serve())
        self._stack.callback(server.close)
        self._stack.callback(serving.cancel)
        self.replicas[host] = replica
        self.tell(app, host, ready=True)
        return host

    def tell(self, app: str, host: str, *, ready: bool) -> None:
        self.pipeline.pod_changed(
            PodState(uid=host, namespace="speech", labels={"app": app}, ip=host, ready=ready, name=host)
        )

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with self._stack:
            listener = await listen(self.pipeline)
            try:
                yield
            finally:
                listener.close()
                self.pipeline.finish()
                self.timers.close()

    async def speak(self, streams: int, duration_s: float) -> Sequence[StreamResult]:
        audio = spoken()
        speeches = [
            Speech(
                number=number,
                conversation=audio[number % len(audio)],
                start_s=CHUNK_S * number / streams,
                end_s=duration_s + CHUNK_S * number / streams,
            )
            for number in range(streams)
        ]
        begin_s = time.monotonic() + 0.1
        return await speak_all(self.url, speeches, begin_s)


async def speak_all(url: str, speeches: Sequence[Speech], begin_s: float) -> Sequence[StreamResult]:
    """Let all streams speak in real time, each from its beginning."""
    speakers = [
        Speaker(url, speech, begin_s=begin_s, chunk_s=CHUNK_S, noise=NOISE, snr_db=lambda _: 30.0)
        for speech in speeches
    ]
    return await asyncio.gather(*(speaker.speak() for speaker in speakers))


def play(use: Callable[[Service], Awaitable[None]], *, carries_state: bool = False) -> None:
    async def run() -> None:
        service = Service(carries_state=carries_state)
        async with service.open(), asyncio.timeout(60):
            await use(service)

    asyncio.run(run())


async def whole(service: Service, slots: int = 8) -> None:
    await service.add("vad", DetectionProgram(Gate(WebRtcDetector()), idle_s=60.0, clock=time.monotonic))
    await service.add("asr", recognition(slots=slots))
    await service.add("rescore", RescoringProgram())


def test_streams_speak_and_words_come_back_while_they_do() -> None:
    async def use(service: Service) -> None:
        await whole(service)
        results = await service.speak(4, 11.9)
        total = sum((each for result in results for each in result.errors.values()), WordErrors())
        outcomes = sum((result.outcomes for result in results), Counter[str]())
        assert total.words > 40
        assert total.rate is not None
        assert total.rate < 0.08
        assert set(outcomes) <= {"served", "filtered", "unanswered"}
        assert outcomes["unanswered"] == 0
        assert outcomes["served"] >= 8, "utterances that came to their end"
        assert outcomes["filtered"] > outcomes["served"]
        assert [result.lost for result in results] == [0] * 4
        assert {kind for result in results for kind in result.errors} == {("30 dB", "small")}
        assert sum(result.answered.total() for result in results) == outcomes["served"] + outcomes["filtered"]
        assert 0.5 < sum(result.passed.total() for result in results) / outcomes.total() < 0.9
        assert {second for result in results for second in result.answered} == set(range(12))
        assert all(latency_s > 0 for result in results for _, latency_s in result.latencies)

    play(use)


def test_a_stream_without_a_slot_is_refused_and_gets_one_later() -> None:
    async def use(service: Service) -> None:
        await whole(service, slots=1)
        async with connect(service.url) as first:
            assert json.loads(await first.recv()) == {"admitted": True}
            async with connect(service.url) as second:
                with pytest.raises(ConnectionClosed) as closed:
                    await second.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == TRY_AGAIN_LATER
            speaking = asyncio.create_task(service.speak(1, 4.0))
            await asyncio.sleep(0.5)
        (result,) = await speaking
        assert result.attempts >= 2
        assert result.lost == 0
        assert result.outcomes["refused"] > 0
        assert result.outcomes["filtered"] > 0

    play(use)


def test_a_stream_that_tries_again_counts_once_in_the_demand() -> None:
    async def use(service: Service) -> None:
        await whole(service, slots=1)
        demand = service.pipeline.tally
        async with connect(service.url) as first:
            await first.recv()
            assert demand.active_streams == 1
            for path, expected in (("/a", 2), ("/a", 2), ("/b", 3), ("/a", 3), ("", 4), ("", 5)):
                async with connect(service.url + path) as other:
                    with pytest.raises(ConnectionClosed):
                        await other.recv()
                assert demand.active_streams == expected, path
        async with connect(service.url + "/a") as again:
            while "admitted" not in str(await again.recv()):
                pass
            assert demand.active_streams == 4, "the first has ended, and /a is served"

    play(use)


@pytest.mark.parametrize("message", ["hello", b"", bytes(100)])
def test_a_client_that_sends_something_else_is_told_what_is_wrong(message: str | bytes) -> None:
    async def use(service: Service) -> None:
        await whole(service)
        async with connect(service.url) as connection:
            await connection.recv()
            await connection.send(message)
            with pytest.raises(ConnectionClosed) as closed:
                await connection.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == INVALID
            assert closed.value.rcvd.reason.startswith("chunk: ")

    play(use)


def test_a_stream_whose_connection_is_cut_counts_each_of_its_chunks_once() -> None:
    async def run() -> None:
        async def cut(connection: ServerConnectionOfWebSockets) -> None:
            await connection.send("{}")
            for _ in range(5):
                await connection.recv()
            await connection.close(1011)

        async with serve(cut, LOOPBACK, 0) as server, asyncio.timeout(30):
            port = server.sockets[0].getsockname()[1]
            speech = Speech(number=0, conversation=spoken()[0], start_s=0.0, end_s=4.0)
            (result,) = await speak_all(f"ws://{LOOPBACK}:{port}", [speech], time.monotonic())
        assert result.lost >= 1
        assert result.outcomes["unanswered"] >= 5
        assert result.outcomes.total() == 25

    asyncio.run(run())


def test_a_plain_request_is_answered_so_that_the_port_can_be_probed() -> None:
    async def use(service: Service) -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK, int(service.url.rsplit(":", 1)[1]))
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()

    play(use)


def test_a_stream_goes_on_at_another_replica_when_its_own_ends() -> None:
    async def use(service: Service) -> None:
        await whole(service)
        (asr,) = [host for host, replica in service.replicas.items() if replica.slots is not None]
        speaking = asyncio.create_task(service.speak(2, 8.0))
        await asyncio.sleep(2.0)
        await service.add("asr", recognition())
        await service.replicas[asr].drain(0.2)  # less than the streams last
        results = await speaking
        assert service.replicas[asr].cut == 2
        assert service.pipeline.tally.recoveries.sessions_cut == 2
        for result in results:
            assert result.lost == 0
            assert result.outcomes["unanswered"] == 0
            assert result.outcomes["lost"] == 0

    play(use)


@pytest.mark.parametrize(
    ("variant", "carried"), [("small", True), pytest.param("tiny", False, marks=pytest.mark.extended)]
)
def test_a_stream_that_moves_carries_its_state_unless_the_other_replica_has_another_model(
    variant: str, carried: bool
) -> None:
    async def use(service: Service) -> None:
        await whole(service)
        (here,) = [host for host, replica in service.replicas.items() if replica.slots is not None]
        speaking = asyncio.create_task(service.speak(4, 11.9))
        there = await service.add("asr", recognition(variant))
        for leaving, staying in ((here, there), (there, here)) * 3:  # back and forth, in the middle of words too
            await asyncio.sleep(1.6)
            service.tell("asr", staying, ready=True)
            service.tell("asr", leaving, ready=False)
            service.pipeline.rebalance({})
        results = await speaking
        recoveries = service.pipeline.tally.recoveries
        total = sum((each for result in results for each in result.errors.values()), WordErrors())
        assert recoveries.sessions_cut == 0
        assert (recoveries.moved_carried > 8, recoveries.moved_empty > 8) == (carried, not carried)
        assert sum(result.lost + result.outcomes["unanswered"] + result.outcomes["lost"] for result in results) == 0
        assert total.rate is not None
        assert total.rate < (0.08 if carried else 0.2)  # carried: as without any move

    play(use, carries_state=True)


def test_locust_counts_words_and_silence_from_when_each_chunk_was_due(tmp_path: Path) -> None:
    async def use(service: Service) -> None:
        await whole(service)
        write_corpus(tmp_path, spoken())
        options = ["--headless", "-u", "4", "-r", "4", "-t", "6s", "--json", "--host", service.url]
        locust = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *options),
            env={**os.environ, "CORPUS": str(tmp_path)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await locust.communicate()
        assert locust.returncode == 0, errors.decode()
        stats = {own["name"]: own for own in json.loads(out)}
        assert stats.keys() == {"words", "silence"}
        assert all(own["num_failures"] == 0 for own in stats.values())
        assert sum(own["num_requests"] for own in stats.values()) > 60
        assert 0 < stats["words"]["max_response_time"] < 5000

    play(use)
