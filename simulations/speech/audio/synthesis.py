"""Conversations from eSpeak NG: utterances of one voice with pauses between them, in noise, with all words known."""

import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
import numpy.typing as npt

from simulations.speech.audio.espeak import SAMPLE_RATE as SPOKEN_RATE
from simulations.speech.audio.espeak import Synthesiser, Voice
from simulations.speech.audio.spoken import LEVEL, SAMPLE_RATE, Conversation, SpokenWord
from simulations.speech.audio.texts import sentence

VOICES = ("en-us", "en-us+m3", "en-us+m7", "en-us+f2", "en-us+f4")
_SPEEDS = (125, 170)  # words per minute
_PITCHES = (30, 70)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of a conversation: `duration_s` seconds, of which about the share `activity` is speech.

    One voice speaks it all. The pauses between utterances are exponentially distributed. The noise is pink (1/f), at
    `snr_db`. Everything else follows from `seed`.
    """

    seed: int
    duration_s: float = 30.0
    activity: float = 0.45
    snr_db: float = 30.0

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ValueError: a field is outside its range; the message names it.
        """
        if not 0 < self.duration_s < float("inf"):
            raise ValueError(f"duration_s: {self.duration_s!r}, must be above 0 and finite")
        if not 0 < self.activity < 1:
            raise ValueError(f"activity: {self.activity!r}, must be above 0 and below 1")
        if not abs(self.snr_db) < float("inf"):
            raise ValueError(f"snr_db: {self.snr_db!r}, must be finite")


def conversations(requests: Iterable[Request], *, processes: int = 2) -> Iterator[Conversation]:
    """Yield the conversation of each request, in order, the same bytes each time.

    eSpeak NG has state that outlives an utterance and cannot be reset. Each conversation therefore comes from a process
    of its own.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(processes, mp_context=context, max_tasks_per_child=1) as executor:
        yield from executor.map(_conversation, requests)


def _conversation(request: Request) -> Conversation:
    return converse(Synthesiser(), request)


def converse(synthesiser: Synthesiser, request: Request) -> Conversation:
    """Return the conversation of `request`; the same bytes only for a synthesiser that has not spoken yet."""
    seed, duration_s, activity, snr_db = request.seed, request.duration_s, request.activity, request.snr_db
    chance = random.Random(f"{seed}/conversation")
    voice = Voice(
        name=chance.choice(VOICES), words_per_minute=chance.randint(*_SPEEDS), pitch=chance.randint(*_PITCHES)
    )
    speech = np.zeros(round(duration_s * SAMPLE_RATE), dtype=np.float32)
    words: list[SpokenWord] = []
    active: list[tuple[float, float]] = []
    at_s = chance.uniform(0.2, 1.0)
    while True:
        spoken = synthesiser.speak(sentence(chance), voice)
        samples = resampled(spoken.samples)
        begin, length = round(at_s * SAMPLE_RATE), len(samples)
        if begin + length > len(speech):
            break
        speech[begin : begin + length] = samples * (LEVEL / np.sqrt(np.mean(samples**2)))
        start_s, spoken_s = begin / SAMPLE_RATE, length / SAMPLE_RATE
        active.append((start_s, start_s + spoken_s))
        words += [
            SpokenWord(text=word.text, start_s=start_s + word.start_s, end_s=start_s + word.end_s)
            for word in spoken.words
        ]
        at_s += spoken_s + 0.2 + chance.expovariate(1.0) * max(0.0, spoken_s * (1 / activity - 1) - 0.2)
    noise = pink_noise(np.random.default_rng(seed), len(speech)) * np.float32(LEVEL * 10 ** (-snr_db / 20))
    return Conversation(samples=_as_int16(speech + noise), words=tuple(words), active=tuple(active), snr_db=snr_db)


def resampled(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return `samples` (at eSpeak NG's rate) at `SAMPLE_RATE`: the same spectrum up to half of that rate."""
    length = round(len(samples) * SAMPLE_RATE / SPOKEN_RATE)
    spectrum = np.fft.rfft(samples)[: length // 2 + 1]
    return (np.fft.irfft(spectrum, length) * (length / len(samples))).astype(np.float32)


def pink_noise(generator: np.random.Generator, samples: int) -> npt.NDArray[np.float32]:
    """Return noise of shape (samples,) with power 1, whose power falls as 1/f above 50 Hz."""
    spectrum = np.fft.rfft(generator.standard_normal(samples))
    frequencies = np.fft.rfftfreq(samples, 1 / SAMPLE_RATE)
    spectrum /= np.sqrt(np.maximum(frequencies, 50.0))
    noise = np.fft.irfft(spectrum, samples)
    found: npt.NDArray[np.float32] = (noise / np.sqrt(np.mean(noise**2))).astype(np.float32)
    return found


def _as_int16(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    return np.clip(np.rint(samples * 32_767), -32_768, 32_767).astype(np.int16)
