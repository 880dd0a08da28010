"""An open-loop client of the reference service: speaks conversations in real time, and scores the words that come back.

A chunk is due once it has been spoken, whatever became of the chunks before it, and its latency counts from then: a
slow service gets the same load, and its queues are part of what users wait for. A stream that is refused tries again
later and loses what it says meanwhile.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from simulations.speech.audio.spoken import LEVEL, SAMPLE_RATE, Conversation
from simulations.speech.recognition.errors import WordErrors, word_errors_by
from simulations.speech.serving.ingress import TRY_AGAIN_LATER, encoded
from simulations.speech.serving.messages import Audio, Transcript

_OPEN_S = 10.0
_SETTLE_S = 5.0

Snr = Callable[[float], float]
"""From seconds since the beginning of a run to the signal-to-noise ratio in dB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """One stream: it says `conversation` from `begin_s` in it on, over and over, from `start_s` to `end_s` of a run."""

    number: int
    conversation: Conversation
    start_s: float
    end_s: float
    begin_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class StreamResult:
    """What became of a stream.

    `outcomes` counts its chunks: those of the ingress, `refused` while it had no connection, `unanswered` at its end.
    `answered` and `passed` count those with an answer, and those of them that voice activity let pass, by the second of
    the run in which they were due. `latencies` are those of chunks with a transcript: when in the run each was due,
    and how long it took from then, in seconds; `lags_s` says how late each was sent. `said` are the words of its audio
    that was accepted, with the noise in them as in "8 dB", `heard` those that came back, with the variant that heard
    them. `lost` is how often the service ended its connection, and `attempts` how often it connected.
    """

    number: int
    outcomes: Counter[str] = field(default_factory=Counter)
    answered: Counter[int] = field(default_factory=Counter)
    passed: Counter[int] = field(default_factory=Counter)
    latencies: list[tuple[float, float]] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    said: list[tuple[str, str]] = field(default_factory=list)
    heard: list[tuple[str, str]] = field(default_factory=list)
    lost: int = 0
    attempts: int = 0

    @property
    def errors(self) -> Mapping[tuple[str, str], WordErrors]:
        """Return the word errors by noise and model."""
        return word_errors_by(self.said, self.heard)


Hear = Callable[[int, Transcript], None]
"""Takes the number of a stream, and what was heard of its present utterance."""


def _ignore(_: int, __: Transcript) -> None:
    return


def snr_words(snr_db: float) -> str:
    """Return the name of a noise, as in "8 dB"."""
    return f"{snr_db:g} dB"


