from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.speech.recognition.errors import WordErrors, word_errors, word_errors_by

texts = st.lists(st.sampled_from("abc"), max_size=6)


@pytest.mark.parametrize(
    ("said", "heard", "errors"),
    [
        ("call anna now", "call anna now", (0, 0, 0)),
        ("call anna now", "call hanna", (1, 1, 0)),
        ("call anna", "please call anna now", (0, 0, 2)),
        ("call anna", "", (0, 2, 0)),
        ("", "", (0, 0, 0)),
    ],
)
def test_errors_are_counted_by_kind(said: str, heard: str, errors: tuple[int, int, int]) -> None:
    found = word_errors(said.split(), heard.split())
    assert (found.substitutions, found.deletions, found.insertions) == errors
    assert found.words == len(said.split())


@given(texts, texts)
def test_there_are_as_few_errors_as_trying_everything_finds(said: list[str], heard: list[str]) -> None:
    @cache
    def fewest(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        return min(fewest(i - 1, j) + 1, fewest(i, j - 1) + 1, fewest(i - 1, j - 1) + (said[i - 1] != heard[j - 1]))

    found = word_errors(said, heard)
    assert found.substitutions + found.deletions + found.insertions == fewest(len(said), len(heard))
    assert len(said) - found.deletions + found.insertions == len(heard)


def test_errors_are_those_of_the_model_that_heard_the_words_and_of_the_noise_they_were_said_in() -> None:
    said = [
        *((word, "30 dB") for word in ("please", "call", "anna")),
        *((word, "8 dB") for word in ["at", "two", "two", "nine"]),
    ]
    heard = [
        ("please", "large"),
        ("call", "large"),
        ("hanna", "large"),
        ("at", "large"),
        ("two", "tiny"),
        ("nine", "tiny"),
    ]
    found = word_errors_by(said, [*heard, ("nine", "tiny")])
    assert found["30 dB", "large"] == WordErrors(substitutions=1, words=3)
    assert found["8 dB", "large"] == WordErrors(words=1)
    assert found["8 dB", "tiny"].words == 3
    assert found["8 dB", "tiny"].substitutions + found["8 dB", "tiny"].deletions + found["8 dB", "tiny"].insertions == 1


def test_words_that_were_not_heard_count_for_the_model_before_them() -> None:
    assert word_errors_by([("a", "8 dB")], []) == {("8 dB", ""): WordErrors(deletions=1, words=1)}
    missed = word_errors_by([("a", "8 dB"), ("b", "8 dB")], [("b", "tiny")])
    assert missed == {("8 dB", "tiny"): WordErrors(deletions=1, words=2)}
    assert word_errors_by([], [("a", "tiny")]) == {("", "tiny"): WordErrors(insertions=1)}


def test_the_rate_of_several_texts_is_that_of_their_words_together() -> None:
    total = word_errors(["a"], ["b"]) + word_errors(["a", "b", "c"], ["a", "b", "c"])
    assert total.rate == 0.25
    assert WordErrors().rate is None
