"""Silero's voice activity detection: a small recurrent network, dearer than WebRTC's, which holds in noise."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simulations.speech.audio.spoken import SAMPLE_RATE

THRESHOLD = 0.5
"""The probability of speech from which a window counts as speech."""
_WINDOW = 512  # 32 ms
_CONTEXT = 64  # samples before a window that the network sees too
_MODEL = Path(__file__).with_name("silero_vad_16k.onnx")


class _Session:
    """The state of one session: the network's own, the context of its next window, and samples of a window begun."""

    __slots__ = ("context", "rest", "state")

    def __init__(self) -> None:
        self.state = np.zeros((2, 128), dtype=np.float32)
        self.context = np.zeros(_CONTEXT, dtype=np.float32)
        self.rest = np.zeros(0, dtype=np.float32)


class SileroDetector:
    """Works on the windows of all sessions of a batch together."""

    def __init__(self) -> None:
        """Load the model.

        Raises:
            ModuleNotFoundError: onnxruntime is not installed.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._model = onnxruntime.InferenceSession(_MODEL, options, providers=["CPUExecutionProvider"])
        self._sessions: dict[str, _Session] = {}

    def open(self, session: str) -> None:
        """Begin a session."""
        self._sessions[session] = _Session()

    def close(self, session: str) -> None:
        """Forget a session, if there is one."""
        self._sessions.pop(session, None)

    def speech(self, sessions: Sequence[str], chunks: npt.NDArray[np.int16]) -> Sequence[bool]:
        """Return whether a window that ends in the next chunk of each session has speech.

        Windows are 32 ms and go on over the borders of chunks.

        Raises:
            KeyError: a session has not begun.
        """
        states = [self._sessions[session] for session in sessions]
        samples = chunks.astype(np.float32) / np.float32(32_768)
        waiting = [np.concatenate((state.rest, row)) for state, row in zip(states, samples, strict=True)]
        found = [False] * len(states)
        begin = 0
        while ready := [place for place, audio in enumerate(waiting) if len(audio) >= begin + _WINDOW]:
            windows = np.stack([waiting[place][begin : begin + _WINDOW] for place in ready])
            chances = self._chances([states[place] for place in ready], windows)
            for place, chance in zip(ready, chances, strict=True):
                found[place] |= bool(chance >= THRESHOLD)
            begin += _WINDOW
        for state, audio in zip(states, waiting, strict=True):
            state.rest = audio[len(audio) - len(audio) % _WINDOW :]
        return found

    def _chances(self, states: Sequence[_Session], windows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the probability of speech in the next window of each session, and keep the state after it."""
        contexts = np.stack([state.context for state in states])
        chances, after = self._model.run(
            None,
            {
                "input": np.concatenate((contexts, windows), axis=1),
                "state": np.stack([state.state for state in states], axis=1),
                "sr": np.array(SAMPLE_RATE, dtype=np.int64),
            },
        )
        for place, state in enumerate(states):
            state.state = after[:, place]
            state.context = windows[place, -_CONTEXT:]
        found: npt.NDArray[np.float32] = chances[:, 0]
        return found
