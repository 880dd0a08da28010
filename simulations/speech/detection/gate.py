"""The gate in front of recognition: chunks with speech pass, and those shortly after it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from simulations.speech.audio.spoken import SAMPLE_RATE

HANGOVER_S = 0.3
"""How long chunks pass after the last speech, in seconds: words end in it, and short pauses do not cut a sentence."""


class Detector(Protocol):
    """Says where there is speech, with state per session."""

    def open(self, session: str) -> None:
        """Begin a session."""

    def close(self, session: str) -> None:
        """Forget a session, if there is one."""

    def speech(self, sessions: Sequence[str], chunks: npt.NDArray[np.int16]) -> Sequence[bool]:
        """Return whether the next chunk of each session has speech in it.

        `chunks` has shape (sessions, samples), at 16,000 samples per second. A session comes once.

        Raises:
            KeyError: a session has not begun.
        """
        ...


class Verdict(NamedTuple):
    """Whether a chunk passes, and whether it is the last one of its utterance that does."""

    passes: bool
    ends: bool


class Gate:
    """Passes the chunks in which `detector` finds speech, and those that begin within the hang-over after one."""

    def __init__(self, detector: Detector) -> None:
        """Create a gate without sessions."""
        self._detector = detector
        self._silent_s: dict[str, float] = {}  # since the last chunk with speech

    def open(self, session: str) -> None:
        """Begin a session, in silence."""
        self._detector.open(session)
        self._silent_s[session] = HANGOVER_S

    def close(self, session: str) -> None:
        """Forget a session, if there is one."""
        self._detector.close(session)
        self._silent_s.pop(session, None)

    def passes(self, sessions: Sequence[str], chunks: npt.NDArray[np.int16]) -> Sequence[Verdict]:
        """Return whether the next chunk of each session passes; the rest is as for `Detector.speech`."""
        lasts_s = chunks.shape[1] / SAMPLE_RATE
        found = []
        for session, speech in zip(sessions, self._detector.speech(sessions, chunks), strict=True):
            silent_s = 0.0 if speech else self._silent_s[session]
            after_s = 0.0 if speech else silent_s + lasts_s
            passes = silent_s < HANGOVER_S
            found.append(Verdict(passes=passes, ends=passes and after_s >= HANGOVER_S))
            self._silent_s[session] = after_s
        return found
