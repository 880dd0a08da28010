import numpy as np
import numpy.typing as npt
import pytest

from simulations.speech.audio.texts import WORDS
from simulations.speech.recognition.decoding import Last, heard
from simulations.speech.recognition.encoder import BLANK, LABELS
from simulations.speech.recognition.rescoring import bigrams, rescored


def scores(*frames: dict[str, float]) -> npt.NDArray[np.float32]:
    """Return scores of frames with the given ones, and 0 for all other labels; "" is the blank."""
    found = np.zeros((len(frames), LABELS), dtype=np.float32)
    for row, frame in zip(found, frames, strict=True):
        for word, score in frame.items():
            row[WORDS.index(word) if word else BLANK] = score
    return found


SURE, QUIET = 15.0, {"": 15.0}


def spoken(*words: str) -> npt.NDArray[np.float32]:
    return scores(*(frame for word in words for frame in ({word: SURE}, {word: SURE}, QUIET)))


def test_words_that_are_certain_stay() -> None:
    text = ["please", "call", "anna", "at", "two", "two", "nine"]
    assert rescored(spoken(*text)) == text


def test_what_is_said_in_the_domain_decides_between_words_that_sound_alike() -> None:
    audio = spoken("please", "call", "anna")
    doubtful = scores({"close": 9.1, "call": 9.0}, {"close": 9.1, "call": 9.0})
    audio = np.concatenate((audio[:3], doubtful, audio[5:]))
    assert [each.word for each in heard(audio, Last())[0]] == ["please", "close", "anna"]
    assert rescored(audio) == ["please", "call", "anna"]


def test_silence_has_no_words() -> None:
    assert rescored(scores(*[QUIET] * 5)) == []


def test_the_language_model_is_a_probability_over_words_after_each_word() -> None:
    assert np.exp(bigrams()).sum(axis=1) == pytest.approx(1.0)
    assert np.exp(bigrams())[WORDS.index("please"), WORDS.index("call")] > 0.9
