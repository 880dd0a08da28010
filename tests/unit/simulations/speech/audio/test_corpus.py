"""Conversations as files."""

import wave
from pathlib import Path

import pytest

from simulations.speech.audio.corpus import read_corpus, write_corpus
from simulations.speech.audio.synthesis import Request, conversations


def test_what_was_written_is_read_again_and_the_files_are_the_same_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        spoken = tuple(conversations(Request(seed=seed, duration_s=4.0) for seed in range(2)))
        write_corpus(tmp_path / name, spoken)
    first, second = (sorted((tmp_path / name).iterdir()) for name in ("one", "two"))
    assert [path.name for path in first] == ["conversation-000.wav", "conversation-001.wav", "corpus.json"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    for before, after in zip(spoken, read_corpus(tmp_path / "two"), strict=True):
        assert before.samples.tolist() == after.samples.tolist()
        assert (before.words, before.active, before.snr_db) == (after.words, after.active, after.snr_db)


def test_a_file_that_is_something_else_is_named(tmp_path: Path) -> None:
    write_corpus(tmp_path, tuple(conversations([Request(seed=1, duration_s=2.0)])))
    with wave.open(str(tmp_path / "conversation-000.wav"), "wb") as file:
        file.setparams((2, 2, 44_100, 0, "NONE", "not compressed"))
    with pytest.raises(
        ValueError, match=r"conversation-000\.wav: channels, bytes per sample and rate: \(2, 2, 44100\)"
    ):
        read_corpus(tmp_path)
    (tmp_path / "corpus.json").write_text("[]")
    with pytest.raises(ValueError, match=r"corpus\.json: is no corpus"):
        read_corpus(tmp_path)
