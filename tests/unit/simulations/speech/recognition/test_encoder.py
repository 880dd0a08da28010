"""The trained variants on speech that they were not trained with: a closed domain, so a regression instrument only."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from simulations.speech.audio.spoken import Conversation
from simulations.speech.audio.synthesis import Request, conversations
from simulations.speech.recognition.encoder import VARIANTS, WEIGHTS, Model
from simulations.speech.recognition.errors import WordErrors, word_errors
from simulations.speech.recognition.features import FRAME
from simulations.speech.recognition.recogniser import Recogniser
from simulations.speech.recognition.state_cache import StateCache

CEILINGS = {
    ("tiny", 30.0): 0.05,
    ("tiny", 8.0): 0.09,
    ("small", 30.0): 0.01,
    ("small", 8.0): 0.01,
    ("large", 30.0): 0.01,
    ("large", 8.0): 0.01,
}


@cache
def spoken(snr_db: float) -> Sequence[Conversation]:
    return tuple(conversations(Request(seed=seed, snr_db=snr_db) for seed in range(12)))


def recognised(variant: str, audio: Sequence[Conversation], frames: int) -> list[list[str]]:
    """Return the words of each conversation, recognised together in chunks of `frames`."""
    model = Model.load(variant)
    recogniser = Recogniser(model, StateCache(model.shape, len(audio), idle_s=60.0, clock=lambda: 0.0))
    sessions = [str(number) for number in range(len(audio))]
    for session in sessions:
        recogniser.cache.open(session)
    samples = np.stack([each.samples for each in audio])
    words: list[list[str]] = [[] for _ in audio]
    step = frames * FRAME
    for begin in range(0, samples.shape[1] - step + 1, step):
        for found, heard in zip(words, recogniser.recognise(sessions, samples[:, begin : begin + step]), strict=True):
            found += [each.word for each in heard.words]
    return words


@pytest.mark.parametrize(("variant", "snr_db"), CEILINGS)
def test_the_word_error_rate_is_below_its_ceiling(variant: str, snr_db: float) -> None:
    audio, total = spoken(snr_db), WordErrors()
    for conversation, words in zip(audio, recognised(variant, audio, 4), strict=True):
        total += word_errors(conversation.text.split(), words)
    print(f"{variant} at {snr_db:g} dB: {total.rate:.2%} of {total.words} words (closed domain)")
    assert total.rate is not None
    assert total.rate <= CEILINGS[variant, snr_db]


@pytest.mark.parametrize("frames", [1, 16])
def test_the_words_do_not_depend_on_the_length_of_chunks(frames: int) -> None:
    audio = spoken(30.0)[:3]
    for one, other in zip(recognised("small", audio, frames), recognised("small", audio, 2), strict=True):
        shorter = min(len(one), len(other))  # the rest of a chunk at the end is left out
        assert one[:shorter] == other[:shorter]
        assert abs(len(one) - len(other)) <= 2


def test_the_weights_are_small_enough_to_be_carried() -> None:
    sizes = {variant: (WEIGHTS / f"{variant}.npz").stat().st_size for variant in VARIANTS}
    assert sum(sizes.values()) <= 4 << 20
    assert sizes["tiny"] < sizes["small"] < sizes["large"]
