"""Three deployments of Ray Serve: an ingress for WebSockets, voice activity, and recognition of whole utterances.

The layout and the names of the deployments are those of the field's guides, which serve Faster Whisper behind Pyannote;
the models are those of the reference service, which need no GPU. Clients speak as to `simulations.speech.serving`: one
WebSocket per stream, a chunk of audio in each message, a JSON answer to each. The answer to the chunk in which an
utterance ends has its words.

A replica of `PyannoteVAD` and `FasterWhisperASR` has a share of a core (`user_config`), so that few streams fill it.

`import_path: simulations.speech.ray_serve.application:captions`. Needs the extras `speech` and `ray[serve]`.
"""

import asyncio
import json
import math
import threading
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from ray import serve
from ray.serve import metrics
from ray.serve.handle import DeploymentHandle

from simulations.speech.audio.spoken import SAMPLE_RATE
from simulations.speech.detection.gate import HANGOVER_S
from simulations.speech.detection.webrtc import WebRtcDetector
from simulations.speech.recognition.encoder import Model
from simulations.speech.recognition.recogniser import Recogniser
from simulations.speech.recognition.state_cache import StateCache
from simulations.speech.serving.compute import Stretched
from simulations.speech.serving.ingress import decoded
from simulations.speech.serving.messages import Audio, Transcript

LATENCY_BOUNDS_S = (
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    1.0,
    1.1,
    1.2,
    1.3,
    1.4,
    1.5,
    1.75,
    2.0,
    3.0,
    5.0,
    10.0,
)
"""Bounds of the buckets of the time from the end of an utterance to its words, close around SLAs of a second."""
LONGEST_S = 8.0
"""An utterance ends after so many seconds at the latest."""
_REPORT_S = 0.5

Samples = npt.NDArray[np.int16]
app = FastAPI()


class _Limited:
    """A replica with a share of a core: what takes CPU time ends as late as it would on that share."""

    def __init__(self) -> None:
        self._share = Stretched(1.0)

    def reconfigure(self, config: dict[str, float]) -> None:
        """Take the share of a core from `user_config`: {"share": 0.02}."""
        self._share = Stretched(config["share"])

    async def _until_over(self, begin_s: float, cpu_s: float) -> None:
        """Wait until work would be over that began at `begin_s` (monotonic clock) and took `cpu_s` of a whole core."""
        await asyncio.sleep(max(0.0, self._share.end_s(begin_s, cpu_s) - time.monotonic()))


@serve.deployment
class PyannoteVAD(_Limited):
    """Says whether there is speech in chunks. They need no session: any replica may take any chunk."""

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.005)
    async def speech(self, chunks: list[Samples]) -> list[bool]:
        """Return whether each of the chunks has speech."""
        begin_s, cpu_s = time.monotonic(), time.thread_time()
        found = []
        for chunk in chunks:
            detector = WebRtcDetector()
            detector.open("chunk")
            found.append(detector.speech(("chunk",), chunk[None])[0])
        await self._until_over(begin_s, time.thread_time() - cpu_s)
        return found


@serve.deployment
class FasterWhisperASR(_Limited):
    """Recognises whole utterances, one after the other. They need no session."""

    def __init__(self, variant: str = "small") -> None:
        """Load the model of a `variant`."""
        super().__init__()
        model = Model.load(variant)
        self._variant = variant
        self._cache = StateCache(model.shape, 1, idle_s=0.0, clock=time.monotonic)
        self._recogniser = Recogniser(model, self._cache)
        self._busy = asyncio.Lock()

    async def words(self, samples: Samples) -> Sequence[str]:
        """Return the words of an utterance."""
        async with self._busy:
            begin_s, cpu_s = time.monotonic(), time.thread_time()
            self._cache.open("utterance")
            try:
                (found,) = self._recogniser.recognise(("utterance",), samples[None])
            finally:
                self._cache.close("utterance")
            await self._until_over(begin_s, time.thread_time() - cpu_s)
            return [each.word for each in found.words]


