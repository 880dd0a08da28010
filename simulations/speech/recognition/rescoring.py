"""A second pass over an utterance: the words that the scores and a language model of the domain agree on best.

The time of an utterance depends on its length and on how uncertain its frames are. Utterances are not batched.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulations.speech.audio.texts import WORDS, sentence
from simulations.speech.recognition.encoder import BLANK

BEAM = 16
"""Hypotheses that are kept after each frame."""
_CANDIDATES = 8  # labels of a frame that are tried
_LEAST = -10.0  # log probability below which a label is not tried
_LM_WEIGHT = 0.5
_WORD_BONUS = 1.5  # a language model makes every word cost something
_SENTENCES = 4000
_SMOOTHING = 0.05
_START = len(WORDS)


class _Key(NamedTuple):
    words: tuple[int, ...]
    label: int


@cache
def bigrams() -> npt.NDArray[np.float64]:
    """Return log probabilities of shape (words + 1, words): of a word after another, the last row at a beginning."""
    chance, counts = random.Random("bigrams"), Counter[tuple[int, int]]()
    numbers = {word: number for number, word in enumerate(WORDS)}
    for _ in range(_SENTENCES):
        counts.update(pairwise([_START, *(numbers[word] for word in sentence(chance).split())]))
    table = np.full((len(WORDS) + 1, len(WORDS)), _SMOOTHING)
    for (before, word), count in counts.items():
        table[before, word] += count
    logarithms: npt.NDArray[np.float64] = np.log(table / table.sum(axis=1, keepdims=True))
    return logarithms


def rescored(scores: npt.NDArray[np.float32]) -> Sequence[str]:
    """Return the words of an utterance with `scores` of shape (frames, LABELS), by a beam search over frames."""
    language = bigrams()
    shifted = scores - scores.max(axis=1, keepdims=True)
    chances = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    beam: Mapping[_Key, float] = {_Key((), BLANK): 0.0}
    for frame in chances:
        likely = np.argpartition(-frame, _CANDIDATES)[:_CANDIDATES]
        labels = [(int(label), float(frame[label])) for label in likely if frame[label] > _LEAST]
        following: dict[_Key, float] = {}
        for (words, last), score in beam.items():
            for label, chance in labels:
                if label in (last, BLANK):
                    key, value = _Key(words, label), score + chance
                else:
                    before = words[-1] if words else _START
                    key = _Key((*words, label), label)
                    value = score + chance + _LM_WEIGHT * float(language[before, label]) + _WORD_BONUS
                if value > following.get(key, -np.inf):
                    following[key] = value
        beam = dict(sorted(following.items(), key=lambda each: -each[1])[:BEAM])
    totals: dict[tuple[int, ...], float] = {}
    for key, value in beam.items():
        totals[key.words] = max(value, totals.get(key.words, -np.inf))
    best = max(totals, key=lambda words: totals[words])
    return [WORDS[word] for word in best]
