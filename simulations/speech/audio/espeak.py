"""Speech from text by eSpeak NG, with the time of each word.

The library comes with the package espeakng-loader. It is under the GPL, so it is a dependency of development and of
demonstrations only: nothing that is installed with the operator imports this module.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulations.speech.audio.spoken import SpokenWord

SAMPLE_RATE = 22_050
"""Samples per second of what eSpeak NG returns."""

AUDIBLE = 1e-3
"""The amplitude above which a sample belongs to speech: the voices are silent below it."""

# espeak-ng/src/include/espeak-ng/speak_lib.h
_SYNCHRONOUS_OUTPUT = 2
_CHARS_UTF8 = 1
_EVENT_WORD = 1
_EVENT_END = 0
_RATE, _PITCH = 1, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A voice by its name in eSpeak NG, its speed in words per minute, and its pitch (0 to 99)."""

    name: str
    words_per_minute: int
    pitch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Utterance:
    """A spoken sentence: `samples` of shape (n,), float32 within ±1, at `SAMPLE_RATE`, and its words in order."""

    samples: npt.NDArray[np.float32]
    words: Sequence[SpokenWord]


class _Identifier(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position_ms", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Identifier),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


class Synthesiser:
    """Speaks sentences. The library has one state per process: use one synthesiser, from one thread."""

    def __init__(self) -> None:
        """Load the library.

        Raises:
            ModuleNotFoundError: espeakng-loader is not installed.
            OSError: the library cannot be loaded, or does not begin.
        """
        import espeakng_loader

        self._library = ctypes.cdll.LoadLibrary(espeakng_loader.get_library_path())
        rate = self._library.espeak_Initialize(_SYNCHRONOUS_OUTPUT, 0, espeakng_loader.get_data_path().encode(), 0)
        if rate != SAMPLE_RATE:
            raise OSError(f"eSpeak NG: espeak_Initialize returned {rate}, expected {SAMPLE_RATE} samples per second")
        self._blocks: list[npt.NDArray[np.int16]] = []
        self._starts_s: dict[int, float] = {}  # by the position of the word's first character
        self._callback = _Callback(self._receive)
        self._library.espeak_SetSynthCallback(self._callback)

    def speak(self, text: str, voice: Voice) -> Utterance:
        """Return `text`, words with a space between, as `voice` speaks it, without silence before and after.

        Raises:
            OSError: the library refused the voice or the text.
        """
        self._blocks.clear()
        self._starts_s.clear()
        self._expect(self._library.espeak_ng_SetRandSeed(ctypes.c_long(1)), "seed")  # it is the time otherwise
        self._expect(self._library.espeak_SetVoiceByName(voice.name.encode()), f"voice {voice.name}")
        self._expect(self._library.espeak_SetParameter(_RATE, voice.words_per_minute, 0), "speed")
        self._expect(self._library.espeak_SetParameter(_PITCH, voice.pitch, 0), "pitch")
        encoded = text.encode()
        self._expect(
            self._library.espeak_Synth(encoded, len(encoded) + 1, 0, 1, 0, _CHARS_UTF8, None, None), f"text {text!r}"
        )
        self._expect(self._library.espeak_Synchronize(), "synchronisation")
        samples = np.concatenate(self._blocks).astype(np.float32) / np.float32(32_768)
        return _trimmed(samples, text, self._starts_s)

    def _receive(self, wave: "ctypes._Pointer[ctypes.c_short]", samples: int, events: "ctypes._Pointer[_Event]") -> int:
        if wave and samples > 0:
            self._blocks.append(np.ctypeslib.as_array(wave, (samples,)).astype(np.int16))
        position = 0
        while events[position].type != _EVENT_END:
            if events[position].type == _EVENT_WORD:
                self._starts_s[events[position].text_position - 1] = events[position].audio_position_ms / 1000
            position += 1
        return 0

    @staticmethod
    def _expect(status: int, what: str) -> None:
        if status != 0:
            raise OSError(f"eSpeak NG: {what}: error {status}")


def _trimmed(samples: npt.NDArray[np.float32], text: str, starts_s: Mapping[int, float]) -> Utterance:
    """Return the utterance of `text` without its silence before and after, with the times of its words."""
    audible = np.flatnonzero(np.abs(samples) > AUDIBLE)
    first, last = int(audible[0]), int(audible[-1]) + 1
    begin_s, end_s = first / SAMPLE_RATE, last / SAMPLE_RATE
    bounds_s = [min(max(start_s - begin_s, 0.0), end_s - begin_s) for start_s in _starts(text, starts_s, end_s)]
    bounds_s = [0.0, *bounds_s[1:], end_s - begin_s]
    words = tuple(
        SpokenWord(text=word, start_s=start_s, end_s=stop_s)
        for word, start_s, stop_s in zip(text.split(), bounds_s, bounds_s[1:], strict=False)
    )
    return Utterance(samples=samples[first:last], words=words)


def _starts(text: str, starts_s: Mapping[int, float], end_s: float) -> Sequence[float]:
    """Return when each word of `text` starts, in seconds.

    eSpeak NG has one event for some pairs of function words ("in the"): words without one share the time up to the next
    event by their numbers of letters.
    """
    words = text.split()
    positions = [sum(len(word) + 1 for word in words[:index]) for index in range(len(words))]
    found: list[float] = []
    index = 0
    while index < len(words):
        following = next((i for i in range(index + 1, len(words)) if positions[i] in starts_s), len(words))
        begin_s = starts_s.get(positions[index], 0.0)
        until_s = end_s if following == len(words) else starts_s[positions[following]]
        letters = np.cumsum([0, *(len(word) for word in words[index:following])])
        found += [begin_s + (until_s - begin_s) * float(share) for share in letters[:-1] / letters[-1]]
        index = following
    return found
