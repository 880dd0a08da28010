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


def test_errors_are_those_of_the_model_that_heard_the_words() -> None:
    said = ["please", "call", "anna", "at", "two", "two", "nine"]
    heard = [
        ("please", "large"),
        ("call", "large"),
        ("hanna", "large"),
        ("at", "tiny"),
        ("two", "tiny"),
        ("nine", "tiny"),
    ]
    found = word_errors_by(said, [*heard, ("nine", "tiny")])
    assert found["large"] == WordErrors(substitutions=1, words=3)
    assert found["tiny"].words == 4
    assert found["tiny"].substitutions + found["tiny"].deletions + found["tiny"].insertions == 1
    assert word_errors_by(["a"], []) == {"": WordErrors(deletions=1, words=1)}
    assert word_errors_by(["a", "b"], [("b", "tiny")]) == {"tiny": WordErrors(deletions=1, words=2)}


def test_the_rate_of_several_texts_is_that_of_their_words_together() -> None:
    total = word_errors(["a"], ["b"]) + word_errors(["a", "b", "c"], ["a", "b", "c"])
    assert total.rate == 0.25
    assert WordErrors().rate is None
