"""What items carry from stage to stage: audio, then transcripts, then finished utterances with their scores."""

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from simulations.speech.recognition.encoder import LABELS
from simulations.speech.recognition.features import FRAME

_LENGTH = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Audio:
    """A chunk of a session: `samples` of shape (n,), int16, and whether an utterance ends in it, as far as is known."""

    samples: npt.NDArray[np.int16]
    ends: bool = False

    def encode(self) -> bytes:
        """Return it as bytes: one for `ends`, then the samples in little endian."""
        return bytes([self.ends]) + self.samples.astype("<i2").tobytes()

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Return the chunk in `payload`, of a whole number of frames.

        Raises:
            ValueError: the payload is not a chunk.
        """
        if len(payload) < 2 or (len(payload) - 1) % (2 * FRAME) or payload[0] > 1:
            raise ValueError(
                f"chunk: {len(payload)} bytes, must be one flag (0 or 1) and a multiple of {FRAME} samples of two bytes"
            )
        return cls(np.frombuffer(payload, dtype="<i2", offset=1), bool(payload[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The words of the present utterance by `variant`: those so far, or all if it is `final`.

    `confidence` is the model's probability of the least certain word, 1 without words.
    """

    variant: str
    words: Sequence[str]
    confidence: float
    final: bool

    def encode(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Return the transcript in `payload`.

        Raises:
            ValueError: the payload is not a transcript.
        """
        try:
            fields: dict[str, Any] = json.loads(payload)
            return cls(**{**fields, "words": tuple(fields["words"])})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"transcript: {error}") from None


@dataclass(frozen=True, slots=True)
class Utterance:
    """A finished utterance: what was recognised, and the scores of its frames, of shape (frames, LABELS)."""

    transcript: Transcript
    scores: npt.NDArray[np.float32]

    def encode(self) -> bytes:
        """Return it as bytes: the length of the transcript, the transcript, and the scores as float16."""
        text = self.transcript.encode()
        return _LENGTH.pack(len(text)) + text + self.scores.astype("<f2").tobytes()

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Return the utterance in `payload`.

        Raises:
            ValueError: the payload is not an utterance.
        """
        if len(payload) < _LENGTH.size:
            raise ValueError(f"utterance: {len(payload)} bytes, must be at least {_LENGTH.size}")
        (length,) = _LENGTH.unpack_from(payload)
        text, rest = payload[_LENGTH.size : _LENGTH.size + length], payload[_LENGTH.size + length :]
        frame = LABELS * np.dtype("<f2").itemsize
        if len(text) < length or len(rest) % frame:
            raise ValueError(f"utterance: {len(rest)} bytes of scores, must be a multiple of {frame}")
        scores = np.frombuffer(rest, dtype="<f2").reshape(-1, LABELS).astype(np.float32)
        return cls(Transcript.decode(text), scores)
