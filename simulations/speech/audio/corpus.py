"""Conversations as files: audio, and what is said in it, that any tool can read."""

import json
import wave
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from simulations.speech.audio.spoken import SAMPLE_RATE, Conversation, SpokenWord

_INDEX = "corpus.json"
_WIDTH = 2  # bytes per sample


def write_corpus(folder: Path, conversations: Sequence[Conversation]) -> None:
    """Write each conversation as WAV to `folder`, and what is said in them to corpus.json; make the folder if needed.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, conversation in enumerate(conversations):
        name = f"conversation-{number:03}.wav"
        with wave.open(str(folder / name), "wb") as file:
            file.setparams((1, _WIDTH, SAMPLE_RATE, 0, "NONE", "not compressed"))
            file.writeframes(conversation.samples.astype("<i2").tobytes())
        entries.append(
            {
                "file": name,
                "snr_db": conversation.snr_db,
                "active": [list(interval) for interval in conversation.active],
                "words": [asdict(word) for word in conversation.words],
            }
        )
    index = {"sample_rate": SAMPLE_RATE, "conversations": entries}
    (folder / _INDEX).write_text(json.dumps(index, indent=1) + "\n")


def read_corpus(folder: Path) -> Sequence[Conversation]:
    """Return the conversations that `write_corpus` wrote.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is not what was written; the message names it.
    """
    path = folder / _INDEX
    try:
        entries = json.loads(path.read_text())["conversations"]
        return [
            Conversation(
                samples=_samples(folder / entry["file"]),
                words=tuple(SpokenWord(**word) for word in entry["words"]),
                active=tuple((start_s, end_s) for start_s, end_s in entry["active"]),
                snr_db=entry["snr_db"],
            )
            for entry in entries
        ]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: is no corpus: {error!r}") from None


def _samples(path: Path) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    try:
        with wave.open(str(path), "rb") as file:
            found = file.getnchannels(), file.getsampwidth(), file.getframerate()
            if found != (1, _WIDTH, SAMPLE_RATE):
                raise ValueError(
                    f"{path}: channels, bytes per sample and rate: {found}, must be {(1, _WIDTH, SAMPLE_RATE)}"
                )
            return np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(np.int16)
    except wave.Error as error:
        raise ValueError(f"{path}: {error}") from None
