"""Log-mel features of a stream: 40 bands every 10 ms, four together as one frame of 40 ms."""

from functools import cache

import numpy as np
import numpy.typing as npt

from simulations.speech.audio.spoken import SAMPLE_RATE

Floats = npt.NDArray[np.float32]

FRAME = 640
"""Samples of a frame, 40 ms: the unit of chunks, of recognition and of its times."""
FRAME_S = FRAME / SAMPLE_RATE
BANDS = 40
HOPS = 4  # windows of a frame
FEATURES = BANDS * HOPS
_HOP = FRAME // HOPS
_WINDOW = 400  # 25 ms
OVERLAP = _WINDOW - _HOP
"""Samples before a chunk that its first window needs: the state of a session here."""
_SPECTRUM = 512
_LOWEST_HZ, _HIGHEST_HZ = 80.0, 7600.0
_FLOOR = 1e-7
_MEAN, _SCALE = -5.0, 0.25  # of the logarithms of this project's conversations, so that features are about ±1


def log_mel(samples: Floats, overlap: Floats) -> tuple[Floats, Floats]:
    """Return the features of chunks of several sessions, and what each has to keep for its next chunk.

    `samples` has shape (sessions, frames × FRAME), within ±1; `overlap`, and the second result, (sessions, OVERLAP),
    zeros for a new session. The features have shape (sessions, frames, FEATURES). A frame depends on its own samples
    and the overlap only, not on the lengths of chunks.
    """
    joined = np.concatenate((overlap, samples), axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(joined, _WINDOW, axis=1)[:, ::_HOP]
    spectrum = np.fft.rfft(windows * _hann(), _SPECTRUM).astype(np.complex64)
    power = np.square(spectrum.real) + np.square(spectrum.imag)
    bands = np.log(power @ _filters() + np.float32(_FLOOR))
    frames = samples.shape[1] // FRAME
    features = ((bands - np.float32(_MEAN)) * np.float32(_SCALE)).reshape(len(samples), frames, FEATURES)
    return features, joined[:, -OVERLAP:]


@cache
def _hann() -> Floats:
    return np.hanning(_WINDOW).astype(np.float32)


@cache
def _filters() -> Floats:
    """Return triangular filters of shape (bins, BANDS), at equal distances on the mel scale (2595 log10(1 + f/700))."""
    mel = np.linspace(_mel(_LOWEST_HZ), _mel(_HIGHEST_HZ), BANDS + 2)
    edges_hz = 700 * (10 ** (mel / 2595) - 1)
    bins_hz = np.fft.rfftfreq(_SPECTRUM, 1 / SAMPLE_RATE)[:, None]
    rising = (bins_hz - edges_hz[:-2]) / (edges_hz[1:-1] - edges_hz[:-2])
    falling = (edges_hz[2:] - bins_hz) / (edges_hz[2:] - edges_hz[1:-1])
    return np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)


def _mel(frequency_hz: float) -> float:
    return float(2595 * np.log10(1 + frequency_hz / 700))
