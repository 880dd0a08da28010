from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from simulations.speech.audio.spoken import SAMPLE_RATE, Conversation
from simulations.speech.audio.synthesis import Request, conversations
from simulations.speech.detection.gate import HANGOVER_S, Detector, Gate
from simulations.speech.detection.silero import SileroDetector
from simulations.speech.detection.webrtc import WebRtcDetector

CHUNK = 2560  # 160 ms


def spoken(snr_db: float) -> Sequence[Conversation]:
    return tuple(conversations(Request(seed=seed, snr_db=snr_db) for seed in range(4)))


def passed(detector: Detector, audio: Sequence[Conversation], chunk: int = CHUNK) -> npt.NDArray[np.bool_]:
    """Return which chunks of each conversation pass, of shape (conversations, chunks)."""
    gate, sessions = Gate(detector), [str(number) for number in range(len(audio))]
    for session in sessions:
        gate.open(session)
    samples = np.stack([each.samples for each in audio])
    begins = range(0, samples.shape[1] - chunk + 1, chunk)
    verdicts = [gate.passes(sessions, samples[:, begin : begin + chunk]) for begin in begins]
    return np.array([[each.passes for each in row] for row in verdicts]).T


def recall(found: npt.NDArray[np.bool_], audio: Sequence[Conversation]) -> float:
    """Return the share of the chunks passed whose middle is in speech."""
    active = [
        [any(a <= (place + 0.5) * CHUNK / SAMPLE_RATE < b for a, b in each.active) for place in range(found.shape[1])]
        for each in audio
    ]
    return float(found[np.array(active)].mean())


@pytest.mark.parametrize("detector", [WebRtcDetector, SileroDetector])
def test_speech_passes_and_most_silence_does_not(detector: Callable[[], Detector]) -> None:
    audio = spoken(30.0)
    found, activity = passed(detector(), audio), np.mean([each.activity for each in audio])
    assert recall(found, audio) > 0.98
    assert activity < found.mean() < activity + 0.2


def test_in_noise_the_cheap_detector_lets_all_pass_and_the_dear_one_holds() -> None:
    audio = spoken(8.0)
    cheap, dear = passed(WebRtcDetector(), audio), passed(SileroDetector(), audio)
    assert cheap.mean() > 0.98
    assert dear.mean() < 0.65
    assert recall(dear, audio) > 0.98


def test_sessions_of_a_batch_are_judged_as_alone() -> None:
    audio = spoken(15.0)
    together = passed(SileroDetector(), audio)
    for place, each in enumerate(audio):
        assert np.array_equal(passed(SileroDetector(), [each])[0], together[place])


@pytest.mark.parametrize("chunk", [640, 10_240])
def test_chunks_of_40_to_640_ms_are_judged(chunk: int) -> None:
    audio = spoken(15.0)[:1]
    for detector in (WebRtcDetector(), SileroDetector()):
        assert 0.4 < passed(detector, audio, chunk).mean() < 0.85


class Said:
    """Finds speech where a test says so."""

    def __init__(self, *answers: bool) -> None:
        self._answers = list(answers)

    def open(self, session: str) -> None:
        pass

    def close(self, session: str) -> None:
        pass

    def speech(self, sessions: Sequence[str], chunks: npt.NDArray[np.int16]) -> Sequence[bool]:
        return [self._answers.pop(0)]


def test_chunks_pass_for_the_hangover_after_speech() -> None:
    gate = Gate(Said(False, True, False, False, False, False))
    gate.open("a")
    chunk = np.zeros((1, 1600), dtype=np.int16)  # 100 ms
    assert pytest.approx(0.3) == HANGOVER_S
    found = [gate.passes(["a"], chunk)[0] for _ in range(6)]
    assert [each.passes for each in found] == [False, True, True, True, True, False]
    assert [each.ends for each in found] == [False, False, False, False, True, False]


@pytest.mark.parametrize("detector", [WebRtcDetector, SileroDetector])
def test_a_session_that_ended_is_unknown(detector: Callable[[], Detector]) -> None:
    found = detector()
    found.open("a")
    found.close("a")
    found.close("a")
    with pytest.raises(KeyError):
        found.speech(["a"], np.zeros((1, CHUNK), dtype=np.int16))


def test_webrtc_needs_whole_frames() -> None:
    with pytest.raises(ValueError, match="chunks: 100 samples, must be a multiple of 320"):
        WebRtcDetector().speech([], np.zeros((0, 100), dtype=np.int16))
