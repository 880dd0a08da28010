"""WebRTC's voice activity detection: hardly any work per chunk, and open for all in noise."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simulations.speech.audio.spoken import SAMPLE_RATE

AGGRESSIVENESS = 2
"""Of 0 to 3: how readily it calls a frame noise."""
_FRAME = SAMPLE_RATE // 50  # 20 ms: WebRTC takes 10, 20 or 30 ms


class WebRtcDetector:
    """Gaussian mixtures over six bands, one model per session; sessions are worked on one after the other."""

    def __init__(self) -> None:
        """Create a detector without sessions.

        Raises:
            ModuleNotFoundError: webrtcvad-wheels is not installed.
        """
        import webrtcvad

        self._create = webrtcvad.Vad
        self._sessions: dict[str, webrtcvad.Vad] = {}

    def open(self, session: str) -> None:
        """Begin a session."""
        self._sessions[session] = self._create(AGGRESSIVENESS)

    def close(self, session: str) -> None:
        """Forget a session, if there is one."""
        self._sessions.pop(session, None)

    def speech(self, sessions: Sequence[str], chunks: npt.NDArray[np.int16]) -> Sequence[bool]:
        """Return whether the next chunk of each session has a frame of 20 ms with speech.

        Raises:
            ValueError: the samples are no whole number of frames.
            KeyError: a session has not begun.
        """
        if chunks.shape[1] == 0 or chunks.shape[1] % _FRAME:
            raise ValueError(f"chunks: {chunks.shape[1]} samples, must be a multiple of {_FRAME} (20 ms)")
        found = []
        for session, chunk in zip(sessions, chunks, strict=True):
            detector = self._sessions[session]
            # Each frame is looked at, for the detector learns the noise from all.
            frames = [detector.is_speech(frame.tobytes(), SAMPLE_RATE) for frame in chunk.reshape(-1, _FRAME)]
            found.append(any(frames))
        return found
