"""The recogniser of a replica: chunks of several sessions in, words out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulations.speech.recognition.decoding import Heard, Last, heard
from simulations.speech.recognition.encoder import Model, encode
from simulations.speech.recognition.features import FRAME, log_mel
from simulations.speech.recognition.state_cache import StateCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognised:
    """The words that end in a chunk, and the scores of its frames, of shape (frames, LABELS)."""

    words: Sequence[Heard]
    scores: npt.NDArray[np.float32]


class Recogniser:
    """Recognises chunks with `model`; the state of the sessions is in `cache`."""

    def __init__(self, model: Model, cache: StateCache) -> None:
        """Join a model with a cache of its shape."""
        self.model = model
        self.cache = cache

    def recognise(self, sessions: Sequence[str], chunks: npt.NDArray[np.int16]) -> Sequence[Recognised]:
        """Return what is recognised in the next chunk of each session, and keep the state after it.

        `chunks` has shape (sessions, samples), at 16,000 samples per second; all have the same whole number of frames
        of 40 ms. A session comes once: its second chunk needs the state after its first.

        Raises:
            ValueError: the samples are no whole number of frames, or a session comes twice.
            KeyError: a session has no slot.
        """
        scores = self.scores(sessions, chunks)
        last, found = self.cache.last, []
        for slot, row in zip(self.cache.slots(sessions), scores, strict=True):
            words, last[slot] = heard(row, Last(*last[slot].tolist()))
            found.append(Recognised(words=words, scores=row))
        return found

    def scores(self, sessions: Sequence[str], chunks: npt.NDArray[np.int16]) -> npt.NDArray[np.float32]:
        """Return the scores of labels, of shape (sessions, frames, LABELS); the rest is as in `recognise`."""
        if chunks.shape[1] == 0 or chunks.shape[1] % FRAME:
            raise ValueError(f"chunks: {chunks.shape[1]} samples, must be a multiple of {FRAME} (40 ms)")
        if len(set(sessions)) < len(sessions):
            raise ValueError("sessions: one comes twice in a batch")
        cache, slots = self.cache, self.cache.slots(sessions)
        samples = chunks.astype(np.float32) / np.float32(32_768)
        features, cache.overlap[slots] = log_mel(samples, cache.overlap[slots])
        scores: npt.NDArray[np.float32]
        scores, cache.state[slots] = encode(self.model, features, cache.state[slots])
        return scores
