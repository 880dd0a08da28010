import numpy as np
import pytest

from simulations.speech.recognition.features import BANDS, FEATURES, FRAME, HOPS, OVERLAP, log_mel


def test_chunks_give_the_features_of_the_whole() -> None:
    samples = np.random.default_rng(1).normal(0, 0.1, (2, 12 * FRAME)).astype(np.float32)
    empty = np.zeros((2, OVERLAP), dtype=np.float32)
    whole, _ = log_mel(samples, empty)
    assert whole.shape == (2, 12, FEATURES)
    found, overlap = [], empty
    for begin, end in ((0, 1), (1, 5), (5, 12)):
        features, overlap = log_mel(samples[:, begin * FRAME : end * FRAME], overlap)
        found.append(features)
    assert np.concatenate(found, axis=1) == pytest.approx(whole, abs=1e-5)


@pytest.mark.parametrize("frequency_hz", [200.0, 1000.0, 5000.0])
def test_a_tone_is_loudest_in_its_own_band(frequency_hz: float) -> None:
    tone = 0.1 * np.sin(2 * np.pi * frequency_hz * np.arange(4 * FRAME) / 16_000)
    features, _ = log_mel(tone[None].astype(np.float32), np.zeros((1, OVERLAP), dtype=np.float32))
    loudest = features[0, 2].reshape(HOPS, BANDS).argmax(axis=1)
    lowest, highest = 2595 * np.log10(1 + np.array([80.0, 7600.0]) / 700)
    mel = np.linspace(lowest, highest, BANDS + 2)[1:-1]
    centre_hz = 700 * (10 ** (mel[loudest] / 2595) - 1)
    assert centre_hz == pytest.approx(frequency_hz, rel=0.15)


def test_ten_times_the_amplitude_adds_the_same_to_all_bands() -> None:
    samples = np.random.default_rng(2).normal(0, 0.05, (1, 4 * FRAME)).astype(np.float32)
    empty = np.zeros((1, OVERLAP), dtype=np.float32)
    quiet, loud = log_mel(samples, empty)[0], log_mel(10 * samples, empty)[0]
    assert loud - quiet == pytest.approx(np.log(100) * 0.25, abs=1e-3)