class Speaker:
    """Speaks one stream to the service at `url`."""

    def __init__(
        self,
        url: str,
        speech: Speech,
        *,
        begin_s: float,
        chunk_s: float,
        noise: npt.NDArray[np.float32],
        snr_db: Snr,
        hear: Hear = _ignore,
    ) -> None:
        """Prepare a stream of a run that begins at `begin_s` of the monotonic clock; `noise` has power 1."""
        self.result = StreamResult(number=speech.number)
        self._url = f"{url}/stream-{speech.number}"  # the same at every attempt
        self._speech = speech
        self._begin_s = begin_s
        self._chunk = round(chunk_s * SAMPLE_RATE)
        self._noise = noise
        self._snr_db = snr_db
        self._hear = hear
        self._place = 0  # of the next chunk in the stream
        self._first = round(speech.begin_s * SAMPLE_RATE) // self._chunk  # that chunk in the conversation
        self._waiting: dict[int, float] = {}  # when chunks without an answer were due, by number in the connection
        self._partial: Sequence[tuple[str, str]] = ()
        self._settled = asyncio.Event()

    async def speak(self) -> StreamResult:
        """Speak from the beginning of the stream to its end, and return what became of it."""
        await asyncio.sleep(self._begin_s + self._speech.start_s - time.monotonic())
        while not self._over(self._place):
            self.result.attempts += 1
            try:
                async with connect(self._url, compression=None, open_timeout=_OPEN_S) as connection:
                    await self._through(connection)
            except ConnectionClosed as error:
                refused = error.rcvd is not None and error.rcvd.code == TRY_AGAIN_LATER
                self.result.lost += not refused
            except OSError:
                self.result.lost += 1
            finally:
                self._let_go()
            if not self._over(self._place):
                await asyncio.sleep(min(8.0, 0.5 * 2 ** min(self.result.attempts, 4)))
                self._skip()
        return self.result

    async def _through(self, connection: ClientConnection) -> None:
        """Speak over one connection, from the next chunk that is due on."""
        await connection.recv()  # the admission; a refused stream is closed instead
        self._skip()
        reading = asyncio.get_running_loop().create_task(self._read(connection))
        first = self._place
        try:
            while not self._over(self._place):
                place, due_s = self._place, self._due(self._place)
                await asyncio.sleep(due_s - time.monotonic())
                self._place += 1
                noise = snr_words(self._snr(place))
                self._waiting[place - first] = due_s
                self.result.lags_s.append(max(0.0, time.monotonic() - due_s))
                await connection.send(encoded(Audio(self._audio(place)), due_s=due_s, arrival_s=due_s - self._begin_s))
                if not self._over(self._place):  # a word is recognised shortly after its end
                    self.result.said += [(word, noise) for word in self._words(place)]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_answered(), _SETTLE_S)
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionClosed):
                await reading

    async def _read(self, connection: ClientConnection) -> None:
        async for message in connection:
            answer: dict[str, Any] = json.loads(message)
            due_s = self._waiting.pop(answer["chunk"])
            second = int(due_s - self._begin_s)
            self.result.outcomes[answer["outcome"]] += 1
            self.result.answered[second] += answer["outcome"] in {"served", "filtered"}
            if "transcript" in answer:
                self.result.latencies.append((due_s - self._begin_s, time.monotonic() - due_s))
                self.result.passed[second] += 1
                self._take(Transcript(**answer["transcript"]))
            if not self._waiting:
                self._settled.set()

    def _take(self, transcript: Transcript) -> None:
        words = [(word, transcript.variant) for word in transcript.words]
        if transcript.final:
            self.result.heard += words
            self._partial = ()
        else:
            self._partial = words
        self._hear(self._speech.number, transcript)

    async def _all_answered(self) -> None:
        while self._waiting:
            self._settled.clear()
            await self._settled.wait()

    def _let_go(self) -> None:
        """Count what a connection left behind: chunks without an answer, and words of an utterance that goes on."""
        self.result.outcomes["unanswered"] += len(self._waiting)
        self._waiting.clear()
        self.result.heard += self._partial
        self._partial = ()

    def _skip(self) -> None:
        """Count the chunks that were due while there was no connection as refused."""
        now_s = time.monotonic()
        while not self._over(self._place) and self._due(self._place) < now_s:
            self.result.outcomes["refused"] += 1
            self._place += 1

    # -- what is said

    def _due(self, place: int) -> float:
        return self._begin_s + self._speech.start_s + (place + 1) * self._chunk / SAMPLE_RATE

    def _snr(self, place: int) -> float:
        return self._snr_db(self._due(place) - self._begin_s)

    def _over(self, place: int) -> bool:
        return self._due(place) > self._begin_s + self._speech.end_s

    def _span(self, place: int) -> tuple[int, int]:
        """Return the first sample of a chunk in its conversation, and how many the conversation has of whole chunks."""
        whole = len(self._speech.conversation.samples) // self._chunk * self._chunk
        return (self._first + place) * self._chunk % whole, whole

    def _audio(self, place: int) -> npt.NDArray[np.int16]:
        begin, _ = self._span(place)
        clean = self._speech.conversation.samples[begin : begin + self._chunk].astype(np.float32) / 32_768
        level = LEVEL * 10 ** (-self._snr(place) / 20)
        at = (self._speech.number * 7919 + place * self._chunk) % (len(self._noise) - self._chunk)
        noisy = clean + np.float32(level) * self._noise[at : at + self._chunk]
        found: npt.NDArray[np.int16] = np.clip(np.rint(noisy * 32_767), -32_768, 32_767).astype(np.int16)
        return found

    def _words(self, place: int) -> list[str]:
        """Return the words that end in a chunk."""
        begin, _ = self._span(place)
        from_s, until_s = begin / SAMPLE_RATE, (begin + self._chunk) / SAMPLE_RATE
        return [word.text for word in self._speech.conversation.words if from_s <= word.end_s < until_s]