class _Utterance:
    """The audio of a stream since its present utterance began; it ends with the hang-over after the last speech."""

    def __init__(self) -> None:
        self._chunks: list[Samples] = []
        self._before: Samples | None = None
        self._silent_s = 0.0

    def add(self, chunk: Samples, *, speech: bool) -> Samples | None:
        """Take the next chunk; return the whole utterance if it ends with it."""
        lasts_s = len(chunk) / SAMPLE_RATE
        if not self._chunks and not speech:
            self._before = chunk
            return None
        if not self._chunks and self._before is not None:
            self._chunks.append(self._before)  # a word may begin before voice activity says so
        self._chunks.append(chunk)
        self._silent_s = 0.0 if speech else self._silent_s + lasts_s
        if self._silent_s < HANGOVER_S and sum(map(len, self._chunks)) < LONGEST_S * SAMPLE_RATE:
            return None
        whole = np.concatenate(self._chunks)
        self._chunks, self._before, self._silent_s = [], None, 0.0
        return whole


@serve.deployment
@serve.ingress(app)
class TranscriptionServer:
    """The ingress: holds the WebSockets, and finds the utterances in their audio."""

    def __init__(self, vad: DeploymentHandle, asr: DeploymentHandle, variant: str = "small") -> None:
        """Take the handles of the two other deployments."""
        self._vad, self._asr, self._variant = vad, asr, variant
        self._chunks = metrics.Counter("captions_chunks", description="Chunks received.")
        self._served = metrics.Counter("captions_chunks_served", description="Chunks answered.")
        self._busy = metrics.Counter("captions_busy_seconds", description="CPU time for chunks.")
        self._streams = metrics.Gauge("captions_streams", description="Open streams.")
        self._latency = metrics.Histogram(
            "captions_latency_seconds",
            description="Time from the end of an utterance to its words.",
            boundaries=list(LATENCY_BOUNDS_S),
        )
        self._open = 0
        self._cpu_s = time.thread_time()
        threading.Thread(target=self._report, daemon=True).start()

    def _report(self) -> None:
        """Set the gauge again and again: Ray 2.60 exports none that was not set since it exported it last."""
        while True:
            self._streams.set(self._open)
            time.sleep(_REPORT_S)

    @app.get("/-/streams")
    async def streams(self) -> int:
        """Return how many streams are open here."""
        return self._open

    @app.websocket("/{stream}")
    async def attend(self, socket: WebSocket, stream: str) -> None:  # noqa: ARG002 - the name is the client's own
        """Serve one stream until its client closes it."""
        await socket.accept()
        self._open += 1
        try:
            await socket.send_text(json.dumps({"admitted": True}))
            utterance, number, answers = _Utterance(), 0, set[asyncio.Task[None]]()
            while True:
                _, due_s, chunk = decoded(await socket.receive_bytes())
                due_s = time.monotonic() if math.isnan(due_s) else due_s
                # Utterances end in their order of arrival, and the words of one must not delay the next chunk.
                speech = await self._vad.speech.remote(Audio.decode(chunk).samples)
                whole = utterance.add(Audio.decode(chunk).samples, speech=speech)
                task = asyncio.create_task(self._answer(socket, number, due_s, whole))
                answers.add(task)
                task.add_done_callback(answers.discard)
                number += 1
                self._chunks.inc()
                now_s = time.thread_time()
                self._busy.inc(max(1e-9, now_s - self._cpu_s))
                self._cpu_s = now_s
        except WebSocketDisconnect:
            pass
        finally:
            self._open -= 1

    async def _answer(self, socket: WebSocket, number: int, due_s: float, whole: Samples | None) -> None:
        answer: dict[str, object] = {"chunk": number, "outcome": "filtered"}
        if whole is not None:
            words = await self._asr.words.remote(whole)
            transcript = Transcript(variant=self._variant, words=tuple(words), confidence=1.0, final=True)
            answer |= {"outcome": "served", "transcript": json.loads(transcript.encode())}
            self._latency.observe(max(0.0, time.monotonic() - due_s))
        self._served.inc()
        try:
            await socket.send_text(json.dumps(answer, separators=(",", ":")))
        except (RuntimeError, WebSocketDisconnect):
            return  # the client has gone


def captions(arguments: dict[str, str]) -> serve.Application:
    """Return the application; `arguments` may name the `variant` of the model."""
    variant = arguments.get("variant", "small")
    return TranscriptionServer.bind(PyannoteVAD.bind(), FasterWhisperASR.bind(variant), variant)
