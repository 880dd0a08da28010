"""Words from the scores of frames: the best label of each frame where it lasts, repetitions as one, blanks left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulations.speech.audio.spoken import SpokenWord
from simulations.speech.audio.texts import WORDS
from simulations.speech.recognition.encoder import BLANK
from simulations.speech.recognition.features import FRAME_S

LABELLED = 2
"""Frames that have the label of a word, from the end of the word on."""
SURE = 0.75
"""The probability from which a word is recognised in the first frame that has its label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A word that was recognised in frame number `frame` of its chunk, with the model's probability of it."""

    word: str
    frame: int
    confidence: float


class Last(NamedTuple):
    """What decoding keeps of a session: the label of its last frame, and the word recognised since the last blank."""

    label: int = BLANK
    word: int = BLANK


def heard(scores: npt.NDArray[np.float32], last: Last) -> tuple[Sequence[Heard], Last]:
    """Return the words in the scores of one session's chunk, and what to keep for the next.

    `scores` has shape (frames, LABELS). A word is recognised in the second frame in a row that has its label, or in the
    first where the model is sure of it: most wrong words are the best label of a single frame.
    """
    labels = scores.argmax(axis=1)
    found, (before, word) = [], last
    for frame in range(len(labels)):
        label = int(labels[frame])
        if label == BLANK:
            word = BLANK
        elif label != word:
            row = scores[frame]
            confidence = 1.0 / float(np.exp(row - row.max()).sum())
            if label == before or confidence >= SURE:
                found.append(Heard(word=WORDS[label], frame=frame, confidence=confidence))
                word = label
        before = label
    return found, Last(before, word)


def frame_labels(words: Sequence[SpokenWord], frames: int) -> npt.NDArray[np.int32]:
    """Return the label of each of `frames` frames for known words: the reference that a model is trained with."""
    labels = np.full(frames, BLANK, dtype=np.int32)
    free = 0
    for word in words:
        begin = max(free, int(np.ceil(word.end_s / FRAME_S)))
        labels[begin : begin + LABELLED] = WORDS.index(word.text)
        free = begin + 1
    return labels
