"""Audio whose words are known, as values."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SAMPLE_RATE = 16_000
"""Samples per second of conversations, which is what all stages take."""
LEVEL = 0.08
"""The root mean square of speech where full scale is 1, about -22 dB: noise is set to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenWord:
    """A word and when it is spoken, in seconds from the beginning of the audio."""

    text: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Audio of `SAMPLE_RATE` as `samples` of shape (n,), int16, and what is in it.

    `words` are in order, with times in seconds; `active` are the intervals of the utterances, in seconds. `snr_db` is
    the power of speech over that of noise, in dB, measured over the utterances.
    """

    samples: npt.NDArray[np.int16]
    words: Sequence[SpokenWord]
    active: Sequence[tuple[float, float]]
    snr_db: float

    @property
    def duration_s(self) -> float:
        """Return the length of the audio in seconds."""
        return len(self.samples) / SAMPLE_RATE

    @property
    def activity(self) -> float:
        """Return the share of the time in which there is speech."""
        return sum(end_s - start_s for start_s, end_s in self.active) / self.duration_s

    @property
    def text(self) -> str:
        """Return the words with a space between."""
        return " ".join(word.text for word in self.words)
