import numpy as np
import pytest

from simulations.speech.audio.spoken import SpokenWord
from simulations.speech.audio.texts import WORDS
from simulations.speech.recognition.decoding import Last, frame_labels, heard
from simulations.speech.recognition.encoder import BLANK, LABELS

TWO, NINE = WORDS.index("two"), WORDS.index("nine")


def scores(*labels: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    found = np.zeros((len(labels), LABELS), dtype=np.float32)
    found[np.arange(len(labels)), labels] = 10.0
    return found


def words(*labels: int, last: Last = Last()) -> list[tuple[str, int]]:  # noqa: B008 - it cannot change
    return [(each.word, each.frame) for each in heard(scores(*labels), last)[0]]


def test_repetitions_are_one_word_and_a_blank_between_makes_two() -> None:
    assert words(BLANK, TWO, TWO, BLANK, TWO, NINE) == [("two", 1), ("two", 4), ("nine", 5)]


def test_a_word_on_the_border_of_chunks_is_heard_once() -> None:
    found, last = heard(scores(BLANK, TWO), Last())
    assert [each.word for each in found] == ["two"]
    assert words(TWO, BLANK, last=last) == []


def test_a_doubtful_word_needs_a_second_frame() -> None:
    doubtful = scores(BLANK, TWO, NINE, NINE, BLANK)
    doubtful[1:4] /= 2  # 59 %
    found, last = heard(doubtful[:3], Last())
    assert found == []
    assert [(each.word, each.frame) for each in heard(doubtful[3:], last)[0]] == [("nine", 0)]


def test_confidence_is_the_probability_of_the_word() -> None:
    sure, _ = heard(scores(TWO), Last())
    assert sure[0].confidence == pytest.approx(1 / (1 + (LABELS - 1) * np.exp(-10)), rel=1e-5)


def test_the_labels_of_known_words_give_these_words() -> None:
    said = [("two", 0.1, 0.3), ("two", 0.3, 0.5), ("in", 0.5, 0.53), ("the", 0.53, 0.56), ("oslo", 0.56, 1.0)]
    labels = frame_labels([SpokenWord(text=text, start_s=a, end_s=b) for text, a, b in said], 30)
    found, _ = heard(scores(*labels), Last())
    assert [each.word for each in found] == [text for text, _, _ in said]
    assert all(0 <= each.frame * 0.04 - b <= 0.08 for each, (_, _, b) in zip(found, said, strict=True)), (
        "once a word has ended, and not later than two frames after it"
    )
